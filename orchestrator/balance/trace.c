/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/trace.h"

#include <math.h>
#include <string.h>

#define BAND       0.08 /* relative, at least; HyLink's gamma is 0.05 */
#define NOISES     4.0  /* mean deviations */
#define LIKE       0.15 /* as it was before its last change */
#define UNSETTLED  5    /* samples that count */
#define SEVERAL    3    /* are not replaced by one that was faster */
#define SLOW       1.5  /* times as slow as is known: the first sample is doubted */
#define SECOND     0.5  /* two samples show a change if they differ by no more */
#define FAR        0.2
#define LIKELY_NOISE 0.1
#define NOISE_WEIGHT 0.1

static double median(double *values, int count)
{
	for (int i = 1; i < count; i++)
		for (int j = i; j && values[j] < values[j - 1]; j--) {
			double swap = values[j];
			values[j] = values[j - 1];
			values[j - 1] = swap;
		}
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double ferry_trace_factor(const struct ferry_trace *trace, const struct ferry_pace *pace)
{
	double ratios[FERRY_TRACE_SAMPLES];
	for (int i = 0; i < trace->count; i++)
		ratios[i] = trace->us[i] / ferry_pace_us(pace, trace->bytes[i]);
	return trace->count ? median(ratios, trace->count) : 1;
}

static void keep(struct ferry_trace *trace, double bytes, double us, int most)
{
	if (trace->count > most - 1)
		trace->count = (uint8_t)(most - 1);
	memmove(&trace->bytes[1], &trace->bytes[0], trace->count * sizeof trace->bytes[0]);
	memmove(&trace->us[1], &trace->us[0], trace->count * sizeof trace->us[0]);
	trace->bytes[0] = (float)bytes;
	trace->us[0] = (float)us;
	trace->count++;
}

/* All samples count, as a band that is too narrow at first would else stay so. */
static void add_noise(struct ferry_trace *trace, double off)
{
	double weight = fmax(1.0 / (trace->seen + 1), NOISE_WEIGHT);
	trace->noise = (float)ferry_trace_noise(trace);
	trace->noise += (float)(weight * (fmin(fabs(off), FAR) - (double)trace->noise));
	trace->seen += trace->seen < UINT8_MAX;
}

double ferry_trace_noise(const struct ferry_trace *trace)
{
	return trace->seen ? (double)trace->noise : LIKELY_NOISE;
}

static void strike(struct ferry_trace *trace, double bytes, double us, int8_t side)
{
	trace->strikes = side;
	trace->strike_bytes = (float)bytes;
	trace->strike_us = (float)us;
}

/* Whether it is out of the band like the one before: two delays of different length are no change. */
static bool is_second(const struct ferry_trace *trace, const struct ferry_pace *pace, double ratio, int8_t side)
{
	if (trace->strikes != side)
		return false;
	/* another size, or fabric, has warned */
	if (!(trace->strike_us > 0))
		return true;
	return fabs(log(ratio * ferry_pace_us(pace, trace->strike_bytes) / trace->strike_us)) < SECOND;
}

/* Compares it with what is known, if something is. */
static void add_first(struct ferry_trace *trace, double ratio, double bytes, double us, bool known)
{
	trace->noise = LIKELY_NOISE;
	trace->seen++;
	if (known && ratio > SLOW && !trace->strikes) {
		strike(trace, bytes, us, 1);
		return;
	}
	trace->strikes = 0;
	keep(trace, bytes, us, 1);
}

/* In the band. */
static void add_alike(struct ferry_trace *trace, double bytes, double us, bool settled)
{
	trace->strikes = 0;
	keep(trace, bytes, us, settled ? FERRY_TRACE_SAMPLES : UNSETTLED);
}

bool ferry_trace_add(struct ferry_trace *trace, const struct ferry_pace *pace, double bytes, double us, bool settled,
                     bool known)
{
	double factor = ferry_trace_factor(trace, pace), ratio = us / ferry_pace_us(pace, bytes);
	double off = log(ratio / factor), band = fmax(BAND, NOISES * ferry_trace_noise(trace));
	int8_t side = off > 0 ? 1 : -1;
	if (!trace->count) {
		add_first(trace, ratio, bytes, us, known);
		return false;
	}
	add_noise(trace, off);
	if (fabs(off) <= band) {
		add_alike(trace, bytes, us, settled);
		return false;
	}
	double other = trace->other_us > 0 ? trace->other_us / ferry_pace_us(pace, trace->other_bytes) : 0;
	bool back = other > 0 && fabs(off) > LIKE && fabs(log(ratio / other)) < LIKE;
	bool doubted = settled || side > 0 || trace->count >= SEVERAL;
	if (!back && doubted && !is_second(trace, pace, ratio, side)) {
		strike(trace, bytes, us, side);
		return false;
	}
	/* while learning all samples count, but a change is one only if it is settled or undone */
	bool changed = settled || back;
	if (changed) {
		trace->away = !trace->away;
		trace->other_bytes = (float)bytes;
		trace->other_us = (float)(factor * ferry_pace_us(pace, bytes));
	}
	trace->strikes = 0;
	keep(trace, bytes, us, 1);
	return changed;
}

void ferry_trace_warn(struct ferry_trace *trace, bool slower)
{
	trace->strikes = slower ? 1 : -1;
	trace->strike_us = 0;
}

void ferry_trace_scale(struct ferry_trace *trace, double times)
{
	for (int i = 0; i < trace->count; i++)
		trace->us[i] *= (float)times;
}

bool ferry_trace_typical(const struct ferry_trace *trace)
{
	return !trace->away && !trace->strikes;
}
