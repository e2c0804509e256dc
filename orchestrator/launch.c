/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/launch.h"

#include "orchestrator/issue.h"
#include "orchestrator/kernels.h"
#include "orchestrator/split.h"
#include "rank-lib/api/group.h"

#include <stdlib.h>

/* ---- shared ---- */

/* A group's calls while they are launched. */
struct launch {
	const struct ferry_nccl_call *calls;
	struct ferry_split *splits;
	struct ferry_nccl_call *rests; /* what is left for NCCL */
	const struct ferry_nccl_call **messages; /* room for those of a communicator */
	int n, nrests;
	struct ferry_clock_look look; /* at the streams */
	struct ferry_open_group open;
};

/* Ferry's result as NCCL's callers know it. */
static ncclResult_t as_nccl(ferryResult_t result)
{
	return result <= ferryRemoteError ? (ncclResult_t)result : ncclSystemError;
}

static bool is_message(const struct ferry_nccl_call *call)
{
	return call->collective == FERRY_SENDRECV;
}

/* A message of the rank to itself, of which other ranks need not know. */
static bool is_own(const struct ferry_nccl_call *call)
{
	return is_message(call) && call->comm && call->root == call->comm->rank;
}

/*
 * In a stream the parts of only one call can be timed apart: a communicator's single call in a group, or the first of
 * its messages if all go one way.
 */
static bool may_measure(const struct launch *launch, int which)
{
	const struct ferry_split *split = &launch->splits[which];
	bool messages = is_message(&launch->calls[which]);
	for (int i = 0; i < launch->n; i++) {
		if (i == which || launch->splits[i].shadow_comm != split->shadow_comm || launch->splits[i].kernel ||
		    is_own(&launch->calls[i]))
			continue;
		if (i < which || !messages || !is_message(&launch->calls[i]) ||
		    launch->splits[i].word != split->word)
			return false;
	}
	return !split->captured;
}

/* Whether a kernel carries the call, which is of that communicator and, as asked, a message or none. */
static bool is_kernel_of(const struct launch *launch, int which, const struct ferry_shadow_comm *shadow_comm,
                         bool message)
{
	const struct ferry_split *split = &launch->splits[which];
	return split->kernel && split->shadow_comm == shadow_comm && is_message(&launch->calls[which]) == message;
}

/* How many earlier calls of the same communicator in the group kernels carry. */
static uint32_t kernels_before(const struct launch *launch, int which)
{
	for (int i = which - 1; i >= 0; i--)
		if (is_kernel_of(launch, i, launch->splits[which].shadow_comm, false))
			return launch->splits[i].before + 1;
	return 0;
}

static void count_kernel(const struct ferry_split *split)
{
	ferry_tally_add_kernel(&split->shadow_comm->tally, split->asked.bytes);
	ferry_meter_carry(&split->shadow_comm->meter, &split->asked);
}

/* Launches the communicator's turn that begins with this call. *kernels: calls that are left. */
static ncclResult_t carry_turn(struct launch *launch, int first, int *kernels)
{
	const struct ferry_nccl_call *calls[FERRY_NCCL_KERNELS_TURN];
	struct ferry_shadow_comm *shadow_comm = launch->splits[first].shadow_comm;
	uint32_t n = 0;
	for (int i = first; i < launch->n && n < FERRY_NCCL_KERNELS_TURN; i++) {
		if (!is_kernel_of(launch, i, shadow_comm, false))
			continue;
		calls[n++] = &launch->calls[i];
		count_kernel(&launch->splits[i]);
	}
	*kernels -= (int)n;
	ferryResult_t launched = ferry_nccl_kernels_launch(calls, n, shadow_comm);
	return launched ? as_nccl(launched) : ncclSuccess;
}

/*
 * Lists the communicator's messages that kernels carry, of which `first` is one; returns how many. *alone: the group
 * has no other calls of the communicator, or in the stream.
 */
static uint32_t list_messages(struct launch *launch, int first, bool *alone)
{
	const struct ferry_nccl_call *calls = launch->calls;
	uint32_t n = 0;
	*alone = true;
	for (int i = 0; i < launch->n; i++)
		if (is_kernel_of(launch, i, launch->splits[first].shadow_comm, true))
			launch->messages[n++] = &calls[i];
		else
			*alone &= calls[i].comm != calls[first].comm && calls[i].stream != calls[first].stream;
	return n;
}

