/* SPDX-License-Identifier: Apache-2.0 */
/* ferryrun: routers, then ranks under mpiexec or by itself, and nothing left behind. */
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/launcher.h"
#include "ipc/layout.h"
#include "ipc/process.h"
#include "launch/command.h"
#include "launch/measure_once.h"
#include "launch/preload.h"
#include "launch/run_routers.h"
#include "launch/supervise.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum option_key {
	KEY_DOMAINS = 256,
	KEY_LAYOUT,
	KEY_MPIEXEC,
	KEY_FORK,
	KEY_SPARE,
	KEY_NCCL,
	KEY_WORKERS,
	KEY_JOIN,
	KEY_LOG,
	KEY_TIMEOUT,
	KEY_GRACE,
	KEY_AS_RANK
};

#define EXIT_USAGE 64
#define EXIT_LAUNCH 125 /* ferryrun itself failed, as env(1) and timeout(1) say it */
#define GRACE_S 10

struct arguments {
	unsigned ranks, domains, workers, timeout, grace, spares;
	const char *layout, *mpiexec, *log;
	bool fork, join, as_rank, nccl, nccl_by_name;
	bool alone; /* --nccl without -n: the command starts its ranks itself */
	char **command;
};

static const struct argp_option options[] = {
	{NULL, 'n', "RANKS", 0, "Number of ranks (default 1); -np is understood too", 0},
	{"domains", KEY_DOMAINS, "D", 0,
	 "Split this machine into D domains with a router each (default: its NUMA nodes)", 0},
	{"layout", KEY_LAYOUT, "LAYOUT", 0, "Domains, CPUs and devices, as FERRY_LAYOUT", 0},
	{"mpiexec", KEY_MPIEXEC, "PATH", 0,
	 "Start the ranks with this mpiexec (default: the one on PATH, else --fork; MPICH's and Open MPI's work)", 0},
	{"fork", KEY_FORK, NULL, 0, "Start the ranks without any mpiexec (to MPI each is then a job of its own)", 0},
	{"spare", KEY_SPARE, "N", OPTION_ARG_OPTIONAL,
	 "N more routers per domain stand by (default 1), one of which takes the place of the one that dies", 0},
	{"nccl", KEY_NCCL, "name", OPTION_ARG_OPTIONAL,
	 "Put libferry-nccl.so between COMMAND and NCCL; =name: also for programs that open libnccl.so.2 by name, as "
	 "JAX does. Without -n COMMAND is started once, as it is", 0},
	{"workers", KEY_WORKERS, "N", 0, "Worker threads per router", 0},
	{"timeout", KEY_TIMEOUT, "SECONDS", 0, "End the ranks after so long, with exit code 124", 0},
	{"grace", KEY_GRACE, "SECONDS", 0,
	 "Kill ranks that have not ended so long after they were told to (default 10); a second signal does it at once",
	 0},
	{"log", KEY_LOG, "LEVEL", 0, "error, warn, info or debug, for routers and ranks", 0},
	{"join", KEY_JOIN, NULL, 0, "Be one rank of another launcher's job: mpirun -n 4 ferryrun --join -- CMD", 0},
	{"as-rank", KEY_AS_RANK, NULL, OPTION_HIDDEN, "In a rank's process, under mpiexec: become CMD", 0},
	{0}};

static unsigned number_of(const char *value, unsigned most, const char *name, struct argp_state *state)
{
	char *end;
	errno = 0;
	long number = strtol(value, &end, 10);
	if (errno || end == value || *end || number < 1 || number > (long)most)
		argp_error(state, "%s: \"%s\" is not a number from 1 to %u", name, value, most);
	return (unsigned)number;
}

