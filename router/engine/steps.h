/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Steps: the D2Hs, H2Ds, PUTs, WAIT_PUTs and COPYs of one rank in a plan, with every pointer into the arenas found.
 * Lanes run them. Made once per plan and rank by the process that hosts the rank's lanes, the rank or its router;
 * constant from then on.
 */
#ifndef FERRY_ROUTER_ENGINE_STEPS_H
#define FERRY_ROUTER_ENGINE_STEPS_H

#include "ipc/publish.h"
#include "router/copy/copy.h"

/* A step in one parity. */
struct ferry_step {
	const struct ferry_instr *instr;
	struct ferry_counter *counter;
	char *window; /* NULL: it has none, or on a device: a transfer has its address */
	char *source; /* D2H, PUT: a window of the rank's own memory; NULL: a buffer of the rank's, or on a device */
	struct ferry_add_cells *adds; /* ADD: of the rank; this is number `add` of its ADDs */
	uint32_t add;
	uint64_t half; /* bytes from the start of a rank's device memory to what this parity's windows lie in */
	struct ferry_gate *gates;
	uint32_t ngates;
	struct ferry_counter *producer; /* variable plans, H2D and WAIT_PUT: whose length must equal ours */
	uint32_t producer_rank;
	struct ferry_counter *wait_put; /* variable plans, PUT: its WAIT_PUT's */
	/* its path's part is told, in `counter`, once this is published; NULL: its length is the call's */
	struct ferry_counter *division;
	bool only_passes_on; /* D2H: copy engines alone read the window, and each slot waits for them */
};

struct ferry_steps {
	const struct ferry_plan *plan; /* the caller's; outlives them */
	uint32_t domains;              /* bit d: router d has work in the plan */
	/* by enum ferry_direction; PUTs are the D2H lane's, COPYs and WAIT_PUTs the H2D lane's */
	uint32_t nsteps[2];
	uint32_t nadds;                /* ADDs among the H2D lane's */
	/* among the D2H lane's: PUTs, and D2Hs into device memory of other ranks */
	uint32_t nputs;
	uint64_t puts_to;              /* bit r: rank r is one that they go to */
	struct ferry_step *steps[2][FERRY_PARITIES];
	/* bytes from the start of the send and the receive buffer that they touch; variable plans: 0 */
	uint64_t reach[2];
	/* number of the last call of them that began; the thread that gives the number */
	_Atomic uint64_t last_seq;
	void *memory;
};

/** Whether the step writes into device memory of another rank: as a PUT does, into the peer's `memory`. */
static inline bool ferry_instr_puts_into_memory(const struct ferry_instr *instr)
{
	return instr->opcode == FERRY_D2H && ferry_window_is_on_device(instr->window_domain) &&
	       instr->peer != instr->owner;
}

/** Errors: ferrySystemError; ferryProgramError for ADDs where nobody makes them; after one nothing is to be freed. */
ferryResult_t ferry_steps_find(struct ferry_steps *steps, const struct ferry_plan *plan,
                               const struct ferry_job_arenas *shared, uint32_t rank);
void ferry_steps_free(struct ferry_steps *steps);

#endif
