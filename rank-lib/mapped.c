/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/mapped.h"

#include "ipc/environment.h"
#include "rank-lib/own_copies.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_BYTES 4096
#define NO_SUBMISSION 0

/* A captured call that a graph may still have. */
struct ferry_capture {
	uint32_t word;
	struct ferry_plan_entry *entry; /* with a reference; NULL: messages */
	struct ferry_capture *next;
	uint32_t nnames;
	struct ferry_buffer_name names[]; /* pinned */
};

static _Atomic uint32_t forgets; /* captured calls that no graph has any more, of all communicators; from any thread */

/* ---- open ---- */

bool ferry_mapped_wants(const struct ferry_rank *rank, struct ferry_device *device, uint8_t uuid[FERRY_GPU_BYTES],
                        int *words)
{
	const char *lanes = ferry_env("FERRY_LANES");
	const struct ferry_device_ops *ops = device->ops;
	if (!ops->pieces || !ops->enqueue_word || (lanes && !strcmp(lanes, "rank")))
		return false;
	ferryResult_t result = ops->pieces->identify(device, uuid);
	if (!result)
		result = ferry_words_open(device, words);
	if (result)
		ferry_log(FERRY_LOG_INFO, "rank %d moves its data itself: %s", rank->self, ferry_last_message());
	return !result;
}

static void fail_lost(struct ferry_mapped *mapped, uint32_t domain)
{
	char text[96];
	snprintf(text, sizeof text, "the router of domain %u died", domain);
	ferry_rank_fail(mapped->rank, ferryRemoteError, text);
}

/* Its own: why is said once it is known whether the router ends. Meanwhile the streams wait, and callers with them. */
static void on_router_lost(struct ferry_kept *kept)
{
	struct ferry_watched *watched = (struct ferry_watched *)kept;
	if (watched->domain != watched->mapped->rank->domain) {
		fail_lost(watched->mapped, watched->domain);
		return;
	}
	ferry_mover_lose(&watched->mapped->mover);
	ferry_keeper_look(kept);
}

static bool has_let_go(struct ferry_mapped *mapped)
{
	char text[200];
	if (ferry_mover_may_copy(&mapped->mover)) {
		if (!ferry_mover_is_overdue(&mapped->mover, text, sizeof text))
			return false;
		ferry_log(FERRY_LOG_WARN, "rank %d: %s", mapped->rank->self, text);
		ferry_rank_fail(mapped->rank, ferryRemoteError, text);
	}
	fail_lost(mapped, mapped->rank->domain); /* no news for who has just said more */
	return true;
}

/* Nobody else lets this rank's streams go on, whether they are at a call already or come to one later. */
static bool release_streams(struct ferry_kept *kept)
{
	struct ferry_mapped *mapped = ((struct ferry_watched *)kept)->mapped;
	if (!mapped->let_go && !(mapped->let_go = has_let_go(mapped)))
		return true;
	ferry_word_table_release(mapped->words);
	return true;
}

static ferryResult_t watch_routers(struct ferry_mapped *mapped)
{
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++) {
		struct ferry_watched *watched = &mapped->watched[domain];
		*watched = (struct ferry_watched){.kept = {.descriptor = mapped->rank->sockets[domain],
		                                           .closed = on_router_lost,
		                                           .look = release_streams},
		                                  .mapped = mapped,
		                                  .domain = domain};
		ferryResult_t result = ferry_keeper_add(&watched->kept);
		if (result)
			return result;
		watched->added = true;
	}
	return ferrySuccess;
}

/* In a container of its own, say, the router can have the same GPU and not open its memory. */
static ferryResult_t attempt(struct ferry_mapped *mapped)
{
	const struct ferry_pieces_ops *pieces = mapped->device->ops->pieces;
	struct ferry_buffer_name name;
	void *sample;
	ferryResult_t result = pieces->allocate(mapped->device, SAMPLE_BYTES, &sample);
	if (result)
		return result;
	if (!(result = ferry_exports_name(mapped->exports, sample, SAMPLE_BYTES, NO_SUBMISSION, false, &name)))
		result = ferry_exports_forget(mapped->exports, &name);
	pieces->release(mapped->device, sample);
	return result;
}

