/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nccl/virtual.h"

#include "ipc/arena.h"
#include "orchestrator/launch.h"
#include "orchestrator/partner.h"
#include "orchestrator/real.h"
#include "orchestrator/redops.h"
#include "rank-lib/comm.h"
#include "rank-lib/comm_init.h"
#include "rank-lib/group.h"
#include "rank-lib/launch.h"
#include "rank-lib/program/shares.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) ((what) ? (void)0 : broken(__LINE__, #what))

#define MIB       ((double)(1 << 20))
#define GB_S      1000.0 /* bytes per microsecond */
#define LAUNCH_US 5.0    /* of a thread, for NCCL's part of a call, */
#define SUBMIT_US 8.0    /* and for Ferry's */
#define DIVIDED_US 2.0   /* a stream needs so much more for two */
#define WAIT_US   5.0    /* until a thread that waits for its stream goes on, at most */
#define ASLEEP    64.0   /* a lane finds a call late by such a part of the time that it has waited for it, */
#define ASLEEP_US 2000.0 /* at most so much, */
#define ROUSED_US 1000.0 /* and is slow to come where it has had nothing to do for so long */
#define MOST      4096   /* calls whose times are kept */
#define PLANS     4096
#define BUFFERS   64
#define SHOWN_MOST 8

static void broken(int line, const char *what)
{
	fprintf(stderr, "virtual.c:%d: %s does not hold\n", line, what);
	abort();
}

/* One end of a call: when it was put into the stream. */
struct side {
	bool launched;
	double ferry_us, nccl_us, end_us;
};

struct work {
	uint64_t n;
	struct virtual_calls what;
	uint32_t word;
	double ferry_bytes, nccl_bytes; /* of the whole call */
	struct side sides[VIRTUAL_RANKS];
	bool over, burst;               /* all have launched it: its times are known */
	double begun_us, ferry_end_us, nccl_end_us;
};

enum mark { MARK_START, MARK_NCCL_END, MARK_END };

struct event {
	uint64_t n;
	enum mark mark;
	double host_us;
};

struct showing {
	struct ferry_showing_asked asked[SHOWN_MOST];
	double done_us[SHOWN_MOST];
	uint32_t nasked;
};

struct rank {
	struct ferry_nccl_comm comm;
	struct ferry_ring ring;
	struct ferryComm *ferry;
	bool alone;    /* its calls are NCCL's */
	double now_us; /* its thread's clock */
	uint64_t made; /* calls */
	int left;      /* of this batch */
	uint64_t plans[PLANS];
	uint32_t nplans;
	const void *mapped[BUFFERS];
	uint32_t nmapped;
	uint64_t stamped[FERRY_METER_SAMPLES * 2]; /* by a stamp's index: 1 + the call, */
	uint32_t stamps[FERRY_METER_SAMPLES * 2];  /* and the whole stamp */
	struct showing showing;
	struct event *events;
	/* of the call that is being made */
	uint32_t stamp;
	struct ferry_left_out left_out;
	bool open, issued;
	bool dragged; /* the last one was Ferry's */
};

static struct {
	const struct virtual_machine *machine;
	unsigned seed;
	struct ferry_arena arena;
	struct rank *ranks;
	struct rank *current;
	struct work *works;
	struct virtual_calls what;
	double lanes_us; /* when lanes have had their last call */
	int late_plans;
	bool captures;
} all;

/* ---- the machine ---- */

static double uniform(void)
{
	return (rand_r(&all.seed) + 0.5) / (RAND_MAX + 1.0);
}

static double noise(double how)
{
	double normal = sqrt(-2 * log(uniform())) * cos(2 * M_PI * uniform());
	return exp(how * normal) * (uniform() < all.machine->outliers ? 3 : 1);
}

static const struct virtual_curve *curve_of(enum ferry_collective collective)
{
	for (int i = 0; i < 4; i++)
		if (all.machine->curves[i].collective == collective && all.machine->curves[i].nccl[0] > 0)
			return &all.machine->curves[i];
	broken(__LINE__, "a curve of the collective");
	return NULL;
}

