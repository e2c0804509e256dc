/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/meter.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/nccl_settings.h"
#include "ipc/submission.h"
#include "rank-lib/call/launch.h"

#include <math.h>
#include <string.h>

#define OLD 4096 /* looks after which a sample is given up */

/* Two H200s: shorter calls gain little, and to find that out costs more (docs/lab/nccl-programs.md). */
#define FLOOR (8u << 20)

/*
 * Beside links between GPUs the ones to the host add about a tenth, and a short part of Ferry's takes longer than NCCL
 * would: of AllReduces of 64 MiB over NVLink nothing is to be gained (docs/lab/nccl-programs.md).
 */
#define DIVIDED_FROM (128u << 20)
#define LEAST_PART   (4u << 20)

ferryResult_t ferry_meter_init(struct ferry_meter *meter)
{
	const char *given = ferry_env("FERRY_SHARES"), *floor = ferry_env("FERRY_SPLIT_FLOOR");
	memset(meter, 0, sizeof *meter);
	meter->rules = ferry_balancer_default_rules();
	ferryResult_t result = ferry_env_bytes("FERRY_SPLIT_FLOOR", 1, 1ull << 40, FLOOR, &meter->floor_bytes);
	if (!result && given)
		result = ferry_shares_pin(given, &meter->rules.pins);
	else if (!result)
		result = ferry_env_switch("FERRY_SPLIT_TEMPO", true, &meter->follows);
	meter->rules.pinned = given;
	meter->rules.least_bytes = (double)meter->floor_bytes;
	meter->divided_from = floor ? meter->floor_bytes : DIVIDED_FROM;
	if (!floor)
		meter->rules.floor_bytes = LEAST_PART;
	return result;
}

void ferry_meter_free(struct ferry_meter *meter)
{
	ferry_ledger_close(&meter->ledger);
	for (int i = 0; i < FERRY_METER_SAMPLES; i++)
		ferry_clock_free(&meter->samples[i].clock);
	for (int i = 0; i < FERRY_TEMPO_WINDOWS; i++)
		ferry_clock_free(&meter->windows[i]);
}

/* Adopts what an earlier job with the same settings has learned of whole calls. */
static void adopt(struct ferry_meter *meter, const struct ferry_share_table *table, uint64_t signature)
{
	struct ferry_share_line line;
	for (int i = 0; i < FERRY_SHARE_SAVED; i++)
		for (int j = 0; j < FERRY_SHARE_LINES; j++)
			if (atomic_load_explicit(&table->saved_signatures[i], memory_order_relaxed) == signature &&
			    ferry_share_line_read(&table->saved_wholes[i][j], &line))
				ferry_choice_adopt(&meter->choice, &line);
}

void ferry_meter_open(struct ferry_meter *meter, struct ferry_share_table *table, uint32_t nranks, uint32_t self,
                      bool peers, const struct ferry_pace paces[FERRY_NUM_FABRICS])
{
	uint64_t signature = ferry_nccl_settings() + nranks;
	memcpy(meter->rules.paces, paces, sizeof meter->rules.paces);
	ferry_ledger_open(&meter->ledger, table, nranks, self, signature, &meter->rules);
	ferry_choice_init(&meter->choice, peers, nranks, paces);
	adopt(meter, table, signature);
	ferry_tempo_init(&meter->tempo);
	ferry_share_format_floor(table, self, meter->floor_bytes);
}

static uint32_t all_of(enum ferry_fabric fabric)
{
	struct ferry_shares shares = {.part = {0}};
	shares.part[fabric] = FERRY_SHARES_WHOLE;
	return ferry_shares_pack(&shares);
}

/* The fabric has what NCCL has not. All calls are divided then. */
static uint32_t pinned_word(const struct ferry_meter *meter, enum ferry_fabric fabric)
{
	uint16_t nccl = meter->rules.pins.part[FERRY_FABRIC_NCCL];
	struct ferry_shares shares = {.part = {0}};
	shares.part[FERRY_FABRIC_NCCL] = nccl;
	shares.part[fabric] = (uint16_t)(FERRY_SHARES_WHOLE - nccl);
	return ferry_shares_pack(&shares);
}

static bool has_room(const struct ferry_meter *meter)
{
	return meter->nsamples < FERRY_METER_SAMPLES;
}

