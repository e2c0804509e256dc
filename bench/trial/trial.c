/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trial/trial.h"

#include "bench/trial/element.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LINE   64   /* bytes */
#define PERIOD 8191 /* prime: no slice or chunk is a multiple of it */

/* What a reduction must give at one index. */
union ferry_trial_answer {
	uint64_t integer;
	struct {
		double value,
		        bound; /* the bound covers the rounding of the reference too: that is in extended precision */
		double ordered;      /* in rank order, rounded as Ferry says it does */
	} real;
};

/* A stretch of a rank's result: elements of one rank's input, or of the reduction of all (source -1). */
struct segment {
	size_t at, count, from;
	int source;
};

/* ---- shapes ---- */

static size_t variable_count(const struct ferry_trial *trial, int source, int destination)
{
	size_t line = LINE / ferry_type_size(trial->type), count;
	if (trial->skew) {
		count = (size_t)(trial->skew->part[source][destination] * (double)trial->count * trial->nranks);
		return count < line ? count : count / line * line;
	}
	return trial->count * (size_t)(1 + (2 * source + destination) % 3) / 3;
}

/*
 * Blocks are sent in descending and received in ascending order of the peer, a gap of one element after each; of uneven
 * traffic, which is measured, a gap of a line, so that long blocks begin where programs would have them.
 */
void ferry_trial_counts(const struct ferry_trial *trial, int rank, struct ferry_trial_counts *counts)
{
	size_t sent = 0, received = 0, gap = trial->skew ? LINE / ferry_type_size(trial->type) : 1;
	for (int i = 0; i < trial->nranks; i++) {
		int last = trial->nranks - 1 - i;
		counts->sendcounts[last] = variable_count(trial, rank, last);
		counts->senddispls[last] = sent;
		sent += counts->sendcounts[last] + gap;
		counts->recvcounts[i] = variable_count(trial, i, rank);
		counts->recvdispls[i] = received;
		received += counts->recvcounts[i] + gap;
	}
}

/* What a rank sends or receives: a block, or one for each rank, at every rank or at the root alone. */
enum extent { ONE, ALL, ROOT_ONE, ROOT_ALL, UNEVEN };

static const struct {
	enum extent sends, receives;
} shapes[] = {
        [FERRY_ALLREDUCE] = {ONE, ONE},           [FERRY_ALLGATHER] = {ONE, ALL},
        [FERRY_REDUCESCATTER] = {ALL, ONE},       [FERRY_BROADCAST] = {ROOT_ONE, ONE},
        [FERRY_REDUCE_TO_ROOT] = {ONE, ROOT_ONE}, [FERRY_GATHER] = {ONE, ROOT_ALL},
        [FERRY_SCATTER] = {ROOT_ALL, ONE},        [FERRY_ALLTOALL] = {ALL, ALL},
        [FERRY_ALLTOALLV] = {UNEVEN, UNEVEN},     [FERRY_SENDRECV] = {ONE, ONE},
};
_Static_assert(sizeof shapes / sizeof *shapes == FERRY_NUM_COLLECTIVES, "each collective has a shape");

/* In elements; not of uneven ones, which the counts tell. */
static size_t elements(const struct ferry_trial *trial, int rank, enum extent extent)
{
	bool rooted = extent == ROOT_ONE || extent == ROOT_ALL, all = extent == ALL || extent == ROOT_ALL;
	return rooted && rank != trial->root ? 0 : trial->count * (all ? (size_t)trial->nranks : 1);
}

size_t ferry_trial_sends(const struct ferry_trial *trial, int rank)
{
	struct ferry_trial_counts counts;
	if (shapes[trial->collective].sends != UNEVEN)
		return elements(trial, rank, shapes[trial->collective].sends);
	ferry_trial_counts(trial, rank, &counts);
	return counts.senddispls[0] + counts.sendcounts[0] + 1;
}

