/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of one kind, for scripts/hot-path to trace: 100 until all is as it stays, then 3 that are traced.
 *
 *     hot_path ferry|nccl COUNT
 *
 * FERRY_TEST_HOST=here: on host devices and a router in this process; else over the doubles.
 */
#include "tests/nccl/players.h"

#include <dlfcn.h>

#define WARM   100
#define TRACED 3

static pthread_barrier_t together;
static size_t count;

static void begin(int call, int rank)
{
	pthread_barrier_wait(&together);
	void (*trace)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "hot_path_begin"); /* trace.c */
	if (call == WARM && !rank && trace)
		trace();
	pthread_barrier_wait(&together);
}

static void by_nccl(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	for (int i = 0; i < WARM + TRACED; i++) {
		begin(i, rank->rank);
		NCCL(ncclAllReduce(player->send, player->receive, count, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
		settle(player);
	}
	player_close(player);
}

static ferryComm_t comms[RANKS];

static void by_ferry(struct rank *rank)
{
	struct player player;
	ferryStream_t stream = NULL;
	bool host = getenv("FERRY_TEST_HOST");
	void *send = malloc(count * sizeof(float)), *receive = malloc(count * sizeof(float));
	if (host) {
		EQUAL(ferryStreamCreate(&stream, rank->rank), 0);
	} else {
		player.rank.rank = rank->rank;
		buffers_open(&player);
	}
	for (int i = 0; i < WARM + TRACED; i++) {
		begin(i, rank->rank);
		EQUAL(ferryAllReduce(host ? send : player.send, host ? receive : player.receive, count, ferryFloat32,
		                     ferrySum, comms[rank->rank], host ? stream : (ferryStream_t)player.stream), 0);
		if (host)
			EQUAL(ferryStreamSynchronize(stream), 0);
		else
			settle(&player);
	}
	free(send);
	free(receive);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 64;
	count = (size_t)atol(argv[2]);
	fake_is_the_driver();
	pthread_barrier_init(&together, NULL, RANKS);
	if (!strcmp(argv[1], "nccl")) {
		run(by_nccl);
		routers_close();
		return 0;
	}
	domains_open(1);
	if (ferryCommInitAll(comms, RANKS, NULL)) {
		fprintf(stderr, "%s\n", ferryGetLastError(NULL));
		return 1;
	}
	free(ranks_run(by_ferry));
	for (int rank = 0; rank < RANKS; rank++)
		EQUAL(ferryCommDestroy(comms[rank]), 0);
	routers_close();
	return 0;
}
