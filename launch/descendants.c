/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/descendants.h"

#include "ipc/wait.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOP_NS 1000000000ull /* to wait for processes to stop: one in the driver, or under a debugger, may not */

/* pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime priority nice */
#define SKIP_15 " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"

struct process {
	pid_t pid, parent;
	unsigned threads;
	char state;
	bool below; /* it is a top process, or below one */
};

/* The name in the second field may hold anything, brackets too: it ends at the last one. */
static bool process_read(pid_t pid, struct process *process)
{
	char path[32], text[512];
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	size_t length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = '\0';
	const char *behind = strrchr(text, ')');
	*process = (struct process){.pid = pid};
	return behind && sscanf(behind + 1, " %c %d" SKIP_15 " %u", &process->state, &process->parent,
	                        &process->threads) == 3;
}

/* Returns all processes, which the caller frees; NULL: none were read. */
static struct process *processes_read(size_t *count)
{
	struct process *all = NULL;
	size_t capacity = 0;
	DIR *directory = opendir("/proc");
	*count = 0;
	for (struct dirent *entry; directory && (entry = readdir(directory));) {
		pid_t pid = atoi(entry->d_name);
		if (*count == capacity) {
			struct process *grown = realloc(all, (capacity ? 2 * capacity : 256) * sizeof *all);
			if (!grown)
				break;
			all = grown;
			capacity = capacity ? 2 * capacity : 256;
		}
		if (pid > 0 && process_read(pid, &all[*count]))
			++*count;
	}
	if (directory)
		closedir(directory);
	return all;
}

static int by_pid(const void *left, const void *right)
{
	pid_t first = ((const struct process *)left)->pid, second = ((const struct process *)right)->pid;
	return (first > second) - (first < second);
}

static bool is_one_of(pid_t pid, const pid_t *tops, size_t ntops)
{
	for (size_t i = 0; i < ntops; i++)
		if (tops[i] == pid)
			return true;
	return false;
}

/*
 * Goes up from each process to its root. As parents die while /proc is read the chain may have a cycle, so steps are
 * limited.
 */
static void mark_below(struct process *all, size_t count, const pid_t *tops, size_t ntops)
{
	qsort(all, count, sizeof *all, by_pid);
	for (size_t i = 0; i < count; i++) {
		const struct process *process = &all[i];
		for (size_t d2h = 0; process && !all[i].below && d2h < count; d2h++) {
			all[i].below = is_one_of(process->pid, tops, ntops);
			process = bsearch(&(struct process){.pid = process->parent}, all, count, sizeof *all, by_pid);
		}
	}
}

/* Whether it is stopped, dead, or waits in the kernel, as a process does that has vforked a child that is stopped. */
static bool stands_still(const struct process *process)
{
	return strchr("TtDZX", process->state);
}

/*
 * Stops the processes and all below them, and returns them: a process that runs might start another, which no list has,
 * before it gets its signal. As a look at /proc may miss a process that starts meanwhile, this repeats until two looks
 * in a row find all of them stopped.
 */
static struct process *stop_below(const pid_t *tops, size_t ntops, size_t *count)
{
	uint64_t limit = ferry_now_ns() + STOP_NS;
	for (int quiet = 0;;) {
		struct process *all = processes_read(count);
		bool moving = false;
		mark_below(all, *count, tops, ntops);
		for (size_t i = 0; i < *count; i++)
			if (all[i].below && !stands_still(&all[i]) && !kill(all[i].pid, SIGSTOP))
				moving = true;
		quiet = moving ? 0 : quiet + 1;
		if (quiet == 2 || ferry_now_ns() > limit)
			return all;
		free(all);
		sched_yield();
	}
}

static void signal_below(const struct process *all, size_t count, int number)
{
	for (size_t i = 0; i < count; i++)
		if (all[i].below)
			kill(all[i].pid, number);
}

void ferry_descendants_signal(const pid_t *tops, size_t ntops, int number)
{
	size_t count;
	struct process *all = stop_below(tops, ntops, &count);
	signal_below(all, count, number);
	signal_below(all, count, SIGCONT);
	free(all);
}

void ferry_descendants_continue(const pid_t *tops, size_t ntops)
{
	size_t count;
	struct process *all = processes_read(&count);
	mark_below(all, count, tops, ntops);
	signal_below(all, count, SIGCONT);
	free(all);
}

unsigned ferry_descendants_threads(pid_t pid)
{
	struct process process;
	return process_read(pid, &process) ? process.threads : 0;
}
