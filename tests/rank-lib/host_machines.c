/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines of host devices as FERRY_HOST_LINK models them: collectives that are pushed take hardly longer than the
 * links allow by arithmetic, and come out right on any few GPUs of a DGX-1V. Ranks are threads of one process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/links.h"
#include "ipc/wait.h"
#include "rank-lib/program/program.h"
#include "router/engine/balance.h"
#include "tests/hosted.h"
#include "tests/succeeds.h"
#include "tests/trial_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS    8
#define BLOCK    (1u << 20)
#define LONGEST  200003 /* of the blocks of allocations */
#define ATTEMPTS 8      /* another process may take the cores */
#define OF_BOUND 0.9
#define OF_PATHS 0.8 /* of relays, whose slices wait for three lanes' turns */
#define OF_PORTS 0.9 /* with slower links */
#define OF_TREES 0.7 /* of sums, which turn round at the root: routers and lanes take turns for every slice */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* its copies are slower than the links */
#else
#define SANITIZED false
#endif

static ferryComm_t comms[FERRY_MAX_RANKS];

static void open_machine(const char *links, int nranks)
{
	setenv("FERRY_HOST_LINK", links, 1);
	OK(ferryCommInitAll(comms, nranks, NULL));
}

static void close_machine(int nranks)
{
	for (int rank = 0; rank < nranks; rank++)
		OK(ferryCommDestroy(comms[rank]));
	unsetenv("FERRY_HOST_LINK");
}

/* ---- times ---- */

/* Of Ferry's program for these links, of blocks of so many bytes. */
static double bound_ms(enum ferry_collective collective, const char *machine, int nranks, size_t bytes)
{
	struct ferry_topology topology = {.nranks = (uint32_t)nranks, .ndomains = 1};
	struct ferry_host_links parsed;
	struct ferry_links links;
	struct ferry_program *program;
	if (ferry_host_links_parse("links", machine, &parsed) ||
	    ferry_host_links_place("links", &parsed, topology.nranks, &links) ||
	    ferry_program_synthesize_peer(collective, &topology, &links, 0, &program))
		fail_msg("%s: %s", machine, ferry_last_message());
	double time = ferry_program_peer_time(program, &links);
	ferry_program_free(program);
	return time * (double)bytes * 1e-6;
}

/* From the first rank's call until all have what they get, which is judged. */
static double measure_ms(struct ferry_trial *trial)
{
	struct trial_buffers buffers[RANKS];
	assert_true(ferry_trial_open(trial));
	for (int rank = 0; rank < trial->nranks; rank++)
		assert_true(trial_buffers_open(trial, rank, 0, &buffers[rank]));
	uint64_t begin = ferry_now_ns();
	for (int rank = 0; rank < trial->nranks; rank++)
		OK(ferry_trial_start(trial, rank, buffers[rank].send, buffers[rank].receive, trial->op, comms[rank],
		                     NULL));
	OK(ferryStreamSynchronize(NULL));
	double ms = (double)(ferry_now_ns() - begin) * 1e-6;
	for (int rank = 0; rank < trial->nranks; rank++) {
		if (trial_buffers_wrong(trial, rank, &buffers[rank]))
			fail_msg("%s: rank %d has wrong elements", trial_text(trial), rank);
		trial_buffers_close(&buffers[rank]);
	}
	ferry_trial_close(trial);
	return ms;
}

/* What takes less has not come over the links. */
static void must_keep_to_links(double ms, double bound)
{
	if (ms < bound * 0.999)
		fail_msg("%.1f ms are less than the %.1f that the links take", ms, bound);
}

/* ---- rates ---- */

/* With links so slow that two cores keep up, however busy. */
static void must_be_near_its_bound(enum ferry_collective collective, const char *machine, size_t count)
{
	double enough = collective == FERRY_ALLREDUCE ? OF_TREES : OF_BOUND;
	struct ferry_trial trial = {.collective = collective,
	                            .type = ferryUint8,
	                            .count = count,
	                            .nranks = RANKS,
	                            .ndomains = 1};
	double bound = bound_ms(collective, machine, RANKS, count), best = 0;
	open_machine(machine, RANKS);
	for (int attempt = 0; attempt < ATTEMPTS && !(best > 0 && bound / best >= enough); attempt++) {
		trial.seed = (uint64_t)attempt + 1;
		double ms = measure_ms(&trial);
		best = best > 0 && best < ms ? best : ms;
		if (SANITIZED)
			break;
	}
	close_machine(RANKS);
	print_message("%s, %s: %.1f ms of %.1f by arithmetic: %.3f\n", ferry_collective_name(collective), machine, best,
	              bound, bound / best);
	must_keep_to_links(best, bound);
	if (!SANITIZED && bound / best < enough)
		fail_msg("%.1f ms are %.3f of %.1f, the links allow more", best, bound / best, bound);
}

