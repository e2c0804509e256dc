/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/tempo.h"

#include <math.h>
#include <string.h>

#define SURVEYED   16u /* calls of the first survey; then twice as many, up to */
#define SURVEY     256u
#define BARE       0.75  /* of the stream's time: calls that take so much are the tempo themselves */
#define LEAST_PART 0.125 /* of the time of all calls: less of Ferry's is not looked at */
#define ODD        16u   /* one call in so many may differ from the one a step before */
#define LONGEST    (FERRY_TEMPO_HISTORY / 2)
#define NO_STEP    64u    /* calls of a window at least, where they do not repeat, or by kind alone */
#define WINDOW_US  3000.0 /* at least */
#define PATIENCE   16u    /* steps until Ferry has its calls again, whose buffers have to be mapped first */

#define FEW         3u /* pairs that are enough where each says much, */
#define MUCH        0.05
#define SOME        5u    /* and otherwise */
#define SURE        2.5   /* standard deviations, */
#define UNSURE      4.0   /* and so many times more by the number of pairs, as of few the deviation is a guess */
#define MARGIN      0.003 /* shorter by no more than this is not shorter */
#define LEAST_NOISE 0.002
#define OF_MEDIAN   1.2533 /* its deviation, of that of a mean */
#define OF_MAD      1.4826 /* a standard deviation, by the median of the absolute deviations */

#define REST      20u   /* times the calls of an examination, */
#define BACKOFFS  8u    /* doublings, */
#define COST      0.005 /* and so much of the time */
#define STRANGERS 16u   /* calls of kinds that were not examined, */
#define AMONG     64u   /* in so many */

enum { NCCLS, OURS };

void ferry_tempo_init(struct ferry_tempo *tempo)
{
	memset(tempo, 0, sizeof *tempo);
	tempo->survey.length = SURVEYED;
}

/*
 * The kind of a call: a hash of collective, type and size. It keeps the sizes that Ferry takes apart for collectives
 * with neighbouring numbers.
 */
uint8_t ferry_tempo_kind(const struct ferry_balancer_call *call)
{
	uint32_t mixed = ferry_balancer_size_class(call->bytes) + 21u * call->collective + 7u * call->type;
	return (uint8_t)(mixed % FERRY_TEMPO_KINDS);
}

void ferry_tempo_measured(struct ferry_tempo *tempo, uint8_t kind, bool ours, double us)
{
	float *known = &tempo->us[ours][kind];
	*known = *known > 0 ? (*known + (float)us) / 2 : (float)us;
}

/* ---- windows ---- */

static const struct ferry_tempo_marks nothing = {-1, -1};

static bool has_room(const struct ferry_tempo *tempo)
{
	return tempo->nwindows < FERRY_TEMPO_WINDOWS - 1; /* the next one begins where one ends */
}

static int8_t begin_window(struct ferry_tempo *tempo, int32_t which)
{
	uint32_t at = (tempo->oldest + tempo->nwindows) % FERRY_TEMPO_WINDOWS;
	tempo->windows[at] = (struct ferry_tempo_window){.which = which};
	tempo->open = true;
	return (int8_t)at;
}

static int8_t end_window(struct ferry_tempo *tempo, uint32_t steps, bool sound)
{
	uint32_t at = (tempo->oldest + tempo->nwindows++) % FERRY_TEMPO_WINDOWS;
	tempo->windows[at].steps = steps;
	tempo->windows[at].sound = sound;
	tempo->open = false;
	return (int8_t)at;
}

/* The times of windows under way are not needed any more. */
static void drop_windows(struct ferry_tempo *tempo)
{
	tempo->open = false;
	for (uint32_t i = 0; i < tempo->nwindows; i++)
		tempo->windows[(tempo->oldest + i) % FERRY_TEMPO_WINDOWS].which = -1;
}

int ferry_tempo_awaits(const struct ferry_tempo *tempo)
{
	return tempo->nwindows ? (int)tempo->oldest : -1;
}

/* ---- steps ---- */

#define KIND (FERRY_TEMPO_KINDS - 1) /* of a name */
#define ALL  UINT32_MAX

