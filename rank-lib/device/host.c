/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/device/host.h"

#include "ipc/error.h"
#include "rank-lib/device/default_stream.h"
#include "rank-lib/device/host_stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct ferry_host_device *devices[FERRY_HOST_DEVICES];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

static ferryResult_t check_stream(struct ferry_device *device, ferryStream_t stream, struct ferry_stream_state *state)
{
	*state = (struct ferry_stream_state){.stream = stream};
	return stream ? ferry_host_check_stream(stream) : ferry_default_stream(device->ordinal, &state->stream);
}

static ferryResult_t check_buffer(struct ferry_device *device, const void *buffer, size_t bytes, const char *what)
{
	(void)device, (void)buffer, (void)bytes, (void)what;
	return ferrySuccess; /* any memory of the process */
}

static int node(struct ferry_device *device)
{
	(void)device;
	return -1;
}

static void close_device(struct ferry_device *base)
{
	struct ferry_host_device *device = (struct ferry_host_device *)base;
	pthread_mutex_lock(&devices_lock);
	if (--device->users == 0) {
		devices[base->ordinal] = NULL;
		free(device);
	}
	pthread_mutex_unlock(&devices_lock);
}

static const struct ferry_device_ops host_ops = {.kind = "host",
                                                 .enqueue_ticket = ferry_host_enqueue,
                                                 .check_stream = check_stream,
                                                 .check_buffer = check_buffer,
                                                 .node = node,
                                                 .close = close_device};

void ferry_host_before_fork(void)
{
	ferry_default_streams_before_fork();
	pthread_mutex_lock(&devices_lock); /* second: a thread with the first lock may close a device */
}

void ferry_host_after_fork(bool in_child)
{
	if (in_child)
		memset(devices, 0, sizeof devices);
	pthread_mutex_unlock(&devices_lock);
	ferry_default_streams_after_fork(in_child);
}

ferryResult_t ferry_host_device_open(int ordinal, struct ferry_device **opened)
{
	ferryResult_t result = ferrySuccess;
	if (ordinal < 0 || ordinal >= FERRY_HOST_DEVICES)
		return ferry_fail(ferryInvalidArgument, "host device %d: 0 to %d", ordinal, FERRY_HOST_DEVICES - 1);
	pthread_mutex_lock(&devices_lock);
	struct ferry_host_device *device = devices[ordinal];
	if (!device) {
		device = calloc(1, sizeof *device);
		if (!device)
			result = ferry_fail(ferrySystemError, "no memory for a host device");
		else if ((result = ferry_host_copier_open(&device->copier))) {
			free(device);
			device = NULL;
		}
	}
	if (device && !devices[ordinal]) { /* lanes read the fields from then on */
		device->base.ops = &host_ops;
		device->base.copier = &device->copier.base;
		device->base.ordinal = ordinal;
		devices[ordinal] = device;
	}
	if (device) {
		device->users++;
		*opened = &device->base;
	}
	pthread_mutex_unlock(&devices_lock);
	return result;
}