/* Between the sizes, and outside, by the power that fits the two next ones. */
static double time_of(const double *rates, double bytes)
{
	double at = log2(bytes / MIB) / 2;
	int i = (int)fmin(fmax(floor(at), 0), VIRTUAL_SIZES - 2);
	double low = exp2(2 * i) * MIB / rates[i] / GB_S, high = exp2(2 * i + 2) * MIB / rates[i + 1] / GB_S;
	return bytes > 0 ? low * pow(high / low, at - i) : 0;
}

static void parts_us(const struct virtual_calls *what, double ferry, double nccl, bool burst,
                     double us[FERRY_NUM_CARRIERS])
{
	const struct virtual_machine *machine = all.machine;
	const struct virtual_curve *curve = curve_of(what->collective);
	const double *slower = machine->burst;
	us[FERRY_CARRIER_HOST] = nccl > 0 ? ferry_pace_us(&curve->host, ferry) : time_of(curve->ours, ferry);
	us[FERRY_CARRIER_HOST] *= burst && slower[FERRY_CARRIER_HOST] > 0 ? slower[FERRY_CARRIER_HOST] : 1;
	us[FERRY_CARRIER_NCCL] = time_of(curve->nccl, nccl);
	us[FERRY_CARRIER_NCCL] *= burst && slower[FERRY_CARRIER_NCCL] > 0 ? slower[FERRY_CARRIER_NCCL] : 1;
	us[FERRY_CARRIER_NCCL] += machine->slow * fmin(us[FERRY_CARRIER_HOST], us[FERRY_CARRIER_NCCL]);
}

double virtual_expected_us(const struct virtual_calls *what, uint32_t word, bool burst)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	double us[FERRY_NUM_CARRIERS], bytes = (double)what->bytes,
	       nccl = bytes * shares.part[FERRY_CARRIER_NCCL] / FERRY_SHARES_WHOLE;
	parts_us(what, bytes - nccl, nccl, burst, us);
	return fmax(us[FERRY_CARRIER_HOST], us[FERRY_CARRIER_NCCL]) + (nccl > 0 && nccl < bytes ? DIVIDED_US : 0);
}

static bool divides(const struct virtual_calls *what)
{
	return all.machine->peers && ferry_collective_reduces(what->collective) &&
	       what->bytes >= (what->collective == FERRY_REDUCESCATTER ? 512u << 20 : 128u << 20);
}

double virtual_best_us(const struct virtual_calls *what, bool burst, uint32_t *word)
{
	double least = INFINITY;
	for (uint16_t part = 0; part <= FERRY_SHARES_WHOLE; part += divides(what) ? 4 : (uint16_t)FERRY_SHARES_WHOLE) {
		struct ferry_shares shares = {{part, 0, (uint16_t)(FERRY_SHARES_WHOLE - part)}};
		double us = virtual_expected_us(what, ferry_shares_pack(&shares), burst);
		if (us >= least)
			continue;
		least = us;
		*word = ferry_shares_pack(&shares);
	}
	return least;
}

static bool in_burst(double us)
{
	double s = all.machine->burst_s;
	return s > 0 && fmod(us / 1e6, 2 * s) >= s;
}

/* All have launched it, and all calls before it. */
static void finish(struct work *work)
{
	double ferry_from = 0, nccl_from = 0, submitted = 0, us[FERRY_NUM_CARRIERS];
	for (int i = 0; i < VIRTUAL_RANKS; i++) {
		double before = work->n ? all.works[(work->n - 1) % MOST].sides[i].end_us : 0;
		ferry_from = fmax(ferry_from, fmax(before, work->sides[i].ferry_us));
		nccl_from = fmax(nccl_from, fmax(before, work->sides[i].nccl_us));
		submitted = fmax(submitted, work->sides[i].ferry_us);
	}
	double first = fmax(work->ferry_bytes > 0 ? ferry_from : 0, work->nccl_bytes > 0 ? nccl_from : 0);
	work->burst = in_burst(first);
	work->begun_us = first;
	parts_us(&work->what, work->ferry_bytes, work->nccl_bytes, work->burst, us);
	double late = ferry_from - all.lanes_us > ROUSED_US ? all.machine->wake_us : 0;
	late += uniform() * fmin(ASLEEP_US, (ferry_from - fmax(submitted, all.lanes_us)) / ASLEEP);
	work->ferry_end_us = ferry_from + late + us[FERRY_CARRIER_HOST] * noise(all.machine->ferry_noise);
	work->nccl_end_us = nccl_from + us[FERRY_CARRIER_NCCL] * noise(all.machine->nccl_noise);
	if (work->ferry_bytes > 0)
		all.lanes_us = work->ferry_end_us;
	double end = fmax(work->ferry_bytes > 0 ? work->ferry_end_us : 0,
	                  work->nccl_bytes > 0 ? work->nccl_end_us : 0);
	if (work->ferry_bytes > 0 && work->nccl_bytes > 0)
		end += DIVIDED_US;
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		work->sides[i].end_us = end + 2 * uniform();
	work->over = true;
}

