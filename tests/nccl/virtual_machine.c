/* SPDX-License-Identifier: Apache-2.0 */
/* How long calls take, by the machine's rates, and the chance that is in that. */
#include "tests/nccl/virtual_parts.h"

#include "rank-lib/program/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB_S       1000.0 /* bytes per microsecond */
#define DIVIDED_US 2.0    /* a stream needs so much more for two */
#define ASLEEP     64.0   /* a lane finds a call late by such a part of the time that it has waited for it, */
#define ASLEEP_US  2000.0 /* at most so much, */
#define ROUSED_US  1000.0 /* and is slow to come where it has had nothing to do for so long */

/* Two H200s (docs/performance.md, docs/lab/nccl-programs.md, docs/lab/gpu-sums.md). */
const struct virtual_machine virtual_nvlink = {
        .name = "NVLink",
        .peers = true,
        .adds = true,
        .curves = {{FERRY_ALLREDUCE, {54, 119, 214, 269, 300, 329}, {40, 100, 192, 324, 359, 372}},
                   {FERRY_REDUCESCATTER, {80, 190, 340, 419, 476, 551}, {50, 130, 352, 501, 639, 711}},
                   {FERRY_ALLGATHER, {48, 153, 307, 429, 491, 544}, {41, 173, 417, 588, 717, 745}},
                   {FERRY_BROADCAST, {40, 110, 230, 300, 330, 340}, {35, 115, 230, 330, 372, 380}}},
        .slow = 0.04,
        .nccl_noise = 0.015,
        .ferry_noise = 0.03,
        .plan_us = 300,
        .export_us = 4000,
        .wake_us = 40};
const struct virtual_machine virtual_pcie = {
        .name = "PCIe",
        .curves = {{FERRY_ALLREDUCE, {16, 25, 27, 27, 27, 27}, {9, 20, 33, 40, 43, 44}},
                   {FERRY_REDUCESCATTER, {25, 41, 48, 50, 50, 50}, {10, 30, 62, 78, 87, 80}},
                   {FERRY_ALLGATHER, {25, 41, 48, 50, 50, 50}, {11, 31, 66, 84, 92, 94}},
                   {FERRY_BROADCAST, {14, 22, 25, 26, 26, 26}, {9, 20, 33, 42, 45, 46}}},
        .slow = 0.3,
        .nccl_noise = 0.015,
        .ferry_noise = 0.03,
        .plan_us = 300,
        .export_us = 4000,
        .wake_us = 40};

double virtual_uniform(void)
{
	return (rand_r(&virtual_all.seed) + 0.5) / (RAND_MAX + 1.0);
}

double virtual_noise(double how)
{
	double normal = sqrt(-2 * log(virtual_uniform())) * cos(2 * M_PI * virtual_uniform());
	return exp(how * normal) * (virtual_uniform() < virtual_all.machine->outliers ? 3 : 1);
}

static const struct virtual_curve *curve_of(enum ferry_collective collective)
{
	for (int i = 0; i < 4; i++)
		if (virtual_all.machine->curves[i].collective == collective &&
		    virtual_all.machine->curves[i].nccl[0] > 0)
			return &virtual_all.machine->curves[i];
	virtual_broken(__FILE__, __LINE__, "a curve of the collective");
	return NULL;
}

/* Between the sizes, and outside, by the power that fits the two next ones. */
static double time_of(const double *rates, double bytes)
{
	double at = log2(bytes / MIB) / 2;
	int i = (int)fmin(fmax(floor(at), 0), VIRTUAL_SIZES - 2);
	double low = exp2(2 * i) * MIB / rates[i] / GB_S, high = exp2(2 * i + 2) * MIB / rates[i + 1] / GB_S;
	return bytes > 0 ? low * pow(high / low, at - i) : 0;
}

static void parts_us(const struct virtual_calls *what, double ferry, double nccl, bool burst,
                     double us[FERRY_NUM_FABRICS])
{
	const struct virtual_machine *machine = virtual_all.machine;
	const struct virtual_curve *curve = curve_of(what->collective);
	const double *slower = machine->burst;
	us[FERRY_FABRIC_HOST] = time_of(curve->ours, ferry);
	us[FERRY_FABRIC_HOST] *= burst && slower[FERRY_FABRIC_HOST] > 0 ? slower[FERRY_FABRIC_HOST] : 1;
	us[FERRY_FABRIC_NCCL] = time_of(curve->nccl, nccl);
	us[FERRY_FABRIC_NCCL] *= burst && slower[FERRY_FABRIC_NCCL] > 0 ? slower[FERRY_FABRIC_NCCL] : 1;
	us[FERRY_FABRIC_NCCL] += machine->slow * fmin(us[FERRY_FABRIC_HOST], us[FERRY_FABRIC_NCCL]);
}

