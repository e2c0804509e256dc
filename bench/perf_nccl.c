/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf_nccl.h"

#include "bench/nccl_order.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_S 300
/* A setting that NCCL cannot do may hang instead of being refused, or its child may hang where another rank's has died. */
#define FIRST_PATIENCE_S 60
#define CHILD_FD         3

extern char **environ;

static const char *const variables[PERF_NCCL_VARIABLES] = {"NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_DISABLE"};

/* ---- the sweep ---- */

/* HyLink's (Table 2): the values of each variable that mean something for the collective, and how many. */
static unsigned values_of(enum ferry_collective collective, unsigned variable, const char *values[3])
{
	static const char *const protocols[] = {"Simple", "LL", "LL128"}, *const algorithms[] = {"Ring", "Tree"};
	static const char *const switches[] = {"0", "1"};
	bool sends = collective == FERRY_GATHER || collective == FERRY_SCATTER || collective == FERRY_ALLTOALL ||
	             collective == FERRY_ALLTOALLV || collective == FERRY_SENDRECV;
	const char *fixed = getenv(variables[variable]);
	const char *const *all = variable == 0 ? protocols : variable == 1 ? algorithms : switches;
	/* Sends and receives choose their protocol by themselves. Trees are for allreduce alone. */
	unsigned count = variable == 2 ? 2 : sends ? 0 : variable == 0 ? 3 : collective == FERRY_ALLREDUCE ? 2 : 1;
	if (fixed || !count) { /* the caller's value holds for every setting */
		values[0] = NULL;
		return 1;
	}
	memcpy(values, all, count * sizeof *values);
	return count;
}

static void name_setting(struct perf_nccl_setting *setting)
{
	const char *proto = setting->values[0], *algo = setting->values[1], *p2p = setting->values[2];
	const char *names[PERF_NCCL_VARIABLES] = {"PROTO=", "ALGO=", "P2P_DISABLE="};
	bool apart = p2p && !strcmp(p2p, "1");
	size_t length = 0;
	setting->name[0] = '\0';
	for (unsigned i = 0; i < PERF_NCCL_VARIABLES; i++)
		if (setting->values[i])
			length += (size_t)snprintf(setting->name + length, sizeof setting->name - length, "%s%s%s",
			                           length ? " " : "", names[i], setting->values[i]);
	snprintf(setting->brief, sizeof setting->brief, "%s%s%s%s%s", proto ? proto : "", proto && algo ? "/" : "",
	         algo ? algo : "", (proto || algo) && apart ? "/" : "", apart ? "noP2P" : "");
	if (!length)
		snprintf(setting->name, sizeof setting->name, "default");
	if (!*setting->brief)
		snprintf(setting->brief, sizeof setting->brief, "%s", length ? "P2P" : "default");
}

static void add_setting(struct perf_nccl *nccl, const char *proto, const char *algo, const char *p2p)
{
	if (nccl->count == PERF_MOST_SETTINGS ||
	    (nccl->count && !proto && !algo && !p2p)) /* the first is NCCL's own choice */
		return;
	struct perf_nccl_setting *setting = &nccl->settings[nccl->count++];
	*setting = (struct perf_nccl_setting){.values = {proto, algo, p2p}, .socket = -1};
	name_setting(setting);
}

static void make_sweep(const struct perf_options *options, struct perf_nccl *nccl)
{
	const char *proto[3], *algo[3], *p2p[3];
	add_setting(nccl, NULL, NULL, NULL);
	if (!options->sweep)
		return;
	unsigned protos = values_of(options->collective, 0, proto), algos = values_of(options->collective, 1, algo);
	unsigned p2ps = values_of(options->collective, 2, p2p);
	for (unsigned k = 0; k < p2ps; k++)
		for (unsigned j = 0; j < algos; j++)
			for (unsigned i = 0; i < protos; i++)
				add_setting(nccl, proto[i], algo[j], p2p[k]);
}

/* ---- children ---- */

