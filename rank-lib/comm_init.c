/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a communicator: choices and settings, attaching, all ranks of one process at once, and splitting one that
 * there is.
 */
#include "rank-lib/comm.h"

#include "ipc/environment.h"
#include "ipc/launch_env.h"
#include "ipc/layout.h"
#include "rank-lib/bootstrap.h"
#include "rank-lib/direct.h"
#include "rank-lib/mapped.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char id_magic[8] = "ferryid";

/* ---- one rank ---- */

static ferryResult_t choose_router(struct ferryComm *comm, const ferryConfig_t *config)
{
	const char *mode = config->router ? config->router : ferry_env("FERRY_ROUTER");
	if (!mode)
		mode = "auto";
	if (strcmp(mode, "auto") && strcmp(mode, "required") && strcmp(mode, "embedded"))
		return ferry_fail(ferryInvalidArgument, "FERRY_ROUTER=%s: auto, required or embedded", mode);
	snprintf(comm->router_mode, sizeof comm->router_mode, "%s", mode);
	comm->embedded = mode[0] == 'e';
	if (!comm->embedded) {
		snprintf(comm->prefix, sizeof comm->prefix, "router");
		return ferry_socket_directory(comm->directory, sizeof comm->directory, mode[0] == 'a');
	}
	snprintf(comm->directory, sizeof comm->directory, "@ferry");
	for (int i = 0; i < FERRY_KEY_BYTES; i++)
		snprintf(comm->prefix + 2 * i, sizeof comm->prefix - 2 * (size_t)i, "%02x", comm->key[i]);
	return ferrySuccess;
}

static ferryResult_t choose_device(struct ferryComm *comm, const ferryConfig_t *config,
                                   const struct ferry_launch *launch)
{
	const char *kind = config->device ? config->device : ferry_env("FERRY_DEVICE");
	int local_rank = launch->local_rank >= 0 ? launch->local_rank : comm->rank;
	ferryResult_t result = ferry_device_open(kind, config->ordinal, local_rank, &comm->device);
	if (!result)
		snprintf(comm->device_kind, sizeof comm->device_kind, "%s", comm->device->ops->kind);
	return result;
}

/* The domain whose memory is nearest to the device, if the layout tells one from the others; else -1. */
static int nearest_domain(const struct ferry_layout *layout, struct ferry_device *device)
{
	int node = device->ops->node(device), found = -1;
	for (uint32_t domain = 0; node >= 0 && !layout->devices_given && domain < layout->ndomains; domain++)
		if (layout->domains[domain].node == node) {
			if (found >= 0)
				return -1;
			found = (int)domain;
		}
	return found;
}

static ferryResult_t choose_domain(struct ferryComm *comm, const ferryConfig_t *config,
                                   const struct ferry_launch *launch)
{
	struct ferry_layout layout;
	ferryResult_t result = ferry_layout_load(&layout);
	if (result)
		return result;
	uint32_t devices = launch->local_size > 0 ? (uint32_t)launch->local_size : (uint32_t)comm->nranks;
	uint32_t ordinal = (uint32_t)comm->device->ordinal;
	comm->ndomains = layout.ndomains;
	comm->topology.together = layout.together && comm->device->copier->ops->direct_memory_access;
	if (comm->device->copier->ops->direct_memory_access)
		comm->staging = layout.domains[0].cache_bytes / 3 * 2;
	for (uint32_t i = 0; i < layout.ndomains; i++) {
		if (layout.domains[i].core_cache_bytes &&
		    (!comm->core_cache || layout.domains[i].core_cache_bytes < comm->core_cache))
			comm->core_cache = layout.domains[i].core_cache_bytes;
	}
	if (config->domain >= (int)layout.ndomains)
		return ferry_fail(ferryInvalidArgument, "domain %d of a layout with %u domains (%s)", config->domain,
		                  layout.ndomains, layout.source);
	int domain = config->domain >= 0 ? config->domain : nearest_domain(&layout, comm->device);
	comm->domain = domain >= 0 ? (uint32_t)domain
	                           : ferry_layout_device_domain(&layout, ordinal,
	                                                        devices > ordinal ? devices : ordinal + 1);
	return ferrySuccess;
}

