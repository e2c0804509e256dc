/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: any text through parser, printer, checker and compiler. Besides not crashing, it must hold that
 * what parses prints to text that parses and prints the same; that what the checker refuses does not compile; and that
 * the validator takes every plan that compiles.
 */
#include "ipc/error.h"
#include "rank-lib/program/program.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct ferry_program_defaults defaults = {.collective = FERRY_ALLREDUCE, .nranks = 2, .ndomains = 1};

static void broken(const char *promise, const char *detail)
{
	fprintf(stderr, "fuzz_program: %s: %s\n", promise, detail);
	abort();
}

static void check_round_trip(const struct ferry_program *program)
{
	struct ferry_program *again = NULL;
	char *text = NULL, *text_again = NULL;
	if (ferry_program_print(program, &text))
		broken("a program that parses prints", ferry_last_message());
	if (ferry_program_parse("printed", text, strlen(text), NULL, &again))
		broken("printed text parses", ferry_last_message());
	if (ferry_program_print(again, &text_again) || strcmp(text, text_again))
		broken("printed text parses to the same program", text);
	ferry_program_free(again);
	free(text);
	free(text_again);
}

static void check_compiled(const struct ferry_program *program, bool sound, uint64_t count, uint32_t window)
{
	struct ferry_compile_options options = {
		.count = count, .type = ferryFloat32, .redop = ferrySum, .window = window};
	struct ferry_plan_room limits = {
		.nranks = program->nranks, .ndomains = program->ndomains, .rank_domain = program->rank_domain};
	struct ferry_plan *plan = NULL;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		options.staging[domain] = limits.staging[domain] = 64u << 10;
		limits.counters[domain] = 1u << 16;
	}
	if (ferry_program_compile(program, &options, &plan))
		return;
	if (!sound)
		broken("what the checker refuses does not compile", program->name);
	if (ferry_plan_validate(plan, plan->bytes, &limits))
		broken("a compiled plan is valid", ferry_last_message());
	free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ferry_program *program = NULL;
	if (ferry_program_parse("fuzz", (const char *)data, size, &defaults, &program)) {
		if (!*ferry_last_message())
			broken("a text that is refused is told why", "no message");
		return 0;
	}
	check_round_trip(program);
	bool sound = ferry_program_check(program) == ferrySuccess;
	check_compiled(program, sound, 5, 1);
	check_compiled(program, sound, 3000, 0);
	ferry_program_free(program);
	return 0;
}
