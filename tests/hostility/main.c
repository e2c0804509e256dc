/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile ranks against routers that serve others, too: `hostility --help`. What ranks on GPUs write is left to the
 * suites hostile and hostile_puts, which are run with more rounds.
 */
#include "tests/hostility/hostility.h"

#include "bench/command/option.h"
#include "ipc/wait.h"
#include "tests/folder.h"

#include <argp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct options options = {.writes = 4000, .seed = 1, .domains = 1, .patience_s = 60, .parts = "aml"};
struct shared *shared;
char directory[] = "/tmp/ferry-hostility-XXXXXX";

static pid_t routers[MOST_DOMAINS], others;

static const struct argp_option known[] = {
        {"writes", 'n', "N", 0, "What hostile ranks write, all together (default: 4000)", 0},
        {"seed", 's', "N", 0, "The same jobs write the same again (default: 1)", 0},
        {"first", 'f', "N", 0, "Begin with that job of the seed, to see one again (default: 0)", 0},
        {"domains", 'd', "N", 0, "1 or 2 routers (default: 1)", 0},
        {"parts", 'p', "LETTERS", 0, "a: words of arenas, by ranks on host devices; d: descriptors of every kind, by "
                                     "other users, if root runs this; l: messages to routers; m: what ranks on "
                                     "GPUs submit, and words of theirs (default: aml)", 0},
        {"patience", 't', "SECONDS", 0, "A job that takes longer has run on in silence (default: 60)", 0},
        {"verbose", 'v', NULL, 0, "Say what each hostile job came to", 0},
        {0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	switch (key) {
	case 'n':
		options.writes = (uint64_t)option_number(value, 1, 1000000000, "--writes", state);
		return 0;
	case 's':
		options.seed = (uint64_t)option_number(value, 0, INT32_MAX, "--seed", state);
		return 0;
	case 'f':
		options.first = (uint64_t)option_number(value, 0, INT32_MAX, "--first", state);
		return 0;
	case 'd':
		options.domains = (int)option_number(value, 1, MOST_DOMAINS, "--domains", state);
		return 0;
	case 't':
		options.patience_s = (int)option_number(value, 1, 3600, "--patience", state);
		return 0;
	case 'p':
		if (!value[0] || strspn(value, "adml") != strlen(value))
			argp_failure(state, OPTION_EXIT, 0, "parts are letters of a, d, m and l, not \"%s\"", value);
		options.parts = value;
		return 0;
	case 'v':
		options.verbose = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp command = {
        known, parse, NULL,
        "Has hostile ranks write what they should not, while another job runs on the same routers.\v"
        "Each part has the same number of the writes. The routers have to live, each bit of the other job's results to "
        "be right, and a hostile job has to make all its calls, to end with a message, or to wait until it is ended. "
        "Exit code 1: not so, and the lines say which job of which seed to look at.\n\n"
        "  build-asan/tests/bin/hostility --writes 100000",
        NULL, NULL, NULL};

/* ---- routers ---- */

static pid_t start_router(int domain)
{
	int pipes[2];
	char number[16], descriptor[16], tenants[sizeof directory + 16], byte;
	if (pipe(pipes))
		exit(2);
	snprintf(tenants, sizeof tenants, "%s/tenants", directory);
	snprintf(number, sizeof number, "%d", domain);
	snprintf(descriptor, sizeof descriptor, "%d", pipes[1]);
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pipes[0]);
		execl(FERRY_ROUTER_EXE, "ferry-router", "--domain", number, "--socket-dir", directory, "--config",
		      tenants, "--ready-fd", descriptor, (char *)NULL);
		_exit(2);
	}
	close(pipes[1]);
	if (read(pipes[0], &byte, 1) != 1) {
		fprintf(stderr, "the router of domain %d does not start\n", domain);
		exit(2);
	}
	close(pipes[0]);
	return child;
}

static bool is_there(pid_t *process, const char *what)
{
	int status;
	if (*process && waitpid(*process, &status, WNOHANG) == 0)
		return true;
	if (*process)
		fprintf(stderr, "%s ended, with status %#x\n", what, (unsigned)status);
	*process = 0;
	return false;
}

bool all_is_well(void)
{
	bool well = true;
	for (int domain = 0; domain < options.domains; domain++)
		well &= is_there(&routers[domain], domain ? "the router of domain 1" : "the router of domain 0");
	if (atomic_load(&shared->failed))
		fprintf(stderr, "the other job failed: %s\n", shared->failure);
	if (atomic_load(&shared->wrong))
		fprintf(stderr, "the other job: %llu wrong elements\n",
		        (unsigned long long)atomic_load(&shared->wrong));
	well &= is_there(&others, "the other job");
	return well && !atomic_load(&shared->failed) && !atomic_load(&shared->wrong);
}

void progress(const char *what, uint64_t done, uint64_t of)
{
	static uint64_t logged;
	uint64_t now = ferry_now_ns();
	if (now - logged < 1000000000u)
		return;
	logged = now;
	printf("%s: %llu of %llu; the other job: %llu rounds\n", what, (unsigned long long)done, (unsigned long long)of,
	       (unsigned long long)atomic_load(&shared->rounds));
	fflush(stdout);
}

static bool end_process(pid_t process, const char *what)
{
	int status = 0;
	for (int waited = 0; process && waited < options.patience_s * 1000; waited++) {
		if (waitpid(process, &status, WNOHANG) == process) {
			if (status)
				fprintf(stderr, "%s ended with status %#x\n", what, (unsigned)status);
			return !status;
		}
		usleep(1000);
	}
	if (process)
		fprintf(stderr, "%s does not end\n", what);
	return false;
}

static bool end_all(void)
{
	atomic_store(&shared->stop, 1);
	bool well = end_process(others, "the other job");
	for (int domain = 0; domain < options.domains; domain++) {
		if (routers[domain])
			kill(routers[domain], SIGTERM);
		well &= end_process(routers[domain], "a router");
	}
	return well && !atomic_load(&shared->wrong);
}

/* The routers' sockets are for everybody. */
static void write_tenants(void)
{
	char name[sizeof directory + 16];
	snprintf(name, sizeof name, "%s/tenants", directory);
	FILE *file = fopen(name, "w");
	if (!file || chmod(directory, 0755))
		exit(2);
	fprintf(file, "[tenant hostile]\nusers = %d\n", HOSTILE_TENANT);
	fclose(file);
}

static void prepare(void)
{
	char text[8];
	snprintf(text, sizeof text, "%d", options.domains);
	if (!mkdtemp(directory))
		exit(2);
	write_tenants();
	setenv("FERRY_SOCKET_DIR", directory, 1);
	setenv("FERRY_ROUTER", "required", 1);
	setenv("FERRY_DOMAINS", text, 1);
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_STAGING", "2M", 0);
	setenv("FERRY_TIMEOUT", "1", 0);
	setenv("FERRY_ON_TIMEOUT", "fail", 0);
	setenv("FERRY_LOG", options.verbose ? "warn" : "error", 0); /* a line for each job that fails otherwise */
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		exit(2);
}

/* ---- parts ---- */

/* A suite beside this command, with more rounds, which has routers and another job of its own. */
static bool run_suite(const char *suite, const char *test, uint64_t writes)
{
	char path[400], number[24], seed[24];
	int status;
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 40);
	snprintf(number, sizeof number, "%llu", (unsigned long long)writes);
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)options.seed);
	if (length < 0)
		return false;
	path[length] = '\0';
	snprintf(strrchr(path, '/') + 1, 40, "%s", suite);
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		setenv("FERRY_HOSTILE_WRITES", number, 1);
		setenv("FERRY_HOSTILE_SEED", seed, 1);
		unsetenv("FERRY_STAGING");
		execl(path, suite, test, (char *)NULL);
		_exit(2);
	}
	waitpid(child, &status, 0);
	if (status)
		fprintf(stderr, "%s %s with seed %s: status %#x\n", suite, test, seed, (unsigned)status);
	return !status;
}