/* ---- what is below the orchestrator: clocks ---- */

static int index_of(const struct rank *rank)
{
	return (int)(rank - all.ranks);
}

static struct work *work_of(struct rank *rank)
{
	return &all.works[rank->made % MOST];
}

bool ferry_clock_captures(cudaStream_t stream)
{
	(void)stream;
	return all.captures;
}

int ferry_clock_relax(void)
{
	return 0;
}

void ferry_clock_restore(int mode)
{
	(void)mode;
}

static bool record(void **event, enum mark mark)
{
	struct rank *rank = all.current;
	if (!*event)
		*event = calloc(1, sizeof(struct event));
	*(struct event *)*event = (struct event){rank->made, mark, rank->now_us};
	return true;
}

bool ferry_clock_start(struct ferry_clock *clock, cudaStream_t stream)
{
	(void)stream;
	return record(&clock->start, MARK_START);
}

bool ferry_clock_stop(struct ferry_clock *clock, cudaStream_t stream)
{
	(void)stream;
	return record(&clock->end, all.current->open     ? MARK_NCCL_END
	                           : all.current->issued ? MARK_END
	                                                 : MARK_START);
}

/* When the rank's stream comes there; before all that matters to it has been launched: never. */
static double time_of_event(const struct rank *rank, const struct event *event)
{
	int index = index_of(rank);
	const struct work *work = &all.works[event->n % MOST], *last = &all.works[(event->n + MOST - 1) % MOST];
	if (event->mark == MARK_START && !event->n)
		return event->host_us;
	if (event->mark == MARK_START)
		return last->n == event->n - 1 && last->over ? fmax(last->sides[index].end_us, event->host_us)
		                                             : INFINITY;
	if (work->n != event->n || !work->over)
		return INFINITY;
	return event->mark == MARK_END ? work->sides[index].end_us : work->nccl_end_us;
}

bool ferry_clock_read(const struct ferry_clock *clock, double *us)
{
	double end = time_of_event(all.current, clock->end);
	if (end > all.current->now_us)
		return false;
	*us = end - time_of_event(all.current, clock->start);
	return true;
}

void ferry_clock_free(struct ferry_clock *clock)
{
	free(clock->start);
	free(clock->end);
	clock->start = clock->end = NULL;
}

bool ferry_launch_took(ferryComm_t comm, uint32_t stamp, uint64_t *ns)
{
	(void)comm;
	struct rank *rank = all.current;
	uint32_t at = stamp % FERRY_STAMPS;
	if (rank->stamps[at] != stamp || !rank->stamped[at])
		return false;
	uint64_t n = rank->stamped[at] - 1;
	const struct work *work = &all.works[n % MOST];
	const struct side *side = &work->sides[index_of(rank)];
	if (work->n != n || !work->over || work->ferry_end_us > rank->now_us)
		return false;
	double before = n ? all.works[(n - 1) % MOST].sides[index_of(rank)].end_us : 0;
	*ns = (uint64_t)(1e3 * (work->ferry_end_us - fmax(before, side->ferry_us)));
	return true;
}

/* ---- plans and buffers ---- */

static uint64_t plan_of(enum ferry_collective collective, uint64_t count, uint64_t left_out)
{
	return (uint64_t)collective << 60 ^ count * UINT64_C(0x9e3779b97f4a7c15) ^
	       left_out * UINT64_C(0xbf58476d1ce4e5b9);
}

static bool has_plan(const struct rank *rank, uint64_t plan)
{
	for (uint32_t i = 0; i < rank->nplans; i++)
		if (rank->plans[i] == plan)
			return true;
	return false;
}

