/* SPDX-License-Identifier: Apache-2.0 */
#include "router/intake.h"

#include "ipc/collective.h"
#include "ipc/error.h"
#include "router/pair.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_BYTES (FERRY_WORDS * sizeof(struct ferry_word))
#define MOST_MESSAGES 65536u /* in one group */
#define MOST_CALLS 32768u    /* of a rank under way; captured ones too */
#define RECORDS_AT_ONCE 64u

struct mapped_call {
	struct ferry_call call; /* first */
	struct ferry_intake *intake;
	struct ferry_job_plan *plan; /* held; NULL: point to point */
	struct ferry_word *word;
	uint64_t number;             /* of its last submission */
	struct mapped_call *before, *after; /* in the intake's list */
	uint32_t turn, stamp, nimports;
	struct ferry_import *imports[]; /* held: its own buffers */
};

static struct ferry_intake *intake_of(struct ferry_member *member)
{
	return (struct ferry_intake *)((char *)member - offsetof(struct ferry_intake, member));
}

/* ---- the member ---- */

static void member_fail(struct ferry_member *member, ferryResult_t code, const char *message)
{
	ferry_job_fail(intake_of(member)->job, code, message);
}

/* Also what another domain's router, or a rank, has found. */
static bool member_failed(struct ferry_member *member)
{
	for (uint32_t domain = 0; domain < member->shared->ndomains; domain++)
		if (atomic_load_explicit(&member->shared->arenas[domain].header->failed, memory_order_acquire))
			return true;
	return atomic_load_explicit(&intake_of(member)->job->dead, memory_order_acquire);
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
	atomic_fetch_add_explicit(&intake_of(member)->ring->ended, 1, memory_order_release);
	ferry_doorbell_ring(&ferry_member_line(member)->app);
}

/* ---- the calls ---- */

static const struct mapped_call *mapped_of(const struct ferry_call *call)
{
	return (const struct mapped_call *)call;
}

static bool started(const struct ferry_call *call)
{
	const struct mapped_call *mapped = mapped_of(call);
	return call->captured ? atomic_load_explicit(&mapped->word->word, memory_order_acquire) == 1
	                      : ferry_word_reached(mapped->word, mapped->turn);
}

static void finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	const struct mapped_call *mapped = mapped_of(call);
	(void)result, (void)message; /* the rank asks its communicator */
	if (call->reached_ns)
		ferry_ring_stamp(mapped->intake->ring, mapped->stamp, ferry_now_ns() - call->reached_ns);
	ferry_word_pass(mapped->word, mapped->turn);
}

static bool forgotten(const struct ferry_call *call)
{
	return atomic_load_explicit(&mapped_of(call)->word->forgotten, memory_order_acquire);
}

/* Under the lock: which submissions other domains' routers need not keep anything for (router/imports.h). */
static void say_over(struct ferry_intake *intake)
{
	uint64_t before = intake->first ? intake->first->number - 1 : UINT64_MAX;
	atomic_store_explicit(&intake->ring->over, before < intake->listed ? before : intake->listed,
	                      memory_order_release);
}

static void list_call(struct mapped_call *mapped)
{
	struct ferry_intake *intake = mapped->intake;
	if (mapped->call.captured) /* what it names is pinned */
		return;
	pthread_mutex_lock(&intake->over_lock);
	mapped->before = intake->last;
	*(intake->last ? &intake->last->after : &intake->first) = mapped;
	intake->last = mapped;
	pthread_mutex_unlock(&intake->over_lock);
}

static void unlist_call(struct mapped_call *mapped)
{
	struct ferry_intake *intake = mapped->intake;
	if (mapped->call.captured)
		return;
	pthread_mutex_lock(&intake->over_lock);
	*(mapped->before ? &mapped->before->after : &intake->first) = mapped->after;
	*(mapped->after ? &mapped->after->before : &intake->last) = mapped->before;
	say_over(intake);
	pthread_mutex_unlock(&intake->over_lock);
}