size_t ferry_trial_receives(const struct ferry_trial *trial, int rank)
{
	struct ferry_trial_counts counts;
	int last = trial->nranks - 1;
	if (shapes[trial->collective].receives != UNEVEN)
		return elements(trial, rank, shapes[trial->collective].receives);
	ferry_trial_counts(trial, rank, &counts);
	return counts.recvdispls[last] + counts.recvcounts[last] + 1;
}

size_t ferry_trial_room(const struct ferry_trial *trial, int rank)
{
	size_t sends = ferry_trial_sends(trial, rank), receives = ferry_trial_receives(trial, rank);
	return sends > receives ? sends : receives;
}

bool ferry_trial_can_be_in_place(enum ferry_collective collective)
{
	return collective != FERRY_ALLTOALLV && collective != FERRY_SENDRECV;
}

void ferry_trial_place(const struct ferry_trial *trial, int rank, char **send, char **receive)
{
	size_t own = (size_t)rank * trial->count * ferry_type_size(trial->type);
	size_t sends = ferry_trial_sends(trial, rank), receives = ferry_trial_receives(trial, rank);
	bool everywhere = trial->collective == FERRY_ALLGATHER || trial->collective == FERRY_REDUCESCATTER;
	bool at_root = (trial->collective == FERRY_GATHER || trial->collective == FERRY_SCATTER) && rank == trial->root;
	if (trial->in_place) { /* of one block and all blocks, the one is the rank's own in all */
		char *base = *receive, *block = everywhere || at_root ? base + own : base;
		*send = sends > receives ? base : block;
		*receive = sends > receives ? block : base;
	}
	/* Zero elements have a place too: only what the call ignores at this rank is NULL. */
	if (trial->count && !sends)
		*send = NULL;
	if (trial->count && !receives)
		*receive = NULL;
}

static unsigned segments_of(const struct ferry_trial *trial, int rank, struct segment *segments)
{
	struct ferry_trial_counts mine, theirs;
	enum ferry_collective collective = trial->collective;
	size_t count = trial->count, n = (size_t)trial->nranks;
	bool divided = shapes[collective].sends == ALL || shapes[collective].sends == ROOT_ALL;
	size_t own = divided ? (size_t)rank * count : 0; /* where this rank's block is in another's input */
	int source = ferry_collective_reduces(collective) ? -1
	             : collective == FERRY_SENDRECV ? (rank + trial->nranks - 1) % trial->nranks /* a ring */
	                                            : trial->root;
	if (!ferry_trial_receives(trial, rank))
		return 0;
	if (shapes[collective].receives == ONE || shapes[collective].receives == ROOT_ONE) {
		segments[0] = (struct segment){0, count, own, source};
		return 1;
	}
	ferry_trial_counts(trial, rank, &mine);
	for (size_t peer = 0; peer < n; peer++) {
		segments[peer] = (struct segment){peer * count, count, own, (int)peer};
		if (collective != FERRY_ALLTOALLV)
			continue;
		ferry_trial_counts(trial, (int)peer, &theirs);
		segments[peer] = (struct segment){mine.recvdispls[peer], mine.recvcounts[peer], theirs.senddispls[rank],
		                                  (int)peer};
	}
	return (unsigned)n;
}

/* ---- inputs ---- */

static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ value >> 27) * 0x94d049bb133111ebull;
	return value ^ value >> 31;
}

