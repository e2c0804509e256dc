/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/balancer.h"

#include <math.h>
#include <string.h>

#define LEAST_GAIN   0.02  /* of a fabric that has nothing */
#define STEP_GAIN    0.015 /* a step for less is noise */
#define SET_GAIN     0.025 /* nor is another set of fabrics taken for less, if it is known from other samples */
#define GROWTH       8.0   /* times the largest part that was seen at a size, at most */
#define ELSEWHERE    4.0   /* and times the largest that was seen at others, of a size that has seen none */
#define DIVIDED_US   4.0   /* what a call costs more in which NCCL is not alone */
#define LARGE_STEP   0.10  /* one learns behind it */
#define SETTLING     3     /* samples without a step */
#define TRIAL        32    /* a fabric of which nothing is known begins with one such part, or two floors */
#define STEPS        16    /* of a part, and more of one that is large: */
#define LARGEST_STEP 8     /* in 1024ths */
#define TRIES        2     /* calls of a set before it is judged at a size, one at a time, */
#define LARGE        (128u << 20) /* or of so many bytes at once: there what is least known, starts, matters little */
#define MOST_TRIES   8     /* of a set of which nothing is known */
#define LONG_US      100   /* a fabric of which nothing is known is not tried by shorter calls, */
#define MANY         64    /* but where there are more than so many of them */
#define HOPE         1.15  /* times as slow as now, as far as is known: worth being tried */
#define SURE         1.05  /* times as fast by what is known of other sizes: then it is not tried first */
#define SURE_US      20.0  /* and by so much */
#define SURE_SAMPLES 4
#define PROBE_SOON   4u
#define PROBE_EVERY  64u
#define PROBE_AFTER  64u   /* samples of a size: of few calls one is too much */
#define BACKOFFS     8     /* doublings */
#define PROBE_COST   0.005 /* of the time of all calls, */
#define PROBE_LESS   0.5   /* and so much of that where a probe only leaves a fabric out */
#define DEAR         4.0   /* of that of one call, for a set without NCCL */
#define COST         0.001 /* of the time of a settled size, for measuring */
#define INTERVAL     64u   /* at most */

#define BIT(c) (1u << (c))

struct ferry_balancer_rules ferry_balancer_default_rules(void)
{
	return (struct ferry_balancer_rules){.usable = BIT(FERRY_FABRIC_HOST) | BIT(FERRY_FABRIC_NCCL),
	                                     .floor_bytes = 128 << 10,
	                                     .least_bytes = 1 << 20,
	                                     .measure_us = 1};
}

void ferry_balancer_init(struct ferry_balancer *balancer, const struct ferry_balancer_rules *rules)
{
	memset(balancer, 0, sizeof *balancer);
	balancer->rules = *rules;
}

bool ferry_balancer_picks(uint64_t n, uint32_t every)
{
	uint64_t mixed = (n + 1) * 0x9e3779b97f4a7c15u; /* calls alternate: not every so many-th */
	return every && (mixed >> 32) % every == 0;
}

/* ---- where things are ---- */

static struct ferry_course *course_of(struct ferry_balancer *balancer, uint32_t collective, uint32_t type)
{
	for (int i = 0; i < FERRY_SHARE_COURSES; i++) {
		struct ferry_course *course = &balancer->courses[i];
		if (course->used && course->collective == collective && course->type == type)
			return course;
		if (course->used)
			continue;
		course->used = true;
		course->collective = (uint8_t)collective;
		course->type = (uint8_t)type;
		for (int c = 0; c < FERRY_NUM_FABRICS; c++)
			ferry_rate_fit_start(&course->fits[c][0], &balancer->rules.paces[c]);
		return course;
	}
	return NULL;
}

uint8_t ferry_balancer_place(const struct ferry_balancer_call *call, uint8_t size_class)
{
	return (uint8_t)(size_class + 53u * call->collective + 101u * call->type);
}

/* lround(2 * log2(bytes)), which every call of a program's needs. */
uint8_t ferry_balancer_size_class(uint64_t bytes)
{
	const uint64_t quarter = (uint64_t)(0x1p63 * 1.189207115002721), three = (uint64_t)(0x1p63 * 1.681792830507429);
	uint32_t zeros = (uint32_t)__builtin_clzll(bytes | 1);
	uint64_t top = (bytes | !bytes) << zeros;
	return (uint8_t)(2 * (63 - zeros) + (top >= quarter) + (top >= three));
}

