/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/clock.h"

#include "router/copy/cuda_driver.h"

static const struct ferry_cuda_driver *open_driver(void)
{
	const struct ferry_cuda_driver *driver;
	return ferry_cuda_driver_open(&driver) ? NULL : driver;
}

bool ferry_clock_captures(cudaStream_t stream)
{
	const struct ferry_cuda_driver *driver = open_driver();
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	return driver &&
	       (driver->StreamIsCapturing((CUstream)stream, &status) || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* A program that drives several GPUs by one thread calls with streams of contexts that are not current. */
static bool record(void **event, cudaStream_t stream)
{
	const struct ferry_cuda_driver *driver = open_driver();
	CUcontext of_stream, before;
	if (!driver || driver->CtxGetCurrent(&before) || driver->StreamGetCtx((CUstream)stream, &of_stream))
		return false;
	bool elsewhere = of_stream != before;
	if (elsewhere && driver->CtxSetCurrent(of_stream))
		return false;
	bool recorded = (*event || !driver->EventCreate((CUevent *)event, CU_EVENT_DEFAULT)) &&
	                !driver->EventRecord((CUevent)*event, (CUstream)stream);
	if (elsewhere)
		driver->CtxSetCurrent(before);
	return recorded;
}

bool ferry_clock_start(struct ferry_clock *clock, cudaStream_t stream)
{
	return record(&clock->start, stream);
}

bool ferry_clock_stop(struct ferry_clock *clock, cudaStream_t stream)
{
	return record(&clock->end, stream);
}

bool ferry_clock_read(const struct ferry_clock *clock, double *us)
{
	const struct ferry_cuda_driver *driver = open_driver();
	float ms;
	if (!driver || !clock->end || driver->EventQuery((CUevent)clock->end) ||
	    driver->EventElapsedTime(&ms, (CUevent)clock->start, (CUevent)clock->end))
		return false;
	*us = 1e3 * (double)ms;
	return true;
}

void ferry_clock_free(struct ferry_clock *clock)
{
	const struct ferry_cuda_driver *driver = open_driver();
	if (driver && clock->start)
		driver->EventDestroy((CUevent)clock->start);
	if (driver && clock->end)
		driver->EventDestroy((CUevent)clock->end);
	*clock = (struct ferry_clock){NULL, NULL};
}
