/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a router that is asked to make itself ready for a job whose router dies (PREPARE): contexts and
 * registered staging are there before anybody hands over, nothing of the job is touched, and who goes without handing
 * over leaves nothing behind. Over the double of CUDA, which tells of contexts and of memory that is registered.
 */
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/endpoint.h"
#include "ipc/publish.h"
#include "tests/fake_cuda/cuda_api.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define RANKS 2

static char contexts_told[] = "/tmp/ferry-tests-contexts-XXXXXX";
static char registered_told[] = "/tmp/ferry-tests-registered-XXXXXX";

/* What a router that dies leaves: an arena, mapped here too. */
struct job {
	uint8_t key[FERRY_KEY_BYTES], gpu[FERRY_GPU_BYTES];
	struct ferry_arena arena;
};

static void make_job(struct job *job, uint8_t name)
{
	const struct ferry_arena_shape shape = {.ndomains = 1, .nranks = RANKS, .staging = 1 << 20, .node = -1};
	CUuuid uuid;
	memset(job->key, name, sizeof job->key);
	assert_int_equal(ferry_arena_create(&shape, &job->arena), ferrySuccess);
	atomic_store(&job->arena.header->attached, RANKS);
	atomic_store(&job->arena.header->fate, FERRY_ARENA_KEPT);
	atomic_store(&job->arena.header->ready, 1);
	assert_int_equal(cuInit(0), CUDA_SUCCESS);
	assert_int_equal(cuDeviceGetUuid(&uuid, 0), CUDA_SUCCESS);
	memcpy(job->gpu, &uuid, sizeof job->gpu);
}

static int connection(void)
{
	int socket;
	assert_int_equal(ferry_endpoint_connect(path, &socket), ferrySuccess);
	return socket;
}

/* As a rank of `like` would: its zeros are the job's own. */
static ferryResult_t ask(int socket, enum ferry_attach_kind kind, const struct job *job,
                         struct ferry_attach_message like, int arena)
{
	struct ferry_attach_reply reply;
	int process = -1;
	like.kind = kind;
	like.nranks = like.nranks ? like.nranks : RANKS;
	like.ndomains = like.ndomains ? like.ndomains : 1;
	like.descriptors = like.ndomains;
	like.hash = 1;
	memcpy(like.key, job->key, sizeof like.key);
	memcpy(like.gpu, job->gpu, sizeof like.gpu);
	ferryResult_t result = ferry_attach_exchange(socket, &like, NULL, &arena, &reply, &process,
	                                             kind == FERRY_ATTACH_ADOPT, NULL);
	if (process >= 0)
		close(process);
	return result;
}

static ferryResult_t prepare(int socket, const struct job *job)
{
	return ask(socket, FERRY_ATTACH_PREPARE, job, (struct ferry_attach_message){0}, job->arena.descriptor);
}

static void refused(ferryResult_t result, const char *words)
{
	if (!result || !strstr(ferry_last_message(), words))
		fail_msg("%s: \"%s\", expected \"%s\"", ferry_result_text(result), ferry_last_message(), words);
}

/* ---- what the double and the router tell ---- */

/* Lines of the file that are of this process, and have one of the signs: +1 or -1. */
static int lines(const char *name, int sign)
{
	FILE *file = fopen(name, "r");
	int pid, count = 0;
	long long what;
	assert_non_null(file);
	while (fscanf(file, "%d %lld", &pid, &what) == 2)
		count += pid == getpid() && (what < 0) == (sign < 0);
	fclose(file);
	return count;
}

static void await_lines(const char *name, int sign, int count)
{
	while (lines(name, sign) < count)
		usleep(200);
	assert_int_equal(lines(name, sign), count);
}

static void status_says(const char *words)
{
	char text[512];
	do
		assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	while (!strstr(text, words));
}

static void begin_telling(void)
{
	assert_int_equal(truncate(contexts_told, 0), 0);
	assert_int_equal(truncate(registered_told, 0), 0);
}

/* ---- tests ---- */

static void staging_is_registered_before_anybody_hands_over_and_nothing_of_the_arena_is_touched(void **state)
{
	(void)state;
	struct job job;
	make_job(&job, 1);
	begin_telling();
	char *before = malloc(job.arena.bytes);
	assert_non_null(before);
	atomic_store(&job.arena.header->router.sleepers, 3); /* as one that dies asleep leaves it */
	memcpy(before, job.arena.header, job.arena.bytes);
	int socket = connection();
	assert_int_equal(prepare(socket, &job), ferrySuccess);
	await_lines(registered_told, 1, 1);
	assert_int_equal(lines(contexts_told, 1), 1);
	assert_memory_equal(before, job.arena.header, job.arena.bytes);
	free(before);
	close(socket);
	await_lines(registered_told, -1, 1);
	status_says(" staging=0 ");
	ferry_arena_unmap(&job.arena);
}

