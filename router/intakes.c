/* SPDX-License-Identifier: Apache-2.0 */
#include "router/intakes.h"

#include "ipc/error.h"
#include "ipc/publish.h"
#include "router/pair.h"
#include "router/submitted.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_BYTES (FERRY_WORDS * sizeof(struct ferry_word))

static struct ferry_intake *intake_of(struct ferry_member *member)
{
	return (struct ferry_intake *)((char *)member - offsetof(struct ferry_intake, member));
}

/* ---- the member ---- */

static void member_fail(struct ferry_member *member, ferryResult_t code, const char *message)
{
	ferry_job_fail(intake_of(member)->job, code, message);
}

/* Also what another domain's router, or a rank, has found; for good, whatever anybody writes over it. */
static bool member_failed(struct ferry_member *member)
{
	struct ferry_job *job = intake_of(member)->job;
	for (uint32_t domain = 0; domain < member->shared->ndomains; domain++)
		if (atomic_load_explicit(&member->shared->arenas[domain].header->failed, memory_order_acquire)) {
			atomic_store_explicit(&job->told_dead, 1, memory_order_release);
			return true;
		}
	return atomic_load_explicit(&job->told_dead, memory_order_acquire) ||
	       atomic_load_explicit(&job->dead, memory_order_acquire);
}

/* The rank finds out itself. */
static ferryResult_t member_error(struct ferry_member *member, const char **message)
{
	(void)member;
	*message = "the job has failed";
	return ferryRemoteError;
}

static void member_check(struct ferry_member *member)
{
	(void)member; /* the connection thread sees who dies */
}

/* As the rank says, by now: whatever it says is its own job's business. */
static struct ferry_timeout member_timeout(struct ferry_member *member)
{
	const struct ferry_rank_line *line = ferry_member_line(member);
	return (struct ferry_timeout){
	        .reports = atomic_load_explicit(&line->timeout_reports, memory_order_relaxed),
	        .fails = atomic_load_explicit(&line->timeout_fails, memory_order_relaxed)};
}

/* Captured ones too: which of those are replayed nobody knows. By the lane's thread. */
static uint32_t member_beside(struct ferry_member *member)
{
	const struct ferry_intake *mine = intake_of(member);
	struct ferry_lanes *lanes = member->lanes;
	uint32_t calls = 0;
	pthread_mutex_lock(&lanes->lock);
	for (struct ferry_member *other = lanes->members; other; other = other->next) {
		const struct ferry_intake *theirs = intake_of(other);
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
	ferry_intake_count_ended(intake_of(member));
}

static bool member_ring_is_sane(const struct ferry_member *member, char *text, size_t bytes)
{
	return ferry_intake_ring_is_sane((const struct ferry_intake *)member, text, bytes); /* its first field */
}

static bool member_take(struct ferry_member *member)
{
	return ferry_submitted_take(intake_of(member));
}

static ferryResult_t member_land(struct ferry_member *member, uint32_t peer, const struct ferry_buffer_name *name,
                                 uint64_t bytes, struct ferry_landing *landing)
{
	const struct ferry_intake *intake = intake_of(member);
	struct ferry_import *held;
	struct ferry_imports *theirs = intake->job->imports[peer];
	if (!theirs || !ferry_imports_are_open(theirs) || name->index == FERRY_LANDING_DIRECT)
		return ferry_fail(ferryInvalidUsage, "rank %u puts to rank %u, whose data no router moves",
		                  member->rank, peer);
	ferryResult_t result = ferry_imports_take(theirs, name, bytes, ferry_imports_gpu(intake->imports),
	                                          &landing->address, &held);
	if (!result)
		landing->hold = held;
	return result;
}

static void member_let_go(struct ferry_member *member, void *hold)
{
	(void)member;
	ferry_imports_release(hold);
}

static const struct ferry_member_ops member_ops = {.fail = member_fail,
                                                   .land = member_land,
                                                   .let_go = member_let_go,
                                                   .failed = member_failed,
                                                   .error = member_error,
                                                   .check = member_check,
                                                   .timeout = member_timeout,
                                                   .beside = member_beside,
                                                   .take = member_take,
                                                   .ring_is_sane = member_ring_is_sane,
                                                   .begun = member_begun,
                                                   .ended = member_ended};

/* ---- open, close ---- */

static ferryResult_t map_words(int descriptor, struct ferry_word **words, uint64_t *process)
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
	*words = memory;
	*process = (uint64_t)status.st_ino; /* all of them are in one file system */
	return ferrySuccess;
}

