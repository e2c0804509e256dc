/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of copies between GPUs and host memory: each GPU by itself, and several together over windows of different
 * sizes. */
#include "bench/command/sample.h"
#include "bench/limits/measure.h"
#include "bench/limits/port.h"
#include "bench/limits/progress.h"
#include "ipc/error.h"
#include "ipc/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* What a run's GPUs do: the first `gpus` ports, or only the port `only`. */
struct pattern {
	int gpus, only;
	bool d2h, h2d;
	uint64_t window, copy;
	struct rate_schedule schedule;
	atomic_bool *stop; /* set by a thread that has failed */
};

/* ---- a thread per GPU ---- */

/* The window and slot of copy k. D2H and H2D go round the same slots, half a round apart. */
static char *host_of(const struct port *port, const struct pattern *pattern, bool d2h, uint64_t k)
{
	uint64_t slots = pattern->window / pattern->copy;
	return port->host + (d2h ? k : k + slots / 2) % slots * pattern->copy;
}

/* Counts what has completed, then puts the next copy where its stream has room. */
static CUresult advance(struct port *port, const struct pattern *pattern, bool d2h)
{
	struct port_way *way = d2h ? &port->d2h : &port->h2d;
	for (int i = 0; i < PORT_STREAMS; i++)
		while (way->taken[i] < way->put[i]) {
			CUresult state = gpu_driver->EventQuery(way->events[i][way->taken[i] % PORT_DEPTH]);
			if (state == CUDA_ERROR_NOT_READY)
				break;
			if (state)
				return state;
			way->taken[i]++;
			rate_count_add(&way->count, &pattern->schedule, sample_now_us(), (double)pattern->copy);
		}
	int stream = (int)(way->issued % PORT_STREAMS);
	if (way->put[stream] - way->taken[stream] == PORT_DEPTH)
		return CUDA_SUCCESS;
	uint64_t offset = way->issued * pattern->copy % PORT_BUFFER;
	char *host = host_of(port, pattern, d2h, way->issued);
	CUresult refused = port_copy(port, d2h, way->streams[stream], host, offset, pattern->copy);
	if (!refused)
		refused = gpu_driver->EventRecord(way->events[stream][way->put[stream] % PORT_DEPTH],
		                                  way->streams[stream]);
	way->put[stream]++;
	way->issued++;
	return refused;
}

static void restart_way(struct port_way *way)
{
	way->issued = 0;
	memset(way->put, 0, sizeof way->put);
	memset(way->taken, 0, sizeof way->taken);
	way->count = (struct rate_count){0};
}

static ferryResult_t drive(struct port *port, const struct pattern *pattern)
{
	ferryResult_t result = port_enter(port);
	CUresult refused = CUDA_SUCCESS;
	if (result)
		return result;
	restart_way(&port->d2h);
	restart_way(&port->h2d);
	double end = rate_schedule_end_us(&pattern->schedule);
	while (!refused && sample_now_us() < end && !atomic_load_explicit(pattern->stop, memory_order_relaxed)) {
		if (pattern->d2h)
			refused = advance(port, pattern, true);
		if (!refused && pattern->h2d)
			refused = advance(port, pattern, false);
	}
	for (int i = 0; i < PORT_STREAMS; i++) {
		CUresult d2h = gpu_driver->StreamSynchronize(port->d2h.streams[i]);
		CUresult h2d = gpu_driver->StreamSynchronize(port->h2d.streams[i]);
		refused = refused ? refused : d2h ? d2h : h2d;
	}
	return gpu_good(refused, "copying between the GPU and shared memory");
}

struct task {
	struct port *port;
	const struct pattern *pattern; /* NULL: open the port */
};

static void *run_task(void *argument)
{
	const struct task *task = argument;
	struct port *port = task->port;
	port->result = task->pattern ? drive(port, task->pattern) : port_open(port);
	if (port->result) {
		snprintf(port->message, sizeof port->message, "%s", ferry_last_message());
		if (task->pattern)
			atomic_store_explicit(task->pattern->stop, true, memory_order_relaxed);
	}
	return NULL;
}

