/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does in random programs: communicators, calls, captures, kills, and giving up. */
#include "tests/nccl/trial_routers.h"
#include "tests/nccl/trial_shared.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STREAMS   2
#define SLOTS     6
#define COMMS     2
#define STEPS     10
#define KILL_US   3000 /* within that a step is killed in */
#define STUCK_US  300000 /* in a call beside a dead rank, before the call is ended by another thread */
#define NOT_READY 600

/* Where a player is: in a call of NCCL's or not; or its helper ends that call, or has. */
enum trial_call_state { OUTSIDE, INSIDE, HELPED, ENDED };

/* A graph that stays until its communicator goes. */
struct kept_graph {
	void *graph, *executable;
	int comm;
};

struct trial_player {
	int rank;
	uint64_t random;
	enum trial_victim kill;
	unsigned kill_step, kill_us;
	bool fresh, splits, kills; /* kills: its thread to do so is under way */
	struct trial_names nccl;
	struct trial_comm comms[COMMS];
	struct trial_call calls[SLOTS];
	cudaStream_t streams[STREAMS];
	void *graph, *executable; /* of the step's capture, */
	int captured;             /* of this communicator */
	struct kept_graph *kept;
	size_t nkept;
	bool shares;              /* a GPU with the other rank */
	_Atomic int state;        /* enum trial_call_state; its own, but from INSIDE on the helper's */
	_Atomic unsigned entered; /* calls */
	cudaStream_t capturing;   /* NULL: none is */
	void *scratch;
	pthread_t killer;
};

/* What it is at, should it not come out of that. */
static void does(const struct trial_player *p, const char *what)
{
	atomic_store(&trial_shared->doing[p->rank], what);
}

__attribute__((format(printf, 2, 3), noreturn)) static void wrong(const struct trial_player *p, const char *format, ...)
{
	char text[400];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	printf("not ok: seed %llu, rank %d, step %u: %s\n",
	       (unsigned long long)atomic_load(&trial_shared->run), p->rank,
	       atomic_load(&trial_shared->step[p->rank]), text);
	for (int i = 0; i < SLOTS; i++) {
		if (!p->calls[i].pending)
			continue;
		trial_call_print(&p->calls[i], text, sizeof text);
		printf("  rank %d, under way: %s\n", p->rank, text);
	}
	fflush(stdout);
	_exit(1);
}

/* All ranks come here, whatever has failed. A rank that waits for a dead one ends with the process. */
static void meet(void)
{
	unsigned generation = atomic_load(&trial_shared->generation);
	if (atomic_fetch_add(&trial_shared->arrived, 1) + 1 == TRIAL_RANKS) {
		atomic_store(&trial_shared->arrived, 0);
		atomic_fetch_add(&trial_shared->generation, 1);
		return;
	}
	while (atomic_load(&trial_shared->generation) == generation) {
		if (atomic_load(&trial_shared->dead))
			_exit(TRIAL_CUT_SHORT);
		trial_doze_us(20);
	}
}

/* ---- failures ---- */

static void kill_now(const struct trial_player *p)
{
	atomic_store(&trial_shared->struck, true);
	if (p->kill == TRIAL_ROUTER) {
		atomic_fetch_add(&trial_shared->killed[TRIAL_ROUTER],
		                 trial_routers_end(getenv("FERRY_SOCKET_DIR"), SIGKILL));
		return;
	}
	atomic_fetch_add(&trial_shared->killed[TRIAL_RANK], 1);
	raise(SIGKILL);
}

static void *kill_later(void *context)
{
	const struct trial_player *p = context;
	trial_doze_us(p->kill_us);
	kill_now(p);
	return NULL;
}

static bool is_killer(const struct trial_player *p)
{
	return p->kill == TRIAL_ROUTER ? !p->rank : p->kill == TRIAL_RANK && p->rank == TRIAL_RANKS - 1;
}

struct ending {
	ncclComm_t comm;
	ncclResult_t (*abort)(ncclComm_t comm);
	pthread_t thread;
	bool threaded;
};

static void *abort_one(void *context)
{
	const struct ending *ending = context;
	ending->abort(ending->comm);
	return NULL;
}