static void set_input(const struct ferry_trial *trial, int rank, size_t index, void *base)
{
	uint64_t random = mix((trial->seed * FERRY_MAX_RANKS + (uint64_t)rank) * PERIOD + index +
	                      0x9e3779b97f4a7c15ull);
	double unit = (double)(random >> 11) * 0x1p-53, sign = random & 1 ? -1 : 1, value;
	if (!ferry_element_is_float(trial->type)) {
		/* An average is of sums that do not wrap: dividing a wrapped one has no defined result. */
		uint64_t most = (ferry_element_is_signed(trial->type) ? 127u : 255u) / (unsigned)trial->nranks;
		if (trial->op == ferryAvg)
			random = ferry_element_is_signed(trial->type) ? random % (2 * most + 1) - most
			                                              : random % (most + 1);
		ferry_element_set_integer(trial->type, base, index, random);
		return;
	}
	if (trial->op == ferryProd) /* eight factors away from one stay in range of the 8-bit floats */
		value = sign * (rank < 8 ? 0.75 + 0.6 * unit : 1);
	else
		value = sign * 4 * unit * (ferry_type_size(trial->type) > 1 ? ldexp(1, (int)(random >> 1 & 7) - 4) : 1);
	ferry_element_set_float(trial->type, base, index, value);
}

uint64_t ferry_trial_scalar(const struct ferry_trial *trial, int rank)
{
	static const double factors[] = {1, 0.5, -2, 1.5, 0.75};
	uint64_t scalar = 0;
	if (ferry_element_is_float(trial->type))
		ferry_element_set_float(trial->type, &scalar, 0, factors[rank % 5]);
	else
		ferry_element_set_integer(trial->type, &scalar, 0,
		                          (uint64_t)(rank % 5 + 1) * 0xffffffffull); /* wraps */
	return scalar;
}

static const char *input_of(struct ferry_trial *trial, int rank)
{
	size_t size = ferry_type_size(trial->type), period = trial->period;
	if (trial->inputs[rank])
		return trial->inputs[rank];
	char *input = malloc(2 * period * size);
	for (size_t i = 0; input && i < period; i++)
		set_input(trial, rank, i, input);
	if (input)
		memcpy(input + period * size, input, period * size);
	return trial->inputs[rank] = input;
}

/* ---- references ---- */

static uint64_t reduce_integers(struct ferry_trial *trial, size_t index)
{
	uint64_t result = 0;
	bool is_signed = ferry_element_is_signed(trial->type);
	for (int rank = 0; rank < trial->nranks; rank++) {
		uint64_t value = ferry_element_integer(trial->type, trial->inputs[rank], index),
		         scalar = ferry_trial_scalar(trial, rank);
		bool less = is_signed ? (int64_t)value < (int64_t)result : value < result;
		if (trial->op >= ferryNumOps)
			value *= scalar;
		if (!rank)
			result = value;
		else if (trial->op == ferryProd)
			result *= value;
		else if (trial->op == ferryMin)
			result = less ? value : result;
		else if (trial->op == ferryMax)
			result = less ? result : value;
		else
			result += value;
	}
	if (trial->op == ferryAvg)
		result = is_signed ? (uint64_t)((int64_t)result / trial->nranks) : result / (uint64_t)trial->nranks;
	return ferry_element_wrap(trial->type, result);
}

/* A step of the sum in rank order: of doubles, or of floats, which doubles hold and round as floats would. */
static double rounded(bool wide, double value)
{
	return wide ? value : (double)(float)value;
}

static double fused(bool wide, double x, double factor, double total)
{
	return wide ? fma(x, factor, total) : (double)fmaf((float)x, (float)factor, (float)total);
}

