/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of copies between GPUs and host memory: each GPU by itself, and several together over windows of different sizes. */
#include "bench/limits_gpu.h"

#include "bench/perf.h"
#include "ipc/error.h"

#include <errno.h>
#include <numa.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a run's GPUs do: the first `gpus` ports, or only the port `only`. */
struct pattern {
	int gpus, only;
	bool up, down;
	bool gather; /* H2D reads the others' windows, and D2H goes just fast enough that each line is read gpus - 1 times */
	uint64_t window, copy;
	struct limits_schedule schedule;
	atomic_bool *stop; /* somebody failed */
};

/* ---- a port ---- */

ferryResult_t limits_port_enter(struct limits_port *port)
{
	CUresult refused = port->cuda->CtxSetCurrent(port->context);
	return refused ? ferry_cuda_failed(port->cuda, refused, "making the GPU's primary context current") : ferrySuccess;
}

CUresult limits_port_copy(const struct limits_port *port, bool up, CUstream stream, char *host, uint64_t offset, uint64_t bytes)
{
	return up ? port->cuda->MemcpyDtoHAsync(host, port->up.memory + offset, bytes, stream)
	          : port->cuda->MemcpyHtoDAsync(port->down.memory + offset, host, bytes, stream);
}

static int numa_node_of(const char *pci)
{
	char path[96];
	int node = -1;
	/* The driver's "0000:1B:00.0" (maybe with eight digits in front) is sysfs's 0000:1b:00.0. */
	const char *start = strlen(pci) > 12 ? pci + strlen(pci) - 12 : pci;
	snprintf(path, sizeof path, "/sys/bus/pci/devices/%.12s/numa_node", start);
	for (char *c = path; *c; c++)
		*c = *c >= 'A' && *c <= 'F' ? (char)(*c - 'A' + 'a') : *c;
	FILE *file = fopen(path, "r");
	if (file && fscanf(file, "%d", &node) != 1)
		node = -1;
	if (file)
		fclose(file);
	return node;
}

static ferryResult_t find_facts(struct limits_port *port)
{
	const struct ferry_cuda_driver *cuda = port->cuda;
	CUresult refused = cuda->DeviceGet(&port->device, port->index);
	if (!refused)
		refused = cuda->DeviceGetName(port->facts->name, sizeof port->facts->name, port->device);
	if (!refused)
		refused = cuda->DeviceGetPCIBusId(port->facts->pci, sizeof port->facts->pci, port->device);
	if (refused)
		return ferry_cuda_failed(cuda, refused, "asking the driver about the GPU");
	port->facts->numa_node = numa_node_of(port->facts->pci);
	return ferrySuccess;
}

