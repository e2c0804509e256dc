/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of this process whose router, another process, moves their data, over the double of the driver: what they get
 * from it. What happens when somebody dies: mapped_failures.c.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"
#include "tests/status_line.h"

#include "ipc/stream_flag.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT 30011

static const int devices[] = {0, 1, 2, 3};

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- threads ---- */

static int threads(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	assert_non_null(tasks);
	for (const struct dirent *entry; (entry = readdir(tasks));)
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/*
 * The double has threads for streams, and those are there before. The suite's first test: there is no router monitor
 * yet.
 */
static void a_ranks_process_has_one_thread_of_ferrys(void **state)
{
	(void)state;
	struct gang gang = {3, devices, {NULL}};
	struct place places[MOST_PLACES];
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		place_write(&places[rank]);
		CU(cuStreamSynchronize(places[rank].stream));
	}
	int before = threads();
	for (int round = 0; round < 2; round++) {
		gang_open(&gang, 3, devices, 2);
		assert_int_equal(threads(), before + 1);
		for (int i = 0; i < 5; i++)
			places_round(places, &gang);
		places_settle(places, &gang, 5 * (uint32_t)(round + 1));
		assert_int_equal(threads(), before + 1);
		gang_close(&gang);
		assert_int_equal(threads(), before + 1);
	}
	places_close(places, &gang);
}

/* ---- memory ---- */

static size_t memory_left(void)
{
	size_t left, total;
	CU(cuMemGetInfo(&left, &total));
	return left;
}

/*
 * Rank 1 comes late to a call; rank 0 frees another buffer meanwhile, which waits for the device, and so for the call.
 * The memory is the router's too, until it has not been used for a second.
 */
static void memory_that_is_freed_beside_a_call_comes_back_within_two_seconds(void **state)
{
	enum { BYTES = 32 << 20 };
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr memory;
	(void)state;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	place_enter(&places[0]);
	size_t before = memory_left();
	CU(cuMemAlloc(&memory, BYTES));
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		OK(ferryAllReduce(pointer_of(rank ? places[1].input : memory), pointer_of(places[rank].output), 1000,
		                  ferryUint32, ferrySum, gang.comms[rank], (ferryStream_t)places[rank].stream));
	}
	places_settle(places, &gang, 1);
	double used = seconds();
	places[1].wait_ms = 300;
	places_round(places, &gang);
	place_enter(&places[0]);
	CU(cuMemFree(memory)); /* which waits for no call */
	size_t left = memory_left();
	if (seconds() - used < 1) /* else the buffer may have idled long enough by now */
		assert_int_equal(left, before - BYTES); /* the router has it mapped */
	places_settle(places, &gang, 2);
	place_enter(&places[0]);
	double start = seconds();
	while (memory_left() != before && seconds() - start < 60)
		doze(5);
	if (memory_left() != before)
		fail_msg("%zu bytes of %d are back", memory_left() + BYTES - before, BYTES);
	places_round(places, &gang);
	places_settle(places, &gang, 3);
	gang_close(&gang);
	places_close(places, &gang);
}

/* Each where others of this rank were, and of the other one: the router must not take it for those. */
static void a_thousand_buffers_at_the_same_addresses_have_the_right_data(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr seen[8] = {0};
	int addresses = 0;
	(void)state;
	gang_open(&gang, 2, devices, 1);
	for (int i = 0; i < REPEATS(1000, 200); i++) {
		places_open(places, &gang, 1000);
		int known = 0;
		while (known < addresses && seen[known] != places[0].input)
			known++;
		if (known == addresses)
			seen[addresses++] = places[0].input;
		assert_in_range(addresses, 1, 7);
		for (int rank = 0; rank < 2; rank++)
			places[rank].round = (uint32_t)i; /* the inputs' seed */
		places_round(places, &gang);
		places_settle(places, &gang, (uint32_t)i + 1);
		places_close(places, &gang);
	}
	gang_close(&gang);
}

/* ---- ahead ---- */

static _Atomic int held_up;

static void three_hundred_calls_ahead_of_a_held_stream_return_at_once(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	(void)state;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, 1000);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	atomic_store(&held_up, 1);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(fake_cuda_launch(places[rank].stream, hold, &held_up));
	}
	for (int i = 0; i < 300; i++)
		places_round(places, &gang);
	atomic_store(&held_up, 0);
	places_settle(places, &gang, 301);
	gang_close(&gang);
	places_close(places, &gang);
}

