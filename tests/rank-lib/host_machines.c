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
#include "ipc/rankset.h"
#include "ipc/wait.h"
#include "rank-lib/program/program.h"
#include "rank-lib/program/synth/cuts.h"
#include "router/engine/balance.h"
#include "tests/hosted.h"
#include "tests/sanitized.h"
#include "tests/succeeds.h"
#include "tests/trial_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS    8
#define BLOCK    (1u << 20)
#define LONGEST  200003 /* of the blocks of allocations */
#define ATTEMPTS 8      /* over ever slower links, as other processes may have the cores */
#define OF_BOUND 0.9
#define OF_PATHS 0.8 /* of relays, whose slices wait for three lanes' turns */
#define OF_PORTS 0.9 /* with slower links */
#define OF_TREES 0.7 /* of sums and of one rank's data: each hop is late, by more where others take the cores */

static ferryComm_t comms[FERRY_MAX_RANKS];
static unsigned calls;

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

static void skip_where_copies_are_slower_than_links(void)
{
	if (SANITIZED)
		skip();
}

/* The same machine with links of a share of the speed; every speed follows a colon. */
static void write_slower(const char *machine, double share, char *slower, size_t room)
{
	size_t used = 0;
	while (*machine && used + 32 < room) {
		char *end = (char *)machine + 1;
		slower[used++] = *machine;
		if (*machine == ':')
			used += (size_t)snprintf(slower + used, room - used, "%g", strtod(machine + 1, &end) * share);
		machine = end;
	}
	slower[used] = 0;
}

typedef double bound_of(const struct ferry_trial *trial, const char *machine);

/*
 * Links so slow that two cores keep up. Where other processes have the cores, a slice comes late by their turns, which
 * count for less the slower the links are: the second pair of attempts has links of half the speed, and so on.
 */
static void must_have_of_its_bound(double enough, struct ferry_trial *trial, const char *machine, bound_of *ms_of)
{
	double of_bound = 0;
	for (int attempt = 0; attempt < ATTEMPTS && of_bound < enough; attempt++) {
		char slower[128];
		write_slower(machine, 1.0 / (double)(1 << attempt / 2), slower, sizeof slower);
		trial->seed = (uint64_t)attempt + 1;
		open_machine(slower, trial->nranks);
		double ms = measure_ms(trial), bound = ms_of(trial, slower);
		close_machine(trial->nranks);
		must_keep_to_links(ms, bound);
		of_bound = fmax(of_bound, bound / ms);
		print_message("%s, %s: %.1f ms of %.1f by arithmetic: %.3f\n", ferry_collective_name(trial->collective),
		              slower, ms, bound, bound / ms);
	}
	if (of_bound < enough)
		fail_msg("%s, %s: at most %.3f of what the links allow", trial_text(trial), machine, of_bound);
}

static double program_bound(const struct ferry_trial *trial, const char *machine)
{
	return bound_ms(trial->collective, machine, trial->nranks, trial->count);
}

static void program_must_have_of_its_bound(double enough, enum ferry_collective collective, const char *machine,
                                           size_t count)
{
	struct ferry_trial trial = {.collective = collective,
	                            .type = ferryUint8,
	                            .count = count,
	                            .nranks = RANKS,
	                            .ndomains = 1};
	must_have_of_its_bound(enough, &trial, machine, program_bound);
}

static void must_be_near_its_bound(enum ferry_collective collective, const char *machine, size_t count)
{
	bool fills_trees = ferry_collective_reduces(collective) || collective == FERRY_BROADCAST;
	program_must_have_of_its_bound(fills_trees ? OF_TREES : OF_BOUND, collective, machine, count);
}

/* As a router divides it among all paths (router/engine/balance.h). */
static double divided_ms(const struct ferry_trial *trial, const char *machine)
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
	must_have_of_its_bound(enough, &trial, machine, divided_ms);
}

