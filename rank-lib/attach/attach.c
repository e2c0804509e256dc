/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/attach.h"

#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/launcher.h"
#include "ipc/process.h"
#include "ipc/rankset.h"
#include "ipc/wait.h"
#include "rank-lib/attach/forks.h"
#include "rank-lib/attach/handover.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_US 1000 /* between two looks for what rings no bell: another router, the end of a process */
#define WAIT_US 20000

/* What a rank asks its routers for, and the state of attaching. */
struct attaching {
	struct ferry_rank *rank;
	const struct ferry_routers *routers;
	const struct ferry_wishes *wishes;
	char *why_not; /* of ferry_rank_attach; FERRY_MESSAGE_BYTES */
	bool asked[FERRY_MAX_DOMAINS]; /* rank 0 has asked the domain's router to make the job ready */
	bool again;                    /* a router has died: the rank attaches to its successor */
	uint64_t patience_ns;
};

/* ---- one domain ---- */

/* Connects to the successor of a domain's router that has ended, when it listens. */
static ferryResult_t find_next(const struct attaching *attaching, uint32_t domain, uint64_t deadline)
{
	struct ferry_link *link = &attaching->rank->links[domain];
	ferryResult_t result;
	bool starts = true;
	while ((result = ferry_routers_look(attaching->routers, domain, starts, &link->socket))) {
		if (result == ferryRefused)
			return result;
		starts &= result == ferryInProgress; /* else another rank may start one */
		if (ferry_now_ns() > deadline)
			return ferry_fail(ferryRemoteError,
			                  "the router of domain %u died, and no other has taken its place in time "
			                  "(FERRY_ATTACH_TIMEOUT)",
			                  domain);
		usleep(LOOK_US);
	}
	return ferrySuccess;
}

/* Sends RANK. Asks the next router if one has died, or has ended for idleness just before it saw the connection. */
static ferryResult_t ask_router(const struct attaching *attaching, uint32_t domain,
                                struct ferry_attach_message *message, struct ferry_attach_reply *reply, int *descriptor)
{
	const struct ferry_rank *rank = attaching->rank;
	struct ferry_link *link = &attaching->rank->links[domain];
	int received[FERRY_ATTACH_ANSWERED];
	uint64_t deadline = ferry_now_ns() + attaching->patience_ns;
	ferryResult_t result = attaching->again ? find_next(attaching, domain, deadline)
	                                        : ferry_routers_connect(attaching->routers, domain, &link->socket);
	if (result && !attaching->again) /* the message says already that no router answers */
		return result;
	while (!result) {
		result = ferry_attach_exchange(link->socket, message, NULL, &attaching->wishes->flags, reply, received,
		                               FERRY_ATTACH_ANSWERED, NULL);
		if (!result) {
			*descriptor = received[0];
			link->process = received[1];
			return ferrySuccess;
		}
		bool gone = result == ferryRemoteError && ferry_endpoint_closed(link->socket);
		ferry_link_disconnect(link);
		if (gone && ferry_now_ns() <= deadline && (attaching->routers->takeover || attaching->routers->starts))
			result = find_next(attaching, domain, deadline);
	}
	return ferry_fail_context(result, "rank %d of %d attaches to domain %u", rank->self, rank->nranks, domain);
}

/* Publishes the rank's process for those that have no connection to it: other ranks, and routers that take over. */
static void publish_process(struct ferry_rank_line *line)
{
	atomic_store_explicit(&line->process_start, ferry_process_start(getpid()), memory_order_relaxed);
	atomic_store_explicit(&line->process_names, ferry_process_names(), memory_order_relaxed);
	atomic_store_explicit(&line->process, (uint32_t)getpid(), memory_order_release);
}

