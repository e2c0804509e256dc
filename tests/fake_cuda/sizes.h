/* SPDX-License-Identifier: Apache-2.0 */
/** Sizes and offsets of the driver's structs, as the header included before this one has them. */
const size_t SIZES[] = {
#define AT(type, field) offsetof(type, field)
        sizeof(CUuuid), sizeof(CUipcMemHandle), sizeof(CUdeviceptr), sizeof(CUmemGenericAllocationHandle),
        sizeof(CUdevice), sizeof(CUresult), sizeof(CUmemLocation), AT(CUmemLocation, type), AT(CUmemLocation, id),
        sizeof(CUmemAllocationProp), AT(CUmemAllocationProp, type), AT(CUmemAllocationProp, requestedHandleTypes),
        AT(CUmemAllocationProp, location), AT(CUmemAllocationProp, win32HandleMetaData),
        AT(CUmemAllocationProp, allocFlags), AT(CUmemAllocationProp, allocFlags.usage), sizeof(CUmemAccessDesc),
        AT(CUmemAccessDesc, location), AT(CUmemAccessDesc, flags), sizeof(CUstreamBatchMemOpParams),
        AT(CUstreamBatchMemOpParams, operation), AT(CUstreamBatchMemOpParams, waitValue.address),
        AT(CUstreamBatchMemOpParams, waitValue.value), AT(CUstreamBatchMemOpParams, waitValue.flags),
        AT(CUstreamBatchMemOpParams, writeValue.address), AT(CUstreamBatchMemOpParams, writeValue.value),
        AT(CUstreamBatchMemOpParams, writeValue.flags), AT(CUstreamBatchMemOpParams, writeValue.alias),
        sizeof(CUDA_MEMCPY2D), AT(CUDA_MEMCPY2D, srcXInBytes), AT(CUDA_MEMCPY2D, srcY),
        AT(CUDA_MEMCPY2D, srcMemoryType), AT(CUDA_MEMCPY2D, srcHost), AT(CUDA_MEMCPY2D, srcDevice),
        AT(CUDA_MEMCPY2D, srcArray), AT(CUDA_MEMCPY2D, srcPitch), AT(CUDA_MEMCPY2D, dstXInBytes),
        AT(CUDA_MEMCPY2D, dstY), AT(CUDA_MEMCPY2D, dstMemoryType), AT(CUDA_MEMCPY2D, dstHost),
        AT(CUDA_MEMCPY2D, dstDevice), AT(CUDA_MEMCPY2D, dstArray), AT(CUDA_MEMCPY2D, dstPitch),
        AT(CUDA_MEMCPY2D, WidthInBytes), AT(CUDA_MEMCPY2D, Height), (size_t)-1 /* the last */
#undef AT
};
