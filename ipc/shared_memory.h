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

/** Reads FERRY_SHM; POSIX where there is no memfd. ferryInvalidArgument if it is neither. */
ferryResult_t ferry_shared_kind_read(enum ferry_shared_kind *kind);

/**
 * Makes so many bytes of zeros, above descriptor 2 and closed on exec; the caller closes it. Errors: ferrySystemError
 * with the size.
 */
ferryResult_t ferry_shared_make(enum ferry_shared_kind kind, uint64_t bytes, int *descriptor);

/** Whether it is sealed: no process can make it shorter. */
bool ferry_shared_sealed(int descriptor);

/**
 * Whether a page that is touched may turn out not to be there (SIGBUS), unless it was allocated before: POSIX shared
 * memory, and all where the kernel counts what it has promised (vm.overcommit_memory=2).
 */
bool ferry_shared_may_lack(int descriptor);

/**
 * Allocates the bytes from `from` on, which are mapped at `memory`: that takes a second for some gigabytes. They are
 * allocated by touching them, as posix_fallocate waits for every process that writes to the file, and a hostile rank's
 * write may last for ever; by posix_fallocate before Linux 5.14. Ends early, with ferrySystemError, once *given_up is
 * not 0, if that is not NULL. Errors: ferrySystemError with the sizes.
 */
ferryResult_t ferry_shared_allocate(int descriptor, void *memory, uint64_t from, uint64_t bytes,
                                    const _Atomic uint32_t *given_up);

/** Bytes that are allocated: what it costs. */
uint64_t ferry_shared_held(int descriptor);

#endif