static void who_hands_over_gets_what_was_made_ready_and_it_counts_once(void **state)
{
	(void)state;
	struct job job;
	char counted[64];
	make_job(&job, 2);
	begin_telling();
	int sockets[RANKS] = {connection(), connection()};
	for (int rank = 0; rank < RANKS; rank++) /* the second one has nothing more to do */
		assert_int_equal(prepare(sockets[rank], &job), ferrySuccess);
	snprintf(counted, sizeof counted, " staging=%llu ",
	         (unsigned long long)(FERRY_BANKS * job.arena.staging_bytes));
	status_says(counted);
	await_lines(registered_told, 1, 1);
	for (uint32_t rank = RANKS; rank-- > 0;) /* whoever comes first */
		assert_int_equal(ask(sockets[rank], FERRY_ATTACH_ADOPT, &job,
		                     (struct ferry_attach_message){.rank = rank}, job.arena.descriptor),
		                 ferrySuccess);
	status_says(counted);
	for (int rank = 0; rank < RANKS; rank++) {
		struct ferry_attach_message adopted = {.kind = FERRY_ATTACH_ADOPTED};
		assert_int_equal(ferry_attach_call(sockets[rank], &adopted, NULL, NULL), ferrySuccess);
	}
	assert_int_equal(atomic_load(&job.arena.header->epoch), 1);
	refused(prepare(sockets[0], &job), "or attached, already");
	int late = connection();
	refused(prepare(late, &job), "that this router serves");
	close(late);
	assert_int_equal(lines(registered_told, 1), 1);
	assert_int_equal(lines(registered_told, -1), 0);
	for (int rank = 0; rank < RANKS; rank++) {
		struct ferry_attach_message leave = {.kind = FERRY_ATTACH_DETACH};
		assert_int_equal(ferry_attach_call(sockets[rank], &leave, NULL, NULL), ferrySuccess);
		close(sockets[rank]);
	}
	await_lines(registered_told, -1, 1);
	status_says(" staging=0 ");
	ferry_arena_unmap(&job.arena);
}

/* It is the job's arenas that count, not who has the key. */
static void what_was_made_ready_for_another_arena_or_shape_is_not_taken(void **state)
{
	(void)state;
	struct job job, other;
	make_job(&job, 3);
	make_job(&other, 3);
	begin_telling();
	int first = connection(), second = connection();
	assert_int_equal(prepare(first, &job), ferrySuccess);
	refused(ask(second, FERRY_ATTACH_ADOPT, &job, (struct ferry_attach_message){.nranks = 1}, job.arena.descriptor),
	        "was handed over as that of 1 ranks");
	assert_int_equal(ask(second, FERRY_ATTACH_ADOPT, &other, (struct ferry_attach_message){0},
	                     other.arena.descriptor),
	                 ferrySuccess);
	await_lines(registered_told, 1, 1);
	close(first);
	await_lines(registered_told, -1, 1);
	close(second);
	status_says(" staging=0 ");
	ferry_arena_unmap(&job.arena);
	ferry_arena_unmap(&other.arena);
}

/* Its staging is registered by one for all, but it moves its data on its own GPU. */
static void a_second_rank_has_its_context_made_and_no_more(void **state)
{
	(void)state;
	struct job job, other;
	CUuuid uuid;
	make_job(&job, 7);
	begin_telling();
	other = job;
	assert_int_equal(cuDeviceGetUuid(&uuid, 1), CUDA_SUCCESS);
	memcpy(other.gpu, &uuid, sizeof other.gpu);
	int first = connection(), second = connection();
	assert_int_equal(prepare(first, &job), ferrySuccess);
	assert_int_equal(prepare(second, &other), ferrySuccess);
	await_lines(registered_told, 1, 1);
	await_lines(contexts_told, 1, 2);
	close(first);
	await_lines(registered_told, -1, 1);
	close(second);
	status_says(" staging=0 ");
	ferry_arena_unmap(&job.arena);
}

/* Else who asks, and keeps its connection, keeps memory too. */
static void what_nobody_comes_for_goes_in_time(void **state)
{
	struct job job;
	make_job(&job, 8);
	begin_telling();
	stop_router(state);
	setenv("FERRY_ATTACH_TIMEOUT", "1", 1);
	assert_int_equal(start_router(state), 0);
	int socket = connection();
	assert_int_equal(prepare(socket, &job), ferrySuccess);
	await_lines(registered_told, 1, 1);
	await_lines(registered_told, -1, 1);
	status_says(" staging=0 ");
	close(socket);
	stop_router(state);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	assert_int_equal(start_router(state), 0);
	ferry_arena_unmap(&job.arena);
}

