/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between GPUs: copies by one GPU into another's memory, as routers push (PUT). Each push is a stream of the
 * pushing GPU, timed by that GPU's clock. One untimed copy precedes the timed ones and one follows them, so that all
 * pushes that are measured together overlap all the time. The host has enqueued all copies before the first one ends.
 */
#include "bench/command/sample.h"
#include "bench/limits/measure.h"
#include "bench/limits/port.h"
#include "bench/limits/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOST_ROUNDS  3
#define SMALL        (1ull << 20) /* bytes of copies that show the fixed cost */
#define SMALL_COPIES 64
#define PROBED       (1u << 20) /* bytes by which it is seen whether copies arrive, */
#define PROBE        0x5a       /* each of this value, */
#define PROBE_S      5          /* in so many seconds */

/* One GPU's copies into the memory of another. */
struct push {
	struct port *from, *to;
	uint64_t at, whole;     /* the part of both buffers, and the length of the copies before and behind */
	uint64_t bytes;         /* of a copy that is timed */
	int copies;
	CUstream stream;
	CUevent first, last;
	double rounds[MOST_ROUNDS], us; /* of a copy; us: their median */
};

static double gbps_of(const struct push *push)
{
	return push->us > 0 ? (double)push->bytes / push->us / 1e3 : 0;
}

/* ---- running ---- */

static ferryResult_t open_push(struct push *push)
{
	int least = 0, greatest = 0;
	ferryResult_t result = port_enter(push->from);
	if (result)
		return result;
	CUresult refused = gpu_driver->CtxGetStreamPriorityRange(&least, &greatest);
	if (!refused)
		refused = gpu_driver->StreamCreateWithPriority(&push->stream, CU_STREAM_NON_BLOCKING, greatest);
	if (!refused)
		refused = gpu_driver->EventCreate(&push->first, CU_EVENT_DEFAULT);
	if (!refused)
		refused = gpu_driver->EventCreate(&push->last, CU_EVENT_DEFAULT);
	return gpu_good(refused, "making a stream for copies into another GPU's memory");
}

/* Waits for the push's copies, then frees what open_push has made. */
static void close_push(struct push *push)
{
	if (!push->stream || port_enter(push->from))
		return;
	gpu_driver->StreamSynchronize(push->stream);
	if (push->first)
		gpu_driver->EventDestroy(push->first);
	if (push->last)
		gpu_driver->EventDestroy(push->last);
	gpu_driver->StreamDestroy(push->stream);
}

/* Copy 0 precedes the timed copies, the one after `copies` follows them. */
static CUresult enqueue(const struct push *push, int copy)
{
	bool timed = copy >= 1 && copy <= push->copies;
	uint64_t bytes = timed ? push->bytes : push->whole;
	uint64_t at = push->at + (timed ? (uint64_t)(copy - 1) * bytes % push->whole : 0);
	CUresult refused = copy == 1 ? gpu_driver->EventRecord(push->first, push->stream) : CUDA_SUCCESS;
	if (!refused)
		refused = gpu_driver->MemcpyDtoDAsync(push->to->h2d.memory + at, push->from->d2h.memory + at, bytes,
		                                      push->stream);
	if (!refused && copy == push->copies)
		refused = gpu_driver->EventRecord(push->last, push->stream);
	return refused;
}

/* Copy by copy over all pushes, which thereby begin within a copy's time of each other. */
static ferryResult_t run_round(struct push *pushes, int count, int round)
{
	CUresult refused = CUDA_SUCCESS;
	ferryResult_t result = ferrySuccess;
	for (int copy = 0; copy <= pushes->copies + 1 && !refused && !result; copy++)
		for (int i = 0; i < count && !refused && !result; i++)
			if (!(result = port_enter(pushes[i].from)))
				refused = enqueue(&pushes[i], copy);
	for (int i = 0; i < count && !result; i++) {
		struct push *push = &pushes[i];
		float ms = 0;
		result = port_enter(push->from);
		CUresult ended = result ? CUDA_SUCCESS : gpu_driver->StreamSynchronize(push->stream);
		refused = refused ? refused : ended;
		if (!refused && !result)
			refused = gpu_driver->EventElapsedTime(&ms, push->first, push->last);
		push->rounds[round] = ms * 1e3 / push->copies;
	}
	return result ? result : gpu_good(refused, "copying from one GPU into another's memory");
}

/* Runs them all at once; then each has its `us`. */
static ferryResult_t run(struct push *pushes, int count, bool quick)
{
	int rounds = quick ? 1 : MOST_ROUNDS;
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < count && !result; i++)
		result = open_push(&pushes[i]);
	for (int round = 0; round < rounds && !result; round++)
		result = run_round(pushes, count, round);
	for (int i = 0; i < count; i++) {
		pushes[i].us = sample_summarize(pushes[i].rounds, (size_t)rounds).median;
		close_push(&pushes[i]);
	}
	return result;
}

/* ---- what is measured ---- */

static bool reaches(const struct port *from, const struct port *to)
{
	return from->peers >> to->index & 1;
}

