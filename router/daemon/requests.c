/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/requests.h"

#include "ipc/error.h"
#include "router/daemon/counter_pages.h"
#include "router/daemon/job_thread.h"
#include "router/engine/foreign_ranks.h"
#include "router/engine/remote_ranks.h"
#include "router/failover/adoption.h"
#include "router/failover/recovery.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static ferryResult_t check_foreign_rank(const struct ferry_jobs *jobs, const struct ferry_attach_message *message)
{
	if (!(message->flags & FERRY_ATTACH_FOREIGN) || message->domain != jobs->domain)
		return ferrySuccess;
	return ferry_fail(ferryInvalidArgument, "rank %u is no foreign rank in its own domain %u", message->rank,
	                  jobs->domain);
}

static ferryResult_t attach_rank(struct ferry_jobs *jobs, struct ferry_client *client)
{
	const struct ferry_attach_message *message = &client->message;
	struct ferry_job *job;
	if (client->job)
		return ferry_fail(ferryInvalidUsage, "this connection has attached as rank %u already", client->rank);
	bool mapped = message->flags & FERRY_ATTACH_MAPPED, foreign_rank = message->flags & FERRY_ATTACH_FOREIGN;
	ferryResult_t result = ferry_jobs_join(jobs, message, &client->standing, &job);
	if (result)
		return result;
	if (job->attached >> message->rank & 1)
		return ferry_fail(ferryRefused,
		                  "rank %u of this job has attached already (jobs started side by side need a "
		                  "FERRY_JOB_KEY each)",
		                  message->rank);
	if (atomic_load(&job->dead)) {
		result = ferry_job_failure(job);
		if (!job->attached) /* it was made for this rank, and there was no memory for it */
			ferry_jobs_destroy(jobs, job);
		return result;
	}
	/* the job thread may read it meanwhile, to wake the ranks that are there after it has failed the job */
	__atomic_store_n(&job->shared.rank_domain[message->rank], (uint8_t)message->domain, __ATOMIC_RELAXED);
	job->shared.arenas[job->domain].header->rank_domain[message->rank] = (uint8_t)message->domain;
	result = check_foreign_rank(jobs, message);
	if (!result && mapped)
		result = ferry_mapper_join(&jobs->mapper, job, message, client->descriptor);
	else if (!result && foreign_rank)
		result = ferry_mapper_join(&jobs->mapper, job, message, -1);
	if (result) {
		if (!job->attached) /* it was made for this rank */
			ferry_jobs_destroy(jobs, job);
		return result;
	}
	job->attached |= 1ull << message->rank;
	client->job = job;
	client->rank = message->rank;
	if (mapped) {
		job->flags_descriptor[message->rank] = client->descriptors[0];
		client->descriptors[0] = -1;
	} else {
		ferry_job_welcome(job, message->rank, client->descriptor, 0, "");
	}
	return ferrySuccess;
}

/* ADOPT: the rank comes from a router that has ended. */
static ferryResult_t adopt(struct ferry_jobs *jobs, struct ferry_client *client)
{
	const int handed[FERRY_ATTACH_ANSWERED] = {jobs->process, -1};
	struct ferry_job *job;
	if (client->job)
		return ferry_fail(ferryInvalidUsage, "this connection has attached as rank %u already", client->rank);
	ferryResult_t result = check_foreign_rank(jobs, &client->message);
	if (!result)
		result = ferry_adoption_join(jobs, &client->message, &client->standing, client->descriptors, &job);
	if (result)
		return result;
	client->job = job;
	client->rank = client->message.rank;
	if (client->message.flags & FERRY_ATTACH_MAPPED) {
		job->flags_descriptor[client->rank] = client->descriptors[client->message.ndomains];
		client->descriptors[client->message.ndomains] = -1;
		return ferry_mapper_join(&jobs->mapper, job, &client->message, client->descriptor); /* it answers */
	}
	if (client->message.flags & FERRY_ATTACH_FOREIGN)
		result = ferry_mapper_join(&jobs->mapper, job, &client->message, -1);
	if (result)
		return result;
	if (ferry_attach_answer(client->descriptor, ferrySuccess, 0, "", handed))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone: poll reports that */
	return ferrySuccess;
}

