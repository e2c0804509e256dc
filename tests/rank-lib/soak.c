/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that come, call, leave and die, for minutes, and what their routers have come to hold: `soak --help`. Each rank
 * is a process; some are killed. The routers are looked at when all jobs have gone, so what is there is left over.
 */
#include "bench/command/option.h"
#include "tests/hostility/random.h"
#include "tests/sanitized.h"
#include "tests/status_line.h"

#include "ferry.h"
#include "ipc/attach.h"
#include "ipc/wait.h"

#include <argp.h>
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_DOMAINS 2
#define MOST_JOBS    8
#define MOST_RANKS   4
#define MOST_ROUNDS  4096
#define COUNT        (16 << 10) /* elements of a call, at most */
#define PATIENCE_S   120

static struct options {
	int seconds, interval, domains, jobs, kills;
	uint64_t seed;
	const char *each;
} options = {.seconds = 60, .interval = 5, .domains = 1, .jobs = 3, .kills = 30, .seed = 1};

static const struct argp_option known[] = {
        {"minutes", 'm', "N", 0, "To go on for (default 1)", 0},
        {"seconds", 's', "N", 0, "The same", 0},
        {"interval", 'i', "SECONDS", 0, "Between two looks at the routers (default 5)", 0},
        {"domains", 'd', "N", 0, "1 or 2 routers (default 1)", 0},
        {"jobs", 'j', "N", 0, "At a time (default 3)", 0},
        {"kills", 'k', "PERCENT", 0, "Of the jobs, a rank of which is killed (default 30)", 0},
        {"seed", 'r', "N", 0, "Of what the jobs do (default 1)", 0},
        {"each", 'e', "COMMAND", 0, "A shell command after each look, with ROUTERS, their process ids, in its "
                                    "environment; what fails ends the run", 0},
        {0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	switch (key) {
	case 'm':
		options.seconds = 60 * (int)option_number(value, 1, 10000, "--minutes", state);
		return 0;
	case 's':
		options.seconds = (int)option_number(value, 1, 600000, "--seconds", state);
		return 0;
	case 'i':
		options.interval = (int)option_number(value, 1, 3600, "--interval", state);
		return 0;
	case 'd':
		options.domains = (int)option_number(value, 1, MOST_DOMAINS, "--domains", state);
		return 0;
	case 'j':
		options.jobs = (int)option_number(value, 1, MOST_JOBS, "--jobs", state);
		return 0;
	case 'k':
		options.kills = (int)option_number(value, 0, 100, "--kills", state);
		return 0;
	case 'r':
		options.seed = (uint64_t)option_number(value, 0, INT32_MAX, "--seed", state);
		return 0;
	case 'e':
		options.each = value;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp command = {
        known, parse, NULL,
        "Has jobs join, call, split, leave and lose ranks on routers that it starts, and prints what the routers hold "
        "when nobody is there.\vExit code 1: a result was wrong, a rank hung, something was left behind, or the "
        "routers hold more than they did.\n\n  soak --minutes 30 --domains 2",
        NULL, NULL, NULL};

static char directory[] = "/tmp/ferry-soak-XXXXXX";
static pid_t routers[MOST_DOMAINS];

static void fail(const char *what, unsigned long long value)
{
	fprintf(stderr, "soak: %s (%llu)\n", what, value);
	exit(1);
}

static void doze_ms(long ms)
{
	nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- a rank ---- */

/* What a rank is told; the same on all of its job but `rank`. */
struct part {
	uint64_t state; /* of the job's random numbers */
	int rank, nranks;
	bool harmed;    /* one of the job is killed: errors are to be expected */
	ferryUniqueId name;
};

static bool check(ferryResult_t result, const struct part *part)
{
	if (result && !part->harmed)
		fprintf(stderr, "soak: rank %d of %d: %s: %s\n", part->rank, part->nranks, ferryGetErrorString(result),
		        ferryGetLastError(NULL));
	return !result;
}

/* The sum of what all have put in, and the same the next time. */
static bool reduce(const struct part *part, ferryComm_t comm, ferryStream_t stream, uint32_t *buffer, size_t count,
                   uint32_t round)
{
	uint32_t n = (uint32_t)part->nranks;
	for (size_t i = 0; i < count; i++)
		buffer[i] = round * 77 + (uint32_t)i * (uint32_t)(part->rank + 1);
	if (!check(ferryAllReduce(buffer, buffer, count, ferryUint32, ferrySum, comm, stream), part) ||
	    !check(ferryStreamSynchronize(stream), part))
		return false;
	for (size_t i = 0; i < count; i++)
		if (buffer[i] != n * round * 77 + (uint32_t)i * (n * (n + 1) / 2)) {
			fprintf(stderr, "soak: rank %d of %d: element %zu is wrong\n", part->rank, part->nranks, i);
			_exit(1);
		}
	return true;
}

static bool split(const struct part *part, ferryComm_t comm)
{
	ferryComm_t other;
	int nranks = 0;
	if (!check(ferryCommSplit(comm, part->rank % 2, part->rank, &other, NULL), part))
		return false;
	bool well = check(ferryCommCount(other, &nranks), part);
	return (part->harmed ? ferryCommAbort(other) : ferryCommDestroy(other)) == ferrySuccess && well;
}

/* Exit code 0: all went well, or ended with an error in a job that lost a rank. */
static void rank_main(struct part *part)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	ferryComm_t comm;
	ferryStream_t stream;
	uint32_t *buffer = malloc(COUNT * sizeof *buffer), rounds = 1 + (uint32_t)random_below(&part->state, 60);
	bool splits = random_below(&part->state, 4) == 0;
	config.ordinal = part->rank;
	config.domain = part->rank % options.domains;
	if (!check(ferryCommInitRankConfig(&comm, part->nranks, part->name, part->rank, &config), part))
		_exit(!part->harmed);
	bool well = check(ferryStreamCreate(&stream, part->rank), part);
	for (uint32_t round = 0; well && round < rounds; round++)
		well = reduce(part, comm, stream, buffer, 1 + random_below(&part->state, COUNT), round);
	if (well && splits)
		well = split(part, comm);
	ferryStreamDestroy(stream);
	well &= (well && !part->harmed ? ferryCommDestroy(comm) : ferryCommAbort(comm)) == ferrySuccess;
	free(buffer);
	_exit(well || part->harmed ? 0 : 1);
}

/* ---- jobs ---- */

static struct job {
	pid_t ranks[MOST_RANKS];
	int nranks, victim; /* -1: none is killed */
	uint64_t kill_at, since;
} jobs[MOST_JOBS];

static uint64_t begun, killed;

static void job_start(struct job *job)
{
	uint64_t state = random_begin(options.seed, begun++);
	struct part part = {.nranks = 2 + (int)random_below(&state, MOST_RANKS - 1)};
	bool kills = random_below(&state, 100) < (uint64_t)options.kills;
	*job = (struct job){.nranks = part.nranks, .victim = -1, .since = ferry_now_ns()};
	if (kills) {
		job->victim = (int)random_below(&state, (uint64_t)part.nranks);
		job->kill_at = job->since + random_below(&state, 120) * 1000000;
	}
	part.harmed = kills;
	part.state = random_next(&state);
	if (ferryGetUniqueId(&part.name))
		fail("no name for a communicator", begun);
	for (part.rank = 0; part.rank < part.nranks; part.rank++) {
		pid_t child = fork();
		if (child < 0)
			fail("fork", begun);
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			rank_main(&part);
		}
		job->ranks[part.rank] = child;
	}
}

static bool job_looks(struct job *job)
{
	bool any = false;
	uint64_t now = ferry_now_ns();
	if (job->victim >= 0 && now >= job->kill_at && job->ranks[job->victim]) {
		kill(job->ranks[job->victim], SIGKILL);
		killed++;
		job->kill_at = UINT64_MAX;
	}
	for (int rank = 0; rank < job->nranks; rank++) {
		int status;
		if (!job->ranks[rank])
			continue;
		if (waitpid(job->ranks[rank], &status, WNOHANG) == 0) {
			any = true;
			continue;
		}
		job->ranks[rank] = 0;
		if (status && !(rank == job->victim && WIFSIGNALED(status)))
			fail("a rank has ended with this status", (unsigned)status);
	}
	if (any && now - job->since > PATIENCE_S * 1000000000ull)
		fail("a rank hangs in a job that began as number", begun);
	return any;
}

/* New jobs in place of those that are over, until then; and none more until all are. */
static void run_until(uint64_t until)
{
	bool any = true;
	while (any) {
		any = false;
		for (int i = 0; i < options.jobs; i++) {
			if (!job_looks(&jobs[i]) && ferry_now_ns() < until)
				job_start(&jobs[i]);
			any |= job_looks(&jobs[i]);
		}
		doze_ms(2);
	}
}

/* ---- what routers hold ---- */

struct held {
	long rss_kb, threads, descriptors, memory_files, sockets, jobs, staging;
};

static long number_in(const char *path, const char *name)
{
	char line[256];
	long value = -1;
	FILE *file = fopen(path, "r");
	while (file && value < 0 && fgets(line, sizeof line, file))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name));
	if (file)
		fclose(file);
	return value;
}