static void child_path(char *path, size_t bytes)
{
	ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
	path[length > 0 ? length : 0] = '\0';
	char *slash = strrchr(path, '/');
	size_t at = slash ? (size_t)(slash + 1 - path) : 0;
	snprintf(path + at, bytes - at, "ferry-perf-nccl");
}

/* This process's environment with the setting's variables; the texts of those lie in `own`. */
static char **environment_of(const struct perf_nccl_setting *setting, char own[PERF_NCCL_VARIABLES][64])
{
	size_t count = 0, kept = 0;
	while (environ[count])
		count++;
	char **made = calloc(count + PERF_NCCL_VARIABLES + 1, sizeof *made);
	if (!made)
		return NULL;
	memcpy(made, environ, count * sizeof *made);
	kept = count; /* a variable that a setting has a value for is not in the environment */
	for (unsigned i = 0; i < PERF_NCCL_VARIABLES; i++)
		if (setting->values[i]) {
			snprintf(own[i], 64, "%s=%s", variables[i], setting->values[i]);
			made[kept++] = own[i];
		}
	return made;
}

static int spawn_child(struct perf_nccl_setting *setting, const char *path, int end)
{
	char own[PERF_NCCL_VARIABLES][64], parent[16], fd[16];
	char *arguments[] = {(char *)(uintptr_t)path, fd, parent, NULL};
	char **environment = environment_of(setting, own);
	posix_spawn_file_actions_t actions;
	if (!environment || posix_spawn_file_actions_init(&actions)) {
		free(environment);
		return ENOMEM;
	}
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	snprintf(fd, sizeof fd, "%d", CHILD_FD);
	/* dup2 onto itself would keep the close-on-exec flag; posix_spawn takes care of that. */
	int failed = posix_spawn_file_actions_adddup2(&actions, end, CHILD_FD);
	if (!failed)
		failed = posix_spawn(&setting->child, path, &actions, NULL, arguments, environment);
	posix_spawn_file_actions_destroy(&actions);
	free(environment);
	return failed;
}

static bool start_child(const struct perf_run *run, struct perf_nccl_setting *setting)
{
	char path[4096];
	int ends[2];
	child_path(path, sizeof path);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		fprintf(stderr, "ferry-perf: rank %d: a socket for NCCL: %s\n", run->rank, strerror(errno));
		return false;
	}
	int failed = spawn_child(setting, path, ends[1]);
	close(ends[1]);
	if (!failed) {
		setting->socket = ends[0];
		return true;
	}
	close(ends[0]);
	setting->child = 0;
	fprintf(stderr, "ferry-perf: rank %d: starting %s: %s%s\n", run->rank, path, strerror(failed),
	        failed == ENOENT ? " (was Ferry built where nccl.h is?)" : "");
	return false;
}

static void end_child(struct perf_nccl_setting *setting)
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

void perf_nccl_drop(struct perf_run *run, unsigned index)
{
	struct perf_nccl_setting *setting = &run->nccl->settings[index];
	if (!*setting->refused)
		snprintf(setting->refused, sizeof setting->refused, "another rank's NCCL refused it");
	end_child(setting);
}

void perf_nccl_close(struct perf_run *run)
{
	for (unsigned i = 0; run->nccl && i < run->nccl->count; i++)
		end_child(&run->nccl->settings[i]);
	free(run->nccl);
	run->nccl = NULL;
}

/* ---- talk ---- */

static bool order_child(const struct perf_nccl_setting *setting, const struct nccl_order *order)
{
	/* A child that has died says so in place of its answer. */
	return send(setting->socket, order, sizeof *order, MSG_NOSIGNAL) == sizeof *order;
}

static void say_how_it_died(struct perf_nccl_setting *setting)
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
}

/* The other ranks may not have failed: they are told by an abort, not met. */
static enum perf_nccl_result broken(struct perf_run *run)
{
	run->failed_alone = true;
	return PERF_NCCL_BROKEN;
}