/* Of a line, which has one. */
static const struct ferry_course *course_at(const struct ferry_balancer *balancer,
                                                     const struct ferry_balancer_line *line)
{
	int i = 0;
	while (balancer->courses[i].collective != line->collective || balancer->courses[i].type != line->type)
		i++;
	return &balancer->courses[i];
}

void ferry_balancer_adopt(struct ferry_balancer *balancer, const struct ferry_share_course *learned)
{
	struct ferry_course *course = course_of(balancer, learned->collective, learned->type);
	if (course)
		ferry_course_adopt(course, learned);
}

void ferry_balancer_record(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                           struct ferry_share_course *learned)
{
	ferry_course_record(course_at(balancer, line), learned);
}

void ferry_balancer_paces(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                          struct ferry_paces *paces)
{
	ferry_belief_paces(course_at(balancer, line), &line->belief, paces);
}

/* ---- what it says ---- */

static uint32_t fabrics_of(uint32_t word)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	return ferry_division_set(&shares);
}

/* A small part for each fabric of which nothing is known. */
static struct ferry_shares trial_of(uint32_t unknown, double floors)
{
	struct ferry_shares shares = ferry_shares_unpack(FERRY_SHARES_NONE);
	uint16_t part = (uint16_t)(FERRY_SHARES_WHOLE * fmin(fmax(1.0 / TRIAL, 2 * floors), 0.25));
	for (int c = 0; c < FERRY_FABRIC_NCCL; c++)
		if (unknown & BIT(c)) {
			shares.part[c] = part;
			shares.part[FERRY_FABRIC_NCCL] -= part;
		}
	return shares;
}

static double largest_part(const struct ferry_trace *trace)
{
	float largest = 0;
	for (int i = 0; i < trace->count; i++)
		largest = fmaxf(largest, trace->bytes[i]);
	return (double)largest;
}

/*
 * Parts that vary are made a little shorter, so that they seldom end last. With a share x it pays to end last in a part
 * x of the calls: then a little more of it loses in these calls as much as it gains in the others. And the time of a
 * part of many times the bytes cannot be predicted from small ones.
 */
static void restrain(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                  struct ferry_shares *shares)
{
	const struct ferry_course *course = course_at(balancer, line);
	uint32_t set = ferry_division_set(shares);
	double floor = balancer->rules.floor_bytes / (double)line->bytes * FERRY_SHARES_WHOLE;
	for (int c = 0; c < FERRY_FABRIC_NCCL && set & BIT(FERRY_FABRIC_NCCL); c++) {
		const struct ferry_trace *trace = &line->belief.traces[c][ferry_belief_slot(c, set & ~BIT(c))];
		/* of it, and of its median */
		double noise = ferry_trace_noise(trace) * (1 + 1 / sqrt(fmax(trace->count, 4)));
		double part = shares->part[c], least = fmin(part, ceil(floor));
		double less = part / (1 + 2 * noise * fmax(1 - 2 * part / FERRY_SHARES_WHOLE, 0));
		double seen = (double)course->fits[c][ferry_belief_slot(c, set & ~BIT(c))].most;
		double most = trace->count ? GROWTH * largest_part(trace) : seen > 0 ? ELSEWHERE * seen : INFINITY;
		less = fmin(less, most / (double)line->bytes * FERRY_SHARES_WHOLE);
		uint16_t left = (uint16_t)lround(fmax(less, least));
		shares->part[FERRY_FABRIC_NCCL] += shares->part[c] - left;
		shares->part[c] = left;
	}
}

/*
 * In steps of 3 to 6%, for a large part 1%: each share is a plan of its own, which takes a while to make, and shares
 * are known no better than that. NCCL has the rest, or, if it has no part, the largest part has it.
 */
