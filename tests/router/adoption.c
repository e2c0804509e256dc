/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a router that takes another's place: it goes on behind what that one had published, and believes nothing
 * of what ranks bring. The ranks, and the router that has ended, are played by hand.
 */
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/endpoint.h"
#include "ipc/process.h"
#include "ipc/publish.h"
#include "rank-lib/program/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define RANKS  2
#define COUNT  1000 /* elements of an int32 AllReduce: 16 slices */
#define SLICE  256
#define WINDOW 4

/* What the router that has ended left. */
struct left {
	uint8_t key[FERRY_KEY_BYTES];
	struct ferry_arena arena;
	struct ferry_arena other;       /* domain 1's, where there is one: of rank 1 */
	struct ferry_job_arenas shared; /* the first of them */
	struct ferry_plan *plan;
	const struct ferry_instr *reduce;
	int sockets[RANKS]; /* to the next; -1: none */
};

static uint64_t seed = 1;

static uint64_t next_random(void)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return seed >> 24;
}

static void make_arena(uint32_t domain, uint32_t ndomains, struct ferry_arena *arena)
{
	const struct ferry_arena_shape shape = {
	        .domain = domain, .ndomains = ndomains, .nranks = RANKS, .staging = 1 << 20, .node = -1};
	assert_int_equal(ferry_arena_create(&shape, arena), ferrySuccess);
	atomic_store(&arena->header->attached, RANKS);
	atomic_store(&arena->header->fate, FERRY_ARENA_KEPT);
	atomic_store(&arena->header->ready, 1);
	arena->header->rank_domain[1] = (uint8_t)(ndomains - 1);
}

static void make_left_of(struct left *left, uint8_t name, uint32_t ndomains)
{
	struct ferry_topology topology = {.nranks = RANKS, .ndomains = 1};
	struct ferry_compile_options options = {
	        .count = COUNT, .type = ferryInt32, .redop = ferrySum, .slice = SLICE, .window = WINDOW};
	struct ferry_program *program;
	*left = (struct left){.sockets = {-1, -1}, .other.descriptor = -1};
	memset(left->key, name, sizeof left->key);
	make_arena(0, ndomains, &left->arena);
	if (ndomains == 2)
		make_arena(1, ndomains, &left->other);
	left->shared = (struct ferry_job_arenas){.nranks = RANKS, .ndomains = 1, .arenas = {left->arena}};
	options.staging[0] = left->arena.staging_bytes;
	assert_int_equal(ferry_program_synthesize(FERRY_ALLREDUCE, &topology, 0, &program), ferrySuccess);
	assert_int_equal(ferry_program_compile(program, &options, &left->plan), ferrySuccess);
	ferry_program_free(program);
	for (uint32_t i = 0; i < left->plan->ninstrs; i++)
		if (ferry_plan_instrs(left->plan)[i].opcode == FERRY_REDUCE)
			left->reduce = &ferry_plan_instrs(left->plan)[i];
	assert_true(left->reduce->nslices > WINDOW);
}

static void make_left(struct left *left, uint8_t name)
{
	make_left_of(left, name, 1);
}

static void free_left(struct left *left)
{
	for (int rank = 0; rank < RANKS; rank++) {
		struct ferry_attach_message leave = {.kind = FERRY_ATTACH_DETACH};
		if (left->sockets[rank] >= 0)
			ferry_attach_call(left->sockets[rank], &leave, NULL, NULL);
	}
	for (int rank = 0; rank < RANKS; rank++)
		if (left->sockets[rank] >= 0)
			close(left->sockets[rank]);
	ferry_arena_unmap(&left->arena);
	ferry_arena_unmap(&left->other);
	free(left->plan);
}

/* ---- handing over ---- */

