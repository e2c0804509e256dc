/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host devices that push: many ranks, communicators out of others, messages and programs of the user's where links are
 * missing, and what is said where the host carries what it was not named for. Ranks are threads of this process.
 */
#include "tests/hosted.h"
#include "tests/sanitized.h"
#include "tests/succeeds.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_RANKS (SANITIZED ? 16 : 64) /* each plans for all */
#define BYTES      (70u << 10) /* a message of that length is pushed */
#define SHORT      (64u << 10) /* and of that one is not: FERRY_EAGER_BYTES */

struct rank {
	ferryComm_t comm;
	int rank, nranks;
	char *send, *receive; /* a block; one of each rank */
	ferryStream_t stream;
};

static struct rank ranks[MOST_RANKS];

static void ranks_open(int nranks)
{
	ferryComm_t comms[MOST_RANKS];
	OK(ferryCommInitAll(comms, nranks, NULL));
	for (int i = 0; i < nranks; i++) {
		ranks[i] = (struct rank){.comm = comms[i], .rank = i, .nranks = nranks};
		ranks[i].send = malloc(BYTES);
		ranks[i].receive = calloc((size_t)nranks, BYTES);
		assert_true(ranks[i].send && ranks[i].receive);
		memset(ranks[i].send, i + 1, BYTES);
		OK(ferryStreamCreate(&ranks[i].stream, i));
	}
}

static void ranks_close(int nranks)
{
	for (int i = 0; i < nranks; i++) {
		OK(ferryStreamDestroy(ranks[i].stream));
		OK(ferryCommDestroy(ranks[i].comm));
		free(ranks[i].send);
		free(ranks[i].receive);
	}
}

/* The whole of it first: ThreadSanitizer looks at bytes one by one. */
static void must_be(const char *block, int value)
{
	bool same = block[0] == value && !memcmp(block, block + 1, BYTES - 1);
	for (size_t i = 0; i < BYTES && !same; i++)
		if (block[i] != value)
			fail_msg("byte %zu is %d, not %d", i, block[i], value);
}

static void settle(int nranks)
{
	for (int i = 0; i < nranks; i++)
		OK(ferryStreamSynchronize(ranks[i].stream));
}

/* Of ranks that have `step` between them in the numbers of all, from `first` on. */
static void gather(int nranks, int first, int step)
{
	for (int i = first; i < nranks; i += step)
		OK(ferryAllGather(ranks[i].send, ranks[i].receive, BYTES, ferryUint8, ranks[i].comm, ranks[i].stream));
}

static void must_have_gathered(int nranks, int first, int step)
{
	for (int i = first; i < nranks; i += step)
		for (int from = first, block = 0; from < nranks; from += step, block++)
			must_be(ranks[i].receive + (size_t)block * BYTES, from + 1);
}

/* A message of each rank's to the next one. */
static void hand_on(int nranks)
{
	OK(ferryGroupStart());
	for (int i = 0; i < nranks; i++) {
		int next = (i + 1) % nranks, last = (i + nranks - 1) % nranks;
		OK(ferrySend(ranks[i].send, BYTES, ferryUint8, next, ranks[i].comm, ranks[i].stream));
		OK(ferryRecv(ranks[i].receive, BYTES, ferryUint8, last, ranks[i].comm, ranks[i].stream));
	}
	OK(ferryGroupEnd());
	settle(nranks);
	for (int i = 0; i < nranks; i++)
		must_be(ranks[i].receive, (i + nranks - 1) % nranks + 1);
}

/* ---- many ranks ---- */

static void sixty_four_ranks_push_into_each_other(void **state)
{
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	ranks_open(MOST_RANKS);
	for (int round = 0; round < 2; round++)
		gather(MOST_RANKS, 0, 1);
	settle(MOST_RANKS);
	must_have_gathered(MOST_RANKS, 0, 1);
	hand_on(MOST_RANKS);
	ranks_close(MOST_RANKS);
	unsetenv("FERRY_FABRICS");
}

/* ---- messages where links are missing ---- */

#define MOST_MESSAGE (1u << 20)
#define PERIOD       251 /* bytes, after which a message goes on as it began */

struct message {
	unsigned char *sent, *received;
};

