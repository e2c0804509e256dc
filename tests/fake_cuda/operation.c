/* SPDX-License-Identifier: Apache-2.0 */
/* What streams do: copies, fills, words written and waited for, kernels; checked when asked for and again when run. */
#include "tests/fake_cuda/fake.h"
#include "tests/sanitized.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Flags of a copy: what each side must be. */
enum { FROM_HOST = 1, TO_HOST = 2, FROM_DEVICE = 4, TO_DEVICE = 8, PAGEABLE = 16 /* unknown: the process's own */ };

#define PAGE 4096u

/* What cuMemcpyHtoDAsync takes for short. */
#define INLINE_BYTES (32u << 10)

/* ---- running ---- */

void fake_fail_context(CUcontext context)
{
	int none = 0;
	fake_misused();
	atomic_compare_exchange_strong_explicit(&context->error, &none, CUDA_ERROR_ILLEGAL_ADDRESS,
	                                        memory_order_relaxed, memory_order_relaxed);
}

static bool is_others(const struct fake_region *region)
{
	return region->kind == FAKE_IMPORTED || region->kind == FAKE_MAPPED;
}

/* From device to device, in a process that owns neither side: half of it at once, and the rest after a while. */
static void move(CUcontext context, const struct fake_region *to, const struct fake_region *from,
                 const struct fake_operation *copy)
{
	char *there = to ? fake_at(to, copy->to) : (char *)copy->to;
	const char *here = from ? fake_at(from, copy->from) : (const char *)copy->from;
	bool slow = fake_push_ms && to && from && is_others(to) && is_others(from);
	size_t first = slow ? copy->bytes / 2 : copy->bytes;
	if (copy->bytes == 8 && ((uintptr_t)there | (uintptr_t)here) % 8 == 0) { /* a kernel may write it meanwhile */
		__atomic_store_n((uint64_t *)(void *)there,
		                 __atomic_load_n((const uint64_t *)(const void *)here, __ATOMIC_ACQUIRE),
		                 __ATOMIC_RELEASE);
		return;
	}
	sampled_copy(there, here, first);
	if (!slow)
		return;
	usleep(1000 * (unsigned)(fake_push_ms * (1 + context->physical)));
	sampled_copy(there + first, here + first, copy->bytes - first);
}

static void run_copy(CUcontext context, const struct fake_operation *copy)
{
	struct fake_region *to = fake_pin(copy->to, copy->bytes), *from = fake_pin(copy->from, copy->bytes);
	bool pageable = copy->flags & PAGEABLE;
	while (*fake_held && access(fake_held, F_OK) == 0)
		usleep(1000);
	if ((!to || !from) && !pageable)
		fake_fail_context(context);
	else if (to && from && fake_on_device(to) && fake_on_device(from) &&
	         fake_goes_astray(from->ordinal, to->ordinal))
		while (fake_endless)
			usleep(1000);
	else if (!fake_fault_of_context(context))
		move(context, to, from, copy);
	fake_unpin(to);
	fake_unpin(from);
}

static bool word_fits(const struct fake_operation *wait, const void *word)
{
	uint64_t value = wait->bytes == 8 ? __atomic_load_n((const uint64_t *)word, __ATOMIC_ACQUIRE)
	                                  : __atomic_load_n((const uint32_t *)word, __ATOMIC_ACQUIRE);
	switch (wait->flags & 3) {
	case CU_STREAM_WAIT_VALUE_GEQ:
		return wait->bytes == 8 ? (int64_t)(value - wait->value) >= 0
		                        : (int32_t)((uint32_t)value - (uint32_t)wait->value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return value == wait->value;
	case CU_STREAM_WAIT_VALUE_AND:
		return (value & wait->value) != 0;
	default:
		return (wait->bytes == 8 ? ~(value | wait->value) : (uint32_t)~(value | wait->value)) != 0;
	}
}

static void run_word(CUcontext context, const struct fake_operation *operation)
{
	struct fake_region *region = fake_pin(operation->to, operation->bytes);
	unsigned turn = 0;
	if (!region) {
		fake_fail_context(context);
		return;
	}
	void *word = fake_at(region, operation->to);
	int order = operation->flags & CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER ? __ATOMIC_RELAXED : __ATOMIC_RELEASE;
	if (operation->kind != FAKE_WRITE)
		while (!word_fits(operation, word) && !atomic_load_explicit(&context->error, memory_order_relaxed))
			fake_pause(&turn);
	else if (operation->bytes == 8)
		__atomic_store_n((uint64_t *)word, operation->value, order);
	else
		__atomic_store_n((uint32_t *)word, (uint32_t)operation->value, order);
	fake_unpin(region);
}

/* Gives back the pages of zeros, so that what is never used has none. */
static void zero(char *to, size_t bytes)
{
	char *first = (char *)(((uintptr_t)to + PAGE - 1) / PAGE * PAGE), *end = to + bytes;
	size_t pages = first < end ? (size_t)(end - first) / PAGE * PAGE : 0;
	sample(to, bytes, true);
	unseen(true);
	if (!pages || madvise(first, pages, MADV_REMOVE)) {
		memset(to, 0, bytes);
	} else {
		memset(to, 0, (size_t)(first - to));
		memset(first + pages, 0, (size_t)(end - first) - pages);
	}
	unseen(false);
}

static void run_set(CUcontext context, const struct fake_operation *set)
{
	struct fake_region *to = fake_pin(set->to, set->bytes);
	if (to && !set->value)
		zero(fake_at(to, set->to), set->bytes);
	else if (to)
		sampled_set(fake_at(to, set->to), (int)set->value, set->bytes);
	else
		fake_fail_context(context);
	fake_unpin(to);
}

void fake_mark_reach(struct fake_mark *mark)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	mark->ns = now.tv_sec * 1000000000ll + now.tv_nsec;
	atomic_store_explicit(&mark->reached, 1, memory_order_release);
}

