/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that hosts the router ends its communicator while others make one out of theirs: what they do next is between
 * their asking each other and their asking that router. Ranks are processes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/status_line.h"

#include "ferry.h"
#include "ipc/attach.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3
#define PATIENCE_MS 10000 /* far below FERRY_ATTACH_TIMEOUT */
#define TOLD 3            /* exit code: why its split failed is what was expected */

static int gates[RANKS][2]; /* a byte for the rank that waits there may go on */
static int waits_at = -1;    /* at that rank's gate, when this process connects next */

static void wait_at(int gate)
{
	char byte;
	if (read(gates[gate][0], &byte, 1) != 1)
		_exit(1);
}

static void open_gate(int gate)
{
	assert_int_equal(write(gates[gate][1], "", 1), 1);
}

/* libferry's, too: the program comes first where names are looked up. */
__attribute__((visibility("default"))) int
connect(int descriptor, const struct sockaddr *address, socklen_t bytes)
{
	int gate = waits_at;
	waits_at = -1;
	if (gate >= 0)
		wait_at(gate);
	return (int)syscall(SYS_connect, descriptor, address, bytes);
}

static void doze(void)
{
	nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* ---- ranks ---- */

/* Its communicator is not made out of, and ends. */
static int host(ferryComm_t comm, bool abort)
{
	ferryComm_t none;
	if (ferryCommSplit(comm, FERRY_SPLIT_NOCOLOR, 0, &none, NULL))
		return 1;
	wait_at(0);
	return (abort ? ferryCommAbort(comm) : ferryCommDestroy(comm)) != ferrySuccess;
}

static int foreign_rank(ferryComm_t comm, int gate)
{
	ferryComm_t made;
	float one = 1, sum = 0;
	waits_at = gate;
	ferryResult_t result = ferryCommSplit(comm, 0, 0, &made, NULL);
	if (result)
		fprintf(stderr, "%s: %s\n", ferryGetErrorString(result), ferryGetLastError(NULL));
	if (result)
		return result == ferryRemoteError && strstr(ferryGetLastError(NULL), "hosted the router of domain 0")
		               ? TOLD
		               : 1;
	result = ferryAllReduce(&one, &sum, 1, ferryFloat32, ferrySum, made, NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	if (!result)
		result = ferryCommDestroy(comm);
	if (!result)
		result = ferryCommDestroy(made);
	return result || sum != RANKS - 1;
}

static pid_t start(const ferryUniqueId *id, int rank, bool abort)
{
	ferryComm_t comm;
	pid_t child = fork();
	assert_true(child >= 0);
	if (child)
		return child;
	if (ferryCommInitRank(&comm, RANKS, *id, rank))
		_exit(1);
	_exit(rank ? foreign_rank(comm, abort && rank == 1 ? -1 : rank) : host(comm, abort));
}

/* ---- the test ---- */

static void wait_for_state(const char *path, const char *flags)
{
	char text[512] = "";
	for (int waited = 0; status_line(path, text, sizeof text) || !strstr(text, flags); waited++) {
		if (waited > PATIENCE_MS)
			fail_msg("not in %d ms: %s", PATIENCE_MS, flags);
		doze();
	}
}

/* The exit code; -1: it has not ended, and is killed. */
static int end_of(pid_t process)
{
	int status, waited = 0;
	while (waitpid(process, &status, WNOHANG) != process) {
		if (waited++ > PATIENCE_MS) {
			kill(process, SIGKILL);
			waitpid(process, &status, 0);
			return -1;
		}
		doze();
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void open_ranks(char path[80], pid_t ranks[RANKS], bool abort)
{
	ferryUniqueId id;
	for (int rank = 0; rank < RANKS; rank++)
		assert_int_equal(pipe(gates[rank]), 0);
	assert_int_equal(ferryGetUniqueId(&id), ferrySuccess);
	snprintf(path, 80, "@ferry/");
	for (int i = 0; i < FERRY_KEY_BYTES; i++) /* behind eight bytes of magic */
		snprintf(path + strlen(path), 3, "%02x", (unsigned char)id.internal[8 + i]);
	strcat(path, "-0.sock");
	ranks[0] = start(&id, 0, abort);
	wait_for_state(path, "state=serving"); /* so rank 0 hosts it */
	for (int rank = 1; rank < RANKS; rank++)
		ranks[rank] = start(&id, rank, abort);
}

static void close_gates(void)
{
	for (int rank = 0; rank < RANKS; rank++) {
		close(gates[rank][0]);
		close(gates[rank][1]);
	}
}

/* One of them has attached to it; the other has not come yet, and need not host another one, to wait there alone. */
static void who_attaches_when_its_host_has_aborted_hears_of_it_at_once(void **state)
{
	char path[80];
	pid_t ranks[RANKS];
	(void)state;
	open_ranks(path, ranks, true);
	wait_for_state(path, "jobs=2");
	open_gate(0);
	assert_int_equal(end_of(ranks[0]), 0);
	assert_int_equal(end_of(ranks[1]), 1);
	open_gate(2);
	assert_int_equal(end_of(ranks[2]), TOLD);
	close_gates();
}

static void a_host_that_leaves_takes_what_others_make_of_its_communicator(void **state)
{
	char path[80];
	pid_t ranks[RANKS];
	(void)state;
	open_ranks(path, ranks, false);
	open_gate(0);
	wait_for_state(path, "state=draining");
	for (int rank = 1; rank < RANKS; rank++)
		open_gate(rank);
	for (int rank = 0; rank < RANKS; rank++)
		assert_int_equal(end_of(ranks[rank]), 0);
	close_gates();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(who_attaches_when_its_host_has_aborted_hears_of_it_at_once),
	        cmocka_unit_test(a_host_that_leaves_takes_what_others_make_of_its_communicator),
	};
	setenv("FERRY_ROUTER", "embedded", 1);
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_DOMAINS", "1", 1);
	setenv("FERRY_STAGING", "1M", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
