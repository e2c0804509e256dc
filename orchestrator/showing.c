/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/showing.h"

#include "ipc/error.h"
#include <string.h>

#define AGAIN_NS 1000000000ull /* what could not be shown is tried again after so long */

void ferry_showing_init(struct ferry_showing *showing)
{
	memset(showing, 0, sizeof *showing);
	pthread_mutex_init(&showing->lock, NULL);
}

void ferry_showing_free(struct ferry_showing *showing)
{
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
	       one->root == other->root && a->landing == b->landing && a->whole == b->whole && a->kind == b->kind;
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

/*
 * Where there is no room it is asked for again with the next call. True: it goes by a window, and does so while it is
 * asked for again, after a while, as other memory may have come in its place.
 */
static bool ask(struct ferry_showing *showing, const struct ferry_showing_asked *asked)
{
	bool rings = false, known = false;
	pthread_mutex_lock(&showing->lock);
	const struct ferry_showing_refused *refused = find_refused(showing, asked);
	bool window = refused && refused->window, waits = refused && ferry_now_ns() < refused->until_ns;
	for (uint32_t i = 0; i < showing->nasked; i++)
		known |= same(&showing->asked[i], asked);
	if (!waits && !known && showing->nasked < FERRY_SHOWING_MOST) {
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
