/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/spawning.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/process.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

bool ferry_router_command(char *path, size_t bytes)
{
	const char *given = ferry_env("FERRY_ROUTER_EXE"), *search = getenv("PATH");
	Dl_info self;
	if (given) {
		snprintf(path, bytes, "%s", given);
		return true;
	}
	if (dladdr((void *)(uintptr_t)ferry_router_command, &self) && self.dli_fname && strrchr(self.dli_fname, '/')) {
		int stem = (int)(strrchr(self.dli_fname, '/') - self.dli_fname);
		snprintf(path, bytes, "%.*s/../bin/ferry-router", stem, self.dli_fname);
		if (!access(path, X_OK))
			return true;
		snprintf(path, bytes, "%.*s/../../bin/ferry-router", stem, self.dli_fname); /* lib/x86_64-linux-gnu */
		if (!access(path, X_OK))
			return true;
	}
	while (search && *search) {
		int length = (int)strcspn(search, ":");
		snprintf(path, bytes, "%.*s/ferry-router", length, search);
		if (!access(path, X_OK))
			return true;
		search += length + (search[length] == ':');
	}
	return false;
}

/* variable: "NAME=value" */
static bool is_hidden(const char *variable)
{
	static const char *const hidden[] = {"CUDA_VISIBLE_DEVICES=", "LD_PRELOAD="};
	for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
		if (!strncmp(variable, hidden[i], strlen(hidden[i])))
			return true;
	return false;
}

/*
 * A router serves ranks on any GPU, and outlives this process. So it does not inherit the choice of visible GPUs, nor
 * preloaded libraries: a profiler, an allocator, libferry-nccl.so. NULL: no memory.
 */
static char **router_environment(void)
{
	size_t count = 0, kept = 0;
	while (environ[count])
		count++;
	char **copy = malloc((count + 1) * sizeof *copy);
	for (size_t i = 0; copy && i < count; i++)
		if (!is_hidden(environ[i]))
			copy[kept++] = environ[i];
	if (copy)
		copy[kept] = NULL;
	return copy;
}

ferryResult_t ferry_router_spawn(const char *command, const char *directory, uint32_t domain, const char *layout)
{
	char number[16];
	pid_t child;
	int status = 0;
	posix_spawnattr_t attributes;
	sigset_t none;
	snprintf(number, sizeof number, "%u", domain);
	char *argv[] = {(char *)command, "--domain", number, "--socket-dir", (char *)directory, "--daemon",
	                "--idle-exit", "10", layout ? "--layout" : NULL, (char *)layout, NULL};
	cpu_set_t own;
	sigemptyset(&none);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	char **environment = router_environment();
	bool widened = ferry_process_widen(&own); /* the mask is this rank's; the router serves others too */
	int refused = environment ? posix_spawn(&child, command, NULL, &attributes, argv, environment) : ENOMEM;
	if (widened)
		ferry_process_narrow(&own);
	posix_spawnattr_destroy(&attributes);
	free(environment);
	if (refused)
		return ferry_fail(ferrySystemError, "starting %s: %s%s", command, strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	/* It exits with 0 once its daemon listens, with 2 if another one does. No status where SIGCHLD is ignored. */
	pid_t waited;
	do
		waited = waitpid(child, &status, 0);
	while (waited < 0 && errno == EINTR);
	if (waited == child && WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 2)
		return ferry_fail(ferrySystemError, "%s --domain %u ended with exit code %d", command, domain,
		                  WEXITSTATUS(status));
	return ferrySuccess;
}