/* However far a program runs ahead, only a few of its calls try something before the time of one of them is known. */
static uint32_t tries_under_way(const struct ferry_meter *meter, const struct ferry_balancer_call *call)
{
	uint32_t tries = 0;
	if (!has_room(meter))
		return tries + 1; /* another one would not be measured */
	for (uint32_t i = 0; i < meter->nsamples; i++) {
		const struct ferry_sample *sample =
		        &meter->samples[(meter->oldest + i) % FERRY_METER_SAMPLES];
		tries += sample->taken && sample->tries && sample->call.collective == call->collective &&
		         sample->call.type == call->type &&
		         ferry_balancer_size_class(sample->call.bytes) == ferry_balancer_size_class(call->bytes);
	}
	return tries;
}

uint32_t ferry_meter_propose(struct ferry_meter *meter, const struct ferry_balancer_call *call,
                             enum ferry_fabric fabric, bool whole, bool tries, uint64_t n, bool *measure)
{
	*measure = false;
	if (meter->rules.pinned)
		return pinned_word(meter, fabric);
	if (!whole)
		return ferry_ledger_propose(&meter->ledger, call, n, tries ? tries_under_way(meter, call) : 1, measure);
	tries = tries && has_room(meter);
	return ferry_choice_ours(&meter->choice, call, n, tries) ? all_of(fabric) : FERRY_SHARES_NONE;
}

void ferry_meter_agreed(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word, uint64_t n,
                        bool tries, bool *measure)
{
	if (!meter->rules.pinned)
		*measure = ferry_choice_agreed(&meter->choice, call, n, word != FERRY_SHARES_NONE,
		                               tries && has_room(meter));
}

void ferry_meter_pass(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word, bool whole)
{
	if (whole && !meter->rules.pinned)
		ferry_choice_unmeasured(&meter->choice, call, word != FERRY_SHARES_NONE);
}

/* ---- the program's tempo ---- */

bool ferry_meter_gives_way(const struct ferry_meter *meter, const struct ferry_balancer_call *call, bool captured)
{
	const struct ferry_share_table *table = meter->ledger.table;
	uint64_t quiet = atomic_load_explicit(captured ? &table->quiet_settled : &table->quiet, memory_order_relaxed);
	return quiet && meter->follows && quiet >> ferry_tempo_kind(call) & 1;
}

static bool is_counted(const struct ferry_meter *meter)
{
	return meter->follows && !meter->ledger.self;
}

/* Ranks that see it late propose what was before: the agreed one holds for all, and windows tolerate a few of these. */
static void record_tempo(struct ferry_meter *meter)
{
	struct ferry_share_table *table = meter->ledger.table;
	atomic_store_explicit(&table->quiet, meter->tempo.quiet, memory_order_relaxed);
	atomic_store_explicit(&table->quiet_settled, meter->tempo.settled, memory_order_relaxed);
}

struct ferry_tempo_marks ferry_meter_count(struct ferry_meter *meter, const struct ferry_balancer_call *call,
                                           uint32_t buffers, uint32_t word)
{
	if (!is_counted(meter))
		return (struct ferry_tempo_marks){-1, -1};
	uint64_t quiet = meter->tempo.quiet;
	struct ferry_tempo_marks marks =
	        ferry_tempo_call(&meter->tempo, ferry_tempo_kind(call), buffers, word != FERRY_SHARES_NONE);
	if (meter->tempo.quiet != quiet)
		record_tempo(meter);
	return marks;
}

void ferry_meter_mark(struct ferry_meter *meter, struct ferry_tempo_marks marks, cudaStream_t stream)
{
	if (marks.ends >= 0 && !ferry_clock_stop(&meter->windows[marks.ends], stream))
		meter->untimed |= 1u << marks.ends;
	if (marks.begins < 0)
		return;
	meter->untimed &= ~(1u << marks.begins);
	if (!ferry_clock_start(&meter->windows[marks.begins], stream))
		meter->untimed |= 1u << marks.begins;
}

/* The stream comes to the windows' ends in their order. */
static bool look_at_windows(struct ferry_meter *meter)
{
	int which;
	bool news = false;
	while ((which = ferry_tempo_awaits(&meter->tempo)) >= 0) {
		double us = 0;
		if (!(meter->untimed >> which & 1) && !ferry_clock_read(&meter->windows[which], &us))
			break;
		news |= ferry_tempo_took(&meter->tempo, us);
		record_tempo(meter);
	}
	return news;
}

bool ferry_meter_learns(struct ferry_meter *meter, const struct ferry_balancer_call *call)
{
	return ferry_choice_learns(&meter->choice, call);
}

