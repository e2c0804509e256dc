/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/measure_once.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_S  30
#define GRACE_MS 5000 /* for ferry-perf's own ferryrun to end its ranks and routers */

/* Finds ferry-perf beside this command. False: it is not there. */
static bool find(char path[PATH_MAX + 16])
{
	ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
	path[length > 0 ? length : 0] = '\0';
	char *slash = strrchr(path, '/');
	if (!slash)
		return false;
	strcpy(slash, "/ferry-perf");
	return !access(path, X_OK);
}

/* In the child: becomes ferry-perf, in a process group that can be ended as a whole, without its table. */
static void become(const char *path, pid_t parent)
{
	sigset_t none;
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1); /* it died before the line above */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	int null = open("/dev/null", O_RDWR);
	if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDOUT_FILENO) >= 0)
		execl(path, path, "tune", "--quick", "--once", (char *)NULL);
	_exit(126);
}

/* Waits for the child's end. Ends it if it is late, or if this process is asked to end: *late. Returns its status. */
static int await_end(struct ferry_supervisor *supervisor, pid_t child, bool *late)
{
	int status = 0, descriptor = ferry_process_open(child);
	struct pollfd entry = {descriptor, POLLIN, 0};
	*late = !ferry_supervisor_await(supervisor, descriptor, descriptor < 0 ? 0 : LIMIT_S * 1000);
	if (*late) {
		kill(-child, SIGTERM);
		if (descriptor < 0 || poll(&entry, 1, GRACE_MS) < 1)
			kill(-child, SIGKILL);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (descriptor >= 0)
		close(descriptor);
	return status;
}

static void report(int status, bool late)
{
	char how[64] = "";
	if (late)
		snprintf(how, sizeof how, "took more than %d s", LIMIT_S);
	else if (WIFSIGNALED(status))
		snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(status));
	else if (WEXITSTATUS(status))
		snprintf(how, sizeof how, "ended with exit code %d", WEXITSTATUS(status));
	if (*how)
		fprintf(stderr,
		        "ferryrun: measuring NCCL and Ferry (ferry-perf tune) %s; the command starts without\n", how);
}

ferryResult_t ferry_measure_once(struct ferry_supervisor *supervisor)
{
	char path[PATH_MAX + 16];
	const char *ferry = ferry_env("FERRY_NCCL");
	bool wanted, late;
	ferryResult_t result = ferry_env_switch("FERRY_TUNE", true, &wanted);
	/* with shares that are pinned, or with NCCL alone, measured times decide nothing */
	if (result || !wanted || (ferry && strcmp(ferry, "on")) || ferry_env("FERRY_SHARES") || !find(path))
		return result;
	pid_t parent = getpid(), child = fork();
	if (!child)
		become(path, parent);
	if (child < 0) {
		fprintf(stderr, "ferryrun: measuring NCCL and Ferry: a process: %s\n", strerror(errno));
		return ferrySuccess;
	}
	setpgid(child, child); /* as the child does: either may be first */
	int status = await_end(supervisor, child, &late);
	if (supervisor->asked)
		return ferrySystemError; /* the message is ferry_supervisor_await's */
	report(status, late);
	return ferrySuccess;
}
