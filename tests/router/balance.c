/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the planner of uneven traffic: all bytes have a path, pieces are long enough, no plan is worse than
 * direct paths, on machines that people have it gains what links allow, and the work is bounded. What links allow is
 * bounded from below by prices of resources (the dual of the fractional program): whatever the prices, no division
 * takes less time than all bytes at their cheapest paths cost. With FERRY_TEST_TIMES so many times as many random ones.
 *
 * `balance --table` prints the tables of docs/lab/uneven-traffic.md, times of this machine among them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "router/engine/balance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_PAIRS (FERRY_MAX_RANKS * FERRY_MAX_RANKS)
#define MIB (1ull << 20)

/* NIMBLE's own: two nodes of four GPUs, 120 GB/s from each to each, and a rail of 45.1 between each two that match. */
#define NODE "links=mesh:120"
#define RAILS                                                                                                          \
	NODE ",peer@0-4=45.1,peer@1-5=45.1,peer@2-6=45.1,peer@3-7=45.1,peer@0-5=0,peer@0-6=0,peer@0-7=0,peer@1-4=0,"   \
	     "peer@1-6=0,peer@1-7=0,peer@2-4=0,peer@2-5=0,peer@2-7=0,peer@3-4=0,peer@3-5=0,peer@3-6=0"

static uint64_t seed = 1;

static double uniform(void)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (double)(seed >> 11) * 0x1p-53;
}

static uint32_t below(uint32_t n)
{
	return (uint32_t)(uniform() * n);
}

static uint32_t times(void)
{
	const char *text = getenv("FERRY_TEST_TIMES");
	return text ? (uint32_t)atoi(text) : 1;
}

/* ---- what no division can beat ---- */

static double price_of(const struct ferry_paths *paths, uint32_t path, const double *price)
{
	double sum = 0;
	for (uint32_t i = 0; i < paths->paths[path].nuses; i++) {
		uint32_t used = paths->uses[paths->paths[path].first_use + i];
		sum += price[used] / (double)paths->resources[used].speed;
	}
	return sum;
}

/* All bytes at their cheapest paths, whose load is added up: nanoseconds. */
static double cost(const struct ferry_paths *paths, const uint64_t *bytes, const double *price, double *load)
{
	double all = 0;
	for (uint32_t pair = 0; pair < paths->nranks * paths->nranks; pair++) {
		uint32_t cheapest = paths->first[pair];
		for (uint32_t p = paths->first[pair]; p < paths->first[pair + 1]; p++)
			if (price_of(paths, p, price) < price_of(paths, cheapest, price))
				cheapest = p;
		if (paths->first[pair] == paths->first[pair + 1])
			continue;
		all += (double)bytes[pair] * price_of(paths, cheapest, price);
		for (uint32_t i = 0; i < paths->paths[cheapest].nuses; i++) {
			uint32_t used = paths->uses[paths->paths[cheapest].first_use + i];
			load[used] += (double)bytes[pair] / (double)paths->resources[used].speed;
		}
	}
	return all;
}

/* Microseconds. Prices follow the load (multiplicative weights); the best of all rounds counts. */
static double least_us(const struct ferry_paths *paths, const uint64_t *bytes, uint32_t rounds)
{
	uint32_t n = paths->nresources;
	double *price = calloc(2 * n + 1, sizeof *price), *load = price + n, best = 0;
	assert_non_null(price);
	for (uint32_t r = 0; r < n; r++)
		price[r] = 1.0 / n;
	for (uint32_t round = 0; round < rounds; round++) {
		double most = 0, sum = 0;
		memset(load, 0, n * sizeof *load);
		best = fmax(best, cost(paths, bytes, price, load));
		for (uint32_t r = 0; r < n; r++)
			most = fmax(most, load[r]);
		for (uint32_t r = 0; r < n; r++)
			sum += price[r] *= exp(0.5 / sqrt(1 + round / 8.0) * load[r] / (most + 1e-300));
		for (uint32_t r = 0; r < n; r++)
			price[r] /= sum;
	}
	free(price);
	return best / 1e3;
}

