/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tuner/tuner.h"

#include "orchestrator/tuner/belief.h"

#include <math.h>
#include <string.h>

/* Of a run of calls the first does not count. Of long calls, which vary less and cost more, fewer are counted. */
#define WARM      1u
#define LONG_US   4000
#define LONGER_US 20000

/* What an arm that was not measured is expected to take. */
#define HOPE          0.98 /* of the best one's time, or less: it is tried once; more only for credit */
#define UNKNOWN       0.97 /* where nothing is known */
#define LIKELY        0.9  /* a call by the host has so much of what its link allows */

/* Tries of arms that have lost. */
#define CREDIT      0.005 /* of the time of all calls may be spent on them, */
#define ADVANCE     3     /* and so many calls' time in advance on unknown tunings, while NCCL has the calls: */
#define BLIND       0.5   /* so much may be lost by a tuning of which nothing is known */
#define CREDIT_AWAY 0.1   /* on an arm that was left as it had become slow; halved with each try */
#define AWAY_SOON   4u    /* calls until such an arm is first tried again: it may have been chance */
#define AWAY_FASTER 0.92  /* later if the arm in use takes so much of its time then: what slowed both has ended */
#define REST        32u   /* calls between the tries of an arm at least, twice as many with each, */
#define RESTS       6u    /* doublings */
#define LOOK        8u    /* calls between looks whether the credit suffices */
#define ABORT       1.3   /* times the best arm's time: the try ends, */
#define ABORT_TUNING 1.15 /* of a tuning, of which there are many, sooner */
#define ENOUGH      3u   /* calls, if shorter than CHEAP_US: a late caller may have slowed one */
#define GIVEN_UP    256u  /* looks at a trial that had no call: it cannot begin */

/* Which calls are measured: two events take some 3 us of the caller's thread. */
#define CHEAP_US 1000 /* all that are longer, */
#define EVERY    8u   /* one pair in so many pairs of others, */
#define RAREST   64u  /* or in up to so many, of short calls: */
#define WORTH_US 800  /* so much time of them is worth the events of one */
#define UNREADY  12u  /* and so many of other arms while the best one is not ready */

/* Calls that overlap those of other streams. */
#define OVERLAP_CALLS 32   /* over about so many last calls their part is averaged */
#define OVERLAPS      0.2  /* if their part is larger, times say little, */
#define OVERLAPS_STILL 0.02 /* until it is smaller: a step may begin with fifty calls that overlap none */

/* ---- kinds and arms ---- */

/* lround(2 * log2(bytes)). */
uint8_t ferry_tuner_size_class(uint64_t bytes)
{
	const uint64_t quarter = (uint64_t)(0x1p63 * 1.189207115002721), three = (uint64_t)(0x1p63 * 1.681792830507429);
	uint32_t zeros = (uint32_t)__builtin_clzll(bytes | 1);
	uint64_t top = (bytes | !bytes) << zeros;
	return (uint8_t)(2 * (63 - zeros) + (top >= quarter) + (top >= three));
}

void ferry_tuner_init(struct ferry_tuner *tuner, const struct ferry_prior *prior, uint32_t nranks, double host_rate)
{
	memset(tuner, 0, sizeof *tuner);
	tuner->prior = prior;
	tuner->nranks = nranks;
	tuner->host_rate = host_rate;
}

static struct ferry_arm *add_arm(const struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t word)
{
	struct ferry_arm *arm = &line->arms[line->narms++];
	*arm = (struct ferry_arm){.word = word, .next = ferry_shares_tuning(word) ? REST : 0};
	arm->before_us = (float)ferry_belief_before(tuner, line, arm);
	return arm;
}

static void make_arms(const struct ferry_tuner *tuner, struct ferry_tuner_line *line)
{
	struct ferry_shares ferrys = {.part = {0}};
	ferrys.part[line->like.fabric] = FERRY_SHARES_WHOLE;
	add_arm(tuner, line, FERRY_SHARES_NONE);
	if (!tuner->nccl_alone && line->like.fabric != FERRY_FABRIC_NCCL)
		add_arm(tuner, line, ferry_shares_pack(&ferrys));
	if (tuner->tuned && ferry_tuning_is_free(line->like.collective))
		add_arm(tuner, line, FERRY_TUNING_16_CHANNELS); /* measured before jobs */
}

