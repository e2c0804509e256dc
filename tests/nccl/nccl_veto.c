/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of shared calls to programs that do more than calls, where time is made (virtual.h): steps take no longer
 * than with NCCL alone, nor than with Ferry's part of the calls, whichever is shorter. A call of Ferry's takes the
 * program's thread longer here, as routers and ranks have the same processors.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "orchestrator/shadow_comm.h"
#include "tests/nccl/virtual.h"

#include <math.h>
#include <stdlib.h>

#define MIB           (1u << 20)
#define MOST_CALLS    40
#define MOST_PROGRAMS 12
#define MEMORIES      30
#define STEPS         400
#define SEEDS         5

static struct virtual_machine pcie; /* that of all suites, beside programs */

static struct virtual_machine beside_programs(const struct virtual_machine *alone)
{
	struct virtual_machine machine = *alone;
	machine.tuned = true;
	machine.drag = 0.09;
	machine.jitter = 0.01;
	return machine;
}

struct program {
	const char *name;
	int count;
	struct virtual_calls calls[MOST_CALLS]; /* of a step, each behind what the program does */
	int ahead;                              /* steps that are made before the stream is waited for */
	bool waits;                             /* for each call */
	bool wanders;                           /* its buffers are others in each step */
};

enum side { NCCL, FERRY, BOTH };

static void add(struct program *program, int calls, enum ferry_collective collective, uint32_t mib, double gap_us)
{
	for (int i = 0; i < calls; i++, program->count++)
		program->calls[program->count] = (struct virtual_calls){collective, (uint64_t)mib * MIB,
		                                                        false,      program->count % MEMORIES,
		                                                        1,          gap_us};
}

static void make_steps(const struct program *program, int steps)
{
	for (int step = 0; step < steps; step++) {
		for (int i = 0; i < program->count; i++) {
			struct virtual_calls call = program->calls[i];
			if (program->wanders)
				call.memory = (call.memory + step * 7 + step * step) % MEMORIES;
			virtual_make(&call);
			if (program->waits)
				virtual_wait();
		}
		if (step % program->ahead == program->ahead - 1)
			virtual_wait();
	}
}

static void start(const struct virtual_machine *machine, enum side side, unsigned seed)
{
	virtual_open(machine, seed);
	for (int i = 0; i < MEMORIES; i++)
		virtual_map(i);
	if (side == NCCL)
		virtual_leave_to_nccl();
	if (side == FERRY)
		virtual_leave_to_calls();
}

/* What a step takes: of the first ones, and of as many later ones. */
struct steps {
	double first_us, later_us;
};

static struct steps run_program(const struct virtual_machine *machine, const struct program *program, enum side side,
                                unsigned seed)
{
	struct steps us;
	start(machine, side, seed);
	make_steps(program, STEPS);
	us.first_us = virtual_now_us() / STEPS;
	make_steps(program, STEPS);
	us.later_us = virtual_now_us() / STEPS - us.first_us;
	virtual_close();
	return us;
}

/* The better one of NCCL alone and of what calls take decides, over what is reached; the worst of some seeds. */
struct reached {
	double first, later, by_calls;
};

static double shorter(double one, double other)
{
	return one < other ? one : other;
}

static struct reached reach(const struct virtual_machine *machine, const struct program *program)
{
	struct reached worst = {INFINITY, INFINITY, INFINITY};
	struct steps of[3] = {{0, 0}, {0, 0}, {0, 0}};
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		for (int side = NCCL; side <= BOTH; side++)
			of[side] = run_program(machine, program, (enum side)side, seed);
		double first_us = shorter(of[NCCL].first_us, of[FERRY].first_us),
		       later_us = shorter(of[NCCL].later_us, of[FERRY].later_us);
		worst.first = shorter(worst.first, first_us / of[BOTH].first_us);
		worst.later = shorter(worst.later, later_us / of[BOTH].later_us);
		worst.by_calls = shorter(worst.by_calls, later_us / of[FERRY].later_us);
	}
	print_message("%-7s %-36s %6.2f ms with NCCL, %6.2f with Ferry; by calls %.3f; reached %.3f, then %.3f\n",
	              machine->name, program->name, of[NCCL].later_us / 1e3, of[FERRY].later_us / 1e3, worst.by_calls,
	              worst.first, worst.later);
	return worst;
}

static struct program programs[MOST_PROGRAMS];
static int nprograms;

static struct program *new_program(const char *name)
{
	struct program *program = &programs[nprograms++];
	*program = (struct program){.name = name, .ahead = 1};
	return program;
}

static void write_fsdp(struct program *program)
{
	add(program, 12, FERRY_ALLGATHER, 32, 1500);
	for (int i = 0; i < 12; i++) {
		add(program, 1, FERRY_ALLGATHER, 32, 1500);
		add(program, 1, FERRY_REDUCESCATTER, 32, 1500);
	}
}