static struct message message_new(int from, int to, size_t bytes)
{
	struct message message = {malloc(bytes), calloc(1, bytes)};
	assert_true(message.sent && message.received);
	for (size_t i = 0; i < bytes && i < PERIOD; i++)
		message.sent[i] = (unsigned char)(1 + (i * 7 + (size_t)from * 31 + (size_t)to * 97) % PERIOD);
	for (size_t done = PERIOD; done < bytes; done *= 2)
		memcpy(message.sent + done, message.sent, bytes - done < done ? bytes - done : done);
	return message;
}

static void message_judge(struct message *message, int from, int to, size_t bytes)
{
	bool same = !memcmp(message->received, message->sent, bytes);
	for (size_t i = 0; i < bytes && !same; i++)
		if (message->received[i] != message->sent[i])
			fail_msg("%zu bytes from rank %d to rank %d: byte %zu is %d, not %d", bytes, from, to, i,
			         message->received[i], message->sent[i]);
	free(message->sent);
	free(message->received);
}

static void post(const struct message *message, int from, int to, size_t bytes)
{
	OK(ferrySend(message->sent, bytes, ferryUint8, to, ranks[from].comm, ranks[from].stream));
	OK(ferryRecv(message->received, bytes, ferryUint8, from, ranks[to].comm, ranks[to].stream));
}

/* From each rank to each, itself too: together, and then pair by pair. */
static void all_pairs_talk(int nranks, size_t bytes)
{
	struct message messages[8][8];
	for (int together = 1; together >= 0; together--) {
		if (together)
			OK(ferryGroupStart());
		for (int pair = 0; pair < nranks * nranks; pair++) {
			int from = pair / nranks, to = pair % nranks;
			if (!together)
				OK(ferryGroupStart());
			messages[from][to] = message_new(from, to, bytes);
			post(&messages[from][to], from, to, bytes);
			if (!together)
				OK(ferryGroupEnd());
		}
		if (together)
			OK(ferryGroupEnd());
		settle(nranks);
		for (int pair = 0; pair < nranks * nranks; pair++)
			message_judge(&messages[pair / nranks][pair % nranks], pair / nranks, pair % nranks, bytes);
	}
}

/* On some GPUs of a DGX-1V, and on all: many pairs have no NVLink between them. */
static void messages_reach_ranks_whose_devices_no_link_leads_to(void **state)
{
	static const char *const machines[] = {"links=dgx1v:20,devices=0,2,5", "links=dgx1v:20"};
	static const char *const fabrics[] = {"peer", "host,peer"};
	(void)state;
	for (int i = 0; i < 4; i++) {
		int nranks = i / 2 ? 8 : 3;
		setenv("FERRY_HOST_LINK", machines[i / 2], 1);
		setenv("FERRY_FABRICS", fabrics[i % 2], 1);
		ranks_open(nranks);
		all_pairs_talk(nranks, SHORT);
		all_pairs_talk(nranks, SHORT + 1);
		all_pairs_talk(nranks, MOST_MESSAGE);
		ranks_close(nranks);
	}
	unsetenv("FERRY_HOST_LINK");
	unsetenv("FERRY_FABRICS");
}

static double seconds_of(int from, int to, size_t bytes)
{
	struct timespec begun, ended;
	struct message message = message_new(from, to, bytes);
	clock_gettime(CLOCK_MONOTONIC, &begun);
	OK(ferryGroupStart());
	post(&message, from, to, bytes);
	OK(ferryGroupEnd());
	settle(3);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	message_judge(&message, from, to, bytes);
	return (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) / 1e9;
}

/* By the host a message of that length takes 6.5 s, and one by a link no time. */
static void messages_take_the_links_that_there_are(void **state)
{
	static const struct {
		int from, to;
		bool linked;
	} pairs[] = {{0, 1, true}, {1, 0, true}, {2, 2, true}, {0, 2, false}};
	(void)state;
	setenv("FERRY_HOST_LINK", "links=dgx1v:20,devices=0,2,5,d2h=1e-5", 1);
	setenv("FERRY_FABRICS", "peer", 1);
	ranks_open(3);
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		double seconds = seconds_of(pairs[i].from, pairs[i].to, SHORT + 1);
		if ((seconds < 6) != pairs[i].linked)
			fail_msg("from rank %d to rank %d: %.2f s", pairs[i].from, pairs[i].to, seconds);
	}
	ranks_close(3);
	unsetenv("FERRY_HOST_LINK");
	unsetenv("FERRY_FABRICS");
}

/* ---- out of others ---- */

