/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The double's side of tuner plugins: it loads one as NCCL does, asks it for each group of like calls within a factor
 * of four in size, and ends the process where ranks come to different answers for a call: the real one would hang.
 */
#include "orchestrator/nccl_tuner.h"
#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/fake_nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PROTOCOLS  3
#define ALGORITHMS 7
#define IMPOSSIBLE (-1.0f)

extern int cuDevicePrimaryCtxRetain(void **context, int device) __attribute__((weak));
extern int cuDevicePrimaryCtxRelease_v2(int device) __attribute__((weak));
extern int cuCtxGetCurrent(void **context) __attribute__((weak));
extern int cuCtxSetCurrent(void *context) __attribute__((weak));

static struct {
	int version; /* 0: none */
	const void *symbol;
} plugin;

static void fail(const char *what)
{
	fprintf(stderr, "the double of NCCL: %s\n", what);
	abort();
}

static int number(const char *variable, int otherwise)
{
	const char *text = getenv(variable);
	return text ? atoi(text) : otherwise;
}

/* Once in the process's life. */
static void load(void)
{
	const char *name = getenv("NCCL_TUNER_PLUGIN");
	char symbol[32];
	int newest = number("FAKE_NCCL_TUNER", 7);
	if ((name && !strcasecmp(name, "none")) || newest < 2)
		return;
	name = name && *name ? name : "libnccl-tuner.so";
	void *library = dlopen(strcasecmp(name, "STATIC_PLUGIN") ? name : NULL, RTLD_NOW | RTLD_LOCAL);
	for (int version = newest; library && version >= 2 && !plugin.symbol; version--) {
		snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
		plugin.symbol = dlsym(library, symbol);
		plugin.version = version;
	}
}

static ncclResult_t init(ncclComm_t comm)
{
	const struct ferry_nccl_tuner_v2 *v2 = plugin.symbol;
	const struct ferry_nccl_tuner_v5 *v5 = plugin.symbol;
	if (plugin.version < 5)
		return v2->init((size_t)comm->nranks, 1, NULL, &comm->tuner);
	return v5->init(&comm->tuner, 1, (size_t)comm->nranks, 1, NULL, NULL, NULL);
}

void fake_tuner_open(ncclComm_t comm)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *before = NULL, *context = NULL;
	pthread_once(&once, load);
	if (!plugin.symbol)
		return;
	bool current = cuCtxSetCurrent && !cuCtxGetCurrent(&before) &&
	               !cuDevicePrimaryCtxRetain(&context, comm->device) && !cuCtxSetCurrent(context);
	if (init(comm))
		fail("a tuner's error");
	comm->tuned = true;
	if (current)
		cuCtxSetCurrent(before);
	if (context)
		cuDevicePrimaryCtxRelease_v2(comm->device);
}

void fake_tuner_close(ncclComm_t comm)
{
	const struct ferry_nccl_tuner_v2 *v2 = plugin.symbol;
	const struct ferry_nccl_tuner_v5 *v5 = plugin.symbol;
	if (comm->tuned && (plugin.version < 5 ? v2->destroy(comm->tuner) : v5->destroy(comm->tuner)))
		fail("a tuner's error");
}

/* NCCL's numbers; -1: it asks nobody. */
static int function_of(enum ferry_collective collective)
{
	switch (collective) {
	case FERRY_BROADCAST:
		return 0;
	case FERRY_REDUCE_TO_ROOT:
		return 1;
	case FERRY_ALLGATHER:
		return 2;
	case FERRY_REDUCESCATTER:
		return 3;
	case FERRY_ALLREDUCE:
		return 4;
	default:
		return -1;
	}
}

/* Rings with all protocols but LL128 for sums of 8-bit integers; trees for AllReduce alone. */
static bool is_possible(const struct fake_op *op, int algorithm, int protocol)
{
	return (algorithm == FERRY_NCCL_RING || (algorithm == FERRY_NCCL_TREE && op->collective == FERRY_ALLREDUCE)) &&
	       !(protocol == FERRY_NCCL_LL128 && op->type == ncclInt8);
}

static void fill_in(const struct fake_op *op, float costs[ALGORITHMS][PROTOCOLS])
{
	for (int a = 0; a < ALGORITHMS; a++)
		for (int p = 0; p < PROTOCOLS; p++)
			costs[a][p] = is_possible(op, a, p) ? (float)(10 + a + PROTOCOLS - p) : IMPOSSIBLE;
}

/* The first of the cheapest. */
static void choose(const float costs[ALGORITHMS][PROTOCOLS], struct fake_choice *choice)
{
	float least = 1e30f;
	for (int a = 0; a < ALGORITHMS; a++)
		for (int p = 0; p < PROTOCOLS; p++)
			if (costs[a][p] >= 0 && costs[a][p] < least) {
				least = costs[a][p];
				choice->algorithm = a;
				choice->protocol = p;
			}
}

/* Since 2.29 Broadcasts of several roots in a group are one kernel, which is asked for as an AllGather, */
static bool is_gathered(const struct fake_op *ops, int n, const struct fake_op *op)
{
	for (int i = 0; i < n && op->collective == FERRY_BROADCAST && plugin.version > 5; i++)
		if (ops[i].comm == op->comm && ops[i].collective == FERRY_BROADCAST && ops[i].root != op->root)
			return true;
	return false;
}

static void ask_v2(const struct fake_op *op, size_t bytes, float costs[ALGORITHMS][PROTOCOLS], int *channels)
{
	const struct ferry_nccl_tuner_v2 *v2 = plugin.symbol;
	int algorithm = -1, protocol = -1;
	if (v2->get(op->comm->tuner, function_of(op->collective), bytes, 0, 0, 1, &algorithm, &protocol, channels))
		fail("a tuner's error");
	if (algorithm < 0 && protocol < 0)
		return;
	if (algorithm < 0 || protocol < 0 || costs[algorithm][protocol] < 0)
		fail("a tuner chooses what is impossible");
	costs[algorithm][protocol] = 0;
}