/*
 * Waits for the answer, and looks every second whether the other ranks are still there. first: the child does this for the
 * first time, and if it does not end, that is a refusal.
 */
static enum perf_nccl_result hear_child(struct perf_run *run, struct perf_nccl_setting *setting, bool first,
                                        struct nccl_answer *answer)
{
	int patience = first ? FIRST_PATIENCE_S : PATIENCE_S;
	double deadline = perf_now_us() + patience * 1e6;
	struct pollfd waited = {.fd = setting->socket, .events = POLLIN};
	ferryResult_t others = ferrySuccess;
	while (poll(&waited, 1, 1000) < 1) {
		if (ferryCommGetAsyncError(run->control, &others) || others) {
			fprintf(stderr, "ferry-perf: rank %d: gave up on NCCL (%s): %s\n", run->rank, setting->name,
			        ferryGetLastError(run->control));
			return broken(run);
		}
		if (perf_now_us() < deadline)
			continue;
		snprintf(setting->refused, sizeof setting->refused, "no answer in %d seconds", patience);
		if (first)
			return PERF_NCCL_REFUSED;
		fprintf(stderr, "ferry-perf: rank %d: NCCL (%s): %s\n", run->rank, setting->name, setting->refused);
		return broken(run);
	}
	ssize_t got = recv(setting->socket, answer, sizeof *answer, 0);
	if (got != sizeof *answer) {
		say_how_it_died(setting);
		return PERF_NCCL_REFUSED;
	}
	if (!answer->failed)
		return PERF_NCCL_DONE;
	answer->message[sizeof answer->message - 1] = '\0';
	snprintf(setting->refused, sizeof setting->refused, "%s", answer->message);
	return PERF_NCCL_REFUSED;
}

/* Takes out, on all ranks, what any rank's child has refused. */
static bool agree(struct perf_run *run)
{
	struct perf_nccl *nccl = run->nccl;
	double refused[PERF_MOST_SETTINGS] = {0};
	for (unsigned i = 0; i < nccl->count; i++)
		refused[i] = *nccl->settings[i].refused != '\0';
	if (!perf_over_ranks(run, refused, nccl->count, ferryMax))
		return false;
	for (unsigned i = 0; i < nccl->count; i++)
		if (refused[i] > 0)
			perf_nccl_drop(run, i);
	return true;
}

/* Gives every child the order, then hears them all: they work at the same time. ids: a setting's id each, or NULL. */
static bool order_all(struct perf_run *run, struct nccl_order *order, char (*ids)[128])
{
	struct perf_nccl *nccl = run->nccl;
	for (unsigned i = 0; i < nccl->count; i++) {
		if (order->kind == NCCL_JOIN)
			memcpy(order->id, ids[i], sizeof order->id);
		if (!*nccl->settings[i].refused)
			order_child(&nccl->settings[i], order);
	}
	for (unsigned i = 0; i < nccl->count; i++) {
		struct nccl_answer answer = {0};
		if (*nccl->settings[i].refused)
			continue;
		enum perf_nccl_result result = hear_child(run, &nccl->settings[i], true, &answer);
		if (result == PERF_NCCL_BROKEN)
			return false;
		if (result == PERF_NCCL_DONE && order->kind == NCCL_OPEN)
			nccl->version = answer.version;
		if (result == PERF_NCCL_DONE && order->kind == NCCL_MAKE_ID)
			memcpy(ids[i], answer.id, sizeof answer.id);
	}
	return agree(run);
}

static bool share_ids(struct perf_run *run, char (*ids)[128])
{
	size_t bytes = PERF_MOST_SETTINGS * sizeof *ids;
	if (!ferryBroadcast(ids, ids, bytes, ferryUint8, 0, run->control, NULL) && !ferryStreamSynchronize(NULL))
		return true;
	fprintf(stderr, "ferry-perf: rank %d: NCCL's ids: %s\n", run->rank, ferryGetLastError(run->control));
	return false;
}

