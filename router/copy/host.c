/* SPDX-License-Identifier: Apache-2.0 */
#include "router/copy/host.h"

#include "ipc/error.h"
#include "ipc/wait.h"
#include "router/reduce/reduce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define STREAM_LEAST (2u << 20) /* bytes: larger results are written past the cache */
#define PENDING 128 /* at least as many copies as a lane may have outstanding */

/* When each copy of a queue will have crossed the modelled link. */
struct host_queue {
	uint64_t due[PENDING];
	uint64_t finished;
};

static ferryResult_t queue_open(struct ferry_copier *copier, enum ferry_direction direction,
                                struct ferry_copy_queue *queue)
{
	struct host_queue *backend = calloc(1, sizeof *backend);
	if (!backend)
		return ferry_fail(ferrySystemError, "no memory for a copy queue");
	*queue = (struct ferry_copy_queue){copier, direction, 0, backend};
	return ferrySuccess;
}

static void queue_close(struct ferry_copy_queue *queue)
{
	free(queue->backend);
	queue->backend = NULL;
}

/*
 * Reserves a link or port, which serves one copy after another. Returns when this copy ends (ferry_now_ns); 0 where the
 * link is as fast as memory.
 */
static uint64_t reserve(_Atomic uint64_t *busy_until, double speed, size_t bytes)
{
	if (speed == 0)
		return 0;
	uint64_t now = ferry_now_ns(), cost = (uint64_t)((double)bytes / speed), due; /* GB/s are bytes per ns */
	uint64_t busy = atomic_load_explicit(busy_until, memory_order_relaxed);
	do
		due = (busy > now ? busy : now) + cost;
	while (!atomic_compare_exchange_weak_explicit(busy_until, &busy, due, memory_order_relaxed,
	                                              memory_order_relaxed));
	return due;
}

static ferryResult_t copy(struct ferry_copy_queue *queue, void *destination, const void *source, size_t bytes,
                          uint64_t whole, bool crosses)
{
	struct ferry_host_copier *copier = (struct ferry_host_copier *)queue->copier;
	struct host_queue *backend = queue->backend;
	double speed = queue->direction == FERRY_DIR_D2H ? copier->machine.d2h : copier->machine.h2d;
	backend->due[queue->started++ % PENDING] =
	        crosses ? reserve(&copier->busy_until[queue->direction], speed, bytes) : 0;
	/*
	 * D2H: staging is read again soon and should stay cached. H2D and within the device: a large result leaves the
	 * cache before it is read, so it goes past the cache, without first reading the lines that it overwrites
	 * (docs/lab/cpu-buffers.md).
	 */
	bool past_cache = queue->direction == FERRY_DIR_H2D && whole >= STREAM_LEAST;
	ferry_copy(destination, source, bytes, past_cache ? FERRY_STORE_STREAM : FERRY_STORE_ORDINARY);
	return ferrySuccess;
}

/* Explains an error of process_vm_writev. */
static ferryResult_t explain(const struct ferry_put_target *to, size_t bytes, int reason)
{
	char scope[4] = "";
	FILE *file = reason == EPERM ? fopen("/proc/sys/kernel/yama/ptrace_scope", "r") : NULL;
	if (file && !fgets(scope, sizeof scope, file))
		scope[0] = '\0';
	if (file)
		fclose(file);
	scope[strcspn(scope, "\n")] = '\0';
	if (reason == ESRCH)
		return ferry_fail(ferryRemoteError,
		                  "rank %u's process %lld is gone: nothing can be put into its memory", to->to,
		                  (long long)to->process);
	if (reason == EPERM)
		return ferry_fail(ferrySystemError, "process %lld of rank %u may not be written to "
		                  "(kernel.yama.ptrace_scope is %s): run the ranks as one user, and where that is not "
		                  "0, set it to 0 (sysctl kernel.yama.ptrace_scope=0) or give ranks CAP_SYS_PTRACE",
		                  (long long)to->process, to->to, *scope ? scope : "not there");
	return ferry_fail(ferrySystemError, "%zu bytes into process %lld of rank %u, at %p: %s", bytes,
	                  (long long)to->process, to->to, (void *)to->address, strerror(reason));
}

