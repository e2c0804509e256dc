/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While a stream is captured, a query of an unrelated event ends the capture: in the thread that captures or, if the
 * capture is global, in any thread. So threads create, query and destroy Ferry's events in relaxed mode. To record an
 * event is allowed.
 */
#include "orchestrator/clock.h"

#include "ipc/wait.h"
#include "router/copy/cuda_driver.h"

#include <math.h>

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

bool ferry_clock_look(struct ferry_clock_look *look, cudaStream_t stream)
{
	if (!look->asked || look->stream != stream)
		*look = (struct ferry_clock_look){stream, true, ferry_clock_captures(stream)};
	return look->captures;
}

int ferry_clock_relax(void)
{
	const struct ferry_cuda_driver *driver = open_driver();
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (driver)
		driver->ThreadExchangeStreamCaptureMode(&mode);
	return (int)mode;
}

void ferry_clock_restore(int mode)
{
	const struct ferry_cuda_driver *driver = open_driver();
	CUstreamCaptureMode before = (CUstreamCaptureMode)mode;
	if (driver)
		driver->ThreadExchangeStreamCaptureMode(&before);
}

/* Gives the time between two events; false if the stream has not passed the later one. */
static bool elapsed(void *earlier, void *later, double *us)
{
	const struct ferry_cuda_driver *driver = open_driver();
	float ms;
	if (!driver || !earlier || !later || driver->EventElapsedTime(&ms, (CUevent)earlier, (CUevent)later))
		return false;
	*us = 1e3 * (double)ms;
	return true;
}

/* Makes both events, in the current context. */
static bool make(const struct ferry_cuda_driver *driver, struct ferry_clock *clock)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	driver->ThreadExchangeStreamCaptureMode(&mode);
	CUresult refused = driver->EventCreate((CUevent *)&clock->start, CU_EVENT_DEFAULT);
	if (!refused && (refused = driver->EventCreate((CUevent *)&clock->end, CU_EVENT_DEFAULT))) {
		driver->EventDestroy((CUevent)clock->start);
		clock->start = NULL;
	}
	driver->ThreadExchangeStreamCaptureMode(&mode);
	return !refused;
}

void ferry_clock_prepare(struct ferry_clock *clock)
{
	const struct ferry_cuda_driver *driver = open_driver();
	if (driver && !clock->start && !driver->CtxGetCurrent((CUcontext *)&clock->context) && clock->context)
		make(driver, clock);
}

/* The stream's context may not be current: a program may drive several GPUs by one thread. */
static bool record(struct ferry_clock *clock, bool starts, cudaStream_t stream)
{
	const struct ferry_cuda_driver *driver = open_driver();
	CUcontext before;
	if (!driver || driver->CtxGetCurrent(&before) ||
	    (!clock->start && driver->StreamGetCtx((CUstream)stream, (CUcontext *)&clock->context)))
		return false;
	bool elsewhere = clock->context != before;
	if (elsewhere && driver->CtxSetCurrent((CUcontext)clock->context))
		return false;
	bool recorded = (clock->start || make(driver, clock)) &&
	                !driver->EventRecord((CUevent)(starts ? clock->start : clock->end), (CUstream)stream);
	if (elsewhere)
		driver->CtxSetCurrent(before);
	return recorded;
}

bool ferry_clock_start(struct ferry_clock *clock, cudaStream_t stream)
{
	clock->stream = stream;
	if (record(clock, true, stream))
		return true;
	if (!clock->start)
		return false;
	ferry_clock_free(clock); /* the stream may be of another context */
	clock->stream = stream;
	return record(clock, true, stream);
}

bool ferry_clock_stop(struct ferry_clock *clock, cudaStream_t stream)
{
	return record(clock, false, stream);
}

bool ferry_clock_read(const struct ferry_clock *clock, double *us)
{
	return elapsed(clock->start, clock->end, us);
}

bool ferry_clock_between(const struct ferry_clock *earlier, const struct ferry_clock *later, double *us)
{
	return elapsed(earlier->start, later->start, us);
}

double ferry_clock_overlap_us(const struct ferry_clock *ended, double us, const struct ferry_clock *other)
{
	double begins, ends;
	if (ended->stream == other->stream || !elapsed(ended->start, other->start, &begins))
		return 0;
	if (!elapsed(ended->start, other->end, &ends))
		ends = us; /* it still runs */
	return fmax(fmin(us, ends) - fmax(begins, 0), 0);
}

double ferry_clock_now_us(void)
{
	return (double)ferry_now_ns() / 1e3;
}

void ferry_clock_free(struct ferry_clock *clock)
{
	const struct ferry_cuda_driver *driver = open_driver();
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (driver) {
		driver->ThreadExchangeStreamCaptureMode(&mode);
		if (clock->start)
			driver->EventDestroy((CUevent)clock->start);
		if (clock->end)
			driver->EventDestroy((CUevent)clock->end);
		driver->ThreadExchangeStreamCaptureMode(&mode);
	}
	*clock = (struct ferry_clock){.start = NULL};
}
