/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs over NCCL's API, many of them, with kills: two ranks on two GPUs, each in a process of its own or
 * both as threads of one, make communicators, groups, calls of all kinds, types and sizes in several streams, captures
 * and replays; what comes out is compared with what arithmetic says. In a tenth of the runs the router is killed at
 * some time, or a rank is: then calls may end with an error of NCCL's, and only with one: nothing hangs, and nothing is
 * wrong that is not said to have failed. Survivors of a rank abort their communicators, as any application has to.
 *
 *     bin/nccl_trials --runs 1000 [--one]
 *
 * It begins anew under the preload beside it, with shares that are pinned, unless the environment says otherwise. Ranks
 * start routers by themselves. Programs use a communicator in turns: NCCL takes long to make one.
 */
#include "tests/commands_folder.h"
#include "tests/nccl/trial_evidence.h"
#include "tests/nccl/trial_routers.h"
#include "tests/nccl/trial_shared.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_BAD  5  /* runs that hang or are wrong: then it ends */
#define REPORT_S 10 /* how often it says where it is */

struct trial_shared *trial_shared;
struct trial_options trial_options = {
        .seed = 1, .runs = 100, .until = 1e18, .limit = 30, .per_cent = 10, .fresh = 25, .most = (size_t)1 << 20};

static double started;

/* ---- processes ---- */

static pid_t start(int first, int count)
{
	pthread_t threads[TRIAL_RANKS];
	pid_t child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < count; i++) {
		struct trial_player *player = trial_player_new(first + i);
		if (!player || pthread_create(&threads[i], NULL, trial_player_main, player))
			_exit(1);
	}
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	fflush(stdout);
	_exit(0);
}

/* What has become of one worker: 0, or the batch's result so far. */
static int judge(int status)
{
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
		atomic_store(&trial_shared->failed, true);
		atomic_store(&trial_shared->dead, true);
		return TRIAL_CUT_SHORT;
	}
	if (WIFSIGNALED(status))
		printf("not ok: seed %llu: a rank ended by signal %d\n",
		       (unsigned long long)atomic_load(&trial_shared->run), WTERMSIG(status));
	return WIFSIGNALED(status) ? 1 : WEXITSTATUS(status);
}

static void report(void)
{
	static double reported;
	double now = trial_now();
	if (now - reported < REPORT_S)
		return;
	if (reported > 0)
		fprintf(stderr, "%.0f s: %u runs were equal, %u ended with an error; %llu routers and %llu ranks were "
		        "killed\n",
		        now - started, trial_tallied(TRIAL_EQUAL), trial_tallied(TRIAL_ERROR),
		        (unsigned long long)atomic_load(&trial_shared->killed[TRIAL_ROUTER]),
		        (unsigned long long)atomic_load(&trial_shared->killed[TRIAL_RANK]));
	reported = now;
}

/* Workers that are alive and do not move: says what is known of them. */
static bool hangs(unsigned long long *seen, double *since, const pid_t *children, int n)
{
	unsigned long long progress =
	        atomic_load(&trial_shared->progress) + atomic_load(&trial_shared->generation);
	if (progress != *seen) {
		*seen = progress;
		*since = trial_now();
	}
	if (trial_now() - *since < trial_options.limit)
		return false;
	printf("not ok: seed %llu hangs:", (unsigned long long)atomic_load(&trial_shared->run));
	for (int rank = 0; rank < TRIAL_RANKS; rank++) {
		const char *doing = atomic_load(&trial_shared->doing[rank]);
		printf(" rank %d in step %u, %s;", rank, atomic_load(&trial_shared->step[rank]),
		       doing ? doing : "beginning");
	}
	printf("%s\n", atomic_load(&trial_shared->dead) ? " a rank was killed" : "");
	trial_evidence(getenv("FERRY_SOCKET_DIR"), children, n);
	return true;
}