/* As a router divides it among all paths (router/engine/balance.h). */
static double divided_ms(const struct ferry_trial *trial, const char *machine, double *direct_ms)
{
	static uint64_t bytes[RANKS * RANKS];
	struct ferry_host_links parsed;
	struct ferry_links links;
	struct ferry_paths paths;
	struct ferry_balancer balance;
	struct ferry_trial_counts counts;
	size_t n = (size_t)trial->nranks;
	assert_false(ferry_host_links_parse("links", machine, &parsed));
	assert_false(ferry_host_links_place("links", &parsed, (uint32_t)n, &links));
	assert_true(ferry_paths_make(&links, (uint32_t)n, &(struct ferry_path_limits){0}, &paths));
	assert_true(ferry_balance_open(&balance, &paths));
	for (size_t pair = 0; pair < n * n; pair++) {
		ferry_trial_counts(trial, (int)(pair / n), &counts);
		bytes[pair] = pair / n == pair % n ? 0 : counts.sendcounts[pair % n] * ferry_type_size(trial->type);
	}
	ferry_balance_plan(&balance, bytes);
	double ms = balance.us * 1e-3;
	*direct_ms = balance.direct_us * 1e-3;
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
	return ms;
}

static void must_be_near_what_all_paths_allow(const char *traffic, const char *machine, int nranks, size_t count,
                                              double enough)
{
	static struct ferry_skew skew;
	char message[128];
	struct ferry_trial trial = {.collective = FERRY_ALLTOALLV,
	                            .type = ferryUint8,
	                            .count = count,
	                            .skew = &skew,
	                            .nranks = nranks,
	                            .ndomains = 1};
	assert_true(ferry_skew_read(traffic, nranks, &skew, message, sizeof message));
	double direct, bound = divided_ms(&trial, machine, &direct), best = 0;
	open_machine(machine, nranks);
	for (int attempt = 0; attempt < ATTEMPTS && !(best > 0 && bound / best >= enough); attempt++) {
		trial.seed = (uint64_t)attempt + 1;
		double ms = measure_ms(&trial);
		best = best > 0 && best < ms ? best : ms;
		if (SANITIZED)
			break;
	}
	close_machine(nranks);
	print_message("alltoallv, %s, %s: %.1f ms of %.1f by all paths, %.1f by direct ones: %.3f\n", traffic, machine,
	              best, bound, direct, bound / best);
	must_keep_to_links(best, bound);
	if (!SANITIZED && bound / best < enough)
		fail_msg("%.1f ms are %.3f of %.1f, the links allow more", best, bound / best, bound);
}

static void uneven_traffic_takes_hardly_longer_than_all_paths_allow(void **state)
{
	(void)state;
	must_be_near_what_all_paths_allow("pair", "links=mesh:0.005", 4, 2 * BLOCK, OF_PATHS);
	must_be_near_what_all_paths_allow("own:0.7", "links=mesh:0.005", 4, 2 * BLOCK, OF_PATHS);
	must_be_near_what_all_paths_allow("pair", "links=bridges:0.02:0.01", 4, 2 * BLOCK, OF_PATHS);
	must_be_near_what_all_paths_allow("zipf:0", "links=mesh:0.005", 4, BLOCK / 2, OF_PATHS);
}

/* The parts of a block are of different lengths, and share the port that they leave by. */
static void paths_that_share_a_port_end_together(void **state)
{
	(void)state;
	must_be_near_what_all_paths_allow("pair", "links=pcie2:0.003:0.0009", 8, 3 * BLOCK / 4, OF_PORTS);
}

