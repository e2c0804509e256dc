/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to routers that are random, or good ones with some bytes changed, with whatever behind and beside them. */
#include "tests/hostility/hostility.h"
#include "tests/hostility/random.h"

#include "ipc/attach.h"
#include "ipc/endpoint.h"
#include "ipc/export.h"
#include "ipc/plan.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <unistd.h>

#define BEHIND 600 /* bytes of a payload, at most */

/* Now and then the same, so that it meets jobs of earlier letters. */
static void make_key(uint8_t *key, uint64_t *state)
{
	memset(key, 0x66, FERRY_KEY_BYTES);
	key[0] = (uint8_t)random_below(state, 4);
}

static void good_letter(struct ferry_attach_message *message, uint64_t *state)
{
	*message = (struct ferry_attach_message){.magic = FERRY_ATTACH_MAGIC,
	                                         .abi = FERRY_ATTACH_ABI,
	                                         .kind = 1 + (uint32_t)random_below(state, FERRY_ATTACH_KINDS - 1),
	                                         .nranks = 1 + (uint32_t)random_below(state, 4),
	                                         .ndomains = (uint32_t)options.domains,
	                                         .index = (uint32_t)random_below(state, 6),
	                                         .staging = 1 << 20};
	message->rank = (uint32_t)random_below(state, message->nranks);
	message->domain = (uint32_t)random_below(state, (uint64_t)options.domains);
	make_key(message->key, state);
	if (message->kind == FERRY_ATTACH_PLAN)
		message->payload = sizeof(struct ferry_plan) + random_below(state, 200);
	if (message->kind == FERRY_ATTACH_EXPORT)
		message->payload = FERRY_EXPORTED_LEAST;
}

static void change(void *bytes, size_t length, uint64_t *state)
{
	size_t size = 1u << random_below(state, 4), at = random_below(state, length / size) * size;
	uint64_t value = 0;
	memcpy(&value, (char *)bytes + at, size);
	value = random_value(state, value);
	memcpy((char *)bytes + at, &value, size);
}

/* Of nothing, of memory that may shrink, of no memory; or none. */
static uint32_t make_descriptors(int *descriptors, uint64_t *state)
{
	uint32_t count = random_below(state, 3) ? 0 : 1 + (uint32_t)random_below(state, 3);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t kind = random_below(state, 3);
		descriptors[i] = kind == 0   ? open("/dev/null", O_RDWR | O_CLOEXEC)
		                 : kind == 1 ? memfd_create("letter", MFD_CLOEXEC)
		                             : dup(0);
	}
	return count;
}

static void send_letter(int connection, const void *bytes, size_t length, const int *descriptors, uint32_t count)
{
	char control[CMSG_SPACE(8 * sizeof(int))] = {0};
	struct iovec part = {(void *)(uintptr_t)bytes, length};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	if (count) {
		header.msg_control = control;
		header.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *first = CMSG_FIRSTHDR(&header);
		first->cmsg_level = SOL_SOCKET;
		first->cmsg_type = SCM_RIGHTS;
		first->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(first), descriptors, count * sizeof(int));
	}
	(void)!sendmsg(connection, &header, MSG_NOSIGNAL);
}

static void one_letter(int connection, uint64_t *state)
{
	struct {
		struct ferry_attach_message message;
		char behind[BEHIND];
	} letter;
	int descriptors[8];
	for (size_t i = 0; i < sizeof letter.behind; i++)
		letter.behind[i] = (char)random_next(state);
	good_letter(&letter.message, state);
	uint64_t payload = letter.message.payload;
	for (uint64_t changes = random_below(state, 3); changes; changes--)
		change(&letter.message, sizeof letter.message, state);
	if (random_below(state, 16) == 0)
		for (size_t i = 0; i < sizeof letter.message; i++)
			((char *)&letter.message)[i] = (char)random_next(state);
	size_t length = sizeof letter.message + (payload < BEHIND ? payload : BEHIND);
	if (random_below(state, 12) == 0)
		length = 1 + random_below(state, sizeof letter);
	uint32_t count = make_descriptors(descriptors, state);
	if (random_below(state, 2))
		letter.message.descriptors = count;
	send_letter(connection, &letter, length, descriptors, count);
	for (uint32_t i = 0; i < count; i++)
		close(descriptors[i]);
}

/* Whether it has answered, or closed: some letters get neither, as they are too short. */
static bool answered(int connection)
{
	struct ferry_attach_reply reply;
	struct pollfd poller = {connection, POLLIN, 0};
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec part = {&reply, sizeof reply};
	struct msghdr header = {
	        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	if (poll(&poller, 1, 2) <= 0)
		return true;
	ssize_t bytes = recvmsg(connection, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	for (struct cmsghdr *part_of = bytes >= 0 ? CMSG_FIRSTHDR(&header) : NULL; part_of;
	     part_of = CMSG_NXTHDR(&header, part_of))
		if (part_of->cmsg_type == SCM_RIGHTS) {
			int descriptor;
			memcpy(&descriptor, CMSG_DATA(part_of), sizeof descriptor);
			close(descriptor);
		}
	return bytes > 0;
}

bool write_letters(uint64_t letters)
{
	uint64_t sent = 0, n = 0;
	while (sent < letters) {
		uint64_t state = random_begin(options.seed ^ 0x1e77e5, n++);
		char path[300];
		int connection;
		snprintf(path, sizeof path, "%s/router-%d.sock", directory,
		         (int)random_below(&state, (uint64_t)options.domains));
		if (ferry_endpoint_connect(path, &connection)) {
			fprintf(stderr, "letter %llu of seed %llu: nobody listens at %s\n", (unsigned long long)sent,
			        (unsigned long long)options.seed, path);
			return false;
		}
		for (uint64_t left = 1 + random_below(&state, 12); left; left--) {
			one_letter(connection, &state);
			sent++;
			if (!answered(connection))
				break;
		}
		close(connection);
		if (n % 64 == 0 && !all_is_well())
			return false;
		progress("messages to routers", sent, letters);
	}
	printf("messages: %llu, over %llu connections\n", (unsigned long long)sent, (unsigned long long)n);
	return all_is_well();
}