/* All calls of these submissions are in the list, or over. */
static void say_listed(struct ferry_intake *intake, uint64_t number)
{
	pthread_mutex_lock(&intake->over_lock);
	intake->listed = number;
	say_over(intake);
	pthread_mutex_unlock(&intake->over_lock);
}

static void call_free(struct mapped_call *mapped)
{
	for (uint32_t i = 0; i < mapped->nimports; i++)
		ferry_imports_release(mapped->imports[i]);
	unlist_call(mapped); /* whose submission is over, of that nothing is held */
	if (mapped->plan)
		ferry_job_release_plan(mapped->plan);
	ferry_call_unprepare(&mapped->call);
	atomic_fetch_sub_explicit(&mapped->intake->calls, 1, memory_order_relaxed);
	free(mapped);
}

static void release(struct ferry_call *call)
{
	struct mapped_call *mapped = (struct mapped_call *)call;
	struct ferry_word *word = call->captured ? mapped->word : NULL;
	uint32_t one = 1;
	call_free(mapped);
	if (word) /* last: the rank may use it again */
		atomic_compare_exchange_strong_explicit(&word->forgotten, &one, 2, memory_order_acq_rel,
		                                        memory_order_relaxed);
}

static const struct ferry_call_ops call_ops = {.started = started,
                                               .finish = finish,
                                               .forgotten = forgotten,
                                               .release = release};

static struct mapped_call *call_new(struct ferry_intake *intake, const struct ferry_submission *head, uint32_t imports,
                                    uint32_t ups, uint32_t downs, uint32_t banks)
{
	size_t bytes = sizeof(struct mapped_call) + imports * sizeof(struct ferry_import *),
	       unit = _Alignof(struct mapped_call);
	struct mapped_call *mapped = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
	if (!mapped)
		return NULL;
	memset(mapped, 0, bytes);
	mapped->intake = intake;
	mapped->number = head->number;
	atomic_fetch_add_explicit(&intake->calls, 1, memory_order_relaxed);
	mapped->word = &intake->words[head->word];
	mapped->turn = head->turn;
	mapped->call.ops = &call_ops;
	mapped->call.member = &intake->member;
	mapped->call.captured = head->flags & FERRY_SUBMIT_CAPTURED;
	mapped->stamp = head->stamp;
	mapped->call.timed = head->stamp && !mapped->call.captured;
	if (!ferry_call_prepare(&mapped->call, ups, downs, banks)) {
		atomic_fetch_sub_explicit(&intake->calls, 1, memory_order_relaxed);
		free(mapped);
		return NULL;
	}
	list_call(mapped);
	return mapped;
}

static ferryResult_t no_memory(void)
{
	return ferry_fail(ferrySystemError, "no memory for a call");
}

/* ---- collectives ---- */

static ferryResult_t take_buffer(struct mapped_call *mapped, const struct ferry_buffer_name *name, uint64_t bytes,
                                 char **address)
{
	*address = NULL;
	if (!bytes)
		return ferrySuccess;
	ferryResult_t result = ferry_imports_take(mapped->intake->imports, name, bytes, address,
	                                          &mapped->imports[mapped->nimports]);
	mapped->nimports += !result;
	return result;
}

struct parts {
	uint64_t send_lengths[FERRY_MAX_RANKS], send_offsets[FERRY_MAX_RANKS], receive_lengths[FERRY_MAX_RANKS],
	        receive_offsets[FERRY_MAX_RANKS];
};

