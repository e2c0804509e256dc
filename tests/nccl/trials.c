/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs over NCCL's API, many of them, with kills: two ranks on two GPUs, each in a process of its own or
 * both as threads of one, make communicators, groups, calls of all kinds, types and sizes in several streams, captures
 * and replays; what comes out is compared with what arithmetic says. In a tenth of the runs the router is killed at
 * some time, or a rank is, in turns: then calls may end with an error of NCCL's, and only with one: nothing hangs, and
 * nothing is wrong that is not said to have failed. Runs with kills make communicators anew.
 *
 *     FERRY_SPLIT_WAIT=5 FERRY_SPLIT_FLOOR=4K FERRY_SHARES=nccl:0.5,host:0.5 LD_PRELOAD=lib/libferry-nccl.so \
 *         bin/nccl_trials --runs 1000 [--one]
 *
 * Ranks start routers by themselves. Exit code: 0, 1, or 77 where there are no two GPUs or there is no NCCL.
 */
#include "tests/nccl/trial_call.h"
#include "tests/nccl/trial_evidence.h"
#include "tests/nccl/trial_routers.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STREAMS   2
#define SLOTS     6
#define COMMS     2
#define STEPS     10
#define LIMIT_S   60 /* without any progress: a hang */
#define NOT_READY 600
#define NOT_HERE  77
#define CUT_SHORT 10 /* a worker's exit code: another one was killed */

enum victim { NOBODY, ROUTER, RANK };

/* Of all processes. */
static struct shared {
	atomic_uint arrived, generation;     /* of ranks that meet */
	atomic_bool failed;                  /* of this run: all give up */
	atomic_bool dead, over;              /* a rank is gone; the time is */
	atomic_ullong progress, run, ended;  /* ended: runs that ended with an error */
	atomic_ullong routers, ranks;        /* killed */
	atomic_uint step[TRIAL_RANKS];
	ncclUniqueId id;
} *shared;

static struct {
	unsigned long long seed, runs;
	double seconds;
	unsigned per_cent;
	size_t most;
	bool one, idle_kills;
} options = {.seed = 1, .runs = 100, .seconds = 1e9, .per_cent = 10, .most = (size_t)1 << 20};

struct player {
	int rank;
	uint64_t random;
	enum victim kill;
	unsigned kill_step, kill_us;
	struct trial_names nccl;
	struct trial_comm comms[COMMS];
	struct trial_call calls[SLOTS];
	cudaStream_t streams[STREAMS];
	void *graph, *executable; /* of the step's capture */
	void *scratch;
	pthread_t thread;
};

static double started;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void doze_us(unsigned microseconds)
{
	nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000l}, NULL);
}

__attribute__((format(printf, 2, 3), noreturn)) static void wrong(const struct player *p, const char *format, ...)
{
	char text[400];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	printf("not ok: seed %llu, rank %d, step %u: %s\n", (unsigned long long)atomic_load(&shared->run), p->rank,
	       atomic_load(&shared->step[p->rank]), text);
	fflush(stdout);
	_exit(1);
}

/* All ranks come here, whatever has failed. Who waits for one that is dead ends with the process. */
static void meet(void)
{
	unsigned generation = atomic_load(&shared->generation);
	if (atomic_fetch_add(&shared->arrived, 1) + 1 == TRIAL_RANKS) {
		atomic_store(&shared->arrived, 0);
		atomic_fetch_add(&shared->generation, 1);
		return;
	}
	while (atomic_load(&shared->generation) == generation) {
		if (atomic_load(&shared->dead))
			_exit(CUT_SHORT);
		doze_us(20);
	}
}

/* ---- failures ---- */

static void kill_now(const struct player *p)
{
	if (p->kill == ROUTER) {
		atomic_fetch_add(&shared->routers, trial_routers_end(getenv("FERRY_SOCKET_DIR"), SIGKILL));
		return;
	}
	atomic_fetch_add(&shared->ranks, 1);
	raise(SIGKILL);
}

static void *kill_later(void *context)
{
	const struct player *p = context;
	doze_us(p->kill_us);
	kill_now(p);
	return NULL;
}

