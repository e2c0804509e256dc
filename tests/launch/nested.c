/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises to a program that is started by one launcher in another: its communicators are those of the innermost one,
 * and their sums are right. Given "rank", this program is such a program. Its second argument is "mpi" where this
 * machine's mpiexec makes jobs.
 */
#include "tests/commands.h"

#include "ferry.h"

#include <stdbool.h>

/* Sums ones over the ranks. */
static int rank(void)
{
	int ones[4] = {1, 1, 1, 1}, size, number;
	ferryComm_t comm;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.device = "host";
	if (ferryCommInitEnv(&comm, &config) || ferryCommCount(comm, &size) || ferryCommUserRank(comm, &number) ||
	    ferryAllReduce(ones, ones, 4, ferryInt32, ferrySum, comm, NULL) || ferryStreamSynchronize(NULL)) {
		fprintf(stderr, "%s\n", ferryGetLastError(NULL));
		return 1;
	}
	printf("rank %d of %d: %d\n", number, size, ones[3]);
	return ferryCommDestroy(comm) != ferrySuccess;
}

static bool has_mpi;

/* $T N PORT SECONDS COMMAND: as torchrun; each worker so many seconds after the one before it. $RUN is this test. */
#define TORCHRUN                                                                                                       \
	"#!/bin/sh\nn=$1 port=$2 pause=$3 i=0; shift 3\nwhile [ $i -lt $n ]; do\n"                                     \
	"RANK=$i WORLD_SIZE=$n LOCAL_RANK=$i LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "             \
	"TORCHELASTIC_RUN_ID=$RUN \"$@\" &\ni=$((i + 1)); sleep $pause; done\nwait\n"

/* Runs a nest whose innermost launchers are `jobs` of 3 ranks; $R is the program. */
static void expect_jobs_of_three(const char *nest, int jobs)
{
	char command[1024], text[8192], expected[256];
	snprintf(command, sizeof command,
	         "T=$FERRY_SOCKET_DIR/torchrun; N=%d; export T N; %s 2>&1 | grep -v '^ferryrun: each of' | "
	         "sort | uniq -c",
	         2000 + (int)getpid() % 4000, nest); /* N and a digit: ports, which name jobs of the whole machine */
	run(command, text, sizeof text);
	snprintf(expected, sizeof expected,
	         "%7d rank 0 of 3: 3\n%7d rank 1 of 3: 3\n%7d rank 2 of 3: 3\n", jobs, jobs, jobs);
	if (strcmp(text, expected) != 0)
		fail_msg("%s: %s", nest, text);
}

static int make_torchrun(void **state)
{
	char path[128];
	if (make_directory(state))
		return 1;
	snprintf(path, sizeof path, "%s/torchrun", directory);
	FILE *file = fopen(path, "w");
	return !file || fputs(TORCHRUN, file) < 0 || fclose(file) || chmod(path, 0700);
}

static int remove_torchrun(void **state)
{
	char text[256];
	end_routers();
	run("rm $FERRY_SOCKET_DIR/torchrun", text, sizeof text);
	return remove_directory(state);
}

/* "sum of ones is 1", and no word, was what they got. */
static void workers_of_torchrun_are_one_job_though_a_launcher_started_torchrun(void **state)
{
	(void)state;
	static const char *const outer[] = {
		"PMI_RANK=0 PMI_SIZE=1", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0 PMIX_NAMESPACE=x",
		"SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=7", "FERRY_RANK=0 FERRY_SIZE=1",
		"PMI_RANK=0 PMI_SIZE=3 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=7"};
	char nest[512];
	for (size_t i = 0; i < sizeof outer / sizeof *outer; i++)
		for (int pause = 0; pause < 2; pause++) {
			snprintf(nest, sizeof nest, "env %s $T 3 ${N}1 0.%d $R", outer[i],
			         2 * pause);
			expect_jobs_of_three(nest, 1);
		}
}

static void ferryrun_and_torchrun_may_start_each_other(void **state)
{
	(void)state;
	expect_jobs_of_three("$T 2 ${N}1 0 $B/ferryrun -n 3 --fork -- $R", 2);
	expect_jobs_of_three("$B/ferryrun -n 2 --fork -- sh -c '$T 3 ${N}$FERRY_RANK 0 $R'", 2);
	expect_jobs_of_three("$B/ferryrun -n 2 --fork -- sh -c '$T 3 ${N}$FERRY_RANK 0.1 $B/ferryrun --join -- $R'", 2);
	expect_jobs_of_three("$B/ferryrun --fork -n 2 -- $B/ferryrun --fork -n 3 -- $R", 2);
}

static void mpiexec_may_start_and_be_started(void **state)
{
	(void)state;
	if (!has_mpi)
		skip();
	expect_jobs_of_three("mpiexec -n 2 $B/ferryrun -n 3 --fork -- $R", 2);
	expect_jobs_of_three("mpiexec -n 2 $B/ferryrun -n 3 -- $R", 2);
	expect_jobs_of_three("$B/ferryrun -n 2 --fork -- mpiexec -n 3 $R", 2);
	expect_jobs_of_three("$B/ferryrun -n 2 --fork -- mpiexec -n 3 $B/ferryrun --join -- $R", 2);
	expect_jobs_of_three("$T 2 ${N}1 0 $B/ferryrun -n 3 -- $R", 2);
	expect_jobs_of_three("$T 2 ${N}1 0 mpiexec -n 3 $R", 2);
	expect_jobs_of_three("mpiexec -n 2 sh -c '$T 3 ${N}$PMI_RANK 0.1 $R'", 2);
	expect_jobs_of_three("mpiexec -n 3 mpiexec -n 3 $R", 3);
	expect_jobs_of_three("mpiexec -n 1 $T 1 ${N}1 0 mpiexec -n 3 $R", 1);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_torchrun, remove_torchrun)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(workers_of_torchrun_are_one_job_though_a_launcher_started_torchrun),
		TEST(ferryrun_and_torchrun_may_start_each_other),
		TEST(mpiexec_may_start_and_be_started),
	};
	char self[256];
	if (argc == 2 && !strcmp(argv[1], "rank"))
		return rank();
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 8);
	assert_true(length > 0);
	memcpy(self + length, " rank", 6);
	setenv("R", self, 1);
	snprintf(self, sizeof self, "test-%d", (int)getpid());
	setenv("RUN", self, 1);
	if (argc > 1)
		setenv("B", argv[1], 1); /* the directory of the commands */
	has_mpi = argc == 3 && !strcmp(argv[2], "mpi");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
