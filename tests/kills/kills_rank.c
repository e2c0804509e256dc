/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of router_kills: rounds of the same calls, whose results must be those of the first round, to the bit. */
#include "ipc/error.h"
#include "tests/kills/kills_graph.h"
#include "tests/kills/kills_place.h"
#include "tests/kills/kills_shared.h"
#include "tests/trial_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TOGETHER  4    /* calls of a batch, at most */
#define RENEWED   16   /* rounds, until a graph is made anew */
#define UNTOUCHED 0xa5 /* trial_run.c's */

struct call {
	struct ferry_trial trial;
	struct trial_buffers buffers;
	struct kills_buffers there;
	unsigned together; /* of the batch that begins with it */
	int stream;
	bool captured, messages; /* replayed out of a graph; an AllToAll of sends and receives */
	void *graph;             /* NULL: it is to be captured (again) */
};

struct player {
	struct kills_shared *shared;
	struct kills_job *job;
	struct kills_rank *mine;
	int rank, nranks;
	ferryComm_t comm;
	struct kills_place place;
	struct call calls[KILLS_CALLS];
};

uint64_t kills_now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void kills_doze_us(unsigned microseconds)
{
	nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000l}, NULL);
}

uint64_t kills_random(uint64_t *state)
{
	return trial_random(state);
}

double kills_chance(uint64_t *state)
{
	return (double)(trial_random(state) >> 11) / (double)(1ull << 53);
}

/* ---- calls ---- */

/* The same on all ranks, but for the buffers. */
static bool make_call(struct player *player, struct call *call, uint64_t *random)
{
	const struct kills_options *options = &player->shared->options;
	struct ferry_trial *trial = &call->trial;
	bool trees = getenv("FERRY_HOST_LINK") && !options->gpu;
	*trial = (struct ferry_trial){.nranks = player->nranks,
	                              .ndomains = (unsigned)options->domains,
	                              .exact = options->domains == 1 && !trees,
	                              .partly = trees};
	trial->collective = (enum ferry_collective)(trial_random(random) % FERRY_NUM_COLLECTIVES);
	if (options->alltoallv)
		trial->collective = FERRY_ALLTOALLV;
	trial->root = (int)(trial_random(random) % (uint64_t)player->nranks);
	trial->type = (ferryDataType_t)(trial_random(random) % ferryNumTypes);
	trial->op = (ferryRedOp_t)(trial_random(random) % (ferryNumOps + 1));
	if (options->sums) { /* which GPUs may make */
		trial->collective = trial->root % 2 ? FERRY_ALLREDUCE : FERRY_REDUCESCATTER;
		trial->op %= ferryNumOps;
	}
	size_t most = options->bytes / ferry_type_size(trial->type) >> trial_random(random) % (options->sums ? 1 : 12);
	if (trial->collective != FERRY_ALLREDUCE)
		most /= (size_t)player->nranks;
	trial->count = options->sums ? most - trial_random(random) % (most / 2) : trial_random(random) % (most + 1);
	trial->in_place = trial_random(random) % 2 && ferry_trial_can_be_in_place(trial->collective);
	trial->seed = trial_random(random);
	call->together = 1 + (unsigned)(trial_random(random) % TOGETHER);
	call->stream = (int)(trial_random(random) % 2);
	unsigned offset = (unsigned)(trial_random(random) % 4);
	call->captured = trial_random(random) % 100 < options->captured;
	call->messages = options->messages && trial->collective == FERRY_ALLTOALL;
	/* Between two ranks messages go in the order in which streams come to them, captured ones at each replay. */
	if (call->messages ||
	    ((options->messages || options->captured) && trial->collective == FERRY_SENDRECV))
		call->stream = 0;
	if (call->messages)
		trial->in_place = false;
	return ferry_trial_open(trial) && trial_buffers_open(trial, player->rank, offset, &call->buffers) &&
	       !kills_place_take(&player->place, &call->buffers, &call->there);
}