static ferryResult_t attach_domain(const struct attaching *attaching, uint32_t domain)
{
	struct ferry_rank *rank = attaching->rank;
	const struct ferry_wishes *wishes = attaching->wishes;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .rank = (uint32_t)rank->self,
	                                       .nranks = (uint32_t)rank->nranks,
	                                       .domain = rank->domain,
	                                       .ndomains = rank->ndomains,
	                                       .flags = wishes->insists ? 0 : FERRY_ATTACH_WISHED,
	                                       .staging = wishes->staging};
	struct ferry_arena *arena = &rank->shared.arenas[domain];
	struct ferry_attach_reply reply = {0};
	int descriptor = -1;
	memcpy(message.key, rank->key, sizeof message.key);
	if (wishes->mapped) {
		memcpy(message.gpu, wishes->gpu, sizeof message.gpu);
		message.flags |= domain == rank->domain ? FERRY_ATTACH_MAPPED : FERRY_ATTACH_FOREIGN;
		message.descriptors = domain == rank->domain;
	}
	ferryResult_t result = ask_router(attaching, domain, &message, &reply, &descriptor);
	if (result)
		return result;
	if (domain == rank->domain)
		snprintf(attaching->why_not, FERRY_MESSAGE_BYTES, "%.*s",
		         message.descriptors && !(reply.flags & FERRY_ATTACH_MAPPED) ? (int)sizeof reply.message : 0,
		         reply.message);
	if ((result = ferry_arena_map(descriptor, arena)))
		return result;
	if (arena->nranks != (uint32_t)rank->nranks || arena->ndomains != rank->ndomains || arena->domain != domain)
		return ferry_fail(ferryInternalError, "domain %u's arena is for %u ranks in %u domains, domain %u",
		                  domain, arena->nranks, arena->ndomains, arena->domain);
	if (domain == rank->domain)
		publish_process(&arena->rank_lines[rank->self]);
	return ferrySuccess;
}

/* ---- all ranks ---- */

static ferryResult_t read_failure(const struct ferry_failure *failure)
{
	char message[FERRY_MESSAGE_BYTES];
	uint32_t code;
	if (!ferry_failure_read(failure, &code, message))
		return ferrySuccess;
	return ferry_fail(ferry_failure_result(code, ferryInternalError), "%s", message);
}

static const char *list_missing(const struct ferry_rank *rank, uint32_t domain, char text[FERRY_RANKSET_TEXT])
{
	uint64_t present = atomic_load_explicit(&rank->shared.arenas[domain].header->present, memory_order_relaxed);
	return ferry_rankset_print(ferry_rankset_all((uint32_t)rank->nranks) & ~present, text);
}

static ferryResult_t report_missing(const struct ferry_rank *rank, uint32_t domain, uint32_t attached)
{
	char missing[FERRY_RANKSET_TEXT];
	return ferry_fail(ferryRemoteError,
	                  "%u of %d ranks attached to domain %u in time, missing: %s; rank %d waits no longer (they "
	                  "are dead or have another key; FERRY_ATTACH_TIMEOUT sets the seconds)",
	                  attached, rank->nranks, domain, list_missing(rank, domain, missing), rank->self);
}

/*
 * Fills in the rank's failure in every arena: the first router that sees this rank's connection close fails the job,
 * and may not know the other domains' arenas yet.
 */
static ferryResult_t give_up(struct ferry_rank *rank, ferryResult_t result)
{
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		ferry_failure_set(&rank->shared.arenas[domain].rank_lines[rank->self].failure, result,
		                  ferry_last_message());
	return result;
}

/* If the job has failed before its router ended, the arena has the reason. */
static ferryResult_t report_gone(const struct ferry_rank *rank, uint32_t domain, const _Atomic uint32_t *flag)
{
	const struct ferry_arena_header *header = rank->shared.arenas[domain].header;
	char missing[FERRY_RANKSET_TEXT];
	ferryResult_t result = read_failure(&header->failure);
	if (result)
		return result;
	if (flag == &header->attached)
		return ferry_fail(ferryRemoteError,
		                  "the router of domain %u went away while rank %d waited for %s to attach", domain,
		                  rank->self, list_missing(rank, domain, missing));
	return ferry_fail(ferryRemoteError, "the router of domain %u went away before it was ready for rank %d", domain,
	                  rank->self);
}

/* Returns an error if the job has failed, the maker gives up, or the deadline is over. */
static ferryResult_t look_for_end(struct ferry_rank *rank, uint32_t domain, uint64_t deadline)
{
	const struct ferry_arena_header *header = rank->shared.arenas[domain].header;
	uint32_t attached = atomic_load_explicit(&header->attached, memory_order_acquire);
	for (uint32_t each = 0; each < rank->ndomains; each++) {
		ferryResult_t result = read_failure(&rank->shared.arenas[each].header->failure);
		if (result)
			return result;
	}
	if (rank->maker && rank->maker->gives_up(rank->maker))
		return give_up(rank, ferry_fail(ferryRemoteError, "rank %d of %d no longer wants to attach", rank->self,
		                                rank->nranks));
	if (ferry_now_ns() <= deadline)
		return ferrySuccess;
	if (attached < (uint32_t)rank->nranks)
		return give_up(rank, report_missing(rank, domain, attached));
	return give_up(rank, ferry_fail(ferryRemoteError,
	                                "all %d ranks have attached to domain %u, and its router has not become ready "
	                                "in time; rank %d waits no longer (FERRY_ATTACH_TIMEOUT sets the seconds)",
	                                rank->nranks, domain, rank->self));
}

