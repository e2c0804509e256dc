/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/meter.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/nccl_settings.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define OVERLAPS (1 / 16.0) /* of a call's time: it overlaps another call if that runs so long beside it */

#define CALLERS 0.5 /* of a call's time: a shorter gap before the next like call may be the caller's */

#define OLD 4096 /* looks after which a sample is given up, or a window */

/* Time between looks: a program far ahead of its stream makes many calls before an event changes. */
#define AGAIN_US 100.0

/* If a stream was idle for so long lanes sleep, and a call takes some 0.2 ms more (nccl-tests' first ones). */
#define PAUSE_US 10e3

/* Two H200s: shorter calls gain little, and to find that out costs more (docs/lab/nccl-programs.md). */
#define FLOOR (8u << 20)

ferryResult_t ferry_meter_init(struct ferry_meter *meter)
{
	const char *given = ferry_env("FERRY_SHARES"), *nccl = ferry_env("FERRY_NCCL");
	memset(meter, 0, sizeof *meter);
	ferryResult_t result = ferry_env_bytes("FERRY_SPLIT_FLOOR", 1, 1ull << 40, FLOOR, &meter->floor_bytes);
	if (!result && given)
		result = ferry_shares_pin(given, &meter->pins);
	else if (!result)
		result = ferry_env_switch("FERRY_SPLIT_VETO", true, &meter->follows);
	meter->pinned = given;
	meter->nccl_alone = nccl && !strcmp(nccl, "tune");
	ferry_veto_init(&meter->veto);
	return result;
}

void ferry_meter_prepare(struct ferry_meter *meter)
{
	for (int i = 0; i < FERRY_METER_SAMPLES && !meter->pinned; i++)
		ferry_clock_prepare(&meter->samples[i].clock);
	for (int i = 0; i < FERRY_VETO_WINDOWS && meter->follows; i++)
		ferry_clock_prepare(&meter->windows[i]);
}

void ferry_meter_free(struct ferry_meter *meter)
{
	for (int i = 0; i < FERRY_METER_SAMPLES; i++)
		ferry_clock_free(&meter->samples[i].clock);
	for (int i = 0; i < FERRY_VETO_WINDOWS; i++)
		ferry_clock_free(&meter->windows[i]);
	if (meter->log)
		fclose(meter->log);
	meter->log = NULL;
}

void ferry_meter_adopt(struct ferry_meter *meter, bool tuned)
{
	const struct ferry_share_table *table = meter->table;
	struct ferry_share_line line;
	/*
	 * Where GPUs reach each other NCCL's own choice is good, calls are hidden behind products more often, and a try
	 * takes multiprocessors from these: a host-bound DDP lost a tenth to tries (docs/lab/one-tuner.md).
	 */
	meter->tuner.tuned = tuned && (!meter->peers || meter->nccl_alone);
	for (int i = 0; i < FERRY_SHARE_SAVED; i++)
		for (int j = 0; j < FERRY_SHARE_LINES; j++)
			if (atomic_load_explicit(&table->saved_signatures[i], memory_order_relaxed) ==
			            meter->signature &&
			    ferry_share_line_read(&table->saved[i][j], &line))
				ferry_tuner_adopt(&meter->tuner, &line,
				                  ferry_meter_fabric(meter, (enum ferry_collective)line.collective,
				                                     line.in_place));
}

