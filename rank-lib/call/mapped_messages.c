/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives of a rank whose router moves its data: those of a group are one call with one stream flag. */
#include "rank-lib/call/mapped.h"

#include <stdlib.h>

/* Sends and receives of one call; where their buffers cannot be named, each has a part of a bounce buffer. */
struct messages {
	const struct ferry_request *requests;
	const struct ferry_fabrics *fabrics; /* NULL: none is pushed */
	struct ferry_call_decoder_message *submitted;
	uint32_t count;
	uint64_t bounced[2]; /* bytes of bounce buffers that are needed, by direction */
};

static void *buffer_of(const struct ferry_request *request)
{
	return request->direction == FERRY_DIR_D2H ? (void *)request->send : request->receive;
}

static uint64_t bytes_of(const struct ferry_request *request)
{
	return request->count * ferry_type_size(request->type);
}

static uint64_t up_to_line(uint64_t bytes)
{
	return (bytes + 127) / 128 * 128;
}

/* Names the buffers that can be named; in the others `generation` stays 0. */
static ferryResult_t name_messages(struct ferry_mapped *mapped, struct messages *messages, uint64_t submission,
                                   bool pin)
{
	uint32_t self = (uint32_t)mapped->rank->self;
	for (uint32_t i = 0; i < messages->count; i++) {
		const struct ferry_request *request = &messages->requests[i];
		struct ferry_call_decoder_message *message = &messages->submitted[i];
		*message = (struct ferry_call_decoder_message){.bytes = bytes_of(request),
		                                               .peer = (uint32_t)request->root,
		                                               .type = (uint8_t)request->type,
		                                               .direction = (uint8_t)request->direction};
		bool d2h = request->direction == FERRY_DIR_D2H;
		message->puts = ferry_fabrics_pushes(messages->fabrics, d2h ? self : message->peer,
		                                     d2h ? message->peer : self, message->bytes);
		if (!message->bytes)
			continue;
		bool put_target = message->puts && !d2h;
		ferryResult_t result = ferry_exports_name(mapped->exports, buffer_of(request), message->bytes,
		                                          submission, pin, put_target, &message->buffer);
		if (result && !ferry_exports_refused(result))
			return result;
		if (!result)
			continue;
		ferry_forget_message();
		messages->bounced[message->direction] += up_to_line(message->bytes);
	}
	return ferrySuccess;
}

static ferryResult_t fill_windows(struct ferry_mapped *mapped, struct messages *messages, uint64_t submission,
                                  const struct ferry_stream_state *stream, struct ferry_stream_call *in_stream)
{
	struct ferry_local_copy *copies[2] = {NULL, NULL};
	uint32_t ncopies[2] = {0, 0};
	void *bounces[2];
	uint64_t at[2] = {0, 0};
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
		if (!messages->bounced[direction])
			continue;
		ferryResult_t result = ferry_bounce_buffers_take(&mapped->bounces, mapped->device,
		                                                 stream->captures ? 0 : stream->id, direction,
		                                                 messages->bounced[direction], &bounces[direction]);
		copies[direction] = calloc(messages->count, sizeof *copies[direction]);
		*(direction == FERRY_DIR_D2H ? &in_stream->before : &in_stream->after) = copies[direction];
		if (result || !copies[direction])
			return result ? result
			              : ferry_fail(ferrySystemError, "no memory for %u copies", messages->count);
	}
	for (uint32_t i = 0; i < messages->count; i++) {
		struct ferry_call_decoder_message *message = &messages->submitted[i];
		enum ferry_direction direction = message->direction;
		char *user = buffer_of(&messages->requests[i]);
		if (!message->bytes || message->buffer.generation)
			continue;
		char *there = (char *)bounces[direction] + at[direction];
		ferryResult_t result = ferry_exports_name(mapped->exports, there, message->bytes, submission,
		                                          stream->captures, message->puts && direction == FERRY_DIR_H2D,
		                                          &message->buffer);
		if (result)
			return result;
		at[direction] += up_to_line(message->bytes);
		copies[direction][ncopies[direction]++] = direction == FERRY_DIR_D2H
		                                                  ? (struct ferry_local_copy){there, user,
		                                                                              message->bytes}
		                                                  : (struct ferry_local_copy){user, there,
		                                                                              message->bytes};
	}
	in_stream->nbefore = ncopies[FERRY_DIR_D2H];
	in_stream->nafter = ncopies[FERRY_DIR_H2D];
	return ferrySuccess;
}

/* Submits records of up to FERRY_SUBMISSION_MESSAGES messages; the last record makes the call. */
static ferryResult_t submit_messages(struct ferry_mapped *mapped, struct ferry_submission *head,
                                     const struct ferry_call_decoder_message *messages, uint32_t count)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t sent = 0; sent < count && !result; sent += head->nparts) {
		uint32_t left = count - sent;
		bool more = left > FERRY_SUBMISSION_MESSAGES;
		head->nparts = more ? FERRY_SUBMISSION_MESSAGES : left;
		head->flags = (head->flags & FERRY_SUBMIT_CAPTURED) | (more ? FERRY_SUBMIT_MORE : 0);
		result = ferry_submissions_write(&mapped->submissions, mapped->rank, mapped->numbers->fixed, head,
		                                 messages + sent, head->nparts * sizeof *messages);
	}
	return result;
}

