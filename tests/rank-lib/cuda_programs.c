/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs with PUTs run as calls on GPUs, over the double of the driver: routers map the buffers of all ranks
 * and push from one into another, several calls in flight, every result judged. cuda_programs [SEED]
 */
#include "tests/fake_cuda/device_buffers.h"
#include "tests/fake_cuda/routers.h"
#include "tests/rank-lib/program/program_interpreter.h"
#include "tests/rank-lib/program/program_runs.h"
#include "tests/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PROGRAMS 40 /* of a communicator, which keeps 64 */
#define FLIGHTS  4
#define LARGEST  70000 /* elements: several slices are forwarded */

static const int spread[] = {0, 1, 2, 3, 0, 1, 2, 3}, pairs[] = {0, 0, 1, 1, 0, 0, 1, 1};

static uint64_t first_seed = 1, seed;

struct flight {
	struct program_run run;
	struct device_buffers buffers[MOST_PLACES];
};

static struct ferry_topology topology_of(const struct gang *gang)
{
	struct ferry_topology topology = {.nranks = (uint32_t)gang->nranks};
	for (int rank = 0; rank < gang->nranks; rank++) {
		int domain, domains;
		OK(ferryCommDomain(gang->comms[rank], &domain, &domains));
		topology.rank_domain[rank] = (uint8_t)domain;
		topology.ndomains = (uint32_t)domains;
	}
	return topology;
}

static void start(struct flight *flight, const struct gang *gang, const struct ferry_topology *topology)
{
	struct program_run *run = &flight->run;
	program_run_open(run, topology, LARGEST, true, &seed);
	int turn = (int)draw_below(&seed, MOST_PLACES);
	for (int i = 0; i < gang->nranks; i++) {
		int rank = (turn + i) % gang->nranks;
		struct device_buffers *buffers = &flight->buffers[rank];
		device_buffers_open(&run->trial, rank, gang->devices[rank], run->offset, buffers);
		if (program_run_start(run, buffers->send, buffers->receive, gang->comms[rank],
		                      (ferryStream_t)buffers->stream))
			fail_msg("seed %llu: %s, rank %d: %s\n%s", (unsigned long long)first_seed,
			         trial_text(&run->trial), rank, ferryGetLastError(NULL), run->text);
	}
}

static void land(struct flight *flight, const struct gang *gang)
{
	struct program_run *run = &flight->run;
	size_t wrong = 0;
	for (int rank = 0; rank < gang->nranks; rank++)
		wrong += device_buffers_close(&run->trial, rank, gang->devices[rank], &flight->buffers[rank]);
	if (wrong)
		fail_msg("seed %llu: %s: %zu wrong by\n%s", (unsigned long long)first_seed, trial_text(&run->trial),
		         wrong, run->text);
	program_run_close(run);
}

static void random_programs_are_right_on(int nranks, const int *devices)
{
	static struct flight flights[FLIGHTS];
	struct gang gang;
	uint32_t puts = 0, forwards = 0, sums = 0;
	open_with(&gang, nranks, devices, NULL, NULL);
	struct ferry_topology topology = topology_of(&gang);
	for (int done = 0; done < PROGRAMS; done += FLIGHTS) {
		for (int i = 0; i < FLIGHTS; i++) {
			start(&flights[i], &gang, &topology);
			puts += flights[i].run.puts;
			forwards += flights[i].run.forwards;
			sums += flights[i].run.sums;
		}
		for (int i = 0; i < FLIGHTS; i++)
			land(&flights[i], &gang);
	}
	gang_close(&gang);
	print_message("seed %llu: %d programs of %d ranks in %u domains, %u PUTs, %u of which forward, %u ADDs\n",
	              (unsigned long long)first_seed, PROGRAMS, nranks, topology.ndomains, puts, forwards, sums);
	assert_true(puts > PROGRAMS && (nranks == 2 || forwards) && sums);
}

static void random_pushing_programs_are_right_on_a_gpu_each(void **state)
{
	(void)state;
	random_programs_are_right_on(2, spread);
	random_programs_are_right_on(3, spread);
	random_programs_are_right_on(4, spread);
}

static void random_pushing_programs_are_right_where_ranks_share_gpus(void **state)
{
	(void)state;
	random_programs_are_right_on(4, pairs);
	random_programs_are_right_on(8, spread);
}

static void random_pushing_programs_are_right_through_one_slot_of_few_bytes(void **state)
{
	(void)state;
	setenv("FERRY_SLICE", "4096", 1);
	setenv("FERRY_WINDOW", "1", 1);
	random_programs_are_right_on(5, spread);
	unsetenv("FERRY_SLICE");
	unsetenv("FERRY_WINDOW");
}

static void programs_that_add_are_refused_without_kernels(void **state)
{
	static const char program[] = "program allreduce ranks 2 domains 1 chunks 1\n"
	                              "rank 0\nPUT gpu[0] -> mem@1[0]\n"
	                              "rank 1\nPUT gpu[0] -> mem[1]\nADD mem[0] -> mem[1] deps: mem[0]>=1\n"
	                              "PUT mem[1] -> gpu[0]\nPUT gpu[0] -> gpu@0[0] deps: gpu[0]>=1\n";
	struct ferry_trial trial = {.type = ferryFloat32, .count = 100, .nranks = 2, .ndomains = 1};
	struct device_buffers buffers;
	struct gang gang;
	(void)state;
	if (domains_asked_for() > 1)
		skip(); /* it is refused for another reason: it is a program for one domain */
	assert_true(ferry_trial_open(&trial));
	setenv("FERRY_KERNELS", "off", 1);
	open_with(&gang, 2, spread, NULL, NULL);
	unsetenv("FERRY_KERNELS");
	for (int rank = 0; rank < 2; rank++) {
		device_buffers_open(&trial, rank, gang.devices[rank], 0, &buffers);
		REFUSED(ferryProgramError, "program:6: ADD on GPUs without kernels",
		        ferryRunProgram(program, buffers.send, buffers.receive, trial.count, trial.type, ferrySum,
		                        gang.comms[rank], (ferryStream_t)buffers.stream));
		device_buffers_close(&trial, rank, gang.devices[rank], &buffers);
	}
	ferry_trial_close(&trial);
	gang_close(&gang);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(random_pushing_programs_are_right_on_a_gpu_each),
	        TEST(random_pushing_programs_are_right_where_ranks_share_gpus),
	        TEST(random_pushing_programs_are_right_through_one_slot_of_few_bytes),
	        TEST(programs_that_add_are_refused_without_kernels),
	};
	if (argc > 1)
		first_seed = strtoull(argv[1], NULL, 0);
	seed = first_seed;
	setenv("FERRY_KERNELS", "2", 1); /* blocks that add up: each is a thread here */
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
