/* SPDX-License-Identifier: Apache-2.0 */
/* A double of the driver's management library, with what ferry-stat asks of it: one GPU, two processes. */
#include <string.h>

#define DONE        0
#define NOT_FOUND   6
#define TOO_SMALL   7
#define NOT_STARTED 1

struct process_info { /* nvml.h: nvmlProcessInfo_t */
	unsigned pid;
	unsigned long long used;
	unsigned instance, compute_instance;
};

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process_info *all);

static int started;

int nvmlInit_v2(void)
{
	started = 1;
	return DONE;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	if (!started)
		return NOT_STARTED;
	if (strcmp(uuid, "GPU-fake") != 0)
		return NOT_FOUND;
	*device = &started;
	return DONE;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process_info *all)
{
	if (device != &started)
		return NOT_FOUND;
	if (*count < 2)
		return TOO_SMALL;
	all[0] = (struct process_info){.pid = 4712, .used = ~0ull};
	all[1] = (struct process_info){.pid = 4711, .used = 525ull << 20};
	*count = 2;
	return DONE;
}
