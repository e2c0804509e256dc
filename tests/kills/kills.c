/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers that are killed, and ranks: random calls of a seed in rounds, whose results must be those of the first round,
 * which nobody disturbs, to the bit. By default routers are killed at random instants, and no rank may notice anything
 * but a pause. With --ranks a rank of a job is killed, over and over, beside a second job on the same routers: the
 * other ranks are told within a second and go on in a new communicator, and the second job is right.
 *
 *     bin/router_kills --kills 2000 --domains 2
 */
#include "tests/kills/kills_job.h"
#include "tests/kills/kills_routers.h"
#include "tests/kills/kills_victims.h"

#include "ipc/ferry_types.h"

#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LATE_WINDOWS 3 /* of graphs that are about to go; a leak is one of each that is made anew */
#define BATCHES 8   /* a pause is looked for in so many */
#define QUIET   100 /* pauses of nobody's making, at most */

static struct kills_shared *shared;
static const struct kills_options defaults = {.seed = 1,
                                              .kills = 100,
                                              .both = 10,
                                              .nranks = 4,
                                              .domains = 1,
                                              .ncalls = 48,
                                              .bytes = (size_t)1 << 20,
                                              .every = 0.02,
                                              .spread = 0.02,
                                              .limit = 150, /* far above what a machine that swaps or stalls takes */
                                              .seconds = 1e9};

struct figures {
	unsigned long long kills, twice, slow;
	unsigned long long before; /* of successors, when no batch had ended since */
	double *pauses, quiet[QUIET];
	unsigned npauses, nquiet;
};

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return a < b ? -1 : a > b;
}

/* In ms. Of sorted values. */
static double quantile(const double *values, unsigned count, double part)
{
	unsigned at = (unsigned)(part * (double)count);
	return count ? 1e3 * values[at < count ? at : count - 1] : 0;
}

/* ---- killing routers ---- */

static pid_t await_router(int domain, pid_t not_this)
{
	uint64_t until = kills_now_ns() + (uint64_t)(shared->options.limit * 1e9);
	pid_t found = 0;
	while ((!found || found == not_this) && kills_now_ns() < until && !atomic_load(&shared->jobs[0].failed)) {
		found = kills_router(shared->folder, domain);
		if (!found || found == not_this)
			kills_doze_us(200);
	}
	return found == not_this ? 0 : found;
}

static unsigned long long batches_of(const struct kills_job *job)
{
	unsigned long long sum = 0;
	for (int rank = 0; rank < job->nranks; rank++)
		sum += atomic_load(&job->ranks[rank].batches);
	return sum;
}

/* Its successor too, some time after it has begun to listen. */
static void kill_successor(uint64_t *random, struct figures *figures, int domain, pid_t first)
{
	unsigned long long batches = batches_of(&shared->jobs[0]);
	pid_t second = await_router(domain, first);
	kills_doze_us((unsigned)(kills_chance(random) * kills_chance(random) * shared->options.spread * 1e6));
	if (!second || kill(second, SIGKILL))
		return;
	figures->kills++;
	figures->twice++;
	figures->before += batches_of(&shared->jobs[0]) == batches;
}

static bool is_chosen(uint64_t *random, unsigned long long per_cent)
{
	return kills_chance(random) * 100 < (double)per_cent;
}

/* A process stands still for a while. */
static void stand_still(uint64_t *random, pid_t process)
{
	kill(process, SIGSTOP);
	kills_doze_us((unsigned)(kills_chance(random) * shared->options.spread * 1e6));
	kill(process, SIGCONT);
}

/* All at once; or one, whose successor is killed too, or while a rank stands still. */
static void kill_those(uint64_t *random, struct figures *figures, const pid_t *routers, int first, int count)
{
	const struct kills_options *options = &shared->options;
	bool twice = is_chosen(random, options->twice), still = is_chosen(random, options->still);
	const struct kills_rank *rank = &shared->jobs[0].ranks[kills_random(random) % (uint64_t)options->nranks];
	pid_t process = atomic_load(&rank->pid);
	if (still)
		kill(process, SIGSTOP);
	for (int i = 0; i < count; i++)
		figures->kills += !kill(routers[i], SIGKILL);
	if (still)
		stand_still(random, process);
	if (twice)
		kill_successor(random, figures, first, routers[0]);
}