ferryResult_t ferry_mapped_open(struct ferry_mapped *mapped)
{
	struct ferry_rank *rank = mapped->rank;
	struct ferry_arena *arena = &rank->shared.arenas[rank->domain];
	struct ferry_export_cell *cells = arena->export_cells + (size_t)rank->self * FERRY_MOST_EXPORTS;
	ferryResult_t result = ferry_exports_open(mapped->device, &rank->sockets[rank->domain], &rank->failed, cells,
	                                          &mapped->exports);
	if (!result)
		result = attempt(mapped);
	if (result) {
		ferry_exports_close(mapped->exports);
		mapped->exports = NULL;
		return ferry_fail(ferryInvalidUsage, "%s", ferry_last_message());
	}
	mapped->submissions.ring = ferry_rank_ring(&rank->shared, (uint32_t)rank->self);
	ferry_mover_open(&mapped->mover, rank);
	return watch_routers(mapped);
}

/* ---- captured calls ---- */

static void forget(void *word)
{
	ferry_word_forget((uint32_t)(uintptr_t)word);
	atomic_fetch_add_explicit(&forgets, 1, memory_order_release);
}

static void capture_free(struct ferry_mapped *mapped, struct ferry_capture *capture)
{
	for (uint32_t i = 0; i < capture->nnames; i++)
		ferry_exports_unpin(mapped->exports, &capture->names[i]);
	if (capture->entry)
		ferry_plan_cache_give_back(mapped->plans, capture->entry);
	free(capture);
}

/* Keeps what a captured call needs, and gives it a word. The names are pinned already. */
static ferryResult_t keep_capture(struct ferry_mapped *mapped, struct ferry_plan_entry *entry,
                                  const struct ferry_buffer_name *names, uint32_t nnames, struct ferry_submission *head,
                                  struct ferry_stream_call *in_stream)
{
	struct ferry_capture *capture = calloc(1, sizeof *capture + nnames * sizeof *names);
	ferryResult_t result = capture ? ferry_word_for_capture(mapped->words, &head->word)
	                               : ferry_fail(ferrySystemError, "no memory for a captured call");
	if (result) {
		free(capture);
		return result;
	}
	capture->word = head->word;
	capture->entry = entry;
	for (uint32_t i = 0; i < nnames; i++)
		if (names[i].generation)
			capture->names[capture->nnames++] = names[i];
	capture->next = mapped->captures;
	mapped->captures = capture;
	in_stream->forget = forget;
	in_stream->argument = (void *)(uintptr_t)head->word;
	return ferrySuccess;
}

/* Lets go of what only graphs that are gone have needed. */
static void sweep_captures(struct ferry_mapped *mapped)
{
	uint32_t seen = atomic_load_explicit(&forgets, memory_order_acquire);
	if (seen == mapped->forgets_seen)
		return;
	mapped->forgets_seen = seen;
	for (struct ferry_capture **link = &mapped->captures; *link;) {
		struct ferry_capture *capture = *link;
		if (!atomic_load_explicit(&ferry_word_at(capture->word)->forgotten, memory_order_acquire)) {
			link = &capture->next;
			continue;
		}
		*link = capture->next;
		capture_free(mapped, capture);
	}
}

/* ---- the ring ---- */

/* The router takes submissions whether their streams have come to them or not, so room comes soon. */
static ferryResult_t submit(struct ferry_mapped *mapped, struct ferry_submission *head, const void *behind,
                            size_t more)
{
	struct ferry_rank *rank = mapped->rank;
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	head->number = mapped->submissions.written + 1;
	head->fixed = mapped->numbers->fixed;
	if (mapped->numbers->fixed_alone)
		head->flags |= FERRY_SUBMIT_FIXED_ALONE;
	while (!ferry_ring_write(mapped->submissions.ring, head, behind, more)) {
		ferry_wake(&rank->shared, 1ull << rank->self, 0, 0); /* who is to make room may be asleep */
		uint32_t ticket = ferry_doorbell_prepare(bell);
		if (ferry_rank_failed(rank)) {
			ferry_doorbell_cancel(bell);
			return ferry_rank_say_failed(rank);
		}
		if (ferry_submissions_taken(&mapped->submissions))
			ferry_doorbell_cancel(bell);
		else
			ferry_doorbell_wait(bell, ticket, 100000);
	}
	mapped->submissions.written++;
	return ferrySuccess;
}

