/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/device_buffers.h"

#include <stdio.h>

#define GUARD 128 /* of trial_run.c */

static char *moved(const struct device_buffers *buffers, const char *pointer)
{
	const struct trial_buffers *host = &buffers->host;
	for (int which = 0; which < 2; which++)
		if (pointer >= host->memory[which] && pointer <= host->memory[which] + buffers->bytes[which])
			return (char *)pointer_of(buffers->memory[which]) + (pointer - host->memory[which]);
	return NULL;
}

void device_buffers_open(struct ferry_trial *trial, int rank, int device, unsigned offset,
                         struct device_buffers *buffers)
{
	struct trial_buffers *host = &buffers->host;
	assert_true(trial_buffers_open(trial, rank, offset, host));
	place_enter(&(struct place){.device = device});
	CU(cuStreamCreate(&buffers->stream, CU_STREAM_NON_BLOCKING));
	for (int which = 0; which < 2; which++) {
		buffers->bytes[which] = (size_t)(host->area[which] - host->memory[which]) + host->bytes[which] + GUARD;
		CU(cuMemAlloc(&buffers->memory[which], buffers->bytes[which]));
		CU(cuMemcpy(buffers->memory[which], (uintptr_t)host->memory[which], buffers->bytes[which]));
	}
	buffers->send = moved(buffers, host->send);
	buffers->receive = moved(buffers, host->receive);
}

size_t device_buffers_close(struct ferry_trial *trial, int rank, int device, struct device_buffers *buffers)
{
	place_enter(&(struct place){.device = device});
	CU(cuStreamSynchronize(buffers->stream));
	for (int which = 0; which < 2; which++)
		CU(cuMemcpy((uintptr_t)buffers->host.memory[which], buffers->memory[which], buffers->bytes[which]));
	size_t wrong = trial_buffers_wrong(trial, rank, &buffers->host);
	if (wrong)
		fprintf(stderr, "%s: rank %d: %zu wrong\n", trial_text(trial), rank, wrong);
	for (int which = 0; which < 2; which++)
		CU(cuMemFree(buffers->memory[which]));
	CU(cuStreamDestroy(buffers->stream));
	trial_buffers_close(&buffers->host);
	return wrong;
}