/* Copies the parts of an alltoallv, and finds how far they reach. */
static ferryResult_t read_parts(const struct ferry_submission *head, const void *behind, uint32_t rank,
                                struct parts *parts, uint64_t reach[2])
{
	const struct ferry_submitted_part *from = behind;
	reach[FERRY_UP] = reach[FERRY_DOWN] = 0;
	for (uint32_t peer = 0; peer < head->nparts; peer++) {
		uint64_t send_end, receive_end;
		if (__builtin_add_overflow(from[peer].send_length, from[peer].send_offset, &send_end) ||
		    __builtin_add_overflow(from[peer].receive_length, from[peer].receive_offset, &receive_end) ||
		    send_end >> 56 || receive_end >> 56)
			return ferry_fail(ferryInvalidUsage,
			                  "an alltoallv's part for rank %u: %llu bytes from %llu, %llu bytes to %llu",
			                  peer, (unsigned long long)from[peer].send_length,
			                  (unsigned long long)from[peer].send_offset,
			                  (unsigned long long)from[peer].receive_length,
			                  (unsigned long long)from[peer].receive_offset);
		parts->send_lengths[peer] = from[peer].send_length;
		parts->send_offsets[peer] = from[peer].send_offset;
		parts->receive_lengths[peer] = from[peer].receive_length;
		parts->receive_offsets[peer] = from[peer].receive_offset;
		if (from[peer].send_length && send_end > reach[FERRY_UP])
			reach[FERRY_UP] = send_end;
		if (from[peer].receive_length && receive_end > reach[FERRY_DOWN])
			reach[FERRY_DOWN] = receive_end;
	}
	/* A COPY moves what is sent to where it is received. */
	if (rank >= head->nparts || parts->send_lengths[rank] != parts->receive_lengths[rank])
		return ferry_fail(ferryInvalidUsage,
		                  "an alltoallv of rank %u among %u: it sends itself what it does not receive", rank,
		                  head->nparts);
	return ferrySuccess;
}

/* Everything is taken that can fail, before the lanes see the call. */
static ferryResult_t fill_collective(struct mapped_call *mapped, const struct ferry_submission *head,
                                     const void *behind)
{
	struct ferry_call *call = &mapped->call;
	struct ferry_steps *steps = call->steps;
	struct ferry_call_buffers buffers = {.stream_copies = true};
	struct parts parts;
	uint64_t reach[2] = {steps->reach[FERRY_UP], steps->reach[FERRY_DOWN]};
	if (steps->plan->flags & FERRY_PLAN_VARIABLE) {
		if (head->nparts != steps->plan->nranks)
			return ferry_fail(ferryInvalidUsage, "an alltoallv among %u ranks with %u parts",
			                  steps->plan->nranks, head->nparts);
		ferryResult_t result = read_parts(head, behind, mapped->intake->member.rank, &parts, reach);
		if (result)
			return result;
		buffers.send_lengths = parts.send_lengths;
		buffers.send_offsets = parts.send_offsets;
		buffers.receive_lengths = parts.receive_lengths;
		buffers.receive_offsets = parts.receive_offsets;
	}
	ferryResult_t result = take_buffer(mapped, &head->send, reach[FERRY_UP], &buffers.send);
	if (!result)
		result = take_buffer(mapped, &head->receive, reach[FERRY_DOWN], &buffers.receive);
	if (result)
		return result;
	call->landing = head->receive;
	ferry_call_fill(call, &buffers);
	return ferrySuccess;
}

static ferryResult_t check_collective(const struct ferry_intake *intake, const struct ferry_submission *head,
                                      const struct ferry_plan *plan)
{
	bool captured = head->flags & FERRY_SUBMIT_CAPTURED;
	if (!head->seq == !head->name || (captured && !head->name) || head->after >= (head->seq ? head->seq : 1))
		return ferry_fail(ferryInvalidUsage, "call %llu, name %llu, after %llu%s",
		                  (unsigned long long)head->seq, (unsigned long long)head->name,
		                  (unsigned long long)head->after, captured ? ", captured" : "");
	if ((head->shape & 0xff) != plan->collective || (head->shape >> 8 & 0xff) != plan->type ||
	    head->root != plan->root || head->count != plan->count)
		return ferry_fail(ferryInvalidUsage, "rank %u submits %s of %llu with the plan of %s of %llu",
		                  intake->member.rank,
		                  ferry_collective_name(head->shape & 0xff) ? ferry_collective_name(head->shape & 0xff)
		                                                            : "no collective",
		                  (unsigned long long)head->count, ferry_collective_name(plan->collective),
		                  (unsigned long long)plan->count);
	return ferrySuccess;
}