static bool make_calls(struct player *player)
{
	uint64_t random = player->shared->options.seed * 0x9e3779b97f4a7c15u + (uint64_t)player->nranks;
	for (int i = 0; i < player->shared->options.ncalls; i++)
		if (!make_call(player, &player->calls[i], &random))
			return false;
	return true;
}

static void drop_graphs(struct player *player)
{
	for (int i = 0; i < player->shared->options.ncalls; i++) {
		kills_graph_destroy(player->calls[i].graph);
		player->calls[i].graph = NULL;
	}
}

static void drop_calls(struct player *player)
{
	drop_graphs(player);
	for (int i = 0; i < player->shared->options.ncalls; i++) {
		kills_place_give_back(&player->place, &player->calls[i].there);
		trial_buffers_close(&player->calls[i].buffers);
		ferry_trial_close(&player->calls[i].trial);
	}
}

/* As it was before the first round. */
static void renew(const struct player *player, struct call *call)
{
	struct trial_buffers *buffers = &call->buffers;
	memset(buffers->area[1], UNTOUCHED, buffers->bytes[1]);
	if (call->trial.in_place)
		ferry_trial_fill(&call->trial, player->rank, buffers->send);
}

static uint64_t hash_of(const char *bytes, size_t count)
{
	uint64_t hash = count, word;
	for (; count >= 8; bytes += 8, count -= 8) {
		memcpy(&word, bytes, 8);
		hash = (hash ^ word) * 0x9fb21c651e98df25u;
		hash ^= hash >> 29;
	}
	for (; count; bytes++, count--)
		hash = (hash ^ (unsigned char)*bytes) * 0x100000001b3u;
	return hash;
}

/* What an AllToAll does; every block in two messages, the first of which may be empty. */
static ferryResult_t exchange(struct player *player, const struct call *call, char *send, char *receive)
{
	const struct ferry_trial *trial = &call->trial;
	ferryStream_t stream = player->place.streams[call->stream];
	size_t size = ferry_type_size(trial->type), half = trial->count / 3;
	ferryResult_t result = ferryGroupStart();
	for (int peer = 0; peer < player->nranks && !result; peer++)
		for (int part = 0; part < 2 && !result; part++) {
			size_t at = (size_t)peer * trial->count + (part ? half : 0);
			size_t count = part ? trial->count - half : half;
			result = ferrySend(send + at * size, count, trial->type, peer, player->comm, stream);
			if (!result)
				result = ferryRecv(receive + at * size, count, trial->type, peer, player->comm, stream);
		}
	ferryResult_t ended = ferryGroupEnd();
	return result ? result : ended;
}

static ferryResult_t make(struct player *player, const struct call *call)
{
	ferryRedOp_t op;
	const struct ferry_trial *trial = &call->trial;
	char *send = kills_place_at(&call->there, call->buffers.send);
	char *receive = kills_place_at(&call->there, call->buffers.receive);
	if (call->messages)
		return exchange(player, call, send, receive);
	ferryResult_t result = trial_op(trial, player->rank, player->comm, &op);
	if (!result)
		result = ferry_trial_start(trial, player->rank, send, receive, op, player->comm,
		                           player->place.streams[call->stream]);
	if (!result && op >= ferryNumOps)
		result = ferryRedOpDestroy(op, player->comm);
	return result;
}

/* Nothing is left that captures where the call fails. */
static ferryResult_t capture(struct player *player, struct call *call)
{
	ferryStream_t stream = player->place.streams[call->stream];
	ferryResult_t result = kills_graph_begin(stream);
	if (result)
		return result;
	result = make(player, call);
	ferryResult_t ended = kills_graph_end(stream, &call->graph);
	return result ? result : ended;
}

/* Once, or twice, which gives the same, unless it reads what it has written. */
static ferryResult_t replay(struct player *player, struct call *call)
{
	ferryStream_t stream = player->place.streams[call->stream];
	ferryResult_t result = call->graph ? ferrySuccess : capture(player, call);
	for (int i = 0; i < 1 + (!call->trial.in_place && call->trial.seed % 2) && !result; i++)
		result = kills_graph_replay(call->graph, stream);
	return result;
}