/* The lanes and workers that the call will need take about as long to wake up as the call to get into the stream. */
static void wake_router(struct ferry_mapped *mapped, uint32_t domains)
{
	const struct ferry_rank *rank = mapped->rank;
	if (domains)
		atomic_store_explicit(&ferry_rank_line(&rank->shared, (uint32_t)rank->self)->announced,
		                      mapped->numbers->made, memory_order_release);
	ferry_wake(&rank->shared, 1ull << rank->self, 0, domains);
}

/* The router has the call, or the other ranks wait for it: there is no way back. */
static ferryResult_t enqueue(struct ferry_mapped *mapped, ferryStream_t stream,
                             const struct ferry_stream_call *in_stream)
{
	ferryResult_t result = mapped->device->ops->enqueue_word(mapped->device, stream, in_stream);
	if (result)
		ferry_rank_fail(mapped->rank, result, ferry_last_message());
	return result;
}

/* ---- collectives ---- */

/* How far the call reaches into each buffer. */
static void find_reach(const struct ferry_mapped *mapped, const struct ferry_collective_call *collective,
                       const struct ferry_request_parts *parts, uint64_t reach[2])
{
	const struct ferry_request *request = collective->request;
	const struct ferry_steps *steps = &collective->entry->steps;
	reach[FERRY_UP] = steps->reach[FERRY_UP];
	reach[FERRY_DOWN] = steps->reach[FERRY_DOWN];
	if (request->collective != FERRY_ALLTOALLV)
		return;
	for (int peer = 0; peer < mapped->rank->nranks; peer++) {
		uint64_t sent = parts->send_offsets[peer] + parts->send_lengths[peer];
		uint64_t received = parts->receive_offsets[peer] + parts->receive_lengths[peer];
		if (parts->send_lengths[peer] && sent > reach[FERRY_UP])
			reach[FERRY_UP] = sent;
		if (parts->receive_lengths[peer] && received > reach[FERRY_DOWN])
			reach[FERRY_DOWN] = received;
	}
}

/* Names the buffer, or a window in its place. */
static ferryResult_t name_buffer(struct ferry_mapped *mapped, const void *buffer, uint64_t bytes,
                                 enum ferry_direction direction, const struct ferry_stream_state *stream,
                                 struct ferry_buffer_name *name, char **window)
{
	uint64_t submission = mapped->submissions.written + 1;
	void *memory;
	ferryResult_t result = ferry_exports_name(mapped->exports, buffer, bytes, submission, stream->captures, name);
	if (!ferry_exports_refused(result))
		return result;
	ferry_forget_message(); /* that it cannot be exported is no failure */
	result = ferry_windows_take(&mapped->windows, mapped->device, stream->captures ? 0 : stream->id, direction,
	                            bytes, &memory);
	if (result)
		return result;
	*window = memory;
	return ferry_exports_name(mapped->exports, memory, bytes, submission, stream->captures, name);
}

ferryResult_t ferry_mapped_name(struct ferry_mapped *mapped, struct ferry_collective_call *collective)
{
	const struct ferry_request *request = collective->request;
	struct ferry_request_parts parts;
	struct ferry_call_buffers buffers;
	uint64_t reach[2];
	const void *starts[2] = {request->send, request->receive};
	ferryResult_t result = ferrySuccess;
	sweep_captures(mapped);
	ferry_request_buffers(request, mapped->rank, mapped->device, &parts, &buffers);
	find_reach(mapped, collective, &parts, reach);
	for (enum ferry_direction i = FERRY_UP; i <= FERRY_DOWN && !result; i++)
		if (reach[i])
			result = name_buffer(mapped, starts[i], reach[i], i, &collective->stream, &collective->names[i],
			                     &collective->windows[i]);
	if (result && collective->stream.captures && collective->names[0].generation)
		ferry_exports_unpin(mapped->exports, &collective->names[0]);
	return result;
}

static void fill_head(const struct ferry_collective_call *collective, struct ferry_submission *head)
{
	const struct ferry_plan_entry *entry = collective->entry;
	*head = (struct ferry_submission){.kind = FERRY_SUBMIT_COLLECTIVE,
	                                  .flags = collective->stream.captures ? FERRY_SUBMIT_CAPTURED : 0,
	                                  .seq = collective->number.seq,
	                                  .name = collective->number.name,
	                                  .after = collective->number.after,
	                                  .plan_hash = entry->plan->hash,
	                                  .count = entry->key.count,
	                                  .scalar = collective->factor.scalar,
	                                  .shape = collective->shape,
	                                  .root = entry->key.root,
	                                  .send = collective->names[FERRY_UP],
	                                  .receive = collective->names[FERRY_DOWN]};
	if (collective->factor.device_scalar)
		head->flags |= FERRY_SUBMIT_SCALAR;
}

