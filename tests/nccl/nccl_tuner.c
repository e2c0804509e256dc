/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of NCCL's tuner that is this library itself, over the double of NCCL, which loads it as the real one does
 * and ends the process where ranks come to different answers. A process has one version of the plugin's interface, its
 * argument; another argument is a plugin of the user's, or `none`.
 */
#include "tests/nccl/ranks.h"

#include "orchestrator/groups.h"
#include "orchestrator/issue.h"
#include "orchestrator/launch.h"
#include "tests/fake_cuda/fake_cuda.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHANNELS 16 /* the double's, of a communicator */

static int version; /* of the plugin's interface */

static void enter(struct rank *r)
{
	CUcontext context;
	EQUAL(cuDevicePrimaryCtxRetain(&context, r->rank), CUDA_SUCCESS);
	EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static void leave(struct rank *r)
{
	EQUAL(cuDevicePrimaryCtxRelease(r->rank), CUDA_SUCCESS);
}

static bool is_served(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	int nranks;
	HOLDS(comm);
	NCCL(ncclCommCount(handle, &nranks));
	bool served = ferry_nccl_tuner_serves(comm->tuner, nranks);
	ferry_nccl_comm_release(comm);
	return served;
}

/* A call as the orchestrator has it once its candidate is sealed; its communicator is to be released. */
static struct ferry_nccl_call call_of(struct rank *r, ncclComm_t comm, enum ferry_collective collective, size_t count,
                                      unsigned candidate)
{
	struct ferry_nccl_call call = {.collective = collective,
	                               .send = r->input,
	                               .receive = r->output,
	                               .count = count,
	                               .type = ncclFloat32,
	                               .handle = comm,
	                               .comm = ferry_nccl_comm_take(comm),
	                               .candidate = candidate};
	HOLDS(call.comm && ferry_nccl_comm_learn(call.comm));
	return call;
}

static void make(struct rank *r, ncclComm_t comm, enum ferry_collective collective, unsigned candidate)
{
	struct ferry_nccl_call call = call_of(r, comm, collective, COUNT, candidate);
	NCCL(ferry_nccl_issue(&call));
	ferry_nccl_comm_release(call.comm);
}

/* What the last one had, by the double's order: the first of the cheapest is a tree where there is one, and Simple. */
static void had(ncclComm_t comm, int algorithm, int protocol, int channels)
{
	int choice[3];
	fake_nccl_choice(comm, choice);
	EQUAL(choice[0], algorithm);
	EQUAL(choice[1], protocol);
	EQUAL(choice[2], channels);
}

static void had_own(ncclComm_t comm, bool tree)
{
	had(comm, tree ? FERRY_NCCL_TREE : FERRY_NCCL_RING, FERRY_NCCL_SIMPLE, CHANNELS);
}

/* Whether this interface can say so. 2.21's, without a table, says nothing of what may be missing. */
static bool is_sayable(struct ferry_tuning candidate)
{
	bool any = candidate.algorithm < 0 && candidate.protocol < 0;
	return version > 2 || any ||
	       (candidate.algorithm == FERRY_NCCL_RING && candidate.protocol != FERRY_NCCL_LL128);
}

static void had_candidate(ncclComm_t comm, unsigned number, bool tree)
{
	struct ferry_tuning candidate = ferry_tuning_read(number);
	if (!is_sayable(candidate) || (candidate.algorithm == FERRY_NCCL_TREE && !tree)) {
		had_own(comm, tree);
		return;
	}
	had(comm,
	    candidate.algorithm >= 0 ? candidate.algorithm : tree ? FERRY_NCCL_TREE : FERRY_NCCL_RING,
	    candidate.protocol >= 0 ? candidate.protocol : FERRY_NCCL_SIMPLE,
	    candidate.channels && candidate.channels < CHANNELS ? candidate.channels : CHANNELS);
}

/* ---- promises ---- */

static void each(struct rank *r)
{
	enter(r);
	ranks_init(r);
	HOLDS(is_served(r->comm));
	for (unsigned i = 0; i < FERRY_TUNINGS; i++) {
		make(r, r->comm, FERRY_ALLREDUCE, i);
		had_candidate(r->comm, i, true);
		HOLDS(r->output[COUNT - 1] == SUM);
		make(r, r->comm, FERRY_ALLGATHER, i);
		had_candidate(r->comm, i, false);
		make(r, r->comm, FERRY_ALLREDUCE, 0);
		had_own(r->comm, true);
	}
	make(r, r->comm, FERRY_ALLREDUCE, 63); /* of another version of Ferry's */
	had_own(r->comm, true);
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void nccl_runs_calls_as_their_candidates_say(void **state)
{
	(void)state;
	free(ranks_run(each));
}

static void passes_on(struct rank *r)
{
	enter(r);
	ranks_init(r);
	make(r, r->comm, FERRY_ALLREDUCE, 2);
	had(r->comm, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 8);
	NCCL(all_reduce(r, r->comm));
	had_own(r->comm, true);
	make(r, r->comm, FERRY_ALLREDUCE, 2);
	NCCL(ncclGroupStart());
	NCCL(all_reduce(r, r->comm));
	NCCL(ncclGroupEnd());
	had_own(r->comm, true);
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void calls_of_nobodys_choice_are_nccls_own(void **state)
{
	(void)state;
	free(ranks_run(passes_on));
}

static void impossible(struct rank *r)
{
	enter(r);
	ranks_init(r);
	struct ferry_nccl_call call = call_of(r, r->comm, FERRY_ALLREDUCE, COUNT, 17);
	EQUAL(ferry_tuning_read(17).protocol, FERRY_NCCL_LL128);
	call.type = ncclInt8; /* which the double has no LL128 for */
	NCCL(ferry_nccl_issue(&call));
	had_own(r->comm, true);
	ferry_nccl_comm_release(call.comm);
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void what_nccl_cannot_is_left_alone(void **state)
{
	(void)state;
	free(ranks_run(impossible));
}

/* A group of the double's as the orchestrator makes it. */
static void launch(struct rank *r, size_t first_count, unsigned first, size_t second_count, unsigned second)
{
	struct ferry_nccl_call calls[] = {call_of(r, r->comm, FERRY_ALLREDUCE, first_count, first),
	                                  call_of(r, r->comm, FERRY_ALLREDUCE, second_count, second),
	                                  call_of(r, r->comm, FERRY_SENDRECV, 1, 0)};
	calls[2].sends = true;
	calls[2].root = (r->rank + 1) % RANKS;
	NCCL(ncclGroupStart());
	NCCL(ncclRecv(r->output + COUNT, 1, ncclFloat32, (r->rank + RANKS - 1) % RANKS, r->comm, NULL));
	ferry_nccl_group_keep(&calls[0]);
	ferry_nccl_group_keep(&calls[1]);
	ferry_nccl_group_keep(&calls[2]);
	NCCL(ncclGroupEnd());
	for (int i = 0; i < 3; i++)
		ferry_nccl_comm_release(calls[i].comm);
}

static void groups(struct rank *r)
{
	enter(r);
	ranks_init(r);
	launch(r, COUNT, 2, COUNT / 2, 2);
	had(r->comm, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 8);
	launch(r, COUNT, 2, COUNT / 100, 2);
	had(r->comm, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 8);
	launch(r, COUNT, 2, COUNT / 100, 6);
	had_own(r->comm, true);
	launch(r, COUNT, 0, COUNT / 100, 6); /* in whatever order */
	had_own(r->comm, true);
	launch(r, COUNT, 6, COUNT / 100, 0);
	had_own(r->comm, true);
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void a_groups_calls_that_differ_have_nccls_own_choice(void **state)
{
	(void)state;
	free(ranks_run(groups));
}

static void broadcasts(struct rank *r)
{
	enter(r);
	ranks_init(r);
	struct ferry_nccl_call calls[] = {call_of(r, r->comm, FERRY_BROADCAST, COUNT, 3),
	                                  call_of(r, r->comm, FERRY_BROADCAST, COUNT, 3)};
	EQUAL(ferry_tuning_read(3).channels, 2 * CHANNELS);
	calls[1].root = 1;
	NCCL(ferry_nccl_launch(calls, 2));
	had_own(r->comm, false);
	calls[0].collective = FERRY_ALLGATHER;
	calls[0].count = COUNT / 2; /* of each block, as where Ferry has the other half */
	calls[0].stride = COUNT;
	NCCL(ferry_nccl_issue(&calls[0]));
	had_own(r->comm, false);
	calls[0].collective = FERRY_REDUCESCATTER;
	NCCL(ferry_nccl_issue(&calls[0]));
	had_candidate(r->comm, 3, false);
	for (int i = 0; i < 2; i++)
		ferry_nccl_comm_release(calls[i].comm);
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void broadcasts_have_no_candidate(void **state)
{
	(void)state;
	free(ranks_run(broadcasts));
}

static void nonblocking(struct rank *r)
{
	struct {
		ncclConfig_t head;
		int blocking;
	} config = {{sizeof config, 0, 0}, 0};
	ncclResult_t error = ncclInProgress;
	enter(r);
	EQUAL(ncclCommInitRankConfig(&r->comm, RANKS, r->id, r->rank, &config.head), ncclInProgress);
	while (error == ncclInProgress) {
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		NCCL(ncclCommGetAsyncError(r->comm, &error));
	}
	HOLDS(is_served(r->comm));
	for (unsigned i = 0; i < 8; i++) {
		make(r, r->comm, FERRY_ALLREDUCE, i);
		had_candidate(r->comm, i, true);
	}
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void communicators_that_do_not_block_are_asked_on_threads_of_nccls(void **state)
{
	(void)state;
	free(ranks_run(nonblocking));
}

static void family(struct rank *r)
{
	ncclComm_t child, grandchild;
	enter(r);
	ranks_init(r);
	NCCL(ncclCommSplit(r->comm, 0, -r->rank, &child, NULL));
	HOLDS(is_served(child));
	NCCL(ncclGroupStart());
	NCCL(ncclCommSplit(child, r->rank ? 0 : NCCL_SPLIT_NOCOLOR, 0, &grandchild, NULL));
	NCCL(ncclGroupEnd());
	make(r, child, FERRY_ALLREDUCE, 6);
	make(r, r->comm, FERRY_ALLREDUCE, 2);
	had(child, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 4);
	had(r->comm, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 8);
	if (r->rank) {
		HOLDS(is_served(grandchild));
		make(r, grandchild, FERRY_ALLREDUCE, 7);
		had(grandchild, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 2);
		NCCL(ncclCommDestroy(grandchild));
	}
	NCCL(ncclCommDestroy(r->comm));
	make(r, child, FERRY_ALLREDUCE, 7);
	had(child, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 2);
	NCCL(ncclCommDestroy(child));
	leave(r);
}

static void each_communicator_has_its_own(void **state)
{
	(void)state;
	free(ranks_run(family));
}

/* All ranks by one thread, as by nccl-tests -g. */
static void use_all(ncclComm_t *comms)
{
	static struct rank ranks[RANKS];
	struct ferry_nccl_call calls[RANKS];
	for (int i = 0; i < RANKS; i++) {
		HOLDS(is_served(comms[i]));
		ranks[i].rank = i;
		calls[i] = call_of(&ranks[i], comms[i], FERRY_ALLREDUCE, COUNT, 2);
	}
	NCCL(ferry_nccl_launch(calls, RANKS));
	for (int i = 0; i < RANKS; i++) {
		had(comms[i], FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, 8);
		ferry_nccl_comm_release(calls[i].comm);
		NCCL(ncclCommDestroy(comms[i]));
	}
}

static void one_thread_may_make_the_communicators_of_several_devices(void **state)
{
	(void)state;
	ncclComm_t comms[RANKS];
	ncclUniqueId id;
	NCCL(ncclCommInitAll(comms, RANKS, NULL));
	use_all(comms);
	NCCL(ncclGetUniqueId(&id));
	NCCL(ncclGroupStart());
	for (int i = 0; i < RANKS; i++) {
		struct rank r = {.rank = i};
		enter(&r);
		NCCL(ncclCommInitRank(&comms[i], RANKS, id, i));
	}
	NCCL(ncclGroupEnd());
	use_all(comms);
	for (int i = 0; i < RANKS; i++)
		EQUAL(cuDevicePrimaryCtxRelease(i), CUDA_SUCCESS);
}

static ncclUniqueId second;

/* Two at once on a device: which context is whose cannot be known. A later one is alone again. */
static void twins(struct rank *r)
{
	ncclComm_t twin, alone;
	enter(r);
	NCCL(ncclGroupStart());
	NCCL(ncclCommInitRank(&r->comm, RANKS, r->id, r->rank));
	NCCL(ncclCommInitRank(&twin, RANKS, second, r->rank));
	NCCL(ncclGroupEnd());
	HOLDS(!is_served(r->comm) && !is_served(twin));
	make(r, twin, FERRY_ALLREDUCE, 2);
	make(r, r->comm, FERRY_ALLREDUCE, 2);
	had_own(twin, true);
	had_own(r->comm, true);
	NCCL(ncclCommSplit(twin, 0, 0, &alone, NULL));
	HOLDS(is_served(alone));
	NCCL(ncclCommDestroy(alone));
	NCCL(ncclCommDestroy(twin));
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void a_context_that_may_be_anothers_serves_nobody(void **state)
{
	(void)state;
	NCCL(ncclGetUniqueId(&second));
	free(ranks_run(twins));
}

/* Of a creation that Ferry does not see: then it may be either's. */
static void stranger(struct rank *r)
{
	void *context;
	enter(r);
	NCCL(ncclGroupStart());
	NCCL(ncclCommInitRank(&r->comm, RANKS, r->id, r->rank));
	NCCL(ncclTunerPlugin_v5.init(&context, 1, RANKS, 1, NULL, NULL, NULL));
	NCCL(ncclGroupEnd());
	HOLDS(!is_served(r->comm));
	NCCL(ncclTunerPlugin_v5.destroy(context));
	make(r, r->comm, FERRY_ALLREDUCE, 2);
	had_own(r->comm, true);
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void a_second_context_makes_the_first_doubtful(void **state)
{
	(void)state;
	free(ranks_run(stranger));
}

static void disagree(struct rank *r)
{
	enter(r);
	ranks_init(r);
	make(r, r->comm, FERRY_ALLREDUCE, r->rank ? 1 : 2);
}

/* Of the double: else the suite would show nothing. */
static void ranks_that_differ_are_heard(void **state)
{
	(void)state;
	int status;
	pid_t child = fork();
	if (!child) {
		alarm(30);
		freopen("/dev/null", "w", stderr);
		signal(SIGABRT, SIG_DFL);
		free(ranks_run(disagree));
		_exit(0);
	}
	HOLDS(waitpid(child, &status, 0) == child);
	HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static int channels_without; /* of Ferry's plugin */

static void without(struct rank *r)
{
	enter(r);
	ranks_init(r);
	HOLDS(!is_served(r->comm));
	make(r, r->comm, FERRY_ALLREDUCE, 2);
	had(r->comm, FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE, channels_without);
	NCCL(ncclCommDestroy(r->comm));
	leave(r);
}

static void where_nccl_loads_another_plugin_or_none_candidates_say_nothing(void **state)
{
	(void)state;
	free(ranks_run(without));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(ranks_that_differ_are_heard), /* before there are threads */
	        cmocka_unit_test(nccl_runs_calls_as_their_candidates_say),
	        cmocka_unit_test(calls_of_nobodys_choice_are_nccls_own),
	        cmocka_unit_test(what_nccl_cannot_is_left_alone),
	        cmocka_unit_test(a_groups_calls_that_differ_have_nccls_own_choice),
	        cmocka_unit_test(broadcasts_have_no_candidate),
	        cmocka_unit_test(communicators_that_do_not_block_are_asked_on_threads_of_nccls),
	        cmocka_unit_test(each_communicator_has_its_own),
	        cmocka_unit_test(one_thread_may_make_the_communicators_of_several_devices),
	        cmocka_unit_test(a_context_that_may_be_anothers_serves_nobody),
	        cmocka_unit_test(a_second_context_makes_the_first_doubtful),
	};
	const struct CMUnitTest others[] = {
	        cmocka_unit_test(where_nccl_loads_another_plugin_or_none_candidates_say_nothing),
	};
	version = argc > 1 ? atoi(argv[1]) : 7;
	setenv("FAKE_NCCL_TUNER", argc > 1 && version ? argv[1] : "7", 1);
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	setenv("FERRY_ROUTER", "required", 1); /* there is none, so that all calls are NCCL's, from the first on */
	setenv("FERRY_SOCKET_DIR", "/nowhere", 1);
	EQUAL(cuInit(0), CUDA_SUCCESS);
	if (argc > 1 && !version) {
		channels_without = strcmp(argv[1], "none") ? 3 : CHANNELS;
		setenv("NCCL_TUNER_PLUGIN", argv[1], 1);
		return cmocka_run_group_tests(others, NULL, NULL);
	}
	setenv("NCCL_TUNER_PLUGIN", "STATIC_PLUGIN", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