/* ---- NIMBLE's greedy ---- */

/* Of the path's resources the longest busy, as of now: microseconds. */
static double congestion(const struct ferry_paths *paths, uint32_t path, const double *load)
{
	double most = 0;
	for (uint32_t i = 0; i < paths->paths[path].nuses; i++) {
		uint32_t used = paths->uses[paths->paths[path].first_use + i];
		most = fmax(most, load[used] / (double)paths->resources[used].speed / 1e3);
	}
	return most;
}

/* A part of what is left of a pair goes to the path that is least congested then; false: nothing is left. */
static bool route_some(const struct ferry_paths *paths, uint32_t pair, double part, double *left, double *load)
{
	uint32_t best = paths->first[pair];
	double bytes = floor(*left * part / (double)FERRY_LEAST_PIECE) * (double)FERRY_LEAST_PIECE;
	if (!(*left > 0) || paths->first[pair] == paths->first[pair + 1])
		return false;
	bytes = fmin(*left, fmax(bytes, (double)FERRY_LEAST_PIECE));
	for (uint32_t p = best + 1; p < paths->first[pair + 1]; p++)
		if (congestion(paths, p, load) < congestion(paths, best, load))
			best = p;
	for (uint32_t i = 0; i < paths->paths[best].nuses; i++)
		load[paths->uses[paths->paths[best].first_use + i]] += bytes;
	*left -= bytes;
	return true;
}

/* Algorithm 1 of the paper, by that part of what is left at a time; the paper does not give the part. Microseconds. */
static double nimble_us(const struct ferry_paths *paths, const uint64_t *bytes, double part)
{
	static double left[MOST_PAIRS];
	uint32_t pairs = paths->nranks * paths->nranks;
	double most = 0, *load = calloc(paths->nresources + 1, sizeof *load);
	assert_non_null(load);
	for (uint32_t pair = 0; pair < pairs; pair++)
		left[pair] = (double)bytes[pair];
	for (bool any = true; any;) {
		any = false;
		for (uint32_t pair = 0; pair < pairs; pair++)
			any |= route_some(paths, pair, part, &left[pair], load);
	}
	for (uint32_t r = 0; r < paths->nresources; r++)
		most = fmax(most, load[r] / (double)paths->resources[r].speed / 1e3);
	free(load);
	return most;
}

/* With the best of some parts. */
static double best_nimble_us(const struct ferry_paths *paths, const uint64_t *bytes)
{
	return fmin(nimble_us(paths, bytes, 0.1), fmin(nimble_us(paths, bytes, 0.25), nimble_us(paths, bytes, 0.5)));
}

/* ---- what every plan keeps to ---- */

static void assert_pair(const struct ferry_balancer *balance, uint32_t pair, uint64_t bytes)
{
	const struct ferry_paths *paths = balance->paths;
	uint64_t sum = 0, used = 0;
	for (uint32_t p = paths->first[pair]; p < paths->first[pair + 1]; p++) {
		uint64_t flow = balance->flow[p];
		sum += flow;
		used += flow > 0;
		if (flow && flow < bytes && flow < FERRY_LEAST_PIECE)
			fail_msg("a piece of %llu bytes of %llu", (unsigned long long)flow, (unsigned long long)bytes);
	}
	if (paths->first[pair] == paths->first[pair + 1])
		return;
	if (sum != bytes)
		fail_msg("%llu of %llu bytes have a path", (unsigned long long)sum, (unsigned long long)bytes);
	if (bytes < FERRY_LEAST_PIECE)
		assert_int_equal(balance->flow[paths->first[pair]], bytes);
}

