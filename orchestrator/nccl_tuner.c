/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/nccl_tuner.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "router/copy/cuda_driver.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ferry_nccl_tuner *under_way; /* under the lock */

/* ---- which communicator a context belongs to ---- */

static int current_device(void)
{
	const struct ferry_cuda_driver *driver;
	CUdevice device;
	return ferry_cuda_driver_open(&driver) || driver->CtxGetDevice(&device) ? FERRY_NCCL_ANY_DEVICE : (int)device;
}

static bool may_be(const struct ferry_nccl_tuner *tuner, int device)
{
	return tuner->device == device || tuner->device < 0 || device < 0;
}

void ferry_nccl_tuner_hold(struct ferry_nccl_tuner *tuner)
{
	if (tuner)
		atomic_fetch_add_explicit(&tuner->holders, 1, memory_order_relaxed);
}

void ferry_nccl_tuner_release(struct ferry_nccl_tuner *tuner)
{
	if (tuner && atomic_fetch_sub_explicit(&tuner->holders, 1, memory_order_acq_rel) == 1)
		free(tuner);
}

struct ferry_nccl_tuner *ferry_nccl_tuner_begin(int device)
{
	struct ferry_nccl_tuner *tuner = calloc(1, sizeof *tuner);
	if (!tuner)
		return NULL;
	tuner->device = device == FERRY_NCCL_CURRENT_DEVICE ? current_device() : device;
	tuner->under_way = true;
	atomic_init(&tuner->holders, 2); /* the caller's, and the creation's */
	pthread_mutex_lock(&lock);
	tuner->next = under_way;
	under_way = tuner;
	pthread_mutex_unlock(&lock);
	return tuner;
}

void ferry_nccl_tuner_end(struct ferry_nccl_tuner *tuner)
{
	if (!tuner)
		return;
	pthread_mutex_lock(&lock);
	bool ends = tuner->under_way;
	struct ferry_nccl_tuner **at = &under_way;
	while (ends && *at != tuner)
		at = &(*at)->next;
	if (ends)
		*at = tuner->next;
	tuner->under_way = false;
	if (ends && !tuner->spoilt)
		atomic_store_explicit(&tuner->nranks, tuner->asked, memory_order_release);
	pthread_mutex_unlock(&lock);
	if (ends)
		ferry_nccl_tuner_release(tuner);
}

/* ---- NCCL asks ---- */

/* The context of communicators that are not served. */
static struct ferry_nccl_tuner nobody;

static void bind_context(void **context, size_t nranks)
{
	struct ferry_nccl_tuner *found = NULL;
	int device = current_device();
	bool several = false;
	pthread_mutex_lock(&lock);
	for (struct ferry_nccl_tuner *tuner = under_way; tuner; tuner = tuner->next) {
		if (!may_be(tuner, device))
			continue;
		several |= found || tuner->asked;
		found = tuner;
	}
	for (struct ferry_nccl_tuner *tuner = under_way; several && tuner; tuner = tuner->next)
		tuner->spoilt |= may_be(tuner, device);
	found = found && !found->spoilt ? found : NULL;
	if (found)
		found->asked = nranks;
	ferry_nccl_tuner_hold(found);
	pthread_mutex_unlock(&lock);
	*context = found ? found : &nobody;
	ferry_log(FERRY_LOG_DEBUG, "NCCL asks for its tuner's choices for a communicator of %zu ranks on device %d: %s",
	          nranks, device, found ? "Ferry's" : "its own, as no creation is known to be this one's alone");
}

static ncclResult_t destroy(void *context)
{
	if (context != &nobody)
		ferry_nccl_tuner_release(context);
	return ncclSuccess;
}

static struct ferry_tuning asked_for(const struct ferry_nccl_tuner *tuner)
{
	bool served = atomic_load_explicit(&tuner->nranks, memory_order_acquire);
	return ferry_tuning_read(served ? ferry_nccl_tuner_candidate(tuner) : 0);
}

static ncclResult_t get_v3(FERRY_NCCL_TABLE_ARGUMENTS, int *channels)
{
	(void)function, (void)bytes, (void)pipelined;
	ferry_tuning_choose(asked_for(context), (void *)costs, algorithms, protocols, channels);
	return ncclSuccess;
}

static ncclResult_t get_v4(FERRY_NCCL_TABLE_ARGUMENTS, int registered, int *channels)
{
	(void)function, (void)bytes, (void)pipelined, (void)registered;
	ferry_tuning_choose(asked_for(context), (void *)costs, algorithms, protocols, channels);
	return ncclSuccess;
}

/*
 * NCCL 2.21 passes no table, and what the plugin sets overrides NCCL_ALGO and NCCL_PROTO. It always has rings, with LL
 * and Simple.
 */
static ncclResult_t get_v2(void *context, int function, size_t bytes, int collnet, int nvls, int pipelined,
                           int *algorithm, int *protocol, int *channels)
{
	struct ferry_tuning candidate = asked_for(context);
	bool ring = candidate.algorithm == FERRY_NCCL_RING &&
	            (candidate.protocol == FERRY_NCCL_SIMPLE || candidate.protocol == FERRY_NCCL_LL) &&
	            !getenv("NCCL_ALGO") && !getenv("NCCL_PROTO");
	(void)function, (void)bytes, (void)pipelined;
	if ((candidate.algorithm >= 0 || candidate.protocol >= 0) && !ring)
		return ncclSuccess;
	if (ring) {
		*algorithm = candidate.algorithm;
		*protocol = candidate.protocol;
	}
	if (candidate.channels && (ring || (!collnet && !nvls)))
		*channels = candidate.channels;
	return ncclSuccess;
}

static ncclResult_t init_v2(size_t nranks, size_t nnodes, void *log, void **context)
{
	(void)nnodes, (void)log;
	bind_context(context, nranks);
	return ncclSuccess;
}

static ncclResult_t init_v5(void **context, uint64_t id, size_t nranks, size_t nnodes, void *log, void *domains,
                            void *constants)
{
	(void)id, (void)nnodes, (void)log, (void)domains, (void)constants;
	bind_context(context, nranks);
	return ncclSuccess;
}

#define NAME "Ferry"
const struct ferry_nccl_tuner_v2 ncclTunerPlugin_v2 = {NAME, init_v2, get_v2, destroy};
const struct ferry_nccl_tuner_v3 ncclTunerPlugin_v3 = {NAME, init_v2, get_v3, destroy};
const struct ferry_nccl_tuner_v4 ncclTunerPlugin_v4 = {NAME, init_v2, get_v4, destroy};
const struct ferry_nccl_tuner_v5 ncclTunerPlugin_v5 = {NAME, init_v5, get_v4, destroy};
const struct ferry_nccl_tuner_v6 ncclTunerPlugin_v6 = {.v5 = {NAME, init_v5, get_v4, destroy}};
const struct ferry_nccl_tuner_v6 ncclTunerPlugin_v7 = {.v5 = {NAME, init_v5, get_v4, destroy}};