static ferryResult_t adopt_with(struct left *left, uint32_t rank, struct ferry_attach_message message, int arena)
{
	const int arenas[] = {arena, left->other.descriptor};
	struct ferry_attach_reply reply;
	int process = -1;
	message.kind = FERRY_ATTACH_ADOPT;
	message.rank = rank;
	message.descriptors = message.ndomains;
	message.hash = 1;
	memcpy(message.key, left->key, sizeof message.key);
	assert_int_equal(ferry_endpoint_connect(path, &left->sockets[rank]), ferrySuccess);
	ferryResult_t result = ferry_attach_exchange(left->sockets[rank], &message, NULL, arenas, &reply, &process, 1,
	                                             NULL);
	if (result) {
		close(left->sockets[rank]);
		left->sockets[rank] = -1;
	} else {
		close(process);
	}
	return result;
}

static ferryResult_t adopt(struct left *left, uint32_t rank, int arena)
{
	return adopt_with(left, rank, (struct ferry_attach_message){.nranks = RANKS, .ndomains = 1}, arena);
}

static ferryResult_t notify(struct left *left, uint32_t rank, enum ferry_attach_kind kind)
{
	struct ferry_attach_message message = {.kind = kind};
	const void *payload = NULL;
	if (kind == FERRY_ATTACH_PLAN) {
		message.payload = left->plan->bytes;
		payload = left->plan;
	}
	return ferry_attach_call(left->sockets[rank], &message, payload, NULL);
}

static void hand_over(struct left *left)
{
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		assert_int_equal(adopt(left, rank, left->arena.descriptor), ferrySuccess);
		assert_int_equal(notify(left, rank, FERRY_ATTACH_PLAN), ferrySuccess);
		assert_int_equal(atomic_load(&left->arena.header->epoch), 0);
		assert_int_equal(notify(left, rank, FERRY_ATTACH_ADOPTED), ferrySuccess);
	}
	assert_int_equal(atomic_load(&left->arena.header->epoch), 1);
}

/* ---- calls ---- */

static struct ferry_counter *counter_of(const struct left *left, const struct ferry_instr *instr, uint64_t seq)
{
	return (struct ferry_counter *)&left->arena.counters[seq % FERRY_PARITIES][instr->counter];
}

static int32_t *slot_of(const struct left *left, const struct ferry_instr *instr, uint64_t seq, uint32_t slice)
{
	return (int32_t *)(left->arena.staging[seq % FERRY_PARITIES] + instr->window_offset +
	                   ferry_plan_slot(left->plan, seq, slice));
}

static void submit(struct left *left, uint64_t seq)
{
	const struct ferry_descriptor_fields fields = {.plan_hash = left->plan->hash,
	                                               .count = COUNT,
	                                               .domains = 1,
	                                               .shape = FERRY_ALLREDUCE | ferryInt32 << 8};
	for (uint32_t rank = 0; rank < RANKS; rank++)
		ferry_descriptor_write(&left->arena.rank_lines[rank].ring[seq % FERRY_PARITIES], seq, &fields);
}

/* The ranks' lanes have put up so many slices: rank r's element i is 1000 * r + i; all of `value` are in the sums. */
static void play(struct left *left, uint64_t seq, uint32_t d2h, uint32_t published)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(left->plan);
	for (uint32_t i = 0; i < left->plan->ninstrs; i++) {
		uint32_t slices = instrs[i].opcode == FERRY_D2H      ? d2h
		                  : instrs[i].opcode == FERRY_REDUCE ? published
		                                                     : 0;
		for (uint32_t slice = 0; instrs[i].opcode == FERRY_D2H && slice < d2h; slice++)
			for (uint32_t k = 0; k < SLICE / 4; k++)
				slot_of(left, &instrs[i], seq, slice)[k] =
				        (int32_t)(1000 * instrs[i].owner + slice * (SLICE / 4) + k);
		atomic_store(&counter_of(left, &instrs[i], seq)->value, ferry_counter_value(seq, slices));
	}
}

static void await_counter(const struct left *left, uint64_t seq, uint32_t slices)
{
	const struct ferry_counter *counter = counter_of(left, left->reduce, seq);
	while (ferry_counter_slices(atomic_load(&counter->value), seq) < slices)
		usleep(100);
}

