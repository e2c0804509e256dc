/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/choice.h"

#include <string.h>

#define NCCLS_FIRST 2 /* samples before Ferry is tried */
#define TRIES       6 /* of Ferry, however late what they took is known */
#define ENOUGH      3 /* samples of Ferry's, the first one apart, by which it is judged */
#define BETTER      0.97
#define CLOSE       1.5   /* times as slow: tried again */
#define TRY_CLOSE   256u  /* one call in so many, */
#define TRY_FAR     4096u /* where it was slower than that */
#define LOOK_EVERY  32u   /* measured, of a size that is known */
#define SURE        0.8   /* of NCCL's time by what other sizes say: Ferry's without a look */
#define HOPE        2.0   /* times as slow by what other sizes say: worth a look of its own, */
#define LOOKS       4     /* of so many calls */

static struct ferry_choice_course *course_of(struct ferry_choice *choice, uint32_t collective, uint32_t type)
{
	for (int i = 0; i < FERRY_SHARE_COURSES; i++) {
		struct ferry_choice_course *course = &choice->courses[i];
		if (course->used && (course->collective != collective || course->type != type))
			continue;
		if (!course->used)
			*course = (struct ferry_choice_course){
			        .used = true, .collective = (uint8_t)collective, .type = (uint8_t)type};
		return course;
	}
	return NULL;
}

static struct ferry_choice_line *line_of(struct ferry_choice *choice, const struct ferry_balancer_call *call)
{
	uint8_t size_class = ferry_balancer_size_class(call->bytes);
	for (uint32_t i = 0; i < choice->nlines; i++) {
		struct ferry_choice_line *line = &choice->lines[i];
		if (line->size_class == size_class && line->collective == call->collective &&
		    line->type == call->type && line->in_place == call->in_place)
			return line;
	}
	if (choice->nlines == FERRY_CHOICE_LINES || !course_of(choice, call->collective, call->type))
		return NULL;
	struct ferry_choice_line *line = &choice->lines[choice->nlines++];
	*line = (struct ferry_choice_line){.collective = (uint8_t)call->collective,
	                                   .type = (uint8_t)call->type,
	                                   .size_class = size_class,
	                                   .in_place = call->in_place};
	return line;
}

static uint32_t believed(const struct ferry_choice_line *line, bool ours)
{
	uint32_t samples = line->seen[ours] - (ours && line->seen[1] ? 1 : 0);
	return samples < FERRY_CHOICE_SAMPLES ? samples : FERRY_CHOICE_SAMPLES;
}

/* Of the last samples that are believed, the lower one of the middle. */
static double median(const struct ferry_choice_line *line, bool ours)
{
	uint32_t count = believed(line, ours);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t less = 0, like = 0;
		for (uint32_t j = 0; j < count; j++) {
			less += line->us[ours][j] < line->us[ours][i];
			like += line->us[ours][j] == line->us[ours][i];
		}
		if (less <= (count - 1) / 2 && (count - 1) / 2 < less + like)
			return (double)line->us[ours][i];
	}
	return 0;
}

/* 0: not known. */
static double expected(struct ferry_choice *choice, const struct ferry_choice_line *line,
                       const struct ferry_balancer_call *call, bool ours)
{
	if (believed(line, ours) >= (ours ? ENOUGH : NCCLS_FIRST))
		return median(line, ours);
	const struct ferry_pace *pace = &course_of(choice, call->collective, call->type)->fits[ours].pace;
	return pace->rate > 0 ? ferry_pace_us(pace, (double)call->bytes) : 0;
}

bool ferry_choice_ours(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint64_t n, bool *measure)
{
	struct ferry_choice_line *line = line_of(choice, call);
	*measure = line;
	if (!line)
		return false;
	double us[2] = {expected(choice, line, call, false), expected(choice, line, call, true)};
	if (!(us[0] > 0))
		return false;
	bool unseen = believed(line, true) < ENOUGH;
	if (!(us[1] > 0) || (unseen && us[1] < HOPE * us[0]))
		return line->tries < (us[1] > 0 ? LOOKS : TRIES) || (us[1] > 0 && us[1] < SURE * us[0]);
	line->ours = us[!line->ours] < BETTER * us[line->ours] ? !line->ours : line->ours;
	bool try_other = ferry_balancer_picks(n, us[!line->ours] < CLOSE * us[line->ours] ? TRY_CLOSE : TRY_FAR);
	bool ours = line->ours != try_other;
	*measure = try_other || line->seen[ours] < FERRY_CHOICE_SAMPLES || ferry_balancer_picks(n, LOOK_EVERY);
	return ours;
}

void ferry_choice_tried(struct ferry_choice *choice, const struct ferry_balancer_call *call)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (line && line->tries < TRIES)
		line->tries++;
}

void ferry_choice_feed(struct ferry_choice *choice, const struct ferry_balancer_call *call, bool ours, double us)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (!line || !(us > 0))
		return;
	if (!ours || line->seen[1]++) {
		uint32_t at = ours ? line->seen[1] - 2 : line->seen[0]++;
		line->us[ours][at % FERRY_CHOICE_SAMPLES] = (float)us;
		/* single samples are not to be learned from: others may have shown their buffers in those */
		if (believed(line, ours) >= (ours ? ENOUGH : NCCLS_FIRST))
			ferry_rate_fit_add(&course_of(choice, call->collective, call->type)->fits[ours],
			                   (double)call->bytes, median(line, ours));
	}
}

/* ---- from job to job ---- */

void ferry_choice_adopt(struct ferry_choice *choice, const struct ferry_share_course *learned, enum ferry_carrier ours)
{
	struct ferry_choice_course *course = course_of(choice, learned->collective, learned->type);
	const struct ferry_pace *paces[2] = {&learned->paces[FERRY_CARRIER_NCCL][0], &learned->paces[ours][0]};
	for (int i = 0; course && i < 2; i++)
		if (paces[i]->rate > 0)
			ferry_rate_fit_start(&course->fits[i], paces[i]);
}

bool ferry_choice_tell(const struct ferry_choice *choice, const struct ferry_balancer_call *call,
                       enum ferry_carrier ours, uint32_t *index, struct ferry_share_course *learned)
{
	for (uint32_t i = 0; i < FERRY_SHARE_COURSES; i++) {
		const struct ferry_choice_course *course = &choice->courses[i];
		if (!course->used || course->collective != call->collective || course->type != call->type)
			continue;
		*learned = (struct ferry_share_course){.collective = course->collective, .type = course->type};
		learned->paces[FERRY_CARRIER_NCCL][0] = course->fits[0].pace;
		learned->paces[ours][0] = course->fits[1].pace;
		*index = i;
		return true;
	}
	return false;
}