static bool is_killer(const struct player *p)
{
	return p->kill == ROUTER ? !p->rank : p->kill == RANK && p->rank == TRIAL_RANKS - 1;
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
static void abort_all(struct player *p)
{
	struct ending endings[COMMS] = {{0}};
	for (int c = 0; c < COMMS; c++) {
		endings[c] = (struct ending){.comm = p->comms[c].handle, .abort = p->nccl.CommAbort};
		endings[c].threaded = endings[c].comm &&
		                      !pthread_create(&endings[c].thread, NULL, abort_one, &endings[c]);
		p->comms[c].handle = NULL;
	}
	for (int c = 0; c < COMMS; c++)
		if (endings[c].threaded)
			pthread_join(endings[c].thread, NULL);
}

/* Before the communicator that it has calls of: NCCL waits for it. */
static void drop_graph(struct player *p)
{
	if (p->executable)
		p->nccl.graph_exec_destroy(p->executable);
	if (p->graph)
		p->nccl.graph_destroy(p->graph);
	p->executable = p->graph = NULL;
}

/* The calls and communicators of this run end here, on this rank. Its streams must come to their ends. */
static void give_up(struct player *p)
{
	atomic_store(&shared->failed, true);
	drop_graph(p);
	abort_all(p);
	for (int s = 0; s < STREAMS; s++) {
		double until = now() + LIMIT_S / 2.0;
		while (cudaStreamQuery(p->streams[s]) == NOT_READY) {
			if (now() > until)
				wrong(p, "a stream does not end after ncclCommAbort");
			doze_us(200);
		}
	}
	for (int i = 0; i < SLOTS; i++)
		p->calls[i].pending = false;
}

/* True: go on. An error of NCCL's without a kill is none that may be. */
static bool fine(struct player *p, ncclResult_t result, const char *what)
{
	ncclResult_t error = ncclSuccess;
	for (int c = 0; c < COMMS && !result; c++)
		if (p->comms[c].handle && !p->nccl.CommGetAsyncError(p->comms[c].handle, &error) && error)
			result = error;
	if (result && p->kill == NOBODY && !atomic_load(&shared->failed))
		wrong(p, "%s: NCCL's error %d without a kill: %s", what, (int)result, p->nccl.GetLastError(NULL));
	if (!result && !atomic_load(&shared->failed))
		return true;
	give_up(p);
	return false;
}

/* ---- steps ---- */

/* Waits for the streams, then looks whether anything has failed, and only then at what they have written. */
static bool settle(struct player *p)
{
	for (int s = 0; s < STREAMS; s++) {
		int state;
		double look = 0;
		while ((state = cudaStreamQuery(p->streams[s])) == NOT_READY) {
			if (now() > look) {
				if (!fine(p, ncclSuccess, "waiting"))
					return false;
				look = now() + 0.005;
			}
			doze_us(20);
		}
		if (state)
			wrong(p, "CUDA's error %d in a stream", state);
	}
	if (!fine(p, ncclSuccess, "after calls"))
		return false;
	for (int i = 0; i < SLOTS; i++) {
		if (!p->calls[i].pending)
			continue;
		p->calls[i].pending = false;
		const char *text = trial_call_compare(&p->calls[i], p->scratch, options.most);
		if (*text)
			wrong(p, "%s", text);
	}
	return true;
}

static struct trial_call *draw_call(struct player *p, int slot, int c)
{
	struct trial_call *call = &p->calls[slot];
	trial_call_draw(call, &p->random, options.most);
	call->comm = &p->comms[c];
	call->as_made = p->comms[c];
	int refused = trial_call_fill(call, p->scratch, options.most);
	if (refused)
		wrong(p, "CUDA's error %d while a buffer is filled", refused);
	return call;
}

/* Up to three in a group, or one by itself; all of one communicator, as ranks order those of several as they like. */
static bool issue_some(struct player *p, int n, bool grouped, cudaStream_t stream)
{
	ncclResult_t result = grouped ? p->nccl.GroupStart() : ncclSuccess;
	for (int i = 0; i < n && !result; i++)
		result = trial_call_issue(&p->nccl, &p->calls[i], stream);
	ncclResult_t ended = grouped ? p->nccl.GroupEnd() : ncclSuccess;
	return fine(p, result ? result : ended, "a call");
}

static bool calls(struct player *p, int c)
{
	int n = 1 + (int)trial_draw(&p->random, SLOTS);
	bool grouped = trial_draw(&p->random, 2);
	cudaStream_t stream = p->streams[trial_draw(&p->random, STREAMS)];
	for (int slot = 0; slot < n; slot++)
		draw_call(p, slot, c);
	return issue_some(p, n, grouped, stream) && settle(p);
}

/* Two or three calls captured, and replayed a few times. */
static bool capture(struct player *p, int c)
{
	int n = 1 + (int)trial_draw(&p->random, 3), replays = 1 + (int)trial_draw(&p->random, 4);
	cudaStream_t stream = p->streams[trial_draw(&p->random, STREAMS)];
	const struct trial_names *names = &p->nccl;
	for (int slot = 0; slot < n; slot++)
		draw_call(p, slot, c);
	if (names->stream_begin_capture(stream, 1)) /* of this thread */
		wrong(p, "no capture begins");
	ncclResult_t result = ncclSuccess;
	for (int i = 0; i < n && !result; i++)
		result = trial_call_issue(names, &p->calls[i], stream);
	int ended = names->stream_end_capture(stream, &p->graph);
	bool going = fine(p, result, "a captured call");
	if (going && (ended || names->graph_instantiate(&p->executable, p->graph, 0)))
		wrong(p, "a capture that cannot be replayed: CUDA's error %d", ended);
	for (int i = 0; i < replays && going; i++)
		if (names->graph_launch(p->executable, stream))
			wrong(p, "a graph is not launched");
	going = going && settle(p);
	drop_graph(p);
	return going;
}

/* Out of the first one, in the other order or the same. */
static bool split(struct player *p)
{
	struct trial_comm *made = &p->comms[1], *world = &p->comms[0];
	bool turned = trial_draw(&p->random, 2);
	if (made->handle) {
		ncclResult_t result = p->nccl.CommDestroy(made->handle);
		made->handle = NULL;
		if (!fine(p, result, "ncclCommDestroy"))
			return false;
	}
	*made = (struct trial_comm){.rank = turned ? 1 - world->rank : world->rank,
	                            .members = {turned ? 1 : 0, turned ? 0 : 1}};
	ncclResult_t result = p->nccl.CommSplit(world->handle, 0, made->rank, &made->handle, NULL);
	return fine(p, result, "ncclCommSplit");
}

/* ---- runs ---- */

static bool begin(struct player *p)
{
	struct trial_comm *world = &p->comms[0];
	if (world->handle)
		return true;
	if (!p->rank && p->nccl.GetUniqueId(&shared->id))
		wrong(p, "ncclGetUniqueId");
	meet();
	*world = (struct trial_comm){.rank = p->rank, .members = {0, 1}};
	return fine(p, p->nccl.CommInitRank(&world->handle, TRIAL_RANKS, shared->id, p->rank), "ncclCommInitRank");
}

static void end(struct player *p)
{
	for (int c = COMMS - 1; c >= 0; c--) {
		if (!p->comms[c].handle)
			continue;
		ncclResult_t result = p->nccl.CommDestroy(p->comms[c].handle);
		p->comms[c].handle = NULL;
		if (result && p->kill == NOBODY)
			wrong(p, "ncclCommDestroy: NCCL's error %d", (int)result);
	}
}

static bool play(struct player *p)
{
	bool going = true;
	for (unsigned step = 0; step < STEPS && going; step++) {
		atomic_store(&shared->step[p->rank], step);
		atomic_fetch_add(&shared->progress, 1);
		if (is_killer(p) && options.idle_kills && p->kill == RANK && step == p->kill_step)
			kill_now(p);
		unsigned what = trial_draw(&p->random, 10);
		int c = (int)trial_draw(&p->random, COMMS);
		c = p->comms[c].handle ? c : 0;
		if (what == 0 && p->kill != RANK) /* NCCL's own constructors need not end without a rank */
			going = split(p);
		else if (what < 4 && p->nccl.stream_begin_capture)
			going = capture(p, c);
		else
			going = calls(p, c);
	}
	return going;
}

/* The numbers of all ranks are the same. */
static void draw_run(struct player *p, unsigned long long seed)
{
	p->random = seed * UINT64_C(0x9e3779b97f4a7c15);
	trial_draw(&p->random, 2);
	p->kill = NOBODY;
	if (trial_draw(&p->random, 100) < options.per_cent)
		p->kill = trial_draw(&p->random, 2) && !options.one ? RANK : ROUTER;
	p->kill_step = trial_draw(&p->random, STEPS);
	p->kill_us = trial_draw(&p->random, p->kill == ROUTER ? 300000 : 60000);
}

static void run(struct player *p, unsigned long long seed)
{
	pthread_t killer;
	draw_run(p, seed);
	bool fresh = trial_draw(&p->random, 5) == 0 || p->kill != NOBODY;
	if (fresh)
		end(p); /* of the run before, which had no kill, or has given up */
	meet();
	if (!p->rank) {
		atomic_store(&shared->failed, false);
		atomic_store(&shared->run, seed);
	}
	meet();
	bool later = is_killer(p) && !(options.idle_kills && p->kill == RANK),
	     going = p->kill == RANK ? begin(p) : true;
	if (later && pthread_create(&killer, NULL, kill_later, p))
		wrong(p, "no thread");
	going = going && begin(p) && play(p);
	if (later)
		pthread_join(killer, NULL);
	meet();
	if (going && atomic_load(&shared->failed))
		give_up(p);
	else if (going && p->kill != NOBODY)
		end(p);
	if (!p->rank && atomic_load(&shared->failed))
		atomic_fetch_add(&shared->ended, 1);
	meet();
}

static void open_player(struct player *p)
{
	if (cudaSetDevice(p->rank) || !trial_names_find(&p->nccl))
		_exit(NOT_HERE);
	for (int s = 0; s < STREAMS; s++)
		if (cudaStreamCreate(&p->streams[s]))
			wrong(p, "no stream");
	for (int i = 0; i < SLOTS; i++)
		if (cudaMalloc(&p->calls[i].in, TRIAL_RANKS * options.most) ||
		    cudaMalloc(&p->calls[i].out, TRIAL_RANKS * options.most))
			wrong(p, "no memory on the device");
	p->scratch = malloc(TRIAL_RANKS * options.most);
}

static void *player_main(void *context)
{
	struct player *p = context;
	open_player(p);
	unsigned long long seed = atomic_load(&shared->run);
	meet();
	for (; seed < options.seed + options.runs && !atomic_load(&shared->over); seed++) {
		run(p, seed);
		if (!p->rank && now() - started > options.seconds)
			atomic_store(&shared->over, true);
		meet();
	}
	end(p);
	return NULL;
}

/* ---- processes ---- */

static pid_t start(int first, int count)
{
	static struct player players[TRIAL_RANKS];
	pid_t child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = first; i < first + count; i++) {
		players[i].rank = i;
		if (pthread_create(&players[i].thread, NULL, player_main, &players[i]))
			_exit(1);
	}
	for (int i = first; i < first + count; i++)
		pthread_join(players[i].thread, NULL);
	fflush(stdout);
	_exit(0);
}

