/* SPDX-License-Identifier: Apache-2.0 */
#include "router/preparation.h"

#include "ipc/error.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct ferry_preparation {
	struct ferry_gpus_ask ask; /* first */
	struct ferry_job_arenas shared;
	uint8_t gpu[FERRY_GPU_BYTES];
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool begun; /* under the lock: what follows is set, and the mapper has nothing more to do with it */
	struct ferry_gpu *held; /* NULL: no context could be made */
	bool registers;         /* the thread runs, or has */
	pthread_t thread;
	struct ferry_registration registration; /* the thread's, until it is joined */
};

static void *registering(void *argument)
{
	struct ferry_preparation *preparation = argument;
	if (ferry_registration_make(&preparation->registration, preparation->held, &preparation->shared))
		ferry_log(FERRY_LOG_INFO, "staging ahead: %s", ferry_last_message()); /* it is tried again */
	return NULL;
}

static void begin(struct ferry_gpus_ask *ask, struct ferry_gpus *gpus)
{
	struct ferry_preparation *preparation = (struct ferry_preparation *)ask;
	struct ferry_gpu *gpu = NULL;
	bool registers = false;
	if (ferry_gpus_hold(gpus, preparation->gpu, &gpu))
		ferry_log(FERRY_LOG_INFO, "a context ahead: %s", ferry_last_message()); /* who attaches is told why */
	preparation->held = gpu;
	if (gpu && preparation->shared.ndomains)
		registers = !pthread_create(&preparation->thread, NULL, registering, preparation);
	pthread_mutex_lock(&preparation->lock);
	preparation->registers = registers;
	preparation->begun = true;
	pthread_cond_signal(&preparation->changed);
	pthread_mutex_unlock(&preparation->lock);
}

struct ferry_preparation *ferry_preparation_new(const struct ferry_job_arenas *shared, const uint8_t *gpu)
{
	struct ferry_preparation *preparation = calloc(1, sizeof *preparation);
	if (!preparation)
		return NULL;
	preparation->ask.serve = begin;
	preparation->shared = *shared;
	memcpy(preparation->gpu, gpu, sizeof preparation->gpu);
	pthread_mutex_init(&preparation->lock, NULL);
	pthread_cond_init(&preparation->changed, NULL);
	return preparation;
}

struct ferry_gpus_ask *ferry_preparation_ask(struct ferry_preparation *preparation)
{
	return &preparation->ask;
}

void ferry_preparation_free(struct ferry_preparation *preparation)
{
	pthread_cond_destroy(&preparation->changed);
	pthread_mutex_destroy(&preparation->lock);
	free(preparation);
}

void ferry_preparation_settle(struct ferry_preparation **settled, struct ferry_registration *made)
{
	struct ferry_preparation *preparation = *settled;
	*settled = NULL;
	if (!preparation)
		return;
	pthread_mutex_lock(&preparation->lock);
	while (!preparation->begun)
		pthread_cond_wait(&preparation->changed, &preparation->lock);
	pthread_mutex_unlock(&preparation->lock);
	if (preparation->registers)
		pthread_join(preparation->thread, NULL);
	*made = preparation->registration;
	if (preparation->held)
		ferry_gpu_drop(preparation->held);
	ferry_preparation_free(preparation);
}
