/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank whose data this router moves: its member on the lanes of its GPU, and how its submissions become calls there.
 * Made when the job is ready, ended when the rank leaves or the job is over; its D2H lane's thread takes submissions,
 * any lane ends calls. It trusts nothing that the rank writes: what is wrong ends that job, alone.
 */
#ifndef FERRY_ROUTER_INTAKE_H
#define FERRY_ROUTER_INTAKE_H

#include "ipc/submission.h"
#include "ipc/words.h"
#include "router/gpu_lanes.h"
#include "router/imports.h"
#include "router/job.h"

struct ferry_intake {
	struct ferry_member member;
	struct ferry_job *job;
	struct ferry_imports *imports;
	struct ferry_ring *ring;
	struct ferry_ending ending;    /* with the three below: connection thread, when the rank leaves; the reaper */
	int client;                    /* to be closed; -1: none */
	bool answer, in_order;
	struct ferry_word *words;      /* of the rank's process; FERRY_WORDS */
	uint64_t process;              /* constant: its number; that of no other process with words here */
	pthread_mutex_t over_lock;     /* of `over` in its ring, and of these two */
	struct mapped_call *first, *last; /* calls under way, captured ones apart, in the order of submissions */
	uint64_t listed;               /* number of the last submission whose call is in the list, or over */
	_Atomic uint32_t calls;        /* under way: the D2H lane adds, the lanes take away */
	/* D2H lane */
	uint64_t taken;                /* of the ring */
	uint64_t number;               /* of the last submission taken */
	struct ferry_submitted_message *messages; /* of a call whose records have not all come */
	uint32_t nmessages;
	bool refused; /* something that it has submitted: the rest is taken in vain */
	bool broken;                   /* what the rank submits is not to be believed any more */
	/* why the job failed; under the job's lock for failures until it is filled */
};

/**
 * All ranks have attached and the other domains' arenas are mapped: registers the arenas, and has those ranks join the
 * lanes of their GPUs that the mapper has found. The attendant's thread. Errors: ferryRefused for words that are not
 * sealed shared memory of the right size, ferrySystemError, the driver's. The job fails then, and is closed as always.
 */
ferryResult_t ferry_intakes_open(struct ferry_job *job);

/** Whether this router moves the data of the rank, which has not left, nor gone. Connection thread. */
bool ferry_intake_is_open(const struct ferry_job *job, uint32_t rank);

/**
 * The rank leaves, or has gone: what the reaper is to end. When it does, nothing of the rank's submissions is taken any
 * more, and no copy for it is under way; its arena says so (let_go), and that the rank has left if that is `in_order`;
 * only then `client` is closed, and answered before if `answer`. Connection thread, at any time. NULL, and nothing
 * happens: for a rank whose data others move, for one that has left, and before the job is ready.
 */
struct ferry_ending *ferry_intake_leave(struct ferry_job *job, uint32_t rank, int client, bool answer, bool in_order);

/** The job is over: returns when no copy of it is under way. The reaper's thread. */
void ferry_intakes_close(struct ferry_job *job);

#endif
