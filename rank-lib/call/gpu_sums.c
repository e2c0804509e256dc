/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/gpu_sums.h"

#include "rank-lib/call/comm.h"
#include "rank-lib/kernels/kernel_launch.h"
#include "rank-lib/kernels/modules.h"

/*
 * Measured on two H200s (docs/lab/gpu-sums.md): a step costs some 15 us besides its bytes, which a second piece under
 * way hides. By the host, two pieces under way slow each other down.
 */
#ifndef KIB /* tests/CMakeLists.txt sets a smaller one */
#define KIB 1024u
#endif
#define UNDER_WAY   2u              /* pieces at a time, over links */
#define PIECES      2u              /* of a block, over links */
#define PIECE_LEAST (4096u * KIB)   /* bytes of a piece at least */
#define PIECE_MOST  (65536u * KIB)  /* bytes of a piece of all ranks' blocks at most, over links */
#define PIECE_HOST  (131072u * KIB) /* the same by the host */
#define LINE        128u            /* bytes: pieces, and an AllReduce's blocks, are multiples of this */
#define THREADS     512u

static uint64_t bytes_of(const struct ferry_request *request)
{
	return request->count * ferry_type_size(request->type);
}

static uint64_t ranks_of(const struct ferry_request *request)
{
	return (uint64_t)request->comm->rank.nranks;
}

bool ferry_gpu_sums_push(const struct ferryComm *comm, enum ferry_collective collective)
{
	return comm->mailboxes.ready && comm->mailboxes.peer && comm->fabrics.host_share <= 0 &&
	       ferry_collective_reduces(collective);
}

/*
 * By the host, a ReduceScatter of n ranks moves n - 1 blocks where the routers' moves n. An AllReduce and a Reduce of
 * two ranks move as much as the routers', and need no cores for sums; of more ranks they would move more.
 */
static bool host_carries(const struct ferryComm *comm, enum ferry_collective collective)
{
	return collective == FERRY_REDUCESCATTER ||
	       (ferry_collective_reduces(collective) && !comm->mailboxes.peer && comm->rank.nranks == 2);
}

/* A Reduce of two ranks: the other rank's block comes to the root whole. Halves and a Gather would go no faster. */
static bool is_pair(const struct ferry_request *request)
{
	return request->collective == FERRY_REDUCE_TO_ROOT && request->comm->rank.nranks == 2;
}

/* Whether each rank makes the sum of a block of the buffer, and a second step brings the sums together. */
static bool gathers(const struct ferry_request *request)
{
	return request->collective != FERRY_REDUCESCATTER && !is_pair(request);
}

/* Whether the rank gets the result. */
static bool ends_here(const struct ferry_request *request)
{
	return !ferry_collective_has_root(request->collective) || request->root == request->comm->rank.self;
}

bool ferry_gpu_sums_carry(const struct ferryComm *comm, const struct ferry_request *request)
{
	if (!comm->mailboxes.ready || request->op >= ferryNumOps || request->program || request->left_out.count ||
	    comm->programs.replace || request->sums)
		return false;
	if (!host_carries(comm, request->collective) && !ferry_gpu_sums_push(comm, request->collective))
		return false;
	uint32_t root = ferry_collective_has_root(request->collective) ? (uint32_t)request->root : 0;
	if (ferry_fabrics_add(&comm->fabrics, request->collective, root, bytes_of(request)) &&
	    comm->numbers.fixed == UINT64_MAX)
		return false;
	return gathers(request) ? bytes_of(request) >= LINE * ranks_of(request) : request->count;
}

/* ---- pieces ---- */

/* Elements of each rank's block: in whole lines where the blocks are the call's own. */
static uint64_t block_of(const struct ferry_request *request)
{
	const uint64_t line = LINE / ferry_type_size(request->type);
	return gathers(request) ? request->count / (line * ranks_of(request)) * line : request->count;
}

static uint64_t within(uint64_t least, uint64_t value, uint64_t most)
{
	return value > most ? most : value < least ? least : value;
}

/*
 * Blocks of a piece in the stream's memory: those that come, and where the sum is sent from there, that sum. It has no
 * place among the others: a shorter piece's blocks, which come meanwhile, lie elsewhere. The request is a call, or a
 * step of one: a Gather is a Reduce's.
 */
static uint64_t slots_of(const struct ferry_request *request)
{
	const enum ferry_collective asked = request->sums ? request->sums - 1u : request->collective;
	const bool sends = asked == FERRY_REDUCE_TO_ROOT || asked == FERRY_GATHER;
	return ranks_of(request) + (sends && ranks_of(request) > 2);
}

/* Elements of a piece; the last one may have fewer. */
static uint64_t piece_of(const struct ferry_request *request, uint64_t block)
{
	const bool pushes = request->comm->mailboxes.peer;
	const uint64_t size = ferry_type_size(request->type);
	const uint64_t most = (pushes ? PIECE_MOST : PIECE_HOST) / slots_of(request);
	const uint64_t bytes = within(PIECE_LEAST, block * size / (pushes ? PIECES : 1), most);
	return within(1, (bytes + LINE - 1) / LINE * LINE / size, block);
}

