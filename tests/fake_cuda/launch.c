/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of Ferry's calls, compiled as C (tests/fake_cuda/kernels_emulated.c): run by the stream's thread, with each
 * address of the call found and held first. One that the device may not use is a fault, as on a GPU.
 */
#include "tests/fake_cuda/fake.h"

#include "tests/fake_cuda/kernels_emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Freed when it runs; but what a graph may have never is. */
struct launch {
	struct launch *next, **at; /* of all */
	bool captured;
	union {
		struct ferry_kernel_group calls; /* its first one alone, but of a group */
		struct ferry_kernel_messages messages;
		struct ferry_kernel_adds adds;
	};
	uint32_t ncalls; /* 0: they are messages, or ADDs */
	char name[40];
	unsigned blocks, threads;
	CUcontext context;
};

static struct launch *all; /* under its lock */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep(struct launch *launch)
{
	pthread_mutex_lock(&all_lock);
	launch->next = all;
	launch->at = &all;
	if (all)
		all->at = &launch->next;
	all = launch;
	pthread_mutex_unlock(&all_lock);
}

static void forget(struct launch *launch)
{
	pthread_mutex_lock(&all_lock);
	*launch->at = launch->next;
	if (launch->next)
		launch->next->at = launch->at;
	pthread_mutex_unlock(&all_lock);
	free(launch);
}

#define MOST_AHEAD 1024 /* in a stream: then a launch waits */
#define MOST_HELD (FERRY_MESSAGES_MOST + FERRY_KERNEL_GROUP * (2 * FERRY_KERNEL_RANKS + 5))

struct held {
	struct fake_region *regions[MOST_HELD];
	unsigned count;
	bool fault;
};

/* Where the process sees `bytes` there. */
static char *hold(struct held *held, CUcontext context, const void *address, uint64_t bytes)
{
	if (!address || !bytes)
		return NULL;
	struct fake_region *region = fake_pin((uintptr_t)address, bytes);
	if (region)
		held->regions[held->count++] = region;
	if (!region || !fake_may_use(context, region, false)) {
		held->fault = true;
		return NULL;
	}
	return fake_at(region, (uintptr_t)address);
}

static uint64_t element_of(const char *name)
{
	return strstr(name, "64") ? 8 : strstr(name, "32") ? 4 : strstr(name, "16") ? 2 : 1;
}

/* A whole buffer, or the part that other ranks have a place in. */
static uint64_t extent(const struct ferry_kernel_call *call, uint64_t stride)
{
	return call->bytes + stride * (call->nranks - 1);
}

static void find_boxes(struct held *held, CUcontext context, struct ferry_kernel_call *call)
{
	uint64_t bytes = FERRY_BOX_REGION(call->box_bytes, call->out_shared);
	for (uint32_t rank = 0; rank < call->nranks; rank++) {
		if (rank == call->rank)
			continue;
		call->out[rank] = hold(held, context, call->out[rank], bytes);
		call->in[rank] = hold(held, context, call->in[rank], bytes);
	}
}

/* Of the kernel that reduces blocks which have come: they lie in the rank's own memory. */
static void find_blocks(struct held *held, CUcontext context, struct ferry_kernel_call *call)
{
	call->receive = hold(held, context, call->receive, call->bytes);
	for (uint32_t rank = 0; rank < call->nranks; rank++)
		call->in[rank] = hold(held, context, call->in[rank], call->bytes);
}

static void find(struct held *held, const struct launch *launch, struct ferry_kernel_call *call)
{
	CUcontext context = launch->context;
	if (!strncmp(launch->name, "ferry_reduce_", strlen("ferry_reduce_"))) {
		find_blocks(held, context, call);
		return;
	}
	bool sends = call->senders >> call->rank & 1, receives = call->receivers >> call->rank & 1;
	call->send = hold(held, context, call->send, sends ? extent(call, call->send_stride) : 0);
	call->receive = hold(held, context, call->receive, receives ? extent(call, call->receive_stride) : 0);
	call->state = (struct ferry_kernel_state *)(void *)hold(held, context, call->state, sizeof *call->state);
	call->abort = (uint32_t *)(void *)hold(held, context, call->abort, FERRY_KERNEL_WAITS + 2 * sizeof(uint64_t));
	call->factor_at = hold(held, context, call->factor_at, call->factor_at ? element_of(launch->name) : 0);
	find_boxes(held, context, call);
}

