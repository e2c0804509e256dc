/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/router.h"

#include "ipc/endpoint.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/process.h"
#include "router/daemon/clients.h"
#include "router/daemon/counter_pages.h"
#include "router/reduce/reduce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_CPUS 8
#define SPIN_US   1000

struct ferry_router {
	struct ferry_jobs jobs;
	struct ferry_priority priority; /* where one is asked for */
	struct ferry_clients clients;
	char path[136];
	uint32_t idle_exit_ms;
	pthread_t thread; /* the connection thread */
	_Atomic uint32_t stopping;
	_Atomic uint32_t removed; /* 1: the socket; connection thread, or the thread that stops the router */
	pthread_mutex_t lock;     /* of `done` */
	pthread_cond_t over;
	bool done; /* ferry_router_wait may return */
};

/* ---- the connection thread ---- */

/* Once: from then on another router may have its socket there. */
static void remove_socket(struct ferry_router *router)
{
	if (!atomic_exchange(&router->removed, 1))
		unlink(router->path);
}

static void report_done(struct ferry_router *router)
{
	pthread_mutex_lock(&router->lock);
	router->done = true;
	pthread_cond_broadcast(&router->over);
	pthread_mutex_unlock(&router->lock);
}

/* Milliseconds until an idle router ends; -1: it stays. Clients that only read counters do not keep it. */
static int left_ms(const struct ferry_router *router, uint64_t idle_since)
{
	if (!router->idle_exit_ms || !idle_since ||
	    router->clients.count > ferry_counter_pages_readers(&router->jobs))
		return -1;
	uint64_t passed = (ferry_now_ns() - idle_since) / 1000000;
	return passed < router->idle_exit_ms ? (int)(router->idle_exit_ms - passed) : 0;
}

static void *connection_main(void *argument)
{
	struct ferry_router *router = argument;
	bool lost = false;
	uint64_t idle_since = ferry_now_ns(); /* 0: it is not */
	while (!atomic_load(&router->stopping)) {
		if (router->jobs.workers.jobs)
			idle_since = 0;
		else if (!idle_since)
			idle_since = ferry_now_ns();
		if (idle_since && atomic_load(&router->jobs.draining))
			report_done(router);
		ferry_clients_turn(&router->clients, left_ms(router, idle_since), &lost);
		if (lost) {
			report_done(router);
			return NULL;
		}
		if (!router->jobs.workers.jobs && left_ms(router, idle_since) == 0) {
			/*
			 * No client came for long. A client that has connected since, or still does where the socket
			 * has no file, is not served any more: its connection is reset when the listener is closed, and
			 * it starts another router.
			 */
			remove_socket(router);
			report_done(router);
			return NULL;
		}
	}
	return NULL;
}

/* ---- the router ---- */

static uint32_t workers_default(const struct ferry_layout *layout, uint32_t domain)
{
	uint32_t half = layout->domains[domain].ncpus / 2;
	return half < 1 ? 1 : half;
}

static ferryResult_t read_settings(struct ferry_router *router, const struct ferry_router_options *options,
                                   long *workers, long *spin)
{
	struct ferry_priority *priority = options->better ? &router->priority : NULL;
	ferryResult_t result = ferry_env_integer("FERRY_WORKERS", 1, FERRY_MAX_RANKS,
	                                         workers_default(options->layout, options->domain), workers);
	/* Where there are cores to spare, a worker that spins for a while saves its waker a system call per slice. */
	if (!result)
		result = ferry_env_integer("FERRY_SPIN_US", 0, 1000000,
		                           options->layout->domains[options->domain].ncpus >= SPIN_CPUS ? SPIN_US : 0,
		                           spin);
	if (!result)
		result = ferry_quota_open(&router->jobs.quota, options->layout, options->domain,
		                          options->staging_limit);
	if (!result && options->config)
		result = ferry_tenants_read(options->config, &router->jobs.tenants);
	if (priority)
		ferry_priority_open(priority, FERRY_PRIORITY_OF_ROUTERS);
	if (!result)
		result = ferry_reduce_check();
	if (!result)
		result = ferry_gpu_lanes_init(&router->jobs.gpu_lanes, priority);
	if (result)
		return result;
	router->jobs.store = ferry_cpu_demotes() ? FERRY_STORE_DEMOTE : FERRY_STORE_STREAM;
	return ferrySuccess;
}

/* Names the socket's path. */
static ferryResult_t name_socket(const struct ferry_router_options *options, char *path, size_t bytes)
{
	char directory[64];
	ferryResult_t result = ferrySuccess;
	if (!options->directory)
		result = ferry_endpoint_directory(directory, sizeof directory, true);
	else if ((size_t)snprintf(directory, sizeof directory, "%s", options->directory) >= sizeof directory)
		result = ferry_fail(ferryInvalidArgument, "socket directory %s: at most %zu bytes", options->directory,
		                    sizeof directory - 1);
	if (result)
		return result;
	snprintf(path, bytes, "%s/" FERRY_ENDPOINT_NAME, directory, options->domain);
	return ferrySuccess;
}