/* Streams reach their marks and places even where the device has failed, so that threads that wait do not hang. */
static void run_order(const struct fake_operation *operation)
{
	unsigned turn = 0;
	if (operation->kind == FAKE_MARK)
		fake_mark_reach(operation->mark);
	else if (operation->kind == FAKE_AWAIT_MARK)
		while (!atomic_load_explicit(&operation->mark->reached, memory_order_acquire))
			fake_pause(&turn);
	else
		while (atomic_load_explicit(&operation->stream->completed, memory_order_acquire) < operation->value)
			fake_pause(&turn);
}

void fake_execute(CUcontext context, const struct fake_operation *operation)
{
	bool failed = atomic_load_explicit(&context->error, memory_order_relaxed);
	switch (operation->kind) {
	case FAKE_MARK:
	case FAKE_AWAIT_MARK:
	case FAKE_AWAIT_STREAM:
		run_order(operation);
		break;
	case FAKE_GRAPH: /* also counts the launch as over */
		fake_launch_run(context, operation);
		break;
	case FAKE_FREE:
		fake_memory_free(operation->to, 1u << FAKE_POOL);
		break;
	case FAKE_COPY:
		if (!failed)
			run_copy(context, operation);
		break;
	case FAKE_SET:
		if (!failed)
			run_set(context, operation);
		break;
	case FAKE_WRITE:
	case FAKE_WAIT:
	case FAKE_SPIN:
		if (!failed)
			run_word(context, operation);
		break;
	case FAKE_KERNEL:
		if (!failed)
			operation->kernel(operation->argument);
		break;
	case FAKE_AWAIT_BRANCH: /* the launch's own, all three */
	case FAKE_EXTERNAL_RECORD:
	case FAKE_EXTERNAL_WAIT:
		break;
	}
	if (operation->mark)
		fake_mark_drop(operation->mark);
}

void fake_mark_drop(struct fake_mark *mark)
{
	if (mark && atomic_fetch_sub_explicit(&mark->holders, 1, memory_order_acq_rel) == 1)
		free(mark);
}

/* ---- checks ---- */

/*
 * The device of the context may use this: another process's by its own mapping alone, as copies by another context's
 * really go by way of the host; this process's by peer access, unless the copy crosses the link.
 */
bool fake_may_use(CUcontext context, const struct fake_region *region, bool crosses)
{
	if (region->kind == FAKE_IMPORTED)
		return region->context == context;
	if (region->kind == FAKE_MAPPED)
		return region->access >> context->ordinal & 1;
	if (region->kind == FAKE_DEVICE && !crosses && region->ordinal != context->ordinal)
		return atomic_load_explicit(&context->peers, memory_order_relaxed) >> region->ordinal & 1;
	return !crosses || !fake_on_device(region) || region->ordinal == context->ordinal;
}

/* One side of a copy: known, whole, host or device memory as asked, and in reach. */
static bool side_fits(CUcontext context, uintptr_t address, size_t bytes, bool host, bool device, bool crosses,
                      bool pageable)
{
	struct fake_region *region = fake_pin(address, bytes), *start = fake_pin(address, 1);
	bool fits = region != NULL;
	if (!start) /* not the driver's; but a range that begins in known memory must end in it */
		fits = pageable && !device;
	else if (region && region->kind != FAKE_MANAGED)
		fits = !(host && fake_on_device(region)) && !(device && !fake_on_device(region)) &&
		       fake_may_use(context, region, crosses);
	fake_unpin(region);
	fake_unpin(start);
	return fits;
}

