/* SPDX-License-Identifier: Apache-2.0 */
/** How the double's functions note what they are called with, each in its thread. */
#ifndef FERRY_TESTS_FAKE_NCCL_NOTE_H
#define FERRY_TESTS_FAKE_NCCL_NOTE_H

#include "orchestrator/nccl_types.h"

#include <stdbool.h>

/* fake_nccl_act_AllReduce(...) and so on: what the functions do; weak ones return success. */
#define NCCL_VALUE(since, type, name, parameters, arguments) type fake_nccl_act_##name parameters;
#include "orchestrator/functions.def"

/** Begins a note. */
void fake_nccl_note(const char *name);

/** Adds an argument. */
void fake_nccl_note_argument(const void *bytes, size_t count);

/** Whether the function is to do nothing but return *result. */
bool fake_nccl_cut_short(const char *name, unsigned long count, ncclResult_t *result);

#endif
