/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where a router listens: a unix socket, in a directory of this user's or under a name without a file. Made by routers,
 * connected to by ranks, other routers and ferry-stat, which then speak as ipc/attach.h says. Both ends look who the
 * other is (SO_PEERCRED). A router is trusted that runs as this user or root; and as any other user to whom root has
 * given the directory that its socket is in, so that nobody else could have put it there.
 */
#ifndef FERRY_IPC_ENDPOINT_H
#define FERRY_IPC_ENDPOINT_H

#include "ipc/deadline.h"

#include <stdbool.h>
#include <stddef.h>

/**
 * The directory of the sockets: FERRY_SOCKET_DIR, else $XDG_RUNTIME_DIR/ferry, else /run/ferry where writable, else
 * /tmp/ferry-<uid>. If it does not exist, `make` makes it with mode 0700, for who is about to start a router; who only
 * looks for one leaves nothing behind. Errors: ferrySystemError with the path; ferryRefused if the directory belongs to
 * another user.
 */
ferryResult_t ferry_endpoint_directory(char *path, size_t bytes, bool make);

/**
 * Binds and listens. A socket file that nobody listens on is replaced; ferryInvalidUsage if a router answers on it, and
 * the failure of connecting if it cannot be known. A path that starts with '@' names a socket without a file (Linux's
 * abstract namespace); it is gone with the process, however that dies. for_all: other users may connect, too; whoever
 * accepts looks who they are.
 */
ferryResult_t ferry_endpoint_listen(const char *path, bool for_all, int *listener);

/**
 * For who looks whether a router is there. Errors, all with the path: ferrySystemError if nobody listens there, or this
 * process may not or cannot ask; ferryRemoteError if somebody does who takes no connections for 5 seconds; ferryRefused
 * if that is another user.
 */
ferryResult_t ferry_endpoint_connect(const char *path, int *connection);

/** The same for who does not wait: ferryRemoteError if it takes no connection at this moment. */
ferryResult_t ferry_endpoint_connect_now(const char *path, int *connection);

/** For who needs it: waits for FERRY_ATTACH_TIMEOUT. */
ferryResult_t ferry_endpoint_connect_patiently(const char *path, int *connection);

/** For a caller with a deadline of its own. */
ferryResult_t ferry_endpoint_connect_within(const char *path, int *connection, struct ferry_deadline *deadline);

/**
 * What connecting, or asking for a status, has just returned: whether it says for sure that nobody listens there. Reads
 * errno, so before anything else is called.
 */
bool ferry_endpoint_nobody(ferryResult_t result);

/**
 * For who has seen its router die: removes the file of its socket, if nobody listens there and nobody is about to. The
 * empty file that who is about to locks stays: whoever waits for that lock holds on to it.
 */
void ferry_endpoint_sweep(const char *path);

/** Returns once the other end has closed. */
void ferry_endpoint_await_end(int connection);

/** True once the other end has closed. */
bool ferry_endpoint_closed(int connection);

#endif