/* When that was; 0: there is none. *pauses: whether the application's pause is the successor's. */
static uint64_t kill_routers(uint64_t *random, struct figures *figures, bool *pauses)
{
	const struct kills_options *options = &shared->options;
	pid_t routers[FERRY_MAX_DOMAINS];
	int first = (int)(kills_random(random) % (uint64_t)options->domains);
	int count = is_chosen(random, options->both) ? options->domains : 1;
	bool slow = is_chosen(random, options->slow);
	for (int i = 0; i < count; i++)
		if (!(routers[i] = await_router((first + i) % options->domains, 0)))
			return 0;
	kills_doze_us((unsigned)(-log(1 - kills_chance(random)) * options->every * 1e6));
	uint64_t when = kills_now_ns();
	*pauses = !slow && !options->still;
	figures->slow += slow;
	if (slow)
		stand_still(random, routers[0]);
	else
		kill_those(random, figures, routers, first, count);
	return when;
}

static enum kills_end kill_all(struct figures *figures)
{
	const struct kills_options *options = &shared->options;
	struct kills_job *job = &shared->jobs[0];
	uint64_t random = options->seed * 0x2545f4914f6cdd1du + 1, began = kills_now_ns();
	double pause;
	bool pauses = false;
	enum kills_end end = kills_job_await(shared, job, &job->rounds, 1);
	for (; end == KILLS_RUNS && figures->nquiet < QUIET && figures->nquiet < options->kills; figures->nquiet++)
		end = kills_job_pause(shared, job, kills_now_ns(), BATCHES, &figures->quiet[figures->nquiet]);
	while (end == KILLS_RUNS && figures->kills + figures->slow < options->kills &&
	       (double)(kills_now_ns() - began) < options->seconds * 1e9) {
		uint64_t when = kill_routers(&random, figures, &pauses);
		if (!when) {
			printf("not ok: no router listens in %s\n", shared->folder);
			return kills_job_broken(shared, job) ? KILLS_DEAD : KILLS_HUNG;
		}
		end = kills_job_pause(shared, job, when, BATCHES, &pause);
		if (end == KILLS_RUNS && pauses)
			figures->pauses[figures->npauses++] = pause;
		if (options->verbose)
			fprintf(stderr, "kill %llu: %.1f ms\n", figures->kills, pause * 1e3);
	}
	if (end == KILLS_RUNS) /* one more round, in which nobody disturbs */
		end = kills_job_await(shared, job, &job->rounds, atomic_load(&job->rounds) + 1);
	return end == KILLS_RUNS ? kills_job_stop(shared, job) : end;
}

/* How many ranks hold something that they did not hold behind the first round. */
static unsigned rank_leaks(const struct kills_job *job)
{
	unsigned leaks = 0;
	for (int rank = 0; rank < job->nranks; rank++) {
		char name[16];
		snprintf(name, sizeof name, "rank %d", rank);
		leaks += kills_held_more(name, &job->ranks[rank].first, &job->ranks[rank].last,
		                         shared->options.captured ? LATE_WINDOWS : 0, shared->options.verbose);
	}
	return leaks;
}

static int run_router_kills(void)
{
	struct figures figures = {.pauses = calloc(shared->options.kills + 1, sizeof(double))};
	struct kills_job *job = &shared->jobs[0];
	unsigned long long calls = 0, wrong = 0;
	uint64_t began = kills_now_ns();
	kills_job_start(shared, job, shared->options.nranks, false);
	enum kills_end end = kill_all(&figures);
	if (end != KILLS_RUNS)
		kills_job_kill(shared, job);
	unsigned left = kills_remains(shared->folder, shared->options.domains, 10);
	unsigned leaks = end == KILLS_RUNS ? rank_leaks(job) : 0;
	for (int rank = 0; rank < job->nranks; rank++) {
		calls += atomic_load(&job->ranks[rank].calls);
		wrong += atomic_load(&job->ranks[rank].wrong);
	}
	qsort(figures.pauses, figures.npauses, sizeof(double), compare);
	qsort(figures.quiet, figures.nquiet, sizeof(double), compare);
	bool bad = end != KILLS_RUNS || wrong || left || leaks;
	printf("%s: seed %llu, %d ranks, %d domain%s: %llu routers killed, %llu of them successors (%llu before a "
	       "batch had ended), %llu only stood still, in %.0f s: %llu calls, %llu wrong, %s, %u leaks, %u left; "
	       "longest time between two "
	       "batches: median %.1f, p99 %.1f, most %.1f ms; undisturbed %.1f, %.1f, %.1f ms\n",
	       bad ? "not ok" : "ok", shared->options.seed, job->nranks, shared->options.domains,
	       shared->options.domains == 1 ? "" : "s", figures.kills, figures.twice, figures.before, figures.slow,
	       (double)(kills_now_ns() - began) * 1e-9, calls, wrong,
	       end == KILLS_HUNG   ? "hung"
	       : end == KILLS_DEAD ? "a rank dead"
	                           : "none hung or dead",
	       leaks, left, quantile(figures.pauses, figures.npauses, 0.5),
	       quantile(figures.pauses, figures.npauses, 0.99), quantile(figures.pauses, figures.npauses, 1),
	       quantile(figures.quiet, figures.nquiet, 0.5), quantile(figures.quiet, figures.nquiet, 0.99),
	       quantile(figures.quiet, figures.nquiet, 1));
	free(figures.pauses);
	return bad;
}