/* The ring has room for so many; nothing of a call's making waits for the router. */
static void three_hundred_calls_ahead_of_a_router_that_stands_still_return_at_once(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	(void)state;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, 1000);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	kill(routers_pid(0), SIGSTOP);
	for (int i = 0; i < 300; i++)
		places_round(places, &gang);
	kill(routers_pid(0), SIGCONT);
	places_settle(places, &gang, 301);
	gang_close(&gang);
	places_close(places, &gang);
}

/* It has not died, and its own threads cannot say that they are late. */
static void a_router_that_stands_still_is_told_of_once(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	char path[] = "/tmp/ferry-mapped-XXXXXX", said[2048];
	(void)state;
	int file = mkstemp(path), before = dup(STDERR_FILENO);
	assert_true(file >= 0 && before >= 0);
	unlink(path);
	setenv("FERRY_TIMEOUT", "1", 1);
	gang_open(&gang, 2, devices, 1);
	unsetenv("FERRY_TIMEOUT");
	places_open(places, &gang, 1000);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	kill(routers_pid(0), SIGSTOP);
	assert_int_equal(waitpid(routers_pid(0), NULL, WUNTRACED), routers_pid(0));
	dup2(file, STDERR_FILENO);
	places_round(places, &gang);
	doze(4500); /* stalls are looked for once a second */
	dup2(before, STDERR_FILENO);
	close(before);
	kill(routers_pid(0), SIGCONT);
	places_settle(places, &gang, 2);
	gang_close(&gang);
	places_close(places, &gang);
	ssize_t length = pread(file, said, sizeof said - 1, 0);
	close(file);
	assert_true(length > 0);
	said[length] = '\0';
	for (int rank = 0; rank < 2; rank++) {
		char line[96];
		snprintf(line, sizeof line, "rank %d has waited ", rank);
		const char *first = strstr(said, line), *more = first ? strstr(first + 1, line) : NULL;
		snprintf(line, sizeof line, "for the router of domain 0 (process %d) to take its calls",
		         (int)routers_pid(0));
		if (!first || more || !strstr(first, line))
			fail_msg("not said once of rank %d, but \"%s\"", rank, said);
	}
}

/* ---- several communicators ---- */

/* Two of two devices, one of four over both domains, and one of the other two devices. */
static void communicators_share_gpus_and_routers(void **state)
{
	static const int nranks[] = {2, 2, 4, 2};
	struct gang gangs[4];
	struct place places[4][MOST_PLACES];
	(void)state;
	for (int which = 0; which < 4; which++) {
		gang_open(&gangs[which], nranks[which], which == 3 ? devices + 2 : devices, which == 2 ? 2 : 1);
		places_open(places[which], &gangs[which], 3000 + 1000 * (size_t)which);
	}
	for (int i = 0; i < 30; i++)
		for (int which = 0; which < 4; which++)
			places_round(places[(which + i) % 4], &gangs[(which + i) % 4]);
	for (int which = 0; which < 4; which++)
		places_settle(places[which], &gangs[which], 30);
	for (int which = 0; which < 4; which++) {
		gang_close(&gangs[which]);
		places_close(places[which], &gangs[which]);
	}
}

/* ---- messages ---- */

#define MESSAGES 250 /* more than a record of a submission has room for */

static size_t elements_of(int message)
{
	return message % 10 == 3 ? 0 : (size_t)(message * 37 % 400) + 1;
}

static void fill(const struct place *place, uint32_t seed)
{
	uint32_t *input = fake_cuda_reach(place->input);
	for (size_t i = 0; i < place->count; i++)
		input[i] = seed * 1000003 + (uint32_t)place->rank * 7919 + (uint32_t)i;
}

static void group_of_messages(const struct place *place, ferryComm_t comm, uint32_t seed)
{
	ferryStream_t stream = (ferryStream_t)place->stream;
	size_t at = seed;
	place_enter(place);
	OK(ferryGroupStart());
	for (int i = 0; i < MESSAGES; at += elements_of(i++)) {
		OK(ferrySend(pointer_of(place->input + 4 * at), elements_of(i), ferryUint32, (place->rank + 1) % 3,
		             comm, stream));
		OK(ferryRecv(pointer_of(place->output + 4 * at), elements_of(i), ferryUint32, (place->rank + 2) % 3,
		             comm, stream));
	}
	OK(ferryGroupEnd());
}

