/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A double of the driver's management library. Of processes it knows what ferry-stat asks: one GPU, two of them. Of
 * NVLinks it says what FAKE_NVML_LINKS does, of the GPUs of the double of the driver (tests/fake_cuda): as 0-1:2,3-s:6,
 * two NVLinks between GPUs 0 and 1, six from GPU 3 to switches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DONE        0
#define NOT_FOUND   6
#define TOO_SMALL   7
#define NOT_STARTED 1
#define UNSUPPORTED 3

#define MOST_GPUS    16
#define MOST_LINKS   18
#define SWITCH       200 /* its bus; GPU n has bus n + 1 */

struct process_info { /* nvml.h: nvmlProcessInfo_t */
	unsigned pid;
	unsigned long long used;
	unsigned instance, compute_instance;
};

struct pci_info { /* nvml.h: nvmlPciInfo_t */
	char legacy[16];
	unsigned domain, bus, device, ids, subsystem;
	char text[32];
};

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process_info *all);
int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *pci);
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci_info *remote);

static int started;
static unsigned char gpus[MOST_GPUS]; /* their addresses are handles */

int nvmlInit_v2(void)
{
	started = 1;
	return DONE;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	unsigned first;
	if (!started)
		return NOT_STARTED;
	*device = &started;
	if (!strcmp(uuid, "GPU-fake"))
		return DONE;
	if (!getenv("FAKE_NVML_LINKS") || sscanf(uuid, "GPU-%2x", &first) != 1)
		return NOT_FOUND;
	*device = &gpus[(first ^ 0xfa) >> 4 & (MOST_GPUS - 1)]; /* uuid_byte() of tests/fake_cuda/device.c */
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

/* The bus that a GPU's NVLink leads to; 0: it has no such link. */
static unsigned find_remote(int gpu, unsigned link)
{
	const char *text = getenv("FAKE_NVML_LINKS");
	unsigned before = 0;
	for (; text && *text; text = strchr(text, ','), text += text != NULL) {
		int one, other = SWITCH - 1, links;
		if (sscanf(text, "%d-s:%d", &one, &links) != 2 && sscanf(text, "%d-%d:%d", &one, &other, &links) != 3)
			return 0;
		if (one != gpu && other != gpu)
			continue;
		before += (unsigned)links;
		if (link < before)
			return (unsigned)(one == gpu ? other : one) + 1;
	}
	return 0;
}

static int number_of(const void *device)
{
	return (int)((const unsigned char *)device - gpus);
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *pci)
{
	if (device == &started)
		return NOT_FOUND;
	*pci = (struct pci_info){.bus = (unsigned)number_of(device) + 1};
	return DONE;
}

/* A GPU without NVLinks does not support the question. */
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
	if (device == &started || link >= MOST_LINKS || !find_remote(number_of(device), 0))
		return UNSUPPORTED;
	*active = find_remote(number_of(device), link) != 0;
	return DONE;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci_info *remote)
{
	unsigned bus = device == &started ? 0 : find_remote(number_of(device), link);
	if (!bus)
		return UNSUPPORTED;
	*remote = (struct pci_info){.bus = bus};
	return DONE;
}