static void add_plan(struct rank *rank, uint64_t plan)
{
	if (!has_plan(rank, plan))
		rank->plans[rank->nplans++ % PLANS] = plan;
}

static bool has_mapped(const struct rank *rank, const void *buffer)
{
	for (uint32_t i = 0; i < rank->nmapped; i++)
		if (rank->mapped[i] == buffer)
			return true;
	return false;
}

static void map_buffer(struct rank *rank, const void *buffer)
{
	if (!has_mapped(rank, buffer))
		rank->mapped[rank->nmapped++ % BUFFERS] = buffer;
}

static uint64_t plan_asked(const struct ferry_request *request)
{
	return plan_of(request->collective, request->count, request->left_out.count);
}

/* ---- showing, by a thread that has the time ---- */

static bool is_shown(const struct rank *rank, const struct ferry_showing_asked *asked)
{
	return has_mapped(rank, asked->request.send) && has_mapped(rank, asked->request.receive) &&
	       (!asked->whole || has_plan(rank, plan_asked(&asked->request)));
}

static double showing_us(const struct rank *rank, const struct ferry_showing_asked *asked)
{
	double us = asked->whole && !has_plan(rank, plan_asked(&asked->request)) ? all.machine->plan_us : 0;
	us += has_mapped(rank, asked->request.send) ? 0 : all.machine->export_us;
	return us + (has_mapped(rank, asked->request.receive) ? 0 : all.machine->export_us);
}

/* What the rank's thread has shown by then. */
static void show_until(struct rank *rank, double us)
{
	struct showing *showing = &rank->showing;
	while (showing->nasked && showing->done_us[0] <= us) {
		struct ferry_showing_asked asked = showing->asked[0];
		bool last = true;
		map_buffer(rank, asked.request.send);
		map_buffer(rank, asked.request.receive);
		if (asked.whole)
			add_plan(rank, plan_asked(&asked.request));
		showing->nasked--;
		memmove(showing->asked, showing->asked + 1, showing->nasked * sizeof *showing->asked);
		memmove(showing->done_us, showing->done_us + 1, showing->nasked * sizeof *showing->done_us);
		for (uint32_t i = 0; i < showing->nasked; i++)
			last &= showing->asked[i].kind != asked.kind;
		if (last)
			ferry_share_say(all.arena.shares, (uint32_t)index_of(rank), asked.kind, FERRY_SHARE_SHOWN,
			                true);
	}
}

enum ferry_shown ferry_showing_has(struct ferry_showing *showing, const struct ferry_showing_asked *asked)
{
	(void)showing;
	struct rank *rank = all.current;
	struct showing *own = &rank->showing;
	bool busy = own->nasked && own->done_us[0] > rank->now_us;
	if (!busy && is_shown(rank, asked))
		return FERRY_SHOWN;
	for (uint32_t i = 0; i < own->nasked; i++)
		if (own->asked[i].kind == asked->kind && own->asked[i].request.send == asked->request.send &&
		    own->asked[i].request.receive == asked->request.receive &&
		    own->asked[i].request.count == asked->request.count)
			return busy ? FERRY_SHOWN_UNKNOWN : FERRY_SHOWN_NOT;
	if (own->nasked < SHOWN_MOST) {
		double from = own->nasked ? own->done_us[own->nasked - 1] : rank->now_us;
		own->asked[own->nasked] = *asked;
		own->done_us[own->nasked++] = from + 20 + showing_us(rank, asked);
	}
	return busy ? FERRY_SHOWN_UNKNOWN : FERRY_SHOWN_NOT;
}

enum ferry_shown ferry_showing_await(struct ferry_showing *showing, const struct ferry_showing_asked *asked,
                                     double most_us)
{
	struct rank *rank = all.current;
	double until = rank->now_us + most_us;
	while (!is_shown(rank, asked) && rank->showing.nasked && rank->showing.done_us[0] <= until) {
		rank->now_us = fmax(rank->now_us, rank->showing.done_us[0]);
		show_until(rank, rank->now_us);
	}
	rank->now_us = is_shown(rank, asked) ? rank->now_us : until;
	return ferry_showing_has(showing, asked);
}