void ferry_meter_open(struct ferry_meter *meter, struct ferry_share_table *table, uint32_t nranks, uint32_t self,
                      bool peers, bool adds, bool tuned, double host_rate)
{
	const char *path = self ? NULL : ferry_env("FERRY_SHARES_LOG");
	meter->table = table;
	meter->self = self;
	meter->peers = peers;
	meter->adds = adds;
	meter->signature = ferry_nccl_settings() + nranks;
	ferry_prior_load(&meter->prior, nranks);
	ferry_tuner_init(&meter->tuner, &meter->prior, nranks, host_rate);
	meter->tuner.nccl_alone = meter->nccl_alone;
	if (!self)
		atomic_store_explicit(&table->signature, meter->signature, memory_order_relaxed);
	if (path && !(meter->log = fopen(path, "ae")))
		ferry_log(FERRY_LOG_WARN, "FERRY_SHARES_LOG=%s: %s", path, strerror(errno));
	if (meter->log) /* whole lines, as users follow it with tail -f */
		setvbuf(meter->log, NULL, _IOLBF, 0);
	ferry_share_publish_floor(table, self, ferry_meter_counts(meter), tuned);
}

/* PINNED, as with fixed shares kernels carry short calls alone. */
uint64_t ferry_meter_counts(const struct ferry_meter *meter)
{
	return meter->floor_bytes | (meter->pinned ? FERRY_METER_PINNED : 0) |
	       (meter->nccl_alone ? FERRY_METER_ALONE : 0);
}

/* Pushes of an AllToAll in place need a bounce buffer; it is made in the first call, and costs what pushes gain. */
enum ferry_fabric ferry_meter_fabric(const struct ferry_meter *meter, enum ferry_collective collective, bool in_place)
{
	if (collective == FERRY_ALLTOALL && in_place && meter->peers && !meter->pinned)
		return FERRY_FABRIC_NCCL;
	return meter->peers && (meter->adds || !ferry_collective_reduces(collective)) ? FERRY_FABRIC_PEER
	                                                                               : FERRY_FABRIC_HOST;
}

/* ---- what is proposed ---- */

/* The word of FERRY_SHARES: the fabric carries what NCCL does not. */
static uint32_t pinned_word(const struct ferry_meter *meter, enum ferry_fabric fabric)
{
	uint8_t nccl = meter->pins.part[FERRY_FABRIC_NCCL];
	struct ferry_shares shares = {.part = {0}};
	shares.part[FERRY_FABRIC_NCCL] = nccl;
	shares.part[fabric] = (uint8_t)(FERRY_SHARES_WHOLE - nccl);
	return ferry_shares_pack(&shares);
}

static bool has_room(const struct ferry_meter *meter)
{
	return meter->nsamples < FERRY_METER_SAMPLES;
}

/* The kind's line in the table, if rank 0 has made it; *at: where. */
static bool find_line(struct ferry_meter *meter, const struct ferry_tuner_call *call, struct ferry_share_line *line,
                      uint32_t *at)
{
	uint8_t size_class = ferry_tuner_size_class(call->bytes);
	for (uint32_t i = 0; i < FERRY_SHARE_LINES; i++) {
		*at = (meter->found + i) % FERRY_SHARE_LINES;
		if (!ferry_share_line_read(&meter->table->lines[*at], line) || line->size_class != size_class ||
		    line->collective != call->collective || line->type != call->type ||
		    line->in_place != call->in_place || line->why == FERRY_BALANCE_KERNEL)
			continue;
		meter->found = (uint8_t)*at;
		return true;
	}
	return false;
}

/* Called by rank 0 alone. */
static void publish(struct ferry_meter *meter, const struct ferry_tuner_line *line)
{
	struct ferry_share_line record;
	ferry_tuner_record(line, &record);
	if (ferry_veto_hold(&meter->veto) == FERRY_VETO_HELD)
		record.why = FERRY_BALANCE_HIDDEN;
	ferry_share_line_write(&meter->table->lines[line - meter->tuner.lines], &record);
}

/* Makes the first line of a kind that the table lacks. */
static bool begin_line(struct ferry_meter *meter, const struct ferry_tuner_call *call, struct ferry_share_line *line,
                       uint32_t *at)
{
	const struct ferry_tuner_line *made = ferry_tuner_line(&meter->tuner, call);
	if (!made)
		return false;
	ferry_tuner_record(made, line);
	line->run = 0;
	*at = (uint32_t)(made - meter->tuner.lines);
	if (!meter->self)
		publish(meter, made);
	return true;
}