static void *split(void *argument)
{
	struct rank *mine = argument;
	ferryComm_t made;
	if (ferryCommSplit(mine->comm, mine->rank % 2, 0, &made, NULL))
		return argument;
	ferryResult_t result = ferryCommDestroy(mine->comm);
	mine->comm = made;
	return result ? argument : NULL;
}

/* The odd ranks, and the even ones, on their own; the communicator that they come from ends. */
static void communicators_out_of_others_push(void **state)
{
	pthread_t threads[8];
	void *failed;
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	ranks_open(8);
	gather(8, 0, 1);
	settle(8);
	for (int i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, split, &ranks[i]), 0);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	for (int i = 0; i < 8; i++)
		memset(ranks[i].receive, 0, 8 * BYTES);
	for (int round = 0; round < 3; round++)
		for (int half = 0; half < 2; half++)
			gather(8, half, 2);
	settle(8);
	for (int half = 0; half < 2; half++)
		must_have_gathered(8, half, 2);
	ranks_close(8);
	unsetenv("FERRY_FABRICS");
}

/* ---- what is said ---- */

/* What this process writes to its standard error meanwhile. */
static int listen_from(int *before)
{
	char path[] = "/tmp/ferry-fabrics-XXXXXX";
	int file = mkstemp(path);
	*before = dup(STDERR_FILENO);
	assert_true(file >= 0 && *before >= 0);
	unlink(path);
	dup2(file, STDERR_FILENO);
	return file;
}

static void listen_to(int file, int before, char *said, size_t room)
{
	dup2(before, STDERR_FILENO);
	close(before);
	ssize_t length = pread(file, said, room - 1, 0);
	close(file);
	assert_true(length >= 0);
	said[length] = '\0';
}

static int count_of(const char *said, const char *words)
{
	int count = 0;
	for (; (said = strstr(said, words)); said++)
		count++;
	return count;
}

static void a_sum_goes_through_the_host_and_that_is_said_once(void **state)
{
	static float in[4][1000], out[4][1000];
	char said[8192];
	int before;
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	setenv("FERRY_LOG", "info", 1);
	int file = listen_from(&before);
	ranks_open(4);
	for (int i = 0; i < 4; i++)
		in[i][0] = 1;
	for (size_t call = 0; call < 3; call++)
		for (int i = 0; i < 4; i++)
			OK(ferryAllReduce(in[i], out[i], 1000 - call, ferryFloat32, ferrySum, ranks[i].comm,
			                  ranks[i].stream));
	settle(4);
	ranks_close(4);
	listen_to(file, before, said, sizeof said);
	unsetenv("FERRY_LOG");
	unsetenv("FERRY_FABRICS");
	for (int i = 0; i < 4; i++)
		assert_true(out[i][0] == 4);
	if (count_of(said, "FERRY_FABRICS=peer: allreduce goes through the host all the same") != 1)
		fail_msg("not said once: \"%s\"", said);
}

/* ---- lengths that come with the call ---- */

/* Rank `from` sends to rank `to`: nothing, one byte, or many. */
static size_t part_of(int from, int to)
{
	static const size_t lengths[] = {0, 1, 70001};
	return lengths[(from + 2 * to) % 3];
}

static void exchange_parts(int nranks, size_t surplus)
{
	for (int rank = 0; rank < nranks; rank++) {
		size_t sent[4], received[4], at[4], from[4];
		for (int peer = 0; peer < nranks; peer++) {
			sent[peer] = part_of(rank, peer);
			received[peer] = part_of(peer, rank) + (rank == 2 && peer == 1 ? surplus : 0);
			at[peer] = (size_t)peer * BYTES;
			from[peer] = 100 * (size_t)peer;
		}
		ferryResult_t result = ferryAllToAllv(ranks[rank].send, sent, from, ranks[rank].receive, received, at,
		                                      ferryUint8, ranks[rank].comm, ranks[rank].stream);
		assert_true(!result || (surplus && result == ferryInvalidUsage)); /* one may have failed already */
	}
}