/* To argp -np 4, as mpiexecs have it, is -n with the value "p", and an argument. Similar spellings are refused. */
static unsigned ranks_of(const char *value, struct argp_state *state)
{
	const char *digits = value + strspn(value, "p=");
	if (!strcmp(value, "p") && state->next < state->argc)
		value = state->argv[state->next++];
	else if (digits > value)
		argp_error(state, "-n%s: write \"-n %s\", or \"-np %s\"", value, *digits ? digits : "RANKS",
		           *digits ? digits : "RANKS");
	return number_of(value, FERRY_MAX_RANKS, "-n", state);
}

/* Refuses a space before an optional value: what follows would be the command. */
static void check_values(struct argp_state *state)
{
	const char *option = state->argv[state->next - 1], *word = state->argv[state->next];
	if (!strcmp(option, "--spare") && !word[strspn(word, "0123456789")])
		argp_error(state, "--spare %s: write \"--spare=%s\"", word, word);
	if (!strcmp(option, "--nccl") && !strcmp(word, "name"))
		argp_error(state, "--nccl name: write \"--nccl=name\"");
}

/* Refuses options that exclude each other. */
static void check_together(const struct arguments *arguments, struct argp_state *state)
{
	if (!arguments->command)
		argp_error(state, "no command: ferryrun -n 4 -- CMD");
	if (arguments->fork && arguments->mpiexec)
		argp_error(state,
		           "--fork starts the ranks without the mpiexec that --mpiexec names: one of the two");
	if (arguments->layout && arguments->domains)
		argp_error(state, "--layout says what the domains are, so --domains has nothing to split: one "
		                  "of the two");
	if (arguments->join &&
	    (arguments->ranks || arguments->domains || arguments->workers || arguments->timeout ||
	     arguments->grace || arguments->layout || arguments->mpiexec || arguments->log || arguments->fork ||
	     arguments->spares))
		argp_error(state, "--join starts no ranks and no routers: of the other options it takes --nccl alone");
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	enum ferry_log_level level;
	switch (key) {
	case 'n':
		arguments->ranks = ranks_of(value, state);
		return 0;
	case KEY_DOMAINS:
		arguments->domains = number_of(value, FERRY_MAX_DOMAINS, "--domains", state);
		return 0;
	case KEY_WORKERS:
		arguments->workers = number_of(value, FERRY_MAX_RANKS, "--workers", state);
		return 0;
	case KEY_TIMEOUT:
		arguments->timeout = number_of(value, 1000000, "--timeout", state);
		return 0;
	case KEY_GRACE:
		arguments->grace = number_of(value, 1000000, "--grace", state);
		return 0;
	case KEY_AS_RANK:
		arguments->as_rank = true;
		return 0;
	case KEY_LAYOUT:
		if (!*value)
			argp_error(state, "--layout: \"\" is no layout");
		arguments->layout = value;
		return 0;
	case KEY_MPIEXEC:
		arguments->mpiexec = value;
		return 0;
	case KEY_FORK:
		arguments->fork = true;
		return 0;
	case KEY_SPARE:
		arguments->spares = value ? number_of(value, FERRY_MOST_SPARES, "--spare", state) : 1;
		return 0;
	case KEY_NCCL:
		if (value && strcmp(value, "name"))
			argp_error(state, "--nccl=%s: --nccl, or --nccl=name", value);
		arguments->nccl = true;
		arguments->nccl_by_name |= value != NULL;
		return 0;
	case KEY_JOIN:
		arguments->join = true;
		return 0;
	case KEY_LOG:
		if (!ferry_log_parse(value, &level))
			argp_error(state, "--log: \"%s\" is none of error, warn, info, debug", value);
		arguments->log = value;
		return 0;
	case ARGP_KEY_ARGS:
		arguments->command = state->argv + state->next;
		check_values(state);
		return 0;
	case ARGP_KEY_END:
		check_together(arguments, state);
		arguments->alone = arguments->nccl && !arguments->ranks && !arguments->mpiexec;
		if (!arguments->ranks)
			arguments->ranks = 1;
		if (!arguments->grace)
			arguments->grace = GRACE_S;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static ferryResult_t set(const char *name, const char *value)
{
	return setenv(name, value, 1) ? ferry_fail(ferrySystemError, "setenv %s: %s", name, strerror(errno))
	                              : ferrySuccess;
}

static ferryResult_t set_number(const char *name, int value)
{
	char text[16];
	snprintf(text, sizeof text, "%d", value);
	return set(name, text);
}

/* ---- a rank ---- */

/* Executes the command. Returns the exit code if it cannot be executed. */
static int become(char **command, const char *self)
{
	execvp(command[0], command);
	fprintf(stderr, "%s: cannot run %s: %s\n", self, command[0], strerror(errno));
	return errno == ENOENT ? FERRY_COMMAND_MISSING : FERRY_COMMAND_REFUSED;
}

static int join(const struct arguments *arguments)
{
	struct ferry_launch launch;
	char key[33];
	if (ferry_launch_read(&launch) || launch.rank < 0) {
		fprintf(stderr, "ferryrun --join: %s\n",
		        launch.rank < 0 && !*ferry_last_message()
		                ? "the environment names no rank: start it with mpirun, srun or torchrun"
		                : ferry_last_message());
		return EXIT_LAUNCH;
	}
	for (int i = 0; i < 16; i++)
		snprintf(key + 2 * i, 3, "%02x", launch.key[i]);
	if ((arguments->nccl && ferry_preload_nccl(arguments->nccl_by_name)) ||
	    set_number("FERRY_RANK", launch.rank) || set_number("FERRY_SIZE", launch.size) ||
	    set_number("FERRY_LOCAL_RANK", launch.local_rank) || set_number("FERRY_LOCAL_SIZE", launch.local_size) ||
	    set("FERRY_JOB_KEY", key)) {
		fprintf(stderr, "ferryrun --join: %s\n", ferry_last_message());
		return EXIT_LAUNCH;
	}
	return become(arguments->command, "ferryrun --join");
}

static bool own_path(char *path, size_t bytes)
{
	ssize_t length = readlink("/proc/self/exe", path, bytes);
	if (length <= 0 || (size_t)length >= bytes)
		return false;
	path[length] = '\0';
	return true;
}

/* ---- ranks ---- */

static ferryResult_t set_job(const struct arguments *arguments)
{
	uint8_t key[16];
	char text[33];
	if (getrandom(key, sizeof key, 0) != sizeof key)
		return ferry_fail(ferrySystemError, "getrandom: %s", strerror(errno));
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", key[i]);
	ferryResult_t result = set("FERRY_JOB_KEY", text);
	if (!result && arguments->log)
		result = set("FERRY_LOG", arguments->log);
	/* The ranks would take the variables of an outer job for this one's. */
	static const char *const outer[] = {"FERRY_RANK", "FERRY_SIZE", "FERRY_LOCAL_RANK", "FERRY_LOCAL_SIZE"};
	for (size_t i = 0; i < 4; i++)
		unsetenv(outer[i]);
	return result ? result : set("FERRY_ROUTER", "required");
}

static ferryResult_t start_forked(struct ferry_supervisor *supervisor, const struct arguments *arguments)
{
	ferryResult_t result = ferrySuccess;
	for (unsigned rank = 0; rank < arguments->ranks && !result; rank++) {
		char texts[4][40];
		snprintf(texts[0], sizeof texts[0], "FERRY_RANK=%u", rank);
		snprintf(texts[1], sizeof texts[1], "FERRY_SIZE=%u", arguments->ranks);
		snprintf(texts[2], sizeof texts[2], "FERRY_LOCAL_RANK=%u", rank);
		snprintf(texts[3], sizeof texts[3], "FERRY_LOCAL_SIZE=%u", arguments->ranks);
		char *environment[] = {texts[0], texts[1], texts[2], texts[3], NULL};
		result = ferry_start_child(supervisor, FERRY_CHILD_RANK, (int)rank, arguments->command, environment,
		                           rank > 0);
	}
	return result;
}

/* Starts the command once. It is a launcher itself, which gives its processes their ranks. */
static ferryResult_t start_alone(struct ferry_supervisor *supervisor, const struct arguments *arguments)
{
	char *none[] = {NULL};
	return ferry_start_child(supervisor, FERRY_CHILD_RANK, 0, arguments->command, none, false);
}

static ferryResult_t start_mpiexec(struct ferry_supervisor *supervisor, const struct arguments *arguments)
{
	char number[16], self[PATH_MAX];
	size_t count = 0, first = 3;
	const char *mpiexec = arguments->mpiexec ? arguments->mpiexec : "mpiexec";
	/* Open MPI counts slots; the other mpiexecs ignore its settings. */
	char *environment[] = {"OMPI_MCA_rmaps_base_oversubscribe=1",
	                       "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe", NULL};
	while (arguments->command[count])
		count++;
	char **argv = calloc(count + 7, sizeof *argv);
	if (!argv)
		return ferry_fail(ferrySystemError, "no memory for %zu arguments", count);
	snprintf(number, sizeof number, "%u", arguments->ranks);
	argv[0] = (char *)mpiexec;
	argv[1] = "-n";
	argv[2] = number;
	if (own_path(self, sizeof self)) {
		argv[first++] = self;
		argv[first++] = "--as-rank";
		argv[first++] = "--";
	}
	memcpy(argv + first, arguments->command, count * sizeof *argv);
	ferryResult_t result = ferry_start_child(supervisor, FERRY_CHILD_MPIEXEC, 0, argv, environment, false);
	free(argv);
	if (result)
		result = ferry_fail_context(
		        result, "starting the ranks (install mpich, name one with --mpiexec PATH, or use --fork)");
	return result;
}

/* Chooses --fork if there is no mpiexec and the user has named none. */
static void fork_without_mpiexec(struct arguments *arguments)
{
	if (arguments->fork || arguments->alone || arguments->mpiexec ||
	    ferry_command_check("mpiexec") != FERRY_COMMAND_MISSING)
		return;
	ferry_forget_message();
	fprintf(stderr, "ferryrun: there is no mpiexec on PATH: the ranks are forked on this host, as by --fork\n");
	arguments->fork = true;
}

/* Checks FERRY_ROUTER: under auto and required alike the run has routers of its own. */
static ferryResult_t check_router(void)
{
	const char *mode = ferry_env("FERRY_ROUTER");
	if (mode && strcmp(mode, "auto") && strcmp(mode, "required"))
		return ferry_fail(ferryInvalidArgument, "FERRY_ROUTER=%s: auto or required", mode);
	return ferrySuccess;
}

static ferryResult_t start_routers(struct ferry_supervisor *supervisor, const struct arguments *arguments,
                                   uint32_t ndomains, const char *directory)
{
	static struct ferry_run_routers routers; /* static, as the supervisor uses it later */
	char self[PATH_MAX];
	ferryResult_t result = ferry_run_routers_init(&routers, own_path(self, sizeof self) ? self : NULL, directory,
	                                              arguments->workers, arguments->spares);
	return result ? result : ferry_run_routers_start(&routers, supervisor, ndomains);
}

static ferryResult_t launch(struct ferry_supervisor *supervisor, struct arguments *arguments,
                            struct ferry_run_directory *directory)
{
	struct ferry_layout layout;
	ferryResult_t result = check_router();
	if (!result && arguments->domains)
		result = set_number("FERRY_DOMAINS", (int)arguments->domains);
	if (!result)
		result = ferry_layout_load(&layout);
	if (!result && arguments->nccl) /* before the routers: it starts its own */
		result = ferry_measure_once(supervisor);
	if (!result)
		result = set_job(arguments);
	if (result || (result = ferry_run_directory_make(directory)))
		return result;
	supervisor->directory = directory;
	result = set("FERRY_SOCKET_DIR", directory->path);
	if (!result)
		result = start_routers(supervisor, arguments, layout.ndomains, directory->path);
	if (!result && arguments->nccl) /* after the routers, which must not load it */
		result = ferry_preload_nccl(arguments->nccl_by_name);
	if (result)
		return result;
	if (arguments->alone)
		return start_alone(supervisor, arguments);
	fork_without_mpiexec(arguments);
	return arguments->fork ? start_forked(supervisor, arguments) : start_mpiexec(supervisor, arguments);
}

/* Warns if each rank of another launcher's job starts a job of its own: most users have forgotten --join. */
static void warn_of_outer_job(const struct arguments *arguments)
{
	struct ferry_launch outer;
	if (ferry_launch_read(&outer) || outer.rank != 0 || outer.size < 2 || outer.no_step)
		return;
	fprintf(stderr,
	        "ferryrun: each of the %d ranks of an outer job (launcher %s) starts a job of %u rank%s of its own; "
	        "with --join they are the ranks of one\n",
	        outer.size, outer.launcher, arguments->ranks, arguments->ranks == 1 ? "" : "s");
}

/* Checks the command line before anything is started. Returns 0, or the exit code. */
static int check(const struct arguments *arguments)
{
	struct ferry_layout layout;
	ferry_env_name_unknown();
	warn_of_outer_job(arguments);
	if (arguments->layout && (set("FERRY_LAYOUT", arguments->layout) || ferry_layout_load(&layout))) {
		fprintf(stderr, "ferryrun: --layout: %s\n", ferry_last_message());
		return EXIT_USAGE;
	}
	int refused = ferry_command_check(arguments->command[0]);
	if (refused)
		fprintf(stderr, "ferryrun: %s\n", ferry_last_message());
	return refused;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
		options, parse, "-- COMMAND [ARGUMENT...]",
		"Starts routers, then COMMAND as RANKS ranks, passes signals and exit codes on, and leaves nothing "
		"behind.\v"
		"Examples:\n"
		"  ferryrun -n 4 --domains 2 -- ./train\n"
		"  ferryrun -n 4 --fork -- ferry-perf allreduce\n"
		"  mpirun -n 4 ferryrun --join -- ./train\n"
		"  ferryrun --nccl -- torchrun --nproc-per-node 4 train.py\n"
		"Exit code: that of the first rank that failed (128 + signal), 124 after --timeout, 125 if ferryrun "
		"itself failed, 126 if COMMAND may not be executed, 127 if there is none, 64 if the options are wrong.",
		NULL, NULL, NULL};
	struct arguments arguments = {0};
	struct ferry_supervisor supervisor;
	struct ferry_run_directory directory;
	setvbuf(stderr, NULL, _IOLBF, 0); /* whole lines, as ranks write there, too */
	if (ferry_descriptors_fill()) {
		fprintf(stderr, "ferryrun: %s\n", ferry_last_message());
		return EXIT_LAUNCH;
	}
	argp_program_version = "ferryrun 0.1.0";
	argp_err_exit_status = EXIT_USAGE;
	if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &arguments))
		return EXIT_USAGE;
	if (arguments.as_rank) {
		ferry_become_rank();
		return become(arguments.command, "ferryrun");
	}
	if (arguments.join)
		return join(&arguments);
	int refused = check(&arguments);
	if (refused)
		return refused;
	ferry_supervisor_init(&supervisor, arguments.grace);
	ferryResult_t result = launch(&supervisor, &arguments, &directory);
	if (result) {
		fprintf(stderr, "ferryrun: %s\n", ferry_last_message());
		supervisor.exit_code = supervisor.asked ? 128 + supervisor.asked : EXIT_LAUNCH;
	} else {
		ferry_supervise(&supervisor, arguments.timeout);
	}
	ferry_supervisor_end(&supervisor);
	return supervisor.exit_code;
}