/* The busiest resource by what is on the paths, counted here anew: microseconds. */
static double busiest_us(const struct ferry_paths *paths, const uint64_t *flow)
{
	double most = 0, *load = calloc(paths->nresources + 1, sizeof *load);
	assert_non_null(load);
	for (uint32_t p = 0; p < paths->npaths; p++)
		for (uint32_t i = 0; i < paths->paths[p].nuses; i++)
			load[paths->uses[paths->paths[p].first_use + i]] += (double)flow[p];
	for (uint32_t r = 0; r < paths->nresources; r++)
		most = fmax(most, load[r] / (double)paths->resources[r].speed / 1e3);
	free(load);
	return most;
}

/* Plans, and checks all that holds for any plan. Returns how many times as fast it is as direct paths. */
static double plan(struct ferry_balancer *balance, const uint64_t *bytes)
{
	const struct ferry_paths *paths = balance->paths;
	uint64_t *direct = calloc(2 * paths->npaths + 1, sizeof *direct), *again = direct + paths->npaths;
	assert_non_null(direct);
	ferry_balance_plan(balance, bytes);
	for (uint32_t pair = 0; pair < paths->nranks * paths->nranks; pair++) {
		assert_pair(balance, pair, bytes[pair]);
		if (paths->first[pair] < paths->first[pair + 1])
			direct[paths->first[pair]] = bytes[pair];
	}
	double before = busiest_us(paths, direct), after = busiest_us(paths, balance->flow);
	if (after > before * 1.002) /* weights are rounded to a thousandth */
		fail_msg("%g us, and %g by direct paths", after, before);
	if (balance->us > balance->direct_us || fabs(balance->us - after) > 0.002 * after + 0.01)
		fail_msg("it says %g us for %g", balance->us, after);
	memcpy(again, balance->flow, paths->npaths * sizeof *again);
	ferry_balance_plan(balance, bytes);
	assert_memory_equal(again, balance->flow, paths->npaths * sizeof *again);
	free(direct);
	return after > 0 ? before / after : 1;
}

/* ---- random ones ---- */

static float speed(void)
{
	return (float)exp(uniform() * 6);
}

static void draw_links(uint32_t n, struct ferry_links *links, struct ferry_path_limits *limits)
{
	bool ports = below(2), shares = below(2), same = below(2);
	float one = speed(), missing = below(3) ? 0 : 0.4f;
	memset(links, 0, sizeof *links);
	for (uint32_t from = 0; from < n; from++) {
		links->port[from] = ports && below(4) ? speed() : 0;
		for (uint32_t to = 0; to < n; to++)
			if (from != to && uniform() >= (double)missing)
				links->speed[from][to] = same ? one : speed();
	}
	for (uint32_t k = 0; shares && k < 6; k++) {
		links->shared[k] = speed();
		for (uint32_t i = 0; i < n; i++)
			links->through[below(n)][below(n)] |= 1ull << k;
	}
	*limits = (struct ferry_path_limits){0};
	if (below(2))
		limits->up = limits->down = speed() / 8;
	if (!below(3))
		limits->relay = speed();
}

static void draw_bytes(uint32_t n, uint64_t *bytes)
{
	double scale = exp(uniform() * 30), empty = uniform();
	for (uint32_t pair = 0; pair < n * n; pair++) {
		bytes[pair] = uniform() < empty ? below(2) : (uint64_t)(exp(uniform() * 8 - 8) * scale);
		if (pair / n == pair % n)
			bytes[pair] = 0;
	}
}

static void no_plan_of_random_traffic_on_random_links_is_worse_than_direct_paths(void **state)
{
	(void)state;
	static struct ferry_links links;
	static uint64_t bytes[MOST_PAIRS];
	for (uint32_t round = 0; round < 300 * times(); round++) {
		struct ferry_path_limits limits;
		struct ferry_paths paths;
		struct ferry_balancer balance;
		uint32_t n = round % 100 ? 1 + below(9) : 1 + below(FERRY_MAX_RANKS);
		draw_links(n, &links, &limits);
		assert_true(ferry_paths_make(&links, n, &limits, &paths));
		assert_true(ferry_balance_open(&balance, &paths));
		for (uint32_t i = 0; i < 10; i++) {
			draw_bytes(n, bytes);
			plan(&balance, bytes);
		}
		ferry_balance_close(&balance);
		ferry_paths_free(&paths);
	}
}

