/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fairness/crowd.h"

#include "ferry.h"
#include "ipc/collective.h"
#include "ipc/wait.h"

#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAMPLES (1u << 20)

/* Between the processes. */
struct meeting {
	_Atomic int stop;
	_Atomic uint64_t begun;   /* jobs that have made a call */
	_Atomic uint64_t samples; /* rank 0 of the small job, since the times were reset */
	float us[SAMPLES];
};

static struct meeting *meeting;

void crowd_open(void)
{
	meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED)
		exit(1);
}

/* ---- a job's process ---- */

struct slot {
	uint64_t made_ns;
	bool timed;
	_Atomic uint32_t over; /* calls of this slot */
};

struct seat {
	const struct crowd_options *options;
	enum crowd_kind kind;
	int rank;
	struct slot slots[CROWD_FLIGHT];
};

static ferryUniqueId name;
static pthread_barrier_t together;
static _Atomic int stopping; /* as rank 0 has seen it, before a barrier */

static void must(ferryResult_t result)
{
	if (!result)
		return;
	fprintf(stderr, "ferry-fairness: %s: %s\n", ferryGetErrorString(result), ferryGetLastError(NULL));
	_exit(1);
}

/* All ranks make as many calls. */
static bool goes_on(const struct seat *seat)
{
	if (seat->rank == 0)
		atomic_store(&stopping, atomic_load(&meeting->stop));
	pthread_barrier_wait(&together);
	bool on = !atomic_load(&stopping);
	pthread_barrier_wait(&together);
	return on;
}

/* Two at a time, so that one has work for the router while the other begins or ends. */
static void call_large(struct seat *seat, ferryComm_t comm, ferryStream_t stream, char *buffer)
{
	size_t bytes = seat->options->bytes / 2, count = bytes / ferry_type_size(seat->options->type);
	ferryStream_t streams[2] = {stream, NULL};
	bool said = false;
	must(ferryStreamCreate(&streams[1], seat->rank));
	while (goes_on(seat))
		for (int i = 0; i < 8; i++) {
			must(ferryStreamSynchronize(streams[i % 2]));
			must(ferryAllReduce(buffer + i % 2 * bytes, buffer + i % 2 * bytes, count, seat->options->type,
			                    ferrySum, comm, streams[i % 2]));
			if (seat->rank == 0 && i == 2 && !said)
				atomic_fetch_add(&meeting->begun, 1);
			said |= i == 2;
		}
	must(ferryStreamSynchronize(streams[1]));
	must(ferryStreamDestroy(streams[1]));
}

static void note_end(void *argument)
{
	struct slot *slot = argument;
	if (slot->timed) {
		uint64_t at = atomic_fetch_add(&meeting->samples, 1);
		if (at < SAMPLES)
			meeting->us[at] = (float)(ferry_now_ns() - slot->made_ns) / 1e3f;
	}
	atomic_fetch_add(&slot->over, 1);
	ferry_futex_wake(&slot->over, 1, false);
}

/* A call more as soon as the oldest of those in flight is over. */
static void call_small(struct seat *seat, ferryComm_t comm, ferryStream_t stream, char *buffer)
{
	size_t count = seat->options->few / ferry_type_size(seat->options->type);
	uint32_t flight = (uint32_t)seat->options->flight;
	uint64_t made = 0;
	while (goes_on(seat))
		for (uint32_t i = 0; i < 4 * flight; i++, made++) {
			struct slot *slot = &seat->slots[made % flight];
			uint32_t before = (uint32_t)(made / flight), over;
			while ((over = atomic_load(&slot->over)) != before)
				ferry_futex_wait(&slot->over, over, 1000000, false);
			slot->made_ns = ferry_now_ns();
			slot->timed = seat->rank == 0;
			must(ferryAllReduce(buffer, buffer, count, seat->options->type, ferrySum, comm, stream));
			must(ferryLaunchHostFunc(stream, note_end, slot));
			if (seat->rank == 0 && made == flight)
				atomic_fetch_add(&meeting->begun, 1);
		}
}

static void *seat_main(void *argument)
{
	struct seat *seat = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	ferryComm_t comm;
	ferryStream_t stream;
	char *buffer = calloc(1, seat->kind == CROWD_LARGE ? seat->options->bytes : seat->options->few);
	config.ordinal = seat->rank;
	if (!buffer)
		_exit(1);
	must(ferryCommInitRankConfig(&comm, seat->options->ranks, name, seat->rank, &config));
	must(ferryStreamCreate(&stream, seat->rank));
	(seat->kind == CROWD_LARGE ? call_large : call_small)(seat, comm, stream, buffer);
	must(ferryStreamSynchronize(stream));
	must(ferryStreamDestroy(stream));
	must(ferryCommDestroy(comm));
	free(buffer);
	return NULL;
}

static void run_job(const struct crowd_options *options, enum crowd_kind kind)
{
	static struct seat seats[CROWD_MOST];
	pthread_t threads[CROWD_MOST];
	pthread_barrier_init(&together, NULL, (unsigned)options->ranks);
	must(ferryGetUniqueId(&name));
	for (int rank = 0; rank < options->ranks; rank++) {
		seats[rank].options = options;
		seats[rank].kind = kind;
		seats[rank].rank = rank;
		if (pthread_create(&threads[rank], NULL, seat_main, &seats[rank]))
			_exit(1);
	}
	for (int rank = 0; rank < options->ranks; rank++)
		pthread_join(threads[rank], NULL);
	_exit(0);
}

pid_t crowd_start(const struct crowd_options *options, enum crowd_kind kind, int group)
{
	atomic_store(&meeting->stop, 0);
	pid_t child = fork();
	if (child < 0)
		exit(1);
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (group && (setgroups(0, NULL) || setgid((gid_t)group))) {
		perror("ferry-fairness: setgid");
		_exit(1);
	}
	run_job(options, kind);
	return 0;
}

/* ---- this process ---- */

void crowd_forget(void)
{
	atomic_store(&meeting->begun, 0);
}

void crowd_await(uint64_t jobs)
{
	for (int waited = 0; atomic_load(&meeting->begun) < jobs; waited++) {
		int status;
		pid_t ended = waitpid(-1, &status, WNOHANG);
		if (ended > 0 || waited > 120000) {
			fprintf(stderr, "ferry-fairness: a job %s before its first call\n",
			        ended > 0 ? "ended" : "hangs");
			exit(1);
		}
		usleep(1000);
	}
}

void crowd_stop(const pid_t *jobs, int count)
{
	int failed = 0, status;
	atomic_store(&meeting->stop, 1);
	for (int job = 0; job < count; job++)
		failed += waitpid(jobs[job], &status, 0) != jobs[job] || status;
	if (failed)
		exit(1);
}

void crowd_reset_times(void)
{
	atomic_store(&meeting->samples, 0);
}

static int ascending(const void *one, const void *other)
{
	float a = *(const float *)one, b = *(const float *)other;
	return (a > b) - (a < b);
}

struct crowd_times crowd_times(void)
{
	uint64_t calls = atomic_load(&meeting->samples), kept = calls < SAMPLES ? calls : SAMPLES;
	float *us = malloc((kept + 1) * sizeof *us);
	if (!us || !kept) {
		fprintf(stderr, "ferry-fairness: no small call has come to its end\n");
		exit(1);
	}
	memcpy(us, meeting->us, kept * sizeof *us);
	qsort(us, kept, sizeof *us, ascending);
	struct crowd_times times = {calls, us[kept / 2], us[kept * 99 / 100], us[kept - 1]};
	free(us);
	return times;
}
