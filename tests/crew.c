/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/crew.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 150000

double crew_now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- a member ---- */

struct member {
	int number, channel;
	ferryComm_t comm;
	uint32_t *send, *receive;
};

static void answer(const struct member *member, const struct crew_answer *said)
{
	if (send(member->channel, said, sizeof *said, MSG_NOSIGNAL) != (ssize_t)sizeof *said)
		_exit(1);
}

static ferryResult_t join(struct member *member, const struct crew_order *order)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	if (order->slow)
		setenv("FERRY_HOST_LINK", "h2d=0.0002", 1);
	config.ordinal = order->rank;
	return ferryCommInitRankConfig(&member->comm, order->nranks, order->id, order->rank, &config);
}

/* Once: the first slice of the result is there. */
static void tell_middle(const struct member *member)
{
	const volatile uint32_t *first = member->receive;
	while (!*first)
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	answer(member, &(struct crew_answer){.middle = true});
}

static ferryResult_t call(struct member *member, const struct crew_order *order, struct crew_answer *said)
{
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < order->calls && !result; i++) {
		for (size_t j = 0; j < order->count; j++)
			member->send[j] = 1u << member->number;
		memset(member->receive, 0, order->count * sizeof *member->receive);
		result = ferryAllReduce(member->send, member->receive, order->count, ferryUint32, ferrySum,
		                        member->comm, NULL);
		if (!result && order->logged)
			tell_middle(member);
		if (!result)
			result = ferryStreamSynchronize(NULL);
		said->sum = order->count ? member->receive[0] : 0;
		for (size_t j = 0; j < order->count && !result; j++)
			said->wrong += member->receive[j] != said->sum;
	}
	return result;
}

static ferryResult_t message(struct member *member, const struct crew_order *order, struct crew_answer *said)
{
	bool sends = order->kind == CREW_SEND;
	for (size_t i = 0; i < order->count; i++) {
		member->send[i] = 1u << member->number;
		member->receive[i] = 0;
	}
	ferryResult_t result = sends ? ferrySend(member->send, order->count, ferryUint32, order->rank, member->comm,
	                                         NULL)
	                             : ferryRecv(member->receive, order->count, ferryUint32, order->rank, member->comm,
	                                         NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	said->sum = order->count ? member->receive[0] : 0;
	for (size_t i = 0; i < order->count && !result; i++)
		said->wrong += member->receive[i] != said->sum;
	return result;
}

static ferryResult_t replace(struct member *member, ferryResult_t result, ferryComm_t made)
{
	if (result)
		return result;
	ferryCommDestroy(member->comm);
	member->comm = made;
	return result;
}

static ferryResult_t split(struct member *member)
{
	ferryComm_t made = NULL;
	ferryResult_t result = ferryCommSplit(member->comm, 0, 0, &made, NULL);
	return replace(member, result, made);
}

static ferryResult_t wait_for_error(struct member *member)
{
	ferryResult_t error = ferrySuccess;
	while (!error) {
		nanosleep(&(struct timespec){0, 1000000}, NULL);
		if (ferryCommGetAsyncError(member->comm, &error))
			return ferryInternalError;
	}
	return error;
}

static ferryResult_t obey(struct member *member, const struct crew_order *order, struct crew_answer *said)
{
	ferryResult_t result = ferrySuccess;
	switch (order->kind) {
	case CREW_JOIN:
		return join(member, order);
	case CREW_CALL:
		return call(member, order, said);
	case CREW_SEND:
	case CREW_RECV:
		return message(member, order, said);
	case CREW_SPLIT:
		return split(member);
	case CREW_ABORT:
		result = ferryCommAbort(member->comm);
		member->comm = NULL;
		return result;
	case CREW_DESTROY:
		result = ferryCommDestroy(member->comm);
		member->comm = NULL;
		return result;
	case CREW_ERROR:
		return wait_for_error(member);
	}
	return ferryInternalError;
}

static void serve(struct member *member, size_t most)
{
	struct crew_order order;
	member->send = malloc(most);
	member->receive = malloc(most);
	while (recv(member->channel, &order, sizeof order, MSG_WAITALL) == (ssize_t)sizeof order) {
		struct crew_answer said = {.rank = -1};
		double start = crew_now();
		if (order.count * sizeof *member->send > most)
			_exit(2);
		said.result = obey(member, &order, &said);
		said.seconds = crew_now() - start;
		if (member->comm) {
			ferryCommUserRank(member->comm, &said.rank);
			ferryCommCount(member->comm, &said.nranks);
		}
		if (said.result)
			snprintf(said.message, sizeof said.message, "%s",
			         ferryGetLastError(member->comm));
		answer(member, &said);
		if (order.last && !said.result)
			exit(0);
	}
	if (member->comm)
		ferryCommAbort(member->comm);
	_exit(0);
}

/* ---- the crew ---- */

void crew_start(struct crew *crew, int size)
{
	*crew = (struct crew){.size = size};
	for (int number = 0; number < size; number++) {
		int ends[2];
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
		pid_t child = fork();
		assert_true(child >= 0);
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (int other = 0; other < number; other++)
				close(crew->channels[other]);
			close(ends[0]);
			serve(&(struct member){.number = number, .channel = ends[1]}, 64u << 20);
		}
		close(ends[1]);
		crew->channels[number] = ends[0];
		crew->pids[number] = child;
	}
}

