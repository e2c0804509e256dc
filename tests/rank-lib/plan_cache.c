/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the plan cache by itself: what is asked is found, what is referred to stays, what is idle for longest
 * goes first.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/attach.h"
#include "rank-lib/call/plan_cache.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

static struct ferry_plan_key key_of(uint64_t count)
{
	return (struct ferry_plan_key){.collective = FERRY_ALLREDUCE, .type = ferryFloat, .count = count};
}

static struct ferry_plan_entry *add(struct ferry_plan_cache *cache, const struct ferry_plan_key *key, uint64_t hash)
{
	struct ferry_plan_entry *entry = calloc(1, sizeof *entry);
	assert_non_null(entry);
	entry->plan = calloc(1, sizeof *entry->plan);
	assert_non_null(entry->plan);
	entry->plan->hash = hash;
	entry->key = *key;
	assert_int_equal(ferry_plan_cache_add(cache, entry), ferrySuccess);
	return entry;
}

/* counts from .. from + n - 1, each with one reference. */
static void add_many(struct ferry_plan_cache *cache, uint64_t from, uint64_t n)
{
	for (uint64_t count = from; count < from + n; count++) {
		struct ferry_plan_key key = key_of(count);
		add(cache, &key, count);
	}
}

static struct ferry_plan_entry *take(struct ferry_plan_cache *cache, uint64_t count)
{
	struct ferry_plan_key key = key_of(count);
	return ferry_plan_cache_take(cache, &key);
}

/* Lets go of the one reference that add_many has left. */
static void make_idle(struct ferry_plan_cache *cache, uint64_t count)
{
	struct ferry_plan_entry *entry = take(cache, count);
	assert_non_null(entry);
	ferry_plan_cache_give_back(cache, entry);
	ferry_plan_cache_give_back(cache, entry);
}

static void entry_free(struct ferry_plan_entry *entry)
{
	free(entry->plan);
	free(entry);
}

static void close_cache(struct ferry_plan_cache *cache)
{
	for (struct ferry_plan_entry *entry; (entry = ferry_plan_cache_empty(cache));)
		entry_free(entry);
}

/* A look before a call takes no reference, and an entry that was only looked at goes as if it had not been. */
static void looking_is_no_use(void **state)
{
	(void)state;
	struct ferry_plan_cache cache = {0};
	struct ferry_plan_key first = key_of(1), none = key_of(FERRY_IDLE_PLANS + 2), mirrored = key_of(1);
	mirrored.left_out = (struct ferry_left_out){.count = 1, .mirrored = true};
	assert_null(ferry_plan_cache_look(&cache, &first));
	add_many(&cache, 1, FERRY_IDLE_PLANS + 1);
	for (uint64_t count = 1; count <= FERRY_IDLE_PLANS + 1; count++)
		make_idle(&cache, count);
	assert_true(ferry_plan_cache_look(&cache, &first)->key.count == 1);
	assert_null(ferry_plan_cache_look(&cache, &none));
	assert_null(ferry_plan_cache_look(&cache, &mirrored));
	assert_true(ferry_plan_cache_surplus(&cache)->key.count == 1);
	close_cache(&cache);
}

static void what_was_asked_is_found_among_thousands_and_nothing_else(void **state)
{
	(void)state;
	struct ferry_plan_cache cache = {0};
	const struct ferry_program *some = (const struct ferry_program *)&cache; /* never looked into */
	assert_null(take(&cache, 1));
	add_many(&cache, 1, 3000);
	for (uint64_t count = 1; count <= 3000; count++)
		assert_true(take(&cache, count)->key.count == count);
	assert_null(take(&cache, 3001));
	struct ferry_plan_key others[] = {key_of(7), key_of(7), key_of(7), key_of(7), key_of(7), key_of(7), key_of(7)};
	others[0].collective = FERRY_ALLGATHER;
	others[1].type = ferryDouble;
	others[2].redop = ferryMax;
	others[3].root = 1;
	others[4].program = some;
	others[5].left_out.count = 1;
	others[6].left_out.mirrored = true;
	for (int i = 0; i < 7; i++)
		assert_null(ferry_plan_cache_take(&cache, &others[i]));
	for (int i = 0; i < 7; i++) {
		struct ferry_plan_entry *added = add(&cache, &others[i], 10000);
		assert_ptr_equal(ferry_plan_cache_take(&cache, &others[i]), added);
	}
	close_cache(&cache);
}