static void place(struct ferry_intake *intake, const struct ferry_submission *head, struct ferry_call *call)
{
	struct ferry_order *order = &intake->member.order;
	if (head->fixed != atomic_load_explicit(&order->fixed, memory_order_relaxed)) {
		order->fixed_alone = head->flags & FERRY_SUBMIT_FIXED_ALONE;
		atomic_store_explicit(&order->fixed, head->fixed, memory_order_release);
	}
	call->name = head->name;
	call->after = head->after;
	if (!head->seq)
		return;
	ferry_call_arm(call, head->seq % FERRY_BANKS);
	atomic_store_explicit(&call->seq, head->seq, memory_order_relaxed);
	atomic_store_explicit(&call->steps->last_seq, head->seq, memory_order_relaxed);
}

static ferryResult_t take_collective(struct ferry_intake *intake, const struct ferry_submission *head,
                                     const void *behind)
{
	struct ferry_steps *steps;
	struct ferry_job_plan *plan = ferry_job_hold_plan(intake->job, head->plan_hash, intake->member.rank, &steps);
	if (!plan)
		return ferry_fail(ferryInvalidUsage, "rank %u submits a call with plan %016llx, which it has not given",
		                  intake->member.rank, (unsigned long long)head->plan_hash);
	ferryResult_t result = check_collective(intake, head, steps->plan);
	uint32_t banks = head->seq ? 1u << head->seq % FERRY_BANKS : (1u << FERRY_BANKS) - 1;
	struct mapped_call *mapped =
		result ? NULL
		       : call_new(intake, head, 2, steps->nsteps[FERRY_UP], steps->nsteps[FERRY_DOWN], banks);
	if (!mapped) {
		ferry_job_release_plan(plan);
		return result ? result : no_memory();
	}
	struct ferry_call *call = &mapped->call;
	mapped->plan = plan;
	call->steps = steps;
	call->count = head->count;
	call->root = head->root;
	call->shape = head->shape;
	call->scalar = head->scalar;
	if (head->flags & FERRY_SUBMIT_SCALAR)
		call->device_scalar = (const void *)&mapped->word->scalar;
	if ((result = fill_collective(mapped, head, behind))) {
		call_free(mapped);
		return result;
	}
	place(intake, head, call);
	atomic_store_explicit(&call->lanes, 1 + ferry_call_descends(call), memory_order_relaxed);
	ferry_lanes_submit(&intake->member, call);
	return ferrySuccess;
}

/* ---- sends and receives ---- */

static ferryResult_t fill_message(struct ferry_intake *intake, struct mapped_call *mapped,
                                  const struct ferry_submitted_message *message)
{
	const struct ferry_job_arenas *shared = intake->member.shared;
	struct ferry_half *half = &mapped->call.halves[message->direction];
	struct ferry_transfer *transfer = &half->prepared[0][half->ntransfers];
	uint32_t source = message->direction == FERRY_UP ? intake->member.rank : message->peer;
	ferryResult_t result = take_buffer(mapped, &message->buffer, message->bytes, &transfer->user);
	if (result)
		return result;
	transfer->peer = message->peer;
	transfer->length = message->bytes;
	transfer->type = message->type;
	ferry_pair_cut(transfer, message->puts, shared->arenas[shared->rank_domain[source]].pair_slot_bytes);
	transfer->landing = message->buffer;
	transfer->message = message->message;
	half->ntransfers++;
	half->all++;
	return ferrySuccess;
}

static ferryResult_t make_messages(struct ferry_intake *intake, const struct ferry_submission *head)
{
	struct mapped_call *mapped = call_new(intake, head, intake->nmessages, intake->nmessages, intake->nmessages, 1);
	if (!mapped)
		return no_memory();
	for (uint32_t i = 0; i < intake->nmessages; i++) {
		ferryResult_t result = fill_message(intake, mapped, &intake->messages[i]);
		if (result) {
			call_free(mapped);
			return result;
		}
	}
	ferry_call_arm(&mapped->call, 0);
	mapped->call.name = head->name;
	atomic_store_explicit(&mapped->call.lanes, 1 + ferry_call_descends(&mapped->call), memory_order_relaxed);
	ferry_lanes_submit(&intake->member, &mapped->call);
	return ferrySuccess;
}