static uint32_t name_of(uint8_t kind, uint32_t buffers)
{
	return (buffers & ~(uint32_t)KIND) | kind;
}

static uint32_t name_at(const struct ferry_tempo *tempo, uint64_t call)
{
	return tempo->history[call % FERRY_TEMPO_HISTORY];
}

/* The least distance at which the calls known repeat in these bits, but for a few; 0: there is none yet. */
static uint32_t find_period(const struct ferry_tempo *tempo, uint32_t alike)
{
	uint64_t known = tempo->calls < FERRY_TEMPO_HISTORY ? tempo->calls : FERRY_TEMPO_HISTORY;
	for (uint32_t period = 1; period <= known / 2 && period <= LONGEST; period++) {
		uint64_t compared = known - period, odd = 0;
		for (uint64_t last = tempo->calls - 1, i = 0; i < compared && odd <= compared / ODD; i++)
			odd += ((name_at(tempo, last - i) ^ name_at(tempo, last - i - period)) & alike) != 0;
		if (odd <= compared / ODD)
			return period;
	}
	return 0;
}

/* False: that is not to be said yet. Buffers may come from anywhere, which shows in long. */
static bool find_step(struct ferry_tempo *tempo, double us_per_call)
{
	uint32_t alike = ALL, period = find_period(tempo, ALL), least = 1;
	if (!period && tempo->calls >= LONGEST) {
		alike = KIND;
		period = find_period(tempo, KIND);
		least = NO_STEP;
	}
	if (!period && tempo->calls >= FERRY_TEMPO_HISTORY) {
		alike = 0;
		period = NO_STEP;
	}
	if (!period)
		return false;
	tempo->exam.alike = alike;
	tempo->exam.period = period;
	tempo->exam.steps = (uint32_t)fmax(ceil(fmax(WINDOW_US / us_per_call, least) / period), 1);
	return true;
}

static uint64_t kinds_of(const struct ferry_tempo *tempo, uint32_t calls)
{
	uint64_t kinds = 0;
	for (uint32_t i = 0; i < calls && i < tempo->calls; i++)
		kinds |= UINT64_C(1) << (name_at(tempo, tempo->calls - 1 - i) & KIND);
	return kinds;
}

/* ---- survey ---- */

static void start_survey(struct ferry_tempo *tempo, uint32_t length)
{
	drop_windows(tempo);
	tempo->state = FERRY_TEMPO_SURVEY;
	tempo->quiet = tempo->settled;
	memset(&tempo->survey, 0, sizeof tempo->survey);
	tempo->survey.length = length;
}

static struct ferry_tempo_marks survey(struct ferry_tempo *tempo, uint8_t kind, bool ours)
{
	struct ferry_tempo_marks marks = nothing;
	if (tempo->survey.waits)
		return marks;
	if (tempo->open && tempo->survey.made == tempo->survey.length) {
		marks.ends = end_window(tempo, 1, true);
		tempo->survey.waits = true;
		return marks;
	}
	if (!tempo->open && !has_room(tempo))
		return marks;
	if (!tempo->open) {
		marks.begins = begin_window(tempo, 0);
		memset(tempo->survey.counts, 0, sizeof tempo->survey.counts);
		tempo->survey.made = 0;
	}
	tempo->survey.made++;
	tempo->survey.counts[ours][kind]++;
	return marks;
}

/* Whether a window is Ferry's: F N N F F N N F, or the other way round. */
static bool is_ours(const struct ferry_tempo *tempo, uint32_t which)
{
	return tempo->exam.begins_with ^ (which & 1) ^ (which >> 1 & 1);
}

/* Which has the calls now begins. */
static void start_exam(struct ferry_tempo *tempo)
{
	bool quiet = tempo->settled;
	tempo->state = FERRY_TEMPO_EXAM;
	tempo->exam.begins_with = !quiet;
	tempo->exam.which = tempo->exam.known = tempo->exam.calls = 0;
	tempo->exam.made = tempo->exam.ours = tempo->exam.strange = tempo->exam.late = 0;
	tempo->exam.ends = false;
	memset(tempo->exam.step_us, 0, sizeof tempo->exam.step_us);
	tempo->quiet = quiet ? UINT64_MAX : 0;
	/* some kinds were settled otherwise than this window is: it leaves a step out first */
	tempo->exam.leads = quiet;
	tempo->exam.left = quiet ? tempo->exam.period : 0;
}