double virtual_expected_us(const struct virtual_calls *what, uint32_t word, bool burst)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	double us[FERRY_NUM_FABRICS], bytes = (double)what->bytes,
	                              nccl = bytes * shares.part[FERRY_FABRIC_NCCL] / FERRY_SHARES_WHOLE;
	parts_us(what, bytes - nccl, nccl, burst, us);
	return fmax(us[FERRY_FABRIC_HOST], us[FERRY_FABRIC_NCCL]) + (nccl > 0 && nccl < bytes ? DIVIDED_US : 0);
}

double virtual_best_us(const struct virtual_calls *what, bool burst, uint32_t *word)
{
	double least = INFINITY;
	for (uint32_t part = 0; part <= FERRY_SHARES_WHOLE; part += FERRY_SHARES_WHOLE) {
		struct ferry_shares shares = {.part = {(uint8_t)part, 0, (uint8_t)(FERRY_SHARES_WHOLE - part)}};
		double us = virtual_expected_us(what, ferry_shares_pack(&shares), burst);
		if (us >= least)
			continue;
		least = us;
		*word = ferry_shares_pack(&shares);
	}
	return least;
}

static bool in_burst(double us)
{
	double s = virtual_all.machine->burst_s;
	return s > 0 && fmod(us / 1e6, 2 * s) >= s;
}

void virtual_finish(struct virtual_work *work)
{
	double ferry_from = 0, nccl_from = 0, submitted = 0, us[FERRY_NUM_FABRICS];
	for (int i = 0; i < VIRTUAL_RANKS; i++) {
		double before = work->n ? virtual_all.works[(work->n - 1) % MOST].sides[i].end_us : 0;
		ferry_from = fmax(ferry_from, fmax(before, work->sides[i].ferry_us));
		nccl_from = fmax(nccl_from, fmax(before, work->sides[i].nccl_us));
		submitted = fmax(submitted, work->sides[i].ferry_us);
	}
	double first = fmax(work->ferry_bytes > 0 ? ferry_from : 0, work->nccl_bytes > 0 ? nccl_from : 0);
	work->burst = in_burst(first);
	work->begun_us = first;
	parts_us(&work->what, work->ferry_bytes, work->nccl_bytes, work->burst, us);
	double late = ferry_from - virtual_all.lanes_us > ROUSED_US ? virtual_all.machine->wake_us : 0;
	late += virtual_uniform() * fmin(ASLEEP_US, (ferry_from - fmax(submitted, virtual_all.lanes_us)) / ASLEEP);
	work->ferry_end_us = ferry_from + late +
	                     us[FERRY_FABRIC_HOST] * virtual_noise(virtual_all.machine->ferry_noise);
	work->nccl_end_us = nccl_from + us[FERRY_FABRIC_NCCL] * virtual_noise(virtual_all.machine->nccl_noise);
	if (work->ferry_bytes > 0)
		virtual_all.lanes_us = work->ferry_end_us;
	double end = fmax(work->ferry_bytes > 0 ? work->ferry_end_us : 0, work->nccl_bytes > 0 ? work->nccl_end_us : 0);
	if (work->ferry_bytes > 0 && work->nccl_bytes > 0)
		end += DIVIDED_US;
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		work->sides[i].end_us = end + 2 * virtual_uniform();
	work->over = true;
}

/* ---- what ferry-perf tune has measured of the machine ---- */

ferryResult_t ferry_limits_load(struct ferry_limits *limits, bool *found)
{
	const struct virtual_machine *machine = virtual_all.machine;
	memset(limits, 0, sizeof *limits);
	*found = machine && machine->tuned;
	for (int i = 0; *found && i < 4 && machine->curves[i].nccl[0] > 0; i++)
		for (int size = 0; size < VIRTUAL_SIZES - 1; size++) {
			const struct virtual_curve *curve = &machine->curves[i];
			struct ferry_limits_collective *row = &limits->collectives[limits->ncollectives++];
			double bytes = exp2(2 * size) * MIB, untrue = machine->untrue > 0 ? machine->untrue : 1;
			row->ranks = VIRTUAL_RANKS;
			row->bytes = (uint64_t)bytes;
			row->nccl_us = time_of(curve->nccl, bytes);
			row->ferry_us = time_of(curve->ours, bytes) / untrue;
			snprintf(row->collective, sizeof row->collective, "%s",
			         ferry_collective_name(curve->collective));
		}
	return ferrySuccess;
}

void ferry_limits_print_settings(uint64_t settings, char text[20])
{
	(void)settings;
	*text = '\0';
}