static void round_down(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                       struct ferry_shares *shares)
{
	double floor = balancer->rules.floor_bytes / (double)line->bytes * FERRY_SHARES_WHOLE;
	int rest = FERRY_FABRIC_NCCL;
	for (int c = 0; c < FERRY_FABRIC_NCCL && !shares->part[FERRY_FABRIC_NCCL]; c++)
		rest = rest == FERRY_FABRIC_NCCL || shares->part[c] > shares->part[rest] ? c : rest;
	for (int c = 0; c < FERRY_FABRIC_NCCL; c++) {
		uint16_t step = LARGEST_STEP, part = shares->part[c];
		while (step > 1 && part < STEPS * step)
			step /= 2;
		uint16_t left = part % step;
		if (c == rest || part - left < floor)
			continue;
		shares->part[c] -= left;
		shares->part[rest] += left;
	}
}

static uint32_t unknown_fabrics(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line)
{
	const struct ferry_course *course = course_at(balancer, line);
	uint32_t unknown = 0;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		if (balancer->rules.usable & BIT(c) && !ferry_course_knows(course, c, (double)line->bytes / TRIAL))
			unknown |= BIT(c);
	return unknown;
}

static double call_us(const struct ferry_balancer_line *line, const struct ferry_paces *paces, uint32_t word)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	double us = ferry_division_us(paces, (double)line->bytes, &shares);
	return us + (word == FERRY_SHARES_NONE ? 0 : DIVIDED_US);
}

/* The best shares as far as is known, where the fabrics in `kept` need no gain; *us is what a call then takes. */
static uint32_t best(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                     const struct ferry_paces *paces, uint32_t kept, double *us)
{
	struct ferry_shares shares;
	struct ferry_division_rules rules = {balancer->rules.usable & ~unknown_fabrics(balancer, line), kept,
	                                     balancer->rules.floor_bytes, LEAST_GAIN};
	*us = 0;
	if (!(paces->in[BIT(FERRY_FABRIC_NCCL)][FERRY_FABRIC_NCCL].rate > 0))
		return FERRY_SHARES_NONE; /* what there is without Ferry comes first */
	ferry_divide(paces, (double)line->bytes, &rules, &shares);
	restrain(balancer, line, &shares);
	round_down(balancer, line, &shares);
	*us = call_us(line, paces, ferry_shares_pack(&shares));
	return ferry_shares_pack(&shares);
}

/* The same for one set. If the set cannot have the call *us is infinite, and the result are the line's shares. */
static uint32_t best_of_set(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                            const struct ferry_paces *paces, uint32_t set, double *us)
{
	struct ferry_shares shares = ferry_shares_unpack(line->word);
	struct ferry_division_rules rules = {set, set, balancer->rules.floor_bytes, 0};
	*us = ferry_divide_among(paces, (double)line->bytes, set, &rules, &shares);
	if (!isfinite(*us))
		return line->word;
	restrain(balancer, line, &shares);
	round_down(balancer, line, &shares);
	*us = call_us(line, paces, ferry_shares_pack(&shares));
	return ferry_shares_pack(&shares);
}

/* Shares that are as good, of which the routers have the plan, or will have soon: what was tried, or is to be. */
static uint32_t planned(const struct ferry_balancer_line *line, const struct ferry_paces *paces, uint32_t word)
{
	double most = call_us(line, paces, word) * (1 + STEP_GAIN);
	const uint32_t known[] = {line->had, line->probe};
	for (int i = 0; i < 2; i++)
		if (fabrics_of(known[i]) == fabrics_of(word) && call_us(line, paces, known[i]) < most)
			return known[i];
	return word;
}

/* ---- what it tries ---- */

/* The next set that may be tried now and then in place of the line's; less often once all have been. */
static void turn_probe(const struct ferry_balancer *balancer, struct ferry_balancer_line *line)
{
	uint8_t tried = line->probe_set;
	for (int i = 0; i < FERRY_FABRIC_SETS; i++) {
		line->probe_set = (uint8_t)((line->probe_set + FERRY_FABRIC_SETS - 1) % FERRY_FABRIC_SETS);
		bool usable = line->probe_set && !(line->probe_set & ~balancer->rules.usable);
		if (!usable || line->probe_set == fabrics_of(line->word))
			continue;
		line->backoff += line->probe_set >= tried && line->backoff < BACKOFFS;
		return;
	}
	line->probe_set = 0;
}

