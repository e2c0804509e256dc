/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Dead ranks: ranks whose connection has closed without DETACH. However a rank ended, a call whose inputs were all in
 * completes for the others, and later ones do not: so the job fails once no rank is in a call of the first kind any
 * more.
 *
 * A rank's process has no thread left when its connection closes, so what it has published is the last of it. If it had
 * finished all calls that it was in, it is like a rank that has left (ipc/publish.h), and its bit in `left` says so
 * until the job fails. If it was in a call that all ranks had submitted, and all its D2Hs are published, then the
 * others need nothing more of it but the slots that it has not read: the router of its domain publishes its H2Ds, and
 * that it has finished. If not, no waiting helps, and the job fails at once; so it does where nothing moves for ten
 * seconds, as a rank may be stopped in its last call.
 *
 * Connection thread.
 */
#ifndef FERRY_ROUTER_DAEMON_DEAD_RANKS_H
#define FERRY_ROUTER_DAEMON_DEAD_RANKS_H

#include "router/daemon/jobs.h"

/** The rank has died, as `text` says: the job fails, now or when ferry_dead_ranks_watch finds its calls over. */
void ferry_dead_ranks_add(struct ferry_job *job, uint32_t rank, const char *text);

/** Fails jobs whose last calls are over. Returns in how many milliseconds to check again; -1: there are none. */
int ferry_dead_ranks_watch(struct ferry_jobs *jobs);

#endif
