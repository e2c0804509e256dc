/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/remote_ranks.h"

#include "ipc/error.h"
#include "ipc/publish.h"
#include "router/engine/call_decoder.h"
#include "router/engine/pair.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define WORDS_BYTES (FERRY_STREAM_FLAGS * sizeof(struct ferry_stream_flag))

/* ---- the member ---- */

static void member_fail(struct ferry_member *member, ferryResult_t code, const char *message)
{
	ferry_job_fail(ferry_remote_rank_of(member)->job, code, message);
}

/* Also where a rank or another domain's router says so. Once true, always true, even if the word is overwritten. */
static bool member_failed(struct ferry_member *member)
{
	struct ferry_job *job = ferry_remote_rank_of(member)->job;
	for (uint32_t domain = 0; domain < member->shared->ndomains; domain++)
		if (atomic_load_explicit(&member->shared->arenas[domain].header->failed, memory_order_acquire)) {
			atomic_store_explicit(&job->announced_dead, 1, memory_order_release);
			return true;
		}
	return atomic_load_explicit(&job->announced_dead, memory_order_acquire) ||
	       atomic_load_explicit(&job->dead, memory_order_acquire);
}

/* The rank reads the reason itself. */
static ferryResult_t member_error(struct ferry_member *member, const char **message)
{
	(void)member;
	*message = "the job has failed";
	return ferryRemoteError;
}

static void member_check(struct ferry_member *member)
{
	(void)member; /* the connection thread finds processes that die */
}

/* As the rank's line says now: any value affects its own job alone. */
static struct ferry_timeout member_timeout(struct ferry_member *member)
{
	const struct ferry_rank_line *line = ferry_member_line(member);
	return (struct ferry_timeout){
	        .reports = atomic_load_explicit(&line->timeout_reports, memory_order_relaxed),
	        .fails = atomic_load_explicit(&line->timeout_fails, memory_order_relaxed)};
}

/* Captured ones too, as it is unknown which of them will be replayed. By the lane's thread. */
static uint32_t member_beside(struct ferry_member *member)
{
	const struct ferry_remote_rank *mine = ferry_remote_rank_of(member);
	struct ferry_lanes *lanes = member->lanes;
	uint32_t calls = 0;
	pthread_mutex_lock(&lanes->lock);
	for (struct ferry_member *other = lanes->members; other; other = other->next) {
		const struct ferry_remote_rank *theirs = ferry_remote_rank_of(other);
		if (theirs != mine && theirs->process == mine->process)
			calls += atomic_load_explicit(&theirs->calls, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lanes->lock);
	return calls;
}

static void member_begun(struct ferry_member *member)
{
	(void)member;
}

static void member_ended(struct ferry_member *member, const struct ferry_call *call)
{
	if (call->captured)
		return;
	ferry_remote_rank_count_ended(ferry_remote_rank_of(member));
}

static ferryResult_t member_hold_target(struct ferry_member *member, uint32_t peer,
                                        const struct ferry_buffer_name *name, uint64_t bytes,
                                        struct ferry_put_target *put_target)
{
	const struct ferry_remote_rank *remote_rank = ferry_remote_rank_of(member);
	struct ferry_import *held;
	struct ferry_imports *theirs = remote_rank->job->imports[peer];
	if (!theirs || !ferry_imports_are_open(theirs) || name->index == FERRY_PUT_TARGET_DIRECT)
		return ferry_fail(ferryInvalidUsage, "rank %u puts to rank %u, whose data no router moves",
		                  member->rank, peer);
	ferryResult_t result = ferry_imports_take(theirs, name, bytes, ferry_imports_gpu(remote_rank->imports),
	                                          &put_target->address, &held);
	if (!result)
		put_target->hold = held;
	return result;
}

static void member_released(struct ferry_member *member, void *hold)
{
	(void)member;
	ferry_imports_release(hold);
}

static const struct ferry_member_ops member_ops = {.fail = member_fail,
                                                   .hold_target = member_hold_target,
                                                   .released = member_released,
                                                   .failed = member_failed,
                                                   .error = member_error,
                                                   .check = member_check,
                                                   .timeout = member_timeout,
                                                   .beside = member_beside,
                                                   .take = ferry_call_decoder_take,
                                                   .begun = member_begun,
                                                   .ended = member_ended};

/* ---- open, close ---- */

static ferryResult_t map_flags(int descriptor, struct ferry_stream_flag **flags, uint64_t *process)
{
	struct stat status;
	int seals = fcntl(descriptor, F_GET_SEALS);
	if (fstat(descriptor, &status) || (uint64_t)status.st_size != WORDS_BYTES || seals < 0 ||
	    !(seals & F_SEAL_SHRINK))
		return ferry_fail(
		        ferryRefused,
		        "the rank's words are %lld bytes of memory that %s shrink; %zu that cannot are wanted",
		        (long long)status.st_size, seals >= 0 && (seals & F_SEAL_SHRINK) ? "cannot" : "can",
		        WORDS_BYTES);
	void *memory = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (memory == MAP_FAILED)
		return ferry_fail(ferrySystemError, "mmap of a rank's words: %s", strerror(errno));
	*flags = memory;
	*process = (uint64_t)status.st_ino; /* names the process: all such files are in one file system */
	return ferrySuccess;
}

/* ---- of a job that another router has served ---- */

/* Restores what is still needed of earlier calls: which routers had work in the last one of each parity. */
static void restore_order(struct ferry_member *member)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		const struct ferry_descriptor *last = &ferry_member_line(member)->ring[parity];
		uint64_t seq = atomic_load_explicit(&last->seq, memory_order_acquire);
		uint32_t domains = atomic_load_explicit(&last->domains, memory_order_relaxed);
		/* 0: it was being replaced, so all calls of the parity were over. Calls before `seq` are over, too. */
		for (uint32_t domain = 0; seq && domain < member->shared->ndomains; domain++)
			if (domains >> domain & 1)
				member->order.router_seq[parity][domain] = seq;
		atomic_store_explicit(&member->order.last_seq[parity], seq, memory_order_relaxed);
	}
}

