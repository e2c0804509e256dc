/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/belief.h"

#include <math.h>

#define RANGE  8   /* times the largest part that was seen, or less, is predicted by the line through all sizes */
#define LIKELY 5.0 /* at most so many times off */

/* ---- of all sizes ---- */

void ferry_course_adopt(struct ferry_course *course, const struct ferry_share_course *learned)
{
	for (int i = 0; i < FERRY_NUM_FABRICS * FERRY_SHARE_BESIDE; i++) {
		int fabric = i / FERRY_SHARE_BESIDE, slot = i % FERRY_SHARE_BESIDE;
		if (learned->paces[fabric][slot].rate > 0)
			ferry_rate_fit_start(&course->fits[fabric][slot], &learned->paces[fabric][slot]);
	}
}

void ferry_course_record(const struct ferry_course *course, struct ferry_share_course *learned)
{
	*learned = (struct ferry_share_course){.collective = course->collective, .type = course->type};
	for (int i = 0; i < FERRY_NUM_FABRICS * FERRY_SHARE_BESIDE; i++) {
		const struct ferry_rate_fit *fit = &course->fits[i / FERRY_SHARE_BESIDE][i % FERRY_SHARE_BESIDE];
		if (fit->samples != 1)
			learned->paces[i / FERRY_SHARE_BESIDE][i % FERRY_SHARE_BESIDE] = fit->pace;
	}
}

/* One sample of Ferry's is no line: it may be of a call in which buffers were mapped. */
static bool is_line(const struct ferry_rate_fit *fit, int fabric)
{
	return fit->pace.rate > 0 && (fit->samples != 1 || fabric == FERRY_FABRIC_NCCL);
}

bool ferry_course_knows(const struct ferry_course *course, int fabric, double bytes)
{
	for (int slot = 0; slot < FERRY_SHARE_BESIDE; slot++) {
		const struct ferry_rate_fit *fit = &course->fits[fabric][slot];
		if (is_line(fit, fabric) && RANGE * (double)fit->most >= bytes)
			return true;
	}
	return false;
}

/* ---- of one ---- */

int ferry_belief_slot(int fabric, uint32_t set)
{
	uint32_t below = set & ((1u << fabric) - 1), above = set >> (fabric + 1);
	return (int)(below | above << fabric);
}

/* The factor in a set in which the fabric has not been seen at this size: as far off the line as in another set. */
static double likely_factor(const struct ferry_course *course, const struct ferry_belief *belief, int fabric)
{
	for (int slot = 0; slot < FERRY_SHARE_BESIDE; slot++) {
		const struct ferry_rate_fit *fit = &course->fits[fabric][slot];
		const struct ferry_trace *trace = &belief->traces[fabric][slot];
		if (trace->count && is_line(fit, fabric))
			return fmin(fmax(ferry_trace_factor(trace, &fit->pace), 1 / LIKELY), LIKELY);
	}
	return (double)belief->slower[fabric];
}

static struct ferry_pace seen_pace(const struct ferry_course *course, const struct ferry_belief *belief, int fabric,
                                   int slot)
{
	const struct ferry_pace *fit = &course->fits[fabric][slot].pace;
	const struct ferry_trace *trace = &belief->traces[fabric][slot];
	if (!trace->count && !is_line(&course->fits[fabric][slot], fabric))
		return (struct ferry_pace){0, 0};
	double factor = trace->count ? ferry_trace_factor(trace, fit) : likely_factor(course, belief, fabric);
	return (struct ferry_pace){fit->start_us * factor, fit->rate / factor};
}

/* The pace in a set that has not been tried: between that alone, and that in the slowest known set. */
static struct ferry_pace expected_pace(const struct ferry_course *course, const struct ferry_belief *belief, int fabric)
{
	struct ferry_pace fast = {0, 0}, slow = {0, 0};
	for (int slot = 0; slot < FERRY_SHARE_BESIDE; slot++) {
		struct ferry_pace pace = seen_pace(course, belief, fabric, slot);
		if (!(pace.rate > 0))
			continue;
		fast = pace.rate > fast.rate ? pace : fast;
		slow = !(slow.rate > 0) || pace.rate < slow.rate ? pace : slow;
	}
	return (struct ferry_pace){(fast.start_us + slow.start_us) / 2, sqrt(fast.rate * slow.rate)};
}

void ferry_belief_paces(const struct ferry_course *course, const struct ferry_belief *belief,
                        struct ferry_paces *paces)
{
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		struct ferry_pace expected = expected_pace(course, belief, c);
		for (uint32_t set = 0; set < FERRY_FABRIC_SETS; set++) {
			struct ferry_pace pace = seen_pace(course, belief, c, ferry_belief_slot(c, set & ~(1u << c)));
			paces->in[set][c] = pace.rate > 0 ? pace : expected;
		}
	}
}

/* ---- what calls show ---- */

/* Beside other fabrics it begins as it is alone, or beside yet others, as far as that is known. */
static void begin_fit(struct ferry_course *course, int fabric, int slot)
{
	struct ferry_rate_fit *fits = course->fits[fabric];
	for (int other = 0; other < FERRY_SHARE_BESIDE && !(fits[slot].pace.rate > 0); other++)
		if (is_line(&fits[other], fabric))
			ferry_rate_fit_start(&fits[slot], &fits[other].pace);
}

double ferry_belief_learn(struct ferry_course *course, struct ferry_belief *belief, int fabric, int slot, double bytes,
                          double us, bool settled)
{
	struct ferry_rate_fit *fit = &course->fits[fabric][slot];
	struct ferry_trace *trace = &belief->traces[fabric][slot];
	begin_fit(course, fabric, slot);
	bool known = is_line(fit, fabric);
	if (!(fit->pace.rate > 0))
		ferry_rate_fit_add(fit, bytes, us);
	double before = ferry_trace_factor(trace, &fit->pace);
	bool changed = ferry_trace_add(trace, &fit->pace, bytes, us, settled, known);
	double times = ferry_trace_factor(trace, &fit->pace) / before;
	if (ferry_trace_typical(trace) && trace->seen > 1)
		ferry_rate_fit_add(fit, bytes, us);
	if (!changed)
		return 0;
	for (int other = 0; other < FERRY_SHARE_BESIDE; other++)
		if (other != slot)
			ferry_trace_scale(&belief->traces[fabric][other], times);
	belief->slower[fabric] = (float)fmin(fmax(belief->slower[fabric] * times, 1e-3), 1e3);
	return times;
}