/* What has become of one worker: 0, or the batch's result so far. */
static int judge(int status)
{
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
		atomic_store(&shared->failed, true);
		atomic_store(&shared->dead, true);
		return CUT_SHORT;
	}
	if (WIFSIGNALED(status))
		printf("not ok: seed %llu: a rank ended by signal %d\n",
		       (unsigned long long)atomic_load(&shared->run), WTERMSIG(status));
	return WIFSIGNALED(status) ? 1 : WEXITSTATUS(status);
}

static bool hangs(unsigned long long *seen, double *since, const pid_t *children, int n)
{
	unsigned long long progress = atomic_load(&shared->progress) + atomic_load(&shared->generation);
	if (progress != *seen) {
		*seen = progress;
		*since = now();
	}
	if (now() - *since < LIMIT_S)
		return false;
	printf("not ok: seed %llu hangs, in steps %u and %u\n", (unsigned long long)atomic_load(&shared->run),
	       atomic_load(&shared->step[0]), atomic_load(&shared->step[1]));
	trial_evidence(getenv("FERRY_SOCKET_DIR"), children, n);
	return true;
}

/* Runs until all are done, or a rank is gone: 0, CUT_SHORT, NOT_HERE, or 1 for what may not be. */
static int run_batch(void)
{
	int workers = options.one ? 1 : TRIAL_RANKS, result = 0, left = workers;
	pid_t children[TRIAL_RANKS];
	unsigned long long seen = 0;
	double since = now();
	atomic_store(&shared->arrived, 0);
	atomic_store(&shared->failed, false);
	atomic_store(&shared->dead, false);
	for (int i = 0; i < workers; i++)
		children[i] = start(i, TRIAL_RANKS / workers);
	while (left) {
		for (int i = 0; i < workers; i++) {
			int status;
			if (!children[i] || waitpid(children[i], &status, WNOHANG) != children[i])
				continue;
			children[i] = 0;
			left--;
			int judged = judge(status);
			result = result == 1 || !judged ? result : judged == 1 || !result ? judged : result;
		}
		bool hung = left && hangs(&seen, &since, children, workers);
		result = hung ? 1 : result;
		for (int i = 0; i < workers && result && result != CUT_SHORT; i++)
			if (children[i])
				kill(children[i], SIGKILL);
		doze_us(2000);
	}
	return result;
}

