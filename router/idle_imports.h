/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Idle imports: what nobody has used for a while, unmapped, so that memory comes back which its owner has freed. A
 * cell's word keeps submissions from naming what is about to go (router/imports.h has the protocol). The mapper's
 * thread alone calls this.
 */
#ifndef FERRY_ROUTER_IDLE_IMPORTS_H
#define FERRY_ROUTER_IDLE_IMPORTS_H

#include "router/imports.h"

/*
 * What is named at long intervals is kept for twice as long as the longest of late, so that a program which comes back
 * to its buffers every few seconds finds them mapped: but no more than is small beside the memory that its GPU has left
 * (ferry_gpu_room), as it may have been freed. Guests' never: of their GPUs this is not known here.
 */
#define FERRY_IMPORT_IDLE_NS      1000000000ull
#define FERRY_IMPORT_IDLE_MOST_NS 20000000000ull

/** It is used, at this time after so long: it is kept for longer at once, and for less by and by. */
void ferry_idle_imports_note(struct ferry_import *import, uint64_t now);

/**
 * Unmaps what is not used any more, idle ones too. Nanoseconds until it should be called again, -1: not before
 * something is mapped.
 */
int64_t ferry_idle_imports_sweep(struct ferry_imports *imports);

/** Unmaps all that nobody uses, idle or not: the rank exports it again when it needs it. True if some was. */
bool ferry_idle_imports_clear(struct ferry_imports *imports);

#endif
