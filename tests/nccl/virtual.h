/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranks of a communicator of NCCL's whose time is made: all of the orchestrator's decisions are the real ones
 * (launch.c, split.c, shadow_comm.c, meter.c and the tuner), and what is below them, NCCL, Ferry's communicator,
 * streams and events, takes the time that a machine says and moves nothing. One thread; the same seed gives the same
 * run.
 *
 * Two ranks. Each makes its calls by its own clock, so that one is ahead of the other by a little, now this one, now
 * that one; what a call has taken is known to a rank when its own clock is past the end.
 */
#ifndef FERRY_TESTS_NCCL_VIRTUAL_H
#define FERRY_TESTS_NCCL_VIRTUAL_H

#include "ipc/collective.h"
#include "ipc/shares.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VIRTUAL_RANKS 2
#define VIRTUAL_SIZES 6 /* 1 MiB, 4 MiB, ..., 1 GiB */

/* How fast a collective is, in GB/s of the call's bytes at those sizes. */
struct virtual_curve {
	enum ferry_collective collective;
	double nccl[VIRTUAL_SIZES], ours[VIRTUAL_SIZES]; /* alone */
};

struct virtual_machine {
	const char *name;
	bool peers, adds; /* GPUs reach each other, and add up what they push */
	struct virtual_curve curves[4];
	bool tuned;                    /* ferry-perf tune has measured it, */
	double untrue;                 /* and Ferry is so many times as slow as it has found; 0: 1 */
	double slow;                   /* NCCL is so much slower beside the host */
	double nccl_noise, ferry_noise; /* relative, as of a normal distribution */
	double outliers;               /* parts that take three times as long */
	double plan_us, export_us;     /* to make a plan, to map a buffer */
	double wake_us;                /* at most, of lanes that have slept */
	double caller_us;              /* a call of Ferry's takes its thread so much longer than one of NCCL's */
	double drag;                   /* a call of Ferry's makes what the program does behind it so much longer */
	double jitter;                 /* what the program does varies by so much, from call to call, */
	double drift, drift_s;         /* and by so much, slowly */
	double burst_s;                /* so long without, so long with others' copies; 0: without */
	double burst[FERRY_NUM_FABRICS]; /* times as slow, in those */
};

/** Two H200s as they were measured; of programs nothing is said. */
extern const struct virtual_machine virtual_nvlink, virtual_pcie;

/* A call as it was, of rank 0. */
struct virtual_call {
	uint32_t word;
	double us;       /* from where the stream came to it to its end */
	double begun_us; /* the time of day */
	bool burst;
};

struct virtual_calls {
	enum ferry_collective collective;
	uint64_t bytes;
	bool in_place;
	int memory;   /* which buffers: each number is one of its own */
	int calls;    /* these are made before the streams are waited for */
	double gap_us; /* the program is busy so long before each */
};

void virtual_open(const struct virtual_machine *machine, unsigned seed);
void virtual_close(void);

/** From now on there is no Ferry. */
void virtual_leave_to_nccl(void);

/** The communicator is about to be ended, as its ranks have heard. */
void virtual_abandon(void);

/** A rank's, for what its calls never do. */
struct ferry_shadow_comm *virtual_shadow_comm(int rank);

/** All ranks' routers know these buffers. */
void virtual_map(int memory);

/** Makes calls and waits for them; of each what it was, where calls is not NULL. Returns what they took in all. */
double virtual_run(const struct virtual_calls *what, struct virtual_call *calls);

/** The same in two: makes them; waits for all that were made. */
void virtual_make(const struct virtual_calls *what);
void virtual_wait(void);

/** What calls take decides alone. */
void virtual_leave_to_calls(void);

/** Calls are captured from now on, or no more. They are made and take their time all the same. */
void virtual_capture(bool on);

/** From now on each call lies in its buffers behind the one before, within 1 GiB, as those of nccl-tests. */
void virtual_shift(void);

/** From now on no event is passed, as far as the ranks see. */
void virtual_hang(void);

double virtual_now_us(void);

/** What a call of those shares takes without noise, lanes awake. */
double virtual_expected_us(const struct virtual_calls *what, uint32_t word, bool burst);

/** The faster one of NCCL and Ferry, and what it takes. */
double virtual_best_us(const struct virtual_calls *what, bool burst, uint32_t *word);

/** Calls that made a plan on their way, or mapped a buffer. */
int virtual_late_plans(void);

/** What one of the ranks would log of a call: for a look at what is decided. */
void virtual_print(const struct virtual_calls *what, const struct virtual_call *calls, int count);

#endif