/* Takes note of those that have ended. How many are left. */
static int collect(pid_t *children, int workers, int *result)
{
	int left = 0;
	for (int i = 0; i < workers; i++) {
		int status;
		if (!children[i])
			continue;
		left++;
		if (waitpid(children[i], &status, WNOHANG) != children[i])
			continue;
		children[i] = 0;
		left--;
		int judged = judge(status);
		*result = *result == 1 || !judged ? *result : judged == 1 || !*result ? judged : *result;
	}
	return left;
}

/* Runs until all are done, or a rank is gone: 0, TRIAL_CUT_SHORT, TRIAL_NOT_HERE, or 1 for what may not be. */
static int run_batch(bool *hung)
{
	int workers = trial_options.one ? 1 : TRIAL_RANKS, result = 0;
	pid_t children[TRIAL_RANKS];
	unsigned long long seen = 0;
	double since = trial_now();
	atomic_store(&trial_shared->arrived, 0);
	atomic_store(&trial_shared->failed, false);
	atomic_store(&trial_shared->dead, false);
	for (int i = 0; i < workers; i++)
		children[i] = start(i, TRIAL_RANKS / workers);
	while (collect(children, workers, &result)) {
		if (!result || result == TRIAL_CUT_SHORT)
			*hung = hangs(&seen, &since, children, workers);
		result = *hung ? 1 : result;
		for (int i = 0; i < workers && result && result != TRIAL_CUT_SHORT; i++)
			if (children[i])
				kill(children[i], SIGKILL);
		report();
		trial_doze_us(1000);
	}
	return result;
}

static void run_all(void)
{
	unsigned long long last = trial_options.seed + trial_options.runs;
	atomic_store(&trial_shared->run, trial_options.seed);
	while (atomic_load(&trial_shared->run) < last && !atomic_load(&trial_shared->over) &&
	       trial_now() < trial_options.until &&
	       trial_tallied(TRIAL_HUNG) + trial_tallied(TRIAL_WRONG) < MOST_BAD) {
		bool hung = false;
		int result = run_batch(&hung);
		if (result == TRIAL_NOT_HERE) {
			printf("skipped: two GPUs and an NCCL are wanted\n");
			exit(TRIAL_NOT_HERE);
		}
		if (!result)
			return;
		trial_tally(hung ? TRIAL_HUNG : result == TRIAL_CUT_SHORT ? TRIAL_ERROR : TRIAL_WRONG);
		atomic_fetch_add(&trial_shared->run, 1);
	}
}

/* ---- the command ---- */

static void print_help(void)
{
	printf("Usage: nccl_trials [OPTION...]\n"
	       "Runs random programs of two ranks over NCCL's API through Ferry, kills routers and ranks in some, and\n"
	       "says whether all that came out was right, or ended with an error where something was killed.\n\n"
	       "  --runs N         how many programs (100)\n"
	       "  --seed S         that of the first; each next one has the next (1)\n"
	       "  --kills PERCENT  of the programs in which a router or a rank is killed (10)\n"
	       "  --one            both ranks are threads of one process; then routers alone are killed\n"
	       "  --alone          NCCL without Ferry, to compare with: ranks alone are killed\n"
	       "  --bytes MOST     of a rank's block (1048576)\n"
	       "  --fresh N        one in N programs begins with new communicators, and three in N make some out of\n"
	       "                   others (25); all do after a kill\n"
	       "  --seconds T      no program begins later\n"
	       "  --limit T        seconds without any progress, then it hangs: stacks of all ranks and routers are\n"
	       "                   printed (30)\n\n");
	printf("Environment, where it is unset: FERRY_SPLIT_WAIT=5, FERRY_SPLIT_FLOOR=4K,\n"
	       "FERRY_SHARES=nccl:0.5,host:0.5, and LD_PRELOAD=../lib/libferry-nccl.so, from where the program is.\n"
	       "At the end there is a table: runs, equal, ended with an error as they may, hung, wrong, seconds of\n"
	       "all and of the longest, in which starting processes is not. Exit code: 0; 1 where a run hung or was\n"
	       "wrong, of which %d end it; 77 without two GPUs and an NCCL.\n",
	       MOST_BAD);
}

