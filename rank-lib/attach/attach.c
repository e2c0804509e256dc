/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/attach.h"

#include "ipc/endpoint.h"
#include "ipc/patience.h"
#include "ipc/rankset.h"
#include "ipc/wait.h"
#include "rank-lib/attach/forks.h"
#include "rank-lib/attach/hosting.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void disconnect(int *connection)
{
	int closed = *connection;
	*connection = -1; /* first: a thread that forks must not find a number that is somebody else's by then */
	shutdown(closed, SHUT_RDWR); /* a child forked meanwhile may have it open as long as it lives */
	close(closed);
}

/*
 * Asks again where an idle router has left between our connecting and its looking: another one is started then. Not
 * where a rank hosts it: that has ended, and with it the job.
 */
static ferryResult_t ask_router(struct ferry_rank *rank, const struct ferry_routers *routers,
                                const struct ferry_layout *layout, uint32_t domain,
                                struct ferry_attach_message *message, const int *words,
                                struct ferry_attach_reply *reply, int *descriptor)
{
	ferryResult_t result = ferrySuccess;
	for (int attempt = 0; attempt < 4; attempt++) {
		if ((result = ferry_routers_connect(routers, layout, domain, &rank->sockets[domain])))
			return result;
		result = ferry_attach_exchange(rank->sockets[domain], message, NULL, words, reply, descriptor, NULL);
		if (!result)
			return ferrySuccess;
		disconnect(&rank->sockets[domain]);
		if (result != ferryRemoteError || routers->mode != FERRY_ROUTER_AUTO)
			break;
	}
	return ferry_fail_context(result, "rank %d of %d attaches to domain %u", rank->self, rank->nranks, domain);
}

static ferryResult_t attach_domain(struct ferry_rank *rank, const struct ferry_routers *routers,
                                   const struct ferry_layout *layout, uint32_t domain,
                                   const struct ferry_wishes *wishes, bool *mapped)
{
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
		message.flags |= domain == rank->domain ? FERRY_ATTACH_MAPPED : FERRY_ATTACH_LANDS;
		message.descriptors = domain == rank->domain;
	}
	ferryResult_t result = ask_router(rank, routers, layout, domain, &message, &wishes->words, &reply, &descriptor);
	if (result)
		return result;
	if (message.descriptors && !(reply.flags & FERRY_ATTACH_MAPPED))
		ferry_log(FERRY_LOG_INFO, "rank %d moves its data itself: %.*s", rank->self, (int)sizeof reply.message,
		          reply.message);
	*mapped |= (reply.flags & FERRY_ATTACH_MAPPED) != 0;
	if ((result = ferry_arena_map(descriptor, arena)))
		return result;
	if (arena->nranks != (uint32_t)rank->nranks || arena->ndomains != rank->ndomains || arena->domain != domain)
		return ferry_fail(ferryInternalError, "domain %u's arena is for %u ranks in %u domains, domain %u",
		                  domain, arena->nranks, arena->ndomains, arena->domain);
	return ferrySuccess;
}

static ferryResult_t read_failure(const struct ferry_failure *failure)
{
	if (!atomic_load_explicit(&failure->state, memory_order_acquire))
		return ferrySuccess;
	return ferry_fail(failure->code < ferryNumResults && failure->code ? (ferryResult_t)failure->code
	                                                                   : ferryInternalError,
	                  "%.*s", FERRY_MESSAGE_BYTES - 1, failure->message);
}

static const char *list_missing(const struct ferry_rank *rank, uint32_t domain, char text[FERRY_RANKSET_TEXT])
{
	uint64_t present = atomic_load_explicit(&rank->shared.arenas[domain].header->present, memory_order_relaxed);
	return ferry_rankset_print(ferry_rankset_all((uint32_t)rank->nranks) & ~present, text);
}

static ferryResult_t say_missing(const struct ferry_rank *rank, uint32_t domain, uint32_t attached)
{
	char missing[FERRY_RANKSET_TEXT];
	return ferry_fail(ferryRemoteError,
	                  "%u of %d ranks attached to domain %u in time, missing: %s; rank %d waits no longer (they "
	                  "are dead or have another key; FERRY_ATTACH_TIMEOUT sets the seconds)",
	                  attached, rank->nranks, domain, list_missing(rank, domain, missing), rank->self);
}

/*
 * Those who still wait hear of it by the router that sees this rank's connection closed first, and that knows the other
 * domains' arenas not yet.
 */
static ferryResult_t give_up(struct ferry_rank *rank, ferryResult_t result)
{
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		ferry_failure_set(&rank->shared.arenas[domain].rank_lines[rank->self].failure, result,
		                  ferry_last_message());
	return result;
}

