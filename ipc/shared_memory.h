/* SPDX-License-Identifier: Apache-2.0 */
/**
 * New shared memory that has no name, as a descriptor. Routers make arenas of it.
 *
 * A page of a memfd costs memory once it is touched. The memfd is sealed: no process can make it shorter, or longer.
 * POSIX shared memory lies in /dev/shm, which may have little room, and every holder of the descriptor can cut it
 * short. It is used where memfd is missing, or where FERRY_SHM says so.
 */
#ifndef FERRY_IPC_SHARED_MEMORY_H
#define FERRY_IPC_SHARED_MEMORY_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

enum ferry_shared_kind { FERRY_SHARED_MEMFD, FERRY_SHARED_POSIX };

/** Reads FERRY_SHM; POSIX where there is no memfd. ferryInvalidArgument if it names neither. */
ferryResult_t ferry_shared_kind_read(enum ferry_shared_kind *kind);

/**
 * Makes so many bytes of zeros. The descriptor is above 2 and close-on-exec; the caller closes it. Error:
 * ferrySystemError with the size.
 */
ferryResult_t ferry_shared_make(enum ferry_shared_kind kind, uint64_t bytes, int *descriptor);

/** Whether the memory is sealed: no process can make it shorter. */
bool ferry_shared_sealed(int descriptor);

/**
 * Whether touching a page that was not allocated before may raise SIGBUS for lack of memory: so in POSIX shared memory,
 * and in all where the kernel limits commitments (vm.overcommit_memory=2).
 */
bool ferry_shared_may_lack(int descriptor);

/**
 * Allocates `bytes` bytes of the file from `from` on, mapped at `memory`: a second for some gigabytes. It touches them,
 * as posix_fallocate waits for every process that writes to the file, and a hostile rank's write may last for ever;
 * before Linux 5.14 it uses posix_fallocate. Ends early once *given_up is not 0, unless given_up is NULL. Error:
 * ferrySystemError with the sizes, also if given up.
 */
ferryResult_t ferry_shared_allocate(int descriptor, void *memory, uint64_t from, uint64_t bytes,
                                    const _Atomic uint32_t *given_up);

/** Returns the bytes that are allocated; 0 if that is unknown. */
uint64_t ferry_shared_held(int descriptor);

#endif
