/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tuner: which fabric carries a call, and with which of NCCL's parameters. docs/design/tuner.md is the policy. Rank
 * 0 decides, and publishes each kind's line (ipc/shares.h); every rank proposes what the line says, and what the ranks
 * have sealed (ipc/agreement.h) is what a call has. Calls are of one kind where collective, type, size class (a factor
 * of 1.4) and place (in or out) are the same; a kind has a few arms.
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
void ferry_tuner_record(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                        struct ferry_share_line *record);

#endif