static ferryResult_t resubmit(struct ferry_client *client)
{
	struct ferry_job *job = client->job;
	if (!job || !ferry_adoption_takes(job, client->rank))
		return ferry_fail(ferryInvalidUsage, "RESUBMIT of a rank that no other router has moved the data of");
	return ferry_recovery_add(&job->recovery[client->rank], client->payload, client->message.payload);
}

static ferryResult_t map_export(struct ferry_jobs *jobs, struct ferry_client *client)
{
	struct ferry_exported exported;
	if (!client->job)
		return ferry_fail(ferryInvalidUsage, "EXPORT before ATTACH");
	ferryResult_t result =
	        ferry_exported_read(client->payload, client->message.payload, client->ndescriptors, &exported);
	if (result)
		return result;
	return ferry_mapper_export(&jobs->mapper, client->job->imports[client->rank], &exported, client->descriptors,
	                           client->descriptor);
}

static ferryResult_t forget_export(struct ferry_jobs *jobs, struct ferry_client *client)
{
	if (!client->job)
		return ferry_fail(ferryInvalidUsage, "FORGET before ATTACH");
	return ferry_mapper_forget(&jobs->mapper, client->job->imports[client->rank], client->message.index,
	                           client->message.flags & FERRY_ATTACH_UNMAPPED, client->descriptor);
}

/* *handed: the job thread answers. */
static ferryResult_t make_ready(struct ferry_jobs *jobs, struct ferry_client *client, bool *handed)
{
	struct ferry_job *job = client->job;
	if (!job)
		return ferry_fail(ferryInvalidUsage, "READY before ATTACH");
	if (atomic_load(&job->dead))
		return ferry_job_failure(job);
	if (job->adoption || job->takeover.at_ns)
		return ferrySuccess; /* it becomes ready by itself */
	if (__builtin_popcountll(job->attached) != (int)job->shared.nranks)
		return ferry_fail(ferryInvalidUsage, "READY with %d of %u ranks attached",
		                  __builtin_popcountll(job->attached), job->shared.nranks);
	if (client->ndescriptors != job->shared.ndomains && (client->ndescriptors || job->shared.ndomains > 1))
		return ferry_fail(ferryInvalidArgument, "READY with arenas of %u domains, the job has %u",
		                  client->ndescriptors, job->shared.ndomains);
	if (client->ndescriptors && !ferry_job_thread_was_requested(job)) {
		ferryResult_t result = ferry_jobs_bring(jobs, job, client->descriptors);
		if (result)
			return result;
	}
	if (!ferry_job_thread_was_requested(job))
		ferry_jobs_count_windows(jobs, job);
	*handed = true;
	return ferry_job_thread_request(job, client->descriptor);
}

static ferryResult_t keep_plan(struct ferry_jobs *jobs, struct ferry_client *client)
{
	if (!client->job)
		return ferry_fail(ferryInvalidUsage, "PLAN before ATTACH");
	ferry_jobs_allow_plans(jobs, client->job);
	return ferry_job_add_plan(client->job, client->rank, client->payload, client->message.payload);
}

static ferryResult_t drop_plan(struct ferry_jobs *jobs, struct ferry_client *client)
{
	if (!client->job)
		return ferry_fail(ferryInvalidUsage, "DROP before ATTACH");
	bool unheld_too = client->job->takeover.at_ns || client->job->adoption; /* the router before may have done it */
	ferryResult_t result = ferry_job_plans_drop(&client->job->plans, client->rank, client->message.hash,
	                                            unheld_too);
	ferry_workers_free_retired(&jobs->workers, client->job);
	return result;
}

/*
 * A rank that has the answer may free the buffers that this router has copied. *handed: the reaper answers, and sets
 * the rank's bits in the arena. Without a descriptor for that the answer is an error; the rank then closes its
 * connection, and waits for `released`.
 */
