/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's tuner plugin that is this library itself: for calls that are NCCL's it says how many channels they have, and
 * by which algorithm and protocol they run. It answers with a tuning (tuner/tuning.h), here called a candidate. The
 * thread that issues a call sets the candidate right before it; all ranks must set the same, as NCCL hangs otherwise.
 * Without a candidate NCCL does what it does without a plugin. The plugin returns no errors, as an error of a plugin
 * would become the program's.
 *
 * NCCL makes a context per communicator, on a thread and at a time of its own, and names neither handle nor unique id.
 * A context belongs to the communicator whose creation is under way (constructors.c brackets all of them) on the device
 * that NCCL has made current. If several creations are under way there, or another context comes before the creation is
 * over, none of their communicators is served: they have NCCL's own choice, always.
 *
 * - The creations under way are a list under a lock; so is all of a tuner but what is atomic.
 * - A tuner is held by its creation, its communicator and NCCL's context; the last one frees it.
 */
#ifndef FERRY_ORCHESTRATOR_NCCL_TUNER_H
#define FERRY_ORCHESTRATOR_NCCL_TUNER_H

#include "orchestrator/nccl_types.h"
#include "orchestrator/tuner/tuning.h"

#include <stdatomic.h>
#include <stdbool.h>

struct ferry_nccl_tuner {
	struct ferry_nccl_tuner *next; /* in the list */
	int device;                    /* or FERRY_NCCL_ANY_DEVICE */
	bool under_way, spoilt;
	size_t asked; /* the ranks of its context; 0: there is none */
	_Atomic unsigned holders;
	_Atomic size_t nranks;      /* `asked`, once that is known to be its own; of the thread that ends it */
	_Atomic unsigned candidate; /* of the thread that issues calls; read by NCCL's */
};

/** Whether NCCL asks for this communicator of so many ranks, so that candidates other than 0 count. NULL: no. */
static inline bool ferry_nccl_tuner_serves(const struct ferry_nccl_tuner *tuner, int nranks)
{
	return tuner && atomic_load_explicit(&tuner->nranks, memory_order_acquire) == (size_t)nranks;
}

/** What NCCL's calls on the communicator have from now on. Those of one group are asked for when it ends. */
static inline void ferry_nccl_tuner_set(struct ferry_nccl_tuner *tuner, unsigned candidate)
{
	if (tuner)
		atomic_store_explicit(&tuner->candidate, candidate, memory_order_release);
}

static inline unsigned ferry_nccl_tuner_candidate(const struct ferry_nccl_tuner *tuner)
{
	return tuner ? atomic_load_explicit(&tuner->candidate, memory_order_acquire) : 0;
}

#define FERRY_NCCL_ANY_DEVICE     (-1)
#define FERRY_NCCL_CURRENT_DEVICE (-2)

/** A communicator's creation begins on this device. Returns its tuner, which the caller releases; NULL: no memory. */
struct ferry_nccl_tuner *ferry_nccl_tuner_begin(int device);

/** The creation is over. Does nothing the second time, and for NULL. */
void ferry_nccl_tuner_end(struct ferry_nccl_tuner *tuner);

/** One more holder, and one less; both do nothing for NULL. */
void ferry_nccl_tuner_hold(struct ferry_nccl_tuner *tuner);
void ferry_nccl_tuner_release(struct ferry_nccl_tuner *tuner);

/*
 * What NCCL finds by dlsym, of which it takes the newest that it knows: v2 is asked by 2.21, v3 since 2.22, v4 since
 * 2.24, v5 since 2.28, v6 since 2.30, v7 since 2.31. Constants and the log are not used.
 */
#define FERRY_NCCL_TABLE_ARGUMENTS                                                                                     \
	void *context, int function, size_t bytes, int pipelined, float **costs, int algorithms, int protocols

struct ferry_nccl_tuner_v2 {
	const char *name;
	ncclResult_t (*init)(size_t nranks, size_t nnodes, void *log, void **context);
	ncclResult_t (*get)(void *context, int function, size_t bytes, int collnet, int nvls, int pipelined,
	                    int *algorithm, int *protocol, int *channels);
	ncclResult_t (*destroy)(void *context);
};

struct ferry_nccl_tuner_v3 {
	const char *name;
	ncclResult_t (*init)(size_t nranks, size_t nnodes, void *log, void **context);
	ncclResult_t (*get)(FERRY_NCCL_TABLE_ARGUMENTS, int *channels);
	ncclResult_t (*destroy)(void *context);
};

struct ferry_nccl_tuner_v4 {
	const char *name;
	ncclResult_t (*init)(size_t nranks, size_t nnodes, void *log, void **context);
	ncclResult_t (*get)(FERRY_NCCL_TABLE_ARGUMENTS, int registered, int *channels);
	ncclResult_t (*destroy)(void *context);
};

struct ferry_nccl_tuner_v5 {
	const char *name;
	ncclResult_t (*init)(void **context, uint64_t id, size_t nranks, size_t nnodes, void *log, void *domains,
	                     void *constants);
	ncclResult_t (*get)(FERRY_NCCL_TABLE_ARGUMENTS, int registered, int *channels);
	ncclResult_t (*destroy)(void *context);
};

struct ferry_nccl_tuner_v6 {
	struct ferry_nccl_tuner_v5 v5;
	ncclResult_t (*get_chunk)(void *context, int function, size_t bytes, int algorithm, int protocol, int channels,
	                          size_t *chunk); /* NULL: NCCL's own */
};

#define FERRY_NCCL_TUNER_EXPORTED __attribute__((visibility("default")))
extern FERRY_NCCL_TUNER_EXPORTED const struct ferry_nccl_tuner_v2 ncclTunerPlugin_v2;
extern FERRY_NCCL_TUNER_EXPORTED const struct ferry_nccl_tuner_v3 ncclTunerPlugin_v3;
extern FERRY_NCCL_TUNER_EXPORTED const struct ferry_nccl_tuner_v4 ncclTunerPlugin_v4;
extern FERRY_NCCL_TUNER_EXPORTED const struct ferry_nccl_tuner_v5 ncclTunerPlugin_v5;
extern FERRY_NCCL_TUNER_EXPORTED const struct ferry_nccl_tuner_v6 ncclTunerPlugin_v6, ncclTunerPlugin_v7;

#endif