/* A message whose turn it was, and its call. */
struct at_turn {
	enum ferry_direction direction;
	uint32_t peer;
	uint64_t message, first, call; /* as in struct ferry_pair_turn */
	uint32_t nslices;              /* 0: it is not handed over, so it is over */
	uint64_t count;                /* of named ones: messages that the call has with that peer this way */
};

/* Whether the record is of the call that has the message: a named one's run has begun, and is not over. */
static bool is_of_call(const struct ferry_remote_rank *remote_rank, const struct ferry_submission *head,
                       const struct at_turn *found)
{
	if (head->kind != FERRY_SUBMIT_MESSAGES || head->flag >= FERRY_STREAM_FLAGS ||
	    head->nparts > (head->bytes - sizeof *head) / sizeof(struct ferry_call_decoder_message))
		return false;
	if (!head->name || !found->call)
		return !head->name && !found->call;
	uint32_t turn = ferry_recovery_turn(remote_rank->flags, head);
	return ferry_remote_rank_run(head->flag, turn) == found->call &&
	       ferry_recovery_judge(&remote_rank->flags[head->flag], turn) == FERRY_RECOVERY_REACHED;
}

static void find_in_records(const struct ferry_remote_rank *remote_rank, struct at_turn *found)
{
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	const struct ferry_submission *head = (const struct ferry_submission *)record;
	const struct ferry_call_decoder_message *messages = (const struct ferry_call_decoder_message *)(head + 1);
	const struct ferry_job_arenas *shared = remote_rank->member.shared;
	uint32_t source = found->direction == FERRY_DIR_D2H ? remote_rank->member.rank : found->peer;
	struct ferry_recovery all = *remote_rank->recovery;
	while (ferry_recovery_take(&all, record)) {
		bool any = is_of_call(remote_rank, head, found);
		for (uint32_t i = 0; any && i < head->nparts; i++) {
			struct ferry_transfer transfer = {.length = messages[i].bytes};
			if (messages[i].peer != found->peer || messages[i].direction != found->direction)
				continue;
			uint64_t number = head->name ? found->first + found->count : messages[i].message;
			found->count += head->name;
			if (number != found->message)
				continue;
			ferry_pair_cut(&transfer, messages[i].puts,
			               shared->arenas[shared->rank_domain[source]].pair_slot_bytes);
			found->nslices = transfer.nslices;
		}
	}
}

