/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-callers: what calls cost their callers. One process per GPU, under ferryrun: per size, the time that a call
 * keeps its caller, and the cores that the rank's process and the routers keep busy while the rank does nothing but
 * call and wait, with blocking synchronization; then both while nothing is called, without and with a captured graph
 * that lives. Cores are of the rank that takes most, and of all routers together.
 */
#define CREW_PROGRAM "ferry-callers"
#include "tests/gpu/crew.cuh"
extern "C" {
#include "ipc/process.h"
}
#include <ctype.h>
#include <dirent.h>
#include <time.h>

#define LEAST       ((size_t)64 << 10)
#define MOST        ((size_t)1 << 30)
#define FACTOR      4
#define ROW_US      1e6
#define LEAST_CALLS 8
#define MOST_CALLS  5000
#define SETTLE_US   3000000 /* until what was used last has been forgotten, and idle threads sleep */
#define IDLE_US     2000000

static std::vector<clockid_t> routers; /* of all on this machine: it is the benchmark's alone */

/* Microseconds that processors have spent since the start. */
struct cpu {
	double process_us, routers_us;
};

static void find_routers(void)
{
	DIR *processes = opendir("/proc");
	while (struct dirent *entry = processes ? readdir(processes) : NULL) {
		char path[64], name[32] = "";
		clockid_t clock;
		snprintf(path, sizeof path, "/proc/%.20s/comm", entry->d_name);
		FILE *file = isdigit(entry->d_name[0]) ? fopen(path, "r") : NULL;
		if (file && fgets(name, sizeof name, file) && !strcmp(name, "ferry-router\n") &&
		    !clock_getcpuclockid(atoi(entry->d_name), &clock))
			routers.push_back(clock);
		if (file)
			fclose(file);
	}
	if (processes)
		closedir(processes);
}

static double read_us(clockid_t clock)
{
	struct timespec spent;
	if (clock_gettime(clock, &spent)) /* a router that is gone has spent nothing since */
		return 0;
	return (double)spent.tv_sec * 1e6 + (double)spent.tv_nsec / 1e3;
}

static struct cpu read_cpu(void)
{
	struct cpu cpu = {read_us(CLOCK_PROCESS_CPUTIME_ID), 0};
	for (clockid_t clock : routers)
		cpu.routers_us += read_us(clock);
	return cpu;
}

/* Percent of a core since `before`. */
static void cores_since(const struct cpu *before, double us, double *process, double *of_routers)
{
	struct cpu now = read_cpu();
	*process = crew_agree((now.process_us - before->process_us) / us * 100, ferryMax);
	*of_routers = crew_agree((now.routers_us - before->routers_us) / us * 100, ferryMax);
}

static void measure_row(bool gathers, size_t bytes)
{
	std::vector<double> caller;
	struct cpu before;
	double process, of_routers;
	for (int i = 0; i < 3; i++)
		crew_call(gathers, bytes);
	crew_agree(0, ferryMax);
	double start = crew_now_us();
	for (int i = 0; i < 3; i++) {
		crew_call(gathers, bytes);
		CUDA(cudaStreamSynchronize(crew.stream));
	}
	double each = crew_agree((crew_now_us() - start) / 3, ferryMax);
	int calls = std::max(LEAST_CALLS, std::min(MOST_CALLS, (int)(ROW_US / each)));
	caller.reserve((size_t)calls);
	before = read_cpu();
	start = crew_now_us();
	for (int i = 0; i < calls; i++) {
		double called = crew_now_us();
		crew_call(gathers, bytes);
		caller.push_back(crew_now_us() - called);
		CUDA(cudaStreamSynchronize(crew.stream));
	}
	double us = crew_now_us() - start;
	cores_since(&before, us, &process, &of_routers);
	double median = crew_agree(crew_median(caller), ferryMax);
	std::sort(caller.begin(), caller.end());
	double late = crew_agree(caller[caller.size() * 99 / 100], ferryMax);
	us = crew_agree(us / calls, ferryMax);
	if (!crew.rank)
		printf("%-9s %10zu KiB %6d %10.1f us %9.2f GB/s %8.1f us %8.1f us %8.1f %% %8.1f %%\n",
		       gathers ? "allgather" : "allreduce", bytes >> 10, calls, us, (double)bytes / us / 1e3, median,
		       late, process, of_routers);
}

static void measure_idle(const char *what)
{
	struct cpu before;
	double process, of_routers;
	usleep(SETTLE_US);
	before = read_cpu();
	double start = crew_now_us();
	usleep(IDLE_US);
	cores_since(&before, crew_now_us() - start, &process, &of_routers);
	if (!crew.rank)
		printf("idle for 2 s, %-32s rank %6.2f %%, routers %6.2f %%\n", what, process, of_routers);
}

static cudaGraphExec_t capture_and_replay(void)
{
	cudaGraph_t captured;
	cudaGraphExec_t graph;
	CUDA(cudaStreamBeginCapture(crew.stream, cudaStreamCaptureModeGlobal));
	crew_call(false, (size_t)1 << 20);
	CUDA(cudaStreamEndCapture(crew.stream, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
	for (int i = 0; i < 3; i++)
		CUDA(cudaGraphLaunch(graph, crew.stream));
	CUDA(cudaStreamSynchronize(crew.stream));
	return graph;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		bool help = !strcmp(argv[1], "--help");
		fprintf(help ? stdout : stderr,
		        "Usage: ferryrun --fork -n GPUS -- ferry-callers\n"
		        "What calls cost their callers: time per call, and the cores of ranks and routers.\n");
		return help ? 0 : 64;
	}
	if (ferry_descriptors_fill())
		DIE("no file for each of the standard descriptors");
	if (!crew_open(cudaDeviceScheduleBlockingSync, MOST))
		return 77;
	find_routers();
	if (!crew.rank)
		printf("%d ranks, %u routers; each call waited for, blocking; cores in percent of one\n"
		       "%-9s %14s %6s %13s %14s %11s %11s %10s %10s\n",
		       crew.nranks, (unsigned)routers.size(), "", "size", "calls", "each", "", "caller", "99th",
		       "a rank", "routers");
	for (int gathers = 0; gathers < 2; gathers++)
		for (size_t bytes = LEAST; bytes <= MOST; bytes *= FACTOR)
			measure_row(gathers, bytes);
	measure_idle("no graph");
	cudaGraphExec_t graph = capture_and_replay();
	measure_idle("a captured call alive");
	CUDA(cudaGraphExecDestroy(graph));
	crew_close();
	return 0;
}
