/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/split.h"

#include "orchestrator/kernels.h"
#include "orchestrator/redops.h"
#include "rank-lib/api/group.h"

#define PAGE 4096u /* where Ferry's part ends, so that neither touches the other's lines */

/* ---- what is agreed ---- */

/* A call that is being agreed on. */
struct asking {
	const struct ferry_nccl_call *call;
	struct ferry_split *split;
	const struct ferry_split *first; /* the measured message of its group, which it follows; NULL: none */
	bool captured;
	bool tries; /* its time will be measured, so it may be a try */
	bool begins; /* it is not behind another message of its group */
	bool is_short; /* neither routers nor the tuner get it */
};

static uint64_t mixed(uint64_t kind, uint64_t with)
{
	kind = (kind ^ with) * UINT64_C(0xff51afd7ed558ccd);
	return kind ^ kind >> 32;
}

/* Whether a buffer has a block for each rank. */
static bool has_blocks(const struct ferry_nccl_call *call)
{
	return ferry_collective_has_blocks(call->collective);
}

static void divide(const struct ferry_nccl_call *call, struct ferry_split *split)
{
	struct ferry_shares shares = ferry_shares_unpack(split->word);
	uint64_t round = PAGE / ferry_type_size((ferryDataType_t)call->type), at;
	ferry_shares_range(&shares, FERRY_FABRIC_NCCL, call->count, round, &at, &split->nccls);
	split->ferrys = call->count - split->nccls;
	split->mirrored = call->comm->nranks == 2 &&
	                  (call->collective == FERRY_ALLGATHER || call->collective == FERRY_REDUCESCATTER);
}

/*
 * A hash that is equal on all ranks that take part in such a call. Messages between two ranks in one direction have
 * one; other calls have the whole call's plan in it.
 */
static uint64_t kind_of(const struct ferry_nccl_call *call, const struct ferry_split *split)
{
	uint64_t self = (uint64_t)call->comm->rank, peer = (uint64_t)call->root;
	uint64_t kind = (uint64_t)call->collective << 8 | ferry_tuner_size_class(split->asked.bytes);
	if (call->collective == FERRY_SENDRECV)
		return mixed(kind, call->sends ? self << 8 | peer : peer << 8 | self);
	kind = mixed(mixed(kind, call->count), peer << 16 | (uint64_t)call->type << 8 | ferry_nccl_call_redop(call));
	return (kind & ~(uint64_t)FERRY_SHADOW_COMM_IN_PLACE) |
	       (split->asked.in_place ? FERRY_SHADOW_COMM_IN_PLACE : 0);
}

/* The whole call, as Ferry's. */
static struct ferry_request request_of(const struct ferry_nccl_call *call, const struct ferry_split *split)
{
	struct ferry_request request = ferry_nccl_call_request(call, split->shadow_comm->comm);
	request.shared = true;
	return request;
}

/*
 * Whether Ferry could have the call: all ranks' routers have mapped the buffers and have the plan. If any rank wants
 * Ferry to have it, that is prepared; for most calls no rank does.
 */
static bool can_begin(const struct asking *asking, bool wanted, bool now)
{
	const struct ferry_nccl_call *call = asking->call;
	const struct ferry_split *split = asking->split;
	struct ferry_shadow_comm_kind kind = {.name = kind_of(call, split),
	                                      .peer = call->collective == FERRY_SENDRECV ? call->root : -1};
	bool all;
	if (!ferry_shadow_comm_is_wanted(split->shadow_comm, kind, wanted, &all))
		return false;
	struct ferry_preregister_asked asked = {.request = request_of(call, split),
	                                        .put_target = split->asked.fabric == FERRY_FABRIC_PEER,
	                                        .whole = true,
	                                        .kind = kind.name};
	return ferry_shadow_comm_has_preregistered(split->shadow_comm, &asked, now) && wanted && all;
}

/* Whether Ferry's way loses: it has none that gains, or a sum that is captured or has factors goes by the host. */
static bool goes_slowly(const struct asking *asking)
{
	const struct ferry_nccl_call *call = asking->call;
	const struct ferry_split *split = asking->split;
	bool slow = asking->captured || call->op >= ncclNumOps,
	     sums = ferry_collective_reduces(call->collective) &&
	            (call->collective == FERRY_REDUCESCATTER || split->asked.fabric == FERRY_FABRIC_PEER);
	return split->asked.fabric == FERRY_FABRIC_NCCL || (sums && slow);
}

/* Whether a kernel carries the call; the same on all ranks. */
static bool is_kernels(const struct ferry_nccl_call *call, const struct ferry_shadow_comm *shadow_comm)
{
	return ferry_nccl_kernels_begun(call, shadow_comm) && ferry_nccl_kernels_carry(call, shadow_comm);
}

