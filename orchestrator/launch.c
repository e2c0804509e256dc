/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/launch.h"

#include "orchestrator/kernels.h"
#include "orchestrator/real.h"
#include "orchestrator/split.h"
#include "rank-lib/api/group.h"

#include <stdlib.h>

static ncclResult_t issue_plain(const struct ferry_nccl_call *c)
{
	switch (c->collective) {
	case FERRY_ALLREDUCE:
		return ferry_nccl_real_AllReduce(c->send, c->receive, c->count, c->type, c->op, c->handle, c->stream);
	case FERRY_ALLGATHER:
		return ferry_nccl_real_AllGather(c->send, c->receive, c->count, c->type, c->handle, c->stream);
	case FERRY_REDUCESCATTER:
		return ferry_nccl_real_ReduceScatter(c->send, c->receive, c->count, c->type, c->op, c->handle,
		                                     c->stream);
	case FERRY_BROADCAST:
		if (c->legacy)
			return ferry_nccl_real_Bcast(c->receive, c->count, c->type, c->root, c->handle, c->stream);
		return ferry_nccl_real_Broadcast(c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_REDUCE_TO_ROOT:
		return ferry_nccl_real_Reduce(c->send, c->receive, c->count, c->type, c->op, c->root, c->handle,
		                              c->stream);
	case FERRY_ALLTOALL:
		return ferry_nccl_real_AlltoAll(c->send, c->receive, c->count, c->type, c->handle, c->stream);
	case FERRY_GATHER:
		return ferry_nccl_real_Gather(c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_SCATTER:
		return ferry_nccl_real_Scatter(c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_SENDRECV:
		if (c->sends)
			return ferry_nccl_real_Send(c->send, c->count, c->type, c->root, c->handle, c->stream);
		return ferry_nccl_real_Recv(c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_ALLTOALLV: /* NCCL has no such function */
		break;
	}
	return ncclInternalError;
}

static ncclResult_t issue_configured(const struct ferry_nccl_call *c)
{
	switch (c->collective) {
	case FERRY_ALLREDUCE:
		return ferry_nccl_real_AllReduceConfig(c->send, c->receive, c->count, c->type, c->op, c->handle,
		                                       c->stream, c->config);
	case FERRY_ALLGATHER:
		return ferry_nccl_real_AllGatherConfig(c->send, c->receive, c->count, c->type, c->handle, c->stream,
		                                       c->config);
	case FERRY_REDUCESCATTER:
		return ferry_nccl_real_ReduceScatterConfig(c->send, c->receive, c->count, c->type, c->op, c->handle,
		                                           c->stream, c->config);
	case FERRY_BROADCAST:
		return ferry_nccl_real_BroadcastConfig(c->send, c->receive, c->count, c->type, c->root, c->handle,
		                                       c->stream, c->config);
	case FERRY_REDUCE_TO_ROOT:
		return ferry_nccl_real_ReduceConfig(c->send, c->receive, c->count, c->type, c->op, c->root, c->handle,
		                                    c->stream, c->config);
	case FERRY_ALLTOALL:
		return ferry_nccl_real_AlltoAllConfig(c->send, c->receive, c->count, c->type, c->handle, c->stream,
		                                      c->config);
	case FERRY_GATHER:
		return ferry_nccl_real_GatherConfig(c->send, c->receive, c->count, c->type, c->root, c->handle,
		                                    c->stream, c->config);
	case FERRY_SCATTER:
		return ferry_nccl_real_ScatterConfig(c->send, c->receive, c->count, c->type, c->root, c->handle,
		                                     c->stream, c->config);
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV: /* NCCL has no such function */
		break;
	}
	return ncclInternalError;
}

static ncclResult_t issue_one(const struct ferry_nccl_call *call)
{
	return call->config ? issue_configured(call) : issue_plain(call);
}

/* ---- blocks with gaps between them ---- */

/* Makes a call for block `block` of the original one, or for one end of it. Messages have no settings. */
static ncclResult_t issue_as(const struct ferry_nccl_call *call, enum ferry_collective collective, const void *send,
                             void *receive, int root)
{
	struct ferry_nccl_call one = *call;
	one.collective = collective;
	one.send = send;
	one.receive = receive;
	one.root = root;
	one.sends = collective == FERRY_SENDRECV && send;
	one.config = collective == FERRY_SENDRECV ? NULL : call->config;
	return issue_one(&one);
}

/*
 * Makes the messages that NCCL itself makes of the call: the same senders and receivers. In place a rank sends itself
 * nothing.
 */
static ncclResult_t issue_messages(const struct ferry_nccl_call *call, const char *sent, char *received, int peer)
{
	int me = call->comm->rank;
	bool sends = call->collective == FERRY_ALLTOALL ||
	             (call->collective == FERRY_GATHER ? peer == call->root : me == call->root);
	bool receives = call->collective == FERRY_ALLTOALL ||
	                (call->collective == FERRY_GATHER ? me == call->root : peer == call->root);
	ncclResult_t result = ncclSuccess;
	if (peer == me && sent == received)
		return ncclSuccess;
	if (sends)
		result = issue_as(call, FERRY_SENDRECV, sent, NULL, peer);
	if (receives && (!result || result == ncclInProgress))
		result = issue_as(call, FERRY_SENDRECV, NULL, received, peer);
	return result;
}

static ncclResult_t issue_block(const struct ferry_nccl_call *call, int block)
{
	size_t offset = (size_t)block * call->stride * ferry_type_size((ferryDataType_t)call->type);
	const char *send = call->send, *sent = send ? send + offset : NULL;
	char *receive = call->receive, *received = receive ? receive + offset : NULL;
	switch (call->collective) {
	case FERRY_ALLGATHER:
		return issue_as(call, FERRY_BROADCAST, send, received, block);
	case FERRY_REDUCESCATTER:
		return issue_as(call, FERRY_REDUCE_TO_ROOT, sent, receive, block);
	case FERRY_GATHER:
		return issue_messages(call, send, received, block);
	case FERRY_SCATTER:
		return issue_messages(call, sent, receive, block);
	case FERRY_ALLTOALL:
		return issue_messages(call, sent, received, block);
	case FERRY_ALLREDUCE:
	case FERRY_BROADCAST:
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV: /* calls without blocks, and one that NCCL does not have */
		break;
	}
	return ncclInternalError;
}

/*
 * An AllGather is Broadcasts and a ReduceScatter Reduces, not messages: so they stay in the order of collectives, in
 * which messages of the same group have no place, and NCCL needs no buffers for each peer.
 */
static ncclResult_t issue_blocks(const struct ferry_nccl_call *call)
{
	ncclResult_t result = ferry_nccl_real_GroupStart();
	if (result)
		return result;
	for (int block = 0; block < call->comm->nranks && (!result || result == ncclInProgress); block++)
		result = issue_block(call, block);
	ncclResult_t ended = ferry_nccl_real_GroupEnd();
	return result && result != ncclInProgress ? result : ended;
}

static struct ferry_nccl_tuner *asked_tuner(const struct ferry_nccl_call *call)
{
	return call->comm && ferry_tuning_is_asked_for(call->collective) ? call->comm->tuner : NULL;
}

/* The rest of an AllGather in blocks is Broadcasts. */
static unsigned candidate_of(const struct ferry_nccl_call *call)
{
	if (!ferry_tuning_is_free(call->collective) || (call->collective == FERRY_ALLGATHER && call->stride))
		return 0;
	return call->candidate;
}

ncclResult_t ferry_nccl_issue(const struct ferry_nccl_call *call)
{
	struct ferry_nccl_tuner *tuner = asked_tuner(call);
	if (tuner)
		ferry_nccl_tuner_set(tuner, candidate_of(call));
	return call->stride ? issue_blocks(call) : issue_one(call);
}

/* ---- NCCL alone ---- */

/* NCCL asks once for all that is alike in a group: calls of a communicator that differ have its own choice. */
static void settle_candidates(const struct ferry_nccl_call *calls, int n)
{
	for (int i = 0; i < n; i++) {
		struct ferry_nccl_tuner *tuner = asked_tuner(&calls[i]);
		if (tuner && ferry_nccl_tuner_candidate(tuner) != candidate_of(&calls[i]))
			ferry_nccl_tuner_set(tuner, 0);
	}
}

static ncclResult_t issue_all(const struct ferry_nccl_call *calls, int n)
{
	if (n == 1)
		return ferry_nccl_issue(&calls[0]);
	ncclResult_t result = ferry_nccl_real_GroupStart();
	if (result)
		return result;
	for (int i = 0; i < n && (!result || result == ncclInProgress); i++)
		result = ferry_nccl_issue(&calls[i]);
	settle_candidates(calls, n);
	ncclResult_t ended = ferry_nccl_real_GroupEnd();
	return result && result != ncclInProgress ? result : ended;
}

/* ---- divided ---- */

/* The calls of a group on their way. */
struct launch {
	const struct ferry_nccl_call *calls;
	struct ferry_split *splits;
	struct ferry_nccl_call *rests; /* what is left for NCCL */
	int n, nrests;
	struct ferry_open_group open;
};

/* Ferry's result as NCCL's callers know it. */
static ncclResult_t as_nccl(ferryResult_t result)
{
	return result <= ferryRemoteError ? (ncclResult_t)result : ncclSystemError;
}

/*
 * In a stream the parts of only one call can be timed apart: a communicator's single call in a group, or the first of
 * its messages if all go one way.
 */
static bool may_measure(const struct launch *launch, int which)
{
	const struct ferry_split *split = &launch->splits[which];
	bool messages = launch->calls[which].collective == FERRY_SENDRECV;
	for (int i = 0; i < launch->n; i++) {
		if (i == which || launch->splits[i].shadow_comm != split->shadow_comm || launch->splits[i].kernel)
			continue;
		if (i < which || !messages || launch->calls[i].collective != FERRY_SENDRECV ||
		    launch->splits[i].word != split->word)
			return false;
	}
	return !ferry_clock_captures(launch->calls[which].stream);
}

/* How many calls of its communicator that kernels carry the group has before this one. */
static uint32_t kernels_before(const struct launch *launch, int which)
{
	const struct ferry_split *splits = launch->splits;
	for (int i = which - 1; i >= 0; i--)
		if (splits[i].kernel && splits[i].shadow_comm == splits[which].shadow_comm)
			return splits[i].before + 1;
	return 0;
}

/* The communicator's turn that begins with this call; *kernels are left. */
static ncclResult_t carry_turn(struct launch *launch, int first, int *kernels)
{
	const struct ferry_nccl_call *calls[FERRY_NCCL_KERNELS_TURN];
	struct ferry_shadow_comm *shadow_comm = launch->splits[first].shadow_comm;
	uint32_t n = 0;
	for (int i = first; i < launch->n && n < FERRY_NCCL_KERNELS_TURN; i++) {
		const struct ferry_split *split = &launch->splits[i];
		if (!split->kernel || split->shadow_comm != shadow_comm)
			continue;
		calls[n++] = &launch->calls[i];
		ferry_tally_add_kernel(&shadow_comm->tally, split->asked.bytes);
		ferry_meter_carry(&shadow_comm->meter, &split->asked);
	}
	*kernels -= (int)n;
	ferryResult_t launched = ferry_nccl_kernels_launch(calls, n, shadow_comm);
	return launched ? as_nccl(launched) : ncclSuccess;
}

/*
 * Before all else of the group, on all ranks (kernels.h). A launch waits where the stream has some 1,000 kernels, and
 * those may wait for a communicator of this thread's on another GPU: so communicators take turns.
 */
static ncclResult_t carry(struct launch *launch, int kernels)
{
	ncclResult_t result = ncclSuccess;
	for (int i = 0; i < launch->n; i++)
		if (launch->splits[i].kernel)
			launch->splits[i].before = kernels_before(launch, i);
	for (uint32_t begin = 0; kernels; begin += FERRY_NCCL_KERNELS_TURN)
		for (int i = 0; i < launch->n; i++) {
			if (!launch->splits[i].kernel || launch->splits[i].before != begin)
				continue;
			ncclResult_t carried = carry_turn(launch, i, &kernels);
			result = result ? result : carried;
		}
	return result;
}

/* The kept call is a kernel's. */
static bool is_carried(const struct ferry_nccl_call *call)
{
	struct ferry_shadow_comm *shadow_comm = ferry_nccl_comm_shadow_comm(call->comm);
	return shadow_comm && call->count && ferry_shadow_comm_kernels_begun(shadow_comm) &&
	       ferry_nccl_kernels_carry(call, shadow_comm);
}

void ferry_nccl_issue_last(const struct ferry_nccl_call *calls, int n, ncclComm_t handle)
{
	const struct ferry_nccl_call *carried[FERRY_NCCL_KERNELS_TURN];
	uint32_t count = 0;
	ncclResult_t result = ncclSuccess;
	for (int i = 0; i <= n; i++) {
		bool ours = i < n && calls[i].handle == handle;
		if (ours && is_carried(&calls[i]))
			carried[count++] = &calls[i];
		else if (ours && (!result || result == ncclInProgress))
			result = ferry_nccl_issue(&calls[i]);
		if (!count || (i < n && count < FERRY_NCCL_KERNELS_TURN))
			continue;
		ferry_nccl_kernels_launch(carried, count, ferry_nccl_comm_shadow_comm(carried[0]->comm));
		count = 0;
	}
}

/* Before any call of the group is in the streams. */
static void mark(struct launch *launch)
{
	for (int i = 0; i < launch->n; i++) {
		struct ferry_split *split = &launch->splits[i];
		if (split->marks.ends < 0 && split->marks.begins < 0)
			continue;
		pthread_mutex_lock(&split->shadow_comm->lock);
		ferry_meter_mark(&split->shadow_comm->meter, split->marks, launch->calls[i].stream);
		pthread_mutex_unlock(&split->shadow_comm->lock);
	}
}

static void measure(struct launch *launch)
{
	for (int i = 0; i < launch->n; i++) {
		struct ferry_split *split = &launch->splits[i];
		struct ferry_shadow_comm *shadow_comm = split->shadow_comm;
		if (!shadow_comm || !split->measure)
			continue;
		bool measurable = may_measure(launch, i) && !split->lost;
		pthread_mutex_lock(&shadow_comm->lock);
		if (measurable)
			split->sample = ferry_meter_begin(&shadow_comm->meter, &split->asked, split->word, split->n);
		if (!split->sample)
			ferry_meter_pass(&shadow_comm->meter, &split->asked, split->word);
		pthread_mutex_unlock(&shadow_comm->lock);
		split->timed = split->sample && ferry_clock_start(&split->sample->clock, launch->calls[i].stream);
	}
}

/* Samples are taken where all has been made. */
static void measured(struct launch *launch, bool made)
{
	for (int i = 0; i < launch->n; i++) {
		struct ferry_split *split = &launch->splits[i];
		struct ferry_sample *sample = split->sample;
		if (!sample)
			continue;
		bool timed = split->timed && made && !split->lost &&
		             ferry_clock_stop(&sample->clock, launch->calls[i].stream);
		pthread_mutex_lock(&split->shadow_comm->lock);
		ferry_meter_arm(sample, timed);
		pthread_mutex_unlock(&split->shadow_comm->lock);
	}
}

/* Says which calls it has lost with that. */
static void give_up(struct launch *launch)
{
	for (int i = 0; i < launch->n; i++) {
		struct ferry_split *split = &launch->splits[i];
		if (!split->ferrys || split->lost)
			continue;
		ferry_shadow_comm_withdraw(split->shadow_comm, ferryGetLastError(NULL));
		split->lost = true;
	}
}

static ferryResult_t begin_ferrys(struct launch *launch)
{
	ferryResult_t result = ferryGroupStart();
	for (int i = 0; i < launch->n && !result; i++) {
		const struct ferry_split *split = &launch->splits[i];
		if (!split->ferrys || split->lost)
			continue;
		if (ferry_clock_captures(launch->calls[i].stream))
			ferry_shadow_comm_captured(split->shadow_comm);
		result = ferry_split_ask(&launch->calls[i], split);
	}
	ferryResult_t ended = ferry_group_end_open(&launch->open);
	return result ? result : ended;
}

static bool is_captured(const struct launch *launch)
{
	for (int i = 0; i < launch->n; i++)
		if (launch->splits[i].shadow_comm && ferry_clock_captures(launch->calls[i].stream))
			return true;
	return false;
}

/*
 * Issues NCCL's calls. NCCL connects GPUs at the first call of a kind, by driver calls that a capture of this thread
 * forbids. A program has made a call once before it captures it; but NCCL may have had all of it then, or its part by
 * another algorithm.
 */
static ncclResult_t issue_nccls(const struct launch *launch)
{
	if (!launch->nrests)
		return ncclSuccess;
	if (!is_captured(launch))
		return issue_all(launch->rests, launch->nrests);
	int mode = ferry_clock_relax();
	ncclResult_t result = issue_all(launch->rests, launch->nrests);
	ferry_clock_restore(mode);
	return result;
}

/*
 * Messages are not divided; the first one of a group may be measured if all are alike. The time of unequal ones
 * together fits no size, and they cannot be timed apart in a stream: they try nothing, and go where groups of alike
 * ones have gone.
 */
static bool is_alone(const struct launch *launch, int which)
{
	const struct ferry_nccl_call *call = &launch->calls[which];
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_nccl_call *other = &launch->calls[i];
		bool alike = call->collective == FERRY_SENDRECV && other->collective == FERRY_SENDRECV &&
		             other->count == call->count && other->type == call->type;
		if (i != which && other->comm == call->comm && (i < which || !alike))
			return false;
	}
	return true;
}

/* The group's first message, for a message that is not its communicator's first call; else NULL. */
static const struct ferry_split *first_message(const struct launch *launch, int which)
{
	for (int i = 0; i < which && launch->calls[which].collective == FERRY_SENDRECV; i++)
		if (launch->calls[i].comm == launch->calls[which].comm)
			return launch->calls[i].collective == FERRY_SENDRECV ? &launch->splits[i] : NULL;
	return NULL;
}

static void tally(struct launch *launch)
{
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_split *split = &launch->splits[i];
		if (split->shadow_comm && !split->kernel &&
		    split->asked.bytes >= split->shadow_comm->meter.floor_bytes)
			ferry_tally_add(&split->shadow_comm->tally, split->asked.bytes, split->lost ? 0 : split->ferrys,
			                split->nccls);
	}
}

static ncclResult_t run(struct launch *launch)
{
	bool ferrys = false, lost = false;
	int kernels = 0;
	for (int i = 0; i < launch->n; i++)
		ferry_split_expect(&launch->calls[i]);
	for (int i = 0; i < launch->n; i++) {
		struct ferry_split *split = &launch->splits[i];
		ferry_split_decide(&launch->calls[i], is_alone(launch, i), first_message(launch, i), split);
		ferrys |= split->ferrys && !split->lost;
		kernels += split->kernel;
		if (!split->kernel && (split->nccls || !split->ferrys))
			launch->rests[launch->nrests++] = ferry_split_rest(&launch->calls[i], split);
	}
	ncclResult_t carried = kernels ? carry(launch, kernels) : ncclSuccess;
	if (kernels == launch->n)
		return carried;
	mark(launch);
	measure(launch);
	ferryResult_t begun = ferrys ? begin_ferrys(launch) : ferrySuccess;
	if (begun)
		give_up(launch);
	ncclResult_t result = issue_nccls(launch);
	ferryResult_t finished = ferrys ? ferry_group_finish(&launch->open) : ferrySuccess;
	if (finished && !begun)
		give_up(launch);
	measured(launch, !result);
	tally(launch);
	for (int i = 0; i < launch->n; i++)
		lost |= launch->splits[i].lost;
	if (carried)
		return carried;
	if ((result && result != ncclInProgress) || !lost)
		return result;
	return begun || finished ? as_nccl(begun ? begun : finished) : ncclRemoteError;
}

/* Whether any of the calls may be worth asking Ferry about: most programs make short calls most of the time. */
static bool is_worth_it(const struct ferry_nccl_call *calls, int n)
{
	for (int i = 0; i < n; i++)
		if (calls[i].comm && calls[i].count)
			return true;
	return false;
}

ncclResult_t ferry_nccl_launch(struct ferry_nccl_call *calls, int n)
{
	struct ferry_split few[8];
	struct ferry_nccl_call few_rests[8];
	struct launch launch = {.calls = calls, .splits = few, .rests = few_rests, .n = n};
	if (!is_worth_it(calls, n))
		return issue_all(calls, n);
	if (n > 8) {
		launch.splits = calloc((size_t)n, sizeof *launch.splits);
		launch.rests = calloc((size_t)n, sizeof *launch.rests);
	}
	/* Without memory this rank agrees on nothing, and other ranks may have: an error, as NCCL's own would be. */
	ncclResult_t result = launch.splits && launch.rests ? run(&launch) : ncclSystemError;
	if (n > 8) {
		free(launch.splits);
		free(launch.rests);
	}
	return result;
}
