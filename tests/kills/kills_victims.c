/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kills/kills_victims.h"

#include "tests/kills/kills_job.h"
#include "tests/kills/kills_routers.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLD_WITHIN 30.0 /* seconds: a hang; a time is for benchmarks */
#define WARM        3   /* kills until a router holds all that it holds from then on */

/* Of the second job, while jobs of one kind run beside it. */
struct beside {
	unsigned long long calls;
	double seconds;
};

struct tally {
	unsigned long long kills, named, routers;
	double *logged, *on; /* seconds from a kill until the last rank was told; has called again and left */
	struct beside in_order, killed;
};

static unsigned long long calls_of(const struct kills_job *job)
{
	unsigned long long sum = 0;
	for (int rank = 0; rank < job->nranks; rank++)
		sum += atomic_load(&job->ranks[rank].calls);
	return sum;
}

/* The others hear of it, by name, and go on without it. */
static bool judge(struct kills_shared *shared, struct kills_job *job, uint64_t when, struct tally *tally)
{
	char name[16];
	double longest = 0;
	bool good = true;
	snprintf(name, sizeof name, "rank %d", job->victim);
	for (int rank = 0; rank < job->nranks; rank++) {
		struct kills_rank *one = &job->ranks[rank];
		int status = kills_rank_end(shared, job, rank);
		if (rank == job->victim)
			continue;
		uint64_t logged = atomic_load(&one->told_ns);
		bool named = logged && strstr(one->text, name);
		double late = logged > when ? (double)(logged - when) * 1e-9 : 0;
		longest = late > longest ? late : longest;
		tally->named += named;
		if (status == 0 && named && late < TOLD_WITHIN && !atomic_load(&one->wrong))
			continue;
		printf("not ok: kill %llu, of rank %d: rank %d %s after %.3f s: %s; wait status %d\n", tally->kills,
		       job->victim, rank, logged ? "was told" : "was not told", late, one->text, status);
		good = false;
	}
	tally->on[tally->kills] = (double)(kills_now_ns() - when) * 1e-9;
	if (shared->options.verbose)
		fprintf(stderr, "kill %llu, of rank %d: told in %.1f ms, over in %.1f ms\n", tally->kills, job->victim,
		        longest * 1e3, tally->on[tally->kills] * 1e3);
	tally->logged[tally->kills++] = longest;
	return good;
}

/* The router of that domain; or those of all, at once. */
static void kill_routers(struct kills_shared *shared, int domain, bool both, struct tally *tally)
{
	for (int each = 0; each < shared->options.domains; each++) {
		pid_t router = both || each == domain ? kills_router(shared->folder, each) : 0;
		tally->routers += router && !kill(router, SIGKILL);
	}
}

/* And perhaps routers, somewhat earlier or later. When the rank was. */
static uint64_t kill_rank(struct kills_shared *shared, struct kills_job *job, uint64_t *random, struct tally *tally)
{
	const struct kills_options *options = &shared->options;
	int domain = (int)(kills_random(random) % (uint64_t)options->domains);
	bool meanwhile = kills_chance(random) * 100 < (double)options->meanwhile, first = kills_random(random) % 2;
	bool both = options->domains > 1 && kills_chance(random) * 100 < (double)options->both;
	unsigned between = (unsigned)(kills_chance(random) * kills_chance(random) * options->spread * 1e6);
	if (meanwhile && first) {
		kill_routers(shared, domain, both, tally);
		kills_doze_us(between);
	}
	uint64_t when = kills_now_ns();
	kill(atomic_load(&job->ranks[job->victim].pid), SIGKILL);
	if (meanwhile && !first) {
		kills_doze_us(between);
		kill_routers(shared, domain, both, tally);
	}
	return when;
}

/* A job begins, and a rank of it is killed at some time; or it ends in order. */
static bool one_job(struct kills_shared *shared, uint64_t *random, bool kills, struct tally *tally)
{
	struct kills_job *job = &shared->jobs[0], *other = &shared->jobs[1];
	struct beside *beside = kills ? &tally->killed : &tally->in_order;
	unsigned long long calls = calls_of(other);
	uint64_t began = kills_now_ns();
	bool good;
	kills_job_start(shared, job, shared->options.nranks, kills);
	job->victim = (int)(kills_random(random) % (uint64_t)job->nranks);
	double wait = -log(1 - kills_chance(random)) * shared->options.every;
	if (kills_job_await(shared, job, &job->ready, (unsigned)job->nranks) != KILLS_RUNS)
		return false;
	kills_doze_us((unsigned)(wait * 1e6));
	if (kills) {
		uint64_t when = kill_rank(shared, job, random, tally);
		good = judge(shared, job, when, tally);
	} else {
		good = kills_job_stop(shared, job) == KILLS_RUNS;
	}
	beside->seconds += (double)(kills_now_ns() - began) * 1e-9;
	beside->calls += calls_of(other) - calls;
	return good && !kills_job_broken(shared, other);
}

