/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tuner/veto.h"

#include <math.h>
#include <string.h>

#define BARE      0.75  /* of the time: calls that take so much are the program's time themselves */
#define LAID_BARE 0.82 /* the same for calls that were hidden before, which are NCCL's now, and longer */
#define GAPS      6u    /* gaps that have to be known */
#define OLD_GAPS  20u   /* over about so many last gaps their times are averaged */
#define RECENT    64u   /* calls */
#define ODD       16u   /* one call in so many may differ from the one a step before */
#define LONGEST   (FERRY_VETO_HISTORY / 2)
#define WINDOW    8u     /* calls of a window at least, */
#define WINDOW_US 3000.0 /* and its time */
#define PATIENCE  16u    /* steps until Ferry has its calls again, whose buffers have to be mapped first */

#define FEW         2u /* pairs that are enough where all agree, and their median is much, */
#define MUCH        0.03
#define SOME        5u    /* and otherwise */
#define SURE        2.5   /* standard deviations, */
#define UNSURE      4.0   /* times 1 + this / pairs, as the deviation of few pairs is a guess */
#define MARGIN      0.003 /* shorter by no more than this is not shorter */
#define LEAST_NOISE 0.002
#define OF_MEDIAN   1.2533 /* a median's deviation, relative to a mean's */
#define OF_MAD      1.4826 /* a standard deviation, by the median of the absolute deviations */

#define REST     20u   /* times the calls of a comparison, */
#define BACKOFFS 8u    /* doublings, */
#define COST     0.005 /* and so much of the time */
#define STRANGERS 16u
#define FIRST    16u   /* calls before the first comparison */

#define LAST (2u * FERRY_VETO_PAIRS) /* the number of windows of a comparison, at most */

enum { NCCLS, TUNED };

void ferry_veto_init(struct ferry_veto *veto)
{
	memset(veto, 0, sizeof *veto);
	veto->rest = FIRST;
}

/* Whether a window is as tuned: F N N F F N N F, or the other way round. */
static bool is_tuned(const struct ferry_veto *veto, uint32_t which)
{
	return veto->exam.begins_tuned ^ (which & 1) ^ (which >> 1 & 1);
}

enum ferry_veto_hold ferry_veto_hold(const struct ferry_veto *veto)
{
	if (!veto->compares)
		return veto->held ? FERRY_VETO_HELD : FERRY_VETO_TUNED;
	/* until the last window's time is known, calls go on as before the comparison */
	bool tuned = veto->exam.which == LAST ? !veto->held : is_tuned(veto, veto->exam.which);
	return tuned ? FERRY_VETO_TUNED : veto->held ? FERRY_VETO_HELD : FERRY_VETO_COMPARING;
}

bool ferry_veto_freezes(const struct ferry_veto *veto)
{
	return veto->compares || veto->valid;
}

/* ---- windows ---- */

static const struct ferry_veto_marks nothing = {-1, -1};

/*
 * Whether the next window may begin, where one ends. A program may run several steps ahead of its stream: after each
 * two pairs calls stay as they were before the comparison until the pairs' times are known, which may be enough.
 */
static bool may_go_on(const struct ferry_veto *veto)
{
	uint32_t unknown = veto->exam.which - veto->exam.known;
	bool two_pairs = veto->exam.open && veto->exam.which && veto->exam.which % 4 == 0;
	return unknown < FERRY_VETO_WINDOWS - 1 && !(two_pairs && unknown);
}

int ferry_veto_awaits(const struct ferry_veto *veto)
{
	bool awaits = veto->compares && veto->exam.known < veto->exam.which;
	return awaits ? (int)(veto->exam.known % FERRY_VETO_WINDOWS) : -1;
}

/* ---- steps ---- */

/* of a name: */
#define KIND   (FERRY_VETO_KINDS - 1)
#define FERRYS FERRY_VETO_KINDS /* Ferry had a part of the call, which says nothing of the step */
#define ALL    (UINT32_MAX & ~(uint32_t)FERRYS)

static uint32_t name_at(const struct ferry_veto *veto, uint64_t call)
{
	return veto->history[call % FERRY_VETO_HISTORY];
}

