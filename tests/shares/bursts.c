/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/shares/bursts.h"

#include "bench/command/sample.h"
#include "bench/rank/gpu.h"
#include "ipc/error.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define AHEAD  4 /* calls that are enqueued before one is waited for */
#define COPIES 2 /* each way, under way */

/* One GPU's copies: a thread of its own, so that calls do not wait for it. */
struct copier {
	struct bursts *bursts;
	int ordinal;
	void *device[2], *host[2];
	CUstream streams[2];
	double bytes; /* that thread's, until it has ended */
	pthread_t thread;
};

struct bursts {
	struct crew *crew;
	const struct bursts_plan *plan;
	double begun_us;
	_Atomic bool over;    /* copiers end */
	bool calls;           /* else copies alone */
	bool going;           /* rank 0's, before the ranks meet */
	double bytes[2], us[2]; /* of calls, by phase; rank 0's */
	struct copier copiers[CREW_MOST];
};

/* 0: without copies; 1: with them. */
static int phase_of(const struct bursts *bursts, double now_us)
{
	return (int)((now_us - bursts->begun_us) / 1e6 / bursts->plan->phase_s) % 2;
}

/* ---- copies ---- */

static ferryResult_t copy_both_ways(struct copier *copier)
{
	size_t bytes = copier->bursts->plan->copy_bytes;
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < COPIES && !result; i++) {
		result = gpu_good(gpu_driver->MemcpyHtoDAsync((CUdeviceptr)copier->device[0], copier->host[0], bytes,
		                                              copier->streams[0]),
		                  "copying to the device");
		if (!result)
			result = gpu_good(gpu_driver->MemcpyDtoHAsync(copier->host[1],
			                                              (CUdeviceptr)copier->device[1], bytes,
			                                              copier->streams[1]),
			                  "copying to the host");
	}
	for (int way = 0; way < 2 && !result; way++)
		result = gpu_wait(copier->streams[way]);
	copier->bytes += result ? 0 : 2.0 * COPIES * (double)bytes;
	return result;
}

static void *copy(void *argument)
{
	struct copier *copier = argument;
	struct bursts *bursts = copier->bursts;
	const struct timespec pause = {0, 200000};
	CUcontext context;
	ferryResult_t result = gpu_enter(copier->ordinal, &context);
	while (!result && !atomic_load_explicit(&bursts->over, memory_order_relaxed))
		if (phase_of(bursts, sample_now_us()))
			result = copy_both_ways(copier);
		else
			nanosleep(&pause, NULL);
	if (result) {
		fprintf(stderr, "ferry-shares: %s\n", ferry_last_message());
		exit(1);
	}
	gpu_leave(copier->ordinal);
	return NULL;
}

static ferryResult_t open_copier(struct bursts *bursts, int rank)
{
	struct copier *copier = &bursts->copiers[rank];
	CUcontext context;
	copier->bursts = bursts;
	copier->ordinal = bursts->crew->ordinals[rank];
	ferryResult_t result = gpu_enter(copier->ordinal, &context);
	for (int way = 0; way < 2 && !result; way++) {
		result = gpu_good(gpu_driver->StreamCreate(&copier->streams[way], CU_STREAM_NON_BLOCKING), "a stream");
		if (!result)
			result = gpu_take(copier->ordinal, bursts->plan->copy_bytes, &copier->device[way]);
		if (!result)
			result = gpu_good(gpu_driver->MemHostAlloc(&copier->host[way], bursts->plan->copy_bytes, 0),
			                  "pinned memory");
	}
	return result;
}

static void close_copier(struct copier *copier)
{
	CUcontext context;
	if (!copier->bursts || gpu_enter(copier->ordinal, &context))
		return;
	for (int way = 0; way < 2; way++) {
		if (copier->host[way])
			gpu_driver->MemFreeHost(copier->host[way]);
		if (copier->device[way])
			gpu_give_back(copier->device[way]);
		if (copier->streams[way])
			gpu_driver->StreamDestroy(copier->streams[way]);
	}
	gpu_leave(copier->ordinal);
}

/* ---- calls ---- */

static void count(struct bursts *bursts, double begun, double ended)
{
	int phase = phase_of(bursts, begun);
	if (phase != phase_of(bursts, ended))
		return;
	bursts->bytes[phase] += AHEAD * (double)bursts->plan->bytes;
	bursts->us[phase] += ended - begun;
}

static const char *call(struct crew *crew, int rank, ncclComm_t comm, void *argument)
{
	struct bursts *bursts = argument;
	const struct bursts_plan *plan = bursts->plan;
	double end = bursts->begun_us + 2e6 * plan->phase_s * plan->rounds;
	while (1) {
		double begun = sample_now_us();
		const char *wrong = NULL;
		if (!rank)
			bursts->going = begun < end;
		pthread_barrier_wait(&crew->together);
		bool going = bursts->going;
		if (!going)
			return NULL;
		for (int i = 0; i < AHEAD && !wrong; i++)
			wrong = crew_call(crew, rank, comm, plan->collective, plan->bytes);
		wrong = wrong ? wrong : crew_wait(crew, rank);
		if (wrong)
			return wrong;
		pthread_barrier_wait(&crew->together);
		if (!rank)
			count(bursts, begun, sample_now_us());
	}
}