static struct ferry_arm *arm_of(struct ferry_tuner_line *line, uint32_t word)
{
	for (int i = 0; i < line->narms; i++)
		if (line->arms[i].word == word)
			return &line->arms[i];
	return NULL;
}

/* Returns the tuning's arm, which is added if the line lacks it; NULL: there is no room. */
static struct ferry_arm *add_tuning(const struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t tuning)
{
	struct ferry_arm *arm = arm_of(line, tuning);
	return arm || line->narms == FERRY_TUNER_ARMS ? arm : add_arm(tuner, line, tuning);
}

static double best_us(const struct ferry_tuner_line *line)
{
	return line->beliefs[line->best].us;
}

/* The fastest of NCCL's arms, or of Ferry's, as far as that is known; -1: there is none. */
static int fastest(const struct ferry_tuner_line *line, bool ferrys)
{
	int found = -1;
	for (int i = 0; i < line->narms; i++) {
		double us = line->beliefs[i].us, least = found < 0 ? 0 : line->beliefs[found].us;
		bool faster = found < 0 || (us > 0 && (us < least || !(least > 0)));
		if (faster && ferry_arm_is_ferrys(&line->arms[i]) == ferrys)
			found = i;
	}
	return found;
}

static void look(const struct ferry_tuner *tuner, struct ferry_tuner_line *line)
{
	line->by_limits = ferry_belief_by_limits(line);
	for (int i = 0; i < line->narms; i++)
		line->beliefs[i] = ferry_believe(tuner, line, &line->arms[i]);
	for (int i = 0; i < line->narms; i++)
		if (!(line->beliefs[i].us > 0))
			line->beliefs[i].hope = fmax(UNKNOWN * best_us(line),
			                             ferry_belief_bound(tuner, line, &line->arms[i]) / LIKELY);
}

/* ---- decisions ---- */

static uint32_t counted_calls(const struct ferry_tuner_line *line)
{
	return best_us(line) > LONGER_US ? 2 : best_us(line) > LONG_US ? 3 : 4;
}

/* Whether the arm's time may decide against it: if it is short and was measured, that takes ENOUGH samples. */
static bool is_sure(const struct ferry_arm *arm)
{
	return !arm->seen || arm->seen >= ENOUGH || !(ferry_arm_us(arm) < CHEAP_US);
}

/* Takes the fastest arm. */
static void decide(const struct ferry_tuner *tuner, struct ferry_tuner_line *line)
{
	double least = INFINITY;
	int fastest = line->best;
	look(tuner, line);
	line->learned = tuner->learned;
	double now = best_us(line) > 0 || !line->by_limits ? best_us(line) : INFINITY;
	for (int i = 0; i < line->narms; i++) {
		const struct ferry_belief *belief = &line->beliefs[i];
		if (i == line->best || !(belief->us > 0) || belief->us >= least || belief->us > belief->than * now)
			continue;
		least = belief->us;
		fastest = i;
	}
	line->news = true;
	if (fastest == line->best || !(line->by_limits || is_sure(&line->arms[line->best])))
		return;
	if (line->arms[line->best].slowed) {
		line->away = line->best;
		line->away_tries = 0;
		line->away_us = line->credit_us = 0;
	}
	line->arms[line->best].left = true;
	line->best = fastest;
	line->away = line->away == fastest ? -1 : line->away;
	line->asked = 0;
	look(tuner, line);
}

struct ferry_tuner_line *ferry_tuner_line(struct ferry_tuner *tuner, const struct ferry_tuner_call *call)
{
	uint8_t size_class = ferry_tuner_size_class(call->bytes);
	for (uint32_t i = 0; i < tuner->nlines; i++) {
		uint32_t at = (tuner->found + i) % tuner->nlines;
		struct ferry_tuner_line *line = &tuner->lines[at];
		if (line->size_class != size_class || line->like.collective != call->collective ||
		    line->like.type != call->type || line->like.in_place != call->in_place)
			continue;
		tuner->found = at;
		return line;
	}
	if (tuner->nlines == FERRY_TUNER_LINES)
		return NULL;
	struct ferry_tuner_line *line = &tuner->lines[tuner->found = tuner->nlines++];
	*line = (struct ferry_tuner_line){.like = *call, .size_class = size_class};
	line->trial = line->awaited = line->away = -1;
	make_arms(tuner, line);
	decide(tuner, line);
	return line;
}