static CUresult check_copy(CUcontext context, const struct fake_operation *copy)
{
	bool pageable = copy->flags & PAGEABLE, crosses = copy->flags & (FROM_HOST | TO_HOST);
	if (!side_fits(context, copy->to, copy->bytes, copy->flags & TO_HOST, copy->flags & TO_DEVICE, crosses,
	               pageable) ||
	    !side_fits(context, copy->from, copy->bytes, copy->flags & FROM_HOST, copy->flags & FROM_DEVICE, crosses,
	               pageable)) {
		if (fake_memory_was_mapped(copy->to) || fake_memory_was_mapped(copy->from))
			fake_misused();
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult fake_operation_check(CUcontext context, const struct fake_operation *operation)
{
	struct fake_region *region;
	switch (operation->kind) {
	case FAKE_COPY:
		return check_copy(context, operation);
	case FAKE_SET:
	case FAKE_WRITE:
	case FAKE_WAIT:
		region = fake_pin(operation->to, operation->bytes);
		bool fits = region && fake_may_use(context, region, false);
		fake_unpin(region);
		if (!fits || (operation->kind != FAKE_SET && operation->to % operation->bytes))
			return CUDA_ERROR_INVALID_VALUE;
		return CUDA_SUCCESS;
	default:
		return CUDA_SUCCESS;
	}
}

/* ---- the driver's names ---- */

static CUresult submit_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, unsigned flags, CUstream stream)
{
	struct fake_operation copy = {
	        .kind = FAKE_COPY, .to = (uintptr_t)to, .from = (uintptr_t)from, .bytes = bytes, .flags = flags};
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (!refused)
		refused = fake_fault_of_call(context);
	return refused ? refused : fake_submit(stream, &copy, bytes ? 1 : 0);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return submit_copy(to, from, bytes, 0, stream);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return submit_copy((uintptr_t)to, from, bytes, TO_HOST | FROM_DEVICE, stream);
}

static _Atomic unsigned inline_copies;

unsigned fake_cuda_inline_copies(void)
{
	return atomic_load_explicit(&inline_copies, memory_order_relaxed);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	if (bytes < INLINE_BYTES)
		atomic_fetch_add_explicit(&inline_copies, 1, memory_order_relaxed);
	return submit_copy(to, (uintptr_t)from, bytes, TO_DEVICE | FROM_HOST, stream);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	CUresult refused = copy->srcMemoryType == CU_MEMORYTYPE_HOST && copy->dstMemoryType == CU_MEMORYTYPE_DEVICE &&
	                                   copy->WidthInBytes <= copy->srcPitch && copy->WidthInBytes <= copy->dstPitch
	                           ? CUDA_SUCCESS
	                           : CUDA_ERROR_INVALID_VALUE;
	for (size_t row = 0; !refused && row < copy->Height; row++)
		refused = submit_copy(copy->dstDevice + row * copy->dstPitch,
		                      (uintptr_t)copy->srcHost + row * copy->srcPitch, copy->WidthInBytes,
		                      TO_DEVICE | FROM_HOST, stream);
	return refused;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	while (*fake_stuck && access(fake_stuck, F_OK) == 0)
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	return submit_copy(to, from, bytes, TO_DEVICE | FROM_DEVICE, stream);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (!refused)
		refused = fake_unsafe_call();
	if (!refused)
		refused = submit_copy(to, from, bytes, PAGEABLE, CU_STREAM_LEGACY);
	return refused ? refused : cuStreamSynchronize(CU_STREAM_LEGACY);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	struct fake_operation set = {.kind = FAKE_SET, .to = (uintptr_t)to, .bytes = bytes, .value = value};
	return fake_submit(stream, &set, bytes ? 1 : 0);
}

CUresult fake_cuda_launch(CUstream stream, void (*kernel)(void *), void *argument)
{
	if (!kernel)
		return CUDA_ERROR_INVALID_VALUE;
	return fake_submit(stream,
	                   &(struct fake_operation){.kind = FAKE_KERNEL, .kernel = kernel, .argument = argument}, 1);
}

static CUresult word_operation(const CUstreamBatchMemOpParams *asked, struct fake_operation *operation)
{
	*operation = (struct fake_operation){.kind = FAKE_WAIT,
	                                     .to = (uintptr_t)asked->waitValue.address,
	                                     .value = asked->waitValue.value64,
	                                     .bytes = 8,
	                                     .flags = asked->waitValue.flags};
	switch (asked->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		operation->bytes = 4;
		operation->value = asked->waitValue.value;
		/* fall through */
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		if (operation->flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH))
			return CUDA_ERROR_INVALID_VALUE;
		return operation->flags & CU_STREAM_WAIT_VALUE_FLUSH && !fake_flush ? CUDA_ERROR_NOT_SUPPORTED
		                                                                    : CUDA_SUCCESS;
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		operation->bytes = 4;
		operation->value = asked->writeValue.value;
		/* fall through */
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		operation->kind = FAKE_WRITE;
		return operation->flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER ? CUDA_ERROR_INVALID_VALUE
		                                                                             : CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE; /* the others are not called by Ferry */
	}
}

#define MOST_IN_A_BATCH 256

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *asked,
                                    unsigned int flags)
{
	struct fake_operation operations[MOST_IN_A_BATCH];
	CUresult refused = CUDA_SUCCESS;
	if (!count || count > MOST_IN_A_BATCH || !asked || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; !refused && i < count; i++)
		refused = word_operation(&asked[i], &operations[i]);
	return refused ? refused : fake_submit(stream, operations, count);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
	CUstreamBatchMemOpParams write = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
	                                                 .address = address,
	                                                 .value = value,
	                                                 .flags = flags}};
	return cuStreamBatchMemOp(stream, 1, &write, 0);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
	CUstreamBatchMemOpParams wait = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                                               .address = address,
	                                               .value = value,
	                                               .flags = flags}};
	return cuStreamBatchMemOp(stream, 1, &wait, 0);
}
