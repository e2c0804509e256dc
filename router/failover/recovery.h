/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Recovery: submissions that a router before this one had taken out of a rank's ring, and that were not over. The rank
 * has kept them, and hands them over (router/failover/adoption.h). They are taken again, before those in the ring; a
 * stream flag says of each how far it had come (ipc/stream_flag.h). Captured calls are among them as long as a graph
 * may have them, however old they are, so there are gaps between the numbers. Filled by the connection thread, before
 * the rank's remote rank is opened; then its D2H lane's.
 */
#ifndef FERRY_ROUTER_FAILOVER_RECOVERY_H
#define FERRY_ROUTER_FAILOVER_RECOVERY_H

#include "ipc/stream_flag.h"
#include "ipc/submission.h"

#define FERRY_RECOVERY_MOST (256ull << 20) /* bytes: as many calls as a rank may have under way, in long records */

struct ferry_recovery {
	char *records;
	uint64_t bytes, at; /* at: where the next one is */
	uint64_t number;    /* of the last submission that is not in the ring any more */
	uint64_t calls;     /* that the rank had made up to that one, captured ones apart */
};

/** Appends records. Errors: ferrySystemError; ferryRefused for too many. */
ferryResult_t ferry_recovery_add(struct ferry_recovery **recovery, const void *records, uint64_t bytes);
void ferry_recovery_free(struct ferry_recovery *recovery);

/** Copies the next record. False: there is none, or it is invalid. */
bool ferry_recovery_take(struct ferry_recovery *recovery, void *record);

/** How many calls the records are, captured ones apart. */
uint64_t ferry_recovery_calls(const struct ferry_recovery *recovery);

enum ferry_recovery_state {
	FERRY_RECOVERY_ANEW,     /* its stream has not come to it */
	FERRY_RECOVERY_REACHED,  /* it may be under way */
	FERRY_RECOVERY_COMPLETE, /* all its data was there; only its end was not published */
	FERRY_RECOVERY_OVER
};
/** How far the call of that turn had come, by its stream flag. */
enum ferry_recovery_state ferry_recovery_judge(const struct ferry_stream_flag *flag, uint32_t turn);

/**
 * The turn of the record's call; of a captured call the turn of the run that its stream flag is at. The flag is valid.
 */
uint32_t ferry_recovery_turn(const struct ferry_stream_flag *flags, const struct ferry_submission *head);

#endif