uint32_t ferry_gpu_sums_under_way(const struct ferry_request *request)
{
	return request->comm->mailboxes.peer ? UNDER_WAY : 1;
}

uint32_t ferry_gpu_sums_pieces(const struct ferry_request *request)
{
	const uint64_t block = block_of(request), piece = piece_of(request, block);
	return (uint32_t)((block + piece - 1) / piece);
}

/* Narrows the request to these elements. */
static void take_elements(struct ferry_request *request, uint64_t first, uint64_t count)
{
	const uint64_t skipped = first * ferry_type_size(request->type);
	request->send = (const char *)request->send + skipped;
	request->receive = ends_here(request) ? (char *)request->receive + skipped : NULL;
	request->count = count;
}

/* A piece is one range of every block. The step's blocks begin at that range, and leave out what follows it. */
bool ferry_gpu_sums_step(const struct ferry_request *request, uint32_t which, enum ferry_sum_step kind,
                         struct ferry_request *step)
{
	const uint64_t size = ferry_type_size(request->type), block = block_of(request);
	const uint64_t most = piece_of(request, block);
	const uint64_t first = which * most, count = block - first < most ? block - first : most;
	if (kind == FERRY_SUM_GATHERS && !gathers(request))
		return false;
	*step = *request;
	take_elements(step, first, block);
	step->left_out.count = block - count;
	step->sums_at = which % ferry_gpu_sums_under_way(request) * slots_of(request) * most * size;
	char *own = step->receive;
	if (own && gathers(request))
		own += (uint64_t)request->comm->rank.self * block * size;
	if (kind == FERRY_SUM_GATHERS) {
		step->collective = request->collective == FERRY_ALLREDUCE ? FERRY_ALLGATHER : FERRY_GATHER;
		step->send = own; /* NULL: it is behind the blocks */
		step->sums_at += ranks_of(request) * most * size;
		return true;
	}
	step->collective = is_pair(request) ? FERRY_GATHER : FERRY_ALLTOALL;
	step->receive = own;
	step->left_out.packed = true;
	step->sums = (uint8_t)(1 + request->collective);
	return true;
}

bool ferry_gpu_sums_rest(const struct ferry_request *request, struct ferry_request *rest)
{
	const uint64_t whole = block_of(request) * ranks_of(request);
	if (!gathers(request) || whole == request->count)
		return false;
	*rest = *request;
	rest->open = NULL;
	rest->shared = false; /* a short kernel carries it */
	take_elements(rest, whole, request->count - whole);
	return true;
}

/* ---- the first step ---- */

bool ferry_gpu_sums_add(const struct ferry_request *step)
{
	return step->sums && (step->collective == FERRY_ALLTOALL || ends_here(step));
}

uint64_t ferry_gpu_sums_room(const struct ferry_request *step)
{
	const uint64_t piece = piece_of(step, step->count) * ferry_type_size(step->type);
	uint64_t room = 1024u * KIB;
	while (room < ferry_gpu_sums_under_way(step) * slots_of(step) * piece)
		room *= 2;
	return room;
}

/* The kernel is bound by memory, and faster with more SMs: it takes many, for a short time. */
static uint32_t blocks_for(const struct ferry_request *step, uint64_t bytes)
{
	const uint64_t each = 64 * THREADS, wanted = (bytes + each - 1) / each;
	const uint64_t most = 4ull * step->comm->mailboxes.blocks;
	return (uint32_t)(wanted < most ? wanted : most);
}

void ferry_gpu_sums_kernel(const struct ferry_request *step, char *memory, struct ferry_local_kernel *kernel)
{
	const struct ferry_mailboxes *mailboxes = &step->comm->mailboxes;
	const uint64_t bytes = (step->count - step->left_out.count) * ferry_type_size(step->type);
	const uint64_t behind = ranks_of(step) * piece_of(step, step->count) * ferry_type_size(step->type);
	const uint32_t self = mailboxes->blank.rank;
	struct ferry_kernel_call *call = &kernel->call;
	kernel->function = ferry_modules_function(mailboxes->device, step->type, FERRY_KERNEL_REDUCE);
	kernel->blocks = blocks_for(step, bytes);
	kernel->threads = THREADS;
	*call = (struct ferry_kernel_call){.receive = step->receive ? step->receive : memory + behind,
	                                   .bytes = bytes,
	                                   .rank = self,
	                                   .nranks = mailboxes->blank.nranks,
	                                   .reduces = 1};
	ferry_kernels_fill_operation(step, NULL, call);
	for (uint32_t r = 0; r < call->nranks; r++)
		call->in[r] = memory + r * bytes;
	call->in[self] = (const char *)step->send + (step->collective == FERRY_ALLTOALL ? self * bytes_of(step) : 0);
}
