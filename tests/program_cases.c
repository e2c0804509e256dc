/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/program_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/layout.h"
#include "tests/program_interpreter.h"

#include <stdlib.h>
#include <string.h>

const char figure3[] = "# Rank 0\n"
                       "D2H gpu[0] -> host[0]\n"
                       "D2H gpu[1] -> host[1]\n"
                       "REDUCE host[0] -> host[2] deps: host[2]>=1\n"
                       "H2D host[2] -> gpu[0] deps: host[2]>=2\n"
                       "H2D host[1] -> gpu[1] deps: host[1]>=2\n"
                       "# Rank 1\n"
                       "D2H gpu[0] -> host[2]\n"
                       "D2H gpu[1] -> host[3]\n"
                       "REDUCE host[3] -> host[1] deps: host[1]>=1\n"
                       "H2D host[1] -> gpu[1] deps: host[1]>=2\n"
                       "H2D host[2] -> gpu[0] deps: host[2]>=2\n";

struct ferry_program *program_of(const char *text)
{
	const struct ferry_program_defaults defaults = {.collective = FERRY_ALLREDUCE};
	struct ferry_program *program = NULL;
	if (ferry_program_parse("test", text, strlen(text), &defaults, &program))
		fail_msg("%s", ferry_last_message());
	return program;
}

unsigned for_each_manual_program(void (*visit)(const char *text, void *context), void *context)
{
	char *line = NULL, *text = NULL;
	size_t room = 0, bytes = 0;
	unsigned count = 0;
	FILE *manual = fopen(FERRY_SOURCE_DIR "/docs/program-language.md", "r"), *block = NULL;
	assert_non_null(manual);
	while (getline(&line, &room, manual) >= 0) {
		if (!block && !strcmp(line, "```ferry\n")) {
			assert_non_null(block = open_memstream(&text, &bytes));
		} else if (block && !strcmp(line, "```\n")) {
			fclose(block);
			block = NULL;
			visit(text, context);
			free(text);
			count++;
		} else if (block) {
			fputs(line, block);
		}
	}
	assert_null(block);
	free(line);
	fclose(manual);
	return count;
}

static void from_synthetic(uint64_t *seed, struct ferry_topology *topology, uint32_t most_domains)
{
	char text[64];
	struct ferry_layout layout;
	snprintf(text, sizeof text, "node:%u core:%u pu:%u", 1 + draw_below(seed, most_domains),
	         1 + draw_below(seed, 8), 1 + draw_below(seed, 2));
	if (ferry_layout_from_topology(text, &layout))
		fail_msg("%s: %s", text, ferry_last_message());
	topology->ndomains = layout.ndomains;
	for (uint32_t rank = 0; rank < topology->nranks; rank++)
		topology->rank_domain[rank] = (uint8_t)ferry_layout_device_domain(&layout, rank, topology->nranks);
}

struct ferry_topology random_topology(uint64_t *seed, uint32_t most_ranks, uint32_t most_domains)
{
	struct ferry_topology topology = {.nranks = 1 + draw_below(seed, most_ranks),
	                                  .ndomains = 1 + draw_below(seed, most_domains)};
	if (draw_below(seed, 2)) {
		from_synthetic(seed, &topology, most_domains);
		return topology;
	}
	for (uint32_t rank = 0; rank < topology.nranks; rank++)
		topology.rank_domain[rank] = (uint8_t)draw_below(seed, topology.ndomains);
	return topology;
}

struct ferry_program *synthesized(enum ferry_collective collective, struct ferry_topology *topology, uint32_t root)
{
	struct ferry_program *program = NULL;
	if (collective == FERRY_SENDRECV) {
		topology->nranks = 2;
		root = 0;
	}
	if (ferry_program_synthesize(collective, topology, root, &program))
		fail_msg("%s", ferry_last_message());
	return program;
}