static void write_programs(void)
{
	nprograms = 0;
	add(new_program("hidden calls"), 5, FERRY_ALLREDUCE, 64, 6600);
	add(new_program("calls without products"), 5, FERRY_ALLREDUCE, 64, 300);
	struct program *program = new_program("calls that are waited for");
	add(program, 1, FERRY_ALLREDUCE, 64, 2500);
	program->waits = true;
	program = new_program("hidden ones and a long one");
	add(program, 4, FERRY_ALLREDUCE, 64, 4000);
	add(program, 1, FERRY_ALLREDUCE, 256, 4000);
	program = new_program("hidden ones and a shorter one");
	add(program, 4, FERRY_ALLREDUCE, 64, 6600);
	add(program, 1, FERRY_ALLREDUCE, 128, 6600);
	write_fsdp(new_program("gathered and scattered, hidden"));
	program = new_program("hidden calls, eight steps ahead");
	add(program, 5, FERRY_ALLREDUCE, 64, 6600);
	program->ahead = 8;
	add(new_program("short steps, hidden"), 2, FERRY_ALLREDUCE, 16, 1500);
	program = new_program("hidden calls, other buffers each time");
	add(program, 5, FERRY_ALLREDUCE, 64, 6600);
	program->wanders = true;
}

static void check_programs(const struct virtual_machine *machine, double first, double later)
{
	write_programs();
	for (int i = 0; i < nprograms; i++) {
		struct reached reached = reach(machine, &programs[i]);
		/* of buffers that are others each time it takes longer to see that there are steps */
		double less = programs[i].wanders ? 0.015 : 0;
		assert_true(reached.first > first - less && reached.later > later - less);
	}
}

/* ---- promises ---- */

static void steps_are_as_short_as_with_nccl_alone_or_with_ferry(void **state)
{
	(void)state;
	check_programs(&pcie, 0.99, 0.995);
}

/* Nothing hides behind anything longer; what is gained are the calls at the ends of steps. */
static void what_costs_the_program_nothing_is_kept_where_it_gains(void **state)
{
	(void)state;
	struct virtual_machine machine = pcie;
	machine.name = "free";
	machine.drag = 0;
	check_programs(&machine, 0.985, 0.99);
}

static void a_machine_that_drifts_turns_nothing_round(void **state)
{
	(void)state;
	struct virtual_machine machine = pcie;
	machine.name = "drifts";
	machine.jitter = 0.02;
	machine.drift = 0.05;
	for (machine.drift_s = 0.5; machine.drift_s <= 8; machine.drift_s *= 4)
		check_programs(&machine, 0.98, 0.985);
}

/* With sums and without. */
static void pushes_give_way_too(void **state)
{
	(void)state;
	struct virtual_machine machine = beside_programs(&virtual_nvlink);
	struct program sums = {.name = "sums pushed, hidden", .ahead = 1},
	               pushed = {.name = "pushed, hidden", .ahead = 1};
	add(&sums, 4, FERRY_ALLREDUCE, 1024, 12000);
	add(&pushed, 8, FERRY_ALLGATHER, 256, 3000);
	struct reached reached = reach(&machine, &sums);
	assert_true(reached.first > 0.98 && reached.later > 0.99 && reached.by_calls < 0.95);
	reached = reach(&machine, &pushed);
	assert_true(reached.first > 0.98 && reached.later > 0.99 && reached.by_calls < 0.95);
}

/* Where all is hidden and nothing costs anything calls are NCCL's: processors and links are free then. */
static void who_gains_nothing_gives_way(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		struct virtual_machine machine = pcie;
		struct virtual_calls what = {FERRY_ALLGATHER, 32 * MIB, false, 0, 100, 3000};
		static struct virtual_call calls[100];
		int ferrys = 0;
		machine.drag = 0;
		start(&machine, BOTH, seed);
		for (int i = 0; i < 12; i++)
			virtual_run(&what, calls);
		for (int i = 0; i < 100; i++)
			ferrys += calls[i].word != FERRY_SHARES_NONE;
		assert_int_equal(ferrys, 0);
		virtual_close();
	}
}

/* Programs do this and then that; what was found of one is not held against the other. */
static void another_part_of_a_program_has_what_is_better_for_it(void **state)
{
	(void)state;
	struct program hidden = {.name = "hidden", .ahead = 1}, bare = {.name = "bare", .ahead = 1};
	add(&hidden, 5, FERRY_ALLREDUCE, 64, 6600);
	add(&bare, 5, FERRY_ALLREDUCE, 256, 300);
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		double us[3][3];
		for (int side = NCCL; side <= BOTH; side++) {
			start(&pcie, (enum side)side, seed);
			for (int part = 0; part < 3; part++) {
				double begun = virtual_now_us();
				make_steps(part % 2 ? &bare : &hidden, STEPS / 2);
				us[side][part] = virtual_now_us() - begun;
			}
			virtual_close();
		}
		for (int part = 0; part < 3; part++) {
			double best = shorter(us[NCCL][part], us[FERRY][part]);
			if (best < 0.98 * us[BOTH][part])
				fail_msg("seed %u, part %d: %.3f of the better one", seed, part, best / us[BOTH][part]);
		}
	}
}

