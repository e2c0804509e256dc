/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nccl/virtual_parts.h"

#include "orchestrator/launch.h"
#include "rank-lib/call/comm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_US 5.0 /* until a thread that waits for its stream goes on, at most */

struct virtual_all virtual_all;

void virtual_broken(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
	abort();
}

static void rank_open(int index)
{
	struct virtual_rank *rank = &virtual_all.ranks[index];
	struct ferry_nccl_key key = {{1, 2}};
	struct ferry_shadow_comm *shadow_comm = ferry_shadow_comm_new(&key, index, VIRTUAL_RANKS, index);
	CHECK(shadow_comm);
	rank->ferry = calloc(1, sizeof *rank->ferry);
	rank->ferry->rank.shared.arenas[0] = virtual_all.arena;
	rank->ferry->mapped.submissions.ring = &rank->ring;
	shadow_comm->comm = rank->ferry;
	ferry_meter_open(&shadow_comm->meter, virtual_all.arena.shares, VIRTUAL_RANKS, (uint32_t)index,
	                 virtual_all.machine->peers, virtual_all.machine->adds, false, 50e3);
	ferry_arena_agreement(&virtual_all.arena, (uint32_t)index, &shadow_comm->calls.agreement);
	ferry_agreement_join(&shadow_comm->calls.agreement, 0);
	atomic_store(&shadow_comm->state, FERRY_SHADOW_COMM_READY);
	rank->comm.rank = index;
	rank->comm.nranks = VIRTUAL_RANKS;
	atomic_store(&rank->comm.shadow_comm, shadow_comm);
	rank->now_us = 10 * virtual_uniform();
}

void virtual_leave_to_nccl(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		virtual_all.ranks[i].alone = true;
}

void virtual_leave_to_calls(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		atomic_load(&virtual_all.ranks[i].comm.shadow_comm)->meter.follows = false;
}

void virtual_abandon(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		ferry_shadow_comm_abandon(atomic_load(&virtual_all.ranks[i].comm.shadow_comm));
}

struct ferry_shadow_comm *virtual_shadow_comm(int rank)
{
	return atomic_load(&virtual_all.ranks[rank].comm.shadow_comm);
}

void virtual_open(const struct virtual_machine *machine, unsigned seed)
{
	static const struct ferry_arena_shape shape = {
	        .ndomains = 1, .nranks = VIRTUAL_RANKS, .staging = 1 << 20, .node = -1};
	memset(&virtual_all, 0, sizeof virtual_all);
	virtual_all.machine = machine;
	virtual_all.seed = seed;
	virtual_all.ranks = calloc(VIRTUAL_RANKS, sizeof *virtual_all.ranks);
	virtual_all.works = calloc(MOST, sizeof *virtual_all.works);
	ferryResult_t made = ferry_arena_create(&shape, &virtual_all.arena);
	CHECK(!made);
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		rank_open(i);
}

void virtual_close(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++) {
		struct ferry_shadow_comm *shadow_comm = atomic_load(&virtual_all.ranks[i].comm.shadow_comm);
		shadow_comm->comm = NULL;
		ferry_shadow_comm_end(shadow_comm, false);
		free(virtual_all.ranks[i].ferry);
	}
	ferry_arena_unmap(&virtual_all.arena);
	virtual_all.machine = NULL; /* the caller's, which ends */
	free(virtual_all.ranks);
	free(virtual_all.works);
}

static void *receive_of(int memory)
{
	return (void *)((uintptr_t)(memory + 1) << 41);
}

static void *send_of(int memory)
{
	return (char *)receive_of(memory) + (UINT64_C(1) << 40);
}

void virtual_map(int memory)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++) {
		virtual_map_buffer(&virtual_all.ranks[i], send_of(memory));
		virtual_map_buffer(&virtual_all.ranks[i], receive_of(memory));
	}
}

/* What the program does before a call. */
static double busy_us(const struct virtual_rank *rank, double us)
{
	const struct virtual_machine *machine = virtual_all.machine;
	double slow = machine->drift * sin(2 * M_PI * rank->now_us / 1e6 / fmax(machine->drift_s, 1e-3));
	double often = machine->jitter > 0 && us > 0 ? virtual_noise(machine->jitter) : 1;
	return us * (1 + slow) * often * (1 + (rank->dragged ? machine->drag : 0));
}

