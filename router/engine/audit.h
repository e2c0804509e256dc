/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Audit: finds numbers in the arena that no process following the protocol can have written there. A rank may write
 * anywhere in its job's arena. Three kinds are found: a counter that holds something else than its writer has stored, a
 * counter of a call that cannot have begun, and a counter of more slices than there are. Each of them may make other
 * ranks wait for ever, so it ends the job, with the numbers. A lane audits its lane ranks while they make no progress;
 * a router's workers audit the calls that they run. Each compares with memory of its own, and reads every word that
 * others write once.
 *
 * A number that another process has lowered cannot be told from one that is late: its own writer finds it. A number
 * that is too high within bounds, or wrong data, gives wrong results to that job.
 */
#ifndef FERRY_ROUTER_ENGINE_AUDIT_H
#define FERRY_ROUTER_ENGINE_AUDIT_H

#include "router/daemon/job.h"
#include "router/engine/member.h"

#define FERRY_AUDIT_JOB_NS 900000000u /* so seldom: a job thread checks once a second */

/**
 * A lane rank, with calls or without, by its lane's thread: fails the member's job at what it finds. Without calls:
 * others may still wait to read what it has published last.
 */
void ferry_audit_lane_rank(struct ferry_lane_rank *lane_rank);

/** A job's works and its router's finished calls, by a thread that is inside the job (ferry_workers_enter). */
void ferry_audit_job(struct ferry_job *job);

#endif
