/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/tune.h"

#include "bench/command/option.h"
#include "bench/command/record.h"
#include "bench/command/sibling.h"
#include "bench/limits/command.h"
#include "bench/peers/nccl_library.h"
#include "bench/perf/tune_ranks.h"
#include "bench/rank/gpu.h"
#include "ipc/error.h"
#include "ipc/nccl_settings.h"
#include "rank-lib/program/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME        "ferry-perf tune"
#define QUICK_S     5  /* seconds that --quick takes on two GPUs, about */
#define QUICK_END_S 25 /* seconds after which ferryrun ends the ranks: something hangs */
#define END_S       120

struct arguments {
	struct tune_options how;
	bool once, rank;
};

enum option_key { KEY_QUICK = 256, KEY_ONCE, KEY_RANK };

static const struct argp_option options[] = {
        {"quick", KEY_QUICK, NULL, 0, "Fewer calls: a third of the time, and more noise", 0},
        {NULL, 'e', "BYTES", 0, "Largest size, of 1M, 4M, 16M, 64M and 256M (default 256M)", 0},
        {"once", KEY_ONCE, NULL, 0,
         "Only where the file has nothing of these settings and GPUs, and without a word where there is nothing to "
         "measure, as ferryrun --nccl wants it", 0},
        {"rank", KEY_RANK, NULL, OPTION_HIDDEN, "", 0},
        {0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	switch (key) {
	case KEY_QUICK:
		arguments->how.quick = true;
		return 0;
	case 'e':
		arguments->how.most = option_bytes(value, "-e", state);
		if (arguments->how.most < TUNE_LEAST || arguments->how.most > TUNE_MOST)
			argp_error(state, "-e %s: from 1M to 256M", value);
		return 0;
	case KEY_ONCE:
		arguments->once = true;
		return 0;
	case KEY_RANK:
		arguments->rank = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int failed(const char *why)
{
	fprintf(stderr, NAME ": %s\n", why);
	return 1;
}

/* ---- what there is ---- */

/*
 * How many GPUs this process probably sees, without the driver, which takes a while to start: as many as the user
 * names, else as the system has. 0: not known.
 */
static int guess_gpus(void)
{
	const char *named = getenv("CUDA_VISIBLE_DEVICES");
	char path[32];
	int count = 0;
	if (named) {
		for (count = *named != '\0'; *named; named++)
			count += *named == ',';
		return count;
	}
	do
		snprintf(path, sizeof path, "/dev/nvidia%d", count);
	while (!access(path, F_OK) && ++count < FERRY_MAX_RANKS);
	return count;
}

/* Why nothing can be measured here; NULL if it can. */
static const char *refuse(int *gpus)
{
	static char text[96];
	static struct nccl_library nccl;
	const char *missing = gpu_missing();
	if (missing)
		return missing;
	if (gpu_driver->DeviceGetCount(gpus))
		*gpus = 0;
	if (*gpus > FERRY_MAX_RANKS)
		*gpus = FERRY_MAX_RANKS;
	if (*gpus >= 2)
		return nccl_library_open(&nccl);
	snprintf(text, sizeof text, "it measures ways between GPUs, and there %s %d", *gpus == 1 ? "is" : "are", *gpus);
	return text;
}

/* Whether the file has rows of these settings and so many ranks. Error: it cannot be read. */
static ferryResult_t look(int ranks, bool *known)
{
	static struct ferry_limits limits;
	char settings[20];
	bool found;
	*known = false;
	ferryResult_t result = ferry_limits_load(&limits, &found);
	ferry_limits_print_settings(ferry_nccl_settings(), settings);
	for (int i = 0; i < limits.ncollectives && !*known; i++)
		*known = limits.collectives[i].ranks == ranks && !strcmp(limits.collectives[i].settings, settings);
	return result;
}

/*
 * Makes the file's folder, before anything is measured, and locks it until this process ends: two processes that
 * measure at once would disturb each other. Where there are no such locks, they do.
 */
static ferryResult_t prepare_file(void)
{
	char path[512];
	ferryResult_t result = ferry_limits_path(path, sizeof path);
	if (!result && !(result = limits_make_folders(path)) && !record_can_write(path))
		result = ferry_fail(ferrySystemError, "writing %s: %s", path, strerror(errno));
	if (result)
		return result;
	int folder = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (folder >= 0 && flock(folder, LOCK_EX) && errno == EINTR)
		;
	return ferrySuccess;
}

/* ---- the ranks ---- */

static void become_ferryrun(const struct tune_options *how, int ranks)
{
	char ferryrun[4096], self[4096], count[16], most[24], end[16];
	sibling_path(ferryrun, sizeof ferryrun, "ferryrun");
	sibling_path(self, sizeof self, "ferry-perf");
	snprintf(count, sizeof count, "%d", ranks);
	snprintf(most, sizeof most, "%llu", (unsigned long long)how->most);
	snprintf(end, sizeof end, "%d", how->quick ? QUICK_END_S : END_S);
	/* one fabric has the whole call, as in NCCL programs; and NCCL's times are its own where Ferry is preloaded */
	setenv("FERRY_SHARES", "host=0", 1);
	setenv("FERRY_NCCL", "off", 1);
	execl(ferryrun, ferryrun, "-n", count, "--fork", "--timeout", end, "--grace", "2", "--", self, "tune", "--rank",
	      "-e", most, how->quick ? "--quick" : (char *)NULL, (char *)NULL);
	fprintf(stderr, NAME ": cannot run %s: %s\n", ferryrun, strerror(errno));
	_exit(1);
}

/* The child ends when this process does. */
static pid_t fork_child(void)
{
	pid_t parent = getpid(), child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1); /* it died before the line above */
	return 0;
}

static int run_ranks(const struct tune_options *how, int ranks)
{
	int status = 0;
	pid_t child = fork_child();
	if (child < 0)
		return failed(strerror(errno));
	if (!child)
		become_ferryrun(how, ranks);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return failed(strerror(errno));
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Says what is measured, and silences the libraries: the user has not started these ranks. */
static void announce(int gpus)
{
	fprintf(stderr,
	        "ferryrun: measuring NCCL and Ferry on %d GPUs, once for this machine and these settings "
	        "(about %d s; FERRY_TUNE=off leaves it out)\n",
	        gpus, gpus > 2 ? 2 * QUICK_S : QUICK_S);
	setenv("FERRY_LOG", "error", 1);
	unsetenv("FERRY_DEBUG");
	unsetenv("NCCL_DEBUG");
}

static int tune_all(const struct arguments *arguments)
{
	int gpus = guess_gpus();
	bool known;
	if (arguments->once && gpus && !look(gpus, &known) && known)
		return 0;
	const char *refused = refuse(&gpus);
	if (refused)
		return arguments->once ? 0 : failed(refused);
	if (look(gpus, &known))
		return failed(ferry_last_message());
	if (arguments->once && known)
		return 0;
	if (prepare_file() || look(gpus, &known)) /* which somebody may have written meanwhile */
		return failed(ferry_last_message());
	if (arguments->once && known)
		return 0;
	if (arguments->once)
		announce(gpus);
	/* Two GPUs first: their rows are kept even if something hangs later. */
	int code = gpus > 2 ? run_ranks(&arguments->how, 2) : 0;
	return code ? code : run_ranks(&arguments->how, gpus);
}

int tune_command(int argc, char **argv)
{
	static const struct argp argp = {
	        .options = options,
	        .parser = parse,
	        .doc = "Measures what collectives take on this machine by NCCL with its defaults, by NCCL with 16 "
	               "channels at least, and by Ferry, in rows of calls, on all GPUs, and on two where there are "
	               "more. It prints a table, and keeps it in the file of limits under the settings that the "
	               "environment has now (NCCL's variables, FERRY_FABRICS), for NCCL programs whose calls Ferry "
	               "may carry. Takes about ten seconds for two GPUs; run it on a quiet machine.\v"
	               "ferryrun --nccl does this by itself, with --quick, where the file has nothing of them."};
	static char name[] = NAME;
	struct arguments arguments = {.how = {.most = TUNE_MOST}};
	argv[0] = name;
	argp_parse(&argp, argc, argv, 0, NULL, &arguments);
	return arguments.rank ? tune_rank(&arguments.how) : tune_all(&arguments);
}
