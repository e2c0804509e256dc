/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/liar.h"

#include "ipc/attach.h"
#include "ipc/endpoint.h"
#include "ipc/error.h"
#include "rank-lib/program/program.h"
#include "tests/fake_cuda/routers.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int devices[] = {0, 1};

/* ---- the honest job ---- */

static struct gang healthy;
static struct place places[MOST_PLACES];
static uint32_t rounds;
static pid_t router;

int others_start(void **state)
{
	(void)state;
	gang_open(&healthy, RANKS, devices, 1);
	places_open(places, &healthy, COUNT);
	rounds = 0;
	router = routers_pid(0);
	return 0;
}

void others_run_on(void)
{
	assert_int_equal(kill(router, 0), 0);
	places_round(places, &healthy);
	places_settle(places, &healthy, ++rounds);
}

int others_stop(void **state)
{
	gang_close(&healthy);
	places_close(places, &healthy);
	return no_misuse(state);
}

/* ---- the lying job ---- */

int liar_make_flags(size_t bytes, int seals)
{
	int descriptor = memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_true(descriptor >= 0);
	assert_int_equal(ftruncate(descriptor, (off_t)bytes), 0);
	if (seals)
		assert_int_equal(fcntl(descriptor, F_ADD_SEALS, seals), 0);
	return descriptor;
}

static void socket_path(char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/router-0.sock", getenv("FERRY_SOCKET_DIR"));
}

void liar_attach(struct liar *liar, uint32_t rank, int flags, uint32_t name)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .rank = rank,
	                                       .nranks = RANKS,
	                                       .ndomains = 1,
	                                       .flags = FERRY_ATTACH_MAPPED,
	                                       .descriptors = 1,
	                                       .staging = 1 << 20};
	struct ferry_attach_reply reply;
	char path[200];
	CUuuid uuid;
	int descriptor;
	memcpy(message.key, &name, sizeof name);
	message.key[15] = 0x77;
	CU(cuDeviceGetUuid(&uuid, devices[rank]));
	memcpy(message.gpu, &uuid, sizeof message.gpu);
	socket_path(path, sizeof path);
	assert_int_equal(ferry_endpoint_connect(path, &liar->sockets[rank]), ferrySuccess);
	assert_int_equal(ferry_attach_exchange(liar->sockets[rank], &message, NULL, &flags, &reply, &descriptor, 1,
	                                       NULL),
	                 ferrySuccess);
	assert_int_equal(reply.flags, FERRY_ATTACH_MAPPED);
	if (rank)
		close(descriptor);
	else
		assert_int_equal(ferry_arena_map(descriptor, &liar->shared.arenas[0]), ferrySuccess);
}

ferryResult_t liar_make_ready(struct liar *liar, uint32_t rank)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_READY};
	return ferry_attach_call(liar->sockets[rank], &message, NULL, NULL);
}

void liar_export(struct liar *liar, uint32_t rank, uint32_t index, bool put_target)
{
	struct ferry_exported exported = {.index = index,
	                                  .kind = FERRY_EXPORTED_IPC,
	                                  .generation = 1,
	                                  .bytes = 2 * COUNT * 4,
	                                  .put_target = put_target};
	CUdeviceptr *memory = &liar->memory[index == 1 ? rank : RANKS + rank];
	CUipcMemHandle handle;
	CUuuid uuid;
	place_enter(&places[rank]);
	CU(cuMemAlloc(memory, exported.bytes));
	CU(cuIpcGetMemHandle(&handle, *memory));
	CU(cuDeviceGetUuid(&uuid, devices[rank]));
	memcpy(exported.handle, &handle, sizeof exported.handle);
	memcpy(exported.gpu, &uuid, sizeof exported.gpu);
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_EXPORT, .payload = ferry_exported_size(&exported)};
	/* The last test's memory was there, and its router may still be about to unmap it. */
	ferryResult_t result;
	uint64_t until = ferry_now_ns() + 5000000000u;
	while ((result = ferry_attach_call(liar->sockets[rank], &message, &exported, NULL)) == ferryRefused &&
	       ferry_now_ns() < until)
		sched_yield();
	if (result)
		fail_msg("EXPORT: %s", ferry_last_message());
}

static void give_plan(struct liar *liar, enum ferry_collective collective, bool puts)
{
	struct ferry_topology topology = {.nranks = RANKS, .ndomains = 1};
	struct ferry_links links = {.speed = {{0, 1}, {1, 0}}};
	struct ferry_compile_options options = {.count = collective == FERRY_ALLTOALLV ? 0 : COUNT,
	                                        .type = ferryUint32,
	                                        .redop = ferrySum,
	                                        .slice = 1024,
	                                        .window = 2};
	struct ferry_program *program;
	options.staging[0] = liar->shared.arenas[0].staging_bytes;
	assert_int_equal(puts ? ferry_program_synthesize_peer(collective, &topology, &links, 0, &program)
	                      : ferry_program_synthesize(collective, &topology, 0, &program),
	                 ferrySuccess);
	assert_int_equal(ferry_program_compile(program, &options, &liar->plan), ferrySuccess);
	ferry_program_free(program);
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = liar->plan->bytes};
	for (int rank = 0; rank < RANKS; rank++)
		assert_int_equal(ferry_attach_call(liar->sockets[rank], &message, liar->plan, NULL), ferrySuccess);
}

