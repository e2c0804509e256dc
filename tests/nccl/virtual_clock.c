/* SPDX-License-Identifier: Apache-2.0 */
/* The orchestrator's clocks, over the streams of made time. */
#include "tests/nccl/virtual_parts.h"

#include <math.h>
#include <stdlib.h>

bool ferry_clock_captures(cudaStream_t stream)
{
	(void)stream;
	return virtual_all.captures;
}

bool ferry_clock_look(struct ferry_clock_look *look, cudaStream_t stream)
{
	(void)look;
	return ferry_clock_captures(stream);
}

int ferry_clock_relax(void)
{
	return 0;
}

void ferry_clock_restore(int mode)
{
	(void)mode;
}

static bool record(void **event, enum virtual_mark mark)
{
	struct virtual_rank *rank = virtual_all.current;
	if (!*event)
		*event = calloc(1, sizeof(struct virtual_event));
	*(struct virtual_event *)*event = (struct virtual_event){rank->made, mark, rank->now_us};
	return true;
}

void ferry_clock_prepare(struct ferry_clock *clock)
{
	(void)clock;
}

bool ferry_clock_start(struct ferry_clock *clock, cudaStream_t stream)
{
	(void)stream;
	return record(&clock->start, VIRTUAL_MARK_START);
}

bool ferry_clock_stop(struct ferry_clock *clock, cudaStream_t stream)
{
	(void)stream;
	return record(&clock->end, virtual_all.current->open     ? VIRTUAL_MARK_NCCL_END
	                           : virtual_all.current->issued ? VIRTUAL_MARK_END
	                                                         : VIRTUAL_MARK_START);
}

/* When the rank's stream comes there; before all that matters to it has been launched: never. */
static double time_of_event(const struct virtual_rank *rank, const struct virtual_event *event)
{
	int index = virtual_index_of(rank);
	const struct virtual_work *work = &virtual_all.works[event->n % MOST],
	                          *last = &virtual_all.works[(event->n + MOST - 1) % MOST];
	if (event->mark == VIRTUAL_MARK_START && !event->n)
		return event->host_us;
	if (event->mark == VIRTUAL_MARK_START)
		return last->n == event->n - 1 && last->over ? fmax(last->sides[index].end_us, event->host_us)
		                                             : INFINITY;
	if (work->n != event->n || !work->over)
		return INFINITY;
	return event->mark == VIRTUAL_MARK_END ? work->sides[index].end_us : work->nccl_end_us;
}

bool ferry_clock_read(const struct ferry_clock *clock, double *us)
{
	double end = time_of_event(virtual_all.current, clock->end);
	if (virtual_all.hangs || end > virtual_all.current->now_us)
		return false;
	*us = end - time_of_event(virtual_all.current, clock->start);
	return true;
}

bool ferry_clock_between(const struct ferry_clock *earlier, const struct ferry_clock *later, double *us)
{
	*us = time_of_event(virtual_all.current, later->start) - time_of_event(virtual_all.current, earlier->start);
	return true;
}

/* A rank's calls are in one stream. */
double ferry_clock_overlap_us(const struct ferry_clock *ended, double us, const struct ferry_clock *other)
{
	(void)ended, (void)us, (void)other;
	return 0;
}

double ferry_clock_now_us(void)
{
	return virtual_all.current->now_us;
}

void ferry_clock_free(struct ferry_clock *clock)
{
	free(clock->start);
	free(clock->end);
	clock->start = clock->end = NULL;
}