static void plans_in_use_are_never_given_up_and_idle_ones_in_the_order_of_their_last_use(void **state)
{
	(void)state;
	struct ferry_plan_cache cache = {0};
	add_many(&cache, 1, 1000);
	assert_null(ferry_plan_cache_surplus(&cache)); /* all are in use */
	for (uint64_t count = 1; count <= FERRY_IDLE_PLANS; count++)
		make_idle(&cache, count);
	assert_null(ferry_plan_cache_surplus(&cache)); /* as many as may be */
	for (uint64_t count = 990; count < 1000; count++)
		make_idle(&cache, count);
	struct ferry_plan_entry *again = take(&cache, 2);
	ferry_plan_cache_give_back(&cache, again);
	for (uint64_t count = 1; count <= 11; count++) {
		if (count == 2) /* was used since */
			continue;
		struct ferry_plan_entry *entry = ferry_plan_cache_surplus(&cache);
		assert_non_null(entry);
		assert_true(entry->key.count == count);
		assert_ptr_equal(ferry_plan_cache_surplus(&cache), entry); /* its owner may leave it for later */
		ferry_plan_cache_remove(&cache, entry);
		entry_free(entry);
		assert_null(take(&cache, count));
	}
	assert_null(ferry_plan_cache_surplus(&cache));
	for (uint64_t count = 300; count < 990; count++)
		assert_non_null(take(&cache, count));
	close_cache(&cache);
}

static void where_routers_take_no_more_the_last_idle_plan_goes_too(void **state)
{
	(void)state;
	struct ferry_plan_cache cache = {0};
	add_many(&cache, 1, FERRY_MAX_PLANS);
	assert_null(ferry_plan_cache_surplus(&cache));
	make_idle(&cache, 77);
	struct ferry_plan_entry *entry = ferry_plan_cache_surplus(&cache);
	assert_true(entry && entry->key.count == 77);
	ferry_plan_cache_remove(&cache, entry);
	entry_free(entry);
	make_idle(&cache, 78);
	assert_null(ferry_plan_cache_surplus(&cache));
	close_cache(&cache);
}

static void a_hash_is_there_until_the_last_key_that_has_it_goes(void **state)
{
	(void)state;
	struct ferry_plan_cache cache = {0};
	struct ferry_plan_key one = key_of(1), other = key_of(2);
	assert_false(ferry_plan_cache_has(&cache, 5));
	struct ferry_plan_entry *entries[] = {add(&cache, &one, 5), add(&cache, &other, 5)};
	for (int i = 0; i < 2; i++) {
		assert_true(ferry_plan_cache_has(&cache, 5));
		ferry_plan_cache_give_back(&cache, entries[i]);
		ferry_plan_cache_remove(&cache, entries[i]);
		entry_free(entries[i]);
	}
	assert_false(ferry_plan_cache_has(&cache, 5));
	close_cache(&cache);
}

#define ROUNDS 20000

struct giver {
	struct ferry_plan_cache *cache;
	_Atomic(struct ferry_plan_entry *) hand; /* from the thread with the lock, to be given back */
	int wrong;
	pthread_t thread;
};

static void *give_back(void *argument)
{
	struct giver *giver = argument;
	for (int i = 0; i < ROUNDS; i++) {
		struct ferry_plan_entry *entry;
		while (!(entry = atomic_exchange_explicit(&giver->hand, NULL, memory_order_acquire)))
			sched_yield();
		giver->wrong += entry->plan->hash != entry->key.count;
		ferry_plan_cache_give_back(giver->cache, entry);
	}
	return NULL;
}

static void references_are_given_back_by_any_thread_while_plans_come_and_go(void **state)
{
	(void)state;
	struct ferry_plan_cache cache = {0};
	struct giver givers[2] = {{.cache = &cache}, {.cache = &cache}};
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&givers[i].thread, NULL, give_back, &givers[i]), 0);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++) {
			uint64_t count = (uint64_t)(round * (i + 1)) % 700;
			struct ferry_plan_key key = key_of(count);
			struct ferry_plan_entry *entry = ferry_plan_cache_take(&cache, &key);
			struct ferry_plan_entry *idle = ferry_plan_cache_surplus(&cache);
			if (idle) {
				ferry_plan_cache_remove(&cache, idle);
				entry_free(idle);
			}
			if (!entry)
				entry = add(&cache, &key, count);
			while (atomic_load_explicit(&givers[i].hand, memory_order_relaxed))
				sched_yield();
			atomic_store_explicit(&givers[i].hand, entry, memory_order_release);
		}
	for (int i = 0; i < 2; i++) {
		pthread_join(givers[i].thread, NULL);
		assert_int_equal(givers[i].wrong, 0);
	}
	assert_int_equal(atomic_load(&cache.busy), 0);
	assert_in_range(cache.nentries, FERRY_IDLE_PLANS, FERRY_IDLE_PLANS + 4);
	close_cache(&cache);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(what_was_asked_is_found_among_thousands_and_nothing_else),
	        cmocka_unit_test(looking_is_no_use),
	        cmocka_unit_test(plans_in_use_are_never_given_up_and_idle_ones_in_the_order_of_their_last_use),
	        cmocka_unit_test(where_routers_take_no_more_the_last_idle_plan_goes_too),
	        cmocka_unit_test(a_hash_is_there_until_the_last_key_that_has_it_goes),
	        cmocka_unit_test(references_are_given_back_by_any_thread_while_plans_come_and_go),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
