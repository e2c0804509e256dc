/* SPDX-License-Identifier: Apache-2.0 */
/* What a function does that nothing else in the double says anything of: it succeeds. */
#include "tests/fake_nccl/note.h"

#define NCCL_VALUE(since, type, name, parameters, arguments)                                                           \
	__attribute__((weak)) type fake_nccl_act_##name parameters                                                     \
	{                                                                                                              \
		type none = {0};                                                                                       \
		return none;                                                                                           \
	}
#define NCCL_VOID(since, name, parameters, arguments)                                                                  \
	__attribute__((weak)) void fake_nccl_act_##name parameters                                                     \
	{                                                                                                              \
	}
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "orchestrator/functions.def"
