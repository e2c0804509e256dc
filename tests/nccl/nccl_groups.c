/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of groups: what Ferry looks at starts at the group's end, together, and errors are told where NCCL does. */
#include "tests/nccl/ranks.h"

#include "orchestrator/groups.h"
#include "orchestrator/real.h"
#include "orchestrator/redops.h"

static pthread_barrier_t barrier;

static void *ask_version(void *context)
{
	int version = 0;
	(void)context;
	pthread_barrier_wait(&barrier);
	NCCL(ncclGetVersion(&version));
	EQUAL(version, 23203);
	return (void *)(uintptr_t)ferry_nccl_get();
}

/* Nothing has been called before. */
static void threads_that_come_first_find_the_same_nccl(void **state)
{
	(void)state;
	pthread_t threads[4];
	void *found;
	HOLDS(!ferry_nccl_get());
	pthread_barrier_init(&barrier, NULL, 4);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, ask_version, NULL);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &found);
		HOLDS(found && found == (void *)(uintptr_t)ferry_nccl_get());
	}
	pthread_barrier_destroy(&barrier);
}

static void every_collective(struct rank *r)
{
	ranks_init(r);
	size_t n = COUNT;
	float *in = r->input, *out = r->output;
	ncclCollConfig_t none = {.size = 0, .magic = 0xcafebeef}; /* of an unknown version: it is handed on */
	NCCL(all_reduce(r, r->comm));
	HOLDS(out[0] == SUM && out[n - 1] == SUM);
	NCCL(ncclAllReduceConfig(in, out, n, ncclFloat32, ncclMax, r->comm, NULL, &none));
	HOLDS(out[0] == RANKS);
	NCCL(ncclAllGather(in, out, n, ncclFloat32, r->comm, NULL));
	HOLDS(out[0] == 1 && out[n] == 2 && out[RANKS * n - 1] == RANKS);
	NCCL(ncclReduceScatter(in, out, n, ncclFloat32, ncclSum, r->comm, NULL));
	HOLDS(out[0] == SUM && out[n - 1] == SUM);
	NCCL(ncclBroadcast(in, out, n, ncclFloat32, 1, r->comm, NULL));
	HOLDS(out[0] == 2 && out[n - 1] == 2);
	out[5] = (float)r->rank;
	NCCL(ncclBcast(out, n, ncclFloat32, 2, r->comm, NULL));
	HOLDS(out[5] == 2);
	out[0] = -1;
	NCCL(ncclReduce(in, out, n, ncclFloat32, ncclProd, 1, r->comm, NULL));
	HOLDS(out[0] == (r->rank == 1 ? 6.0f : -1));
	NCCL(ncclGather(in, out, n, ncclFloat32, 0, r->comm, NULL));
	HOLDS(r->rank || (out[0] == 1 && out[n] == 2 && out[RANKS * n - 1] == RANKS));
	for (int i = 0; i < RANKS; i++)
		in[(size_t)i * n] = (float)(100 * r->rank + i);
	NCCL(ncclScatter(in, out, n, ncclFloat32, 2, r->comm, NULL));
	HOLDS(out[0] == (float)(200 + r->rank));
	NCCL(ncclAlltoAll(in, out, n, ncclFloat32, r->comm, NULL));
	HOLDS(out[0] == (float)r->rank && out[2 * n] == (float)(200 + r->rank));
	EQUAL(calls_seen(r->comm), 9);
	NCCL(ncclCommDestroy(r->comm));
}

static void every_collective_gives_nccls_results(void **state)
{
	(void)state;
	free(ranks_run(every_collective));
}

static void group_of_two(struct rank *r)
{
	float twice[COUNT];
	ranks_init(r);
	NCCL(ncclGroupStart());
	NCCL(all_reduce(r, r->comm));
	NCCL(ncclGroupStart());
	NCCL(ncclBroadcast(r->input, twice, COUNT, ncclFloat32, 0, r->comm, NULL));
	NCCL(ncclGroupEnd());
	pthread_barrier_wait(&barrier);
	EQUAL(fake_nccl_count("AllReduce"), 0);
	EQUAL(fake_nccl_count("Broadcast"), 0);
	EQUAL(calls_seen(r->comm), 2);
	pthread_barrier_wait(&barrier);
	NCCL(ncclGroupEnd());
	HOLDS(r->output[COUNT - 1] == SUM && twice[COUNT - 1] == 1);
	NCCL(ncclCommDestroy(r->comm));
}