static void an_alltoallv_is_pushed_and_the_plan_says_so(void **state)
{
	char said[8192];
	int before;
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	setenv("FERRY_DEBUG", "plan", 1);
	int file = listen_from(&before);
	ranks_open(4);
	for (int round = 0; round < 3; round++) {
		for (int rank = 0; rank < 4; rank++) {
			for (size_t i = 0; i < BYTES; i++)
				ranks[rank].send[i] = (char)((size_t)(50 * round + 10 * rank) + i % 251);
			memset(ranks[rank].receive, 0xee, 4 * BYTES);
		}
		exchange_parts(4, 0);
		settle(4);
		for (int rank = 0; rank < 4; rank++)
			for (int peer = 0; peer < 4; peer++) {
				const char *block = ranks[rank].receive + peer * BYTES, *sent = ranks[peer].send;
				size_t length = part_of(peer, rank);
				assert_memory_equal(block, sent + 100 * rank, length);
				assert_int_equal((unsigned char)block[length], 0xee);
			}
	}
	ranks_close(4);
	listen_to(file, before, said, sizeof said);
	unsetenv("FERRY_DEBUG");
	unsetenv("FERRY_FABRICS");
	if (!strstr(said, "alltoallv of 0 u8") || !strstr(said, "fabrics peer=1, links 12 of 12"))
		fail_msg("%s", said);
}

static void a_part_of_which_its_ends_say_other_lengths_ends_the_job(void **state)
{
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	for (size_t surplus = 1; surplus < 3; surplus++) {
		ranks_open(3);
		memset(ranks[2].receive, 0xee, 3 * BYTES);
		exchange_parts(3, surplus == 2 ? (size_t)0 - part_of(1, 2) : surplus);
		for (int rank = 0; rank < 3; rank++)
			ferryStreamSynchronize(ranks[rank].stream);
		for (int rank = 0; rank < 3; rank++) {
			char says[96];
			ferryResult_t error = ferrySuccess;
			ferryCommGetAsyncError(ranks[rank].comm, &error);
			snprintf(says, sizeof says, "rank 1 sends %zu bytes to rank 2, which expects %zu",
			         part_of(1, 2), surplus == 2 ? 0 : part_of(1, 2) + surplus);
			if (error != ferryInvalidUsage || !strstr(ferryGetLastError(ranks[rank].comm), says))
				fail_msg("%s: \"%s\"", says, error ? ferryGetLastError(ranks[rank].comm) : "");
		}
		for (size_t i = 0; i < BYTES; i++) /* nothing of what was in dispute has been pushed */
			assert_int_equal((unsigned char)ranks[2].receive[BYTES + i], 0xee);
		for (int rank = 0; rank < 3; rank++) {
			OK(ferryStreamDestroy(ranks[rank].stream));
			OK(ferryCommAbort(ranks[rank].comm));
			free(ranks[rank].send);
			free(ranks[rank].receive);
		}
	}
	unsetenv("FERRY_FABRICS");
}

/* ---- no links ---- */

static void without_links_the_host_carries_all_unless_peers_alone_are_named(void **state)
{
	static const char *const fabrics[] = {"host,peer", "peer"};
	(void)state;
	setenv("FERRY_HOST_LINK", "links=dgx1v:25,devices=0,5", 1);
	for (int alone = 0; alone < 2; alone++) {
		setenv("FERRY_FABRICS", fabrics[alone], 1);
		ranks_open(2);
		for (int i = 0; alone && i < 2; i++) {
			assert_int_equal(ferryAllGather(ranks[i].send, ranks[i].receive, BYTES, ferryUint8,
			                                ranks[i].comm, ranks[i].stream),
			                 ferryInvalidUsage);
			assert_non_null(strstr(ferryGetLastError(NULL),
			                       "FERRY_FABRICS=peer, and no rank's device reaches another's memory"));
		}
		if (!alone) {
			gather(2, 0, 1);
			settle(2);
			must_have_gathered(2, 0, 1);
			hand_on(2);
		}
		ranks_close(2);
	}
	unsetenv("FERRY_FABRICS");
	unsetenv("FERRY_HOST_LINK");
}

/* ---- programs of the user's ---- */

static const char ring[] = "program allgather  ranks 3  domains 1  chunks 1\n"
                           "rank 0\n  PUT gpu[0] -> gpu@1[0]\n  PUT gpu[2] -> gpu@1[2]  deps: gpu[2]>=1\n"
                           "rank 1\n  PUT gpu[0] -> gpu@2[1]\n  PUT gpu[0] -> gpu@2[0]  deps: gpu[0]>=1\n"
                           "rank 2\n  PUT gpu[0] -> gpu@0[2]\n  PUT gpu[1] -> gpu@0[1]  deps: gpu[1]>=1\n";

