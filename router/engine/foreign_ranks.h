/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Foreign ranks: ranks of other domains into whose memory this router puts for ranks of its own. A foreign rank also
 * exports its receive buffers to this router, which maps them for those of its GPUs that reach them
 * (router/gpu/imports.h). A foreign rank is made when the job is ready, and ended when the rank leaves or the job is
 * over.
 */
#ifndef FERRY_ROUTER_ENGINE_FOREIGN_RANKS_H
#define FERRY_ROUTER_ENGINE_FOREIGN_RANKS_H

#include "router/daemon/job.h"
#include "router/gpu/imports.h"

struct ferry_foreign_rank {
	struct ferry_ending ending; /* with all below: connection thread, when the rank leaves; the reaper */
	struct ferry_job *job;
	struct ferry_imports *imports;
	int client; /* to be closed; -1: none */
	bool answer;
};

/**
 * All ranks have attached, and the reach of this router's GPUs is known: opens the foreign ranks. Job thread. Error:
 * ferrySystemError.
 */
ferryResult_t ferry_foreign_ranks_open(struct ferry_job *job);

/** Whether the rank is one, and has not left, nor gone. Connection thread. */
bool ferry_foreign_rank_is_open(const struct ferry_job *job, uint32_t rank);

/**
 * The rank leaves, or has gone: what the reaper is to end. When it does, nothing is put into the rank's memory any
 * more, and no such copy is under way; this router's arena says so (released), and then `client` is closed, and
 * answered before if `answer`. Connection thread. NULL, and nothing happens: it is no foreign rank, or has left.
 */
struct ferry_ending *ferry_foreign_rank_leave(struct ferry_job *job, uint32_t rank, int client, bool answer);

/** The job is over, and no lane puts anything for it any more. The reaper's thread. */
void ferry_foreign_ranks_close(struct ferry_job *job);

#endif
