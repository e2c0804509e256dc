/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective, type and operation beside MPI, one rank per process under ferryrun. Where arithmetic is exact (data
 * that is only moved, integers, min and max) Ferry's result must be MPI's to the bit, on the same data; float sums and
 * products have the reference and bound of bench/trial/trial.h instead, since MPI may order them as it likes. MPI has
 * no 16- and 8-bit floats: moved, they travel as bytes; reduced, the reference alone judges.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/trial/element.h"
#include "bench/peers/peer.h"
#include "tests/trial_run.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE 4096 /* FERRY_SLICE, set in main */
#define TEXT  256

extern const struct mpi_peer ferry_mpi_peer; /* bench/peers/mpi.c */

static ferryComm_t comm;
static int rank, nranks, ndomains;

/* What this rank saw go wrong; rank 0 prints every rank's first line. */
struct findings {
	unsigned failures, compared;
	char first[TEXT];
};

static void note(struct findings *findings, const struct ferry_trial *trial, const char *what, const char *why)
{
	if (!findings->failures++)
		snprintf(findings->first, TEXT, "rank %d: %s: %.40s %.60s", rank, trial_text(trial), what, why);
}

/* Ranks meet asleep: MPI's own calls wait busily, and would take the cores from ranks that still work in Ferry. */
static void meet(void)
{
	float one = 1;
	assert_int_equal(ferryAllReduce(&one, &one, 1, ferryFloat32, ferrySum, comm, NULL), ferrySuccess);
	assert_int_equal(ferryStreamSynchronize(NULL), ferrySuccess);
}

/*
 * MPICH 4.0 and Open MPI 4.1.2 take unsigned integers for signed ones in MPI_MIN and MPI_MAX (pmodels/mpich issue 6083,
 * open-mpi/ompi issue 10648). Where this MPI does, the reference judges alone.
 */
static bool signed_only[ferryNumTypes];

static void look_for_signed_comparison(void)
{
	static const ferryDataType_t types[] = {ferryUint8, ferryUint32, ferryUint64};
	for (int i = 0; i < 3; i++) {
		uint64_t mine = rank ? UINT64_MAX : 1, least = 0, one = 1;
		struct ferry_trial_call call = {.rank = rank, .send = (char *)&mine, .receive = (char *)&least};
		call.trial = (struct ferry_trial){
			.collective = FERRY_ALLREDUCE, .count = 1, .type = types[i], .op = ferryMin, .nranks = nranks};
		ferry_mpi_peer.run(&call);
		signed_only[types[i]] = memcmp(&least, &one, ferry_type_size(types[i])) != 0;
		if (signed_only[types[i]] && !rank)
			printf("this MPI compares %s as signed: its min and max are left out\n",
			       ferry_type_name(types[i]));
	}
}

static bool exact_in_mpi(const struct ferry_trial *trial)
{
	bool picks = trial->op == ferryMin || trial->op == ferryMax;
	if (picks && signed_only[trial->type])
		return false;
	if (!ferry_collective_reduces(trial->collective))
		return true;
	if (trial->op == ferryAvg || trial->op >= ferryNumOps)
		return false;
	return ferry_element_is_float(trial->type) ? picks && ferry_type_size(trial->type) >= 4 : true;
}

static void compare(struct ferry_trial *trial, const struct trial_buffers *mine, struct findings *findings)
{
	struct ferry_trial apart = *trial; /* MPI gets buffers of its own, so it needs no in-place form */
	struct trial_buffers theirs;
	apart.in_place = false;
	if (!trial_buffers_open(&apart, rank, 0, &theirs)) {
		note(findings, trial, "no memory", "");
	} else {
		struct ferry_trial_call call = {
		        .trial = *trial, .rank = rank, .send = theirs.send, .receive = theirs.receive};
		ferry_trial_counts(trial, rank, &call.counts);
		meet();
		ferry_mpi_peer.run(&call);
		size_t bytes = ferry_trial_receives(trial, rank) * ferry_type_size(trial->type);
		/* MPI_Bcast has one buffer, the root's input. */
		bool bcast_root = trial->collective == FERRY_BROADCAST && rank == trial->root;
		const char *result = bcast_root ? theirs.send : theirs.receive;
		if (mine->receive && result && memcmp(mine->receive, result, bytes))
			note(findings, trial, "differs from MPI's result", "");
		findings->compared++;
	}
	/* What the copy of the trial has made belongs to the copy's original. */
	memcpy(trial->inputs, apart.inputs, sizeof apart.inputs);
	trial_buffers_close(&theirs);
}