void ferry_tuner_adopt(struct ferry_tuner *tuner, const struct ferry_share_line *learned, enum ferry_fabric fabric)
{
	struct ferry_tuner_call like = {
	        .collective = (enum ferry_collective)learned->collective,
	        .type = (ferryDataType_t)learned->type,
	        .bytes = learned->bytes,
	        .in_place = learned->in_place,
	        .fabric = fabric};
	if (!learned->bytes || ferry_tuner_size_class(learned->bytes) != learned->size_class)
		return;
	struct ferry_tuner_line *line = ferry_tuner_line(tuner, &like);
	if (!line)
		return;
	bool tunings = tuner->tuned && ferry_tuning_is_free(like.collective) && learned->nccl < FERRY_TUNINGS;
	struct ferry_arm *nccl = tunings ? add_tuning(tuner, line, learned->nccl) : arm_of(line, learned->nccl),
	                 *ferry = ferry_shares_divide(learned->ferry) ? arm_of(line, learned->ferry) : NULL;
	if (nccl) {
		nccl->learned_us = (float)learned->nccl_us;
		line->best = (int)(nccl - line->arms); /* it was NCCL's fastest; others of NCCL's are not known */
	}
	if (ferry) /* else it went by another fabric, or both had a part */
		ferry->learned_us = (float)learned->ferry_us;
	decide(tuner, line);
}

/* ---- trials ---- */

/* A tuning of NCCL's of which nothing is known. */
static bool is_blind(const struct ferry_tuner_line *line, int i)
{
	return !ferry_arm_is_ferrys(&line->arms[i]) && !line->arms[i].tries && !(line->beliefs[i].us > 0);
}

/*
 * An arm that has not been tried is worth it if it may be the fastest. A tuning of which nothing is known costs more
 * than it is likely to gain: it is tried for credit. One late call of the best arm makes none promising. While the best
 * one is not ready, calls of another one may be measured without a try.
 */
static bool is_promising(const struct ferry_tuner_line *line, int i)
{
	return i != line->best && !line->arms[i].tries && !line->arms[i].pending && !is_blind(line, i) &&
	       is_sure(&line->arms[line->best]) && line->beliefs[i].hope < HOPE * best_us(line);
}

static double cost_of(const struct ferry_tuner_line *line, int i)
{
	double best = best_us(line), us = line->beliefs[i].us > 0 ? line->beliefs[i].us : line->beliefs[i].hope;
	return (WARM + (i == line->away ? 1 : counted_calls(line))) * fmax(us - best, 0.02 * best);
}

static bool is_affordable(const struct ferry_tuner_line *line, int i)
{
	bool advance = is_blind(line, i) && !ferry_arm_is_ferrys(&line->arms[line->best]);
	return cost_of(line, i) < line->credit_us + (advance ? (ADVANCE - BLIND) * best_us(line) : 0);
}

/*
 * Coordinate descent, as AutoCCL's (NSDI 2025): NCCL's fastest arm in the other ways, once; then the channels next to
 * those of the fastest. New arms are tried before more are added. Two ranks have the same connections in all ways. Of
 * more ranks a way that NCCL does not take by itself may need hundreds of MiB of buffers: for them only channels are
 * tried.
 */
static void open_tunings(const struct ferry_tuner *tuner, struct ferry_tuner_line *line)
{
	int nccl = fastest(line, false);
	uint32_t tuning = ferry_shares_tuning(line->arms[nccl].word);
	bool open = !tuner->tuned || !ferry_tuning_is_free(line->like.collective) || !(line->beliefs[nccl].us > 0);
	for (int i = 0; i < line->narms && !open; i++)
		open = is_blind(line, i);
	if (open)
		return;
	for (uint32_t way = 1; way < FERRY_TUNING_WAYS && !line->ways && tuner->nranks == 2; way++)
		if (ferry_tuning_is_sensible(way, line->like.collective, line->like.bytes))
			add_tuning(tuner, line, ferry_tuning_by(tuning, way));
	for (uint32_t i = 0; i < FERRY_TUNING_BESIDE && line->ways; i++)
		add_tuning(tuner, line, ferry_tuning_beside(tuning, i));
	line->ways = true;
}