/* One call writes at most 2 GiB, and ends early where memory is missing behind what it has written. */
static ferryResult_t write_process(const struct ferry_put_target *to, const void *source, size_t bytes)
{
	size_t done = 0;
	while (done < bytes) {
		struct iovec local = {(char *)source + done, bytes - done}, remote = {to->address + done, bytes - done};
		ssize_t written = process_vm_writev((pid_t)to->process, &local, 1, &remote, 1, 0);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return explain(to, bytes, written < 0 ? errno : EFAULT);
		done += (size_t)written;
	}
	return ferrySuccess;
}

/* Finds the link, the port and the shared links between two ranks' devices: GB/s, 0 for as fast as memory. */
static ferryResult_t find_link(const struct ferry_host_copier *copier, const struct ferry_put_target *to, double *link,
                               double *port, uint64_t *shared)
{
	const struct ferry_host_links *machine = &copier->machine;
	uint32_t most = machine->nplaced ? machine->nplaced : machine->ndevices;
	*link = *port = 0;
	*shared = 0;
	if (!machine->peers || to->from == to->to)
		return ferrySuccess;
	if (to->from >= most || to->to >= most)
		return ferry_fail(ferryInvalidUsage, "FERRY_HOST_LINK has no device for rank %u",
		                  to->from >= most ? to->from : to->to);
	uint32_t from = machine->nplaced ? machine->placed[to->from] : to->from;
	*port = machine->links.port[from];
	uint32_t into = machine->nplaced ? machine->placed[to->to] : to->to;
	*link = machine->links.speed[from][into];
	*shared = machine->links.through[from][into];
	if (*link == 0)
		return ferry_fail(ferryInvalidUsage, "FERRY_HOST_LINK has no link from rank %u's device to rank %u's",
		                  to->from, to->to);
	return ferrySuccess;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The copy has crossed once the link, the port and all that it shares have served it, each in its turn. */
static ferryResult_t push(struct ferry_copy_queue *queue, const struct ferry_put_target *to, const void *source,
                          size_t bytes)
{
	struct ferry_host_copier *copier = (struct ferry_host_copier *)queue->copier;
	struct host_queue *backend = queue->backend;
	_Atomic uint64_t *shared_busy_until = to->shared_busy_until ? to->shared_busy_until : copier->shared_busy_until;
	double link, port;
	uint64_t shared;
	ferryResult_t result = find_link(copier, to, &link, &port, &shared);
	if (result)
		return result;
	uint64_t due = reserve(&copier->link_busy_until[to->to % FERRY_MAX_RANKS], link, bytes);
	due = later(due, reserve(&copier->port_busy_until, port, bytes));
	for (; shared; shared &= shared - 1) {
		int k = __builtin_ctzll(shared);
		due = later(due, reserve(&shared_busy_until[k], copier->machine.links.shared[k], bytes));
	}
	if (to->process)
		result = write_process(to, source, bytes);
	else
		ferry_copy(to->address, source, bytes, bytes >= STREAM_LEAST ? FERRY_STORE_STREAM
		                                                             : FERRY_STORE_ORDINARY);
	if (result)
		return result;
	backend->due[queue->started++ % PENDING] = due;
	return ferrySuccess;
}

static uint64_t finished(struct ferry_copy_queue *queue)
{
	struct host_queue *backend = queue->backend;
	uint64_t now = 0;
	while (backend->finished < queue->started) {
		uint64_t due = backend->due[backend->finished % PENDING];
		if (due && !now)
			now = ferry_now_ns();
		if (due > now)
			break;
		backend->finished++;
	}
	return backend->finished;
}

static int64_t wait_us(struct ferry_copy_queue *queue)
{
	struct host_queue *backend = queue->backend;
	uint64_t due = backend->due[backend->finished % PENDING], now = ferry_now_ns();
	return due > now + 1000 ? (int64_t)((due - now) / 1000) : 1;
}

static const struct ferry_copy_ops host_ops = {.kind = "host",
                                               .queue_open = queue_open,
                                               .queue_close = queue_close,
                                               .copy = copy,
                                               .push = push,
                                               .finished = finished,
                                               .wait_us = wait_us};

ferryResult_t ferry_host_copier_open(struct ferry_host_copier *copier)
{
	*copier = (struct ferry_host_copier){.base.ops = &host_ops};
	return ferry_host_links_load(&copier->machine);
}