static void reduce_floats(struct ferry_trial *trial, size_t index, union ferry_trial_answer *answer)
{
	long double value = 0, magnitude = 0;
	double ordered = 0;
	bool wide = trial->type == ferryFloat64, picks = trial->op == ferryMin || trial->op == ferryMax;
	double u = ferry_element_roundoff(trial->type), a = wide ? u : ferry_element_roundoff(ferryFloat32);
	int n = trial->nranks, roundings = trial->partly ? n : trial->ndomains > 1 ? (int)trial->ndomains + 1 : 1;
	bool averages = trial->op == ferryAvg, scales = averages || trial->op >= ferryNumOps;
	for (int rank = 0; rank < n; rank++) {
		double x = ferry_element_float(trial->type, trial->inputs[rank], index);
		uint64_t scalar = ferry_trial_scalar(trial, rank);
		double exact = averages ? 1.0 / n : scales ? ferry_element_float(trial->type, &scalar, 0) : 1;
		double factor = averages ? ferry_element_round(trial->type, exact) : exact;
		bool fuses = scales && rank && ferry_type_size(trial->type) > 1;
		double scaled = scales ? ferry_element_round(trial->type, x * factor) : x;
		long double term = (long double)x * exact;
		if (!rank) {
			value = term;
			magnitude = fabsl(term);
			ordered = scaled;
		} else if (trial->op == ferryProd) {
			value *= term;
			magnitude *= fabsl(term);
			ordered = rounded(wide, ordered * scaled);
		} else if (picks) {
			ordered = (scaled < ordered) == (trial->op == ferryMin) ? scaled : ordered;
			value = ordered;
		} else {
			value += term;
			magnitude += fabsl(term);
			ordered = fuses ? fused(wide, x, factor, ordered) : rounded(wide, ordered + scaled);
		}
	}
	answer->real.value = (double)value;
	answer->real.ordered = ferry_element_round(trial->type, ordered);
	/* expm1: 1 + u is 1 in double precision where u is double's own roundoff */
	double relative = picks ? 0 : expm1((roundings + averages + scales) * log1p(u) + (n + 1) * log1p(a));
	int underflows = picks ? 0 : roundings + (scales ? n : 0);
	answer->real.bound = relative * (double)magnitude + underflows * ferry_element_tiny(trial->type);
}

bool ferry_trial_open(struct ferry_trial *trial)
{
	size_t most = 1;
	for (int rank = 0; rank < trial->nranks; rank++)
		if (ferry_trial_sends(trial, rank) > most)
			most = ferry_trial_sends(trial, rank);
	trial->period = most < PERIOD ? most : PERIOD;
	if (!ferry_collective_reduces(trial->collective))
		return true;
	trial->answers = malloc(trial->period * sizeof *trial->answers);
	for (int rank = 0; rank < trial->nranks; rank++)
		if (!input_of(trial, rank))
			return false;
	if (!trial->answers)
		return false;
	for (size_t i = 0; i < trial->period; i++)
		if (ferry_element_is_float(trial->type))
			reduce_floats(trial, i, &trial->answers[i]);
		else
			trial->answers[i].integer = reduce_integers(trial, i);
	return true;
}

void ferry_trial_close(struct ferry_trial *trial)
{
	for (int rank = 0; rank < trial->nranks; rank++) {
		free(trial->inputs[rank]);
		trial->inputs[rank] = NULL;
	}
	free(trial->answers);
	trial->answers = NULL;
}

void ferry_trial_fill(struct ferry_trial *trial, int rank, char *send)
{
	size_t size = ferry_type_size(trial->type), bytes = ferry_trial_sends(trial, rank) * size,
	       step = trial->period * size;
	const char *input = send ? input_of(trial, rank) : NULL;
	for (size_t at = 0; input && at < bytes; at += step)
		memcpy(send + at, input, bytes - at < step ? bytes - at : step);
}

/* ---- judging ---- */

static bool right(const struct ferry_trial *trial, const char *receive, size_t i,
                  const union ferry_trial_answer *answer)
{
	if (!ferry_element_is_float(trial->type))
		return ferry_element_integer(trial->type, receive, i) == answer->integer;
	double got = ferry_element_float(trial->type, receive, i);
	if (trial->exact && got != answer->real.ordered)
		return false;
	return fabs(got - answer->real.value) <= answer->real.bound;
}

static size_t wrong_reduced(const struct ferry_trial *trial, const struct segment *segment, const char *receive)
{
	size_t wrong = 0, index = segment->from % trial->period;
	for (size_t i = 0; i < segment->count; i++) {
		wrong += !right(trial, receive, segment->at + i, &trial->answers[index]);
		index = index + 1 == trial->period ? 0 : index + 1;
	}
	return wrong;
}

