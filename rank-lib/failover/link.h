/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank's link to the router of a domain, whichever process that is: the connection, and by what the rank sees that
 * the router's process has ended. Who asks a router something asks by the link; where the router dies meanwhile, and
 * another takes its place (rank-lib/failover/takeover.h), he asks that one again. Every request may be repeated: a
 * router that has done it already says yes.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_LINK_H
#define FERRY_RANK_LIB_FAILOVER_LINK_H

#include "ipc/attach.h"

#include <pthread.h>
#include <stdbool.h>

enum ferry_link_state {
	FERRY_LINK_ALONE,   /* nobody takes a router's place: where it dies, that is what who asks hears */
	FERRY_LINK_WATCHED, /* somebody does */
	FERRY_LINK_ENDED    /* nobody does any more: the rank has failed, or leaves */
};

struct ferry_link {
	pthread_mutex_t lock;        /* held while something is asked, and of `count` */
	pthread_cond_t changed;
	int socket;                  /* -1: none. Written under the lock, or by attach/ before others have the rank */
	int process;                 /* the router's pidfd; -1: none. The same */
	_Atomic uint32_t state;      /* enum ferry_link_state; written under the lock */
	uint64_t count;              /* routers that this has led to before this one */
	uint64_t since_ns;           /* when it came to lead to this one; 0: from the beginning; under the lock */
};

void ferry_link_init(struct ferry_link *link);

/** Closes what is open. */
void ferry_link_close(struct ferry_link *link);

/** From the beginning: closes the connection, so that the other end sees it, whoever else has it open. */
void ferry_link_disconnect(struct ferry_link *link);

/**
 * ferry_attach_exchange on the connection there is, or, where its router has ended, on the next: until that is there
 * this waits. given_up as there: also ends the waiting. One thread of a rank at a time. Errors: those of
 * ferry_attach_exchange; ferryRemoteError where nobody takes the router's place.
 */
ferryResult_t ferry_link_request(struct ferry_link *link, struct ferry_attach_message *message, const void *payload,
                                 const int *sent, struct ferry_attach_reply *reply, const _Atomic uint32_t *given_up);

struct ferry_deadline;

/** The same with the caller's deadline (ipc/deadline.h), which begins anew with each router. */
ferryResult_t ferry_link_request_within(struct ferry_link *link, struct ferry_attach_message *message,
                                        const void *payload, const int *sent, struct ferry_attach_reply *reply,
                                        const struct ferry_deadline *deadline);

/**
 * The same without waiting for another router: ferryRemoteError where this one has ended. The deadline is used up, and
 * may serve for several links; where it is over the router is told, and its answer not waited for.
 */
ferryResult_t ferry_link_request_once(struct ferry_link *link, struct ferry_attach_message *message,
                                      struct ferry_deadline *deadline);

/** Another router is there, by that connection, which the link owns from now on; so it does its pidfd, unless -1. */
void ferry_link_renew(struct ferry_link *link, int socket, int process);

/** The process that is to end before another takes its place is another by now; the link owns the pidfd. */
void ferry_link_replace_process(struct ferry_link *link, int process);

/**
 * Ends the router's process, if it has been the one for at least so long, so that another takes its place: false where
 * nobody would, or it cannot be told now. Any thread; `inside`: the one that asks the router something.
 */
bool ferry_link_kill(struct ferry_link *link, uint64_t least_ns, bool inside);

void ferry_link_set(struct ferry_link *link, enum ferry_link_state state);

#endif
