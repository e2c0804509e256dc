/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The functions between a program and NCCL: for each function that functions.def accelerates or watches,
 * ferry_nccl_AllReduce(...) and so on, with NCCL's parameters and results. names.c calls them if NCCL is found and has
 * the function, FERRY_NCCL is not off and the call is not one of NCCL's own. collectives.c has the accelerated ones,
 * groups.c those of groups, constructors.c the others.
 */
#ifndef FERRY_ORCHESTRATOR_WATCH_H
#define FERRY_ORCHESTRATOR_WATCH_H

#include "orchestrator/nccl_types.h"

#define NCCL_PASS(name, parameters)
#define NCCL_WATCH(name, parameters)                         ncclResult_t ferry_nccl_##name parameters;
#define NCCL_ACCELERATE(name, parameters)                    NCCL_WATCH(name, parameters)
#define NCCL_RESULT(since, act, name, parameters, arguments) NCCL_##act(name, parameters)
#include "orchestrator/functions.def"
#undef NCCL_PASS
#undef NCCL_WATCH
#undef NCCL_ACCELERATE

#endif