struct ferry_sample *ferry_meter_begin(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word,
                                       bool whole, uint64_t n)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	if (!has_room(meter))
		return NULL;
	uint32_t at = (meter->oldest + meter->nsamples++) % FERRY_METER_SAMPLES;
	uint32_t tag = ++meter->stamps % (FERRY_STAMP_TAGS - 1) + 1;
	struct ferry_sample *sample = &meter->samples[at];
	*sample = (struct ferry_sample){.taken = true,
	                                .nccl = shares.part[FERRY_FABRIC_NCCL],
	                                .ferry = shares.part[FERRY_FABRIC_NCCL] < FERRY_SHARES_WHOLE,
	                                .clock = sample->clock,
	                                .call = *call,
	                                .whole = whole,
	                                .tries = !whole && ferry_ledger_tries(&meter->ledger, call, word),
	                                .n = n,
	                                .word = word,
	                                .stamp = tag * FERRY_STAMPS + at};
	return sample;
}

void ferry_meter_arm(struct ferry_sample *sample, bool timed)
{
	sample->armed = timed;
	sample->taken = timed;
}

static enum ferry_fabric ferrys_fabric(uint32_t word)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	return shares.part[FERRY_FABRIC_PEER] ? FERRY_FABRIC_PEER : FERRY_FABRIC_HOST;
}

/* A whole call. Rank 0 publishes what it has learned of such calls, for the next job and for people. */
static void learn_whole(struct ferry_meter *meter, const struct ferry_sample *sample)
{
	bool ours = sample->word != FERRY_SHARES_NONE;
	struct ferry_share_line line;
	uint32_t index;
	ferry_choice_feed(&meter->choice, &sample->call, ours,
	                  sample->us[ours ? ferrys_fabric(sample->word) : FERRY_FABRIC_NCCL]);
	if (meter->ledger.self || !ferry_choice_record(&meter->choice, &sample->call, &index, &line))
		return;
	ferry_share_line_write(&meter->ledger.table->wholes[index], &line);
	ferry_ledger_log(&meter->ledger, &sample->call, sample->n, sample->word, sample->us,
	                 ferry_balance_name((enum ferry_balance)line.why));
}

static void learn(struct ferry_meter *meter, const struct ferry_sample *sample)
{
	double us = fmax(sample->us[0], fmax(sample->us[1], sample->us[2]));
	meter->us_per_byte = us / (double)sample->call.bytes;
	ferry_tempo_measured(&meter->tempo, ferry_tempo_kind(&sample->call), sample->word != FERRY_SHARES_NONE, us);
	if (sample->whole)
		learn_whole(meter, sample);
	else
		ferry_ledger_record(&meter->ledger, &sample->call, sample->n, sample->word, sample->us);
}

double ferry_meter_ahead_us(const struct ferry_meter *meter)
{
	double us = 0;
	for (uint32_t i = 1; i < meter->nsamples; i++) {
		const struct ferry_sample *sample = &meter->samples[(meter->oldest + i) % FERRY_METER_SAMPLES];
		us += sample->armed ? (double)sample->call.bytes * meter->us_per_byte : 0;
	}
	return us;
}

/* Whether both parts have ended. A whole call is timed by events. */
static bool has_ended(struct ferry_sample *sample, ferryComm_t comm)
{
	uint64_t ns;
	if (sample->whole)
		return ferry_clock_read(&sample->clock,
		                        &sample->us[sample->nccl ? FERRY_FABRIC_NCCL : ferrys_fabric(sample->word)]);
	if (sample->nccl && ferry_clock_read(&sample->clock, &sample->us[FERRY_FABRIC_NCCL]))
		sample->nccl = false;
	if (sample->ferry && ferry_launch_took(comm, sample->stamp, &ns)) {
		sample->us[ferrys_fabric(sample->word)] = (double)ns / 1e3;
		sample->ferry = false;
	}
	return !sample->nccl && !sample->ferry;
}

/* Calls of a communicator end in their order: where one has not, none behind it is asked. */
static void look_at_samples(struct ferry_meter *meter, ferryComm_t comm)
{
	while (meter->nsamples) {
		struct ferry_sample *sample = &meter->samples[meter->oldest];
		if (sample->taken && !sample->armed)
			return; /* its call is being made */
		bool ended = sample->taken && has_ended(sample, comm);
		if (sample->taken && !ended && ++sample->age < OLD)
			return;
		sample->taken = sample->armed = false;
		meter->oldest = (meter->oldest + 1) % FERRY_METER_SAMPLES;
		meter->nsamples--;
		if (ended)
			learn(meter, sample);
		else
			ferry_meter_pass(meter, &sample->call, sample->word, sample->whole);
	}
}

bool ferry_meter_look(struct ferry_meter *meter, ferryComm_t comm)
{
	look_at_samples(meter, comm);
	if (meter->ledger.npending)
		ferry_ledger_feed(&meter->ledger);
	return look_at_windows(meter);
}