static void uneven_traffic_takes_hardly_longer_than_all_paths_allow(void **state)
{
	(void)state;
	skip_where_copies_are_slower_than_links();
	must_be_near_what_all_paths_allow("pair", "links=mesh:0.005", 4, 2 * BLOCK, OF_PATHS);
	must_be_near_what_all_paths_allow("own:0.7", "links=mesh:0.005", 4, 2 * BLOCK, OF_PATHS);
	must_be_near_what_all_paths_allow("pair", "links=bridges:0.02:0.01", 4, 2 * BLOCK, OF_PATHS);
	must_be_near_what_all_paths_allow("zipf:0", "links=mesh:0.005", 4, BLOCK / 2, OF_PATHS);
}

/* The parts of a block are of different lengths, and share the port that they leave by. */
static void paths_that_share_a_port_end_together(void **state)
{
	(void)state;
	skip_where_copies_are_slower_than_links();
	must_be_near_what_all_paths_allow("pair", "links=pcie2:0.003:0.0009", 8, 3 * BLOCK / 4, OF_PORTS);
}

static void machines_carry_nine_tenths_of_what_their_links_allow(void **state)
{
	static const char *const machines[] = {"links=dgx1v:0.00125", "links=nvswitch:0.01", "links=pcie2:0.01:0.002"};
	(void)state;
	skip_where_copies_are_slower_than_links();
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		must_be_near_its_bound(i % 2 ? FERRY_ALLTOALL : FERRY_ALLGATHER, machines[i], BLOCK);
	}
	/* Longer, as a chunk fills its tree, up and down, before all links are busy. */
	must_be_near_its_bound(FERRY_ALLREDUCE, "links=dgx1v:0.0025", 4 * BLOCK);
	must_be_near_its_bound(FERRY_ALLREDUCE, "links=bridges:0.02:0.01", 4 * BLOCK);
	must_be_near_its_bound(FERRY_BROADCAST, "links=dgx1v:0.01", 16 * BLOCK);
	must_be_near_its_bound(FERRY_REDUCESCATTER, "links=dgx1v:0.0025", BLOCK);
}

/* Of six chunks that leave by rank 0's port two go to one rank; they are to be as far as the others; else 0.86. */
static void chunks_that_go_to_one_rank_are_not_behind_the_others(void **state)
{
	(void)state;
	skip_where_copies_are_slower_than_links();
	program_must_have_of_its_bound(OF_PORTS, FERRY_BROADCAST, "links=bridges:0.005:0.0025", 16 * BLOCK);
}

/* ---- allocations ---- */

/*
 * GPUs that a scheduler left over, all alike ones once: the connected allocations of three to eight (docs/lab/
 * topologies.md). Volta's and Pascal's links are where the others' are, and Volta has two in places.
 */
static const char *const voltas[] = {
        "012", "014", "023", "026", "034", "0123", "0124", "0125", "0126", "0145", "0146", "0147", "0234",
        "0236", "0237", "0246", "0256", "0347", "0367", "01234", "01236", "01245", "01246", "01247", "01256",
        "01257", "01267", "01467", "02346", "02347", "02356", "02357", "02367", "012345", "012346", "012347",
        "012367", "012456", "012457", "012467", "012567", "023467", "023567", "0123456", "0123467", "01234567"};
static const char *const pascals[] = {
        "012", "014", "0123", "0124", "0145", "0146", "01234", "01245", "01247", "012345", "012456", "012457",
        "0123456", "01234567"};

