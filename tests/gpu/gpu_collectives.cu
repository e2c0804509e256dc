/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective, type, operation and a range of sizes on GPUs: against the trial's reference (bench/trial/trial.h),
 * the same bits in a second run, the same bits as host devices compute from the same data, and nothing written around
 * the buffers. `gpu_collectives small` leaves the large sizes out: for compute-sanitizer.
 */
#include "tests/gpu/gang.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a function named like a struct: fine in C */
extern "C" {
#include "bench/trial/trial.h"
}
#pragma GCC diagnostic pop

#define GUARD 512 /* bytes on each side of a buffer */
#define UNTOUCHED 0x5a

/* What one rank has of a trial: the two buffers, each between guards, on the GPU and in host memory. */
struct buffers {
	size_t bytes;                  /* of a buffer without its guards */
	char *device_send, *device_receive, *send, *receive;
	char *first;                   /* the result of the first run */
};

static size_t all_bytes(const struct buffers *buffers)
{
	return buffers->bytes + 2 * GUARD;
}

static int buffers_open(struct buffers *buffers, size_t bytes, int device)
{
	buffers->bytes = bytes;
	CUDA(cudaSetDevice(device));
	CUDA(cudaMalloc((void **)&buffers->device_send, all_bytes(buffers)));
	CUDA(cudaMalloc((void **)&buffers->device_receive, all_bytes(buffers)));
	buffers->send = (char *)malloc(all_bytes(buffers));
	buffers->receive = (char *)malloc(all_bytes(buffers));
	buffers->first = (char *)malloc(all_bytes(buffers));
	REQUIRE(buffers->send && buffers->receive && buffers->first, "no memory for %zu bytes", bytes);
	return 0;
}

static int buffers_close(struct buffers *buffers, int device)
{
	CUDA(cudaSetDevice(device));
	CUDA(cudaFree(buffers->device_send));
	CUDA(cudaFree(buffers->device_receive));
	free(buffers->send);
	free(buffers->receive);
	free(buffers->first);
	return 0;
}

static int fill(struct ferry_trial *trial, struct buffers *buffers, int rank)
{
	char *send = buffers->send + GUARD, *receive = buffers->receive + GUARD;
	memset(buffers->send, UNTOUCHED, all_bytes(buffers));
	memset(buffers->receive, UNTOUCHED, all_bytes(buffers));
	ferry_trial_place(trial, rank, &send, &receive);
	ferry_trial_fill(trial, rank, send);
	return 0;
}

static int guards_hold(const struct buffers *buffers, const char *buffer, const char *which, int rank)
{
	for (size_t i = 0; i < GUARD; i++)
		REQUIRE(buffer[i] == UNTOUCHED && buffer[GUARD + buffers->bytes + i] == UNTOUCHED,
		        "rank %d: written outside of the %s buffer", rank, which);
	return 0;
}

static int make_op(const struct ferry_trial *trial, int rank, ferryComm_t comm, ferryRedOp_t *op)
{
	uint64_t scalar;
	*op = trial->op;
	if (trial->op < ferryNumOps)
		return 0;
	scalar = ferry_trial_scalar(trial, rank);
	FERRY(ferryRedOpCreatePreMulSum(op, &scalar, trial->type, ferryScalarHostImmediate, comm));
	return 0;
}

static int drop_op(const struct ferry_trial *trial, ferryComm_t comm, ferryRedOp_t op)
{
	if (trial->op >= ferryNumOps)
		FERRY(ferryRedOpDestroy(op, comm));
	return 0;
}

/* One run on the GPUs; the results are in buffers->receive afterwards. */
static int run_cuda(struct ferry_trial *trial, struct gang *gang, struct buffers *buffers_of, cudaStream_t *streams)
{
	ferryRedOp_t op[GANG_MOST];
	for (int i = 0; i < gang->nlocal; i++) {
		struct buffers *buffers = &buffers_of[i];
		CUDA(cudaSetDevice(gang->device[i]));
		TRY(fill(trial, buffers, gang->rank[i]));
		CUDA(cudaMemcpy(buffers->device_send, buffers->send, all_bytes(buffers), cudaMemcpyHostToDevice));
		CUDA(cudaMemcpy(buffers->device_receive, buffers->receive, all_bytes(buffers), cudaMemcpyHostToDevice));
		/* the end of a copy from pageable memory may come after cudaMemcpy's return */
		CUDA(cudaDeviceSynchronize());
		TRY(make_op(trial, gang->rank[i], gang->comm[i], &op[i]));
	}
	for (int i = 0; i < gang->nlocal; i++) {
		char *send = buffers_of[i].device_send + GUARD, *receive = buffers_of[i].device_receive + GUARD;
		ferry_trial_place(trial, gang->rank[i], &send, &receive);
		CUDA(cudaSetDevice(gang->device[i]));
		FERRY(ferry_trial_start(trial, gang->rank[i], send, receive, op[i], gang->comm[i],
		                        (ferryStream_t)streams[i]));
		TRY(drop_op(trial, gang->comm[i], op[i]));
	}
	for (int i = 0; i < gang->nlocal; i++) {
		CUDA(cudaSetDevice(gang->device[i]));
		CUDA(cudaStreamSynchronize(streams[i]));
		CUDA(cudaMemcpy(buffers_of[i].receive, buffers_of[i].device_receive, all_bytes(&buffers_of[i]),
		                cudaMemcpyDeviceToHost));
		CUDA(cudaMemcpy(buffers_of[i].send, buffers_of[i].device_send, all_bytes(&buffers_of[i]),
		                cudaMemcpyDeviceToHost));
	}
	return 0;
}