/* The router may have been a rank's, which has said why before it left. */
static ferryResult_t say_gone(const struct ferry_rank *rank, uint32_t domain, const _Atomic uint32_t *word)
{
	const struct ferry_arena_header *header = rank->shared.arenas[domain].header;
	char missing[FERRY_RANKSET_TEXT];
	ferryResult_t result = read_failure(&header->failure);
	if (result)
		return result;
	if (word == &header->attached)
		return ferry_fail(ferryRemoteError,
		                  "the router of domain %u went away while rank %d waited for %s to attach", domain,
		                  rank->self, list_missing(rank, domain, missing));
	return ferry_fail(ferryRemoteError, "the router of domain %u went away before it was ready for rank %d", domain,
	                  rank->self);
}

/* Sleeps while the word is less than `enough`: one that the domain's router raises, or leaves when the job fails. */
static ferryResult_t wait_for_word(struct ferry_rank *rank, uint32_t domain, _Atomic uint32_t *word, uint32_t enough,
                                   uint64_t deadline)
{
	struct ferry_arena_header *header = rank->shared.arenas[domain].header;
	while (1) {
		uint32_t value = atomic_load_explicit(word, memory_order_acquire);
		ferryResult_t result = read_failure(&header->failure);
		if (result || value >= enough)
			return result;
		if (ferry_endpoint_closed(rank->sockets[domain]))
			return say_gone(rank, domain, word);
		if (rank->maker && rank->maker->gives_up(rank->maker))
			return give_up(rank, ferry_fail(ferryRemoteError, "rank %d of %d no longer wants to attach",
			                                rank->self, rank->nranks));
		if (ferry_now_ns() > deadline && word == &header->attached)
			return give_up(rank, say_missing(rank, domain, value));
		if (ferry_now_ns() > deadline)
			return give_up(rank, ferry_fail(ferryRemoteError,
			                                "all %d ranks have attached to domain %u, and its router has "
			                                "not become ready in time; rank %d waits no longer "
			                                "(FERRY_ATTACH_TIMEOUT sets the seconds)",
			                                rank->nranks, domain, rank->self));
		ferry_futex_wait(word, value, 100000, true);
	}
}

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

/*
 * Rank 0 has the routers map each other's arenas. All wait for that: from then on any of them may hand its routers
 * plans and exports.
 */
static ferryResult_t meet(struct ferry_rank *rank)
{
	long seconds;
	ferryResult_t result = ferry_patience_seconds(&seconds);
	uint64_t deadline = ferry_now_ns() + (uint64_t)seconds * 1000000000u;
	for (uint32_t domain = 0; !result && domain < rank->ndomains; domain++)
		result = wait_for_word(rank, domain, &rank->shared.arenas[domain].header->attached,
		                       (uint32_t)rank->nranks, deadline);
	if (!result)
		result = learn_domains(rank);
	for (uint32_t domain = 0; !result && rank->self == 0 && domain < rank->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_READY};
		result = ferry_attach_call(rank->sockets[domain], &message, NULL, NULL);
	}
	deadline = ferry_now_ns() + (uint64_t)seconds * 1000000000u;
	for (uint32_t domain = 0; !result && domain < rank->ndomains; domain++)
		result = wait_for_word(rank, domain, &rank->shared.arenas[domain].header->ready, 1, deadline);
	return result;
}

ferryResult_t ferry_rank_attach(struct ferry_rank *rank, const struct ferry_routers *routers,
                                const struct ferry_wishes *wishes, bool *mapped)
{
	struct ferry_layout layout;
	ferryResult_t result = ferry_layout_load(&layout);
	if (result)
		return result;
	if (routers->mode == FERRY_ROUTER_EMBEDDED && (result = ferry_hosting_join(routers->prefix)))
		return result;
	*mapped = false;
	ferry_forks_add(rank);
	for (uint32_t domain = 0; !result && domain < rank->ndomains; domain++)
		result = attach_domain(rank, routers, &layout, domain, wishes, mapped);
	if (!result)
		result = meet(rank);
	if (result) {
		char message[FERRY_MESSAGE_BYTES];
		snprintf(message, sizeof message, "%s", ferry_last_message());
		ferry_rank_detach(rank, routers, true);
		return ferry_fail(result, "%s", message);
	}
	return ferrySuccess;
}

void ferry_rank_detach(struct ferry_rank *rank, const struct ferry_routers *routers, bool abort)
{
	bool silent = abort;
	ferry_forks_remove(rank);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_DETACH};
		if (rank->sockets[domain] < 0)
			continue;
		/*
		 * A router that is gone already is no error; about one that does not answer somebody should hear, once,
		 * and wait once.
		 */
		if (!silent && ferry_attach_call(rank->sockets[domain], &message, NULL, NULL) == ferrySystemError) {
			ferry_log(FERRY_LOG_WARN, "rank %d leaves domain %u: %s", rank->self, domain,
			          ferry_last_message());
			silent = true;
		}
		disconnect(&rank->sockets[domain]);
	}
	if (routers->mode == FERRY_ROUTER_EMBEDDED)
		ferry_hosting_leave(routers->directory, routers->prefix, abort);
}
