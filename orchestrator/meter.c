/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/meter.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/submission.h"
#include "rank-lib/launch.h"

#include <string.h>

#define WORTH_A_TRY 1.3  /* a carrier that is expected to take so many times as long has another chance */
#define TRY_EVERY   256u /* calls of a size, of a carrier that was slower */
#define SEEN_ENOUGH 3    /* samples of a size, after which few are taken */
#define LOOK_EVERY  32u
#define OLD         4096 /* looks after which a sample is given up */

#define BIT(c) (1u << (c))

ferryResult_t ferry_meter_init(struct ferry_meter *meter)
{
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	const char *given = ferry_env("FERRY_SHARES");
	uint32_t named = 0;
	memset(meter, 0, sizeof *meter);
	ferryResult_t result = given ? ferry_shares_read(given, meter->pins, &named) : ferrySuccess;
	if (!result)
		result = ferry_env_bytes("FERRY_SPLIT_FLOOR", 1, 1ull << 40, 256 << 10, &meter->floor_bytes);
	meter->pinned = named & BIT(FERRY_CARRIER_NCCL);
	rules.least_bytes = (double)meter->floor_bytes;
	ferry_balancer_init(&meter->balancer, &rules);
	return result;
}

void ferry_meter_free(struct ferry_meter *meter)
{
	for (int i = 0; i < FERRY_METER_SAMPLES; i++)
		ferry_clock_free(&meter->samples[i].clock);
}

static uint32_t all_of(enum ferry_carrier carrier)
{
	struct ferry_shares shares = {.part = {0}};
	shares.part[carrier] = FERRY_SHARES_WHOLE;
	return ferry_shares_pack(&shares);
}

/* What is not NCCL's is the carrier's. */
static uint32_t pinned_word(const struct ferry_meter *meter, enum ferry_carrier carrier, bool whole)
{
	double nccl = meter->pins[FERRY_CARRIER_NCCL];
	struct ferry_shares shares = {.part = {0}};
	if (whole)
		nccl = nccl < 0.5 ? 0 : 1;
	shares.part[FERRY_CARRIER_NCCL] = (uint16_t)(nccl * FERRY_SHARES_WHOLE + 0.5);
	shares.part[carrier] = (uint16_t)(FERRY_SHARES_WHOLE - shares.part[FERRY_CARRIER_NCCL]);
	return ferry_shares_pack(&shares);
}

static bool is_under_way(const struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word)
{
	for (int i = 0; i < FERRY_METER_SAMPLES; i++) {
		const struct ferry_sample *sample = &meter->samples[i];
		if (sample->taken && sample->word == word && sample->call.collective == call->collective &&
		    sample->call.bytes == call->bytes)
			return true;
	}
	return false;
}

/* Both have been seen for this size: the faster one; now and then the other, if it is not much slower. */
static uint32_t propose_whole(struct ferry_meter *meter, const struct ferry_balancer_call *call,
                              enum ferry_carrier carrier, uint64_t n)
{
	const struct ferry_balancer_line *line = ferry_balancer_line(&meter->balancer, call);
	struct ferry_paces paces;
	uint32_t ours = all_of(carrier);
	if (!line || !line->traces[FERRY_CARRIER_NCCL][0].count)
		return FERRY_SHARES_NONE;
	ferry_balancer_paces(&meter->balancer, line, &paces);
	double nccl_us = ferry_pace_us(&paces.in[BIT(FERRY_CARRIER_NCCL)][FERRY_CARRIER_NCCL], (double)call->bytes);
	const struct ferry_pace *pace = &paces.in[BIT(carrier)][carrier];
	double our_us = pace->rate > 0 ? ferry_pace_us(pace, (double)call->bytes) : 0;
	if (our_us > WORTH_A_TRY * nccl_us && !ferry_balancer_picks(n, 16 * TRY_EVERY))
		return FERRY_SHARES_NONE;
	if (!line->traces[carrier][0].count)
		return is_under_way(meter, call, ours) ? FERRY_SHARES_NONE : ours;
	bool try_other = ferry_balancer_picks(n, TRY_EVERY);
	return (our_us < nccl_us) != try_other ? ours : FERRY_SHARES_NONE;
}

uint32_t ferry_meter_propose(struct ferry_meter *meter, const struct ferry_balancer_call *call,
                             enum ferry_carrier carrier, bool whole, uint64_t n)
{
	if (meter->pinned)
		return pinned_word(meter, carrier, whole);
	return whole ? propose_whole(meter, call, carrier, n) : ferry_balancer_propose(&meter->balancer, call, n);
}

static bool is_measured(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word,
                        enum ferry_carrier carrier, uint64_t n)
{
	const struct ferry_balancer_line *line = ferry_balancer_line(&meter->balancer, call);
	bool whole = word == FERRY_SHARES_NONE || word == all_of(carrier);
	if (!line || meter->pinned)
		return false;
	int seen = line->traces[word == FERRY_SHARES_NONE ? FERRY_CARRIER_NCCL : carrier][0].count;
	if (whole && (seen < SEEN_ENOUGH || ferry_balancer_picks(n, LOOK_EVERY)))
		return true;
	return !whole && ferry_balancer_measures(&meter->balancer, call, n);
}

struct ferry_sample *ferry_meter_begin(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word,
                                       enum ferry_carrier carrier, uint64_t n)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	if (!is_measured(meter, call, word, carrier, n))
		return NULL;
	for (uint32_t i = 0; i < FERRY_METER_SAMPLES; i++) {
		struct ferry_sample *sample = &meter->samples[i];
		if (sample->taken)
			continue;
		uint32_t tag = ++meter->stamps % (FERRY_STAMP_TAGS - 1) + 1;
		*sample = (struct ferry_sample){.taken = true,
		                                .nccl = shares.part[FERRY_CARRIER_NCCL],
		                                .ferry = shares.part[FERRY_CARRIER_NCCL] < FERRY_SHARES_WHOLE,
		                                .clock = sample->clock,
		                                .call = *call,
		                                .word = word,
		                                .stamp = tag * FERRY_STAMPS + i};
		return sample;
	}
	return NULL;
}

void ferry_meter_arm(struct ferry_sample *sample, bool timed)
{
	sample->armed = timed;
	sample->taken = timed;
}

static enum ferry_carrier ferrys_carrier(uint32_t word)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	return shares.part[FERRY_CARRIER_PEER] ? FERRY_CARRIER_PEER : FERRY_CARRIER_HOST;
}

void ferry_meter_look(struct ferry_meter *meter, ferryComm_t comm)
{
	for (int i = 0; i < FERRY_METER_SAMPLES; i++) {
		struct ferry_sample *sample = &meter->samples[i];
		uint64_t ns;
		if (!sample->armed)
			continue;
		if (sample->nccl && ferry_clock_read(&sample->clock, &sample->us[FERRY_CARRIER_NCCL]))
			sample->nccl = false;
		if (sample->ferry && ferry_launch_took(comm, sample->stamp, &ns)) {
			sample->us[ferrys_carrier(sample->word)] = (double)ns / 1e3;
			sample->ferry = false;
		}
		if (!sample->nccl && !sample->ferry)
			ferry_balancer_feed(&meter->balancer, &sample->call, sample->word, sample->us);
		if ((!sample->nccl && !sample->ferry) || ++sample->age == OLD)
			sample->taken = sample->armed = false;
	}
}