static void calls_of_a_group_start_at_its_outermost_end(void **state)
{
	(void)state;
	pthread_barrier_init(&barrier, NULL, RANKS);
	free(ranks_run(group_of_two));
	EQUAL(fake_nccl_count("AllReduce"), RANKS);
	EQUAL(fake_nccl_count("Broadcast"), RANKS);
	pthread_barrier_destroy(&barrier);
}

static void ring(struct rank *r)
{
	ranks_init(r);
	for (int round = 0; round < 3; round++) {
		NCCL(ncclGroupStart());
		NCCL(ncclSend(r->input, COUNT * RANKS, ncclFloat32, (r->rank + 1) % RANKS, r->comm, NULL));
		NCCL(ncclRecv(r->output, COUNT * RANKS, ncclFloat32, (r->rank + RANKS - 1) % RANKS, r->comm, NULL));
		NCCL(ncclGroupEnd());
		HOLDS(r->output[COUNT * RANKS - 1] == (float)(1 + (r->rank + RANKS - 1) % RANKS));
	}
	NCCL(ncclCommDestroy(r->comm));
}

static void messages_of_a_group_progress_together(void **state)
{
	(void)state;
	free(ranks_run(ring));
}

static void one_thread_drives_all_ranks_of_a_process(void **state)
{
	(void)state;
	ncclComm_t comms[RANKS];
	float in[RANKS], out[RANKS][RANKS], sums[RANKS];
	NCCL(ncclCommInitAll(comms, RANKS, NULL));
	NCCL(ncclGroupStart());
	for (int i = 0; i < RANKS; i++) {
		in[i] = (float)(i + 1);
		NCCL(ncclAllGather(&in[i], out[i], 1, ncclFloat32, comms[i], NULL));
		NCCL(ncclAllReduce(&in[i], &sums[i], 1, ncclFloat32, ncclSum, comms[i], NULL));
	}
	NCCL(ncclGroupEnd());
	for (int i = 0; i < RANKS; i++) {
		HOLDS(out[i][0] == 1 && out[i][RANKS - 1] == RANKS && sums[i] == SUM);
		EQUAL(calls_seen(comms[i]), 2);
		NCCL(ncclCommDestroy(comms[i]));
	}
}

/* The double reads the scalar when the call is made; NCCL lets a program destroy the reduction right behind that. */
static void own_reductions(struct rank *r)
{
	float factor = 10;
	ncclRedOp_t op;
	struct ferry_nccl_redop known;
	ranks_init(r);
	NCCL(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, r->comm));
	factor = 0;
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(r->comm);
	HOLDS(ferry_nccl_redop_find(comm, op, &known));
	memcpy(&factor, known.scalar, sizeof factor);
	HOLDS(factor == 10 && known.type == ncclFloat32);
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(r->input, r->output, COUNT, ncclFloat32, op, r->comm, NULL));
	NCCL(ncclRedOpDestroy(op, r->comm));
	NCCL(ncclGroupEnd());
	HOLDS(r->output[3] == 10 * SUM);
	HOLDS(!ferry_nccl_redop_find(comm, op, &known));
	ferry_nccl_comm_release(comm);
	EQUAL(ncclAllReduce(r->input, r->output, COUNT, ncclFloat32, op, r->comm, NULL), ncclInvalidArgument);
	NCCL(ncclCommDestroy(r->comm));
}

static void a_reduction_may_be_destroyed_before_its_group_ends(void **state)
{
	(void)state;
	free(ranks_run(own_reductions));
}

