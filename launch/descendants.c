/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime priority nice */
#define SKIP_15 " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"

struct process {
	pid_t pid, parent;
	unsigned threads;
	bool below;
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
	return behind && sscanf(behind + 1, " %*c %d" SKIP_15 " %u", &process->parent, &process->threads) == 2;
}

/* All that there are, in memory of the caller's. */
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

/* A child may have a lower number than its parent, so again until nothing is found. */
static void mark_below(struct process *all, size_t count, pid_t top)
{
	bool found = true;
	while (found) {
		found = false;
		for (size_t i = 0; i < count; i++)
			for (size_t j = 0; j < count && !all[i].below; j++)
				if (all[i].parent == top || (all[j].below && all[j].pid == all[i].parent))
					found = all[i].below = true;
	}
}

void ferry_descendants_signal(pid_t pid, int number)
{
	size_t count;
	struct process *all = processes_read(&count);
	mark_below(all, count, pid);
	kill(pid, number);
	for (size_t i = 0; i < count; i++)
		if (all[i].below)
			kill(all[i].pid, number);
	free(all);
}

unsigned ferry_descendants_threads(pid_t pid)
{
	struct process process;
	return process_read(pid, &process) ? process.threads : 0;
}