/* Restores which message between this rank and that one has its turn. */
static void restore_turn(struct ferry_remote_rank *remote_rank, enum ferry_direction direction, uint32_t peer)
{
	struct ferry_member *member = &remote_rank->member;
	const struct ferry_job_arenas *shared = member->shared;
	uint32_t source = direction == FERRY_DIR_D2H ? member->rank : peer;
	uint32_t destination = direction == FERRY_DIR_D2H ? peer : member->rank;
	const struct ferry_arena *arena = &shared->arenas[shared->rank_domain[source]];
	const struct ferry_pair_line *line = &arena->pair_lines[source * arena->nranks + destination];
	const struct ferry_pair_turn *turns = line->ends[direction].turns;
	uint64_t slices = atomic_load_explicit(direction == FERRY_DIR_D2H ? &line->d2h.value : &line->h2d.value,
	                                       memory_order_acquire);
	uint64_t numbers[2] = {atomic_load_explicit(&turns[0].message, memory_order_acquire),
	                       atomic_load_explicit(&turns[1].message, memory_order_acquire)};
	const struct ferry_pair_turn *turn = &turns[numbers[1] > numbers[0]];
	uint64_t number = numbers[numbers[1] > numbers[0]];
	uint64_t base = atomic_load_explicit(&turn->base, memory_order_relaxed);
	struct at_turn found = {.direction = direction,
	                        .peer = peer,
	                        .message = number,
	                        .first = atomic_load_explicit(&turn->first, memory_order_relaxed),
	                        .call = atomic_load_explicit(&turn->call, memory_order_relaxed)};
	if (number)
		find_in_records(remote_rank, &found);
	bool over = !found.nslices || slices - base >= found.nslices;
	member->lane_ranks[direction].message[peer] = number + over;
	member->lane_ranks[direction].slices[peer] = over ? slices : base;
	member->order.messages[direction][peer] = number;
	remote_rank->turns[direction][peer].message = number + over;
	remote_rank->turns[direction][peer].slices = over ? 0 : slices - base;
	if (!found.count)
		return;
	remote_rank->turns[direction][peer].first = found.first;
	remote_rank->turns[direction][peer].call = found.call;
	/* all messages of the call with that peer have numbers */
	member->order.messages[direction][peer] = found.first + found.count - 1;
	if (over && number == member->order.messages[direction][peer]) /* unpublished until here */
		atomic_fetch_or_explicit(&remote_rank->flags[(uint32_t)(found.call >> 32) - 1].passed[direction],
		                         1ull << peer, memory_order_release);
}

/* Its lane ranks are initialized, and on no lane yet. */
static void restore(struct ferry_remote_rank *remote_rank)
{
	if (!remote_rank->recovery)
		return;
	remote_rank->taken = atomic_load_explicit(&remote_rank->ring->taken, memory_order_acquire);
	uint64_t over = atomic_load_explicit(&remote_rank->ring->over, memory_order_acquire);
	remote_rank->listed = over < remote_rank->recovery->number ? over : remote_rank->recovery->number;
	/* The old router, its writer, has ended. It is lower for a moment: calls that are over are counted again. */
	uint64_t ended = remote_rank->recovery->calls - ferry_recovery_calls(remote_rank->recovery);
	atomic_store_explicit(&remote_rank->ring->ended, ended, memory_order_release);
	restore_order(&remote_rank->member);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		for (uint32_t peer = 0; peer < remote_rank->member.shared->nranks; peer++)
			restore_turn(remote_rank, direction, peer);
}

