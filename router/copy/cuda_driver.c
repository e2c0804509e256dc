/* SPDX-License-Identifier: Apache-2.0 */
#include "router/copy/cuda_driver.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct ferry_cuda_driver loaded;
static ferryResult_t load_result;
static char load_message[512];
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

ferryResult_t ferry_cuda_failed(const struct ferry_cuda_driver *driver, CUresult result, const char *tried)
{
	const char *words = NULL;
	if (driver->GetErrorString(result, &words) || !words)
		words = "unknown error";
	return ferry_fail(ferryUnhandledDeviceError, "%s: %s (CUDA error %d)", tried, words, (int)result);
}

static ferryResult_t find_functions(void *library, const char *name)
{
#define CUDA_FUNCTION(function, symbol, parameters)                                                                    \
	if (!(*(void **)&loaded.function = dlsym(library, #symbol)))                                                   \
		return ferry_fail(ferryInvalidUsage, "%s has no " #symbol ": the driver is older than CUDA 12.8",      \
		                  name);
#include "router/copy/cuda_functions.def"
#undef CUDA_FUNCTION
	return ferrySuccess;
}

static ferryResult_t load(void)
{
	const char *chosen = ferry_env("FERRY_CUDA_LIBRARY"), *name = chosen ? chosen : "libcuda.so.1";
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return ferry_fail(ferryInvalidUsage, "%s: %s", chosen ? "FERRY_CUDA_LIBRARY" : "no CUDA driver",
		                  dlerror());
	ferryResult_t result = find_functions(library, name);
	if (result)
		return result;
	int count = 0;
	CUresult refused = loaded.Init(0);
	if (!refused)
		refused = loaded.DeviceGetCount(&count);
	if (refused)
		return ferry_cuda_failed(&loaded, refused, "starting the CUDA driver");
	return count ? ferrySuccess
	             : ferry_fail(ferryInvalidUsage, "the CUDA driver shows no device (CUDA_VISIBLE_DEVICES?)");
}

static void load_and_remember(void)
{
	load_result = load();
	if (load_result)
		snprintf(load_message, sizeof load_message, "%s", ferry_last_message());
}

ferryResult_t ferry_cuda_driver_open(const struct ferry_cuda_driver **driver)
{
	pthread_once(&load_once, load_and_remember);
	*driver = &loaded;
	return load_result ? ferry_fail(load_result, "%s", load_message) : ferrySuccess;
}

CUresult ferry_cuda_open_handle(const struct ferry_cuda_driver *driver, const uint8_t handle[64], CUdeviceptr *address,
                                uint64_t *bytes)
{
	CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	CUdeviceptr start = 0;
	size_t size = 0;
	void *values[] = {&start, &size};
	CUipcMemHandle given;
	memcpy(&given, handle, sizeof given);
	CUresult refused = driver->IpcOpenMemHandle(address, given, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (refused)
		return refused;
	refused = driver->PointerGetAttributes(2, attributes, values, *address);
	if (refused)
		driver->IpcCloseMemHandle(*address);
	*bytes = start + size - *address;
	return refused;
}
