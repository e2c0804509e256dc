/* SPDX-License-Identifier: Apache-2.0 */
#include "router/landings.h"

#include "ipc/error.h"
#include "ipc/rankset.h"

/* How far this rank's PUTs reach into that rank's buffer. */
static uint64_t reach(const struct ferry_half *half, uint32_t peer)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		const struct ferry_instr *instr = half->transfers[i].step->instr;
		uint64_t end = instr->user_destination + instr->length;
		if (instr->opcode == FERRY_PUT && instr->peer == peer && end > bytes)
			bytes = end;
	}
	return bytes;
}

static bool find(struct ferry_member *member, struct ferry_call *call, uint32_t peer)
{
	struct ferry_descriptor_fields theirs;
	struct ferry_landing landing = {0};
	const struct ferry_half *half = &call->halves[FERRY_UP];
	uint64_t bytes = reach(half, peer);
	if (!bytes)
		return true; /* all of them are empty */
	ferry_descriptor_read(&ferry_rank_line(member->shared, peer)->ring[call->bank], &theirs);
	ferryResult_t result = member->ops->land(member, peer, &theirs.landing, bytes, &landing);
	if (result) {
		member->ops->fail(member, result, ferry_last_message());
		return false;
	}
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		struct ferry_transfer *transfer = &half->transfers[i];
		if (transfer->step->instr->opcode != FERRY_PUT || transfer->step->instr->peer != peer)
			continue;
		transfer->destination = landing.address + transfer->step->instr->user_destination;
		transfer->process = landing.process;
		transfer->hold = landing.hold;
		landing.hold = NULL;
	}
	return true;
}

bool ferry_landings_find(struct ferry_member *member, struct ferry_call *call)
{
	if (call->landed == ferry_call_number(call) || !ferry_order_agreed(member, call))
		return false;
	call->landed = ferry_call_number(call);
	for (uint64_t left = call->steps->puts_to; left; left &= left - 1)
		if (!find(member, call, ferry_rankset_lowest(left)))
			break;
	return true;
}

void ferry_landings_let_go(struct ferry_member *member, struct ferry_call *call)
{
	const struct ferry_half *half = &call->halves[FERRY_UP];
	for (uint32_t i = 0; half->transfers && i < half->ntransfers; i++) { /* NULL: it has never run */
		struct ferry_transfer *transfer = &half->transfers[i];
		if (transfer->hold)
			member->ops->let_go(member, transfer->hold);
		transfer->hold = NULL;
	}
}