/*
 * The least distance at which the calls known repeat in these bits, but for a few; 0: there is none yet. Of Ferry's own
 * three quarters repeat: else they may all be among the few, and a window would have one or none of them by chance.
 */
static uint32_t find_period(const struct ferry_veto *veto, uint32_t alike)
{
	uint64_t known = veto->calls < FERRY_VETO_HISTORY ? veto->calls : FERRY_VETO_HISTORY;
	/* under a hold Ferry has no calls to look for: its own were in steps of that length */
	uint32_t least = veto->held ? veto->exam.period : 1;
	for (uint32_t period = least; period <= known / 2; period++) {
		uint64_t compared = known - period, odd = 0, ferrys = 0, odd_ferrys = 0;
		for (uint64_t last = veto->calls - 1, i = 0; i < compared && odd <= compared / ODD; i++) {
			uint32_t name = name_at(veto, last - i), before = name_at(veto, last - i - period);
			bool differs = ((name ^ before) & alike) != 0, is_ferrys = ((name | before) & FERRYS) != 0;
			odd += differs;
			ferrys += is_ferrys;
			odd_ferrys += differs && is_ferrys;
		}
		if (odd <= compared / ODD && 4 * odd_ferrys <= ferrys)
			return period;
	}
	return 0;
}

/* Finds the step; false: it is not known yet. If calls do not repeat with their buffers, kinds alone count. */
static bool find_step(struct ferry_veto *veto)
{
	uint32_t alike = ALL, period = find_period(veto, ALL);
	double us_per_call = veto->gaps ? fmax(veto->span_us, 1) : WINDOW_US; /* clocks have ticks */
	if (!period && veto->calls >= LONGEST) {
		alike = KIND;
		period = find_period(veto, KIND);
	}
	if (!period)
		return false;
	veto->exam.alike = alike;
	veto->exam.period = period;
	veto->exam.steps = (uint32_t)fmax(ceil(fmax(WINDOW_US / us_per_call, WINDOW) / period), 1);
	return true;
}

static uint64_t kinds_of(const struct ferry_veto *veto, uint32_t calls)
{
	uint64_t kinds = 0;
	for (uint32_t i = 0; i < calls && i < veto->calls; i++)
		kinds |= UINT64_C(1) << (name_at(veto, veto->calls - 1 - i) & KIND);
	return kinds;
}

/* The part of the last calls that Ferry had: of a step's at least. */
static double ferrys_part(const struct ferry_veto *veto)
{
	uint32_t ferrys = 0, calls = veto->exam.period > RECENT ? veto->exam.period : RECENT;
	calls = calls < veto->calls ? calls : (uint32_t)veto->calls;
	for (uint32_t i = 0; i < calls; i++)
		ferrys += (name_at(veto, veto->calls - 1 - i) & FERRYS) != 0;
	return (double)ferrys / calls;
}

/* ---- comparison ---- */

static void start_rest(struct ferry_veto *veto, uint64_t calls)
{
	veto->compares = false;
	veto->rest = calls;
	veto->rested = veto->strangers = 0;
}

/* The first window leaves the calls as they are now. False: Ferry has none of them, so there is nothing to compare. */
static bool start(struct ferry_veto *veto)
{
	struct ferry_veto_exam *exam = &veto->exam;
	double part = veto->held ? exam->part : ferrys_part(veto);
	*exam = (struct ferry_veto_exam){.period = exam->period,
	                                 .alike = exam->alike,
	                                 .steps = exam->steps,
	                                 .begins_tuned = !veto->held,
	                                 .part = part};
	return veto->compares = part > 0;
}

/*
 * The calls do not repeat any more, or Ferry does not come to have its part: what was found before stays. A program
 * that never repeats for long must not be compared half of the time, and hardly where NCCL has all calls.
 */
static void give_up(struct ferry_veto *veto)
{
	uint64_t calls = veto->exam.calls > RECENT ? veto->exam.calls : RECENT;
	start_rest(veto, (veto->held ? REST : 1) * calls << veto->given_up);
	veto->given_up += veto->given_up < BACKOFFS;
}

/* Windows as tuned have Ferry's calls, the others have none. */
static bool is_sound(const struct ferry_veto *veto, bool tuned)
{
	double expected = veto->exam.part * veto->exam.made;
	return tuned ? 2 * veto->exam.ferrys >= expected : 4 * veto->exam.ferrys <= expected;
}

