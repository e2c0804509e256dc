/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/showing.h"

#include "ipc/error.h"
#include <string.h>

#define AGAIN_NS 1000000000ull /* what could not be shown is tried again after so long */

void ferry_showing_init(struct ferry_showing *showing)
{
	pthread_condattr_t clock;
	memset(showing, 0, sizeof *showing);
	pthread_mutex_init(&showing->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&showing->shown, &clock);
	pthread_condattr_destroy(&clock);
}

void ferry_showing_free(struct ferry_showing *showing)
{
	pthread_cond_destroy(&showing->shown);
	pthread_mutex_destroy(&showing->lock);
}

void ferry_showing_ring(struct ferry_showing *showing)
{
	ferry_doorbell_ring(&showing->bell);
}

static bool same(const struct ferry_showing_asked *a, const struct ferry_showing_asked *b)
{
	const struct ferry_request *one = &a->request, *other = &b->request;
	return one->collective == other->collective && one->send == other->send && one->receive == other->receive &&
	       one->count == other->count && one->type == other->type && one->op == other->op &&
	       one->root == other->root && one->left_out.count == other->left_out.count &&
	       one->left_out.mirrored == other->left_out.mirrored &&
	       a->landing == b->landing && a->whole == b->whole && a->kind == b->kind;
}

/* Under the lock. NULL: nothing like it has been refused. */
static struct ferry_showing_refused *find_refused(struct ferry_showing *showing,
                                                  const struct ferry_showing_asked *asked)
{
	for (int i = 0; i < FERRY_SHOWING_REFUSED; i++) {
		struct ferry_showing_refused *refused = &showing->refused[i];
		if (refused->until_ns && same(&refused->asked, asked))
			return refused;
	}
	return NULL;
}

/* Under the lock. */
static bool is_asked(const struct ferry_showing *showing, const struct ferry_showing_asked *asked)
{
	bool known = false;
	for (uint32_t i = 0; i < showing->nasked; i++)
		known |= same(&showing->asked[i], asked);
	return known;
}

/*
 * Where there is no room it is asked for again with the next call. True: it goes by a window, and does so while it is
 * asked for again, after a while, as other memory may have come in its place.
 */
static bool ask(struct ferry_showing *showing, const struct ferry_showing_asked *asked)
{
	bool rings = false;
	pthread_mutex_lock(&showing->lock);
	const struct ferry_showing_refused *refused = find_refused(showing, asked);
	bool window = refused && refused->window, waits = refused && ferry_now_ns() < refused->until_ns;
	if (!waits && !is_asked(showing, asked) && showing->nasked < FERRY_SHOWING_MOST) {
		showing->asked[showing->nasked++] = *asked;
		rings = true;
	}
	pthread_mutex_unlock(&showing->lock);
	if (rings)
		ferry_showing_ring(showing);
	return window;
}

enum ferry_shown ferry_showing_has(struct ferry_showing *showing, const struct ferry_showing_asked *asked)
{
	enum ferry_shown shown = ferry_launch_has_shown(&asked->request, asked->landing, asked->whole);
	return shown != FERRY_SHOWN && ask(showing, asked) ? FERRY_SHOWN : shown;
}

enum ferry_shown ferry_showing_await(struct ferry_showing *showing, const struct ferry_showing_asked *asked,
                                     double most_us)
{
	uint64_t until = ferry_now_ns() + (uint64_t)(1e3 * most_us);
	struct timespec deadline = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
	int late = 0;
	pthread_mutex_lock(&showing->lock);
	while (is_asked(showing, asked) && !late)
		late = pthread_cond_timedwait(&showing->shown, &showing->lock, &deadline);
	pthread_mutex_unlock(&showing->lock);
	return ferry_showing_has(showing, asked);
}

/* ---- the thread ---- */

static void show(struct ferry_showing *showing, const struct ferry_showing_asked *asked,
                 const struct ferry_showing_listener *listener)
{
	ferryResult_t result = ferry_launch_show(&asked->request, asked->landing, asked->whole);
	bool window = ferry_exports_refused(result), last = true;
	pthread_mutex_lock(&showing->lock);
	struct ferry_showing_refused *refused = find_refused(showing, asked);
	if (result && !refused)
		refused = &showing->refused[showing->nrefused++ % FERRY_SHOWING_REFUSED];
	if (refused)
		*refused = (struct ferry_showing_refused){*asked, result ? ferry_now_ns() + AGAIN_NS : 0, window};
	showing->nasked--;
	memmove(&showing->asked[0], &showing->asked[1], showing->nasked * sizeof showing->asked[0]);
	for (uint32_t i = 0; i < showing->nasked; i++)
		last &= showing->asked[i].kind != asked->kind;
	pthread_cond_broadcast(&showing->shown);
	pthread_mutex_unlock(&showing->lock);
	if (result)
		ferry_forget_message();
	if (last && (!result || window))
		listener->shown(listener->argument, asked->kind);
}

void ferry_showing_run(struct ferry_showing *showing, const _Atomic bool *over,
                       const struct ferry_showing_listener *listener)
{
	while (1) {
		struct ferry_showing_asked asked;
		uint32_t seen = ferry_doorbell_prepare(&showing->bell);
		pthread_mutex_lock(&showing->lock);
		bool some = showing->nasked;
		if (some)
			asked = showing->asked[0];
		pthread_mutex_unlock(&showing->lock);
		bool ends = atomic_load_explicit(over, memory_order_acquire);
		if (some || ends)
			ferry_doorbell_cancel(&showing->bell);
		if (ends)
			return;
		if (some)
			show(showing, &asked, listener);
		else
			ferry_doorbell_wait(&showing->bell, seen, -1);
	}
}