static ferryResult_t read_settings(struct ferryComm *comm, const ferryConfig_t *config)
{
	const char *debug = ferry_env("FERRY_DEBUG"), *log = ferry_env("FERRY_LOG");
	enum ferry_log_level level;
	long window = 0, stall = 0;
	if (log && !ferry_log_parse(log, &level))
		return ferry_fail(ferryInvalidArgument, "FERRY_LOG=%s: error, warn, info or debug", log);
	if (log)
		ferry_log_set_level(level);
	uint64_t staging = config->staging;
	if (debug && strcmp(debug, "plan"))
		return ferry_fail(ferryInvalidArgument, "FERRY_DEBUG=%s: plan, or unset", debug);
	comm->show_plans = debug;
	ferryResult_t result = ferry_env_bytes("FERRY_SLICE", 64, 1u << 30, 0, &comm->slice);
	if (!result && comm->slice % 64)
		result = ferry_fail(ferryInvalidArgument, "FERRY_SLICE of %llu bytes is not a multiple of 64",
		                    (unsigned long long)comm->slice);
	if (!result && !staging)
		result = ferry_env_bytes("FERRY_STAGING", FERRY_STAGING_LEAST, FERRY_STAGING_MOST, 0, &staging);
	if (staging)
		comm->staging = staging;
	if (!result)
		result = ferry_env_integer("FERRY_WINDOW", 1, FERRY_MAX_WINDOW, 0, &window);
	comm->window = (uint64_t)window;
	if (!result && comm->device->copier->ops->direct_memory_access)
		result = ferry_costs_read(&comm->costs);
	if (!result)
		result = ferry_env_integer("FERRY_STALL_SECONDS", 0, 86400, 10, &stall);
	comm->stall_ns = (uint64_t)stall * 1000000000u;
	return result;
}

/* Where it has turned out that the router cannot reach the rank's buffers after all, the rank has lanes of its own. */
static ferryResult_t open_data(struct ferryComm *comm)
{
	ferryResult_t result = comm->may_map ? ferry_mapped_open(comm) : ferryInvalidUsage;
	if (result != ferryInvalidUsage)
		return result;
	if (comm->may_map)
		ferry_log(FERRY_LOG_INFO, "rank %d moves its data itself: %s", comm->rank, ferry_last_message());
	ferry_forget_message();
	return ferry_direct_open(comm);
}

static ferryResult_t init(ferryComm_t *made, int nranks, const uint8_t *key, int rank, const ferryConfig_t *config,
                          const struct ferryComm *parent)
{
	struct ferry_launch launch;
	ferryResult_t result = ferry_launch_read(&launch);
	if (result)
		return result;
	struct ferryComm *comm = calloc(1, sizeof *comm);
	if (!comm)
		return ferry_fail(ferrySystemError, "no memory for a communicator");
	comm->magic = FERRY_COMM_MAGIC;
	comm->rank = rank;
	comm->nranks = nranks;
	memcpy(comm->key, key, FERRY_KEY_BYTES);
	pthread_mutex_init(&comm->lock, NULL);
	pthread_mutex_init(&comm->error_lock, NULL);
	atomic_store(&comm->holders, 1);
	atomic_store(&comm->member.order.fixed, UINT64_MAX);
	ferry_word_table_init(&comm->words);
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		comm->sockets[domain] = -1;
		comm->shared.arenas[domain].descriptor = -1;
	}
	result = choose_router(comm, config);
	if (!result && parent) { /* the same routers */
		memcpy(comm->prefix, parent->prefix, sizeof comm->prefix);
		memcpy(comm->directory, parent->directory, sizeof comm->directory);
		memcpy(comm->router_mode, parent->router_mode, sizeof comm->router_mode);
		comm->embedded = parent->embedded;
	}
	if (!result)
		result = choose_device(comm, config, &launch);
	if (!result)
		result = choose_domain(comm, config, &launch);
	if (!result)
		result = read_settings(comm, config);
	if (!result && !(result = ferry_comm_attach(comm))) {
		result = ferry_user_programs_load(&comm->programs, &comm->topology);
		if (!result)
			result = open_data(comm);
		if (result) {
			ferry_comm_fail(comm, result, ferry_last_message());
			ferry_comm_close_data(comm);
			ferry_comm_detach(comm, true);
			ferry_fail(result, "%s", comm->error_message);
		}
	}
	if (result) {
		ferry_comm_drop(comm);
		return result;
	}
	*made = comm;
	return ferrySuccess;
}

ferryResult_t ferryGetUniqueId(ferryUniqueId *id)
{
	if (!id)
		return ferry_fail(ferryInvalidArgument, "ferryGetUniqueId: id is NULL");
	memset(id, 0, sizeof *id);
	memcpy(id->internal, id_magic, sizeof id_magic);
	return ferry_random_key((uint8_t *)id->internal + sizeof id_magic);
}

