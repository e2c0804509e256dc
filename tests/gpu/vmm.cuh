/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Device memory made piece by piece by the driver's virtual memory management, as PyTorch's expandable segments and
 * ncclMemAlloc make it. The functions are looked up at run time: tests link CUDA's runtime alone. Included after
 * check.h, by one file each.
 */
#ifndef FERRY_TESTS_GPU_VMM_CUH
#define FERRY_TESTS_GPU_VMM_CUH

#include "tests/gpu/check.h"

#include <cuda.h>

typedef CUresult (*vmm_create_function)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                                        unsigned long long);
typedef CUresult (*vmm_reserve_function)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
typedef CUresult (*vmm_map_function)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
typedef CUresult (*vmm_access_function)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
typedef CUresult (*vmm_range_function)(CUdeviceptr, size_t);
typedef CUresult (*vmm_release_function)(CUmemGenericAllocationHandle);
typedef CUresult (*vmm_granularity_function)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);

static inline int vmm_driver(const char *name, void **function)
{
	cudaDriverEntryPointQueryResult found;
	CUDA(cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &found));
	REQUIRE(found == cudaDriverEntryPointSuccess && *function, "the driver has no %s", name);
	return 0;
}

/**
 * A range of so many pieces, each an allocation of its own. *piece: in, what a piece has at least (0: the smallest
 * there is); out, what it has. Exportable: with a descriptor for other processes.
 */
static inline int vmm_take_pieces(int device, size_t pieces, bool exportable, char **range, size_t *piece)
{
	void *create, *reserve, *map, *access, *granularity, *release;
	CUmemAllocationProp property = {};
	CUmemAccessDesc allowed = {};
	CUdeviceptr address;
	size_t grain;
	TRY(vmm_driver("cuMemCreate", &create));
	TRY(vmm_driver("cuMemAddressReserve", &reserve));
	TRY(vmm_driver("cuMemMap", &map));
	TRY(vmm_driver("cuMemSetAccess", &access));
	TRY(vmm_driver("cuMemRelease", &release));
	TRY(vmm_driver("cuMemGetAllocationGranularity", &granularity));
	property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	property.location.id = device;
	if (exportable)
		property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	allowed.location = property.location;
	allowed.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	REQUIRE(!((vmm_granularity_function)granularity)(&grain, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
	        "granularity");
	*piece = *piece <= grain ? grain : (*piece + grain - 1) / grain * grain;
	REQUIRE(!((vmm_reserve_function)reserve)(&address, pieces * *piece, 0, 0, 0), "reserving %zu bytes",
	        pieces * *piece);
	for (size_t part = 0; part < pieces; part++) {
		CUmemGenericAllocationHandle handle;
		REQUIRE(!((vmm_create_function)create)(&handle, *piece, &property, 0), "creating %zu bytes", *piece);
		REQUIRE(!((vmm_map_function)map)(address + part * *piece, *piece, 0, handle, 0), "mapping %zu bytes",
		        *piece);
		REQUIRE(!((vmm_release_function)release)(handle), "releasing a handle"); /* the mapping keeps it */
	}
	REQUIRE(!((vmm_access_function)access)(address, pieces * *piece, &allowed, 1), "allowing access");
	*range = (char *)address;
	return 0;
}

/** The same of the smallest pieces. */
static inline int vmm_take(int device, size_t pieces, bool exportable, char **range, size_t *piece)
{
	*piece = 0;
	return vmm_take_pieces(device, pieces, exportable, range, piece);
}

static inline int vmm_give_back(char *range, size_t bytes)
{
	void *unmap, *forget;
	TRY(vmm_driver("cuMemUnmap", &unmap));
	TRY(vmm_driver("cuMemAddressFree", &forget));
	REQUIRE(!((vmm_range_function)unmap)((CUdeviceptr)range, bytes), "unmapping %zu bytes", bytes);
	REQUIRE(!((vmm_range_function)forget)((CUdeviceptr)range, bytes), "giving %zu addresses back", bytes);
	return 0;
}

#endif