static void make_call(struct virtual_rank *rank, const struct virtual_calls *what)
{
	int index = virtual_index_of(rank);
	struct virtual_work *work = virtual_work_of(rank);
	struct virtual_side *side = &work->sides[index];
	bool blocks = what->collective == FERRY_ALLGATHER || what->collective == FERRY_REDUCESCATTER;
	size_t count = (size_t)what->bytes / sizeof(float) / (blocks ? VIRTUAL_RANKS : 1);
	uint64_t steps = virtual_all.shifts ? (1u << 30) / what->bytes : 1,
	         shift = (uint64_t)(what->calls - rank->left) % steps * what->bytes;
	char *receive = (char *)receive_of(what->memory) + shift;
	struct ferry_nccl_call call = {.collective = what->collective,
	                               .send = what->in_place ? receive
	                                                      : (char *)send_of(what->memory) + shift,
	                               .receive = receive,
	                               .count = count,
	                               .type = ncclFloat32,
	                               .comm = &rank->comm};
	if (work->n != rank->made || !work->what.bytes)
		*work = (struct virtual_work){.n = rank->made, .what = *what};
	virtual_all.current = rank;
	rank->now_us += busy_us(rank, what->gap_us) + virtual_uniform();
	rank->issued = rank->dragged = false;
	virtual_preregister_until(rank, rank->now_us);
	struct virtual_work was = *work;
	side->ferry_us = side->nccl_us = rank->now_us;
	ncclResult_t result = ferry_nccl_launch(&call, 1);
	CHECK(!result);
	rank->now_us += rank->dragged ? virtual_all.machine->caller_us : 0;
	/* all ranks have the same parts */
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		CHECK(!was.sides[i].launched ||
		       (was.ferry_bytes == work->ferry_bytes && was.nccl_bytes == work->nccl_bytes));
	side->launched = true;
	rank->made++;
	rank->left--;
	bool together = true;
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		together &= work->sides[i].launched;
	if (together)
		virtual_finish(work);
}

static struct virtual_rank *next_rank(void)
{
	struct virtual_rank *next = NULL;
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		if (virtual_all.ranks[i].left && (!next || virtual_all.ranks[i].now_us < next->now_us))
			next = &virtual_all.ranks[i];
	return next;
}

static uint32_t word_of(const struct virtual_work *work)
{
	struct ferry_shares shares = {.part = {0}};
	double bytes = (double)work->what.bytes;
	shares.part[FERRY_FABRIC_HOST] = (uint8_t)lround(work->ferry_bytes / bytes * FERRY_SHARES_WHOLE);
	shares.part[FERRY_FABRIC_NCCL] = (uint8_t)(FERRY_SHARES_WHOLE - shares.part[FERRY_FABRIC_HOST]);
	return ferry_shares_pack(&shares);
}

void virtual_make(const struct virtual_calls *what)
{
	CHECK(what->calls < MOST && what->memory < BUFFERS / 2);
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		virtual_all.ranks[i].left = what->calls;
	for (struct virtual_rank *rank; (rank = next_rank());)
		make_call(rank, what);
}

void virtual_wait(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++) {
		struct virtual_rank *rank = &virtual_all.ranks[i];
		double end = virtual_all.works[(rank->made - 1) % MOST].sides[i].end_us;
		rank->now_us = fmax(rank->now_us, end) + WAIT_US * virtual_uniform();
	}
}

double virtual_run(const struct virtual_calls *what, struct virtual_call *calls)
{
	uint64_t first = virtual_all.ranks[0].made;
	double begun = virtual_all.ranks[0].now_us, sum = 0;
	virtual_make(what);
	virtual_wait();
	for (int i = 0; i < what->calls; i++) {
		const struct virtual_work *work = &virtual_all.works[(first + (uint64_t)i) % MOST];
		double before = i ? virtual_all.works[(first + (uint64_t)i - 1) % MOST].sides[0].end_us : begun;
		double us = work->sides[0].end_us - before;
		sum += us;
		if (calls)
			calls[i] = (struct virtual_call){word_of(work), us, work->begun_us, work->burst};
	}
	return sum;
}

void virtual_capture(bool on)
{
	virtual_all.captures = on;
}

void virtual_shift(void)
{
	virtual_all.shifts = true;
}

void virtual_hang(void)
{
	virtual_all.hangs = true;
}

double virtual_now_us(void)
{
	return virtual_all.ranks[0].now_us;
}

int virtual_late_plans(void)
{
	return virtual_all.late_plans;
}

void virtual_print(const struct virtual_calls *what, const struct virtual_call *calls, int count)
{
	uint32_t word;
	double best = virtual_best_us(what, false, &word);
	printf("%-8s %-13s %5.0f MiB best %4u:", virtual_all.machine->name, ferry_collective_name(what->collective),
	       (double)what->bytes / MIB, ferry_shares_unpack(word).part[FERRY_FABRIC_HOST]);
	for (int i = 0; i < count; i++)
		printf(" %u/%.2f", ferry_shares_unpack(calls[i].word).part[FERRY_FABRIC_HOST], calls[i].us / best);
	printf("\n");
}
