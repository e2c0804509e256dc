/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers whose context on a GPU is gone, after an error of CUDA's that stays: they end, and their jobs go on with the
 * next one; errors that do not stay end one job, and no router. Over the double of the driver.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT      30011
#define LOST       3 /* ferry-router's exit code */
#define IN_A_ROW   8 /* FERRY_MOST_LOSSES */
#define SECONDS_MS 60000

static const int devices[] = {0, 1}, others[] = {2, 3};

struct job {
	struct gang gang;
	struct place places[MOST_PLACES];
	uint32_t rounds;
};

static void job_open(struct job *job, const int *of)
{
	gang_open(&job->gang, 2, of, 1);
	places_open(job->places, &job->gang, COUNT);
	job->rounds = 0;
}

static void job_go_on(struct job *job, uint32_t rounds)
{
	for (uint32_t i = 0; i < rounds; i++)
		places_round(job->places, &job->gang);
	job->rounds += rounds;
}

/* Of a job that is to fail, which it may do before all of them are made. */
static void job_go_on_to_its_end(struct job *job, uint32_t rounds)
{
	bool failed = false;
	for (uint32_t i = 0; i < 2 * rounds && !failed; i++) {
		struct place *place = &job->places[i % 2];
		place_enter(place);
		place_write(place);
		failed = place_try(place, job->gang.comms[i % 2]);
	}
}

static void job_settle(struct job *job)
{
	places_settle(job->places, &job->gang, job->rounds);
}

static void job_close(struct job *job)
{
	places_close(job->places, &job->gang);
	gang_close(&job->gang);
}

/* It has failed: its streams go on all the same. */
static void job_abort(struct job *job)
{
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(job->gang.comms[rank]));
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&job->places[rank]);
		CU(cuStreamSynchronize(job->places[rank].stream));
		place_close(&job->places[rank]);
	}
	domains_close();
}

/* Of routers that are started from now on, on GPU 0; 0: none. */
static void fault(int operation, int error, bool of_one_call)
{
	char text[16];
	snprintf(text, sizeof text, "%d", operation);
	setenv("FAKE_CUDA_FAULT", text, 1);
	snprintf(text, sizeof text, "%d", error);
	setenv("FAKE_CUDA_FAULT_ERROR", text, 1);
	setenv("FAKE_CUDA_FAULT_ONCE", of_one_call ? "1" : "0", 1);
}

static ferryResult_t error_of(const struct job *job, int rank)
{
	ferryResult_t error = ferrySuccess;
	for (int waited = 0; !error && waited < SECONDS_MS; waited++) {
		OK(ferryCommGetAsyncError(job->gang.comms[rank], &error));
		doze(1);
	}
	return error;
}

static void ended_with(const struct job *job, const char *const *flags)
{
	for (int rank = 0; rank < 2; rank++) {
		ferryResult_t error = error_of(job, rank);
		const char *said = ferryGetLastError(job->gang.comms[rank]);
		for (const char *const *flag = flags; *flag; flag++)
			if (!error || !strstr(said, *flag))
				fail_msg("rank %d: %s: \"%s\", expected \"%s\"", rank, ferryGetErrorString(error), said,
				         *flag);
	}
}

static void a_router_whose_context_is_gone_ends_and_its_job_goes_on(void **state)
{
	static const CUresult errors[] = {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ECC_UNCORRECTABLE,
	                                  CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_UNKNOWN};
	struct job job;
	(void)state;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		fault(20 + 3 * (int)i, (int)errors[i], false);
		job_open(&job, devices);
		fault(0, 0, false);
		job_go_on(&job, 20);
		assert_int_equal(routers_await_end(0), LOST);
		routers_open(1);
		job_settle(&job);
		job_go_on(&job, 5);
		job_settle(&job);
		job_close(&job);
		routers_close();
	}
}

/* The other's GPUs are all right, and it uses none of the lost one's. */
static void jobs_on_other_gpus_go_on_as_well(void **state)
{
	struct job job, other;
	(void)state;
	fault(30, CUDA_ERROR_ILLEGAL_ADDRESS, false);
	job_open(&job, devices);
	job_open(&other, others);
	fault(0, 0, false);
	job_go_on(&other, 3);
	job_settle(&other);
	job_go_on(&job, 20);
	job_go_on(&other, 20);
	assert_int_equal(routers_await_end(0), LOST);
	routers_open(1);
	job_settle(&job);
	job_settle(&other);
	job_close(&other);
	job_close(&job);
}

