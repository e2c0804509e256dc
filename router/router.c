/* SPDX-License-Identifier: Apache-2.0 */
#include "router/router.h"

#include "ipc/descriptors.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "router/guard.h"
#include "router/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_MS  1000 /* how long the listener rests before it is seen whether there is a descriptor again */
#define SPIN_CPUS 8
#define SPIN_US   1000
#define DEFAULT_STAGING (16u << 20) /* where the machine does not tell its cache sizes */

/* A client. Owned by the connection thread. */
struct connection {
	int descriptor;
	struct ferry_job *job; /* joined as rank, or NULL */
	uint32_t rank;
	bool detached;
	size_t received;       /* of the message and then of the payload */
	struct ferry_attach_message message;
	char *payload;
};

struct ferry_router {
	struct ferry_workers workers;
	struct ferry_layout layout;
	uint32_t domain;
	char directory[64], prefix[48], path[136];
	uint64_t staging_limit, staging_used;  /* connection thread */
	uint32_t idle_exit_ms;
	enum ferry_store store, cached_store; /* as in ferry_job */
	bool lock_staging;
	int listener, event;                   /* event: wakes the connection thread */
	int spare;                             /* connection thread; see refuse_for_want */
	pthread_t thread;                      /* the connection thread */
	struct connection **connections;
	size_t nconnections, capacity;
	_Atomic uint32_t draining, stopping;
	_Atomic uint32_t removed;              /* 1: the socket; connection thread, or whoever stops the router */
	pthread_mutex_t lock;                  /* of `done` */
	pthread_cond_t over;
	bool done;                             /* ferry_router_wait may return */
};

/* ---- jobs ---- */

static uint64_t staging_default(const struct ferry_router *router)
{
	uint64_t cache = router->layout.domains[router->domain].cache_bytes, value = 0;
	uint64_t fallback = cache ? cache / 2 : DEFAULT_STAGING;
	if (ferry_env_bytes("FERRY_STAGING", FERRY_STAGING_LEAST, FERRY_STAGING_MOST, fallback, &value))
		return fallback;
	return value;
}

static ferryResult_t job_create(struct ferry_router *router, const struct ferry_attach_message *message, struct ferry_job **created)
{
	struct ferry_arena_shape shape = {.domain = router->domain,
	                                  .ndomains = message->ndomains,
	                                  .nranks = message->nranks,
	                                  .staging = message->staging ? message->staging : staging_default(router),
	                                  .node = router->layout.domains[router->domain].node,
	                                  .lock = router->lock_staging};
	if (router->staging_limit && router->staging_used + shape.staging > router->staging_limit)
		return ferry_fail(ferryRefused, "the job asks for %llu bytes of staging; %llu of %llu are left in domain %u (lower FERRY_STAGING, or raise the router's --staging-limit)",
		                  (unsigned long long)shape.staging,
		                  (unsigned long long)(router->staging_limit - router->staging_used),
		                  (unsigned long long)router->staging_limit, router->domain);
	struct ferry_job *job = aligned_alloc(FERRY_APART, sizeof *job);
	if (!job)
		return ferry_fail(ferrySystemError, "no memory for a job");
	memset(job, 0, sizeof *job);
	job->shared.nranks = shape.nranks;
	job->shared.ndomains = shape.ndomains;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		job->shared.arenas[domain].descriptor = -1;
	ferryResult_t result = ferry_arena_create(&shape, &job->shared.arenas[router->domain]);
	if (result) {
		free(job);
		return result;
	}
	ferry_guard_add(&job->shared.arenas[router->domain]);
	memcpy(job->key, message->key, sizeof job->key);
	job->domain = router->domain;
	job->store = router->store;
	job->cached_store = router->cached_store;
	job->workers = router->workers.limit;
	pthread_mutex_init(&job->admit, NULL);
	pthread_mutex_init(&job->failing, NULL);
	pthread_mutex_init(&job->plans.lock, NULL);
	result = ferry_attendant_start(job, &router->workers, router->directory, router->prefix);
	if (result) {
		ferry_guard_remove(&job->shared.arenas[router->domain]);
		ferry_arena_unmap(&job->shared.arenas[router->domain]);
		free(job);
		return result;
	}
	router->staging_used += FERRY_BANKS * job->shared.arenas[router->domain].staging_bytes;
	ferry_workers_add_job(&router->workers, job);
	ferry_log(FERRY_LOG_INFO, "domain %u: new job of %u ranks in %u domains, staging %llu bytes", router->domain,
	          shape.nranks, shape.ndomains, (unsigned long long)shape.staging);
	*created = job;
	return ferrySuccess;
}