/* ---- of a job that another router has served ---- */

/* Whether that call must be alone in its staging, where that can still be known: who waits for it is only slower. */
static bool was_alone(struct ferry_job *job, uint64_t plan_hash)
{
	struct ferry_job_plan *plan = ferry_job_plans_find(&job->plans, plan_hash);
	bool alone = !plan || plan->plan->flags & FERRY_PLAN_ALONE;
	if (plan)
		ferry_job_release_plan(plan);
	return alone;
}

/* What of the calls before is still asked for: which routers had work in the last one of each bank. */
static void restore_order(struct ferry_job *job, struct ferry_member *member)
{
	const struct ferry_descriptor *latest = &ferry_member_line(member)->ring[0];
	uint64_t most = 0;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		const struct ferry_descriptor *last = &ferry_member_line(member)->ring[bank];
		uint64_t seq = atomic_load_explicit(&last->seq, memory_order_acquire);
		uint32_t domains = atomic_load_explicit(&last->domains, memory_order_relaxed);
		/* 0: it was being replaced, so all calls of the bank were over. And so are those before it. */
		for (uint32_t domain = 0; seq && domain < member->shared->ndomains; domain++)
			if (domains >> domain & 1)
				member->order.router_seq[bank][domain] = seq;
		member->order.last_seq[bank] = seq;
		latest = seq > most ? last : latest;
		most = seq > most ? seq : most;
	}
	member->order.named_alone =
	        most && was_alone(job, atomic_load_explicit(&latest->plan_hash, memory_order_relaxed));
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
static bool is_of_call(const struct ferry_intake *intake, const struct ferry_submission *head,
                       const struct at_turn *found)
{
	if (head->kind != FERRY_SUBMIT_MESSAGES || head->word >= FERRY_WORDS ||
	    head->nparts > (head->bytes - sizeof *head) / sizeof(struct ferry_submitted_message))
		return false;
	if (!head->name || !found->call)
		return !head->name && !found->call;
	uint32_t turn = ferry_resumed_turn(intake->words, head);
	return ferry_intake_run(head->word, turn) == found->call &&
	       ferry_resumed_judge(&intake->words[head->word], turn) == FERRY_RESUMED_REACHED;
}

