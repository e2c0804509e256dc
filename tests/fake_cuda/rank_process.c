/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/rank_process.h"

#include "rank-lib/call/comm.h"
#include "tests/fake_cuda/channel_round.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the rank ---- */

static struct {
	ferryComm_t comm;
	struct place place;
	CUgraphExec graph;
	struct channel_round channels;
	_Atomic int held;
	uint64_t copied; /* before the last rounds */
	bool placed;
} mine;

static int milliseconds_since(const struct timespec *start)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int)((now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000);
}

static ferryResult_t join(const struct rank_ordered *order)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.ordinal = order->ordinal;
	config.channels = order->channels;
	ferryResult_t result = ferryCommInitRankConfig(&mine.comm, order->nranks, order->id, order->rank, &config);
	if (result || (mine.placed && order->wanted))
		return result;
	if (mine.placed)
		place_close(&mine.place);
	place_open(&mine.place, order->ordinal, order->rank, order->nranks, order->count);
	mine.placed = true;
	return ferrySuccess;
}

static uint64_t copied(void)
{
	const struct ferry_rank *rank = &mine.comm->rank;
	const struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	return atomic_load(&line->traffic[FERRY_DIR_D2H].bytes);
}

static int carried(void)
{
	const struct ferry_rank *rank = &mine.comm->rank;
	const struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	return mine.comm->mailboxes.ready ? (int)atomic_load(&line->mailbox.calls) : -1;
}

static bool any_moves(void)
{
	const struct ferry_rank *rank = &mine.comm->rank;
	const struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	return atomic_load(&line->traffic[FERRY_DIR_D2H].moves) || atomic_load(&line->traffic[FERRY_DIR_H2D].moves);
}

/* Its lanes sleep: a router that is stopped now has nothing under way for it. */
static ferryResult_t rest(bool more)
{
	while ((more && copied() == mine.copied) || any_moves())
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	return ferrySuccess;
}

static ferryResult_t follow(int domain)
{
	struct ferry_link *link = &mine.comm->rank.links[domain];
	uint64_t count = 0;
	while (!count) {
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		pthread_mutex_lock(&link->lock);
		count = link->count;
		pthread_mutex_unlock(&link->lock);
	}
	return ferrySuccess;
}

static ferryResult_t register_input(void)
{
	const struct place *place = &mine.place;
	void *handle;
	return ferryCommRegister(mine.comm, pointer_of(place->input), place->count * sizeof(uint32_t), &handle);
}

static ferryResult_t rounds(int count)
{
	ferryResult_t result = ferrySuccess;
	mine.copied = copied();
	for (int i = 0; i < count && !result; i++) {
		place_write(&mine.place);
		result = place_try(&mine.place, mine.comm);
		place_judge(&mine.place);
	}
	return result;
}

static ferryResult_t gather(void)
{
	const struct place *place = &mine.place;
	return ferryGather(pointer_of(place->input), pointer_of(place->output), place->count, ferryUint32, 0,
	                   mine.comm, (ferryStream_t)place->stream);
}

static ferryResult_t message(void)
{
	const struct place *place = &mine.place;
	ferryStream_t stream = (ferryStream_t)place->stream;
	if (place->rank)
		return ferryRecv(pointer_of(place->output), place->count, ferryUint32, 0, mine.comm, stream);
	return ferrySend(pointer_of(place->input), place->count, ferryUint32, 1, mine.comm, stream);
}

static ferryResult_t ring(int number)
{
	struct place *place = &mine.place;
	int next = (place->rank + 1) % place->nranks, before = (place->rank + place->nranks - 1) % place->nranks;
	ferryStream_t stream = (ferryStream_t)place->stream;
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < number && !result; i++) {
		place_write(place);
		ferryGroupStart();
		ferrySend(pointer_of(place->input), place->count, ferryUint32, next, mine.comm, stream);
		ferryRecv(pointer_of(place->output), place->count, ferryUint32, before, mine.comm, stream);
		result = ferryGroupEnd();
		place_judge_message(place);
	}
	return result;
}

