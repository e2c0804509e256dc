/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/pending_comms.h"

#include "ipc/wait.h"

#include <pthread.h>
#include <stdlib.h>

struct expected {
	struct expected *next;
	ncclComm_t parent, *where;
	struct ferry_nccl_pending_comm pending_comm;
	const void *group; /* the thread whose open group it is in; NULL: none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct expected *expected;    /* under the lock */
static _Atomic unsigned outstanding; /* its length; read without the lock by threads that look for work */

/* Communicators made in this thread's open group; beyond so many, Ferry's are made at the first calls. */
#define MOST_GROUPED 64
static _Thread_local ncclComm_t born[MOST_GROUPED];
static _Thread_local int nborn;

/* Its address names the thread. */
static _Thread_local char this_thread;

void ferry_nccl_pending_comm_expect(ncclComm_t parent, ncclComm_t *where,
                                    const struct ferry_nccl_pending_comm *pending_comm, bool grouped)
{
	struct expected *one = malloc(sizeof *one);
	if (!one)
		return;
	*one = (struct expected){.parent = parent, .where = where, .pending_comm = *pending_comm};
	one->group = grouped ? &this_thread : NULL;
	ferry_nccl_tuner_hold(pending_comm->tuner);
	pthread_mutex_lock(&lock);
	one->next = expected;
	expected = one;
	atomic_fetch_add_explicit(&outstanding, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
}

/* Takes those out of the list that are of this group (not NULL) or else of this parent and of no group. */
static struct expected *take_out(const void *group, ncclComm_t parent)
{
	struct expected *taken = NULL, **at = &expected;
	pthread_mutex_lock(&lock);
	while (*at) {
		struct expected *one = *at;
		if (group ? one->group != group : one->group || one->parent != parent) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		one->next = taken;
		taken = one;
		atomic_fetch_sub_explicit(&outstanding, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lock);
	return taken;
}

static void adopt(struct expected *one)
{
	while (one) {
		struct expected *next = one->next;
		/* Acquire: NCCL's thread stores it with release. */
		ferry_nccl_comm_add(__atomic_load_n(one->where, __ATOMIC_ACQUIRE), &one->pending_comm);
		ferry_nccl_tuner_end(one->pending_comm.tuner);
		ferry_nccl_tuner_release(one->pending_comm.tuner);
		free(one);
		one = next;
	}
}

void ferry_nccl_pending_comms_made(const ncclComm_t *comms, int count)
{
	for (int i = 0; i < count; i++)
		ferry_nccl_comm_made(comms[i]);
	uint64_t begun = ferry_now_ns();
	for (int i = 0; i < count; i++)
		ferry_nccl_comm_await(comms[i], begun);
}

void ferry_nccl_pending_comm_grouped(ncclComm_t comm)
{
	if (nborn < MOST_GROUPED)
		born[nborn++] = comm;
}

void ferry_nccl_pending_comms_group_ended(ncclResult_t result)
{
	bool done = result != ncclInProgress;
	int count = nborn;
	nborn = 0;
	if (!result)
		ferry_nccl_pending_comms_made(born, count);
	if (!atomic_load_explicit(&outstanding, memory_order_relaxed)) /* this thread's own are counted */
		return;
	if (done) {
		adopt(take_out(&this_thread, NULL));
		return;
	}
	pthread_mutex_lock(&lock);
	for (struct expected *one = expected; one; one = one->next)
		one->group = one->group == &this_thread ? NULL : one->group;
	pthread_mutex_unlock(&lock);
}

void ferry_nccl_pending_comms_ready(ncclComm_t parent)
{
	if (atomic_load_explicit(&outstanding, memory_order_relaxed))
		adopt(take_out(NULL, parent));
}
