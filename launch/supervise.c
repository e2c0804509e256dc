/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/supervise.h"

#include "ipc/error.h"
#include "ipc/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS 5000000000ull /* between asking and killing */
#define TIMED_OUT 124             /* timeout(1)'s exit code */

static sigset_t taken, before;

void ferry_supervisor_init(struct ferry_supervisor *supervisor)
{
	memset(supervisor, 0, sizeof *supervisor);
	sigemptyset(&taken);
	sigaddset(&taken, SIGCHLD);
	sigaddset(&taken, SIGINT);
	sigaddset(&taken, SIGTERM);
	sigaddset(&taken, SIGHUP);
	sigprocmask(SIG_BLOCK, &taken, &before);
}

/* In the child, between fork and exec: reports errno through the pipe, which a successful exec closes. */
static void become(enum ferry_child_role role, pid_t parent, char *const *argv, char *const *environment,
                   bool null_input, int report)
{
	int error;
	/* A rank is killed with ferryrun; a router ends when its ranks have gone; mpiexec takes its ranks along. */
	prctl(PR_SET_PDEATHSIG, role == FERRY_CHILD_RANK ? SIGKILL : SIGTERM);
	if (getppid() != parent)
		_exit(1); /* it died before we asked */
	if (role == FERRY_CHILD_ROUTER)
		setpgid(0, 0); /* Ctrl-C is for the ranks */
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
	close(report[1]);
	if (child < 0) {
		close(report[0]);
		return ferry_fail(ferrySystemError, "fork: %s", strerror(errno));
	}
	ssize_t got = read(report[0], &error, sizeof error);
	close(report[0]);
	if (got == sizeof error) {
		waitpid(child, NULL, 0);
		return ferry_fail(ferrySystemError, "cannot run %s: %s", argv[0], strerror(error));
	}
	supervisor->children[supervisor->nchildren++] = (struct ferry_child){child, role, number};
	return ferrySuccess;
}

static void signal_ranks(const struct ferry_supervisor *supervisor, int number)
{
	for (int i = 0; i < supervisor->nchildren; i++)
		if (supervisor->children[i].pid && supervisor->children[i].role != FERRY_CHILD_ROUTER)
			kill(supervisor->children[i].pid, number);
}

static int alive(const struct ferry_supervisor *supervisor, bool routers)
{
	int count = 0;
	for (int i = 0; i < supervisor->nchildren; i++)
		count += supervisor->children[i].pid && (supervisor->children[i].role == FERRY_CHILD_ROUTER) == routers;
	return count;
}

static void stop_ranks(struct ferry_supervisor *supervisor)
{
	if (supervisor->stopping)
		return;
	supervisor->stopping = true;
	supervisor->deadline = ferry_now_ns() + PATIENCE_NS;
	signal_ranks(supervisor, SIGTERM);
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
		if (!supervisor->stopping && alive(supervisor, false))
			fprintf(stderr,
			        "ferryrun: the router of domain %d ended with code %d while ranks were running\n",
			        child->number, code);
		return;
	}
	if (!code || supervisor->failed)
		return;
	supervisor->failed = true;
	supervisor->exit_code = code;
	if (child->role == FERRY_CHILD_RANK && alive(supervisor, false)) {
		fprintf(stderr, "ferryrun: rank %d ended with code %d; ending the others\n", child->number, code);
		stop_ranks(supervisor);
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

/* Waits for a signal until the deadline; 0 if that has passed. */
static int next_signal(uint64_t deadline, siginfo_t *info)
{
	uint64_t now = ferry_now_ns();
	if (!deadline)
		return sigwaitinfo(&taken, info);
	uint64_t left = deadline > now ? deadline - now : 0;
	struct timespec limit = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
	int number = sigtimedwait(&taken, info, &limit);
	return number < 0 && errno == EAGAIN ? 0 : number;
}

static void out_of_patience(struct ferry_supervisor *supervisor, unsigned timeout_s)
{
	if (supervisor->stopping) {
		signal_ranks(supervisor, SIGKILL);
		supervisor->deadline = 0;
		return;
	}
	fprintf(stderr, "ferryrun: not done after %u s (--timeout); ending the ranks\n", timeout_s);
	supervisor->failed = true;
	supervisor->exit_code = TIMED_OUT;
	stop_ranks(supervisor);
}

/* Once, before what mpiexec and the ranks have to say of it. */
static void note_asked(struct ferry_supervisor *supervisor, int number)
{
	if (!supervisor->asked)
		fprintf(stderr, "ferryrun: told to end by signal %d (%s), and so are the ranks\n", number,
		        strsignal(number));
	supervisor->asked = number;
}

void ferry_supervise(struct ferry_supervisor *supervisor, unsigned timeout_s)
{
	siginfo_t info;
	if (timeout_s)
		supervisor->deadline = ferry_now_ns() + timeout_s * 1000000000ull;
	reap(supervisor);
	while (alive(supervisor, false)) {
		int number = next_signal(supervisor->deadline, &info);
		if (number > 0 && number != SIGCHLD)
			note_asked(supervisor, number);
		if (number == SIGCHLD)
			reap(supervisor);
		else if (number == 0)
			out_of_patience(supervisor, timeout_s);
		/* the terminal signals the whole foreground group itself */
		else if (number > 0 && info.si_code != SI_KERNEL)
			signal_ranks(supervisor, number);
	}
}

void ferry_supervisor_end(struct ferry_supervisor *supervisor)
{
	siginfo_t info;
	supervisor->stopping = true;
	for (int i = 0; i < supervisor->nchildren; i++)
		if (supervisor->children[i].pid)
			kill(supervisor->children[i].pid, SIGTERM);
	uint64_t deadline = ferry_now_ns() + PATIENCE_NS;
	reap(supervisor);
	while (alive(supervisor, true) + alive(supervisor, false)) {
		int number = next_signal(deadline, &info);
		if (number == 0) {
			for (int i = 0; i < supervisor->nchildren; i++)
				if (supervisor->children[i].pid)
					kill(supervisor->children[i].pid, SIGKILL);
			deadline = 0;
		}
		reap(supervisor);
	}
	if (supervisor->directory)
		ferry_run_directory_remove(supervisor->directory);
}