static void job_destroy(struct ferry_router *router, struct ferry_job *job)
{
	struct ferry_arena *own = &job->shared.arenas[job->domain];
	atomic_store_explicit(&job->dead, 1, memory_order_release);
	ferry_attendant_join(job);
	ferry_workers_remove_job(&router->workers, job);
	ferry_job_free_plans(job);
	router->staging_used -= FERRY_BANKS * own->staging_bytes;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		ferry_guard_remove(&job->shared.arenas[domain]);
		ferry_arena_unmap(&job->shared.arenas[domain]);
	}
	pthread_mutex_destroy(&job->admit);
	pthread_mutex_destroy(&job->failing);
	pthread_mutex_destroy(&job->plans.lock);
	ferry_log(FERRY_LOG_INFO, "domain %u: job ended", job->domain);
	free(job);
}

/* ---- requests; all in the connection thread ---- */

static struct ferry_job *find_job(struct ferry_router *router, const uint8_t *key)
{
	for (struct ferry_job *job = router->workers.jobs; job; job = job->next)
		if (!memcmp(job->key, key, sizeof job->key))
			return job;
	return NULL;
}

static ferryResult_t attach_rank(struct ferry_router *router, struct connection *client)
{
	const struct ferry_attach_message *message = &client->message;
	struct ferry_job *job = find_job(router, message->key);
	if (client->job)
		return ferry_fail(ferryInvalidUsage, "this connection has attached as rank %u already", client->rank);
	if (atomic_load(&router->draining) && !job)
		return ferry_fail(ferryRefused, "the router of domain %u is shutting down and takes no new job", router->domain);
	if (!job) {
		ferryResult_t result = job_create(router, message, &job);
		if (result)
			return result;
	}
	if (job->shared.nranks != message->nranks || job->shared.ndomains != message->ndomains)
		return ferry_fail(ferryRefused, "rank %u attaches to a job of %u ranks in %u domains, the job has %u ranks in %u domains",
		                  message->rank, message->nranks, message->ndomains, job->shared.nranks, job->shared.ndomains);
	if (job->attached >> message->rank & 1)
		return ferry_fail(ferryRefused, "rank %u of this job has attached already (jobs started side by side need a FERRY_JOB_KEY each)", message->rank);
	if (atomic_load(&job->dead))
		return ferry_job_failure(job);
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	job->attached |= 1ull << message->rank;
	client->job = job;
	client->rank = message->rank;
	job->shared.rank_domain[message->rank] = (uint8_t)message->domain;
	header->rank_domain[message->rank] = (uint8_t)message->domain;
	atomic_fetch_or_explicit(&header->present, 1ull << message->rank, memory_order_relaxed);
	atomic_fetch_add_explicit(&header->attached, 1, memory_order_release);
	ferry_futex_wake(&header->attached, -1, true);
	return ferrySuccess;
}

static ferryResult_t make_ready(struct connection *client)
{
	struct ferry_job *job = client->job;
	if (!job)
		return ferry_fail(ferryInvalidUsage, "READY before ATTACH");
	if (atomic_load(&job->dead))
		return ferry_job_failure(job);
	if (__builtin_popcountll(job->attached) != (int)job->shared.nranks)
		return ferry_fail(ferryInvalidUsage, "READY with %d of %u ranks attached", __builtin_popcountll(job->attached),
		                  job->shared.nranks);
	return ferry_attendant_ask(job, client->descriptor);
}

static ferryResult_t keep_plan(struct connection *client)
{
	if (!client->job)
		return ferry_fail(ferryInvalidUsage, "PLAN before ATTACH");
	return ferry_job_add_plan(client->job, client->rank, client->payload, client->message.payload);
}

static ferryResult_t drop_plan(struct ferry_router *router, struct connection *client)
{
	if (!client->job)
		return ferry_fail(ferryInvalidUsage, "DROP before ATTACH");
	ferryResult_t result = ferry_job_drop_plan(client->job, client->rank, client->message.hash);
	ferry_workers_free_retired(&router->workers, client->job);
	return result;
}