static bool open_all(struct perf_run *run)
{
	static struct nccl_order order;
	char ids[PERF_MOST_SETTINGS][128] = {{0}};
	order = (struct nccl_order){.kind = NCCL_OPEN, .rank = run->rank, .nranks = run->nranks};
	if (!run->memory.share(&run->memory, run->send, run->room, &order.send_buffer) ||
	    !run->memory.share(&run->memory, run->receive, run->room, &order.receive_buffer) || !order_all(run, &order, NULL))
		return false;
	order.kind = NCCL_MAKE_ID;
	if (run->rank ? !agree(run) : !order_all(run, &order, ids))
		return false;
	order.kind = NCCL_JOIN;
	return share_ids(run, ids) && order_all(run, &order, ids);
}

bool perf_nccl_open(struct perf_run *run)
{
	unsigned running = 0;
	struct perf_nccl *nccl = calloc(1, sizeof *nccl);
	if (!nccl) {
		fprintf(stderr, "ferry-perf: no memory for NCCL's settings\n");
		return false;
	}
	run->nccl = nccl;
	setenv("NCCL_NVLS_ENABLE", "0", 0); /* NVLink multicast: off unless the caller wants it; the record shows it too */
	make_sweep(run->options, nccl);
	for (unsigned i = 0; i < nccl->count; i++)
		if (!start_child(run, &nccl->settings[i]))
			return false;
	if (!open_all(run))
		return false;
	for (unsigned i = 0; i < nccl->count; i++)
		running += !*nccl->settings[i].refused;
	if (running)
		return true;
	if (!run->rank)
		fprintf(stderr, "ferry-perf: --vs nccl: %s\n", nccl->settings[0].refused);
	return false;
}

/* ---- calls ---- */

static struct nccl_place place_of(const struct perf_run *run, const void *pointer)
{
	uintptr_t at = (uintptr_t)pointer, send = (uintptr_t)run->send, receive = (uintptr_t)run->receive;
	if (!pointer)
		return (struct nccl_place){NCCL_NO_BUFFER, 0};
	if (at >= send && at - send < run->room)
		return (struct nccl_place){NCCL_SEND_BUFFER, at - send};
	return (struct nccl_place){NCCL_RECEIVE_BUFFER, at - receive};
}

static void describe(const struct perf_run *run, const struct perf_call *call, struct nccl_order *order)
{
	struct ferry_trial trial = {.type = call->type};
	*order = (struct nccl_order){.kind = NCCL_RUN,
	                             .collective = call->collective,
	                             .type = (uint32_t)call->type,
	                             .op = (uint32_t)call->op,
	                             .root = (uint32_t)call->root,
	                             .count = call->count,
	                             .scalar = ferry_trial_scalar(&trial, run->rank),
	                             .send = place_of(run, call->send),
	                             .receive = place_of(run, call->receive)};
	/* NCCL has no all-to-all in place; out of place it is the same work. */
	if (call->collective == FERRY_ALLTOALL && call->send == call->receive)
		order->send = place_of(run, run->send);
	for (int i = 0; i < call->nranks; i++) {
		order->sendcounts[i] = call->sendcounts[i];
		order->senddispls[i] = call->senddispls[i];
		order->recvcounts[i] = call->recvcounts[i];
		order->recvdispls[i] = call->recvdispls[i];
	}
}

enum perf_nccl_result perf_nccl_run(struct perf_run *run, unsigned index, const struct perf_call *call, bool first,
                                    const struct perf_sampling *how, double *us)
{
	static struct nccl_order order;
	struct nccl_answer answer = {0};
	struct perf_nccl_setting *setting = &run->nccl->settings[index];
	describe(run, call, &order);
	order.lead = how->lead;
	order.pause_us = how->pause_us;
	order.calls = how->calls;
	order_child(setting, &order);
	enum perf_nccl_result result = hear_child(run, setting, first, &answer);
	*us = answer.us;
	return result;
}