/* Each rank bounds a trial by the calls that it has seen of it: rank 0 may be late. */
static struct ferry_meter_trial *trial_of(struct ferry_meter *meter, uint32_t at, uint8_t turn)
{
	struct ferry_meter_trial *trial = &meter->trials[at];
	if (trial->turn != turn)
		*trial = (struct ferry_meter_trial){.turn = turn};
	return trial;
}

static void count_trial(struct ferry_meter_trial *trial)
{
	trial->used += trial->used < UINT8_MAX;
}

static uint32_t without_connecting(uint32_t word)
{
	uint32_t tuning = ferry_shares_tuning(word);
	return ferry_tuning_connects(tuning) ? word - tuning : word;
}

struct ferry_meter_proposal ferry_meter_propose(struct ferry_meter *meter, const struct ferry_tuner_call *call,
                                                bool captured, bool tries)
{
	struct ferry_share_line line;
	uint32_t at;
	uint64_t hold = atomic_load_explicit(&meter->table->hold, memory_order_relaxed);
	struct ferry_meter_proposal proposal = {FERRY_SHARES_NONE, FERRY_SHARES_NONE, false};
	if (meter->pinned) {
		proposal.word = pinned_word(meter, call->fabric);
		return proposal;
	}
	if (!find_line(meter, call, &line, &at) && !begin_line(meter, call, &line, &at))
		return proposal;
	if (captured) {
		line.word = without_connecting(line.word);
		line.nccl = without_connecting(line.nccl);
	}
	proposal.word = line.word;
	proposal.nccl = line.nccl;
	proposal.soon = ferry_shares_divide(line.word) ||
	                (line.why == FERRY_BALANCE_TRYING && ferry_shares_divide(line.ferry));
	if (meter->follows && hold >= (captured ? FERRY_VETO_HELD : FERRY_VETO_COMPARING)) {
		proposal.word = proposal.nccl = FERRY_SHARES_NONE;
		proposal.soon = false;
	} else if (tries && line.run && trial_of(meter, at, line.turn)->used < line.run) {
		proposal.word = line.trial;
	}
	return proposal;
}

static bool is_still(const struct ferry_meter *meter)
{
	return meter->follows && ferry_veto_freezes(&meter->veto);
}

bool ferry_meter_sealed(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word, bool tries)
{
	struct ferry_share_line published;
	uint32_t at;
	if (meter->pinned || !tries)
		return false;
	if (find_line(meter, call, &published, &at) && published.run && word == published.trial)
		count_trial(trial_of(meter, at, published.turn));
	struct ferry_tuner_line *line = meter->self || !has_room(meter) ? NULL : ferry_tuner_line(&meter->tuner, call);
	if (!line)
		return false;
	int trial = line->trial, best = line->best;
	bool paused = ferry_clock_now_us() - meter->busy_until_us > PAUSE_US;
	bool measured = ferry_tuner_sealed(&meter->tuner, line, word, paused, is_still(meter));
	if (line->trial != trial || line->best != best)
		publish(meter, line);
	return measured;
}

void ferry_meter_pass(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word)
{
	struct ferry_tuner_line *line = meter->self ? NULL : ferry_tuner_line(&meter->tuner, call);
	if (line)
		ferry_tuner_pass(&meter->tuner, line, word);
}

/* ---- how far a rank is ahead of its stream ---- */

#define SURELY 0.7 /* a call takes at least so much of the line's time, which may be a prior */

double ferry_meter_ahead_us(const struct ferry_meter *meter)
{
	return fmax(meter->busy_until_us - ferry_clock_now_us(), 0);
}

/*
 * Adds up on the host's clock what the line says that calls take: ranks but 0 measure nothing in their streams, and
 * rank 0 not every call.
 */