/* Its word, and who keeps what it needs. */
static ferryResult_t take_word(struct ferry_mapped *mapped, const struct ferry_collective_call *collective,
                               struct ferry_submission *head, struct ferry_stream_call *in_stream)
{
	if (!collective->stream.captures)
		return ferry_word_for_stream(mapped->words, collective->stream.id, &head->word, &head->turn);
	return keep_capture(mapped, collective->entry, collective->names, 2, head, in_stream);
}

static ferryResult_t submit_collective(struct ferry_mapped *mapped, const struct ferry_collective_call *collective,
                                       struct ferry_submission *head, const struct ferry_request_parts *parts)
{
	struct ferry_submitted_part behind[FERRY_MAX_RANKS];
	if (collective->request->collective != FERRY_ALLTOALLV)
		return submit(mapped, head, NULL, 0);
	head->nparts = (uint32_t)mapped->rank->nranks;
	for (uint32_t peer = 0; peer < head->nparts; peer++)
		behind[peer] = (struct ferry_submitted_part){parts->send_lengths[peer], parts->send_offsets[peer],
		                                             parts->receive_lengths[peer],
		                                             parts->receive_offsets[peer]};
	return submit(mapped, head, behind, head->nparts * sizeof *behind);
}

/* The copies that a window needs: of each part that the call moves, and no other byte of the user's. */
static ferryResult_t fill_window(const struct ferry_collective_call *collective,
                                 const struct ferry_call_buffers *buffers, enum ferry_direction direction,
                                 struct ferry_local_copy **copies, uint32_t *ncopies)
{
	const struct ferry_steps *steps = &collective->entry->steps;
	char *window = collective->windows[direction],
	     *start = direction == FERRY_UP ? buffers->send : buffers->receive;
	if (!window)
		return ferrySuccess;
	if (!(*copies = calloc(steps->nsteps[direction] + 1, sizeof **copies)))
		return ferry_fail(ferrySystemError, "no memory for %u copies", steps->nsteps[direction]);
	for (uint32_t i = 0; i < steps->nsteps[direction]; i++) {
		struct ferry_transfer transfer;
		ferry_call_fill_transfer(steps->plan, buffers, &steps->steps[direction][0][i], &transfer);
		if (!transfer.length || transfer.destination)
			continue;
		char *there = window + (transfer.user - start);
		(*copies)[(*ncopies)++] = direction == FERRY_UP
		                                  ? (struct ferry_local_copy){there, transfer.user, transfer.length}
		                                  : (struct ferry_local_copy){transfer.user, there, transfer.length};
	}
	return ferrySuccess;
}

static ferryResult_t fill_copies(const struct ferry_collective_call *collective,
                                 const struct ferry_call_buffers *buffers, struct ferry_stream_call *in_stream)
{
	ferryResult_t result = ferry_own_copies(&collective->entry->steps, buffers, in_stream);
	if (!result)
		result = fill_window(collective, buffers, FERRY_UP, &in_stream->before, &in_stream->nbefore);
	if (!result)
		result = fill_window(collective, buffers, FERRY_DOWN, &in_stream->after, &in_stream->nafter);
	return result;
}

static void free_copies(struct ferry_stream_call *in_stream)
{
	free(in_stream->copies);
	free(in_stream->before);
	free(in_stream->after);
}

ferryResult_t ferry_mapped_collective(struct ferry_mapped *mapped, const struct ferry_collective_call *collective)
{
	const struct ferry_request *request = collective->request;
	struct ferry_steps *steps = &collective->entry->steps;
	struct ferry_request_parts parts;
	struct ferry_call_buffers buffers;
	struct ferry_submission head;
	struct ferry_stream_call in_stream = {.scalar = collective->factor.device_scalar,
	                                      .scalar_bytes = ferry_type_size(request->type)};
	ferry_request_buffers(request, mapped->rank, mapped->device, &parts, &buffers);
	fill_head(collective, &head);
	if (collective->number.seq)
		atomic_store_explicit(&steps->last_seq, collective->number.seq, memory_order_relaxed);
	ferryResult_t result = fill_copies(collective, &buffers, &in_stream);
	if (!result)
		result = take_word(mapped, collective, &head, &in_stream);
	if (!result) {
		in_stream.word = ferry_word_at(head.word);
		result = submit_collective(mapped, collective, &head, &parts);
	}
	if (!collective->stream.captures)
		/* the router has it as long as it needs it */
		ferry_plan_cache_give_back(mapped->plans, collective->entry);
	if (result) {
		ferry_rank_fail(mapped->rank, result, ferry_last_message()); /* it has its place among the calls */
	} else {
		mapped->submissions.calls += !collective->stream.captures;
		wake_router(mapped, steps->domains);
		result = enqueue(mapped, request->stream, &in_stream);
	}
	free_copies(&in_stream);
	return result;
}

