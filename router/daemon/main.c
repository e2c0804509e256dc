/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-router: the daemon. Parses options, starts a router, and ends it on SIGTERM: drains first, stops at the second.
 */
#include "ipc/arena.h"
#include "ipc/attach.h"
#include "ipc/endpoint.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/process.h"
#include "router/daemon/router.h"
#include "router/daemon/sigbus.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum exit_code { EXIT_DONE = 0, EXIT_USAGE = 64, EXIT_TAKEN = 2, EXIT_FAILED = 1, EXIT_LOST = 3 };
enum option_key {
	KEY_READY_FD = 256,
	KEY_STAGING_LIMIT,
	KEY_IDLE_EXIT,
	KEY_LAYOUT,
	KEY_LOG,
	KEY_SOCKET_DIR,
	KEY_NO_PIN,
	KEY_DAEMON,
	KEY_PRIVATE,
	KEY_CONFIG,
	KEY_SPARE
};

struct arguments {
	struct ferry_router_options router;
	const char *layout;
	int ready_fd;
	bool daemon, private_directory, spare;
};

static struct ferry_router *running; /* for the signal handler; set before the handlers are */

static const struct argp_option options[] = {
	{"domain", 'd', "D", 0, "Serve domain D of the layout (default 0)", 0},
	{"socket-dir", KEY_SOCKET_DIR, "DIR", 0, "Listen on DIR/router-D.sock (default: FERRY_SOCKET_DIR, "
	                                       "$XDG_RUNTIME_DIR/ferry, /run/ferry where writable, /tmp/ferry-UID)", 0},
	{"workers", 'w', "N", 0,
	 "Threads that reduce and copy between domains (default: one per two CPUs of the domain)", 0},
	{"staging-limit", KEY_STAGING_LIMIT, "BYTES", 0,
	 "Staging for all jobs together, K, M and G understood (default: half of the memory that this domain may "
	 "have, of the machine's, the NUMA node's and the control group's); windows for messages between two ranks "
	 "come on top, up to half as much", 0},
	{"idle-exit", KEY_IDLE_EXIT, "SECONDS", 0, "Exit after so long without a job (default: never)", 0},
	{"layout", KEY_LAYOUT, "LAYOUT", 0, "Layout override, as FERRY_LAYOUT", 0},
	{"no-pin", KEY_NO_PIN, NULL, 0, "Leave the threads unpinned", 0},
	{"daemon", KEY_DAEMON, NULL, 0,
	 "Go to the background; the command returns once ranks can attach. Nothing is logged from then on", 0},
	{"private-dir", KEY_PRIVATE, NULL, 0,
	 "The socket directory is this run's alone: remove it at the end if it is empty", 0},
	{"config", KEY_CONFIG, "FILE", 0,
	 "For a router that several users share: which, and how much each may have (ferry-router(1)); read again on "
	 "SIGHUP. Others than those, this user and root are refused", 0},
	{"spare", KEY_SPARE, NULL, 0,
	 "Where another router has this domain's socket, stand by until it ends, and take its place", 0},
	{"log", KEY_LOG, "LEVEL", 0, "error, warn, info or debug (default: warn)", 0},
	{"ready-fd", KEY_READY_FD, "FD", 0, "Write one byte to FD and close it once ranks can attach", 0},
	{0}};

static uint32_t number_of(const char *value, uint32_t least, uint32_t most, const char *name, struct argp_state *state)
{
	char *end;
	errno = 0;
	long number = strtol(value, &end, 10);
	if (errno || end == value || *end || number < (long)least || number > (long)most)
		argp_error(state, "%s: \"%s\" is not a number from %u to %u", name, value, least, most);
	return (uint32_t)number;
}

static uint64_t staging_of(const char *value, struct argp_state *state)
{
	uint64_t bytes = 0;
	if (!ferry_parse_bytes(value, &bytes) || bytes < FERRY_STAGING_LEAST)
		argp_error(state, "--staging-limit: \"%s\" is no size such as 64M, at least %u", value,
		           FERRY_STAGING_LEAST);
	return bytes;
}

static const char *text_of(const char *value, const char *name, const char *what, struct argp_state *state)
{
	if (!*value)
		argp_error(state, "%s: \"\" is no %s", name, what);
	return value;
}

static void set_log(const char *value, struct argp_state *state)
{
	enum ferry_log_level level;
	if (!ferry_log_parse(value, &level))
		argp_error(state, "--log: \"%s\" is none of error, warn, info, debug", value);
	ferry_log_set_level(level);
}

