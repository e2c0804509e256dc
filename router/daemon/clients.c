/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/clients.h"

#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/publish.h"
#include "ipc/quarantine.h"
#include "ipc/wait.h"
#include "router/daemon/counter_pages.h"
#include "router/daemon/dead_ranks.h"
#include "router/engine/foreign_ranks.h"
#include "router/engine/remote_ranks.h"
#include "router/failover/adoption.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST_REFUSED 16 /* refused requests of a client that is no rank: each may have made an arena and freed it */
#define RETRY_MS 1000 /* how often to try for a spare descriptor while the listener rests */

/*
 * A descriptor that is closed when there are no others, to accept a client and refuse it. Without it the client would
 * stay in the queue, and poll would return at once for ever.
 */
static int spare_descriptor(const struct ferry_clients *clients)
{
	return fcntl(clients->event, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

/* Frees the payload and descriptors of the client's message that were not taken. */
static void forget_message(struct ferry_client *client)
{
	ferry_quarantine_close(client->descriptors, client->ndescriptors);
	free(client->descriptors);
	free(client->payload);
	client->descriptors = NULL;
	client->payload = NULL;
	client->ndescriptors = 0;
	client->received = 0;
}

/* The connections of this router's own user, and of root, are trusted. */
static void client_free(struct ferry_client *client)
{
	forget_message(client);
	if (client->standing.owner)
		ferry_quarantine_close(&client->descriptor, 1);
	else if (client->descriptor >= 0)
		close(client->descriptor);
	free(client);
}

/*
 * Whether the rank has left in order, which another router may have recorded: where the router before this one died, a
 * rank may close its connection without DETACH.
 */
static bool has_left(const struct ferry_job *job, uint32_t rank)
{
	bool mapped = job->adoption || atomic_load_explicit(&job->ready, memory_order_acquire);
	if (!mapped || !(ferry_departed(&job->shared) >> rank & 1))
		return false;
	const struct ferry_arena *own = &job->shared.arenas[job->shared.rank_domain[rank]];
	return !(atomic_load_explicit(&own->header->gone, memory_order_acquire) >> rank & 1); /* else it has died */
}

static void client_close(struct ferry_clients *clients, size_t index)
{
	struct ferry_client *client = clients->all[index];
	struct ferry_job *job = client->job;
	clients->all[index] = clients->all[--clients->count];
	ferry_counter_pages_close(clients->jobs, client->counters);
	if (job) {
		bool lost = !client->detached && !has_left(job, client->rank);
		if (lost)
			ferry_job_report_gone(job, client->rank);
		if (lost && !atomic_load(&job->dead)) {
			char text[96];
			snprintf(text, sizeof text,
			         "rank %u of %u died, gave up, or closed its connection without leaving",
			         client->rank, job->shared.nranks);
			ferry_dead_ranks_add(job, client->rank, text);
		}
		if (!lost)
			ferry_adoption_leave(job, client->rank);
		/*
		 * The connection closes after that: a rank that still lives would take it for the end of this router.
		 */
		struct ferry_ending *ending = ferry_remote_rank_leave(job, client->rank, client->descriptor, false,
		                                                      client->detached);
		if (!ending)
			ending = ferry_foreign_rank_leave(job, client->rank, client->descriptor, false);
		if (ending) {
			client->descriptor = -1;
			ferry_reaper_give(&clients->jobs->reaper, ending);
		}
		bool used = false;
		for (size_t i = 0; i < clients->count; i++)
			used |= clients->all[i]->job == job;
		if (!used)
			ferry_jobs_destroy(clients->jobs, job);
	}
	client_free(client);
}

/* ---- reading ---- */

/* Keeps the descriptors that came with the message's bytes: with its first byte, not twice nor with the payload. */
static ferryResult_t keep_descriptors(struct ferry_client *client, const struct ferry_attach_received *received)
{
	uint32_t count = received->ndescriptors;
	ferryResult_t result = ferrySuccess;
	if (!count && !received->truncated)
		return ferrySuccess;
	if (client->received)
		result = ferry_fail(ferryInvalidArgument, "%u descriptors behind the first byte of a message", count);
	else if (received->truncated)
		result = ferry_fail(
		        ferryRefused,
		        "more descriptors came with a message than the %u that arrived: at most %u may, and this "
		        "router must have room for them",
		        count, FERRY_ATTACH_MOST_DESCRIPTORS);
	if (!result && !(client->descriptors = malloc(count * sizeof(int))))
		result = ferry_fail(ferrySystemError, "no memory for %u descriptors", count);
	if (result) {
		ferry_quarantine_close(received->descriptors, count);
		return result;
	}
	memcpy(client->descriptors, received->descriptors, count * sizeof(int));
	client->ndescriptors = count;
	return ferrySuccess;
}

static ferryResult_t begin_message(struct ferry_client *client)
{
	struct ferry_attach_message checked;
	ferryResult_t result = ferry_attach_decode(&client->message, sizeof client->message, &checked);
	if (!result && checked.descriptors != client->ndescriptors)
		result = ferry_fail(ferryInvalidArgument,
		                    "attach message of kind %u with %u descriptors, where it speaks of %u",
		                    checked.kind, client->ndescriptors, checked.descriptors);
	if (!result)
		result = ferry_request_admit(client, &checked);
	if (!result && checked.payload && !(client->payload = malloc(checked.payload)))
		result = ferry_fail(ferrySystemError, "no memory for a payload of %llu bytes",
		                    (unsigned long long)checked.payload);
	return result;
}

/* Reads what there is; false once the connection is to be closed. */
static bool client_read(struct ferry_clients *clients, struct ferry_client *client)
{
	struct ferry_attach_received received;
	size_t head = sizeof client->message, have = client->received;
	size_t want = have < head ? head - have : head + client->message.payload - have;
	char *into = have < head ? (char *)&client->message + have : client->payload + (have - head);
	ferryResult_t result =
	        ferry_quarantine_receive(client->descriptor, client->standing.owner, into, want, &received);
	if (!result && received.bytes < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (!result && received.bytes <= 0)
		return false;
	if (!result)
		result = keep_descriptors(client, &received);
	if (!have)
		client->begun_ns = ferry_now_ns();
	client->received += (size_t)received.bytes;
	if (!result && have < head && client->received == head)
		result = begin_message(client);
	if (result) {
		ferry_log_limited(client->standing.owner, FERRY_LOG_WARN, "refused a client: %s", ferry_last_message());
		ferry_attach_reply(client->descriptor, result, ferry_last_message(), -1);
		return false;
	}
	if (client->received < head || client->received < head + client->message.payload)
		return true;
	ferry_request_serve(clients->jobs, client);
	forget_message(client);
	if (client->job || client->refused < MOST_REFUSED)
		return true;
	ferry_log_limited(client->standing.owner, FERRY_LOG_WARN,
	                  "a client has been refused %u times, and is sent away", client->refused);
	return false;
}

/* ---- accepting ---- */

static void refuse_for_want(struct ferry_clients *clients, int error)
{
	close(clients->spare);
	int descriptor = ferry_descriptor_above(accept4(clients->listener, NULL, NULL, SOCK_CLOEXEC));
	if (descriptor >= 0) {
		ferry_fail(ferrySystemError, "the router of domain %u has %zu client%s and cannot take another: %s%s",
		           clients->jobs->domain, clients->count, clients->count == 1 ? "" : "s", strerror(error),
		           ferry_descriptors_hint(error));
		ferry_log_limited(0, FERRY_LOG_WARN, "%s", ferry_last_message());
		ferry_attach_reply(descriptor, ferrySystemError, ferry_last_message(), -1);
		ferry_quarantine_close(&descriptor, 1);
	}
	clients->spare = spare_descriptor(clients); /* -1: another thread was quicker; see wait_for_events */
}

static ferryResult_t check_connections(const struct ferry_clients *clients, const struct ferry_tenant *tenant)
{
	uint32_t count = 0;
	for (size_t i = 0; tenant && i < clients->count; i++)
		count += clients->all[i]->standing.tenant == tenant;
	if (!tenant || count < tenant->connections)
		return ferrySuccess;
	return ferry_fail(ferryRefused, "another connection to domain %u: tenant %s has %u of the %u that it may have",
	                  clients->jobs->domain, tenant->name, count, tenant->connections);
}

static void client_accept(struct ferry_clients *clients)
{
	int descriptor = ferry_descriptor_above(accept4(clients->listener, NULL, NULL, SOCK_CLOEXEC));
	if (descriptor < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			refuse_for_want(clients, errno);
		return;
	}
	struct ferry_standing standing = {0};
	ferryResult_t result = ferry_tenants_judge(clients->jobs->tenants, descriptor, &standing);
	if (!result)
		result = check_connections(clients, standing.tenant);
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
		ferry_log_limited(standing.owner, FERRY_LOG_WARN, "refused a client: %s", ferry_last_message());
		ferry_attach_reply(descriptor, result, ferry_last_message(), -1);
		ferry_quarantine_close(&descriptor, 1);
		return;
	}
	client->descriptor = descriptor;
	client->standing = standing;
	clients->all[clients->count++] = client;
}

/* ---- slow clients ---- */

/*
 * Milliseconds from `now` until the first client in the middle of a message runs out of time; -1: there is none.
 * Without this, a client that stops sending would keep its place for ever.
 */
static int patience_left_ms(const struct ferry_clients *clients, uint64_t now)
{
	int64_t left = -1;
	for (size_t i = 0; i < clients->count; i++) {
		const struct ferry_client *client = clients->all[i];
		if (!client->received)
			continue;
		uint64_t until = client->begun_ns + clients->patience_ns;
		int64_t own = until > now ? (int64_t)(until - now) : 0;
		left = left < 0 || own < left ? own : left;
	}
	return left < 0 ? -1 : (int)(left / 1000000 + 1);
}

static void close_slow(struct ferry_clients *clients)
{
	uint64_t now = ferry_now_ns();
	for (size_t i = clients->count; i-- > 0;) {
		const struct ferry_client *client = clients->all[i];
		if (!client->received || now - client->begun_ns < clients->patience_ns)
			continue;
		ferry_fail(ferryRefused,
		           "%zu bytes of a message have come in %.0f s, and not the rest "
		           "(FERRY_ATTACH_TIMEOUT)",
		           client->received, (double)clients->patience_ns / 1e9);
		ferry_log_limited(client->standing.owner, FERRY_LOG_WARN, "refused a client: %s", ferry_last_message());
		ferry_attach_reply(client->descriptor, ferryRefused, ferry_last_message(), -1);
		client_close(clients, i);
	}
}

/* ---- the connection thread's turn ---- */

/* The file has been read again. Clients that are connected stay, also those that would be refused now. */
static void take_tenants(struct ferry_clients *clients)
{
	struct ferry_jobs *jobs = clients->jobs;
	struct ferry_tenants *changed = atomic_exchange(&jobs->changed_tenants, NULL);
	if (!changed)
		return;
	for (struct ferry_job *job = jobs->workers.jobs; job; job = job->next)
		ferry_jobs_assign(job, NULL);
	for (size_t i = 0; i < clients->count; i++) {
		struct ferry_client *client = clients->all[i];
		uint32_t owner = client->standing.owner;
		if (ferry_tenants_judge(changed, client->descriptor, &client->standing))
			client->standing = (struct ferry_standing){.owner = owner};
		if (client->counters)
			client->counters->standing.tenant = client->standing.tenant;
		if (client->job)
			ferry_jobs_assign(client->job, client->standing.tenant);
	}
	ferry_tenants_free(jobs->tenants);
	jobs->tenants = changed;
}

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
 * poll. Without a spare descriptor the listener rests, and the router tries each second, and after each client's event,
 * to get one again: no event says that another part of the process has closed one, or that the limit was raised.
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

static void serve_events(struct ferry_clients *clients)
{
	if (clients->set[0].revents) {
		uint64_t count;
		if (read(clients->event, &count, sizeof count) < 0 && errno != EAGAIN)
			ferry_log(FERRY_LOG_WARN, "eventfd: %s", strerror(errno));
		take_tenants(clients);
	}
	for (size_t i = clients->polled; i-- > 0;) /* backwards: closing moves the last one into the gap */
		if (clients->set[i + 2].revents && !client_read(clients, clients->all[i]))
			client_close(clients, i);
	if (clients->set[1].revents)
		client_accept(clients);
}

/* The shorter of two times to wait; -1: for ever. */
static int sooner(int a, int b)
{
	return a < 0 ? b : b < 0 || a < b ? a : b;
}

int ferry_clients_turn(struct ferry_clients *clients, int timeout_ms, bool *lost)
{
	int patience = sooner(patience_left_ms(clients, ferry_now_ns()), ferry_adoptions_watch(clients->jobs));
	patience = sooner(patience, ferry_counter_pages_renew(clients->jobs));
	patience = sooner(patience, ferry_dead_ranks_watch(clients->jobs));
	*lost = !poll_set(clients);
	if (*lost)
		return -1;
	int events = wait_for_events(clients, patience < 0 || (timeout_ms >= 0 && timeout_ms < patience) ? timeout_ms
	                                                                                                  : patience);
	if (events > 0)
		serve_events(clients);
	if (events >= 0)
		close_slow(clients);
	return events;
}

/* ---- opening and closing ---- */

ferryResult_t ferry_clients_open(struct ferry_clients *clients, struct ferry_jobs *jobs, int listener)
{
	*clients = (struct ferry_clients){.jobs = jobs, .listener = listener, .spare = -1};
	long seconds = 0;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result) {
		close(listener);
		return result;
	}
	clients->patience_ns = (uint64_t)seconds * 1000000000u;
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
	for (size_t i = 0; i < clients->count; i++)
		client_free(clients->all[i]);
	free(clients->all);
	free(clients->set);
	ferry_quarantine_close(&clients->listener, 1); /* and the connections that it has not accepted */
	if (clients->spare >= 0)
		close(clients->spare);
	close(clients->event);
}
