/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of communicators: Ferry knows each by every way in which it is made, and forgets it when it ends. */
#include "tests/nccl/heard.h"
#include "tests/nccl/ranks.h"

#include "ipc/error.h"

#include <sched.h>

/* Whether Ferry knows it, as rank `rank` of `nranks`; its key. */
static struct ferry_nccl_key known(ncclComm_t handle, int rank, int nranks, bool has_key)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	HOLDS(comm);
	HOLDS(ferry_nccl_comm_learn(comm));
	EQUAL(comm->rank, rank);
	EQUAL(comm->nranks, nranks);
	EQUAL(comm->has_key, has_key);
	struct ferry_nccl_key key = comm->key;
	ferry_nccl_comm_release(comm);
	return key;
}

static bool same(struct ferry_nccl_key a, struct ferry_nccl_key b)
{
	return !memcmp(&a, &b, sizeof a);
}

static void one_key_for_all(struct rank *ranks)
{
	for (int i = 1; i < RANKS; i++)
		HOLDS(same(ranks[0].key, ranks[i].key));
}

/* Another thread may be given the same handle at once, so it is this entry that is looked at. */
static void end(ncclComm_t handle, ncclResult_t (*function)(ncclComm_t handle))
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	HOLDS(comm && atomic_load(&comm->handle) == handle);
	NCCL(function(handle));
	HOLDS(!atomic_load(&comm->handle));
	ferry_nccl_comm_release(comm);
}

static void destroy(ncclComm_t handle)
{
	end(handle, ncclCommDestroy);
}

static void init_rank(struct rank *r)
{
	ncclConfig_t config = {sizeof config, 0, 0};
	ncclUniqueId ids[2] = {r->id, {"another"}};
	struct ferry_nccl_key keys[3];
	ranks_init(r);
	keys[0] = r->key = known(r->comm, r->rank, RANKS, true);
	destroy(r->comm);
	NCCL(ncclCommInitRankConfig(&r->comm, RANKS, r->id, r->rank, &config));
	keys[1] = known(r->comm, r->rank, RANKS, true);
	destroy(r->comm);
	NCCL(ncclCommInitRankScalable(&r->comm, RANKS, r->rank, 2, ids, NULL));
	keys[2] = known(r->comm, r->rank, RANKS, true);
	destroy(r->comm);
	HOLDS(same(keys[0], keys[1]) && !same(keys[0], keys[2]));
}

static void ranks_that_share_an_id_share_a_key(void **state)
{
	(void)state;
	struct rank *ranks = ranks_run(init_rank);
	one_key_for_all(ranks);
	struct rank *others = ranks_run(init_rank);
	HOLDS(!same(ranks[0].key, others[0].key));
	free(ranks);
	free(others);
}

static void all_of_one_process_share_a_key_of_their_own(void **state)
{
	(void)state;
	ncclComm_t comms[2][RANKS];
	static const int devices[RANKS] = {2, 0, 1};
	struct ferry_nccl_key keys[2];
	for (int again = 0; again < 2; again++) {
		NCCL(ncclCommInitAll(comms[again], RANKS, devices));
		for (int i = 0; i < RANKS; i++) {
			struct ferry_nccl_key key = known(comms[again][i], i, RANKS, true);
			HOLDS(!i || same(key, keys[again]));
			keys[again] = key;
			struct ferry_nccl_comm *comm = ferry_nccl_comm_take(comms[again][i]);
			EQUAL(comm->device, devices[i]);
			ferry_nccl_comm_release(comm);
		}
	}
	HOLDS(!same(keys[0], keys[1]));
	for (int i = 0; i < 2 * RANKS; i++)
		destroy(comms[i / RANKS][i % RANKS]);
}

static void one_thread_inits_all_ranks_in_a_group(void **state)
{
	(void)state;
	ncclComm_t comms[RANKS];
	ncclUniqueId id;
	NCCL(ncclGetUniqueId(&id));
	NCCL(ncclGroupStart());
	for (int i = 0; i < RANKS; i++)
		NCCL(ncclCommInitRank(&comms[i], RANKS, id, i));
	NCCL(ncclGroupEnd());
	for (int i = 0; i < RANKS; i++) {
		known(comms[i], i, RANKS, true);
		destroy(comms[i]);
	}
}

