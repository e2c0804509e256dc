/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where routers of this user may listen: in the socket directory, and in the directories of ferryruns. Called by
 * ferry-stat, which then finds out which routers answer; nothing is made.
 */
#ifndef FERRY_LAUNCH_SOCKETS_H
#define FERRY_LAUNCH_SOCKETS_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stddef.h>

struct ferry_socket {
	char path[160];
	char place[24]; /* for people: "shared", "run-XXXXXX" */
};

struct ferry_sockets {
	char directory[64]; /* the socket directory */
	bool missing;       /* it is not there */
	struct ferry_socket *all;
	size_t count, capacity;
};

/**
 * Finds the sockets, directory by directory and by domain; a missing directory holds none. The caller frees them, also
 * after an error. Errors: those of ferry_endpoint_directory; ferrySystemError if the directory may not be searched, or
 * without memory.
 */
ferryResult_t ferry_sockets_find(struct ferry_sockets *sockets);
void ferry_sockets_free(struct ferry_sockets *sockets);

#endif
