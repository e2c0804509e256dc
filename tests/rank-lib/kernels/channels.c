/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the caller's own over ferry_device.cuh, compiled as C, and the double of the CUDA driver: what they
 * exchange by memory of GPUs and of the host, in graphs and between processes; sums; which ranks get no channels; and
 * that nobody waits for a rank that is gone.
 */
#include "bench/examples/rmsnorm.cuh"
#include "rank-lib/call/comm.h"
#include "tests/fake_cuda/channel_round.h"
#include "tests/fake_cuda/rank_process.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const int devices[] = {0, 1, 2, 3};

static const char *const fabrics[] = {"host", "peer"};

static void use(const char *kernels, const char *fabric)
{
	setenv("FERRY_KERNELS", kernels, 1);
	setenv("FERRY_FABRICS", fabric, 1);
}

/* ---- ranks of this process ---- */

struct joiner {
	ferryUniqueId id;
	ferryComm_t comm;
	int rank, nranks;
	uint64_t bytes;
	pthread_t thread;
};

static void *join(void *argument)
{
	struct joiner *joiner = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.ordinal = devices[joiner->rank];
	config.channels = joiner->bytes;
	if (ferryCommInitRankConfig(&joiner->comm, joiner->nranks, joiner->id, joiner->rank, &config))
		fprintf(stderr, "rank %d: %s\n", joiner->rank, ferryGetLastError(NULL));
	return NULL;
}

/* more: what the last rank asks for beyond the others. */
static void open_unlike(struct gang *gang, int nranks, uint64_t bytes, uint64_t more)
{
	struct joiner joiners[MOST_PLACES];
	ferryUniqueId id;
	domains_open(1);
	*gang = (struct gang){nranks, devices, {NULL}};
	OK(ferryGetUniqueId(&id));
	for (int rank = 0; rank < nranks; rank++) {
		uint64_t own = bytes + (rank == nranks - 1 ? more : 0);
		joiners[rank] = (struct joiner){.id = id, .rank = rank, .nranks = nranks, .bytes = own};
		pthread_create(&joiners[rank].thread, NULL, join, &joiners[rank]);
	}
	for (int rank = 0; rank < nranks; rank++) {
		pthread_join(joiners[rank].thread, NULL);
		gang->comms[rank] = joiners[rank].comm;
		assert_non_null(gang->comms[rank]);
	}
}

static ferryChannels_t channels_of(ferryComm_t comm)
{
	ferryChannels_t channels = FERRY_CHANNELS_INITIALIZER;
	OK(ferryCommChannels(comm, &channels));
	return channels;
}

static void rounds_open(struct channel_round *rounds, const struct gang *gang)
{
	memset(rounds, 0, MOST_PLACES * sizeof *rounds);
	for (int rank = 0; rank < gang->nranks; rank++)
		rounds[rank].channels = channels_of(gang->comms[rank]);
}

static void launch(const struct place *place, void (*kernel)(void *argument), void *argument)
{
	place_enter(place);
	CU(fake_cuda_launch(place->stream, kernel, argument));
}

static void rounds_run(struct channel_round *rounds, const struct place *places, const struct gang *gang, int count)
{
	for (int i = 0; i < count; i++)
		for (int rank = 0; rank < gang->nranks; rank++)
			launch(&places[rank], channel_round, &rounds[rank]);
}

static void rounds_were(const struct channel_round *rounds, const struct place *places, const struct gang *gang,
                        uint32_t count)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		CU(cuStreamSynchronize(places[rank].stream));
		assert_int_equal(rounds[rank].rounds, count);
		assert_false(rounds[rank].wrong);
	}
}

static void close_all(struct gang *gang, struct place *places)
{
	gang_close(gang);
	places_close(places, gang);
}

