/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/failover/rank.h"

#include "ipc/endpoint.h"
#include "ipc/process.h"
#include "ipc/rankset.h"
#include "ipc/wait.h"

#include <stdio.h>
#include <string.h>

#define LOOK_US 100000

void ferry_rank_init(struct ferry_rank *rank, int self, int nranks, const uint8_t *key)
{
	*rank = (struct ferry_rank){.self = self, .nranks = nranks};
	memcpy(rank->key, key, FERRY_KEY_BYTES);
	pthread_mutex_init(&rank->error_lock, NULL);
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		ferry_link_init(&rank->links[domain]);
		rank->shared.arenas[domain].descriptor = -1;
	}
}

void ferry_rank_end(struct ferry_rank *rank)
{
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		ferry_arena_unmap(&rank->shared.arenas[domain]);
	pthread_mutex_destroy(&rank->error_lock);
}

void ferry_rank_publish_timeout(const struct ferry_rank *rank)
{
	struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	atomic_store_explicit(&line->timeout_reports, rank->timeout.reports, memory_order_relaxed);
	atomic_store_explicit(&line->timeout_fails, rank->timeout.fails, memory_order_relaxed);
}

static void keep_error(struct ferry_rank *rank, ferryResult_t code, const char *message)
{
	pthread_mutex_lock(&rank->error_lock);
	if (!atomic_load_explicit(&rank->failed, memory_order_relaxed)) {
		rank->error = code;
		snprintf(rank->error_message, sizeof rank->error_message, "%s", message);
		atomic_store_explicit(&rank->failed, 1, memory_order_seq_cst);
	}
	pthread_mutex_unlock(&rank->error_lock);
}

static void end_kernels(const struct ferry_rank *rank)
{
	if (!rank->forked) /* the rank's line, and the job, are the parent's */
		atomic_store_explicit(&ferry_rank_line(&rank->shared, (uint32_t)rank->self)->mailbox.ended, 1,
		                      memory_order_release);
}

static void end_job(struct ferry_rank *rank, ferryResult_t code, const char *message)
{
	if (rank->forked)
		return;
	keep_error(rank, code, message);
	pthread_mutex_lock(&rank->error_lock); /* two threads of this rank must not fill the cell at once */
	ferry_failure_set(&ferry_rank_line(&rank->shared, (uint32_t)rank->self)->failure, code, message);
	pthread_mutex_unlock(&rank->error_lock);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		atomic_store_explicit(&rank->shared.arenas[domain].header->failed, 1, memory_order_release);
	ferry_wake_all(&rank->shared);
}

void ferry_rank_fail(struct ferry_rank *rank, ferryResult_t code, const char *message)
{
	end_kernels(rank);
	end_job(rank, code, message);
}

void ferry_rank_abort(struct ferry_rank *rank, const char *message)
{
	end_kernels(rank);
	if (!ferry_rank_failed(rank))
		end_job(rank, ferryRemoteError, message);
}

void ferry_rank_lose_router(struct ferry_rank *rank, const char *message)
{
	if (!ferry_ranks_are_near(rank))
		end_kernels(rank);
	end_job(rank, ferryRemoteError, message);
}

void ferry_rank_adopt_failure(struct ferry_rank *rank)
{
	char text[2 * FERRY_MESSAGE_BYTES], message[FERRY_MESSAGE_BYTES];
	uint32_t code;
	/* Ranks first: what one said before it left explains more than a router's "rank 3 died". */
	for (int other = 0; other < rank->nranks; other++) {
		if (!ferry_failure_read(&ferry_rank_line(&rank->shared, (uint32_t)other)->failure, &code, message))
			continue;
		snprintf(text, sizeof text, "rank %d: %s", other, message);
		/* A disagreement of ranks is invalid usage on all of them; any other error is a remote error here. */
		keep_error(rank, code == ferryInvalidUsage ? ferryInvalidUsage : ferryRemoteError, text);
	}
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		if (ferry_failure_read(&rank->shared.arenas[domain].header->failure, &code, message))
			keep_error(rank, ferry_failure_result(code, ferryInternalError), message);
	keep_error(rank, ferryRemoteError, "the job was ended by somebody who left no message");
}

bool ferry_rank_ends_kernels(struct ferry_rank *rank)
{
	bool ends = false;
	if (!ferry_rank_failed(rank))
		return false;
	for (int other = 0; other < rank->nranks; other++)
		ends |= atomic_load_explicit(&ferry_rank_line(&rank->shared, (uint32_t)other)->mailbox.ended,
		                             memory_order_acquire);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		ends |= atomic_load_explicit(&rank->shared.arenas[domain].header->failure.state, memory_order_acquire);
	return ends;
}