static void status_text(struct ferry_router *router, char *text, size_t bytes)
{
	unsigned jobs = 0, failed = 0, ranks = 0;
	unsigned long long slices = 0, moved = 0, calls = 0, working = 0;
	for (struct ferry_job *job = router->workers.jobs; job; job = job->next) {
		jobs++;
		failed += atomic_load_explicit(&job->dead, memory_order_relaxed);
		ranks += (unsigned)__builtin_popcountll(job->attached & ~job->detached);
		slices += atomic_load_explicit(&job->slices, memory_order_relaxed);
		moved += atomic_load_explicit(&job->bytes, memory_order_relaxed);
		calls += atomic_load_explicit(&job->calls_ns, memory_order_relaxed);
		working += atomic_load_explicit(&job->working_ns, memory_order_relaxed);
	}
	snprintf(text, bytes, "domain=%u pid=%d state=%s workers=%u jobs=%u failed=%u ranks=%u staging=%llu slices=%llu bytes=%llu calls_ms=%.3f working_ms=%.3f",
	         router->domain, (int)getpid(), atomic_load(&router->draining) ? "draining" : "serving", router->workers.limit,
	         jobs, failed, ranks, (unsigned long long)router->staging_used, slices, moved, (double)calls / 1e6,
	         (double)working / 1e6);
}

static void serve(struct ferry_router *router, struct connection *client)
{
	char text[480] = "";
	int descriptor = -1;
	ferryResult_t result = ferrySuccess;
	struct ferry_job *job;
	switch (client->message.kind) {
	case FERRY_ATTACH_RANK:
		if (!(result = attach_rank(router, client)))
			descriptor = client->job->shared.arenas[router->domain].descriptor;
		break;
	case FERRY_ATTACH_READY:
		if (!(result = make_ready(client)))
			return; /* the attendant answers */
		break;
	case FERRY_ATTACH_PLAN:
		result = keep_plan(client);
		break;
	case FERRY_ATTACH_DROP:
		result = drop_plan(router, client);
		break;
	case FERRY_ATTACH_DETACH:
		client->detached = true;
		if (client->job)
			client->job->detached |= 1ull << client->rank;
		break;
	case FERRY_ATTACH_PEER:
		job = find_job(router, client->message.key);
		if (job && job->shared.nranks == client->message.nranks)
			descriptor = job->shared.arenas[router->domain].descriptor;
		else
			result = ferry_fail(ferryRefused, "domain %u has no job of that key and %u ranks", router->domain,
			                    client->message.nranks);
		break;
	default:
		status_text(router, text, sizeof text);
	}
	if (ferry_attach_reply(client->descriptor, result, result ? ferry_last_message() : text, descriptor))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone, which is told elsewhere */
}