static struct push long_push(struct port *from, struct port *to, bool quick)
{
	return (struct push){
	        .from = from, .to = to, .whole = PORT_BUFFER, .bytes = PORT_BUFFER, .copies = quick ? 2 : 4};
}

static ferryResult_t measure_link(struct port *from, struct port *to, struct ferry_limits *limits)
{
	struct ferry_limits_link *link = &limits->links[limits->nlinks];
	struct push push = long_push(from, to, limits->quick), small = push;
	small.bytes = SMALL;
	small.copies = SMALL_COPIES;
	limits_progress("GPU %d into GPU %d", from->index, to->index);
	ferryResult_t result = run(&push, 1, limits->quick);
	if (!result)
		result = run(&small, 1, limits->quick);
	if (result)
		return result;
	double overhead = small.us - push.us * SMALL / PORT_BUFFER;
	*link = (struct ferry_limits_link){.from = from->index,
	                                   .to = to->index,
	                                   .alone = gbps_of(&push),
	                                   .overhead_us = overhead > 0 ? overhead : 0,
	                                   .pcie = from->pcie >> to->index & 1};
	limits->nlinks++;
	return ferrySuccess;
}

static struct ferry_limits_link *link_of(struct ferry_limits *limits, int from, int to)
{
	for (int i = 0; i < limits->nlinks; i++)
		if (limits->links[i].from == from && limits->links[i].to == to)
			return &limits->links[i];
	return NULL;
}

/* Both ways of a pair at once. */
static ferryResult_t measure_pair(struct port *one, struct port *other, struct ferry_limits *limits)
{
	struct push pushes[] = {long_push(one, other, limits->quick), long_push(other, one, limits->quick)};
	limits_progress("GPUs %d and %d into each other", one->index, other->index);
	ferryResult_t result = run(pushes, 2, limits->quick);
	if (result)
		return result;
	link_of(limits, one->index, other->index)->both = gbps_of(&pushes[0]);
	link_of(limits, other->index, one->index)->both = gbps_of(&pushes[1]);
	return ferrySuccess;
}

/* Copies of one GPU into several others use parts of the buffers of their own. */
static void add_push(struct push *pushes, int *count, struct port *from, struct port *to, int next,
                     const struct ferry_limits *limits)
{
	uint64_t part = PORT_BUFFER / (uint64_t)(limits->ngpus - 1) / SMALL * SMALL;
	struct push *push = &pushes[(*count)++];
	*push = long_push(from, to, limits->quick);
	push->at = (uint64_t)next * part;
	push->whole = push->bytes = part;
}

static ferryResult_t measure_all_at_once(struct port *ports, struct ferry_limits *limits)
{
	static struct push pushes[FERRY_LIMITS_LINKS];
	int count = 0;
	for (int from = 0; from < limits->ngpus; from++)
		for (int next = 0; next + 1 < limits->ngpus; next++) {
			struct port *to = &ports[(from + 1 + next) % limits->ngpus];
			if (reaches(&ports[from], to))
				add_push(pushes, &count, &ports[from], to, next, limits);
		}
	limits_progress("all GPUs into each other");
	ferryResult_t result = run(pushes, count, limits->quick);
	for (int i = 0; i < count && !result; i++)
		limits->gpus[pushes[i].from->index].push += gbps_of(&pushes[i]);
	return result;
}

/* What PCIe carries from all GPUs of one node into those of another at once. limits->crossing: the least of all. */
static ferryResult_t measure_crossing(struct port *ports, struct ferry_limits *limits, int from_node, int to_node)
{
	static struct push pushes[FERRY_LIMITS_LINKS];
	int count = 0;
	double sum = 0;
	for (int from = 0; from < limits->ngpus; from++)
		for (int next = 0; next + 1 < limits->ngpus && limits->gpus[from].numa_node == from_node; next++) {
			int to = (from + 1 + next) % limits->ngpus;
			if (ports[from].pcie >> to & 1 && limits->gpus[to].numa_node == to_node)
				add_push(pushes, &count, &ports[from], &ports[to], next, limits);
		}
	if (!count)
		return ferrySuccess;
	limits_progress("all GPUs of node %d into those of node %d", from_node, to_node);
	ferryResult_t result = run(pushes, count, limits->quick);
	for (int i = 0; i < count; i++)
		sum += gbps_of(&pushes[i]);
	if (!(limits->crossing > 0) || sum < limits->crossing)
		limits->crossing = sum;
	return result;
}

/* Whether it is the first GPU of its node; -1 is no node. */
static bool stands_for_node(const struct ferry_limits *limits, int gpu)
{
	bool first = limits->gpus[gpu].numa_node >= 0;
	for (int before = 0; before < gpu; before++)
		first &= limits->gpus[before].numa_node != limits->gpus[gpu].numa_node;
	return first;
}

static ferryResult_t measure_crossings(struct port *ports, struct ferry_limits *limits)
{
	ferryResult_t result = ferrySuccess;
	for (int from = 0; from < limits->ngpus; from++)
		for (int to = 0; to < limits->ngpus && !result; to++)
			if (to != from && stands_for_node(limits, from) && stands_for_node(limits, to))
				result = measure_crossing(ports, limits, limits->gpus[from].numa_node,
				                          limits->gpus[to].numa_node);
	return result;
}