/* ---- the command ---- */

static void print_help(void)
{
	printf("Usage: router_kills [OPTION...]\n"
	       "Kills the routers of a job at random instants, and says whether all that it computed was right to\n"
	       "the bit, whether all ranks went on, how long they paused, and what was left behind.\n\n"
	       "  --kills N         how many (100)\n"
	       "  --twice PERCENT   whose successor is killed too, while it adopts or soon after (0)\n"
	       "  --spread MS       how soon: at most so much after it listens, more often sooner (20)\n"
	       "  --both PERCENT    where the routers of all domains are killed together (10)\n"
	       "  --still PERCENT   while a rank stands still, for as long as --spread at most (0)\n"
	       "  --slow PERCENT    where the router is not killed, but stands still so long (0)\n"
	       "  --every MS        mean time from one that is over to the next (20)\n"
	       "  --ranks           kills a rank each time instead, beside a second job whose results are judged\n"
	       "  --meanwhile PERCENT   with --ranks: where a router, or --both, is killed at about the same time (0)\n"
	       "  --n RANKS         of the job (4)\n"
	       "  --domains N       (1)\n"
	       "  --gpu             buffers of GPUs, as many of them as there are\n"
	       "  --captured PERCENT    of the calls are replays of CUDA graphs, with --gpu (0)\n"
	       "  --alltoallv       every call is one\n"
	       "  --sums            every call is a long AllReduce or ReduceScatter: at least half of --bytes\n"
	       "  --messages        each AllToAll is a group of sends and receives\n"
	       "  --ferryrun        ferryrun starts routers and ranks; else ranks start routers\n"
	       "  --spare[=N]       the same, and has N others of each domain stand by (1)\n"
	       "  --calls N         of a round, of any collective; messages go round (48)\n"
	       "  --bytes MOST      of a rank's buffer (1048576)\n"
	       "  --fresh N         a new communicator every N rounds (0: never)\n"
	       "  --seed S          of calls and instants (1)\n"
	       "  --seconds T       nothing is killed later\n"
	       "  --limit T         seconds in which nothing moves, then it hangs (150)\n"
	       "  --verbose         each kill, and what ranks hold\n\n"
	       "Environment, where it is unset: FERRY_SLICE=8192, FERRY_WINDOW=2: kills come in the middle of calls.\n"
	       "Exit code: 0; 1 where something was wrong, hung, dead, or left.\n");
}

static int between(int least, double number, int most)
{
	return number < least ? least : number > most ? most : (int)number;
}

static bool set_flag(struct kills_options *options, int option)
{
	options->ranks |= option == 'R';
	options->by_ferryrun |= option == 'F' || option == 'S';
	options->gpu |= option == 'g';
	options->messages |= option == 'M';
	options->alltoallv |= option == 'a';
	options->sums |= option == 'u';
	options->verbose |= option == 'v';
	return strchr("RFgMauv", option);
}

/* NULL: it is none that is a whole number. */
static unsigned long long *whole_of(struct kills_options *options, int option)
{
	switch (option) {
	case 's':
		return &options->seed;
	case 'k':
		return &options->kills;
	case 'C':
		return &options->captured;
	case 'w':
		return &options->twice;
	case 'b':
		return &options->both;
	case 'm':
		return &options->meanwhile;
	case 'i':
		return &options->still;
	case 'o':
		return &options->slow;
	default:
		return NULL;
	}
}

/* NULL: it is no time. *unit: of what is written, in seconds. */
static double *time_of(struct kills_options *options, int option, double *unit)
{
	*unit = option == 't' || option == 'l' ? 1 : 1e-3;
	switch (option) {
	case 'e':
		return &options->every;
	case 'p':
		return &options->spread;
	case 't':
		return &options->seconds;
	case 'l':
		return &options->limit;
	default:
		return NULL;
	}
}

