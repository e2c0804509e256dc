/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL, opened at run time by the child of `ferry-perf --vs nccl`: one struct of NCCL's entry points, by their names
 * without "nccl".
 */
#ifndef FERRY_BENCH_NCCL_LIBRARY_H
#define FERRY_BENCH_NCCL_LIBRARY_H

#include "orchestrator/nccl_types.h"

#include <stdbool.h>

/** A NULL entry: the NCCL found is too old for it. nccl_library_open checks those that ferry-perf needs. */
struct nccl_library {
#define NCCL_VALUE(since, type, name, parameters, arguments) type(*name) parameters;
#include "orchestrator/functions.def"
};

/**
 * Opens FERRY_NCCL_LIBRARY, else libnccl.so.2, else the one that pip installed for python3. Returns NULL on success,
 * else the reason, which is valid until the next call.
 */
const char *nccl_library_open(struct nccl_library *nccl);

#endif