/* ---- machines ---- */

enum pattern { PAIR, COMMON, OWN, ZIPF, EVEN };

static double hot_part = 0.7;

static void fill(enum pattern pattern, uint32_t n, uint64_t *bytes)
{
	double all = 256.0 * MIB, harmonic = 0;
	for (uint32_t i = 1; i < n; i++)
		harmonic += pow(i, -1.2);
	memset(bytes, 0, n * n * sizeof *bytes);
	bytes[n - 1] = pattern == PAIR ? (uint64_t)all : 0; /* from the first rank to the last */
	for (uint32_t from = 0; from < n && pattern != PAIR; from++) {
		uint32_t hot = pattern == OWN ? (from + 1) % n : from == 0, shift = below(n);
		for (uint32_t i = 0, at = 0; i < n; i++) {
			uint32_t to = (i + shift) % n; /* Zipf: each rank has an order of its own */
			if (to == from)
				continue;
			double part = pattern == ZIPF   ? pow(++at, -1.2) / harmonic
			              : pattern == EVEN ? 1.0 / (n - 1)
			              : to == hot       ? hot_part
			                                : (1 - hot_part) / (n - 2);
			bytes[from * n + to] = (uint64_t)(all * part);
		}
	}
}

static void make(const char *text, uint32_t n, float host, struct ferry_paths *paths)
{
	struct ferry_host_links machine;
	struct ferry_links links;
	const struct ferry_path_limits limits = {.up = host, .down = host};
	if (ferry_host_links_parse("links", text, &machine) || ferry_host_links_place("links", &machine, n, &links))
		fail_msg("%s", ferry_last_message());
	assert_true(ferry_paths_make(&links, n, &limits, paths));
}

static void plans_gain_what_links_allow(void **state)
{
	(void)state;
	static const struct {
		const char *links;
		uint32_t nranks;
		float host;
		enum pattern pattern;
		double gain, of_least;
	} cases[] = {
	        {"links=mesh:1", 4, 0, PAIR, 2.95, 1.01},         {"links=mesh:1", 4, 0, COMMON, 1, 1.01},
	        {"links=mesh:1", 4, 0, OWN, 1.6, 1.01},           {"links=mesh:1", 4, 0, ZIPF, 1.15, 1.03},
	        {"links=mesh:1", 4, 0, EVEN, 1, 1.01},            {"links=nvswitch:1", 8, 0, PAIR, 1, 1.01},
	        {"links=nvswitch:1", 8, 0.12f, PAIR, 1.11, 1.01}, {"links=nvswitch:1", 8, 0.12f, ZIPF, 1.1, 1.02},
	        {"links=dgx1v:1", 8, 0, PAIR, 1.49, 1.02},        {"links=dgx1v:1", 8, 0, ZIPF, 1.7, 1.05},
	        {"links=dgx1v:1", 8, 0, COMMON, 1.65, 1.02},      {"links=bridges:52:25", 4, 0, PAIR, 1.95, 1.02},
	        {"links=bridges:52:25", 8, 0, OWN, 1.45, 1.02},   {"links=pcie2:1:0.3", 8, 0, PAIR, 3.2, 1.02},
	        {"links=pcie2:1:0.3", 8, 0, OWN, 2, 1.03},        {"links=mesh:1", 8, 0, ZIPF, 1.5, 1.07},
	        {"links=mesh:1", 16, 0, ZIPF, 2, 1.1},            {"links=mesh:1", 16, 0, OWN, 6, 1.05},
	};
	for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		static uint64_t bytes[MOST_PAIRS];
		struct ferry_paths paths;
		struct ferry_balancer balance;
		make(cases[i].links, cases[i].nranks, cases[i].host, &paths);
		assert_true(ferry_balance_open(&balance, &paths));
		fill(cases[i].pattern, cases[i].nranks, bytes);
		double gain = plan(&balance, bytes), of_least = balance.us / least_us(&paths, bytes, 1500);
		double nimble = best_nimble_us(&paths, bytes);
		if (balance.us > 1.01 * nimble)
			fail_msg("%s, pattern %d: %g us, and by NIMBLE's greedy %g", cases[i].links, cases[i].pattern,
			         balance.us, nimble);
		if (gain < cases[i].gain || of_least > cases[i].of_least)
			fail_msg("%s, %u ranks, pattern %d: %.3f times as fast as direct paths, %.3f of the least time",
			         cases[i].links, cases[i].nranks, cases[i].pattern, gain, of_least);
		ferry_balance_close(&balance);
		ferry_paths_free(&paths);
	}
}

