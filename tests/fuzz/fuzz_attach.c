/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: any bytes as a message on a router's socket, and as the payload of an EXPORT. What the decoders
 * take is within the bounds the router relies on.
 */
#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/export.h"
#include "ipc/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool within_bounds(const struct ferry_attach_message *message)
{
	switch (message->kind) {
	case FERRY_ATTACH_RANK:
		return message->nranks >= 1 && message->nranks <= FERRY_MAX_RANKS && message->ndomains >= 1 &&
		       message->ndomains <= FERRY_MAX_DOMAINS && message->domain < message->ndomains &&
		       message->rank < message->nranks && !message->payload && message->flags < 8 &&
		       (message->flags & 5) != 5 &&
		       message->descriptors == (message->flags & FERRY_ATTACH_MAPPED);
	case FERRY_ATTACH_ADOPT:
		return message->nranks >= 1 && message->nranks <= FERRY_MAX_RANKS && message->ndomains >= 1 &&
		       message->ndomains <= FERRY_MAX_DOMAINS && message->domain < message->ndomains &&
		       message->rank < message->nranks && !message->payload &&
		       (!message->flags || message->flags == FERRY_ATTACH_MAPPED ||
		        message->flags == FERRY_ATTACH_FOREIGN) &&
		       message->descriptors == message->ndomains + (message->flags == FERRY_ATTACH_MAPPED);
	case FERRY_ATTACH_RESUBMIT:
		return message->payload <= FERRY_RESUBMIT_MOST && !message->descriptors && !message->flags;
	case FERRY_ATTACH_READY:
		return (!message->descriptors ||
		        (message->descriptors == message->ndomains && message->ndomains <= FERRY_MAX_DOMAINS)) &&
		       !message->payload && !message->flags;
	case FERRY_ATTACH_EXPORT:
		return message->payload >= FERRY_EXPORTED_LEAST && message->payload <= sizeof(struct ferry_exported) &&
		       message->descriptors <= FERRY_ATTACH_MOST_DESCRIPTORS && !message->flags;
	case FERRY_ATTACH_FORGET:
		return message->index < FERRY_MOST_EXPORTS && !message->payload && !message->descriptors &&
		       !(message->flags & ~FERRY_ATTACH_UNMAPPED);
	case FERRY_ATTACH_PLAN:
		return message->payload >= sizeof(struct ferry_plan) && message->payload <= FERRY_PLAN_MAX_BYTES &&
		       !message->descriptors && !message->flags;
	default:
		return message->kind < FERRY_ATTACH_KINDS && message->kind > 0 && !message->payload &&
		       !message->descriptors && !message->flags;
	}
}

static bool holds_what_it_says(const struct ferry_exported *exported, uint32_t ndescriptors)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < exported->npieces && i < FERRY_MOST_PIECES; i++) {
		if (!exported->lengths[i] || sum + exported->lengths[i] < sum)
			return false;
		sum += exported->lengths[i];
	}
	return exported->index < FERRY_MOST_EXPORTS && exported->generation && exported->bytes &&
	       exported->npieces <= FERRY_MOST_PIECES && exported->npieces == ndescriptors &&
	       (exported->kind == FERRY_EXPORTED_IPC ? !ndescriptors
	                                             : exported->kind == FERRY_EXPORTED_VMM && sum == exported->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ferry_attach_message message;
	struct ferry_exported exported;
	uint8_t *bytes = calloc(size ? size : 1, 1); /* of that size: a read behind its end is seen */
	if (!bytes)
		return 0;
	if (size)
		memcpy(bytes, data, size);
	if (ferry_attach_decode(bytes, size, &message) == ferrySuccess &&
	    (message.magic != FERRY_ATTACH_MAGIC || message.abi != FERRY_ATTACH_ABI || !within_bounds(&message))) {
		fprintf(stderr, "fuzz_attach: a message of kind %u was taken with a field out of range\n",
		        message.kind);
		abort();
	}
	/* As many descriptors as it says itself, which is the kindest that may come with it; and none. */
	uint32_t ndescriptors = 0;
	if (size >= FERRY_EXPORTED_LEAST)
		memcpy(&ndescriptors, bytes + offsetof(struct ferry_exported, npieces), sizeof ndescriptors);
	for (int i = 0; i < 2; i++, ndescriptors = 0)
		if (ferry_exported_read(bytes, size, ndescriptors, &exported) == ferrySuccess &&
		    !holds_what_it_says(&exported, ndescriptors)) {
			fprintf(stderr, "fuzz_attach: an export of kind %u was taken with a field out of range\n",
			        exported.kind);
			abort();
		}
	free(bytes);
	return 0;
}
