/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-gemm: what an application's matrix products lose while a collective runs beside them. One process per GPU,
 * under ferryrun. Rounds of products alone, beside nothing, alone, beside copies, alone, beside Ferry's AllReduce,
 * alone, beside NCCL's, alone, beside NCCL's that libferry-nccl.so divides, alone; a loss is against the mean of the
 * two neighbours, of the GPU that loses most, and its median over rounds. "Nothing" tells how far to trust it;
 * "copies", by CUDA alone, as many bytes each way as an AllReduce through the host moves, what no engine on that path
 * gets around. Products keep a GPU at its power limit: what else draws power lowers its clock, and so does a warmer
 * day. So the mean clock of every round is measured too, how often the driver says that power holds it down, and what a
 * product takes more in cycles: what the collective takes from it but for power. cuBLAS, NCCL, libferry-nccl.so and
 * NVML are opened at run time; without cuBLAS a plain tiled product of f32 is used, without NCCL or libferry-nccl.so
 * their lines are missing, without NVML the power.
 */
#include "ferry.h"
extern "C" {
#include "ipc/error.h"
#include "ipc/process.h"
}

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

#define SIZE 8192
#define ROUND_US 200000 /* of products */
#define LEAD_US 50000 /* of products before each round: the clock settles */
#define BYTES ((size_t)256 << 20)
#define PIECE ((size_t)4 << 20) /* of the copies: long enough for a link's full rate */
#define WINDOW (2 * PIECE)      /* of host memory, each way: stays in the last-level cache */
#define AHEAD 4                 /* copies enqueued, each way */

#define DIE(...)                                                                                                       \
	do {                                                                                                           \
		fprintf(stderr, "ferry-gemm: rank %d: ", rank);                                                        \
		fprintf(stderr, __VA_ARGS__);                                                                          \
		fprintf(stderr, "\n");                                                                                 \
		exit(1);                                                                                               \
	} while (0)
#define CUDA(call)                                                                                                     \
	do {                                                                                                           \
		cudaError_t error_ = (call);                                                                           \
		if (error_)                                                                                            \
			DIE("%s: %s", #call, cudaGetErrorString(error_));                                              \
	} while (0)
#define FERRY(call)                                                                                                    \
	do {                                                                                                           \
		ferryResult_t result_ = (call);                                                                        \
		if (result_)                                                                                           \
			DIE("%s: %s", #call, ferryGetLastError(NULL));                                                 \
	} while (0)

static int rank, nranks, rounds = 5;
static ferryComm_t comm, control; /* on the GPU; on host memory */
static cudaStream_t products, beside;
static void *a, *b, *c;
static float *send_buffer, *receive_buffer;
/* Counters of every multiprocessor. Pinned; two sets: when a round's products begin and when they have ended. */
struct counters {
	unsigned long long cycles, ns;
};
static struct counters *counters;
static int multiprocessors;

#include "tests/gpu/power.cuh"

/* ---- matrix products ---- */

typedef int (*create_function)(void **);
typedef int (*stream_function)(void *, cudaStream_t);
typedef int (*product_function)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                                int, int, const void *, void *, int, int, int, int);

static void *cublas;
static product_function cublas_product;

static __global__ void tiled(const float *x, const float *y, float *z, int n)
{
	__shared__ float left[32][33], right[32][33];
	int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
	float sum = 0;
	for (int tile = 0; tile < n; tile += 32) {
		left[threadIdx.y][threadIdx.x] = x[(size_t)row * n + tile + threadIdx.x];
		right[threadIdx.y][threadIdx.x] = y[(size_t)(tile + threadIdx.y) * n + column];
		__syncthreads();
		for (int k = 0; k < 32; k++)
			sum += left[threadIdx.y][k] * right[k][threadIdx.x];
		__syncthreads();
	}
	z[(size_t)row * n + column] = sum;
}

static void open_cublas(void)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
	void *library = getenv("FERRY_CUBLAS_LIBRARY") ? dlopen(getenv("FERRY_CUBLAS_LIBRARY"), RTLD_NOW) : NULL;
	for (int i = 0; i < 3 && !library; i++)
		library = dlopen(names[i], RTLD_NOW);
	if (!library)
		return;
	create_function create = (create_function)dlsym(library, "cublasCreate_v2");
	stream_function set_stream = (stream_function)dlsym(library, "cublasSetStream_v2");
	cublas_product = (product_function)dlsym(library, "cublasGemmEx");
	if (!create || !set_stream || !cublas_product || create(&cublas) || set_stream(cublas, products))
		cublas = NULL;
}

