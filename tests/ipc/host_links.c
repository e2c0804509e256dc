/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the links of host devices as text: machines are what they are, and what makes no sense is pointed at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/links.h"

#include <stdlib.h>
#include <string.h>

static ferryResult_t read_links(struct ferry_links *links, uint32_t nranks)
{
	struct ferry_host_links machine;
	ferryResult_t result = ferry_host_links_load(&machine);
	return result ? result : ferry_host_links_place("FERRY_HOST_LINK", &machine, nranks, links);
}

static struct ferry_links links_of(const char *text, uint32_t nranks)
{
	struct ferry_links links;
	setenv("FERRY_HOST_LINK", text, 1);
	if (read_links(&links, nranks))
		fail_msg("%s", ferry_last_message());
	unsetenv("FERRY_HOST_LINK");
	return links;
}

/* The matrix as rows of numbers, and what leaves each device; speeds here are whole. */
static void assert_links(const char *text, uint32_t nranks, const char *rows, float port)
{
	struct ferry_links links = links_of(text, nranks);
	char found[512] = "";
	for (uint32_t from = 0; from < nranks; from++) {
		for (uint32_t to = 0; to < nranks; to++)
			snprintf(found + strlen(found), sizeof found - strlen(found), "%g ", links.speed[from][to]);
		snprintf(found + strlen(found), sizeof found - strlen(found), "/ ");
		assert_true(links.port[from] == port);
	}
	assert_string_equal(found, rows);
	for (uint32_t rank = nranks; rank < FERRY_MAX_RANKS; rank++)
		assert_true(links.port[rank] == 0 && links.speed[0][rank] == 0 && links.speed[rank][0] == 0);
}

static void machines_have_the_links_that_they_have(void **state)
{
	(void)state;
	/* As nvidia-smi topo -m prints a DGX-1V, NV1 and NV2. */
	assert_links("links=dgx1v:1", 8,
	             "0 1 1 2 2 0 0 0 / 1 0 2 1 0 2 0 0 / 1 2 0 2 0 0 1 0 / 2 1 2 0 0 0 0 1 / "
	             "2 0 0 0 0 1 1 2 / 0 2 0 0 1 0 2 1 / 0 0 1 0 1 2 0 2 / 0 0 0 1 2 1 2 0 / ", 0);
	assert_links("links=nvswitch:450", 3, "0 450 450 / 450 0 450 / 450 450 0 / ", 450);
	assert_links("links=pcie2:12:6", 5, "0 12 12 12 6 / 12 0 12 12 6 / 12 12 0 12 6 / 12 12 12 0 6 / 6 6 6 6 0 / ",
	             12);
	assert_links("links=pcie2:12,devices=3,4", 2, "0 12 / 12 0 / ", 12);
	assert_links("links=dgx1p:1", 8,
	             "0 1 1 1 1 0 0 0 / 1 0 1 1 0 1 0 0 / 1 1 0 1 0 0 1 0 / 1 1 1 0 0 0 0 1 / "
	             "1 0 0 0 0 1 1 1 / 0 1 0 0 1 0 1 1 / 0 0 1 0 1 1 0 1 / 0 0 0 1 1 1 1 0 / ", 0);
	assert_links("links=mesh:5", 3, "0 5 5 / 5 0 5 / 5 5 0 / ", 0);
	assert_links("links=bridges:52:25", 4, "0 52 25 25 / 52 0 25 25 / 25 25 0 52 / 25 25 52 0 / ", 0);
	assert_links("links=bridges:52:25:3", 4, "0 52 52 25 / 52 0 52 25 / 52 52 0 25 / 25 25 25 0 / ", 0);
	assert_links("peer=5", 3, "0 5 5 / 5 0 5 / 5 5 0 / ", 0);
	assert_links("d2h=1,h2d=2", 2, "0 0 / 0 0 / ", 0);
	assert_links("", 2, "0 0 / 0 0 / ", 0);
	/* Every device of a DGX-1V has six NVLinks, the same ones from both sides. */
	struct ferry_links links = links_of("links=dgx1v:25", 8);
	for (uint32_t a = 0; a < 8; a++) {
		float sum = 0;
		for (uint32_t b = 0; b < 8; b++) {
			sum += links.speed[a][b];
			assert_true(links.speed[a][b] == links.speed[b][a]);
		}
		assert_true(sum == 150);
	}
}

static uint32_t through(const struct ferry_links *links, uint32_t from, uint32_t to, float *least)
{
	uint32_t count = 0;
	*least = 0;
	for (uint64_t shared = links->through[from][to]; shared; shared &= shared - 1, count++) {
		float speed = links->shared[__builtin_ctzll(shared)];
		*least = count && *least < speed ? *least : speed;
	}
	return count;
}

static void ports_and_the_link_between_sockets_are_shared_each_way(void **state)
{
	(void)state;
	float speed;
	struct ferry_links links = links_of("links=bridges:52:25,devices=4,5,8,9", 4);
	assert_int_equal(through(&links, 0, 1, &speed), 0);
	assert_int_equal(through(&links, 0, 2, &speed), 2);
	assert_true(speed == 25);
	assert_true(links.through[0][2] & links.through[0][3]);    /* out of rank 0 */
	assert_true(links.through[0][2] & links.through[1][2]);    /* into rank 2 */
	assert_false(links.through[0][2] & links.through[2][0]);
	assert_false(links.through[0][2] & links.through[1][3]);
	links = links_of("links=pcie2:12:6:20", 8);
	assert_int_equal(through(&links, 0, 4, &speed), 1);
	assert_true(speed == 20);
	assert_true(links.through[0][4] == links.through[3][7]);
	assert_false(links.through[0][4] & links.through[4][0]);
	assert_int_equal(through(&links, 0, 1, &speed), 0);
	links = links_of("links=pcie2:12:6", 8);
	assert_int_equal(through(&links, 0, 4, &speed), 0);
}