static void zipf_traffic_on_full_meshes_is_near_the_least(void **state)
{
	(void)state;
	static const struct {
		uint32_t nranks, draws;
		double of_least;
	} cases[] = {{4, 100, 1.02}, {8, 20, 1.07}, {16, 4, 1.1}};
	for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		static uint64_t bytes[MOST_PAIRS];
		struct ferry_paths paths;
		struct ferry_balancer balance;
		make("links=mesh:1", cases[i].nranks, 0, &paths);
		assert_true(ferry_balance_open(&balance, &paths));
		for (uint32_t draw = 0; draw < cases[i].draws; draw++) {
			fill(ZIPF, cases[i].nranks, bytes);
			plan(&balance, bytes);
			double of_least = balance.us / least_us(&paths, bytes, 500 * cases[i].nranks);
			if (of_least > cases[i].of_least)
				fail_msg("%u ranks, draw %u: %.3f of the least", cases[i].nranks, draw, of_least);
		}
		ferry_balance_close(&balance);
		ferry_paths_free(&paths);
	}
}

/* Three hot links of a triangle whose relays are in each other's way, in pieces a little longer than the least. */
static void moves_that_others_were_in_the_way_of_are_made_up_for(void **state)
{
	(void)state;
	uint64_t bytes[9] = {0};
	struct ferry_paths paths;
	struct ferry_balancer balance;
	make("links=mesh:1", 3, 0, &paths);
	assert_true(ferry_balance_open(&balance, &paths));
	for (uint32_t rank = 0; rank < 3; rank++) {
		bytes[rank * 3 + (rank + 1) % 3] = 72 * MIB / 10;
		bytes[rank * 3 + (rank + 2) % 3] = 8 * MIB / 10;
	}
	plan(&balance, bytes);
	assert_true(balance.us < 1.03 * least_us(&paths, bytes, 3000));
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
}

static void short_messages_stay_on_their_direct_paths(void **state)
{
	(void)state;
	uint64_t bytes[16] = {0};
	struct ferry_paths paths;
	struct ferry_balancer balance;
	make("links=mesh:1", 4, 0, &paths);
	assert_true(ferry_balance_open(&balance, &paths));
	bytes[1] = FERRY_LEAST_PIECE - 1;
	assert_true(plan(&balance, bytes) == 1);
	bytes[1] = 2 * FERRY_LEAST_PIECE - 1; /* not to be cut in two either */
	assert_true(plan(&balance, bytes) == 1);
	bytes[1] = 2 * FERRY_LEAST_PIECE;
	assert_true(plan(&balance, bytes) > 1.9);
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
}

static void work_is_bounded_whatever_the_traffic(void **state)
{
	(void)state;
	static uint64_t bytes[MOST_PAIRS];
	struct ferry_paths paths;
	struct ferry_balancer balance;
	make("links=mesh:1", 16, 1, &paths);
	assert_true(ferry_balance_open(&balance, &paths));
	for (uint32_t i = 0; i < 30; i++) {
		draw_bytes(16, bytes);
		plan(&balance, bytes);
		assert_true(balance.looks <= ferry_balance_looks(16) + paths.npaths);
	}
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
}