static void product(void)
{
	const float one = 1, zero = 0;
	enum { BF16 = 14, COMPUTE_F32 = 68, DEFAULT = -1 };
	if (!cublas) {
		tiled<<<dim3(SIZE / 4 / 32, SIZE / 4 / 32), dim3(32, 32), 0, products>>>((float *)a, (float *)b,
		                                                                         (float *)c, SIZE / 4);
		CUDA(cudaGetLastError());
	} else if (cublas_product(cublas, 0, 0, SIZE, SIZE, SIZE, &one, a, BF16, SIZE, b, BF16, SIZE, &zero, c, BF16,
	                          SIZE, COMPUTE_F32, DEFAULT)) {
		DIE("cublasGemmEx failed");
	}
}

static __global__ void randomize(unsigned short *values, size_t count, unsigned seed)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
		unsigned x = (unsigned)i * 2654435761u + seed;
		/* bf16 of about 0.01 to 0.03, both signs */
		values[i] = (unsigned short)(0x3c00 | ((x ^ x >> 13) & 0x83ff));
	}
}

/*
 * Blocks so large that they spread over all multiprocessors; one that gets none is left out of the mean, and so is one
 * whose number is beyond their count: the numbers may have gaps (PTX, %nsmid).
 */
static __global__ void read_counters(struct counters *of)
{
	unsigned multiprocessor;
	struct counters now;
	if (threadIdx.x)
		return;
	asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now.ns));
	now.cycles = (unsigned long long)clock64();
	if (multiprocessor < gridDim.x)
		of[multiprocessor] = now;
}

static void enqueue_counters(struct counters *of)
{
	read_counters<<<multiprocessors, 1024, 0, products>>>(of);
	CUDA(cudaGetLastError());
}

/* Mean over the multiprocessors that both sets have. */
static double clock_megahertz(void)
{
	double sum = 0;
	int seen = 0;
	for (int i = 0; i < multiprocessors; i++) {
		const struct counters *begin = &counters[i], *end = &counters[multiprocessors + i];
		if (!begin->ns || end->ns <= begin->ns)
			continue;
		sum += (double)(end->cycles - begin->cycles) * 1e3 / (double)(end->ns - begin->ns);
		seen++;
	}
	if (!seen)
		DIE("no multiprocessor's clock could be read");
	return sum / seen;
}

/* ---- NCCL ---- */

struct nccl_id {
	char bytes[128];
};
typedef int (*id_function)(struct nccl_id *);
typedef int (*init_function)(void **, int, struct nccl_id, int);
typedef int (*allreduce_function)(const void *, void *, size_t, int, int, void *, cudaStream_t);
struct nccl {
	void *comm; /* NULL: there is no such library */
	allreduce_function allreduce;
};
static struct nccl plain, divided; /* NCCL itself; with libferry-nccl.so between */