static ferryResult_t start(struct player *player, struct call *call)
{
	ferryResult_t result = kills_place_send(&player->place, &call->there, call->stream);
	if (result)
		return result;
	return call->captured ? replay(player, call) : make(player, call);
}

/* In the round that nobody disturbs, what arithmetic says; later, what it was then. */
static void judge(struct player *player, struct call *call, int index, unsigned round)
{
	const struct trial_buffers *buffers = &call->buffers;
	uint64_t hash = hash_of(buffers->area[1], buffers->bytes[1]);
	bool wrong = round ? hash != player->mine->hashes[index] : false;
	if (!round || wrong)
		wrong |= trial_buffers_wrong(&call->trial, player->rank, buffers) > 0;
	player->mine->hashes[index] = round ? player->mine->hashes[index] : hash;
	atomic_fetch_add(&player->mine->calls, 1);
	if (wrong && atomic_fetch_add(&player->mine->wrong, 1) < 3)
		printf("not ok: round %u, rank %d, call %d: %s: wrong\n", round, player->rank, index,
		       trial_text(&call->trial));
}

static ferryResult_t synchronize(struct player *player)
{
	ferryResult_t first = kills_place_wait(&player->place, 0), second = kills_place_wait(&player->place, 1);
	return first ? first : second;
}

/* The calls from `index` on that one batch takes; how many. */
static ferryResult_t batch(struct player *player, int index, unsigned round, int *count)
{
	struct kills_rank *mine = player->mine;
	int left = player->shared->options.ncalls - index, together = (int)player->calls[index].together;
	ferryResult_t result = ferrySuccess;
	*count = together < left ? together : left;
	for (int i = 0; i < *count; i++) {
		struct call *call = &player->calls[index + i];
		renew(player, call);
		if ((round + (unsigned)(index + i)) % RENEWED)
			continue;
		kills_graph_destroy(call->graph);
		call->graph = NULL;
	}
	for (int i = 0; i < *count && !result; i++)
		result = start(player, &player->calls[index + i]);
	ferryResult_t ended = synchronize(player);
	result = result ? result : ended;
	if (!result)
		ferryCommGetAsyncError(player->comm, &result);
	if (result)
		return result;
	unsigned long long batches = atomic_load(&mine->batches);
	atomic_store(&mine->stamps[batches % KILLS_STAMPS], kills_now_ns());
	atomic_store(&mine->batches, batches + 1);
	for (int i = 0; i < *count && !result; i++) {
		struct call *call = &player->calls[index + i];
		result = kills_place_fetch(&player->place, &call->there, call->stream);
		judge(player, call, index + i, round);
	}
	return result;
}

static ferryResult_t make_round(struct player *player, unsigned round)
{
	for (int index = 0, count; index < player->shared->options.ncalls; index += count) {
		atomic_store(&player->mine->step, (unsigned)index);
		ferryResult_t result = batch(player, index, round, &count);
		if (result)
			return result;
	}
	return ferrySuccess;
}

/* ---- the rank ---- */

/*
 * All ranks come; the last one decides whether it is over. A rank that is killed never comes, and no rank makes a call
 * meanwhile that would hear of it.
 */
static ferryResult_t meet(struct player *player, bool *over)
{
	struct kills_job *job = player->job;
	ferryResult_t error = ferrySuccess;
	unsigned generation = atomic_load(&job->generation);
	if (atomic_fetch_add(&job->arrived, 1) + 1 == (unsigned)player->nranks) {
		atomic_store(&job->arrived, 0);
		atomic_store(&job->stopped, atomic_load(&job->stop));
		ferryGetUniqueId(&job->next);
		atomic_fetch_add(&job->rounds, 1);
		atomic_fetch_add(&job->generation, 1);
	}
	while (atomic_load(&job->generation) == generation && !error) {
		kills_doze_us(100);
		ferryResult_t result = ferryCommGetAsyncError(player->comm, &error);
		error = result ? result : error;
	}
	*over = atomic_load(&job->stopped);
	return error;
}