static int compare(const void *one, const void *another)
{
	double a = *(const double *)one, b = *(const double *)another;
	return a < b ? -1 : a > b;
}

static double rate(const struct beside *beside)
{
	return beside->seconds > 0 ? (double)beside->calls / beside->seconds : 0;
}

static void report(const struct kills_shared *shared, struct tally *tally, bool good, unsigned left, double seconds)
{
	const struct kills_job *other = &shared->jobs[1];
	unsigned long long wrong = 0, n = tally->kills;
	for (int rank = 0; rank < other->nranks; rank++)
		wrong += atomic_load(&other->ranks[rank].wrong);
	qsort(tally->logged, n, sizeof(double), compare);
	qsort(tally->on, n, sizeof(double), compare);
	printf("%s: seed %llu, %d ranks beside %d, %d domain%s: %llu ranks and %llu routers killed in %.0f s; %llu "
	       "others told by name, after %.1f ms (median), %.1f at most, and had gone on and left after %.0f, %.0f; "
	       "the second job made %llu calls, %llu wrong, %.0f a second, and %.0f beside jobs that end in order; %u "
	       "left\n",
	       good && !wrong && !left ? "ok" : "not ok", shared->options.seed, shared->options.nranks, other->nranks,
	       shared->options.domains, shared->options.domains == 1 ? "" : "s", n, tally->routers, seconds,
	       tally->named, n ? tally->logged[n / 2] * 1e3 : 0, n ? tally->logged[n - 1] * 1e3 : 0,
	       n ? tally->on[n / 2] * 1e3 : 0, n ? tally->on[n - 1] * 1e3 : 0, calls_of(other), wrong,
	       rate(&tally->killed), rate(&tally->in_order), left);
}

/*
 * At rest: connections that have ended are noticed a little later, and memory that its owner has freed within the time
 * that idle imports stay. Memory of the second job, over the double of CUDA, is not counted: the router has mapped what
 * of it was used of late, which differs with the job's pace.
 */
static void hold_router(const struct kills_shared *shared, const struct kills_held *first, struct kills_held *held)
{
	const struct kills_job *other = &shared->jobs[1];
	pid_t router = kills_router(shared->folder, 0), ranks[2];
	for (int rank = 0; rank < 2; rank++)
		ranks[rank] = atomic_load(&other->ranks[rank].pid);
	kills_hold_at_rest(router, ranks, 2, first, held);
}

int kills_of_ranks(struct kills_shared *shared)
{
	const struct kills_options *options = &shared->options;
	struct kills_job *other = &shared->jobs[1];
	struct kills_held first = {0}, last;
	struct tally tally = {.logged = calloc(options->kills + 1, sizeof(double)),
	                      .on = calloc(options->kills + 1, sizeof(double))};
	uint64_t random = options->seed * 0x2545f4914f6cdd1du + 1, began = kills_now_ns();
	kills_job_start(shared, other, 2, false);
	bool good = kills_job_await(shared, other, &other->rounds, 1) == KILLS_RUNS;
	while (good && tally.kills < options->kills && (double)(kills_now_ns() - began) < options->seconds * 1e9) {
		good = one_job(shared, &random, true, &tally) && one_job(shared, &random, false, &tally);
		if (tally.kills == WARM)
			hold_router(shared, NULL, &first);
	}
	/* one that goes on from before is comparable; its jobs come and go */
	hold_router(shared, &first, &last);
	if (tally.kills > WARM && !tally.routers)
		good &= !kills_held_more("the router", &first, &last, 0, true);
	if (good)
		good = kills_job_stop(shared, other) == KILLS_RUNS;
	for (int i = 0; i < 2; i++)
		kills_job_kill(shared, &shared->jobs[i]);
	unsigned left = kills_remains(shared->folder, options->domains, 10), wrong = 0;
	for (int rank = 0; rank < other->nranks; rank++)
		wrong += atomic_load(&other->ranks[rank].wrong) > 0;
	report(shared, &tally, good, left, (double)(kills_now_ns() - began) * 1e-9);
	free(tally.logged);
	free(tally.on);
	return !good || left || wrong;
}