static struct nccl open_nccl(const char *name)
{
	struct nccl nccl = {};
	struct nccl_id id = {};
	void *library = dlopen(name, RTLD_NOW);
	if (!library)
		return nccl;
	id_function get_id = (id_function)dlsym(library, "ncclGetUniqueId");
	init_function init = (init_function)dlsym(library, "ncclCommInitRank");
	nccl.allreduce = (allreduce_function)dlsym(library, "ncclAllReduce");
	if (!get_id || !init || !nccl.allreduce || (rank == 0 && get_id(&id)))
		DIE("%s: not NCCL", name);
	FERRY(ferryBroadcast(&id, &id, sizeof id, ferryUint8, 0, control, NULL));
	FERRY(ferryStreamSynchronize(NULL));
	if (init(&nccl.comm, nranks, id, rank))
		DIE("%s: ncclCommInitRank failed", name);
	return nccl;
}

static void open_both(void)
{
	setenv("NCCL_NVLS_ENABLE", "0", 0); /* multicast can put a server's GPUs out of service */
	setenv("FERRY_SPLIT_WAIT", "5", 0); /* it has its part from the first call on */
	plain = open_nccl(getenv("FERRY_NCCL_LIBRARY") ? getenv("FERRY_NCCL_LIBRARY") : "libnccl.so.2");
	if (plain.comm)
		divided = open_nccl("libferry-nccl.so");
}

/* ---- copies ---- */

/* A thread per way, as a lane does it: a few copies enqueued ahead, an event behind each. */
struct way {
	bool up;
	char *window;
	cudaStream_t stream;
	cudaEvent_t events[AHEAD];
	std::thread thread;
	double us; /* that all of its copies took */
};
static struct way ways[2];

static double now_us(void)
{
	return (double)std::chrono::duration_cast<std::chrono::nanoseconds>(
	               std::chrono::steady_clock::now().time_since_epoch())
	               .count() /
	       1e3;
}

static void open_copies(void)
{
	for (int i = 0; i < 2; i++) {
		ways[i].up = i == 0;
		CUDA(cudaMallocHost((void **)&ways[i].window, WINDOW));
		memset(ways[i].window, 0, WINDOW);
		CUDA(cudaStreamCreateWithFlags(&ways[i].stream, cudaStreamNonBlocking));
		for (cudaEvent_t &event : ways[i].events)
			CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	}
}

static void copy_one_way(struct way *way, int device, int times)
{
	CUDA(cudaSetDevice(device));
	double start = now_us();
	for (size_t i = 0; i < (size_t)times * (BYTES / PIECE); i++) {
		char *buffer = (char *)(way->up ? send_buffer : receive_buffer) + i * PIECE % BYTES,
		     *piece = way->window + i * PIECE % WINDOW;
		cudaEvent_t event = way->events[i % AHEAD];
		if (i >= AHEAD)
			CUDA(cudaEventSynchronize(event));
		CUDA(cudaMemcpyAsync(way->up ? piece : buffer, way->up ? buffer : piece, PIECE, cudaMemcpyDefault,
		                     way->stream));
		CUDA(cudaEventRecord(event, way->stream));
	}
	CUDA(cudaStreamSynchronize(way->stream));
	way->us = now_us() - start;
}

static void start_copies(int times)
{
	int device;
	CUDA(cudaGetDevice(&device));
	for (struct way &way : ways)
		way.thread = std::thread(copy_one_way, &way, device, times);
}

/* Microseconds, of the slower way. */
static double join_copies(void)
{
	for (struct way &way : ways)
		way.thread.join();
	return std::max(ways[0].us, ways[1].us);
}

/* ---- measuring ---- */

enum company { WITH_NOTHING, WITH_COPIES, WITH_FERRY, WITH_NCCL, WITH_BOTH };

struct round_times {
	double product_us, collective_us, megahertz;
	struct watched watched;
};

static double maximum(double value)
{
	FERRY(ferryAllReduce(&value, &value, 1, ferryFloat64, ferryMax, control, NULL));
	FERRY(ferryStreamSynchronize(NULL));
	return value;
}