/* The context says that it is all right, whatever the error is called. */
static void an_error_of_one_call_ends_its_job_and_no_other(void **state)
{
	static const CUresult errors[] = {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_ILLEGAL_ADDRESS};
	struct job job, other;
	(void)state;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		fault(30, (int)errors[i], true);
		job_open(&job, devices);
		job_open(&other, others);
		fault(0, 0, false);
		pid_t router = routers_pid(0);
		job_go_on_to_its_end(&job, 20);
		ended_with(&job, (const char *const[]){"copying", NULL});
		job_go_on(&other, 10);
		job_settle(&other);
		job_abort(&job);
		job_close(&other);
		assert_int_equal(routers_pid(0), router);
		routers_close();
	}
}

/* Or, false, the router that is there now has. */
static bool has_ended(const struct job *job)
{
	ferryResult_t error = ferrySuccess;
	for (int waited = 0; !error && waited < SECONDS_MS; waited++) {
		siginfo_t router = {0};
		waitid(P_PID, (id_t)routers_pid(0), &router, WEXITED | WNOHANG | WNOWAIT);
		if (router.si_pid)
			return false;
		OK(ferryCommGetAsyncError(job->gang.comms[0], &error));
		doze(1);
	}
	return true;
}

/*
 * So many routers in a row and no more: then the job ends, and says why. The first ones may have got on with the GPU
 * that is not lost. The other job has gone on with each of them, and does so.
 */
static void ends_after(int operation)
{
	const char *const flags[] = {"8 routers of domain 0 in a row died without any progress", "GPU 0 (GPU-",
	                             "CUDA error 214", NULL};
	struct job job, other;
	int ends = 0;
	fault(30, CUDA_ERROR_ECC_UNCORRECTABLE, false);
	job_open(&job, devices);
	job_open(&other, others);
	job_go_on(&other, 3); /* first calls ask a router, and when that one dies nobody starts another meanwhile */
	job_settle(&other);
	job_go_on(&job, 20);
	job_go_on(&other, 5);
	fault(operation, CUDA_ERROR_ECC_UNCORRECTABLE, false);
	do {
		assert_int_equal(routers_await_end(0), LOST);
		routers_open_again(0);
		ends++;
	} while (!has_ended(&job) && ends < 2 * IN_A_ROW);
	/* the one that is there may be the last that counted, and be about to end */
	assert_in_range(ends, IN_A_ROW - 1, 2 * IN_A_ROW);
	routers_kill(0);
	routers_open(1);
	ended_with(&job, flags);
	job_go_on(&other, 5);
	job_settle(&other);
	job_abort(&job);
	job_close(&other);
	fault(0, 0, false);
	routers_close();
}

static void a_gpu_that_is_lost_to_each_router_ends_its_job_with_its_name(void **state)
{
	(void)state;
	ends_after(2); /* its first copy, once the job has been adopted */
}

static void a_gpu_that_is_lost_while_its_job_is_adopted_ends_it_with_its_name(void **state)
{
	(void)state;
	ends_after(1);
}

/* Nobody takes the router's place. */
static void a_job_that_ends_with_its_router_says_which_gpu_it_was(void **state)
{
	const char *const flags[] = {"the router of domain 0 died", "GPU 0 (GPU-", "CUDA error 719", NULL};
	struct job job;
	(void)state;
	setenv("FERRY_TAKEOVER", "off", 1);
	fault(30, CUDA_ERROR_LAUNCH_FAILED, false);
	job_open(&job, devices);
	unsetenv("FERRY_TAKEOVER");
	fault(0, 0, false);
	job_go_on_to_its_end(&job, 20);
	assert_int_equal(routers_await_end(0), LOST);
	ended_with(&job, flags);
	job_abort(&job);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_router_whose_context_is_gone_ends_and_its_job_goes_on),
	        TEST(jobs_on_other_gpus_go_on_as_well),
	        TEST(an_error_of_one_call_ends_its_job_and_no_other),
	        TEST(a_gpu_that_is_lost_to_each_router_ends_its_job_with_its_name),
	        TEST(a_gpu_that_is_lost_while_its_job_is_adopted_ends_it_with_its_name),
	        TEST(a_job_that_ends_with_its_router_says_which_gpu_it_was),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
