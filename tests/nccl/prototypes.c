/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of orchestrator/functions.def are what this machine's nccl.h declares, as far as that goes. */
#include <nccl.h>

#ifndef NCCL_OS_LINUX /* since 2.30 nccl.h declares it where that is defined alone */
#undef ncclResetDebugInit
void ncclResetDebugInit(void);
#endif

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define FERRY_NCCL_NEWEST NCCL_VERSION_CODE
#define FERRY_NCCL_WITHOUT_DEVICE
#define NCCL_VALUE(since, type, name, parameters, arguments)                                                           \
	_Static_assert(__builtin_types_compatible_p(__typeof__(nccl##name), type parameters),                          \
	               #name " is not what nccl.h declares");
#include "orchestrator/functions.def"