static void a_path_that_loads_what_another_one_loads_and_more_is_none(void **state)
{
	(void)state;
	struct ferry_paths paths;
	make("links=nvswitch:1", 8, 0, &paths);
	assert_int_equal(paths.npaths, 8 * 7);
	ferry_paths_free(&paths);
	make("links=bridges:52:25", 4, 0, &paths);
	for (uint32_t p = paths.first[3]; p < paths.first[4]; p++) /* from 0 to 3, direct, by 1, by 2, by both */
		assert_int_equal(paths.paths[p].hops, p == paths.first[3] ? 1 : p + 1 == paths.first[4] ? 3 : 2);
	assert_int_equal(paths.first[4] - paths.first[3], 4);
	ferry_paths_free(&paths);
}

/* By the ports of all four that a bridge joins, or by all rails of two nodes. */
static void three_hops_lead_across_by_every_port(void **state)
{
	(void)state;
	static const char *const machines[] = {"links=bridges:120:45.1:4", RAILS};
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t bytes[64] = {[5] = 256 * MIB}; /* from rank 0 to rank 5 */
		struct ferry_paths paths;
		struct ferry_balancer balance;
		make(machines[i], 8, 0, &paths);
		assert_true(ferry_balance_open(&balance, &paths));
		plan(&balance, bytes);
		if (balance.us > 1.01 * (256 * MIB) / (4 * 45.1e3))
			fail_msg("%s: %g us, and four ports take %g", machines[i], balance.us,
			         (256 * MIB) / (4 * 45.1e3));
		ferry_balance_close(&balance);
		ferry_paths_free(&paths);
	}
}

/* ---- tables ---- */

struct mean {
	double gain, of_least, of_least_worst, nimble, us, us_worst; /* us: of this thread's CPU time */
	uint32_t count;
};

static double cpu_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void measure(struct ferry_balancer *balance, const uint64_t *bytes, struct mean *mean)
{
	double times[9], least = least_us(balance->paths, bytes, 2000 * balance->paths->nranks);
	for (uint32_t i = 0; i < 9; i++) {
		double before = cpu_us();
		ferry_balance_plan(balance, bytes);
		times[i] = cpu_us() - before;
		for (uint32_t j = i; j && times[j] < times[j - 1]; j--) {
			double swapped = times[j];
			times[j] = times[j - 1];
			times[j - 1] = swapped;
		}
	}
	mean->gain += balance->direct_us / balance->us;
	mean->of_least += balance->us / least;
	mean->of_least_worst = fmax(mean->of_least_worst, balance->us / least);
	mean->nimble += best_nimble_us(balance->paths, bytes) / least;
	mean->us += times[4];
	mean->us_worst = fmax(mean->us_worst, times[4]);
	mean->count++;
}

static void print_row(const char *links, uint32_t nranks, float host)
{
	static const char *const names[] = {"pair", "common", "own", "Zipf", "even"};
	static uint64_t bytes[MOST_PAIRS];
	struct ferry_paths paths;
	struct ferry_balancer balance;
	make(links, nranks, host, &paths);
	assert_true(ferry_balance_open(&balance, &paths));
	for (uint32_t pattern = PAIR; pattern <= EVEN; pattern++) {
		struct mean mean = {0};
		for (uint32_t i = 0; i < (pattern == ZIPF ? 30 : 1); i++) {
			fill((enum pattern)pattern, nranks, bytes);
			measure(&balance, bytes, &mean);
		}
		double n = mean.count;
		printf("| %s, %u | %s | %.2f | %.3f (%.3f) | %.3f | %.1f (%.1f) |\n",
		       strcmp(links, RAILS) ? links + strlen("links=") : "two nodes with rails", nranks, names[pattern],
		       mean.gain / n, mean.of_least / n, mean.of_least_worst, mean.nimble / n, mean.us / n,
		       mean.us_worst);
	}
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
}