/* Begins messages before all else of the group, as they may wait for it. ends: lets streams go on behind them. */
static ncclResult_t carry_messages(struct launch *launch, bool ends)
{
	ncclResult_t result = ncclSuccess;
	for (int i = 0; i < launch->n; i++) {
		struct ferry_shadow_comm *shadow_comm = launch->splits[i].shadow_comm;
		bool done = !is_kernel_of(launch, i, shadow_comm, true), alone;
		if (!done && !ends && launch->splits[i].asked.bytes)
			count_kernel(&launch->splits[i]);
		for (int before = i - 1; before >= 0 && !done; before--) /* the nearest: of many most are alike */
			done = is_kernel_of(launch, before, shadow_comm, true);
		if (done)
			continue;
		uint32_t n = list_messages(launch, i, &alone);
		if (ends && alone)
			continue;
		ferryResult_t launched = ferry_nccl_kernels_exchange(launch->messages, n, shadow_comm,
		                                                     alone  ? FERRY_KERNELS_WHOLE
		                                                     : ends ? FERRY_KERNELS_END
		                                                            : FERRY_KERNELS_BEGIN);
		result = result || !launched ? result : as_nccl(launched);
	}
	return result;
}

/*
 * Launches kernels before all else of the group, as all ranks do (kernels.h). A launch waits if the stream has some
 * 1,000 kernels. These may wait for kernels that this thread has yet to launch on another GPU: so communicators take
 * turns.
 */
static ncclResult_t carry(struct launch *launch)
{
	ncclResult_t result = carry_messages(launch, false);
	int kernels = 0;
	for (int i = 0; i < launch->n; i++) {
		if (!launch->splits[i].kernel || is_message(&launch->calls[i]))
			continue;
		launch->splits[i].before = kernels_before(launch, i);
		kernels++;
	}
	for (uint32_t begin = 0; kernels; begin += FERRY_NCCL_KERNELS_TURN)
		for (int i = 0; i < launch->n; i++) {
			if (!launch->splits[i].kernel || is_message(&launch->calls[i]) ||
			    launch->splits[i].before != begin)
				continue;
			ncclResult_t carried = carry_turn(launch, i, &kernels);
			result = result ? result : carried;
		}
	return result;
}

/* Whether a kernel carries the kept call. */
static bool is_carried(const struct ferry_nccl_call *call)
{
	struct ferry_shadow_comm *shadow_comm = ferry_nccl_comm_shadow_comm(call->comm);
	return shadow_comm && (call->count || is_message(call)) && ferry_nccl_kernels_begun(call, shadow_comm) &&
	       ferry_nccl_kernels_carry(call, shadow_comm);
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

/* Arms the samples of calls whose parts were all made. */
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

/* Withdraws Ferry, and marks the calls whose parts are lost by that. */
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

/*
 * A single call that is all Ferry's is made at once. In a group each call is begun before any stream waits: beginning
 * one may take driver calls that block while a stream of this process waits.
 */
static ferryResult_t begin_ferrys(struct launch *launch)
{
	bool open = launch->n > 1 || launch->nrests;
	ferryResult_t result = open ? ferryGroupStart() : ferrySuccess;
	for (int i = 0; i < launch->n && !result; i++) {
		const struct ferry_split *split = &launch->splits[i];
		if (!split->ferrys || split->lost)
			continue;
		if (split->captured)
			ferry_shadow_comm_captured(split->shadow_comm);
		result = ferry_split_ask(&launch->calls[i], split);
	}
	ferryResult_t ended = open ? ferry_group_end_open(&launch->open) : ferrySuccess;
	return result ? result : ended;
}

static bool is_captured(struct launch *launch)
{
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_split *split = &launch->splits[i];
		if (split->captured || (split->kernel && ferry_clock_look(&launch->look, launch->calls[i].stream)))
			return true;
	}
	return false;
}

/*
 * Issues NCCL's calls. NCCL connects GPUs at the first call of a kind, by driver calls that a capture of this thread
 * forbids. A program makes a call once before it captures it; but NCCL may then have had all of it, or another
 * algorithm.
 */