static void parse(int argc, char **argv)
{
	static const struct option long_options[] = {
	        {"seed", 1, NULL, 's'},  {"runs", 1, NULL, 'n'}, {"seconds", 1, NULL, 't'},    {"kills", 1, NULL, 'k'},
	        {"bytes", 1, NULL, 'b'}, {"one", 0, NULL, 'o'},  {"idle-kills", 0, NULL, 'i'}, {0}};
	for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) >= 0;) {
		double number = optarg ? strtod(optarg, NULL) : 0;
		options.seed = c == 's' ? (unsigned long long)number : options.seed;
		options.runs = c == 'n' ? (unsigned long long)number : options.runs;
		options.seconds = c == 't' ? number : options.seconds;
		options.per_cent = c == 'k' ? (unsigned)number : options.per_cent;
		options.most = c == 'b' ? ((size_t)number + 511) / 512 * 512 : options.most;
		options.one |= c == 'o';
		options.idle_kills |= c == 'i';
		if (c != '?')
			continue;
		printf("nccl_trials [--seed S] [--runs N] [--seconds T] [--kills PER_CENT] [--bytes MOST] [--one] "
		       "[--idle-kills]\n"
		       "--one: both ranks in one process; --idle-kills: ranks die between steps, not in them\n");
		exit(64);
	}
}

