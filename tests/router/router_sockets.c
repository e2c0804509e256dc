/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the router's sockets: every client that connects is answered, or told why not; a client that waits for a
 * router waits for so long and no longer; and one router does not take what is another's.
 */
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/arena.h"
#include "ipc/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static void another_abi_and_garbage_are_answered_and_closed(void **state)
{
	(void)state;
	struct ferry_attach_message message = {.magic = FERRY_ATTACH_MAGIC, .abi = 77, .kind = FERRY_ATTACH_STATUS};
	struct ferry_attach_reply reply;
	int connection;
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(send(connection, &message, sizeof message, 0), sizeof message);
	assert_int_equal(recv(connection, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
	assert_int_equal(reply.result, ferryRefused);
	assert_non_null(strstr(reply.message, "77"));
	assert_int_equal(recv(connection, &reply, sizeof reply, 0), 0);
	close(connection);
	for (unsigned round = 0; round < 200; round++) {
		unsigned char noise[sizeof message];
		for (size_t i = 0; i < sizeof noise; i++)
			noise[i] = (unsigned char)(i * 31 + round * 17);
		assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
		assert_true(send(connection, noise, round % sizeof noise + 1, MSG_NOSIGNAL) > 0);
		close(connection);
	}
	char text[512];
	assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	assert_non_null(strstr(text, "jobs=0"));
}

static void another_user_is_refused(void **state)
{
	(void)state;
	int status;
	if (geteuid() != 0) {
		print_message("only root can pose as another user: skipped\n");
		skip();
	}
	assert_false(chmod(folder, 0755) || chmod(path, 0666)); /* else the files keep it off */
	pid_t child = fork();
	if (!child) {
		/* Past the client's own check of the server, which root would pass: straight to the router's. */
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		struct ferry_attach_reply reply;
		struct ferry_attach_message message = {.magic = FERRY_ATTACH_MAGIC,
		                                       .abi = FERRY_ATTACH_ABI,
		                                       .kind = FERRY_ATTACH_STATUS};
		if (setresuid(65534, 65534, 65534))
			_exit(2);
		memcpy(address.sun_path, path, strlen(path));
		int connection = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connect(connection, (struct sockaddr *)&address, sizeof address))
			_exit(3);
		send(connection, &message, sizeof message, MSG_NOSIGNAL);
		if (recv(connection, &reply, sizeof reply, MSG_WAITALL) != sizeof reply)
			_exit(4);
		_exit(reply.result == ferryRefused && strstr(reply.message, "65534") ? 0 : 5);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* A router that is somebody's own, with nobody counted. */
static void who_sends_half_a_message_is_not_waited_for(void **state)
{
	struct ferry_attach_message message = {.magic = FERRY_ATTACH_MAGIC, .abi = FERRY_ATTACH_ABI};
	struct ferry_attach_reply reply;
	int connection;
	stop_router(state);
	setenv("FERRY_ATTACH_TIMEOUT", "1", 1);
	start_router(state);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(send(connection, &message, 40, 0), 40);
	assert_int_equal(recv(connection, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
	assert_int_equal(reply.result, ferryRefused);
	assert_non_null(strstr(reply.message, "40 bytes of a message"));
	assert_int_equal(recv(connection, &reply, sizeof reply, 0), 0);
	close(connection);
}

static int open_descriptors(void)
{
	int count = 0;
	for (int i = 0; i < 1024; i++)
		count += fcntl(i, F_GETFD) >= 0;
	return count;
}

/* The router lives in this process: its descriptors are counted too. */
static void who_asks_for_the_layout_gets_a_copy_of_its_own(void **state)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_LAYOUT};
	struct ferry_layout copy;
	char scribble[sizeof copy];
	int connection, before;
	(void)state;
	memset(scribble, 0xa5, sizeof scribble);
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	for (int i = 0; i < 500; i++) {
		int file = -1;
		assert_int_equal(ferry_attach_call(connection, &message, NULL, &file), ferrySuccess);
		assert_int_equal(pread(file, &copy, sizeof copy, 0), sizeof copy);
		assert_memory_equal(&copy, &layout, sizeof copy);
		assert_int_equal(pwrite(file, scribble, sizeof scribble, 0), sizeof scribble);
		close(file);
		if (i == 0)
			before = open_descriptors();
	}
	assert_in_range(open_descriptors(), 0, before + 1); /* the router may not have closed its last one yet */
	close(connection);
}

/* Each of them may have made an arena. */
static void who_is_refused_again_and_again_is_sent_away(void **state)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK, .nranks = 1, .ndomains = 1};
	int connection, descriptor, refused = 0;
	ferryResult_t result;
	(void)state;
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	message.staging = 1ull << 40;
	while ((result = ferry_attach_call(connection, &message, NULL, &descriptor)) == ferryRefused)
		assert_true(++refused < 100);
	assert_int_equal(result, ferryRemoteError); /* it has closed the connection */
	assert_in_range(refused, 4, 16);
	close(connection);
	char text[512];
	assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	assert_non_null(strstr(text, "jobs=0"));
}

/* 200 refusals of one user leave the lines of a burst, and one that says how many are missing at most. */
static void refusals_are_logged_with_a_limit(void **state)
{
	char name[] = "/tmp/ferry-log-XXXXXX", line[512];
	int file = mkstemp(name), kept = dup(STDERR_FILENO), connection, lines = 0;
	(void)state;
	unlink(name);
	fflush(stderr);
	dup2(file, STDERR_FILENO);
	ferry_log_set_level(FERRY_LOG_WARN);
	for (int i = 0; i < 200; i++) {
		struct ferry_attach_reply reply;
		char garbage[sizeof(struct ferry_attach_message)] = {1};
		assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
		assert_int_equal(send(connection, garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
		assert_int_equal(recv(connection, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
		close(connection);
	}
	ferry_log_set_level(FERRY_LOG_ERROR);
	fflush(stderr);
	dup2(kept, STDERR_FILENO);
	close(kept);
	FILE *log = fdopen(file, "r");
	rewind(log);
	while (fgets(line, sizeof line, log))
		lines++;
	fclose(log);
	assert_in_range(lines, 1, 3 * FERRY_LOG_BURST); /* two bursts, should this have taken so long */
}

static void a_second_router_on_the_socket_is_refused(void **state)
{
	(void)state;
	struct ferry_router *second;
	struct ferry_router_options options = {.layout = &layout, .directory = folder};
	assert_int_equal(ferry_router_start(&options, &second), ferryInvalidUsage);
}

static void a_job_over_the_limit_is_told_how_much_is_left(void **state)
{
	(void)state;
	struct ferry_router *limited;
	char limited_folder[64], limited_path[100];
	assert_true(folder_make(limited_folder, "limited"));
	snprintf(limited_path, sizeof limited_path, "%s/router-0.sock", limited_folder);
	struct ferry_router_options options = {.layout = &layout,
	                                       .directory = limited_folder,
	                                       .staging_limit = 1 << 20};
	assert_int_equal(ferry_router_start(&options, &limited), ferrySuccess);
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .nranks = 1,
	                                       .ndomains = 1,
	                                       .staging = 2 << 20};
	int connection, descriptor;
	assert_int_equal(ferry_endpoint_connect(limited_path, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_call(connection, &message, NULL, &descriptor), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "2097152"));
	assert_non_null(strstr(ferry_last_message(), "1048576"));
	close(connection);
	ferry_router_stop(limited);
	folder_remove(limited_folder);
}

/* A process listens and never answers: a router that is stopped, or hangs. */
static void a_router_that_does_not_answer_is_waited_for_so_long_and_no_longer(void **state)
{
	(void)state;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_DETACH};
	struct ferry_attach_reply reply;
	char silent_path[100], text[64];
	_Atomic uint32_t given_up = 0;
	int listener, connection;
	snprintf(silent_path, sizeof silent_path, "%s/silent.sock", folder);
	assert_int_equal(ferry_endpoint_listen(silent_path, false, &listener), ferrySuccess);
	setenv("FERRY_ATTACH_TIMEOUT", "1", 1);
	assert_int_equal(ferry_endpoint_connect(silent_path, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_call(connection, &message, NULL, NULL), ferrySystemError);
	assert_non_null(strstr(ferry_last_message(), "1 s (FERRY_ATTACH_TIMEOUT)"));
	/* its answer might have come */
	assert_int_equal(ferry_attach_call(connection, &message, NULL, NULL), ferryRemoteError);
	close(connection);
	setenv("FERRY_ATTACH_TIMEOUT", "86400", 1);
	assert_int_equal(ferry_endpoint_connect(silent_path, &connection), ferrySuccess);
	atomic_store(&given_up, 1);
	assert_int_equal(ferry_attach_exchange(connection, &message, NULL, NULL, &reply, NULL, 0, &given_up),
	                 ferrySystemError);
	close(connection);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	assert_int_equal(status_line(silent_path, text, sizeof text), ferrySystemError);
	close(listener);
}

/*
 * A router that is stopped, and has as many clients waiting to be accepted as it may: the next one is not even
 * connected.
 */
static int take_all_places(const char *full_path, int *clients, int most)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t bytes = sizeof address;
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), refused = 0;
	memcpy(address.sun_path, full_path, strlen(full_path));
	assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(listen(listener, 0), 0);
	for (int i = 0; i < most; i++) {
		clients[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		refused = connect(clients[i], (struct sockaddr *)&address, bytes);
	}
	assert_true(refused && errno == EAGAIN);
	return listener;
}

static void a_router_that_takes_no_connections_is_waited_for_so_long_and_no_longer(void **state)
{
	(void)state;
	char full_path[100], text[512];
	int clients[3], connection;
	snprintf(full_path, sizeof full_path, "%s/full.sock", folder);
	int listener = take_all_places(full_path, clients, 3);
	setenv("FERRY_ATTACH_TIMEOUT", "1", 1);
	assert_int_equal(ferry_endpoint_connect_patiently(full_path, &connection), ferryRemoteError);
	assert_non_null(strstr(ferry_last_message(), full_path));
	assert_non_null(strstr(ferry_last_message(), "takes no connections for 1 s"));
	unsetenv("FERRY_ATTACH_TIMEOUT");
	assert_int_equal(status_line(full_path, text, sizeof text), ferryRemoteError);
	assert_non_null(strstr(ferry_last_message(), "takes no connections for 5 s"));
	for (int i = 0; i < 3; i++)
		close(clients[i]);
	close(listener);
}

/* Nobody else has them: a router hands its arena to a job's ranks alone. */
static void a_job_of_two_domains_brings_the_arenas(void **state)
{
	(void)state;
	struct ferry_attach_message attach = {.kind = FERRY_ATTACH_RANK,
	                                      .nranks = 1,
	                                      .ndomains = 2,
	                                      .staging = 1 << 16};
	struct ferry_attach_message ready = {.kind = FERRY_ATTACH_READY, .ndomains = 2};
	int connection, descriptor;
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_call(connection, &attach, NULL, &descriptor), ferrySuccess);
	assert_int_equal(ferry_attach_call(connection, &ready, NULL, NULL), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "READY with arenas of 0 domains, the job has 2"));
	close(descriptor);
	close(connection);
}

/* The test's own ends of the connections have numbers below the limit, the router's the last ones. */
static void a_client_too_many_is_told_so_and_the_next_finds_a_place(void **state)
{
	(void)state;
	struct rlimit before, few;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_STATUS};
	int connections[64];
	uint32_t served = 0, refused = 0;
	setenv("FERRY_ATTACH_TIMEOUT", "5", 1);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	for (int i = 0; i < 64; i++)
		connections[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path));
	few = (struct rlimit){(rlim_t)connections[63] + 20, before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	for (int i = 0; i < 64; i++) {
		assert_int_equal(connect(connections[i], (struct sockaddr *)&address,
		                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))),
		                 0);
		ferryResult_t result = ferry_attach_call(connections[i], &message, NULL, NULL);
		if (result == ferrySystemError && strstr(ferry_last_message(), "cannot take another"))
			refused++;
		else if (!result)
			served++;
	}
	setrlimit(RLIMIT_NOFILE, &before);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	assert_in_range(served, 10, 40);
	assert_int_equal(served + refused, 64);
	for (int i = 0; i < 64; i++)
		close(connections[i]);
	char text[512];
	assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
}

