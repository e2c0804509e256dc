/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/supervise.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/wait.h"
#include "launch/descendants.h"
#include "launch/missing_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS   1000000000ull
#define PATIENCE_NS (5 * SECOND_NS) /* from SIGTERM to SIGKILL for routers, which have nothing to save */
/* Signals closer than this count as one: timeout(1) sends one to its command and another one to the group. */
#define AGAIN_NS    200000000ull
#define LOOK_NS     500000000ull /* between looks whether ranks wait for one that has ended */
#define TIMED_OUT   124 /* timeout(1)'s exit code */

static sigset_t taken, before;

static bool is_ignored(int number)
{
	struct sigaction action;
	return !sigaction(number, NULL, &action) && action.sa_handler == SIG_IGN;
}

/*
 * This process may have inherited signals that are ignored or blocked. Ignored ones stay ignored, as the caller wants
 * (nohup; a script's background), but for SIGTERM and SIGCHLD: without SIGTERM nothing could end this run, and with
 * SIGCHLD ignored the kernel keeps no child's status. An mpiexec needs both, too: so the children's mask has them free.
 */
void ferry_supervisor_init(struct ferry_supervisor *supervisor, unsigned grace_s)
{
	static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGQUIT, SIGHUP};
	memset(supervisor, 0, sizeof *supervisor);
	supervisor->grace_s = grace_s;
	sigemptyset(&taken);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		bool always = numbers[i] == SIGCHLD || numbers[i] == SIGTERM;
		if (always)
			signal(numbers[i], SIG_DFL);
		if (always || !is_ignored(numbers[i]))
			sigaddset(&taken, numbers[i]);
	}
	sigprocmask(SIG_BLOCK, &taken, &before);
	sigdelset(&before, SIGCHLD);
	sigdelset(&before, SIGTERM);
}

void ferry_become_rank(void)
{
	pid_t parent = getppid();
	if (ferry_descendants_threads(parent) != 1)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(128 + SIGKILL); /* it died before the prctl */
}