static size_t wrong_moved(struct ferry_trial *trial, const struct segment *segment, const char *receive)
{
	size_t wrong = 0, size = ferry_type_size(trial->type), step;
	const char *input = input_of(trial, segment->source);
	if (!input)
		return segment->count;
	for (size_t done = 0; done < segment->count; done += step) {
		const char *got = receive + (segment->at + done) * size;
		const char *wanted = input + (segment->from + done) % trial->period * size;
		step = segment->count - done < trial->period ? segment->count - done : trial->period;
		if (!memcmp(got, wanted, step * size))
			continue;
		for (size_t i = 0; i < step; i++)
			wrong += memcmp(got + i * size, wanted + i * size, size) != 0;
	}
	return wrong;
}

size_t ferry_trial_wrong(struct ferry_trial *trial, int rank, const char *receive, unsigned char untouched)
{
	struct segment segments[FERRY_MAX_RANKS];
	size_t wrong = 0, size = ferry_type_size(trial->type);
	unsigned count = segments_of(trial, rank, segments);
	for (unsigned i = 0; i < count; i++) {
		wrong += segments[i].source < 0 ? wrong_reduced(trial, &segments[i], receive)
		                                : wrong_moved(trial, &segments[i], receive);
		const unsigned char *gap = (const unsigned char *)receive + (segments[i].at + segments[i].count) * size;
		for (size_t byte = 0; trial->collective == FERRY_ALLTOALLV && byte < size; byte++)
			wrong += gap[byte] != untouched;
	}
	return wrong;
}

/* ---- the call ---- */

static ferryResult_t start_ring(const struct ferry_trial *trial, int rank, const char *send, char *receive,
                                ferryComm_t comm, ferryStream_t stream)
{
	int n = trial->nranks;
	ferryResult_t result = ferryGroupStart(), ended;
	if (!result)
		result = ferrySend(send, trial->count, trial->type, (rank + 1) % n, comm, stream);
	if (!result)
		result = ferryRecv(receive, trial->count, trial->type, (rank + n - 1) % n, comm, stream);
	ended = ferryGroupEnd();
	return result ? result : ended;
}

ferryResult_t ferry_trial_start(const struct ferry_trial *trial, int rank, const char *send, char *receive,
                                ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream)
{
	struct ferry_trial_counts counts;
	switch (trial->collective) {
	case FERRY_ALLREDUCE:
		return ferryAllReduce(send, receive, trial->count, trial->type, op, comm, stream);
	case FERRY_ALLGATHER:
		return ferryAllGather(send, receive, trial->count, trial->type, comm, stream);
	case FERRY_REDUCESCATTER:
		return ferryReduceScatter(send, receive, trial->count, trial->type, op, comm, stream);
	case FERRY_BROADCAST:
		return ferryBroadcast(send, receive, trial->count, trial->type, trial->root, comm, stream);
	case FERRY_REDUCE_TO_ROOT:
		return ferryReduce(send, receive, trial->count, trial->type, op, trial->root, comm, stream);
	case FERRY_GATHER:
		return ferryGather(send, receive, trial->count, trial->type, trial->root, comm, stream);
	case FERRY_SCATTER:
		return ferryScatter(send, receive, trial->count, trial->type, trial->root, comm, stream);
	case FERRY_ALLTOALL:
		return ferryAllToAll(send, receive, trial->count, trial->type, comm, stream);
	case FERRY_ALLTOALLV:
		ferry_trial_counts(trial, rank, &counts);
		return ferryAllToAllv(send, counts.sendcounts, counts.senddispls, receive, counts.recvcounts,
		                      counts.recvdispls, trial->type, comm, stream);
	case FERRY_SENDRECV:
		return start_ring(trial, rank, send, receive, comm, stream);
	}
	return ferryInvalidArgument;
}
