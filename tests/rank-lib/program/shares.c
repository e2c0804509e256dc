/* SPDX-License-Identifier: Apache-2.0 */
/* What the host carries beside the peers (rank-lib/program/shares.h), at MADE-UP rates. */
#include "rank-lib/program/shares.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct ferry_costs made_up = {.issue_ns = 4000, .link = 50, .measured = true, .push = 400, .host = 50};

/* The host's rate with a cost of 4 us for each slice of 2 MiB. */
static const double host_rate = (2 << 20) / ((2 << 20) / 50. + 4000);

/* Of the largest messages the host has its part of both rates; of others less, as it starts 92 us late. */
static void both_fabrics_end_together(void **state)
{
	(void)state;
	for (uint64_t bytes = 64ull << 20; bytes <= 16ull << 30; bytes *= 2) {
		double host = (double)ferry_share_of_host(&made_up, bytes, 1);
		double start_ns = 2 * (4000 + (2 << 20) / 50.);
		double host_ns = start_ns + host / host_rate, peer_ns = ((double)bytes - host) / 400;
		double page_ns = 4096 / host_rate + 4096 / 400.;
		assert_true(host > 0);
		assert_true(host_ns <= peer_ns && host_ns >= peer_ns - page_ns);
	}
	double share = (double)ferry_share_of_host(&made_up, 1ull << 40, 1) / (double)(1ull << 40);
	assert_true(share > 0.102 && share < host_rate / (host_rate + 400));
}

static void a_larger_message_gets_a_larger_share(void **state)
{
	(void)state;
	double last = 0;
	for (uint64_t bytes = 4096; bytes <= 64ull << 30; bytes += bytes / 8 / 4096 * 4096 + 4096) {
		uint64_t host = ferry_share_of_host(&made_up, bytes, 1);
		double share = (double)(host + 4096) / (double)bytes; /* what was rounded off */
		assert_int_equal(host % 4096, 0);
		assert_true(host <= bytes);
		assert_true(host == 0 || share >= last - 4096 / (double)bytes);
		assert_true(last == 0 || host > 0);
		last = host ? share : 0;
	}
	assert_true(last > 0);
}

static void a_faster_fabric_gets_a_larger_share(void **state)
{
	(void)state;
	uint64_t last = 0, bytes = 1ull << 30;
	for (double host = 1; host < 10000; host *= 1.5) {
		struct ferry_costs costs = made_up;
		costs.host = host;
		uint64_t share = ferry_share_of_host(&costs, bytes, 1);
		assert_true(share >= last && share < bytes);
		last = share;
	}
	last = bytes;
	for (double push = 1; push < 100000; push *= 1.5) {
		struct ferry_costs costs = made_up;
		costs.push = push;
		uint64_t share = ferry_share_of_host(&costs, bytes, 1);
		assert_true(share <= last && share < bytes);
		last = share;
	}
	assert_int_equal(last, 0); /* the host has not begun when the peers are done */
}

static void what_gains_less_than_two_percent_is_the_peers_alone(void **state)
{
	(void)state;
	struct ferry_costs slow = made_up;
	slow.host = 8; /* less than 1/51 of what both have */
	assert_int_equal(ferry_share_of_host(&slow, 1ull << 40, 1), 0);
	slow.host = 8.5;
	assert_true(ferry_share_of_host(&slow, 1ull << 40, 1) > 0);
	for (uint64_t bytes = 1; bytes < 1ull << 36; bytes = bytes * 5 / 4 + 1) {
		uint64_t host = ferry_share_of_host(&made_up, bytes, 1);
		assert_true(host == 0 || (double)(host + 4096) >= 0.02 * (double)bytes);
	}
	assert_int_equal(ferry_share_of_host(&made_up, 16 << 20, 1), 0); /* peers need 42 us for it */
}

static void what_a_device_moves_decides_not_the_block(void **state)
{
	(void)state;
	uint64_t whole = ferry_share_of_host(&made_up, 7ull << 24, 1);
	uint64_t block = ferry_share_of_host(&made_up, 1 << 24, 7);
	assert_true(whole > 0 && block > 0 && block <= whole / 7 && block + 4096 > whole / 7);
}

static void nothing_is_divided_by_rates_that_nobody_measured(void **state)
{
	(void)state;
	struct ferry_costs costs = made_up;
	costs.host = 0;
	assert_int_equal(ferry_share_of_host(&costs, 1ull << 40, 1), 0);
	costs = made_up;
	costs.push = 0;
	assert_int_equal(ferry_share_of_host(&costs, 1ull << 40, 1), 0);
	costs = (struct ferry_costs){.link = 0};
	assert_int_equal(ferry_share_of_host(&costs, 1ull << 40, 1), 0);
	assert_int_equal(ferry_share_of_host(&made_up, 0, 1), 0);
	assert_int_equal(ferry_share_of_host(&made_up, 1ull << 40, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(both_fabrics_end_together),
	        cmocka_unit_test(a_larger_message_gets_a_larger_share),
	        cmocka_unit_test(a_faster_fabric_gets_a_larger_share),
	        cmocka_unit_test(what_gains_less_than_two_percent_is_the_peers_alone),
	        cmocka_unit_test(what_a_device_moves_decides_not_the_block),
	        cmocka_unit_test(nothing_is_divided_by_rates_that_nobody_measured),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