ferryResult_t ferry_rank_report_failure(const struct ferry_rank *rank)
{
	return ferry_fail(rank->error, "the communicator has failed: %s", rank->error_message);
}

uint64_t ferry_rank_last_loss(const struct ferry_rank *rank, uint32_t domain, char text[FERRY_RANK_LOSS])
{
	char message[FERRY_LOSS_BYTES];
	uint64_t last = 0;
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++) {
		uint64_t at = rank->shared.rank_domain[other] == domain
		                      ? ferry_loss_read(&ferry_rank_line(&rank->shared, other)->loss, message)
		                      : 0;
		if (at <= last)
			continue;
		last = at;
		if (text)
			snprintf(text, FERRY_RANK_LOSS, "; its context was gone on %s", message);
	}
	return last;
}

const char *ferry_rank_report_loss(const struct ferry_rank *rank, uint32_t domain, char text[FERRY_RANK_LOSS])
{
	text[0] = '\0';
	ferry_rank_last_loss(rank, domain, text);
	return text;
}

void ferry_rank_check_sockets(struct ferry_rank *rank)
{
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		if (rank->links[domain].state == FERRY_LINK_ALONE && rank->links[domain].socket >= 0 &&
		    !ferry_rank_failed(rank) && ferry_endpoint_closed(rank->links[domain].socket)) {
			char text[FERRY_MESSAGE_BYTES], loss[FERRY_RANK_LOSS];
			snprintf(text, sizeof text, "the router of domain %u died%.300s", domain,
			         ferry_rank_report_loss(rank, domain, loss));
			ferry_rank_lose_router(rank, text);
		}
}

void ferry_rank_fail_request(struct ferry_rank *rank, ferryResult_t code, const char *message)
{
	ferry_rank_check_sockets(rank);
	if (!ferry_rank_failed(rank))
		ferry_rank_fail(rank, code, message);
}

/* ---- the others' processes ---- */

bool ferry_ranks_are_near(const struct ferry_rank *rank)
{
	const struct ferry_rank_line *own = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	uint64_t mine = atomic_load_explicit(&own->process_names, memory_order_relaxed);
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++)
		if (atomic_load_explicit(&ferry_rank_line(&rank->shared, other)->process_names, memory_order_relaxed) !=
		    mine)
			return false;
	return true;
}

/* The process may still do something: it has not ended, or that is unknown. */
static bool lives(const struct ferry_rank_line *line)
{
	return ferry_process_lives((pid_t)atomic_load_explicit(&line->process, memory_order_relaxed),
	                           atomic_load_explicit(&line->process_start, memory_order_relaxed));
}

bool ferry_rank_has_ended(const struct ferry_rank *rank, uint32_t other)
{
	const struct ferry_rank_line *line = ferry_rank_line(&rank->shared, other);
	uint64_t names = ferry_process_names();
	return names && atomic_load_explicit(&line->process_names, memory_order_relaxed) == names &&
	       atomic_load_explicit(&line->process, memory_order_relaxed) && !lives(line);
}

/* ---- what all ranks publish ---- */

void ferry_rank_tell(const struct ferry_rank *rank)
{
	ferry_full_fence(); /* of two ranks that publish together, at least one sees that both have */
	for (int other = 0; other < rank->nranks; other++)
		ferry_doorbell_ring(&ferry_rank_line(&rank->shared, (uint32_t)other)->app);
}

static ferryResult_t give_up(struct ferry_rank *rank, uint64_t untold, const char *why)
{
	char text[FERRY_RANKSET_TEXT + 200], ranks[FERRY_RANKSET_TEXT];
	snprintf(text, sizeof text, "rank %d waits no longer for %s to be ready: %s", rank->self,
	         ferry_rankset_print(untold, ranks), why);
	ferry_rank_fail(rank, ferryRemoteError, text);
	return ferry_rank_report_failure(rank);
}

ferryResult_t ferry_rank_await(struct ferry_rank *rank, uint64_t until, uint64_t (*untold)(const struct ferry_rank *))
{
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		uint64_t ranks = untold(rank);
		bool failed = ferry_rank_failed(rank), unwanted = rank->maker && rank->maker->gives_up(rank->maker);
		if (!ranks || failed || unwanted || ferry_now_ns() > until) {
			ferry_doorbell_cancel(bell);
			return !ranks   ? ferrySuccess
			       : failed ? ferry_rank_report_failure(rank)
			                : give_up(rank, ranks, unwanted ? "it is not wanted" : "FERRY_ATTACH_TIMEOUT");
		}
		ferry_doorbell_wait(bell, ticket, LOOK_US);
		ferry_rank_check_sockets(rank);
	}
}
