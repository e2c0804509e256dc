/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device over the double of the driver: every collective in device memory, and which memory will do. */
#include "tests/fake_cuda/device_buffers.h"
#include "tests/fake_cuda/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 30011

static const int devices[] = {0, 1, 2, 3};

/* ---- every collective ---- */

struct on_device {
	struct device_buffers buffers;
	ferryRedOp_t op;
};

static void start_trial(struct ferry_trial *trial, int rank, ferryComm_t comm, unsigned offset, struct on_device *mine)
{
	struct device_buffers *buffers = &mine->buffers;
	device_buffers_open(trial, rank, devices[rank], offset, buffers);
	OK(trial_op(trial, rank, comm, &mine->op));
	OK(ferry_trial_start(trial, rank, buffers->send, buffers->receive, mine->op, comm,
	                     (ferryStream_t)buffers->stream));
}

static size_t finish_trial(struct ferry_trial *trial, int rank, ferryComm_t comm, struct on_device *mine)
{
	size_t wrong = device_buffers_close(trial, rank, devices[rank], &mine->buffers);
	if (mine->op >= ferryNumOps)
		OK(ferryRedOpDestroy(mine->op, comm));
	return wrong;
}

static size_t run_trial(struct ferry_trial *trial, const struct gang *gang, unsigned offset)
{
	struct on_device ranks[MOST_PLACES];
	size_t wrong = 0;
	assert_true(ferry_trial_open(trial));
	for (int rank = 0; rank < gang->nranks; rank++)
		start_trial(trial, rank, gang->comms[rank], offset, &ranks[rank]);
	for (int rank = 0; rank < gang->nranks; rank++)
		wrong += finish_trial(trial, rank, gang->comms[rank], &ranks[rank]);
	ferry_trial_close(trial);
	return wrong;
}

static void every_collective_over(int nranks, int domains)
{
	static const size_t counts[] = {0, 1, 1009, 40007};
	struct gang gang;
	size_t wrong = 0;
	unsigned turn = 0;
	gang_open(&gang, nranks, devices, domains);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++)
		for (int in_place = 0; in_place <= ferry_trial_can_be_in_place((enum ferry_collective)collective);
		     in_place++)
			for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, turn++) {
				struct ferry_trial trial = {.collective = (enum ferry_collective)collective,
				                            .type = turn % 2 ? ferryFloat32 : ferryBfloat16,
				                            .op = turn % 3 ? ferrySum : ferryNumOps,
				                            .nranks = nranks,
				                            .ndomains = (unsigned)domains,
				                            .exact = domains == 1,
				                            .count = counts[i],
				                            .in_place = in_place,
				                            .root = (int)turn % nranks,
				                            .seed = turn};
				if (!ferry_collective_reduces(trial.collective))
					trial.op = ferrySum;
				wrong += run_trial(&trial, &gang, turn % 4);
			}
	gang_close(&gang);
	assert_int_equal(wrong, 0);
}

static void every_collective_is_right_in_device_memory(void **state)
{
	(void)state;
	every_collective_over(3, 1);
	every_collective_over(4, 2);
}

/* ---- two fabrics ---- */

/* MADE UP, and slow: so that messages of a test are large. Both fabrics carry 1 GB/s of each of four GPUs. */
static const char rates[] = "{\"gpus\": [{\"push\": 1}, {\"push\": 1}, {\"push\": 1}, {\"push\": 1}],"
                            "\"windows\": [{\"gpus\": 4, \"both\": {\"d2h\": 4, \"h2d\": 4}}], \"copy\": "
                            "{\"d2h_overhead_us\": 2, \"h2d_overhead_us\": 3, \"d2h\": 50, \"h2d\": 50}}";

/* One trial of each collective that has no sum; what is told of its plans goes to `told`. */
static size_t moves_over(int nranks, FILE *logged)
{
	struct gang gang;
	size_t wrong = 0;
	int kept = dup(STDERR_FILENO);
	assert_true(dup2(fileno(logged), STDERR_FILENO) >= 0);
	setenv("FERRY_DEBUG", "plan", 1);
	gang_open(&gang, nranks, devices, 1);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++) {
		struct ferry_trial trial = {.collective = (enum ferry_collective)collective,
		                            .type = ferryFloat32,
		                            .op = ferrySum,
		                            .nranks = nranks,
		                            .ndomains = 1,
		                            .exact = true,
		                            .count = 300007,
		                            .root = 1,
		                            .seed = 7u + (unsigned)collective};
		if (!ferry_collective_reduces(trial.collective) && collective != FERRY_ALLTOALLV)
			wrong += run_trial(&trial, &gang, 1);
	}
	gang_close(&gang);
	unsetenv("FERRY_DEBUG");
	assert_true(dup2(kept, STDERR_FILENO) >= 0);
	close(kept);
	return wrong;
}

