/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/trace.h"

#include <math.h>
#include <string.h>

#define BAND       0.08 /* relative, at least; HyLink's gamma is 0.05 */
#define NOISES     4.0  /* mean deviations */
#define LIKE       0.15 /* as it was before its last change */
#define UNSETTLED  2    /* samples that count */

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

bool ferry_trace_add(struct ferry_trace *trace, const struct ferry_pace *pace, double bytes, double us, bool settled)
{
	double factor = ferry_trace_factor(trace, pace), ratio = us / ferry_pace_us(pace, bytes);
	double off = log(ratio / factor), band = fmax(BAND, NOISES * trace->noise);
	int8_t side = off > 0 ? 1 : -1;
	if (!trace->count || fabs(off) <= band) {
		trace->noise += trace->count ? 0.1f * ((float)fabs(off) - trace->noise) : 0;
		trace->strikes = 0;
		keep(trace, bytes, us, settled ? FERRY_TRACE_SAMPLES : UNSETTLED);
		return false;
	}
	double other = trace->other_us > 0 ? trace->other_us / ferry_pace_us(pace, trace->other_bytes) : 0;
	bool back = other > 0 && fabs(off) > LIKE && fabs(log(ratio / other)) < LIKE;
	if (settled && !back && trace->strikes != side) {
		trace->strikes = side;
		return false;
	}
	/* who learns believes all, but a change is one only if it is settled or undone */
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

void ferry_trace_scale(struct ferry_trace *trace, double times)
{
	for (int i = 0; i < trace->count; i++)
		trace->us[i] *= (float)times;
}

bool ferry_trace_typical(const struct ferry_trace *trace)
{
	return !trace->away && !trace->strikes;
}