static void split(struct rank *r)
{
	ncclComm_t children[3];
	struct ferry_nccl_key keys[3];
	ranks_init(r);
	for (int i = 0; i < 2; i++) {
		NCCL(ncclCommSplit(r->comm, 7, RANKS - r->rank, &children[i], NULL)); /* in reverse */
		keys[i] = known(children[i], RANKS - 1 - r->rank, RANKS, true);
		NCCL(all_reduce(r, children[i]));
		EQUAL(calls_seen(children[i]), 1);
	}
	HOLDS(!same(keys[0], keys[1]));
	NCCL(ncclCommSplit(r->comm, r->rank ? 1 : -1, 0, &children[2], NULL));
	if (r->rank)
		known(children[2], r->rank - 1, RANKS - 1, true);
	else
		HOLDS(!children[2]);
	for (int i = 0; i < 3 - !r->rank; i++)
		destroy(children[i]);
	r->key = keys[1];
	destroy(r->comm);
}

static void communicators_out_of_one_have_keys_of_their_own(void **state)
{
	(void)state;
	struct rank *ranks = ranks_run(split);
	one_key_for_all(ranks);
	free(ranks);
}

static void split_without_color(struct rank *r)
{
	ncclComm_t *place = malloc(sizeof *place), other;
	ncclUniqueId id;
	ncclResult_t error;
	ranks_init(r);
	NCCL(ncclGetUniqueId(&id));
	NCCL(ncclCommInitRank(&other, 1, id, 0));
	struct ferry_nccl_key key = known(other, 0, 1, true);
	NCCL(ncclCommSplit(r->comm, -1, 0, place, NULL));
	HOLDS(!*place);
	*place = other; /* the memory is used again */
	NCCL(ncclCommGetAsyncError(r->comm, &error));
	HOLDS(same(key, known(other, 0, 1, true)));
	free(place);
	destroy(r->comm);
	HOLDS(same(key, known(other, 0, 1, true)));
	destroy(other);
}

static void nobody_looks_where_a_split_without_color_put_nothing(void **state)
{
	(void)state;
	free(ranks_run(split_without_color));
}

static void split_in_group(struct rank *r)
{
	ncclComm_t child = NULL, none = NULL;
	ranks_init(r);
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(r->comm, 0, 0, &child, NULL));
	HOLDS(!child);
	NCCL(ncclGroupEnd());
	known(child, r->rank, RANKS, true);
	destroy(child);
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(r->comm, -1, 0, &none, NULL));
	NCCL(ncclGroupEnd());
	HOLDS(!none);
	destroy(r->comm);
}

static void a_split_in_a_group_is_known_at_its_end(void **state)
{
	(void)state;
	free(ranks_run(split_in_group));
}

static void split_late(struct rank *r)
{
	ncclComm_t *child = malloc(sizeof *child), handle;
	ncclResult_t error = ncclInProgress;
	ranks_init(r);
	EQUAL(ncclCommSplit(r->comm, 0, 0, child, NULL), ncclInProgress);
	NCCL(ncclCommGetAsyncError(r->comm, &error));
	EQUAL(error, ncclInProgress);
	NCCL(ncclCommGetAsyncError(r->comm, &error));
	EQUAL(error, ncclSuccess);
	handle = *child;
	known(handle, r->rank, RANKS, true);
	free(child); /* nobody looks there any more */
	NCCL(ncclCommGetAsyncError(r->comm, &error));
	destroy(handle);
	destroy(r->comm);
}

static void a_split_that_does_not_block_is_known_when_it_is_ready(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_SPLIT_LATE", "1", 1);
	free(ranks_run(split_late));
	unsetenv("FAKE_NCCL_SPLIT_LATE");
}

struct nonblocking {
	ncclConfig_t head;
	int blocking;
};

static void init_nonblocking(struct rank *r)
{
	struct nonblocking config = {{sizeof config, 0, 0}, 0};
	ncclResult_t error = ncclInProgress;
	EQUAL(ncclCommInitRankConfig(&r->comm, RANKS, r->id, r->rank, &config.head), ncclInProgress);
	HOLDS(calls_seen(r->comm) == 0);
	while (error == ncclInProgress) {
		NCCL(ncclCommGetAsyncError(r->comm, &error));
		sched_yield();
	}
	known(r->comm, r->rank, RANKS, true);
	NCCL(all_reduce(r, r->comm));
	EQUAL(calls_seen(r->comm), 1);
	destroy(r->comm);
}

static void a_communicator_that_does_not_block_is_known_at_once(void **state)
{
	(void)state;
	free(ranks_run(init_nonblocking));
}