static void groups_of_hundreds_of_sends_and_receives_are_right(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	size_t all = 0;
	(void)state;
	for (int i = 0; i < MESSAGES; i++)
		all += elements_of(i);
	gang_open(&gang, 3, devices, 2);
	places_open(places, &gang, all + 10);
	for (uint32_t seed = 0; seed < 10; seed++) {
		for (int rank = 0; rank < 3; rank++) {
			fill(&places[rank], seed);
			memset(fake_cuda_reach(places[rank].output), 0, places[rank].count * 4);
		}
		for (int rank = 0; rank < 3; rank++)
			group_of_messages(&places[rank], gang.comms[rank], seed);
		places_settle(places, &gang, 0);
		for (int rank = 0; rank < 3; rank++) {
			const uint32_t *output = fake_cuda_reach(places[rank].output);
			const uint32_t *sent = fake_cuda_reach(places[(rank + 2) % 3].input);
			assert_memory_equal(output + seed, sent + seed, all * 4);
			assert_int_equal(output[seed + all], 0);
		}
	}
	gang_close(&gang);
	places_close(places, &gang);
}

/* Rank r sends to peer p: nothing, a few, or many. */
static size_t part_of(int from, int to)
{
	static const size_t parts[3][3] = {{5, 0, 200003}, {0, 0, 1}, {100000, 77, 0}};
	return parts[from][to];
}

static void alltoallv_with_empty_and_large_parts_is_right(void **state)
{
	enum { ROOM = 200100 };
	struct gang gang;
	struct place places[MOST_PLACES];
	(void)state;
	gang_open(&gang, 3, devices, 2);
	places_open(places, &gang, 3 * ROOM);
	for (uint32_t seed = 0; seed < 5; seed++) {
		for (int rank = 0; rank < 3; rank++) {
			size_t sent[3], received[3], from[3], to[3];
			fill(&places[rank], seed);
			memset(fake_cuda_reach(places[rank].output), 0xee, places[rank].count * 4);
			for (int peer = 0; peer < 3; peer++) {
				sent[peer] = part_of(rank, peer);
				received[peer] = part_of(peer, rank);
				from[peer] = (size_t)peer * ROOM + seed;
				to[peer] = (size_t)(2 - peer) * ROOM + 2 * seed;
			}
			place_enter(&places[rank]);
			OK(ferryAllToAllv(pointer_of(places[rank].input), sent, from, pointer_of(places[rank].output),
			                  received, to, ferryUint32, gang.comms[rank],
			                  (ferryStream_t)places[rank].stream));
		}
		places_settle(places, &gang, 0);
		for (int rank = 0; rank < 3; rank++)
			for (int peer = 0; peer < 3; peer++) {
				const uint32_t *output = fake_cuda_reach(places[rank].output);
				const uint32_t *input = fake_cuda_reach(places[peer].input);
				const uint32_t *got = output + (size_t)(2 - peer) * ROOM + 2 * seed;
				assert_memory_equal(got, input + (size_t)rank * ROOM + seed, part_of(peer, rank) * 4);
				assert_int_equal(got[part_of(peer, rank)], 0xeeeeeeee);
			}
	}
	gang_close(&gang);
	places_close(places, &gang);
}

/* ---- graphs ---- */

/* This process's block of words. */
static struct ferry_stream_flag *find_flags(void)
{
	char path[300], name[64];
	struct ferry_stream_flag *flags = NULL;
	struct dirent *entry;
	DIR *files = opendir("/proc/self/fd");
	while (files && !flags && (entry = readdir(files))) {
		snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
		ssize_t length = readlink(path, name, sizeof name - 1);
		name[length < 0 ? 0 : length] = '\0';
		if (strstr(name, "memfd:ferry-words"))
			flags = mmap(NULL, FERRY_STREAM_FLAGS * sizeof *flags, PROT_READ, MAP_SHARED,
			             atoi(entry->d_name), 0);
	}
	closedir(files);
	assert_true(flags && flags != MAP_FAILED);
	return flags;
}

