/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank's link to the router of a domain, whichever process that is: the connection, and the pidfd by which the rank
 * sees that the router's process has ended. All requests to a router go through the link. If the router dies during a
 * request and another takes its place (rank-lib/failover/takeover.h), the link repeats the request there. So every
 * request may be repeated: a router that has done it already answers yes.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_LINK_H
#define FERRY_RANK_LIB_FAILOVER_LINK_H

#include "ipc/attach.h"

#include <pthread.h>
#include <stdbool.h>

enum ferry_link_state {
	FERRY_LINK_ALONE,   /* no router will take this one's place: if it dies, a request fails with that */
	FERRY_LINK_WATCHED, /* a takeover watches it: another router may take its place */
	FERRY_LINK_ENDED    /* no takeover any more: the rank has failed, or leaves */
};

struct ferry_link {
	pthread_mutex_t lock;        /* held while something is asked, and of `count` */
	pthread_cond_t changed;
	int socket;                  /* -1: none. Written under the lock, or by attach/ before other threads have the
	                                rank */
	int process;                 /* the router's pidfd; -1: none. Written likewise */
	_Atomic uint32_t state;      /* enum ferry_link_state; written under the lock */
	uint64_t count;              /* routers before this one */
};

void ferry_link_init(struct ferry_link *link);

/** Closes what is open. */
void ferry_link_close(struct ferry_link *link);

/**
 * Only during attaching: shuts the connection down, so that the other end sees it even if another process has it open.
 */
void ferry_link_disconnect(struct ferry_link *link);

/**
 * Does ferry_attach_exchange on the present connection or, if its router has ended, on the next one; waits until there
 * is one. given_up as there; it ends the waiting, too. One thread of a rank at a time. Errors: those of
 * ferry_attach_exchange; ferryRemoteError if no router takes the place.
 */
ferryResult_t ferry_link_request(struct ferry_link *link, struct ferry_attach_message *message, const void *payload,
                                 const int *sent, struct ferry_attach_reply *reply, const _Atomic uint32_t *given_up);

struct ferry_deadline;

/** The same with the caller's deadline (ipc/deadline.h), which starts again with each router. */
ferryResult_t ferry_link_request_within(struct ferry_link *link, struct ferry_attach_message *message,
                                        const void *payload, const int *sent, struct ferry_attach_reply *reply,
                                        const struct ferry_deadline *deadline);

/**
 * The same without waiting for another router: ferryRemoteError if this one has ended. The deadline is used up, and may
 * be shared by several links; when it has passed the message is sent, but its answer not waited for.
 */
ferryResult_t ferry_link_request_once(struct ferry_link *link, struct ferry_attach_message *message,
                                      struct ferry_deadline *deadline);

/** Another router is connected by this socket. The link takes over the socket and its pidfd, unless -1. */
void ferry_link_renew(struct ferry_link *link, int socket, int process);

/** The process that must end before another takes its place has changed; the link takes over its pidfd. */
void ferry_link_replace_process(struct ferry_link *link, int process);

void ferry_link_set(struct ferry_link *link, enum ferry_link_state state);

#endif