static void notify(struct player *player, ferryResult_t result)
{
	const char *ferry = ferryGetLastError(player->comm);
	/* what this program asked of a GPU itself, libferry does not know */
	snprintf(player->mine->text, sizeof player->mine->text, "%s: %s", ferryGetErrorString(result),
	         *ferry ? ferry : ferry_last_message());
	atomic_store(&player->mine->told_ns, kills_now_ns());
	atomic_store(&player->job->failed, true);
}

/* GPUs may be fewer than ranks, and say less of domains: ranks on them take turns. */
static ferryResult_t join(struct player *player, ferryUniqueId id)
{
	const struct kills_options *options = &player->shared->options;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	if (options->gpu)
		config.domain = player->rank % options->domains;
	return ferryCommInitRankConfig(&player->comm, player->nranks, id, player->rank, &config);
}

/* A communicator goes, and another one comes. */
static ferryResult_t begin_anew(struct player *player)
{
	drop_graphs(player);
	ferryResult_t result = ferryCommDestroy(player->comm);
	player->comm = NULL;
	return result ? result : join(player, player->job->next);
}

/*
 * A router monitor may close what it has of a router that died later than calls go on with the next one. Graphs that
 * are captured keep some of Ferry's descriptors (kills_held_more).
 */
static void hold_last(const struct player *player)
{
	struct kills_rank *mine = player->mine;
	bool waits = !player->shared->options.captured;
	if (waits)
		kills_hold_at_rest(getpid(), NULL, 0, &mine->first, &mine->last);
	else
		kills_hold(getpid(), &mine->last);
	if (waits && mine->last.descriptors > mine->first.descriptors)
		kills_print_descriptors(getpid(), "a rank");
}

static ferryResult_t make_rounds(struct player *player)
{
	unsigned fresh = player->shared->options.fresh;
	bool over = false;
	for (unsigned round = 0; !over; round++) {
		ferryResult_t result = make_round(player, round);
		if (!result)
			result = meet(player, &over);
		if (result)
			return result;
		if (!over && fresh && round && round % fresh == 0)
			result = begin_anew(player);
		if (result)
			return result;
		if (!round)
			kills_hold(getpid(), &player->mine->first);
	}
	hold_last(player);
	return ferrySuccess;
}

/* A rank that is left when another was killed makes a communicator without it, and calls in that. */
static ferryResult_t go_on(struct player *player)
{
	ferryCommAbort(player->comm);
	player->comm = NULL;
	player->nranks--;
	player->rank -= player->rank > player->job->victim;
	ferryResult_t result = join(player, player->job->heir);
	if (result)
		return result;
	drop_calls(player);
	if (!make_calls(player))
		return ferrySystemError;
	return make_round(player, 0);
}

static ferryResult_t open_rank(struct player *player)
{
	ferryResult_t result = kills_place_open(&player->place, player->rank, player->shared->options.gpu);
	if (!result)
		result = join(player, player->job->id);
	if (!result && !make_calls(player))
		result = ferrySystemError;
	if (!result)
		atomic_fetch_add(&player->job->ready, 1);
	return result;
}

int kills_rank_main(struct kills_shared *shared, struct kills_job *job, int rank)
{
	struct player *player = calloc(1, sizeof *player);
	if (!player)
		return 1;
	*player = (struct player){.shared = shared,
	                          .job = job,
	                          .mine = &job->ranks[rank],
	                          .rank = rank,
	                          .nranks = job->nranks};
	atomic_store(&player->mine->pid, getpid());
	ferryResult_t result = open_rank(player);
	if (!result)
		result = make_rounds(player);
	if (result)
		notify(player, result);
	if (result && job->loses_ranks)
		result = go_on(player);
	if (result && player->comm)
		ferryCommAbort(player->comm);
	else if (player->comm)
		result = ferryCommDestroy(player->comm);
	if (result && job->loses_ranks)
		printf("not ok: rank %d does not go on: %s: %s\n", rank, ferryGetErrorString(result),
		       ferryGetLastError(NULL));
	drop_calls(player);
	kills_place_close(&player->place);
	free(player);
	fflush(stdout);
	return result ? 3 : 0;
}
