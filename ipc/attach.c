/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/attach.h"

#include "ipc/deadline.h"
#include "ipc/error.h"
#include "ipc/export.h"
#include "ipc/plan.h"
#include "ipc/process.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Checks the payload and the descriptors of a message. */
static ferryResult_t check_burden(const struct ferry_attach_message *message)
{
	bool rank = message->kind == FERRY_ATTACH_RANK, adopts = message->kind == FERRY_ATTACH_ADOPT;
	bool mapped = (rank || adopts) && message->flags & FERRY_ATTACH_MAPPED;
	bool resubmits = message->kind == FERRY_ATTACH_RESUBMIT;
	bool export = message->kind == FERRY_ATTACH_EXPORT;
	bool arenas = adopts || (message->kind == FERRY_ATTACH_READY && message->descriptors);
	uint32_t descriptors = (arenas ? message->ndomains : 0) + mapped;
	uint32_t flags = rank ? FERRY_ATTACH_MAPPED | FERRY_ATTACH_WISHED | FERRY_ATTACH_FOREIGN
	                 : adopts                               ? FERRY_ATTACH_MAPPED | FERRY_ATTACH_FOREIGN
	                 : message->kind == FERRY_ATTACH_FORGET ? FERRY_ATTACH_UNMAPPED
	                                                        : 0;
	if (message->flags & ~flags ||
	    (mapped && message->flags & FERRY_ATTACH_FOREIGN))
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u with flags %x", message->kind,
		                  message->flags);
	if (arenas && message->ndomains > FERRY_MAX_DOMAINS)
		return ferry_fail(ferryInvalidArgument, "arenas of %u domains (at most %d)", message->ndomains,
		                  FERRY_MAX_DOMAINS);
	if (export ? message->descriptors > FERRY_ATTACH_MOST_DESCRIPTORS : message->descriptors != descriptors)
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u with %u descriptors", message->kind,
		                  message->descriptors);
	if (resubmits ? message->payload > FERRY_RESUBMIT_MOST
	              : message->payload && message->kind != FERRY_ATTACH_PLAN && !export)
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u with a payload of %llu bytes",
		                  message->kind, (unsigned long long)message->payload);
	if (export && (message->payload < FERRY_EXPORTED_LEAST || message->payload > sizeof(struct ferry_exported)))
		return ferry_fail(ferryInvalidArgument, "an export of %llu bytes: %zu to %zu",
		                  (unsigned long long)message->payload, FERRY_EXPORTED_LEAST,
		                  sizeof(struct ferry_exported));
	if (message->kind == FERRY_ATTACH_FORGET && message->index >= FERRY_MOST_EXPORTS)
		return ferry_fail(ferryInvalidArgument, "export %u to be forgotten: they go to %u", message->index,
		                  FERRY_MOST_EXPORTS - 1);
	if (message->kind == FERRY_ATTACH_PLAN &&
	    (message->payload < sizeof(struct ferry_plan) || message->payload > FERRY_PLAN_MAX_BYTES))
		return ferry_fail(ferryInvalidArgument, "plan of %llu bytes: they have from %zu to %u",
		                  (unsigned long long)message->payload, sizeof(struct ferry_plan),
		                  FERRY_PLAN_MAX_BYTES);
	return ferrySuccess;
}

ferryResult_t ferry_attach_decode(const void *bytes, size_t length, struct ferry_attach_message *message)
{
	if (length != sizeof *message)
		return ferry_fail(ferryInvalidArgument, "attach message of %zu bytes instead of %zu", length,
		                  sizeof *message);
	memcpy(message, bytes, sizeof *message);
	if (message->magic != FERRY_ATTACH_MAGIC || message->abi != FERRY_ATTACH_ABI)
		return ferry_fail(ferryRefused,
		                  "attach message of magic %08x and ABI %u; this router speaks %08x and %u",
		                  message->magic, message->abi, FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI);
	if (message->kind < FERRY_ATTACH_RANK || message->kind >= FERRY_ATTACH_KINDS)
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u (1 to %d)", message->kind,
		                  FERRY_ATTACH_KINDS - 1);
	ferryResult_t result = check_burden(message);
	if (result)
		return result;
	if (message->kind != FERRY_ATTACH_RANK && message->kind != FERRY_ATTACH_ADOPT)
		return ferrySuccess;
	if (message->nranks < 1 || message->nranks > FERRY_MAX_RANKS || message->ndomains < 1 ||
	    message->ndomains > FERRY_MAX_DOMAINS || message->domain >= message->ndomains ||
	    message->rank >= message->nranks)
		return ferry_fail(ferryInvalidArgument, "rank %u of %u (at most %d) in domain %u of %u (at most %d)",
		                  message->rank, message->nranks, FERRY_MAX_RANKS, message->domain, message->ndomains,
		                  FERRY_MAX_DOMAINS);
	return ferrySuccess;
}