/*
 * Proposes Ferry only once all ranks' routers have mapped the buffers and have the plan. Until then such calls are
 * NCCL's, and what Ferry may soon need is prepared. FERRY_SHARES holds from the first call on.
 */
static uint32_t propose(void *argument, uint64_t n)
{
	const struct asking *asking = argument;
	const struct ferry_split *split = asking->split;
	struct ferry_meter *meter = &split->shadow_comm->meter;
	(void)n;
	if (asking->is_short || ferry_nccl_kernels_carry(asking->call, split->shadow_comm))
		return FERRY_SHARES_NONE; /* kernels may begin with it */
	struct ferry_meter_proposal proposal =
	        ferry_meter_propose(meter, &split->asked, asking->captured, asking->tries);
	if (asking->first)
		proposal.word = asking->first->word;
	if (meter->pinned)
		return proposal.word;
	if (goes_slowly(asking))
		return proposal.nccl;
	bool now = ferry_shares_divide(proposal.word);
	/* where this rank wants nothing, another one may */
	bool ready = can_begin(asking, now || proposal.soon, now);
	return now && !ready ? proposal.nccl : proposal.word;
}

static void agreed(void *argument, uint64_t n, uint32_t word)
{
	const struct asking *asking = argument;
	struct ferry_split *split = asking->split;
	struct ferry_meter *meter = &split->shadow_comm->meter;
	(void)n;
	if (asking->is_short || is_kernels(asking->call, split->shadow_comm))
		return;
	split->measure = ferry_meter_sealed(meter, &split->asked, word, asking->tries && !asking->first);
	if (asking->captured) /* no stream runs it now */
		return;
	if (asking->begins)
		ferry_meter_made(meter, &split->asked, word);
	const struct ferry_nccl_call *call = asking->call;
	uint64_t buffers = mixed(mixed(call->count, (uintptr_t)call->send), (uintptr_t)call->receive);
	split->marks = ferry_meter_count(meter, &split->asked, (uint32_t)buffers, word);
}

/* Whether the buffers overlap, wherever the collective has its block in place. */
static bool is_in_place(const struct ferry_nccl_call *call)
{
	uint64_t all = ferry_nccl_call_bytes(call);
	return call->send && call->receive &&
	       ((uintptr_t)call->send - (uintptr_t)call->receive < all ||
	        (uintptr_t)call->receive - (uintptr_t)call->send < all);
}

/*
 * The first message of a group is measured if all go one way (launch.c), so messages like it follow it. If each tried
 * for itself, the second call of a try would be another message, which is never measured.
 */
static bool is_like(const struct ferry_split *split, const struct ferry_split *first)
{
	return first && first->shadow_comm == split->shadow_comm && first->asked.type == split->asked.type &&
	       first->asked.bytes == split->asked.bytes && !split->shadow_comm->meter.pinned;
}

/* A call that is numbered, or a message: asks for its shares. */
static void take(const struct ferry_nccl_call *call, struct asking *asking)
{
	struct ferry_split *split = asking->split;
	struct ferry_shadow_comm *shadow_comm = split->shadow_comm;
	struct ferry_shadow_comm_caller caller = {propose, agreed, asking};
	if (call->collective == FERRY_SENDRECV)
		split->word = ferry_shadow_comm_take_message(shadow_comm, call->root, call->sends, &caller);
	else
		split->word = ferry_shadow_comm_take(shadow_comm, &caller, &split->n);
}

static void decide_large(const struct ferry_nccl_call *call, bool alone, const struct ferry_split *first,
                         struct ferry_split *split)
{
	bool captured = split->captured;
	struct ferry_shadow_comm *shadow_comm = split->shadow_comm;
	bool works = ferry_shadow_comm_works(shadow_comm);
	split->asked.in_place = is_in_place(call);
	/* constant once it works */
	split->asked.fabric = works ? ferry_meter_fabric(&shadow_comm->meter, call->collective, split->asked.in_place)
	                            : FERRY_FABRIC_HOST;
	/* a try that cannot be measured teaches nothing, and in a graph it would stay */
	struct asking asking = {call, split, is_like(split, first) ? first : NULL, captured,
	                        works && alone && !captured, !first, false};
	take(call, &asking);
	split->kernel = is_kernels(call, shadow_comm);
	if (!split->kernel && ferry_shares_divide(split->word))
		divide(call, split);
	/* it may have become ready since */
	split->lost = split->ferrys && !works && !ferry_shadow_comm_works(shadow_comm);
}