/* The time of all calls, and of Ferry's among them. Returns false if too little is known. */
static bool weigh(const struct ferry_tempo *tempo, double *all_us, double *ferrys_us)
{
	uint32_t known = 0;
	*all_us = *ferrys_us = 0;
	for (int side = NCCLS; side <= OURS; side++)
		for (int kind = 0; kind < FERRY_TEMPO_KINDS; kind++) {
			uint32_t count = tempo->survey.counts[side][kind];
			double us = (double)tempo->us[side][kind] * count;
			known += us > 0 ? count : 0;
			*all_us += us;
			*ferrys_us += side == OURS ? us : 0;
		}
	return 8 * known >= 7 * tempo->survey.length;
}

static uint32_t ferrys_calls(const struct ferry_tempo *tempo)
{
	uint32_t calls = 0;
	for (int kind = 0; kind < FERRY_TEMPO_KINDS; kind++)
		calls += tempo->survey.counts[OURS][kind];
	return calls;
}

static void end_survey(struct ferry_tempo *tempo, double us)
{
	double all_us, ferrys_us;
	uint32_t length = tempo->survey.length;
	bool known = weigh(tempo, &all_us, &ferrys_us) && us > 0;
	if (!known || ferrys_us < LEAST_PART * all_us || all_us > BARE * us || !find_step(tempo, us / length)) {
		start_survey(tempo, known && 2 * length < SURVEY ? 2 * length : known ? SURVEY : length);
		return;
	}
	tempo->exam.part = (double)ferrys_calls(tempo) / length;
	tempo->exam.call_us = us / length;
	start_exam(tempo);
}

/* ---- examination ---- */

static void start_rest(struct ferry_tempo *tempo, uint64_t calls)
{
	drop_windows(tempo);
	tempo->state = FERRY_TEMPO_REST;
	tempo->quiet = tempo->settled;
	tempo->rest.length = calls;
	tempo->rest.made = tempo->rest.strangers = 0;
}

static uint64_t usual_rest(struct ferry_tempo *tempo)
{
	uint64_t calls = (uint64_t)REST * tempo->exam.calls << tempo->rest.backoff;
	tempo->rest.backoff += tempo->rest.backoff < BACKOFFS;
	return calls;
}

/*
 * The calls are no longer those that were surveyed, or Ferry does not come to have its part: what was settled stays. If
 * nothing is settled, a survey shows when there is something to examine again, and costs nothing until then.
 */
static void give_up(struct ferry_tempo *tempo)
{
	if (tempo->settled)
		start_rest(tempo, usual_rest(tempo));
	else
		start_survey(tempo, SURVEYED);
}

/* After a change: from the next call on the calls are those of the window. */
static struct ferry_tempo_marks end_lead(struct ferry_tempo *tempo)
{
	struct ferry_tempo_marks marks = nothing;
	uint32_t period = tempo->exam.period;
	if (tempo->exam.leads && is_ours(tempo, tempo->exam.which) &&
	    2 * tempo->exam.ours < tempo->exam.part * period) {
		tempo->exam.left = period;
		if (++tempo->exam.late > PATIENCE)
			give_up(tempo);
		return marks;
	}
	tempo->exam.leads = false;
	tempo->exam.left = period * tempo->exam.steps;
	marks.begins = begin_window(tempo, (int32_t)tempo->exam.which);
	return marks;
}

/* Ferry's windows have its calls, NCCL's have none. */
static bool is_sound(const struct ferry_tempo *tempo, bool ours)
{
	double expected = tempo->exam.part * tempo->exam.made;
	return ours ? 2 * tempo->exam.ours >= expected : 4 * tempo->exam.ours <= expected;
}