static ferryResult_t detach(struct ferry_jobs *jobs, struct ferry_client *client, bool *handed)
{
	struct ferry_job *job = client->job;
	client->detached = true;
	if (!job)
		return ferrySuccess;
	job->detached |= 1ull << client->rank;
	bool foreign_rank = ferry_foreign_rank_is_open(job, client->rank);
	if (!foreign_rank && !ferry_remote_rank_is_open(job, client->rank)) {
		ferry_adoption_leave(job, client->rank);
		ferry_job_mark_departed(job, client->rank);
		return ferrySuccess;
	}
	int copy = fcntl(client->descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (copy < 0)
		return ferry_fail(ferrySystemError, "a descriptor to answer DETACH with: %s", strerror(errno));
	*handed = true;
	ferry_reaper_give(&jobs->reaper, foreign_rank ? ferry_foreign_rank_leave(job, client->rank, copy, true)
	                                              : ferry_remote_rank_leave(job, client->rank, copy, true, true));
	return ferrySuccess;
}

ferryResult_t ferry_request_admit(const struct ferry_client *client, const struct ferry_attach_message *message)
{
	if (message->payload && !client->job)
		return ferry_fail(ferryInvalidUsage, "%s before ATTACH",
		                  message->kind == FERRY_ATTACH_PLAN ? "PLAN" : "EXPORT or RESUBMIT");
	return ferrySuccess;
}

/* Makes a file for this client alone, as the client may write to it. */
static ferryResult_t send_layout(const struct ferry_jobs *jobs, const struct ferry_client *client)
{
	const struct ferry_layout *layout = &jobs->layout;
	int file;
	ferryResult_t result = ferry_shared_make(jobs->quota.question.kind, sizeof *layout, &file);
	if (result)
		return result;
	if (pwrite(file, layout, sizeof *layout, 0) != (ssize_t)sizeof *layout)
		result = ferry_fail(ferrySystemError, "writing %zu bytes of shared memory: %s", sizeof *layout,
		                    strerror(errno));
	else if (ferry_attach_reply(client->descriptor, ferrySuccess, "", file))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone: poll reports that */
	close(file);
	return result;
}

/* A client that asks again gets the page as things are now. */
static ferryResult_t open_counters(struct ferry_jobs *jobs, struct ferry_client *client, int *descriptor)
{
	ferry_counter_pages_close(jobs, client->counters);
	client->counters = NULL;
	ferryResult_t result = ferry_counter_pages_open(jobs, &client->standing, &client->counters);
	if (!result)
		*descriptor = client->counters->descriptor;
	return result;
}

void ferry_request_serve(struct ferry_jobs *jobs, struct ferry_client *client)
{
	int descriptor = -1;
	bool handed = false;
	ferryResult_t result = ferrySuccess;
	switch (client->message.kind) {
	case FERRY_ATTACH_RANK:
		if (!(result = attach_rank(jobs, client)))
			return; /* it is welcomed, or the mapper does that */
		break;
	case FERRY_ATTACH_READY:
		if (!(result = make_ready(jobs, client, &handed)) && handed)
			return; /* the job thread answers */
		break;
	case FERRY_ATTACH_PLAN:
		result = keep_plan(jobs, client);
		break;
	case FERRY_ATTACH_DROP:
		result = drop_plan(jobs, client);
		break;
	case FERRY_ATTACH_EXPORT:
		if (!(result = map_export(jobs, client)))
			return; /* the mapper answers */
		break;
	case FERRY_ATTACH_FORGET:
		if (!(result = forget_export(jobs, client)))
			return;
		break;
	case FERRY_ATTACH_DETACH:
		result = detach(jobs, client, &handed);
		if (handed)
			return; /* the reaper answers */
		break;
	case FERRY_ATTACH_ADOPT:
		if (!(result = adopt(jobs, client)))
			return;
		break;
	case FERRY_ATTACH_RESUBMIT:
		result = resubmit(client);
		break;
	case FERRY_ATTACH_ADOPTED:
		result = client->job ? ferry_adoption_come(jobs, client->job, client->rank, &client->message)
		                     : ferry_fail(ferryInvalidUsage, "ADOPTED before ADOPT");
		break;
	case FERRY_ATTACH_LAYOUT:
		if (!(result = send_layout(jobs, client)))
			return;
		break;
	default:
		result = open_counters(jobs, client, &descriptor);
	}
	client->refused += result && !client->job;
	if (ferry_attach_reply(client->descriptor, result, result ? ferry_last_message() : "", descriptor))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone: poll reports that */
}