void ferry_meter_made(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word)
{
	struct ferry_share_line line;
	uint32_t at;
	if (meter->pinned || (!find_line(meter, call, &line, &at) && !begin_line(meter, call, &line, &at)))
		return;
	double us = ferry_shares_divide(word) ? line.ferry_us : line.nccl_us;
	meter->busy_until_us = fmax(meter->busy_until_us, ferry_clock_now_us()) + SURELY * us;
}

/* ---- the program's steps ---- */

/* A rank that sees `hold` late proposes as before. The sealed word holds; windows tolerate a few such calls. */
static void record_hold(struct ferry_meter *meter)
{
	uint64_t hold = ferry_veto_hold(&meter->veto);
	if (hold == atomic_load_explicit(&meter->table->hold, memory_order_relaxed))
		return;
	ferry_log(FERRY_LOG_DEBUG, "the steps' veto goes to state %d after %ju calls", (int)hold,
	          (uintmax_t)meter->veto.calls);
	atomic_store_explicit(&meter->table->hold, hold, memory_order_relaxed);
}

/* A hash of collective, type and size. It keeps sizes apart for collectives with neighbouring numbers. */
static uint8_t kind_of(const struct ferry_tuner_call *call)
{
	uint32_t mixed = ferry_tuner_size_class(call->bytes) + 21u * call->collective + 7u * call->type;
	return (uint8_t)(mixed % FERRY_VETO_KINDS);
}

struct ferry_veto_marks ferry_meter_count(struct ferry_meter *meter, const struct ferry_tuner_call *call,
                                           uint32_t buffers, uint32_t word)
{
	if (!meter->follows || meter->self)
		return (struct ferry_veto_marks){-1, -1};
	struct ferry_veto_marks marks = ferry_veto_call(&meter->veto, kind_of(call), buffers,
	                                                  ferry_shares_divide(word), !meter->tuner.ntrials);
	record_hold(meter);
	return marks;
}

void ferry_meter_mark(struct ferry_meter *meter, struct ferry_veto_marks marks, cudaStream_t stream)
{
	if (marks.ends >= 0 && !ferry_clock_stop(&meter->windows[marks.ends], stream))
		meter->untimed |= 1u << marks.ends;
	if (marks.begins < 0)
		return;
	meter->untimed &= ~(1u << marks.begins);
	if (!ferry_clock_start(&meter->windows[marks.begins], stream))
		meter->untimed |= 1u << marks.begins;
}

/* Windows end in their order. One that hangs counts as untimed after OLD looks. */
static bool look_at_windows(struct ferry_meter *meter)
{
	int which;
	bool news = false;
	while ((which = ferry_veto_awaits(&meter->veto)) >= 0) {
		double us = 0;
		if (!(meter->untimed >> which & 1) && !ferry_clock_read(&meter->windows[which], &us) &&
		    ++meter->window_age < OLD)
			break;
		meter->window_age = 0;
		ferry_log(FERRY_LOG_DEBUG, "window %u of the steps' comparison: %u steps as planned, %.0f us",
		          meter->veto.exam.known, meter->veto.window_steps[which], us);
		news |= ferry_veto_took(&meter->veto, us);
		record_hold(meter);
	}
	for (uint32_t i = 0; news && i < meter->tuner.nlines; i++)
		publish(meter, &meter->tuner.lines[i]);
	return news;
}

/* ---- what kernels carry ---- */

static bool is_line_of(const struct ferry_share_line *line, const struct ferry_tuner_call *call, uint8_t size_class)
{
	return line->size_class == size_class && line->collective == call->collective && line->type == call->type;
}

