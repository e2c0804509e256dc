/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs with PUTs run as calls on host devices, through lanes and put targets, several in flight, every
 * result judged. `pushing_programs [SEED]` has ranks in this process; under ferryrun each process is a rank, pushes
 * into the memory of others, and all draw the same. The seed is printed, and gives the same programs again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/launcher.h"
#include "tests/hosted.h"
#include "tests/rank-lib/program/program_interpreter.h"
#include "tests/rank-lib/program/program_runs.h"
#include "tests/sanitized.h"
#include "tests/succeeds.h"
#include "tests/trial_run.h"

#include <stdio.h>
#include <stdlib.h>

#define PROGRAMS   60 /* of a communicator, which keeps 64 */
#define ROUNDS     REPEATS(3, 1)  /* communicators of a shape */
#define FLIGHTS    4
#define MOST_RANKS 8
#define LARGEST    200000 /* elements: several slices are forwarded */

static uint64_t first_seed = 1, seed; /* the sequence goes on from communicator to communicator */

/* A communicator's ranks, of which this process has some. */
struct crew {
	struct ferry_topology topology;
	uint32_t first, end;
	ferryComm_t comms[MOST_RANKS];
};

struct flight {
	struct program_run run;
	struct trial_buffers buffers[MOST_RANKS];
};

static void start(struct flight *flight, const struct crew *crew, size_t most)
{
	struct program_run *run = &flight->run;
	program_run_open(run, &crew->topology, most, true, &seed);
	uint32_t here = crew->end - crew->first, turn = draw_below(&seed, MOST_RANKS);
	for (uint32_t i = 0; i < here; i++) {
		uint32_t rank = crew->first + (turn + i) % here;
		struct trial_buffers *buffers = &flight->buffers[rank];
		assert_true(trial_buffers_open(&run->trial, (int)rank, run->offset, buffers));
		if (program_run_start(run, buffers->send, buffers->receive, crew->comms[rank], NULL))
			fail_msg("seed %llu: %s, rank %u: %s\n%s", (unsigned long long)first_seed,
			         trial_text(&run->trial), rank, ferryGetLastError(NULL), run->text);
	}
}

static void land(struct flight *flight, const struct crew *crew)
{
	struct program_run *run = &flight->run;
	for (uint32_t rank = crew->first; rank < crew->end; rank++) {
		size_t wrong = trial_buffers_wrong(&run->trial, (int)rank, &flight->buffers[rank]);
		if (wrong)
			fail_msg("seed %llu: %s: rank %u has %zu wrong by\n%s", (unsigned long long)first_seed,
			         trial_text(&run->trial), rank, wrong, run->text);
		trial_buffers_close(&flight->buffers[rank]);
	}
	program_run_close(run);
}

static void run_programs(const struct crew *crew, size_t most)
{
	static struct flight flights[FLIGHTS];
	uint32_t puts = 0, forwards = 0, sums = 0;
	for (uint32_t done = 0; done < PROGRAMS; done += FLIGHTS) {
		for (uint32_t i = 0; i < FLIGHTS; i++) {
			start(&flights[i], crew, most);
			puts += flights[i].run.puts;
			forwards += flights[i].run.forwards;
			sums += flights[i].run.sums;
		}
		OK(ferryStreamSynchronize(NULL));
		for (uint32_t i = 0; i < FLIGHTS; i++)
			land(&flights[i], crew);
	}
	if (!crew->first)
		print_message("seed %llu: %u programs of %u ranks in %u domains, %u PUTs, %u of which forward, "
		              "%u ADDs\n",
		              (unsigned long long)first_seed, PROGRAMS, crew->topology.nranks, crew->topology.ndomains,
		              puts, forwards, sums);
	assert_true(puts > PROGRAMS && sums && (crew->topology.nranks == 2 || forwards > PROGRAMS / 4));
}

/* ---- ranks of this process ---- */

static void set_number(const char *name, uint32_t value)
{
	char text[16];
	snprintf(text, sizeof text, "%u", value);
	setenv(name, text, 1);
}

static void ranks_here_get_programs_right(uint32_t nranks, uint32_t ndomains, size_t most)
{
	struct crew crew = {.topology = {.nranks = nranks}, .end = nranks};
	int domain, domains = 0;
	hosted_routers((int)ndomains);
	OK(ferryCommInitAll(crew.comms, (int)nranks, NULL));
	for (uint32_t rank = 0; rank < nranks; rank++) {
		OK(ferryCommDomain(crew.comms[rank], &domain, &domains));
		crew.topology.rank_domain[rank] = (uint8_t)domain;
	}
	crew.topology.ndomains = (uint32_t)domains;
	run_programs(&crew, most);
	for (uint32_t rank = 0; rank < nranks; rank++)
		OK(ferryCommDestroy(crew.comms[rank]));
}

static void random_pushing_programs_are_right_on_many_shapes(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		ranks_here_get_programs_right(2, 1, LARGEST);
		ranks_here_get_programs_right(3, 1, LARGEST);
		ranks_here_get_programs_right(4, 2, LARGEST);
		ranks_here_get_programs_right(7, 3, LARGEST / 4);
		ranks_here_get_programs_right(8, 2, LARGEST / 4);
	}
}

static void random_pushing_programs_are_right_through_one_slot_of_few_bytes(void **state)
{
	(void)state;
	set_number("FERRY_SLICE", 256);
	set_number("FERRY_WINDOW", 1);
	for (int round = 0; round < ROUNDS; round++) {
		ranks_here_get_programs_right(4, 1, 2000);
		ranks_here_get_programs_right(6, 2, 2000);
	}
	unsetenv("FERRY_SLICE");
	unsetenv("FERRY_WINDOW");
}

/* ---- one of many processes ---- */

static void this_process_gets_random_pushing_programs_right(void **state)
{
	struct crew crew = {0};
	ferryComm_t comm;
	int rank, nranks, domain, ndomains;
	(void)state;
	OK(ferryCommInitEnv(&comm, NULL));
	OK(ferryCommUserRank(comm, &rank));
	OK(ferryCommCount(comm, &nranks));
	OK(ferryCommDomain(comm, &domain, &ndomains));
	assert_true(nranks <= MOST_RANKS);
	crew.topology.nranks = (uint32_t)nranks;
	crew.topology.ndomains = (uint32_t)ndomains;
	for (int other = 0; other < nranks; other++) /* in equal blocks */
		crew.topology.rank_domain[other] = (uint8_t)(other * ndomains / nranks);
	assert_int_equal(crew.topology.rank_domain[rank], domain);
	crew.first = (uint32_t)rank;
	crew.end = crew.first + 1;
	crew.comms[rank] = comm;
	run_programs(&crew, LARGEST / 4);
	OK(ferryCommDestroy(comm));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest here[] = {
	        cmocka_unit_test(random_pushing_programs_are_right_on_many_shapes),
	        cmocka_unit_test(random_pushing_programs_are_right_through_one_slot_of_few_bytes),
	};
	const struct CMUnitTest in_processes[] = {
	        cmocka_unit_test(this_process_gets_random_pushing_programs_right),
	};
	struct ferry_launch launch;
	if (argc > 1)
		first_seed = strtoull(argv[1], NULL, 0);
	if (ferry_launch_read(&launch))
		return 1;
	seed = first_seed;
	setenv("FERRY_HOST_LINK", "peer=100", 1);
	if (launch.rank >= 0)
		return cmocka_run_group_tests(in_processes, NULL, NULL);
	hosted_routers(0);
	return cmocka_run_group_tests(here, NULL, NULL);
}