/* Also beside Ferry's own kernels, and in graphs that are replayed between plain rounds. */
static void what_is_put_and_sent_in_packets_arrives_in_either_memory(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++)
		for (int nranks = 2; nranks <= 4; nranks += 2) {
			struct gang gang;
			struct place places[MOST_PLACES];
			struct channel_round rounds[MOST_PLACES];
			CUgraphExec graphs[MOST_PLACES];
			use("on", fabrics[fabric]);
			open_unlike(&gang, nranks, CHANNEL_ROUND_BYTES, 0);
			places_open(places, &gang, 1000);
			rounds_open(rounds, &gang);
			assert_int_equal(rounds[0].channels.host, !fabric);
			assert_int_equal(rounds[0].channels.bytes, CHANNEL_ROUND_BYTES);
			for (int rank = 0; rank < nranks; rank++) {
				CUgraph graph;
				place_enter(&places[rank]);
				CU(cuStreamBeginCapture(places[rank].stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
				for (int i = 0; i < 3; i++)
					CU(fake_cuda_launch(places[rank].stream, channel_round, &rounds[rank]));
				CU(cuStreamEndCapture(places[rank].stream, &graph));
				CU(cuGraphInstantiateWithFlags(&graphs[rank], graph, 0));
				CU(cuGraphDestroy(graph));
			}
			for (int i = 0; i < 10; i++) {
				rounds_run(rounds, places, &gang, i);
				places_round(places, &gang);
				for (int rank = 0; rank < nranks; rank++) {
					place_enter(&places[rank]);
					CU(cuGraphLaunch(graphs[rank], places[rank].stream));
				}
			}
			rounds_were(rounds, places, &gang, 45 + 30);
			places_settle(places, &gang, 10);
			for (int rank = 0; rank < nranks; rank++)
				CU(cuGraphExecDestroy(graphs[rank]));
			close_all(&gang, places);
		}
}

static void rounds_and_signals_go_on_when_their_numbers_wrap(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	struct channel_round rounds[MOST_PLACES];
	use("on", "peer");
	open_unlike(&gang, 2, CHANNEL_ROUND_BYTES, 0);
	places_open(places, &gang, 1);
	rounds_open(rounds, &gang);
	for (int rank = 0; rank < 2; rank++) { /* as after so many rounds */
		const ferryChannels_t c = channels_reached(&rounds[rank].channels);
		for (uint32_t i = 0; i < FERRY_CHANNELS * FERRY_CHANNEL_WORDS; i++)
			c.counters[i] = i == FERRY_CHANNEL_GIVEN_UP ? 0 : 0xfffffffcu;
		for (uint32_t i = 0; i < FERRY_CHANNELS * FERRY_CHANNEL_RANKS; i++)
			c.signals[rank][i] = 0xfffffffcu;
	}
	const uint32_t flags[] = {0xfffffffdu, 0xfffffffeu, 0xffffffffu, 2, 3, 4};
	for (uint32_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		rounds_run(rounds, places, &gang, 1);
		rounds_were(rounds, places, &gang, i + 1);
		assert_int_equal(rounds[1].flag, flags[i]);
	}
	close_all(&gang, places);
}

/* ---- sums ---- */

#define SUM_BYTES 4096u

struct sum {
	ferryChannels_t channels;
	ferryDataType_t type;
	CUdeviceptr input, output;
	bool by_switch, done;
};

static void sum_all(void *argument)
{
	struct sum *sum = argument;
	const ferryChannels_t c = channels_reached(&sum->channels);
	char *output = fake_cuda_reach(sum->output);
	ferryPut(&c, c.rank, 0, fake_cuda_reach(sum->input), SUM_BYTES, 0, 1);
	for (int r = 0; r < c.nranks; r++)
		ferrySignal(&c, r, 0);
	for (int r = 0; r < c.nranks; r++)
		ferryWait(&c, r, 0);
	for (uint32_t thread = 0; thread < 7 && !sum->by_switch; thread++)
		sum->done = ferryReduceFrom(&c, 0, output, SUM_BYTES, sum->type, thread, 7);
	for (uint32_t at = 0; sum->by_switch && at < SUM_BYTES; at += 16) {
		struct ferry_vector v = {0, 0};
		sum->done = ferrySwitchReduce(&c, at, sum->type, &v) && ferrySwitchBroadcast(&c, SUM_BYTES + at, v);
		ferry_store_vector(output + at, ferry_load_packet(c.memory[c.rank] + SUM_BYTES + at));
	}
	for (int r = 0; r < c.nranks; r++) /* all have read */
		ferrySignal(&c, r, 0);
	for (int r = 0; r < c.nranks; r++)
		ferryWait(&c, r, 0);
}

static void sums_from_all_ranks_have_the_bits_of_allreduce(void **state)
{
	(void)state;
	static const ferryDataType_t types[] = {ferryFloat32, ferryFloat16, ferryBfloat16};
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gang;
		struct place places[MOST_PLACES];
		struct sum sums[MOST_PLACES] = {0};
		char expected[SUM_BYTES];
		use("on", fabrics[fabric]);
		open_unlike(&gang, 3, 2 * SUM_BYTES, 0);
		places_open(places, &gang, 1);
		for (int rank = 0; rank < 3; rank++) {
			place_enter(&places[rank]);
			sums[rank].channels = channels_of(gang.comms[rank]);
			assert_null(sums[rank].channels.multicast);
			CU(cuMemAlloc(&sums[rank].input, SUM_BYTES));
			CU(cuMemAlloc(&sums[rank].output, SUM_BYTES));
			uint64_t *words = fake_cuda_reach(sums[rank].input), seed = (uint64_t)rank;
			for (uint32_t i = 0; i < SUM_BYTES / 8; i++) /* numbers, infinities and NaNs */
				words[i] = seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		}
		for (int i = 0; i < 2 * 3; i++) {
			ferryDataType_t type = types[i / 2];
			for (int rank = 0; rank < 3; rank++)
				OK(ferryAllReduce(pointer_of(sums[rank].input), pointer_of(sums[rank].output),
				                  SUM_BYTES / (ferryNumbers(type) == 2 ? 4 : 2), type, ferrySum,
				                  gang.comms[rank], (ferryStream_t)places[rank].stream));
			for (int rank = 0; rank < 3; rank++)
				CU(cuStreamSynchronize(places[rank].stream));
			memcpy(expected, fake_cuda_reach(sums[0].output), SUM_BYTES);
			for (int rank = 0; rank < 3; rank++) {
				memset(fake_cuda_reach(sums[rank].output), 0x5a, SUM_BYTES);
				sums[rank].type = type;
				sums[rank].by_switch = i % 2;
				sums[rank].channels.multicast = i % 2 ? (char *)1 : NULL; /* as C it is not looked at */
				launch(&places[rank], sum_all, &sums[rank]);
			}
			for (int rank = 0; rank < 3; rank++)
				CU(cuStreamSynchronize(places[rank].stream));
			for (int rank = 0; rank < 3; rank++) {
				assert_true(sums[rank].done);
				assert_memory_equal(expected, fake_cuda_reach(sums[rank].output), SUM_BYTES);
			}
		}
		struct ferry_vector v = {0, 0};
		const ferryChannels_t none = channels_of(gang.comms[0]);
		assert_false(ferrySwitchReduce(&none, 0, ferryFloat32, &v));
		assert_false(ferrySwitchBroadcast(&none, 0, v));
		assert_false(ferryReduceFrom(&none, 0, NULL, 16, ferryInt8, 0, 1));
		for (int rank = 0; rank < 3; rank++) {
			place_enter(&places[rank]);
			CU(cuMemFree(sums[rank].input));
			CU(cuMemFree(sums[rank].output));
		}
		close_all(&gang, places);
	}
}