/* The arm to try now; -1: none. */
static int next_trial(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line)
{
	int next = -1;
	for (int i = 0; i < line->narms; i++)
		if (is_promising(line, i) && (next < 0 || line->beliefs[i].hope < line->beliefs[next].hope))
			next = i;
	if (next >= 0)
		return next;
	/* what was slow may have been chance; and what slowed it down has ended if the other arm is faster now */
	if (line->away >= 0 && line->rested >= AWAY_SOON &&
	    (!line->away_tries || ferry_arm_us(&line->arms[line->best]) < AWAY_FASTER * line->away_us))
		return line->away;
	for (int i = 0; i < line->narms; i++) {
		const struct ferry_arm *arm = &line->arms[i];
		bool rested = line->calls >= arm->next || (tuner->nccl_alone && !arm->tries),
		     due = line->away < 0 ? rested : i == line->away && line->rested >= REST,
		     earlier = next < 0 || arm->next < line->arms[next].next;
		if (i != line->best && due && earlier && is_affordable(line, i))
			next = i;
	}
	return next;
}

static void begin_trial(struct ferry_tuner *tuner, struct ferry_tuner_line *line, int arm)
{
	uint32_t tries = ++line->arms[arm].tries;
	tuner->ntrials++;
	line->arms[arm].next = line->calls + (REST << (tries < RESTS ? tries : RESTS));
	if (arm == line->away) {
		line->away_us = ferry_arm_us(&line->arms[line->best]);
		line->away_tries++;
	}
	line->trial = arm;
	line->turn++;
	line->tried = line->waited = line->rested = 0;
}

/* Once all times of the trial are known, what it has cost is charged. A try of Ferry makes no debts. */
static void close_trial(struct ferry_tuner *tuner, struct ferry_tuner_line *line)
{
	if (line->awaited < 0 || line->unread)
		return;
	double least = ferry_arm_is_ferrys(&line->arms[line->awaited]) ? fmin(line->credit_us, 0) : -INFINITY;
	double cost_us = line->tried * fmax(line->beliefs[line->awaited].us - best_us(line), 0.02 * best_us(line));
	line->credit_us = fmax(line->credit_us - cost_us, least);
	line->awaited = -1;
	tuner->ntrials--;
}

/* No more calls have the arm on trial. */
static void end_trial(struct ferry_tuner *tuner, struct ferry_tuner_line *line)
{
	line->arms[line->trial].left = line->trial != line->best;
	line->awaited = line->trial;
	line->unread = line->arms[line->trial].pending;
	line->trial = -1;
	line->rested = 0;
	close_trial(tuner, line);
}

static bool is_tried(const struct ferry_tuner_line *line, const struct ferry_arm *arm)
{
	return line->trial >= 0 && arm == &line->arms[line->trial];
}

static bool is_measured(struct ferry_tuner_line *line, const struct ferry_arm *arm)
{
	bool few = line->asked < counted_calls(line);
	double us = ferry_arm_us(arm);
	uint32_t every = EVERY;
	while (us > 0 && every < RAREST && every * us < WORTH_US)
		every *= 2;
	/* two in a row, which also gives the time from one call's start to the next one's */
	bool now = us > CHEAP_US || line->calls / 2 % every == 0;
	/*
	 * The best arm is not ready, or NCCL has all calls by the steps' veto. The times of this arm still say how far
	 * ahead the program is, and whether anything hides the calls.
	 */
	if (arm != &line->arms[line->best])
		return now || arm->seen + arm->pending < UNREADY || is_tried(line, arm);
	line->asked += few;
	return few || now;
}

/*
 * Checks one line per call: its trial, which blocks the steps' veto, may have no calls, as other ranks do not follow or
 * its kind comes no more.
 */
static void look_for_forgotten(struct ferry_tuner *tuner)
{
	struct ferry_tuner_line *line = &tuner->lines[tuner->looked++ % tuner->nlines];
	if (line->trial >= 0 && ++line->waited > GIVEN_UP)
		end_trial(tuner, line);
}

