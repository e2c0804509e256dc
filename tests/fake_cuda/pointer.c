/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver tells of an address. */
#include "tests/fake_cuda/fake.h"

struct range {
	uintptr_t start;
	size_t bytes;
};

/* Of reserved addresses the whole reservation, mapped or not, as the driver has it; see cuMemGetAddressRange. */
static struct range range_at(const struct fake_region *region, uintptr_t address)
{
	struct range range = {0, 0};
	if ((!region || region->kind == FAKE_MAPPED) && fake_reserved(address, &range.start, &range.bytes))
		return range;
	return region ? (struct range){region->start, region->bytes} : range;
}

/* One attribute; of no region, its value for memory that the driver does not know. */
static CUresult attribute(CUpointer_attribute wanted, void *data, const struct fake_region *region, uintptr_t address)
{
	bool device = region && (fake_on_device(region) || region->kind == FAKE_MANAGED);
	bool host = region && !fake_on_device(region);
	switch (wanted) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = region && region->kind != FAKE_POOL ? region->context : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = device ? CU_MEMORYTYPE_DEVICE : host ? CU_MEMORYTYPE_HOST : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = region ? address : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)data = host ? (void *)address : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(uint64_t *)data = region ? region->id : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = region && region->kind == FAKE_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = region ? region->ordinal : CU_DEVICE_INVALID;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = region && region->kind == FAKE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = range_at(region, address).start;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = range_at(region, address).bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(uint64_t *)data =
		        region && fake_backing_is_shareable(region) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = region != NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(void **)data = region && region->kind == FAKE_POOL ? &fake_contexts[region->ordinal] : NULL;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *wanted, void **data,
                                        CUdeviceptr address)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !count || !wanted || !data)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	for (unsigned i = 0; !refused && i < count; i++)
		refused =
		        data[i] ? attribute(wanted[i], data[i], region, (uintptr_t)address) : CUDA_ERROR_INVALID_VALUE;
	fake_unpin(region);
	return refused;
}

/* Of reserved addresses the one mapping, once it may be used. */
CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused)
		return refused;
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	if (!region || (region->kind == FAKE_MAPPED && !region->access))
		refused = CUDA_ERROR_NOT_FOUND;
	if (!refused && start)
		*start = region->start;
	if (!refused && bytes)
		*bytes = region->bytes;
	fake_unpin(region);
	return refused;
}
