/* SPDX-License-Identifier: Apache-2.0 */
/** Values and sizes of NCCL's interface, as the header included before this one has them. */
static const struct value {
	const char *name;
	long long value;
} VALUES_OF[] = {
#define V(name) {#name, (long long)(name)}
#define SIZE(type) {"sizeof " #type, (long long)sizeof(type)}
        V(ncclSuccess), V(ncclUnhandledCudaError), V(ncclSystemError), V(ncclInternalError), V(ncclInvalidArgument),
        V(ncclInvalidUsage), V(ncclRemoteError), V(ncclInProgress), V(ncclSum), V(ncclProd), V(ncclMax), V(ncclMin),
        V(ncclAvg), V(ncclNumOps), V(ncclMaxRedOp), V(ncclInt8), V(ncclUint8), V(ncclInt32), V(ncclUint32),
        V(ncclInt64), V(ncclUint64), V(ncclFloat16), V(ncclFloat32), V(ncclFloat64), V(ncclScalarDevice),
        V(ncclScalarHostImmediate), SIZE(ncclResult_t), SIZE(ncclRedOp_t), SIZE(ncclDataType_t),
        SIZE(ncclScalarResidence_t), SIZE(ncclUniqueId), SIZE(ncclComm_t), SIZE(cudaStream_t)};