static void must_be_right(enum ferry_collective collective, ferryDataType_t type, int nranks, size_t count,
                          uint64_t seed)
{
	struct ferry_trial trial = {.collective = collective,
	                            .type = type,
	                            .count = count,
	                            .root = (int)(seed % (uint64_t)nranks),
	                            .nranks = nranks,
	                            .ndomains = 1,
	                            .partly = true};
	for (int in_place = 0; in_place <= ferry_trial_can_be_in_place(collective); in_place++) {
		trial.in_place = in_place;
		trial.seed = seed + (uint64_t)in_place;
		if (!trial_run(&trial, comms, NULL, (unsigned)(seed % 4)))
			fail_msg("%s on %s", trial_text(&trial), getenv("FERRY_HOST_LINK"));
		calls++;
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

/* Every collective; sums of every type, as rounding differs, and what is moved of one, which are bytes. */
static void must_get_all_right(const char *machine, const char *gpus, const size_t *counts, size_t ncounts)
{
	int nranks = (int)strlen(gpus);
	char links[64];
	uint64_t seed = (uint64_t)nranks;
	int used = snprintf(links, sizeof links, "links=%s:0.1,devices=", machine);
	for (int rank = 0; rank < nranks; rank++) {
		used += snprintf(links + used, sizeof links - (size_t)used, rank ? ",%c" : "%c", gpus[rank]);
		seed = seed * 10 + (uint64_t)(gpus[rank] - '0');
	}
	open_machine(links, nranks);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++) {
		bool sums = ferry_collective_reduces((enum ferry_collective)collective);
		if (collective == FERRY_SENDRECV)
			continue;
		for (size_t i = 0; i < ncounts; i++)
			for (int type = 0; type < (sums ? ferryNumTypes : 1); type++)
				must_be_right((enum ferry_collective)collective, (ferryDataType_t)type, nranks,
				              counts[i], seed += 5);
	}
	must_be_pushed(links, nranks);
	close_machine(nranks);
}

/* As jobs get them: in any order, some linked all to all, some in a line, some where no links lead to one of them. */
static void any_few_gpus_of_a_dgx1_get_every_collective_right(void **state)
{
	static const char *const few[] = {"012",    "104",    "742",     "0123",    "6350", "47032",
	                                  "51624",  "012345", "6543210", "3710546", "061"};
	static const size_t counts[] = {1, 3001}, longest[] = {LONGEST};
	(void)state;
	for (size_t i = 0; i < sizeof few / sizeof *few; i += REPEATS(1, 7))
		must_get_all_right(i % 3 ? "dgx1v" : "dgx1p", few[i], counts, 2);
	must_get_all_right("dgx1v", "725063", longest, 1);
}

static void all_allocations_get_every_collective_right(void **state)
{
	static const size_t counts[] = {1, 3001, LONGEST};
	size_t nvoltas = sizeof voltas / sizeof *voltas, npascals = sizeof pascals / sizeof *pascals;
	(void)state;
	for (size_t i = 0; i < nvoltas; i++)
		must_get_all_right("dgx1v", voltas[i], counts, 3);
	for (size_t i = 0; i < npascals; i++)
		must_get_all_right("dgx1p", pascals[i], counts, 3);
	print_message("%zu allocations, %u calls, all right\n", nvoltas + npascals, calls);
}

/* ---- `host_machines rates` ---- */

struct rated {
	const char *name, *links; /* %1$g: the unit of speed; %2$g: half of it */
	uint32_t nranks;
};

/* Ports that are not given have what their links have. */
static void fill_ports(struct ferry_links *links, uint32_t nranks)
{
	for (uint32_t from = 0; from < nranks; from++) {
		float sum = 0;
		for (uint32_t to = 0; to < nranks; to++)
			sum += links->speed[from][to];
		links->port[from] = links->port[from] > 0 ? fminf(links->port[from], sum) : sum;
	}
}

/* ns per byte of a block, which no program beats; ReduceScatter and Reduce are AllGather and Broadcast backwards. */
static double optimum(enum ferry_collective collective, const char *machine, uint32_t nranks)
{
	struct ferry_host_links parsed;
	struct ferry_links links;
	assert_false(ferry_host_links_parse("links", machine, &parsed));
	assert_false(ferry_host_links_place("links", &parsed, nranks, &links));
	fill_ports(&links, nranks);
	if (collective == FERRY_ALLREDUCE)
		return ferry_cut_reduce_time(&links, nranks);
	bool all = collective == FERRY_ALLGATHER || collective == FERRY_REDUCESCATTER;
	return ferry_cut_spread_time(&links, nranks, all ? ferry_rankset_all(nranks) : 1);
}

/* Links so slow that the optimum takes so many seconds: then what is missing is not the cores' fault. */
static double rate(const struct rated *rated, enum ferry_collective collective, double seconds, size_t bytes)
{
	struct ferry_trial trial = {.collective = collective,
	                            .type = ferryUint8,
	                            .count = collective == FERRY_ALLGATHER || collective == FERRY_REDUCESCATTER
	                                             ? bytes / rated->nranks
	                                             : bytes,
	                            .nranks = (int)rated->nranks,
	                            .ndomains = 1};
	char machine[128];
	double best = INFINITY;
	snprintf(machine, sizeof machine, rated->links, 1.0, 0.5);
	double unit = optimum(collective, machine, rated->nranks) * (double)trial.count / (seconds * 1e9);
	snprintf(machine, sizeof machine, rated->links, unit, unit / 2);
	open_machine(machine, trial.nranks);
	for (int attempt = 0; attempt < 3; attempt++) {
		trial.seed = (uint64_t)attempt + 1;
		best = fmin(best, measure_ms(&trial));
	}
	close_machine(trial.nranks);
	must_keep_to_links(best, seconds * 1e3);
	return seconds * 1e3 / best;
}

/* A table: what each machine reaches of the optimum, best of three calls. */
static void print_rates(double seconds, const char *only, size_t bytes)
{
	static const struct rated machines[] = {
	        {"DGX-1V, 8", "links=dgx1v:%1$g", 8},
	        {"DGX-1V, 0123", "links=dgx1v:%1$g,devices=0,1,2,3", 4},
	        {"DGX-1V, 014", "links=dgx1v:%1$g,devices=0,1,4", 3},
	        {"DGX-1V, 02347", "links=dgx1v:%1$g,devices=0,2,3,4,7", 5},
	        {"DGX-1V, 012456", "links=dgx1v:%1$g,devices=0,1,2,4,5,6", 6},
	        {"DGX-1P, 8", "links=dgx1p:%1$g", 8},
	        {"bridges 2 to 1, 4", "links=bridges:%1$g:%2$g", 4},
	        {"bridges 2 to 1, 8", "links=bridges:%1$g:%2$g", 8},
	        {"mesh, 4", "links=mesh:%1$g", 4},
	        {"PCIe on two sockets", "links=pcie2:%1$g:%2$g:%1$g", 8},
	};
	static const enum ferry_collective collectives[] = {FERRY_BROADCAST, FERRY_ALLGATHER, FERRY_REDUCESCATTER,
	                                                    FERRY_REDUCE_TO_ROOT, FERRY_ALLREDUCE};
	printf("| | Broadcast | AllGather | ReduceScatter | Reduce | AllReduce |\n"
	       "| --- | --- | --- | --- | --- | --- |\n");
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		if (only && !strstr(machines[i].name, only))
			continue;
		printf("| %s |", machines[i].name);
		for (size_t c = 0; c < sizeof collectives / sizeof *collectives; c++) {
			printf(" %.3f |", rate(&machines[i], collectives[c], seconds, bytes));
			fflush(stdout);
		}
		printf("\n");
	}
}

