/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the parts of made time (virtual.h) share. virtual_machine.c: how long calls take; virtual_clock.c: the events of
 * the orchestrator's clocks; virtual_preregister.c: plans and buffers that routers know; virtual_fabrics.c: calls of
 * Ferry's communicator and of NCCL's; virtual.c: the ranks. One thread, so anybody may write anything here.
 */
#ifndef FERRY_TESTS_NCCL_VIRTUAL_PARTS_H
#define FERRY_TESTS_NCCL_VIRTUAL_PARTS_H

#include "tests/nccl/virtual.h"

#include "ipc/arena.h"
#include "orchestrator/communicators.h"
#include "orchestrator/shadow_comm.h"
#include "rank-lib/call/launch.h"

#define CHECK(what) ((what) ? (void)0 : virtual_broken(__FILE__, __LINE__, #what))

#define MIB        ((double)(1 << 20))
#define MOST       4096 /* calls whose times are kept */
#define PLANS      4096
#define BUFFERS    64
#define PREREGISTERED_MOST 8

/* One end of a call: when it was put into the stream. */
struct virtual_side {
	bool launched;
	double ferry_us, nccl_us, end_us;
};

struct virtual_work {
	uint64_t n;
	struct virtual_calls what;
	uint32_t word;
	double ferry_bytes, nccl_bytes; /* of the whole call */
	struct virtual_side sides[VIRTUAL_RANKS];
	bool over, burst; /* all have launched it: its times are known */
	double begun_us, ferry_end_us, nccl_end_us;
};

enum virtual_mark { VIRTUAL_MARK_START, VIRTUAL_MARK_NCCL_END, VIRTUAL_MARK_END };

struct virtual_event {
	uint64_t n;
	enum virtual_mark mark;
	double host_us;
};

struct virtual_preregister {
	struct ferry_preregister_asked asked[PREREGISTERED_MOST];
	uint32_t nasked;
	double done_us; /* the first one */
};

struct virtual_rank {
	struct ferry_nccl_comm comm;
	struct ferry_ring ring;
	struct ferryComm *ferry;
	bool alone;    /* its calls are NCCL's */
	double now_us; /* its thread's clock */
	uint64_t made; /* calls */
	int left;      /* of this batch */
	uint64_t plans[PLANS];
	uint32_t nplans;
	const void *mapped[BUFFERS];
	uint32_t nmapped;
	struct virtual_preregister preregister;
	struct virtual_event *events;
	/* of the call that is being made */
	bool open, issued;
	bool dragged; /* the last one was Ferry's */
};

struct virtual_all {
	const struct virtual_machine *machine;
	unsigned seed;
	struct ferry_arena arena;
	struct virtual_rank *ranks;
	struct virtual_rank *current;
	struct virtual_work *works;
	struct virtual_calls what;
	double lanes_us; /* when lanes have had their last call */
	int late_plans;
	bool captures;
	bool shifts;
	bool hangs; /* no stream comes to an event any more */
};
extern struct virtual_all virtual_all;

void virtual_broken(const char *file, int line, const char *what);

static inline int virtual_index_of(const struct virtual_rank *rank)
{
	return (int)(rank - virtual_all.ranks);
}

/* The call that the rank makes next. */
static inline struct virtual_work *virtual_work_of(struct virtual_rank *rank)
{
	return &virtual_all.works[rank->made % MOST];
}

/* ---- virtual_machine.c ---- */

/** Between 0 and 1; a factor around 1. */
double virtual_uniform(void);
double virtual_noise(double how);
/** All have launched it, and all calls before it: its times are known from now on. */
void virtual_finish(struct virtual_work *work);

/* ---- virtual_preregister.c ---- */

uint64_t virtual_plan_of(enum ferry_collective collective, uint64_t count, uint64_t left_out);
bool virtual_has_plan(const struct virtual_rank *rank, uint64_t plan);
void virtual_add_plan(struct virtual_rank *rank, uint64_t plan);
bool virtual_has_mapped(const struct virtual_rank *rank, const void *buffer);
void virtual_map_buffer(struct virtual_rank *rank, const void *buffer);
/** What the rank's thread has shown by then. */
void virtual_preregister_until(struct virtual_rank *rank, double us);

#endif
