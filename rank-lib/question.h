/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Question: what a rank asks one of its routers while it calls, and waits for the answer. It waits no longer than until
 * the rank has failed, and FERRY_TIMEOUT holds for it as for a call. Under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_QUESTION_H
#define FERRY_RANK_LIB_QUESTION_H

#include "rank-lib/rank.h"

/**
 * what: for people, what the router of that domain is to do, as in "to take a plan". Errors: the router's; the rank's,
 * where it fails meanwhile; ferrySystemError after FERRY_ATTACH_TIMEOUT.
 */
ferryResult_t ferry_question_ask(struct ferry_rank *rank, uint32_t domain, struct ferry_attach_message *message,
                                 const void *payload, const char *what);

#endif