/* ---- sends and receives ---- */

/* Sends and receives of one call; where their buffers cannot be named, each has a part of a window. */
struct messages {
	const struct ferry_request *requests;
	struct ferry_submitted_message *submitted;
	uint32_t count;
	uint64_t windowed[2]; /* bytes of windows that are needed, by direction */
};

static void *buffer_of(const struct ferry_request *request)
{
	return request->direction == FERRY_UP ? (void *)request->send : request->receive;
}

static uint64_t up_to_line(uint64_t bytes)
{
	return (bytes + 127) / 128 * 128;
}

/* Those that can be named; of the others `generation` stays 0. */
static ferryResult_t name_messages(struct ferry_mapped *mapped, struct messages *messages, uint64_t submission,
                                   bool pin)
{
	for (uint32_t i = 0; i < messages->count; i++) {
		const struct ferry_request *request = &messages->requests[i];
		struct ferry_submitted_message *message = &messages->submitted[i];
		*message = (struct ferry_submitted_message){.bytes = request->count * ferry_type_size(request->type),
		                                            .peer = (uint32_t)request->root,
		                                            .type = (uint8_t)request->type,
		                                            .direction = (uint8_t)request->direction};
		if (!message->bytes)
			continue;
		ferryResult_t result = ferry_exports_name(mapped->exports, buffer_of(request), message->bytes,
		                                          submission, pin, &message->buffer);
		if (result && !ferry_exports_refused(result))
			return result;
		if (!result)
			continue;
		ferry_forget_message();
		messages->windowed[message->direction] += up_to_line(message->bytes);
	}
	return ferrySuccess;
}

static ferryResult_t fill_windows(struct ferry_mapped *mapped, struct messages *messages, uint64_t submission,
                                  const struct ferry_stream_state *stream, struct ferry_stream_call *in_stream)
{
	struct ferry_local_copy *copies[2] = {NULL, NULL};
	uint32_t ncopies[2] = {0, 0};
	void *windows[2];
	uint64_t at[2] = {0, 0};
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		if (!messages->windowed[direction])
			continue;
		ferryResult_t result = ferry_windows_take(&mapped->windows, mapped->device,
		                                          stream->captures ? 0 : stream->id, direction,
		                                          messages->windowed[direction], &windows[direction]);
		copies[direction] = calloc(messages->count, sizeof *copies[direction]);
		*(direction == FERRY_UP ? &in_stream->before : &in_stream->after) = copies[direction];
		if (result || !copies[direction])
			return result ? result
			              : ferry_fail(ferrySystemError, "no memory for %u copies", messages->count);
	}
	for (uint32_t i = 0; i < messages->count; i++) {
		struct ferry_submitted_message *message = &messages->submitted[i];
		enum ferry_direction direction = message->direction;
		char *user = buffer_of(&messages->requests[i]);
		if (!message->bytes || message->buffer.generation)
			continue;
		char *there = (char *)windows[direction] + at[direction];
		ferryResult_t result = ferry_exports_name(mapped->exports, there, message->bytes, submission,
		                                          stream->captures, &message->buffer);
		if (result)
			return result;
		at[direction] += up_to_line(message->bytes);
		copies[direction][ncopies[direction]++] = direction == FERRY_UP
		                                                  ? (struct ferry_local_copy){there, user,
		                                                                              message->bytes}
		                                                  : (struct ferry_local_copy){user, there,
		                                                                              message->bytes};
	}
	in_stream->nbefore = ncopies[FERRY_UP];
	in_stream->nafter = ncopies[FERRY_DOWN];
	return ferrySuccess;
}

