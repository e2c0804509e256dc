/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/sample.h"

#include <stdlib.h>
#include <time.h>

double sample_now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

void sample_pause(uint32_t us)
{
	for (double until = sample_now_us() + us; us && sample_now_us() < until;)
		;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

struct sample_summary sample_summarize(double *values, size_t count)
{
	qsort(values, count, sizeof *values, ascending);
	return (struct sample_summary){values[count / 2], values[count / 4], values[count * 3 / 4]};
}