static void end_window(struct ferry_veto *veto)
{
	bool was = is_tuned(veto, veto->exam.which);
	uint32_t at = veto->exam.which++ % FERRY_VETO_WINDOWS;
	veto->window_steps[at] = is_sound(veto, was) ? veto->exam.made / veto->exam.period : 0;
	veto->exam.open = false;
	veto->exam.leads = is_tuned(veto, veto->exam.which) != was;
}

/* What is to be timed between two steps: a window may end, or a step left out after a change, and a window begin. */
static struct ferry_veto_marks cross_border(struct ferry_veto *veto)
{
	struct ferry_veto_exam *exam = &veto->exam;
	struct ferry_veto_marks marks = nothing;
	exam->left = exam->period;
	if (exam->strange > exam->made / ODD + 1) {
		give_up(veto);
		return marks;
	}
	if (!may_go_on(veto)) /* all stays as it is until the stream has reached the marks */
		return marks;
	if (exam->open) {
		marks.ends = (int8_t)(exam->which % FERRY_VETO_WINDOWS);
		end_window(veto);
	} else if (exam->leads && is_tuned(veto, exam->which) && 2 * exam->ferrys < exam->part * exam->period) {
		if (++exam->late > PATIENCE) /* Ferry has not got its calls back yet */
			give_up(veto);
	} else {
		exam->leads = false;
	}
	exam->made = exam->ferrys = exam->strange = 0;
	if (exam->leads || exam->which == LAST)
		return marks;
	marks.begins = (int8_t)(exam->which % FERRY_VETO_WINDOWS);
	exam->open = true;
	exam->left = exam->period * exam->steps;
	return marks;
}

