/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Quarantine: a thread with a descriptor table of its own, in which descriptors from an untrusted peer are received,
 * and in which connections to such a peer are closed. A close can sleep in the kernel for as long as the peer likes:
 * the last close of a TCP socket with SO_LINGER and unsent data, any close of a file of a FUSE server that does not
 * answer. It is also implied: closing a connection closes the descriptors that the peer has sent and this process has
 * not received. A thread that ends closes its own table, and sockets do not linger then. So a quarantine lasts for one
 * message or one batch of closes, and nothing waits for a quarantine that sleeps. The caller's table only ever gets
 * descriptors that are known to be kernel memory or a device.
 *
 * Called by a router's threads, for clients, and by ranks, for the process that listens on a router's name. Where the
 * kernel gives a thread no table of its own (Linux before 5.9 under a filter that forbids unshare), the thread shares
 * the caller's, and sleeps in the caller's place all the same.
 */
#ifndef FERRY_IPC_QUARANTINE_H
#define FERRY_IPC_QUARANTINE_H

#include "ipc/attach.h"

#define FERRY_QUARANTINE_MOST 256u /* messages of one user whose descriptors are still being closed */

/**
 * Closes descriptors that came from an untrusted peer, or connections to one, without waiting for the closes; skips
 * negative ones. A peer sees the end of its connection some ten microseconds later. If no thread can be started, this
 * closes them itself. Keeps errno.
 */
void ferry_quarantine_close(const int *descriptors, uint32_t count);

/**
 * As ferry_attach_receive, from a peer of this user (as struct ferry_standing names its owner); takes some hundred
 * microseconds if descriptors came. A failed receive is a success with received->bytes -1, and errno. Errors, after
 * which there are no descriptors: ferryInvalidArgument if one is neither memory of the kernel's (memfd, tmpfs) nor a
 * device; ferryRefused if the user has FERRY_QUARANTINE_MOST messages in quarantine, or there is no memory;
 * ferrySystemError if there is no thread or descriptor for it.
 */
ferryResult_t ferry_quarantine_receive(int connection, uint32_t user, void *into, size_t bytes,
                                       struct ferry_attach_received *received);

#endif
