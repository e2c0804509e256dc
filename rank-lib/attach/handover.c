/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/handover.h"

#include <string.h>

static ferryResult_t ask(const struct ferry_handover *handover, struct ferry_attach_message *message,
                         const void *payload, const int *sent, int *process)
{
	struct ferry_attach_reply reply;
	return ferry_attach_exchange(handover->connection, message, payload, sent, &reply, process, process != NULL,
	                             handover->given_up);
}

static ferryResult_t give_plan(void *context, const struct ferry_plan *plan)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = plan->bytes};
	return ask(context, &message, plan, NULL, NULL);
}

ferryResult_t ferry_hand_over(struct ferry_handover *handover)
{
	const struct ferry_rank *rank = handover->rank;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_ADOPT,
	                                       .rank = (uint32_t)rank->self,
	                                       .nranks = (uint32_t)rank->nranks,
	                                       .domain = rank->domain,
	                                       .ndomains = rank->ndomains,
	                                       .descriptors = rank->ndomains,
	                                       .hash = handover->lost_ns};
	struct ferry_attach_message last = {.kind = FERRY_ATTACH_ADOPTED};
	int arenas[FERRY_MAX_DOMAINS];
	memcpy(message.key, rank->key, sizeof message.key);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		arenas[domain] = rank->shared.arenas[domain].descriptor;
	handover->process = -1;
	ferryResult_t result = ask(handover, &message, NULL, arenas, &handover->process);
	if (!result && handover->plans)
		result = ferry_held_plans_each(handover->plans, handover->domain, give_plan, handover);
	return result ? result : ask(handover, &last, NULL, NULL, NULL);
}