static void count_descriptors(pid_t router, struct held *held)
{
	char path[300], target[100];
	struct dirent *entry;
	snprintf(path, sizeof path, "/proc/%d/fd", (int)router);
	DIR *files = opendir(path);
	while (files && (entry = readdir(files))) {
		snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)router, entry->d_name);
		ssize_t length = readlink(path, target, sizeof target - 1);
		target[length < 0 ? 0 : length] = '\0';
		held->descriptors += entry->d_name[0] != '.';
		held->memory_files += !strncmp(target, "/memfd:", 7);
		held->sockets += !strncmp(target, "socket:", 7);
	}
	if (files)
		closedir(files);
}

static long says(const char *text, const char *name)
{
	const char *found = strstr(text, name);
	return found ? atol(found + strlen(name)) : -1;
}

static struct held look_once(int domain)
{
	char path[300], text[512];
	snprintf(path, sizeof path, "%s/router-%d.sock", directory, domain);
	if (status_line(path, text, sizeof text))
		fail("no answer of the router of domain", (unsigned)domain);
	struct held held = {.jobs = says(text, " jobs="), .staging = says(text, " staging=")};
	snprintf(path, sizeof path, "/proc/%d/status", (int)routers[domain]);
	held.rss_kb = number_in(path, "VmRSS:");
	held.threads = number_in(path, "Threads:");
	count_descriptors(routers[domain], &held);
	return held;
}