/* ---- whether copies arrive ---- */

/* Waits PROBE_S seconds at most for the stream; *ended: it has done all. */
static ferryResult_t await_end(CUstream stream, bool *ended)
{
	double until = sample_now_us() + 1e6 * PROBE_S;
	CUresult state = gpu_driver->StreamQuery(stream);
	while (state == CUDA_ERROR_NOT_READY && sample_now_us() < until) {
		usleep(100);
		state = gpu_driver->StreamQuery(stream);
	}
	*ended = state != CUDA_ERROR_NOT_READY;
	return *ended ? gpu_good(state, "copying from one GPU into another's memory") : ferrySuccess;
}

static CUresult fill(const struct port *port, CUdeviceptr memory, unsigned char value)
{
	CUresult refused = gpu_driver->MemsetD8Async(memory, value, PROBED, port->d2h.streams[0]);
	return refused ? refused : gpu_driver->StreamSynchronize(port->d2h.streams[0]);
}

/* Fills both memories, each with its own value, and begins the copy. */
static ferryResult_t begin_probe(struct port *from, struct port *to)
{
	ferryResult_t result = port_enter(to);
	CUresult refused = result ? CUDA_SUCCESS : fill(to, to->h2d.memory, 0);
	if (!result && !refused)
		result = port_enter(from);
	if (!result && !refused)
		refused = fill(from, from->d2h.memory, PROBE);
	if (!result && !refused)
		refused = gpu_driver->MemcpyDtoDAsync(to->h2d.memory, from->d2h.memory, PROBED, from->d2h.streams[0]);
	return result ? result : gpu_good(refused, "filling GPUs' memory and copying it");
}

static ferryResult_t look_what_came(struct port *to, bool *right)
{
	CUstream stream = to->d2h.streams[0];
	ferryResult_t result = port_enter(to);
	CUresult refused = result ? CUDA_SUCCESS
	                          : gpu_driver->MemcpyDtoHAsync(to->host, to->h2d.memory, PROBED, stream);
	if (!result && !refused)
		refused = gpu_driver->StreamSynchronize(stream);
	*right = to->host[0] == PROBE && !memcmp(to->host, to->host + 1, PROBED - 1);
	return result ? result : gpu_good(refused, "copying what came to the host");
}

/* Behind an IOMMU, or with ACS, copies may go elsewhere or never end, whatever the driver says of reach. */
static ferryResult_t probe(struct port *from, struct port *to, struct ferry_limits *limits)
{
	bool ended = false, right = false;
	limits_progress("GPU %d into GPU %d: does it arrive?", from->index, to->index);
	ferryResult_t result = begin_probe(from, to);
	if (!result)
		result = await_end(from->d2h.streams[0], &ended);
	if (!result && ended)
		result = look_what_came(to, &right);
	if (result || right)
		return result;
	from->stuck = to->stuck = !ended;
	limits->astray = true;
	snprintf(limits->no_links, sizeof limits->no_links, "a copy of GPU %d into GPU %d %s", from->index, to->index,
	         ended ? "does not arrive" : "does not end");
	return ferrySuccess;
}

static ferryResult_t find_peers(struct port *ports, int nports)
{
	ferryResult_t result = ferrySuccess;
	for (int from = 0; from < nports; from++)
		for (int to = 0; to < nports && !result; to++) {
			bool reached = false, atomics = false;
			if (to != from)
				result = port_reach(&ports[from], &ports[to], &reached, &atomics);
			ports[from].peers |= (uint32_t)reached << to;
			ports[from].pcie |= (uint32_t)(reached && !atomics) << to;
		}
	return result;
}

ferryResult_t limits_measure_links(struct port *ports, struct ferry_limits *limits)
{
	ferryResult_t result = find_peers(ports, limits->ngpus);
	for (int from = 0; from < limits->ngpus; from++)
		for (int to = 0; to < limits->ngpus && !result && !limits->astray; to++)
			if (reaches(&ports[from], &ports[to]))
				result = probe(&ports[from], &ports[to], limits);
	if (result || limits->astray)
		return result;
	for (int from = 0; from < limits->ngpus; from++)
		for (int to = 0; to < limits->ngpus && !result; to++)
			if (reaches(&ports[from], &ports[to]))
				result = measure_link(&ports[from], &ports[to], limits);
	for (int one = 0; one < limits->ngpus; one++)
		for (int other = one + 1; other < limits->ngpus && !result; other++)
			if (reaches(&ports[one], &ports[other]) && reaches(&ports[other], &ports[one]))
				result = measure_pair(&ports[one], &ports[other], limits);
	if (!result && limits->nlinks)
		result = measure_all_at_once(ports, limits);
	else if (!result)
		snprintf(limits->no_links, sizeof limits->no_links, "%s",
		         limits->ngpus == 1 ? "one GPU" : "the driver says that no GPU reaches another's memory");
	return result ? result : measure_crossings(ports, limits);
}
