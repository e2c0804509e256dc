/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/device/open.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "rank-lib/device/cuda.h"
#include "rank-lib/device/host.h"
#include "router/copy/cuda_driver.h"

#include <string.h>

static bool has_cuda_device(void)
{
	const struct ferry_cuda_driver *driver;
	return ferry_cuda_driver_open(&driver) == ferrySuccess;
}

ferryResult_t ferry_device_open(const char *kind, int ordinal, int local_rank, struct ferry_device **device)
{
	if (!kind) /* if FERRY_CUDA_LIBRARY names a driver, its error is reported instead */
		kind = ferry_env("FERRY_CUDA_LIBRARY") || has_cuda_device() ? "cuda" : "host";
	if (!strcmp(kind, "host"))
		return ferry_host_device_open(ordinal >= 0 ? ordinal : local_rank, device);
	if (!strcmp(kind, "cuda"))
		return ferry_cuda_device_open(ordinal, local_rank, device);
	return ferry_fail(ferryInvalidArgument, "FERRY_DEVICE (or the configuration's device) \"%s\": host or cuda",
	                  kind);
}

void ferry_device_close(struct ferry_device *device)
{
	if (device)
		device->ops->close(device);
}