void ferry_showing_init(struct ferry_showing *showing)
{
	(void)showing;
}

void ferry_showing_free(struct ferry_showing *showing)
{
	(void)showing;
}

void ferry_showing_ring(struct ferry_showing *showing)
{
	(void)showing;
}

void ferry_showing_run(struct ferry_showing *showing, const _Atomic bool *over,
                       const struct ferry_showing_listener *listener)
{
	(void)showing, (void)over, (void)listener;
}

/* ---- Ferry's communicator ---- */

ferryResult_t ferryGroupStart(void)
{
	all.current->open = true;
	return ferrySuccess;
}

void ferry_group_stamp(uint32_t stamp)
{
	all.current->stamp = stamp;
}

void ferry_group_leave_out(const struct ferry_left_out *left_out)
{
	all.current->left_out = *left_out;
}

static ferryResult_t submit(enum ferry_collective collective, const void *send, const void *receive, uint64_t count,
                            ferryDataType_t type)
{
	struct rank *rank = all.current;
	struct work *work = work_of(rank);
	uint64_t plan = plan_of(collective, count, rank->left_out.count);
	double late = has_plan(rank, plan) ? 0 : all.machine->plan_us;
	late += (has_mapped(rank, send) ? 0 : all.machine->export_us) +
	        (has_mapped(rank, receive) ? 0 : all.machine->export_us);
	all.late_plans += late > 0;
	rank->now_us += SUBMIT_US + late;
	add_plan(rank, plan);
	map_buffer(rank, send);
	map_buffer(rank, receive);
	work->sides[index_of(rank)].ferry_us = rank->now_us;
	rank->issued = rank->dragged = true;
	double blocks = collective == FERRY_ALLGATHER || collective == FERRY_REDUCESCATTER ? VIRTUAL_RANKS : 1;
	work->ferry_bytes = (double)(count - rank->left_out.count) * blocks * (double)ferry_type_size(type);
	if (rank->stamp) {
		rank->stamped[rank->stamp % FERRY_STAMPS] = rank->made + 1;
		rank->stamps[rank->stamp % FERRY_STAMPS] = rank->stamp;
	}
	rank->stamp = 0;
	rank->left_out = (struct ferry_left_out){0, false};
	return ferrySuccess;
}

ferryResult_t ferryAllReduce(const void *send, void *receive, size_t count, ferryDataType_t type, ferryRedOp_t op,
                             ferryComm_t comm, ferryStream_t stream)
{
	(void)op, (void)comm, (void)stream;
	return submit(FERRY_ALLREDUCE, send, receive, count, type);
}

ferryResult_t ferryReduceScatter(const void *send, void *receive, size_t count, ferryDataType_t type,
                                 ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream)
{
	(void)op, (void)comm, (void)stream;
	return submit(FERRY_REDUCESCATTER, send, receive, count, type);
}

ferryResult_t ferryAllGather(const void *send, void *receive, size_t count, ferryDataType_t type, ferryComm_t comm,
                             ferryStream_t stream)
{
	(void)comm, (void)stream;
	return submit(FERRY_ALLGATHER, send, receive, count, type);
}

ferryResult_t ferryBroadcast(const void *send, void *receive, size_t count, ferryDataType_t type, int root,
                             ferryComm_t comm, ferryStream_t stream)
{
	(void)root, (void)comm, (void)stream;
	return submit(FERRY_BROADCAST, send, receive, count, type);
}

ferryResult_t ferry_group_end_open(struct ferry_open_group *open)
{
	(void)open;
	return ferrySuccess;
}

ferryResult_t ferry_group_finish(struct ferry_open_group *open)
{
	(void)open;
	all.current->open = false;
	return ferrySuccess;
}

/* ---- NCCL ---- */

static ncclResult_t enqueue(enum ferry_collective collective, size_t count, ncclDataType_t type)
{
	struct rank *rank = all.current;
	struct work *work = work_of(rank);
	double blocks = collective == FERRY_ALLGATHER || collective == FERRY_REDUCESCATTER ? VIRTUAL_RANKS : 1;
	rank->issued = true;
	work->sides[index_of(rank)].nccl_us = rank->now_us;
	work->nccl_bytes = (double)count * blocks * (double)ferry_type_size((ferryDataType_t)type);
	rank->now_us += LAUNCH_US;
	return ncclSuccess;
}