/* A file of the program above, which FERRY_PROGRAM_PATH names. */
static void offer_ring(char path[32])
{
	snprintf(path, 32, "/tmp/ferry-ring-XXXXXX");
	int program = mkstemp(path);
	assert_int_equal(write(program, ring, sizeof ring - 1), sizeof ring - 1);
	close(program);
	setenv("FERRY_PROGRAM_PATH", path, 1);
}

/* By Ferry's own program, with one warning; and what asks for this one is refused. Both for a reason of such words. */
static void ring_must_be_passed_over(const char *words)
{
	char said[8192];
	int before, file = listen_from(&before);
	ranks_open(3);
	for (int round = 0; round < 2; round++)
		gather(3, 0, 1);
	settle(3);
	listen_to(file, before, said, sizeof said);
	must_have_gathered(3, 0, 1);
	if (count_of(said, "is not used for allgather, Ferry's own program is: ") != 1 || count_of(said, words) != 1)
		fail_msg("not said once: \"%s\"", said);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ferryRunProgram(ring, ranks[i].send, ranks[i].receive, BYTES, ferryUint8, ferrySum,
		                                 ranks[i].comm, ranks[i].stream),
		                 ferryProgramError);
		if (!strstr(ferryGetLastError(NULL), words))
			fail_msg("%s", ferryGetLastError(NULL));
	}
	hand_on(3); /* the communicator is well */
	ranks_close(3);
}

static void ring_must_run(void)
{
	char said[8192];
	int before, file = listen_from(&before);
	ranks_open(3);
	gather(3, 0, 1);
	settle(3);
	listen_to(file, before, said, sizeof said);
	must_have_gathered(3, 0, 1);
	if (count_of(said, "is not used"))
		fail_msg("\"%s\"", said);
	for (int i = 0; i < 3; i++) {
		memset(ranks[i].receive, 0, 3 * BYTES);
		OK(ferryRunProgram(ring, ranks[i].send, ranks[i].receive, BYTES, ferryUint8, ferrySum, ranks[i].comm,
		                   ranks[i].stream));
	}
	settle(3);
	must_have_gathered(3, 0, 1);
	ranks_close(3);
}

static void programs_that_push_where_no_link_is_are_passed_over(void **state)
{
	char path[32];
	(void)state;
	offer_ring(path);
	setenv("FERRY_HOST_LINK", "peer=100,peer@0-2=0", 1);
	ring_must_be_passed_over("PUT from rank 2 to rank 0, whose devices do not reach each other");
	setenv("FERRY_HOST_LINK", "peer@0-1=0", 1);
	ring_must_be_passed_over("PUT from rank 0 to rank 1, and no rank's device reaches another's memory");
	setenv("FERRY_HOST_LINK", "peer=100", 1);
	ring_must_run();
	unsetenv("FERRY_HOST_LINK");
	unsetenv("FERRY_PROGRAM_PATH");
	unlink(path);
}

/* Devices that are linked, and FERRY_FABRICS=host. */
static void programs_that_push_where_peers_are_not_named_are_passed_over(void **state)
{
	char path[32];
	(void)state;
	offer_ring(path);
	setenv("FERRY_FABRICS", "host", 1);
	ring_must_be_passed_over("PUT, and FERRY_FABRICS=host leaves peer out");
	setenv("FERRY_FABRICS", "host,peer", 1);
	ring_must_run();
	unsetenv("FERRY_FABRICS");
	unsetenv("FERRY_PROGRAM_PATH");
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(sixty_four_ranks_push_into_each_other),
	        cmocka_unit_test(messages_reach_ranks_whose_devices_no_link_leads_to),
	        cmocka_unit_test(messages_take_the_links_that_there_are),
	        cmocka_unit_test(communicators_out_of_others_push),
	        cmocka_unit_test(a_sum_goes_through_the_host_and_that_is_said_once),
	        cmocka_unit_test(an_alltoallv_is_pushed_and_the_plan_says_so),
	        cmocka_unit_test(a_part_of_which_its_ends_say_other_lengths_ends_the_job),
	        cmocka_unit_test(without_links_the_host_carries_all_unless_peers_alone_are_named),
	        cmocka_unit_test(programs_that_push_where_no_link_is_are_passed_over),
	        cmocka_unit_test(programs_that_push_where_peers_are_not_named_are_passed_over),
	};
	hosted_routers(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