/* When its last job has gone, and the client that asks for its status: a moment after the job's ranks have. */
static struct held look(int domain)
{
	struct held held = look_once(domain);
	for (int again = 0; again < 20; again++) {
		doze_ms(5);
		struct held now = look_once(domain);
		if (now.descriptors + now.threads + now.jobs <= held.descriptors + held.threads + held.jobs)
			held = now;
	}
	return held;
}

static struct held seen[MOST_DOMAINS][MOST_ROUNDS];
static int rounds;

static void print_header(void)
{
	printf("%8s %7s %6s %6s %9s %8s %12s %8s %6s %6s %9s\n", "seconds", "jobs", "kills", "domain", "VmRSS KB",
	       "threads", "descriptors", "sockets", "memfds", "left", "staging");
}

static void look_at_all(uint64_t since)
{
	for (int domain = 0; domain < options.domains; domain++) {
		struct held held = look(domain);
		seen[domain][rounds] = held;
		printf("%8.0f %7llu %6llu %6d %9ld %8ld %12ld %8ld %6ld %6ld %9ld\n",
		       (double)(ferry_now_ns() - since) / 1e9, (unsigned long long)begun, (unsigned long long)killed,
		       domain, held.rss_kb, held.threads, held.descriptors, held.sockets, held.memory_files, held.jobs,
		       held.staging);
	}
	fflush(stdout);
	rounds++;
}

/* ---- the verdict ---- */

static int ascending(const void *one, const void *other)
{
	long a = *(const long *)one, b = *(const long *)other;
	return (a > b) - (a < b);
}

static long median(int domain, int from, int to, size_t field)
{
	long values[MOST_ROUNDS];
	for (int i = from; i < to; i++)
		values[i - from] = *(long *)((char *)&seen[domain][i] + field);
	qsort(values, (size_t)(to - from), sizeof *values, ascending);
	return values[(to - from) / 2];
}

/* The last third of the looks against the first behind a warm-up of a fifth. */
static bool is_flat(int domain, const char *name, size_t field, long slack)
{
	int warm = rounds / 5, third = (rounds - warm) / 3 > 0 ? (rounds - warm) / 3 : 1;
	long first = median(domain, warm, warm + third, field), last = median(domain, rounds - third, rounds, field);
	bool flat = last <= first + slack;
	printf("domain %d: %-12s %9ld, and %9ld at the end: %s\n", domain, name, first, last,
	       flat ? "flat" : "IT HAS GROWN");
	return flat;
}