/* ---- the example ---- */

#define ROWS  70u /* the first rows' channels have another one */
#define WORDS 12u

struct norm {
	ferryChannels_t channels;
	ferryComm_t comm;
	uint64_t input[ROWS * WORDS], sum[ROWS * WORDS], weight[WORDS];
	uint64_t residual[2][ROWS * WORDS], output[2][ROWS * WORDS];
};

/* rmsnorm.cu's kernel, with three threads to a block. */
static void run_rmsnorm(const struct rmsnorm *n)
{
	uint32_t flags[FERRY_CHANNELS];
	for (uint32_t block = 0; block < FERRY_CHANNELS; block++) {
		flags[block] = ferryFlag(&n->channels, block);
		for (uint32_t row = block; !n->summed && row < ROWS; row += FERRY_CHANNELS)
			for (uint32_t thread = 0; thread < 3; thread++)
				rmsnorm_send(n, row, flags[block], thread, 3);
	}
	for (uint32_t row = 0; row < ROWS; row++) {
		float squares = 0;
		for (uint32_t thread = 0; thread < 3; thread++)
			squares += rmsnorm_add(n, row, flags[row % FERRY_CHANNELS], thread, 3);
		for (uint32_t thread = 0; thread < 3; thread++)
			rmsnorm_scale(n, row, 1 / sqrtf(squares / (4 * WORDS) + 1e-5f), thread, 3);
	}
	for (uint32_t block = 0; !n->summed && block < FERRY_CHANNELS; block++)
		ferryEndRound(&n->channels, block);
}