static void machines_carry_nine_tenths_of_what_their_links_allow(void **state)
{
	static const char *const machines[] = {"links=dgx1v:0.00125", "links=nvswitch:0.01", "links=pcie2:0.01:0.002"};
	(void)state;
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		must_be_near_its_bound(FERRY_ALLGATHER, machines[i], BLOCK);
		must_be_near_its_bound(FERRY_ALLTOALL, machines[i], BLOCK);
	}
	/* Longer, as a chunk fills its tree, up and down, before all links are busy. */
	must_be_near_its_bound(FERRY_ALLREDUCE, "links=dgx1v:0.0025", 4 * BLOCK);
	must_be_near_its_bound(FERRY_ALLREDUCE, "links=bridges:0.02:0.01", 4 * BLOCK);
}

/* ---- allocations ---- */

static void must_be_right(enum ferry_collective collective, ferryDataType_t type, int nranks, size_t count,
                          uint64_t seed)
{
	struct ferry_trial trial = {.collective = collective,
	                            .type = type,
	                            .count = count,
	                            .root = (int)(seed % (uint64_t)nranks),
	                            .nranks = nranks,
	                            .ndomains = 1};
	for (int in_place = 0; in_place <= ferry_trial_can_be_in_place(collective); in_place++) {
		trial.in_place = in_place;
		trial.seed = seed + (uint64_t)in_place;
		if (!trial_run(&trial, comms, NULL, (unsigned)(seed % 4)))
			fail_msg("%s on %s", trial_text(&trial), getenv("FERRY_HOST_LINK"));
	}
}

static void must_be_pushed(const char *machine, int nranks)
{
	struct ferry_trial trial = {.collective = FERRY_ALLGATHER,
	                            .type = ferryUint8,
	                            .count = LONGEST,
	                            .nranks = nranks,
	                            .ndomains = 1};
	must_keep_to_links(measure_ms(&trial), bound_ms(trial.collective, machine, nranks, LONGEST));
}

/* As jobs get them: in any order, some linked all to all, some in a line, some where no links lead to one of them. */
static void any_few_gpus_of_a_dgx1v_get_every_collective_right(void **state)
{
	static const char *const devices[] = {"0,1,2",       "1,0,4",         "7,4,2",         "0,1,2,3",
	                                      "6,3,5,0",     "4,7,0,3,2",     "5,1,6,2,4",     "0,1,2,3,4,5",
	                                      "7,2,5,0,6,3", "6,5,4,3,2,1,0", "3,7,1,0,5,4,6", "0,6,1"};
	static const enum ferry_collective moving[] = {FERRY_ALLGATHER, FERRY_ALLTOALL, FERRY_ALLTOALLV,
	                                               FERRY_BROADCAST, FERRY_GATHER,   FERRY_SCATTER};
	static const size_t counts[] = {1, 3001, LONGEST};
	static const enum ferry_collective sums[] = {FERRY_ALLREDUCE, FERRY_REDUCESCATTER, FERRY_REDUCE_TO_ROOT};
	/* Partial sums of floats that are added up in float32 are rounded once more at each rank. */
	static const ferryDataType_t exact[] = {ferryInt8,  ferryUint8,  ferryInt32,   ferryUint32,
	                                        ferryInt64, ferryUint64, ferryFloat32, ferryFloat64};
	uint64_t seed = 1;
	(void)state;
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
		char links[64];
		int nranks = (int)(strlen(devices[i]) + 1) / 2;
		snprintf(links, sizeof links, "links=dgx1v:0.1,devices=%s", devices[i]);
		open_machine(links, nranks);
		for (size_t c = 0; c < sizeof moving / sizeof *moving; c++)
			for (size_t size = 0; size < sizeof counts / sizeof *counts; size++)
				must_be_right(moving[c], ferryUint8, nranks, counts[size], seed += 5);
		for (size_t t = 0; t < sizeof exact / sizeof *exact; t++)
			for (size_t c = 0; c < 3; c++)
				must_be_right(sums[c], exact[t], nranks, counts[1], seed += 5);
		must_be_pushed(links, nranks);
		close_machine(nranks);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(machines_carry_nine_tenths_of_what_their_links_allow),
	        cmocka_unit_test(uneven_traffic_takes_hardly_longer_than_all_paths_allow),
	        cmocka_unit_test(paths_that_share_a_port_end_together),
	        cmocka_unit_test(any_few_gpus_of_a_dgx1v_get_every_collective_right),
	};
	setenv("FERRY_FABRICS", "peer", 1);
	hosted_routers(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
