/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/meter.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/submission.h"
#include "orchestrator/key.h"
#include "rank-lib/launch.h"

#include <string.h>
#include <unistd.h>

#define WORTH_A_TRY 1.3  /* a carrier that is expected to take so many times as long has another chance */
#define TRY_EVERY   256u /* calls of a size, of a carrier that was slower */
#define SEEN_ENOUGH 3    /* samples of a size, after which few are taken */
#define LOOK_EVERY  32u
#define OLD         4096 /* looks after which a sample is given up */

#define BIT(c) (1u << (c))

ferryResult_t ferry_meter_init(struct ferry_meter *meter)
{
	const char *given = ferry_env("FERRY_SHARES");
	memset(meter, 0, sizeof *meter);
	meter->rules = ferry_balancer_default_rules();
	ferryResult_t result = ferry_env_bytes("FERRY_SPLIT_FLOOR", 1, 1ull << 40, 256 << 10, &meter->floor_bytes);
	if (!result && given)
		result = ferry_shares_pin(given, &meter->rules.pins);
	meter->rules.pinned = given;
	meter->rules.least_bytes = (double)meter->floor_bytes;
	ferry_balancer_init(&meter->balancer, &meter->rules);
	return result;
}

void ferry_meter_free(struct ferry_meter *meter)
{
	ferry_ledger_close(&meter->ledger);
	for (int i = 0; i < FERRY_METER_SAMPLES; i++)
		ferry_clock_free(&meter->samples[i].clock);
}

/* What makes paces differ from job to job: NCCL's settings. In any order. */
static uint64_t settings(uint32_t nranks)
{
	uint64_t all = nranks;
	for (char **at = environ; *at; at++) {
		if (strncmp(*at, "NCCL_", 5))
			continue;
		struct ferry_nccl_key key = ferry_nccl_key(NULL, *at, strlen(*at));
		all += key.words[0];
	}
	return all ? all : 1;
}

void ferry_meter_open(struct ferry_meter *meter, struct ferry_share_table *table, uint32_t nranks, uint32_t self)
{
	ferry_ledger_open(&meter->ledger, table, nranks, self, settings(nranks), &meter->rules);
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
	uint16_t nccl = meter->rules.pins.part[FERRY_CARRIER_NCCL];
	struct ferry_shares shares = {.part = {0}};
	if (whole)
		nccl = 2 * nccl < FERRY_SHARES_WHOLE ? 0 : FERRY_SHARES_WHOLE;
	shares.part[FERRY_CARRIER_NCCL] = nccl;
	shares.part[carrier] = (uint16_t)(FERRY_SHARES_WHOLE - nccl);
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
                             enum ferry_carrier carrier, bool whole, uint64_t n, bool *measure)
{
	*measure = false;
	if (meter->rules.pinned)
		return pinned_word(meter, carrier, whole);
	if (!whole)
		return ferry_ledger_propose(&meter->ledger, call, n, measure);
	uint32_t word = propose_whole(meter, call, carrier, n);
	const struct ferry_balancer_line *line = ferry_balancer_line(&meter->balancer, call);
	int seen = line ? line->traces[word == FERRY_SHARES_NONE ? FERRY_CARRIER_NCCL : carrier][0].count : 0;
	*measure = line && (seen < SEEN_ENOUGH || ferry_balancer_picks(n, LOOK_EVERY));
	return word;
}

struct ferry_sample *ferry_meter_begin(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word,
                                       bool whole, uint64_t n)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
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
		                                .whole = whole,
		                                .n = n,
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

static void learn(struct ferry_meter *meter, const struct ferry_sample *sample)
{
	if (sample->whole)
		ferry_balancer_feed(&meter->balancer, &sample->call, sample->word, sample->us);
	else
		ferry_ledger_tell(&meter->ledger, &sample->call, sample->n, sample->word, sample->us);
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
			learn(meter, sample);
		if ((!sample->nccl && !sample->ferry) || ++sample->age == OLD)
			sample->taken = sample->armed = false;
	}
}