static void find_messages(struct held *held, const struct launch *launch, struct ferry_kernel_messages *messages)
{
	find(held, launch, &messages->call);
	for (uint32_t i = 0; i < FERRY_MESSAGES_MOST; i++) {
		struct ferry_kernel_message *message = &messages->messages[i];
		message->buffer = hold(held, launch->context, message->buffer, message->bytes);
	}
	messages->table = (void *)hold(held, launch->context, messages->table,
	                               FERRY_MESSAGES_TABLE * sizeof *messages->table);
}

static bool is_of_adds(const char *name)
{
	return !strncmp(name, "ferry_adds_", strlen("ferry_adds_"));
}

static void find_adds(struct held *held, const struct launch *launch, struct ferry_kernel_adds *adds)
{
	struct ferry_kernel_call *call = &adds->call;
	call->state = (struct ferry_kernel_state *)(void *)hold(held, launch->context, call->state,
	                                                        sizeof *call->state);
	call->abort = (uint32_t *)(void *)hold(held, launch->context, call->abort, sizeof *call->abort);
	adds->memory = hold(held, launch->context, adds->memory, adds->memory_bytes);
	adds->cells = hold(held, launch->context, adds->cells, FERRY_KERNEL_ADD_DONE(FERRY_KERNEL_ADDS, 0));
}

static _Atomic uint32_t adding[FERRY_KERNEL_RANKS], most_adding; /* kernels of ADDs that run, by rank */

unsigned fake_cuda_most_adds(void)
{
	return atomic_exchange(&most_adding, 0);
}

static void count_adds(uint32_t rank)
{
	uint32_t now = 1 + atomic_fetch_add(&adding[rank], 1), most = atomic_load(&most_adding);
	while (now > most && !atomic_compare_exchange_weak(&most_adding, &most, now))
		;
}

static void run(void *argument)
{
	struct held held = {.count = 0};
	pthread_mutex_lock(&all_lock); /* its neighbours of the list may come and go */
	struct launch launch = *(const struct launch *)argument;
	pthread_mutex_unlock(&all_lock);
	if (!launch.captured)
		forget(argument);
	for (uint32_t i = 0; i < launch.ncalls; i++)
		find(&held, &launch, &launch.calls.calls[i]);
	const bool adds = is_of_adds(launch.name);
	const uint32_t rank = adds ? launch.adds.call.rank : 0;
	if (adds) {
		count_adds(rank);
		find_adds(&held, &launch, &launch.adds);
	} else if (!launch.ncalls) {
		find_messages(&held, &launch, &launch.messages);
	}
	if (held.fault || !ferry_kernel_emulate(launch.name, &launch.calls, launch.blocks, launch.threads))
		fake_fail_context(launch.context);
	if (adds)
		atomic_fetch_sub(&adding[rank], 1);
	while (held.count)
		fake_unpin(held.regions[--held.count]);
}

static void wait_for_room(CUstream given)
{
	CUstream stream;
	unsigned turn = 0;
	if (fake_stream_find(given, &stream))
		return;
	while (atomic_load_explicit(&stream->submitted, memory_order_relaxed) -
	               atomic_load_explicit(&stream->completed, memory_order_relaxed) >=
	       MOST_AHEAD)
		fake_pause(&turn);
}

CUresult fake_kernel_launch(CUstream stream, const char *name, const void *call, unsigned blocks, unsigned threads)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	struct launch *launch = refused ? NULL : calloc(1, sizeof *launch);
	if (!launch)
		return refused ? refused : CUDA_ERROR_OUT_OF_MEMORY;
	wait_for_room(stream);
	launch->ncalls = strstr(name, "messages") || is_of_adds(name) ? 0
	                 : strstr(name, "group")  ? ((const struct ferry_kernel_group *)call)->count
	                                          : 1;
	memcpy(&launch->calls, call,
	       is_of_adds(name)     ? sizeof launch->adds
	       : !launch->ncalls    ? sizeof launch->messages
	       : launch->ncalls > 1 ? sizeof launch->calls
	                            : sizeof launch->calls.calls[0]);
	snprintf(launch->name, sizeof launch->name, "%s", name);
	launch->blocks = blocks;
	launch->threads = threads;
	launch->context = context;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	launch->captured = cuStreamIsCapturing(stream, &status) || status != CU_STREAM_CAPTURE_STATUS_NONE;
	keep(launch);
	struct fake_operation kernel = {.kind = FAKE_KERNEL, .kernel = run, .argument = launch, .flags = 1};
	return fake_submit(stream, &kernel, 1);
}