/* A descriptor to let go of when there are no others: without it nobody could be told, and the listener would not come to rest. */
static int spare_descriptor(const struct ferry_router *router)
{
	return fcntl(router->event, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

static void client_close(struct ferry_router *router, size_t index)
{
	struct connection *client = router->connections[index];
	struct ferry_job *job = client->job;
	router->connections[index] = router->connections[--router->nconnections];
	close(client->descriptor);
	free(client->payload);
	if (job) {
		if (!client->detached && !atomic_load(&job->dead)) {
			char text[96];
			snprintf(text, sizeof text, "rank %u of %u died, gave up, or closed its connection without leaving", client->rank,
			         job->shared.nranks);
			ferry_job_fail(job, ferryRemoteError, text);
		}
		bool used = false;
		for (size_t i = 0; i < router->nconnections; i++)
			used |= router->connections[i]->job == job;
		if (!used)
			job_destroy(router, job);
	}
	free(client);
}

/* Reads what there is; false once the connection is to be closed. */
static bool client_read(struct ferry_router *router, struct connection *client)
{
	size_t head = sizeof client->message;
	size_t want = client->received < head ? head - client->received : head + client->message.payload - client->received;
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
		if (!result && checked.payload && !client->job)
			result = ferry_fail(ferryInvalidUsage, "PLAN before ATTACH");
		if (!result && checked.payload && !(client->payload = malloc(checked.payload)))
			result = ferry_fail(ferrySystemError, "no memory for a plan of %llu bytes", (unsigned long long)checked.payload);
		if (result) {
			ferry_log(FERRY_LOG_WARN, "refused a client: %s", ferry_last_message());
			ferry_attach_reply(client->descriptor, result, ferry_last_message(), -1);
			return false;
		}
	}
	if (client->received < head || client->received < head + client->message.payload)
		return true;
	serve(router, client);
	client->received = 0;
	free(client->payload);
	client->payload = NULL;
	return true;
}

static void refuse_for_want(struct ferry_router *router, int error)
{
	close(router->spare);
	int descriptor = ferry_descriptor_above(accept4(router->listener, NULL, NULL, SOCK_CLOEXEC));
	if (descriptor >= 0) {
		ferry_fail(ferrySystemError, "the router of domain %u has %zu clients and cannot take another: %s%s", router->domain,
		           router->nconnections, strerror(error), ferry_descriptors_hint(error));
		ferry_log(FERRY_LOG_WARN, "%s", ferry_last_message());
		ferry_attach_reply(descriptor, ferrySystemError, ferry_last_message(), -1);
		close(descriptor);
	}
	router->spare = spare_descriptor(router); /* -1: somebody was quicker; see wait_for_events */
}

static void client_accept(struct ferry_router *router)
{
	int descriptor = ferry_descriptor_above(accept4(router->listener, NULL, NULL, SOCK_CLOEXEC));
	if (descriptor < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			refuse_for_want(router, errno);
		return;
	}
	ferryResult_t result = ferry_attach_check_peer(descriptor);
	struct connection *client = result ? NULL : calloc(1, sizeof *client);
	if (!result && router->nconnections == router->capacity) {
		size_t capacity = router->capacity ? 2 * router->capacity : 64;
		void *grown = realloc(router->connections, capacity * sizeof(void *));
		if (grown) {
			router->connections = grown;
			router->capacity = capacity;
		} else {
			free(client);
			client = NULL;
		}
	}
	if (!client) {
		if (!result)
			result = ferry_fail(ferrySystemError, "no memory for client %zu", router->nconnections + 1);
		ferry_log(FERRY_LOG_WARN, "refused a client: %s", ferry_last_message());
		ferry_attach_reply(descriptor, result, ferry_last_message(), -1);
		close(descriptor);
		return;
	}
	client->descriptor = descriptor;
	router->connections[router->nconnections++] = client;
}

/* ---- the connection thread ---- */

/* Once: from then on another router may have its socket there. */
static void remove_socket(struct ferry_router *router)
{
	if (!atomic_exchange(&router->removed, 1) && router->path[0] != '@')
		unlink(router->path);
}

static void say_done(struct ferry_router *router)
{
	pthread_mutex_lock(&router->lock);
	router->done = true;
	pthread_cond_broadcast(&router->over);
	pthread_mutex_unlock(&router->lock);
}

/* What the connection thread waits for. *nclients: how many clients are in it; those that there is no memory for wait. */
static struct pollfd *poll_set(struct ferry_router *router, struct pollfd *set, size_t *nclients)
{
	struct pollfd *grown = realloc(set, (router->nconnections + 2) * sizeof *set);
	if (grown)
		*nclients = router->nconnections;
	else if (*nclients > router->nconnections)
		*nclients = router->nconnections;
	if (grown)
		set = grown;
	if (!set)
		return NULL;
	set[0] = (struct pollfd){router->event, POLLIN, 0};
	set[1] = (struct pollfd){router->listener, POLLIN, 0};
	for (size_t i = 0; i < *nclients; i++)
		set[i + 2] = (struct pollfd){router->connections[i]->descriptor, POLLIN | POLLRDHUP, 0};
	return set;
}

/*
 * poll. Without a spare descriptor the listener rests, and it is seen each second, and whenever a client did something, whether there is
 * one again: nobody tells when another part of the process, or whoever lowered the limit, has let go of it.
 */
static int wait_for_events(struct ferry_router *router, struct pollfd *set, size_t nclients, int timeout)
{
	while (1) {
		if (router->spare < 0)
			router->spare = spare_descriptor(router);
		set[1].fd = router->spare < 0 ? -1 : router->listener;
		int part = router->spare < 0 && (timeout < 0 || timeout > RETRY_MS) ? RETRY_MS : timeout;
		int events = poll(set, nclients + 2, part);
		if (events || part == timeout)
			return events;
		if (timeout > 0)
			timeout -= part;
	}
}

static void *connection_main(void *argument)
{
	struct ferry_router *router = argument;
	struct pollfd *set = NULL;
	size_t nclients = 0;
	while (!atomic_load(&router->stopping)) {
		bool idle = !router->workers.jobs;
		if (idle && atomic_load(&router->draining))
			say_done(router);
		set = poll_set(router, set, &nclients);
		if (!set) {
			say_done(router);
			return NULL;
		}
		int timeout = idle && router->idle_exit_ms ? (int)router->idle_exit_ms : -1;
		int events = wait_for_events(router, set, nclients, timeout);
		if (events == 0 && !router->nconnections) {
			/*
			 * Nobody came for long. Who has connected since, and who still does where the socket has no file, is not
			 * served any more: it is reset when the listener is closed, and starts another router.
			 */
			remove_socket(router);
			say_done(router);
			break;
		}
		if (events <= 0)
			continue;
		if (set[0].revents) {
			uint64_t count;
			if (read(router->event, &count, sizeof count) < 0 && errno != EAGAIN)
				ferry_log(FERRY_LOG_WARN, "eventfd: %s", strerror(errno));
		}
		for (size_t i = nclients; i-- > 0;) /* backwards: closing moves the last one into the gap */
			if (set[i + 2].revents && !client_read(router, router->connections[i]))
				client_close(router, i);
		if (set[1].revents)
			client_accept(router);
	}
	free(set);
	return NULL;
}

/* ---- the router ---- */

static uint32_t workers_default(const struct ferry_layout *layout, uint32_t domain)
{
	uint32_t half = layout->domains[domain].ncpus / 2;
	return half < 1 ? 1 : half;
}

static ferryResult_t read_settings(struct ferry_router *router, const struct ferry_router_options *options, long *workers, long *spin)
{
	const char *store = ferry_env("FERRY_STORE"), *lock = ferry_env("FERRY_LOCK");
	uint64_t staging;
	ferryResult_t result = ferry_env_integer("FERRY_WORKERS", 1, FERRY_MAX_RANKS,
	                                         workers_default(options->layout, options->domain), workers);
	/* Where there are cores to spare, a worker that looks again for a while saves its waker a system call per slice. */
	if (!result)
		result = ferry_env_integer("FERRY_SPIN_US", 0, 1000000,
		                           options->layout->domains[options->domain].ncpus >= SPIN_CPUS ? SPIN_US : 0, spin);
	if (!result)
		result = ferry_env_bytes("FERRY_STAGING", FERRY_STAGING_LEAST, FERRY_STAGING_MOST, DEFAULT_STAGING, &staging);
	if (!result)
		result = ferry_reduce_check();
	if (result)
		return result;
	if (store && strcmp(store, "ordinary") && strcmp(store, "stream") && strcmp(store, "demote"))
		return ferry_fail(ferryInvalidArgument, "FERRY_STORE=%s: ordinary, stream or demote", store);
	if (store && store[0] == 'd' && !ferry_cpu_demotes())
		return ferry_fail(ferryInvalidArgument, "FERRY_STORE=%s: this CPU has no cldemote: ordinary or stream", store);
	router->store = router->cached_store = store && store[0] == 's'   ? FERRY_STORE_STREAM
	                                       : store && store[0] == 'd' ? FERRY_STORE_DEMOTE
	                                                                  : FERRY_STORE_ORDINARY;
	if (!store)
		router->store = ferry_cpu_demotes() ? FERRY_STORE_DEMOTE : FERRY_STORE_STREAM;
	if (lock && strcmp(lock, "off") && strcmp(lock, "require"))
		return ferry_fail(ferryInvalidArgument, "FERRY_LOCK=%s: off or require", lock);
	router->lock_staging = lock && lock[0] == 'r';
	return ferrySuccess;
}

static ferryResult_t open_socket(struct ferry_router *router, const struct ferry_router_options *options)
{
	ferryResult_t result = ferrySuccess;
	if (!options->directory)
		result = ferry_socket_directory(router->directory, sizeof router->directory, true);
	else if ((size_t)snprintf(router->directory, sizeof router->directory, "%s", options->directory) >= sizeof router->directory)
		result = ferry_fail(ferryInvalidArgument, "socket directory %s: at most %zu bytes", options->directory,
		                    sizeof router->directory - 1);
	if (result)
		return result;
	snprintf(router->prefix, sizeof router->prefix, "%s", options->prefix ? options->prefix : "router");
	snprintf(router->path, sizeof router->path, "%s/%s-%u.sock", router->directory, router->prefix, router->domain);
	return ferry_attach_listen(router->path, &router->listener);
}

ferryResult_t ferry_router_start(const struct ferry_router_options *options, struct ferry_router **started)
{
	long workers, spin;
	if (options->domain >= options->layout->ndomains)
		return ferry_fail(ferryInvalidArgument, "domain %u of a layout with %u domains", options->domain,
		                  options->layout->ndomains);
	struct ferry_router *router = calloc(1, sizeof *router);
	if (!router)
		return ferry_fail(ferrySystemError, "no memory for a router");
	router->layout = *options->layout;
	router->domain = options->domain;
	router->staging_limit = options->staging_limit;
	router->idle_exit_ms = options->idle_exit_ms;
	pthread_mutex_init(&router->lock, NULL);
	pthread_cond_init(&router->over, NULL);
	ferryResult_t result = read_settings(router, options, &workers, &spin);
	if (result)
		goto no_settings;
	if ((result = open_socket(router, options)))
		goto no_settings;
	router->event = ferry_descriptor_above(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	router->spare = router->event < 0 ? -1 : spare_descriptor(router);
	if (router->spare < 0) {
		int error = errno;
		if (router->event >= 0)
			close(router->event);
		result = ferry_fail(ferrySystemError, "descriptors for the router's own use: %s%s", strerror(error), ferry_descriptors_hint(error));
		goto no_event;
	}
	result = ferry_workers_start(&router->workers, options->layout, options->domain,
	                             options->workers ? options->workers : (uint32_t)workers, (uint32_t)spin, options->pin);
	if (result)
		goto no_workers;
	int refused = pthread_create(&router->thread, NULL, connection_main, router);
	if (refused) {
		result = ferry_fail(ferrySystemError, "a thread for the router's connections: %s", strerror(refused));
		goto no_thread;
	}
	*started = router;
	return ferrySuccess;
no_thread:
	ferry_workers_stop(&router->workers);
no_workers:
	close(router->spare);
	close(router->event);
no_event:
	close(router->listener);
	remove_socket(router);
no_settings:
	pthread_cond_destroy(&router->over);
	pthread_mutex_destroy(&router->lock);
	free(router);
	return result;
}

void ferry_router_drain(struct ferry_router *router)
{
	uint64_t one = 1;
	atomic_store(&router->draining, 1);
	if (write(router->event, &one, sizeof one) < 0)
		return; /* the counter is full: the thread is awake anyway */
}

void ferry_router_wait(struct ferry_router *router)
{
	pthread_mutex_lock(&router->lock);
	while (!router->done)
		pthread_cond_wait(&router->over, &router->lock);
	pthread_mutex_unlock(&router->lock);
}

void ferry_router_stop(struct ferry_router *router)
{
	uint64_t one = 1;
	remove_socket(router);
	atomic_store(&router->stopping, 1);
	if (write(router->event, &one, sizeof one) < 0)
		ferry_log(FERRY_LOG_WARN, "eventfd: %s", strerror(errno));
	pthread_join(router->thread, NULL);
	while (router->workers.jobs)
		if (!atomic_load(&router->workers.jobs->dead))
			ferry_job_fail(router->workers.jobs, ferryRemoteError, "the router was stopped");
		else
			job_destroy(router, router->workers.jobs);
	for (size_t i = 0; i < router->nconnections; i++) {
		close(router->connections[i]->descriptor);
		free(router->connections[i]->payload);
		free(router->connections[i]);
	}
	free(router->connections);
	ferry_workers_stop(&router->workers);
	close(router->listener);
	if (router->spare >= 0)
		close(router->spare);
	close(router->event);
	pthread_cond_destroy(&router->over);
	pthread_mutex_destroy(&router->lock);
	free(router);
}
