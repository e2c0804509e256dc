/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/peers/nccl.h"

#include "bench/command/sample.h"
#include "bench/command/sibling.h"
#include "bench/peers/nccl_order.h"
#include "bench/rank/gpu.h"
#include "ipc/error.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_S 300
/* A setting that NCCL cannot do may hang instead of being refused, or its child may hang where another rank's has died.
 */
#define FIRST_PATIENCE_S 60
#define CHILD_FD         3

extern char **environ;

/* ---- children ---- */

/* Gives the child the setting as arguments, which it puts into its environment. 0, or why it was not started. */
static int spawn_child(struct peer_setting *setting, char *path, int end)
{
	char texts[NCCL_VARIABLES][64], parent[16], fd[16];
	char *arguments[3 + NCCL_VARIABLES + 1] = {path, fd, parent};
	unsigned count = 3;
	posix_spawn_file_actions_t actions;
	for (unsigned i = 0; i < NCCL_VARIABLES; i++)
		if (setting->values[i]) {
			snprintf(texts[i], sizeof texts[i], "%s=%s", nccl_variables[i], setting->values[i]);
			arguments[count++] = texts[i];
		}
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	snprintf(fd, sizeof fd, "%d", CHILD_FD);
	int failed = posix_spawn_file_actions_init(&actions);
	if (failed)
		return failed;
	/* dup2 onto itself would keep the close-on-exec flag; posix_spawn takes care of that. */
	failed = posix_spawn_file_actions_adddup2(&actions, end, CHILD_FD);
	if (!failed)
		failed = posix_spawn(&setting->child, path, &actions, NULL, arguments, environ);
	posix_spawn_file_actions_destroy(&actions);
	return failed;
}

static void end_child(struct peer_setting *setting)
{
	if (setting->socket >= 0)
		close(setting->socket);
	setting->socket = -1;
	if (setting->child <= 0)
		return;
	kill(setting->child, SIGKILL); /* it may be in a call that never ends; it has nothing to save */
	waitpid(setting->child, NULL, 0);
	setting->child = 0;
}

static bool start_child(const struct bench_rank *rank, struct peer_setting *setting)
{
	char path[4096];
	int ends[2];
	sibling_path(path, sizeof path, "ferry-perf-nccl");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		fprintf(stderr, "ferry-perf: rank %d: a socket for NCCL: %s\n", rank->rank, strerror(errno));
		return false;
	}
	int failed = spawn_child(setting, path, ends[1]);
	close(ends[1]);
	setting->socket = ends[0];
	if (!failed)
		return true;
	setting->child = 0;
	end_child(setting);
	fprintf(stderr, "ferry-perf: rank %d: starting %s: %s%s\n", rank->rank, path, strerror(failed),
	        failed == ENOENT ? " (it is installed beside ferry-perf)" : "");
	return false;
}

void nccl_drop(struct peer_setting *setting)
{
	if (!*setting->refused)
		snprintf(setting->refused, sizeof setting->refused, "another rank's NCCL refused it");
	end_child(setting);
}

void nccl_close(struct peers *peers)
{
	for (unsigned i = 0; i < peers->count; i++)
		end_child(&peers->settings[i]);
}

/* ---- talk ---- */

/* If the child has died, hear_child finds its socket closed. */
static void order_child(const struct peer_setting *setting, const struct nccl_order *order)
{
	send(setting->socket, order, sizeof *order, MSG_NOSIGNAL);
}