/* Flags that no graph has any more, and that the router still holds. */
static int flags_to_release(const struct ferry_stream_flag *flags)
{
	int count = 0;
	for (uint32_t i = 0; i < FERRY_STREAM_FLAGS; i++)
		count += atomic_load(&flags[i].forgotten) == 1;
	return count;
}

/* Eight calls on two communicators, in turns, the kernels of each around them. */
static CUgraphExec capture_eight(struct place *place, struct place *other, const struct gang *gangs, int rank)
{
	CUgraph captured;
	CUgraphExec graph;
	place_enter(place);
	CU(cuStreamBeginCapture(place->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CUstream own = other->stream;
	other->stream = place->stream;
	for (int i = 0; i < 4; i++) {
		place_write(place);
		place_call(place, gangs[0].comms[rank]);
		place_judge(place);
		place_write(other);
		place_call(other, gangs[1].comms[rank]);
		place_judge(other);
	}
	other->stream = own;
	CU(cuStreamEndCapture(place->stream, &captured));
	CU(cuGraphInstantiateWithFlags(&graph, captured, 0));
	CU(cuGraphDestroy(captured));
	return graph;
}

static void graphs_of_eight_calls_on_two_communicators_are_replayed_and_leave_nothing(void **state)
{
	struct gang gangs[2];
	struct place places[2][MOST_PLACES];
	CUgraphExec graphs[2];
	uint32_t rounds = 0;
	(void)state;
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2, devices, 1);
		places_open(places[which], &gangs[which], 500);
	}
	struct ferry_stream_flag *flags = find_flags();
	const int last = REPEATS(40, 12);
	for (int round = 0; round <= last; round++) {
		int replays = round ? 2 : REPEATS(300, 60);
		for (int rank = 0; rank < 2; rank++)
			graphs[rank] = capture_eight(&places[0][rank], &places[1][rank], gangs, rank);
		for (int i = 0; i < replays; i++)
			for (int rank = 0; rank < 2; rank++) {
				place_enter(&places[0][rank]);
				CU(cuGraphLaunch(graphs[rank], places[0][rank].stream));
			}
		rounds += 4 * (uint32_t)replays;
		places_settle(places[0], &gangs[0], rounds);
		places_settle(places[1], &gangs[1], rounds);
		if (round == last)
			doze(500); /* the lanes have gone to sleep */
		for (int rank = 0; rank < 2; rank++)
			CU(cuGraphExecDestroy(graphs[rank]));
		double start = seconds();
		int left; /* looked at once: the graph's destructors may come later */
		while ((left = flags_to_release(flags)) && seconds() - start < 60)
			doze(1);
		assert_int_equal(left, 0);
	}
	munmap(flags, FERRY_STREAM_FLAGS * sizeof *flags);
	for (int which = 0; which < 2; which++) {
		gang_close(&gangs[which]);
		places_close(places[which], &gangs[which]);
	}
}

