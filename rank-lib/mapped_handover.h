/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank whose router moves its data hands to the next one, beside what every rank does: its block of words, what
 * it has exported, and its submissions that are not over. To the next router of another domain, whose guest it is
 * (router/guests.h), it says which GPU it is on, and what it has exported for others to put into. By the keeper; it
 * asks no driver.
 */
#ifndef FERRY_RANK_LIB_MAPPED_HANDOVER_H
#define FERRY_RANK_LIB_MAPPED_HANDOVER_H

#include "rank-lib/attach/handover.h"
#include "rank-lib/mapped.h"

/** Whether that may be at all, as things are when the rank has attached: it sees the end of each domain's router. */
bool ferry_mapped_may_be_handed_over(const struct ferry_mapped *mapped);

/** With ferry_mapped as context. */
extern const struct ferry_handover_ops ferry_mapped_handover;

#endif
