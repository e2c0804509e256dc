/* SPDX-License-Identifier: Apache-2.0 */
/* What buffers may be, and what becomes of the memory around them. */
#include "tests/gpu/data.cuh"
#include "tests/gpu/vmm.cuh"

#include <cuda.h>

#define COUNT 70001

/* The call on buffers that the test has made, in the place's stream; `places` keep their own memory. */
static int round_on(struct place *places, const struct gang *gang, uint32_t **inputs, uint32_t **outputs,
                    uint32_t round)
{
	struct place borrowed[GANG_MOST];
	for (int i = 0; i < gang->nlocal; i++) {
		borrowed[i] = places[i];
		borrowed[i].input = inputs[i];
		borrowed[i].output = outputs[i];
	}
	TRY(places_round(borrowed, gang, round, 0));
	return places_settle(borrowed, gang, "buffers of another kind");
}

static int pointers_into_the_middle_of_an_allocation_will_do_and_nothing_around_is_touched(void)
{
	enum { GUARD = 1021 };
	struct gang gang;
	struct place places[GANG_MOST];
	uint32_t *blocks[GANG_MOST], *inputs[GANG_MOST], *outputs[GANG_MOST];
	size_t whole = 2 * COUNT + 3 * GUARD;
	uint32_t *copy = (uint32_t *)malloc(whole * sizeof *copy);
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMalloc((void **)&blocks[i], whole * sizeof *copy));
		CUDA(cudaMemset(blocks[i], 0xa5, whole * sizeof *copy));
		CUDA(cudaDeviceSynchronize());
		inputs[i] = blocks[i] + GUARD;
		outputs[i] = inputs[i] + COUNT + GUARD;
	}
	TRY(round_on(places, &gang, inputs, outputs, 3));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMemcpy(copy, blocks[i], whole * sizeof *copy, cudaMemcpyDeviceToHost));
		for (size_t at = 0; at < whole; at++) {
			bool inside = (at >= GUARD && at < GUARD + COUNT) ||
			              (at >= 2 * GUARD + COUNT && at < 2 * GUARD + 2 * COUNT);
			REQUIRE(inside || copy[at] == 0xa5a5a5a5u, "rank %d: word %zu is %08x", places[i].rank, at,
			        copy[at]);
		}
		CUDA(cudaFree(blocks[i]));
	}
	free(copy);
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* Bytes at every offset within a word, and odd numbers of them. */
static int bytes_may_lie_and_end_anywhere(void)
{
	enum { ROOM = 20000, GUARD = 1000, BYTES = 12345 };
	static uint8_t copy[2 * ROOM];
	struct gang gang;
	struct place places[GANG_MOST];
	uint8_t *blocks[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMalloc((void **)&blocks[i], 2 * ROOM));
	}
	for (size_t offset = 1; offset < 16; offset += 2) {
		size_t at = GUARD + offset, to = ROOM + GUARD + 2 * offset + 1, count = BYTES - offset;
		for (int i = 0; i < gang.nlocal; i++) {
			CUDA(cudaSetDevice(places[i].device));
			CUDA(cudaMemsetAsync(blocks[i], 0xa5, 2 * ROOM, places[i].stream));
			CUDA(cudaMemsetAsync(blocks[i] + at, places[i].rank + 1, count, places[i].stream));
			FERRY(ferryAllReduce(blocks[i] + at, blocks[i] + to, count, ferryUint8, ferrySum, gang.comm[i],
			                     (ferryStream_t)places[i].stream));
		}
		for (int i = 0; i < gang.nlocal; i++) {
			CUDA(cudaSetDevice(places[i].device));
			CUDA(cudaStreamSynchronize(places[i].stream));
			CUDA(cudaMemcpy(copy, blocks[i], sizeof copy, cudaMemcpyDeviceToHost));
			for (size_t b = 0; b < sizeof copy; b++) {
				int expected = b >= at && b < at + count   ? places[i].rank + 1
				               : b >= to && b < to + count ? gang.nranks * (gang.nranks + 1) / 2
				                                           : 0xa5;
				REQUIRE(copy[b] == expected, "rank %d, offset %zu: byte %zu is %02x instead of %02x",
				        places[i].rank, offset, b, copy[b], (unsigned)expected);
			}
		}
	}
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaFree(blocks[i]));
	}
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int memory_pools_will_do(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	uint32_t *inputs[GANG_MOST], *outputs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMallocAsync((void **)&inputs[i], COUNT * 4 + 4096, places[i].stream));
		CUDA(cudaMallocAsync((void **)&outputs[i], COUNT * 4 + 4096, places[i].stream));
		inputs[i] += 5;
	}
	TRY(round_on(places, &gang, inputs, outputs, 4));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaFreeAsync(inputs[i] - 5, places[i].stream));
		CUDA(cudaFreeAsync(outputs[i], places[i].stream));
	}
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int mapped_memory_will_do_across_two_mappings(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	uint32_t *inputs[GANG_MOST], *outputs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		char *range;
		size_t half;
		CUDA(cudaSetDevice(places[i].device));
		TRY(vmm_take(places[i].device, 2, false, &range, &half));
		inputs[i] = (uint32_t *)(range + half - COUNT * 2 / 4 * 4); /* half of it on each side of the seam */
		TRY(vmm_take(places[i].device, 2, false, &range, &half));
		outputs[i] = (uint32_t *)(range + 64);
	}
	TRY(round_on(places, &gang, inputs, outputs, 5));
	TRY(gang_close(&gang));
	return places_close(places, &gang); /* the mappings end with the process */
}