static ferryResult_t remote_rank_open(struct ferry_job *job, uint32_t rank, struct ferry_lanes *lanes)
{
	struct ferry_remote_rank *remote_rank = aligned_alloc(_Alignof(struct ferry_remote_rank), sizeof *remote_rank);
	if (!remote_rank)
		return ferry_fail(ferrySystemError, "no memory for a rank");
	memset(remote_rank, 0, sizeof *remote_rank);
	ferryResult_t result = map_flags(job->flags_descriptor[rank], &remote_rank->flags, &remote_rank->process);
	if (result) {
		free(remote_rank);
		return result;
	}
	remote_rank->job = job;
	remote_rank->imports = job->imports[rank];
	remote_rank->ring = ferry_rank_ring(&job->shared, rank);
	remote_rank->member.ops = &member_ops;
	remote_rank->member.shared = &job->shared;
	remote_rank->member.rank = rank;
	remote_rank->member.awaits_quiet = true;
	remote_rank->member.weight = &job->weight;
	pthread_mutex_init(&remote_rank->over_lock, NULL);
	atomic_store_explicit(&remote_rank->member.order.fixed, UINT64_MAX, memory_order_relaxed);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) { /* of a job that has had another router before */
		uint64_t over = atomic_load_explicit(&ferry_member_line(&remote_rank->member)->finished[parity],
		                                     memory_order_acquire);
		atomic_store_explicit(&remote_rank->member.order.last_seq[parity], over, memory_order_relaxed);
	}
	ferry_lanes_lane_rank(&remote_rank->member);
	remote_rank->recovery = job->recovery[rank];
	job->recovery[rank] = NULL;
	restore(remote_rank);
	ferry_lanes_join(lanes, &remote_rank->member);
	job->remote_ranks[rank] = remote_rank;
	return ferrySuccess;
}

/* Only the UUID is known of a rank of another domain. */
static bool reaches(const struct ferry_gpu *from, const struct ferry_imports *to)
{
	const struct ferry_gpu *gpu = ferry_imports_gpu(to);
	return to->foreign_rank ? ferry_gpu_reaches_uuid(from, to->uuid) : gpu && ferry_gpu_reaches(from, gpu);
}

void ferry_remote_ranks_find_reach(struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	/*
	 * The reach that a router before this one has found stays: ranks have chosen by it, or are choosing, and some
	 * may have left.
	 */
	bool found = atomic_load_explicit(&header->ready, memory_order_acquire);
	for (uint32_t from = 0; from < job->shared.nranks; from++) {
		struct ferry_gpu *mine = job->imports[from] ? ferry_imports_gpu(job->imports[from]) : NULL;
		uint64_t reached = 0;
		for (uint32_t to = 0; mine && to < job->shared.nranks; to++) {
			struct ferry_imports *theirs = job->imports[to];
			if (!theirs || !reaches(mine, theirs))
				continue;
			reached |= 1ull << to;
			ferry_imports_other(theirs, mine);
			if (!found)
				atomic_store_explicit(&header->nvlinks[from][to], ferry_gpu_nvlinks(mine, theirs->uuid),
				                      memory_order_relaxed);
		}
		if (!found) /* `ready` follows */
			atomic_store_explicit(&header->reach[from], reached, memory_order_relaxed);
	}
}

/*
 * Lets copy engines reach the staging: one GPU registers it for all, as registration is portable. It takes 0.1 ms per
 * MiB.
 */
static ferryResult_t register_arenas(struct ferry_job *job, struct ferry_gpu *gpu)
{
	struct ferry_copier *copier = ferry_gpu_copier(gpu);
	if (job->registrar)
		return ferrySuccess;
	job->registrar = gpu;
	ferry_gpu_hold(gpu);
	for (uint32_t domain = 0; domain < job->shared.ndomains; domain++) {
		uint64_t bytes;
		void *windows = ferry_arena_windows(&job->shared.arenas[domain], &bytes);
		ferryResult_t result = copier->ops->register_memory(copier, windows, bytes);
		if (result)
			return result;
		job->registered[domain] = true;
	}
	return ferrySuccess;
}