void ferry_split_expect(const struct ferry_nccl_call *call)
{
	struct ferry_shadow_comm *shadow_comm = ferry_nccl_comm_shadow_comm(call->comm);
	if (!shadow_comm || atomic_load_explicit(&shadow_comm->begun, memory_order_relaxed) || !call->count)
		return;
	bool large = ferry_nccl_call_bytes(call) >= shadow_comm->meter.floor_bytes;
	ferry_shadow_comm_expect(shadow_comm, large, !large && ferry_clock_captures(call->stream));
}

void ferry_split_decide(const struct ferry_nccl_call *call, bool alone, const struct ferry_split *first,
                        struct ferry_clock_look *look, struct ferry_split *split)
{
	*split = (struct ferry_split){.nccls = call->count, .marks = {-1, -1}};
	struct ferry_shadow_comm *shadow_comm = ferry_nccl_comm_shadow_comm(call->comm);
	uint64_t bytes = ferry_nccl_call_bytes(call);
	bool message = call->collective == FERRY_SENDRECV;
	if (!shadow_comm || (!bytes && !message) || ferry_shadow_comm_is_none(shadow_comm))
		return;
	if (message && call->root == shadow_comm->rank)
		return; /* launch.c looks for its other end */
	bool is_short = bytes < shadow_comm->meter.floor_bytes, begun = ferry_nccl_kernels_begun(call, shadow_comm);
	split->kernel = begun && ferry_nccl_kernels_carry(call, shadow_comm);
	if (!split->kernel && ((is_short && begun) || !bytes))
		return;
	split->shadow_comm = shadow_comm;
	split->asked = (struct ferry_tuner_call){.collective = call->collective,
	                                         .type = (ferryDataType_t)call->type,
	                                         .bytes = bytes};
	if (split->kernel)
		return;
	split->captured = ferry_clock_look(look, call->stream);
	if (!begun && !shadow_comm->awaited && split->captured)
		ferry_shadow_comm_await_for_capture(shadow_comm);
	if (!is_short) {
		decide_large(call, alone, first, split);
		return;
	}
	take(call, &(struct asking){.call = call, .split = split, .is_short = true});
	split->kernel = is_kernels(call, shadow_comm);
}

/* ---- Ferry's part ---- */

bool ferry_split_may_ask(const struct ferry_nccl_call *call, const struct ferry_split *split)
{
	struct ferry_request request = request_of(call, split);
	bool may = !ferry_launch_check(&request);
	ferry_forget_message();
	return may;
}

ferryResult_t ferry_split_ask(const struct ferry_nccl_call *call, const struct ferry_split *split)
{
	struct ferry_request request = request_of(call, split);
	struct ferry_nccl_redop made;
	if (!has_blocks(call))
		request.count = split->ferrys;
	else if (split->nccls)
		request.left_out = (struct ferry_left_out){.count = split->nccls, .mirrored = split->mirrored};
	if (call->op < ncclNumOps)
		return ferry_group_call(&request);
	if (!ferry_nccl_redop_find(call->comm, call->op, &made))
		return ferryInvalidArgument;
	bool on_device = made.residence == ncclScalarDevice;
	ferryResult_t result = ferryRedOpCreatePreMulSum(&request.op, on_device ? made.device_scalar : made.scalar,
	                                                 request.type,
	                                                 on_device ? ferryScalarDevice : ferryScalarHostImmediate,
	                                                 request.comm);
	if (result)
		return result;
	result = ferry_group_call(&request);
	ferryRedOpDestroy(request.op, request.comm); /* the group has its own copy */
	return result;
}

struct ferry_nccl_call ferry_split_rest(const struct ferry_nccl_call *call, const struct ferry_split *split)
{
	struct ferry_nccl_call rest = *call;
	size_t skipped = split->ferrys * ferry_type_size((ferryDataType_t)call->type), sent = skipped,
	       received = skipped;
	rest.count = split->nccls;
	if (ferry_shares_tuning(split->word))
		rest.candidate = ferry_shares_tuning(split->word);
	if (!skipped)
		return rest;
	if (split->mirrored && call->comm->rank == 1) { /* the beginning of its own block is left for NCCL */
		sent = call->collective == FERRY_ALLGATHER ? 0 : skipped;
		received = call->collective == FERRY_ALLGATHER ? skipped : 0;
	} else if (!split->mirrored && has_blocks(call)) {
		rest.stride = call->count;
	}
	if (rest.send)
		rest.send = (const char *)rest.send + sent;
	if (rest.receive)
		rest.receive = (char *)rest.receive + received;
	return rest;
}