/* Whether a set is still to be tried, as it has had too few tries. Sets without NCCL are left to probes. */
static bool is_tried(const struct ferry_balancer_line *line, uint32_t set)
{
	return set & BIT(FERRY_FABRIC_NCCL) && line->tries[set] < TRIES;
}

/*
 * Chooses the best of the sets that have not been tried enough at this size, if it may be better than the present one.
 */
static bool choose_trial(const struct ferry_balancer *balancer, struct ferry_balancer_line *line)
{
	struct ferry_paces paces;
	uint32_t unknown = unknown_fabrics(balancer, line), others = unknown & ~BIT(FERRY_FABRIC_NCCL);
	struct ferry_shares small = trial_of(others, balancer->rules.floor_bytes / (double)line->bytes);
	double least;
	line->trial = 0;
	if (unknown & BIT(FERRY_FABRIC_NCCL)) {
		line->probe = ferry_shares_pack(&small);
		return false;
	}
	ferry_balancer_paces(balancer, line, &paces);
	least = HOPE * call_us(line, &paces, line->word);
	bool pays = least > HOPE * LONG_US || line->samples > MANY;
	for (uint32_t set = 1; set < FERRY_FABRIC_SETS; set++) {
		double us;
		if (set & ~(balancer->rules.usable & ~unknown) || !is_tried(line, set) || set == fabrics_of(line->word))
			continue;
		uint32_t word = planned(line, &paces, best_of_set(balancer, line, &paces, set, &us));
		if (!(us < least))
			continue;
		least = us;
		line->trial = (uint8_t)set;
		line->probe = word;
	}
	if (others && pays && line->tries[others | BIT(FERRY_FABRIC_NCCL)] < MOST_TRIES) {
		line->trial = (uint8_t)ferry_division_set(&small);
		line->probe = ferry_shares_pack(&small);
	}
	return line->trial;
}

static void choose_probe(const struct ferry_balancer *balancer, struct ferry_balancer_line *line)
{
	struct ferry_paces paces;
	struct ferry_shares now = ferry_shares_unpack(line->word), other;
	double bytes = (double)line->bytes;
	line->probe_every = choose_trial(balancer, line) ? FERRY_BALANCER_TRY : 0;
	if (line->probe_every)
		return;
	if (!line->probe_set || line->probe_set == fabrics_of(line->word)) {
		line->eager = 0;
		turn_probe(balancer, line);
	}
	struct ferry_division_rules rules = {line->probe_set, line->probe_set, balancer->rules.floor_bytes, 0};
	ferry_balancer_paces(balancer, line, &paces);
	double us = line->probe_set ? ferry_divide_among(&paces, bytes, line->probe_set, &rules, &other) : INFINITY;
	if (!line->eager && line->samples < PROBE_AFTER)
		return;
	if (line->settling || !isfinite(us)) {
		line->probe_set = line->settling ? line->probe_set : 0;
		return;
	}
	double cost = us / ferry_division_us(&paces, bytes, &now) - 1, most = PROBE_EVERY << BACKOFFS;
	if (cost > DEAR && !(line->probe_set & BIT(FERRY_FABRIC_NCCL))) {
		turn_probe(balancer, line); /* a fabric is tried beside NCCL, by a small part */
		return;
	}
	double allowed = PROBE_COST * (line->probe_set & ~fabrics_of(line->word) ? 1 : PROBE_LESS);
	double every = fmin(fmax(PROBE_EVERY << line->backoff, cost / allowed), most);
	line->probe = ferry_shares_pack(&other);
	line->probe_every = line->eager ? PROBE_SOON : (uint32_t)every;
}

/* Even if starts, which large sizes say little of, are others. */
static bool promises_much(double now_us, double us)
{
	return now_us > SURE * us && now_us - us > SURE_US;
}

/* What is known of other sizes is enough if it promises much. */
static void begin(const struct ferry_balancer *balancer, struct ferry_balancer_line *line)
{
	struct ferry_paces paces;
	double us;
	ferry_balancer_paces(balancer, line, &paces);
	uint32_t word = best(balancer, line, &paces, 0, &us);
	if (us > 0 && promises_much(call_us(line, &paces, FERRY_SHARES_NONE), us))
		line->word = word;
	choose_probe(balancer, line);
}

