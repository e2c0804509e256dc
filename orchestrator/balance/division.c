/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/division.h"

#include <math.h>
#include <stdbool.h>

#define BIT(c) (1u << (c))

double ferry_pace_us(const struct ferry_pace *pace, double bytes)
{
	if (!(pace->rate > 0))
		return bytes > 0 ? INFINITY : 0;
	return bytes > 0 ? pace->start_us + bytes / pace->rate : 0;
}

uint32_t ferry_division_set(const struct ferry_shares *shares)
{
	uint32_t set = 0;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		set |= shares->part[c] ? BIT(c) : 0;
	return set;
}

double ferry_division_us(const struct ferry_paces *paces, double bytes, const struct ferry_shares *shares)
{
	const struct ferry_pace *of = paces->in[ferry_division_set(shares)];
	double longest = 0;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		longest = fmax(longest, ferry_pace_us(&of[c], bytes * shares->part[c] / FERRY_SHARES_WHOLE));
	return longest;
}

/*
 * Parts of the fabrics in `set` that end together: with starts a and rates R of each, at T = (S + sum a R) / sum R
 * fabric c has carried (T - a) R.
 */
static void end_together(const struct ferry_pace *paces, double bytes, uint32_t set, double *parts)
{
	double rates = 0, work = bytes;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		if (set & BIT(c)) {
			rates += paces[c].rate;
			work += paces[c].start_us * paces[c].rate;
		}
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		parts[c] = set & BIT(c) ? (work / rates - paces[c].start_us) * paces[c].rate : 0;
}

/* A fabric of the set whose part is below the floor; -1: none. */
static int below_floor(uint32_t set, const double *parts, double floor_bytes)
{
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		if (set & BIT(c) && parts[c] < floor_bytes)
			return c;
	return -1;
}

/* A part below the floor becomes the floor if its fabric is kept; else the set is unusable. */
static bool find_parts(const struct ferry_pace *paces, double bytes, uint32_t set,
                         const struct ferry_division_rules *rules, double *parts)
{
	uint32_t rest = set;
	double left = bytes, floors = 0;
	for (int low;
	     (end_together(paces, left, rest, parts), low = below_floor(rest, parts, rules->floor_bytes)) >= 0;) {
		rest &= ~BIT(low);
		floors += rules->floor_bytes;
		left = bytes - floors;
		if (!rest || !(rules->kept & BIT(low)) || left < rules->floor_bytes)
			return false;
	}
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		if (set & ~rest & BIT(c))
			parts[c] = rules->floor_bytes;
	return true;
}

/* In 1024ths; what rounding leaves is the largest part's. */
static void round_shares(const double *parts, double bytes, struct ferry_shares *shares)
{
	int largest = 0, sum = 0;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		shares->part[c] = (uint16_t)lround(parts[c] / bytes * FERRY_SHARES_WHOLE);
		if (!shares->part[c] && parts[c] > 0)
			shares->part[c] = 1;
		sum += shares->part[c];
		largest = shares->part[c] > shares->part[largest] ? c : largest;
	}
	shares->part[largest] = (uint16_t)(shares->part[largest] + (int)FERRY_SHARES_WHOLE - sum);
}

double ferry_divide_among(const struct ferry_paces *paces, double bytes, uint32_t set,
                          const struct ferry_division_rules *rules, struct ferry_shares *shares)
{
	double parts[FERRY_NUM_FABRICS];
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		parts[c] = set & BIT(c) ? bytes : 0;
		if (set & BIT(c) && !(paces->in[set][c].rate > 0))
			return INFINITY;
	}
	if (set & (set - 1) && !find_parts(paces->in[set], bytes, set, rules, parts))
		return INFINITY;
	round_shares(parts, bytes, shares);
	return ferry_division_us(paces, bytes, shares);
}

double ferry_divide(const struct ferry_paces *paces, double bytes, const struct ferry_division_rules *rules,
                    struct ferry_shares *shares)
{
	double best = INFINITY;
	*shares = ferry_shares_unpack(FERRY_SHARES_NONE);
	for (uint32_t set = 1; set < FERRY_FABRIC_SETS; set++) {
		struct ferry_shares candidate;
		double asked = 1;
		for (int c = 0; c < FERRY_FABRIC_NCCL; c++)
			asked += set & ~rules->kept & BIT(c) ? rules->least_gain : 0;
		if (set & ~rules->usable)
			continue;
		double us = ferry_divide_among(paces, bytes, set, rules, &candidate) * asked;
		if (us < best) {
			best = us;
			*shares = candidate;
		}
	}
	return ferry_division_us(paces, bytes, shares);
}