void liar_open(struct liar *liar, enum ferry_collective collective, bool puts)
{
	static uint32_t names;
	memset(liar, 0, sizeof *liar);
	liar->shared.nranks = RANKS;
	liar->shared.ndomains = 1;
	int flags = liar_make_flags(WORDS_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	liar->flags = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, flags, 0);
	assert_ptr_not_equal(liar->flags, MAP_FAILED);
	names++;
	for (uint32_t rank = 0; rank < RANKS; rank++)
		liar_attach(liar, rank, flags, names);
	close(flags);
	assert_int_equal(liar_make_ready(liar, 0), ferrySuccess);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		liar_export(liar, rank, 1, puts);
	give_plan(liar, collective, puts);
}

void liar_close(struct liar *liar)
{
	for (int rank = 0; rank < RANKS; rank++)
		close(liar->sockets[rank]);
	for (int i = 0; i < 2 * RANKS; i++)
		if (liar->memory[i]) {
			place_enter(&places[i % RANKS]);
			CU(cuMemFree(liar->memory[i]));
		}
	ferry_arena_unmap(&liar->shared.arenas[0]);
	munmap(liar->flags, WORDS_BYTES);
	free(liar->plan);
}

void honest_call(const struct liar *liar, uint32_t rank, struct record *record)
{
	memset(record, 0, sizeof *record);
	record->head = (struct ferry_submission){.kind = FERRY_SUBMIT_COLLECTIVE,
	                                         .flag = rank,
	                                         .seq = 1,
	                                         .fixed = 1,
	                                         .plan_hash = liar->plan->hash,
	                                         .count = liar->plan->count,
	                                         .shape = (uint32_t)liar->plan->collective | ferryUint32 << 8 |
	                                                  ferrySum << 16,
	                                         .send = {.index = 1, .generation = 1},
	                                         .receive = {.index = 1, .generation = 1, .offset = COUNT * 4}};
	if (liar->plan->collective != FERRY_ALLTOALLV)
		return;
	record->head.nparts = RANKS;
	for (uint32_t peer = 0; peer < RANKS; peer++)
		record->parts[peer] = (struct ferry_call_decoder_part){2000, 2000 * peer, 2000, 2000 * peer};
	record->more = RANKS * sizeof record->parts[0];
}

void honest_messages(uint32_t rank, bool puts, struct record *record)
{
	memset(record, 0, sizeof *record);
	record->head = (struct ferry_submission){.kind = FERRY_SUBMIT_MESSAGES, .flag = rank, .nparts = 2};
	for (uint8_t direction = 0; direction < 2; direction++)
		record->messages[direction] = (struct ferry_call_decoder_message){
		        .buffer = {.index = 1, .generation = 1, .offset = direction ? COUNT * 4 : 0},
		        .bytes = COUNT * 4,
		        .message = 1,
		        .peer = 1 - rank,
		        .type = ferryUint32,
		        .direction = direction,
		        .puts = puts};
	record->more = 2 * sizeof record->messages[0];
}

void ring_router(struct liar *liar, uint32_t rank)
{
	struct ferry_rank_line *line = ferry_rank_line(&liar->shared, rank);
	ferry_doorbell_ring(&line->d2h);
	ferry_doorbell_ring(&line->h2d);
	ferry_doorbell_ring(&liar->shared.arenas[0].header->router);
}

void submit(struct liar *liar, uint32_t rank, struct record *record)
{
	if (!record->head.number)
		record->head.number = ++liar->written[rank];
	ferry_ring_write(&liar->shared.arenas[0].rings[rank], &record->head, record->bytes, record->more);
	ring_router(liar, rank);
}

/* As the streams would. */
void reach(struct liar *liar)
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		atomic_store(&liar->flags[rank].flag, 1);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		ring_router(liar, rank);
}

void reach_by(struct liar *liar, uint32_t rank)
{
	atomic_store(&liar->flags[rank].flag, 1);
	ring_router(liar, rank);
}

bool has_failed(const struct liar *liar)
{
	return atomic_load(&liar->shared.arenas[0].header->failure.state);
}

bool fails_within(const struct liar *liar, int milliseconds)
{
	for (int waited = 0; !has_failed(liar) && waited < milliseconds; waited++)
		doze(1);
	return has_failed(liar);
}

void must_fail(const struct liar *liar, const char *flags, const char *what)
{
	const struct ferry_failure *failure = &liar->shared.arenas[0].header->failure;
	if (!fails_within(liar, 20000))
		fail_msg("%s: the job lives", what);
	if (failure->code != ferryInvalidUsage || !strstr(failure->message, flags))
		fail_msg("%s: %u, \"%s\"; expected \"%s\"", what, failure->code, failure->message, flags);
}

bool is_over(const struct liar *liar)
{
	return !atomic_load(&liar->flags[0].flag) && !atomic_load(&liar->flags[1].flag);
}

void must_end(const struct liar *liar)
{
	for (int waited = 0; !is_over(liar) && !has_failed(liar) && waited < 60000; waited++)
		doze(1);
	if (has_failed(liar))
		fail_msg("honest, and yet: \"%s\"", liar->shared.arenas[0].header->failure.message);
	assert_true(is_over(liar));
}