static struct ferry_tempo_marks end_exams_window(struct ferry_tempo *tempo)
{
	struct ferry_tempo_marks marks = nothing;
	bool was = is_ours(tempo, tempo->exam.which);
	marks.ends = end_window(tempo, tempo->exam.made / tempo->exam.period, is_sound(tempo, was));
	if (++tempo->exam.which == 2 * FERRY_TEMPO_PAIRS) {
		tempo->exam.ends = true;
		tempo->quiet = tempo->settled;
		return marks;
	}
	bool ours = is_ours(tempo, tempo->exam.which);
	tempo->exam.leads = ours != was;
	tempo->exam.left = tempo->exam.period * (tempo->exam.leads ? 1 : tempo->exam.steps);
	tempo->quiet = ours ? 0 : UINT64_MAX;
	if (!tempo->exam.leads)
		marks.begins = begin_window(tempo, (int32_t)tempo->exam.which);
	return marks;
}

static struct ferry_tempo_marks cross_border(struct ferry_tempo *tempo)
{
	struct ferry_tempo_marks marks = nothing;
	if (tempo->exam.alike && tempo->exam.strange > tempo->exam.made / ODD + 1) {
		give_up(tempo);
		return marks;
	}
	if (!has_room(tempo)) { /* the stream is far behind: all stays as it is until it has reached the marks */
		tempo->exam.left = tempo->exam.period;
		return marks;
	}
	marks = tempo->open ? end_exams_window(tempo) : end_lead(tempo);
	tempo->exam.made = tempo->exam.ours = tempo->exam.strange = 0;
	return marks;
}

static struct ferry_tempo_marks examine(struct ferry_tempo *tempo, bool ours)
{
	struct ferry_tempo_marks marks = nothing;
	if (tempo->exam.ends)
		return marks;
	if (!tempo->exam.left)
		marks = cross_border(tempo);
	if (tempo->state != FERRY_TEMPO_EXAM || tempo->exam.ends)
		return marks;
	tempo->exam.left--;
	tempo->exam.calls++;
	tempo->exam.made++;
	tempo->exam.ours += ours;
	uint32_t other = name_at(tempo, tempo->calls - 1) ^ name_at(tempo, tempo->calls - 1 - tempo->exam.period);
	tempo->exam.strange += (other & tempo->exam.alike) != 0;
	return marks;
}

/* ---- verdict ---- */