/* The clock starts when all have communicators, and have called once. */
static const char *begin(struct crew *crew, int rank, ncclComm_t comm, void *argument)
{
	struct bursts *bursts = argument;
	const struct bursts_plan *plan = bursts->plan;
	const char *wrong = NULL;
	for (int i = 0; i < 8 && bursts->calls && !wrong; i++)
		wrong = crew_call(crew, rank, comm, plan->collective, plan->bytes);
	wrong = wrong ? wrong : crew_wait(crew, rank);
	if (wrong)
		return wrong;
	pthread_barrier_wait(&crew->together);
	if (!rank) {
		bursts->begun_us = sample_now_us();
		for (int i = 0; i < crew->nranks; i++)
			if (pthread_create(&bursts->copiers[i].thread, NULL, copy, &bursts->copiers[i]))
				exit(1);
	}
	pthread_barrier_wait(&crew->together);
	if (bursts->calls)
		wrong = call(crew, rank, comm, argument);
	else
		while (sample_now_us() < bursts->begun_us + 2e6 * plan->phase_s)
			nanosleep(&(struct timespec){0, 1000000}, NULL);
	pthread_barrier_wait(&crew->together);
	if (!rank) {
		atomic_store_explicit(&bursts->over, true, memory_order_relaxed);
		for (int i = 0; i < crew->nranks; i++)
			pthread_join(bursts->copiers[i].thread, NULL);
	}
	return wrong;
}

/* ---- what comes of it ---- */

struct reached {
	double calm, burst, all; /* GB/s of calls: without copies, with them, over both */
	double copies;           /* GB/s of each GPU's copies, both ways, while they run */
};

static const char *run(struct crew *crew, const struct bursts_plan *plan, bool calls, struct reached *reached)
{
	struct bursts *bursts = calloc(1, sizeof *bursts);
	const char *wrong = bursts ? NULL : "no memory";
	double copied = 0;
	if (!bursts)
		return wrong;
	bursts->crew = crew;
	bursts->plan = plan;
	bursts->calls = calls;
	for (int rank = 0; rank < crew->nranks && !wrong; rank++)
		wrong = open_copier(bursts, rank) ? ferry_last_message() : NULL;
	wrong = wrong ? wrong : crew_run(crew, begin, bursts);
	for (int rank = 0; rank < crew->nranks; rank++) {
		copied += bursts->copiers[rank].bytes / crew->nranks;
		close_copier(&bursts->copiers[rank]);
	}
	for (int phase = 0; phase < 2; phase++)
		bursts->bytes[phase] /= bursts->us[phase] > 0 ? 1e3 * bursts->us[phase] : 1;
	*reached = (struct reached){bursts->bytes[0], bursts->bytes[1], (bursts->bytes[0] + bursts->bytes[1]) / 2,
	                            copied / 1e9 / (plan->phase_s * (calls ? plan->rounds : 1))};
	free(bursts);
	return wrong;
}

static void print(const char *name, const struct reached *reached, double alone)
{
	printf("%-16s calm %7.2f  bursts %7.2f  both %7.2f GB/s;  copies %6.2f GB/s, %.3f of alone\n", name,
	       reached->calm, reached->burst, reached->all, reached->copies, alone > 0 ? reached->copies / alone : 0);
	fflush(stdout);
}

const char *bursts_measure(struct crew *crew, const struct bursts_plan *plan)
{
	struct reached copies, adaptive, one, calmest = {0, 0, 0, 0};
	double burst = 0;
	const char *wrong = run(crew, plan, false, &copies);
	if (wrong)
		return wrong;
	printf("%s of %zu bytes; copies alone %.2f GB/s of each GPU, both ways together\n",
	       crew_name(plan->collective), plan->bytes, copies.copies);
	for (int i = 0; i < plan->nshares; i++) {
		char text[64];
		crew_pin(plan->shares[i]);
		wrong = run(crew, plan, true, &one);
		crew_pin(-1);
		if (wrong)
			return wrong;
		snprintf(text, sizeof text, "share %.3f", plan->shares[i]);
		print(text, &one, copies.copies);
		calmest = one.calm > calmest.calm ? one : calmest;
		burst = one.burst > burst ? one.burst : burst;
	}
	wrong = run(crew, plan, true, &adaptive);
	if (wrong)
		return wrong;
	double oracle = (calmest.calm + burst) / 2;
	print("adaptive", &adaptive, copies.copies);
	printf("oracle %.2f GB/s: adaptive has %.3f of it, and %.3f of the share that is best without bursts, %.3f in "
	       "them\n",
	       oracle, adaptive.all / oracle, adaptive.all / calmest.all, adaptive.burst / calmest.burst);
	return NULL;
}
