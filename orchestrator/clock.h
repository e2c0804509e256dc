/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How long a stream of a GPU takes between two places: pairs of events, in the context that is current, as NCCL's own
 * calls are. Without a driver nothing is timed, and no stream captures.
 */
#ifndef FERRY_ORCHESTRATOR_CLOCK_H
#define FERRY_ORCHESTRATOR_CLOCK_H

#include "orchestrator/nccl_types.h"

#include <stdbool.h>

struct ferry_clock {
	void *start, *end; /* events; NULL: not made yet */
	void *context;     /* the streams', and the events' */
	void *stream;      /* the last one that it was started in */
};

/** Whether what the stream gets goes into a graph. */
bool ferry_clock_captures(cudaStream_t stream);

/* What was found of the stream that was asked for last, while one thread makes the calls of a group; all 0: none. */
struct ferry_clock_look {
	cudaStream_t stream;
	bool asked, captures;
};

/** The same; the driver is asked once for calls of one stream in a row. */
bool ferry_clock_look(struct ferry_clock_look *look, cudaStream_t stream);

/** Lets this thread call the driver without ending a capture, until the returned mode is given back. */
int ferry_clock_relax(void);
void ferry_clock_restore(int mode);

/**
 * Makes its events in the context that is current, ahead of its first use, so that the time in which the driver makes
 * them is not measured. Without this call, or for streams of another context, ferry_clock_start makes them.
 */
void ferry_clock_prepare(struct ferry_clock *clock);

/** The first place. False where nothing can be timed. */
bool ferry_clock_start(struct ferry_clock *clock, cudaStream_t stream);

bool ferry_clock_stop(struct ferry_clock *clock, cudaStream_t stream);

/**
 * Whether the stream has passed the second place, and the time between the two. Waits for nothing. Within
 * ferry_clock_relax, as the next one.
 */
bool ferry_clock_read(const struct ferry_clock *clock, double *us);

/** From the first place of one clock to that of another; the stream has passed both. */
bool ferry_clock_between(const struct ferry_clock *earlier, const struct ferry_clock *later, double *us);

/**
 * How long the streams of two clocks were between their places at once; `ended` took `us` between its two. Where they
 * are one stream it is 0, and the driver is not asked.
 */
double ferry_clock_overlap_us(const struct ferry_clock *ended, double us, const struct ferry_clock *other);

/** The time of day, for what is to be compared with streams' times; microseconds. */
double ferry_clock_now_us(void);

void ferry_clock_free(struct ferry_clock *clock);

#endif