static ncclResult_t issue_nccls(struct launch *launch)
{
	if (!launch->nrests)
		return ncclSuccess;
	if (!is_captured(launch))
		return ferry_nccl_issue_all(launch->rests, launch->nrests);
	int mode = ferry_clock_relax();
	ncclResult_t result = ferry_nccl_issue_all(launch->rests, launch->nrests);
	ferry_clock_restore(mode);
	return result;
}

/*
 * Finds the first call of the communicator in the group before this one, but for the rank's messages to itself and
 * messages by kernels; -1: none. The communicator's last call knows it (ferry_split.first): a search from the group's
 * beginning for each of 4,096 messages took 20 us of each.
 */
static int first_before(const struct launch *launch, int which)
{
	int last = which - 1;
	while (last >= 0 && launch->calls[last].comm != launch->calls[which].comm)
		last--;
	return last < 0 ? -1 : launch->splits[last].first;
}

/*
 * Whether the call may be measured: its communicator's only one in the group, or the first of messages to other ranks
 * that are all alike. Unequal messages cannot be timed apart, and their common time fits no size: they try nothing, and
 * go as groups of equal ones have gone.
 */
static bool is_alone(const struct launch *launch, int which, int first)
{
	const struct ferry_nccl_call *call = &launch->calls[which];
	if (is_message(call) && (first >= 0 || is_own(call) || is_carried(call)))
		return false;
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_nccl_call *other = &launch->calls[i];
		bool alike = is_message(call) && is_message(other) && other->count == call->count &&
		             other->type == call->type;
		if (i != which && other->comm == call->comm && !is_own(other) && (i < which || !alike) &&
		    !(is_message(call) && is_message(other) && is_carried(other)))
			return false;
	}
	return true;
}

/* first: as of first_before. */
static void decide_one(struct launch *launch, int which, int first)
{
	const struct ferry_nccl_call *call = &launch->calls[which];
	struct ferry_split *split = &launch->splits[which];
	bool follows = first >= 0 && is_message(call) && is_message(&launch->calls[first]);
	ferry_split_decide(call, is_alone(launch, which, first), follows ? &launch->splits[first] : NULL,
	                   &launch->look, split);
	bool counts = !is_own(call) && !(is_message(call) && split->kernel);
	split->first = first < 0 && counts ? which : first;
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

/* Finds the receive of a message of the rank to itself: NCCL pairs them in order. -1: none of as many bytes. */
static int other_end(const struct launch *launch, int which)
{
	const struct ferry_nccl_call *call = &launch->calls[which];
	int before = 0;
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_nccl_call *other = &launch->calls[i];
		bool same = is_message(other) && other->comm == call->comm && other->root == call->root;
		before += same && other->sends && i < which;
	}
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_nccl_call *other = &launch->calls[i];
		bool same = is_message(other) && other->comm == call->comm && other->root == call->root;
		if (same && !other->sends && !before--)
			return ferry_nccl_call_bytes(other) == ferry_nccl_call_bytes(call) ? i : -1;
	}
	return -1;
}

/*
 * Whether kernels (or routers, if not `kernels`) carry all of the communicator's calls in the group alone, except
 * messages of the rank to itself. *by: one of these calls, if there is any.
 */
static bool all_go_by(const struct launch *launch, const struct ferry_nccl_call *own, bool kernels,
                      const struct ferry_split **by)
{
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_nccl_call *call = &launch->calls[i];
		const struct ferry_split *split = &launch->splits[i];
		if (call->comm != own->comm || is_own(call))
			continue;
		bool routers = is_message(call) && call->stream == own->stream && split->ferrys && !split->nccls &&
		               !split->lost;
		if (kernels ? !split->kernel : !routers)
			return false;
		*by = split;
	}
	return true;
}

/*
 * A message of the rank to itself goes as its communicator's other calls in the group: by kernels, or, if routers carry
 * them, by a copy in the stream. If NCCL has some, or Ferry has failed, NCCL has it, too. No other rank need know.
 */