static struct ferry_veto_marks compare(struct ferry_veto *veto, bool ferrys)
{
	struct ferry_veto_marks marks = nothing;
	if (veto->exam.which == LAST)
		return marks;
	if (!veto->exam.left)
		marks = cross_border(veto);
	if (!veto->compares || veto->exam.which == LAST)
		return marks;
	veto->exam.left--;
	veto->exam.calls++;
	veto->exam.made++;
	veto->exam.ferrys += ferrys;
	uint32_t other = name_at(veto, veto->calls - 1) ^ name_at(veto, veto->calls - 1 - veto->exam.period);
	veto->exam.strange += (other & veto->exam.alike) != 0;
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

/* Of each pair with known times: how much longer a step is as tuned. us: both mean steps. Returns how many pairs. */
static uint32_t look_at_pairs(const struct ferry_veto *veto, double longer[FERRY_VETO_PAIRS], double us[2])
{
	uint32_t count = 0;
	for (uint32_t which = 0; which + 1 < veto->exam.known; which += 2) {
		bool first = is_tuned(veto, which);
		double of[2] = {veto->exam.step_us[which + first], veto->exam.step_us[which + !first]};
		if (!(of[NCCLS] > 0) || !(of[TUNED] > 0))
			continue;
		longer[count++] = log(of[TUNED] / of[NCCLS]);
		for (int side = NCCLS; side <= TUNED; side++)
			us[side] += (of[side] - us[side]) / count;
	}
	return count;
}

/*
 * The next comparison comes so late that the cost of this one is small by then; after a changed verdict it comes soon.
 */
static void settle(struct ferry_veto *veto, const struct ferry_veto_verdict *verdict)
{
	bool same = veto->verdicts && veto->verdict.holds == verdict->holds;
	double cost = (double)veto->exam.calls / 2 * fabs(expm1(verdict->longer)); /* in calls */
	veto->verdict = *verdict;
	veto->verdicts++;
	veto->held = verdict->holds;
	veto->valid = true;
	veto->backoff = same ? veto->backoff : 0;
	veto->given_up = 0;
	double calls = (double)((uint64_t)REST * veto->exam.calls << veto->backoff);
	start_rest(veto, (uint64_t)fmax(calls, cost / COST));
	veto->backoff += veto->backoff < BACKOFFS;
}

/* Returns true if there is a verdict. If all pairs are known and show no difference, Ferry gives way. */
static bool judge(struct ferry_veto *veto)
{
	struct ferry_veto_verdict verdict = {.period = veto->exam.period};
	double longer[FERRY_VETO_PAIRS], off[FERRY_VETO_PAIRS];
	uint32_t count = verdict.pairs = look_at_pairs(veto, longer, verdict.us);
	bool last = veto->exam.known == LAST;
	if (last && count < FERRY_VETO_PAIRS / 2) {
		give_up(veto);
		return false;
	}
	if (count < FEW)
		return false;
	verdict.longer = median(longer, count);
	bool all_agree = longer[0] > 0 || !(longer[count - 1] > 0); /* they are in order now */
	bool much = all_agree && fabs(verdict.longer) > MUCH;
	for (uint32_t i = 0; i < count; i++)
		off[i] = fabs(longer[i] - verdict.longer);
	double noise = fmax(OF_MAD * median(off, count), LEAST_NOISE);
	verdict.spread = SURE * (1 + UNSURE / count) * OF_MEDIAN * noise / sqrt(count);
	bool shorter = verdict.longer + verdict.spread < -MARGIN;
	bool longer_or_same = verdict.longer - verdict.spread > -MARGIN;
	if (!last && !much && (count < SOME || !(shorter || longer_or_same)))
		return false;
	verdict.holds = much ? verdict.longer > 0 : !shorter;
	settle(veto, &verdict);
	return true;
}

bool ferry_veto_took(struct ferry_veto *veto, double us)
{
	uint32_t steps = veto->window_steps[veto->exam.known % FERRY_VETO_WINDOWS];
	veto->exam.step_us[veto->exam.known++] = steps && us > 0 ? us / steps : 0;
	return veto->exam.known % 2 == 0 && judge(veto);
}

/* ---- between comparisons ---- */

void ferry_veto_gap(struct ferry_veto *veto, double busy_us, double span_us)
{
	if (!isfinite(busy_us + span_us))
		return;
	veto->gaps += veto->gaps < OLD_GAPS;
	veto->busy_us += (busy_us - veto->busy_us) / veto->gaps;
	veto->span_us += (span_us - veto->span_us) / veto->gaps;
	if (veto->valid && !veto->compares && veto->gaps >= 2 * GAPS && veto->busy_us > LAID_BARE * veto->span_us)
		veto->held = veto->valid = false; /* nothing hides these calls */
}

/*
 * Counts calls of kinds that the verdict is not about: many of them are another phase. The verdict is void then, and so
 * is a comparison under way; steps are looked for in the phase's own calls.
 */
static void look_for_strangers(struct ferry_veto *veto, uint8_t kind)
{
	veto->strangers += !(veto->examined >> kind & 1);
	if (veto->strangers >= STRANGERS) {
		start_rest(veto, FIRST);
		veto->held = veto->valid = false;
		veto->backoff = veto->given_up = veto->gaps = 0;
		veto->examined = kinds_of(veto, STRANGERS);
		veto->calls = 0;
	} else if (veto->calls % RECENT == 0) {
		veto->examined |= kinds_of(veto, RECENT);
		veto->strangers = 0;
	}
}

static bool is_due(const struct ferry_veto *veto, bool free)
{
	if (veto->rested < veto->rest || !free)
		return false;
	return veto->held || (veto->gaps >= GAPS && veto->busy_us <= BARE * veto->span_us);
}

struct ferry_veto_marks ferry_veto_call(struct ferry_veto *veto, uint8_t kind, uint32_t buffers, bool ferrys, bool free)
{
	/* Ferry's calls of trials do not count: a trial that lost leaves nothing to compare */
	veto->history[veto->calls++ % FERRY_VETO_HISTORY] =
	        (buffers & ~(uint32_t)(KIND | FERRYS)) | kind | (ferrys && free ? FERRYS : 0);
	look_for_strangers(veto, kind);
	if (!veto->compares) {
		veto->rested++;
		if (!is_due(veto, free))
			return nothing;
		if (!find_step(veto) || !start(veto)) {
			if (veto->calls >= FERRY_VETO_HISTORY) { /* a search through all of them takes some 10 us */
				veto->rest = RECENT;
				veto->rested = 0;
			}
			return nothing;
		}
	}
	return compare(veto, ferrys);
}