/* Rank 2 has failed, as far as the others know. */
static void shrink(struct rank *r)
{
	int gone[1] = {2};
	ncclComm_t child;
	ranks_init(r);
	if (r->rank < 2) {
		NCCL(ncclCommShrink(r->comm, gone, 1, &child, NULL, r->rank & 1));
		r->key = known(child, r->rank, RANKS - 1, true);
		NCCL(all_reduce(r, child));
		EQUAL(calls_seen(child), 1);
		destroy(child);
		NCCL(ncclSend(r->input, 0, ncclFloat32, 2, r->comm, NULL));
		EQUAL(calls_seen(r->comm), !r->rank); /* shrinking with ncclShrinkAbort ends the parent */
	}
	destroy(r->comm);
}

static void what_shrinking_leaves_has_a_key_of_its_own(void **state)
{
	(void)state;
	struct rank *ranks = ranks_run(shrink);
	HOLDS(same(ranks[0].key, ranks[1].key));
	free(ranks);
}

/*
 * Of what comes out of that parent, while the double does nothing: it would want the other ranks. NCCL's handle of it
 * is made up.
 */
static struct ferry_nccl_key heir_of(ncclComm_t parent, int color, int *excluded, int nexcluded)
{
	ncclComm_t heir = (ncclComm_t)&heir;
	fake_nccl_mirror(1, ncclSuccess);
	if (excluded)
		NCCL(ncclCommShrink(parent, excluded, nexcluded, &heir, NULL, 0));
	else
		NCCL(ncclCommSplit(parent, color, 0, &heir, NULL));
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(heir);
	HOLDS(comm && comm->has_key);
	struct ferry_nccl_key key = comm->key;
	ferry_nccl_comm_release(comm);
	destroy(heir);
	fake_nccl_mirror(0, ncclSuccess);
	return key;
}

/* Of four ranks the last one goes, then the third with it, then the last one alone again; all are there for a split. */
static void those_who_stay_agree_whatever_they_were_not_there_for(void **state)
{
	(void)state;
	ncclComm_t comms[4];
	int last[] = {3}, second[] = {1}, others[] = {2, 3}, backwards[] = {3, 2};
	NCCL(ncclCommInitAll(comms, 4, NULL));
	struct ferry_nccl_key first = heir_of(comms[0], 0, last, 1), pair = heir_of(comms[0], 0, others, 2);
	struct ferry_nccl_key again = heir_of(comms[0], 0, last, 1), all = heir_of(comms[0], 1, NULL, 0);
	HOLDS(!same(first, again) && !same(first, pair));
	HOLDS(same(heir_of(comms[2], 0, last, 1), first));
	HOLDS(same(heir_of(comms[2], 0, last, 1), again)); /* it was not asked for the pair */
	HOLDS(!same(heir_of(comms[1], 1, NULL, 0), first)); /* as many of a color as ranks that go, as often */
	HOLDS(same(heir_of(comms[1], 0, backwards, 2), pair));
	HOLDS(same(heir_of(comms[3], 1, NULL, 0), all)); /* nor this one for any */
	HOLDS(!same(heir_of(comms[3], 0, second, 1), first));
	for (int i = 0; i < 4; i++)
		destroy(comms[i]);
}

static void grow(struct rank *r)
{
	ncclComm_t grown;
	NCCL(ncclCommGrow(NULL, RANKS, &r->id, r->rank, &grown, NULL));
	known(grown, r->rank, RANKS, false);
	destroy(grown);
}

/* Rank 0 does, once. */
static void says(void (*work)(struct rank *rank), const char *words, int times)
{
	ncclUniqueId id;
	NCCL(ncclGetUniqueId(&id)); /* NCCL is found, and the log's level set */
	ferry_log_set_level(FERRY_LOG_INFO);
	listen_to_all();
	free(ranks_run(work));
	must_have_said(words, times);
	ferry_log_set_level(FERRY_LOG_WARN);
}

static void grown_communicators_are_known_and_have_no_key(void **state)
{
	(void)state;
	says(grow, "stays NCCL's alone: its ranks share no name, as after ncclCommGrow\n", 1);
}

