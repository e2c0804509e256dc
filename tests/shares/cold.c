/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/shares/cold.h"

#include "bench/command/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CALLS 64
#define WARM_UP    3
#define FIXED      7    /* calls with each fixed share */
#define WITHIN     1.10 /* of the best */
#define SOON       5
#define OTHERS     (16u << 20) /* bytes at most of calls of another collective */

/* Calls that are waited for one by one; what each took, by rank 0's clock. */
struct series {
	enum crew_collective collective;
	size_t bytes;
	int calls, before;
	double us[MOST_CALLS];
};

/* All series, one after the other, on one communicator. */
struct batch {
	struct series *series;
	int count;
};

/* Nothing of what is learned of another collective is used. */
static const char *run_others(struct crew *crew, int rank, ncclComm_t comm, const struct series *series)
{
	enum crew_collective other = (series->collective + 1) % CREW_COLLECTIVES;
	const char *wrong = NULL;
	for (int i = 0; i < series->before && !wrong; i++) {
		wrong = crew_call(crew, rank, comm, other, crew->bytes < OTHERS ? crew->bytes : OTHERS);
		wrong = wrong ? wrong : crew_wait(crew, rank);
	}
	return wrong;
}

static const char *run_series(struct crew *crew, int rank, ncclComm_t comm, struct series *series)
{
	const char *failed = run_others(crew, rank, comm, series);
	if (failed)
		return failed;
	for (int i = 0; i < series->calls; i++) {
		pthread_barrier_wait(&crew->together);
		double begun = sample_now_us();
		const char *wrong = crew_call(crew, rank, comm, series->collective, series->bytes);
		wrong = wrong ? wrong : crew_wait(crew, rank);
		if (wrong)
			return wrong;
		if (!rank)
			series->us[i] = sample_now_us() - begun;
	}
	return NULL;
}

static const char *run_batch(struct crew *crew, int rank, ncclComm_t comm, void *argument)
{
	struct batch *batch = argument;
	const char *wrong = NULL;
	for (int i = 0; i < batch->count && !wrong; i++)
		wrong = run_series(crew, rank, comm, &batch->series[i]);
	pthread_barrier_wait(&crew->together);
	return wrong;
}

static double median_from(const double *us, int from, int to)
{
	double values[MOST_CALLS];
	memcpy(values, us + from, (size_t)(to - from) * sizeof *values);
	return sample_summarize(values, (size_t)(to - from)).median;
}

static int make_series(const struct cold_plan *plan, int calls, struct series *series)
{
	int count = 0;
	for (int c = 0; c < CREW_COLLECTIVES; c++)
		for (int i = 0; i < plan->nsizes && plan->collectives[c]; i++)
			series[count++] = (struct series){
			        .collective = (enum crew_collective)c, .bytes = plan->sizes[i], .calls = calls};
	return count;
}

/* The least time of each series over all fixed shares, and which that was. */
static const char *sweep(struct crew *crew, const struct cold_plan *plan, struct batch *batch, double *best,
                         double *share)
{
	for (int i = 0; i < plan->nshares; i++) {
		crew_pin(plan->shares[i]);
		const char *wrong = crew_run(crew, run_batch, batch);
		crew_pin(-1);
		if (wrong)
			return wrong;
		for (int k = 0; k < batch->count; k++) {
			double us = median_from(batch->series[k].us, WARM_UP, batch->series[k].calls);
			if (i && us >= best[k])
				continue;
			best[k] = us;
			share[k] = plan->shares[i];
		}
	}
	return NULL;
}

/* Calls before those that are all in all within a tenth of the best. */
static int calls_until(const struct series *series, double best)
{
	int from = 0;
	while (from < series->calls && median_from(series->us, from, series->calls) > WITHIN * best)
		from++;
	while (from < series->calls && series->us[from] > WITHIN * best)
		from++;
	return from;
}

/* The router keeps what jobs with the same settings of NCCL's have learned: these have one of their own. */
static void forget(int which)
{
	char text[32];
	snprintf(text, sizeof text, "%d-%.0f", which, sample_now_us());
	setenv("NCCL_FERRY_COLD", text, 1);
}

static void print(const struct series *series, double best, double share, int until)
{
	double then = median_from(series->us, until < series->calls ? until : series->calls - 1, series->calls);
	printf("%-13s %10zu  best share %.3f %9.1f us  cold within a tenth after %2d calls, then %.3f  calls:",
	       crew_name(series->collective), series->bytes, share, best, until, then / best);
	for (int i = 0; i < series->calls && i < 10; i++)
		printf(" %.2f", series->us[i] / best);
	printf("\n");
}

const char *cold_measure(struct crew *crew, const struct cold_plan *plan, int *late)
{
	int most = CREW_COLLECTIVES * plan->nsizes;
	struct series *series = calloc((size_t)most, sizeof *series);
	double *best = calloc((size_t)most, sizeof *best), *share = calloc((size_t)most, sizeof *share);
	const char *wrong = series && best && share ? NULL : "no memory";
	struct batch batch = {series, wrong ? 0 : make_series(plan, WARM_UP + FIXED, series)};
	*late = 0;
	if (!wrong)
		wrong = sweep(crew, plan, &batch, best, share);
	if (!wrong && plan->log)
		setenv("FERRY_SHARES_LOG", plan->log, 1);
	for (int k = 0; k < batch.count && !wrong; k++) {
		series[k].calls = plan->calls < MOST_CALLS ? plan->calls : MOST_CALLS;
		series[k].before = plan->before;
		forget(k);
		wrong = crew_run(crew, run_batch, &(struct batch){&series[k], 1});
		if (wrong)
			break;
		int until = calls_until(&series[k], best[k]);
		*late += until > SOON;
		print(&series[k], best[k], share[k], until);
	}
	unsetenv("FERRY_SHARES_LOG");
	unsetenv("NCCL_FERRY_COLD");
	free(series);
	free(best);
	free(share);
	return wrong;
}