/* In the child: executes argv. A failure reports errno through the pipe, which a successful exec closes. */
static void become(enum ferry_child_role role, pid_t parent, char *const *argv, char *const *environment,
                   bool null_input, int report)
{
	int error;
	/* A rank is killed with ferryrun; a router ends when its ranks have gone; mpiexec takes its ranks along. */
	prctl(PR_SET_PDEATHSIG, role == FERRY_CHILD_RANK ? SIGKILL : SIGTERM);
	if (getppid() != parent)
		_exit(1); /* it died before the prctl */
	if (role == FERRY_CHILD_ROUTER) {
		setpgid(0, 0); /* Ctrl-C is for the ranks */
		sigemptyset(&before);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (null_input) {
		int null = open("/dev/null", O_RDONLY);
		if (null >= 0)
			dup2(null, 0);
	}
	for (; *environment; environment++)
		putenv(*environment);
	execvp(argv[0], argv);
	error = errno;
	if (write(report, &error, sizeof error) < 0)
		_exit(126);
	_exit(127);
}

ferryResult_t ferry_start_child(struct ferry_supervisor *supervisor, enum ferry_child_role role, int number,
                                char *const *argv, char *const *environment, bool null_input)
{
	int report[2], error = 0;
	pid_t parent = getpid();
	if (pipe2(report, O_CLOEXEC))
		return ferry_fail(ferrySystemError, "pipe: %s", strerror(errno));
	pid_t child = fork();
	if (child == 0)
		become(role, parent, argv, environment, null_input, report[1]);
	error = errno;
	close(report[1]);
	if (child < 0) {
		close(report[0]);
		return ferry_fail(ferrySystemError, "a process for %s: %s%s", argv[0], strerror(error),
		                  ferry_ulimit_threads_hint(error));
	}
	ssize_t got = read(report[0], &error, sizeof error);
	close(report[0]);
	if (got == sizeof error) {
		waitpid(child, NULL, 0);
		return ferry_fail(ferrySystemError, "cannot run %s: %s", argv[0], strerror(error));
	}
	int place = 0;
	while (place < supervisor->nchildren &&
	       (supervisor->children[place].role != role || supervisor->children[place].number != number))
		place++;
	supervisor->nchildren += place == supervisor->nchildren;
	supervisor->children[place] = (struct ferry_child){child, role, number};
	return ferrySuccess;
}

static bool is_ranks(const struct ferry_child *child)
{
	return child->pid && child->role != FERRY_CHILD_ROUTER;
}

/*
 * Sends a signal to the ranks; 0: only continues them, as the terminal sends the signal. An mpiexec passes signals on
 * to its ranks, but not SIGKILL, which goes to all processes below it.
 */
static void signal_ranks(const struct ferry_supervisor *supervisor, int number)
{
	pid_t logged[FERRY_MOST_CHILDREN], others[FERRY_MOST_CHILDREN];
	size_t ntold = 0, nothers = 0;
	for (int i = 0; i < supervisor->nchildren; i++) {
		const struct ferry_child *child = &supervisor->children[i];
		if (!is_ranks(child))
			continue;
		if (number == SIGKILL || (number && child->role == FERRY_CHILD_RANK)) {
			logged[ntold++] = child->pid;
			continue;
		}
		others[nothers++] = child->pid;
		if (number)
			kill(child->pid, number);
	}
	/* A stopped process handles no signal but SIGKILL. */
	if (ntold)
		ferry_descendants_signal(logged, ntold, number);
	if (nothers)
		ferry_descendants_continue(others, nothers);
}

static int alive(const struct ferry_supervisor *supervisor, bool routers)
{
	int count = 0;
	for (int i = 0; i < supervisor->nchildren; i++)
		count += supervisor->children[i].pid && (supervisor->children[i].role == FERRY_CHILD_ROUTER) == routers;
	return count;
}

/* ---- the end of the ranks ---- */

/* Asks the ranks to end. number: as in signal_ranks. */
static void ask_ranks(struct ferry_supervisor *supervisor, int number)
{
	if (supervisor->state != FERRY_RANKS_RUN)
		return;
	supervisor->state = FERRY_RANKS_ASKED;
	supervisor->deadline = ferry_now_ns() + supervisor->grace_s * SECOND_NS;
	signal_ranks(supervisor, number);
}

static void kill_ranks(struct ferry_supervisor *supervisor, const char *why)
{
	if (supervisor->state == FERRY_RANKS_KILLED)
		return;
	fprintf(stderr, "ferryrun: %s: killing the ranks\n", why);
	supervisor->state = FERRY_RANKS_KILLED;
	supervisor->deadline = 0;
	signal_ranks(supervisor, SIGKILL);
}

/* Replaces a router also while ranks are asked to end: they may need one for that. */
static void note_router(struct ferry_supervisor *supervisor, int number, int status, int code)
{
	if (supervisor->state == FERRY_RANKS_KILLED || !alive(supervisor, false))
		return;
	if (supervisor->state == FERRY_RANKS_RUN)
		fprintf(stderr, "ferryrun: the router of domain %d ended with code %d while ranks were running%s\n",
		        number % FERRY_MAX_DOMAINS, code, supervisor->replace ? ": another takes its place" : "");
	if (supervisor->replace)
		supervisor->replace(supervisor->routers, supervisor, number, status);
}

static void note_end(struct ferry_supervisor *supervisor, struct ferry_child *child, int status)
{
	int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	/*
	 * MPICH's mpiexec ends with 0 after some Ctrl-Cs: a run that was broken off must not look like one that
	 * finished.
	 */
	if (!code && supervisor->asked && child->role == FERRY_CHILD_MPIEXEC)
		code = 128 + supervisor->asked;
	child->pid = 0;
	if (child->role == FERRY_CHILD_ROUTER) {
		note_router(supervisor, child->number, status, code);
		return;
	}
	if (!code && child->role == FERRY_CHILD_RANK)
		supervisor->ended |= 1ull << child->number;
	if (!code || supervisor->failed)
		return;
	supervisor->failed = true;
	supervisor->exit_code = code;
	if (child->role == FERRY_CHILD_RANK && supervisor->state == FERRY_RANKS_RUN && alive(supervisor, false)) {
		fprintf(stderr, "ferryrun: rank %d ended with code %d; ending the others\n", child->number, code);
		ask_ranks(supervisor, SIGTERM);
	}
}

static void reap(struct ferry_supervisor *supervisor)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < supervisor->nchildren; i++)
			if (supervisor->children[i].pid == pid)
				note_end(supervisor, &supervisor->children[i], status);
}

/* ---- waiting ---- */

/* Waits for a signal until the deadline; 0 if that has passed. */
static int next_signal(uint64_t deadline, siginfo_t *info)
{
	uint64_t now = ferry_now_ns();
	if (!deadline)
		return sigwaitinfo(&taken, info);
	uint64_t left = deadline > now ? deadline - now : 0;
	struct timespec limit = {(time_t)(left / SECOND_NS), (long)(left % SECOND_NS)};
	int number = sigtimedwait(&taken, info, &limit);
	return number < 0 && errno == EAGAIN ? 0 : number;
}

static void out_of_patience(struct ferry_supervisor *supervisor, unsigned timeout_s)
{
	char why[64];
	if (supervisor->state == FERRY_RANKS_RUN) {
		fprintf(stderr, "ferryrun: not done after %u s (--timeout); ending the ranks\n", timeout_s);
		supervisor->failed = true;
		supervisor->exit_code = TIMED_OUT;
		ask_ranks(supervisor, SIGTERM);
		return;
	}
	snprintf(why, sizeof why, "told to end, and not done so for %u s (--grace)", supervisor->grace_s);
	kill_ranks(supervisor, why);
}

/*
 * Handles a signal to end. At the first one the ranks get it, too, unless the terminal has sent it to the whole
 * foreground group; at the second one they are killed.
 */