/* All at once: a call may wait in a stream behind another communicator's. */
static void abort_all(struct trial_player *p)
{
	struct ending endings[COMMS] = {{0}};
	for (int c = 0; c < COMMS; c++) {
		endings[c] = (struct ending){.comm = p->comms[c].handle, .abort = p->nccl.CommAbort};
		endings[c].threaded = endings[c].comm &&
		                      !pthread_create(&endings[c].thread, NULL, abort_one, &endings[c]);
	}
	for (int c = 0; c < COMMS; c++)
		if (endings[c].threaded)
			pthread_join(endings[c].thread, NULL);
}

static void forget_all(struct trial_player *p)
{
	for (int c = 0; c < COMMS; c++)
		p->comms[c].handle = NULL;
}

static void destroy_graph(const struct trial_player *p, void *graph, void *executable)
{
	if (executable)
		p->nccl.graph_exec_destroy(executable);
	if (graph)
		p->nccl.graph_destroy(graph);
}

/* Before the communicator that it has calls of: NCCL waits for it. -1: all. */
static void drop_graphs(struct trial_player *p, int comm)
{
	size_t left = 0;
	for (size_t i = 0; i < p->nkept; i++)
		if (comm < 0 || p->kept[i].comm == comm)
			destroy_graph(p, p->kept[i].graph, p->kept[i].executable);
		else
			p->kept[left++] = p->kept[i];
	p->nkept = left;
}

/*
 * The step's graph has been replayed. Over sockets NCCL hands captured calls to its proxy in callbacks of CUDA's, and
 * others too as long as there is a graph: of two calls the second may overtake the first where the last graph goes
 * between them (ncclLaunchPrepare, persistentRefs). So it stays there.
 */
static void end_graph(struct trial_player *p)
{
	struct kept_graph *grown = p->shares && p->executable
	                                   ? realloc(p->kept, (p->nkept + 1) * sizeof *p->kept)
	                                   : NULL;
	if (grown) {
		p->kept = grown;
		p->kept[p->nkept++] = (struct kept_graph){p->graph, p->executable, p->captured};
	} else {
		destroy_graph(p, p->graph, p->executable);
	}
	p->executable = p->graph = NULL;
}

/* ---- calls that do not return ---- */

static void enter(struct trial_player *p)
{
	atomic_fetch_add(&p->entered, 1);
	atomic_store(&p->state, INSIDE);
}

static int end_capture(struct trial_player *p)
{
	cudaStream_t stream = p->capturing;
	p->capturing = NULL;
	return stream ? p->nccl.stream_end_capture(stream, &p->graph) : 0;
}

/* False: it was ended by the helper, with all communicators. Their ends wait for the graphs, so these go first. */
static bool leave(struct trial_player *p)
{
	int inside = INSIDE;
	if (atomic_compare_exchange_strong(&p->state, &inside, OUTSIDE))
		return true;
	end_capture(p);
	end_graph(p);
	drop_graphs(p, -1);
	while (atomic_load(&p->state) != ENDED)
		trial_doze_us(1000);
	forget_all(p);
	return false;
}

/* To the next call. False: the last one was ended, and there is no communicator for another one. */
static bool go_on(struct trial_player *p)
{
	bool fine = leave(p);
	if (fine)
		enter(p);
	return fine;
}

/*
 * NCCL's calls wait for the other rank where they connect to it, and where that one is dead they need not return, so
 * applications have a thread that aborts then, as PyTorch's watchdog does.
 */
static void *help(void *context)
{
	struct trial_player *p = context;
	unsigned last = 0;
	for (uint64_t stuck_us = 0;; trial_doze_us(10000)) {
		int inside = INSIDE;
		unsigned now = atomic_load(&p->entered);
		bool stuck = atomic_load(&trial_shared->dead) && atomic_load(&p->state) == INSIDE && now == last;
		stuck_us = stuck ? stuck_us + 10000 : 0;
		last = now;
		if (stuck_us < STUCK_US || !atomic_compare_exchange_strong(&p->state, &inside, HELPED))
			continue;
		abort_all(p);
		atomic_store(&p->state, ENDED);
	}
	return NULL;
}

/* CUDA's error in a stream may come of a rank that is dead; it ends the process then. */
static void wrong_in_stream(const struct trial_player *p, int state)
{
	double until = trial_now() + 1;
	while (p->kill == TRIAL_RANK && trial_now() < until) {
		if (atomic_load(&trial_shared->dead))
			_exit(TRIAL_CUT_SHORT);
		trial_doze_us(1000);
	}
	wrong(p, "CUDA's error %d in a stream", state);
}