static void single_links_and_ports_go_before_what_is_said_of_all(void **state)
{
	(void)state;
	assert_links("peer@0-1=7,port=9,peer=5,d2h=1,peer@2-1=0", 3, "0 7 5 / 7 0 0 / 5 0 0 / ", 9);
	assert_links("port=40,links=nvswitch:30", 2, "0 30 / 30 0 / ", 40);
	assert_links("peer@1-0=3", 3, "0 3 0 / 3 0 0 / 0 0 0 / ", 0);
	assert_links("devices=0,2,5,links=dgx1v:25,peer@5-2=1", 3, "0 25 0 / 25 0 1 / 0 1 0 / ", 0);
	assert_links("links=dgx1v:25,devices=7,3", 2, "0 25 / 25 0 / ", 0);
}

static void what_makes_no_sense_is_refused_where_it_stands(void **state)
{
	(void)state;
	static const struct {
		const char *text, *at;
	} cases[] = {
	        {"d2h=x", "at \"x\""},
	        {"d2h=1e-300", "at \"1e-300\""},
	        {"d2h=inf", "at \"inf\""},
	        {"d2h=nan", "at \"nan\""},
	        {"d2h= 1", "at \" 1\""},
	        {"d2h=0", "at \"0\""},
	        {"d2h=1,d2h=2", "at \"d2h=2\""},
	        {"h2d=1,", "at \"\""},
	        {"h2d=1;d2h=1", "expected a comma, at \";d2h=1\""},
	        {"bus=3", "peer@A-B=GBPS"},
	        {"peer=-1", "at \"-1\""},
	        {"peer=1,peer=1", "at \"peer=1\""},
	        {"peer=1,links=nvswitch:1", "expected one of peer= and links="},
	        {"links=nvswitch:1,links=dgx1v:1", "expected one of peer= and links="},
	        {"links=dgx2:1", "links=nvswitch:GBPS"},
	        {"links=bridges:52", "links=bridges:GBPS:GBPS"},
	        {"links=bridges:52:25:1", "expected 2 to 32 devices that a bridge joins"},
	        {"links=bridges:52:25:2.5", "expected 2 to 32 devices that a bridge joins"},
	        {"links=bridges:52:25:2:1", "expected a comma, at \":1\""},
	        {"links=pcie2:1:1:1:1", "expected a comma, at \":1\""},
	        {"links=dgx1v", "at \"links=dgx1v\""},
	        {"links=dgx1v:1:2", "expected a comma, at \":2\""},
	        {"links=pcie2:1:", "at \"\""},
	        {"peer@0=1", "expected peer@A-B=GBPS"},
	        {"peer@0-0=1", "of two devices"},
	        {"peer@0-64=1", "expected a device from 0 to 63"},
	        {"peer@+1-2=1", "expected a device"},
	        {"peer@0-1=1,peer@1-0=2", "each pair once"},
	        {"links=dgx1v:1,peer@0-8=1", "peer@0-8: the machine has devices 0 to 7"},
	        {"peer=1,devices=", "expected a device"},
	        {"peer=1,devices=1,2,1", "expected each device once, at \"1\""},
	        {"devices=1,devices=2,peer=1", "expected each setting once"},
	        {"port=5", "expected peer= or links= too"},
	        {"peer=1,port=5,port=6", "each setting once, at \"port=6\""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ferry_links links;
		setenv("FERRY_HOST_LINK", cases[i].text, 1);
		ferryResult_t result = read_links(&links, 2);
		if (result != ferryInvalidArgument || !strstr(ferry_last_message(), cases[i].at) ||
		    !strstr(ferry_last_message(), cases[i].text))
			fail_msg("%s: %d: %s, not \"%s\"", cases[i].text, result, ferry_last_message(), cases[i].at);
	}
	unsetenv("FERRY_HOST_LINK");
}

static void assert_too_few(const char *text, uint32_t nranks, const char *words)
{
	struct ferry_host_links machine;
	struct ferry_links links;
	assert_int_equal(ferry_host_links_parse("--links", text, &machine), ferrySuccess);
	assert_int_equal(ferry_host_links_place("--links", &machine, nranks, &links), ferryInvalidArgument);
	if (!strstr(ferry_last_message(), words))
		fail_msg("%s, not \"%s\"", ferry_last_message(), words);
}

static void more_ranks_than_devices_are_refused(void **state)
{
	(void)state;
	assert_too_few("links=dgx1v:25", 9, "--links: rank 8 on device 8: the machine has devices 0 to 7");
	assert_too_few("links=bridges:52:25", 33, "rank 32 on device 32");
	assert_too_few("links=pcie2:12,devices=0,9", 2, "rank 1 on device 9");
	assert_too_few("peer=1,devices=4,2,9", 4, "4 ranks on 3 devices");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(machines_have_the_links_that_they_have),
	        cmocka_unit_test(ports_and_the_link_between_sockets_are_shared_each_way),
	        cmocka_unit_test(single_links_and_ports_go_before_what_is_said_of_all),
	        cmocka_unit_test(what_makes_no_sense_is_refused_where_it_stands),
	        cmocka_unit_test(more_ranks_than_devices_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
