/* SPDX-License-Identifier: Apache-2.0 */
/* Choices and settings, attaching, and what moves the data. */
#include "rank-lib/api/comm_init.h"

#include "ipc/deadline.h"
#include "ipc/environment.h"
#include "ipc/launcher.h"
#include "ipc/layout.h"
#include "ipc/wait.h"
#include "rank-lib/api/config.h"
#include "rank-lib/attach/attach.h"
#include "rank-lib/attach/key.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/device/open.h"

#include <string.h>

static const char id_magic[8] = "ferryid";

/* ---- one rank ---- */

static ferryResult_t choose_device(struct ferryComm *comm, const ferryConfig_t *config,
                                   const struct ferry_launch *launch)
{
	const char *kind = config->device ? config->device : ferry_env("FERRY_DEVICE");
	int local_rank = launch->local_rank >= 0 ? launch->local_rank : comm->rank.self;
	ferryResult_t result = ferry_device_open(kind, config->ordinal, local_rank, &comm->device);
	comm->mapped.device = comm->direct.device = comm->mailboxes.device = comm->device;
	comm->mailboxes.channel_bytes = config->channels;
	comm->plans.options.dma = !result && comm->device->ops->enqueue_flag; /* a GPU, whose copies are DMA */
	comm->plans.options.memory = comm->plans.options.dma ? FERRY_RANK_WINDOWS : 0;
	return result;
}

/* Finds the facts that plans are made from, except users' settings. */
static void find_facts(struct ferryComm *comm, const struct ferry_layout *layout)
{
	struct ferry_compile_options *options = &comm->plans.options;
	comm->topology.together = layout->together && options->dma;
	options->sharing = comm->topology.together ? layout->ndomains : 1;
	for (uint32_t i = 0; i < layout->ndomains; i++) {
		uint64_t bytes = layout->domains[i].core_cache_bytes;
		if (bytes && (!options->core_cache || bytes < options->core_cache))
			options->core_cache = bytes;
	}
}

static ferryResult_t choose_domain(struct ferryComm *comm, const ferryConfig_t *config,
                                   const struct ferry_launch *launch, struct ferry_wishes *wishes)
{
	const struct ferry_layout *layout = &comm->routers.layout;
	ferryResult_t result = ferrySuccess;
	if (!comm->routers.layout.ndomains) /* else it is that of the parent communicator */
		result = ferry_routers_find_layout(&comm->routers);
	if (result)
		return result;
	uint32_t devices = launch->local_size > 0 ? (uint32_t)launch->local_size : (uint32_t)comm->rank.nranks;
	uint32_t ordinal = (uint32_t)comm->device->ordinal;
	comm->rank.ndomains = layout->ndomains;
	find_facts(comm, layout);
	if (!wishes->insists && comm->plans.options.dma)
		wishes->staging = layout->domains[0].cache_bytes / 3 * 2;
	if (config->domain >= (int)layout->ndomains)
		return ferry_fail(ferryInvalidArgument, "domain %d of a layout with %u domains (%s)", config->domain,
		                  layout->ndomains, layout->source);
	int domain = config->domain >= 0 ? config->domain
	                                 : ferry_layout_node_domain(layout, comm->device->ops->node(comm->device));
	comm->rank.domain = domain >= 0 ? (uint32_t)domain
	                                : ferry_layout_device_domain(layout, ordinal,
	                                                             devices > ordinal ? devices : ordinal + 1);
	return ferrySuccess;
}

static ferryResult_t read_log_settings(struct ferryComm *comm)
{
	const char *log = ferry_env("FERRY_LOG");
	enum ferry_log_level level;
	if (log && !ferry_log_parse(log, &level))
		return ferry_fail(ferryInvalidArgument, "FERRY_LOG=%s: error, warn, info or debug", log);
	if (log)
		ferry_log_set_level(level);
	if (!comm->rank.self) /* one rank warns for all */
		ferry_env_name_unknown();
	ferryResult_t result = ferry_debug_read();
	comm->plans.shown = ferry_debug_shows_plans();
	return result;
}