ferryResult_t ferryCommInitRankConfig(ferryComm_t *comm, int nranks, ferryUniqueId id, int rank,
                                      const ferryConfig_t *config)
{
	if (!comm || !config || config->size != sizeof *config)
		return ferry_fail(
		        ferryInvalidArgument,
		        "ferryCommInitRank: comm %p, config %p of size %zu (FERRY_CONFIG_INITIALIZER has %zu)",
		        (void *)comm, (const void *)config, config ? config->size : 0, sizeof *config);
	if (nranks < 1 || nranks > FERRY_MAX_RANKS || rank < 0 || rank >= nranks)
		return ferry_fail(ferryInvalidArgument,
		                  "ferryCommInitRank: rank %d of %d: 1 to %d ranks, counted from 0", rank, nranks,
		                  FERRY_MAX_RANKS);
	if (memcmp(id.internal, id_magic, sizeof id_magic))
		return ferry_fail(ferryInvalidArgument, "ferryCommInitRank: the id did not come from ferryGetUniqueId");
	return init(comm, nranks, (const uint8_t *)id.internal + sizeof id_magic, rank, config, NULL);
}

ferryResult_t ferryCommInitRank(ferryComm_t *comm, int nranks, ferryUniqueId id, int rank)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	return ferryCommInitRankConfig(comm, nranks, id, rank, &config);
}

ferryResult_t ferryCommInitEnv(ferryComm_t *comm, const ferryConfig_t *config)
{
	static _Atomic uint64_t made; /* the n-th call of every rank makes the n-th communicator */
	ferryConfig_t plain = FERRY_CONFIG_INITIALIZER;
	struct ferry_launch launch;
	uint8_t key[FERRY_KEY_BYTES];
	if (!comm || (config && config->size != sizeof *config))
		return ferry_fail(ferryInvalidArgument,
		                  "ferryCommInitEnv: comm %p, config of size %zu (FERRY_CONFIG_INITIALIZER has %zu)",
		                  (void *)comm, config ? config->size : 0, sizeof *config);
	ferryResult_t result = ferry_launch_read(&launch);
	if (result)
		return result;
	if (launch.rank < 0 || launch.size < 1 || !launch.has_key)
		return ferry_fail(ferryInvalidUsage,
		                  "the environment (launcher %s) tells no rank, size and job: start the program with "
		                  "ferryrun, mpirun, srun or torchrun",
		                  launch.launcher);
	if (launch.size > FERRY_MAX_RANKS || launch.rank >= launch.size)
		return ferry_fail(ferryInvalidArgument,
		                  "rank %d of %d from the environment (launcher %s): at most %d ranks", launch.rank,
		                  launch.size, launch.launcher, FERRY_MAX_RANKS);
	ferry_derive_key(key, launch.key, atomic_fetch_add(&made, 1), 0x656e76);
	return init(comm, launch.size, key, launch.rank, config ? config : &plain, NULL);
}

/* ---- all ranks of one process ---- */

struct one_of_all {
	ferryComm_t *comm;
	int nranks, rank, ordinal;
	const uint8_t *key;
	ferryResult_t result;
	char message[FERRY_MESSAGE_BYTES];
	pthread_t thread;
	bool started;
};

static void *init_one(void *argument)
{
	struct one_of_all *one = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.ordinal = one->ordinal;
	one->result = init(one->comm, one->nranks, one->key, one->rank, &config, NULL);
	if (one->result)
		snprintf(one->message, sizeof one->message, "%s", ferry_last_message());
	return NULL;
}

ferryResult_t ferryCommInitAll(ferryComm_t *comms, int ndevices, const int *devices)
{
	uint8_t key[FERRY_KEY_BYTES];
	struct one_of_all all[FERRY_MAX_RANKS];
	if (!comms || ndevices < 1 || ndevices > FERRY_MAX_RANKS)
		return ferry_fail(ferryInvalidArgument, "ferryCommInitAll: comms %p, %d devices: 1 to %d",
		                  (void *)comms, ndevices, FERRY_MAX_RANKS);
	for (int i = 0; devices && i < ndevices; i++) {
		if (devices[i] < 0)
			return ferry_fail(ferryInvalidArgument, "ferryCommInitAll: devices[%d] = %d", i, devices[i]);
		for (int j = 0; j < i; j++)
			if (devices[i] == devices[j])
				return ferry_fail(
				        ferryInvalidArgument,
				        "ferryCommInitAll: devices[%d] = %d and devices[%d] = %d: one rank per device",
				        i, devices[i], j, devices[j]);
	}
	ferryResult_t result = ferry_random_key(key);
	for (int i = 0; i < ndevices; i++) {
		all[i] = (struct one_of_all){.comm = &comms[i],
		                             .nranks = ndevices,
		                             .rank = i,
		                             .ordinal = devices ? devices[i] : i,
		                             .key = key};
		comms[i] = NULL;
	}
	int started = 0;
	for (; started < ndevices && !result; started++) {
		int refused = pthread_create(&all[started].thread, NULL, init_one, &all[started]);
		if (refused) /* the ranks already started give up at FERRY_ATTACH_TIMEOUT */
			result = ferry_fail(ferrySystemError, "a thread for rank %d: %s", started, strerror(refused));
		else
			all[started].started = true;
	}
	for (int i = 0; i < started; i++) {
		if (all[i].started)
			pthread_join(all[i].thread, NULL);
		if (all[i].started && all[i].result && !result)
			result = ferry_fail(all[i].result, "rank %d: %s", i, all[i].message);
	}
	for (int i = 0; i < ndevices && result; i++)
		if (comms[i]) {
			ferryCommAbort(comms[i]);
			comms[i] = NULL;
		}
	return result;
}

