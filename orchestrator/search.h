/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where a libnccl.so.2 may lie that is not this library. Called by real.c, which tries what is found. Nothing is kept.
 */
#ifndef FERRY_ORCHESTRATOR_SEARCH_H
#define FERRY_ORCHESTRATOR_SEARCH_H

#include <stdbool.h>

/** Tries a path; true ends the search. */
typedef bool (*ferry_nccl_try)(const char *path, void *context);

/** Objects of this process that are called LIBRARY.so..., as `libnccl`, by their paths. */
bool ferry_nccl_search_loaded(const char *library, ferry_nccl_try attempt, void *context);

/**
 * Files, in the order in which the loader would have come to them for the object that holds `caller`: its search path
 * (RPATH, LD_LIBRARY_PATH, RUNPATH, the system's folders), the loader's cache; then pip's wheel, beside Python packages
 * that are loaded or belong to the program.
 */
bool ferry_nccl_search_files(const void *caller, ferry_nccl_try attempt, void *context);

#endif