static void what_is_wrong_at_sight_is_told_at_the_call(void **state)
{
	(void)state;
	ncclComm_t comms[2];
	float in = 1, out = 0;
	NCCL(ncclCommInitAll(comms, 2, NULL));
	unsigned long before = fake_nccl_count("AllReduce");
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(&in, &out, 1, ncclFloat32, ncclSum, comms[0], NULL));
	EQUAL(ncclBroadcast(&in, &out, 1, ncclFloat32, 2, comms[1], NULL), ncclInvalidArgument);
	EQUAL(ncclAllReduce(&in, &out, 1, (ncclDataType_t)77, ncclSum, comms[1], NULL), ncclInvalidArgument);
	EQUAL(ncclGroupEnd(), ncclInvalidArgument);
	EQUAL(fake_nccl_count("AllReduce"), before + 1); /* the wrong one alone went on */
	HOLDS(!ferry_nccl_group_is_open());
	EQUAL(ncclGroupEnd(), ncclInvalidUsage);
	char fail[64];
	snprintf(fail, sizeof fail, "ReduceScatter:%lu:1", fake_nccl_count("ReduceScatter") + 1);
	setenv("FAKE_NCCL_FAIL", fail, 1);
	NCCL(ncclGroupStart());
	for (int i = 0; i < 2; i++)
		NCCL(ncclReduceScatter((float[2]){1, 2}, &out, 1, ncclFloat32, ncclSum, comms[i], NULL));
	EQUAL(ncclGroupEnd(), ncclUnhandledCudaError);
	unsetenv("FAKE_NCCL_FAIL");
	for (int i = 0; i < 2; i++)
		NCCL(ncclCommDestroy(comms[i]));
}

static void finalize(ncclComm_t comm)
{
	NCCL(ncclCommFinalize(comm));
}

static void destroy(ncclComm_t comm)
{
	NCCL(ncclCommDestroy(comm));
}

static void abort_it(ncclComm_t comm)
{
	NCCL(ncclCommAbort(comm));
}

static void (*const ends[])(ncclComm_t comm) = {finalize, destroy, abort_it};

/* Of the ranks of the other communicator rank 0 alone ends one. */
static void end_another(struct rank *r)
{
	ncclComm_t others[3];
	ncclUniqueId id;
	ncclRedOp_t op;
	float one = 1, sums[COUNT];
	ranks_init(r);
	NCCL(ncclRedOpCreatePreMulSum(&op, &one, ncclFloat32, ncclScalarHostImmediate, r->comm));
	for (int i = 0; i < 3 && !r->rank; i++) {
		NCCL(ncclGetUniqueId(&id));
		NCCL(ncclCommInitRank(&others[i], 1, id, 0));
	}
	unsigned long before = fake_nccl_count("AllReduce"), destroyed = fake_nccl_count("RedOpDestroy");
	pthread_barrier_wait(&barrier);
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduce(r->input, sums, COUNT, ncclFloat32, ncclSum, r->comm, NULL));
	NCCL(ncclAllReduce(r->input, r->output, COUNT, ncclFloat32, op, r->comm, NULL));
	NCCL(ncclRedOpDestroy(op, r->comm));
	for (int i = 0; i < 3 && !r->rank; i++)
		ends[i](others[i]);
	pthread_barrier_wait(&barrier);
	EQUAL(fake_nccl_count("AllReduce"), before);
	EQUAL(fake_nccl_count("RedOpDestroy"), destroyed);
	pthread_barrier_wait(&barrier);
	NCCL(ncclGroupEnd());
	HOLDS(sums[COUNT - 1] == SUM && r->output[COUNT - 1] == SUM);
	EQUAL(calls_seen(r->comm), 2);
	if (!r->rank)
		destroy(others[0]);
	destroy(r->comm);
}

static void ending_a_communicator_in_a_group_leaves_the_calls_of_others(void **state)
{
	(void)state;
	unsigned long before = fake_nccl_count("RedOpDestroy");
	pthread_barrier_init(&barrier, NULL, RANKS);
	free(ranks_run(end_another));
	EQUAL(fake_nccl_count("RedOpDestroy"), before + RANKS);
	pthread_barrier_destroy(&barrier);
}

static void a_communicator_ends_behind_the_calls_of_its_group(void **state)
{
	(void)state;
	ncclComm_t comms[2], ended[2];
	float in[2] = {3, 5}, sums[2], twice[2], others[2];
	NCCL(ncclCommInitAll(comms, 2, NULL));
	NCCL(ncclCommInitAll(ended, 2, NULL));
	unsigned long before = fake_nccl_count("AllReduce");
	NCCL(ncclGroupStart());
	for (int i = 0; i < 2; i++) {
		NCCL(ncclAllReduce(&in[i], &sums[i], 1, ncclFloat32, ncclSum, comms[i], NULL));
		NCCL(ncclAllReduce(&in[i], &others[i], 1, ncclFloat32, ncclSum, ended[i], NULL));
		NCCL(ncclAllReduce(&sums[i], &twice[i], 1, ncclFloat32, ncclSum, comms[i], NULL));
	}
	unsigned long finalized = fake_nccl_count("CommFinalize");
	for (int i = 0; i < 2; i++)
		NCCL(ncclCommFinalize(ended[i]));
	EQUAL(fake_nccl_count("AllReduce"), before);
	EQUAL(fake_nccl_count("CommFinalize"), finalized);
	NCCL(ncclGroupEnd());
	EQUAL(fake_nccl_count("CommFinalize"), finalized + 2);
	for (int i = 0; i < 2; i++) {
		HOLDS(sums[i] == 8 && twice[i] == 16 && others[i] == 8);
		destroy(comms[i]);
		destroy(ended[i]);
	}
}