static void decide_own(struct launch *launch)
{
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_nccl_call *call = &launch->calls[i];
		if (!call->sends || !is_own(call))
			continue;
		struct ferry_shadow_comm *shadow_comm = ferry_nccl_comm_shadow_comm(call->comm);
		const struct ferry_split *by = NULL;
		int other = other_end(launch, i);
		if (other < 0 || !shadow_comm || !ferry_shadow_comm_works(shadow_comm))
			continue;
		bool kernels = ferry_nccl_kernels_carry(call, shadow_comm) && all_go_by(launch, call, true, &by),
		     routers = !kernels && all_go_by(launch, call, false, &by) && by &&
		               launch->calls[other].stream == call->stream;
		const struct ferry_split own = {
		        .shadow_comm = shadow_comm,
		        .kernel = kernels,
		        .word = routers ? by->word : 0,
		        .captured = routers && by->captured,
		        .marks = {-1, -1},
		        .asked = {.collective = call->collective, .bytes = ferry_nccl_call_bytes(call)}};
		if (!kernels && !(routers && ferry_split_may_ask(call, &own) &&
		                  ferry_split_may_ask(&launch->calls[other], &own)))
			continue;
		launch->splits[i] = launch->splits[other] = own;
		launch->splits[i].ferrys = routers ? call->count : 0;
		launch->splits[other].ferrys = routers ? launch->calls[other].count : 0;
	}
}

/* Returns how many calls kernels carry; *ferrys: Ferry has a part of others. */
static int decide(struct launch *launch, bool *ferrys)
{
	int kernels = 0;
	for (int i = 0; i < launch->n; i++)
		ferry_split_expect(&launch->calls[i]);
	for (int i = 0; i < launch->n; i++)
		decide_one(launch, i, first_before(launch, i));
	decide_own(launch);
	for (int i = 0; i < launch->n; i++) {
		const struct ferry_split *split = &launch->splits[i];
		*ferrys |= split->ferrys && !split->lost;
		kernels += split->kernel;
		if (!split->kernel && (split->nccls || !split->ferrys))
			launch->rests[launch->nrests++] = ferry_split_rest(&launch->calls[i], split);
	}
	return kernels;
}

static ncclResult_t run(struct launch *launch)
{
	bool ferrys = false, lost = false;
	int kernels = decide(launch, &ferrys);
	ncclResult_t carried = kernels ? carry(launch) : ncclSuccess;
	if (kernels == launch->n) {
		ncclResult_t joined = carry_messages(launch, true);
		return carried ? carried : joined;
	}
	mark(launch);
	measure(launch);
	ferryResult_t begun = ferrys ? begin_ferrys(launch) : ferrySuccess;
	if (begun)
		give_up(launch);
	ncclResult_t result = issue_nccls(launch);
	ferryResult_t finished = ferrys ? ferry_group_finish(&launch->open) : ferrySuccess;
	if (finished && !begun)
		give_up(launch);
	ncclResult_t joined = kernels ? carry_messages(launch, true) : ncclSuccess;
	carried = carried ? carried : joined;
	measured(launch, !result);
	tally(launch);
	for (int i = 0; i < launch->n; i++)
		lost |= launch->splits[i].lost;
	if (carried)
		return carried;
	if (!ferry_nccl_is_fine(result) || !lost)
		return result;
	return begun || finished ? as_nccl(begun ? begun : finished) : ncclRemoteError;
}

/* Whether any of the calls may be worth asking Ferry about: most programs make short calls most of the time. */
static bool is_worth_it(const struct ferry_nccl_call *calls, int n)
{
	for (int i = 0; i < n; i++)
		if (calls[i].comm && (calls[i].count || is_message(&calls[i])))
			return true;
	return false;
}

ncclResult_t ferry_nccl_launch(struct ferry_nccl_call *calls, int n)
{
	struct ferry_split few[8];
	struct ferry_nccl_call few_rests[8];
	const struct ferry_nccl_call *few_messages[8];
	struct launch launch = {
	        .calls = calls, .splits = few, .rests = few_rests, .messages = few_messages, .n = n};
	if (!is_worth_it(calls, n))
		return ferry_nccl_issue_all(calls, n);
	if (n > 8) {
		launch.splits = calloc((size_t)n, sizeof *launch.splits);
		launch.rests = calloc((size_t)n, sizeof *launch.rests);
		launch.messages = calloc((size_t)n, sizeof *launch.messages);
	}
	/* Without memory this rank agrees on nothing, and other ranks may have: an error, as NCCL's own would be. */
	ncclResult_t result = launch.splits && launch.rests && launch.messages ? run(&launch) : ncclSystemError;
	if (n > 8) {
		free(launch.splits);
		free(launch.rests);
		free(launch.messages);
	}
	return result;
}