static void ask_newer(const struct fake_op *op, size_t bytes, float costs[ALGORITHMS][PROTOCOLS], int *channels)
{
	const struct ferry_nccl_tuner_v3 *v3 = plugin.symbol;
	const struct ferry_nccl_tuner_v4 *v4 = plugin.symbol;
	const struct ferry_nccl_tuner_v5 *v5 = plugin.symbol;
	int function = function_of(op->collective), n = plugin.version < 4 ? ALGORITHMS - 1 : ALGORITHMS;
	float **table = (float **)(void *)costs;
	void *context = op->comm->tuner;
	ncclResult_t result;
	if (plugin.version == 3)
		result = v3->get(context, function, bytes, 1, table, n, PROTOCOLS, channels);
	else if (plugin.version == 4)
		result = v4->get(context, function, bytes, 1, table, n, PROTOCOLS, 0, channels);
	else
		result = v5->get(context, function, bytes, 1, table, n, PROTOCOLS, 0, channels);
	if (result)
		fail("a tuner's error");
	for (int a = 0; a < ALGORITHMS; a++)
		for (int p = 0; p < PROTOCOLS; p++)
			if (!is_possible(op, a, p) && costs[a][p] >= 0)
				fail("a tuner makes possible what is not");
}

/* One answer for all these bytes. */
static struct fake_choice ask(const struct fake_op *op, size_t bytes, bool gathered)
{
	float costs[ALGORITHMS][PROTOCOLS];
	struct fake_choice choice = {0, 0, 0};
	int most = number("FAKE_NCCL_CHANNELS", 16), channels = 0;
	fill_in(op, costs);
	if (op->comm->tuned && plugin.version == 2)
		ask_v2(op, bytes, costs, &channels);
	else if (op->comm->tuned)
		ask_newer(op, bytes, costs, &channels);
	choose(costs, &choice);
	if (gathered && channels > most) /* and takes the number as it is */
		fail("a tuner gives Broadcasts channels that do not exist");
	choice.channels = channels && channels < most ? channels : most;
	return choice;
}

static size_t bytes_of(const struct fake_op *op)
{
	bool blocks = op->collective == FERRY_ALLGATHER || op->collective == FERRY_REDUCESCATTER;
	return op->count * ferry_type_size((ferryDataType_t)op->type) * (blocks ? (size_t)op->comm->nranks : 1);
}

static bool are_alike(const struct fake_op *op, const struct fake_op *other)
{
	return op->comm == other->comm && op->collective == other->collective && op->type == other->type &&
	       op->op == other->op;
}

/* The smallest call like this one that has no answer yet. */
static int smallest_like(const struct fake_op *ops, int n, const struct fake_op *like)
{
	int smallest = -1;
	for (int i = 0; i < n; i++)
		if (!ops[i].choice.channels && are_alike(&ops[i], like) &&
		    (smallest < 0 || bytes_of(&ops[i]) < bytes_of(&ops[smallest])))
			smallest = i;
	return smallest;
}

/* The smallest and those up to four times as large have one answer. */
static void ask_for_like(struct fake_op *ops, int n, const struct fake_op *like)
{
	const struct fake_op *smallest = &ops[smallest_like(ops, n, like)];
	size_t bytes = 0, most = 4 * bytes_of(smallest);
	for (int i = 0; i < n; i++)
		if (!ops[i].choice.channels && are_alike(&ops[i], like) && bytes_of(&ops[i]) <= most)
			bytes += bytes_of(&ops[i]);
	struct fake_choice choice = ask(smallest, bytes, is_gathered(ops, n, smallest));
	for (int i = 0; i < n; i++)
		if (!ops[i].choice.channels && are_alike(&ops[i], like) && bytes_of(&ops[i]) <= most)
			ops[i].choice = ops[i].comm->choice = choice;
}

static void ask_for_all(struct fake_op *ops, int n)
{
	for (int i = 0; i < n; i++)
		while (function_of(ops[i].collective) >= 0 && !ops[i].choice.channels)
			ask_for_like(ops, n, &ops[i]);
}

struct asked {
	struct fake_op *ops;
	int n;
};

static void *ask_elsewhere(void *context)
{
	struct asked *asked = context;
	ask_for_all(asked->ops, asked->n);
	return NULL;
}

void fake_tuner_ask(struct fake_op *ops, int n)
{
	struct asked asked = {ops, n};
	pthread_t thread;
	bool blocking = true;
	for (int i = 0; i < n; i++)
		blocking &= ops[i].comm->blocking;
	if (blocking)
		ask_for_all(ops, n);
	else if (!pthread_create(&thread, NULL, ask_elsewhere, &asked))
		pthread_join(thread, NULL);
}

void fake_tuner_compare(const struct fake_choice *mine, const struct fake_choice *other)
{
	if (memcmp(mine, other, sizeof *mine)) {
		fprintf(stderr, "algorithm %d, protocol %d, %d channels here; %d, %d, %d there\n", mine->algorithm,
		        mine->protocol, mine->channels, other->algorithm, other->protocol, other->channels);
		fail("ranks come to different answers for a call, and would hang");
	}
}

__attribute__((visibility("default"))) void fake_nccl_choice(ncclComm_t comm, int choice[3])
{
	choice[0] = comm->choice.algorithm;
	choice[1] = comm->choice.protocol;
	choice[2] = comm->choice.channels;
}
