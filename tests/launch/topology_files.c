/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of topology files: links are what NCCL's dumps and hwloc's XML say, and a file that makes no sense is
 * refused with line and reason. With arguments, the suite reads those files instead and prints a line of each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "launch/topology_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ferry_host_links machine;

static void read_own(const char *name)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", TOPOLOGIES, name);
	if (ferry_topology_file_read(path, &machine))
		fail_msg("%s", ferry_last_message());
}

/* Speeds as rows of numbers; how many shared links each goes through, too; and what leaves each GPU. */
static void assert_links(const char *name, uint32_t ngpus, const char *rows, float port)
{
	char found[1024] = "";
	read_own(name);
	assert_true(machine.peers);
	assert_int_equal(machine.ndevices, ngpus);
	for (uint32_t from = 0; from < ngpus; from++) {
		for (uint32_t to = 0; to < ngpus; to++) {
			int shared = __builtin_popcountll(machine.links.through[from][to]);
			snprintf(found + strlen(found), sizeof found - strlen(found), shared ? "%.4g:%d " : "%.4g ",
			         machine.links.speed[from][to], shared);
		}
		snprintf(found + strlen(found), sizeof found - strlen(found), "/ ");
		assert_true(machine.links.port[from] == port);
	}
	assert_string_equal(found, rows);
}

static void links_are_what_files_say(void **state)
{
	(void)state;
	/* Numbered by dev, against the file's order; each to the other pair through its own port and the other's. */
	assert_links("nccl-bridged-pairs.xml", 4,
	             "0 56 24:2 24:2 / 56 0 24:2 24:2 / 24:2 24:2 0 56 / 24:2 24:2 56 0 / ", 0);
	assert_links("nccl-nvswitch-a100.xml", 8,
	             "0 300 300 300 300 300 300 300 / 300 0 300 300 300 300 300 300 / "
	             "300 300 0 300 300 300 300 300 / 300 300 300 0 300 300 300 300 / "
	             "300 300 300 300 0 300 300 300 / 300 300 300 300 300 0 300 300 / "
	             "300 300 300 300 300 300 0 300 / 300 300 300 300 300 300 300 0 / ", 300);
	/* Across: two ports and the link between the CPUs, which is faster than 16 GT/s by 16 lanes are. */
	assert_links("nccl-cloud-two-cpus.xml", 4,
	             "0 24:2 20:3 20:3 / 24:2 0 20:3 20:3 / 20:3 20:3 0 24:2 / 20:3 20:3 24:2 0 / ", 0);
	/* A switch and a root port of half as many lanes in a row are one link of 12, shared by two GPUs. */
	assert_links("nccl-two-switches.xml", 4,
	             "0 24:2 12:4 12:4 / 24:2 0 12:4 12:4 / 12:4 12:4 0 24:2 / 12:4 12:4 24:2 0 / ", 0);
	assert_true(machine.links.through[0][2] & machine.links.through[1][3]);
	assert_links("hwloc-two-packages.xml", 4,
	             "0 50 25 12:3 / 50 0 12:3 25 / 25 12:3 0 50 / 12:3 25 50 0 / ", 0);
	read_own("nccl-cube-mesh-v100.xml");
	struct ferry_host_links known;
	assert_int_equal(ferry_host_links_parse("links", "links=dgx1v:25", &known), ferrySuccess);
	for (uint32_t from = 0; from < 8; from++)
		for (uint32_t to = 0; to < 8; to++)
			if (known.links.speed[from][to] > 0)
				assert_true(machine.links.speed[from][to] == known.links.speed[from][to]);
}

