/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferry-perf-nccl, the child of ferry-perf --vs nccl, told by a fake driver and a fake NCCL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/nccl_order.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUFFER_BYTES 4096

struct child {
	pid_t pid;
	int socket;
	char names[2][64]; /* files that stand for GPU buffers */
	char *buffers[2];
};

static char *make_buffer(char name[64])
{
	snprintf(name, 64, "/tmp/ferry-perf-nccl-XXXXXX");
	int file = mkstemp(name);
	assert_true(file >= 0);
	assert_int_equal(ftruncate(file, BUFFER_BYTES), 0);
	char *memory = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	close(file);
	return memory;
}

/* setting: "NAME=value" for the child's environment, or NULL. */
static void start(struct child *child, const char *setting)
{
	int ends[2];
	char parent[16];
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	child->pid = fork();
	if (!child->pid) {
		setenv("FERRY_CUDA_LIBRARY", FERRY_FAKE_CUDA, 1);
		setenv("FERRY_NCCL_LIBRARY", FERRY_FAKE_NCCL, 1);
		setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
		if (setting)
			putenv((char *)(uintptr_t)setting);
		dup2(ends[1], 3);
		fcntl(3, F_SETFD, 0);
		execl(FERRY_PERF_NCCL, "ferry-perf-nccl", "3", parent, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	child->socket = ends[0];
	for (int i = 0; i < 2; i++)
		child->buffers[i] = make_buffer(child->names[i]);
}

/* Closes the socket; the child's exit status. */
static int finish(struct child *child)
{
	int status = -1;
	close(child->socket);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	for (int i = 0; i < 2; i++) {
		munmap(child->buffers[i], BUFFER_BYTES);
		unlink(child->names[i]);
	}
	return status;
}

/* False: the child closed the socket instead of answering. */
static bool tell(struct child *child, const struct nccl_order *order, struct nccl_answer *answer)
{
	assert_int_equal(send(child->socket, order, sizeof *order, MSG_NOSIGNAL), sizeof *order);
	ssize_t got = recv(child->socket, answer, sizeof *answer, 0);
	assert_true(got <= 0 || got == sizeof *answer);
	return got > 0;
}

static bool join(struct child *child, struct nccl_answer *answer)
{
	struct nccl_order order = {.kind = NCCL_OPEN, .nranks = 1};
	memcpy(order.send_handle, child->names[0], sizeof order.send_handle);
	memcpy(order.receive_handle, child->names[1], sizeof order.receive_handle);
	assert_true(tell(child, &order, answer));
	if (answer->failed)
		fail_msg("opening failed: %s", answer->message);
	assert_int_equal(answer->version, 22809);
	order.kind = NCCL_MAKE_ID;
	assert_true(tell(child, &order, answer) && !answer->failed);
	memcpy(order.id, answer->id, sizeof order.id);
	order.kind = NCCL_JOIN;
	return tell(child, &order, answer);
}

static struct nccl_order call_of(enum ferry_collective collective)
{
	return (struct nccl_order){.kind = NCCL_RUN,
	                           .collective = collective,
	                           .type = ferryFloat32,
	                           .op = ferryMax,
	                           .lead = 1,
	                           .calls = 3,
	                           .count = 16,
	                           .send = {NCCL_SEND_BUFFER, 0},
	                           .receive = {NCCL_RECEIVE_BUFFER, 64}};
}

static void each_collective_is_the_nccl_function_on_the_parents_buffer(void **state)
{
	(void)state;
	/* The number that the fake writes for the function; gather, scatter, ... are receives where NCCL lacks them. */
	static const char written[FERRY_NUM_COLLECTIVES] = {1, 3, 4, 5, 6, 7, 7, 7, 7, 7};
	struct child child;
	struct nccl_answer answer;
	start(&child, NULL);
	assert_true(join(&child, &answer) && !answer.failed);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++) {
		struct nccl_order order = call_of((enum ferry_collective)collective);
		order.sendcounts[0] = order.recvcounts[0] = 16;
		memset(child.buffers[1], 0, BUFFER_BYTES);
		assert_true(tell(&child, &order, &answer));
		if (answer.failed)
			fail_msg("%s: %s", ferry_collective_name((enum ferry_collective)collective), answer.message);
		assert_true(answer.us >= 0);
		assert_int_equal(child.buffers[1][63], 0);
		assert_int_equal(child.buffers[1][64], written[collective]);
		assert_int_equal(child.buffers[1][127], written[collective]);
		assert_int_equal(child.buffers[1][128], 0);
	}
	assert_int_equal(finish(&child), 0);
}

static void what_nccl_refuses_comes_back_with_its_words(void **state)
{
	(void)state;
	struct child child;
	struct nccl_answer answer;
	struct nccl_order order = call_of(FERRY_ALLREDUCE);
	start(&child, "NCCL_ALGO=Tree");
	assert_true(join(&child, &answer) && !answer.failed);
	assert_true(tell(&child, &order, &answer));
	assert_true(answer.failed);
	assert_non_null(strstr(answer.message, "invalid usage"));
	assert_non_null(strstr(answer.message, "no tree here"));
	assert_int_equal(finish(&child), 0);
}

static void nccl_that_aborts_is_seen_as_a_closed_socket(void **state)
{
	(void)state;
	struct child child;
	struct nccl_answer answer;
	start(&child, "NCCL_PROTO=LL128");
	assert_false(join(&child, &answer));
	int status = finish(&child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void a_missing_library_is_named(void **state)
{
	(void)state;
	struct child child;
	struct nccl_answer answer;
	struct nccl_order order = {.kind = NCCL_OPEN, .nranks = 1};
	start(&child, "FERRY_NCCL_LIBRARY=/nonexistent/libnccl.so");
	assert_true(tell(&child, &order, &answer));
	assert_true(answer.failed);
	assert_non_null(strstr(answer.message, "/nonexistent/libnccl.so"));
	assert_int_equal(finish(&child), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(each_collective_is_the_nccl_function_on_the_parents_buffer),
	        cmocka_unit_test(what_nccl_refuses_comes_back_with_its_words),
	        cmocka_unit_test(nccl_that_aborts_is_seen_as_a_closed_socket),
	        cmocka_unit_test(a_missing_library_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