struct ferry_balancer_line *ferry_balancer_line(struct ferry_balancer *balancer,
                                                const struct ferry_balancer_call *call)
{
	uint8_t size_class = ferry_balancer_size_class(call->bytes);
	uint8_t *place = &balancer->places[ferry_balancer_place(call, size_class)];
	for (uint32_t i = 0; i < balancer->nlines; i++) {
		uint32_t at = (*place + i) % balancer->nlines;
		struct ferry_balancer_line *line = &balancer->lines[at];
		if (line->size_class != size_class || line->collective != call->collective || line->type != call->type)
			continue;
		*place = (uint8_t)at;
		return line;
	}
	if (balancer->nlines == FERRY_SHARE_LINES || !course_of(balancer, call->collective, call->type))
		return NULL;
	struct ferry_balancer_line *line = &balancer->lines[balancer->nlines++];
	*line = (struct ferry_balancer_line){.collective = (uint8_t)call->collective,
	                                     .type = (uint8_t)call->type,
	                                     .size_class = size_class,
	                                     .why = FERRY_BALANCE_COLD,
	                                     .settling = SETTLING,
	                                     .interval = 1,
	                                     .belief.slower = {1, 1, 1},
	                                     .bytes = call->bytes};
	begin(balancer, line);
	return line;
}

bool ferry_balancer_probes(struct ferry_balancer_line *line, uint32_t every, uint64_t n, uint32_t trying)
{
	line->due = every && (line->due || ferry_balancer_picks(n, every));
	return line->due && trying < (every == FERRY_BALANCER_TRY && line->bytes >= LARGE ? TRIES : 1);
}

void ferry_balancer_probed(struct ferry_balancer_line *line)
{
	line->due = false;
}

uint32_t ferry_balancer_propose(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint64_t n,
                                uint32_t trying)
{
	if ((double)call->bytes < balancer->rules.least_bytes)
		return FERRY_SHARES_NONE;
	if (balancer->rules.pinned)
		return ferry_shares_pack(&balancer->rules.pins);
	struct ferry_balancer_line *line = ferry_balancer_line(balancer, call);
	if (!line)
		return FERRY_SHARES_NONE;
	return ferry_balancer_probes(line, line->probe_every, n, trying) ? line->probe : line->word;
}

static uint32_t interval_of(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line)
{
	struct ferry_paces paces;
	struct ferry_shares now = ferry_shares_unpack(line->word);
	ferry_balancer_paces(balancer, line, &paces);
	double us = ferry_division_us(&paces, (double)line->bytes, &now);
	if (line->settling || !(us > 0))
		return 1;
	double calls = ceil(balancer->rules.measure_us / (COST * us));
	return calls < INTERVAL ? (uint32_t)fmax(calls, 1) : INTERVAL;
}

bool ferry_balancer_measures(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint64_t n)
{
	if (balancer->rules.pinned || (double)call->bytes < balancer->rules.least_bytes)
		return false;
	const struct ferry_balancer_line *line = ferry_balancer_line(balancer, call);
	return line && (line->due || ferry_balancer_picks(n, line->probe_every) ||
	                ferry_balancer_picks(n, line->interval));
}

/* ---- what it learns ---- */

/* A fabric has changed at one size: of each other size one sample suffices for the same change. */
static void warn_others(struct ferry_balancer *balancer, const struct ferry_balancer_line *changed, int fabric,
                        bool slower)
{
	for (uint32_t i = 0; i < balancer->nlines; i++)
		for (int slot = 0; slot < FERRY_SHARE_BESIDE && &balancer->lines[i] != changed; slot++)
			ferry_trace_warn(&balancer->lines[i].belief.traces[fabric][slot], slower);
}

/* A part of a call. True: the fabric has changed, in all sets. */
static bool learn(struct ferry_balancer *balancer, struct ferry_course *course, struct ferry_balancer_line *line,
                  int fabric, int slot, double bytes, double us)
{
	double times = ferry_belief_learn(course, &line->belief, fabric, slot, bytes, us, !line->settling);
	if (times > 0)
		warn_others(balancer, line, fabric, times > 1);
	return times > 0;
}

