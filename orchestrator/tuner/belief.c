/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tuner/belief.h"

#include "orchestrator/tuner/tuning.h"

#include <math.h>
#include <stdlib.h>

/* An arm replaces the arm in use if it takes less than this part of that one's time; the rest is noise. */
#define FASTER      0.98  /* as measured here */
#define FASTER_STEP 0.992 /* a measured step of NCCL's parameters: the next one gains as little */
#define FASTER_NEAR 0.95  /* not measured: by another size, or before the job */
#define NEAR        1     /* size classes: a factor of 1.4 */
#define FAR         4     /* a factor of 4 */

/*
 * What a pause adds to each of twenty pushes: lanes sleep through it, so the first two of 50 us took 78 and 66 (H200).
 * Those are not counted, but the program has them.
 */
#define PAUSE_US    2.5

/* Times of ferry-perf limits no longer hold if an arm takes WRONG times as long, by WRONG_CALLS calls at least. */
#define WRONG       4
#define WRONG_CALLS 3

/* Returns 0 if that is not known, as for most of NCCL's tunings. */
double ferry_belief_before(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                           const struct ferry_arm *arm)
{
	uint32_t tuning = ferry_shares_tuning(arm->word);
	enum ferry_prior_arm which = ferry_arm_is_ferrys(arm) ? FERRY_PRIOR_FERRY
	                             : tuning                 ? FERRY_PRIOR_NCCL_16_CHANNELS
	                                                      : FERRY_PRIOR_NCCL;
	double us;
	bool known = (!tuning || tuning == FERRY_TUNING_16_CHANNELS) &&
	             ferry_prior_us(tuner->prior, line->like.collective, line->like.bytes, which, &us);
	return known ? us : 0;
}

/* What the arm of that word takes in another line, or took in an earlier job; 0: not known. */
static double twins_us(const struct ferry_tuner_line *other, uint32_t word)
{
	double us = 0;
	for (int i = 0; i < other->narms && !(us > 0); i++)
		if (other->arms[i].word == word && !((us = ferry_arm_us(&other->arms[i])) > 0))
			us = (double)other->arms[i].learned_us;
	return us;
}

/*
 * Estimates the arm's time from the nearest line, at most `most` classes away, that knows the arm's: by its ratio there
 * to that of `known`, which this line has measured, or by its rate, if `known` is NULL.
 */
static double like_others(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                          const struct ferry_arm *arm, const struct ferry_arm *known, int most)
{
	double us = 0;
	for (uint32_t i = 0; i < tuner->nlines; i++) {
		const struct ferry_tuner_line *other = &tuner->lines[i];
		int distance = abs((int)other->size_class - (int)line->size_class);
		if (other == line || other->like.collective != line->like.collective || distance > most ||
		    other->like.fabric != line->like.fabric)
			continue;
		double its = twins_us(other, arm->word), base = known ? twins_us(other, known->word) : its;
		if (!(its > 0) || !(base > 0))
			continue;
		us = its * (known ? ferry_arm_us(known) / base
		                  : (double)line->like.bytes / (double)other->like.bytes);
		most = distance - 1;
	}
	return us;
}

/* The arm in use if it was measured, else the first that was: others are compared with it. NULL: none was. */
static const struct ferry_arm *measured(const struct ferry_tuner_line *line)
{
	const struct ferry_arm *found = NULL;
	for (int i = 0; i < line->narms; i++)
		if (line->arms[i].seen && (!found || i == line->best))
			found = &line->arms[i];
	return found;
}

bool ferry_belief_by_limits(const struct ferry_tuner_line *line)
{
	bool wrong = false, known[2] = {false, false}; /* NCCL's time; Ferry's */
	for (int i = 0; i < line->narms && line->overlaps; i++) {
		const struct ferry_arm *arm = &line->arms[i];
		double before = (double)arm->before_us;
		known[ferry_arm_is_ferrys(arm)] |= before > 0;
		wrong |= before > 0 && arm->seen >= WRONG_CALLS && ferry_arm_us(arm) > WRONG * before;
	}
	return known[0] && known[1] && !wrong;
}

struct ferry_belief ferry_believe(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                                  const struct ferry_arm *arm)
{
	double pause = ferry_arm_is_ferrys(arm) && line->like.fabric == FERRY_FABRIC_PEER ? PAUSE_US : 0;
	bool step = !ferry_arm_is_ferrys(arm) && !ferry_arm_is_ferrys(&line->arms[line->best]);
	double us = ferry_arm_us(arm), before = (double)arm->before_us;
	if (line->by_limits)
		return (struct ferry_belief){before, before, FASTER_NEAR};
	if (us > 0)
		return (struct ferry_belief){us + pause, us + pause, step ? FASTER_STEP : FASTER};
	const struct ferry_arm *known = measured(line);
	if ((us = (double)arm->learned_us) > 0 || (us = like_others(tuner, line, arm, known, NEAR)) > 0)
		return (struct ferry_belief){us + pause, us + pause, FASTER_NEAR};
	if (before > 0) {
		us = known && known->before_us > 0 ? before * ferry_arm_us(known) / (double)known->before_us : before;
		return (struct ferry_belief){us + pause, fmin(us, before) + pause, FASTER_NEAR};
	}
	if ((us = like_others(tuner, line, arm, known, FAR)) > 0)
		return (struct ferry_belief){us + pause, 0, FASTER_NEAR};
	return (struct ferry_belief){0, 0, 0};
}

double ferry_belief_bound(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                          const struct ferry_arm *arm)
{
	bool host = ferry_arm_is_ferrys(arm) && line->like.fabric == FERRY_FABRIC_HOST;
	double others = (double)(tuner->nranks - 1) / tuner->nranks;
	bool own = ferry_collective_has_blocks(line->like.collective); /* nobody sends its own block to itself */
	return host && tuner->host_rate > 0 ? (double)line->like.bytes * (own ? others : 1) / tuner->host_rate : 0;
}
