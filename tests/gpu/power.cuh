/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The power that this process's GPU draws, and what holds its clock down, by NVML, which is opened at run time.
 * Included by ferry-gemm alone, behind its DIE and CUDA.
 */
#ifndef FERRY_TESTS_GPU_POWER_CUH
#define FERRY_TESTS_GPU_POWER_CUH

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#define SAMPLE_US 10000

typedef int (*handle_function)(const char *, void **);
struct field { /* nvml.h: nvmlFieldValue_t */
	unsigned id, scope;
	long long time, latency;
	unsigned type;
	int result;
	unsigned value[2];
};
typedef int (*fields_function)(void *, int, struct field *);
typedef int (*reasons_function)(void *, unsigned long long *);
static void *power_of; /* NVML's name of this GPU; NULL: nothing is known */
static fields_function read_fields;
static reasons_function read_reasons;

/** Without NVML, or where it does not know this GPU, nothing is known. */
static void open_power(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *handle;
	char bus[32];
	int device;
	if (!library)
		return;
	int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
	handle_function find = (handle_function)dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
	read_fields = (fields_function)dlsym(library, "nvmlDeviceGetFieldValues");
	read_reasons = (reasons_function)dlsym(library, "nvmlDeviceGetCurrentClocksThrottleReasons");
	CUDA(cudaGetDevice(&device));
	CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
	if (init && find && read_fields && read_reasons && !init() && !find(bus, &handle))
		power_of = handle;
}

struct watched {
	/* mean; how much of the time power, and anything else, held the clock down, percent; -1: unknown */
	double watts, power, other;
};

/** Waits for the stream, and looks at the power meanwhile. */
static struct watched wait_and_watch(cudaStream_t stream)
{
	/*
	 * nvml.h: POWER_INSTANT (the usual reading is a mean over a second); SwPowerCap and HwPowerBrake; Idle and
	 * clocks set by hand
	 */
	const unsigned power_instant = 186;
	const unsigned long long by_power = 4 | 128, by_nothing = 1 | 2;
	struct watched sums = {};
	int samples = 0;
	cudaError_t state;
	while (power_of && (state = cudaStreamQuery(stream)) != cudaSuccess) {
		struct field field = {};
		unsigned long long reasons;
		field.id = power_instant;
		if (state != cudaErrorNotReady)
			DIE("the products: %s", cudaGetErrorString(state));
		if (!read_fields(power_of, 1, &field) && !field.result && !read_reasons(power_of, &reasons)) {
			sums.watts += field.value[0] / 1e3;
			sums.power += reasons & by_power ? 100 : 0;
			sums.other += reasons & ~(by_power | by_nothing) ? 100 : 0;
			samples++;
		}
		usleep(SAMPLE_US);
	}
	CUDA(cudaStreamSynchronize(stream));
	if (!samples)
		return {-1, -1, -1};
	return {sums.watts / samples, sums.power / samples, sums.other / samples};
}

#endif