/* Takes the stream flag of the messages, and keeps what captured messages need. */
static ferryResult_t take_flag_of_messages(struct ferry_mapped *mapped, const struct messages *messages,
                                           const struct ferry_stream_state *stream, struct ferry_submission *head,
                                           struct ferry_stream_call *in_stream)
{
	if (!stream->captures)
		return ferry_stream_flag_for_stream(mapped->flags, stream->id, &head->flag, &head->turn);
	struct ferry_buffer_name *names = malloc(messages->count * sizeof *names);
	if (!names)
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", messages->count);
	for (uint32_t i = 0; i < messages->count; i++)
		names[i] = messages->submitted[i].buffer;
	ferryResult_t result = ferry_captures_keep(&mapped->captures, NULL, names, messages->count, head,
	                                           in_stream);
	free(names);
	return result;
}

static ferryResult_t launch_messages(struct ferry_mapped *mapped, struct messages *messages,
                                     const struct ferry_stream_state *stream, struct ferry_stream_call *in_stream)
{
	struct ferry_submission head = {.kind = FERRY_SUBMIT_MESSAGES,
	                                .flags = stream->captures ? FERRY_SUBMIT_CAPTURED : 0,
	                                .name = mapped->numbers->messages_named};
	uint64_t last = mapped->journal->number +
	                (messages->count + FERRY_SUBMISSION_MESSAGES - 1) / FERRY_SUBMISSION_MESSAGES;
	ferry_captures_sweep(&mapped->captures);
	ferryResult_t result = name_messages(mapped, messages, last, stream->captures);
	if (!result)
		result = fill_windows(mapped, messages, last, stream, in_stream);
	if (!result)
		result = take_flag_of_messages(mapped, messages, stream, &head, in_stream);
	for (uint32_t i = 0; result && stream->captures && i < messages->count; i++)
		ferry_captures_undo(&mapped->captures, &messages->submitted[i].buffer, 1);
	if (result)
		return result;
	for (uint32_t i = 0; i < messages->count; i++) {
		struct ferry_call_decoder_message *message = &messages->submitted[i];
		message->message = ferry_numbering_message(mapped->numbers, message->direction, message->peer);
	}
	in_stream->flag = ferry_stream_flag_at(head.flag);
	if ((result = submit_messages(mapped, &head, messages->submitted, messages->count))) {
		ferry_rank_fail_request(mapped->rank, result, ferry_last_message());
		return result;
	}
	return ferry_mapped_enqueue(mapped, 0, messages->requests, in_stream);
}

/* ---- what a rank sends to itself ---- */

/* The first message to or from the rank itself in that direction, not before `from`; nrequests: none. */
static uint32_t next_own(const struct ferry_request *requests, uint32_t nrequests, uint32_t from, int self,
                         enum ferry_direction direction)
{
	while (from < nrequests && (requests[from].root != self || requests[from].direction != direction))
		from++;
	return from;
}

/*
 * How many messages to itself the stream may copy: 0 unless the group has both ends of each, and other messages, and no
 * earlier group had one end alone.
 */
static uint32_t count_own(const struct ferry_mapped *mapped, const struct ferry_request *requests, uint32_t nrequests)
{
	const int self = mapped->rank->self;
	uint32_t send = 0, receive = 0, own = 0;
	bool paired = true;
	for (; paired; send++, receive++, own++) {
		send = next_own(requests, nrequests, send, self, FERRY_DIR_D2H);
		receive = next_own(requests, nrequests, receive, self, FERRY_DIR_H2D);
		if (send == nrequests && receive == nrequests)
			break;
		paired = send < nrequests && receive < nrequests &&
		         bytes_of(&requests[send]) == bytes_of(&requests[receive]);
	}
	mapped->numbers->own_by_routers |= !paired;
	return !mapped->numbers->own_by_routers && 2 * own < nrequests ? own : 0;
}

/* Lists messages to the rank itself as copies of the stream; the router gets the others. */
static void take_own(struct messages *messages, struct ferry_request *others, int self,
                     struct ferry_stream_call *in_stream)
{
	const struct ferry_request *requests = messages->requests;
	uint32_t receive = 0, left = 0;
	for (uint32_t i = 0; i < messages->count; i++) {
		if (requests[i].root != self) {
			others[left++] = requests[i];
		} else if (requests[i].direction == FERRY_DIR_D2H) {
			receive = next_own(requests, messages->count, receive, self, FERRY_DIR_H2D);
			struct ferry_local_copy copy = {requests[receive++].receive, requests[i].send,
			                                bytes_of(&requests[i])};
			if (copy.bytes && copy.destination != copy.source)
				in_stream->copies[in_stream->ncopies++] = copy;
		}
	}
	others[0].open = requests[0].open; /* the group's call */
	messages->requests = others;
	messages->count = left;
}

ferryResult_t ferry_mapped_pairs(struct ferry_mapped *mapped, const struct ferry_request *requests, uint32_t nrequests,
                                 const struct ferry_fabrics *fabrics, const struct ferry_stream_state *stream)
{
	struct messages messages = {.requests = requests, .fabrics = fabrics, .count = nrequests};
	struct ferry_stream_call in_stream = {0};
	struct ferry_request *others = NULL;
	const uint32_t own = count_own(mapped, requests, nrequests);
	ferryResult_t result = ferrySuccess;
	messages.submitted = calloc(nrequests, sizeof *messages.submitted);
	if (own) {
		others = malloc(nrequests * sizeof *others);
		in_stream.copies = malloc(own * sizeof *in_stream.copies);
	}
	if (!messages.submitted || (own && (!others || !in_stream.copies)))
		result = ferry_fail(ferrySystemError, "no memory for %u sends and receives", nrequests);
	else if (own)
		take_own(&messages, others, mapped->rank->self, &in_stream);
	if (!result)
		result = launch_messages(mapped, &messages, stream, &in_stream);
	free(messages.submitted);
	free(others);
	ferry_mapped_free_copies(&in_stream);
	return result;
}
