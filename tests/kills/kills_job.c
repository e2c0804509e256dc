/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kills/kills_job.h"

#include "tests/commands_folder.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t ferryrun; /* 0: none, or it has ended */
static int ferryrun_status;

/* ---- beginning ---- */

static void start_ferryrun(const struct kills_shared *shared)
{
	char self[400] = "", path[512], commands[400], ranks[16], domains[16], spares[32];
	snprintf(ranks, sizeof ranks, "%d", shared->options.nranks);
	snprintf(domains, sizeof domains, "%d", shared->options.domains);
	snprintf(spares, sizeof spares, "--spare=%u", shared->options.spares);
	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || !commands_folder(commands, sizeof commands))
		exit(1);
	snprintf(path, sizeof path, "%s/ferryrun", commands);
	fflush(NULL);
	ferryrun = fork();
	if (ferryrun)
		return;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	char *some[] = {path, "-n", ranks, "--fork", "--domains", domains, spares, "--", self, "--as-a-rank", NULL};
	char *none[] = {path, "-n", ranks, "--fork", "--domains", domains, "--", self, "--as-a-rank", NULL};
	execv(path, shared->options.spares ? some : none);
	perror(path);
	_exit(1);
}

void kills_job_start(struct kills_shared *shared, struct kills_job *job, int nranks, bool loses_ranks)
{
	memset(job, 0, sizeof *job);
	job->nranks = nranks;
	job->loses_ranks = loses_ranks;
	if (ferryGetUniqueId(&job->id) || ferryGetUniqueId(&job->next) || ferryGetUniqueId(&job->heir)) {
		printf("not ok: no name for a communicator: %s\n", ferryGetLastError(NULL));
		exit(1);
	}
	if (shared->options.by_ferryrun) {
		start_ferryrun(shared);
		return;
	}
	fflush(NULL);
	for (int rank = 0; rank < nranks; rank++) {
		pid_t child = fork();
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(kills_rank_main(shared, job, rank));
		}
		atomic_store(&job->ranks[rank].pid, child);
	}
}

/* ---- watching ---- */

/* Also routers: they are this process's children when the rank that started them is gone. */
static void collect(struct kills_shared *shared)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == ferryrun) {
			ferryrun = 0;
			ferryrun_status = status;
		}
		for (int i = 0; i < 2; i++)
			for (int rank = 0; rank < shared->jobs[i].nranks; rank++)
				if (atomic_load(&shared->jobs[i].ranks[rank].pid) == pid)
					atomic_store(&shared->jobs[i].ranks[rank].ended, status + 1);
	}
}

