/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of descriptors that come with messages to a router: what is not taken is closed, and with it the connection;
 * and of a rank that would have its buffers mapped.
 */
#include "tests/router/router_fixture.h"

#include "ipc/arena.h"
#include "ipc/endpoint.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define HEAD   .magic = FERRY_ATTACH_MAGIC, .abi = FERRY_ATTACH_ABI
#define RANK_0 HEAD, .kind = FERRY_ATTACH_RANK, .nranks = 1, .ndomains = 1, .staging = 1 << 16

static int open_descriptors(void)
{
	int count = 0;
	for (int i = 0; i < 4096; i++)
		count += fcntl(i, F_GETFD) >= 0;
	return count;
}

/* Sends bytes with so many copies of a descriptor, past the client's side, which would not. */
static void send_with(int connection, const void *bytes, size_t size, int descriptor, uint32_t ndescriptors)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {0};
	struct iovec part = {(void *)(uintptr_t)bytes, size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (ndescriptors) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(ndescriptors * sizeof(int));
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		*head = (struct cmsghdr){CMSG_LEN(ndescriptors * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
		for (uint32_t i = 0; i < ndescriptors; i++)
			memcpy(CMSG_DATA(head) + i * sizeof(int), &descriptor, sizeof(int));
	}
	assert_int_equal(sendmsg(connection, &message, MSG_NOSIGNAL), size);
}

/* Reads replies until the router closes; the result of the last one. It has let go of all that came by then, or does
 * when it closes. */
static uint32_t last_result(int connection)
{
	struct ferry_attach_reply reply = {.result = ferryNumResults};
	while (recv(connection, &reply, sizeof reply, MSG_WAITALL) == (ssize_t)sizeof reply)
		continue;
	return reply.result;
}

struct burden {
	struct ferry_attach_message message;
	uint32_t with_head, with_rest; /* descriptors with its first half, and with the second */
	size_t first;                  /* bytes of the first half; 0: all of it */
	uint32_t result;
};

static void descriptors_that_a_message_does_not_take_close_its_connection_and_nothing_leaks(void **state)
{
	(void)state;
	const struct burden burdens[] = {
	        {{HEAD, .kind = FERRY_ATTACH_STATUS}, 1, 0, 0, ferryInvalidArgument},
	        {{HEAD, .kind = FERRY_ATTACH_STATUS, .descriptors = 1}, 1, 0, 0, ferryInvalidArgument},
	        {{HEAD, .kind = FERRY_ATTACH_STATUS, .flags = FERRY_ATTACH_MAPPED, .descriptors = 1},
	         1,
	         0,
	         0,
	         ferryInvalidArgument},
	        {{HEAD, .kind = FERRY_ATTACH_STATUS}, 253, 0, 0, ferryRefused},
	        {{HEAD, .kind = FERRY_ATTACH_STATUS}, 0, 3, 40, ferryInvalidArgument},
	        {{HEAD, .kind = FERRY_ATTACH_STATUS}, 240, 240, 1, ferryInvalidArgument},
	        {{RANK_0, .flags = FERRY_ATTACH_MAPPED, .descriptors = 1}, 0, 0, 0, ferryInvalidArgument},
	        {{RANK_0, .flags = FERRY_ATTACH_MAPPED, .descriptors = 1}, 2, 0, 0, ferryInvalidArgument},
	        {{RANK_0, .flags = FERRY_ATTACH_MAPPED, .descriptors = 2}, 2, 0, 0, ferryInvalidArgument},
	        {{RANK_0, .flags = 2, .descriptors = 1}, 1, 0, 0, ferryInvalidArgument},
	        {{HEAD, .kind = FERRY_ATTACH_EXPORT, .payload = FERRY_EXPORTED_LEAST, .descriptors = 240},
	         240,
	         0,
	         0,
	         ferryInvalidUsage},
	        {{HEAD, .kind = FERRY_ATTACH_EXPORT, .payload = FERRY_EXPORTED_LEAST, .descriptors = 241},
	         240,
	         0,
	         0,
	         ferryInvalidArgument},
	};
	for (size_t i = 0; i < sizeof burdens / sizeof *burdens; i++) {
		const struct burden *burden = &burdens[i];
		size_t first = burden->first ? burden->first : sizeof burden->message;
		int connection, before = open_descriptors(), file = memfd_create("burden", MFD_CLOEXEC);
		assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
		send_with(connection, &burden->message, first, file, burden->with_head);
		if (first < sizeof burden->message)
			send_with(connection, (const char *)&burden->message + first, sizeof burden->message - first,
			          file, burden->with_rest);
		assert_int_equal(last_result(connection), burden->result);
		close(connection);
		close(file);
		assert_int_equal(open_descriptors(), before);
	}
}

/* The router would keep it open, and not see its client die. */
static void a_client_that_sends_its_own_end_of_the_connection_is_refused(void **state)
{
	(void)state;
	struct ferry_attach_message message = {RANK_0, .flags = FERRY_ATTACH_MAPPED, .descriptors = 1};
	int connection, before = open_descriptors();
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	send_with(connection, &message, 50, connection, 1);
	assert_int_equal(last_result(connection), ferryInvalidArgument);
	close(connection);
	assert_int_equal(open_descriptors(), before);
}

static void descriptors_with_half_a_message_do_not_outlive_its_connection(void **state)
{
	(void)state;
	struct ferry_attach_message message = {HEAD, .kind = FERRY_ATTACH_EXPORT, .descriptors = 9};
	struct ferry_attach_message status = {.kind = FERRY_ATTACH_STATUS};
	int connection, other;
	assert_int_equal(ferry_endpoint_connect(path, &other), ferrySuccess);
	assert_int_equal(ferry_attach_call(other, &status, NULL, NULL), ferrySuccess);
	int before = open_descriptors(), file = memfd_create("half", MFD_CLOEXEC);
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	send_with(connection, &message, 50, file, 9);
	close(connection);
	close(file);
	/* Served in turns, the newest first: when this is answered a third time, the router has taken that one, read it
	 * and closed it. */
	for (int i = 0; i < 3; i++)
		assert_int_equal(ferry_attach_call(other, &status, NULL, NULL), ferrySuccess);
	assert_int_equal(open_descriptors(), before);
	close(other);
}

/* No router of this suite has a GPU of that UUID, be there a driver or not. */
static void a_rank_whose_GPU_the_router_does_not_have_attaches_and_is_told_why_it_is_not_mapped(void **state)
{
	(void)state;
	struct ferry_attach_message message = {RANK_0, .flags = FERRY_ATTACH_MAPPED, .descriptors = 1};
	struct ferry_attach_message forget = {HEAD, .kind = FERRY_ATTACH_FORGET, .index = 3};
	struct ferry_attach_message ready = {HEAD, .kind = FERRY_ATTACH_READY};
	struct ferry_attach_reply reply;
	struct ferry_arena arena;
	int connection, descriptor, words = memfd_create("words", MFD_CLOEXEC);
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_exchange(connection, &message, NULL, &words, &reply, &descriptor, 1, NULL),
	                 ferrySuccess);
	close(words);
	assert_int_equal(reply.flags, 0);
	assert_true(strlen(reply.message) > 10);
	assert_int_equal(ferry_arena_map(descriptor, &arena), ferrySuccess);
	while (atomic_load(&arena.header->attached) != 1) /* it is counted behind the answer */
		sched_yield();
	assert_int_equal(atomic_load(&arena.header->ready), 0);
	assert_int_equal(ferry_attach_call(connection, &ready, NULL, NULL), ferrySuccess);
	assert_int_equal(atomic_load(&arena.header->ready), 1);
	assert_int_equal(ferry_attach_call(connection, &forget, NULL, NULL), ferryInvalidUsage);
	ferry_arena_unmap(&arena);
	close(connection);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(descriptors_that_a_message_does_not_take_close_its_connection_and_nothing_leaks),
	        TEST(a_client_that_sends_its_own_end_of_the_connection_is_refused),
	        TEST(descriptors_with_half_a_message_do_not_outlive_its_connection),
	        TEST(a_rank_whose_GPU_the_router_does_not_have_attaches_and_is_told_why_it_is_not_mapped),
	};
	ferry_log_set_level(FERRY_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
