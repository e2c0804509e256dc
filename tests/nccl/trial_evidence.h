/* SPDX-License-Identifier: Apache-2.0 */
/** What is to be known of processes that do not move: their stacks, and what routers say of themselves. */
#ifndef FERRY_TESTS_TRIAL_EVIDENCE_H
#define FERRY_TESTS_TRIAL_EVIDENCE_H

#include <sys/types.h>

/** Prints it to stdout, of these workers and of all routers that were told to listen in the folder. */
void trial_evidence(const char *folder, const pid_t *workers, int n);

#endif
