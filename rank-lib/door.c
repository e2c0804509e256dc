/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/door.h"

#include "ipc/rankset.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATIENCE_SECONDS 10

static struct ferry_rank_line *line_of(const struct ferry_rank *rank, uint32_t other)
{
	return ferry_rank_line(&rank->shared, other);
}

/* ---- processes ---- */

/* When it was started, in the kernel's ticks; 0: there is no such process, or it cannot be seen. */
static uint64_t start_of(pid_t process)
{
	char path[40], text[1024];
	unsigned long long start = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	size_t length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = '\0';
	const char *next = strrchr(text, ')'); /* its name may hold anything */
	for (int field = 2; next && field < 22; field++)
		next = strchr(next + 1, ' ');
	if (next)
		sscanf(next, " %llu", &start);
	return start;
}

void ferry_door_tell(struct ferry_rank *rank)
{
	struct ferry_rank_line *line = line_of(rank, (uint32_t)rank->self);
	struct stat space;
	uint64_t names = stat("/proc/self/ns/pid", &space) ? 0 : (uint64_t)space.st_ino;
	atomic_store_explicit(&line->process, (uint32_t)getpid(), memory_order_relaxed);
	atomic_store_explicit(&line->process_start, start_of(getpid()), memory_order_relaxed);
	atomic_store_explicit(&line->process_names, names, memory_order_relaxed); /* `mover` follows, with release */
}

bool ferry_doors_are_near(const struct ferry_rank *rank)
{
	uint64_t mine = atomic_load_explicit(&line_of(rank, (uint32_t)rank->self)->process_names, memory_order_relaxed);
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++)
		if (atomic_load_explicit(&line_of(rank, other)->process_names, memory_order_relaxed) != mine)
			return false;
	return true;
}

/* It may still put: it has not ended, or that cannot be told. */
static bool lives(const struct ferry_rank_line *line)
{
	pid_t process = (pid_t)atomic_load_explicit(&line->process, memory_order_relaxed);
	uint64_t start = atomic_load_explicit(&line->process_start, memory_order_relaxed);
	if (process == getpid())
		return true;
	struct pollfd end = {(int)syscall(SYS_pidfd_open, process, 0), POLLIN, 0};
	if (end.fd < 0)
		return start_of(process) == start; /* an old kernel; 0 is none */
	/* Behind the opening: if the number is another's by now, so was it to begin with, and ours has ended. */
	bool ended = start_of(process) != start || poll(&end, 1, 0) > 0;
	close(end.fd);
	return !ended;
}

bool ferry_door_has_ended(const struct ferry_rank *rank, uint32_t other)
{
	const struct ferry_rank_line *line = line_of(rank, other);
	struct stat space;
	uint64_t names = stat("/proc/self/ns/pid", &space) ? 0 : (uint64_t)space.st_ino;
	return names && atomic_load_explicit(&line->process_names, memory_order_relaxed) == names &&
	       atomic_load_explicit(&line->process, memory_order_relaxed) && !lives(line);
}

/* ---- who puts ---- */

bool ferry_door_enter(struct ferry_rank *rank, uint32_t owner)
{
	_Atomic uint64_t *putting = &line_of(rank, (uint32_t)rank->self)->putting;
	/* Its one writer: no fetch-or is needed. */
	atomic_store_explicit(putting, atomic_load_explicit(putting, memory_order_relaxed) | 1ull << owner,
	                      memory_order_relaxed);
	ferry_full_fence(); /* the bit before the look */
	if (!atomic_load_explicit(&line_of(rank, owner)->shut, memory_order_acquire))
		return true;
	ferry_door_leave(rank, owner);
	return false;
}

void ferry_door_leave(struct ferry_rank *rank, uint32_t owner)
{
	_Atomic uint64_t *putting = &line_of(rank, (uint32_t)rank->self)->putting;
	atomic_store_explicit(putting, atomic_load_explicit(putting, memory_order_relaxed) & ~(1ull << owner),
	                      memory_order_release);
	ferry_full_fence(); /* the bit before the look for who waits for that */
	struct ferry_rank_line *line = line_of(rank, owner);
	if (!atomic_load_explicit(&line->shut, memory_order_relaxed))
		return;
	ferry_doorbell_ring(&line->d2h);
	ferry_doorbell_ring(&line->h2d);
}

/* ---- the owner ---- */

static uint64_t inside(const struct ferry_rank *rank)
{
	uint64_t ranks = 0;
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++) {
		const struct ferry_rank_line *line = line_of(rank, other);
		if (atomic_load_explicit(&line->putting, memory_order_acquire) >> rank->self & 1 && lives(line))
			ranks |= 1ull << other;
	}
	return ranks;
}

bool ferry_door_shut(struct ferry_door *door, struct ferry_rank *rank)
{
	char text[FERRY_RANKSET_TEXT];
	if (!door->shut_ns) {
		door->shut_ns = ferry_now_ns();
		atomic_store_explicit(&line_of(rank, (uint32_t)rank->self)->shut, 1, memory_order_release);
		ferry_full_fence(); /* `shut` before the look */
	}
	uint64_t ranks = door->given_up ? 0 : inside(rank);
	if (!ranks || ferry_now_ns() - door->shut_ns < PATIENCE_SECONDS * 1000000000ull)
		return !ranks;
	door->given_up = true;
	ferry_log(FERRY_LOG_WARN,
	          "rank %d's streams go on: %s, in the middle of putting into its memory, has not come out of that for "
	          "%d s, and may still write there",
	          rank->self, ferry_rankset_print(ranks, text), PATIENCE_SECONDS);
	return true;
}
