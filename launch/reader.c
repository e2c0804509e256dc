/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/reader.h"

#include "ipc/endpoint.h"
#include "ipc/error.h"
#include "ipc/wait.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(struct ferry_reader *reader, const char *why)
{
	reader->state = FERRY_READER_FAILED;
	snprintf(reader->trouble, sizeof reader->trouble, "%s", why);
}

void ferry_reader_begin(struct ferry_reader *reader, const struct ferry_socket *socket)
{
	*reader = (struct ferry_reader){
	        .socket = *socket, .connection = -1, .descriptor = -1, .heard_ns = ferry_now_ns()};
}

void ferry_reader_end(struct ferry_reader *reader)
{
	if (reader->connection >= 0)
		close(reader->connection);
	if (reader->descriptor >= 0)
		close(reader->descriptor);
	if (reader->page)
		ferry_counters_unmap(reader->page);
	reader->connection = reader->descriptor = -1;
	reader->page = NULL;
}

/* The message fits any socket buffer. If the send fails, a router that takes no clients may have replied and closed. */
static void connect_and_ask(struct ferry_reader *reader)
{
	struct ferry_attach_message message = {
	        .kind = FERRY_ATTACH_STATUS, .magic = FERRY_ATTACH_MAGIC, .abi = FERRY_ATTACH_ABI};
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	ferryResult_t result = ferry_endpoint_connect_now(reader->socket.path, &reader->connection);
	bool nobody = ferry_endpoint_nobody(result); /* reads errno */
	if (result)
		reader->connection = -1;
	if (nobody)
		reader->state = FERRY_READER_NOBODY;
	else if (result && result != ferryRemoteError)
		fail(reader, ferry_last_message());
	if (result)
		return;
	if (!getsockopt(reader->connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
		reader->pid = peer.pid;
	reader->state = FERRY_READER_ASKED;
	reader->heard_ns = ferry_now_ns();
	(void)!send(reader->connection, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Maps the page of a whole reply. */
static void map(struct ferry_reader *reader)
{
	if (ferry_attach_check_reply(&reader->reply) || ferry_counters_map(reader->descriptor, &reader->page)) {
		fail(reader, ferry_last_message());
		return;
	}
	close(reader->descriptor);
	reader->descriptor = -1;
	reader->state = FERRY_READER_MAPPED;
	reader->silent = false;
}

static void receive(struct ferry_reader *reader)
{
	struct ferry_attach_received part;
	ferry_attach_receive(reader->connection, (char *)&reader->reply + reader->received,
	                     sizeof reader->reply - reader->received, &part);
	if (part.bytes < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	for (uint32_t i = 0; part.bytes >= 0 && i < part.ndescriptors; i++)
		if (reader->descriptor < 0)
			reader->descriptor = part.descriptors[i];
		else
			close(part.descriptors[i]);
	if (part.bytes <= 0) {
		fail(reader, "it closed the connection");
		return;
	}
	reader->received += (size_t)part.bytes;
	if (reader->received == sizeof reader->reply)
		map(reader);
}

/* False: the page is as it was, or is being written. */
static bool copy(struct ferry_reader *reader, struct ferry_counters *counters)
{
	uint64_t generation = ferry_counters_generation(reader->page);
	if (generation != reader->seen) {
		reader->heard_ns = ferry_now_ns();
		reader->silent = false;
	}
	reader->seen = generation;
	if (generation == reader->copied)
		return false;
	ferryResult_t result = ferry_counters_read(reader->page, counters);
	if (result == ferryInProgress)
		return false;
	reader->copied = generation;
	if (result)
		fail(reader, ferry_last_message());
	return true;
}

bool ferry_reader_go_on(struct ferry_reader *reader, struct ferry_counters *counters)
{
	if (reader->state == FERRY_READER_MAPPED && ferry_endpoint_closed(reader->connection)) {
		const struct ferry_socket socket = reader->socket; /* another router may have taken its place */
		ferry_reader_end(reader);
		ferry_reader_begin(reader, &socket);
	}
	if (reader->state == FERRY_READER_CONNECTING)
		connect_and_ask(reader);
	if (reader->state == FERRY_READER_ASKED)
		receive(reader);
	if (reader->state == FERRY_READER_MAPPED)
		return copy(reader, counters);
	return reader->state >= FERRY_READER_NOBODY;
}
