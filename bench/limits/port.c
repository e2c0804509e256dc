/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/limits/port.h"

#include "ipc/error.h"
#include "ipc/machine.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

ferryResult_t port_enter(struct port *port)
{
	return gpu_good(gpu_driver->CtxSetCurrent(port->context), "making the GPU's primary context current");
}

ferryResult_t port_reach(struct port *from, const struct port *to, bool *reached, bool *atomics)
{
	CUdevice device, peer;
	int can = 0, has = 0;
	*reached = *atomics = false;
	CUresult refused = gpu_driver->DeviceGet(&device, from->index);
	if (!refused)
		refused = gpu_driver->DeviceGet(&peer, to->index);
	if (!refused)
		refused = gpu_driver->DeviceCanAccessPeer(&can, device, peer);
	if (!refused)
		refused = gpu_driver->DeviceGetP2PAttribute(&has, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
		                                            device, peer);
	*atomics = has;
	if (refused)
		return gpu_good(refused, "asking whether one GPU reaches another's memory");
	ferryResult_t result = port_enter(from);
	if (result || !can)
		return result;
	refused = gpu_driver->CtxEnablePeerAccess(to->context, 0);
	*reached = !refused || refused == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	if (*reached || refused == CUDA_ERROR_TOO_MANY_PEERS) /* a GPU without an NVSwitch has at most eight */
		return ferrySuccess;
	return gpu_good(refused, "opening one GPU's memory to another");
}

CUresult port_copy(const struct port *port, bool d2h, CUstream stream, char *host, uint64_t offset, uint64_t bytes)
{
	return d2h ? gpu_driver->MemcpyDtoHAsync(host, port->d2h.memory + offset, bytes, stream)
	           : gpu_driver->MemcpyHtoDAsync(port->h2d.memory + offset, host, bytes, stream);
}

/* As ranks find theirs: by the driver, else by sysfs. */
static int numa_node_of(CUdevice device, const char *pci)
{
	char path[96];
	int node = -1;
	if (!gpu_driver->DeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) && node >= 0)
		return node;
	node = -1;
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

static ferryResult_t find_facts(struct port *port)
{
	struct ferry_limits_gpu *facts = port->facts;
	CUdevice device;
	CUresult refused = gpu_driver->DeviceGet(&device, port->index);
	if (!refused)
		refused = gpu_driver->DeviceGetName(facts->name, sizeof facts->name, device);
	if (!refused)
		refused = gpu_driver->DeviceGetPCIBusId(facts->pci, sizeof facts->pci, device);
	facts->numa_node = refused ? -1 : numa_node_of(device, facts->pci);
	return gpu_good(refused, "asking the driver about the GPU");
}

/* As an arena: shared memory on the GPU's node, populated, then registered. */
static ferryResult_t make_host_memory(struct port *port)
{
	cpu_set_t near;
	ferry_machine_node_cpus(port->facts->numa_node, &near);
	if (CPU_COUNT(&near)) /* memory lies where it is touched first; the thread ends with port_open */
		sched_setaffinity(0, sizeof near, &near);
	int file = memfd_create("ferry-limits", MFD_CLOEXEC);
	void *memory = MAP_FAILED;
	if (file >= 0 && !ftruncate(file, PORT_BUFFER))
		memory = mmap(NULL, PORT_BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
	int error = errno;
	if (file >= 0)
		close(file);
	if (memory == MAP_FAILED)
		return ferry_fail(ferrySystemError, "mapping %llu bytes of shared memory: %s", PORT_BUFFER,
		                  strerror(error));
	port->host = memory;
	unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	ferryResult_t result = gpu_good(gpu_driver->MemHostRegister(memory, PORT_BUFFER, flags),
	                                "registering 256 MiB of shared memory");
	port->registered = !result;
	return result;
}

static ferryResult_t open_way(struct port_way *way)
{
	int least = 0, greatest = 0;
	ferryResult_t result = gpu_good(gpu_driver->MemAlloc(&way->memory, PORT_BUFFER),
	                                "allocating 256 MiB on the GPU");
	if (!result)
		result = gpu_good(gpu_driver->CtxGetStreamPriorityRange(&least, &greatest),
		                  "asking for the range of stream priorities");
	for (int i = 0; i < PORT_STREAMS && !result; i++) {
		CUstream *stream = &way->streams[i];
		result = gpu_good(gpu_driver->StreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, greatest),
		                  "creating a stream");
		for (int k = 0; k < PORT_DEPTH && !result; k++)
			result = gpu_good(gpu_driver->EventCreate(&way->events[i][k], CU_EVENT_DISABLE_TIMING),
			                  "creating an event");
	}
	return result;
}

ferryResult_t port_open(struct port *port)
{
	ferryResult_t result = find_facts(port);
	if (!result)
		result = gpu_enter(port->index, &port->context);
	if (!result)
		result = make_host_memory(port);
	if (!result)
		result = open_way(&port->d2h);
	if (!result)
		result = open_way(&port->h2d);
	if (result)
		return result;
	CUresult refused = gpu_driver->MemsetD8Async(port->d2h.memory, 1, PORT_BUFFER, port->d2h.streams[0]);
	return gpu_good(refused ? refused : gpu_driver->StreamSynchronize(port->d2h.streams[0]),
	                "filling the GPU's buffer");
}

static void close_way(struct port_way *way)
{
	for (int i = 0; i < PORT_STREAMS; i++) {
		for (int k = 0; k < PORT_DEPTH; k++)
			if (way->events[i][k])
				gpu_driver->EventDestroy(way->events[i][k]);
		if (way->streams[i])
			gpu_driver->StreamDestroy(way->streams[i]);
	}
	if (way->memory)
		gpu_driver->MemFree(way->memory);
}

void port_close(struct port *port)
{
	if (port->stuck)
		return;
	if (port->context && !port_enter(port)) {
		close_way(&port->d2h);
		close_way(&port->h2d);
		if (port->registered)
			gpu_driver->MemHostUnregister(port->host);
	}
	if (port->context)
		gpu_leave(port->index);
	if (port->host)
		munmap(port->host, PORT_BUFFER);
}
