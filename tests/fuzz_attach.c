/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a message on a router's socket. What the decoder takes is within the bounds the router relies on. */
#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool within_bounds(const struct ferry_attach_message *message)
{
	switch (message->kind) {
	case FERRY_ATTACH_RANK:
	case FERRY_ATTACH_PEER:
		return message->nranks >= 1 && message->nranks <= FERRY_MAX_RANKS && message->ndomains >= 1 &&
		       message->ndomains <= FERRY_MAX_DOMAINS && message->domain < message->ndomains && !message->payload &&
		       (message->kind == FERRY_ATTACH_PEER || message->rank < message->nranks);
	case FERRY_ATTACH_PLAN:
		return message->payload >= sizeof(struct ferry_plan) && message->payload <= FERRY_PLAN_MAX_BYTES;
	default:
		return message->kind < FERRY_ATTACH_KINDS && message->kind > 0 && !message->payload;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ferry_attach_message message;
	uint8_t *bytes = malloc(size ? size : 1); /* of that size: a read behind its end is seen */
	if (!bytes)
		return 0;
	if (size)
		memcpy(bytes, data, size);
	if (ferry_attach_decode(bytes, size, &message) == ferrySuccess &&
	    (message.magic != FERRY_ATTACH_MAGIC || message.abi != FERRY_ATTACH_ABI || !within_bounds(&message))) {
		fprintf(stderr, "fuzz_attach: a message of kind %u was taken with a field out of range\n", message.kind);
		abort();
	}
	free(bytes);
	return 0;
}