/* A thread for each of the ports [first, last), joined. */
static ferryResult_t send_out(struct port *ports, int first, int last, const struct pattern *pattern)
{
	struct task tasks[FERRY_LIMITS_GPUS];
	pthread_t threads[FERRY_LIMITS_GPUS];
	int started = first, refused = 0;
	for (; started < last; started++) {
		tasks[started] = (struct task){&ports[started], pattern};
		ports[started].result = ferrySuccess;
		if ((refused = pthread_create(&threads[started], NULL, run_task, &tasks[started])))
			break;
	}
	for (int i = first; i < started; i++)
		pthread_join(threads[i], NULL);
	if (refused)
		return ferry_fail(ferrySystemError, "starting the thread of GPU %d: %s%s", started, strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	for (int i = first; i < last; i++)
		if (ports[i].result)
			return ferry_fail(ports[i].result, "GPU %d: %s", i, ports[i].message);
	return ferrySuccess;
}

/* Runs the pattern; the rates of its GPUs together. */
static ferryResult_t run(struct port *ports, const struct ferry_limits *limits, struct pattern pattern,
                         struct ferry_limits_rates *rates)
{
	atomic_bool stop = false;
	struct rate_count d2h = {0}, h2d = {0};
	int first = pattern.only < 0 ? 0 : pattern.only, last = pattern.only < 0 ? pattern.gpus : pattern.only + 1;
	pattern.stop = &stop;
	pattern.schedule = rate_schedule_now(limits->quick);
	ferryResult_t result = send_out(ports, first, last, &pattern);
	for (int i = first; i < last; i++) {
		rate_count_join(&d2h, &ports[i].d2h.count);
		rate_count_join(&h2d, &ports[i].h2d.count);
	}
	*rates = (struct ferry_limits_rates){rate_gbps(&d2h, &pattern.schedule), rate_gbps(&h2d, &pattern.schedule)};
	return result;
}

/* ---- what is measured ---- */

/* All D2H, all H2D, both: `both` and `alone` may be of one GPU or of several. */
static ferryResult_t run_ways(struct port *ports, const struct ferry_limits *limits, struct pattern pattern,
                              struct ferry_limits_rates *alone, struct ferry_limits_rates *both)
{
	struct ferry_limits_rates d2h, h2d;
	pattern.d2h = true;
	ferryResult_t result = run(ports, limits, pattern, &d2h);
	pattern.h2d = true;
	if (!result)
		result = run(ports, limits, pattern, both);
	pattern.d2h = false;
	if (!result)
		result = run(ports, limits, pattern, &h2d);
	if (!result)
		*alone = (struct ferry_limits_rates){d2h.d2h, h2d.h2d};
	return result;
}

static ferryResult_t measure_window(struct port *ports, struct ferry_limits *limits, uint64_t bytes)
{
	int gpus = limits->ngpus;
	struct ferry_limits_window *window = &limits->windows[limits->nwindows];
	/* As long as the window allows for two: a limit is without gaps between copies, which depend on the plan. */
	uint64_t copy = bytes / 2 < 4 << 20 ? bytes / 2 : 4 << 20;
	struct pattern pattern = {.gpus = gpus, .only = -1, .window = bytes, .copy = copy};
	*window = (struct ferry_limits_window){.gpus = gpus, .bytes = bytes, .copy_bytes = copy};
	limits_progress("%d GPU%s, windows of %llu MiB", gpus, gpus > 1 ? "s together" : "",
	                (unsigned long long)bytes >> 20);
	ferryResult_t result = run_ways(ports, limits, pattern, &window->alone, &window->both);
	limits->nwindows += !result;
	return result;
}

static ferryResult_t measure_together(struct port *ports, struct ferry_limits *limits)
{
	static const uint64_t all_windows[] = {2, 4, 8, 16, 32, PORT_BUFFER >> 20, 0},
	                      few[] = {2, 8, PORT_BUFFER >> 20, 0};
	ferryResult_t result = ferrySuccess;
	for (const uint64_t *mib = limits->quick ? few : all_windows; *mib && !result; mib++)
		result = measure_window(ports, limits, *mib << 20);
	return result;
}

static ferryResult_t measure_each(struct port *ports, struct ferry_limits *limits)
{
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < limits->ngpus && !result; i++) {
		/* A window that stays in the cache: it is the link that limits. */
		struct pattern pattern = {.gpus = limits->ngpus, .only = i, .window = 32 << 20, .copy = 4 << 20};
		limits_progress("GPU %d alone", i);
		result = run_ways(ports, limits, pattern, &limits->gpus[i].alone, &limits->gpus[i].both);
	}
	return result;
}

/* Everything, on GPUs that are counted and get opened. */
static ferryResult_t measure_all(struct port *ports, struct ferry_limits *limits, int count)
{
	limits_progress("opening %d GPU%s", count, count > 1 ? "s" : "");
	ferryResult_t result = send_out(ports, 0, count, NULL);
	if (result)
		return result;
	limits->ngpus = count;
	result = measure_each(ports, limits);
	if (!result && (result = limits_measure_copies(&ports[0], limits)))
		ferry_fail_context(result, "GPU 0");
	if (!result)
		result = measure_together(ports, limits);
	return result ? result : limits_measure_links(ports, limits);
}

ferryResult_t limits_measure_gpus(struct ferry_limits *limits, int most)
{
	static struct port ports[FERRY_LIMITS_GPUS];
	int count = 0;
	const char *missing = gpu_missing();
	if (missing) {
		snprintf(limits->no_gpu, sizeof limits->no_gpu, "%s", missing);
		return most ? ferry_fail(ferryInvalidUsage, "--devices %d: %s", most, limits->no_gpu) : ferrySuccess;
	}
	CUresult refused = gpu_driver->DeviceGetCount(&count);
	if (!refused)
		refused = gpu_driver->DriverGetVersion(&limits->cuda_driver);
	if (refused)
		return gpu_good(refused, "counting GPUs");
	if (most > count)
		return ferry_fail(ferryInvalidArgument, "--devices %d: the driver shows %d", most, count);
	count = most ? most : count < FERRY_LIMITS_GPUS ? count : FERRY_LIMITS_GPUS;
	for (int i = 0; i < count; i++)
		ports[i] = (struct port){.index = i, .facts = &limits->gpus[i]};
	char message[600] = "";
	ferryResult_t result = measure_all(ports, limits, count);
	if (result) /* closing may leave another one */
		snprintf(message, sizeof message, "%s", ferry_last_message());
	for (int i = 0; i < count; i++)
		port_close(&ports[i]);
	return result ? ferry_fail(result, "%s", message) : ferrySuccess;
}