void crew_order(const struct crew *crew, int member, struct crew_order order)
{
	assert_int_equal(send(crew->channels[member], &order, sizeof order, MSG_NOSIGNAL), sizeof order);
}

struct crew_answer crew_heard(const struct crew *crew, int member)
{
	struct crew_answer said;
	struct pollfd channel = {crew->channels[member], POLLIN, 0};
	if (poll(&channel, 1, PATIENCE_MS) != 1)
		fail_msg("member %d does not answer", member);
	assert_int_equal(recv(crew->channels[member], &said, sizeof said, MSG_WAITALL), sizeof said);
	return said;
}

void crew_tell(const struct crew *crew, struct crew_order order, struct crew_answer *answers)
{
	for (int member = 0; member < crew->size; member++)
		if (crew->pids[member])
			crew_order(crew, member, order);
	for (int member = 0; member < crew->size; member++) {
		if (!crew->pids[member])
			continue;
		struct crew_answer said = crew_heard(crew, member);
		if (answers)
			answers[member] = said;
		else if (said.result)
			fail_msg("member %d: %s: %s", member, ferryGetErrorString(said.result), said.message);
	}
}

void crew_join(const struct crew *crew)
{
	struct crew_order order = {.kind = CREW_JOIN};
	assert_int_equal(ferryGetUniqueId(&order.id), ferrySuccess);
	for (int member = 0; member < crew->size; member++)
		order.nranks += crew->pids[member] != 0;
	for (int member = 0; member < crew->size; member++)
		if (crew->pids[member]) {
			crew_order(crew, member, order);
			order.rank++;
		}
	for (int member = 0; member < crew->size; member++)
		if (crew->pids[member]) {
			struct crew_answer said = crew_heard(crew, member);
			if (said.result)
				fail_msg("member %d: %s", member, said.message);
		}
}

void crew_sums(const struct crew *crew, size_t count, int calls)
{
	struct crew_answer answers[CREW_MOST];
	uint32_t all = 0;
	crew_tell(crew, (struct crew_order){.kind = CREW_CALL, .count = count, .calls = calls}, answers);
	for (int member = 0; member < crew->size; member++)
		all |= crew->pids[member] ? 1u << member : 0;
	for (int member = 0; member < crew->size; member++)
		if (crew->pids[member] &&
		    (answers[member].result || answers[member].wrong || answers[member].sum != all))
			fail_msg("member %d: %s %s; sum %#x, expected %#x, %zu elements differ", member,
			         ferryGetErrorString(answers[member].result), answers[member].message,
			         answers[member].sum, all, answers[member].wrong);
}

void crew_kill(struct crew *crew, int member)
{
	kill(crew->pids[member], SIGKILL);
	waitpid(crew->pids[member], NULL, 0);
	close(crew->channels[member]);
	crew->pids[member] = 0;
}

void crew_stop(const struct crew *crew, int member)
{
	assert_int_equal(kill(crew->pids[member], SIGSTOP), 0);
	assert_int_equal(waitpid(crew->pids[member], NULL, WUNTRACED), crew->pids[member]);
}

void crew_continue(const struct crew *crew, int member)
{
	assert_int_equal(kill(crew->pids[member], SIGCONT), 0);
}

void crew_end(struct crew *crew)
{
	int status;
	for (int member = 0; member < crew->size; member++)
		if (crew->pids[member]) {
			shutdown(crew->channels[member], SHUT_RDWR); /* another crew's members have it open, too */
			close(crew->channels[member]);
		}
	for (int member = 0; member < crew->size; member++) {
		if (!crew->pids[member])
			continue;
		assert_int_equal(waitpid(crew->pids[member], &status, 0), crew->pids[member]);
		assert_int_equal(status, 0);
		crew->pids[member] = 0;
	}
}
