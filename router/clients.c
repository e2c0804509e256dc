/* SPDX-License-Identifier: Apache-2.0 */
#include "router/clients.h"

#include "ipc/descriptors.h"
#include "ipc/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_MS 1000 /* how long the listener rests before it is seen whether there is a descriptor again */

/* A descriptor to let go of when there are no others: without it nobody could be told, and the listener would not come
 * to rest. */
static int spare_descriptor(const struct ferry_clients *clients)
{
	return fcntl(clients->event, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

static void client_close(struct ferry_clients *clients, size_t index)
{
	struct ferry_client *client = clients->all[index];
	struct ferry_job *job = client->job;
	clients->all[index] = clients->all[--clients->count];
	close(client->descriptor);
	free(client->payload);
	if (job) {
		if (!client->detached && !atomic_load(&job->dead)) {
			char text[96];
			snprintf(text, sizeof text,
			         "rank %u of %u died, gave up, or closed its connection without leaving", client->rank,
			         job->shared.nranks);
			ferry_job_fail(job, ferryRemoteError, text);
		}
		bool used = false;
		for (size_t i = 0; i < clients->count; i++)
			used |= clients->all[i]->job == job;
		if (!used)
			ferry_jobs_destroy(clients->jobs, job);
	}
	free(client);
}

/* Reads what there is; false once the connection is to be closed. */
static bool client_read(struct ferry_clients *clients, struct ferry_client *client)
{
	size_t head = sizeof client->message;
	size_t want =
	        client->received < head ? head - client->received : head + client->message.payload - client->received;
	char *into = client->received < head ? (char *)&client->message + client->received
	                                     : client->payload + (client->received - head);
	ssize_t got = recv(client->descriptor, into, want, MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (got <= 0)
		return false;
	client->received += (size_t)got;
	if (client->received == head) {
		struct ferry_attach_message checked;
		ferryResult_t result = ferry_attach_decode(&client->message, head, &checked);
		if (!result)
			result = ferry_request_admit(client, &checked);
		if (!result && checked.payload && !(client->payload = malloc(checked.payload)))
			result = ferry_fail(ferrySystemError, "no memory for a plan of %llu bytes",
			                    (unsigned long long)checked.payload);
		if (result) {
			ferry_log(FERRY_LOG_WARN, "refused a client: %s", ferry_last_message());
			ferry_attach_reply(client->descriptor, result, ferry_last_message(), -1);
			return false;
		}
	}
	if (client->received < head || client->received < head + client->message.payload)
		return true;
	ferry_request_serve(clients->jobs, client);
	client->received = 0;
	free(client->payload);
	client->payload = NULL;
	return true;
}

static void refuse_for_want(struct ferry_clients *clients, int error)
{
	close(clients->spare);
	int descriptor = ferry_descriptor_above(accept4(clients->listener, NULL, NULL, SOCK_CLOEXEC));
	if (descriptor >= 0) {
		ferry_fail(ferrySystemError, "the router of domain %u has %zu clients and cannot take another: %s%s",
		           clients->jobs->domain, clients->count, strerror(error), ferry_descriptors_hint(error));
		ferry_log(FERRY_LOG_WARN, "%s", ferry_last_message());
		ferry_attach_reply(descriptor, ferrySystemError, ferry_last_message(), -1);
		close(descriptor);
	}
	clients->spare = spare_descriptor(clients); /* -1: somebody was quicker; see wait_for_events */
}

static void client_accept(struct ferry_clients *clients)
{
	int descriptor = ferry_descriptor_above(accept4(clients->listener, NULL, NULL, SOCK_CLOEXEC));
	if (descriptor < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			refuse_for_want(clients, errno);
		return;
	}
	ferryResult_t result = ferry_attach_check_peer(descriptor);
	struct ferry_client *client = result ? NULL : calloc(1, sizeof *client);
	if (!result && clients->count == clients->capacity) {
		size_t capacity = clients->capacity ? 2 * clients->capacity : 64;
		void *grown = realloc(clients->all, capacity * sizeof(void *));
		if (grown) {
			clients->all = grown;
			clients->capacity = capacity;
		} else {
			free(client);
			client = NULL;
		}
	}
	if (!client) {
		if (!result)
			result = ferry_fail(ferrySystemError, "no memory for client %zu", clients->count + 1);
		ferry_log(FERRY_LOG_WARN, "refused a client: %s", ferry_last_message());
		ferry_attach_reply(descriptor, result, ferry_last_message(), -1);
		close(descriptor);
		return;
	}
	client->descriptor = descriptor;
	clients->all[clients->count++] = client;
}

/* ---- the connection thread's turn ---- */

static bool poll_set(struct ferry_clients *clients)
{
	struct pollfd *grown = realloc(clients->set, (clients->count + 2) * sizeof *grown);
	if (grown) {
		clients->set = grown;
		clients->polled = clients->count;
	} else if (clients->polled > clients->count) {
		clients->polled = clients->count;
	}
	struct pollfd *set = clients->set;
	if (!set)
		return false;
	set[0] = (struct pollfd){clients->event, POLLIN, 0};
	set[1] = (struct pollfd){clients->listener, POLLIN, 0};
	for (size_t i = 0; i < clients->polled; i++)
		set[i + 2] = (struct pollfd){clients->all[i]->descriptor, POLLIN | POLLRDHUP, 0};
	return true;
}

/*
 * poll. Without a spare descriptor the listener rests, and it is seen each second, and whenever a client did something,
 * whether there is one again: nobody tells when another part of the process, or whoever lowered the limit, has let go
 * of it.
 */
static int wait_for_events(struct ferry_clients *clients, int timeout)
{
	while (1) {
		if (clients->spare < 0)
			clients->spare = spare_descriptor(clients);
		clients->set[1].fd = clients->spare < 0 ? -1 : clients->listener;
		int part = clients->spare < 0 && (timeout < 0 || timeout > RETRY_MS) ? RETRY_MS : timeout;
		int events = poll(clients->set, clients->polled + 2, part);
		if (events || part == timeout)
			return events;
		if (timeout > 0)
			timeout -= part;
	}
}

int ferry_clients_turn(struct ferry_clients *clients, int timeout_ms, bool *lost)
{
	*lost = !poll_set(clients);
	int events = *lost ? -1 : wait_for_events(clients, timeout_ms);
	if (events <= 0)
		return events;
	if (clients->set[0].revents) {
		uint64_t count;
		if (read(clients->event, &count, sizeof count) < 0 && errno != EAGAIN)
			ferry_log(FERRY_LOG_WARN, "eventfd: %s", strerror(errno));
	}
	for (size_t i = clients->polled; i-- > 0;) /* backwards: closing moves the last one into the gap */
		if (clients->set[i + 2].revents && !client_read(clients, clients->all[i]))
			client_close(clients, i);
	if (clients->set[1].revents)
		client_accept(clients);
	return events;
}

/* ---- opening and closing ---- */

ferryResult_t ferry_clients_open(struct ferry_clients *clients, struct ferry_jobs *jobs, int listener)
{
	*clients = (struct ferry_clients){.jobs = jobs, .listener = listener, .spare = -1};
	clients->event = ferry_descriptor_above(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	if (clients->event >= 0)
		clients->spare = spare_descriptor(clients);
	if (clients->spare >= 0)
		return ferrySuccess;
	int error = errno;
	if (clients->event >= 0)
		close(clients->event);
	close(listener);
	return ferry_fail(ferrySystemError, "descriptors for the router's own use: %s%s", strerror(error),
	                  ferry_descriptors_hint(error));
}

void ferry_clients_wake(struct ferry_clients *clients)
{
	uint64_t one = 1;
	if (write(clients->event, &one, sizeof one) < 0)
		return; /* the counter is full: the thread is awake anyway */
}

void ferry_clients_close(struct ferry_clients *clients)
{
	for (size_t i = 0; i < clients->count; i++) {
		close(clients->all[i]->descriptor);
		free(clients->all[i]->payload);
		free(clients->all[i]);
	}
	free(clients->all);
	free(clients->set);
	close(clients->listener);
	if (clients->spare >= 0)
		close(clients->spare);
	close(clients->event);
}