static void a_simulated_group_has_all_calls_and_runs_none(void **state)
{
	(void)state;
	ncclComm_t comms[2];
	float in = 1, out = 0;
	ncclSimInfo_t info = {sizeof info, 0, 0};
	NCCL(ncclCommInitAll(comms, 2, NULL));
	NCCL(ncclGroupStart());
	for (int i = 0; i < 2; i++)
		NCCL(ncclAllReduce(&in, &out, 1, ncclFloat32, ncclSum, comms[i], NULL));
	NCCL(ncclGroupSimulateEnd(&info));
	EQUAL(info.version, 2); /* the double counts */
	HOLDS(out == 0);
	HOLDS(!ferry_nccl_group_is_open());
	for (int i = 0; i < 2; i++)
		NCCL(ncclCommDestroy(comms[i]));
}

static void calls_itself(struct rank *r)
{
	ranks_init(r);
	NCCL(all_reduce(r, r->comm));
	NCCL(ncclGroupStart());
	NCCL(all_reduce(r, r->comm));
	NCCL(ncclGroupEnd());
	EQUAL(calls_seen(r->comm), 2);
	HOLDS(r->output[0] == SUM);
	NCCL(ncclCommDestroy(r->comm));
}

static void nccls_calls_of_itself_go_through(void **state)
{
	(void)state;
	unsigned long before = fake_nccl_count("Bcast");
	fake_nccl_call_itself(1);
	free(ranks_run(calls_itself));
	fake_nccl_call_itself(0);
	EQUAL(fake_nccl_count("Bcast"), before + 2 * RANKS);
}

static void configurations(struct rank *r)
{
	struct {
		ncclCollConfig_t head;
		void *extensions;
		int numbers[4];
		const char *algorithms;
		int more[2];
		uint64_t tag;
	} *config = calloc(1, sizeof *config);
	config->head.size = sizeof *config;
	config->head.magic = 0xcafebeef;
	config->more[1] = NCCL_UNDEFINED_INT;
	ranks_init(r);
	NCCL(ncclGroupStart());
	NCCL(ncclAllReduceConfig(r->input, r->output, COUNT, ncclFloat32, ncclSum, r->comm, NULL, &config->head));
	free(config); /* it need not outlive the call */
	NCCL(ncclGroupEnd());
	EQUAL(calls_seen(r->comm), 1);
	HOLDS(r->output[0] == SUM);
	NCCL(ncclCommDestroy(r->comm));
}

static void a_configuration_is_needed_at_the_call_alone(void **state)
{
	(void)state;
	unsigned long before = fake_nccl_count("AllReduceConfig");
	free(ranks_run(configurations));
	EQUAL(fake_nccl_count("AllReduceConfig"), before + RANKS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(threads_that_come_first_find_the_same_nccl),
	        cmocka_unit_test(calls_of_a_group_start_at_its_outermost_end),
	        cmocka_unit_test(every_collective_gives_nccls_results),
	        cmocka_unit_test(messages_of_a_group_progress_together),
	        cmocka_unit_test(one_thread_drives_all_ranks_of_a_process),
	        cmocka_unit_test(a_reduction_may_be_destroyed_before_its_group_ends),
	        cmocka_unit_test(what_is_wrong_at_sight_is_told_at_the_call),
	        cmocka_unit_test(ending_a_communicator_in_a_group_leaves_the_calls_of_others),
	        cmocka_unit_test(a_communicator_ends_behind_the_calls_of_its_group),
	        cmocka_unit_test(a_simulated_group_has_all_calls_and_runs_none),
	        cmocka_unit_test(nccls_calls_of_itself_go_through),
	        cmocka_unit_test(a_configuration_is_needed_at_the_call_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