static bool send_all(int connection, const void *bytes, size_t length, struct ferry_deadline *deadline)
{
	const char *next = bytes;
	while (length) {
		ssize_t sent = send(connection, next, length, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 &&
		    (errno == EINTR || (errno == EAGAIN && ferry_deadline_waits(connection, POLLOUT, deadline))))
			continue;
		if (sent <= 0)
			return false;
		next += sent;
		length -= (size_t)sent;
	}
	return true;
}

/*
 * The message with its descriptors. 0, or the errno of a refusal that leaves the connection as it was; -1: it is
 * broken, or the deadline over.
 */
static int send_head(int connection, const struct ferry_attach_message *message, const int *descriptors,
                     struct ferry_deadline *deadline)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FERRY_ATTACH_MOST_DESCRIPTORS * sizeof(int))] = {0};
	size_t bytes = message->descriptors * sizeof(int);
	struct iovec part = {(void *)(uintptr_t)message, sizeof *message};
	struct msghdr head = {.msg_iov = &part,
	                      .msg_iovlen = 1,
	                      .msg_control = control,
	                      .msg_controllen = CMSG_SPACE(bytes)};
	*CMSG_FIRSTHDR(&head) = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&head)), descriptors, bytes);
	ssize_t sent;
	do
		sent = sendmsg(connection, &head, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 &&
	       (errno == EINTR || (errno == EAGAIN && ferry_deadline_waits(connection, POLLOUT, deadline))));
	if (sent < 0 && (errno == EBADF || errno == ETOOMANYREFS || errno == EINVAL))
		return errno;
	if (sent <= 0)
		return -1;
	return send_all(connection, (const char *)message + sent, sizeof *message - (size_t)sent, deadline) ? 0 : -1;
}

/* Moves the control data's descriptors into received; other control data, or too many descriptors, set `truncated`. */
static void take_descriptors(struct msghdr *message, struct ferry_attach_received *received)
{
	received->truncated |= (message->msg_flags & MSG_CTRUNC) != 0;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int descriptor;
			memcpy(&descriptor, CMSG_DATA(head) + i * sizeof descriptor, sizeof descriptor);
			descriptor = ferry_descriptor_above(descriptor);
			if (descriptor >= 0 && received->ndescriptors < FERRY_ATTACH_MOST_DESCRIPTORS) {
				received->descriptors[received->ndescriptors++] = descriptor;
				continue;
			}
			received->truncated = true;
			if (descriptor >= 0)
				close(descriptor);
		}
	}
}

void ferry_attach_receive(int connection, void *into, size_t bytes, struct ferry_attach_received *received)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FERRY_ATTACH_MOST_DESCRIPTORS * sizeof(int))];
	struct iovec part = {into, bytes};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = sizeof control};
	received->ndescriptors = 0;
	received->truncated = false;
	received->bytes = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (received->bytes >= 0)
		take_descriptors(&message, received);
}

#define LOST (-2) /* a descriptor that came when this process could have no other */

