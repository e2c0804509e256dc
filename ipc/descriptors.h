/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Standard input, output and error of a command. One that was started without them (`>&-`, some service managers) would
 * get a socket or a pipe under such a number, and the next printf would write into that. Commands fill them, first
 * thing in main; libferry leaves its process's descriptors alone, and keeps its own above them.
 */
#ifndef FERRY_IPC_DESCRIPTORS_H
#define FERRY_IPC_DESCRIPTORS_H

#include "ipc/ferry_types.h"

/**
 * Opens those of descriptors 0 to 2 that are closed on /dev/null, to read and to write; children inherit them. Before
 * any other descriptor is opened, and before any thread. Errors: ferrySystemError with the number.
 */
ferryResult_t ferry_descriptors_fill(void);

/**
 * The descriptor, or, if it is one of 0 to 2, another one for the same in its stead (close-on-exec). -1, errno: there
 * is none, or it was -1.
 */
int ferry_descriptor_above(int descriptor);

/**
 * What to do about an errno that says that there is none: " (raise ulimit -n)"; "" for others. To be put behind
 * strerror's text.
 */
const char *ferry_descriptors_hint(int error);

#endif