static void note_asked(struct ferry_supervisor *supervisor, int number, bool by_terminal)
{
	uint64_t now = ferry_now_ns();
	if (supervisor->asked) {
		if (now - supervisor->asked_at >= AGAIN_NS)
			kill_ranks(supervisor, "told to end a second time");
		return;
	}
	fprintf(stderr,
	        "ferryrun: told to end by signal %d (%s), and so are the ranks; again, or in %u s, they are killed\n",
	        number, strsignal(number), supervisor->grace_s);
	supervisor->asked = number;
	supervisor->asked_at = now;
	if (supervisor->state == FERRY_RANKS_RUN)
		ask_ranks(supervisor, by_terminal ? 0 : number);
	else
		signal_ranks(supervisor, by_terminal ? 0 : number);
}

static bool looks_for_missing(const struct ferry_supervisor *supervisor)
{
	return supervisor->ended && !supervisor->told_missing && supervisor->directory &&
	       supervisor->state == FERRY_RANKS_RUN;
}

static void look_for_missing(struct ferry_supervisor *supervisor)
{
	unsigned nranks = 0;
	for (int i = 0; i < supervisor->nchildren; i++)
		nranks += supervisor->children[i].role == FERRY_CHILD_RANK;
	supervisor->told_missing = ferry_missing_ranks_tell(supervisor->directory->path, supervisor->ended, nranks);
}

void ferry_supervise(struct ferry_supervisor *supervisor, unsigned timeout_s)
{
	siginfo_t info;
	if (timeout_s)
		supervisor->deadline = ferry_now_ns() + timeout_s * SECOND_NS;
	reap(supervisor);
	while (alive(supervisor, false)) {
		uint64_t look = ferry_now_ns() + LOOK_NS, deadline = supervisor->deadline;
		bool looks = looks_for_missing(supervisor) && (!deadline || look < deadline);
		int number = next_signal(looks ? look : deadline, &info);
		if (number == SIGCHLD)
			reap(supervisor);
		else if (number > 0)
			note_asked(supervisor, number, info.si_code == SI_KERNEL);
		else if (number == 0 && looks)
			look_for_missing(supervisor);
		else if (number == 0)
			out_of_patience(supervisor, timeout_s);
	}
}

bool ferry_supervisor_await(struct ferry_supervisor *supervisor, int descriptor, unsigned timeout_ms)
{
	sigset_t telling = taken;
	siginfo_t info;
	sigdelset(&telling, SIGCHLD);
	int signals = signalfd(-1, &telling, SFD_CLOEXEC);
	struct pollfd entries[2] = {{descriptor, POLLIN, 0}, {signals, POLLIN, 0}};
	int got = poll(entries, 2, (int)timeout_ms);
	if (signals >= 0)
		close(signals);
	if (got > 0 && entries[0].revents)
		return true;
	const struct timespec at_once = {0, 0};
	int number = got > 0 ? sigtimedwait(&telling, &info, &at_once) : 0;
	if (number > 0) {
		supervisor->asked = number;
		ferry_fail(ferrySystemError, "told to end by signal %d (%s)", number, strsignal(number));
	}
	return false;
}

int ferry_supervisor_report_end(struct ferry_supervisor *supervisor, enum ferry_child_role role, int number, char *text,
                                size_t bytes)
{
	const struct timespec second = {1, 0};
	sigset_t child_signal;
	sigemptyset(&child_signal);
	sigaddset(&child_signal, SIGCHLD);
	snprintf(text, bytes, "has not ended");
	for (int i = 0; i < supervisor->nchildren; i++) {
		struct ferry_child *child = &supervisor->children[i];
		int status;
		pid_t waited = 0;
		if (child->role != role || child->number != number || !child->pid)
			continue;
		/* Each child that ends sends SIGCHLD; several at once may send one. */
		while ((waited = waitpid(child->pid, &status, WNOHANG)) == 0 &&
		       sigtimedwait(&child_signal, NULL, &second) > 0)
			;
		if (waited <= 0)
			return 0;
		child->pid = 0;
		if (WIFSIGNALED(status))
			snprintf(text, bytes, "was killed by signal %d (%s)", WTERMSIG(status),
			         strsignal(WTERMSIG(status)));
		else
			snprintf(text, bytes, "ended with exit code %d", WEXITSTATUS(status));
		return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	}
	return 0;
}

/* ---- the end ---- */

static void signal_all(const struct ferry_supervisor *supervisor, int number)
{
	for (int i = 0; i < supervisor->nchildren; i++)
		if (supervisor->children[i].pid)
			kill(supervisor->children[i].pid, number);
}

void ferry_supervisor_end(struct ferry_supervisor *supervisor)
{
	siginfo_t info;
	supervisor->state = FERRY_RANKS_KILLED; /* no router that ends from here on is replaced */
	signal_all(supervisor, SIGTERM);
	uint64_t deadline = ferry_now_ns() + PATIENCE_NS;
	reap(supervisor);
	while (alive(supervisor, true) + alive(supervisor, false)) {
		int number = next_signal(deadline, &info);
		if (number != SIGCHLD) { /* the time is over, or another signal to end has come */
			signal_all(supervisor, SIGKILL);
			deadline = 0;
		}
		reap(supervisor);
	}
	if (supervisor->directory)
		ferry_run_directory_remove(supervisor->directory);
}
