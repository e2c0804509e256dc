/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded by scripts/hot-path into programs that are compiled with -finstrument-functions: notes each function that a
 * thread enters or leaves once hot_path runs the calls that are traced, and writes the notes, "order thread module
 * address" a line ("- 0": one is left), to $HOT_PATH_TRACE.PID as the process ends. The order is that of all processes.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST (16u << 20)

static struct {
	_Atomic uint64_t order; /* 0: not yet */
} *shared;
static struct {
	uint64_t order;
	char *function; /* NULL: one is left */
	int thread;
} *notes;
static _Atomic uint64_t used;

__attribute__((constructor)) static void open_trace(void)
{
	int file = open(getenv("HOT_PATH_TRACE"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, sizeof *shared))
		abort();
	notes = mmap(NULL, MOST * sizeof *notes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	             -1, 0);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
}

__attribute__((destructor)) static void write_trace(void)
{
	char path[4096], program[4096];
	program[readlink("/proc/self/exe", program, sizeof program - 1)] = 0;
	snprintf(path, sizeof path, "%s.%d", getenv("HOT_PATH_TRACE"), (int)getpid());
	FILE *out = fopen(path, "w");
	for (uint64_t i = 0; out && i < used && i < MOST; i++) {
		Dl_info where;
		if (!notes[i].function)
			fprintf(out, "%lu %d - 0\n", notes[i].order, notes[i].thread);
		else if (dladdr(notes[i].function, &where))
			fprintf(out, "%lu %d %s %lx\n", notes[i].order, notes[i].thread,
			        strchr(where.dli_fname, '/') ? where.dli_fname : program,
			        (unsigned long)(notes[i].function - (char *)where.dli_fbase));
	}
	if (out)
		fclose(out);
}

void hot_path_begin(void);
void hot_path_begin(void)
{
	atomic_store(&shared->order, 1);
}

static void note(void *function)
{
	if (!shared || !atomic_load_explicit(&shared->order, memory_order_relaxed))
		return;
	uint64_t at = atomic_fetch_add(&used, 1);
	if (at >= MOST)
		return;
	notes[at].function = function;
	notes[at].thread = gettid();
	notes[at].order = atomic_fetch_add(&shared->order, 1);
}

void __cyg_profile_func_enter(void *function, void *caller);
void __cyg_profile_func_enter(void *function, void *caller)
{
	(void)caller;
	note(function);
}

void __cyg_profile_func_exit(void *function, void *caller);
void __cyg_profile_func_exit(void *function, void *caller)
{
	(void)function;
	(void)caller;
	note(NULL);
}