/* The calls and communicators of this run end here, on this rank. Its streams must come to their ends. */
static void give_up(struct trial_player *p)
{
	atomic_store(&trial_shared->failed, true);
	does(p, "ncclCommAbort");
	end_graph(p);
	drop_graphs(p, -1);
	abort_all(p);
	forget_all(p);
	does(p, "streams after ncclCommAbort");
	for (int s = 0; s < STREAMS; s++) {
		int state;
		while ((state = cudaStreamQuery(p->streams[s])) == NOT_READY)
			trial_doze_us(200);
		if (state)
			wrong_in_stream(p, state);
	}
	for (int i = 0; i < SLOTS; i++)
		p->calls[i].pending = false;
}

/* True: go on. An error of NCCL's before anything is killed is none that may be. */
static bool fine(struct trial_player *p, ncclResult_t result, const char *what)
{
	ncclResult_t error = ncclSuccess;
	for (int c = 0; c < COMMS && !result; c++)
		if (p->comms[c].handle && !p->nccl.CommGetAsyncError(p->comms[c].handle, &error) && error)
			result = error;
	if (result && !atomic_load(&trial_shared->struck))
		wrong(p, "%s: NCCL's error %d without a kill: %s", what, (int)result, p->nccl.GetLastError(NULL));
	if (!result && !atomic_load(&trial_shared->failed))
		return true;
	give_up(p);
	return false;
}

/* ---- steps ---- */

/* Waits for the streams, then looks whether anything has failed, and only then at what they have written. */
static bool settle(struct trial_player *p)
{
	does(p, "calls in streams");
	for (int s = 0; s < STREAMS; s++) {
		int state;
		double look = 0;
		while ((state = cudaStreamQuery(p->streams[s])) == NOT_READY) {
			if (trial_now() > look) {
				if (!fine(p, ncclSuccess, "waiting"))
					return false;
				look = trial_now() + 0.005;
			}
			trial_doze_us(20);
		}
		if (state)
			wrong_in_stream(p, state);
	}
	if (!fine(p, ncclSuccess, "after calls"))
		return false;
	for (int i = 0; i < SLOTS; i++) {
		if (!p->calls[i].pending)
			continue;
		p->calls[i].pending = false;
		const char *text = trial_call_compare(&p->calls[i], p->scratch, trial_options.most);
		if (*text)
			wrong(p, "%s", text);
	}
	return true;
}

static void fill(struct trial_player *p, const struct trial_call *call)
{
	int refused = trial_call_fill(call, p->scratch, trial_options.most);
	if (refused)
		wrong(p, "CUDA's error %d while a buffer is filled", refused);
}

static void draw_call(struct trial_player *p, int slot, int c)
{
	struct trial_call *call = &p->calls[slot];
	trial_call_draw(call, &p->random, trial_options.most);
	call->comm = &p->comms[c];
	call->as_made = p->comms[c];
	fill(p, call);
}

/* Up to three in a group, or one by itself; all of one communicator, as ranks order those of several as they like. */
static bool issue_some(struct trial_player *p, int n, bool grouped, cudaStream_t stream)
{
	does(p, "making calls");
	enter(p);
	ncclResult_t result = grouped ? p->nccl.GroupStart() : ncclSuccess;
	for (int i = 0; i < n && !result && go_on(p); i++)
		result = trial_call_issue(&p->nccl, &p->calls[i], stream);
	ncclResult_t ended = grouped ? p->nccl.GroupEnd() : ncclSuccess;
	result = leave(p) ? result ? result : ended : ncclRemoteError;
	return fine(p, result, "a call");
}

static bool calls(struct trial_player *p, int c)
{
	int n = 1 + (int)trial_draw(&p->random, SLOTS);
	bool grouped = trial_draw(&p->random, 2);
	cudaStream_t stream = p->streams[trial_draw(&p->random, STREAMS)];
	for (int slot = 0; slot < n; slot++)
		draw_call(p, slot, c);
	return issue_some(p, n, grouped, stream) && settle(p);
}