static void the_next_router_goes_on_behind_what_was_published_and_does_the_rest_again(void **state)
{
	(void)state;
	struct left left;
	make_left(&left, 1);
	submit(&left, 1);
	play(&left, 1, 3, 1);
	slot_of(&left, left.reduce, 1, 0)[0] = -5;  /* published: readers may have it */
	slot_of(&left, left.reduce, 1, 1)[0] = -77; /* half done */
	hand_over(&left);
	await_counter(&left, 1, 3);
	assert_int_equal(slot_of(&left, left.reduce, 1, 0)[0], -5);
	for (uint32_t slice = 1; slice < 3; slice++)
		for (uint32_t k = 0; k < SLICE / 4; k++)
			assert_int_equal(slot_of(&left, left.reduce, 1, slice)[k],
			                 1000 + 2 * (slice * (SLICE / 4) + k));
	usleep(2000);
	await_counter(&left, 1, 3);
	assert_int_equal(atomic_load(&left.arena.header->finished[1]), 0);
	free_left(&left);
}

static void a_call_of_which_all_was_published_ends(void **state)
{
	(void)state;
	struct left left;
	make_left(&left, 2);
	submit(&left, 1);
	play(&left, 1, left.reduce->nslices, left.reduce->nslices);
	hand_over(&left);
	while (atomic_load(&left.arena.header->finished[1]) != 1)
		usleep(100);
	free_left(&left);
}

/* Its plan may have been dropped since. */
static void a_call_that_was_over_is_not_looked_at_again(void **state)
{
	(void)state;
	struct left left;
	make_left(&left, 3);
	submit(&left, 1);
	play(&left, 1, left.reduce->nslices, left.reduce->nslices);
	atomic_store(&left.arena.header->finished[1], 1);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		assert_int_equal(adopt(&left, rank, left.arena.descriptor), ferrySuccess);
		assert_int_equal(notify(&left, rank, FERRY_ATTACH_ADOPTED), ferrySuccess);
	}
	usleep(20000);
	assert_int_equal(atomic_load(&left.arena.header->failed), 0);
	free_left(&left);
}

static void nothing_begins_before_all_ranks_have_come_and_who_has_left_is_not_waited_for(void **state)
{
	(void)state;
	struct left left;
	make_left(&left, 4);
	submit(&left, 1);
	play(&left, 1, 3, 0);
	assert_int_equal(adopt(&left, 0, left.arena.descriptor), ferrySuccess);
	assert_int_equal(notify(&left, 0, FERRY_ATTACH_PLAN), ferrySuccess);
	assert_int_equal(notify(&left, 0, FERRY_ATTACH_ADOPTED), ferrySuccess);
	usleep(20000);
	assert_int_equal(atomic_load(&counter_of(&left, left.reduce, 1)->value), ferry_counter_value(1, 0));
	atomic_fetch_or(&left.arena.header->left, 2);
	await_counter(&left, 1, 3);
	free_left(&left);
}

/* ---- the rank that a failure names ---- */

/* By the successor, once it has failed the job. */
static void names(const struct left *left, const char *words)
{
	char message[FERRY_MESSAGE_BYTES];
	uint32_t code;
	while (!atomic_load(&left->arena.header->failed))
		usleep(100);
	assert_true(ferry_failure_read(&left->arena.header->failure, &code, message));
	if (!strstr(message, words))
		fail_msg("\"%s\", expected \"%s\"", message, words);
}

/* Domain 1's router has told rank 0 that rank 1 died; *gone: what connections that router has seen close. */
static void make_told(struct left *left, uint8_t name, uint64_t gone)
{
	make_left_of(left, name, 2);
	atomic_store(&left->other.header->gone, gone);
	ferry_failure_set(&left->other.header->failure, ferryRemoteError, "rank 1 of 2 died");
	atomic_store(&left->other.header->failed, 1);
}

/*
 * The orders of events in which both routers are being replaced, and that of domain 1 is the first to find rank 1 dead:
 * - Rank 1's process ends before it hands over. Rank 0 reads the failure, gives up and closes its connections. The
 *   successor of domain 0 sees rank 0's connection close first.
 * - Rank 1's connection closes. Rank 0 gives up likewise, and then the successor sees rank 1's connection close.
 */
