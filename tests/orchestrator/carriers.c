/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/orchestrator/carriers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool carriers_in_burst(const struct carriers *carriers)
{
	return carriers->burst_s > 0 && fmod(carriers->now_us / 1e6, 2 * carriers->burst_s) >= carriers->burst_s;
}

/* Each part is slower while another works: rounds, as how long that is depends on the same. */
double carriers_us(const struct carriers *carriers, double bytes, const struct ferry_shares *shares,
                   double us[FERRY_NUM_CARRIERS])
{
	double alone[FERRY_NUM_CARRIERS], longest = 0;
	bool burst = carriers_in_burst(carriers);
	for (int c = 0; c < FERRY_NUM_CARRIERS; c++) {
		struct ferry_pace pace = carriers->paces[c];
		pace.rate /= burst && carriers->burst[c] > 0 ? carriers->burst[c] : 1;
		pace.rate /= c == FERRY_CARRIER_HOST ? 1 + carriers->drift * carriers->now_us / 1e6 : 1;
		us[c] = alone[c] = ferry_pace_us(&pace, bytes * shares->part[c] / FERRY_SHARES_WHOLE);
		if (c == FERRY_CARRIER_NCCL && carriers->gaps > 0 && shares->part[c] < FERRY_SHARES_WHOLE)
			us[c] = alone[c] *= carriers->gaps;
	}
	for (int round = 0; round < 8; round++)
		for (int c = 0; c < FERRY_NUM_CARRIERS; c++) {
			double longer = alone[c];
			for (int d = 0; d < FERRY_NUM_CARRIERS && alone[c] > 0; d++)
				/* of the work done while d works too, which is slower by that factor */
				longer += carriers->together[c][d] * fmin(us[c], us[d]) /
				          (1 + carriers->together[c][d]);
			us[c] = longer;
		}
	for (int c = 0; c < FERRY_NUM_CARRIERS; c++)
		longest = fmax(longest, us[c]);
	return longest;
}

static double uniform(struct carriers *carriers)
{
	return (rand_r(&carriers->seed) + 0.5) / (RAND_MAX + 1.0);
}

double carriers_call(struct carriers *carriers, double bytes, const struct ferry_shares *shares,
                     double us[FERRY_NUM_CARRIERS])
{
	double longest = 0;
	carriers_us(carriers, bytes, shares, us);
	for (int c = 0; c < FERRY_NUM_CARRIERS; c++) {
		double normal = sqrt(-2 * log(uniform(carriers))) * cos(2 * M_PI * uniform(carriers));
		us[c] *= exp(carriers->noise * normal);
		if (uniform(carriers) < carriers->outliers)
			us[c] *= 3;
		longest = fmax(longest, us[c]);
	}
	carriers->now_us += longest;
	return longest;
}

double carriers_best(const struct carriers *carriers, double bytes, uint32_t usable, double floor_bytes,
                     struct ferry_shares *shares)
{
	double least = INFINITY, us[FERRY_NUM_CARRIERS];
	int host_most = usable >> FERRY_CARRIER_HOST & 1 ? (int)FERRY_SHARES_WHOLE : 0;
	int peer_most = usable >> FERRY_CARRIER_PEER & 1 ? (int)FERRY_SHARES_WHOLE : 0;
	int coarse = host_most && peer_most ? 8 : 2;
	for (int host = 0; host <= host_most; host += coarse)
		for (int peer = 0; peer <= peer_most && host + peer <= (int)FERRY_SHARES_WHOLE; peer += coarse) {
			struct ferry_shares tried = {
			        {(uint16_t)host, (uint16_t)peer, (uint16_t)((int)FERRY_SHARES_WHOLE - host - peer)}};
			bool can = true;
			for (int c = 0; c < FERRY_NUM_CARRIERS; c++)
				can &= !tried.part[c] || bytes * tried.part[c] / FERRY_SHARES_WHOLE >= floor_bytes;
			double longest = can ? carriers_us(carriers, bytes, &tried, us) : INFINITY;
			if (longest < least) {
				least = longest;
				*shares = tried;
			}
		}
	return least;
}
