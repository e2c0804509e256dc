/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rank-lib/program/program_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/chunks.h"
#include "rank-lib/program/versions.h"
#include "tests/rank-lib/program/program_interpreter.h"
#include "tests/topology.h"

#include <glob.h>
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

unsigned for_each_example(void (*visit)(const char *text, void *context), void *context)
{
	glob_t found;
	assert_int_equal(glob(FERRY_SOURCE_DIR "/bench/examples/*.ferry", 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		char *text = NULL;
		size_t room = 0;
		FILE *file = fopen(found.gl_pathv[i], "r");
		assert_non_null(file);
		assert_true(getdelim(&text, &room, '\0', file) > 0);
		fclose(file);
		visit(text, context);
		free(text);
	}
	unsigned count = (unsigned)found.gl_pathc;
	globfree(&found);
	return count;
}

static void from_synthetic(uint64_t *seed, struct ferry_topology *topology, uint32_t most_domains)
{
	char text[64];
	struct ferry_layout layout;
	snprintf(text, sizeof text, "node:%u core:%u pu:%u", 1 + draw_below(seed, most_domains),
	         1 + draw_below(seed, 8), 1 + draw_below(seed, 2));
	if (topology_layout(text, &layout))
		fail_msg("%s", text);
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

/* ---- programs with PUTs ---- */

void sort_sections(struct ferry_program *program)
{
	for (uint32_t i = 1; i < program->nstatements; i++)
		for (uint32_t j = i; j > 0 && program->statements[j - 1].rank > program->statements[j].rank; j--) {
			struct ferry_statement kept = program->statements[j];
			program->statements[j] = program->statements[j - 1];
			program->statements[j - 1] = kept;
		}
}

/* A chunk that a rank must get, in a random order; `statement`: the H2D that brings it, if there is one. */
struct output {
	uint32_t rank, chunk, statement, send_chunk;
	uint64_t ranks;
};

static uint32_t list_outputs(const struct ferry_program *program, struct output *outputs, uint64_t *seed)
{
	uint32_t send, receive, count = 0;
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, rank,
		                        &send, &receive);
		for (uint32_t chunk = 0; chunk < receive; chunk++) {
			struct output *output = &outputs[count];
			*output = (struct output){.rank = rank, .chunk = chunk, .statement = FERRY_NO_STATEMENT};
			ferry_collective_demand(program, rank, chunk, &output->ranks, &output->send_chunk);
			count += output->ranks != 1ull << rank;
		}
	}
	for (uint32_t i = 0; i < program->nstatements; i++)
		for (uint32_t j = 0; j < count && program->statements[i].opcode == FERRY_H2D; j++)
			if (outputs[j].rank == program->statements[i].rank &&
			    outputs[j].chunk == program->statements[i].gpu)
				outputs[j].statement = i;
	for (uint32_t i = count; i > 1; i--) {
		uint32_t other = draw_below(seed, i);
		struct output kept = outputs[i - 1];
		outputs[i - 1] = outputs[other];
		outputs[other] = kept;
	}
	return count;
}

/* From its owner's send buffer or from where one of the first `settled` outputs has the same; false: from neither. */
static bool draw_source(const struct output *outputs, uint32_t settled, uint64_t *seed, struct ferry_statement *put)
{
	const struct output *output = &outputs[settled];
	bool single = !(output->ranks & (output->ranks - 1)), found = single;
	uint32_t candidates = single;
	*put = (struct ferry_statement){.opcode = FERRY_PUT,
	                                .rank = (uint16_t)ferry_rankset_lowest(output->ranks),
	                                .gpu = (uint16_t)output->send_chunk,
	                                .peer = (uint16_t)output->rank,
	                                .peer_gpu = (uint16_t)output->chunk};
	for (uint32_t i = 0; i < settled; i++) {
		if (outputs[i].ranks != output->ranks || outputs[i].send_chunk != output->send_chunk ||
		    outputs[i].rank == output->rank || draw_below(seed, ++candidates))
			continue;
		put->rank = (uint16_t)outputs[i].rank;
		put->gpu = (uint16_t)outputs[i].chunk;
		put->forwards = found = true;
	}
	return found;
}

