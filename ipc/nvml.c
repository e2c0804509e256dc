/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define MOST_PROCESSES 256
#define MOST_LINKS     18 /* nvml.h: NVML_NVLINK_MAX_LINKS */

/* nvml.h's nvmlProcessInfo_t, as _v3 of the function fills it in. The library keeps old versions. */
struct process_info {
	unsigned pid;
	unsigned long long used; /* ~0: not known */
	unsigned instance, compute_instance;
};

/* nvml.h's nvmlPciInfo_t, as _v3 of the function fills it in. */
struct pci_info {
	char legacy[16];
	unsigned domain, bus, device, ids, subsystem;
	char text[32];
};

static pthread_once_t opened = PTHREAD_ONCE_INIT;

/* Functions that this version of the library does not have, or all without one, are NULL. */
static struct {
	bool started;
	int (*init)(void);
	int (*by_uuid)(const char *uuid, void **device);
	int (*processes)(void *device, unsigned *count, struct process_info *all);
	int (*link_state)(void *device, unsigned link, unsigned *active);
	int (*link_remote)(void *device, unsigned link, struct pci_info *remote);
	int (*pci)(void *device, struct pci_info *pci);
} nvml;

static void *function(void *library, const char *name)
{
	return library ? dlsym(library, name) : NULL;
}

static void open_library(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	*(void **)&nvml.init = function(library, "nvmlInit_v2");
	*(void **)&nvml.by_uuid = function(library, "nvmlDeviceGetHandleByUUID");
	*(void **)&nvml.processes = function(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	*(void **)&nvml.link_state = function(library, "nvmlDeviceGetNvLinkState");
	*(void **)&nvml.link_remote = function(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
	*(void **)&nvml.pci = function(library, "nvmlDeviceGetPciInfo_v3");
	nvml.started = nvml.init && nvml.by_uuid && !nvml.init();
}

static bool find_device(const char *uuid, void **device)
{
	pthread_once(&opened, open_library);
	return nvml.started && !nvml.by_uuid(uuid, device);
}

uint64_t ferry_nvml_process_bytes(const char *uuid, pid_t pid)
{
	void *device;
	struct process_info all[MOST_PROCESSES];
	unsigned count = MOST_PROCESSES;
	if (!find_device(uuid, &device) || !nvml.processes || nvml.processes(device, &count, all))
		return 0;
	for (unsigned i = 0; i < count && i < MOST_PROCESSES; i++)
		if (all[i].pid == (unsigned)pid)
			return all[i].used == ~0ull ? 0 : all[i].used;
	return 0;
}

static bool is_same(const struct pci_info *one, const struct pci_info *other)
{
	return one->domain == other->domain && one->bus == other->bus && one->device == other->device;
}

uint8_t ferry_nvml_count_links(const char *from, const char *to)
{
	void *device, *other;
	struct pci_info pci, remote;
	unsigned active;
	uint8_t count = 0;
	if (!find_device(from, &device) || !find_device(to, &other) || !nvml.link_state || !nvml.link_remote ||
	    !nvml.pci || nvml.pci(other, &pci))
		return 0;
	for (unsigned link = 0; link < MOST_LINKS; link++)
		if (!nvml.link_state(device, link, &active) && active && !nvml.link_remote(device, link, &remote))
			count += is_same(&remote, &pci);
	return count;
}
