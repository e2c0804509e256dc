/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank that lies to the router that moves its data, or rather both ranks of a job, played by hand: they attach, map
 * the arena and write what a test wants there. And a job of ranks that play by the rules, with the same router, which
 * are to notice nothing of it.
 */
#ifndef FERRY_TESTS_LIAR_H
#define FERRY_TESTS_LIAR_H

#include "tests/fake_cuda/places.h"

#include "ipc/collective.h"
#include "ipc/publish.h"
#include "ipc/stream_flag.h"

#define COUNT       4000 /* elements of a call */
#define RANKS       2
#define WORDS_BYTES (FERRY_STREAM_FLAGS * sizeof(struct ferry_stream_flag))

struct liar {
	int sockets[RANKS];
	struct ferry_job_arenas shared;
	struct ferry_stream_flag *flags; /* of both ranks: a process's */
	struct ferry_plan *plan;
	CUdeviceptr memory[2 * RANKS]; /* the later ones of another index than 1 */
	uint64_t written[RANKS];  /* submissions */
};

/** A memfd for words. */
int liar_make_flags(size_t bytes, int seals);

/** One rank attaches to the job of that name; rank 0's is to be first. */
void liar_attach(struct liar *liar, uint32_t rank, int flags, uint32_t name);
ferryResult_t liar_make_ready(struct liar *liar, uint32_t rank);

/**
 * A job that is ready, with a buffer of two times COUNT elements for each rank, exported under index 1 and generation
 * 1, and a plan of the collective: by the host, or (puts) one that pushes, whose buffers others may put into.
 */
void liar_open(struct liar *liar, enum ferry_collective collective, bool puts);
void liar_close(struct liar *liar);

/** One more buffer of the rank's, of generation 1. put target: others may put into it. */
void liar_export(struct liar *liar, uint32_t rank, uint32_t index, bool put_target);

/* What a rank that does not lie would submit. */
struct record {
	struct ferry_submission head;
	union {
		struct ferry_call_decoder_part parts[FERRY_MAX_RANKS];
		struct ferry_call_decoder_message messages[FERRY_SUBMISSION_MESSAGES];
		char bytes[FERRY_SUBMISSION_MOST - sizeof(struct ferry_submission)];
	};
	size_t more;
};

/** Receives go into the buffer's second half. */
void honest_call(const struct liar *liar, uint32_t rank, struct record *record);
/** One to the other rank, and one from it. */
void honest_messages(uint32_t rank, bool puts, struct record *record);

void ring_router(struct liar *liar, uint32_t rank);
void submit(struct liar *liar, uint32_t rank, struct record *record);

/** As the rank's stream would, or those of both. */
void reach_by(struct liar *liar, uint32_t rank);
void reach(struct liar *liar);

bool has_failed(const struct liar *liar);
bool fails_within(const struct liar *liar, int milliseconds);
/** The job ends, as a use that was not valid, with these words; `what` was done. */
void must_fail(const struct liar *liar, const char *flags, const char *what);
bool is_over(const struct liar *liar);
/** The call ends, and the job has not failed. */
void must_end(const struct liar *liar);

/** Setup and teardown of a test: the honest job. others_run_on: it makes one call more, in the same router. */
int others_start(void **state);
int others_stop(void **state);
void others_run_on(void);

#endif
