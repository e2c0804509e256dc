/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/orchestrator/fabrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool fabrics_in_burst(const struct fabrics *fabrics)
{
	return fabrics->burst_s > 0 && fmod(fabrics->now_us / 1e6, 2 * fabrics->burst_s) >= fabrics->burst_s;
}

/* Each part is slower while another works: rounds, as how long that is depends on the same. */
double fabrics_us(const struct fabrics *fabrics, double bytes, const struct ferry_shares *shares,
                  double us[FERRY_NUM_FABRICS])
{
	double alone[FERRY_NUM_FABRICS], longest = 0;
	bool burst = fabrics_in_burst(fabrics);
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		struct ferry_pace pace = fabrics->paces[c];
		pace.rate /= burst && fabrics->burst[c] > 0 ? fabrics->burst[c] : 1;
		pace.rate /= c == FERRY_FABRIC_HOST ? 1 + fabrics->drift * fabrics->now_us / 1e6 : 1;
		us[c] = alone[c] = ferry_pace_us(&pace, bytes * shares->part[c] / FERRY_SHARES_WHOLE);
		if (c == FERRY_FABRIC_NCCL && fabrics->gaps > 0 && shares->part[c] < FERRY_SHARES_WHOLE)
			us[c] = alone[c] *= fabrics->gaps;
	}
	for (int round = 0; round < 8; round++)
		for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
			double longer = alone[c];
			for (int d = 0; d < FERRY_NUM_FABRICS && alone[c] > 0; d++)
				/* of the work done while d works too, which is slower by that factor */
				longer += fabrics->together[c][d] * fmin(us[c], us[d]) / (1 + fabrics->together[c][d]);
			us[c] = longer;
		}
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		longest = fmax(longest, us[c]);
	return longest;
}

static double uniform(struct fabrics *fabrics)
{
	return (rand_r(&fabrics->seed) + 0.5) / (RAND_MAX + 1.0);
}

double fabrics_call(struct fabrics *fabrics, double bytes, const struct ferry_shares *shares,
                    double us[FERRY_NUM_FABRICS])
{
	double longest = 0;
	fabrics_us(fabrics, bytes, shares, us);
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		double normal = sqrt(-2 * log(uniform(fabrics))) * cos(2 * M_PI * uniform(fabrics));
		us[c] *= exp(fabrics->noise * normal);
		if (uniform(fabrics) < fabrics->outliers)
			us[c] *= 3;
		longest = fmax(longest, us[c]);
	}
	fabrics->now_us += longest;
	return longest;
}

double fabrics_best(const struct fabrics *fabrics, double bytes, uint32_t usable, double floor_bytes,
                    struct ferry_shares *shares)
{
	double least = INFINITY, us[FERRY_NUM_FABRICS];
	int host_most = usable >> FERRY_FABRIC_HOST & 1 ? (int)FERRY_SHARES_WHOLE : 0;
	int peer_most = usable >> FERRY_FABRIC_PEER & 1 ? (int)FERRY_SHARES_WHOLE : 0;
	int coarse = host_most && peer_most ? 8 : 2;
	for (int host = 0; host <= host_most; host += coarse)
		for (int peer = 0; peer <= peer_most && host + peer <= (int)FERRY_SHARES_WHOLE; peer += coarse) {
			struct ferry_shares tried = {
			        {(uint16_t)host, (uint16_t)peer, (uint16_t)((int)FERRY_SHARES_WHOLE - host - peer)}};
			bool can = true;
			for (int c = 0; c < FERRY_NUM_FABRICS; c++)
				can &= !tried.part[c] || bytes * tried.part[c] / FERRY_SHARES_WHOLE >= floor_bytes;
			double longest = can ? fabrics_us(fabrics, bytes, &tried, us) : INFINITY;
			if (longest < least) {
				least = longest;
				*shares = tried;
			}
		}
	return least;
}
