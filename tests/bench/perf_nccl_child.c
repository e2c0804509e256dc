/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferry-perf-nccl, the child of ferry-perf --vs nccl, told by the double of the driver and a fake NCCL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/peers/nccl_order.h"
#include "ipc/error.h"
#include "tests/fake_cuda/fake_cuda.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GPU          3
#define BEFORE       100 /* bytes of the allocation before the first buffer */
#define BUFFER_BYTES 4096

struct child {
	pid_t pid;
	int socket;
	CUdeviceptr memory; /* of both buffers */
	struct gpu_shared handles[2];
	char *buffers[2]; /* where this process finds them */
};

static void make_buffers(struct child *child)
{
	CUcontext context;
	assert_null(gpu_missing());
	assert_int_equal(gpu_enter(GPU, &context), ferrySuccess);
	assert_int_equal(cuMemAlloc(&child->memory, BEFORE + 2 * BUFFER_BYTES), CUDA_SUCCESS);
	for (size_t i = 0; i < 2; i++) {
		CUdeviceptr buffer = child->memory + BEFORE + i * BUFFER_BYTES;
		child->buffers[i] = fake_cuda_reach(buffer);
		if (gpu_share(GPU, (void *)(uintptr_t)buffer, &child->handles[i]))
			fail_msg("%s", ferry_last_message());
	}
}

/* setting: "NAME=value", an argument that the child puts into its environment, or NULL. */
static void start(struct child *child, const char *setting)
{
	int ends[2];
	char parent[16];
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	child->pid = fork();
	if (!child->pid) {
		setenv("FERRY_NCCL_LIBRARY", FERRY_FAKE_NCCL, 1);
		setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
		dup2(ends[1], 3);
		fcntl(3, F_SETFD, 0);
		execl(FERRY_PERF_NCCL, "ferry-perf-nccl", "3", parent, setting, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	child->socket = ends[0];
	make_buffers(child);
}

/* Closes the socket; the child's exit status. */
static int finish(struct child *child)
{
	int status = -1;
	close(child->socket);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	assert_int_equal(cuMemFree(child->memory), CUDA_SUCCESS);
	return status;
}

/* False: the child closed the socket instead of answering. */
static bool notify(struct child *child, const struct nccl_order *order, struct nccl_answer *answer)
{
	assert_int_equal(send(child->socket, order, sizeof *order, MSG_NOSIGNAL), sizeof *order);
	ssize_t got = recv(child->socket, answer, sizeof *answer, 0);
	assert_true(got <= 0 || got == sizeof *answer);
	return got > 0;
}

static bool join(struct child *child, struct nccl_answer *answer)
{
	struct nccl_order order = {
	        .kind = NCCL_OPEN, .nranks = 1, .send_buffer = child->handles[0], .receive_buffer = child->handles[1]};
	assert_true(notify(child, &order, answer));
	if (answer->failed)
		fail_msg("opening failed: %s", answer->message);
	assert_int_equal(answer->version, 22809);
	order.kind = NCCL_MAKE_ID;
	assert_true(notify(child, &order, answer) && !answer->failed);
	memcpy(order.id, answer->id, sizeof order.id);
	order.kind = NCCL_JOIN;
	return notify(child, &order, answer);
}

static struct nccl_order call_of(enum ferry_collective collective)
{
	return (struct nccl_order){.kind = NCCL_RUN,
	                           .collective = collective,
	                           .type = ferryFloat32,
	                           .op = ferryMax,
	                           .how = {.lead = 1, .calls = 3},
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
		order.counts.sendcounts[0] = order.counts.recvcounts[0] = 16;
		memset(child.buffers[1], 0, BUFFER_BYTES);
		assert_true(notify(&child, &order, &answer));
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

static void a_pause_goes_before_the_timed_calls_and_is_not_timed(void **state)
{
	(void)state;
	struct child child;
	struct nccl_answer answer;
	struct nccl_order order = call_of(FERRY_ALLREDUCE);
	struct timespec before, after;
	start(&child, NULL);
	assert_true(join(&child, &answer) && !answer.failed);
	order.how.calls = 1;
	order.how.pause_us = 600000;
	clock_gettime(CLOCK_MONOTONIC, &before);
	assert_true(notify(&child, &order, &answer) && !answer.failed);
	clock_gettime(CLOCK_MONOTONIC, &after);
	assert_true((double)(after.tv_sec - before.tv_sec) * 1e6 + (double)(after.tv_nsec - before.tv_nsec) / 1e3 >=
	            600000);
	assert_true(answer.us < 600000);
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
	assert_true(notify(&child, &order, &answer));
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
	assert_true(notify(&child, &order, &answer));
	assert_true(answer.failed);
	assert_non_null(strstr(answer.message, "/nonexistent/libnccl.so"));
	assert_int_equal(finish(&child), 0);
}

/* Not the first that is visible, and without P2P the only one that it looks at. NCCL reads the number like C, and means
 * 1 alone. */
static void without_p2p_it_sees_its_own_gpu_alone(void **state)
{
	static const struct {
		const char *setting;
		bool apart;
	} cases[] = {{"NCCL_P2P_DISABLE=0", false}, {"NCCL_P2P_DISABLE=1", true},   {"NCCL_P2P_DISABLE=0x1", true},
	             {"NCCL_P2P_DISABLE=2", false}, {"NCCL_P2P_DISABLE=-1", false}, {"NCCL_P2P_DISABLE=", false}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct child child;
		struct nccl_answer answer;
		setenv("CUDA_VISIBLE_DEVICES", "0", 1);
		start(&child, cases[i].setting);
		unsetenv("CUDA_VISIBLE_DEVICES");
		struct nccl_order order = {.kind = NCCL_OPEN,
		                           .nranks = 1,
		                           .send_buffer = child.handles[0],
		                           .receive_buffer = child.handles[1]};
		assert_true(notify(&child, &order, &answer));
		if (answer.failed == cases[i].apart)
			fail_msg("%s: %s", cases[i].setting, answer.failed ? answer.message : "no failure");
		if (answer.failed)
			assert_non_null(strstr(answer.message, "the buffer is on GPU-"));
		assert_int_equal(finish(&child), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(each_collective_is_the_nccl_function_on_the_parents_buffer),
	        cmocka_unit_test(a_pause_goes_before_the_timed_calls_and_is_not_timed),
	        cmocka_unit_test(what_nccl_refuses_comes_back_with_its_words),
	        cmocka_unit_test(nccl_that_aborts_is_seen_as_a_closed_socket),
	        cmocka_unit_test(a_missing_library_is_named),
	        cmocka_unit_test(without_p2p_it_sees_its_own_gpu_alone),
	};
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (cuInit(0))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
