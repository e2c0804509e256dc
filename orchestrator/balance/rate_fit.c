/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/rate_fit.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SMALL    (256.0 * 1024)
#define LARGE    (64.0 * 1024 * 1024)
#define KEPT     0.97f /* of the weight of all samples, by one more */
#define GUESS_US 20.0  /* a start, where one sample is all there is */
#define PULL     0.02  /* weight of the pace so far: a line through one size alone is none */

static void put(struct ferry_rate_fit *fit, double bytes, double us, double weight)
{
	double w = weight / (us * us);
	fit->weight += (float)w;
	fit->b += (float)(w * bytes);
	fit->bb += (float)(w * bytes * bytes);
	fit->t += (float)(w * us);
	fit->bt += (float)(w * bytes * us);
}

void ferry_rate_fit_start(struct ferry_rate_fit *fit, const struct ferry_pace *pace)
{
	memset(fit, 0, sizeof *fit);
	fit->pace = *pace;
	if (!(pace->rate > 0))
		return;
	fit->samples = 2;
	fit->most = FLT_MAX;
	put(fit, SMALL, ferry_pace_us(pace, SMALL), 1);
	put(fit, LARGE, ferry_pace_us(pace, LARGE), 1);
}

/* Fits the line; the pace known so far counts as two more points of little weight. */
static void solve(struct ferry_rate_fit *fit)
{
	struct ferry_rate_fit sums = *fit;
	put(&sums, SMALL, ferry_pace_us(&fit->pace, SMALL), PULL);
	put(&sums, LARGE, ferry_pace_us(&fit->pace, LARGE), PULL);
	double w = sums.weight, b = sums.b, bb = sums.bb, t = sums.t, bt = sums.bt;
	double spread = w * bb - b * b, slope = (w * bt - b * t) / spread, start = (t - slope * b) / w;
	if (!(start >= 0)) {
		start = 0;
		slope = bt / bb; /* through the origin */
	}
	if (isfinite(slope) && slope > 0)
		fit->pace = (struct ferry_pace){start, 1 / slope};
}

void ferry_rate_fit_add(struct ferry_rate_fit *fit, double bytes, double us)
{
	if (!(bytes > 0) || !(us > 0) || !isfinite(bytes) || !isfinite(us))
		return;
	if (!(fit->pace.rate > 0)) {
		double start = fmin(GUESS_US, us / 2);
		fit->pace = (struct ferry_pace){start, bytes / (us - start)};
	}
	fit->samples++;
	fit->most = fmaxf(fit->most, (float)bytes);
	fit->weight *= KEPT;
	fit->b *= KEPT;
	fit->bb *= KEPT;
	fit->t *= KEPT;
	fit->bt *= KEPT;
	put(fit, bytes, us, 1);
	solve(fit);
}