/* ---- splitting ---- */

static bool everyone_posted(struct ferryComm *comm, uint64_t split)
{
	for (int rank = 0; rank < comm->nranks; rank++)
		if (atomic_load_explicit(&ferry_rank_line(&comm->shared, (uint32_t)rank)->board[split % 2].seq,
		                         memory_order_acquire) != split)
			return false;
	return true;
}

/*
 * All ranks tell color and key on their boards. Slot s mod 2 is free: whoever posts s + 2 has read everybody's s + 1.
 */
static ferryResult_t exchange(struct ferryComm *comm, uint64_t split, int color, int key)
{
	struct ferry_rank_line *line = ferry_rank_line(&comm->shared, (uint32_t)comm->rank);
	struct ferry_board *board = &line->board[split % 2];
	atomic_store_explicit(&board->color, color, memory_order_relaxed);
	atomic_store_explicit(&board->key, key, memory_order_relaxed);
	atomic_store_explicit(&board->seq, split, memory_order_release);
	for (int rank = 0; rank < comm->nranks; rank++)
		ferry_doorbell_ring(&ferry_rank_line(&comm->shared, (uint32_t)rank)->app);
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(&line->app);
		bool posted = everyone_posted(comm, split), failed = ferry_comm_failed(comm);
		if (posted || failed) {
			ferry_doorbell_cancel(&line->app);
			return posted ? ferrySuccess
			              : ferry_fail(comm->error, "ferryCommSplit: %s", comm->error_message);
		}
		ferry_doorbell_wait(&line->app, ticket, 100000);
		ferry_comm_check_sockets(comm);
	}
}

ferryResult_t ferryCommSplit(ferryComm_t comm, int color, int key, ferryComm_t *newcomm, const ferryConfig_t *config)
{
	ferryConfig_t plain = FERRY_CONFIG_INITIALIZER;
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	if (!newcomm || (config && config->size != sizeof *config) || (color < 0 && color != FERRY_SPLIT_NOCOLOR))
		return ferry_fail(ferryInvalidArgument,
		                  "ferryCommSplit: newcomm %p, color %d (0 up, or FERRY_SPLIT_NOCOLOR)",
		                  (void *)newcomm, color);
	*newcomm = NULL;
	if (config)
		plain = *config;
	pthread_mutex_lock(&comm->lock);
	uint64_t split = ++comm->splits;
	pthread_mutex_unlock(&comm->lock);
	if ((result = exchange(comm, split, color, key)) || color == FERRY_SPLIT_NOCOLOR)
		return result;
	int rank = 0, nranks = 0;
	for (int other = 0; other < comm->nranks; other++) {
		struct ferry_board *board = &ferry_rank_line(&comm->shared, (uint32_t)other)->board[split % 2];
		if (atomic_load_explicit(&board->color, memory_order_relaxed) != color)
			continue;
		int theirs = atomic_load_explicit(&board->key, memory_order_relaxed);
		nranks++;
		rank += theirs < key || (theirs == key && other < comm->rank);
	}
	uint8_t derived[FERRY_KEY_BYTES];
	ferry_derive_key(derived, comm->key, split, (uint64_t)color + 1);
	plain.device = config && config->device ? config->device : comm->device_kind;
	plain.ordinal = config && config->ordinal >= 0 ? config->ordinal : comm->device->ordinal;
	plain.domain = config && config->domain >= 0 ? config->domain : (int)comm->domain;
	plain.router = comm->router_mode;
	return init(newcomm, nranks, derived, rank, &plain, comm);
}
