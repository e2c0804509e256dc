/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/shares.h"

#include "ipc/error.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PART_BITS 11

static const char *const names[FERRY_NUM_CARRIERS] = {"host", "peer", "nccl"};

const char *ferry_carrier_name(enum ferry_carrier carrier)
{
	return names[carrier];
}

uint32_t ferry_shares_pack(const struct ferry_shares *shares)
{
	return (uint32_t)shares->part[FERRY_CARRIER_HOST] << PART_BITS | shares->part[FERRY_CARRIER_PEER];
}

struct ferry_shares ferry_shares_unpack(uint32_t word)
{
	struct ferry_shares shares = {{0, 0, FERRY_SHARES_WHOLE}};
	uint32_t host = word >> PART_BITS & ((1u << PART_BITS) - 1), peer = word & ((1u << PART_BITS) - 1);
	if (host + peer > FERRY_SHARES_WHOLE)
		return shares;
	shares.part[FERRY_CARRIER_HOST] = (uint16_t)host;
	shares.part[FERRY_CARRIER_PEER] = (uint16_t)peer;
	shares.part[FERRY_CARRIER_NCCL] = (uint16_t)(FERRY_SHARES_WHOLE - host - peer);
	return shares;
}

/* Where the parts of the carriers below end; the last with a part ends with the block. */
static uint64_t end_of(const struct ferry_shares *shares, int carrier, uint64_t count, uint64_t round)
{
	uint32_t below = 0;
	for (int i = 0; i <= carrier; i++)
		below += shares->part[i];
	if (below >= FERRY_SHARES_WHOLE)
		return count;
	uint64_t end = count / FERRY_SHARES_WHOLE * below + count % FERRY_SHARES_WHOLE * below / FERRY_SHARES_WHOLE;
	return end / round * round;
}

void ferry_shares_range(const struct ferry_shares *shares, enum ferry_carrier carrier, uint64_t count, uint64_t round,
                        uint64_t *at, uint64_t *length)
{
	*at = carrier ? end_of(shares, (int)carrier - 1, count, round) : 0;
	*length = end_of(shares, (int)carrier, count, round) - *at;
}

/* The carrier that the text begins with, before a : or = at *next; -1: none. */
static int read_name(const char *text, const char **next)
{
	for (int carrier = 0; carrier < FERRY_NUM_CARRIERS; carrier++) {
		size_t length = strlen(names[carrier]);
		*next = text + length;
		if (!strncmp(text, names[carrier], length) && (**next == ':' || **next == '='))
			return carrier;
	}
	return -1;
}

ferryResult_t ferry_shares_read(const char *text, double shares[FERRY_NUM_CARRIERS], uint32_t *named)
{
	const char *at = text, *next;
	*named = 0;
	memset(shares, 0, FERRY_NUM_CARRIERS * sizeof *shares);
	while (1) {
		char *end = NULL;
		int carrier = read_name(at, &next);
		double share = carrier < 0 ? -1 : strtod(next + 1, &end);
		if (carrier < 0 || end == next + 1 || !(share >= 0 && share <= 1) || *named >> carrier & 1 ||
		    (*end && *end != ','))
			return ferry_fail(ferryInvalidArgument,
			                  "FERRY_SHARES=%s: nccl:SHARE,host:SHARE,peer:SHARE, from 0 to 1, at \"%s\"",
			                  text, at);
		shares[carrier] = share;
		*named |= 1u << carrier;
		if (!*end)
			return ferrySuccess;
		at = end + 1;
	}
}

ferryResult_t ferry_shares_pin(const char *text, struct ferry_shares *pins)
{
	double shares[FERRY_NUM_CARRIERS];
	uint32_t named;
	ferryResult_t result = ferry_shares_read(text, shares, &named);
	if (result)
		return result;
	double ours = shares[FERRY_CARRIER_HOST] + shares[FERRY_CARRIER_PEER], sum = ours + shares[FERRY_CARRIER_NCCL];
	bool whole = named >> FERRY_CARRIER_NCCL & 1 || (named >> FERRY_CARRIER_HOST & named >> FERRY_CARRIER_PEER & 1);
	if (sum > 1.001 || (whole && sum < 0.999))
		return ferry_fail(ferryInvalidArgument, "FERRY_SHARES=%s: they sum to %g, not 1", text, sum);
	uint32_t host = (uint32_t)(shares[FERRY_CARRIER_HOST] * FERRY_SHARES_WHOLE + 0.5);
	uint32_t peer = (uint32_t)(shares[FERRY_CARRIER_PEER] * FERRY_SHARES_WHOLE + 0.5);
	if (host + peer > FERRY_SHARES_WHOLE)
		peer = FERRY_SHARES_WHOLE - host;
	*pins = ferry_shares_unpack(host << PART_BITS | peer);
	return ferrySuccess;
}