static void reduce_once(enum company company)
{
	const struct nccl *nccl = company == WITH_BOTH ? &divided : &plain;
	if (company == WITH_FERRY)
		FERRY(ferryAllReduce(send_buffer, receive_buffer, BYTES / 4, ferryFloat32, ferrySum, comm,
		                     (ferryStream_t)beside));
	else if (nccl->allreduce(send_buffer, receive_buffer, BYTES / 4, 7, 0, nccl->comm, beside))
		DIE("ncclAllReduce failed");
}

/*
 * Means over the products and collectives of a round, after `lead` products; the collectives go on for longer than the
 * products.
 */
static struct round_times measure(enum company company, int lead, int count, int collectives)
{
	struct round_times times = {};
	cudaEvent_t marks[4];
	float ms, other_ms = 0;
	for (int i = 0; i < 4; i++)
		CUDA(cudaEventCreate(&marks[i]));
	maximum(0);
	memset(counters, 0, 2 * (size_t)multiprocessors * sizeof *counters);
	if (collectives && company == WITH_COPIES) {
		start_copies(collectives);
	} else if (collectives) {
		reduce_once(company); /* under way before the products start */
		CUDA(cudaEventRecord(marks[2], beside));
		for (int i = 0; i < collectives; i++)
			reduce_once(company);
		CUDA(cudaEventRecord(marks[3], beside));
	}
	for (int i = 0; i < lead; i++)
		product();
	enqueue_counters(counters);
	CUDA(cudaEventRecord(marks[0], products));
	for (int i = 0; i < count; i++)
		product();
	CUDA(cudaEventRecord(marks[1], products));
	enqueue_counters(counters + multiprocessors);
	times.watched = wait_and_watch(products);
	CUDA(cudaEventElapsedTime(&ms, marks[0], marks[1]));
	CUDA(cudaStreamSynchronize(beside));
	if (collectives && company == WITH_COPIES) {
		times.collective_us = join_copies() / collectives;
	} else if (collectives) {
		CUDA(cudaEventElapsedTime(&other_ms, marks[2], marks[3]));
		times.collective_us = other_ms * 1e3 / collectives;
	}
	times.product_us = ms * 1e3 / count;
	times.megahertz = clock_megahertz();
	for (int i = 0; i < 4; i++)
		CUDA(cudaEventDestroy(marks[i]));
	return times;
}

static double median(std::vector<double> values)
{
	std::sort(values.begin(), values.end());
	return values[values.size() / 2];
}

/* What one kind of collective does to the products: per round, of the GPU that loses most. */
struct finding {
	const char *name;
	enum company company;
	int collectives; /* per round: they outlast the products */
	std::vector<double> losses, clocks, cycles, rates; /* percent lost, of the clock lost, of cycles added; GB/s */
	std::vector<double> watts, power, other; /* of the GPU with most */
};

static void prepare(struct finding *finding, int lead, int count, double alone_us)
{
	if (finding->company == WITH_NOTHING)
		return;
	/* makes plans and connections; what is divided learns its shares */
	measure(finding->company, 0, 4, finding->company == WITH_BOTH ? 24 : 4);
	finding->collectives = (int)(alone_us * (lead + count) /
	                             maximum(measure(finding->company, 0, 4, 4).collective_us) * 1.3) +
	                       2;
}

/* *alone: of the round before, then of the one after. */
static void compare(struct finding *finding, int lead, int count, struct round_times *alone)
{
	struct round_times before = *alone, with = measure(finding->company, lead, count, finding->collectives);
	*alone = measure(WITH_NOTHING, lead, count, 0);
	double alone_us = (before.product_us + alone->product_us) / 2,
	       megahertz = (before.megahertz + alone->megahertz) / 2;
	finding->losses.push_back(maximum((1 - alone_us / with.product_us) * 100));
	double cycles = (before.product_us * before.megahertz + alone->product_us * alone->megahertz) / 2;
	finding->cycles.push_back(maximum((with.product_us * with.megahertz / cycles - 1) * 100));
	finding->clocks.push_back(maximum((1 - with.megahertz / megahertz) * 100));
	finding->watts.push_back(maximum(with.watched.watts));
	finding->power.push_back(maximum(with.watched.power));
	finding->other.push_back(maximum(with.watched.other));
	finding->rates.push_back(finding->collectives ? (double)BYTES / maximum(with.collective_us) / 1e3 : 0);
}

