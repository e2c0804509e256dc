/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of ranks on host devices, one of which writes into the arena while calls go on: into the header, the lines of
 * all ranks, cells, rings, pairs' lines, seals, the table of shares and counters. Data it leaves alone: a rank that
 * writes there has wrong results. Each job is a process. Its calls all end, or its ranks all hear why they do not, or
 * it waits until somebody ends it.
 */
#include "tests/hostility/hostility.h"
#include "tests/hostility/random.h"

#include "ferry.h"
#include "ipc/arena.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST   (24 << 10) /* elements of a rank's block */
#define CALLS  60         /* of a job */
#define BURSTS 24
#define BURST  12         /* words at once, at most */
#define WAITS_MS 2500     /* FERRY_TIMEOUT, and the end of a job */
#define COUNTERS 48       /* that plans of so few ranks use */

static uint64_t job; /* its number, in its process */
static ferryUniqueId name;
static struct ferry_arena arenas[MOST_DOMAINS];
static _Atomic int ready, begun;

static void doze_us(long us)
{
	nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* ---- ranks ---- */

static ferryResult_t call(int rank, unsigned number, ferryComm_t comm, ferryStream_t stream, uint32_t *send,
                          uint32_t *receive)
{
	uint64_t state = random_begin(job ^ 0xca11, number);
	uint64_t kind = random_below(&state, 6);
	size_t count = 1 + random_below(&state, random_below(&state, 3) ? 1000 : MOST);
	int next = (rank + 1) % HOSTILE_RANKS, last = (rank + HOSTILE_RANKS - 1) % HOSTILE_RANKS;
	switch (kind) {
	case 0:
		return ferryAllReduce(send, receive, count, ferryUint32, ferrySum, comm, stream);
	case 1:
		return ferryAllGather(send, receive, count, ferryUint32, comm, stream);
	case 2:
		return ferryReduceScatter(send, receive, count, ferryUint32, ferrySum, comm, stream);
	case 3:
		return ferryAllToAll(send, receive, count, ferryUint32, comm, stream);
	case 4:
		return ferryBroadcast(send, receive, count, ferryUint32, (int)(number % HOSTILE_RANKS), comm, stream);
	default:
		break;
	}
	ferryResult_t result = ferryGroupStart();
	if (!result)
		result = ferrySend(send, count, ferryUint32, next, comm, stream);
	if (!result)
		result = ferryRecv(receive, count, ferryUint32, last, comm, stream);
	ferryResult_t ended = ferryGroupEnd();
	return result ? result : ended;
}

static void *rank_main(void *argument)
{
	struct fate *fate = argument;
	int rank = (int)(fate - shared->fates);
	uint32_t *send = calloc(HOSTILE_RANKS * MOST, sizeof *send);
	uint32_t *receive = calloc(HOSTILE_RANKS * MOST, sizeof *receive);
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	ferryComm_t comm = NULL;
	ferryStream_t stream = NULL;
	config.ordinal = rank;
	config.domain = rank % options.domains;
	ferryResult_t result = ferryCommInitRankConfig(&comm, HOSTILE_RANKS, name, rank, &config);
	if (!result)
		result = ferryStreamCreate(&stream, rank);
	atomic_fetch_add(&ready, 1);
	while (!atomic_load(&begun))
		doze_us(200);
	for (unsigned number = 0; !result && number < CALLS; number++) {
		result = call(rank, number, comm, stream, send, receive);
		if (!result && number % 3 == 2)
			result = ferryStreamSynchronize(stream);
		fate->calls += !result;
		if (!result && number % 4 == 3)
			doze_us(300);
	}
	if (!result)
		result = ferryStreamSynchronize(stream);
	snprintf(fate->message, SAID, "%s", result ? ferryGetLastError(NULL) : "");
	fate->result = result;
	atomic_store(&fate->over, 1);
	ferryCommAbort(comm);
	ferryStreamDestroy(stream);
	free(send);
	free(receive);
	return NULL;
}

/* ---- the one that writes ---- */

/* Mappings of its own, which nobody takes away. */
static int find_arenas(void)
{
	char path[300];
	struct dirent *entry;
	int found = 0;
	DIR *files = opendir("/proc/self/fd");
	while (files && (entry = readdir(files)) && found < options.domains) {
		char target[100] = "";
		struct ferry_arena arena;
		snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
		if (readlink(path, target, sizeof target - 1) < 0 || !strstr(target, "ferry-arena") ||
		    ferry_arena_map(dup(atoi(entry->d_name)), &arena))
			continue;
		bool known = false;
		for (int i = 0; i < found; i++)
			known |= arenas[i].domain == arena.domain;
		if (known)
			ferry_arena_unmap(&arena);
		else
			arenas[found++] = arena;
	}
	if (files)
		closedir(files);
	return found;
}

/* An aligned word of so many bytes from `start` on. */
static _Atomic uint64_t *flag_in(const void *start, uint64_t bytes, uint64_t *state)
{
	return (_Atomic uint64_t *)(uintptr_t)start + random_below(state, bytes / 8);
}

static _Atomic uint64_t *flag_of_line(struct ferry_rank_line *line, uint64_t *state)
{
	uint32_t parity = (uint32_t)random_below(state, FERRY_PARITIES);
	switch (random_below(state, 5)) {
	case 0:
		return &line->ring[parity].seq;
	case 1:
		return &line->finished[parity];
	case 2:
		return flag_in(&line->ring[parity], sizeof line->ring[parity], state);
	case 3:
		return flag_in(line, 3 * sizeof line->d2h, state); /* doorbells */
	default:
		return flag_in(line, sizeof *line, state);
	}
}

static _Atomic uint64_t *flag_of_pair(struct ferry_pair_line *line, uint64_t *state)
{
	switch (random_below(state, 3)) {
	case 0:
		return &line->d2h.value;
	case 1:
		return &line->h2d.value;
	default:
		return flag_in(line, sizeof *line, state);
	}
}

static _Atomic uint64_t *any_flag(const struct ferry_arena *arena, uint64_t *state)
{
	struct ferry_arena_header *header = arena->header;
	switch (random_below(state, 10)) {
	case 0: /* its bits of ranks present and departed, and of its failure, end most jobs at once */
		if (random_below(state, 12) == 0)
			return (_Atomic uint64_t *)(random_below(state, 2) ? &header->present : &header->left);
		if (random_below(state, 4))
			return random_below(state, 2) ? flag_in(&header->reach, sizeof header->reach, state)
			                              : flag_in(&header->nvlinks, sizeof header->nvlinks, state);
		return flag_in(header, sizeof *header, state);
	case 1:
	case 2:
	case 3:
		return flag_of_line(&arena->rank_lines[random_below(state, HOSTILE_RANKS)], state);
	case 4:
		return flag_in(arena->export_cells, (uint64_t)((char *)arena->rings - (char *)arena->export_cells),
		               state);
	case 5:
		return flag_in(arena->rings, HOSTILE_RANKS * sizeof *arena->rings, state);
	case 6:
		return flag_of_pair(&arena->pair_lines[random_below(state, HOSTILE_RANKS * HOSTILE_RANKS)], state);
	case 7: /* seals and the table of shares, of domain 0 */
		return flag_in(arena->agreements, (uint64_t)(arena->staging[0] - arena->agreements) + 8, state);
	default:
		return flag_in(&arena->counters[random_below(state, FERRY_PARITIES)][random_below(state, COUNTERS)], 16,
		               state);
	}
}

static void write_flags(uint64_t *state)
{
	for (uint64_t flags = 1 + random_below(state, BURST); flags; flags--) {
		const struct ferry_arena *arena = &arenas[random_below(state, (uint64_t)options.domains)];
		_Atomic uint64_t *flag = any_flag(arena, state);
		uint64_t before = atomic_load(flag), value = random_value(state, before);
		/* one that tells the job's end before anything else is looked at */
		if (flag == (_Atomic uint64_t *)(void *)&arena->header->ready && random_below(state, 8))
			continue;
		atomic_store(flag, value);
		if (random_below(state, 8) == 0) { /* it was there for a moment only */
			doze_us(20);
			atomic_store(flag, before);
		}
		atomic_fetch_add(&shared->writes, 1);
	}
}

static bool all_over(void)
{
	for (int rank = 0; rank < HOSTILE_RANKS; rank++)
		if (!atomic_load(&shared->fates[rank].over))
			return false;
	return true;
}

static void run_job(void)
{
	pthread_t threads[HOSTILE_RANKS];
	uint64_t state = random_begin(options.seed, job);
	if (ferryGetUniqueId(&name))
		_exit(1);
	for (int rank = 0; rank < HOSTILE_RANKS; rank++)
		if (pthread_create(&threads[rank], NULL, rank_main, &shared->fates[rank]))
			_exit(1);
	while (atomic_load(&ready) < HOSTILE_RANKS)
		doze_us(200);
	if (find_arenas() != options.domains)
		_exit(2);
	atomic_store(&begun, 1);
	for (int burst = 0; burst < BURSTS && !all_over(); burst++) {
		write_flags(&state);
		doze_us((long)random_below(&state, 1500));
	}
	for (int rank = 0; rank < HOSTILE_RANKS; rank++)
		pthread_join(threads[rank], NULL);
	_exit(0);
}

/* ---- the onlooker ---- */

static void tell_fates(const char *what)
{
	fprintf(stderr, "hostile job %llu of seed %llu: %s\n", (unsigned long long)job,
	        (unsigned long long)options.seed, what);
	for (int rank = 0; rank < HOSTILE_RANKS; rank++) {
		const struct fate *fate = &shared->fates[rank];
		fprintf(stderr, "  rank %d: %u calls, %s%s\n", rank, fate->calls,
		        atomic_load(&fate->over) ? fate->result ? "told: " : "all done" : "still in one",
		        fate->message);
	}
}

/* Its status; 0: it waits on, and was killed. */
static int wait_for(pid_t child, unsigned *waiting)
{
	int status;
	for (long waited = 0; waited < WAITS_MS; waited++) {
		if (waitpid(child, &status, WNOHANG) == child)
			return status;
		doze_us(1000);
	}
	++*waiting;
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	return 0;
}

static bool judge(pid_t child, unsigned *logged, unsigned *waiting)
{
	unsigned before = *waiting;
	int status = wait_for(child, waiting);
	if (*waiting > before)
		return true;
	bool silent = false;
	for (int rank = 0; rank < HOSTILE_RANKS; rank++)
		silent |= shared->fates[rank].result && !shared->fates[rank].message[0];
	*logged += shared->fates[0].result || shared->fates[1].result || shared->fates[2].result;
	if (status == 0 && !silent) {
		if (options.verbose)
			tell_fates("has ended");
		return true;
	}
	char died[60];
	snprintf(died, sizeof died, "its ranks have died of it, with status %#x", (unsigned)status);
	tell_fates(status ? died : "nobody says why");
	return false;
}

bool scribble(uint64_t writes)
{
	unsigned jobs = 0, logged = 0, waiting = 0;
	for (job = options.first; atomic_load(&shared->writes) < writes; job++) {
		memset(shared->fates, 0, sizeof shared->fates);
		pid_t child = fork();
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run_job();
		}
		jobs++;
		if (!judge(child, &logged, &waiting) || !all_is_well())
			return false;
		progress("words written into arenas", atomic_load(&shared->writes), writes);
	}
	printf("arenas: %llu words, by %u jobs: %u ended with a message, %u waited until they were ended, the others "
	       "made all calls\n",
	       (unsigned long long)atomic_load(&shared->writes), jobs, logged, waiting);
	return true;
}