/* The stream's calls so far, as a graph. */
static bool record(struct trial_player *p, int n, cudaStream_t stream)
{
	const struct trial_names *names = &p->nccl;
	ncclResult_t result = ncclSuccess;
	does(p, "capturing calls");
	if (names->stream_begin_capture(stream, 1)) /* of this thread */
		wrong(p, "no capture begins");
	p->capturing = stream;
	enter(p);
	for (int i = 0; i < n && !result && go_on(p); i++)
		result = trial_call_issue(names, &p->calls[i], stream);
	result = leave(p) ? result : ncclRemoteError;
	int ended = end_capture(p);
	if (!fine(p, result, "a captured call"))
		return false;
	if (ended || names->graph_instantiate(&p->executable, p->graph, 0))
		wrong(p, "a capture that cannot be replayed: CUDA's error %d", ended);
	return true;
}

/*
 * One to three calls captured, and replayed a few times. They are made once before that, as any program does: NCCL
 * connects GPUs for what it is asked for the first time, and not while a stream is captured.
 */
static bool capture(struct trial_player *p, int c)
{
	int n = 1 + (int)trial_draw(&p->random, 3), replays = 1 + (int)trial_draw(&p->random, 4);
	cudaStream_t stream = p->streams[trial_draw(&p->random, STREAMS)];
	for (int slot = 0; slot < n; slot++)
		draw_call(p, slot, c);
	if (!issue_some(p, n, false, stream) || !settle(p))
		return false;
	for (int slot = 0; slot < n; slot++)
		fill(p, &p->calls[slot]);
	if (!record(p, n, stream))
		return false;
	does(p, "replaying calls");
	for (int i = 0; i < replays; i++)
		if (p->nccl.graph_launch(p->executable, stream))
			wrong(p, "a graph is not launched");
	p->captured = c;
	bool going = settle(p);
	end_graph(p);
	return going;
}

/* Out of the first one, in the other order or the same. */
static bool split(struct trial_player *p)
{
	struct trial_comm *made = &p->comms[1], *world = &p->comms[0];
	bool turned = trial_draw(&p->random, 2);
	if (made->handle) {
		does(p, "ncclCommDestroy");
		drop_graphs(p, 1);
		ncclResult_t result = p->nccl.CommDestroy(made->handle);
		made->handle = NULL;
		if (!fine(p, result, "ncclCommDestroy"))
			return false;
	}
	*made = (struct trial_comm){.rank = turned ? 1 - world->rank : world->rank,
	                            .members = {turned ? 1 : 0, turned ? 0 : 1}};
	does(p, "ncclCommSplit");
	ncclResult_t result = p->nccl.CommSplit(world->handle, 0, made->rank, &made->handle, NULL);
	return fine(p, result, "ncclCommSplit");
}

/* ---- runs ---- */

static bool begin(struct trial_player *p)
{
	struct trial_comm *world = &p->comms[0];
	if (world->handle)
		return true;
	if (!p->rank && p->nccl.GetUniqueId(&trial_shared->id))
		wrong(p, "ncclGetUniqueId");
	meet();
	*world = (struct trial_comm){.rank = p->rank, .members = {0, 1}};
	does(p, "ncclCommInitRank");
	ncclResult_t result = p->nccl.CommInitRank(&world->handle, TRIAL_RANKS, trial_shared->id, p->rank);
	return fine(p, result, "ncclCommInitRank");
}

static void end(struct trial_player *p)
{
	drop_graphs(p, -1);
	for (int c = COMMS - 1; c >= 0; c--) {
		if (!p->comms[c].handle)
			continue;
		ncclResult_t result = p->nccl.CommDestroy(p->comms[c].handle);
		p->comms[c].handle = NULL;
		if (result && !atomic_load(&trial_shared->struck))
			wrong(p, "ncclCommDestroy: NCCL's error %d", (int)result);
	}
}

/* Somewhere in this step. */
static void begin_kill(struct trial_player *p)
{
	p->kills = true;
	if (pthread_create(&p->killer, NULL, kill_later, p))
		wrong(p, "no thread");
}

static bool play(struct trial_player *p)
{
	bool going = true;
	for (unsigned step = 0; step < STEPS && going; step++) {
		atomic_store(&trial_shared->step[p->rank], step);
		atomic_fetch_add(&trial_shared->progress, 1);
		if (is_killer(p) && step == p->kill_step)
			begin_kill(p);
		unsigned what = trial_draw(&p->random, 10);
		int c = (int)trial_draw(&p->random, COMMS);
		c = p->comms[c].handle ? c : 0;
		/* NCCL's own constructors need not end where another rank is dead, or has given up */
		if (what == 0 && p->splits && (p->kill == TRIAL_NOBODY || step < p->kill_step))
			going = split(p);
		else if (what < 4)
			going = capture(p, c);
		else
			going = calls(p, c);
	}
	return going;
}

