/* SPDX-License-Identifier: Apache-2.0 */
/* What the routers of made time know: plans, and buffers; and showing them, by a thread that has the time. */
#include "tests/nccl/virtual_parts.h"

#include <math.h>
#include <string.h>

#define LOOK_US 20 /* of the thread, for a call that finds all there */

/* ---- plans and buffers ---- */

uint64_t virtual_plan_of(enum ferry_collective collective, uint64_t count, uint64_t left_out)
{
	return (uint64_t)collective << 60 ^ count * UINT64_C(0x9e3779b97f4a7c15) ^
	       left_out * UINT64_C(0xbf58476d1ce4e5b9);
}

bool virtual_has_plan(const struct virtual_rank *rank, uint64_t plan)
{
	for (uint32_t i = 0; i < rank->nplans; i++)
		if (rank->plans[i] == plan)
			return true;
	return false;
}

void virtual_add_plan(struct virtual_rank *rank, uint64_t plan)
{
	if (!virtual_has_plan(rank, plan))
		rank->plans[rank->nplans++ % PLANS] = plan;
}

/* Whole allocations are mapped. */
static const void *allocation_of(const void *buffer)
{
	return (const void *)((uintptr_t)buffer >> 40 << 40);
}

bool virtual_has_mapped(const struct virtual_rank *rank, const void *buffer)
{
	for (uint32_t i = 0; i < rank->nmapped; i++)
		if (rank->mapped[i] == allocation_of(buffer))
			return true;
	return false;
}

void virtual_map_buffer(struct virtual_rank *rank, const void *buffer)
{
	if (!virtual_has_mapped(rank, buffer))
		rank->mapped[rank->nmapped++ % BUFFERS] = allocation_of(buffer);
}

static uint64_t plan_asked(const struct ferry_request *request)
{
	return virtual_plan_of(request->collective, request->count, request->left_out.count);
}

/* ---- showing, by a thread that has the time ---- */

static bool is_preregistered(const struct virtual_rank *rank, const struct ferry_preregister_asked *asked)
{
	return virtual_has_mapped(rank, asked->request.send) && virtual_has_mapped(rank, asked->request.receive) &&
	       (!asked->whole || virtual_has_plan(rank, plan_asked(&asked->request)));
}

static double preregister_us(const struct virtual_rank *rank, const struct ferry_preregister_asked *asked)
{
	double us = asked->whole && !virtual_has_plan(rank, plan_asked(&asked->request)) ? virtual_all.machine->plan_us
	                                                                                 : 0;
	us += virtual_has_mapped(rank, asked->request.send) ? 0 : virtual_all.machine->export_us;
	return us + (virtual_has_mapped(rank, asked->request.receive) ? 0 : virtual_all.machine->export_us);
}

void virtual_preregister_until(struct virtual_rank *rank, double us)
{
	struct virtual_preregister *preregister = &rank->preregister;
	while (preregister->nasked && preregister->done_us <= us) {
		struct ferry_preregister_asked asked = preregister->asked[0];
		bool last = true;
		virtual_map_buffer(rank, asked.request.send);
		virtual_map_buffer(rank, asked.request.receive);
		if (asked.whole)
			virtual_add_plan(rank, plan_asked(&asked.request));
		preregister->nasked--;
		memmove(preregister->asked, preregister->asked + 1, preregister->nasked * sizeof *preregister->asked);
		if (preregister->nasked)
			preregister->done_us += LOOK_US + preregister_us(rank, &preregister->asked[0]);
		for (uint32_t i = 0; i < preregister->nasked; i++)
			last &= preregister->asked[i].kind != asked.kind;
		if (last)
			ferry_share_publish(virtual_all.arena.shares, (uint32_t)virtual_index_of(rank), asked.kind,
			                    FERRY_SHARE_PREREGISTERED, true);
	}
}

static bool is_asked(const struct virtual_preregister *preregister, const struct ferry_preregister_asked *asked)
{
	bool known = false;
	for (uint32_t i = 0; i < preregister->nasked; i++) {
		const struct ferry_preregister_asked *other = &preregister->asked[i];
		known |= other->kind == asked->kind && other->request.send == asked->request.send &&
		         other->request.receive == asked->request.receive &&
		         other->request.count == asked->request.count;
	}
	return known;
}

enum ferry_preregistered ferry_preregister_has(struct ferry_preregister *preregister,
                                               const struct ferry_preregister_asked *asked, bool now)
{
	(void)now;
	(void)preregister;
	struct virtual_rank *rank = virtual_all.current;
	struct virtual_preregister *own = &rank->preregister;
	bool busy = own->nasked && own->done_us > rank->now_us;
	if (!busy && is_preregistered(rank, asked))
		return FERRY_PREREGISTERED;
	if (is_asked(own, asked))
		return busy ? FERRY_PREREGISTERED_UNKNOWN : FERRY_PREREGISTERED_NOT;
	if (!own->nasked)
		own->done_us = rank->now_us + LOOK_US + preregister_us(rank, asked);
	if (own->nasked < PREREGISTERED_MOST)
		own->asked[own->nasked++] = *asked;
	return busy ? FERRY_PREREGISTERED_UNKNOWN : FERRY_PREREGISTERED_NOT;
}

enum ferry_preregistered ferry_preregister_await(struct ferry_preregister *preregister,
                                                 const struct ferry_preregister_asked *asked, double most_us)
{
	struct virtual_rank *rank = virtual_all.current;
	double until = rank->now_us + most_us;
	while (is_asked(&rank->preregister, asked) && rank->preregister.done_us <= until) {
		rank->now_us = fmax(rank->now_us, rank->preregister.done_us);
		virtual_preregister_until(rank, rank->now_us);
	}
	if (is_asked(&rank->preregister, asked))
		rank->now_us = until;
	return ferry_preregister_has(preregister, asked, true);
}

void ferry_preregister_init(struct ferry_preregister *preregister)
{
	(void)preregister;
}

void ferry_preregister_free(struct ferry_preregister *preregister)
{
	(void)preregister;
}

void ferry_preregister_ring(struct ferry_preregister *preregister)
{
	(void)preregister;
}

void ferry_preregister_run(struct ferry_preregister *preregister, const _Atomic bool *over,
                           const struct ferry_preregister_listener *listener)
{
	(void)preregister, (void)over, (void)listener;
}