static void set(int option, const char *text)
{
	struct kills_options *options = &shared->options;
	double number = text ? strtod(text, NULL) : 0, unit;
	unsigned long long *whole = whole_of(options, option);
	double *time = time_of(options, option, &unit);
	if (set_flag(options, option))
		return;
	if (whole)
		*whole = (unsigned long long)number;
	else if (time)
		*time = number * unit;
	else if (option == 'S')
		options->spares = (unsigned)between(1, number, KILLS_SPARES);
	else if (option == 'n')
		options->nranks = between(2, number, KILLS_RANKS);
	else if (option == 'd')
		options->domains = between(1, number, FERRY_MAX_DOMAINS);
	else if (option == 'c')
		options->ncalls = between(1, number, KILLS_CALLS);
	else if (option == 'y')
		options->bytes = (size_t)number;
	else if (option == 'f')
		options->fresh = (unsigned)number;
	else {
		print_help();
		exit(option == 'h' ? 0 : 64);
	}
}

static void parse(int argc, char **argv)
{
	static const struct option long_options[] = {{"seed", 1, NULL, 's'},
	                                             {"kills", 1, NULL, 'k'},
	                                             {"twice", 1, NULL, 'w'},
	                                             {"both", 1, NULL, 'b'},
	                                             {"every", 1, NULL, 'e'},
	                                             {"spread", 1, NULL, 'p'},
	                                             {"n", 1, NULL, 'n'},
	                                             {"domains", 1, NULL, 'd'},
	                                             {"calls", 1, NULL, 'c'},
	                                             {"bytes", 1, NULL, 'y'},
	                                             {"fresh", 1, NULL, 'f'},
	                                             {"seconds", 1, NULL, 't'},
	                                             {"limit", 1, NULL, 'l'},
	                                             {"ranks", 0, NULL, 'R'},
	                                             {"meanwhile", 1, NULL, 'm'},
	                                             {"ferryrun", 0, NULL, 'F'},
	                                             {"spare", 2, NULL, 'S'},
	                                             {"verbose", 0, NULL, 'v'},
	                                             {"still", 1, NULL, 'i'},
	                                             {"slow", 1, NULL, 'o'},
	                                             {"help", 0, NULL, 'h'},
	                                             {"gpu", 0, NULL, 'g'},
	                                             {"captured", 1, NULL, 'C'},
	                                             {"messages", 0, NULL, 'M'},
	                                             {"alltoallv", 0, NULL, 'a'},
	                                             {"sums", 0, NULL, 'u'},
	                                             {0}};
	for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) >= 0;)
		set(c, optarg);
	if (optind < argc || (shared->options.ranks && shared->options.by_ferryrun) ||
	    (shared->options.captured && !shared->options.gpu))
		set('?', NULL);
}

/* By ferryrun: a rank, whose number nobody else has. */
static int be_a_rank(void)
{
	int file = open(getenv("ROUTER_KILLS_SHARED"), O_RDWR | O_CLOEXEC);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		return 1;
	close(file);
	int rank = atomic_fetch_add(&shared->next_rank, 1);
	if (!rank)
		snprintf(shared->folder, sizeof shared->folder, "%s", getenv("FERRY_SOCKET_DIR"));
	return kills_rank_main(shared, &shared->jobs[0], rank);
}

static bool share(void)
{
	char path[64];
	int file = memfd_create("router_kills", 0);
	if (file < 0 || ftruncate(file, sizeof *shared))
		return false;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), file);
	setenv("ROUTER_KILLS_SHARED", path, 1);
	fcntl(file, F_SETFD, FD_CLOEXEC);
	return shared != MAP_FAILED;
}

int main(int argc, char **argv)
{
	char text[16], folder[] = "/tmp/router-kills-XXXXXX";
	if (argc == 2 && !strcmp(argv[1], "--as-a-rank"))
		return be_a_rank();
	if (!share())
		return 1;
	shared->options = defaults;
	parse(argc, argv);
	if (!mkdtemp(folder))
		return 1;
	strcpy(shared->folder, folder);
	setenv("FERRY_SOCKET_DIR", folder, 1);
	setenv("FERRY_DEVICE", shared->options.gpu ? "cuda" : "host", 1);
	setenv("FERRY_LOG", "error", 0);
	setenv("FERRY_KERNELS", "off", 0); /* calls are the routers' */
	/* many slices, in windows that are used again and again: most kills come in the middle of a call */
	setenv("FERRY_SLICE", "8192", 0);
	setenv("FERRY_WINDOW", "2", 0);
	setenv("FERRY_SHORT", "8K", 0); /* most calls are the routers' */
	snprintf(text, sizeof text, "%d", shared->options.domains);
	setenv("FERRY_DOMAINS", text, 1);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	int code = shared->options.ranks ? kills_of_ranks(shared) : run_router_kills();
	rmdir(folder);
	return code;
}