static bool run_parts(void)
{
	uint64_t count = strlen(options.parts);
	bool well = true;
	for (const char *part = options.parts; *part && well; part++) {
		uint64_t writes = (options.writes + count - 1) / count;
		if (*part == 'a')
			well = scribble(writes);
		else if (*part == 'd')
			well = hand_over(writes);
		else if (*part == 'l')
			well = write_letters(writes);
		else
			well = run_suite("hostile", "anything_at_all_harms_nobody_else", writes / 2) &&
			       run_suite("hostile_puts", "anything_anywhere_in_the_arena_harms_nobody_else",
			                 writes / 2);
	}
	return well;
}

int main(int argc, char **argv)
{
	argp_parse(&command, argc, argv, 0, NULL, NULL);
	prepare();
	for (int domain = 0; domain < options.domains; domain++)
		routers[domain] = start_router(domain);
	others = others_start();
	bool well = run_parts();
	well &= all_is_well();
	unsigned long long rounds = atomic_load(&shared->rounds);
	well &= end_all();
	folder_remove(directory);
	printf("the other job: %llu calls, %llu wrong elements\n%s\n", rounds,
	       (unsigned long long)atomic_load(&shared->wrong), well ? "all is well" : "NOT WELL");
	return well ? 0 : 1;
}
