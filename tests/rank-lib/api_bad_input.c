/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bad input through the public API: every case gets a result code and a message with the values that were wrong, and
 * nothing crashes or hangs (the suite's timeout is the judge of hanging). What no caller of the API can reach, such as
 * a corrupt descriptor or a foreign attach message, is in the suites of ipc and router.
 */
#include "tests/hosted.h"
#include "tests/refused.h"

#include <stdbool.h>

#define COUNT 100

static float buffer[8 * COUNT], other[8 * COUNT];

static void open_comms(ferryComm_t *comms, int count, const char *domains)
{
	hosted_routers(atoi(domains));
	if (ferryCommInitAll(comms, count, NULL))
		fail_msg("%d ranks: %s", count, ferryGetLastError(NULL));
}

static void close_comms(ferryComm_t *comms, int count)
{
	for (int rank = 0; rank < count; rank++)
		assert_int_equal(ferryCommDestroy(comms[rank]), ferrySuccess);
}

/* ---- arguments ---- */

static void no_function_takes_a_null_or_foreign_communicator(void **state)
{
	(void)state;
	static uint64_t zeros[1024];
	size_t counts[1] = {0};
	for (int which = 0; which < 3; which++) {
		/* NULL; memory that is no communicator; an address that cannot be one. */
		ferryComm_t comm = which ? (ferryComm_t)(void *)((char *)zeros + (which == 2)) : NULL, made;
		char text[32];
		int value;
		ferryResult_t error;
		ferryRedOp_t op;
		snprintf(text, sizeof text, "%p", (void *)comm);
		REFUSED(ferryInvalidArgument, ferryAllReduce(buffer, other, 1, ferryFloat, ferrySum, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryAllGather(buffer, other, 1, ferryFloat, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryReduceScatter(buffer, other, 1, ferryFloat, ferrySum, comm, NULL),
		        text);
		REFUSED(ferryInvalidArgument, ferryBroadcast(buffer, other, 1, ferryFloat, 0, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryReduce(buffer, other, 1, ferryFloat, ferrySum, 0, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryGather(buffer, other, 1, ferryFloat, 0, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryScatter(buffer, other, 1, ferryFloat, 0, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryAllToAll(buffer, other, 1, ferryFloat, comm, NULL), text);
		REFUSED(ferryInvalidArgument,
		        ferryAllToAllv(buffer, counts, counts, other, counts, counts, ferryFloat, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferrySend(buffer, 1, ferryFloat, 0, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryRecv(buffer, 1, ferryFloat, 0, comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryRunProgram("", buffer, other, 1, ferryFloat, ferrySum, comm, NULL),
		        text);
		REFUSED(ferryInvalidArgument, ferryCommSplit(comm, 0, 0, &made, NULL), text);
		REFUSED(ferryInvalidArgument, ferryCommRegister(comm, buffer, 1, &(void *){NULL}), text);
		REFUSED(ferryInvalidArgument, ferryCommDeregister(comm, NULL), text);
		REFUSED(ferryInvalidArgument, ferryCommFinalize(comm), text);
		REFUSED(ferryInvalidArgument, ferryCommDestroy(comm), text);
		REFUSED(ferryInvalidArgument, ferryCommAbort(comm), text);
		REFUSED(ferryInvalidArgument, ferryCommGetAsyncError(comm, &error), text);
		REFUSED(ferryInvalidArgument, ferryCommCount(comm, &value), text);
		REFUSED(ferryInvalidArgument, ferryCommUserRank(comm, &value), text);
		REFUSED(ferryInvalidArgument, ferryCommDomain(comm, &value, &value), text);
		REFUSED(ferryInvalidArgument,
		        ferryRedOpCreatePreMulSum(&op, buffer, ferryFloat, ferryScalarHostImmediate, comm), text);
		REFUSED(ferryInvalidArgument, ferryRedOpDestroy(ferryNumOps, comm), text);
	}
}

static void bad_types_operations_roots_and_peers_are_refused_by_value(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	open_comms(comms, 2, "1");
	static const int types[] = {-1, 12, 1 << 20}, ops[] = {-1, 5, 70, 0x7fffffff}, ranks[] = {-1, 2, 1 << 30};
	char text[16];
	for (int i = 0; i < 3; i++) {
		snprintf(text, sizeof text, "%d", types[i]);
		REFUSED(ferryInvalidArgument,
		        ferryAllReduce(buffer, other, 1, (ferryDataType_t)types[i], ferrySum, comms[0], NULL), "type",
		        text);
		REFUSED(ferryInvalidArgument, ferrySend(buffer, 1, (ferryDataType_t)types[i], 1, comms[0], NULL),
		        "type", text);
		snprintf(text, sizeof text, "%d", ranks[i]);
		REFUSED(ferryInvalidArgument, ferryBroadcast(buffer, other, 1, ferryFloat, ranks[i], comms[0], NULL),
		        "root", text);
		REFUSED(ferryInvalidArgument,
		        ferryReduce(buffer, other, 1, ferryFloat, ferrySum, ranks[i], comms[0], NULL), "root", text);
		REFUSED(ferryInvalidArgument, ferryGather(buffer, other, 1, ferryFloat, ranks[i], comms[0], NULL),
		        "root", text);
		REFUSED(ferryInvalidArgument, ferryScatter(buffer, other, 1, ferryFloat, ranks[i], comms[0], NULL),
		        "root", text);
		REFUSED(ferryInvalidArgument, ferrySend(buffer, 1, ferryFloat, ranks[i], comms[0], NULL), "peer", text);
		REFUSED(ferryInvalidArgument, ferryRecv(buffer, 1, ferryFloat, ranks[i], comms[0], NULL), "peer", text);
	}
	for (int i = 0; i < 4; i++) {
		snprintf(text, sizeof text, "%d", ops[i]);
		REFUSED(ferryInvalidArgument,
		        ferryAllReduce(buffer, other, 1, ferryFloat, (ferryRedOp_t)ops[i], comms[0], NULL), text);
		REFUSED(ferryInvalidArgument,
		        ferryReduceScatter(buffer, other, 1, ferryFloat, (ferryRedOp_t)ops[i], comms[0], NULL), text);
	}
	close_comms(comms, 2);
}

static void buffers_that_are_missing_or_too_long_are_refused_with_their_sizes(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	open_comms(comms, 2, "1");
	REFUSED(ferryInvalidArgument, ferryAllReduce(NULL, other, 3, ferryFloat, ferrySum, comms[0], NULL), "sendbuff",
	        "12");
	REFUSED(ferryInvalidArgument, ferryAllReduce(buffer, NULL, 3, ferryFloat, ferrySum, comms[0], NULL), "recvbuff",
	        "12");
	REFUSED(ferryInvalidArgument, ferryAllGather(buffer, NULL, 3, ferryFloat, comms[0], NULL), "recvbuff", "24");
	REFUSED(ferryInvalidArgument, ferryRecv(NULL, 3, ferryFloat, 1, comms[0], NULL), "recvbuff", "12");
	REFUSED(ferryInvalidArgument, ferryAllReduce(buffer, other, (size_t)-1, ferryFloat, ferrySum, comms[0], NULL),
	        "18446744073709551615");
	REFUSED(ferryInvalidArgument, ferryAllGather(buffer, other, (size_t)1 << 62, ferryDouble, comms[0], NULL),
	        "4611686018427387904");
	close_comms(comms, 2);
}

static void buffers_that_overlap_and_are_not_in_place_are_refused(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	size_t counts[] = {10, 10}, displs[] = {0, 10};
	open_comms(comms, 2, "1");
	ferryComm_t comm = comms[1];
	REFUSED(ferryInvalidArgument, ferryAllReduce(buffer, buffer + 1, 10, ferryFloat, ferrySum, comm, NULL),
	        "overlap", "40");
	REFUSED(ferryInvalidArgument, ferryAllReduce(buffer + 9, buffer, 10, ferryFloat, ferrySum, comm, NULL),
	        "overlap");
	REFUSED(ferryInvalidArgument, ferryAllGather(buffer, buffer, 10, ferryFloat, comm, NULL), "overlap");
	REFUSED(ferryInvalidArgument, ferryAllGather(buffer + 11, buffer, 10, ferryFloat, comm, NULL), "overlap");
	REFUSED(ferryInvalidArgument, ferryReduceScatter(buffer, buffer, 10, ferryFloat, ferrySum, comm, NULL),
	        "overlap");
	REFUSED(ferryInvalidArgument, ferryReduce(buffer, buffer + 1, 10, ferryFloat, ferrySum, 1, comm, NULL),
	        "overlap");
	REFUSED(ferryInvalidArgument, ferryBroadcast(buffer, buffer + 1, 10, ferryFloat, 1, comm, NULL), "overlap");
	REFUSED(ferryInvalidArgument, ferryGather(buffer, buffer, 10, ferryFloat, 1, comm, NULL), "overlap");
	REFUSED(ferryInvalidArgument, ferryScatter(buffer, buffer, 10, ferryFloat, 1, comm, NULL), "overlap");
	REFUSED(ferryInvalidArgument, ferryAllToAll(buffer, buffer + 1, 10, ferryFloat, comm, NULL), "overlap");
	REFUSED(ferryInvalidArgument,
	        ferryAllToAllv(buffer, counts, displs, buffer, counts, displs, ferryFloat, comm, NULL), "alltoallv");
	close_comms(comms, 2);
}

static void uneven_all_to_all_refuses_missing_arrays_and_impossible_counts(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	size_t fine[] = {1, 1}, displs[] = {0, 1}, huge[] = {1, (size_t)1 << 60}, more[] = {2, 1};
	open_comms(comms, 2, "1");
	REFUSED(ferryInvalidArgument,
	        ferryAllToAllv(buffer, NULL, displs, other, fine, displs, ferryFloat, comms[0], NULL), "sendcounts",
	        "(nil)");
	REFUSED(ferryInvalidArgument,
	        ferryAllToAllv(buffer, fine, displs, other, fine, NULL, ferryFloat, comms[0], NULL), "rdispls");
	REFUSED(ferryInvalidArgument,
	        ferryAllToAllv(buffer, huge, displs, other, fine, displs, ferryFloat, comms[0], NULL), "peer 1");
	REFUSED(ferryInvalidUsage,
	        ferryAllToAllv(buffer, more, displs, other, fine, displs, ferryFloat, comms[0], NULL), "rank 0", "2",
	        "1");
	close_comms(comms, 2);
}

static void created_reductions_are_bound_to_their_type_and_communicator(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	ferryRedOp_t op, all[65];
	float factor = 2;
	int made = 0;
	ferryResult_t result = ferrySuccess;
	open_comms(comms, 2, "1");
	REFUSED(ferryInvalidArgument,
	        ferryRedOpCreatePreMulSum(NULL, &factor, ferryFloat, ferryScalarHostImmediate, comms[0]), "(nil)");
	REFUSED(ferryInvalidArgument,
	        ferryRedOpCreatePreMulSum(&op, NULL, ferryFloat, ferryScalarHostImmediate, comms[0]), "(nil)");
	REFUSED(ferryInvalidArgument,
	        ferryRedOpCreatePreMulSum(&op, &factor, (ferryDataType_t)77, ferryScalarHostImmediate, comms[0]), "77");
	REFUSED(ferryInvalidArgument,
	        ferryRedOpCreatePreMulSum(&op, &factor, ferryFloat, (ferryScalarResidence_t)9, comms[0]), "9");
	assert_int_equal(ferryRedOpCreatePreMulSum(&op, &factor, ferryFloat, ferryScalarHostImmediate, comms[0]),
	                 ferrySuccess);
	REFUSED(ferryInvalidUsage, ferryAllReduce(buffer, other, 1, ferryDouble, op, comms[0], NULL), "f64", "f32");
	REFUSED(ferryInvalidArgument, ferryAllReduce(buffer, other, 1, ferryFloat, op, comms[1], NULL), "created");
	REFUSED(ferryInvalidArgument, ferryRedOpDestroy(op, comms[1]), "created");
	REFUSED(ferryInvalidArgument, ferryRedOpDestroy(ferrySum, comms[0]), "0");
	assert_int_equal(ferryRedOpDestroy(op, comms[0]), ferrySuccess);
	REFUSED(ferryInvalidArgument, ferryRedOpDestroy(op, comms[0]), "created");
	REFUSED(ferryInvalidArgument, ferryAllReduce(buffer, other, 1, ferryFloat, op, comms[0], NULL), "created");
	while (made < 65 && !(result = ferryRedOpCreatePreMulSum(&all[made], &factor, ferryFloat,
	                                                         ferryScalarHostImmediate, comms[0])))
		made++;
	expect("the 65th reduction", result, ferryInvalidUsage, ferryGetLastError(NULL), "64", NULL);
	close_comms(comms, 2);
}

static void streams_and_events_that_are_none_are_refused(void **state)
{
	(void)state;
	static uint64_t zeros[256];
	ferryStream_t foreign = (ferryStream_t)(void *)zeros, stream;
	ferryEvent_t event, never, alien = (ferryEvent_t)(void *)zeros;
	ferryComm_t comms[1];
	double microseconds;
	char text[32];
	snprintf(text, sizeof text, "%p", (void *)zeros);
	open_comms(comms, 1, "1");
	REFUSED(ferryInvalidArgument, ferryStreamCreate(NULL, 0), "(nil)");
	REFUSED(ferryInvalidArgument, ferryStreamCreate(&stream, -1), "-1");
	REFUSED(ferryInvalidArgument, ferryStreamCreate(&stream, 99999), "99999");
	REFUSED(ferryInvalidArgument, ferryAllReduce(buffer, other, 1, ferryFloat, ferrySum, comms[0], foreign), text);
	REFUSED(ferryInvalidArgument, ferryStreamSynchronize(foreign), text);
	REFUSED(ferryInvalidArgument, ferryStreamQuery(foreign), text);
	REFUSED(ferryInvalidArgument, ferryStreamDestroy(foreign), text);
	REFUSED(ferryInvalidArgument, ferryEventCreate(NULL), "NULL");
	REFUSED(ferryInvalidArgument, ferryEventDestroy(alien), text);
	REFUSED(ferryInvalidArgument, ferryEventSynchronize(NULL), "NULL");
	REFUSED(ferryInvalidArgument, ferryEventRecord(alien, NULL), text);
	assert_int_equal(ferryStreamCreate(&stream, 0), ferrySuccess);
	assert_int_equal(ferryEventCreate(&event), ferrySuccess);
	assert_int_equal(ferryEventCreate(&never), ferrySuccess);
	REFUSED(ferryInvalidArgument, ferryStreamWaitEvent(stream, alien), text);
	REFUSED(ferryInvalidArgument, ferryMemcpyAsync(NULL, buffer, 8, stream), "8");
	REFUSED(ferryInvalidArgument, ferryLaunchHostFunc(stream, NULL, NULL), "function is NULL");
	REFUSED(ferryInvalidArgument, ferryLaunchHostFunc(NULL, free, NULL), "is NULL");
	REFUSED(ferryInvalidArgument, ferryMemcpyAsync(buffer, buffer, 8, NULL), "is NULL");
	REFUSED(ferryInvalidArgument, ferryStreamWaitEvent(NULL, event), "is NULL");
	REFUSED(ferryInvalidArgument, ferryEventRecord(event, NULL), "is NULL");
	REFUSED(ferryInvalidArgument, ferryStreamQuery(NULL), "is NULL");
	assert_int_equal(ferryEventRecord(event, stream), ferrySuccess);
	assert_int_equal(ferryEventSynchronize(event), ferrySuccess);
	REFUSED(ferryInvalidUsage, ferryEventElapsedTime(&microseconds, event, never), "never recorded");
	REFUSED(ferryInvalidArgument, ferryEventElapsedTime(NULL, event, event), "NULL");
	assert_int_equal(ferryEventDestroy(event), ferrySuccess);
	assert_int_equal(ferryEventDestroy(never), ferrySuccess);
	assert_int_equal(ferryStreamDestroy(stream), ferrySuccess);
	close_comms(comms, 1);
}

static void a_group_reports_its_first_bad_call_and_starts_none(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	open_comms(comms, 2, "1");
	REFUSED(ferryInvalidUsage, ferryGroupEnd(), "ferryGroupStart");
	buffer[0] = 1;
	other[0] = 5;
	assert_int_equal(ferryGroupStart(), ferrySuccess);
	assert_int_equal(ferryAllReduce(buffer, other, 1, ferryFloat, ferrySum, comms[0], NULL), ferrySuccess);
	REFUSED(ferryInvalidArgument, ferrySend(buffer, 1, ferryFloat, 17, comms[0], NULL), "peer", "17");
	REFUSED(ferryInvalidArgument, ferrySend(buffer, 1, ferryFloat, 18, comms[0], NULL), "peer", "18");
	REFUSED(ferryInvalidArgument, ferryGroupEnd(), "peer", "17");
	assert_int_equal(ferryStreamSynchronize(NULL), ferrySuccess);
	assert_true(other[0] == 5);
	/* The communicators are as good as before. */
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(ferryAllReduce(buffer, other + rank, 1, ferryFloat, ferrySum, comms[rank], NULL),
		                 ferrySuccess);
	assert_int_equal(ferryStreamSynchronize(NULL), ferrySuccess);
	assert_true(other[0] == 2 && other[1] == 2);
	close_comms(comms, 2);
}

/* ---- ranks that disagree ---- */

enum { COLLECTIVE, TYPE, COUNTS, OPERATION, ROOT, MESSAGE_LENGTH, MESSAGE_TYPE, UNEVEN, DISAGREEMENTS };

static ferryResult_t differ(int how, int rank, ferryComm_t comm)
{
	size_t counts[3] = {1, 1, 1}, displs[3] = {0, 1, 2}, wrong[3] = {1, 1, 1};
	float *send = buffer + rank * COUNT, *receive = other + rank * COUNT;
	bool odd = rank == 2;
	switch (how) {
	case COLLECTIVE:
		return odd ? ferryBroadcast(send, receive, 4, ferryFloat, 0, comm, NULL)
		           : ferryAllReduce(send, receive, 4, ferryFloat, ferrySum, comm, NULL);
	case TYPE:
		return ferryAllReduce(send, receive, 4, odd ? ferryInt : ferryFloat, ferrySum, comm, NULL);
	case COUNTS:
		return ferryAllReduce(send, receive, odd ? 5 : 4, ferryFloat, ferrySum, comm, NULL);
	case OPERATION:
		return ferryAllReduce(send, receive, 4, ferryFloat, odd ? ferryMax : ferrySum, comm, NULL);
	case ROOT:
		return ferryBroadcast(send, receive, 4, ferryFloat, odd ? 1 : 0, comm, NULL);
	case MESSAGE_LENGTH:
		return odd    ? ferryRecv(receive, 7, ferryFloat, 1, comm, NULL)
		       : rank ? ferrySend(send, 6, ferryFloat, 2, comm, NULL)
		              : ferrySuccess;
	case MESSAGE_TYPE:
		return odd    ? ferryRecv(receive, 6, ferryInt, 1, comm, NULL)
		       : rank ? ferrySend(send, 6, ferryFloat, 2, comm, NULL)
		              : ferrySuccess;
	default:
		wrong[1] = odd ? 3 : 1; /* rank 2 expects three elements of rank 1, which sends one */
		return ferryAllToAllv(send, counts, displs, receive, wrong, displs, ferryFloat, comm, NULL);
	}
}

static void ranks_that_disagree_all_learn_who_and_how(void **state)
{
	(void)state;
	static const char *const said[DISAGREEMENTS][3] = {
	        {"rank 2", "broadcast", "allreduce"},
	        {"rank 2", "i32", "f32"},
	        {"rank 2", "of 5", "of 4"},
	        {"rank 2", "max", "sum"},
	        {"rank 2", "root 1", "root 0"},
	        {"rank 2", "24 bytes", "28 bytes"},
	        {"rank 2", "f32", "i32"},
	        {"rank 2", "4 bytes", "12"},
	};
	for (int how = 0; how < DISAGREEMENTS; how++)
		for (int domains = 1; domains <= 2; domains++) {
			ferryComm_t comms[3];
			open_comms(comms, 3, domains == 1 ? "1" : "2");
			for (int rank = 0; rank < 3; rank++) { /* a later rank may learn of it as it calls */
				ferryResult_t result = differ(how, rank, comms[rank]);
				assert_true(result == ferrySuccess || result == ferryInvalidUsage);
			}
			assert_int_not_equal(ferryStreamSynchronize(NULL), ferrySuccess);
			for (int rank = 0; rank < 3; rank++) {
				ferryResult_t error;
				assert_int_equal(ferryCommGetAsyncError(comms[rank], &error), ferrySuccess);
				expect("async error", error, ferryInvalidUsage, ferryGetLastError(comms[rank]),
				       said[how][0], said[how][1], said[how][2], NULL);
				REFUSED(ferryInvalidUsage,
				        ferryAllReduce(buffer, other, 1, ferryFloat, ferrySum, comms[rank], NULL),
				        "failed", said[how][0]);
			}
			for (int rank = 0; rank < 3; rank++)
				assert_int_equal(ferryCommDestroy(comms[rank]), ferryInvalidUsage);
		}
}

static void waiting_ranks_end_when_one_aborts(void **state)
{
	(void)state;
	for (int domains = 1; domains <= 2; domains++) {
		ferryComm_t comms[4];
		ferryResult_t error;
		open_comms(comms, 4, domains == 1 ? "1" : "2");
		for (int rank = 0; rank < 3; rank++)
			assert_int_equal(ferryAllReduce(buffer, other + rank * COUNT, COUNT, ferryFloat, ferrySum,
			                                comms[rank], NULL),
			                 ferrySuccess);
		assert_int_equal(ferryCommAbort(comms[3]), ferrySuccess);
		assert_int_equal(ferryStreamSynchronize(NULL), ferryRemoteError);
		for (int rank = 0; rank < 3; rank++) {
			assert_int_equal(ferryCommGetAsyncError(comms[rank], &error), ferrySuccess);
			expect("async error", error, ferryRemoteError, ferryGetLastError(comms[rank]), "rank 3",
			       "aborted", NULL);
		}
		for (int rank = 0; rank < 3; rank++)
			assert_int_equal(ferryCommAbort(comms[rank]), ferrySuccess);
	}
}

static void a_finalized_communicator_takes_no_calls(void **state)
{
	(void)state;
	ferryComm_t comms[1];
	open_comms(comms, 1, "1");
	assert_int_equal(ferryCommFinalize(comms[0]), ferrySuccess);
	REFUSED(ferryInvalidUsage, ferryAllReduce(buffer, other, 1, ferryFloat, ferrySum, comms[0], NULL), "finalized");
	close_comms(comms, 1);
}

/* ---- programs ---- */

static void a_program_that_fails_the_check_is_refused_with_line_and_reason(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	open_comms(comms, 2, "1");
	static const struct {
		const char *text, *words[3];
	} cases[] = {
	        {"", {"program", "", ""}},
	        {"program allreduce ranks 2 domains 1 chunks 1\nrank 0\n  D2H gpu[0] => host[0]\n",
	         {":3:", "expected", "->"}},
	        {"program allreduce ranks 2 domains 1 chunks 1\nrank 0\n  COPY gpu[0] -> host[0]\n",
	         {":3:", "expected", "COPY"}},
	        {"program allreduce ranks 1 domains 1 chunks 1\nrank 0\n  D2H gpu[0] -> host[0]\n  H2D host[0] -> "
	         "gpu[0]\n",
	         {"1 rank in", "has 2", ""}},
	        {"program allreduce ranks 2 domains 1 chunks 1\nrank 0\n  D2H gpu[5] -> host[0]\n",
	         {":3", "gpu[5]", "1"}},
	        {"program allreduce ranks 2 domains 1 chunks 1\nrank 0\n  D2H gpu[0] -> host[0]\n  H2D host[0] -> "
	         "gpu[0]\n"
	         "rank 1\n  D2H gpu[0] -> host[1]\n  H2D host[1] -> gpu[0]\n",
	         {"rank 0", "contribution", "rank 1"}},
	        {"program allreduce ranks 2 domains 1 chunks 1\nrank 0\n  H2D host[0] -> gpu[0] deps: host[0]>=9\n",
	         {":3", "host[0]", "9"}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		ferryResult_t result =
		        ferryRunProgram(cases[i].text, buffer, other, 4, ferryFloat, ferrySum, comms[0], NULL);
		expect(cases[i].text, result, ferryProgramError, ferryGetLastError(NULL), cases[i].words[0],
		       cases[i].words[1], cases[i].words[2], NULL);
	}
	REFUSED(ferryInvalidArgument, ferryRunProgram(NULL, buffer, other, 4, ferryFloat, ferrySum, comms[0], NULL),
	        "NULL");
	for (int text = 0; text < 2; text++) { /* in a group the refusal is the group's */
		const char *program = text ? cases[1].text : NULL;
		assert_int_equal(ferryGroupStart(), ferrySuccess);
		ferryResult_t refused =
		        ferryRunProgram(program, buffer, other, 4, ferryFloat, ferrySum, comms[0], NULL);
		assert_int_not_equal(refused, ferrySuccess);
		assert_int_equal(ferryGroupEnd(), refused);
	}
	close_comms(comms, 2);
}

static void a_split_without_a_place_to_put_it_is_refused(void **state)
{
	(void)state;
	ferryComm_t comms[1], made;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	open_comms(comms, 1, "1");
	config.size = 1;
	REFUSED(ferryInvalidArgument, ferryCommSplit(comms[0], 0, 0, NULL, NULL), "(nil)");
	REFUSED(ferryInvalidArgument, ferryCommSplit(comms[0], -7, 0, &made, NULL), "-7");
	REFUSED(ferryInvalidArgument, ferryCommSplit(comms[0], 0, 0, &made, &config), "ferryCommSplit");
	close_comms(comms, 1);
}

/* Host devices have nothing to tell a router of. */
static void registrations_are_checked_and_end_once(void **state)
{
	(void)state;
	ferryComm_t comms[2];
	void *first, *second;
	open_comms(comms, 2, "1");
	REFUSED(ferryInvalidArgument, ferryCommRegister(comms[0], NULL, 8, &first), "8 bytes");
	REFUSED(ferryInvalidArgument, ferryCommRegister(comms[0], buffer, 0, &first), "0 bytes");
	REFUSED(ferryInvalidArgument, ferryCommRegister(comms[0], buffer, 8, NULL), "handle");
	assert_int_equal(ferryCommRegister(comms[0], buffer, sizeof buffer, &first), ferrySuccess);
	assert_int_equal(ferryCommRegister(comms[0], buffer, sizeof buffer, &second), ferrySuccess);
	REFUSED(ferryInvalidArgument, ferryCommDeregister(comms[1], first), "registration");
	assert_int_equal(ferryCommDeregister(comms[0], first), ferrySuccess);
	REFUSED(ferryInvalidArgument, ferryCommDeregister(comms[0], first), "registration");
	REFUSED(ferryInvalidArgument, ferryCommDeregister(comms[0], NULL), "registration");
	close_comms(comms, 2); /* and with it the second */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(no_function_takes_a_null_or_foreign_communicator),
	        cmocka_unit_test(bad_types_operations_roots_and_peers_are_refused_by_value),
	        cmocka_unit_test(buffers_that_are_missing_or_too_long_are_refused_with_their_sizes),
	        cmocka_unit_test(buffers_that_overlap_and_are_not_in_place_are_refused),
	        cmocka_unit_test(uneven_all_to_all_refuses_missing_arrays_and_impossible_counts),
	        cmocka_unit_test(created_reductions_are_bound_to_their_type_and_communicator),
	        cmocka_unit_test(streams_and_events_that_are_none_are_refused),
	        cmocka_unit_test(a_group_reports_its_first_bad_call_and_starts_none),
	        cmocka_unit_test(ranks_that_disagree_all_learn_who_and_how),
	        cmocka_unit_test(waiting_ranks_end_when_one_aborts),
	        cmocka_unit_test(a_finalized_communicator_takes_no_calls),
	        cmocka_unit_test(a_program_that_fails_the_check_is_refused_with_line_and_reason),
	        cmocka_unit_test(registrations_are_checked_and_end_once),
	        cmocka_unit_test(a_split_without_a_place_to_put_it_is_refused),
	};
	setenv("FERRY_LOG", "error", 1); /* routers warn of every job that these tests end */
	hosted_routers(0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