/* The numbers of all ranks are the same. */
static void draw_run(struct trial_player *p, unsigned long long seed)
{
	p->random = seed * UINT64_C(0x9e3779b97f4a7c15);
	trial_draw(&p->random, 2);
	p->kill = TRIAL_NOBODY;
	p->kills = false;
	if (trial_draw(&p->random, 100) < trial_options.per_cent)
		p->kill = trial_draw(&p->random, 2) && !trial_options.one ? TRIAL_RANK : TRIAL_ROUTER;
	if (p->kill == TRIAL_ROUTER && trial_options.alone)
		p->kill = TRIAL_NOBODY;
	p->kill_step = trial_draw(&p->random, STEPS);
	p->kill_us = trial_draw(&p->random, KILL_US);
	p->fresh = trial_draw(&p->random, trial_options.fresh) == 0;
	p->splits = trial_draw(&p->random, trial_options.fresh) < 3;
}

/* Rank 0's part between two meetings. */
static void announce(const struct trial_player *p, unsigned long long seed)
{
	bool last = seed == trial_options.seed + trial_options.runs;
	atomic_store(&trial_shared->over, last || trial_now() > trial_options.until);
	atomic_store(&trial_shared->failed, false);
	atomic_store(&trial_shared->struck, false);
	if (!last)
		atomic_store(&trial_shared->run, seed);
	atomic_store(&trial_shared->kills, p->kill);
	atomic_store(&trial_shared->began_us, (unsigned long long)(trial_now() * 1e6));
}

/* False: all runs are over. */
static bool run(struct trial_player *p, unsigned long long seed)
{
	draw_run(p, seed);
	meet();
	if (!p->rank)
		announce(p, seed);
	meet();
	if (atomic_load(&trial_shared->over))
		return false;
	if (p->fresh)
		end(p);
	bool going = begin(p) && play(p);
	if (p->kills)
		pthread_join(p->killer, NULL);
	does(p, "waiting for the other rank");
	meet();
	if (going && atomic_load(&trial_shared->failed))
		give_up(p);
	else if (going && p->kill != TRIAL_NOBODY)
		end(p); /* without its router a communicator is NCCL's alone */
	does(p, "waiting for the other rank, at the end");
	meet();
	if (!p->rank)
		trial_tally(atomic_load(&trial_shared->failed) ? TRIAL_ERROR : TRIAL_EQUAL);
	return true;
}

/*
 * NCCL refuses two ranks on one GPU of a host, so where there is but one it takes their processes for hosts of their
 * own, and goes over sockets. Whether that is so it reads once in a process.
 */
static bool take_device(struct trial_player *p)
{
	char host[32];
	if (!cudaSetDevice(p->rank))
		return true;
	if (trial_options.one || cudaSetDevice(0))
		return false;
	p->shares = true;
	snprintf(host, sizeof host, "trials-rank-%d", p->rank);
	return !setenv("NCCL_HOSTID", host, 1);
}

static void open_player(struct trial_player *p)
{
	does(p, "beginning");
	if (!take_device(p) || !trial_names_find(&p->nccl))
		_exit(TRIAL_NOT_HERE);
	for (int s = 0; s < STREAMS; s++)
		if (cudaStreamCreate(&p->streams[s]))
			wrong(p, "no stream");
	for (int i = 0; i < SLOTS; i++)
		if (cudaMalloc(&p->calls[i].in, TRIAL_RANKS * trial_options.most) ||
		    cudaMalloc(&p->calls[i].out, TRIAL_RANKS * trial_options.most))
			wrong(p, "no memory on the device");
	p->scratch = malloc(TRIAL_RANKS * trial_options.most);
}

struct trial_player *trial_player_new(int rank)
{
	struct trial_player *p = calloc(1, sizeof *p);
	if (p)
		p->rank = rank;
	return p;
}

void *trial_player_main(void *context)
{
	struct trial_player *p = context;
	pthread_t helper;
	open_player(p);
	if (!trial_options.one && pthread_create(&helper, NULL, help, p))
		wrong(p, "no thread");
	unsigned long long seed = atomic_load(&trial_shared->run);
	meet(); /* before rank 0 writes it */
	while (run(p, seed))
		seed++;
	end(p);
	return NULL;
}
