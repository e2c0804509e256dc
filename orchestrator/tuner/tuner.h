/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tuner: which fabric carries a call, and with which of NCCL's parameters. The whole policy:
 *
 * 1. Calls are of one kind where collective, type, size class (a factor of 1.4) and place (in or out) are the same; a
 *    kind has a few arms: NCCL as it is, NCCL with other parameters, or Ferry.
 * 2. An arm's time is the median of what its last calls took in the stream, from an event before to one behind, and of
 *    how long the stream waited for their caller; the first call of a run does not count, because it finds lanes and
 *    caches cold; nor does one behind a pause of the stream, unless the one before it was such a one, too.
 * 3. A kind begins with the arm that is fastest by what an earlier job has learned, by what ferry-perf tune has
 *    measured on this machine, or by the nearest size whose calls were measured, up to a factor of 4 away; otherwise
 *    with NCCL.
 * 4. An arm that is likely to be the fastest and was never measured is tried once, by a run of calls.
 * 5. The fastest arm has the calls from then on; another one takes them over only if it is faster by more than noise.
 * 6. Arms that lost are tried again for credit: a two-hundredth of the time that the kind's calls have taken. Credit
 *    also pays for parameters of NCCL's that were never measured; where NCCL has the calls, three calls' time is
 *    advanced for these.
 * 7. Where the time of the arm in use changes by a quarter, twice in a row, the machine has changed: the arms are
 *    compared anew. An arm that was left because it had become slow is tried again early: it gets a tenth of the calls'
 *    time as credit, and half as much with each try.
 * 8. NCCL's parameters are searched by coordinates: with two ranks first each algorithm with each protocol, then the
 *    numbers of channels beside the best one, which are the steps of a ladder.
 * 9. Rank 0 decides, and publishes each kind's line (ipc/shares.h); every rank proposes what the line says, and what
 *    the ranks have sealed (ipc/agreement.h) is what a call has. Captured calls never have a trial.
 * 10. Where the calls leave the program time, its own steps have a veto (orchestrator/tuner/veto.h).
 * 11. Calls of two streams take longer while they overlap. A kind of which a fifth of the calls overlap others follows
 *    what ferry-perf limits has measured, and has no trials, unless that is four times wrong; the veto compares steps.
 *
 * Arithmetic alone: no clock, no threads, no memory but its own. Times come after calls have ended, in order, late.
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_TUNER_H
#define FERRY_ORCHESTRATOR_TUNER_TUNER_H

#include "orchestrator/tuner/line.h"
#include "orchestrator/tuner/tuning.h"

/** host_rate: bytes per microsecond of a GPU's link to the host, one way; 0: not known. */
void ferry_tuner_init(struct ferry_tuner *tuner, const struct ferry_prior *prior, uint32_t nranks, double host_rate);

/** Calls of a class differ by a factor of 1.4 at most. */
uint8_t ferry_tuner_size_class(uint64_t bytes);

/** The kind's line; made if there is none and there is room, else NULL. */
struct ferry_tuner_line *ferry_tuner_line(struct ferry_tuner *tuner, const struct ferry_tuner_call *call);

/** Takes what an earlier job has learned. fabric: by which Ferry carries such calls now. */
void ferry_tuner_adopt(struct ferry_tuner *tuner, const struct ferry_share_line *learned, enum ferry_fabric fabric);

/**
 * The ranks have sealed this word for a call that can be measured. Returns true if it is to be measured: then
 * ferry_tuner_feed or ferry_tuner_pass is called for it once. paused: the stream had nothing to do for a while before.
 * still: no trial is to begin now.
 */
bool ferry_tuner_sealed(struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t word, bool paused,
                        bool still);

/**
 * A measured call took so long; in the order of the calls. overlaps: another stream had a call meanwhile. still: no
 * trial is to begin now, and the best arm stays the same.
 */
void ferry_tuner_feed(struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t word, uint64_t bytes,
                      double us, bool overlaps, bool still);
void ferry_tuner_pass(struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t word);

/** What rank 0 publishes of the line. */
void ferry_tuner_record(const struct ferry_tuner_line *line, struct ferry_share_line *record);

#endif
