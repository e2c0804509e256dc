/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/preregister.h"

#include "ipc/error.h"
#include <string.h>

#define AGAIN_NS 1000000000ull /* what could not be preregistered is tried again after so long */

void ferry_preregister_init(struct ferry_preregister *preregister)
{
	pthread_condattr_t clock;
	memset(preregister, 0, sizeof *preregister);
	pthread_mutex_init(&preregister->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&preregister->registered, &clock);
	pthread_condattr_destroy(&clock);
}

void ferry_preregister_free(struct ferry_preregister *preregister)
{
	pthread_cond_destroy(&preregister->registered);
	pthread_mutex_destroy(&preregister->lock);
}

void ferry_preregister_ring(struct ferry_preregister *preregister)
{
	ferry_doorbell_ring(&preregister->bell);
}

static bool same(const struct ferry_preregister_asked *a, const struct ferry_preregister_asked *b)
{
	const struct ferry_request *one = &a->request, *other = &b->request;
	return one->collective == other->collective && one->send == other->send && one->receive == other->receive &&
	       one->count == other->count && one->type == other->type && one->op == other->op &&
	       one->root == other->root && one->left_out.count == other->left_out.count &&
	       one->left_out.mirrored == other->left_out.mirrored && a->put_target == b->put_target &&
	       a->whole == b->whole && a->kind == b->kind;
}

/* Under the lock. NULL: nothing like it has been refused. */
static struct ferry_preregister_refused *find_refused(struct ferry_preregister *preregister,
                                                      const struct ferry_preregister_asked *asked)
{
	for (int i = 0; i < FERRY_PREREGISTER_REFUSED; i++) {
		struct ferry_preregister_refused *refused = &preregister->refused[i];
		if (refused->until_ns && same(&refused->asked, asked))
			return refused;
	}
	return NULL;
}

/* Under the lock. */
static bool is_asked(const struct ferry_preregister *preregister, const struct ferry_preregister_asked *asked)
{
	bool known = false;
	for (uint32_t i = 0; i < preregister->nasked; i++)
		known |= same(&preregister->asked[i], asked);
	return known;
}

/*
 * Puts a request into the list; if there is no room, the next call asks again. Returns true if the call goes by a
 * bounce buffer, as its buffer was refused. The request is repeated after AGAIN_NS: other memory may be there by then.
 */
static bool ask(struct ferry_preregister *preregister, const struct ferry_preregister_asked *asked)
{
	bool rings = false;
	pthread_mutex_lock(&preregister->lock);
	const struct ferry_preregister_refused *refused = find_refused(preregister, asked);
	bool window = refused && refused->window, waits = refused && ferry_now_ns() < refused->until_ns;
	if (!waits && !is_asked(preregister, asked) && preregister->nasked < FERRY_PREREGISTER_MOST) {
		preregister->asked[preregister->nasked++] = *asked;
		rings = true;
	}
	pthread_mutex_unlock(&preregister->lock);
	if (rings)
		ferry_preregister_ring(preregister);
	return window;
}

enum ferry_preregistered ferry_preregister_has(struct ferry_preregister *preregister,
                                               const struct ferry_preregister_asked *asked, bool now)
{
	enum ferry_preregistered has = ferry_launch_has_preregistered(&asked->request, asked->put_target, asked->whole,
	                                                              now);
	return has != FERRY_PREREGISTERED && ask(preregister, asked) ? FERRY_PREREGISTERED : has;
}

enum ferry_preregistered ferry_preregister_await(struct ferry_preregister *preregister,
                                                 const struct ferry_preregister_asked *asked, double most_us)
{
	uint64_t until = ferry_now_ns() + (uint64_t)(1e3 * most_us);
	struct timespec deadline = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
	int late = 0;
	pthread_mutex_lock(&preregister->lock);
	while (is_asked(preregister, asked) && !late)
		late = pthread_cond_timedwait(&preregister->registered, &preregister->lock, &deadline);
	pthread_mutex_unlock(&preregister->lock);
	return ferry_preregister_has(preregister, asked, true);
}

/* ---- the thread ---- */

static void preregister_one(struct ferry_preregister *preregister, const struct ferry_preregister_asked *asked,
                            const struct ferry_preregister_listener *listener)
{
	ferryResult_t result = ferry_launch_preregister(&asked->request, asked->put_target, asked->whole);
	bool window = ferry_exports_refused(result), last = true;
	pthread_mutex_lock(&preregister->lock);
	struct ferry_preregister_refused *refused = find_refused(preregister, asked);
	if (result && !refused)
		refused = &preregister->refused[preregister->nrefused++ % FERRY_PREREGISTER_REFUSED];
	if (refused)
		*refused = (struct ferry_preregister_refused){*asked, result ? ferry_now_ns() + AGAIN_NS : 0, window};
	preregister->nasked--;
	memmove(&preregister->asked[0], &preregister->asked[1], preregister->nasked * sizeof preregister->asked[0]);
	for (uint32_t i = 0; i < preregister->nasked; i++)
		last &= preregister->asked[i].kind != asked->kind;
	pthread_cond_broadcast(&preregister->registered);
	pthread_mutex_unlock(&preregister->lock);
	if (result)
		ferry_forget_message();
	if (last && (!result || window))
		listener->registered(listener->argument, asked->kind);
}

void ferry_preregister_run(struct ferry_preregister *preregister, const _Atomic bool *over,
                           const struct ferry_preregister_listener *listener)
{
	while (1) {
		struct ferry_preregister_asked asked;
		uint32_t seen = ferry_doorbell_prepare(&preregister->bell);
		pthread_mutex_lock(&preregister->lock);
		bool some = preregister->nasked;
		if (some)
			asked = preregister->asked[0];
		pthread_mutex_unlock(&preregister->lock);
		bool ends = atomic_load_explicit(over, memory_order_acquire);
		if (some || ends)
			ferry_doorbell_cancel(&preregister->bell);
		if (ends)
			return;
		if (some)
			preregister_one(preregister, &asked, listener);
		else
			ferry_doorbell_wait(&preregister->bell, seen, -1);
	}
}
