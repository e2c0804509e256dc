/* SPDX-License-Identifier: Apache-2.0 */
/* Promises about where PUTs may land, whatever another rank writes into the arena while that is found out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "router/engine/order.h"
#include "router/engine/put_targets.h"

#include <string.h>

#define LARGE (1u << 20)
#define SMALL 4096u

enum { NOTHING, SOME, DIVIDES, INSTRS }; /* instructions, by counter: a PUT of no part, one of a part, the DIVIDE */

static struct {
	struct ferry_plan plan;
	struct ferry_network network;
	struct ferry_instr instrs[INSTRS];
} program;

static struct ferry_job_arenas shared;
static uint64_t held; /* bytes of the last target */
static char target[SMALL];

static void fails(struct ferry_member *member, ferryResult_t code, const char *message)
{
	(void)member, (void)code;
	fail_msg("%s", message);
}

/* Another rank changes its mind meanwhile: the first path has all of a block that is longer than the target. */
static ferryResult_t hold_target(struct ferry_member *member, uint32_t peer, const struct ferry_buffer_name *name,
                                 uint64_t bytes, struct ferry_put_target *put_target)
{
	(void)member, (void)peer, (void)name;
	held = bytes;
	*put_target = (struct ferry_put_target){.address = target};
	atomic_store(&shared.arenas[0].counters[1][NOTHING].part, LARGE);
	return ferrySuccess;
}

static const struct ferry_member_ops ops = {.fail = fails, .hold_target = hold_target};

static void open_program(void)
{
	program.plan = (struct ferry_plan){.hash = 4711,
	                                   .slice = SMALL,
	                                   .window = 1,
	                                   .ninstrs = INSTRS,
	                                   .collective = FERRY_ALLTOALLV,
	                                   .flags = FERRY_PLAN_VARIABLE | FERRY_PLAN_PUTS,
	                                   .nranks = 2,
	                                   .ndomains = 1,
	                                   .instrs_at = offsetof(typeof(program), instrs),
	                                   .network_at = offsetof(typeof(program), network)};
	for (uint32_t i = 0; i < INSTRS; i++)
		program.instrs[i] = (struct ferry_instr){.opcode = i == DIVIDES ? FERRY_DIVIDE : FERRY_PUT,
		                                         .counter = i,
		                                         .peer = i != DIVIDES,
		                                         .path = i != DIVIDES,
		                                         .to = 1};
}

static void a_put_that_gets_its_part_too_late_has_no_target(void **state)
{
	static struct ferry_counter wait_puts[DIVIDES];
	struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 2, .staging = 1 << 20, .node = -1};
	struct ferry_step steps[DIVIDES];
	struct ferry_transfer transfers[DIVIDES];
	struct ferry_steps all = {.plan = &program.plan, .nputs = DIVIDES, .puts_to = 2};
	struct ferry_member member = {.ops = &ops, .shared = &shared};
	struct ferry_call call = {.steps = &all, .parity = 1};
	(void)state;
	open_program();
	shared.nranks = 2;
	shared.ndomains = 1;
	assert_int_equal(ferry_arena_create(&shape, &shared.arenas[0]), ferrySuccess);
	struct ferry_counter *counters = shared.arenas[0].counters[1];
	for (uint32_t i = 0; i < DIVIDES; i++) {
		uint64_t bytes = i == NOTHING ? LARGE : SMALL;
		atomic_store(&wait_puts[i].value, ferry_counter_value(1, 0));
		atomic_store(&wait_puts[i].length, bytes);
		steps[i] = (struct ferry_step){.instr = &program.instrs[i],
		                               .counter = &counters[i],
		                               .wait_put = &wait_puts[i],
		                               .division = &counters[DIVIDES]};
		transfers[i] = (struct ferry_transfer){.step = &steps[i], .whole = bytes};
	}
	atomic_store(&counters[SOME].part, SMALL);
	atomic_store(&counters[DIVIDES].value, ferry_counter_value(1, 1));
	call.halves[FERRY_DIR_D2H].transfers = transfers;
	call.halves[FERRY_DIR_D2H].ntransfers = DIVIDES;
	atomic_store(&call.seq, 1);
	ferry_order_submit(&member, &call);
	memcpy(&ferry_rank_line(&shared, 1)->ring[1], &ferry_rank_line(&shared, 0)->ring[1],
	       sizeof(struct ferry_descriptor));
	assert_true(ferry_put_targets_find(&member, &call));
	assert_int_equal(held, SMALL);
	assert_ptr_equal(transfers[SOME].destination, target);
	assert_null(transfers[NOTHING].destination);
	ferry_arena_unmap(&shared.arenas[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_put_that_gets_its_part_too_late_has_no_target)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
