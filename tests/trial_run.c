/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/trial_run.h"

#include "tests/sanitized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD     128
#define UNTOUCHED 0xa5

uint64_t trial_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

const char *trial_text(const struct ferry_trial *trial)
{
	static _Thread_local char text[256];
	snprintf(text, sizeof text, "%s of %zu %s, %s, root %d, %d ranks, %u domains, %s, seed %llu",
	         ferry_collective_name(trial->collective), trial->count, ferry_type_name(trial->type),
	         ferry_redop_name(trial->op), trial->root, trial->nranks, trial->ndomains,
	         trial->in_place ? "in place" : "out of place", (unsigned long long)trial->seed);
	return text;
}

static bool make_area(struct trial_buffers *buffers, int which, size_t bytes, size_t offset)
{
	void *memory;
	if (posix_memalign(&memory, 64, GUARD + offset + bytes + GUARD))
		return false;
	sampled_set(memory, UNTOUCHED, GUARD + offset + bytes + GUARD);
	buffers->memory[which] = memory;
	buffers->area[which] = buffers->memory[which] + GUARD + offset;
	buffers->bytes[which] = bytes;
	return true;
}

bool trial_buffers_open(struct ferry_trial *trial, int rank, unsigned offset, struct trial_buffers *buffers)
{
	size_t size = ferry_type_size(trial->type);
	size_t sends = ferry_trial_sends(trial, rank), receives = ferry_trial_receives(trial, rank);
	*buffers = (struct trial_buffers){0};
	if (!make_area(buffers, 0, trial->in_place ? 0 : sends * size, offset) ||
	    !make_area(buffers, 1, (trial->in_place ? ferry_trial_room(trial, rank) : receives) * size,
	               (offset + 1) % 4))
		return false;
	buffers->send = buffers->area[0];
	buffers->receive = buffers->area[1];
	ferry_trial_place(trial, rank, &buffers->send, &buffers->receive);
	ferry_trial_fill(trial, rank, buffers->send);
	buffers->kept = malloc(buffers->bytes[0] + 1);
	if (buffers->kept)
		sampled_copy(buffers->kept, buffers->area[0], buffers->bytes[0]);
	return buffers->kept != NULL;
}

static size_t damage(const char *from, size_t bytes)
{
	size_t count = 0;
	for (size_t i = 0; i < bytes; i++)
		count += (unsigned char)from[i] != UNTOUCHED;
	return count;
}

size_t trial_buffers_wrong(struct ferry_trial *trial, int rank, const struct trial_buffers *buffers)
{
	size_t wrong = buffers->receive ? ferry_trial_wrong(trial, rank, buffers->receive, UNTOUCHED) : 0;
	for (int which = 0; which < 2; which++) {
		wrong += damage(buffers->memory[which], (size_t)(buffers->area[which] - buffers->memory[which]));
		wrong += damage(buffers->area[which] + buffers->bytes[which], GUARD);
	}
	return wrong + !sampled_same(buffers->kept, buffers->area[0], buffers->bytes[0]);
}

void trial_buffers_close(struct trial_buffers *buffers)
{
	free(buffers->memory[0]);
	free(buffers->memory[1]);
	free(buffers->kept);
	*buffers = (struct trial_buffers){0};
}

ferryResult_t trial_op(const struct ferry_trial *trial, int rank, ferryComm_t comm, ferryRedOp_t *op)
{
	uint64_t scalar = ferry_trial_scalar(trial, rank);
	*op = trial->op;
	if (trial->op < ferryNumOps)
		return ferrySuccess;
	return ferryRedOpCreatePreMulSum(op, &scalar, trial->type, ferryScalarHostImmediate, comm);
}

static bool failed(ferryResult_t result, const struct ferry_trial *trial, int rank, const char *what)
{
	if (result)
		fprintf(stderr, "%s: rank %d: %s: %s: %s\n", trial_text(trial), rank, what, ferryGetErrorString(result),
		        ferryGetLastError(NULL));
	return result != ferrySuccess;
}

static bool start_all(struct ferry_trial *trial, ferryComm_t *comms, ferryStream_t *streams,
                      struct trial_buffers *buffers)
{
	bool group = trial->seed % 2; /* either way of calling for several ranks from one thread */
	if (group && ferryGroupStart())
		return false;
	bool fine = true;
	for (int rank = 0; rank < trial->nranks && fine; rank++) {
		ferryRedOp_t op;
		fine = !failed(trial_op(trial, rank, comms[rank], &op), trial, rank, "creating the reduction");
		if (!fine)
			break;
		fine = !failed(ferry_trial_start(trial, rank, buffers[rank].send, buffers[rank].receive, op,
		                                 comms[rank], streams ? streams[rank] : NULL),
		               trial, rank, "starting");
		if (op >= ferryNumOps) /* as with NCCL, once the call is made, launched or not */
			fine = !failed(ferryRedOpDestroy(op, comms[rank]), trial, rank, "destroying the reduction") &&
			       fine;
	}
	return (!group || !failed(ferryGroupEnd(), trial, -1, "ending the group")) && fine;
}

bool trial_run(struct ferry_trial *trial, ferryComm_t *comms, ferryStream_t *streams, unsigned offset)
{
	struct trial_buffers buffers[FERRY_MAX_RANKS];
	bool fine = ferry_trial_open(trial);
	for (int rank = 0; rank < trial->nranks; rank++)
		fine = trial_buffers_open(trial, rank, offset, &buffers[rank]) && fine;
	if (fine)
		fine = start_all(trial, comms, streams, buffers);
	for (int rank = 0; rank < trial->nranks; rank++)
		if (!streams || failed(ferryStreamSynchronize(streams[rank]), trial, rank, "waiting"))
			fine = fine && !streams;
	if (!streams)
		fine = !failed(ferryStreamSynchronize(NULL), trial, -1, "waiting") && fine;
	for (int rank = 0; rank < trial->nranks; rank++) {
		size_t wrong = fine ? trial_buffers_wrong(trial, rank, &buffers[rank]) : 0;
		if (wrong)
			fprintf(stderr, "%s: rank %d: %zu wrong\n", trial_text(trial), rank, wrong);
		fine = fine && !wrong;
		trial_buffers_close(&buffers[rank]);
	}
	ferry_trial_close(trial);
	return fine;
}