/* Milliseconds of products lost per GB that the collective has carried. */
static double lost_per_gb(const struct finding &finding)
{
	return finding.collectives ? median(finding.losses) * 10 / median(finding.rates) : 0;
}

static void print_text(const std::vector<struct finding> &findings, int count, double alone_us)
{
	printf("%d GPUs, %s, %.0f us each, %d per round of about 200 ms, %d rounds; of the GPU that loses most, "
	       "medians:\n",
	       nranks, cublas ? "bf16 products of 8192 by cuBLAS" : "f32 products of 2048, no cuBLAS found", alone_us,
	       count, rounds);
	for (const struct finding &finding : findings) {
		printf("beside %-8s rate lost %6.2f %%, clock lost %6.2f %%, cycles added %6.2f %%", finding.name,
		       median(finding.losses), median(finding.clocks), median(finding.cycles));
		if (power_of)
			printf(", %4.0f W, clock held down by power %.0f %% and by other causes %.0f %% of the time",
			       median(finding.watts), median(finding.power), median(finding.other));
		if (finding.collectives)
			printf(", 256 MiB meanwhile at %6.2f GB/s: %.2f ms lost per GB", median(finding.rates),
			       lost_per_gb(finding));
		printf("\n");
	}
	if (!plain.comm)
		printf("NCCL     not found (FERRY_NCCL_LIBRARY)\n");
}

static void print_json(const std::vector<struct finding> &findings, int count, double alone_us)
{
	const char *direct = getenv("NCCL_P2P_DISABLE");
	printf("{\"gpus\": %d, \"products\": \"%s\", \"product_us\": %.1f, \"products_per_round\": %d, \"rounds\": "
	       "%d,\n",
	       nranks, cublas ? "bf16 8192 cuBLAS" : "f32 2048 own", alone_us, count, rounds);
	printf(" \"allreduce_bytes\": %zu, \"nccl_p2p_disable\": %s", BYTES,
	       direct && strtol(direct, NULL, 0) == 1 ? "true" : "false");
	for (const struct finding &finding : findings) {
		printf(",\n \"%s\": {\"loss_percent\": %.3f, \"clock_loss_percent\": %.3f, \"cycles_added_percent\": "
		       "%.3f, \"allreduce_gb_per_s\": %.3f, \"ms_lost_per_gb\": %.4f, "
		       "\"watts\": %.1f, \"held_by_power_percent\": %.1f, \"held_by_other_percent\": %.1f, "
		       "\"rounds_loss_percent\": [",
		       finding.name, median(finding.losses), median(finding.clocks), median(finding.cycles),
		       median(finding.rates), lost_per_gb(finding), median(finding.watts), median(finding.power),
		       median(finding.other));
		for (size_t i = 0; i < finding.losses.size(); i++)
			printf("%s%.3f", i ? ", " : "", finding.losses[i]);
		printf("]}");
	}
	printf("}\n");
}

