/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator of the ranks that go on without others. */
#include "ipc/rankset.h"
#include "rank-lib/api/comm_init.h"
#include "rank-lib/api/config.h"
#include "rank-lib/api/shrinking.h"
#include "rank-lib/attach/key.h"
#include "rank-lib/call/comm.h"

#include <stdio.h>

static ferryResult_t read_excluded(const struct ferryComm *comm, const int *list, int count, uint64_t *excluded)
{
	*excluded = 0;
	if (count < 0 || (count && !list))
		return ferry_fail(ferryInvalidArgument, "ferryCommShrink: %d excluded ranks at %p", count,
		                  (const void *)list);
	for (int i = 0; i < count; i++) {
		if (list[i] < 0 || list[i] >= comm->rank.nranks || list[i] == comm->rank.self)
			return ferry_fail(ferryInvalidArgument,
			                  "ferryCommShrink: rank %d of %d excludes rank %d: another rank is to be "
			                  "excluded, and the excluded ones do not call",
			                  comm->rank.self, comm->rank.nranks, list[i]);
		*excluded |= 1ull << list[i];
	}
	return ferrySuccess;
}

/* ABORT: calls under way end on all ranks, as after ferryCommAbort; the connections stay for the shrinking. */
static void end_calls(struct ferryComm *comm)
{
	char text[96];
	snprintf(text, sizeof text, "rank %d shrinks the communicator to those that are left", comm->rank.self);
	ferry_rank_abort(&comm->rank, text);
}

/* Routers that ranks host end with their hosts: the remaining ranks host others, by the new key. */
static const struct ferry_routers *routers_for(const struct ferryComm *comm, ferryConfig_t *known)
{
	if (comm->routers.mode != FERRY_ROUTER_EMBEDDED)
		return &comm->routers;
	known->router = "embedded";
	return NULL;
}

static ferryResult_t make(struct ferryComm *comm, const struct ferry_shrinking *shrinking, ferryComm_t *made,
                          ferryConfig_t *known)
{
	uint8_t derived[FERRY_KEY_BYTES];
	uint64_t before = shrinking->ranks & ((1ull << comm->rank.self) - 1);
	ferry_derive_key(derived, comm->rank.key, 1ull << 63 | shrinking->round, shrinking->ranks); /* no split's */
	ferry_comm_inherit(comm, known);
	return ferry_comm_make(made, __builtin_popcountll(shrinking->ranks), derived, __builtin_popcountll(before),
	                       known, routers_for(comm, known), &shrinking->maker);
}

static ferryResult_t shrink(struct ferryComm *comm, uint64_t excluded, bool aborts, ferryComm_t *newcomm,
                            ferryConfig_t *known)
{
	struct ferry_shrinking shrinking;
	ferryComm_t made;
	ferryResult_t result = ferry_shrinking_begin(&shrinking, &comm->rank, ++comm->shrinks, excluded, aborts);
	if (result)
		return result;
	if ((result = make(comm, &shrinking, &made, known)))
		return ferry_shrinking_give_up(&shrinking, result);
	if ((result = ferry_shrinking_finish(&shrinking))) {
		char message[FERRY_MESSAGE_BYTES];
		snprintf(message, sizeof message, "%s", ferry_last_message());
		ferryCommAbort(made);
		return ferry_fail(result, "%s", message);
	}
	*newcomm = made;
	return ferrySuccess;
}

static ferryResult_t shrink_held(struct ferryComm *comm, const int *list, int count, ferryComm_t *newcomm,
                                 ferryConfig_t *known, int flags)
{
	uint64_t excluded;
	ferryResult_t result = read_excluded(comm, list, count, &excluded);
	if (result)
		return result;
	if (flags & FERRY_SHRINK_ABORT)
		end_calls(comm);
	pthread_mutex_lock(&comm->shrinking);
	result = shrink(comm, excluded, flags & FERRY_SHRINK_ABORT, newcomm, known);
	pthread_mutex_unlock(&comm->shrinking);
	return result ? ferry_fail_context(result, "ferryCommShrink") : result;
}

ferryResult_t ferryCommShrink(ferryComm_t comm, const int *excluded, int nexcluded, ferryComm_t *newcomm,
                              const ferryConfig_t *config, int flags)
{
	ferryConfig_t known = FERRY_CONFIG_INITIALIZER;
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	result = ferry_config_read("ferryCommShrink", config, &known, sizeof known);
	if (!result && (!newcomm || flags & ~FERRY_SHRINK_ABORT))
		result = ferry_fail(ferryInvalidArgument,
		                    "ferryCommShrink: newcomm %p, flags %d: FERRY_SHRINK_DEFAULT or FERRY_SHRINK_ABORT",
		                    (void *)newcomm, flags);
	if (!result) {
		*newcomm = NULL;
		result = shrink_held(comm, excluded, nexcluded, newcomm, &known, flags);
	}
	ferry_comm_release(comm);
	return result;
}