static void set(int option, const char *text)
{
	double number = text ? strtod(text, NULL) : 0;
	switch (option) {
	case 's':
		trial_options.seed = (unsigned long long)number;
		return;
	case 'n':
		trial_options.runs = (unsigned long long)number;
		return;
	case 't':
		trial_options.until = trial_now() + number;
		return;
	case 'l':
		trial_options.limit = number;
		return;
	case 'k':
		trial_options.per_cent = (unsigned)number;
		return;
	case 'f':
		trial_options.fresh = number >= 1 ? (unsigned)number : 1;
		return;
	case 'b':
		trial_options.most = ((size_t)number + 511) / 512 * 512;
		return;
	case 'o':
		trial_options.one = true;
		return;
	case 'a':
		trial_options.alone = true;
		return;
	default:
		print_help();
		exit(option == 'h' ? 0 : 64);
	}
}

static void parse(int argc, char **argv)
{
	static const struct option long_options[] = {
	        {"seed", 1, NULL, 's'},  {"runs", 1, NULL, 'n'},  {"seconds", 1, NULL, 't'}, {"kills", 1, NULL, 'k'},
	        {"bytes", 1, NULL, 'b'}, {"limit", 1, NULL, 'l'}, {"fresh", 1, NULL, 'f'},   {"one", 0, NULL, 'o'},
	        {"alone", 0, NULL, 'a'}, {"help", 0, NULL, 'h'},  {0}};
	for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) >= 0;)
		set(c, optarg);
	if (optind < argc)
		set('?', NULL);
}

/* A library is preloaded only into a program that is started with it. */
static void begin_under_ferry(char **argv)
{
	char commands[400], path[500], list[1200];
	const char *before = getenv("LD_PRELOAD");
	setenv("FERRY_SPLIT_WAIT", "5", 0);
	setenv("FERRY_SPLIT_FLOOR", "4K", 0);
	setenv("FERRY_SHARES", "nccl:0.5,host:0.5", 0);
	if (trial_options.alone || (before && strstr(before, "libferry-nccl")))
		return;
	if (!commands_folder(commands, sizeof commands))
		exit(1);
	snprintf(path, sizeof path, "%s/../lib/libferry-nccl.so", commands);
	if (access(path, R_OK)) {
		fprintf(stderr, "nccl_trials: no %s: LD_PRELOAD names another, or --alone goes without\n", path);
		exit(1);
	}
	snprintf(list, sizeof list, "%s%s%s", path, before ? ":" : "", before ? before : "");
	setenv("LD_PRELOAD", list, 1);
	execv("/proc/self/exe", argv);
	perror("nccl_trials: beginning anew under the preload");
	exit(1);
}

int main(int argc, char **argv)
{
	char folder[] = "/tmp/nccl-trials-XXXXXX";
	parse(argc, argv);
	begin_under_ferry(argv);
	trial_shared = mmap(NULL, sizeof *trial_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (trial_shared == MAP_FAILED || !mkdtemp(folder))
		return 1;
	setenv("FERRY_SOCKET_DIR", folder, 1);
	started = trial_now();
	run_all();
	double seconds = trial_now() - started;
	trial_routers_end(folder, SIGTERM);
	trial_routers_remove(folder);
	unsigned bad = trial_tallied(TRIAL_HUNG) + trial_tallied(TRIAL_WRONG);
	unsigned ended = trial_tallied(TRIAL_EQUAL) + trial_tallied(TRIAL_ERROR) + bad;
	trial_tally_print(stdout);
	printf("%s: %u runs from seed %llu on in %.0f s%s%s: %u hung or wrong; "
	       "%llu routers and %llu ranks were killed\n",
	       bad ? "not ok" : "ok", ended, trial_options.seed, seconds, trial_options.one ? ", in one process" : "",
	       trial_options.alone ? ", by NCCL alone" : "", bad,
	       (unsigned long long)atomic_load(&trial_shared->killed[TRIAL_ROUTER]),
	       (unsigned long long)atomic_load(&trial_shared->killed[TRIAL_RANK]));
	return bad ? 1 : 0;
}
