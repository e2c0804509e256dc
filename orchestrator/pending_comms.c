/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/pending_comms.h"

#include "ipc/wait.h"

#include <pthread.h>
#include <stdlib.h>

struct expected {
	struct expected *next;
	ncclComm_t until, *where;
	struct ferry_nccl_pending_comm pending_comm;
	const void *group; /* the thread whose open group it is in; NULL: none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct expected *expected;    /* under the lock */
static _Atomic unsigned outstanding; /* its length; read without the lock by threads that look for work */

/* Its address names the thread. */
static _Thread_local char this_thread;

void ferry_nccl_pending_comm_over(const struct ferry_nccl_pending_comm *pending_comm)
{
	ferry_nccl_tuner_end(pending_comm->tuner);
	ferry_nccl_tuner_release(pending_comm->tuner);
}

void ferry_nccl_pending_comm_expect(ncclComm_t until, ncclComm_t *where,
                                    const struct ferry_nccl_pending_comm *pending_comm)
{
	struct expected *one = malloc(sizeof *one);
	if (!one) {
		ferry_nccl_pending_comm_over(pending_comm);
		return;
	}
	*one = (struct expected){.until = until, .where = where, .pending_comm = *pending_comm, .group = &this_thread};
	pthread_mutex_lock(&lock);
	one->next = expected;
	expected = one;
	atomic_fetch_add_explicit(&outstanding, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
}

/* Takes those out of the list that are of this group (not NULL) or else wait for this one and are of no group. */
static struct expected *take_out(const void *group, ncclComm_t until)
{
	struct expected *taken = NULL, **at = &expected;
	pthread_mutex_lock(&lock);
	while (*at) {
		struct expected *one = *at;
		if (group ? one->group != group : one->group || one->until != until) {
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

/* begins: Ferry's communicators do, and those of children with their calls. */
static void adopt(struct expected *all, bool begins)
{
	for (struct expected *one = all; one; one = one->next) {
		if (one->where) /* acquire: NCCL's thread stores it with release */
			ferry_nccl_comm_add(__atomic_load_n(one->where, __ATOMIC_ACQUIRE), &one->pending_comm);
		ferry_nccl_pending_comm_over(&one->pending_comm);
		if (begins && !one->pending_comm.child)
			ferry_nccl_comm_made(one->until);
	}
	uint64_t begun = ferry_now_ns();
	while (all) {
		struct expected *next = all->next;
		if (begins && !all->pending_comm.child)
			ferry_nccl_comm_await(all->until, begun);
		free(all);
		all = next;
	}
}

void ferry_nccl_pending_comms_group_ended(ncclResult_t result)
{
	if (!atomic_load_explicit(&outstanding, memory_order_relaxed)) /* this thread's own are counted */
		return;
	if (result != ncclInProgress) {
		adopt(take_out(&this_thread, NULL), !result);
		return;
	}
	pthread_mutex_lock(&lock);
	for (struct expected *one = expected; one; one = one->next)
		one->group = one->group == &this_thread ? NULL : one->group;
	pthread_mutex_unlock(&lock);
}

void ferry_nccl_pending_comms_ready(ncclComm_t until)
{
	if (atomic_load_explicit(&outstanding, memory_order_relaxed))
		adopt(take_out(NULL, until), false);
}