/* So seldom that it costs less than a hundredth, whichever fabric is better. */
static void what_is_settled_is_looked_at_ever_more_rarely(void **state)
{
	(void)state;
	static struct virtual_call calls[100];
	struct virtual_calls what = {FERRY_ALLGATHER, 32 * MIB, false, 0, 100, 3000};
	start(&pcie, BOTH, 1);
	int ferrys[2] = {0, 0};
	for (int i = 0; i < 400; i++) {
		virtual_run(&what, calls);
		for (int j = 0; i >= 2 && j < 100; j++)
			ferrys[i >= 200] += calls[j].word != FERRY_SHARES_NONE;
	}
	virtual_close();
	print_message("of 20000 calls that NCCL is to have Ferry has %d, then %d\n", ferrys[0], ferrys[1]);
	assert_in_range(ferrys[0], 1, 1000);
	assert_in_range(ferrys[1], 0, ferrys[0] / 2);
}

/* A graph keeps what it was given: that is never what is only tried. */
static void captured_calls_go_by_what_is_settled(void **state)
{
	(void)state;
	struct virtual_calls what = {FERRY_ALLREDUCE, 64 * MIB, false, 0, 3, 6600}, captured = what;
	struct virtual_call calls[3], call;
	bool ours = true;
	int changes = 0, tried = 0;
	captured.calls = 1;
	start(&pcie, BOTH, 1);
	virtual_run(&what, calls); /* in which Ferry is learned */
	for (int i = 0; i < 100; i++) {
		virtual_run(&what, calls);
		virtual_capture(true);
		virtual_run(&captured, &call);
		virtual_capture(false);
		changes += ours != (call.word != FERRY_SHARES_NONE);
		ours = call.word != FERRY_SHARES_NONE;
		tried += ours && calls[2].word == FERRY_SHARES_NONE;
	}
	assert_true(tried); /* beside the trial of NCCL alone it has Ferry still, and NCCL from the verdict on */
	assert_true(changes == 1 && !ours);
	virtual_close();
}

static void pinned_shares_stay(void **state)
{
	(void)state;
	static struct virtual_call calls[STEPS];
	struct virtual_calls what = {FERRY_ALLREDUCE, 64 * MIB, false, 0, STEPS, 6600};
	setenv("FERRY_SHARES", "nccl:0.5,host:0.5", 1);
	start(&pcie, BOTH, 1);
	virtual_run(&what, calls);
	for (int i = 1; i < STEPS; i++)
		assert_true(calls[i].word == calls[0].word && calls[i].word != FERRY_SHARES_NONE);
	virtual_close();
	unsetenv("FERRY_SHARES");
}

/* Its stream hangs, and calls go on in another one: the comparison does not wait for it for ever. */
static void a_window_whose_stream_hangs_is_given_up(void **state)
{
	(void)state;
	struct program hidden = {.name = "hidden", .ahead = 1};
	add(&hidden, 8, FERRY_ALLREDUCE, 64, 8000);
	start(&pcie, BOTH, 1);
	const struct ferry_veto *veto = &virtual_shadow_comm(0)->meter.veto;
	for (int i = 0; i < STEPS && ferry_veto_awaits(veto) < 0; i++)
		make_steps(&hidden, 1);
	assert_true(veto->compares && ferry_veto_awaits(veto) >= 0);
	uint32_t known = veto->exam.known;
	virtual_hang();
	make_steps(&hidden, 600);
	assert_true(!veto->compares || veto->exam.known > known);
	virtual_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(steps_are_as_short_as_with_nccl_alone_or_with_ferry),
	        cmocka_unit_test(what_costs_the_program_nothing_is_kept_where_it_gains),
	        cmocka_unit_test(a_machine_that_drifts_turns_nothing_round),
	        cmocka_unit_test(pushes_give_way_too),
	        cmocka_unit_test(who_gains_nothing_gives_way),
	        cmocka_unit_test(another_part_of_a_program_has_what_is_better_for_it),
	        cmocka_unit_test(what_is_settled_is_looked_at_ever_more_rarely),
	        cmocka_unit_test(captured_calls_go_by_what_is_settled),
	        cmocka_unit_test(pinned_shares_stay),
	        cmocka_unit_test(a_window_whose_stream_hangs_is_given_up),
	};
	pcie = beside_programs(&virtual_pcie);
	return cmocka_run_group_tests_name("nccl_veto", tests, NULL, NULL);
}