static ferryResult_t check_message(const struct ferry_intake *intake, const struct ferry_submitted_message *message)
{
	if (message->peer < intake->member.shared->nranks && message->direction <= FERRY_DOWN &&
	    message->puts <= 1 && !(message->bytes >> 56) && ferry_type_size(message->type))
		return ferrySuccess;
	return ferry_fail(ferryInvalidUsage, "a message of %llu bytes of type %u, direction %u, with rank %u of %u",
	                  (unsigned long long)message->bytes, message->type, message->direction, message->peer,
	                  intake->member.shared->nranks);
}

static ferryResult_t take_messages(struct ferry_intake *intake, const struct ferry_submission *head, const void *behind)
{
	const struct ferry_submitted_message *messages = behind;
	bool captured = head->flags & FERRY_SUBMIT_CAPTURED;
	if (!head->nparts || intake->nmessages + head->nparts > MOST_MESSAGES || (captured && !head->name))
		return ferry_fail(ferryInvalidUsage, "a group of %u messages, %u at most%s",
		                  intake->nmessages + head->nparts, MOST_MESSAGES, captured ? ", captured" : "");
	for (uint32_t i = 0; i < head->nparts; i++) {
		ferryResult_t result = check_message(intake, &messages[i]);
		if (result)
			return result;
	}
	void *grown = realloc(intake->messages, (intake->nmessages + head->nparts) * sizeof *messages);
	if (!grown)
		return no_memory();
	intake->messages = grown;
	memcpy(intake->messages + intake->nmessages, messages, head->nparts * sizeof *messages);
	intake->nmessages += head->nparts;
	if (head->flags & FERRY_SUBMIT_MORE)
		return ferrySuccess;
	ferryResult_t result = make_messages(intake, head);
	intake->nmessages = 0;
	return result;
}

/* ---- the ring ---- */

static ferryResult_t take_record(struct ferry_intake *intake, const struct ferry_submission *head)
{
	bool messages = head->kind == FERRY_SUBMIT_MESSAGES;
	size_t part = messages ? sizeof(struct ferry_submitted_message) : sizeof(struct ferry_submitted_part);
	if (head->word >= FERRY_WORDS || head->number != intake->number + 1 || head->kind < FERRY_SUBMIT_COLLECTIVE ||
	    head->kind > FERRY_SUBMIT_MESSAGES || head->nparts > (head->bytes - sizeof *head) / part ||
	    (!messages && (intake->nmessages || head->nparts > FERRY_MAX_RANKS)))
		return ferry_fail(ferryInvalidUsage,
		                  "submission %llu after %llu: kind %u, word %u, %u parts in %u bytes",
		                  (unsigned long long)head->number, (unsigned long long)intake->number, head->kind,
		                  head->word, head->nparts, head->bytes);
	intake->number = head->number;
	return messages ? take_messages(intake, head, head + 1) : take_collective(intake, head, head + 1);
}

/* A rank that submits more than can be under way waits for room in its ring; one lane serves other jobs, too. */
static bool has_room(const struct ferry_intake *intake)
{
	return atomic_load_explicit(&intake->calls, memory_order_relaxed) < MOST_CALLS;
}

/* Once: the rest of what it submits is taken in vain. */
static void refuse(struct ferry_intake *intake)
{
	if (!intake->refused)
		ferry_job_fail(intake->job, ferryInvalidUsage, ferry_last_message());
	intake->refused = true;
}

/* The job has failed, and the stream that comes to this call has to go on: a call of nothing does that. */
static void take_in_vain(struct ferry_intake *intake, const struct ferry_submission *head)
{
	if (head->word >= FERRY_WORDS || (head->flags & FERRY_SUBMIT_MORE))
		return;
	struct mapped_call *mapped = call_new(intake, head, 0, 0, 0, 1);
	if (!mapped)
		return;
	ferry_call_arm(&mapped->call, 0);
	mapped->call.name = mapped->call.captured;
	atomic_store_explicit(&mapped->call.lanes, 1, memory_order_relaxed);
	ferry_lanes_submit(&intake->member, &mapped->call);
}