static int run_host(struct ferry_trial *trial, struct gang *gang, struct buffers *buffers_of)
{
	ferryRedOp_t op[GANG_MOST];
	for (int i = 0; i < gang->nlocal; i++) {
		char *send = buffers_of[i].send + GUARD, *receive = buffers_of[i].receive + GUARD;
		TRY(fill(trial, &buffers_of[i], gang->rank[i]));
		ferry_trial_place(trial, gang->rank[i], &send, &receive);
		TRY(make_op(trial, gang->rank[i], gang->comm[i], &op[i]));
		FERRY(ferry_trial_start(trial, gang->rank[i], send, receive, op[i], gang->comm[i], NULL));
		TRY(drop_op(trial, gang->comm[i], op[i]));
	}
	FERRY(ferryStreamSynchronize(NULL));
	return 0;
}

struct bench {
	struct gang cuda, host;
	struct buffers buffers_of[GANG_MOST];
	cudaStream_t streams[GANG_MOST];
	int trials, ndomains;
};

static int same_bits(const struct buffers *buffers, int rank, const char *text, const char *what)
{
	size_t first = 0, differ = 0;
	for (size_t i = all_bytes(buffers); i-- > 0;)
		if (buffers->first[i] != buffers->receive[i]) {
			first = i;
			differ++;
		}
	REQUIRE(!differ, "%s: %s: rank %d: %zu bytes differ, the first at %zd of %zu: %02x before, %02x now", text,
	        what, rank, differ, (ssize_t)first - GUARD, buffers->bytes, (unsigned char)buffers->first[first],
	        (unsigned char)buffers->receive[first]);
	return 0;
}

static int judge(struct bench *bench, struct ferry_trial *trial, const char *text)
{
	struct gang *gang = &bench->cuda;
	TRY(run_cuda(trial, gang, bench->buffers_of, bench->streams));
	for (int i = 0; i < gang->nlocal; i++) {
		struct buffers *buffers = &bench->buffers_of[i];
		char *send = buffers->send + GUARD, *receive = buffers->receive + GUARD;
		ferry_trial_place(trial, gang->rank[i], &send, &receive);
		size_t wrong = receive ? ferry_trial_wrong(trial, gang->rank[i], receive, UNTOUCHED) : 0;
		REQUIRE(!wrong, "%s: rank %d: %zu elements wrong", text, gang->rank[i], wrong);
		TRY(guards_hold(buffers, buffers->receive, "receive", gang->rank[i]));
		TRY(guards_hold(buffers, buffers->send, "send", gang->rank[i]));
		memcpy(buffers->first, buffers->receive, all_bytes(buffers));
	}
	TRY(run_cuda(trial, gang, bench->buffers_of, bench->streams));
	for (int i = 0; i < gang->nlocal; i++)
		TRY(same_bits(&bench->buffers_of[i], gang->rank[i], text, "a second run has other bits"));
	if (bench->ndomains > 1 || trial->partly)
		return 0; /* host devices may be of other domains than the GPUs: another order of rounding */
	TRY(run_host(trial, &bench->host, bench->buffers_of));
	for (int i = 0; i < gang->nlocal; i++)
		TRY(same_bits(&bench->buffers_of[i], gang->rank[i], text, "host devices give other bits"));
	return 0;
}