/* In place of the H2D that it replaces, or of none. */
static void put_statement(struct ferry_program *program, const struct ferry_statement *put, uint32_t replaced)
{
	if (replaced == FERRY_NO_STATEMENT) {
		replaced = program->nstatements++;
		program->statements =
		        realloc(program->statements, program->nstatements * sizeof *program->statements);
		assert_non_null(program->statements);
	} else {
		free(program->statements[replaced].dependencies);
	}
	program->statements[replaced] = *put;
}

/* Some PUTs also wait for some version of a host chunk: an order alone. */
static void add_orders(struct ferry_program *program, uint64_t *seed)
{
	for (uint32_t i = 0; i < program->nstatements; i++) {
		struct ferry_statement *put = &program->statements[i];
		const struct ferry_statement *writer = &program->statements[draw_below(seed, program->nstatements)];
		if (put->opcode != FERRY_PUT || draw_below(seed, 4) || !ferry_opcode_writes_window(writer->opcode))
			continue;
		put->dependencies = malloc(sizeof *put->dependencies);
		assert_non_null(put->dependencies);
		put->dependencies[0] = (struct ferry_dependency){writer->destination, 1};
		put->ndependencies = 1;
	}
}

static struct ferry_program *without_statements(enum ferry_collective collective, const struct ferry_topology *topology,
                                                uint32_t root, uint32_t nchunks)
{
	char text[128];
	snprintf(text, sizeof text, "program %s ranks %u domains %u chunks %u", ferry_collective_name(collective),
	         topology->nranks, topology->ndomains, nchunks);
	struct ferry_program *program = program_of(text);
	program->root = root;
	memcpy(program->rank_domain, topology->rank_domain, topology->nranks);
	return program;
}

struct ferry_program *pushing_program(enum ferry_collective collective, struct ferry_topology *topology, uint32_t root,
                                      uint64_t *seed)
{
	if (collective == FERRY_SENDRECV) {
		topology->nranks = 2;
		root = 0;
	}
	bool host = ferry_collective_reduces(collective) || draw_below(seed, 2);
	struct ferry_program *program =
	        host ? synthesized(collective, topology, root)
	             : without_statements(collective, topology, root,
	                                  collective == FERRY_ALLTOALLV ? 1 : 1 + draw_below(seed, 3));
	struct output *outputs = calloc((size_t)program->nranks * program->nranks * program->nchunks, sizeof *outputs);
	assert_non_null(outputs);
	uint32_t count = list_outputs(program, outputs, seed), kept = draw_below(seed, 3);
	for (uint32_t i = 0; i < count; i++) {
		struct ferry_statement put;
		bool stays = outputs[i].statement != FERRY_NO_STATEMENT && draw_below(seed, 3) < kept;
		if (!stays && draw_source(outputs, i, seed, &put))
			put_statement(program, &put, outputs[i].statement);
	}
	add_orders(program, seed);
	sort_sections(program);
	free(outputs);
	char *text;
	assert_int_equal(ferry_program_print(program, &text), ferrySuccess);
	ferry_program_free(program);
	program = program_of(text); /* with lines */
	free(text);
	return program;
}

struct ferry_program *random_pushing_program(uint64_t *seed, uint32_t most_ranks, uint32_t most_domains)
{
	enum ferry_collective collective = (enum ferry_collective)draw_below(seed, FERRY_NUM_COLLECTIVES);
	struct ferry_topology topology;
	do
		topology = random_topology(seed, most_ranks, most_domains);
	while (topology.nranks < 2);
	return pushing_program(collective, &topology, draw_below(seed, topology.nranks), seed);
}

struct ferry_program *program_of_trees(const struct ferry_topology *topology, uint32_t most, uint64_t *seed)
{
	static const enum ferry_collective sums[] = {FERRY_ALLREDUCE, FERRY_REDUCESCATTER, FERRY_REDUCE_TO_ROOT};
	struct ferry_program *program = NULL;
	while (!program) {
		struct ferry_links links = {0};
		for (uint32_t a = 0; a < topology->nranks; a++)
			for (uint32_t b = 0; b < a; b++)
				links.speed[a][b] = links.speed[b][a] = (float)draw_below(seed, 3);
		enum ferry_collective collective = sums[draw_below(seed, 3)];
		uint32_t root = draw_below(seed, topology->nranks);
		if (ferry_program_synthesize_peer(collective, topology, &links, root, &program))
			continue; /* they do not connect the ranks */
		if (program->nstatements > most) {
			ferry_program_free(program);
			program = NULL;
		}
	}
	return program;
}