static void messages_are_divided_as_was_measured(void **state)
{
	(void)state;
	char file[] = "/tmp/ferry-rates-XXXXXX", line[1024];
	int descriptor = mkstemp(file), divided = 0;
	FILE *logged = tmpfile();
	assert_non_null(logged);
	assert_int_equal(write(descriptor, rates, sizeof rates - 1), sizeof rates - 1);
	close(descriptor);
	setenv("FERRY_LIMITS", file, 1);
	size_t wrong = moves_over(3, logged);
	unsetenv("FERRY_LIMITS");
	unlink(file);
	rewind(logged);
	while (fgets(line, sizeof line, logged)) {
		double host = 0, peer = 0;
		const char *fabrics = strstr(line, "fabrics host=");
		if (!fabrics)
			continue;
		assert_int_equal(sscanf(fabrics, "fabrics host=%lf,peer=%lf", &host, &peer), 2);
		assert_true(host > 0.4 && host < 0.5 && host + peer > 0.999 && host + peer < 1.001);
		assert_non_null(strstr(line, "links 6 of 6"));
		divided++;
	}
	fclose(logged);
	assert_int_equal(divided, 5); /* allgather, broadcast, gather, scatter, alltoall */
	assert_int_equal(wrong, 0);
}

/* Blocks of 1.2 to 3.6 MB each, of which the host carries a part where that is a piece of 1 MiB at least. */
static void uneven_traffic_takes_the_host_beside(void **state)
{
	(void)state;
	char file[] = "/tmp/ferry-rates-XXXXXX", line[1024];
	int descriptor = mkstemp(file), kept = dup(STDERR_FILENO), divided = 0;
	FILE *logged = tmpfile();
	struct gang gang;
	size_t wrong = 0;
	assert_non_null(logged);
	assert_int_equal(write(descriptor, rates, sizeof rates - 1), sizeof rates - 1);
	close(descriptor);
	setenv("FERRY_LIMITS", file, 1);
	setenv("FERRY_FABRICS", "host,peer", 1);
	setenv("FERRY_DEBUG", "plan", 1);
	assert_true(dup2(fileno(logged), STDERR_FILENO) >= 0);
	gang_open(&gang, 4, devices, 1);
	for (unsigned i = 0; i < 6; i++) {
		struct ferry_trial trial = {.collective = FERRY_ALLTOALLV,
		                            .type = ferryFloat32,
		                            .op = ferrySum,
		                            .nranks = 4,
		                            .ndomains = 1,
		                            .count = i % 2 ? 900007 : 1 + i,
		                            .seed = i + 1};
		wrong += run_trial(&trial, &gang, i % 4);
	}
	gang_close(&gang);
	assert_true(dup2(kept, STDERR_FILENO) >= 0);
	close(kept);
	unsetenv("FERRY_DEBUG");
	unsetenv("FERRY_FABRICS");
	unsetenv("FERRY_LIMITS");
	unlink(file);
	for (rewind(logged); fgets(line, sizeof line, logged);)
		divided += strstr(line, "directly") && strstr(line, "by the host");
	fclose(logged);
	assert_int_equal(wrong, 0);
	assert_true(divided > 0);
}

/*
 * Its slots wait for no reader: the next copy into one may start while the lane is at the last. Under ThreadSanitizer.
 */