static ncclResult_t all_reduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)receive, (void)op, (void)comm, (void)stream;
	return enqueue(FERRY_ALLREDUCE, count, type);
}

static ncclResult_t reduce_scatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)receive, (void)op, (void)comm, (void)stream;
	return enqueue(FERRY_REDUCESCATTER, count, type);
}

static ncclResult_t all_gather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream)
{
	(void)send, (void)receive, (void)comm, (void)stream;
	return enqueue(FERRY_ALLGATHER, count, type);
}

static ncclResult_t broadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)receive, (void)root, (void)comm, (void)stream;
	return enqueue(FERRY_BROADCAST, count, type);
}

static const struct ferry_nccl functions = {.functions = {.AllReduce = all_reduce,
                                                          .ReduceScatter = reduce_scatter,
                                                          .AllGather = all_gather,
                                                          .Broadcast = broadcast}};
_Atomic(const struct ferry_nccl *) ferry_nccl_found = &functions;
_Thread_local unsigned ferry_nccl_inside;

struct ferry_partner *ferry_nccl_comm_partner(struct ferry_nccl_comm *comm)
{
	return all.current->alone ? NULL : atomic_load(&comm->partner);
}

/* ---- ranks ---- */

static void rank_open(int index)
{
	struct rank *rank = &all.ranks[index];
	struct ferry_nccl_key key = {{1, 2}};
	struct ferry_partner *partner = ferry_partner_new(&key, index, VIRTUAL_RANKS, index);
	CHECK(partner);
	rank->ferry = calloc(1, sizeof *rank->ferry);
	rank->ferry->rank.shared.arenas[0] = all.arena;
	rank->ferry->mapped.submissions.ring = &rank->ring;
	partner->comm = rank->ferry;
	ferry_meter_open(&partner->meter, all.arena.shares, VIRTUAL_RANKS, (uint32_t)index, all.machine->peers,
	                 all.machine->limits);
	ferry_arena_seal(&all.arena, (uint32_t)index, &partner->seal);
	ferry_seal_join(&partner->seal, 0);
	atomic_store(&partner->state, FERRY_PARTNER_READY);
	rank->comm.rank = index;
	rank->comm.nranks = VIRTUAL_RANKS;
	atomic_store(&rank->comm.partner, partner);
	rank->now_us = 10 * uniform();
}

void virtual_leave_to_nccl(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		all.ranks[i].alone = true;
}

void virtual_leave_to_calls(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		atomic_load(&all.ranks[i].comm.partner)->meter.follows = false;
}

void virtual_abandon(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		ferry_partner_abandon(atomic_load(&all.ranks[i].comm.partner));
}

void virtual_open(const struct virtual_machine *machine, unsigned seed)
{
	static const struct ferry_arena_shape shape = {
	        .ndomains = 1, .nranks = VIRTUAL_RANKS, .staging = 1 << 20, .node = -1};
	memset(&all, 0, sizeof all);
	all.machine = machine;
	all.seed = seed;
	all.ranks = calloc(VIRTUAL_RANKS, sizeof *all.ranks);
	all.works = calloc(MOST, sizeof *all.works);
	ferryResult_t made = ferry_arena_create(&shape, &all.arena);
	CHECK(!made);
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		rank_open(i);
}

void virtual_close(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++) {
		struct ferry_partner *partner = atomic_load(&all.ranks[i].comm.partner);
		partner->comm = NULL;
		ferry_partner_end(partner, false);
		free(all.ranks[i].ferry);
	}
	ferry_arena_unmap(&all.arena);
	free(all.ranks);
	free(all.works);
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
		map_buffer(&all.ranks[i], send_of(memory));
		map_buffer(&all.ranks[i], receive_of(memory));
	}
}

/* What the program does before a call. */
static double busy_us(const struct rank *rank, double us)
{
	const struct virtual_machine *machine = all.machine;
	double slow = machine->drift * sin(2 * M_PI * rank->now_us / 1e6 / fmax(machine->drift_s, 1e-3));
	double often = machine->jitter > 0 && us > 0 ? noise(machine->jitter) : 1;
	return us * (1 + slow) * often * (1 + (rank->dragged ? machine->drag : 0));
}