static void find_in_records(const struct ferry_intake *intake, struct at_turn *found)
{
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	const struct ferry_submission *head = (const struct ferry_submission *)record;
	const struct ferry_submitted_message *messages = (const struct ferry_submitted_message *)(head + 1);
	const struct ferry_job_arenas *shared = intake->member.shared;
	uint32_t source = found->direction == FERRY_UP ? intake->member.rank : found->peer;
	struct ferry_resumed all = *intake->resumed;
	while (ferry_resumed_take(&all, record)) {
		bool any = is_of_call(intake, head, found);
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

/* Whose turn it is between this rank and that one. */
static void restore_turn(struct ferry_intake *intake, enum ferry_direction direction, uint32_t peer)
{
	struct ferry_member *member = &intake->member;
	const struct ferry_job_arenas *shared = member->shared;
	uint32_t source = direction == FERRY_UP ? member->rank : peer;
	uint32_t destination = direction == FERRY_UP ? peer : member->rank;
	const struct ferry_arena *arena = &shared->arenas[shared->rank_domain[source]];
	const struct ferry_pair_line *line = &arena->pair_lines[source * arena->nranks + destination];
	const struct ferry_pair_turn *turns = line->ends[direction].turns;
	uint64_t slices = atomic_load_explicit(direction == FERRY_UP ? &line->up.value : &line->down.value,
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
		find_in_records(intake, &found);
	bool over = !found.nslices || slices - base >= found.nslices;
	member->seats[direction].message[peer] = number + over;
	member->seats[direction].slices[peer] = over ? slices : base;
	member->seats[direction].told[peer] = slices;
	member->order.messages[direction][peer] = number;
	intake->turns[direction][peer].message = number + over;
	intake->turns[direction][peer].slices = over ? 0 : slices - base;
	if (!found.count)
		return;
	intake->turns[direction][peer].first = found.first;
	intake->turns[direction][peer].call = found.call;
	/* all that its call has are numbered */
	member->order.messages[direction][peer] = found.first + found.count - 1;
	if (over && number == member->order.messages[direction][peer]) /* that was not said, and others' turn comes */
		atomic_fetch_or_explicit(&intake->words[(uint32_t)(found.call >> 32) - 1].passed[direction],
		                         1ull << peer, memory_order_release);
}

/* Seated, and on no lane yet. */
static void restore(struct ferry_intake *intake)
{
	if (!intake->resumed)
		return;
	intake->taken = atomic_load_explicit(&intake->ring->taken, memory_order_acquire);
	uint64_t over = atomic_load_explicit(&intake->ring->over, memory_order_acquire);
	intake->listed = over < intake->resumed->number ? over : intake->resumed->number;
	/* Its one writer has ended. Less than it was for a moment: calls that are over are counted again. */
	uint64_t ended = intake->resumed->calls - ferry_resumed_calls(intake->resumed);
	atomic_store_explicit(&intake->ring->ended, ended, memory_order_release);
	atomic_store_explicit(&intake->counting, ended, memory_order_relaxed);
	atomic_store_explicit(&intake->counted, ended, memory_order_relaxed);
	restore_order(intake->job, &intake->member);
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++)
		for (uint32_t peer = 0; peer < intake->member.shared->nranks; peer++)
			restore_turn(intake, direction, peer);
}

static ferryResult_t intake_open(struct ferry_job *job, uint32_t rank, struct ferry_lanes *lanes)
{
	struct ferry_intake *intake = aligned_alloc(_Alignof(struct ferry_intake), sizeof *intake);
	if (!intake)
		return ferry_fail(ferrySystemError, "no memory for a rank");
	memset(intake, 0, sizeof *intake);
	ferryResult_t result = map_words(job->words_descriptor[rank], &intake->words, &intake->process);
	if (result) {
		free(intake);
		return result;
	}
	intake->job = job;
	intake->imports = job->imports[rank];
	intake->ring = ferry_rank_ring(&job->shared, rank);
	intake->member.ops = &member_ops;
	intake->member.shared = &job->shared;
	intake->member.rank = rank;
	intake->member.awaits_quiet = true;
	intake->member.weight = &job->weight;
	pthread_mutex_init(&intake->over_lock, NULL);
	atomic_store_explicit(&intake->member.order.fixed, UINT64_MAX, memory_order_relaxed);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) { /* of a job that has had another router before */
		uint64_t over = atomic_load_explicit(&ferry_member_line(&intake->member)->finished[bank],
		                                     memory_order_acquire);
		atomic_store_explicit(&intake->member.order.ending[bank], over, memory_order_relaxed);
		atomic_store_explicit(&intake->member.order.ended[bank], over, memory_order_relaxed);
		intake->member.order.last_seq[bank] = over;
	}
	ferry_lanes_seat(&intake->member);
	intake->resumed = job->resumed[rank];
	job->resumed[rank] = NULL;
	restore(intake);
	ferry_lanes_join(lanes, &intake->member);
	job->intakes[rank] = intake;
	return ferrySuccess;
}

/* Of a rank of another domain the UUID alone is known. */
static bool reaches(const struct ferry_gpu *from, const struct ferry_imports *to)
{
	const struct ferry_gpu *gpu = ferry_imports_gpu(to);
	return to->guest ? ferry_gpu_reaches_uuid(from, to->uuid) : gpu && ferry_gpu_reaches(from, gpu);
}

void ferry_intakes_find_reach(struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	/* What a router before this one has found stays: ranks have chosen by it, or do, and some may have left. */
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
		}
		if (!found) /* `ready` follows */
			atomic_store_explicit(&header->reach[from], reached, memory_order_relaxed);
	}
}

