/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The buffers of a rank's trial (tests/trial_run.h) in the memory of a fake GPU, with guards and all, and a stream to
 * call on.
 */
#ifndef FERRY_TESTS_DEVICE_BUFFERS_H
#define FERRY_TESTS_DEVICE_BUFFERS_H

#include "tests/fake_cuda/places.h"
#include "tests/trial_run.h"

struct device_buffers {
	struct trial_buffers host; /* what goes there, and what has come back */
	CUdeviceptr memory[2];
	size_t bytes[2];
	CUstream stream;
	char *send, *receive; /* to call with */
};

/** Makes the device current, and leaves it so. offset: as trial_buffers_open's. */
void device_buffers_open(struct ferry_trial *trial, int rank, int device, unsigned offset,
                         struct device_buffers *buffers);
/** Waits for the stream, and frees all; elements wrong and bytes damaged at this rank. */
size_t device_buffers_close(struct ferry_trial *trial, int rank, int device, struct device_buffers *buffers);

#endif