/* As an arena: shared memory on the GPU's node, populated, then registered. */
static ferryResult_t make_host_memory(struct limits_port *port)
{
	int node = port->facts->numa_node;
	if (numa_available() >= 0 && node >= 0 && node <= numa_max_node()) {
		numa_run_on_node(node); /* this thread ends with the opening */
		numa_set_preferred(node);
	}
	int file = memfd_create("ferry-limits", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, LIMITS_BUFFER)) {
		ferry_fail(ferrySystemError, "making %llu bytes of shared memory: %s", LIMITS_BUFFER, strerror(errno));
		if (file >= 0)
			close(file);
		return ferrySystemError;
	}
	void *memory = mmap(NULL, LIMITS_BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
	int error = errno;
	close(file);
	if (memory == MAP_FAILED)
		return ferry_fail(ferrySystemError, "mapping %llu bytes of shared memory: %s", LIMITS_BUFFER, strerror(error));
	port->host = memory;
	CUresult refused = port->cuda->MemHostRegister(port->host, LIMITS_BUFFER,
	                                               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (refused)
		return ferry_cuda_failed(port->cuda, refused, "registering 256 MiB of shared memory");
	port->registered = true;
	return ferrySuccess;
}

static ferryResult_t open_way(struct limits_port *port, struct limits_way *way)
{
	const struct ferry_cuda_driver *cuda = port->cuda;
	int least = 0, greatest = 0;
	CUresult refused = cuda->MemAlloc(&way->memory, LIMITS_BUFFER);
	if (refused)
		return ferry_cuda_failed(cuda, refused, "allocating 256 MiB on the GPU");
	if ((refused = cuda->CtxGetStreamPriorityRange(&least, &greatest)))
		return ferry_cuda_failed(cuda, refused, "asking for the range of stream priorities");
	for (int i = 0; i < LIMITS_STREAMS; i++) {
		if ((refused = cuda->StreamCreateWithPriority(&way->streams[i], CU_STREAM_NON_BLOCKING, greatest)))
			return ferry_cuda_failed(cuda, refused, "creating a stream");
		for (int k = 0; k < LIMITS_DEPTH; k++)
			if ((refused = cuda->EventCreate(&way->events[i][k], CU_EVENT_DISABLE_TIMING)))
				return ferry_cuda_failed(cuda, refused, "creating an event");
	}
	return ferrySuccess;
}

static ferryResult_t open_port(struct limits_port *port)
{
	ferryResult_t result = find_facts(port);
	if (result)
		return result;
	CUresult refused = port->cuda->DevicePrimaryCtxRetain(&port->context, port->device);
	if (refused)
		return ferry_cuda_failed(port->cuda, refused, "retaining the GPU's primary context");
	port->retained = true;
	if ((result = limits_port_enter(port)) || (result = make_host_memory(port)) || (result = open_way(port, &port->up)))
		return result;
	if ((result = open_way(port, &port->down)))
		return result;
	refused = port->cuda->MemsetD8Async(port->up.memory, 1, LIMITS_BUFFER, port->up.streams[0]);
	if (!refused)
		refused = port->cuda->StreamSynchronize(port->up.streams[0]);
	return refused ? ferry_cuda_failed(port->cuda, refused, "filling the GPU's buffer") : ferrySuccess;
}

static void close_way(const struct ferry_cuda_driver *cuda, struct limits_way *way)
{
	for (int i = 0; i < LIMITS_STREAMS; i++) {
		for (int k = 0; k < LIMITS_DEPTH; k++)
			if (way->events[i][k])
				cuda->EventDestroy(way->events[i][k]);
		if (way->streams[i])
			cuda->StreamDestroy(way->streams[i]);
	}
	if (way->memory)
		cuda->MemFree(way->memory);
}

/* Whatever open_port reached. The process ends soon: what the driver says to this no longer matters. */
static void close_port(struct limits_port *port)
{
	if (port->retained && !limits_port_enter(port)) {
		close_way(port->cuda, &port->up);
		close_way(port->cuda, &port->down);
		if (port->registered)
			port->cuda->MemHostUnregister(port->host);
		port->cuda->CtxSetCurrent(NULL);
	}
	if (port->retained)
		port->cuda->DevicePrimaryCtxRelease(port->device);
	if (port->host)
		munmap(port->host, LIMITS_BUFFER);
}

/* ---- a thread per GPU ---- */

struct errand {
	struct limits_port *port;
	const struct pattern *pattern; /* NULL: open the port */
};

/* The window and slot of copy k. D2H and H2D go round the same slots, half a round apart. */
static char *host_of(const struct limits_port *port, const struct pattern *pattern, bool up, uint64_t k)
{
	uint64_t slots = pattern->window / pattern->copy;
	const struct limits_port *owner = port;
	if (pattern->gather && !up) {
		uint64_t others = (uint64_t)pattern->gpus - 1;
		owner = &port->ports[(port->index + 1 + (int)(k % others)) % pattern->gpus];
		k /= others;
	}
	return owner->host + (up ? k : k + slots / 2) % slots * pattern->copy;
}

/* Counts what has completed, then puts the next copy where its stream has room. */
static CUresult advance(struct limits_port *port, const struct pattern *pattern, bool up)
{
	struct limits_way *way = up ? &port->up : &port->down;
	for (int i = 0; i < LIMITS_STREAMS; i++)
		while (way->taken[i] < way->put[i]) {
			CUresult state = port->cuda->EventQuery(way->events[i][way->taken[i] % LIMITS_DEPTH]);
			if (state == CUDA_ERROR_NOT_READY)
				break;
			if (state)
				return state;
			way->taken[i]++;
			limits_count_add(&way->count, &pattern->schedule, perf_now_us(), (double)pattern->copy);
		}
	int stream = (int)(way->issued % LIMITS_STREAMS);
	if (way->put[stream] - way->taken[stream] == LIMITS_DEPTH)
		return CUDA_SUCCESS;
	if (up && pattern->gather && way->issued * ((uint64_t)pattern->gpus - 1) > port->down.issued)
		return CUDA_SUCCESS;
	uint64_t offset = way->issued * pattern->copy % LIMITS_BUFFER;
	char *host = host_of(port, pattern, up, way->issued);
	CUresult refused = limits_port_copy(port, up, way->streams[stream], host, offset, pattern->copy);
	if (!refused)
		refused = port->cuda->EventRecord(way->events[stream][way->put[stream] % LIMITS_DEPTH], way->streams[stream]);
	way->put[stream]++;
	way->issued++;
	return refused;
}

static void restart_way(struct limits_way *way)
{
	way->issued = 0;
	memset(way->put, 0, sizeof way->put);
	memset(way->taken, 0, sizeof way->taken);
	way->count = (struct limits_count){0};
}

static ferryResult_t drive(struct limits_port *port, const struct pattern *pattern)
{
	ferryResult_t result = limits_port_enter(port);
	CUresult refused = CUDA_SUCCESS;
	if (result)
		return result;
	restart_way(&port->up);
	restart_way(&port->down);
	double end = limits_schedule_end_us(&pattern->schedule);
	while (!refused && perf_now_us() < end && !atomic_load_explicit(pattern->stop, memory_order_relaxed)) {
		if (pattern->up)
			refused = advance(port, pattern, true);
		if (!refused && pattern->down)
			refused = advance(port, pattern, false);
	}
	for (int i = 0; i < LIMITS_STREAMS; i++) {
		CUresult up = port->cuda->StreamSynchronize(port->up.streams[i]);
		CUresult down = port->cuda->StreamSynchronize(port->down.streams[i]);
		refused = refused ? refused : up ? up : down;
	}
	return refused ? ferry_cuda_failed(port->cuda, refused, "copying between the GPU and shared memory") : ferrySuccess;
}

static void *run_errand(void *argument)
{
	struct errand *errand = argument;
	struct limits_port *port = errand->port;
	port->result = errand->pattern ? drive(port, errand->pattern) : open_port(port);
	if (port->result) {
		snprintf(port->message, sizeof port->message, "%s", ferry_last_message());
		if (errand->pattern)
			atomic_store_explicit(errand->pattern->stop, true, memory_order_relaxed);
	}
	return NULL;
}

/* A thread for each of the ports [first, last), joined. */
static ferryResult_t send_out(struct limits_port *ports, int first, int last, const struct pattern *pattern)
{
	struct errand errands[LIMITS_MAX_GPUS];
	pthread_t threads[LIMITS_MAX_GPUS];
	int started = first, refused = 0;
	for (; started < last; started++) {
		errands[started] = (struct errand){&ports[started], pattern};
		ports[started].result = ferrySuccess;
		if ((refused = pthread_create(&threads[started], NULL, run_errand, &errands[started])))
			break;
	}
	for (int i = first; i < started; i++)
		pthread_join(threads[i], NULL);
	if (refused)
		return ferry_fail(ferrySystemError, "starting the thread of GPU %d: %s", started, strerror(refused));
	for (int i = first; i < last; i++)
		if (ports[i].result)
			return ferry_fail(ports[i].result, "GPU %d: %s", i, ports[i].message);
	return ferrySuccess;
}

/* Runs the pattern; the rates of its GPUs together. */
static ferryResult_t run(struct limits_port *ports, const struct limits *limits, struct pattern pattern,
                         struct limits_rates *rates)
{
	atomic_bool stop = false;
	struct limits_count up = {0}, down = {0};
	int first = pattern.only < 0 ? 0 : pattern.only, last = pattern.only < 0 ? pattern.gpus : pattern.only + 1;
	pattern.stop = &stop;
	pattern.schedule = limits_schedule_now(limits);
	ferryResult_t result = send_out(ports, first, last, &pattern);
	for (int i = first; i < last; i++) {
		limits_count_join(&up, &ports[i].up.count);
		limits_count_join(&down, &ports[i].down.count);
	}
	*rates = (struct limits_rates){limits_rate(&up, &pattern.schedule), limits_rate(&down, &pattern.schedule)};
	return result;
}

/* ---- what is measured ---- */

/* All D2H, all H2D, both: `both` and `alone` may be of one GPU or of several. */
static ferryResult_t run_ways(struct limits_port *ports, const struct limits *limits, struct pattern pattern,
                              struct limits_rates *alone, struct limits_rates *both)
{
	struct limits_rates up, down;
	pattern.up = true;
	ferryResult_t result = run(ports, limits, pattern, &up);
	pattern.down = true;
	if (!result)
		result = run(ports, limits, pattern, both);
	pattern.up = false;
	if (!result)
		result = run(ports, limits, pattern, &down);
	if (!result)
		*alone = (struct limits_rates){up.d2h, down.h2d};
	return result;
}

static ferryResult_t measure_window(struct limits_port *ports, struct limits *limits, int gpus, uint64_t bytes)
{
	struct limits_window *window = &limits->windows[limits->nwindows];
	/* As long as a window of two allows: a limit should not hold the gaps between copies, which a plan may choose. */
	uint64_t copy = bytes / 2 < 4 << 20 ? bytes / 2 : 4 << 20;
	struct pattern pattern = {.gpus = gpus, .only = -1, .window = bytes, .copy = copy};
	*window = (struct limits_window){.gpus = gpus, .bytes = bytes, .copy_bytes = copy};
	limits_progress("%d GPU%s, windows of %llu MiB", gpus, gpus > 1 ? "s together" : "", (unsigned long long)bytes >> 20);
	ferryResult_t result = run_ways(ports, limits, pattern, &window->alone, &window->both);
	if (!result && gpus > 1) {
		pattern.up = pattern.down = pattern.gather = true;
		result = run(ports, limits, pattern, &window->gather);
	}
	limits->nwindows += !result;
	return result;
}

/* All GPUs, and fewer as 2, 4, 8: ranks need not use all. */
static ferryResult_t measure_together(struct limits_port *ports, struct limits *limits)
{
	static const uint64_t all_windows[] = {2, 4, 8, 16, 32, LIMITS_BUFFER >> 20, 0}, few[] = {2, 8, LIMITS_BUFFER >> 20, 0};
	ferryResult_t result = ferrySuccess;
	for (int gpus = limits->ngpus < 2 ? limits->ngpus : 2;; gpus = gpus * 2 < limits->ngpus ? gpus * 2 : limits->ngpus) {
		for (const uint64_t *mib = limits->quick ? few : all_windows; *mib && !result; mib++)
			result = measure_window(ports, limits, gpus, *mib << 20);
		if (result || gpus == limits->ngpus)
			return result;
	}
}

static ferryResult_t measure_each(struct limits_port *ports, struct limits *limits)
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

ferryResult_t limits_measure_gpus(struct limits *limits, int most)
{
	const struct ferry_cuda_driver *cuda;
	static struct limits_port ports[LIMITS_MAX_GPUS];
	int count = 0;
	ferryResult_t result = ferry_cuda_driver_open(&cuda);
	if (result && most)
		return ferry_fail_context(result, "--devices %d", most);
	if (result) {
		snprintf(limits->no_gpu, sizeof limits->no_gpu, "%s", ferry_last_message());
		return ferrySuccess;
	}
	CUresult refused = cuda->DeviceGetCount(&count);
	if (!refused)
		refused = cuda->DriverGetVersion(&limits->driver);
	if (refused)
		return ferry_cuda_failed(cuda, refused, "counting GPUs");
	if (most > count)
		return ferry_fail(ferryInvalidArgument, "--devices %d: the driver shows %d", most, count);
	count = most ? most : count < LIMITS_MAX_GPUS ? count : LIMITS_MAX_GPUS;
	for (int i = 0; i < count; i++)
		ports[i] = (struct limits_port){.index = i, .cuda = cuda, .ports = ports, .facts = &limits->gpus[i]};
	limits_progress("opening %d GPU%s", count, count > 1 ? "s" : "");
	result = send_out(ports, 0, count, NULL);
	if (!result) {
		limits->ngpus = count;
		result = measure_each(ports, limits);
	}
	if (!result && (result = limits_measure_latency(&ports[0], limits)))
		ferry_fail_context(result, "GPU 0");
	if (!result)
		result = measure_together(ports, limits);
	char message[600];
	snprintf(message, sizeof message, "%s", result ? ferry_last_message() : "");
	for (int i = 0; i < count; i++)
		close_port(&ports[i]);
	return result ? ferry_fail(result, "%s", message) : ferrySuccess;
}