/* Records of FERRY_SUBMISSION_MESSAGES each; the last one makes the call. */
static ferryResult_t submit_messages(struct ferry_mapped *mapped, struct ferry_submission *head,
                                     const struct ferry_submitted_message *messages, uint32_t count)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t sent = 0; sent < count && !result; sent += head->nparts) {
		uint32_t left = count - sent;
		bool more = left > FERRY_SUBMISSION_MESSAGES;
		head->nparts = more ? FERRY_SUBMISSION_MESSAGES : left;
		head->flags = (head->flags & FERRY_SUBMIT_CAPTURED) | (more ? FERRY_SUBMIT_MORE : 0);
		result = submit(mapped, head, messages + sent, head->nparts * sizeof *messages);
	}
	return result;
}

/* Their word and, of captured ones, what they need. */
static ferryResult_t take_word_of_messages(struct ferry_mapped *mapped, const struct messages *messages,
                                           const struct ferry_stream_state *stream, struct ferry_submission *head,
                                           struct ferry_stream_call *in_stream)
{
	if (!stream->captures)
		return ferry_word_for_stream(mapped->words, stream->id, &head->word, &head->turn);
	struct ferry_buffer_name *names = malloc(messages->count * sizeof *names);
	if (!names)
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", messages->count);
	for (uint32_t i = 0; i < messages->count; i++)
		names[i] = messages->submitted[i].buffer;
	ferryResult_t result = keep_capture(mapped, NULL, names, messages->count, head, in_stream);
	free(names);
	return result;
}

static ferryResult_t launch_messages(struct ferry_mapped *mapped, struct messages *messages,
                                     const struct ferry_stream_state *stream, struct ferry_stream_call *in_stream)
{
	struct ferry_submission head = {.kind = FERRY_SUBMIT_MESSAGES,
	                                .flags = stream->captures ? FERRY_SUBMIT_CAPTURED : 0,
	                                .name = mapped->numbers->messages_named};
	uint64_t last = mapped->submissions.written +
	                (messages->count + FERRY_SUBMISSION_MESSAGES - 1) / FERRY_SUBMISSION_MESSAGES;
	sweep_captures(mapped);
	ferryResult_t result = name_messages(mapped, messages, last, stream->captures);
	if (!result)
		result = fill_windows(mapped, messages, last, stream, in_stream);
	if (!result)
		result = take_word_of_messages(mapped, messages, stream, &head, in_stream);
	if (result)
		return result;
	for (uint32_t i = 0; i < messages->count; i++) {
		struct ferry_submitted_message *message = &messages->submitted[i];
		message->message = ferry_numbering_message(mapped->numbers, message->direction, message->peer);
	}
	in_stream->word = ferry_word_at(head.word);
	if ((result = submit_messages(mapped, &head, messages->submitted, messages->count))) {
		ferry_rank_fail(mapped->rank, result, ferry_last_message());
		return result;
	}
	mapped->submissions.calls += !stream->captures;
	wake_router(mapped, 0);
	return enqueue(mapped, messages->requests[0].stream, in_stream);
}

ferryResult_t ferry_mapped_pairs(struct ferry_mapped *mapped, const struct ferry_request *requests, uint32_t nrequests,
                                 const struct ferry_stream_state *stream)
{
	struct messages messages = {.requests = requests, .count = nrequests};
	struct ferry_stream_call in_stream = {0};
	if (!(messages.submitted = calloc(nrequests, sizeof *messages.submitted)))
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", nrequests);
	ferryResult_t result = launch_messages(mapped, &messages, stream, &in_stream);
	free(messages.submitted);
	free_copies(&in_stream);
	return result;
}

/* ---- close ---- */

void ferry_mapped_close(struct ferry_mapped *mapped)
{
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++)
		if (mapped->watched[domain].added)
			ferry_keeper_remove(&mapped->watched[domain].kept);
	/* else streams may wait in copies of theirs, and freeing would wait for those */
	if (!ferry_rank_failed(mapped->rank))
		ferry_windows_free(&mapped->windows, mapped->device);
	while (mapped->captures) {
		struct ferry_capture *capture = mapped->captures;
		mapped->captures = capture->next;
		capture_free(mapped, capture);
	}
}

void ferry_mapped_end(struct ferry_mapped *mapped)
{
	ferry_mover_wait(&mapped->mover);
	ferry_mover_close(&mapped->mover);
}