bool ferry_tuner_sealed(struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t word, bool paused,
                        bool still)
{
	struct ferry_arm *arm = arm_of(line, word);
	double us = best_us(line);
	line->calls++;
	line->rested++;
	look_for_forgotten(tuner);
	if (line->learned != tuner->learned && !still)
		decide(tuner, line);
	double part = line->away >= 0 ? fmax(CREDIT_AWAY * exp2(-(double)line->away_tries), CREDIT) : CREDIT;
	line->credit_us = fmin(line->credit_us + part * us, 100 * us);
	bool runs = word == line->last && line->calls > 1;
	line->last = word;
	bool counts = runs && (!paused || line->paused);
	bool measured_now = arm && counts && is_measured(line, arm);
	line->paused = paused;
	if (measured_now)
		arm->pending++;
	if (arm && is_tried(line, arm)) {
		line->waited = 0;
		if (++line->tried == WARM + counted_calls(line))
			end_trial(tuner, line);
	}
	bool looks = line->news || line->calls % LOOK == 0; /* else nothing but the credit has changed */
	if (!still && looks && line->trial < 0 && line->asked >= counted_calls(line) &&
	    line->awaited < 0 && !line->by_limits) {
		line->news = false;
		look(tuner, line);
		int next = next_trial(tuner, line);
		if (next < 0)
			open_tunings(tuner, line);
		if (next >= 0)
			begin_trial(tuner, line, next);
	}
	return measured_now;
}

void ferry_tuner_pass(struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t word)
{
	struct ferry_arm *arm = arm_of(line, word);
	if (arm)
		arm->pending -= arm->pending > 0;
	if (line->awaited >= 0 && arm == &line->arms[line->awaited])
		line->unread -= line->unread > 0;
	close_trial(tuner, line);
}

void ferry_tuner_feed(struct ferry_tuner *tuner, struct ferry_tuner_line *line, uint32_t word, uint64_t bytes,
                      double us, bool overlaps, bool still)
{
	struct ferry_arm *arm = arm_of(line, word);
	line->overlap += ((float)overlaps - line->overlap) / OVERLAP_CALLS;
	line->overlaps = (double)line->overlap > (line->overlaps ? OVERLAPS_STILL : OVERLAPS);
	if (!arm || !(us > 0) || !isfinite(us)) {
		ferry_tuner_pass(tuner, line, word);
		return;
	}
	us *= (double)line->like.bytes / (double)bytes;
	double best = ferry_arm_us(&line->arms[line->best]), most = ferry_arm_is_ferrys(arm) ? ABORT : ABORT_TUNING;
	ferry_arm_add(arm, us);
	tuner->learned += arm->seen <= ENOUGH;
	/* of short calls a late one ends no try, nor does what the arm took before it */
	if (is_tried(line, arm) && best > 0 && is_sure(arm) && fmin(us, ferry_arm_us(arm)) > most * best)
		end_trial(tuner, line);
	if (still)
		look(tuner, line);
	else
		decide(tuner, line);
	if (line->by_limits && line->trial >= 0)
		end_trial(tuner, line);
	ferry_tuner_pass(tuner, line, word);
}

/* ---- what is published ---- */

static enum ferry_balance why_of(const struct ferry_tuner_line *line)
{
	bool open = line->trial >= 0 || !(best_us(line) > 0);
	if (line->by_limits)
		return FERRY_BALANCE_PRIOR;
	for (int i = 0; i < line->narms; i++)
		open |= is_promising(line, i);
	return open ? FERRY_BALANCE_TRYING : line->arms[line->best].seen ? FERRY_BALANCE_SETTLED : FERRY_BALANCE_PRIOR;
}

void ferry_tuner_record(const struct ferry_tuner_line *line, struct ferry_share_line *record)
{
	int nccl = fastest(line, false), ferry = fastest(line, true);
	*record = (struct ferry_share_line){.collective = (uint8_t)line->like.collective,
	                                    .type = (uint8_t)line->like.type,
	                                    .size_class = line->size_class,
	                                    .why = (uint8_t)why_of(line),
	                                    .in_place = line->like.in_place,
	                                    .calls = line->calls,
	                                    .word = line->arms[line->best].word,
	                                    .nccl = line->arms[nccl].word,
	                                    .ferry = ferry < 0 ? FERRY_SHARES_NONE : line->arms[ferry].word,
	                                    .bytes = line->like.bytes,
	                                    .nccl_us = line->beliefs[nccl].us,
	                                    .ferry_us = ferry < 0 ? 0 : line->beliefs[ferry].us,
	                                    .turn = line->turn};
	if (line->trial >= 0) {
		record->trial = line->arms[line->trial].word;
		record->run = (uint8_t)(WARM + counted_calls(line));
	}
}