static void rmsnorm_both_ways(void *argument)
{
	struct norm *norm = argument;
	struct rmsnorm n = {.channels = channels_reached(&norm->channels), .weight = norm->weight, .words = WORDS};
	n.input = norm->input;
	n.residual = norm->residual[0];
	n.output = norm->output[0];
	run_rmsnorm(&n);
	n.input = norm->sum;
	n.summed = 1;
	n.residual = norm->residual[1];
	n.output = norm->output[1];
	run_rmsnorm(&n);
}

static void the_example_has_the_bits_of_its_two_steps(void **state)
{
	(void)state;
	static struct norm norms[2];
	struct gang gang;
	struct place places[MOST_PLACES];
	use("on", "peer");
	open_unlike(&gang, 2, 2 * FERRY_CHANNELS * 2 * 2 * 16 * WORDS, 0);
	places_open(places, &gang, 1);
	for (int rank = 0; rank < 2; rank++)
		norms[rank].channels = channels_of(gang.comms[rank]);
	for (uint64_t i = 0, seed = 1; i < ROWS * WORDS; i++) {
		uint64_t words[FERRY_CHANNEL_RANKS] = {0};
		for (int rank = 0; rank < 2; rank++) { /* numbers between 2^-32 and 2^33 */
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			words[rank] = norms[rank].input[i] = (seed & 0x9fff9fff9fff9fffull) + 0x3000300030003000ull;
		}
		norms[0].sum[i] = norms[1].sum[i] = ferrySumWords(ferryBfloat16, words, 2);
		norms[0].weight[i % WORDS] = norms[1].weight[i % WORDS] = 0x3f803fc03f003f80ull;
	}
	for (int i = 0; i < 3; i++)
		for (int rank = 0; rank < 2; rank++)
			launch(&places[rank], rmsnorm_both_ways, &norms[rank]);
	for (int rank = 0; rank < 2; rank++)
		CU(cuStreamSynchronize(places[rank].stream));
	for (int rank = 0; rank < 2; rank++) {
		assert_memory_equal(norms[rank].residual[0], norms[0].residual[1], sizeof norms[0].residual[0]);
		assert_memory_equal(norms[rank].output[0], norms[0].output[1], sizeof norms[0].output[0]);
	}
	assert_true(norms[0].output[0][5]);
	close_all(&gang, places);
}

/* ---- ranks without channels ---- */

static void refused(const char *kernels, const char *fabric, int nranks, uint64_t bytes, uint64_t more,
                    const char *words)
{
	struct gang gang;
	ferryChannels_t channels = FERRY_CHANNELS_INITIALIZER;
	use(kernels, fabric);
	open_unlike(&gang, nranks, bytes, more);
	REFUSED(ferryInvalidUsage, words, ferryCommChannels(gang.comms[0], &channels));
	assert_int_equal(channels.bytes, 0);
	gang_close(&gang);
}