/* So that copy engines reach the staging: by one GPU for all, as registration is portable. It takes 0.1 ms per MiB. */
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

ferryResult_t ferry_intakes_open(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		struct ferry_gpu *gpu = job->imports[rank] ? ferry_imports_gpu(job->imports[rank]) : NULL;
		struct ferry_lanes *lanes;
		if (!gpu || (job->brought && !job->resumed[rank])) /* it has left, and has not come here */
			continue;
		ferryResult_t result = register_arenas(job, gpu);
		if (!result)
			result = ferry_gpu_lanes_use(job->gpu_lanes, gpu, &lanes);
		if (!result && (result = intake_open(job, rank, lanes)))
			ferry_gpu_lanes_leave(job->gpu_lanes, lanes);
		if (result)
			return ferry_fail_context(result, "moving the data of rank %u", rank);
	}
	return ferrySuccess;
}

static void intake_close(struct ferry_job *job, struct ferry_intake *intake)
{
	struct ferry_lanes *lanes = intake->member.lanes;
	ferry_lanes_leave(&intake->member);
	ferry_imports_shut(intake->imports);
	ferry_imports_ended(intake->imports, UINT64_MAX); /* what lies in its ring is taken by nobody */
	/* Behind its copies' last bytes: who sees it may let the rank's streams go on, and free what they copied. */
	atomic_fetch_or_explicit(&job->shared.arenas[job->domain].header->let_go, 1ull << intake->member.rank,
	                         memory_order_release);
	ferry_doorbell_ring(&ferry_rank_line(&job->shared, intake->member.rank)->app);
	ferry_gpu_lanes_leave(job->gpu_lanes, lanes);
	munmap(intake->words, WORDS_BYTES);
	free(intake->messages);
	ferry_resumed_free(intake->resumed);
	pthread_mutex_destroy(&intake->over_lock);
	free(intake);
}

/* By the reaper. */
static void end_intake(struct ferry_ending *ending)
{
	struct ferry_intake *intake =
	        (struct ferry_intake *)((char *)ending - offsetof(struct ferry_intake, ending));
	struct ferry_job *job = intake->job;
	uint32_t rank = intake->member.rank;
	int client = intake->client;
	bool answer = intake->answer, in_order = intake->in_order;
	intake_close(job, intake);
	if (in_order)
		ferry_job_say_left(job, rank);
	if (answer && ferry_attach_reply(client, ferrySuccess, "", -1))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone, which is told elsewhere */
	close(client);
}

/* Before the job is ready, the attendant may be at making it, and nobody has submitted anything. */
bool ferry_intake_is_open(const struct ferry_job *job, uint32_t rank)
{
	return atomic_load_explicit(&job->ready, memory_order_acquire) && job->intakes[rank];
}

struct ferry_ending *ferry_intake_leave(struct ferry_job *job, uint32_t rank, int client, bool answer, bool in_order)
{
	if (!ferry_intake_is_open(job, rank))
		return NULL;
	struct ferry_intake *intake = job->intakes[rank];
	job->intakes[rank] = NULL;
	intake->client = client;
	intake->answer = answer;
	intake->in_order = in_order;
	intake->ending = (struct ferry_ending){.end = end_intake};
	return &intake->ending;
}

void ferry_intakes_close(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->intakes[rank]) {
			intake_close(job, job->intakes[rank]);
			job->intakes[rank] = NULL;
		}
	unregister_arenas(job);
}
