/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the links between GPUs: pairs are told apart where that matters, and nowhere else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/gpu_links.h"

#include <string.h>

#define ALL UINT64_MAX

static struct ferry_links links_of(const char *text, uint32_t nranks)
{
	struct ferry_host_links machine;
	struct ferry_links links;
	if (ferry_host_links_parse("links", text, &machine) ||
	    ferry_host_links_place("links", &machine, nranks, &links))
		fail_msg("%s", ferry_last_message());
	return links;
}

/* All reach all, and pairs `joined` to a group have so many NVLinks, others what `else` says. */
static struct ferry_gpu_reach groups_of(uint32_t nranks, uint32_t joined, uint8_t nvlinks, uint8_t otherwise)
{
	struct ferry_gpu_reach found = {.nvlinks = {{0}}};
	for (uint32_t from = 0; from < nranks; from++) {
		found.reach[from] = ALL;
		for (uint32_t to = 0; to < nranks; to++)
			found.nvlinks[from][to] = from / joined == to / joined ? nvlinks : otherwise;
	}
	return found;
}

static void assert_same(const struct ferry_gpu_reach *found, uint32_t nranks, const char *text)
{
	struct ferry_links links, expected = links_of(text, nranks);
	memset(&links, 0xff, sizeof links);
	ferry_gpu_links_make(found, nranks, &links);
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++)
			if (links.speed[from][to] != expected.speed[from][to] ||
			    links.through[from][to] != expected.through[from][to])
				fail_msg("%u to %u: %g through %llx, not %g through %llx", from, to,
				         (double)links.speed[from][to], (unsigned long long)links.through[from][to],
				         (double)expected.speed[from][to],
				         (unsigned long long)expected.through[from][to]);
	for (uint32_t k = 0; k < 2 * nranks; k++)
		assert_true(links.shared[k] == expected.shared[k]);
	assert_true(links.port[0] == 0);
}

/* All links 1 and nothing shared: what programs were made for before anybody counted. */
static void assert_alike(const struct ferry_gpu_reach *found, uint32_t nranks)
{
	struct ferry_links links, expected = links_of("links=mesh:1", nranks);
	ferry_gpu_links_make(found, nranks, &links);
	assert_memory_equal(&links, &expected, sizeof links);
}

static void links_that_are_alike_have_a_speed_of_one(void **state)
{
	static const uint8_t all[] = {FERRY_NVLINKS_UNKNOWN, 1, 4, FERRY_NVLINKS_NONE};
	(void)state;
	for (uint32_t nranks = 1; nranks <= FERRY_MAX_RANKS; nranks += 7)
		for (uint32_t i = 0; i < sizeof all; i++) {
			struct ferry_gpu_reach found = groups_of(nranks, nranks, all[i], 0);
			assert_alike(&found, nranks);
			assert_true(ferry_gpu_links_are_direct(&found, nranks) == (nranks > 1 && (i == 1 || i == 2)));
		}
}

static struct ferry_gpu_reach dgx1v(void)
{
	struct ferry_links links = links_of("links=dgx1v:1", 8);
	struct ferry_gpu_reach found = {.nvlinks = {{0}}};
	for (uint32_t from = 0; from < 8; from++)
		for (uint32_t to = 0; to < 8; to++) {
			found.nvlinks[from][to] = (uint8_t)links.speed[from][to];
			found.reach[from] |= (uint64_t)(links.speed[from][to] > 0) << to;
		}
	return found;
}

static void a_dgx1v_has_links_of_one_and_two(void **state)
{
	struct ferry_gpu_reach found = dgx1v();
	(void)state;
	assert_same(&found, 8, "links=dgx1v:1");
	for (uint32_t rank = 0; rank < 8; rank++)
		found.node[rank] = rank / 4; /* which is nothing to NVLinks */
	assert_same(&found, 8, "links=dgx1v:1");
	for (uint32_t from = 0; from < 8; from++)
		for (uint32_t to = 0; to < 8; to++)
			found.nvlinks[from][to] *= 3;
	assert_same(&found, 8, "links=dgx1v:1");
	assert_true(ferry_gpu_links_are_direct(&found, 8));
	found.reach[0] &= ~(1ull << 3); /* nothing leads where the driver says that a GPU does not reach */
	found.reach[3] &= ~(1ull << 0);
	assert_same(&found, 8, "links=dgx1v:1,peer@0-3=0");
}

static void bridges_are_apart_from_pcie_ports(void **state)
{
	(void)state;
	for (uint32_t nranks = 4; nranks <= 32; nranks *= 2) {
		struct ferry_gpu_reach found = groups_of(nranks, 2, 4, FERRY_NVLINKS_NONE);
		assert_same(&found, nranks, "links=bridges:1:0.25");
		assert_true(ferry_gpu_links_are_direct(&found, nranks));
	}
	struct ferry_gpu_reach uncounted = groups_of(8, 2, FERRY_NVLINKS_UNKNOWN, FERRY_NVLINKS_NONE);
	assert_same(&uncounted, 8, "links=bridges:1:0.5");
	assert_false(ferry_gpu_links_are_direct(&uncounted, 8));
	struct ferry_links links;
	struct ferry_gpu_reach many = groups_of(34, 2, 4, FERRY_NVLINKS_NONE); /* more ports than there is room for */
	ferry_gpu_links_make(&many, 34, &links);
	assert_true(links.speed[0][1] == 1 && links.speed[0][2] == 0.25f && !links.through[0][2]);
}

/* Each to its own node at a port's rate, to the other at half of it, and all that crosses shares one each way. */
static void pcie_across_nodes_is_shared(void **state)
{
	struct ferry_gpu_reach found = groups_of(8, 8, FERRY_NVLINKS_NONE, 0);
	struct ferry_links links;
	(void)state;
	for (uint32_t rank = 0; rank < 8; rank++)
		found.node[rank] = rank / 4 ? 7 : 3;
	ferry_gpu_links_make(&found, 8, &links);
	for (uint32_t from = 0; from < 8; from++)
		for (uint32_t to = 0; to < 8; to++) {
			uint64_t ports = 1ull << 2 * from | 1ull << (2 * to + 1);
			uint64_t sockets = from / 4 == to / 4 ? 0 : from < 4 ? 1ull << 16 : 1ull << 17;
			assert_true(links.through[from][to] == (from == to ? 0 : ports | sockets));
			assert_true(links.speed[from][to] == (from == to ? 0 : sockets ? 0.5f : 1));
		}
	for (uint32_t k = 0; k < FERRY_MAX_SHARED_LINKS; k++)
		assert_true(links.shared[k] == (k < 18));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(links_that_are_alike_have_a_speed_of_one),
	        cmocka_unit_test(a_dgx1v_has_links_of_one_and_two),
	        cmocka_unit_test(bridges_are_apart_from_pcie_ports),
	        cmocka_unit_test(pcie_across_nodes_is_shared),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