static ferryResult_t read_settings(struct ferryComm *comm, const ferryConfig_t *config, struct ferry_wishes *wishes)
{
	struct ferry_compile_options *options = &comm->plans.options;
	long window = 0;
	uint64_t staging = config->staging, slice = 0;
	ferryResult_t result = read_log_settings(comm);
	if (!result)
		result = ferry_env_bytes("FERRY_SLICE", 64, 1u << 30, 0, &slice);
	if (!result && slice % 64)
		result = ferry_fail(ferryInvalidArgument, "FERRY_SLICE of %llu bytes is not a multiple of 64",
		                    (unsigned long long)slice);
	if (!result && !staging)
		result = ferry_env_bytes("FERRY_STAGING", FERRY_STAGING_LEAST, FERRY_STAGING_MOST, 0, &staging);
	if (!result)
		result = ferry_env_integer("FERRY_WINDOW", 1, FERRY_MAX_WINDOW, 0, &window);
	if (!result)
		result = ferry_fabrics_read(&comm->fabrics);
	if (!result && options->dma)
		result = ferry_costs_read(&options->costs);
	if (!result)
		result = ferry_timeout_read(&comm->rank.timeout);
	if (staging)
		wishes->staging = staging;
	wishes->insists = staging;
	options->slice = (uint32_t)slice;
	options->window = (uint32_t)window;
	return result;
}

static ferryResult_t choose(struct ferryComm *comm, const ferryConfig_t *config, const struct ferry_routers *routers,
                            struct ferry_wishes *wishes)
{
	struct ferry_launch launch;
	ferryResult_t result = ferry_launch_read(&launch);
	if (!result && routers)
		comm->routers = *routers;
	else if (!result)
		result = ferry_routers_choose(&comm->routers, config->router);
	if (!result)
		result = choose_device(comm, config, &launch);
	if (!result)
		result = read_settings(comm, config, wishes);
	if (!result)
		result = choose_domain(comm, config, &launch, wishes);
	if (!result)
		result = ferry_mapped_prepare(&comm->mapped, &wishes->mapped);
	memcpy(wishes->gpu, comm->mapped.gpu, sizeof wishes->gpu);
	wishes->flags = comm->mapped.flags_descriptor;
	return result;
}

static ferryResult_t open_mapped(struct ferryComm *comm)
{
	ferryResult_t result = ferry_mapped_open(&comm->mapped);
	if (!result && comm->mapped.handed_over) {
		comm->takeovers.ops = &ferry_mapped_handover;
		comm->takeovers.context = &comm->mapped;
		result = ferry_takeovers_open(&comm->takeovers);
	}
	return result ? result : ferry_mapped_try(&comm->mapped);
}

/* Programs, shares and speeds that the environment sets concern routers and lanes: no call is short then. */
static bool may_be_short(const struct ferryComm *comm)
{
	return !comm->programs.count && !comm->fabrics.named && comm->fabrics.host_share < 0 &&
	       !ferry_env("FERRY_HOST_LINK");
}

static ferryResult_t open_direct(struct ferryComm *comm)
{
	ferryResult_t result = ferry_direct_open(&comm->direct);
	if (!result && may_be_short(comm))
		result = ferry_short_calls_open(&comm->shorts);
	return result ? result : ferry_takeovers_open(&comm->takeovers);
}

/* For programs of ADDs: now, as no kernel of the communicator waits for another rank's yet. */
static ferryResult_t make_room(struct ferryComm *comm, uint64_t until)
{
	bool room = false, adds = false;
	for (int i = 0; i < FERRY_NUM_COLLECTIVES; i++)
		adds |= comm->fabrics.adds[i] != 0;
	ferryResult_t result = adds ? ferry_mailboxes_make_room(&comm->mailboxes, until, &room) : ferrySuccess;
	if (!room)
		memset(comm->fabrics.adds, 0, sizeof comm->fabrics.adds);
	return result;
}

/* On GPUs no rank gets a communicator before all ranks are mapped; if one cannot be, all are refused. */
static ferryResult_t open_data(struct ferryComm *comm, bool mapped, const char *why_not)
{
	long seconds;
	ferryResult_t result = *why_not ? ferry_mapped_refuse(&comm->mapped, why_not)
	                       : mapped ? open_mapped(comm)
	                                : open_direct(comm);
	if (!result)
		result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	ferry_fabrics_publish(&comm->fabrics, mapped ? FERRY_COPY_QUIESCE_ROUTER : FERRY_COPY_QUIESCE_HOST_LANES);
	if (!mapped)
		return ferrySuccess;
	uint64_t until = ferry_now_ns() + (uint64_t)seconds * 1000000000u;
	result = ferry_fabrics_await(&comm->fabrics, until);
	if (!result)
		result = ferry_mailboxes_open(&comm->mailboxes, until);
	if (!result && comm->mailboxes.ready)
		result = ferry_fabrics_choose(&comm->fabrics, comm->mailboxes.peer);
	return result ? result : make_room(comm, until);
}