static void what_makes_no_sense_is_refused_with_line_and_reason(void **state)
{
	(void)state;
#define PCI  "<pci busid=\"0000:01:00.0\" class=\"0x030200\""
#define CPU  "<system version=\"1\">\n<cpu>\n"
#define ENDS "</cpu>\n</system>\n"
	static const struct {
		const char *text, *words;
	} cases[] = {
	        {"", ":1: no element found"},
	        {"Switch 0\n", ":1: syntax error"},
	        {"<system>\n<cpu>\n</system>\n", ":3: mismatched tag"},
	        {"<system>\n<cpu>\n", ":3: no element found"},
	        {"\n<graphs version=\"1\"/>\n", ":2: expected NCCL's <system> or hwloc's <topology>, found <graphs>"},
	        {CPU ENDS, "no GPU in it"},
	        {"<system>\n" PCI "/>\n</system>\n", ":2: expected <pci> in a <cpu>"},
	        {CPU "<gpu dev=\"0\"/>\n" ENDS, ":3: expected <gpu> in a <pci>"},
	        {CPU "<pci class=\"0x030200\"/>\n" ENDS, ":3: expected busid="},
	        {CPU PCI " link_speed=\"fast\"/>\n" ENDS, ":3: link_speed=\"fast\": expected a number"},
	        {CPU PCI " link_width=\"16x\"/>\n" ENDS, ":3: link_width=\"16x\": expected a number from 0 to 64"},
	        {CPU PCI "/>\n" PCI "/>\n" ENDS, ":4: busid=\"0000:01:00.0\": there is a GPU of it already"},
	        {CPU PCI ">\n<gpu dev=\"64\"/></pci>\n" ENDS, ":4: dev=\"64\": expected a number from 0 to 63"},
	        {CPU PCI ">\n<gpu dev=\"-1\"/></pci>\n" ENDS, ":4: dev=\"-1\": expected"},
	        {CPU PCI ">\n<gpu dev=\"0\" sm=\"x\"/></pci>\n" ENDS, ":4: sm=\"x\": expected"},
	        {CPU PCI "><gpu dev=\"0\"/></pci>\n<pci busid=\"2\" class=\"0x030200\"><gpu dev=\"0\"/></pci>" ENDS,
	         ":4: dev=\"0\": there is one already"},
	        {CPU "<nvlink target=\"a\" count=\"1\"/>" ENDS, ":3: expected <nvlink> in a <gpu>"},
	        {CPU PCI "><gpu>\n<nvlink target=\"a\"/></gpu></pci>" ENDS, ":4: expected target="},
	        {CPU PCI "><gpu>\n<nvlink target=\"a\" count=\"0\"/></gpu></pci>" ENDS, ":4: count=\"0\": expected"},
	        {CPU PCI "><gpu>\n<nvlink target=\"a\" count=\"nan\"/></gpu></pci>" ENDS, ":4: count=\"nan\""},
	        {"<topology>\n<object\n</topology>\n", ":3: not well-formed"},
	        {"<topology version=\"99.0\">\n</topology>\n", "finds no topology in it"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char path[] = "/tmp/ferry-topology-XXXXXX", expected[256];
		int file = mkstemp(path);
		assert_true(file >= 0);
		assert_int_equal(write(file, cases[i].text, strlen(cases[i].text)), strlen(cases[i].text));
		close(file);
		ferryResult_t result = ferry_topology_file_read(path, &machine);
		unlink(path);
		snprintf(expected, sizeof expected, "%s", cases[i].words);
		if (result != ferryInvalidArgument || !strstr(ferry_last_message(), expected) ||
		    strncmp(ferry_last_message(), path, strlen(path)))
			fail_msg("%s: %d: %s, not \"%s\"", cases[i].text, result, ferry_last_message(), expected);
	}
	assert_int_equal(ferry_topology_file_read("/nowhere/topo.xml", &machine), ferrySystemError);
}

/* No prefix of a file, and no file with a byte turned, does more than be read or refused. */
static void broken_files_are_read_or_refused(void **state)
{
	(void)state;
	char path[512], broken[] = "/tmp/ferry-topology-XXXXXX";
	static char text[65536];
	snprintf(path, sizeof path, "%s/nccl-bridged-pairs.xml", TOPOLOGIES);
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	size_t bytes = fread(text, 1, sizeof text, file);
	fclose(file);
	int out = mkstemp(broken);
	assert_true(out >= 0);
	for (size_t at = 0; at < bytes; at += 3) {
		char kept = text[at];
		text[at] = (char)("0\"<>x=9 /"[at / 3 % 9]);
		assert_int_equal(pwrite(out, text, at % 2 ? bytes : at, 0), at % 2 ? bytes : at);
		assert_int_equal(ftruncate(out, (off_t)(at % 2 ? bytes : at)), 0);
		text[at] = kept;
		ferryResult_t result = ferry_topology_file_read(broken, &machine);
		assert_true(result == ferrySuccess || result == ferryInvalidArgument);
	}
	close(out);
	unlink(broken);
}

static int print_files(char **files)
{
	int refused = 0;
	for (; *files; files++) {
		bool read = !ferry_topology_file_read(*files, &machine);
		refused += !read;
		if (read)
			printf("%s: %u GPUs, out of the first %g GB/s to the second\n", *files, machine.ndevices,
			       (double)machine.links.speed[0][1]);
		else
			printf("%s\n", ferry_last_message());
	}
	return refused;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(links_are_what_files_say),
	        cmocka_unit_test(what_makes_no_sense_is_refused_with_line_and_reason),
	        cmocka_unit_test(broken_files_are_read_or_refused),
	};
	return argc > 1 ? print_files(argv + 1) : cmocka_run_group_tests(tests, NULL, NULL);
}