static void run(bool json)
{
	std::vector<struct finding> findings;
	for (int i = 0; i < 10; i++)
		product();
	CUDA(cudaDeviceSynchronize());
	double alone_us = maximum(measure(WITH_NOTHING, 0, 20, 0).product_us);
	int count = (int)(ROUND_US / alone_us) + 1, lead = (int)(LEAD_US / alone_us) + 1;
	findings.push_back({"nothing", WITH_NOTHING, 0, {}, {}, {}, {}, {}, {}, {}});
	findings.push_back({"copies", WITH_COPIES, 0, {}, {}, {}, {}, {}, {}, {}});
	findings.push_back({"Ferry", WITH_FERRY, 0, {}, {}, {}, {}, {}, {}, {}});
	if (plain.comm)
		findings.push_back({"NCCL", WITH_NCCL, 0, {}, {}, {}, {}, {}, {}, {}});
	if (divided.comm)
		findings.push_back({"both", WITH_BOTH, 0, {}, {}, {}, {}, {}, {}, {}});
	for (struct finding &finding : findings)
		prepare(&finding, lead, count, alone_us);
	struct round_times alone = measure(WITH_NOTHING, lead, count, 0);
	for (int round = 0; round < rounds; round++)
		for (struct finding &finding : findings)
			compare(&finding, lead, count, &alone);
	if (rank == 0)
		(json ? print_json : print_text)(findings, count, alone_us);
}

static void open_buffers(void)
{
	CUDA(cudaStreamCreateWithFlags(&products, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
	for (void **matrix : {&a, &b, &c}) {
		CUDA(cudaMalloc(matrix, (size_t)SIZE * SIZE * 2));
		randomize<<<1024, 256>>>((unsigned short *)*matrix, (size_t)SIZE * SIZE, 1u + (unsigned)rank);
		CUDA(cudaGetLastError());
	}
	int device;
	CUDA(cudaGetDevice(&device));
	CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
	CUDA(cudaMallocHost((void **)&counters, 2 * (size_t)multiprocessors * sizeof *counters));
	CUDA(cudaMalloc((void **)&send_buffer, BYTES));
	CUDA(cudaMalloc((void **)&receive_buffer, BYTES));
	CUDA(cudaMemset(send_buffer, 0, BYTES));
	CUDA(cudaDeviceSynchronize());
}

/* Whether JSON is wanted; does not return on bad usage. */
static bool read_arguments(int argc, char **argv)
{
	bool json = false;
	for (int i = 1; i < argc; i++) {
		char *end;
		long number = strtol(argv[i], &end, 10);
		bool help = !strcmp(argv[i], "--help");
		json = json || !strcmp(argv[i], "--json");
		if (strcmp(argv[i], "--json") && (help || *end || number < 1 || number > 1000)) {
			if (!help)
				fprintf(stderr, "ferry-gemm: \"%s\" is not a number of rounds from 1 to 1000\n",
				        argv[i]);
			printf("Usage: ferryrun -n GPUS -- ferry-gemm [--json] [ROUNDS]\n"
			       "What matrix products lose beside copies of 256 MiB up and down, and beside Ferry's, "
			       "NCCL's and both's AllReduce of as much\n"
			       "(libferry-nccl.so; NCCL's environment applies).\n");
			exit(help ? 0 : 64);
		}
		if (strcmp(argv[i], "--json"))
			rounds = (int)number;
	}
	return json;
}

int main(int argc, char **argv)
{
	int devices = 0;
	if (ferry_descriptors_fill())
		DIE("%s", ferry_last_message());
	ferryConfig_t host = FERRY_CONFIG_INITIALIZER, cuda = FERRY_CONFIG_INITIALIZER;
	bool json = read_arguments(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	host.device = "host";
	cuda.device = "cuda";
	cudaError_t none = cudaGetDeviceCount(&devices);
	if (none || !devices) {
		printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(none));
		return 77;
	}
	FERRY(ferryCommInitEnv(&control, &host));
	FERRY(ferryCommUserRank(control, &rank));
	FERRY(ferryCommCount(control, &nranks));
	CUDA(cudaSetDevice(rank % devices));
	CUDA(cudaFree(0));
	FERRY(ferryCommInitEnv(&comm, &cuda));
	open_buffers();
	open_copies();
	open_cublas();
	open_both();
	open_power();
	run(json);
	FERRY(ferryCommDestroy(comm));
	FERRY(ferryCommDestroy(control));
	return 0;
}
