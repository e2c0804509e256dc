/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/failover/link.h"

#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/error.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void ferry_link_init(struct ferry_link *link)
{
	pthread_condattr_t attributes;
	*link = (struct ferry_link){.socket = -1, .process = -1};
	pthread_mutex_init(&link->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&link->changed, &attributes);
	pthread_condattr_destroy(&attributes);
}

/* Clears the field first: a fork handler must not close a number that another file has got by then. */
static void close_one(int *descriptor)
{
	int closed = *descriptor;
	*descriptor = -1;
	if (closed >= 0)
		close(closed);
}

void ferry_link_close(struct ferry_link *link)
{
	close_one(&link->socket);
	close_one(&link->process);
}

void ferry_link_disconnect(struct ferry_link *link)
{
	if (link->socket >= 0)
		shutdown(link->socket, SHUT_RDWR); /* a child forked meanwhile may have it open as long as it lives */
	ferry_link_close(link);
}

static void wait_for_change(struct ferry_link *link)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += FERRY_DEADLINE_POLL_MS * 1000000l;
	until.tv_sec += until.tv_nsec / 1000000000l;
	until.tv_nsec %= 1000000000l;
	pthread_cond_timedwait(&link->changed, &link->lock, &until);
}

/* Under the lock. Returns true if the router that has ended has a successor to ask. */
static bool await_next(struct ferry_link *link, const struct ferry_deadline *deadline)
{
	uint64_t count = link->count;
	while (link->state == FERRY_LINK_WATCHED && link->count == count && !ferry_deadline_is_given_up(deadline))
		wait_for_change(link);
	return link->count != count;
}

/* Under the lock. */
static ferryResult_t ask(const struct ferry_link *link, struct ferry_attach_message *message, const void *payload,
                         const int *sent, struct ferry_attach_reply *reply, const struct ferry_deadline *deadline)
{
	struct ferry_deadline anew = ferry_deadline_for(deadline->seconds, deadline->given_up);
	anew.gives_up = deadline->gives_up;
	anew.argument = deadline->argument;
	if (link->socket < 0)
		return ferry_fail(ferryRemoteError, "there is no connection to the router");
	return ferry_attach_exchange_within(link->socket, message, payload, sent, reply, NULL, 0, &anew);
}

ferryResult_t ferry_link_request_within(struct ferry_link *link, struct ferry_attach_message *message,
                                        const void *payload, const int *sent, struct ferry_attach_reply *reply,
                                        const struct ferry_deadline *deadline)
{
	ferryResult_t result;
	pthread_mutex_lock(&link->lock);
	do {
		result = ask(link, message, payload, sent, reply, deadline);
		/* A living router may answer ferryRemoteError, too, about the job. */
	} while (result == ferryRemoteError && link->socket >= 0 && ferry_endpoint_closed(link->socket) &&
	         await_next(link, deadline));
	pthread_mutex_unlock(&link->lock);
	return result;
}

ferryResult_t ferry_link_request(struct ferry_link *link, struct ferry_attach_message *message, const void *payload,
                                 const int *sent, struct ferry_attach_reply *reply, const _Atomic uint32_t *given_up)
{
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	struct ferry_deadline deadline = ferry_deadline_for((unsigned)seconds, given_up);
	return ferry_link_request_within(link, message, payload, sent, reply, &deadline);
}

ferryResult_t ferry_link_request_once(struct ferry_link *link, struct ferry_attach_message *message,
                                      struct ferry_deadline *deadline)
{
	struct ferry_attach_reply reply;
	pthread_mutex_lock(&link->lock);
	ferryResult_t result = link->socket < 0
	                               ? ferry_fail(ferryRemoteError, "there is no connection to the router")
	                               : ferry_attach_exchange_within(link->socket, message, NULL, NULL, &reply, NULL,
	                                                              0, deadline);
	pthread_mutex_unlock(&link->lock);
	return result;
}

void ferry_link_renew(struct ferry_link *link, int socket, int process)
{
	pthread_mutex_lock(&link->lock);
	close_one(&link->socket);
	link->socket = socket;
	if (process >= 0) {
		close_one(&link->process);
		link->process = process;
	}
	link->count++;
	pthread_cond_broadcast(&link->changed);
	pthread_mutex_unlock(&link->lock);
}

void ferry_link_replace_process(struct ferry_link *link, int process)
{
	pthread_mutex_lock(&link->lock);
	close_one(&link->process);
	link->process = process;
	pthread_mutex_unlock(&link->lock);
}

void ferry_link_set(struct ferry_link *link, enum ferry_link_state state)
{
	pthread_mutex_lock(&link->lock);
	link->state = state;
	pthread_cond_broadcast(&link->changed);
	pthread_mutex_unlock(&link->lock);
}