static void nonsense_is_refused(void **state)
{
	(void)state;
	struct job job;
	make_job(&job, 4);
	begin_telling();
	int socket = connection(), empty = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* A page of what could be anybody's is not looked at: not even that there is none is known. */
	refused(ask(socket, FERRY_ATTACH_PREPARE, &job, (struct ferry_attach_message){0}, empty), "is not sealed");
	assert_int_equal(fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refused(ask(socket, FERRY_ATTACH_PREPARE, &job, (struct ferry_attach_message){0}, empty),
	        "shorter than its header");
	refused(ask(socket, FERRY_ATTACH_PREPARE, &job, (struct ferry_attach_message){.nranks = 3},
	            job.arena.descriptor),
	        "was handed over as that of 3 ranks");
	assert_int_equal(prepare(socket, &job), ferrySuccess);
	refused(prepare(socket, &job), "already");
	assert_int_equal(lines(registered_told, -1), 0);
	close(socket);
	close(empty);
	await_lines(registered_told, -1, 1);
	ferry_arena_unmap(&job.arena);
}

/* That takes 20 ms here. Else one that keeps at it would keep the reaper from others, that wait for it to leave. */
static void one_is_undone_at_a_time(void **state)
{
	(void)state;
	struct job job;
	int asked = 0, taken = 0;
	make_job(&job, 5);
	begin_telling();
	for (; taken < 3; asked++) {
		int socket = connection();
		ferryResult_t result = prepare(socket, &job);
		taken += !result;
		if (result)
			refused(result, "while another of this user's is undone");
		close(socket);
	}
	assert_true(asked > taken);
	await_lines(registered_told, -1, 3);
	ferry_arena_unmap(&job.arena);
}

static int connection_of(uid_t user)
{
	assert_int_equal(syscall(SYS_setresuid, -1, user, -1), 0); /* of this thread alone, whose connection it is */
	int socket = connection();
	assert_int_equal(syscall(SYS_setresuid, -1, 0, -1), 0);
	return socket;
}

/* Who keeps at it slows its own jobs. */
static void what_one_user_has_undone_keeps_no_other_waiting(void **state)
{
	struct job job, other;
	char file[] = "/tmp/ferry-preparing-XXXXXX";
	static const char tenants[] = "[tenant two]\nusers = 65533, 65532\n";
	if (geteuid()) {
		print_message("only root can pose as another user: skipped\n");
		skip();
	}
	make_job(&job, 9);
	make_job(&other, 10);
	begin_telling();
	int descriptor = mkstemp(file);
	assert_int_equal(write(descriptor, tenants, sizeof tenants - 1), sizeof tenants - 1);
	stop_router(state);
	struct ferry_router_options options = {
	        .layout = &layout, .directory = "@ferry", .prefix = prefix, .workers = 1, .config = file};
	assert_int_equal(ferry_router_start(&options, &router), ferrySuccess);
	setenv("FAKE_CUDA_UNREGISTER_MS", "2000", 1);
	int sockets[] = {connection_of(65533), connection_of(65533), connection_of(65532)};
	assert_int_equal(prepare(sockets[0], &job), ferrySuccess);
	await_lines(registered_told, 1, 1);
	close(sockets[0]);
	status_says(" staging=0 ");
	refused(prepare(sockets[1], &job), "while another of this user's is undone");
	assert_int_equal(prepare(sockets[2], &other), ferrySuccess);
	assert_int_equal(lines(registered_told, -1), 0); /* so it was while that is undone */
	setenv("FAKE_CUDA_UNREGISTER_MS", "20", 1);
	close(sockets[1]), close(sockets[2]);
	await_lines(registered_told, -1, 2);
	ferry_arena_unmap(&job.arena);
	ferry_arena_unmap(&other.arena);
	close(descriptor);
	unlink(file);
}

static void a_router_that_stops_meanwhile_ends(void **state)
{
	struct job job;
	make_job(&job, 6);
	begin_telling();
	int socket = connection();
	assert_int_equal(prepare(socket, &job), ferrySuccess);
	stop_router(state);
	assert_int_equal(lines(registered_told, 1), 1);
	assert_int_equal(lines(registered_told, -1), 1);
	close(socket);
	ferry_arena_unmap(&job.arena);
	assert_int_equal(start_router(state), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(staging_is_registered_before_anybody_hands_over_and_nothing_of_the_arena_is_touched),
	        TEST(who_hands_over_gets_what_was_made_ready_and_it_counts_once),
	        TEST(what_was_made_ready_for_another_arena_or_shape_is_not_taken),
	        TEST(a_second_rank_has_its_context_made_and_no_more),
	        TEST(what_nobody_comes_for_goes_in_time),
	        TEST(nonsense_is_refused),
	        TEST(one_is_undone_at_a_time),
	        TEST(what_one_user_has_undone_keeps_no_other_waiting),
	        TEST(a_router_that_stops_meanwhile_ends),
	};
	close(mkstemp(contexts_told));
	close(mkstemp(registered_told));
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	setenv("FAKE_CUDA_TOLD", contexts_told, 1);
	setenv("FAKE_CUDA_REGISTERED", registered_told, 1);
	setenv("FAKE_CUDA_UNREGISTER_MS", "20", 1);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(contexts_told);
	unlink(registered_told);
	return failed;
}