/* Each captured call pins its two buffers; a rank can name a thousand at a time. */
static void buffers_of_graphs_that_are_gone_are_not_pinned(void **state)
{
	enum { ROUNDS = REPEATS(80, 36), CALLS = 16 };
	static CUdeviceptr buffers[2][ROUNDS * CALLS];
	struct gang gang;
	struct place places[MOST_PLACES];
	(void)state;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, 16);
	for (int round = 0; round < ROUNDS; round++)
		for (int rank = 0; rank < 2; rank++) {
			CUgraph captured;
			place_enter(&places[rank]);
			CUdeviceptr *mine = &buffers[rank][round * CALLS];
			for (int i = 0; i < CALLS; i++)
				CU(cuMemAlloc(&mine[i], 64));
			CU(cuStreamBeginCapture(places[rank].stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
			for (int i = 0; i < CALLS; i++)
				OK(ferryAllReduce(pointer_of(mine[i]), pointer_of(mine[i]), 16, ferryUint32, ferrySum,
				                  gang.comms[rank], (ferryStream_t)places[rank].stream));
			CU(cuStreamEndCapture(places[rank].stream, &captured));
			CU(cuGraphDestroy(captured));
		}
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		for (int i = 0; i < ROUNDS * CALLS; i++)
			CU(cuMemFree(buffers[rank][i]));
	}
	gang_close(&gang);
	places_close(places, &gang);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

/* ---- what the router tells ---- */

static bool has_links(const struct ferry_counters *counters, int device)
{
	CUuuid uuid;
	CU(cuDeviceGetUuid(&uuid, device));
	for (uint32_t i = 0; i < counters->ngpu_rows; i++)
		if (!memcmp(counters->gpu_rows[i].uuid, uuid.bytes, sizeof uuid.bytes))
			return counters->gpu_rows[i].nlinks > 0;
	return false;
}

/* In ferry-stat's JSON, as a person runs it: the double's devices 0 and 1 have an NVLink. */
static void the_links_of_a_routers_gpus_are_named_with_their_ranks(void **state)
{
	static const int three[] = {0, 1, 2};
	struct gang gang;
	char text[8192], expected[256], uuids[3][48];
	(void)state;
	gang_open(&gang, 3, three, 1);
	FILE *stat = popen(FERRY_STAT_EXE " --json", "r");
	assert_non_null(stat);
	text[fread(text, 1, sizeof text - 1, stat)] = '\0';
	assert_int_equal(pclose(stat), 0);
	for (int device = 0; device < 3; device++) {
		CUuuid uuid;
		int length = sprintf(uuids[device], "GPU");
		CU(cuDeviceGetUuid(&uuid, device));
		for (int i = 0; i < 16; i++)
			length += sprintf(uuids[device] + length, i && (i < 4 || i > 10 || i % 2) ? "%02x" : "-%02x",
			                  (unsigned char)uuid.bytes[i]);
	}
	for (int from = 0; from < 3; from++)
		for (int to = 0; to < 3; to++) {
			snprintf(expected, sizeof expected, "{\"gpu\":\"%s\",\"rank\":%d,\"atomics\":%s}", uuids[to],
			         from / 2 != to / 2, from / 2 == to / 2 ? "true" : "false");
			const char *own = strstr(text, "\"gpus\":"), *end;
			char begin[256];
			snprintf(begin, sizeof begin, "{\"gpu\":\"%s\",\"pid\"", uuids[from]);
			own = own ? strstr(own, begin) : NULL;
			end = own ? strchr(own, ']') : NULL;
			const char *found = own ? strstr(own, expected) : NULL;
			if (!end || (found && found < end) != (from != to))
				fail_msg("from %d to %d: \"%s\" in %s", from, to, expected, text);
		}
	gang_close(&gang);
}

static void a_router_tells_of_its_gpus_and_of_what_it_moves_for_a_job(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	static struct ferry_counters counters;
	char path[128];
	snprintf(path, sizeof path, "%s/router-0.sock", getenv("FERRY_SOCKET_DIR"));
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	assert_true(has_links(&counters, 0) && has_links(&counters, 1));
	assert_int_equal(counters.njob_rows, 1);
	/* Both ranks' data, up and down, in as many calls as a round has. */
	const struct ferry_job_counters *job = &counters.job_rows[0];
	assert_true(job->calls > 0 && job->d2h >= 2ull * COUNT * sizeof(uint32_t));
	assert_int_equal(job->h2d, places_gather() ? 0 : job->d2h); /* what is pushed goes up */
	places_close(places, &gang);
	gang_close(&gang);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_ranks_process_has_one_thread_of_ferrys),
	        TEST(memory_that_is_freed_beside_a_call_comes_back_within_two_seconds),
	        TEST(a_thousand_buffers_at_the_same_addresses_have_the_right_data),
	        TEST(three_hundred_calls_ahead_of_a_held_stream_return_at_once),
	        TEST(three_hundred_calls_ahead_of_a_router_that_stands_still_return_at_once),
	        TEST(a_router_that_stands_still_is_told_of_once),
	        TEST(communicators_share_gpus_and_routers),
	        TEST(groups_of_hundreds_of_sends_and_receives_are_right),
	        TEST(alltoallv_with_empty_and_large_parts_is_right),
	        TEST(graphs_of_eight_calls_on_two_communicators_are_replayed_and_leave_nothing),
	        TEST(buffers_of_graphs_that_are_gone_are_not_pinned),
	        TEST(a_router_tells_of_its_gpus_and_of_what_it_moves_for_a_job),
	        TEST(the_links_of_a_routers_gpus_are_named_with_their_ranks),
	};
	struct rlimit files;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max; /* the double has one for each allocation */
	setrlimit(RLIMIT_NOFILE, &files);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
