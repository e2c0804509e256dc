/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where a router listens: a unix socket, in a directory of this user's or under a name without a file. Routers make it;
 * ranks, other routers and ferry-stat connect to it, and then speak as ipc/attach.h says. Both ends check the other's
 * user (SO_PEERCRED). A router is trusted if it runs as this user or as root. A router of another user is trusted if
 * root has given that user the directory of the socket, so that no other user could have put the socket there.
 */
#ifndef FERRY_IPC_ENDPOINT_H
#define FERRY_IPC_ENDPOINT_H

#include "ipc/deadline.h"

#include <stdbool.h>
#include <stddef.h>

#define FERRY_ENDPOINT_NAME "router-%u.sock" /* a domain's socket in the directory, as printf writes it */

/**
 * Writes the directory of the sockets: FERRY_SOCKET_DIR, else $XDG_RUNTIME_DIR/ferry, else /run/ferry where writable,
 * else /tmp/ferry-<uid>. make: create it with mode 0700 if it does not exist, for a process that is about to start a
 * router; a process that only looks for a router passes false. Errors: ferrySystemError with the path; ferryRefused if
 * the directory belongs to another user but root; ferryInvalidArgument if its path is longer than 59 bytes.
 */
ferryResult_t ferry_endpoint_directory(char *path, size_t bytes, bool make);

/**
 * Binds and listens; the caller closes *listener. A socket file that no process listens on is replaced. for_all:
 * other users may connect, too; the caller checks the user of each connection that it accepts. Errors:
 * ferryInvalidUsage if a router answers on it; the failure of connecting if it is not known whether one does;
 * ferrySystemError if the path is no socket, or cannot be locked or bound.
 */
ferryResult_t ferry_endpoint_listen(const char *path, bool for_all, int *listener);

/**
 * Connects to a router, for a caller that asks whether there is one; the caller closes *connection. Errors, all with
 * the path: ferrySystemError if no process listens there, or this process may not or cannot connect; ferryRemoteError
 * if the listener takes no connection for 5 seconds; ferryRefused if it is not to be trusted.
 */
ferryResult_t ferry_endpoint_connect(const char *path, int *connection);

/** As ferry_endpoint_connect, without waiting: ferryRemoteError if the listener takes no connection at this moment. */
ferryResult_t ferry_endpoint_connect_now(const char *path, int *connection);

/** As ferry_endpoint_connect, for a caller that needs the router: waits for FERRY_ATTACH_TIMEOUT. */
ferryResult_t ferry_endpoint_connect_patiently(const char *path, int *connection);

/** As ferry_endpoint_connect, within the caller's deadline. */
ferryResult_t ferry_endpoint_connect_within(const char *path, int *connection, struct ferry_deadline *deadline);

/**
 * From the result of connecting, or of asking for a status: whether it is certain that no process listens there. Reads
 * errno, so it must be called before anything else.
 */
bool ferry_endpoint_nobody(ferryResult_t result);

/**
 * For a process that has seen its router die: removes the file of the socket, if no process listens there or is about
 * to. The empty lock file stays, as a starting router may hold it open while it waits for the lock.
 */
void ferry_endpoint_sweep(const char *path);

/** Returns once the other end has closed. */
void ferry_endpoint_await_end(int connection);

/** True once the other end has closed. */
bool ferry_endpoint_closed(int connection);

#endif