static void who_is_refused_hears_how_many_clients_there_are(void **state)
{
	(void)state;
	struct rlimit before, none;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_STATUS};
	int connections[2];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	memcpy(address.sun_path, path, strlen(path));
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	for (int i = 0; i < 2; i++)
		connections[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(connections[0], (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(ferry_attach_call(connections[0], &message, NULL, NULL), ferrySuccess);
	int next = fcntl(0, F_DUPFD, 3); /* the lowest that is free */
	close(next);
	none = (struct rlimit){(rlim_t)next, before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(connect(connections[1], (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(ferry_attach_call(connections[1], &message, NULL, NULL), ferrySystemError);
	assert_non_null(strstr(ferry_last_message(), " has 1 client and cannot take another"));
	setrlimit(RLIMIT_NOFILE, &before);
	for (int i = 0; i < 2; i++)
		close(connections[i]);
}

static int descriptors_open(void)
{
	int count = 0;
	for (int descriptor = 0; descriptor < 1024; descriptor++)
		count += fcntl(descriptor, F_GETFD) >= 0;
	return count;
}

/* The limit lies below all that is open: the router cannot even replace the one that it has let go of. */
static void a_router_that_had_no_descriptors_listens_again_when_there_are_some(void **state)
{
	(void)state;
	struct rlimit before, none;
	char text[512];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path));
	int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), open = descriptors_open();
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){3, before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	int refused = connect(client, (struct sockaddr *)&address,
	                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
	while (!refused && descriptors_open() == open)
		usleep(1000);
	setrlimit(RLIMIT_NOFILE, &before);
	assert_int_equal(refused, 0);
	assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	close(client);
}

/* Of what it asks for by itself, and of what the router sends it. */
static void a_process_without_descriptors_is_told_so(void **state)
{
	(void)state;
	struct rlimit before, none;
	struct ferry_arena arena;
	struct ferry_arena_shape shape = {.nranks = 1, .ndomains = 1, .staging = 1 << 20, .node = -1};
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .nranks = 2,
	                                       .ndomains = 1,
	                                       .staging = 1 << 20};
	struct ferry_attach_message other = message; /* the job's second rank: the arena is there, and comes along */
	char texts[3][1024];
	int connection, second, descriptor, unconnected;
	struct ferry_attach_message status = {.kind = FERRY_ATTACH_STATUS};
	other.rank = 1;
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_call(connection, &message, NULL, &descriptor), ferrySuccess);
	assert_int_equal(ferry_endpoint_connect(path, &second), ferrySuccess);
	assert_int_equal(ferry_attach_call(second, &status, NULL, NULL), ferrySuccess); /* it has been accepted */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){(rlim_t)connection, before.rlim_max}; /* the router polls four */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	ferryResult_t connecting = ferry_endpoint_connect(path, &unconnected);
	bool nobody = ferry_endpoint_nobody(connecting);
	snprintf(texts[0], sizeof texts[0], "%s", ferry_last_message());
	ferryResult_t making = ferry_arena_create(&shape, &arena);
	snprintf(texts[1], sizeof texts[1], "%s", ferry_last_message());
	ferryResult_t asking = ferry_attach_call(second, &other, NULL, &unconnected);
	snprintf(texts[2], sizeof texts[2], "%s", ferry_last_message());
	setrlimit(RLIMIT_NOFILE, &before);
	assert_false(nobody);
	assert_int_equal(connecting, ferrySystemError);
	assert_int_equal(making, ferrySystemError);
	assert_null(strstr(texts[1], "is /dev/shm there"));
	assert_int_equal(asking, ferrySystemError);
	for (int i = 0; i < 3; i++)
		assert_non_null(strstr(texts[i], "ulimit -n"));
	close(descriptor);
	close(second);
	close(connection);
}

static void a_router_leaves_the_socket_of_its_successor_alone(void **state)
{
	(void)state;
	char directory[] = "/tmp/ferry-engine-XXXXXX", own[64], lock[80], text[512];
	struct ferry_router *first, *second;
	assert_non_null(mkdtemp(directory));
	snprintf(own, sizeof own, "%s/router-0.sock", directory);
	snprintf(lock, sizeof lock, "%s.lock", own);
	struct ferry_router_options options = {.layout = &layout, .directory = directory, .idle_exit_ms = 1};
	assert_int_equal(ferry_router_start(&options, &first), ferrySuccess);
	ferry_router_wait(first);
	options.idle_exit_ms = 0;
	assert_int_equal(ferry_router_start(&options, &second), ferrySuccess);
	ferry_router_stop(first);
	assert_int_equal(status_line(own, text, sizeof text), ferrySuccess);
	ferry_router_stop(second);
	assert_int_equal(access(own, F_OK), -1);
	FILE *file = fopen(own, "w"); /* somebody's, by accident */
	assert_non_null(file);
	fclose(file);
	assert_int_equal(ferry_router_start(&options, &first), ferrySystemError);
	assert_non_null(strstr(ferry_last_message(), "no socket"));
	assert_int_equal(access(own, F_OK), 0);
	unlink(own);
	unlink(lock);
	assert_int_equal(rmdir(directory), 0);
}

/* Held by a router of another user, which this one does not trust; and by one that is stopped. */
static void a_router_replaces_no_socket_that_somebody_listens_on(void **state)
{
	(void)state;
	char directory[] = "/tmp/ferry-engine-XXXXXX", own[64], lock[80];
	struct ferry_router *second;
	struct ferry_router_options options = {.layout = &layout, .directory = directory};
	int listener, clients[3], connection;
	assert_non_null(mkdtemp(directory));
	assert_int_equal(chmod(directory, 0777), 0);
	snprintf(own, sizeof own, "%s/router-0.sock", directory);
	snprintf(lock, sizeof lock, "%s.lock", own);
	if (geteuid() == 0) {
		assert_int_equal(setresuid(-1, 65534, -1), 0);
		ferryResult_t result = ferry_endpoint_listen(own, false, &listener);
		assert_int_equal(setresuid(-1, 0, -1), 0);
		assert_int_equal(result, ferrySuccess);
		assert_int_equal(ferry_router_start(&options, &second), ferryRefused);
		assert_non_null(strstr(ferry_last_message(), own));
		assert_int_equal(ferry_endpoint_connect(own, &connection), ferryRefused);
		close(listener);
		unlink(own);
	}
	listener = take_all_places(own, clients, 3);
	assert_int_equal(ferry_router_start(&options, &second), ferryRemoteError);
	assert_non_null(strstr(ferry_last_message(), "takes no connections"));
	close(listener);
	for (int i = 0; i < 3; i++)
		close(clients[i]);
	assert_int_equal(ferry_router_start(&options, &second), ferrySuccess); /* nobody listens on it now */
	ferry_router_stop(second);
	unlink(lock);
	assert_int_equal(rmdir(directory), 0);
}

static void a_router_that_leaves_when_idle_takes_no_job_that_it_would_end(void **state)
{
	(void)state;
	struct ferry_router *idle;
	char idle_folder[64], idle_path[100], other_path[100], byte;
	int connection;
	assert_true(folder_make(idle_folder, "idle"));
	snprintf(idle_path, sizeof idle_path, "%s/router-0.sock", idle_folder);
	snprintf(other_path, sizeof other_path, "%s/other.sock", idle_folder);
	struct ferry_router_options options = {.layout = &layout, .directory = idle_folder, .idle_exit_ms = 50};
	struct ferry_attach_message message = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, .kind = FERRY_ATTACH_RANK,
	                                       .nranks = 1, .ndomains = 1};
	assert_int_equal(ferry_router_start(&options, &idle), ferrySuccess);
	while (link(idle_path, other_path)) { /* it was idle for so long before this came to it */
		ferry_router_stop(idle);
		options.idle_exit_ms *= 2;
		assert_int_equal(ferry_router_start(&options, &idle), ferrySuccess);
	}
	ferry_router_wait(idle);
	/* its listener is there until it is stopped, and a client may have found its name before */
	assert_int_equal(ferry_endpoint_connect(other_path, &connection), ferrySuccess);
	assert_int_equal(send(connection, &message, sizeof message, MSG_NOSIGNAL), sizeof message);
	struct pollfd answer = {connection, POLLIN, 0};
	assert_int_equal(poll(&answer, 1, 200), 0);
	ferry_router_stop(idle);
	folder_remove(idle_folder);
	assert_true(recv(connection, &byte, 1, 0) <= 0);
	close(connection);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(another_abi_and_garbage_are_answered_and_closed),
	        TEST(another_user_is_refused),
	        TEST(who_sends_half_a_message_is_not_waited_for),
	        TEST(who_asks_for_the_layout_gets_a_copy_of_its_own),
	        TEST(who_is_refused_again_and_again_is_sent_away),
	        TEST(refusals_are_logged_with_a_limit),
	        TEST(a_second_router_on_the_socket_is_refused),
	        TEST(a_job_over_the_limit_is_told_how_much_is_left),
	        TEST(a_router_that_does_not_answer_is_waited_for_so_long_and_no_longer),
	        TEST(a_router_that_takes_no_connections_is_waited_for_so_long_and_no_longer),
	        TEST(a_client_too_many_is_told_so_and_the_next_finds_a_place),
	        TEST(who_is_refused_hears_how_many_clients_there_are),
	        TEST(a_router_that_had_no_descriptors_listens_again_when_there_are_some),
	        TEST(a_job_of_two_domains_brings_the_arenas),
	        TEST(a_process_without_descriptors_is_told_so),
	        TEST(a_router_leaves_the_socket_of_its_successor_alone),
	        TEST(a_router_replaces_no_socket_that_somebody_listens_on),
	        TEST(a_router_that_leaves_when_idle_takes_no_job_that_it_would_end),
	};
	ferry_log_set_level(FERRY_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