static ferryResult_t attach(struct ferryComm *comm, const struct ferry_wishes *wishes, const char *programs)
{
	char why_not[FERRY_MESSAGE_BYTES];
	ferryResult_t result = ferry_rank_attach(&comm->rank, &comm->routers, wishes, why_not);
	if (result)
		return result;
	ferry_rank_publish_timeout(&comm->rank);
	comm->topology.nranks = comm->rank.shared.nranks;
	comm->topology.ndomains = comm->rank.ndomains;
	memcpy(comm->topology.rank_domain, comm->rank.shared.rank_domain, sizeof comm->topology.rank_domain);
	result = ferry_user_programs_load(&comm->programs, &comm->topology, programs);
	comm->mapped.handed_over = comm->routers.takeover && ferry_mapped_may_be_handed_over(&comm->mapped);
	if (!result)
		result = open_data(comm, wishes->mapped, why_not);
	if (result) {
		ferry_rank_fail(&comm->rank, result, ferry_last_message());
		ferry_comm_leave(comm, true);
		ferry_fail(result, "%s", comm->rank.error_message);
	}
	return result;
}

ferryResult_t ferry_comm_make(ferryComm_t *made, int nranks, const uint8_t *key, int rank, const ferryConfig_t *config,
                              const struct ferry_routers *routers, const struct ferry_maker *maker)
{
	struct ferryComm *comm;
	struct ferry_wishes wishes = {0};
	ferryResult_t result = ferry_comm_new(nranks, key, rank, &comm);
	if (result)
		return result;
	comm->rank.maker = maker;
	result = choose(comm, config, routers, &wishes);
	if (!result)
		result = attach(comm, &wishes, config->programs);
	comm->rank.maker = NULL;
	if (result) {
		ferry_holders_drop(&comm->holders);
		return result;
	}
	*made = comm;
	return ferrySuccess;
}

/* ---- the API ---- */

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
	ferryConfig_t known = FERRY_CONFIG_INITIALIZER;
	if (!comm || !config)
		return ferry_fail(ferryInvalidArgument, "ferryCommInitRank: comm %p, config %p", (void *)comm,
		                  (const void *)config);
	ferryResult_t result = ferry_config_read("ferryCommInitRank", config, &known, sizeof known);
	if (result)
		return result;
	if (nranks < 1 || nranks > FERRY_MAX_RANKS || rank < 0 || rank >= nranks)
		return ferry_fail(ferryInvalidArgument,
		                  "ferryCommInitRank: rank %d of %d: 1 to %d ranks, counted from 0", rank, nranks,
		                  FERRY_MAX_RANKS);
	if (memcmp(id.internal, id_magic, sizeof id_magic))
		return ferry_fail(ferryInvalidArgument, "ferryCommInitRank: the id did not come from ferryGetUniqueId");
	return ferry_comm_make(comm, nranks, (const uint8_t *)id.internal + sizeof id_magic, rank, &known, NULL, NULL);
}

ferryResult_t ferryCommInitRank(ferryComm_t *comm, int nranks, ferryUniqueId id, int rank)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	return ferryCommInitRankConfig(comm, nranks, id, rank, &config);
}

ferryResult_t ferryCommInitEnv(ferryComm_t *comm, const ferryConfig_t *config)
{
	static _Atomic uint64_t made; /* the n-th call of every rank makes the n-th communicator */
	ferryConfig_t known = FERRY_CONFIG_INITIALIZER;
	struct ferry_launch launch;
	uint8_t key[FERRY_KEY_BYTES];
	if (!comm)
		return ferry_fail(ferryInvalidArgument, "ferryCommInitEnv: comm is NULL");
	ferryResult_t result = ferry_config_read("ferryCommInitEnv", config, &known, sizeof known);
	if (!result)
		result = ferry_launch_read(&launch);
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
	return ferry_comm_make(comm, launch.size, key, launch.rank, &known, NULL, NULL);
}