static int a_range_that_is_mapped_only_in_part_is_refused(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	void *unmap;
	TRY(vmm_driver("cuMemUnmap", &unmap));
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		char *range;
		size_t half;
		CUDA(cudaSetDevice(places[i].device));
		TRY(vmm_take(places[i].device, 2, false, &range, &half));
		REQUIRE(!((vmm_range_function)unmap)((CUdeviceptr)range + half, half), "unmapping the second half");
		REFUSED(ferryInvalidArgument, "beyond",
		        ferryAllReduce(range, range, half / 4 + 1, ferryUint32, ferrySum, gang.comm[i],
		                       (ferryStream_t)places[i].stream));
	}
	TRY(places_round(places, &gang, 7, 0));
	TRY(places_settle(places, &gang, "after the refusal"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

typedef CUresult (*current_function)(CUcontext *);

struct stranger {
	struct place *place;
	ferryComm_t comm;
	current_function current; /* looked up by another thread: CUDA's runtime stays out of this one */
	int result;
	pthread_t thread;
};

static int call_without_context(struct stranger *stranger)
{
	CUcontext context = NULL;
	REQUIRE(!stranger->current(&context) && !context, "a new thread has context %p", (void *)context);
	const struct place *place = stranger->place;
	ferryResult_t result = ferryAllReduce(place->input, place->output, place->count, ferryUint32, ferrySum,
	                                      stranger->comm, (ferryStream_t)place->stream);
	REQUIRE(!result, "ferryAllReduce in a thread without a context: %s", ferryGetLastError(NULL));
	REQUIRE(!stranger->current(&context) && !context, "the call has left context %p behind", (void *)context);
	return 0;
}

static void *stranger_thread(void *argument)
{
	struct stranger *stranger = (struct stranger *)argument;
	stranger->result = call_without_context(stranger);
	return NULL;
}

static int a_thread_without_a_context_can_call_and_has_none_afterwards(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	struct stranger strangers[GANG_MOST] = {};
	void *current;
	TRY(vmm_driver("cuCtxGetCurrent", &current));
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		TRY(place_write(&places[i], 8, 0));
		strangers[i].place = &places[i];
		strangers[i].comm = gang.comm[i];
		strangers[i].current = (current_function)current;
		REQUIRE(!pthread_create(&strangers[i].thread, NULL, stranger_thread, &strangers[i]),
		        "no thread for rank %d", i);
	}
	for (int i = 0; i < gang.nlocal; i++) {
		pthread_join(strangers[i].thread, NULL);
		TRY(strangers[i].result);
		TRY(place_judge(&places[i], 8));
	}
	TRY(places_settle(places, &gang, "calls from threads without a context"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int memory_that_is_not_this_gpus_is_refused_by_name(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		uint32_t ordinary[4] = {}, *pinned, *managed, *good = places[i].input, *foreign = NULL;
		ferryStream_t stream = (ferryStream_t)places[i].stream;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMallocHost((void **)&pinned, 4096));
		CUDA(cudaMallocManaged((void **)&managed, 4096));
		REFUSED(ferryInvalidArgument, "ordinary host memory",
		        ferryAllReduce(ordinary, good, 1, ferryUint32, ferrySum, gang.comm[i], stream));
		REFUSED(ferryInvalidArgument, "recvbuff",
		        ferryAllReduce(good, ordinary, 1, ferryUint32, ferrySum, gang.comm[i], stream));
		REFUSED(ferryInvalidArgument, "pinned",
		        ferryAllReduce(pinned, good, 1, ferryUint32, ferrySum, gang.comm[i], stream));
		REFUSED(ferryInvalidArgument, "managed memory",
		        ferryAllReduce(managed, good, 1, ferryUint32, ferrySum, gang.comm[i], stream));
		REFUSED(ferryInvalidArgument, "beyond",
		        ferryAllReduce(good, good, (size_t)1 << 36, ferryUint32, ferrySum, gang.comm[i], stream));
		if (gang_devices() > 1) {
			CUDA(cudaSetDevice((places[i].device + 1) % gang_devices()));
			CUDA(cudaMalloc((void **)&foreign, 4096));
			CUDA(cudaSetDevice(places[i].device));
			REFUSED(ferryInvalidArgument, "the communicator is on device",
			        ferryAllReduce(foreign, good, 1, ferryUint32, ferrySum, gang.comm[i], stream));
			CUDA(cudaFree(foreign));
		}
		CUDA(cudaFreeHost(pinned));
		CUDA(cudaFree(managed));
	}
	TRY(places_round(places, &gang, 6, 0));
	TRY(places_settle(places, &gang, "after refusals"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/*
 * In another process: the GPUs in reverse order. The communicator's device is the one that CUDA calls by that number
 * there.
 */
static int visible_devices_are_counted_as_cuda_counts_them(void)
{
	char order[64] = "", command[4500], self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	if (check_in_job())
		SKIP("starts processes of its own");
	REQUIRE(length > 0, "no name for this program");
	self[length] = '\0';
	for (int device = gang_devices() - 1; device >= 0; device--)
		snprintf(order + strlen(order), sizeof order - strlen(order), "%s%d", order[0] ? "," : "", device);
	snprintf(command, sizeof command, "CUDA_VISIBLE_DEVICES=%s '%s' memory_pools_will_do", order, self);
	fflush(stdout);
	int status = system(command);
	REQUIRE(!status, "\"%s\" ended with status 0x%x", command, (unsigned)status);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
	        TEST(pointers_into_the_middle_of_an_allocation_will_do_and_nothing_around_is_touched),
	        TEST(bytes_may_lie_and_end_anywhere),
	        TEST(memory_pools_will_do),
	        TEST(mapped_memory_will_do_across_two_mappings),
	        TEST(a_range_that_is_mapped_only_in_part_is_refused),
	        TEST(memory_that_is_not_this_gpus_is_refused_by_name),
	        TEST(a_thread_without_a_context_can_call_and_has_none_afterwards),
	        TEST(visible_devices_are_counted_as_cuda_counts_them),
	};
	return check_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