/* ---- a router that dies meanwhile ---- */

/* Whether the process of a closed connection ends before the deadline. */
static bool has_ended_by(const struct ferry_link *link, uint64_t deadline)
{
	while (!ferry_process_has_ended(link->process)) {
		if (ferry_now_ns() > deadline)
			return false;
		usleep(LOOK_US);
	}
	return true;
}

static const uint8_t *gpu_of(void *context, int *flags)
{
	const struct ferry_wishes *wishes = context;
	*flags = wishes->flags;
	return wishes->gpu;
}

/* For a rank whose data the router was to move. It has no exports and submissions yet. */
static const struct ferry_handover_ops mapped_ops = {.gpu = gpu_of};

/* Hands the arena to the dead router's successor (router/failover/adoption.h), or to that one's own successor. */
static ferryResult_t hand_over(const struct attaching *attaching, uint32_t domain, uint64_t deadline)
{
	struct ferry_link *link = &attaching->rank->links[domain];
	/*
	 * as the rank has attached: to other domains as a foreign rank, even if its own router does not move its data
	 */
	bool on_gpu = attaching->wishes->mapped && (domain != attaching->rank->domain || !attaching->why_not[0]);
	struct ferry_handover handover = {.rank = attaching->rank,
	                                  .ops = on_gpu ? &mapped_ops : NULL,
	                                  .context = (void *)(uintptr_t)attaching->wishes,
	                                  .domain = domain,
	                                  .lost_ns = ferry_now_ns()};
	while (1) {
		ferry_link_disconnect(link);
		ferryResult_t result = find_next(attaching, domain, deadline);
		if (result)
			return result;
		handover.connection = link->socket;
		result = ferry_hand_over(&handover);
		link->process = handover.process;
		if (result != ferryRemoteError || !ferry_endpoint_closed(link->socket))
			return result;
		if (handover.process >= 0)
			return ferrySuccess; /* it had adopted the rank: look_for_dead handles its end */
		if (ferry_now_ns() > deadline)
			return result;
	}
}

static bool all_are_kept(const struct ferry_rank *rank)
{
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		if (atomic_load_explicit(&rank->shared.arenas[domain].header->fate, memory_order_acquire) !=
		    FERRY_ARENA_KEPT)
			return false;
	return true;
}

/*
 * Hands a dead router's arena to its successor, or attaches anew. *waits: does nothing yet, as the successor gets the
 * arenas of all domains, and some of these may still be given up.
 */
static ferryResult_t go_over(struct attaching *attaching, uint32_t domain, bool *waits)
{
	struct ferry_rank *rank = attaching->rank;
	struct ferry_arena *arena = &rank->shared.arenas[domain];
	uint64_t deadline = ferry_now_ns() + attaching->patience_ns;
	uint32_t fate = FERRY_ARENA_OPEN;
	*waits = false;
	if (!has_ended_by(&rank->links[domain], deadline))
		return ferry_fail(ferryRemoteError, "the router of domain %u has closed its connection, and lives",
		                  domain);
	ferryResult_t failure = read_failure(&arena->header->failure);
	if (failure)
		return failure;
	atomic_compare_exchange_strong(&arena->header->fate, &fate, FERRY_ARENA_GIVEN_UP);
	*waits = fate == FERRY_ARENA_KEPT && !all_are_kept(rank);
	if (*waits)
		return ferrySuccess;
	if (fate == FERRY_ARENA_KEPT)
		return hand_over(attaching, domain, deadline);
	ferry_arena_unmap(arena);
	ferry_link_disconnect(&rank->links[domain]);
	attaching->again = true;
	return attach_domain(attaching, domain);
}

/* Handles a dead router of any domain, as the others may wait for its successor. *found: there was one. */
static ferryResult_t look_for_dead(struct attaching *attaching, bool *found)
{
	struct ferry_rank *rank = attaching->rank;
	*found = false;
	for (uint32_t domain = 0; domain < rank->ndomains; domain++) {
		const struct ferry_arena_header *header = rank->shared.arenas[domain].header;
		bool waits;
		if (!ferry_endpoint_closed(rank->links[domain].socket))
			continue;
		bool kept = atomic_load_explicit(&header->fate, memory_order_acquire) == FERRY_ARENA_KEPT;
		if (!attaching->routers->takeover || rank->links[domain].process < 0)
			return report_gone(rank, domain, kept ? &header->ready : &header->attached);
		ferryResult_t result = go_over(attaching, domain, &waits);
		*found = !waits;
		if (result || *found)
			return result;
	}
	return ferrySuccess;
}