static void who_gets_no_channels_is_told_why(void **state)
{
	(void)state;
	struct gang gang;
	ferryChannels_t channels = FERRY_CHANNELS_INITIALIZER;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	ferryUniqueId id;
	ferryComm_t comm;
	refused("on", "peer", 2, 0, 0, "ferryConfig_t.channels was 0");
	refused("off", "peer", 2, 4096, 0, "FERRY_KERNELS=off");
	refused("on", "peer", 1, 4096, 0, "2 to 8 ranks");
	refused("on", "peer", 2, 4096, 16, "the same on all ranks");
	refused("on", "host", 2, 8u << 20, 0, "of 8388608 bytes: host memory, as GPUs have no peer access, has 419");
	use("on", "host");
	open_unlike(&gang, 2, (4u << 20) - 4096, 0);
	REFUSED(ferryInvalidArgument, "(nil) of size 0", ferryCommChannels(gang.comms[0], NULL));
	channels.size--;
	REFUSED(ferryInvalidArgument, "FERRY_CHANNELS_INITIALIZER has", ferryCommChannels(gang.comms[0], &channels));
	assert_int_equal(channels_of(gang.comms[1]).bytes, (4u << 20) - 4096);
	gang_close(&gang);
	OK(ferryGetUniqueId(&id));
	domains_open(1);
	config.channels = (1ull << 40) + 1;
	REFUSED(ferryInvalidArgument, "of 1099511627777 bytes", ferryCommInitRankConfig(&comm, 1, id, 0, &config));
	domains_close();
}

/* ---- ends ---- */

static void join_processes(const struct rank_process *ranks, int nranks)
{
	struct rank_ordered order = {.order = RANK_JOIN, .nranks = nranks, .count = 100};
	order.channels = CHANNEL_ROUND_BYTES;
	OK(ferryGetUniqueId(&order.id));
	for (order.rank = order.ordinal = 0; order.rank < nranks; order.ordinal = ++order.rank)
		rank_order(&ranks[order.rank], order);
	for (int rank = 0; rank < nranks; rank++)
		assert_int_equal(rank_heard(&ranks[rank]).result, ferrySuccess);
}

/* And survivors' kernels end, with no more rounds than there were. */
static void processes_have_channels_and_nobody_waits_for_a_dead_one(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct rank_process ranks[3];
		use("on", fabrics[fabric]);
		domains_open(1);
		for (int rank = 0; rank < 3; rank++)
			ranks[rank] = rank_start(NULL);
		join_processes(ranks, 3);
		ranks_tell(ranks, 3, (struct rank_ordered){.order = RANK_CHANNELS, .number = 20}, NULL);
		for (int rank = 0; rank < 3; rank++) {
			struct rank_answer answer = rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_HEARD});
			assert_int_equal(answer.number, 20);
			assert_int_equal(answer.wrong, 0);
		}
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_CHANNELS, .number = 3}, NULL);
		rank_kill(&ranks[2]);
		for (int rank = 0; rank < 2; rank++) {
			rank_released(&ranks[rank], "rank 2");
			struct rank_answer answer = rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_HEARD});
			assert_int_equal(answer.number, 20);
			rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
			rank_finish(&ranks[rank]);
		}
		domains_close();
	}
}

static void memory_that_others_may_still_write_to_is_not_used_again(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	struct channel_round rounds[MOST_PLACES];
	unsigned long long ids[6]; /* of allocations */
	static const char zeros[CHANNEL_ROUND_BYTES];
	size_t left[2], all;
	use("on", "peer");
	for (int i = 0; i < 6; i++) {
		open_unlike(&gang, 2, CHANNEL_ROUND_BYTES, 0);
		places_open(places, &gang, 1);
		rounds_open(rounds, &gang);
		assert_memory_equal(channels_reached(&rounds[0].channels).memory[1], zeros, sizeof zeros);
		CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_BUFFER_ID;
		void *values[] = {&ids[i]};
		CU(cuPointerGetAttributes(1, &wanted, values, (CUdeviceptr)(uintptr_t)rounds[0].channels.memory[0]));
		assert_true(!i || ids[i] != ids[i - 1]);
		rounds_run(rounds, places, &gang, 3);
		rounds_were(rounds, places, &gang, 3);
		close_all(&gang, places);
		CU(cuMemGetInfo(&left[i % 2], &all));
	}
	assert_int_equal(left[0], left[1]); /* it is freed */
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(what_is_put_and_sent_in_packets_arrives_in_either_memory),
	        TEST(rounds_and_signals_go_on_when_their_numbers_wrap),
	        TEST(sums_from_all_ranks_have_the_bits_of_allreduce),
	        TEST(the_example_has_the_bits_of_its_two_steps),
	        TEST(who_gets_no_channels_is_told_why),
	        TEST(processes_have_channels_and_nobody_waits_for_a_dead_one),
	        TEST(memory_that_others_may_still_write_to_is_not_used_again),
	};
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