/* Whether all fabrics of it have been seen in calls of other sizes. */
static bool is_sure(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line, uint32_t word)
{
	const struct ferry_course *course = course_at(balancer, line);
	uint32_t set = fabrics_of(word);
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		if (set & BIT(c) && course->fits[c][ferry_belief_slot(c, set & ~BIT(c))].samples < SURE_SAMPLES)
			return false;
	return true;
}

/* Towards the best shares, if that gains something. True: a step. */
static bool step(const struct ferry_balancer *balancer, struct ferry_balancer_line *line)
{
	struct ferry_paces paces;
	double us;
	ferry_balancer_paces(balancer, line, &paces);
	uint32_t word = planned(line, &paces, best(balancer, line, &paces, fabrics_of(line->word), &us));
	double gain = us > 0 ? call_us(line, &paces, line->word) / us - 1 : 0;
	bool other_set = fabrics_of(word) != fabrics_of(line->word);
	if (other_set && is_tried(line, fabrics_of(word)) &&
	    !(promises_much(call_us(line, &paces, line->word), us) && is_sure(balancer, line, word))) {
		word = best_of_set(balancer, line, &paces, fabrics_of(line->word), &us);
		gain = call_us(line, &paces, line->word) / us - 1;
		other_set = false;
	}
	if (word == line->word || !(gain > (other_set ? SET_GAIN : STEP_GAIN)))
		return false;
	if (line->settling || gain > LARGE_STEP || other_set)
		line->settling = SETTLING;
	if (line->settling && line->why != FERRY_BALANCE_CHANGED)
		line->why = FERRY_BALANCE_LEARNING;
	if (other_set) { /* soon again, lest it was chance */
		line->probe_set = (uint8_t)fabrics_of(line->word);
		line->eager = 1;
	}
	line->word = word;
	line->backoff = 0;
	return true;
}

static void feed(struct ferry_balancer *balancer, struct ferry_balancer_line *line, struct ferry_course *course,
                 uint32_t word, const double us[FERRY_NUM_FABRICS])
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	uint32_t set = ferry_division_set(&shares);
	line->tries[set] += line->tries[set] < UINT8_MAX;
	bool probe = line->probe_every > FERRY_BALANCER_TRY && word == line->probe && word != line->word;
	bool changed = false, struck = false;
	for (int pass = 0; pass < 1 + changed && pass < 2; pass++)
		for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
			int slot = ferry_belief_slot(c, set & ~BIT(c));
			/* and believed, if others have changed too */
			bool doubted = line->belief.traces[c][slot].strikes != 0;
			if (set & BIT(c) && us[c] > 0 && isfinite(us[c]) && (!pass || doubted))
				changed |= learn(balancer, course, line, c, slot,
				                 (double)line->bytes * shares.part[c] / FERRY_SHARES_WHOLE, us[c]);
			struck |= set & BIT(c) && line->belief.traces[c][slot].strikes < 0;
		}
	if (changed) {
		line->why = FERRY_BALANCE_CHANGED;
		line->settling = SETTLING;
		line->backoff = 0;
		line->probe_set = (uint8_t)balancer->rules.usable; /* all of them together first */
		line->eager = 1;
	}
	bool stepped = step(balancer, line);
	if (probe) {
		line->due = false;
		line->eager = struck; /* it may have become faster: soon again */
	}
	if (!stepped && word == line->word && line->settling && !--line->settling)
		line->why = FERRY_BALANCE_SETTLED;
	if (!probe || stepped || struck)
		return;
	turn_probe(balancer, line);
}

void ferry_balancer_feed(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint32_t word,
                         const double us[FERRY_NUM_FABRICS])
{
	if (balancer->rules.pinned || (double)call->bytes < balancer->rules.least_bytes)
		return;
	struct ferry_balancer_line *line = ferry_balancer_line(balancer, call);
	struct ferry_course *course = course_of(balancer, call->collective, call->type);
	if (!line || !course)
		return;
	line->samples++;
	line->bytes = call->bytes;
	feed(balancer, line, course, word, us);
	choose_probe(balancer, line);
	line->interval = interval_of(balancer, line);
}