/* ---- meeting ---- */

static ferryResult_t learn_domains(struct ferry_rank *rank)
{
	rank->shared.nranks = (uint32_t)rank->nranks;
	rank->shared.ndomains = rank->ndomains;
	for (int other = 0; other < rank->nranks; other++) {
		uint8_t domain = rank->shared.arenas[0].header->rank_domain[other];
		if (domain >= rank->ndomains)
			return ferry_fail(ferryInternalError, "rank %d is in domain %u of %u", other, domain,
			                  rank->ndomains);
		rank->shared.rank_domain[other] = domain;
	}
	return ferrySuccess;
}

/* Makes a router map the other domains' arenas (rank 0). look_for_dead handles a router that dies meanwhile. */
static ferryResult_t ask_for_ready(struct attaching *attaching, uint32_t domain)
{
	const struct ferry_rank *rank = attaching->rank;
	struct ferry_attach_message message = {
	        .kind = FERRY_ATTACH_READY, .ndomains = rank->ndomains, .descriptors = rank->ndomains};
	struct ferry_attach_reply reply;
	int arenas[FERRY_MAX_DOMAINS], connection = rank->links[domain].socket;
	for (uint32_t each = 0; each < rank->ndomains; each++)
		arenas[each] = rank->shared.arenas[each].descriptor;
	attaching->asked[domain] = true;
	ferryResult_t result = ferry_attach_exchange(connection, &message, NULL, arenas, &reply, NULL, 0, NULL);
	bool gone = result == ferryRemoteError && attaching->routers->takeover && ferry_endpoint_closed(connection);
	return gone ? ferrySuccess : result;
}

/* Returns the first domain that is not ready, or lacks ranks, and that counter in *value; ndomains: there is none. */
static uint32_t first_short(const struct ferry_rank *rank, bool ready, uint32_t *value)
{
	for (uint32_t domain = 0; domain < rank->ndomains; domain++) {
		const struct ferry_arena_header *header = rank->shared.arenas[domain].header;
		*value = atomic_load_explicit(ready ? &header->ready : &header->attached, memory_order_acquire);
		if (*value < (ready ? 1 : (uint32_t)rank->nranks))
			return domain;
	}
	return rank->ndomains;
}

/* For rank 0, when all have attached. False: another rank has given up the arena of a router that has died. */
static bool keep_all(const struct ferry_rank *rank)
{
	for (uint32_t domain = 0; domain < rank->ndomains; domain++) {
		uint32_t fate = FERRY_ARENA_OPEN;
		atomic_compare_exchange_strong(&rank->shared.arenas[domain].header->fate, &fate, FERRY_ARENA_KEPT);
		if (fate == FERRY_ARENA_GIVEN_UP)
			return false;
	}
	return true;
}

/* For when all ranks have attached to all domains. */
static ferryResult_t make_ready(struct attaching *attaching)
{
	const struct ferry_rank *rank = attaching->rank;
	ferryResult_t result = ferrySuccess;
	if (rank->self || !keep_all(rank))
		return ferrySuccess;
	for (uint32_t domain = 0; domain < rank->ndomains && !result; domain++)
		if (!attaching->asked[domain])
			result = ask_for_ready(attaching, domain);
	return result;
}

/* The lowest rank that is present warns for all that wait. */
static void warn_of_missing(const struct ferry_rank *rank, uint32_t domain)
{
	uint64_t present = atomic_load_explicit(&rank->shared.arenas[domain].header->present, memory_order_relaxed);
	char missing[FERRY_RANKSET_TEXT];
	struct ferry_launch launch;
	bool by_script = !ferry_launch_read(&launch) && launch.no_step && launch.size == rank->nranks;
	if (present && ferry_rankset_lowest(present) == (uint32_t)rank->self)
		ferry_log(FERRY_LOG_WARN,
		          "rank %d of %d has waited %d s for %s to attach, and goes on until FERRY_ATTACH_TIMEOUT%s",
		          rank->self, rank->nranks, FERRY_DEADLINE_PROBE_S, list_missing(rank, domain, missing),
		          by_script ? ": SLURM_NTASKS is set, and SLURM_STEP_ID is not: start the ranks with srun"
		                    : "");
}