static enum peer_result format_exit(struct peer_setting *setting)
{
	int status = 0;
	pid_t child = setting->child;
	setting->child = 0;
	kill(child, SIGKILL); /* it may have closed the socket alone */
	if (waitpid(child, &status, 0) == child && WIFSIGNALED(status))
		snprintf(setting->refused, sizeof setting->refused, "its process was ended by signal %d (%s)",
		         WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(setting->refused, sizeof setting->refused, "its process ended with exit code %d",
		         WEXITSTATUS(status));
	return PEER_REFUSED;
}

/* The other ranks may not have failed: this rank ends them by an abort instead of meeting them. */
static enum peer_result broken(struct bench_rank *rank)
{
	rank->failed_alone = true;
	return PEER_BROKEN;
}

/*
 * Waits for the answer, and looks every second whether the other ranks are still there. first: the child does this for
 * the first time, and if it does not end, that is a refusal.
 */
static enum peer_result hear_child(struct bench_rank *rank, struct peer_setting *setting, bool first,
                                        struct nccl_answer *answer)
{
	int patience = first ? FIRST_PATIENCE_S : PATIENCE_S;
	double deadline = sample_now_us() + patience * 1e6;
	struct pollfd waited = {.fd = setting->socket, .events = POLLIN};
	ferryResult_t others = ferrySuccess;
	while (poll(&waited, 1, 1000) < 1) {
		if (ferryCommGetAsyncError(rank->control, &others) || others) {
			fprintf(stderr, "ferry-perf: rank %d: gave up on NCCL (%s): %s\n", rank->rank, setting->name,
			        ferryGetLastError(rank->control));
			return broken(rank);
		}
		if (sample_now_us() < deadline)
			continue;
		snprintf(setting->refused, sizeof setting->refused, "no answer in %d seconds", patience);
		if (first)
			return PEER_REFUSED;
		fprintf(stderr, "ferry-perf: rank %d: NCCL (%s): %s\n", rank->rank, setting->name, setting->refused);
		return broken(rank);
	}
	ssize_t got = recv(setting->socket, answer, sizeof *answer, 0);
	if (got != sizeof *answer)
		return format_exit(setting);
	answer->message[sizeof answer->message - 1] = '\0';
	if (answer->failed)
		snprintf(setting->refused, sizeof setting->refused, "%s", answer->message);
	return answer->failed ? PEER_REFUSED : PEER_DONE;
}

/* Takes out, on all ranks, what any rank's child has refused. */
static bool agree(struct peers *peers, struct bench_rank *rank)
{
	double refused[PEERS_MOST_SETTINGS] = {0};
	for (unsigned i = 0; i < peers->count; i++)
		refused[i] = !peers_runs(peers, i);
	if (!bench_rank_over(rank, refused, peers->count, ferryMax))
		return false;
	for (unsigned i = 0; i < peers->count; i++)
		if (refused[i] > 0)
			nccl_drop(&peers->settings[i]);
	return true;
}

/*
 * Gives every child the order, then takes their answers: they work at the same time. ids: a setting's id each, or NULL.
 */
static bool order_all(struct peers *peers, struct bench_rank *rank, struct nccl_order *order, char (*ids)[128])
{
	for (unsigned i = 0; i < peers->count; i++) {
		if (order->kind == NCCL_JOIN)
			memcpy(order->id, ids[i], sizeof order->id);
		if (peers_runs(peers, i))
			order_child(&peers->settings[i], order);
	}
	for (unsigned i = 0; i < peers->count; i++) {
		struct nccl_answer answer = {0};
		if (!peers_runs(peers, i))
			continue;
		enum peer_result result = hear_child(rank, &peers->settings[i], true, &answer);
		if (result == PEER_BROKEN)
			return false;
		if (result == PEER_DONE && order->kind == NCCL_OPEN)
			peers->version = answer.version;
		if (result == PEER_DONE && order->kind == NCCL_MAKE_ID)
			memcpy(ids[i], answer.id, sizeof answer.id);
	}
	return agree(peers, rank);
}

static bool share_ids(struct bench_rank *rank, char (*ids)[128])
{
	size_t bytes = PEERS_MOST_SETTINGS * sizeof *ids;
	if (!ferryBroadcast(ids, ids, bytes, ferryUint8, 0, rank->control, NULL) && !ferryStreamSynchronize(NULL))
		return true;
	fprintf(stderr, "ferry-perf: rank %d: NCCL's ids: %s\n", rank->rank, ferryGetLastError(rank->control));
	return false;
}

static bool join_all(struct peers *peers, struct bench_rank *rank)
{
	static struct nccl_order order;
	const struct bench_buffers *buffers = &rank->buffers;
	char ids[PEERS_MOST_SETTINGS][128] = {{0}};
	order = (struct nccl_order){.kind = NCCL_OPEN, .rank = rank->rank, .nranks = rank->nranks};
	if (gpu_share(buffers->ordinal, buffers->send, &order.send_buffer) ||
	    gpu_share(buffers->ordinal, buffers->receive, &order.receive_buffer)) {
		fprintf(stderr, "ferry-perf: %s\n", ferry_last_message());
		return false;
	}
	if (!order_all(peers, rank, &order, NULL))
		return false;
	order.kind = NCCL_MAKE_ID;
	if (rank->rank ? !agree(peers, rank) : !order_all(peers, rank, &order, ids))
		return false;
	order.kind = NCCL_JOIN;
	return share_ids(rank, ids) && order_all(peers, rank, &order, ids);
}

bool nccl_open(struct peers *peers, struct bench_rank *rank, enum ferry_collective collective, enum nccl_sweep sweep)
{
	/* NVLink multicast is off unless the caller sets it, or for tune, which measures what programs have. */
	if (sweep != NCCL_SWEEP_CHANNELS)
		setenv("NCCL_NVLS_ENABLE", "0", 0);
	nccl_sweep_make(peers, collective, sweep);
	for (unsigned i = 0; i < peers->count; i++)
		if (!start_child(rank, &peers->settings[i]))
			return false;
	if (!join_all(peers, rank))
		return false;
	for (unsigned i = 0; i < peers->count; i++)
		if (peers_runs(peers, i))
			return true;
	if (!rank->rank)
		fprintf(stderr, "ferry-perf: --vs nccl: %s\n", peers->settings[0].refused);
	return false;
}

/* ---- calls ---- */

static struct nccl_place place_of(const struct bench_buffers *buffers, const char *pointer)
{
	uintptr_t at = (uintptr_t)pointer, send = (uintptr_t)buffers->send, receive = (uintptr_t)buffers->receive;
	if (!pointer)
		return (struct nccl_place){NCCL_NO_BUFFER, 0};
	if (at >= send && at - send < buffers->room)
		return (struct nccl_place){NCCL_SEND_BUFFER, at - send};
	return (struct nccl_place){NCCL_RECEIVE_BUFFER, at - receive};
}

enum peer_result nccl_run(struct bench_rank *rank, struct peer_setting *setting, const struct ferry_trial_call *call,
                          bool first, const struct peer_sampling *how, double *us)
{
	static struct nccl_order order;
	const struct ferry_trial *trial = &call->trial;
	struct nccl_answer answer = {0};
	/* NCCL has no all-to-all in place; out of place it is the same work. */
	bool apart = trial->collective == FERRY_ALLTOALL && call->send == call->receive;
	order = (struct nccl_order){.kind = NCCL_RUN, .collective = trial->collective, .type = (uint32_t)trial->type,
	                            .op = (uint32_t)trial->op, .root = (uint32_t)trial->root, .count = trial->count,
	                            .scalar = ferry_trial_scalar(trial, call->rank), .how = *how,
	                            .send = place_of(&rank->buffers, apart ? rank->buffers.send : call->send),
	                            .receive = place_of(&rank->buffers, call->receive), .counts = call->counts};
	order_child(setting, &order);
	enum peer_result result = hear_child(rank, setting, first, &answer);
	*us = answer.us;
	return result;
}
