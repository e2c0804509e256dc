/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host devices that push into each other's memory: where the job fails in the middle of that, a receiver's buffer is
 * its application's again only when nobody writes there any more. Ranks are processes, and process_vm_writev takes as
 * long as the test wants it to.
 */
#include "tests/fake_cuda/routers.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ferry.h"
#include "ipc/wait.h"
#include "tests/kept_log.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS  3
#define PUSHER 1
#define BYTES  (200u << 10)
#define HELD_MS 300

enum how { ABORTS, THIRD_DIES, KILLED, STOPPED };

/* Of all processes of a test. */
static struct {
	_Atomic int held, inside, ready; /* a push is held; is there; ranks that have submitted */
	ferryUniqueId id;
} *common;

static pid_t held_to; /* this process's pushes to that one are held */

static void doze(long milliseconds)
{
	nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

/* libferry's, too: the program comes first where names are looked up. */
__attribute__((visibility("default"))) ssize_t
process_vm_writev(pid_t process, const struct iovec *local, unsigned long nlocal, const struct iovec *remote,
                  unsigned long nremote, unsigned long flags)
{
	if (process == held_to) {
		atomic_store(&common->inside, 1);
		while (atomic_load(&common->held))
			doze(1);
	}
	ssize_t written = syscall(SYS_process_vm_writev, process, local, nlocal, remote, nremote, flags);
	if (process == held_to)
		atomic_store(&common->inside, 2);
	return written;
}

/* A call that pushes: what rank 1 has into rank 0's buffer. */
static ferryResult_t call(ferryComm_t comm, int rank, const char *send, char *receive, bool message)
{
	if (!message)
		return ferryAllGather(send, receive, BYTES, ferryUint8, comm, NULL);
	if (rank == PUSHER)
		return ferrySend(send, BYTES, ferryUint8, 0, comm, NULL);
	return rank ? ferrySuccess : ferryRecv(receive, BYTES, ferryUint8, PUSHER, comm, NULL);
}

static ferryComm_t join(int rank)
{
	ferryComm_t comm;
	if (ferryCommInitRank(&comm, RANKS, common->id, rank)) {
		fprintf(stderr, "rank %d: %s\n", rank, ferryGetLastError(NULL));
		_exit(1);
	}
	return comm;
}

static pid_t start(int rank, bool message)
{
	static char send[BYTES], receive[RANKS * BYTES];
	pid_t child = fork();
	assert_true(child >= 0);
	if (child)
		return child;
	held_to = rank == PUSHER ? getppid() : 0;
	memset(send, 'x', sizeof send);
	ferryComm_t comm = join(rank);
	if (call(comm, rank, send, receive, message))
		_exit(1);
	atomic_fetch_add(&common->ready, 1);
	ferryStreamSynchronize(NULL);
	while (atomic_load(&common->held)) /* rank 2 may have had no call */
		doze(1);
	ferryCommAbort(comm);
	_exit(0);
}

static void *release_later(void *argument)
{
	(void)argument;
	doze(HELD_MS);
	atomic_store(&common->held, 0);
	return NULL;
}

static void fail_by(enum how how, ferryComm_t comm, const pid_t *children)
{
	if (how == KILLED)
		kill(children[PUSHER], SIGKILL);
	if (how == STOPPED)
		kill(children[PUSHER], SIGSTOP);
	if (how == THIRD_DIES) {
		kill(children[2], SIGKILL);
		/* where all that it had to give has come, the call ends well */
		ferryStreamSynchronize(NULL);
		return;
	}
	assert_int_equal(ferryCommAbort(comm), ferrySuccess);
}

/*
 * How long the failing takes rank 0, which is this process, in milliseconds; nothing is written into its buffer then.
 */
static uint64_t fail_while_somebody_pushes(enum how how, bool message)
{
	static char send[BYTES], receive[RANKS * BYTES];
	pid_t children[RANKS] = {0};
	pthread_t later;
	memset(common, 0, sizeof *common);
	atomic_store(&common->held, 1);
	assert_int_equal(ferryGetUniqueId(&common->id), ferrySuccess);
	for (int rank = 1; rank < RANKS; rank++)
		children[rank] = start(rank, message);
	ferryComm_t comm = join(0);
	assert_int_equal(call(comm, 0, send, receive, message), ferrySuccess);
	while (!atomic_load(&common->inside) || atomic_load(&common->ready) < RANKS - 1)
		doze(1);
	if (how < KILLED)
		assert_int_equal(pthread_create(&later, NULL, release_later, NULL), 0);
	uint64_t begin = ferry_now_ns();
	log_keep();
	fail_by(how, comm, children);
	log_release();
	uint64_t took = (ferry_now_ns() - begin) / 1000000;
	memset(receive, 'a', sizeof receive); /* the application's */
	if (how < KILLED)
		pthread_join(later, NULL);
	for (int waited = 0; how < KILLED && atomic_load(&common->inside) != 2 && waited < 60000; waited++)
		doze(1);
	for (size_t i = 0; i < sizeof receive; i++)
		if (receive[i] != 'a')
			fail_msg("byte %zu was written after the job had failed", i);
	if (how == THIRD_DIES)
		assert_int_equal(ferryCommAbort(comm), ferrySuccess);
	for (int rank = 1; rank < RANKS; rank++) {
		if (how >= KILLED)
			kill(children[rank], SIGKILL);
		assert_int_equal(waitpid(children[rank], NULL, 0), children[rank]);
	}
	ferryStreamSynchronize(NULL); /* its error is told */
	return took;
}

static void an_abort_returns_when_nobody_puts_into_the_ranks_memory_any_more(void **state)
{
	(void)state;
	for (int message = 0; message < 2; message++)
		assert_true(fail_while_somebody_pushes(ABORTS, message) >= HELD_MS - 50);
}

static void a_stream_goes_on_when_nobody_puts_into_the_ranks_memory_any_more(void **state)
{
	(void)state;
	assert_true(fail_while_somebody_pushes(THIRD_DIES, false) >= HELD_MS - 50);
}

static void who_is_killed_in_the_middle_of_a_push_holds_nobody_up(void **state)
{
	(void)state;
	fail_while_somebody_pushes(KILLED, false);
	assert_false(log_has(GAVE_UP));
}

static void who_is_stopped_in_the_middle_of_a_push_is_waited_for_for_ten_seconds(void **state)
{
	(void)state;
	assert_true(fail_while_somebody_pushes(STOPPED, false) >= 9000);
	assert_true(log_has(GAVE_UP));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(an_abort_returns_when_nobody_puts_into_the_ranks_memory_any_more),
	        cmocka_unit_test(a_stream_goes_on_when_nobody_puts_into_the_ranks_memory_any_more),
	        cmocka_unit_test(who_is_killed_in_the_middle_of_a_push_holds_nobody_up),
	        cmocka_unit_test(who_is_stopped_in_the_middle_of_a_push_is_waited_for_for_ten_seconds),
	};
	common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	routers_use();
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_DOMAINS", "1", 1);
	setenv("FERRY_FABRICS", "peer", 1);
	log_keep();
	routers_open(1);
	log_release();
	int failed = common == MAP_FAILED || cmocka_run_group_tests(tests, NULL, NULL);
	routers_close();
	return failed;
}