/* Waits until all routers know all arenas: from then on any rank may hand its routers plans and exports. */
static ferryResult_t meet(struct attaching *attaching)
{
	struct ferry_rank *rank = attaching->rank;
	uint64_t deadline = ferry_now_ns() + attaching->patience_ns;
	uint64_t warning = ferry_now_ns() + FERRY_DEADLINE_PROBE_S * 1000000000ull; /* 0: done */
	bool met = false, found;
	while (1) {
		uint32_t value, domain = first_short(rank, false, &value);
		ferryResult_t result = ferrySuccess;
		bool ready = domain == rank->ndomains; /* all have attached: waits for the routers to be ready now */
		if (ready && !met)
			deadline = ferry_now_ns() + attaching->patience_ns;
		met |= ready;
		if (ready) {
			result = make_ready(attaching);
			domain = first_short(rank, true, &value);
		}
		if (!result && domain == rank->ndomains)
			return learn_domains(rank);
		if (!result)
			result = look_for_dead(attaching, &found);
		if (!result && !found)
			result = look_for_end(rank, domain, deadline);
		if (result)
			return result;
		if (!ready && warning && ferry_now_ns() > warning) {
			warn_of_missing(rank, domain);
			warning = 0;
		}
		struct ferry_arena_header *header = rank->shared.arenas[domain].header;
		if (!found)
			ferry_futex_wait(ready ? &header->ready : &header->attached, value, WAIT_US, true);
	}
}

ferryResult_t ferry_rank_attach(struct ferry_rank *rank, const struct ferry_routers *routers,
                                const struct ferry_wishes *wishes, char why_not[FERRY_MESSAGE_BYTES])
{
	struct attaching attaching = {.rank = rank, .routers = routers, .wishes = wishes, .why_not = why_not};
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	attaching.patience_ns = (uint64_t)seconds * 1000000000u;
	why_not[0] = '\0';
	ferry_forks_add(rank);
	for (uint32_t domain = 0; !result && domain < rank->ndomains; domain++)
		result = attach_domain(&attaching, domain);
	if (!result)
		result = meet(&attaching);
	if (result) {
		char message[FERRY_MESSAGE_BYTES];
		snprintf(message, sizeof message, "%s", ferry_last_message());
		ferry_rank_detach(rank, routers);
		return ferry_fail(result, "%s", message);
	}
	return ferrySuccess;
}

/*
 * Marks the rank as left, as its router would have (router/daemon/job.c), which has ended. All that the rank will ever
 * publish has been stored before.
 */
static void mark_departed(const struct ferry_rank *rank)
{
	struct ferry_arena_header *header = rank->shared.arenas[rank->domain].header;
	atomic_fetch_or_explicit(&header->left, 1ull << rank->self, memory_order_release);
	ferry_wake_all(&rank->shared);
}

static void announce_departure(struct ferry_rank *rank, uint32_t domain, struct ferry_deadline *deadline)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_DETACH};
	bool waits = !deadline->over;
	ferryResult_t result = ferry_link_request_once(&rank->links[domain], &message, deadline);
	if (result == ferryRemoteError && domain == rank->domain && rank->links[domain].process >= 0)
		mark_departed(rank);
	if (result == ferrySystemError && waits)
		ferry_log(FERRY_LOG_WARN, "rank %d leaves domain %u: %s", rank->self, domain, ferry_last_message());
}

/*
 * The router of the rank's own domain comes first: it passes the departure on to routers that the message does not
 * reach (router/daemon/clients.c). A router that has ended is no error. If one does not answer, the rank logs that once
 * and waits once: the other routers get the message, but the rank does not wait for their answers.
 */
void ferry_rank_announce_departure(struct ferry_rank *rank)
{
	long seconds = FERRY_DEADLINE_PROBE_S; /* if the program has made the variable invalid since */
	ferry_deadline_seconds(&seconds);
	struct ferry_deadline deadline = ferry_deadline_for((unsigned)seconds, NULL);
	announce_departure(rank, rank->domain, &deadline);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		if (domain != rank->domain)
			announce_departure(rank, domain, &deadline);
}

/* Removes the socket's file of a router that has ended: a router that a signal killed leaves it. */
static void sweep(const struct ferry_routers *routers, uint32_t domain)
{
	char path[136];
	snprintf(path, sizeof path, "%s/" FERRY_ENDPOINT_NAME, routers->directory, domain);
	ferry_endpoint_sweep(path);
}

void ferry_rank_detach(struct ferry_rank *rank, const struct ferry_routers *routers)
{
	ferry_forks_remove(rank);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++) {
		bool lost = rank->links[domain].socket >= 0 && ferry_endpoint_closed(rank->links[domain].socket);
		ferry_link_disconnect(&rank->links[domain]);
		if (lost)
			sweep(routers, domain);
	}
}