/* D2H lane. What the calls name is held from here on: the mapper need not look after these submissions any more. */
static bool take(struct ferry_member *member)
{
	struct ferry_intake *intake = intake_of(member);
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	bool found = false, any = true;
	ferryResult_t result = ferrySuccess;
	if (intake->broken || !ferry_ring_any(intake->ring) || !has_room(intake))
		return false;
	for (uint32_t i = 0; i < RECORDS_AT_ONCE && !result && any && has_room(intake); i++) {
		result = ferry_ring_take(intake->ring, &intake->taken, record, &any);
		found |= any;
		if (!result && any && take_record(intake, (const struct ferry_submission *)record)) {
			refuse(intake);
			take_in_vain(intake, (const struct ferry_submission *)record);
		}
	}
	ferry_imports_ended(intake->imports, intake->number);
	if (found)
		say_listed(intake, intake->number);
	ferry_doorbell_ring(&ferry_member_line(member)->app); /* it may wait for room in the ring */
	if (result) {
		intake->broken = true; /* where its next record would be, nobody knows */
		refuse(intake);
	}
	return found;
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
	ferryResult_t result = ferry_imports_land(theirs, name, bytes, ferry_imports_gpu(intake->imports),
	                                          &landing->address, &held);
	if (!result)
		landing->hold = held;
	return result;
}

static void member_let_go(struct ferry_member *member, void *hold)
{
	(void)member;
	ferry_imports_let_go(hold);
}

static const struct ferry_member_ops member_ops = {.fail = member_fail,
                                                   .land = member_land,
                                                   .let_go = member_let_go,
                                                   .failed = member_failed,
                                                   .error = member_error,
                                                   .check = member_check,
                                                   .beside = member_beside,
                                                   .take = take,
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
	intake->member.stall_ns = lanes->stall_ns;
	intake->member.awaits_quiet = true;
	pthread_mutex_init(&intake->over_lock, NULL);
	atomic_store_explicit(&intake->member.order.fixed, UINT64_MAX, memory_order_relaxed);
	ferry_lanes_join(lanes, &intake->member);
	job->intakes[rank] = intake;
	return ferrySuccess;
}

/* By one GPU for all: registration is portable. */
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

/* Of a rank of another domain the UUID alone is known. */
static bool reaches(const struct ferry_gpu *from, const struct ferry_imports *to)
{
	const struct ferry_gpu *gpu = ferry_imports_gpu(to);
	return to->guest ? ferry_gpu_reaches_uuid(from, to->uuid) : gpu && ferry_gpu_reaches(from, gpu);
}

/*
 * Whose memory the ranks reach that this router moves: within the GPU, or as the GPUs' driver says. The ranks choose
 * their programs by it, and where they export what others put into.
 */
static void find_reach(struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
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
		atomic_store_explicit(&header->reach[from], reached, memory_order_relaxed); /* `ready` follows */
	}
}

ferryResult_t ferry_intakes_open(struct ferry_job *job)
{
	find_reach(job);
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		struct ferry_gpu *gpu = job->imports[rank] ? ferry_imports_gpu(job->imports[rank]) : NULL;
		struct ferry_lanes *lanes;
		if (!gpu)
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
	/* Behind its copies' last bytes: who sees it may let the rank's streams go on, and free what they copied. */
	atomic_fetch_or_explicit(&job->shared.arenas[job->domain].header->let_go, 1ull << intake->member.rank,
	                         memory_order_release);
	ferry_doorbell_ring(&ferry_rank_line(&job->shared, intake->member.rank)->app);
	ferry_gpu_lanes_leave(job->gpu_lanes, lanes);
	munmap(intake->words, WORDS_BYTES);
	free(intake->messages);
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