static ferryResult_t capture(int calls, bool alone)
{
	CUgraph captured;
	ferryResult_t result = ferrySuccess;
	CU(cuStreamBeginCapture(mine.place.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	if (!alone)
		place_write(&mine.place);
	for (int i = 0; i < calls && !result; i++)
		result = place_try(&mine.place, mine.comm);
	if (!alone)
		place_judge(&mine.place);
	CU(cuStreamEndCapture(mine.place.stream, &captured));
	CU(cuGraphInstantiateWithFlags(&mine.graph, captured, 0));
	CU(cuGraphDestroy(captured));
	return result;
}

static void move(void)
{
	const struct place *before = &mine.place; /* which its stream reads until it is closed */
	struct place next;
	place_open(&next, before->device, before->rank, before->nranks, before->count);
	place_close(&mine.place);
	next.round = mine.place.round;
	mine.place = next;
}

#define WANTED_MS 60000 /* for an error that is to come: on a busy machine it takes as long as that lets it */

static void settle(const struct rank_ordered *order, struct rank_answer *answer)
{
	struct timespec start;
	CUresult state;
	clock_gettime(CLOCK_MONOTONIC, &start);
	while ((state = cuStreamQuery(mine.place.stream)) == CUDA_ERROR_NOT_READY &&
	       milliseconds_since(&start) < order->number)
		doze(1);
	answer->settled = !state;
	answer->round = state ? 0 : mine.place.round; /* the kernels' while they run */
	answer->wrong = state ? 0 : mine.place.wrong;
	answer->milliseconds = milliseconds_since(&start);
	do
		ferryCommGetAsyncError(mine.comm, &answer->error);
	while (order->wanted && !answer->error && milliseconds_since(&start) < order->number + WANTED_MS);
	snprintf(answer->message, sizeof answer->message, "%s", answer->error ? ferryGetLastError(mine.comm) : "");
}

/* As the application may that has its buffer back. */
static void guard(int milliseconds, struct rank_answer *answer)
{
	const struct place *place = &mine.place;
	size_t bytes = (size_t)place->nranks * place->count * sizeof(uint32_t); /* of an AllGather */
	unsigned char *output = fake_cuda_reach(place->output);
	CU(cuStreamSynchronize(place->stream)); /* of one that has aborted, too */
	memset(output, 0, bytes);
	doze(milliseconds);
	for (size_t i = 0; i < bytes; i++)
		answer->wrong += __atomic_load_n(&output[i], __ATOMIC_RELAXED) != 0;
}

static ferryResult_t channel_rounds(int number)
{
	mine.channels.channels = (ferryChannels_t)FERRY_CHANNELS_INITIALIZER;
	ferryResult_t result = ferryCommChannels(mine.comm, &mine.channels.channels);
	for (int i = 0; i < number && !result; i++)
		CU(fake_cuda_launch(mine.place.stream, channel_round, &mine.channels));
	return result;
}

static void channels_heard(struct rank_answer *answer)
{
	CU(cuStreamSynchronize(mine.place.stream));
	answer->number = (int)mine.channels.rounds;
	answer->wrong = mine.channels.wrong;
}

static void count_threads(struct rank_answer *answer)
{
	DIR *tasks = opendir("/proc/self/task");
	for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
		char path[300], name[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (!file)
			continue;
		answer->number++;
		answer->monitors += fgets(name, sizeof name, file) && !strcmp(name, "ferry-monitor\n");
		fclose(file);
	}
	if (tasks)
		closedir(tasks);
}

static ferryResult_t leave(struct rank_answer *answer)
{
	if (mine.placed)
		place_close(&mine.place);
	answer->number = (int)fake_cuda_misuses();
	return ferrySuccess;
}

static ferryResult_t obey(const struct rank_ordered *order, struct rank_answer *answer)
{
	switch (order->order) {
	case RANK_JOIN:
		return join(order);
	case RANK_ROUNDS:
		return rounds(order->number);
	case RANK_GATHER:
		return gather();
	case RANK_RING:
		return ring(order->number);
	case RANK_MESSAGE:
		return message();
	case RANK_HOLD:
		atomic_store(&mine.held, 1);
		CU(fake_cuda_launch(mine.place.stream, hold, &mine.held));
		return ferrySuccess;
	case RANK_RELEASE:
		atomic_store(&mine.held, 0);
		return ferrySuccess;
	case RANK_SETTLE:
		settle(order, answer);
		return ferrySuccess;
	case RANK_CAPTURE:
		return capture(order->number, order->wanted);
	case RANK_REPLAY:
		for (int i = 0; i < order->number; i++)
			CU(cuGraphLaunch(mine.graph, mine.place.stream));
		return ferrySuccess;
	case RANK_FORGET:
		CU(cuGraphExecDestroy(mine.graph));
		return ferrySuccess;
	case RANK_MOVE:
		move();
		return ferrySuccess;
	case RANK_THREADS:
		count_threads(answer);
		return ferrySuccess;
	case RANK_REST:
		return rest(order->wanted);
	case RANK_GUARD:
		guard(order->number, answer);
		return ferrySuccess;
	case RANK_FOLLOW:
		return follow(order->number);
	case RANK_REGISTER:
		return register_input();
	case RANK_CHANNELS:
		return channel_rounds(order->number);
	case RANK_HEARD:
		channels_heard(answer);
		return ferrySuccess;
	case RANK_KERNELS:
		answer->number = carried();
		return ferrySuccess;
	case RANK_DESTROY:
		return ferryCommDestroy(mine.comm);
	case RANK_ABORT:
		return ferryCommAbort(mine.comm);
	case RANK_LEAVE:
		return leave(answer);
	}
	return ferryInvalidArgument;
}

int rank_process_main(int channel)
{
	struct rank_ordered order;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (cuInit(0))
		return 1;
	while (recv(channel, &order, sizeof order, 0) == sizeof order) {
		struct rank_answer answer = {.result = ferrySuccess};
		struct timespec start;
		clock_gettime(CLOCK_MONOTONIC, &start);
		answer.result = obey(&order, &answer);
		if (order.order != RANK_SETTLE)
			answer.milliseconds = milliseconds_since(&start);
		if (answer.result)
			snprintf(answer.message, sizeof answer.message, "%s", ferryGetLastError(NULL));
		if (send(channel, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
			return 1;
	}
	return 0;
}

/* ---- the test that orders ---- */

static void set_variables(const char *variables)
{
	char copy[300], *rest = NULL;
	snprintf(copy, sizeof copy, "%s", variables);
	for (char *flag = strtok_r(copy, " ", &rest); flag; flag = strtok_r(NULL, " ", &rest)) {
		char *value = strchr(flag, '=');
		*value++ = '\0';
		setenv(flag, value, 1);
	}
}

struct rank_process rank_start(const char *variables)
{
	int sockets[2];
	char text[16];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		snprintf(text, sizeof text, "%d", dup(sockets[1])); /* this one stays open over exec */
		if (variables)
			set_variables(variables);
		execl("/proc/self/exe", "rank", text, (char *)NULL);
		_exit(1);
	}
	close(sockets[1]);
	return (struct rank_process){pid, sockets[0]};
}

void rank_order(const struct rank_process *rank, struct rank_ordered order)
{
	assert_int_equal(send(rank->channel, &order, sizeof order, MSG_NOSIGNAL), sizeof order);
}

struct rank_answer rank_heard(const struct rank_process *rank)
{
	struct rank_answer answer;
	if (recv(rank->channel, &answer, sizeof answer, 0) != sizeof answer)
		fail_msg("a rank's process has ended");
	return answer;
}

struct rank_answer rank_tell(const struct rank_process *rank, struct rank_ordered order)
{
	rank_order(rank, order);
	struct rank_answer answer = rank_heard(rank);
	if (answer.result)
		fail_msg("order %d: %s: %s", (int)order.order, ferryGetErrorString(answer.result), answer.message);
	return answer;
}

void rank_kill(struct rank_process *rank)
{
	kill(rank->pid, SIGKILL);
	waitpid(rank->pid, NULL, 0);
	close(rank->channel);
}

void rank_finish(struct rank_process *rank)
{
	int status;
	assert_int_equal(rank_tell(rank, (struct rank_ordered){.order = RANK_LEAVE}).number, 0);
	close(rank->channel);
	assert_int_equal(waitpid(rank->pid, &status, 0), rank->pid);
	assert_int_equal(status, 0);
}

void ranks_join(const struct rank_process *ranks, int nranks, const int *ordinals, size_t count)
{
	struct rank_ordered order = {.order = RANK_JOIN, .nranks = nranks, .count = count};
	OK(ferryGetUniqueId(&order.id));
	for (order.rank = 0; order.rank < nranks; order.rank++) {
		order.ordinal = ordinals[order.rank];
		rank_order(&ranks[order.rank], order);
	}
	for (int rank = 0; rank < nranks; rank++) {
		struct rank_answer answer = rank_heard(&ranks[rank]);
		if (answer.result)
			fail_msg("rank %d does not join: %s", rank, answer.message);
	}
}

void ranks_tell(const struct rank_process *ranks, int nranks, struct rank_ordered order, struct rank_answer *answers)
{
	for (int rank = 0; rank < nranks; rank++)
		rank_order(&ranks[rank], order);
	for (int rank = 0; rank < nranks; rank++) {
		struct rank_answer answer = rank_heard(&ranks[rank]);
		if (answer.result)
			fail_msg("rank %d, order %d: %s: %s", rank, (int)order.order,
			         ferryGetErrorString(answer.result), answer.message);
		if (answers)
			answers[rank] = answer;
	}
}

void ranks_round(const struct rank_process *ranks, int nranks, int count, uint32_t total)
{
	struct rank_answer answers[MOST_PLACES];
	ranks_tell(ranks, nranks, (struct rank_ordered){.order = RANK_ROUNDS, .number = count}, NULL);
	ranks_tell(ranks, nranks, (struct rank_ordered){.order = RANK_SETTLE, .number = 60000}, answers);
	for (int rank = 0; rank < nranks; rank++)
		if (!answers[rank].settled || answers[rank].error || answers[rank].wrong ||
		    answers[rank].round != total)
			fail_msg("rank %d: settled %d, error \"%s\", %zu wrong, %u of %u rounds", rank,
			         answers[rank].settled, answers[rank].message, answers[rank].wrong,
			         answers[rank].round, total);
}

void rank_released(const struct rank_process *rank, const char *flags)
{
	struct rank_answer answer =
	        rank_tell(rank, (struct rank_ordered){.order = RANK_SETTLE, .number = 60000, .wanted = true});
	if (!answer.settled || answer.error != ferryRemoteError || !strstr(answer.message, flags))
		fail_msg("settled %d after %d ms, %s: \"%s\", expected \"%s\"", answer.settled, answer.milliseconds,
		         ferryGetErrorString(answer.error), answer.message, flags);
}