static void close_all(const int *descriptors)
{
	for (uint32_t i = 0; i < FERRY_ATTACH_ANSWERED; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
}

/* Receives a reply, and the descriptors on its first byte: -1 where none came; the first LOST, if it was. */
static bool receive_reply(int connection, struct ferry_attach_reply *reply, int *descriptors,
                          struct ferry_deadline *deadline)
{
	struct ferry_attach_received received;
	size_t have = 0;
	uint32_t came = 0;
	for (uint32_t i = 0; i < FERRY_ATTACH_ANSWERED; i++)
		descriptors[i] = -1;
	while (have < sizeof *reply) {
		ferry_attach_receive(connection, (char *)reply + have, sizeof *reply - have, &received);
		if (received.bytes < 0 &&
		    (errno == EINTR || (errno == EAGAIN && ferry_deadline_waits(connection, POLLIN, deadline))))
			continue;
		if (received.bytes <= 0)
			return false;
		for (uint32_t i = 0; i < received.ndescriptors; i++)
			if (came < FERRY_ATTACH_ANSWERED)
				descriptors[came++] = received.descriptors[i];
			else
				close(received.descriptors[i]);
		if (received.truncated && !came)
			descriptors[0] = LOST;
		have += (size_t)received.bytes;
	}
	return true;
}

static ferryResult_t report_given_up(void)
{
	return ferry_fail(ferrySystemError, "nobody waits for the router's answer any more");
}

/* Returns why no reply came. Shuts the connection down if the deadline is over. */
static ferryResult_t report_silent(int connection, const struct ferry_deadline *deadline)
{
	if (!deadline->over)
		return ferry_fail(ferryRemoteError, "the router closed the connection");
	/*
	 * Not shut down: a thread that polls it would take that for the end of the router, which may still be at work.
	 */
	if (ferry_deadline_is_given_up(deadline))
		return report_given_up();
	shutdown(connection, SHUT_RDWR); /* or the next call could take a late answer for its own */
	return ferry_fail(ferrySystemError,
	                  "the router has not answered for %u s (FERRY_ATTACH_TIMEOUT): it is stopped, busy, or hangs",
	                  deadline->seconds);
}

ferryResult_t ferry_attach_check_reply(struct ferry_attach_reply *reply)
{
	reply->message[sizeof reply->message - 1] = '\0';
	if (reply->magic != FERRY_ATTACH_MAGIC || reply->abi != FERRY_ATTACH_ABI)
		return ferry_fail(ferryRefused,
		                  "the router answers with magic %08x and ABI %u; this library speaks %08x and %u",
		                  reply->magic, reply->abi, FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI);
	if (reply->result >= ferryNumResults)
		return ferry_fail(ferryInternalError, "the router answers with result %u", reply->result);
	return reply->result ? ferry_fail((ferryResult_t)reply->result, "%s", reply->message) : ferrySuccess;
}

static ferryResult_t check_reply(struct ferry_attach_reply *reply, bool wanted, int received)
{
	ferryResult_t result = ferry_attach_check_reply(reply);
	if (result)
		return result;
	if (wanted && received == LOST)
		return ferry_fail(ferrySystemError,
		                  "the router's reply came without its arena: this process has no descriptor left for "
		                  "it%s",
		                  ferry_descriptors_hint(EMFILE));
	if (wanted && received < 0)
		return ferry_fail(ferryInternalError, "the router sent no descriptor with its reply");
	return ferrySuccess;
}

ferryResult_t ferry_attach_exchange_within(int connection, struct ferry_attach_message *message, const void *payload,
                                           const int *sent, struct ferry_attach_reply *reply, int *descriptors,
                                           uint32_t wanted, struct ferry_deadline *deadline)
{
	int received[FERRY_ATTACH_ANSWERED] = {-1, -1};
	if (message->descriptors > FERRY_ATTACH_MOST_DESCRIPTORS)
		return ferry_fail(ferryInvalidArgument, "%u descriptors for a router: at most %u at a time",
		                  message->descriptors, FERRY_ATTACH_MOST_DESCRIPTORS);
	if (ferry_deadline_is_given_up(deadline))
		return report_given_up();
	message->magic = FERRY_ATTACH_MAGIC;
	message->abi = FERRY_ATTACH_ABI;
	int refused = message->descriptors ? send_head(connection, message, sent, deadline)
	              : send_all(connection, message, sizeof *message, deadline) ? 0
	                                                                         : -1;
	if (refused > 0)
		return ferry_fail(ferrySystemError, "sending %u descriptors to the router: %s", message->descriptors,
		                  strerror(refused));
	if (!refused)
		send_all(connection, payload, message->payload, deadline);
	/* Even if the message could not be sent: a router that takes no clients says so in a reply, and closes. */
	if (deadline->over || !receive_reply(connection, reply, received, deadline)) {
		close_all(received);
		return report_silent(connection, deadline);
	}
	ferryResult_t result = check_reply(reply, wanted, received[0]);
	for (uint32_t i = 0; !result && i < wanted && i < FERRY_ATTACH_ANSWERED; i++) {
		descriptors[i] = received[i];
		received[i] = -1;
	}
	close_all(received);
	return result;
}

ferryResult_t ferry_attach_exchange(int connection, struct ferry_attach_message *message, const void *payload,
                                    const int *sent, struct ferry_attach_reply *reply, int *descriptors,
                                    uint32_t wanted, const _Atomic uint32_t *given_up)
{
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	struct ferry_deadline deadline = ferry_deadline_for((unsigned)seconds, given_up);
	return ferry_attach_exchange_within(connection, message, payload, sent, reply, descriptors, wanted, &deadline);
}

ferryResult_t ferry_attach_call(int connection, struct ferry_attach_message *message, const void *payload,
                                int *descriptor)
{
	struct ferry_attach_reply reply;
	return ferry_attach_exchange(connection, message, payload, NULL, &reply, descriptor, descriptor != NULL, NULL);
}

ferryResult_t ferry_attach_answer(int connection, ferryResult_t result, uint32_t flags, const char *text,
                                  const int *descriptors)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FERRY_ATTACH_ANSWERED * sizeof(int))] = {0};
	int sent_along[FERRY_ATTACH_ANSWERED];
	size_t count = 0;
	struct ferry_attach_reply reply = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, (uint32_t)result, flags, ""};
	struct iovec part = {&reply, sizeof reply};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	snprintf(reply.message, sizeof reply.message, "%s", text ? text : "");
	for (uint32_t i = 0; i < FERRY_ATTACH_ANSWERED; i++)
		if (descriptors[i] >= 0)
			sent_along[count++] = descriptors[i];
	if (count) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(head), sent_along, count * sizeof(int));
	}
	/* Does not wait: 512 bytes fit a socket buffer unless the client leaves replies unread: it is dropped then. */
	ssize_t sent = sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent != (ssize_t)sizeof reply)
		return ferry_fail(ferrySystemError, "a reply of %zu bytes: %zd sent: %s", sizeof reply, sent,
		                  strerror(errno));
	return ferrySuccess;
}

ferryResult_t ferry_attach_reply(int connection, ferryResult_t result, const char *text, int descriptor)
{
	const int descriptors[FERRY_ATTACH_ANSWERED] = {descriptor, -1};
	return ferry_attach_answer(connection, result, 0, text, descriptors);
}