/* Table I: a stencil, each rank with its neighbours in a node, and with its like in the other one. */
static void print_stencil(const char *links, uint32_t n, uint32_t step)
{
	struct ferry_paths paths;
	struct ferry_balancer balance;
	make(links, n, 0, &paths);
	assert_true(ferry_balance_open(&balance, &paths));
	for (uint64_t size = 16; size <= 256; size *= 2) {
		uint64_t bytes[64] = {0};
		struct mean mean = {0};
		for (uint32_t rank = 0; rank + step < n; rank++)
			bytes[rank * n + rank + step] = bytes[(rank + step) * n + rank] = size * 1000000;
		measure(&balance, bytes, &mean);
		printf("| %s | %llu | %.1f | %.3f | %.3f | %.3f |\n", step == 1 ? "in a node" : "between nodes",
		       (unsigned long long)size, mean.us, balance.direct_us / 1e3, balance.us / 1e3, mean.of_least);
	}
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
}

/* Figure 7: a part of what each of eight GPUs sends goes to one hot peer: all have the same, or each has its own. */
static void print_hot_peers(enum pattern pattern)
{
	static uint64_t bytes[MOST_PAIRS];
	struct ferry_paths paths;
	struct ferry_balancer balance;
	make(RAILS, 8, 0, &paths);
	assert_true(ferry_balance_open(&balance, &paths));
	for (hot_part = 0.1; hot_part < 0.95; hot_part += 0.2) {
		struct mean mean = {0};
		fill(pattern, 8, bytes);
		measure(&balance, bytes, &mean);
		printf("| %s | %.1f | %.2f | %.2f | %.2f | %.2f | %.3f | %.1f |\n", pattern == OWN ? "own" : "common",
		       hot_part, balance.direct_us / 1e3, balance.us / 1e3, mean.gain,
		       mean.gain * mean.of_least / mean.nimble, mean.of_least, mean.us);
	}
	hot_part = 0.7;
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
}

static void print_paper(void)
{
	printf("\n| stencil | MB | us | direct, ms | planned, ms | over the least |\n"
	       "| --- | --- | --- | --- | --- | --- |\n");
	print_stencil(NODE, 4, 1);
	print_stencil(RAILS, 8, 4);
	printf("\n| hot peer | part | direct, ms | planned, ms | over direct | NIMBLE's over direct | over the least | "
	       "us |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
	print_hot_peers(COMMON);
	print_hot_peers(OWN);
}

static int print_tables(void)
{
	printf("| links, ranks | traffic | over direct | over the least (worst) | NIMBLE's, over the least | "
	       "us (worst) |\n| --- | --- | --- | --- | --- | --- |\n");
	print_row("links=mesh:1", 4, 0);
	print_row("links=nvswitch:1", 8, 0.12f);
	print_row("links=dgx1v:1", 8, 0);
	print_row("links=bridges:52:25", 4, 0);
	print_row("links=bridges:52:25", 8, 0);
	print_row("links=pcie2:1:0.3", 8, 0);
	print_row("links=mesh:1", 8, 0);
	print_row("links=mesh:1", 16, 0);
	print_row("links=nvswitch:1", 16, 0.12f);
	print_row("links=bridges:120:45.1:4", 8, 0);
	print_row(RAILS, 8, 0);
	print_paper();
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(no_plan_of_random_traffic_on_random_links_is_worse_than_direct_paths),
	        cmocka_unit_test(plans_gain_what_links_allow),
	        cmocka_unit_test(zipf_traffic_on_full_meshes_is_near_the_least),
	        cmocka_unit_test(moves_that_others_were_in_the_way_of_are_made_up_for),
	        cmocka_unit_test(short_messages_stay_on_their_direct_paths),
	        cmocka_unit_test(work_is_bounded_whatever_the_traffic),
	        cmocka_unit_test(a_path_that_loads_what_another_one_loads_and_more_is_none),
	        cmocka_unit_test(three_hops_lead_across_by_every_port),
	};
	if (argc > 1 && !strcmp(argv[1], "--table"))
		return print_tables();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
