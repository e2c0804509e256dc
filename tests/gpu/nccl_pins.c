/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tuner plugin for nccl_tunings.py: from ferry_pins_set on all collectives of the process have that tuning
 * (orchestrator/tuner/tuning.h).
 */
#include "orchestrator/nccl_tuner.h"

#define EXPORTED __attribute__((visibility("default")))

static _Atomic unsigned pinned;
static atomic_bool possible;

EXPORTED void ferry_pins_set(unsigned tuning)
{
	atomic_store(&pinned, tuning);
	atomic_store(&possible, true); /* of what NCCL does not ask for, too */
}

/** Whether the last call that NCCL has asked for could have it. */
EXPORTED int ferry_pins_possible(void)
{
	return atomic_load(&possible);
}

static ncclResult_t init(size_t nranks, size_t nnodes, void *log, void **context)
{
	(void)nranks, (void)nnodes, (void)log;
	*context = NULL;
	return ncclSuccess;
}

static ncclResult_t init_v5(void **context, uint64_t id, size_t nranks, size_t nnodes, void *log, void *domains,
                            void *constants)
{
	(void)id, (void)domains, (void)constants;
	return init(nranks, nnodes, log, context);
}

static ncclResult_t get(FERRY_NCCL_TABLE_ARGUMENTS, int registered, int *channels)
{
	(void)context, (void)function, (void)bytes, (void)pipelined, (void)registered;
	struct ferry_tuning tuning = ferry_tuning_read(atomic_load(&pinned));
	atomic_store(&possible, ferry_tuning_choose(tuning, (void *)costs, algorithms, protocols, channels));
	return ncclSuccess;
}

static ncclResult_t destroy(void *context)
{
	(void)context;
	return ncclSuccess;
}

EXPORTED const struct ferry_nccl_tuner_v4 ncclTunerPlugin_v4 = {"pins", init, get, destroy};
EXPORTED const struct ferry_nccl_tuner_v5 ncclTunerPlugin_v5 = {"pins", init_v5, get, destroy};