static void states(struct rank *r)
{
	ranks_init(r);
	NCCL(all_reduce(r, r->comm));
	NCCL(ncclCommSuspend(r->comm, 1));
	NCCL(all_reduce(r, r->comm));
	EQUAL(calls_seen(r->comm), 1);
	NCCL(ncclCommResume(r->comm));
	NCCL(all_reduce(r, r->comm));
	EQUAL(calls_seen(r->comm), 2);
	NCCL(ncclCommRevoke(r->comm, 0));
	NCCL(all_reduce(r, r->comm));
	NCCL(ncclCommFinalize(r->comm));
	NCCL(all_reduce(r, r->comm));
	EQUAL(calls_seen(r->comm), 2);
	end(r->comm, ncclCommAbort);
}

static void suspended_revoked_and_finalized_ones_are_nccls_alone(void **state)
{
	(void)state;
	free(ranks_run(states));
}

/* The next call of that function. */
static void answer_next(const char *name, ncclResult_t result)
{
	char fail[64];
	snprintf(fail, sizeof fail, "%s:%lu:%d", name, fake_nccl_count(name) + 1, result);
	setenv("FAKE_NCCL_FAIL", fail, 1);
}

/* Whether Ferry looks at a call, which the double does not make: it would want the other rank. */
static bool looks_at_calls(ncclComm_t comm)
{
	long before = calls_seen(comm);
	float in = 1, out;
	fake_nccl_mirror(1, ncclSuccess);
	NCCL(ncclAllReduce(&in, &out, 1, ncclFloat32, ncclSum, comm, NULL));
	fake_nccl_mirror(0, ncclSuccess);
	return calls_seen(comm) > before;
}

static void what_nccl_refuses_leaves_a_communicator_as_it_was(void **state)
{
	(void)state;
	ncclComm_t comms[2], comm;
	NCCL(ncclCommInitAll(comms, 2, NULL));
	comm = comms[0];
	known(comm, 0, 2, true);
	answer_next("CommSuspend", ncclInvalidUsage);
	EQUAL(ncclCommSuspend(comm, 1), ncclInvalidUsage);
	HOLDS(looks_at_calls(comm));
	answer_next("CommRevoke", ncclInvalidArgument);
	EQUAL(ncclCommRevoke(comm, 1), ncclInvalidArgument);
	HOLDS(looks_at_calls(comm));
	answer_next("CommFinalize", ncclInvalidArgument);
	EQUAL(ncclCommFinalize(comm), ncclInvalidArgument);
	HOLDS(looks_at_calls(comm));
	answer_next("CommSuspend", ncclInProgress); /* which is no error */
	EQUAL(ncclCommSuspend(comm, 1), ncclInProgress);
	HOLDS(!looks_at_calls(comm));
	answer_next("CommSuspend", ncclInvalidUsage);
	EQUAL(ncclCommSuspend(comm, 1), ncclInvalidUsage); /* the first time is not undone by the second */
	HOLDS(!looks_at_calls(comm));
	unsetenv("FAKE_NCCL_FAIL");
	NCCL(ncclCommResume(comm));
	HOLDS(looks_at_calls(comm));
	for (int i = 0; i < 2; i++)
		destroy(comms[i]);
}

/* Of two ranks' communicators, on which that is refused on one alone, and then made on both. */
static void what_nccl_refuses_on_one_rank_is_not_counted(void **state)
{
	(void)state;
	int last[] = {1};
	ncclComm_t comms[2], heir = NULL;
	NCCL(ncclCommInitAll(comms, 2, NULL));
	known(comms[0], 0, 2, true);
	HOLDS(looks_at_calls(comms[0]));
	answer_next("CommSplit", ncclInvalidArgument);
	EQUAL(ncclCommSplit(comms[0], 1, 0, &heir, NULL), ncclInvalidArgument);
	unsetenv("FAKE_NCCL_FAIL");
	HOLDS(same(heir_of(comms[0], 1, NULL, 0), heir_of(comms[1], 1, NULL, 0)));
	answer_next("CommShrink", ncclInvalidArgument);
	EQUAL(ncclCommShrink(comms[0], last, 1, &heir, NULL, NCCL_SHRINK_ABORT), ncclInvalidArgument);
	unsetenv("FAKE_NCCL_FAIL");
	HOLDS(same(heir_of(comms[0], 0, last, 1), heir_of(comms[1], 0, last, 1)));
	HOLDS(looks_at_calls(comms[0])); /* nor is it revoked */
	for (int i = 0; i < 2; i++)
		destroy(comms[i]);
}