static void a_rank_that_was_told_of_a_death_and_gave_up_is_not_named_for_it(void **state)
{
	(void)state;
	for (uint32_t closes = 0; closes < RANKS; closes++) {
		struct left left;
		make_told(&left, (uint8_t)(150 + closes), closes ? 1 | 1 << 1 : 0);
		const struct ferry_attach_message message = {.nranks = RANKS, .ndomains = 2, .domain = closes};
		assert_int_equal(adopt_with(&left, closes, message, left.arena.descriptor), ferrySuccess);
		close(left.sockets[closes]);
		left.sockets[closes] = -1;
		names(&left, "rank 1 of 2 died");
		free_left(&left);
	}
}

static void publish_ended_process(const struct left *left, uint32_t rank)
{
	struct ferry_rank_line *line = &left->arena.rank_lines[rank];
	pid_t child = fork();
	if (!child)
		_exit(0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	atomic_store(&line->process_names, ferry_process_names());
	atomic_store(&line->process_start, 1);
	atomic_store(&line->process, (uint32_t)child);
}

/* Rank 1 has come to the successor of domain 0; rank 0 ended when it was told, and had not come. */
static void nor_is_one_that_ended_for_it(void **state)
{
	(void)state;
	struct left left;
	make_told(&left, 152, 0);
	publish_ended_process(&left, 0);
	const struct ferry_attach_message message = {.nranks = RANKS, .ndomains = 2, .domain = 1};
	assert_int_equal(adopt_with(&left, 1, message, left.arena.descriptor), ferrySuccess);
	names(&left, "rank 1 of 2 died");
	free_left(&left);
}

/* ---- what is not believed ---- */

/* The same bytes in another file. */
static int copy_of(const struct left *left, int file)
{
	assert_int_equal(ftruncate(file, (off_t)left->arena.bytes), 0);
	void *bytes = mmap(NULL, left->arena.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	assert_true(bytes != MAP_FAILED);
	memcpy(bytes, left->arena.header, 1 << 16);
	munmap(bytes, left->arena.bytes);
	return file;
}

static void refused(struct left *left, uint32_t rank, struct ferry_attach_message message, int arena, const char *words)
{
	ferryResult_t result = adopt_with(left, rank, message, arena);
	if (!result || !strstr(ferry_last_message(), words))
		fail_msg("%s: \"%s\", expected \"%s\"", ferry_result_text(result), ferry_last_message(), words);
}

static void an_arena_that_is_not_what_it_is_said_to_be_is_refused(void **state)
{
	(void)state;
	struct left left, other;
	const struct ferry_attach_message right = {.nranks = RANKS, .ndomains = 1};
	char name[] = "/tmp/ferry-adoption-XXXXXX";
	make_left(&left, 5);
	int loose = copy_of(&left, memfd_create("loose", MFD_CLOEXEC)), file = copy_of(&left, mkstemp(name));
	int pipes[2], empty = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	unlink(name);
	assert_int_equal(pipe(pipes), 0);
	refused(&left, 0, right, loose, "is not sealed");
	refused(&left, 0, right, file, "neither memory nor a device");
	refused(&left, 0, right, empty, "is not sealed"); /* that it has no page has not been seen */
	assert_int_equal(fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refused(&left, 0, right, empty, "shorter than its header");
	refused(&left, 0, right, pipes[0], "neither memory nor a device");
	refused(&left, 0, (struct ferry_attach_message){.nranks = 3, .ndomains = 1}, left.arena.descriptor,
	        "was handed over as that of 3 ranks");
	refused(&left, 0, (struct ferry_attach_message){.nranks = RANKS, .ndomains = 1, .domain = 1},
	        left.arena.descriptor, "domain 1 of 1");
	atomic_store(&left.arena.header->attached, 1);
	refused(&left, 0, (struct ferry_attach_message){.nranks = RANKS, .ndomains = 1, .flags = FERRY_ATTACH_FOREIGN},
	        left.arena.descriptor, "is no foreign rank in its own domain 0");
	refused(&left, 0, right, left.arena.descriptor, "1 of 2 ranks had attached");
	atomic_store(&left.arena.header->attached, RANKS);
	left.arena.header->rank_domain[1] = 3;
	refused(&left, 0, right, left.arena.descriptor, "rank 1 is in domain 3 of 1");
	left.arena.header->rank_domain[1] = 0;
	make_left(&other, 5);
	assert_int_equal(adopt(&left, 0, left.arena.descriptor), ferrySuccess);
	refused(&other, 1, right, other.arena.descriptor, "other arenas than the ranks before it");
	refused(&other, 0, right, left.arena.descriptor, "handed over its part of the job already");
	assert_int_equal(adopt(&left, 1, left.arena.descriptor), ferrySuccess);
	free_left(&left);
	free_left(&other);
	close(loose), close(file), close(empty), close(pipes[0]), close(pipes[1]);
}

/* One in whose words anything lies, and one that is what it should be: the router lives, and serves the second. */
static void ranks_that_bring_nonsense_harm_their_own_job_alone(void **state)
{
	(void)state;
	for (int round = 0; round < 60; round++) {
		struct left liar, honest;
		make_left(&liar, (uint8_t)(10 + 2 * round)); /* the router may not have ended the last round's yet */
		make_left(&honest, (uint8_t)(11 + 2 * round));
		submit(&liar, 1);
		play(&liar, 1, 3, 0);
		submit(&honest, 1);
		play(&honest, 1, 3, 1);
		uint64_t *words = (uint64_t *)liar.arena.header;
		/* behind the header's constants, which a router reads once, and where they lie in their turn */
		size_t from = round % 4 ? offsetof(struct ferry_arena_header, reach) / 8 : 0;
		size_t most = (round % 2 ? sizeof(struct ferry_arena_header) : (size_t)liar.arena.header->bytes) / 8;
		for (int writes = 0; writes < 200; writes++)
			words[from + next_random() % (most - from)] =
			        next_random() % 3 ? next_random() << 20 ^ next_random() : next_random() % 4;
		for (uint32_t i = 0; i < liar.plan->ninstrs; i++) {
			struct ferry_counter *counter = counter_of(&liar, &ferry_plan_instrs(liar.plan)[i], 1);
			atomic_store(&counter->value, ferry_counter_value(1, (uint32_t)next_random()));
		}
		for (uint32_t rank = 0; rank < RANKS; rank++)
			if (!adopt(&liar, rank, liar.arena.descriptor)) {
				notify(&liar, rank, FERRY_ATTACH_PLAN);
				notify(&liar, rank, FERRY_ATTACH_ADOPTED);
			}
		hand_over(&honest);
		await_counter(&honest, 1, 3);
		assert_int_equal(slot_of(&honest, honest.reduce, 1, 2)[5], 1000 + 2 * (2 * (SLICE / 4) + 5));
		free_left(&honest);
		free_left(&liar);
	}
}

static void its_staging_counts_as_that_of_any_job(void **state)
{
	(void)state;
	struct left left;
	char text[512], expected[64];
	make_left(&left, 8);
	hand_over(&left);
	assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	snprintf(expected, sizeof expected, " staging=%llu ",
	         (unsigned long long)(FERRY_PARITIES * left.arena.staging_bytes));
	assert_non_null(strstr(text, expected));
	free_left(&left);
	do
		assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	while (!strstr(text, " staging=0 "));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(the_next_router_goes_on_behind_what_was_published_and_does_the_rest_again),
	        TEST(a_call_of_which_all_was_published_ends),
	        TEST(a_call_that_was_over_is_not_looked_at_again),
	        TEST(nothing_begins_before_all_ranks_have_come_and_who_has_left_is_not_waited_for),
	        TEST(a_rank_that_was_told_of_a_death_and_gave_up_is_not_named_for_it),
	        TEST(nor_is_one_that_ended_for_it),
	        TEST(an_arena_that_is_not_what_it_is_said_to_be_is_refused),
	        TEST(ranks_that_bring_nonsense_harm_their_own_job_alone),
	        TEST(its_staging_counts_as_that_of_any_job),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