static const char *how(int status, char *text, size_t bytes)
{
	snprintf(text, bytes, WIFSIGNALED(status) ? "by signal %d" : "with exit code %d",
	         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	return text;
}

bool kills_job_broken(struct kills_shared *shared, struct kills_job *job)
{
	char text[64];
	bool broken = false;
	collect(shared);
	for (int rank = 0; rank < job->nranks; rank++) {
		struct kills_rank *one = &job->ranks[rank];
		int ended = atomic_load(&one->ended);
		if (atomic_load(&one->told_ns))
			printf("not ok: rank %d was told, at call %u: %s\n", rank, atomic_load(&one->step), one->text);
		else if (ended)
			printf("not ok: rank %d has ended, %s\n", rank, how(ended - 1, text, sizeof text));
		broken |= atomic_load(&one->told_ns) || ended;
	}
	if (shared->options.by_ferryrun && !ferryrun) {
		printf("not ok: ferryrun has ended, %s\n", how(ferryrun_status, text, sizeof text));
		broken = true;
	}
	return broken;
}

static unsigned long long moved(const struct kills_job *job)
{
	unsigned long long sum = atomic_load(&job->ready) + atomic_load(&job->rounds);
	for (int rank = 0; rank < job->nranks; rank++)
		sum += atomic_load(&job->ranks[rank].batches);
	return sum;
}

static void report_hung(const struct kills_job *job, double seconds)
{
	printf("not ok: nothing has moved for %.0f s: round %u;", seconds, atomic_load(&job->rounds));
	for (int rank = 0; rank < job->nranks; rank++)
		printf(" rank %d (process %d) in call %u, %llu batches;", rank, atomic_load(&job->ranks[rank].pid),
		       atomic_load(&job->ranks[rank].step), atomic_load(&job->ranks[rank].batches));
	printf("\n");
	fflush(stdout);
}

/* Whether it goes on to wait. */
struct watch {
	unsigned long long moved;
	uint64_t since;
};

static enum kills_end look(struct kills_shared *shared, struct kills_job *job, struct watch *watch)
{
	unsigned long long now = moved(job);
	if (kills_job_broken(shared, job))
		return KILLS_DEAD;
	if (now != watch->moved || !watch->since)
		*watch = (struct watch){now, kills_now_ns()};
	if ((double)(kills_now_ns() - watch->since) < shared->options.limit * 1e9) {
		kills_doze_us(500);
		return KILLS_RUNS;
	}
	report_hung(job, shared->options.limit);
	return KILLS_HUNG;
}

enum kills_end kills_job_await(struct kills_shared *shared, struct kills_job *job, atomic_uint *what, unsigned least)
{
	struct watch watch = {0};
	enum kills_end end = KILLS_RUNS;
	while (atomic_load(what) < least && end == KILLS_RUNS)
		end = look(shared, job, &watch);
	return end;
}

static double longest_since(const struct kills_rank *rank, uint64_t ns)
{
	unsigned long long last = atomic_load(&rank->batches), later = 0;
	uint64_t longest = 0;
	for (unsigned long long i = last - 1; i > 0 && i + KILLS_STAMPS / 2 > last; i--) {
		later = atomic_load(&rank->stamps[i % KILLS_STAMPS]);
		uint64_t before = atomic_load(&rank->stamps[(i - 1) % KILLS_STAMPS]);
		if (later < ns)
			break;
		longest = later - before > longest ? later - before : longest;
	}
	return (double)longest * 1e-9;
}

enum kills_end kills_job_pause(struct kills_shared *shared, struct kills_job *job, uint64_t ns, unsigned batches,
                               double *pause)
{
	unsigned long long least[KILLS_RANKS];
	struct watch watch = {0};
	for (int rank = 0; rank < job->nranks; rank++)
		least[rank] = atomic_load(&job->ranks[rank].batches) + batches;
	*pause = 0;
	for (int rank = 0; rank < job->nranks; rank++) {
		while (atomic_load(&job->ranks[rank].batches) < least[rank]) {
			enum kills_end end = look(shared, job, &watch);
			if (end != KILLS_RUNS)
				return end;
		}
		double longest = longest_since(&job->ranks[rank], ns);
		*pause = longest > *pause ? longest : *pause;
	}
	return KILLS_RUNS;
}

/* ---- the end ---- */

int kills_rank_end(struct kills_shared *shared, struct kills_job *job, int rank)
{
	uint64_t until = kills_now_ns() + (uint64_t)(shared->options.limit * 1e9);
	while (!atomic_load(&job->ranks[rank].ended) && kills_now_ns() < until) {
		collect(shared);
		kills_doze_us(500);
	}
	int ended = atomic_load(&job->ranks[rank].ended);
	if (!ended)
		printf("not ok: rank %d does not end within %.0f s\n", rank, shared->options.limit);
	return ended ? ended - 1 : -1;
}

static enum kills_end end_of_ferryrun(struct kills_shared *shared)
{
	char text[64];
	uint64_t until = kills_now_ns() + (uint64_t)(shared->options.limit * 1e9);
	while (ferryrun && kills_now_ns() < until) {
		collect(shared);
		kills_doze_us(500);
	}
	if (ferryrun || ferryrun_status)
		printf("not ok: ferryrun %s\n", ferryrun ? "does not end" : how(ferryrun_status, text, sizeof text));
	return ferryrun ? KILLS_HUNG : ferryrun_status ? KILLS_DEAD : KILLS_RUNS;
}

enum kills_end kills_job_stop(struct kills_shared *shared, struct kills_job *job)
{
	enum kills_end end = KILLS_RUNS;
	atomic_store(&job->stop, true);
	if (shared->options.by_ferryrun)
		return end_of_ferryrun(shared);
	for (int rank = 0; rank < job->nranks && end == KILLS_RUNS; rank++) {
		int status = kills_rank_end(shared, job, rank);
		end = status < 0 ? KILLS_HUNG : status ? KILLS_DEAD : KILLS_RUNS;
		if (end == KILLS_DEAD)
			printf("not ok: rank %d ended with status %d: %s\n", rank, status, job->ranks[rank].text);
	}
	return end;
}

void kills_job_kill(struct kills_shared *shared, struct kills_job *job)
{
	collect(shared);
	for (int rank = 0; rank < job->nranks; rank++)
		if (atomic_load(&job->ranks[rank].pid) && !atomic_load(&job->ranks[rank].ended))
			kill(atomic_load(&job->ranks[rank].pid), SIGKILL);
	if (ferryrun)
		kill(ferryrun, SIGTERM);
}