static double median(double *values, uint32_t count)
{
	for (uint32_t i = 1; i < count; i++)
		for (uint32_t j = i; j && values[j] < values[j - 1]; j--) {
			double swap = values[j];
			values[j] = values[j - 1];
			values[j - 1] = swap;
		}
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/*
 * Of the pairs whose times are known: by how much a step is longer with Ferry's calls, and the steps of both. Returns
 * how many.
 */
static uint32_t look_at_pairs(const struct ferry_tempo *tempo, double longer[FERRY_TEMPO_PAIRS], double us[2])
{
	double steps[2][FERRY_TEMPO_PAIRS];
	uint32_t count = 0;
	for (uint32_t which = 0; which + 1 < tempo->exam.known; which += 2) {
		bool first = is_ours(tempo, which);
		double of[2] = {tempo->exam.step_us[which + first], tempo->exam.step_us[which + !first]};
		if (!(of[NCCLS] > 0) || !(of[OURS] > 0))
			continue;
		longer[count] = log(of[OURS] / of[NCCLS]);
		steps[NCCLS][count] = of[NCCLS];
		steps[OURS][count++] = of[OURS];
	}
	for (int side = NCCLS; side <= OURS && count; side++)
		us[side] = median(steps[side], count);
	return count;
}

static bool all_say_much(const double *longer, uint32_t count)
{
	uint32_t more = 0, less = 0;
	for (uint32_t i = 0; i < count; i++) {
		more += longer[i] > MUCH;
		less += longer[i] < -MUCH;
	}
	return more == count || less == count;
}

/*
 * The next examination comes so late that the cost of this one is small by then; after a changed verdict it comes soon.
 */
static void settle(struct ferry_tempo *tempo, const struct ferry_tempo_verdict *verdict)
{
	bool same = tempo->verdicts && tempo->verdict.gives_way == verdict->gives_way;
	double steps = (double)tempo->exam.calls / tempo->exam.period / 2;
	double cost = steps * fabs(expm1(verdict->longer)); /* in steps */
	tempo->verdict = *verdict;
	tempo->verdicts++;
	tempo->examined = kinds_of(tempo, 2 * tempo->exam.period);
	tempo->settled = verdict->gives_way ? tempo->examined : 0;
	tempo->rest.backoff = same ? tempo->rest.backoff : 0;
	start_rest(tempo, (uint64_t)fmax((double)usual_rest(tempo), cost / COST * tempo->exam.period));
}

/* True: there is a verdict. Where all pairs are known and say nothing Ferry gives way. */
static bool judge(struct ferry_tempo *tempo)
{
	struct ferry_tempo_verdict verdict = {.period = tempo->exam.period};
	double longer[FERRY_TEMPO_PAIRS], off[FERRY_TEMPO_PAIRS];
	uint32_t count = verdict.pairs = look_at_pairs(tempo, longer, verdict.us);
	bool last = tempo->exam.known == 2 * FERRY_TEMPO_PAIRS;
	if (last && count < FERRY_TEMPO_PAIRS / 2) {
		tempo->examined = kinds_of(tempo, 2 * tempo->exam.period);
		start_rest(tempo, usual_rest(tempo));
		return false;
	}
	if (count < FEW)
		return false;
	bool much = all_say_much(longer, count); /* before they are put in order */
	verdict.longer = median(longer, count);
	for (uint32_t i = 0; i < count; i++)
		off[i] = fabs(longer[i] - verdict.longer);
	double noise = fmax(OF_MAD * median(off, count), LEAST_NOISE);
	verdict.spread = SURE * (1 + UNSURE / count) * OF_MEDIAN * noise / sqrt(count);
	bool shorter = verdict.longer + verdict.spread<-MARGIN, not_shorter = verdict.longer - verdict.spread> - MARGIN;
	much &= fabs(verdict.longer) > verdict.spread;
	if (!last && !much && (count < SOME || !(shorter || not_shorter)))
		return false;
	verdict.gives_way = much ? verdict.longer > 0 : !shorter;
	settle(tempo, &verdict);
	return true;
}

bool ferry_tempo_took(struct ferry_tempo *tempo, double us)
{
	struct ferry_tempo_window window = tempo->windows[tempo->oldest];
	tempo->oldest = (tempo->oldest + 1) % FERRY_TEMPO_WINDOWS;
	tempo->nwindows--;
	if (window.which < 0)
		return false;
	if (tempo->state == FERRY_TEMPO_SURVEY) {
		end_survey(tempo, us);
		return false;
	}
	tempo->exam.step_us[tempo->exam.known++] = window.sound && us > 0 ? us / window.steps : 0;
	return tempo->exam.known % 2 == 0 && judge(tempo);
}

/* ---- rest ---- */

/* While Ferry has nothing there is nothing to survey. Steps may have other calls by now. */
static void examine_again(struct ferry_tempo *tempo)
{
	if (find_step(tempo, tempo->exam.call_us))
		start_exam(tempo);
	else
		start_rest(tempo, tempo->exam.period);
}

/* Calls of kinds that were not examined go as they are learned; where there are many all is examined again. */
static void rest(struct ferry_tempo *tempo, uint8_t kind)
{
	tempo->rest.strangers += !(tempo->examined >> kind & 1);
	if (++tempo->rest.made % AMONG == 0) {
		bool others = tempo->rest.strangers >= STRANGERS;
		tempo->rest.strangers = 0;
		if (others) {
			tempo->rest.backoff = 0;
			start_survey(tempo, SURVEYED);
			return;
		}
	}
	if (tempo->rest.made < tempo->rest.length)
		return;
	if (tempo->settled)
		examine_again(tempo);
	else
		start_survey(tempo, SURVEYED);
}

struct ferry_tempo_marks ferry_tempo_call(struct ferry_tempo *tempo, uint8_t kind, uint32_t buffers, bool ours)
{
	tempo->history[tempo->calls++ % FERRY_TEMPO_HISTORY] = name_of(kind, buffers);
	switch (tempo->state) {
	case FERRY_TEMPO_SURVEY:
		return survey(tempo, kind, ours);
	case FERRY_TEMPO_EXAM:
		return examine(tempo, ours);
	default:
		rest(tempo, kind);
		return nothing;
	}
}