static ferryResult_t open_socket(struct ferry_router *router, const struct ferry_router_options *options, int *listener)
{
	ferryResult_t result = name_socket(options, router->path, sizeof router->path);
	return result ? result : ferry_endpoint_listen(router->path, options->config, listener);
}

ferryResult_t ferry_router_stand_by(const struct ferry_router_options *options)
{
	int connection;
	char path[sizeof ((struct ferry_router *)0)->path];
	ferryResult_t result = name_socket(options, path, sizeof path);
	if (!result)
		result = ferry_endpoint_connect(path, &connection);
	if (result)
		return ferry_endpoint_nobody(result) ? ferrySuccess : result;
	ferry_endpoint_await_end(connection);
	close(connection);
	return ferrySuccess;
}

static struct ferry_router *router_new(const struct ferry_router_options *options)
{
	struct ferry_router *router = calloc(1, sizeof *router);
	if (!router)
		return NULL;
	router->jobs.layout = *options->layout;
	router->jobs.domain = options->domain;
	router->jobs.config = options->config;
	/* -1, in an old kernel: then no router takes its place */
	router->jobs.process = ferry_process_open(getpid());
	router->idle_exit_ms = options->idle_exit_ms;
	ferry_mapper_init(&router->jobs.mapper, options->lost);
	ferry_reaper_init(&router->jobs.reaper);
	pthread_mutex_init(&router->lock, NULL);
	pthread_cond_init(&router->over, NULL);
	return router;
}

static void router_free(struct ferry_router *router)
{
	ferry_reaper_stop(&router->jobs.reaper); /* first: it leaves its ranks to the mapper */
	ferry_mapper_stop(&router->jobs.mapper);
	if (router->jobs.process >= 0)
		close(router->jobs.process);
	ferry_counter_pages_end(&router->jobs);
	ferry_tenants_free(router->jobs.tenants);
	ferry_tenants_free(atomic_load(&router->jobs.changed_tenants));
	pthread_cond_destroy(&router->over);
	pthread_mutex_destroy(&router->lock);
	free(router);
}

static ferryResult_t start_threads(struct ferry_router *router, const struct ferry_router_options *options,
                                   uint32_t workers, uint32_t spin_us)
{
	ferryResult_t result = ferry_workers_start(&router->jobs.workers, options->layout, options->domain, workers,
	                                           spin_us, options->pin, router->jobs.gpu_lanes.priority);
	if (result)
		return result;
	int refused = pthread_create(&router->thread, NULL, connection_main, router);
	if (!refused)
		return ferrySuccess;
	ferry_workers_stop(&router->jobs.workers);
	return ferry_fail(ferrySystemError, "a thread for the router's connections: %s%s", strerror(refused),
	                  ferry_ulimit_threads_hint(refused));
}

ferryResult_t ferry_router_start(const struct ferry_router_options *options, struct ferry_router **started)
{
	long workers, spin;
	int listener;
	if (options->domain >= options->layout->ndomains)
		return ferry_fail(ferryInvalidArgument, "domain %u of a layout with %u domains", options->domain,
		                  options->layout->ndomains);
	struct ferry_router *router = router_new(options);
	if (!router)
		return ferry_fail(ferrySystemError, "no memory for a router");
	ferryResult_t result = read_settings(router, options, &workers, &spin);
	if (!result)
		result = open_socket(router, options, &listener);
	if (result)
		goto no_socket;
	if ((result = ferry_clients_open(&router->clients, &router->jobs, listener)))
		goto no_clients;
	result =
	        start_threads(router, options, options->workers ? options->workers : (uint32_t)workers, (uint32_t)spin);
	if (result)
		goto no_threads;
	*started = router;
	return ferrySuccess;
no_threads:
	ferry_clients_close(&router->clients);
no_clients:
	remove_socket(router);
no_socket:
	router_free(router);
	return result;
}

void ferry_router_drain(struct ferry_router *router)
{
	atomic_store(&router->jobs.draining, 1);
	ferry_clients_wake(&router->clients);
}

ferryResult_t ferry_router_reload(struct ferry_router *router)
{
	struct ferry_tenants *tenants;
	if (!router->jobs.config)
		return ferry_fail(ferryInvalidUsage, "the router of domain %u has no file of tenants",
		                  router->jobs.domain);
	ferryResult_t result = ferry_tenants_read(router->jobs.config, &tenants);
	atomic_store(&router->jobs.config_bad, result != ferrySuccess);
	if (result)
		return result;
	ferry_tenants_free(atomic_exchange(&router->jobs.changed_tenants, tenants));
	ferry_clients_wake(&router->clients);
	return ferrySuccess;
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
	remove_socket(router);
	atomic_store(&router->stopping, 1);
	ferry_clients_wake(&router->clients);
	pthread_join(router->thread, NULL);
	ferry_jobs_end(&router->jobs);
	ferry_workers_stop(&router->jobs.workers);
	ferry_clients_close(&router->clients);
	router_free(router);
}