static void run(struct ferry_trial *trial, unsigned offset, bool against_mpi, struct findings *findings)
{
	struct trial_buffers buffers;
	ferryRedOp_t op;
	bool ready = ferry_trial_open(trial) && trial_buffers_open(trial, rank, offset, &buffers);
	assert_true(ready);
	ferryResult_t result = trial_op(trial, rank, comm, &op);
	if (!result)
		result = ferry_trial_start(trial, rank, buffers.send, buffers.receive, op, comm, NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	if (op >= ferryNumOps)
		ferryRedOpDestroy(op, comm);
	if (result)
		note(findings, trial, ferryGetErrorString(result), ferryGetLastError(comm));
	else if (trial_buffers_wrong(trial, rank, &buffers))
		note(findings, trial, "is wrong", "");
	if (against_mpi && exact_in_mpi(trial))
		compare(trial, &buffers, findings);
	trial_buffers_close(&buffers);
	ferry_trial_close(trial);
}

/* None, one, an odd number, a count that four does not divide, and one element to each side of whole slices. */
static size_t count_of(const struct ferry_trial *trial, unsigned which)
{
	size_t slice = SLICE / ferry_type_size(trial->type);
	const size_t counts[] = {0, 1, 7, 1009, slice - 1, slice, slice + 1, 5 * slice + 3};
	return counts[which];
}

#define COUNTS 8

/*
 * Counts and places of one collective, type and operation: in a check every third, in turn, and all in `make soak`. MPI
 * is compared with on some: its waiting is dear.
 */
static void run_kind(struct ferry_trial *trial, unsigned *turn, struct findings *findings)
{
	unsigned places = ferry_trial_can_be_in_place(trial->collective) ? 2 : 1;
	for (unsigned which = 0; which < COUNTS; which++)
		for (unsigned place = 0; place < places; place++) {
			unsigned now = (*turn)++;
			if (now % 3 && !getenv("FERRY_TEST_TIMES"))
				continue;
			trial->count = count_of(trial, which);
			trial->in_place = place;
			trial->seed = now;
			trial->root = (int)(now % (unsigned)nranks);
			run(trial, now % 4, now % 7 == 0, findings);
		}
}

static void conclude(struct findings *findings)
{
	static char texts[FERRY_MAX_RANKS][TEXT];
	unsigned failures = 0;
	MPI_Allreduce(&findings->failures, &failures, 1, MPI_UNSIGNED, MPI_SUM, MPI_COMM_WORLD);
	MPI_Gather(findings->first, TEXT, MPI_CHAR, texts, TEXT, MPI_CHAR, 0, MPI_COMM_WORLD);
	for (int i = 0; !rank && i < nranks; i++)
		if (texts[i][0])
			fprintf(stderr, "%s\n", texts[i]);
	assert_int_equal(failures, 0);
	assert_true(findings->compared > 0);
}

static void run_kinds(bool reduces, bool floats)
{
	struct findings findings = {0};
	unsigned turn = 0;
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++)
		for (int type = 0; type < ferryNumTypes; type++)
			for (int op = 0; op <= (reduces ? (int)ferryNumOps : 0); op++) {
				struct ferry_trial trial = {.collective = (enum ferry_collective)collective,
				                            .type = (ferryDataType_t)type,
				                            .op = (ferryRedOp_t)op,
				                            .nranks = nranks,
				                            .ndomains = (unsigned)ndomains,
				                            .exact = ndomains == 1};
				if (ferry_collective_reduces(trial.collective) != reduces)
					break;
				if (!reduces || ferry_element_is_float(trial.type) == floats)
					run_kind(&trial, &turn, &findings);
			}
	conclude(&findings);
}

static void moved_data_is_mpi_s_bit_for_bit(void **state)
{
	(void)state;
	run_kinds(false, false);
}

static void integer_reductions_are_mpi_s_bit_for_bit(void **state)
{
	(void)state;
	run_kinds(true, false);
}

static void float_reductions_stay_within_the_bound_and_pick_mpi_s_values(void **state)
{
	(void)state;
	run_kinds(true, true);
}

static void a_mebibyte_per_rank_is_right(void **state)
{
	(void)state;
	struct findings findings = {0};
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++)
		for (unsigned place = 0; place <= ferry_trial_can_be_in_place((enum ferry_collective)collective);
		     place++) {
			struct ferry_trial trial = {.collective = (enum ferry_collective)collective,
			                            .type = place ? ferryInt32 : ferryFloat32,
			                            .op = ferrySum,
			                            .count = 1 << 18,
			                            .root = 1 % nranks,
			                            .nranks = nranks,
			                            .ndomains = (unsigned)ndomains,
			                            .exact = ndomains == 1,
			                            .in_place = place,
			                            .seed = 99};
			run(&trial, 1, true, &findings);
		}
	conclude(&findings);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(moved_data_is_mpi_s_bit_for_bit),
	        cmocka_unit_test(integer_reductions_are_mpi_s_bit_for_bit),
	        cmocka_unit_test(float_reductions_stay_within_the_bound_and_pick_mpi_s_values),
	        cmocka_unit_test(a_mebibyte_per_rank_is_right),
	};
	int mpi_rank, mpi_size, domain;
	setenv("FERRY_SLICE", "4096", 1);
	if (ferry_mpi_peer.open(&mpi_rank, &mpi_size) || ferryCommInitEnv(&comm, NULL) ||
	    ferryCommUserRank(comm, &rank) || ferryCommCount(comm, &nranks) ||
	    ferryCommDomain(comm, &domain, &ndomains)) {
		fprintf(stderr, "mpi_collectives: start it as `ferryrun -n 4 -- mpi_collectives`: %s\n",
		        ferryGetLastError(NULL));
		return 1;
	}
	if (rank != mpi_rank || nranks != mpi_size) {
		fprintf(stderr, "rank %d of %d in Ferry is rank %d of %d in MPI\n", rank, nranks, mpi_rank, mpi_size);
		return 1;
	}
	look_for_signed_comparison();
	if (rank &&
	    (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout))) /* cmocka reports once */
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	failed += ferryCommDestroy(comm) != ferrySuccess;
	ferry_mpi_peer.close();
	return failed;
}