static void a_window_that_nobody_reads_is_the_copy_engines_alone(void **state)
{
	static const char text[] = "program allgather  ranks 2  domains 1  chunks 1\n"
	                           "rank 0\n"
	                           "  D2H gpu[0] -> host[0]\n"
	                           "  D2H gpu[0] -> host[2]\n"
	                           "  H2D host[1] -> gpu[1]  deps: host[1]>=1\n"
	                           "rank 1\n"
	                           "  D2H gpu[0] -> host[1]\n"
	                           "  H2D host[0] -> gpu[0]  deps: host[0]>=1\n";
	struct ferry_trial trial = {
	        .collective = FERRY_ALLGATHER, .type = ferryFloat32, .nranks = 2, .ndomains = 1, .count = COUNT};
	char file[] = "/tmp/ferry-unread-XXXXXX";
	struct gang gang;
	(void)state;
	int descriptor = mkstemp(file);
	assert_true(descriptor >= 0 && write(descriptor, text, sizeof text - 1) == sizeof text - 1);
	close(descriptor);
	setenv("FERRY_PROGRAM_PATH", file, 1);
	setenv("FERRY_SLICE", "1024", 1);
	setenv("FERRY_WINDOW", "1", 1);
	gang_open(&gang, 2, devices, 1);
	unsetenv("FERRY_PROGRAM_PATH");
	unsetenv("FERRY_SLICE");
	unsetenv("FERRY_WINDOW");
	unlink(file);
	for (int i = 0; i < 20; i++)
		assert_int_equal(run_trial(&trial, &gang, 0), 0);
	gang_close(&gang);
}

static void sends_and_receives_of_a_group_are_right(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 3, devices, 2);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		place_write(&places[rank]);
		OK(ferryGroupStart());
		OK(ferrySend(pointer_of(places[rank].input), COUNT, ferryUint32, (rank + 1) % 3, gang.comms[rank],
		             (ferryStream_t)places[rank].stream));
		OK(ferryRecv(pointer_of(places[rank].output), COUNT, ferryUint32, (rank + 2) % 3, gang.comms[rank],
		             (ferryStream_t)places[rank].stream));
		OK(ferryGroupEnd());
	}
	places_settle(places, &gang, 0);
	for (int rank = 0; rank < 3; rank++)
		assert_memory_equal(fake_cuda_reach(places[rank].output), fake_cuda_reach(places[(rank + 2) % 3].input),
		                    COUNT * sizeof(uint32_t));
	gang_close(&gang);
	places_close(places, &gang);
}

/* ---- which memory will do ---- */

static void memory_pools_will_do(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr pooled[3];
	gang_open(&gang, 3, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		CU(cuMemAllocAsync(&pooled[rank], COUNT * sizeof(uint32_t) + 64, places[rank].stream));
		places[rank].input = pooled[rank] + 60;
	}
	places_round(places, &gang);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		CU(cuMemFreeAsync(pooled[rank], places[rank].stream));
	}
	places_settle(places, &gang, 1);
	gang_close(&gang);
	places_close(places, &gang);
}

static void memory_that_is_not_this_devices_is_refused_by_name(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		ferryComm_t comm = gang.comms[rank];
		ferryStream_t stream = (ferryStream_t)places[rank].stream;
		void *good = pointer_of(places[rank].input), *foreign = pointer_of(places[1 - rank].input), *pinned;
		uint32_t ordinary = 0;
		CUdeviceptr managed;
		char name[32];
		place_enter(&places[rank]);
		CU(cuMemHostAlloc(&pinned, 4096, 0));
		CU(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
		REFUSED(ferryInvalidArgument, "ordinary host memory",
		        ferryAllReduce(&ordinary, good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "recvbuff",
		        ferryAllReduce(good, &ordinary, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "pinned",
		        ferryAllReduce(pinned, good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "managed memory",
		        ferryAllReduce(pointer_of(managed), good, 1, ferryUint32, ferrySum, comm, stream));
		snprintf(name, sizeof name, "%p", pointer_of(managed));
		REFUSED(ferryInvalidArgument, name,
		        ferryAllReduce(pointer_of(managed), good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "the communicator is on device",
		        ferryAllReduce(foreign, good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "beyond",
		        ferryAllReduce(good, good, 1 << 20, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "stream",
		        ferryAllReduce(good, good, 1, ferryUint32, ferrySum, comm,
		                       (ferryStream_t)places[1 - rank].stream));
		CU(cuMemFreeHost(pinned));
		CU(cuMemFree(managed));
	}
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	gang_close(&gang);
	places_close(places, &gang);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(every_collective_is_right_in_device_memory, no_misuse),
	        cmocka_unit_test_teardown(messages_are_divided_as_was_measured, no_misuse),
	        cmocka_unit_test_teardown(uneven_traffic_takes_the_host_beside, no_misuse),
	        cmocka_unit_test_teardown(a_window_that_nobody_reads_is_the_copy_engines_alone, no_misuse),
	        cmocka_unit_test_teardown(sends_and_receives_of_a_group_are_right, no_misuse),
	        cmocka_unit_test_teardown(memory_pools_will_do, no_misuse),
	        cmocka_unit_test_teardown(memory_that_is_not_this_devices_is_refused_by_name, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
