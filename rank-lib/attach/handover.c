/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/handover.h"

#include <string.h>

static ferryResult_t ask(struct ferry_handover *handover, struct ferry_attach_message *message, const void *payload,
                         const int *sent)
{
	struct ferry_attach_reply reply;
	return ferry_attach_exchange(handover->connection, message, payload, sent, &reply, NULL, 0, handover->given_up);
}

static ferryResult_t give_plan(void *context, const struct ferry_plan *plan)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = plan->bytes};
	return ask(context, &message, plan, NULL);
}

/*
 * Skips a pinned export that the router cannot map: its memory may have been freed, which the rank cannot know. Only a
 * replayed graph would miss it (router/engine/call_decoder.c).
 */
static ferryResult_t give_export(void *context, const struct ferry_exported *exported, const int *descriptors,
                                 bool pinned)
{
	struct ferry_handover *handover = context;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_EXPORT,
	                                       .descriptors = exported->npieces,
	                                       .payload = ferry_exported_size(exported)};
	ferryResult_t result = ask(handover, &message, exported, descriptors);
	bool mapped = !result || result == ferryRemoteError || result == ferrySystemError;
	if (mapped || !pinned)
		return result;
	ferry_log(FERRY_LOG_INFO, "rank %d: captured calls lose a buffer with their router: %s", handover->rank->self,
	          ferry_last_message());
	ferry_forget_message();
	return ferrySuccess;
}

static ferryResult_t give_submissions(void *context, const void *records, size_t bytes)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RESUBMIT, .payload = bytes};
	return ask(context, &message, records, NULL);
}

static const struct ferry_journal_reader successor = {
        .plan = give_plan, .exported = give_export, .submissions = give_submissions};

/*
 * Adds the GPU: the router of the rank's domain is to move its data, a router of another domain may put into its memory
 * (router/engine/foreign_ranks.h).
 */
static void send_gpu(const struct ferry_handover *handover, struct ferry_attach_message *message, int *descriptors)
{
	int flags;
	memcpy(message->gpu, handover->ops->gpu(handover->context, &flags), sizeof message->gpu);
	if (handover->domain == handover->rank->domain) {
		message->flags |= FERRY_ATTACH_MAPPED;
		descriptors[message->descriptors++] = flags;
	} else {
		message->flags |= FERRY_ATTACH_FOREIGN;
	}
}

/* Sends the rank itself, and its arenas. */
static ferryResult_t introduce(struct ferry_handover *handover)
{
	const struct ferry_rank *rank = handover->rank;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_ADOPT,
	                                       .rank = (uint32_t)rank->self,
	                                       .nranks = (uint32_t)rank->nranks,
	                                       .domain = rank->domain,
	                                       .ndomains = rank->ndomains,
	                                       .descriptors = rank->ndomains,
	                                       .hash = handover->lost_ns};
	struct ferry_attach_reply reply;
	int descriptors[FERRY_MAX_DOMAINS + 1];
	memcpy(message.key, rank->key, sizeof message.key);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		descriptors[domain] = rank->shared.arenas[domain].descriptor;
	if (handover->ops)
		send_gpu(handover, &message, descriptors);
	ferryResult_t result = ferry_attach_exchange(handover->connection, &message, NULL, descriptors, &reply,
	                                             &handover->process, 1, handover->given_up);
	if (!result && message.flags & FERRY_ATTACH_MAPPED && !(reply.flags & FERRY_ATTACH_MAPPED))
		return ferry_fail(ferryRefused, "it does not reach the rank's buffers: %.*s",
		                  (int)sizeof reply.message, reply.message);
	return result;
}

ferryResult_t ferry_hand_over(struct ferry_handover *handover)
{
	struct ferry_attach_message last = {.kind = FERRY_ATTACH_ADOPTED};
	struct ferry_journal_taken taken = {0};
	handover->process = -1;
	ferryResult_t result = introduce(handover);
	if (!result && handover->journal)
		result = ferry_journal_replay(handover->journal, handover->domain, &successor, handover, &taken);
	last.hash = taken.number;
	last.staging = taken.calls;
	return result ? result : ask(handover, &last, NULL, NULL);
}