static bool verdict(void)
{
	bool flat = true;
	for (int domain = 0; domain < options.domains; domain++) {
		long kb = median(domain, rounds / 5, rounds, offsetof(struct held, rss_kb));
		flat &= is_flat(domain, "VmRSS KB", offsetof(struct held, rss_kb),
		                SANITIZED ? LONG_MAX / 2 /* its own memory */ : 512 + kb / 20);
		flat &= is_flat(domain, "threads", offsetof(struct held, threads), 0);
		flat &= is_flat(domain, "descriptors", offsetof(struct held, descriptors), 0);
		flat &= is_flat(domain, "memfds", offsetof(struct held, memory_files), 0);
		flat &= is_flat(domain, "jobs", offsetof(struct held, jobs), 0);
		flat &= is_flat(domain, "staging", offsetof(struct held, staging), 0);
	}
	return flat;
}

/* ---- routers ---- */

static pid_t start_router(int domain)
{
	int pipes[2];
	char number[16], descriptor[16], byte;
	if (pipe(pipes))
		fail("pipe", 0);
	snprintf(number, sizeof number, "%d", domain);
	snprintf(descriptor, sizeof descriptor, "%d", pipes[1]);
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pipes[0]);
		execl(FERRY_ROUTER_EXE, "ferry-router", "--domain", number, "--socket-dir", directory, "--ready-fd",
		      descriptor, (char *)NULL);
		_exit(2);
	}
	close(pipes[1]);
	if (read(pipes[0], &byte, 1) != 1)
		fail("a router does not start, of domain", (unsigned)domain);
	close(pipes[0]);
	return child;
}

static void end_routers(void)
{
	char path[300];
	int left = 0, status;
	struct dirent *entry;
	for (int domain = 0; domain < options.domains; domain++) {
		kill(routers[domain], SIGTERM);
		if (waitpid(routers[domain], &status, 0) != routers[domain] || status)
			fail("a router ended with this status", (unsigned)status);
	}
	DIR *files = opendir(directory);
	while (files && (entry = readdir(files))) {
		snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
		left += strstr(entry->d_name, ".sock") && !strstr(entry->d_name, ".lock");
		unlink(path);
	}
	closedir(files);
	rmdir(directory);
	if (left)
		fail("sockets are left of routers", (unsigned)left);
	if (waitpid(-1, &status, WNOHANG) >= 0)
		fail("processes are left", 0);
}

static void run_each(void)
{
	char text[64] = "";
	if (!options.each)
		return;
	for (int domain = 0; domain < options.domains; domain++)
		snprintf(text + strlen(text), sizeof text - strlen(text), "%d ", (int)routers[domain]);
	setenv("ROUTERS", text, 1);
	fflush(stdout);
	int status = system(options.each);
	if (status)
		fail("the command of --each ended with this status", (unsigned)status);
}

int main(int argc, char **argv)
{
	char text[8];
	argp_parse(&command, argc, argv, 0, NULL, NULL);
	snprintf(text, sizeof text, "%d", options.domains);
	if (!mkdtemp(directory))
		fail("mkdtemp", 0);
	setenv("FERRY_SOCKET_DIR", directory, 1);
	setenv("FERRY_ROUTER", "required", 1);
	setenv("FERRY_DOMAINS", text, 1);
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_STAGING", "2M", 0);
	setenv("FERRY_ATTACH_TIMEOUT", "10", 0); /* of a rank that waits for one that was killed before it came */
	setenv("FERRY_LOG", "error", 0); /* a line for each job that loses a rank otherwise */
	for (int domain = 0; domain < options.domains; domain++)
		routers[domain] = start_router(domain);
	uint64_t since = ferry_now_ns();
	print_header();
	while (ferry_now_ns() - since < (uint64_t)options.seconds * 1000000000u && rounds < MOST_ROUNDS) {
		run_until(ferry_now_ns() + (uint64_t)options.interval * 1000000000u);
		look_at_all(since);
		run_each();
	}
	bool flat = verdict();
	end_routers();
	printf("%llu jobs, %llu ranks killed: %s\n", (unsigned long long)begun, (unsigned long long)killed,
	       flat ? "flat, and nothing is left" : "NOT FLAT");
	return flat ? 0 : 1;
}