static int try_one(struct bench *bench, enum ferry_collective collective, ferryDataType_t type, ferryRedOp_t op,
                   size_t count, bool in_place)
{
	struct gang *gang = &bench->cuda;
	struct ferry_trial trial = {};
	char text[160];
	int root = bench->trials % gang->nranks;
	trial.collective = collective;
	trial.type = type;
	trial.op = op;
	trial.count = count;
	trial.root = root;
	trial.nranks = gang->nranks;
	trial.ndomains = (unsigned)bench->ndomains;
	trial.partly = getenv("FERRY_PEERS"); /* sums may go up trees: other bits, but the same each time */
	trial.exact = bench->ndomains == 1 && !trial.partly;
	trial.in_place = in_place;
	trial.seed = 17 + (uint64_t)bench->trials++;
	snprintf(text, sizeof text, "%s of %zu %s, %s%s, root %d, %d ranks", ferry_collective_name(collective), count,
	         ferry_type_name(type), ferry_redop_name(op), in_place ? ", in place" : "", root, gang->nranks);
	check_call = "a trial";
	REQUIRE(ferry_trial_open(&trial), "%s: no memory for references", text);
	for (int i = 0; i < gang->nlocal; i++)
		TRY(buffers_open(&bench->buffers_of[i],
		                 ferry_trial_room(&trial, gang->rank[i]) * ferry_type_size(type) + 64,
		                 gang->device[i]));
	int result = judge(bench, &trial, text);
	for (int i = 0; !result && i < gang->nlocal; i++)
		TRY(buffers_close(&bench->buffers_of[i], gang->device[i]));
	ferry_trial_close(&trial);
	return result;
}

static int bench_open(struct bench *bench)
{
	memset(bench, 0, sizeof *bench);
	TRY(gang_open(&bench->cuda, "cuda"));
	TRY(gang_open(&bench->host, "host"));
	int domain;
	FERRY(ferryCommDomain(bench->cuda.comm[0], &domain, &bench->ndomains));
	for (int i = 0; i < bench->cuda.nlocal; i++) {
		CUDA(cudaSetDevice(bench->cuda.device[i]));
		CUDA(cudaStreamCreateWithFlags(&bench->streams[i], cudaStreamNonBlocking));
	}
	return 0;
}

static int bench_close(struct bench *bench)
{
	if (check_is_first())
		printf("# %d trials, %s runs each, %d ranks on %d GPUs, %d domains\n", bench->trials,
		       bench->ndomains > 1 ? "two" : "three", bench->cuda.nranks, gang_devices(), bench->ndomains);
	TRY(gang_close(&bench->cuda));
	TRY(gang_close(&bench->host));
	for (int i = 0; i < bench->cuda.nlocal; i++) {
		CUDA(cudaSetDevice(bench->cuda.device[i]));
		CUDA(cudaStreamDestroy(bench->streams[i]));
	}
	return 0;
}

static int small_every_collective_type_and_operation_is_right_and_has_the_bits_of_host_devices(void)
{
	struct bench bench;
	TRY(bench_open(&bench));
	for (int c = 0; c < FERRY_NUM_COLLECTIVES; c++) {
		enum ferry_collective collective = (enum ferry_collective)c;
		bool reduces = ferry_collective_reduces(collective), both = ferry_trial_can_be_in_place(collective);
		for (int type = 0; type < ferryNumTypes; type++)
			for (int op = 0; op <= (reduces ? (int)ferryNumOps : 0); op++)
				TRY(try_one(&bench, collective, (ferryDataType_t)type, (ferryRedOp_t)op,
				            1000 + (size_t)type, both && (type + op) % 2));
	}
	return bench_close(&bench);
}

static int small_every_collective_is_right_from_one_element_on(void)
{
	static const size_t counts[] = {1, 7, 65537};
	struct bench bench;
	TRY(bench_open(&bench));
	for (int c = 0; c < FERRY_NUM_COLLECTIVES; c++)
		for (int i = 0; i < 3; i++)
			for (int in_place = 0; in_place <= ferry_trial_can_be_in_place((enum ferry_collective)c);
			     in_place++)
				TRY(try_one(&bench, (enum ferry_collective)c, ferryFloat32, ferrySum, counts[i],
				            in_place));
	return bench_close(&bench);
}

static int large_messages_are_right_too(void)
{
	static const ferryDataType_t types[] = {ferryFloat32, ferryBfloat16, ferryFloat16};
	struct bench bench;
	TRY(bench_open(&bench));
	for (int c = 0; c < FERRY_NUM_COLLECTIVES; c++)
		for (int i = 0; i < 3; i++)
			TRY(try_one(&bench, (enum ferry_collective)c, types[i], ferrySum, (1 << 20) + 3,
			            ferry_trial_can_be_in_place((enum ferry_collective)c) && i % 2));
	TRY(try_one(&bench, FERRY_ALLREDUCE, ferryFloat32, ferrySum, 16 << 20, false));
	TRY(try_one(&bench, FERRY_ALLGATHER, ferryFloat32, ferrySum, 4 << 20, false));
	return bench_close(&bench);
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
	        TEST(small_every_collective_is_right_from_one_element_on),
	        TEST(small_every_collective_type_and_operation_is_right_and_has_the_bits_of_host_devices),
	        TEST(large_messages_are_right_too),
	};
	return check_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