/* All options are there. */
static void check_together(const struct arguments *arguments, struct argp_state *state)
{
	if (arguments->private_directory && !arguments->router.directory)
		argp_error(state, "--private-dir: which? --socket-dir DIR");
	if (arguments->daemon && arguments->ready_fd >= 0)
		argp_error(state,
		           "--daemon returns once ranks can attach, so --ready-fd %d has nothing to tell: one of "
		           "the two",
		           arguments->ready_fd);
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	struct ferry_router_options *router = &arguments->router;
	switch (key) {
	case 'd':
		router->domain = number_of(value, 0, FERRY_MAX_DOMAINS - 1, "--domain", state);
		return 0;
	case 'w':
		router->workers = number_of(value, 1, FERRY_MAX_RANKS, "--workers", state);
		return 0;
	case KEY_IDLE_EXIT:
		router->idle_exit_ms = number_of(value, 0, 1000000, "--idle-exit", state) * 1000;
		return 0;
	case KEY_READY_FD:
		arguments->ready_fd = (int)number_of(value, 0, 1000000, "--ready-fd", state);
		return 0;
	case KEY_STAGING_LIMIT:
		router->staging_limit = staging_of(value, state);
		return 0;
	case KEY_SOCKET_DIR:
		router->directory = text_of(value, "--socket-dir", "directory", state);
		return 0;
	case KEY_LAYOUT:
		arguments->layout = text_of(value, "--layout", "layout", state);
		return 0;
	case KEY_NO_PIN:
		router->pin = false;
		return 0;
	case KEY_DAEMON:
		arguments->daemon = true;
		return 0;
	case KEY_PRIVATE:
		arguments->private_directory = true;
		return 0;
	case KEY_SPARE:
		arguments->spare = true;
		return 0;
	case KEY_CONFIG:
		router->config = text_of(value, "--config", "file", state);
		return 0;
	case KEY_LOG:
		set_log(value, state);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument \"%s\"", value);
		return 0;
	case ARGP_KEY_END:
		check_together(arguments, state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void on_terminate(int number)
{
	static volatile sig_atomic_t before;
	(void)number;
	if (before++)
		_exit(EXIT_FAILED);
	ferry_router_drain(running);
}

/* The thread that reads the tenants again. */
static struct {
	pthread_t thread;
	bool begun;
	_Atomic bool over; /* then a SIGHUP ends it */
} reloader;

/* A thread of its own, as it may take long to read the file, and to look up the users that the file names. */
static void *reload_on_hangup(void *unused)
{
	sigset_t signals;
	int number;
	(void)unused;
	sigemptyset(&signals);
	sigaddset(&signals, SIGHUP);
	while (!sigwait(&signals, &number) && !atomic_load(&reloader.over)) {
		if (ferry_router_reload(running))
			ferry_log(FERRY_LOG_ERROR, "SIGHUP: %s; the tenants are what they were", ferry_last_message());
		else
			ferry_log(FERRY_LOG_WARN, "SIGHUP: the tenants have been read again");
	}
	return NULL;
}

/* Ends that thread before the router, which it uses. */
static void end_reloading(void)
{
	if (!reloader.begun)
		return;
	atomic_store(&reloader.over, true);
	pthread_kill(reloader.thread, SIGHUP);
	pthread_join(reloader.thread, NULL);
}

/*
 * Ends the process at once, whatever other threads do: nothing that was begun in the lost context may go on beside the
 * next router, and all that the next one needs is in the jobs' arenas.
 */
static void end_of_loss(const char *why)
{
	ferry_log(FERRY_LOG_ERROR,
	          "ends, as its context there is gone for all jobs, and another is to take its place: %s", why);
	_exit(EXIT_LOST);
}

static int fail(const char *doing)
{
	fprintf(stderr, "ferry-router: %s: %s\n", doing, ferry_last_message());
	return EXIT_FAILED;
}

/* Exits, as the process that started the daemon waits until this command ends, which it would not in the foreground. */
static void exit_for_want(const char *what)
{
	ferry_fail(ferrySystemError, "%s: %s%s", what, strerror(errno), ferry_ulimit_threads_hint(errno));
	_exit(fail("going to the background"));
}

/* The parent waits for the child's readiness and passes its exit code on if there is none. Before any thread exists. */
static void go_to_background(struct arguments *arguments)
{
	int ready[2], status = 0;
	char byte;
	if (pipe(ready))
		exit_for_want("a pipe");
	pid_t child = fork();
	if (child < 0)
		exit_for_want("a process");
	if (child > 0) {
		close(ready[1]);
		if (read(ready[0], &byte, 1) == 1)
			_exit(EXIT_DONE);
		if (waitpid(child, &status, 0) == child && WIFEXITED(status))
			_exit(WEXITSTATUS(status));
		_exit(EXIT_FAILED);
	}
	close(ready[0]);
	setsid();
	int null = open("/dev/null", O_RDWR);
	for (int standard = 0; null >= 0 && standard < 2; standard++)
		dup2(null, standard);
	if (null > 2)
		close(null);
	/*
	 * Inherited descriptors belong to other processes, which may wait until all copies are closed: mpiexec waits
	 * for its ranks' pipes.
	 */
	arguments->ready_fd = dup2(ready[1], 3) == 3 ? 3 : ready[1];
	fcntl(arguments->ready_fd, F_SETFD, FD_CLOEXEC);
	close_range((unsigned)arguments->ready_fd + 1, ~0u, 0);
}

/* A daemon's output has no reader any more, and the process that started it may wait for the end of its output. */
static void fall_silent(void)
{
	int null = open("/dev/null", O_RDWR);
	if (null >= 0)
		dup2(null, 2);
	if (null > 2)
		close(null);
}

/* ferryrun does this too; but it may have been killed. */
static void remove_directory(const struct arguments *arguments)
{
	char lock[160];
	snprintf(lock, sizeof lock, "%s/" FERRY_ENDPOINT_NAME ".lock", arguments->router.directory,
	         arguments->router.domain);
	unlink(lock);
	rmdir(arguments->router.directory); /* fails until the last router does it */
}

/* One per rank that is attached and one per job: the usual soft limit is for programs that use select(2). */
static void raise_descriptors(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static const struct argp argp = {
	options, parse, NULL,
	"Owns the host staging memory of one domain (NUMA node), and runs the reductions and the copies "
	"between domains of every job that attaches.\v"
	"SIGTERM or SIGINT: takes no new jobs, exits when the last has left; a second one ends it at once. "
	"SIGHUP, with --config: reads that file again.\n"
	"Exit codes: 0 done, 1 failed, 2 another router has this domain's socket, 3 its context on a GPU is gone, "
	"64 bad usage.\n"
	"Usually ferryrun or the first rank (FERRY_ROUTER=auto) starts this command.",
	NULL, NULL, NULL};

/* Reads FERRY_LOG, which --log overrides, and FERRY_DEBUG. */
static int read_environment(void)
{
	const char *log = ferry_env("FERRY_LOG");
	enum ferry_log_level level;
	if (log && !ferry_log_parse(log, &level)) {
		fprintf(stderr, "ferry-router: FERRY_LOG=%s: error, warn, info or debug\n", log);
		return EXIT_FAILED;
	}
	if (log)
		ferry_log_set_level(level);
	if (ferry_debug_read()) {
		fprintf(stderr, "ferry-router: %s\n", ferry_last_message());
		return EXIT_FAILED;
	}
	return EXIT_DONE;
}

/* The other routers of this run have removed its directory: a spare that has just begun is about to be ended, too. */
static bool run_is_over(const struct arguments *arguments)
{
	return arguments->spare && arguments->private_directory && access(arguments->router.directory, F_OK);
}

/* An exit code: EXIT_DONE where the router runs. SIGTERM and SIGINT drain it from then on. */
static int start(const struct arguments *arguments)
{
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL); /* until `running` is set */
	if (arguments->router.config) {
		sigset_t hangup; /* stays so, in all threads: one of them waits for it */
		sigemptyset(&hangup);
		sigaddset(&hangup, SIGHUP);
		sigprocmask(SIG_BLOCK, &hangup, NULL);
	}
	ferryResult_t result = ferry_router_start(&arguments->router, &running);
	if (result == ferryInvalidUsage && (arguments->daemon || arguments->spare))
		/* there is a router, as the starter of a daemon wants: ranks start routers at the same time */
		return EXIT_TAKEN;
	if (result) {
		if (run_is_over(arguments))
			ferry_log(FERRY_LOG_INFO, "the run is over: %s", ferry_last_message());
		else
			fail("starting");
		return result == ferryInvalidUsage ? EXIT_TAKEN : EXIT_FAILED;
	}
	struct sigaction action = {.sa_handler = on_terminate};
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (arguments->router.config) {
		errno = pthread_create(&reloader.thread, NULL, reload_on_hangup, NULL);
		reloader.begun = !errno;
		if (errno)
			ferry_log(FERRY_LOG_WARN, "no thread for SIGHUP: %s%s", strerror(errno),
			          ferry_ulimit_threads_hint(errno));
	}
	sigprocmask(SIG_UNBLOCK, &signals, NULL);
	return EXIT_DONE;
}

/* Tells systemd that the router is ready, if systemd has started it and waits (sd_notify(3)). */
static void notify_systemd(void)
{
	static const char ready[] = "READY=1";
	const char *path = ferry_env("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = path ? strlen(path) : 0;
	if (!length || length > sizeof address.sun_path)
		return;
	memcpy(address.sun_path, path, length);
	if (path[0] == '@')
		address.sun_path[0] = '\0';
	int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (descriptor < 0 || sendto(descriptor, ready, sizeof ready - 1, MSG_NOSIGNAL, (struct sockaddr *)&address,
	                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) < 0)
		ferry_log(FERRY_LOG_WARN, "NOTIFY_SOCKET=%s: %s", path, strerror(errno));
	if (descriptor >= 0)
		close(descriptor);
}

/* Reports it once: a spare is ready when it stands by. */
static void report_ready(struct arguments *arguments)
{
	static bool said;
	if (said)
		return;
	said = true;
	notify_systemd();
	if (arguments->daemon)
		fall_silent();
	if (arguments->ready_fd < 0)
		return;
	if (write(arguments->ready_fd, "", 1) != 1)
		ferry_log(FERRY_LOG_WARN, "--ready-fd %d: %s", arguments->ready_fd, strerror(errno));
	close(arguments->ready_fd);
	arguments->ready_fd = -1;
}

/* As `start`, but a spare waits until the router that has the socket has ended. */
static int start_when_free(struct arguments *arguments)
{
	int failed;
	while ((failed = start(arguments)) == EXIT_TAKEN && arguments->spare) {
		sigset_t signals; /* `start` leaves them blocked: nothing is to be saved yet */
		sigemptyset(&signals);
		sigaddset(&signals, SIGTERM);
		sigaddset(&signals, SIGINT);
		sigprocmask(SIG_UNBLOCK, &signals, NULL);
		report_ready(arguments);
		if (ferry_router_stand_by(&arguments->router)) {
			ferry_log(FERRY_LOG_WARN, "standing by: %s", ferry_last_message());
			sleep(1);
		}
	}
	return failed;
}

/*
 * The router runs no kernels: one queue for them is as good as eight, makes a context in half the time, and ends with
 * its process in less than half (docs/lab/routers-die.md). A value in the environment is meant for the ranks, one of
 * which may have started this process.
 */
static void ask_for_small_contexts(void)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
}

int main(int argc, char **argv)
{
	struct arguments arguments = {.router = {.pin = true, .better = true, .lost = end_of_loss}, .ready_fd = -1};
	struct ferry_layout layout;
	ask_for_small_contexts();
	if (ferry_descriptors_fill())
		return fail("standard input, output and error");
	argp_program_version = "ferry-router 0.1.0";
	argp_err_exit_status = EXIT_USAGE;
	int failed = read_environment();
	if (failed)
		return failed;
	if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
		return EXIT_USAGE;
	if (!arguments.daemon || !arguments.router.idle_exit_ms) /* a rank starts those, and has the same environment */
		ferry_env_name_unknown();
	if (arguments.daemon)
		go_to_background(&arguments);
	if (arguments.layout)
		setenv("FERRY_LAYOUT", arguments.layout, 1);
	if (ferry_layout_load(&layout))
		return fail("reading the layout");
	arguments.router.layout = &layout;
	if (arguments.router.pin)
		ferry_layout_pin(&layout, arguments.router.domain); /* the connection thread inherits it */
	raise_descriptors();
	if (ferry_sigbus_install())
		return fail("guarding against arenas cut short");
	failed = start_when_free(&arguments);
	if (failed)
		return failed;
	report_ready(&arguments);
	ferry_router_wait(running);
	end_reloading();
	ferry_router_stop(running);
	if (arguments.private_directory && arguments.router.directory)
		remove_directory(&arguments);
	return EXIT_DONE;
}