static void make_call(struct rank *rank, const struct virtual_calls *what)
{
	int index = index_of(rank);
	struct work *work = work_of(rank);
	struct side *side = &work->sides[index];
	bool blocks = what->collective == FERRY_ALLGATHER || what->collective == FERRY_REDUCESCATTER;
	size_t count = (size_t)what->bytes / sizeof(float) / (blocks ? VIRTUAL_RANKS : 1);
	void *receive = receive_of(what->memory);
	struct ferry_nccl_call call = {.collective = what->collective,
	                               .send = what->in_place ? receive : send_of(what->memory),
	                               .receive = receive,
	                               .count = count,
	                               .type = ncclFloat32,
	                               .comm = &rank->comm};
	if (work->n != rank->made || !work->what.bytes)
		*work = (struct work){.n = rank->made, .what = *what};
	all.current = rank;
	rank->now_us += busy_us(rank, what->gap_us) + uniform();
	rank->issued = rank->dragged = false;
	show_until(rank, rank->now_us);
	struct work was = *work;
	side->ferry_us = side->nccl_us = rank->now_us;
	ncclResult_t result = ferry_nccl_launch(&call, 1);
	CHECK(!result);
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
		finish(work);
}

static struct rank *next_rank(void)
{
	struct rank *next = NULL;
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		if (all.ranks[i].left && (!next || all.ranks[i].now_us < next->now_us))
			next = &all.ranks[i];
	return next;
}

static uint32_t word_of(const struct work *work)
{
	struct ferry_shares shares = {{0}};
	double bytes = (double)work->what.bytes;
	shares.part[FERRY_CARRIER_HOST] = (uint16_t)lround(work->ferry_bytes / bytes * FERRY_SHARES_WHOLE);
	shares.part[FERRY_CARRIER_NCCL] = (uint16_t)(FERRY_SHARES_WHOLE - shares.part[FERRY_CARRIER_HOST]);
	return ferry_shares_pack(&shares);
}

void virtual_make(const struct virtual_calls *what)
{
	CHECK(what->calls < MOST && what->memory < BUFFERS / 2);
	for (int i = 0; i < VIRTUAL_RANKS; i++)
		all.ranks[i].left = what->calls;
	for (struct rank *rank; (rank = next_rank());)
		make_call(rank, what);
}

void virtual_wait(void)
{
	for (int i = 0; i < VIRTUAL_RANKS; i++) {
		struct rank *rank = &all.ranks[i];
		double end = all.works[(rank->made - 1) % MOST].sides[i].end_us;
		rank->now_us = fmax(rank->now_us, end) + WAIT_US * uniform();
	}
}

double virtual_run(const struct virtual_calls *what, struct virtual_call *calls)
{
	uint64_t first = all.ranks[0].made;
	double begun = all.ranks[0].now_us, sum = 0;
	virtual_make(what);
	virtual_wait();
	for (int i = 0; i < what->calls; i++) {
		const struct work *work = &all.works[(first + (uint64_t)i) % MOST];
		double before = i ? all.works[(first + (uint64_t)i - 1) % MOST].sides[0].end_us : begun;
		double us = work->sides[0].end_us - before;
		sum += us;
		if (calls)
			calls[i] = (struct virtual_call){word_of(work), us, work->begun_us, work->burst};
	}
	return sum;
}

void virtual_capture(bool on)
{
	all.captures = on;
}

double virtual_now_us(void)
{
	return all.ranks[0].now_us;
}

int virtual_late_plans(void)
{
	return all.late_plans;
}

void virtual_print(const struct virtual_calls *what, const struct virtual_call *calls, int count)
{
	uint32_t word;
	double best = virtual_best_us(what, false, &word);
	printf("%-8s %-13s %5.0f MiB best %4u:", all.machine->name, ferry_collective_name(what->collective),
	       (double)what->bytes / MIB, ferry_shares_unpack(word).part[FERRY_CARRIER_HOST]);
	for (int i = 0; i < count; i++)
		printf(" %u/%.2f", ferry_shares_unpack(calls[i].word).part[FERRY_CARRIER_HOST], calls[i].us / best);
	printf("\n");
}