/* `host_machines all`: of every allocation. `host_machines rates [SECONDS [MACHINE [MIB]]]` prints a table of rates. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(machines_carry_nine_tenths_of_what_their_links_allow),
	        cmocka_unit_test(uneven_traffic_takes_hardly_longer_than_all_paths_allow),
	        cmocka_unit_test(paths_that_share_a_port_end_together),
	        cmocka_unit_test(chunks_that_go_to_one_rank_are_not_behind_the_others),
	        cmocka_unit_test(any_few_gpus_of_a_dgx1_get_every_collective_right),
	};
	const struct CMUnitTest long_tests[] = {cmocka_unit_test(all_allocations_get_every_collective_right)};
	setenv("FERRY_FABRICS", "peer", 1);
	if (argc > 1 && !strcmp(argv[1], "rates")) {
		setenv("FERRY_STAGING", "256M", 0);
		hosted_routers(1);
		print_rates(argc > 2 ? atof(argv[2]) : 2, argc > 3 ? argv[3] : NULL,
		            argc > 4 ? strtoul(argv[4], NULL, 0) << 20 : 16 << 20);
		return 0;
	}
	hosted_routers(1);
	if (argc > 1 && !strcmp(argv[1], "all"))
		return cmocka_run_group_tests(long_tests, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