void ferry_meter_carry(struct ferry_meter *meter, const struct ferry_tuner_call *call)
{
	uint8_t size_class = ferry_tuner_size_class(call->bytes);
	uint32_t at = kind_of(call) % FERRY_SHARE_KERNELS, i = 0;
	if (meter->self)
		return;
	/* if all places are taken, a new kind replaces another one */
	while (i++ < FERRY_SHARE_KERNELS && meter->carried[at].calls &&
	       !is_line_of(&meter->carried[at], call, size_class))
		at = (at + 1) % FERRY_SHARE_KERNELS;
	struct ferry_share_line *line = &meter->carried[at];
	if (!is_line_of(line, call, size_class))
		*line = (struct ferry_share_line){.collective = (uint8_t)call->collective,
		                                  .type = (uint8_t)call->type,
		                                  .size_class = size_class,
		                                  .why = FERRY_BALANCE_KERNEL};
	line->calls++;
	line->bytes = call->bytes;
	ferry_share_line_write(&meter->table->lines[FERRY_TUNER_LINES + at], line);
}

/* ---- what is measured ---- */

struct ferry_sample *ferry_meter_begin(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word,
                                       uint64_t n)
{
	struct ferry_tuner_line *line = has_room(meter) ? ferry_tuner_line(&meter->tuner, call) : NULL;
	if (!line)
		return NULL;
	struct ferry_sample *sample = &meter->samples[(meter->oldest + meter->nsamples++) % FERRY_METER_SAMPLES];
	*sample = (struct ferry_sample){.taken = true,
	                                .clock = sample->clock,
	                                .made_us = ferry_clock_now_us(),
	                                .line = line,
	                                .n = n,
	                                .bytes = call->bytes,
	                                .word = word};
	return sample;
}

void ferry_meter_arm(struct ferry_sample *sample, bool timed)
{
	sample->armed = timed;
	sample->taken = timed;
}

/* A line of JSON, as ferry-plot --shares draws it. */
static void log_sample(const struct ferry_meter *meter, const struct ferry_sample *sample)
{
	struct ferry_shares shares = ferry_shares_unpack(sample->word);
	struct ferry_share_line line;
	if (!meter->log)
		return;
	ferry_tuner_record(sample->line, &line);
	fprintf(meter->log, "{\"call\":%" PRIu64 ",\"collective\":\"%s\",\"type\":\"%s\",\"bytes\":%" PRIu64, sample->n,
	        ferry_collective_name(sample->line->like.collective), ferry_type_name(sample->line->like.type),
	        sample->bytes);
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		fprintf(meter->log, ",\"%s\":%.4f", ferry_fabric_name((enum ferry_fabric)c),
		        (double)shares.part[c] / FERRY_SHARES_WHOLE);
	fprintf(meter->log, ",\"tuning\":%u,\"us\":%.1f,\"why\":\"%s\"", shares.tuning, sample->us,
	        ferry_balance_name((enum ferry_balance)line.why));
	fprintf(meter->log, ",\"nccl_us\":%.1f,\"ferry_us\":%.1f,\"chosen\":\"%s\"}\n", line.nccl_us, line.ferry_us,
	        ferry_shares_divide(line.word) ? "ferry" : "nccl");
}

/* The sample before this one, if it is of the call before. */
static const struct ferry_sample *sample_before(const struct ferry_meter *meter, uint32_t at)
{
	const struct ferry_sample *before =
	        &meter->samples[(at + FERRY_METER_SAMPLES - 1) % FERRY_METER_SAMPLES];
	return before->line && before->n + 1 == meter->samples[at].n ? before : NULL;
}

static bool is_nccls(const struct ferry_sample *sample)
{
	return !ferry_shares_divide(sample->word);
}

/*
 * Calls in two streams, as FSDP's AllGathers and ReduceScatters, overlap: that time counts half to each call. Of two
 * calls of NCCL it counts to the earlier one alone, as NCCL runs a communicator's kernels one after the other.
 */
static double other_us(const struct ferry_sample *sample, const struct ferry_sample *other, bool earlier,
                       double overlap_us)
{
	return is_nccls(sample) && is_nccls(other) ? (earlier ? overlap_us : 0) : overlap_us / 2;
}

/*
 * The part of `us` that counts to the call, so that the parts of successive calls add up to the time that passes. Only
 * the calls right before and after it are looked at. *overlaps: another call was under way.
 */