static void init_with_policy(struct rank *r, int policy)
{
	struct {
		ncclConfig_t head;
		int first[4];
		const char *net;
		int second[2];
		const char *name;
		int third[2];
	} config = {.head = {sizeof config, 0, 0}, .first = {1}, .third = {0, policy}};
	NCCL(ncclCommInitRankConfig(&r->comm, RANKS, r->id, r->rank, &config.head));
}

/* Of it and of one out of it Ferry sees so many calls. */
static void sees(struct rank *r, long calls)
{
	ncclComm_t heir;
	NCCL(all_reduce(r, r->comm));
	EQUAL(calls_seen(r->comm), calls);
	NCCL(ncclCommSplit(r->comm, 0, 0, &heir, NULL));
	NCCL(all_reduce(r, heir));
	EQUAL(calls_seen(heir), calls);
	destroy(heir);
	destroy(r->comm);
}

static void policy_zero(struct rank *r)
{
	init_with_policy(r, NCCL_CTA_POLICY_ZERO);
	sees(r, 0);
}

static void communicators_for_copy_engines_are_nccls_alone(void **state)
{
	(void)state;
	says(policy_zero, "stays NCCL's alone: its calls are for NCCL's copy engines (CTA policy zero)\n", 2);
}

static void policy_of_none(struct rank *r)
{
	ranks_init(r);
	sees(r, 0);
	init_with_policy(r, 0);
	sees(r, 0);
}

static void so_are_all_where_the_environment_says_so_once_nccl_has_read_its_file(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_CONF", "NCCL_CTA_POLICY=ZERO", 1);
	free(ranks_run(policy_of_none));
	setenv("NCCL_CTA_POLICY", "DEFAULT", 1); /* too late for NCCL, too */
	free(ranks_run(policy_of_none));
}

static void policy_zero_overridden(struct rank *r)
{
	init_with_policy(r, NCCL_CTA_POLICY_ZERO);
	sees(r, 1);
}

static void what_the_environment_says_goes_before_a_configuration(void **state)
{
	(void)state;
	setenv("NCCL_CTA_POLICY", "default", 1);
	free(ranks_run(policy_zero_overridden));
}

static void held(struct rank *r)
{
	ranks_init(r);
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(r->comm);
	struct ferry_nccl_key key = comm->key;
	destroy(r->comm);
	HOLDS(same(key, comm->key)); /* the state is there until the last one lets go */
	ferry_nccl_comm_release(comm);
}

static void what_is_looked_up_outlives_its_communicator(void **state)
{
	(void)state;
	free(ranks_run(held));
}

/* NCCL reads its variables once in a process's life. */
int main(int argc, char **argv)
{
	const struct CMUnitTest zero[] = {
	        cmocka_unit_test(so_are_all_where_the_environment_says_so_once_nccl_has_read_its_file),
	};
	const struct CMUnitTest overridden[] = {
	        cmocka_unit_test(what_the_environment_says_goes_before_a_configuration),
	};
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(ranks_that_share_an_id_share_a_key),
	        cmocka_unit_test(all_of_one_process_share_a_key_of_their_own),
	        cmocka_unit_test(one_thread_inits_all_ranks_in_a_group),
	        cmocka_unit_test(communicators_out_of_one_have_keys_of_their_own),
	        cmocka_unit_test(nobody_looks_where_a_split_without_color_put_nothing),
	        cmocka_unit_test(a_split_in_a_group_is_known_at_its_end),
	        cmocka_unit_test(a_split_that_does_not_block_is_known_when_it_is_ready),
	        cmocka_unit_test(a_communicator_that_does_not_block_is_known_at_once),
	        cmocka_unit_test(what_shrinking_leaves_has_a_key_of_its_own),
	        cmocka_unit_test(those_who_stay_agree_whatever_they_were_not_there_for),
	        cmocka_unit_test(grown_communicators_are_known_and_have_no_key),
	        cmocka_unit_test(suspended_revoked_and_finalized_ones_are_nccls_alone),
	        cmocka_unit_test(what_nccl_refuses_leaves_a_communicator_as_it_was),
	        cmocka_unit_test(what_nccl_refuses_on_one_rank_is_not_counted),
	        cmocka_unit_test(communicators_for_copy_engines_are_nccls_alone),
	        cmocka_unit_test(what_is_looked_up_outlives_its_communicator),
	};
	if (argc > 1 && !strcmp(argv[1], "zero"))
		return cmocka_run_group_tests(zero, NULL, NULL);
	if (argc > 1)
		return cmocka_run_group_tests(overridden, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
