/* SPDX-License-Identifier: Apache-2.0 */
/** Strange descriptors: one of each kind that an unprivileged process can send to another. */
#ifndef FERRY_TESTS_HOSTILITY_STRANGE_H
#define FERRY_TESTS_HOSTILITY_STRANGE_H

#include <stdbool.h>

#define STRANGE_KINDS 26

/** What kind number `kind` is. */
const char *strange_name(int kind);

/**
 * Makes one; the caller closes it. -1: this system has none of that kind, or does not let this user have it. What has
 * to stay open for it to do harm stays open until the process ends. own: a connection to a router.
 */
int strange_make(int kind, int own);

/**
 * A socket of TCP whose last close sleeps for a day: it has SO_LINGER, and data that nobody reads. The peer's end stays
 * open until the process ends. -1: none could be made.
 */
int strange_lingering(void);

/**
 * Mounts a file system of this process on an existing file, which all users may open. To others than this process and
 * its children it does not answer that the file is closed, nor what it is asked about the open file. For a process with
 * the rights to mount; false: it has not. It goes with the mount name space, which becomes the process's own.
 */
bool strange_mount(const char *file);

/**
 * In a child that opens the file: the file system ends with the process that mounted it alone, also where both are
 * killed.
 */
void strange_leave_to_parent(void);

/** From here on kind "file of a FUSE server that does not answer" opens that file. */
void strange_use_mounted(const char *file);

#endif