static void unregister_arenas(struct ferry_job *job)
{
	if (!job->registrar)
		return;
	struct ferry_copier *copier = ferry_gpu_copier(job->registrar);
	for (uint32_t domain = 0; domain < job->shared.ndomains; domain++) {
		const struct ferry_arena *arena = &job->shared.arenas[domain];
		uint64_t bytes;
		if (job->registered[domain])
			copier->ops->unregister_memory(copier, ferry_arena_windows(arena, &bytes));
	}
	ferry_gpu_drop(job->registrar);
}

ferryResult_t ferry_remote_ranks_open(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		struct ferry_gpu *gpu = job->imports[rank] ? ferry_imports_gpu(job->imports[rank]) : NULL;
		struct ferry_lanes *lanes;
		if (!gpu || (job->imported_arena && !job->recovery[rank])) /* it has left, and has not come here */
			continue;
		ferryResult_t result = register_arenas(job, gpu);
		if (!result)
			result = ferry_gpu_lanes_use(job->gpu_lanes, gpu, &lanes);
		if (!result && (result = remote_rank_open(job, rank, lanes)))
			ferry_gpu_lanes_leave(job->gpu_lanes, lanes);
		if (result)
			return ferry_fail_context(result, "moving the data of rank %u", rank);
	}
	return ferrySuccess;
}

static void remote_rank_close(struct ferry_job *job, struct ferry_remote_rank *remote_rank)
{
	struct ferry_lanes *lanes = remote_rank->member.lanes;
	ferry_lanes_leave(&remote_rank->member);
	ferry_imports_shut(remote_rank->imports);
	ferry_imports_ended(remote_rank->imports, UINT64_MAX); /* the records in its ring are not taken any more */
	/*
	 * The bit is set after the last bytes of the rank's copies: a rank that sees it may let its streams go on, and
	 * free the buffers that they copied.
	 */
	atomic_fetch_or_explicit(&job->shared.arenas[job->domain].header->released, 1ull << remote_rank->member.rank,
	                         memory_order_release);
	ferry_doorbell_ring(&ferry_rank_line(&job->shared, remote_rank->member.rank)->app);
	ferry_gpu_lanes_leave(job->gpu_lanes, lanes);
	munmap(remote_rank->flags, WORDS_BYTES);
	free(remote_rank->messages);
	ferry_recovery_free(remote_rank->recovery);
	pthread_mutex_destroy(&remote_rank->over_lock);
	free(remote_rank);
}

/* By the reaper. */
static void end_remote_rank(struct ferry_ending *ending)
{
	struct ferry_remote_rank *remote_rank = (struct ferry_remote_rank *)((char *)ending -
	                                                                     offsetof(struct ferry_remote_rank,
	                                                                              ending));
	struct ferry_job *job = remote_rank->job;
	uint32_t rank = remote_rank->member.rank;
	int client = remote_rank->client;
	bool answer = remote_rank->answer, in_order = remote_rank->in_order;
	remote_rank_close(job, remote_rank);
	if (in_order)
		ferry_job_mark_departed(job, rank);
	if (answer && ferry_attach_reply(client, ferrySuccess, "", -1))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone: poll reports that */
	ferry_job_close_client(job, client);
}

/* Before the job is ready its thread may be opening it, and the rank has submitted no call. */
bool ferry_remote_rank_is_open(const struct ferry_job *job, uint32_t rank)
{
	return atomic_load_explicit(&job->ready, memory_order_acquire) && job->remote_ranks[rank];
}

struct ferry_ending *ferry_remote_rank_leave(struct ferry_job *job, uint32_t rank, int client, bool answer,
                                             bool in_order)
{
	if (!ferry_remote_rank_is_open(job, rank))
		return NULL;
	struct ferry_remote_rank *remote_rank = job->remote_ranks[rank];
	job->remote_ranks[rank] = NULL;
	remote_rank->client = client;
	remote_rank->answer = answer;
	remote_rank->in_order = in_order;
	remote_rank->ending = (struct ferry_ending){.end = end_remote_rank};
	return &remote_rank->ending;
}

void ferry_remote_ranks_close(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->remote_ranks[rank]) {
			remote_rank_close(job, job->remote_ranks[rank]);
			job->remote_ranks[rank] = NULL;
		}
	unregister_arenas(job);
}