static void run_all(unsigned *bad)
{
	unsigned long long last = options.seed + options.runs;
	atomic_store(&shared->run, options.seed);
	while (atomic_load(&shared->run) < last && !atomic_load(&shared->over) && *bad < 5) {
		int result = run_batch();
		if (result == NOT_HERE) {
			printf("skipped: two GPUs and an NCCL are wanted\n");
			exit(NOT_HERE);
		}
		if (!result)
			return;
		*bad += result != CUT_SHORT;
		atomic_fetch_add(&shared->ended, result == CUT_SHORT);
		atomic_fetch_add(&shared->run, 1);
		if (now() - started > options.seconds)
			return;
	}
}

int main(int argc, char **argv)
{
	char folder[] = "/tmp/nccl-trials-XXXXXX";
	unsigned bad = 0;
	parse(argc, argv);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || !mkdtemp(folder))
		return 1;
	setenv("FERRY_SOCKET_DIR", folder, 1);
	started = now();
	run_all(&bad);
	unsigned long long runs = atomic_load(&shared->run) - options.seed + 1, killed = atomic_load(&shared->routers);
	trial_routers_end(folder, SIGTERM);
	trial_routers_remove(folder);
	printf("%s: %llu runs from seed %llu on in %.0f s%s: %u hung or wrong; %llu routers and %llu ranks were "
	       "killed, "
	       "%llu runs ended with an error\n",
	       bad ? "not ok" : "ok", runs > options.runs ? options.runs : runs, options.seed, now() - started,
	       options.one ? ", in one process" : "", bad, killed, (unsigned long long)atomic_load(&shared->ranks),
	       (unsigned long long)atomic_load(&shared->ended));
	return bad ? 1 : 0;
}
