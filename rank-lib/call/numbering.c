/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/numbering.h"

void ferry_numbering_init(struct ferry_numbering *numbering)
{
	*numbering = (struct ferry_numbering){.fixed = UINT64_MAX};
}

struct ferry_number ferry_numbering_next(struct ferry_numbering *numbering, bool captured)
{
	struct ferry_number number = {0};
	if (captured && numbering->fixed == UINT64_MAX)
		numbering->fixed = numbering->made;
	uint64_t made = ++numbering->made;
	if (made <= numbering->fixed)
		number.seq = made;
	else
		number.name = made;
	return number;
}

uint64_t ferry_numbering_message(struct ferry_numbering *numbering, enum ferry_direction direction, uint32_t peer)
{
	return numbering->messages[direction][peer] += !numbering->messages_named;
}