static double own_us(const struct ferry_meter *meter, const struct ferry_sample *sample,
                     const struct ferry_sample *before, double us, bool *overlaps)
{
	const struct ferry_sample *after = &meter->samples[meter->oldest];
	double own = us, overlap_us = 0;
	if (before && before->us > 0) {
		overlap_us = ferry_clock_overlap_us(&sample->clock, us, &before->clock);
		own -= other_us(sample, before, true, overlap_us);
	}
	if (meter->nsamples && after->armed) {
		double with_after = ferry_clock_overlap_us(&sample->clock, us, &after->clock);
		own -= other_us(sample, after, false, with_after);
		overlap_us += with_after;
	}
	*overlaps = overlap_us > OVERLAPS * us;
	return fmax(own, us / 8); /* if both neighbours overlap all of it */
}

/*
 * How long the stream waits for the caller between two like calls: the thread makes the next call later than the first
 * one ends. If that is short, it is the time that the thread needs for the calls themselves, and part of what the arm
 * takes. A longer gap is the program's. A call behind one that was not measured has the gap of the calls before.
 */
static double callers_us(struct ferry_meter *meter, const struct ferry_sample *sample,
                         const struct ferry_sample *before, double span_us)
{
	float *known = &meter->callers_us[sample->line - meter->tuner.lines][is_nccls(sample)];
	if (before) {
		double gap_us = span_us - before->us;
		bool alike = before->line == sample->line && before->word == sample->word,
		     late = alike && sample->made_us - before->made_us > before->us && gap_us < CALLERS * before->us;
		*known = (float)(late ? fmax(gap_us, 0) : 0);
	}
	return (double)*known;
}

static void learn(struct ferry_meter *meter, uint32_t at, double us)
{
	struct ferry_sample *sample = &meter->samples[at];
	const struct ferry_sample *before = sample_before(meter, at);
	double span_us = 0;
	bool overlaps;
	sample->us = own_us(meter, sample, before, us, &overlaps);
	if (before && (!(before->us > 0) || !ferry_clock_between(&before->clock, &sample->clock, &span_us)))
		before = NULL;
	if (before)
		ferry_veto_gap(&meter->veto, before->us, span_us);
	us = sample->us + callers_us(meter, sample, before, span_us);
	ferry_tuner_feed(&meter->tuner, sample->line, sample->word, sample->bytes, us, overlaps, is_still(meter));
	publish(meter, sample->line);
	log_sample(meter, sample);
}

/* Calls of a communicator end in their order: no call is queried behind one that has not ended. */
static void look_at_samples(struct ferry_meter *meter)
{
	while (meter->nsamples) {
		uint32_t at = meter->oldest;
		struct ferry_sample *sample = &meter->samples[at];
		double us = 0;
		if (sample->taken && !sample->armed)
			return; /* its call is being made */
		bool ended = sample->taken && ferry_clock_read(&sample->clock, &us);
		if (sample->taken && !ended && ++sample->age < OLD)
			return;
		sample->taken = sample->armed = false;
		meter->oldest = (at + 1) % FERRY_METER_SAMPLES;
		meter->nsamples--;
		if (ended)
			learn(meter, at, us);
		else
			ferry_tuner_pass(&meter->tuner, sample->line, sample->word);
	}
}

static bool awaits_times(const struct ferry_meter *meter)
{
	return meter->nsamples || ferry_veto_awaits(&meter->veto) >= 0;
}

bool ferry_meter_look(struct ferry_meter *meter)
{
	if (!awaits_times(meter) || ferry_clock_now_us() < meter->again_us)
		return false;
	int mode = ferry_clock_relax();
	look_at_samples(meter);
	bool news = look_at_windows(meter);
	ferry_clock_restore(mode);
	meter->again_us = awaits_times(meter) ? ferry_clock_now_us() + AGAIN_US : 0;
	return news;
}
