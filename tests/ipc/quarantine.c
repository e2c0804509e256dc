/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of ipc/quarantine.h: what sleeps in the kernel because of a peer's descriptors does not sleep here. A close
 * that does takes a day, which ends this suite by its time limit.
 */
#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/quarantine.h"
#include "tests/hostility/strange.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int ends[2]; /* a peer's, and ours */

static int open_pair(void **state)
{
	(void)state;
	return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
}

static int close_pair(void **state)
{
	(void)state;
	close(ends[0]);
	ferry_quarantine_close(&ends[1], 1);
	return 0;
}

#define PAIR_TEST(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)

/* False: the kernel sends none of that kind. */
static bool may_send(const char *text, const int *descriptors, uint32_t count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {0};
	struct iovec part = {(void *)(uintptr_t)text, strlen(text)};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = CMSG_SPACE(count * sizeof(int))};
	*CMSG_FIRSTHDR(&message) = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), descriptors, count * sizeof(int));
	return sendmsg(ends[0], &message, MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

static void send_from_peer(const char *text, const int *descriptors, uint32_t count)
{
	assert_true(may_send(text, descriptors, count));
}

static ferryResult_t receive(char text[16], struct ferry_attach_received *received)
{
	memset(text, 0, 16);
	return ferry_quarantine_receive(ends[1], 0, text, 15, received);
}

static void await_end_of_connection(void)
{
	char byte;
	while (read(ends[0], &byte, 1) > 0)
		;
}

/* The lowest number that is free: the same again, where no descriptor is left over. */
static int lowest(void)
{
	int free = dup(0);
	close(free);
	return free;
}

static void closing_a_connection_waits_for_nothing_that_a_peer_has_sent(void **state)
{
	int lingering = strange_lingering();
	(void)state;
	assert_true(lingering >= 0);
	send_from_peer("x", &lingering, 1);
	close(lingering);
	ferry_quarantine_close(&ends[1], 1);
	ends[1] = -1;
	await_end_of_connection();
}

static void a_listener_closes_with_connections_that_it_has_not_accepted(void **state)
{
	struct sockaddr address = {.sa_family = AF_UNIX};
	socklen_t bytes = sizeof address;
	int lingering = strange_lingering(), listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	(void)state;
	close(ends[0]);
	ends[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, &address, sizeof(sa_family_t)), 0); /* a name that the kernel chooses */
	assert_int_equal(getsockname(listener, &address, &bytes), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(connect(ends[0], &address, bytes), 0);
	send_from_peer("x", &lingering, 1);
	close(lingering);
	ferry_quarantine_close(&listener, 1);
	await_end_of_connection();
}

static void memory_and_devices_arrive_with_their_message(void **state)
{
	struct ferry_attach_received received;
	char text[16];
	struct stat status;
	int sent[2] = {memfd_create("arena", MFD_CLOEXEC), open("/dev/null", O_RDWR | O_CLOEXEC)};
	(void)state;
	assert_int_equal(ftruncate(sent[0], 4711), 0);
	send_from_peer("hello", sent, 2);
	assert_int_equal(receive(text, &received), ferrySuccess);
	assert_int_equal(received.bytes, 5);
	assert_string_equal(text, "hello");
	assert_int_equal(received.ndescriptors, 2);
	assert_false(received.truncated);
	assert_int_equal(fstat(received.descriptors[0], &status), 0);
	assert_int_equal(status.st_size, 4711);
	assert_int_equal(fcntl(received.descriptors[0], F_GETFD), FD_CLOEXEC);
	assert_int_equal(fstat(received.descriptors[1], &status), 0);
	assert_true(S_ISCHR(status.st_mode));
	ferry_quarantine_close(received.descriptors, 2);
	for (int i = 0; i < 2; i++)
		close(sent[i]);
}

static void bytes_without_descriptors_arrive_before_those_with_some(void **state)
{
	struct ferry_attach_received received;
	char text[16];
	int sent = memfd_create("arena", MFD_CLOEXEC);
	(void)state;
	assert_int_equal(receive(text, &received), ferrySuccess);
	assert_int_equal(received.bytes, -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(send(ends[0], "abc", 3, 0), 3);
	assert_int_equal(receive(text, &received), ferrySuccess);
	assert_int_equal(received.bytes, 3);
	assert_int_equal(received.ndescriptors, 0);
	send_from_peer("def", &sent, 1);
	close(ends[0]);
	ends[0] = -1;
	assert_int_equal(receive(text, &received), ferrySuccess);
	assert_string_equal(text, "def");
	assert_int_equal(received.ndescriptors, 1);
	ferry_quarantine_close(received.descriptors, 1);
	assert_int_equal(receive(text, &received), ferrySuccess);
	assert_int_equal(received.bytes, 0);
	close(sent);
}

static void what_is_neither_is_refused_and_nothing_is_left_of_it(void **state)
{
	(void)state;
	for (int kind = 0; kind < STRANGE_KINDS; kind++) {
		struct ferry_attach_received received;
		char text[16];
		int made = strange_make(kind, ends[1]), sent[3], before;
		if (made < 0)
			continue;
		sent[0] = sent[1] = memfd_create("arena", MFD_CLOEXEC);
		sent[2] = made;
		if (!may_send("x", sent, 3)) {
			close(sent[0]);
			ferry_quarantine_close(&made, 1);
			continue;
		}
		before = lowest();
		ferryResult_t result = receive(text, &received);
		if (!strncmp(strange_name(kind), "memfd", 5) || strstr(strange_name(kind), "sealed") ||
		    strstr(strange_name(kind), "terminal") || strstr(strange_name(kind), "/dev/")) {
			assert_int_equal(result, ferrySuccess);
			assert_int_equal(received.ndescriptors, 3);
			ferry_quarantine_close(received.descriptors, 3);
		} else {
			assert_int_equal(result, ferryInvalidArgument);
			assert_non_null(strstr(ferry_last_message(), "descriptor 2 of a message is of neither"));
			assert_int_equal(received.ndescriptors, 0);
		}
		assert_int_equal(lowest(), before);
		close(sent[0]);
		ferry_quarantine_close(&made, 1);
	}
}

static void as_many_as_the_kernel_takes_are_told_to_be_too_many(void **state)
{
	struct ferry_attach_received received;
	char text[16];
	int sent[253], before;
	(void)state;
	for (int i = 0; i < 253; i++)
		sent[i] = i ? sent[0] : memfd_create("arena", MFD_CLOEXEC);
	send_from_peer("x", sent, 253);
	before = lowest();
	assert_int_equal(receive(text, &received), ferrySuccess);
	assert_true(received.truncated);
	assert_int_equal(received.ndescriptors, FERRY_ATTACH_MOST_DESCRIPTORS);
	ferry_quarantine_close(received.descriptors, received.ndescriptors);
	assert_int_equal(lowest(), before);
	close(sent[0]);
}

/* The peer, in a process of its own: its end is the file system's, too. */
static void send_a_file_that_does_not_answer(const char *file)
{
	char byte;
	if (!strange_mount(file))
		_exit(77);
	pid_t sender = fork();
	if (sender) {
		waitpid(sender, NULL, 0);
		pause();
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	strange_leave_to_parent();
	int sent = open(file, O_RDONLY | O_CLOEXEC);
	for (uint32_t i = 0; i <= FERRY_QUARANTINE_MOST; i++)
		if (sent < 0 || !may_send("x", &sent, 1) || read(ends[0], &byte, 1) != 1)
			_exit(1);
	_exit(0);
}

/* What the peer sends is received by user 0; false: it may send none. */
static bool receive_what_does_not_answer(void)
{
	struct ferry_attach_received received;
	char text[16];
	for (uint32_t i = 0; i <= FERRY_QUARANTINE_MOST; i++) {
		struct pollfd message = {ends[1], POLLIN, 0};
		assert_int_equal(poll(&message, 1, -1), 1);
		ferryResult_t result = receive(text, &received);
		if (!i && !result && !received.bytes)
			return false;
		if (result != (i < FERRY_QUARANTINE_MOST ? ferryInvalidArgument : ferryRefused))
			fail_msg("message %u: result %d, %s", i, result, ferry_last_message());
		assert_int_equal(write(ends[1], "y", 1), 1);
	}
	return true;
}

static void a_file_system_that_does_not_answer_holds_up_its_user_alone(void **state)
{
	struct ferry_attach_received received;
	char file[] = "/tmp/ferry-quarantine-XXXXXX", text[16];
	/*
	 * A test that fails or is stopped here leaves threads that nobody can kill, as long as the file system stands:
	 * `make soak` runs it. hostility has such descriptors, too, each in a process of its own.
	 */
	if (!getenv("FERRY_TEST_FUSE"))
		skip();
	int made = mkstemp(file), sent = memfd_create("arena", MFD_CLOEXEC);
	assert_true(made >= 0);
	fflush(NULL);
	pid_t peer = fork();
	if (!peer) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[1]);
		send_a_file_that_does_not_answer(file);
	}
	close(ends[0]);
	bool answered = receive_what_does_not_answer();
	close_pair(NULL);
	assert_int_equal(open_pair(state), 0);
	send_from_peer("x", &sent, 1);
	assert_int_equal(ferry_quarantine_receive(ends[1], 1, text, 15, &received), ferrySuccess);
	assert_int_equal(received.ndescriptors, 1);
	ferry_quarantine_close(received.descriptors, 1);
	kill(peer, SIGKILL);
	assert_int_equal(waitpid(peer, NULL, 0), peer);
	close(sent);
	close(made);
	unlink(file);
	if (!answered) {
		print_message("this process may mount no FUSE: skipped\n");
		skip();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        PAIR_TEST(closing_a_connection_waits_for_nothing_that_a_peer_has_sent),
	        PAIR_TEST(a_listener_closes_with_connections_that_it_has_not_accepted),
	        PAIR_TEST(memory_and_devices_arrive_with_their_message),
	        PAIR_TEST(bytes_without_descriptors_arrive_before_those_with_some),
	        PAIR_TEST(what_is_neither_is_refused_and_nothing_is_left_of_it),
	        PAIR_TEST(as_many_as_the_kernel_takes_are_told_to_be_too_many),
	        PAIR_TEST(a_file_system_that_does_not_answer_holds_up_its_user_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
