/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rank-lib/program/program_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_interpreter.h"

#include <stdlib.h>

#define MOST_OF_TREES 1000 /* statements */

static enum ferry_collective random_collective(uint64_t *seed)
{
	enum ferry_collective collective;
	do
		collective = (enum ferry_collective)draw_below(seed, FERRY_NUM_COLLECTIVES);
	while (collective == FERRY_ALLTOALLV || collective == FERRY_SENDRECV);
	return collective;
}

static void count_puts(struct program_run *run, const struct ferry_program *program)
{
	run->puts = run->forwards = run->sums = 0;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		run->puts += program->statements[i].opcode == FERRY_PUT;
		run->forwards += program->statements[i].forwards;
		run->sums += ferry_statement_uses_memory(&program->statements[i]) &&
		             program->statements[i].opcode == FERRY_REDUCE;
	}
}

void program_run_open(struct program_run *run, const struct ferry_topology *topology, size_t most, bool memory,
                      uint64_t *seed)
{
	struct ferry_program *program = NULL;
	struct ferry_topology mine = *topology;
	do {
		ferry_program_free(program);
		if (memory && !draw_below(seed, 4))
			program = program_of_trees(&mine, MOST_OF_TREES, seed);
		else
			program = pushing_program(random_collective(seed), &mine, draw_below(seed, mine.nranks), seed);
		count_puts(run, program);
	} while (!run->puts && !run->sums); /* chance may leave it all to the host */
	run->trial = (struct ferry_trial){.collective = program->collective,
	                                  .type = (ferryDataType_t)draw_below(seed, ferryNumTypes),
	                                  .op = (ferryRedOp_t)draw_below(seed, ferryNumOps),
	                                  .count = draw_below(seed, (uint32_t)(most >> draw_below(seed, 14)) +
	                                                                    1), /* as many small as large */
	                                  .root = (int)program->root,
	                                  .nranks = (int)program->nranks,
	                                  .ndomains = program->ndomains,
	                                  .exact = program->ndomains == 1 && !run->sums,
	                                  .partly = run->sums > 0,
	                                  .in_place = draw_below(seed, 2),
	                                  .seed = draw(seed)};
	run->offset = draw_below(seed, 4);
	assert_int_equal(ferry_program_print(program, &run->text), ferrySuccess);
	ferry_program_free(program);
	assert_true(ferry_trial_open(&run->trial));
}

void program_run_close(struct program_run *run)
{
	ferry_trial_close(&run->trial);
	free(run->text);
}

ferryResult_t program_run_start(const struct program_run *run, const char *send, char *receive, ferryComm_t comm,
                                ferryStream_t stream)
{
	const struct ferry_trial *trial = &run->trial;
	return ferryRunProgram(run->text, send, receive, trial->count, trial->type, trial->op, comm, stream);
}
