/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kernels/mailboxes.h"

#include "ipc/environment.h"
#include "ipc/process.h"
#include "ipc/wait.h"
#include "rank-lib/kernels/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB             (1ull << 20)
#define PEER_DATA_PAIR  (18 * MIB) /* of a half, of two ranks, */
#define PEER_DATA_BYTES (5 * MIB)  /* or of each sender of more, */
#define PEER_DATA_MOST  (18 * MIB) /* and of all of them together */
#define HOST_DATA_BYTES (4 * MIB + (64u << 10)) /* of a half */
#define ALLOCATION      (2 * MIB)  /* IPC exports whole ones */
#define CHANNELS_MOST   (1ull << 40)
#define SIGNAL_BYTES    4096u
#define SILENT_NS       1000000000u /* a kernel that has said nothing for so long waits no more, or has no processor */

_Static_assert(FERRY_BOX_REGION(HOST_DATA_BYTES, true) + FERRY_OUTBOX_CHANNELS == FERRY_OUTBOX_ADDS,
               "an outbox of the arena is a region, memory for channels, and cells of ADDs");
_Static_assert(FERRY_KERNEL_ADDS == FERRY_MOST_ADDS && FERRY_KERNEL_ADD_BLOCKS == FERRY_ADD_BLOCKS &&
                       FERRY_KERNEL_SOURCES == FERRY_MOST_ADD_SOURCES && FERRY_KERNEL_RANKS == FERRY_ADD_RANKS,
               "the kernel's are the arena's");
_Static_assert(FERRY_CHANNEL_RANKS == FERRY_KERNEL_RANKS, "who has kernels may have channels");
_Static_assert(4 * FERRY_CHANNEL_RANKS * FERRY_CHANNELS <= SIGNAL_BYTES, "a word for each rank and channel");
_Static_assert(FERRY_KERNEL_RANKS == FERRY_OUTBOX_RANKS, "each rank has one");

/* ---- cells ---- */

static struct ferry_mailbox_cell *cell_of(const struct ferry_rank *rank, int other)
{
	return &ferry_rank_line(&rank->shared, (uint32_t)other)->mailbox;
}

static enum ferry_mailbox_stage stage_of(const struct ferry_rank *rank, int other)
{
	return atomic_load_explicit(&cell_of(rank, other)->stage, memory_order_acquire);
}

static void publish(const struct ferry_rank *rank, enum ferry_mailbox_stage stage)
{
	atomic_store_explicit(&cell_of(rank, rank->self)->stage, stage, memory_order_release);
	ferry_rank_tell(rank);
}

static bool any_refused(const struct ferry_rank *rank)
{
	for (int other = 0; other < rank->nranks; other++)
		if (stage_of(rank, other) == FERRY_MAILBOX_REFUSED)
			return true;
	return false;
}

/* Whether graphs have kernels: these may run after the communicator's end, and then still store packets. */
static bool any_has_graphs(const struct ferry_rank *rank)
{
	uint32_t graphs = 0;
	for (int other = 0; other < rank->nranks; other++)
		graphs |= atomic_load_explicit(&cell_of(rank, other)->graphs, memory_order_relaxed);
	return graphs;
}

/* Bit r: rank r has neither got so far nor refused. Where one has refused, the others' mailboxes are of no use. */
static uint64_t behind(const struct ferry_rank *rank, enum ferry_mailbox_stage stage)
{
	uint64_t ranks = 0;
	for (int other = 0; other < rank->nranks; other++)
		if (stage_of(rank, other) < stage)
			ranks |= 1ull << other;
	return ranks;
}

static uint64_t without_mailbox(const struct ferry_rank *rank)
{
	return any_refused(rank) ? 0 : behind(rank, FERRY_MAILBOX_THERE);
}

static uint64_t without_all(const struct ferry_rank *rank)
{
	return any_refused(rank) ? 0 : behind(rank, FERRY_MAILBOX_MAPPED);
}

/* ---- one's own ---- */

/* FERRY_KERNELS, or a quarter of the GPU's multiprocessors: *blocks; 0: off. */
static ferryResult_t read_setting(const struct ferry_mailboxes *mailboxes, uint32_t *blocks)
{
	const char *text = ferry_env("FERRY_KERNELS");
	long most = 0;
	bool number = text && *text >= '0' && *text <= '9', on = !text || !strcmp(text, "on");
	*blocks = 0;
	if (text && !number && !on && strcmp(text, "off"))
		return ferry_fail(ferryInvalidArgument, "FERRY_KERNELS=%s: on, off, or 1 to %u blocks", text,
		                  FERRY_KERNEL_BLOCKS);
	if (number) {
		ferryResult_t result = ferry_env_integer("FERRY_KERNELS", 1, FERRY_KERNEL_BLOCKS, 0, &most);
		if (result)
			return result;
	} else if (on) {
		most = mailboxes->device->ops->kernels->multiprocessors(mailboxes->device) / 4;
	}
	*blocks = most > FERRY_KERNEL_BLOCKS ? FERRY_KERNEL_BLOCKS : (uint32_t)most;
	return ferrySuccess;
}

/* NCCL's setting: GPUs do not use each other's memory. */
static bool peers_forbidden(void)
{
	const char *text = getenv("NCCL_P2P_DISABLE");
	return text && atoi(text) == 1;
}

static uint64_t region_bytes(const struct ferry_mailboxes *mailboxes)
{
	return FERRY_BOX_REGION(mailboxes->blank.box_bytes, !mailboxes->peer);
}

/* The region that the sender has in the receiver's inbox. */
static char *region_at(const struct ferry_mailboxes *mailboxes, char *inbox, int receiver, int sender)
{
	int place = sender < receiver ? sender : sender - 1;
	return inbox + (uint64_t)place * region_bytes(mailboxes);
}

/* Of an outbox or an inbox, for kernels of the caller's own; 0: no such kernels. */
static uint64_t channels_bytes(const struct ferry_mailboxes *mailboxes)
{
	uint64_t bytes = mailboxes->channels.bytes;
	return bytes ? SIGNAL_BYTES + (bytes + 4095) / 4096 * 4096 : 0;
}

/* Where they begin in an outbox or an inbox. */
static uint64_t channels_at(const struct ferry_mailboxes *mailboxes)
{
	uint64_t peers = (uint64_t)mailboxes->rank->nranks - 1;
	return mailboxes->peer ? peers * region_bytes(mailboxes) : region_bytes(mailboxes);
}

/* Channels of the size that is asked for, if host memory has so much. */
static void choose_channels(struct ferry_mailboxes *mailboxes)
{
	mailboxes->channels.bytes = mailboxes->channel_bytes;
	if (mailboxes->peer || channels_bytes(mailboxes) <= FERRY_OUTBOX_CHANNELS)
		return;
	snprintf(mailboxes->why_not, sizeof mailboxes->why_not,
	         "ferryConfig_t.channels of %llu bytes: host memory, as GPUs have no peer access, has %u",
	         (unsigned long long)mailboxes->channel_bytes, FERRY_OUTBOX_CHANNELS - SIGNAL_BYTES);
	mailboxes->channels.bytes = 0;
}

static ferryResult_t make_box(struct ferry_mailboxes *mailboxes)
{
	uint64_t peers = (uint64_t)mailboxes->rank->nranks - 1, bytes = 0;
	struct ferry_kernel_call *blank = &mailboxes->blank;
	blank->box_bytes = HOST_DATA_BYTES;
	if (mailboxes->peer) {
		const uint64_t each = peers == 1 ? PEER_DATA_PAIR : PEER_DATA_BYTES, most = PEER_DATA_MOST / peers;
		blank->box_bytes = most < each ? most / 4096 * 4096 : each;
		bytes = peers * region_bytes(mailboxes);
	}
	choose_channels(mailboxes);
	if (mailboxes->peer)
		bytes = (bytes + channels_bytes(mailboxes) + ALLOCATION - 1) / ALLOCATION * ALLOCATION;
	ferryResult_t result = ferry_box_take(mailboxes->device, mailboxes->rank, bytes, &mailboxes->box);
	if (result)
		return result;
	blank->state = mailboxes->box->states; /* of calls */
	blank->abort = (uint32_t *)(void *)&mailboxes->box->aborted->flag;
	blank->out_shared = !mailboxes->peer;
	blank->rank = (uint32_t)mailboxes->rank->self;
	blank->nranks = (uint32_t)mailboxes->rank->nranks;
	mailboxes->channels.counters = (uint32_t *)(void *)((char *)mailboxes->box->states + FERRY_BOX_COUNTERS);
	return ferrySuccess;
}

/*
 * Long calls have half of the multiprocessors (docs/lab/kernels.md), one block on each. Kernels of calls that wait for
 * other ranks must find a place: so this holds for the first communicator on the GPU alone, and the calls of three
 * communicators fit at the same time.
 */
static bool may_double(const struct ferry_mailboxes *mailboxes)
{
	const char *text = ferry_env("FERRY_KERNELS");
	return mailboxes->peer && mailboxes->box->first && (!text || *text < '0' || *text > '9');
}

/* Fills in the rank's cell, but for the stage. */
static ferryResult_t describe_box(const struct ferry_mailboxes *mailboxes, uint32_t blocks)
{
	const struct ferry_pieces_ops *pieces = mailboxes->device->ops->pieces;
	const struct ferry_box *box = mailboxes->box;
	struct ferry_mailbox_cell *cell = cell_of(mailboxes->rank, mailboxes->rank->self);
	struct ferry_exported exported;
	struct ferry_pieces found;
	int descriptors[FERRY_MOST_PIECES];
	atomic_store_explicit(&cell->peer, mailboxes->peer, memory_order_relaxed);
	atomic_store_explicit(&cell->blocks, blocks, memory_order_relaxed);
	atomic_store_explicit(&cell->doubles, may_double(mailboxes), memory_order_relaxed);
	atomic_store_explicit(&cell->multiprocessors,
	                      mailboxes->device->ops->kernels->multiprocessors(mailboxes->device),
	                      memory_order_relaxed);
	atomic_store_explicit(&cell->bytes, box->bytes, memory_order_relaxed);
	ferryResult_t result = pieces->identify(mailboxes->device, cell->gpu);
	if (result || !mailboxes->peer)
		return result;
	result = pieces->find(mailboxes->device, box->memory, box->bytes, &found);
	if (!result)
		result = pieces->name(mailboxes->device, &found, &exported, descriptors);
	if (!result && (exported.kind != FERRY_EXPORTED_IPC || found.all[0].bytes != box->bytes))
		return ferry_fail(ferryInvalidUsage, "an allocation of %llu bytes for mailboxes lies in one of %llu",
		                  (unsigned long long)box->bytes, (unsigned long long)found.all[0].bytes);
	if (!result)
		memcpy(cell->handle, exported.handle, sizeof cell->handle);
	return result;
}

static ferryResult_t make_own(struct ferry_mailboxes *mailboxes, uint32_t blocks)
{
	ferryResult_t result = ferry_modules_load(mailboxes->device);
	if (!result)
		result = make_box(mailboxes);
	return result ? result : describe_box(mailboxes, blocks);
}

/* ---- the others' ---- */

/* Whether the rank is of this process, by what its line says. */
static bool is_near(const struct ferry_rank *rank, int other)
{
	const struct ferry_rank_line *own = ferry_rank_line(&rank->shared, (uint32_t)rank->self),
	                             *line = ferry_rank_line(&rank->shared, (uint32_t)other);
	return atomic_load_explicit(&own->process, memory_order_acquire) ==
	               atomic_load_explicit(&line->process, memory_order_acquire) &&
	       atomic_load_explicit(&own->process_start, memory_order_relaxed) ==
	               atomic_load_explicit(&line->process_start, memory_order_relaxed) &&
	       atomic_load_explicit(&own->process_names, memory_order_relaxed) ==
	               atomic_load_explicit(&line->process_names, memory_order_relaxed);
}

static ferryResult_t map_inbox(struct ferry_mailboxes *mailboxes, int other, void **inbox)
{
	const struct ferry_rank *rank = mailboxes->rank;
	const struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)other);
	struct ferry_box_claim claim = {.bytes = mailboxes->box->bytes};
	if (is_near(rank, other)) {
		struct ferry_device *device = ferry_box_of(mailboxes->box, other, inbox);
		return device ? mailboxes->device->ops->kernels->reach(mailboxes->device, device)
		              : ferry_fail(ferryInvalidUsage, "rank %d has no mailbox in this process", other);
	}
	memcpy(claim.handle, line->mailbox.handle, sizeof claim.handle);
	claim.process = atomic_load_explicit(&line->process, memory_order_relaxed);
	claim.start = atomic_load_explicit(&line->process_start, memory_order_relaxed);
	return ferry_box_import(mailboxes->box, &claim, inbox);
}

static ferryResult_t map_outbox(struct ferry_mailboxes *mailboxes, int other, void **outbox)
{
	const struct ferry_rank *rank = mailboxes->rank;
	const struct ferry_arena *arena = &rank->shared.arenas[rank->shared.rank_domain[other]];
	if (!arena->outbox_bytes)
		return ferry_fail(ferryInternalError, "the arena has no outboxes");
	return ferry_box_add_window(mailboxes->box, arena->descriptor,
	                            arena->outboxes_at + (uint64_t)other * arena->outbox_bytes,
	                            region_bytes(mailboxes) + channels_bytes(mailboxes), outbox);
}

ferryResult_t ferry_mailboxes_map_adds(struct ferry_mailboxes *mailboxes)
{
	const struct ferry_rank *rank = mailboxes->rank;
	const struct ferry_arena *arena = &rank->shared.arenas[rank->domain];
	if (mailboxes->adds)
		return ferrySuccess;
	if (!arena->outbox_bytes)
		return ferry_fail(ferryInternalError, "the arena has no outboxes");
	uint64_t outbox = arena->outboxes_at + (uint64_t)rank->self * arena->outbox_bytes;
	return ferry_box_add_window(mailboxes->box, arena->descriptor, outbox + FERRY_OUTBOX_ADDS, FERRY_ADD_BYTES,
	                            &mailboxes->adds);
}

/* Bit r: rank r has not said whether its GPU has room. */
static uint64_t without_room(const struct ferry_rank *rank)
{
	uint64_t ranks = 0;
	for (int other = 0; other < rank->nranks; other++)
		if (!atomic_load_explicit(&cell_of(rank, other)->adds, memory_order_relaxed))
			ranks |= 1ull << other;
	return ranks;
}

/*
 * A kernel of ADDs keeps its blocks while it waits for other ranks, whose streams may reach the call late. If such
 * blocks filled a GPU, the work ahead of another stream's call could not start there, and the kernels might wait for
 * that very call. So an eighth of each GPU's multiprocessors has no such block, however many streams a program has:
 *
 * - A communicator has two kernels of ADDs on a GPU at most. Kernel n waits, on the GPU, for its parity's kernel before
 *   (`launch_beside` in rank-lib/device/cuda.c). That adds no wait: call n begins when call n - 2 is over everywhere,
 *   so all kernels that kernel n waits for end before kernel n could add anything.
 * - Communicators have kernels of ADDs while two of each fit into the other seven eighths. One that does not fit has
 *   its sums elsewhere. It is not ordered behind others, as ranks may begin calls of two communicators in either order.
 *
 * Every other kernel can start then. One that needs the whole GPU at a time (a cooperative one) waits for those of
 * ADDs, as for any kernel that waits.
 */
ferryResult_t ferry_mailboxes_make_room(struct ferry_mailboxes *mailboxes, uint64_t until, bool *room)
{
	struct ferry_rank *rank = mailboxes->rank;
	struct ferry_mailbox_cell *cell = cell_of(rank, rank->self);
	const uint32_t most = atomic_load_explicit(&cell->multiprocessors, memory_order_relaxed) / 8 * 7;
	const uint32_t blocks = mailboxes->blocks < FERRY_ADD_BLOCKS ? mailboxes->blocks : FERRY_ADD_BLOCKS;
	*room = ferry_box_reserve(mailboxes->box, FERRY_PARITIES * blocks, most);
	atomic_store_explicit(&cell->adds, 1 + *room, memory_order_relaxed);
	ferry_rank_tell(rank);
	ferryResult_t result = ferry_rank_await(rank, until, without_room);
	for (int other = 0; other < rank->nranks && !result; other++)
		*room &= atomic_load_explicit(&cell_of(rank, other)->adds, memory_order_relaxed) > 1;
	if (result || *room)
		return result ? result : ferry_mailboxes_map_adds(mailboxes);
	ferry_box_reserve(mailboxes->box, 0, most);
	if (!rank->self)
		ferry_log(FERRY_LOG_INFO, "no sums up trees: other communicators' have the room of %u blocks on a GPU",
		          most);
	return ferrySuccess;
}

static void fill_channels(struct ferry_mailboxes *mailboxes, void *const *boxes)
{
	ferryChannels_t *channels = &mailboxes->channels;
	channels->size = sizeof *channels;
	channels->rank = mailboxes->rank->self;
	channels->nranks = mailboxes->rank->nranks;
	channels->host = !mailboxes->peer;
	channels->abort = mailboxes->blank.abort;
	for (int other = 0; other < channels->nranks; other++) {
		char *at = (char *)boxes[other] + channels_at(mailboxes);
		channels->signals[other] = (uint32_t *)(void *)at;
		channels->memory[other] = at + SIGNAL_BYTES;
	}
}

static ferryResult_t map_all(struct ferry_mailboxes *mailboxes)
{
	struct ferry_kernel_call *blank = &mailboxes->blank;
	int self = mailboxes->rank->self, nranks = mailboxes->rank->nranks;
	ferryResult_t result = ferrySuccess;
	void *boxes[FERRY_KERNEL_RANKS] = {0}; /* inboxes or outboxes */
	for (int other = 0; other < nranks && !result; other++)
		if (!mailboxes->peer)
			result = map_outbox(mailboxes, other, &boxes[other]);
		else if (other != self)
			result = map_inbox(mailboxes, other, &boxes[other]);
		else
			boxes[self] = mailboxes->box->memory;
	for (int other = 0; other < nranks && !result; other++) {
		if (other == self)
			continue;
		blank->out[other] = boxes[self];
		blank->in[other] = boxes[other];
		if (!mailboxes->peer)
			continue;
		blank->out[other] = region_at(mailboxes, boxes[other], other, self);
		blank->in[other] = region_at(mailboxes, boxes[self], self, other);
	}
	if (!result)
		fill_channels(mailboxes, boxes);
	/* a box in memory of peers has no window before it needs one: with one it is not used again (boxes.h) */
	return result || mailboxes->peer ? result : ferry_mailboxes_map_adds(mailboxes);
}

/* How many blocks the rank's calls may have, so that those of all ranks on its GPU run at the same time. */
static uint32_t blocks_of(const struct ferry_rank *rank, int other)
{
	const struct ferry_mailbox_cell *cell = cell_of(rank, other);
	uint32_t blocks = atomic_load_explicit(&cell->blocks, memory_order_relaxed), sharers = 0;
	uint32_t most = atomic_load_explicit(&cell->multiprocessors, memory_order_relaxed);
	for (int one = 0; one < rank->nranks; one++)
		sharers += !memcmp(cell_of(rank, one)->gpu, cell->gpu, sizeof cell->gpu);
	if (sharers < 2)
		return blocks;
	/* beside a rank's kernel its next one may be there, which waits for it, and two of messages */
	return blocks < most / (4 * sharers) ? blocks : most / (4 * sharers);
}

/*
 * Kernels that wait for each other must run at the same time: those of a process that shares a GPU with another one's
 * take turns with them. Ranks of one process that share one have a part each.
 */
static ferryResult_t compare_cells(struct ferry_mailboxes *mailboxes)
{
	const struct ferry_rank *rank = mailboxes->rank;
	const struct ferry_mailbox_cell *own = cell_of(rank, rank->self);
	bool doubles = true;
	mailboxes->blocks = FERRY_KERNEL_BLOCKS;
	for (int other = 0; other < rank->nranks; other++) {
		const struct ferry_mailbox_cell *cell = cell_of(rank, other);
		uint32_t blocks = blocks_of(rank, other);
		if (atomic_load_explicit(&cell->peer, memory_order_relaxed) != mailboxes->peer ||
		    (mailboxes->peer &&
		     atomic_load_explicit(&cell->bytes, memory_order_relaxed) != mailboxes->box->bytes))
			return ferry_fail(ferryInvalidUsage, "rank %d has other mailboxes (FERRY_FABRICS, "
			                                     "NCCL_P2P_DISABLE: the same on all ranks)", other);
		if (!blocks || blocks > FERRY_KERNEL_BLOCKS)
			return ferry_fail(ferryInternalError, "rank %d has %u blocks", other, blocks);
		if (other != rank->self && !memcmp(cell->gpu, own->gpu, sizeof own->gpu) && !is_near(rank, other))
			return ferry_fail(ferryInvalidUsage, "rank %d of another process is on the same GPU", other);
		mailboxes->blocks = blocks < mailboxes->blocks ? blocks : mailboxes->blocks;
		doubles &= atomic_load_explicit(&cell->doubles, memory_order_relaxed) &&
		           blocks == atomic_load_explicit(&cell->blocks, memory_order_relaxed);
	}
	mailboxes->line_blocks = mailboxes->blocks << doubles;
	if (mailboxes->line_blocks > FERRY_KERNEL_BLOCKS)
		mailboxes->line_blocks = FERRY_KERNEL_BLOCKS;
	return ferrySuccess;
}

/* Compares with the ranks that have said something. */
static ferryResult_t compare_channels(const struct ferry_mailboxes *mailboxes)
{
	const struct ferry_rank *rank = mailboxes->rank;
	for (int other = 0; other < rank->nranks; other++) {
		unsigned long long own = mailboxes->channel_bytes,
		                   bytes = atomic_load_explicit(&cell_of(rank, other)->channels, memory_order_relaxed);
		if (stage_of(rank, other) != FERRY_MAILBOX_UNKNOWN && bytes != own)
			return ferry_fail(ferryInvalidUsage,
			                  "ferryConfig_t.channels of %llu bytes, on rank %d of %llu: the same on all "
			                  "ranks",
			                  own, other, bytes);
	}
	return ferrySuccess;
}

/* ---- open and close ---- */

/* A rank that has left in order takes no part in later calls: such a call never ends, so this fails the job. */
static void fail_departed(const struct ferry_mailboxes *mailboxes, int other, const char *what)
{
	struct ferry_rank *rank = mailboxes->rank;
	char text[200];
	if (stage_of(rank, other) != FERRY_MAILBOX_LEFT ||
	    (!ferry_rank_failed(rank) && !ferry_departed_are_over(&rank->shared, 1ull << other)))
		return;
	snprintf(text, sizeof text, "rank %d has left the communicator: it takes no part in %s, which rank %d is in",
	         other, what, rank->self);
	ferry_rank_fail(rank, ferryRemoteError, text);
}

static void look_for_departed(const struct ferry_mailboxes *mailboxes, uint32_t number)
{
	const struct ferry_rank *rank = mailboxes->rank;
	char what[40];
	snprintf(what, sizeof what, "call %u of kernels", number);
	for (int other = 0; other < rank->nranks; other++)
		/* the stage first: until the rank has left, `last` is not there yet */
		if (stage_of(rank, other) == FERRY_MAILBOX_LEFT &&
		    (int32_t)(number - atomic_load_explicit(&cell_of(rank, other)->last, memory_order_relaxed)) > 0)
			fail_departed(mailboxes, other, what);
}

/*
 * What the rank has sent has been there since before it left, so a kernel that has looked since then waits in vain. Its
 * first report may be of a look before; the next but one is not.
 */
static void look_for_departed_message(struct ferry_mailboxes *mailboxes, int other)
{
	uint32_t *departed = &mailboxes->waits[FERRY_BOX_MESSAGES].departed;
	*departed += stage_of(mailboxes->rank, other) == FERRY_MAILBOX_LEFT;
	if (*departed > 2)
		fail_departed(mailboxes, other, "messages");
}

/* Reports the wait as FERRY_TIMEOUT says. Two ranks that wait for each other have made different calls. */
static void report_wait(struct ferry_mailboxes *mailboxes, enum ferry_box_line line, int other)
{
	const struct ferry_rank *rank = mailboxes->rank;
	struct ferry_mailbox_waits *waits = &mailboxes->waits[line];
	char text[160];
	uint64_t waited = ferry_now_ns() - waits->watchdog.since;
	if (!ferry_watchdog_is_due(&waits->watchdog, waited) || ferry_rank_ends_kernels(mailboxes->rank))
		return;
	bool differ = atomic_load_explicit(&cell_of(rank, other)->waits, memory_order_relaxed) ==
	              ((uint64_t)waits->number << 32 | (uint32_t)(1 + rank->self));
	if (line == FERRY_BOX_MESSAGES)
		snprintf(text, sizeof text, "for a message to or from rank %d", other);
	else
		snprintf(text, sizeof text, "in call %u of kernels for rank %d, which %s", waits->number, other,
		         differ ? "waits for it there: they have made different calls"
		                : "has not made that call, or another one");
	ferry_watchdog_report(&waits->watchdog, waited, text);
}

/* Reads what waiting kernels say (kernel_call.h). */
static void look_for_waits(struct ferry_mailboxes *mailboxes, enum ferry_box_line line)
{
	const struct ferry_stream_flag *aborted = mailboxes->box->aborted;
	const _Atomic uint64_t *words = line == FERRY_BOX_MESSAGES ? aborted->passed : aborted->waits;
	struct ferry_mailbox_waits *waits = &mailboxes->waits[line];
	uint64_t other = atomic_load_explicit(&words[0], memory_order_relaxed),
	         said = atomic_load_explicit(&words[1], memory_order_relaxed);
	uint32_t number = (uint32_t)said;
	uint64_t now = ferry_now_ns();
	bool is_new = said != waits->said, says_whom = is_new && other < (uint64_t)mailboxes->rank->nranks;
	/* a call's number is its own, however seldom its kernel has a processor; messages may share one */
	bool goes_on = waits->watchdog.since && number == waits->number &&
	               (line == FERRY_BOX_CALLS || now - waits->heard_ns <= SILENT_NS);
	if (is_new)
		waits->heard_ns = now;
	/* a kernel that waits says so again and again; an old word may be of 2^31 calls before */
	if (says_whom && line == FERRY_BOX_CALLS)
		look_for_departed(mailboxes, number);
	else if (says_whom)
		look_for_departed_message(mailboxes, (int)other);
	if (!goes_on)
		waits->watchdog = (struct ferry_watchdog){.rank = mailboxes->rank, .since = is_new ? now : 0};
	waits->said = said;
	waits->number = number;
	if (line == FERRY_BOX_CALLS && (is_new || now - waits->heard_ns > SILENT_NS))
		atomic_store_explicit(&cell_of(mailboxes->rank, mailboxes->rank->self)->waits,
		                      is_new ? (uint64_t)number << 32 | (1 + other) : 0, memory_order_relaxed);
	if (says_whom)
		report_wait(mailboxes, line, (int)other);
}

/* Whether every router lives, and so would report ranks that die. By the router monitor, which alone replaces links. */
static bool are_served(struct ferry_rank *rank)
{
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		if (ferry_process_has_ended(rank->links[domain].process))
			return false;
	return !ferry_rank_failed(rank);
}

/* Looks for ranks that have died, where a router that would report that has died, too. */
static void look_for_dead(const struct ferry_mailboxes *mailboxes)
{
	struct ferry_rank *rank = mailboxes->rank;
	char text[100];
	for (int other = 0; other < rank->nranks && !are_served(rank) && !ferry_rank_ends_kernels(rank); other++) {
		if (!ferry_rank_has_ended(rank, (uint32_t)other) || stage_of(rank, other) == FERRY_MAILBOX_LEFT)
			continue;
		snprintf(text, sizeof text, "rank %d of %d died after a router", other, rank->nranks);
		ferry_log(FERRY_LOG_WARN, "rank %d: calls by kernels end: %s", rank->self, text);
		ferry_rank_abort(rank, text);
	}
}

static void watch(struct ferry_monitor_entry *entry)
{
	struct ferry_mailboxes *mailboxes = (struct ferry_mailboxes *)entry;
	for (int line = 0; line < FERRY_BOX_LINES; line++)
		look_for_waits(mailboxes, line);
	look_for_dead(mailboxes);
	if (ferry_rank_ends_kernels(mailboxes->rank))
		atomic_store_explicit(&mailboxes->box->aborted->flag, 1, memory_order_release);
}

/* This rank cannot, or need not any more: so no rank has kernels. */
static void refuse(struct ferry_mailboxes *mailboxes, const char *why)
{
	ferry_log(FERRY_LOG_INFO, "rank %d: no kernels for short calls: %s", mailboxes->rank->self, why);
	snprintf(mailboxes->why_not, sizeof mailboxes->why_not, "%s", why);
	mailboxes->channels.bytes = 0;
	publish(mailboxes->rank, FERRY_MAILBOX_REFUSED);
	ferry_mailboxes_close(mailboxes);
}

static ferryResult_t map_agreed(struct ferry_mailboxes *mailboxes)
{
	ferryResult_t result = compare_channels(mailboxes);
	if (!result)
		result = compare_cells(mailboxes);
	if (!result)
		result = map_all(mailboxes);
	if (!result) {
		mailboxes->entry = (struct ferry_monitor_entry){.descriptor = -1, .watch = watch};
		result = ferry_router_monitor_add(&mailboxes->entry);
		mailboxes->watched = !result;
	}
	return result;
}

static const char *why_others_refused(const struct ferry_mailboxes *mailboxes)
{
	return compare_channels(mailboxes) ? ferry_last_message() : "another rank has none";
}

/* In two steps, each of which every rank ends by saying whether it has succeeded. */
static ferryResult_t agree(struct ferry_mailboxes *mailboxes, uint32_t blocks, uint64_t until)
{
	struct ferry_rank *rank = mailboxes->rank;
	if (make_own(mailboxes, blocks)) {
		refuse(mailboxes, ferry_last_message());
		return ferrySuccess;
	}
	publish(rank, FERRY_MAILBOX_THERE);
	ferryResult_t result = ferry_rank_await(rank, until, without_mailbox);
	if (result)
		return result;
	if (any_refused(rank) || map_agreed(mailboxes)) {
		refuse(mailboxes, any_refused(rank) ? why_others_refused(mailboxes) : ferry_last_message());
		return ferrySuccess;
	}
	publish(rank, FERRY_MAILBOX_MAPPED);
	if ((result = ferry_rank_await(rank, until, without_all)))
		return result;
	mailboxes->ready = !any_refused(rank);
	if (!mailboxes->ready)
		refuse(mailboxes, why_others_refused(mailboxes));
	return ferrySuccess;
}

ferryResult_t ferry_mailboxes_open(struct ferry_mailboxes *mailboxes, uint64_t until)
{
	uint32_t blocks;
	int nranks = mailboxes->rank->nranks;
	if (mailboxes->channel_bytes > CHANNELS_MOST)
		return ferry_fail(ferryInvalidArgument, "ferryConfig_t.channels of %llu bytes: %llu at most",
		                  (unsigned long long)mailboxes->channel_bytes, CHANNELS_MOST);
	if (!mailboxes->device->ops->kernels || nranks < 2 || nranks > (int)FERRY_KERNEL_RANKS)
		return ferrySuccess;
	ferryResult_t result = read_setting(mailboxes, &blocks);
	if (result)
		return result;
	atomic_store_explicit(&cell_of(mailboxes->rank, mailboxes->rank->self)->channels, mailboxes->channel_bytes,
	                      memory_order_relaxed);
	if (!blocks) {
		refuse(mailboxes, "FERRY_KERNELS=off");
		return ferrySuccess;
	}
	mailboxes->peer = ferry_fabrics_join_all(mailboxes->fabrics) && !peers_forbidden();
	result = agree(mailboxes, blocks, until);
	if (result)
		ferry_mailboxes_close(mailboxes);
	return result;
}

void ferry_mailboxes_count(struct ferry_mailboxes *mailboxes)
{
	struct ferry_mailbox_cell *cell = cell_of(mailboxes->rank, mailboxes->rank->self);
	const struct ferry_kernel_order *orders = mailboxes->box->orders;
	uint64_t calls = atomic_load_explicit(&cell->calls, memory_order_relaxed);
	atomic_store_explicit(&cell->calls, calls + 1, memory_order_relaxed);
	if (orders[FERRY_BOX_CALLS].mixed || orders[FERRY_BOX_MESSAGES].mixed)
		atomic_store_explicit(&cell->graphs, 1, memory_order_relaxed);
}

void ferry_mailboxes_wait(struct ferry_mailboxes *mailboxes)
{
	long pause_ns = 10000;
	while (mailboxes->ready && !ferry_rank_ends_kernels(mailboxes->rank) &&
	       !ferry_box_is_idle(mailboxes->box)) {
		nanosleep(&(struct timespec){0, pause_ns}, NULL);
		pause_ns = pause_ns < 1000000 ? 2 * pause_ns : pause_ns;
	}
}

void ferry_mailboxes_close(struct ferry_mailboxes *mailboxes)
{
	/* memory that others' kernels may still write to is not used again: of a rank that failed, or with channels */
	bool failed = ferry_rank_ends_kernels(mailboxes->rank), discard = failed || mailboxes->channels.bytes;
	bool graphs = any_has_graphs(mailboxes->rank); /* which may be replayed */
	if (mailboxes->watched)
		ferry_router_monitor_remove(&mailboxes->entry);
	if (!mailboxes->box)
		return;
	if (mailboxes->ready && !failed) {
		/* as it was when its calls were over */
		uint64_t counts = atomic_load_explicit(&mailboxes->box->aborted->scalar, memory_order_relaxed);
		atomic_store_explicit(&cell_of(mailboxes->rank, mailboxes->rank->self)->last, (uint32_t)counts,
		                      memory_order_relaxed);
		publish(mailboxes->rank, FERRY_MAILBOX_LEFT);
	}
	/* for graphs that are still replayed */
	atomic_store_explicit(&mailboxes->box->aborted->flag, 1, memory_order_release);
	ferry_box_give_back(mailboxes->box, discard || graphs, failed);
	mailboxes->box = NULL;
	mailboxes->adds = NULL;
	mailboxes->watched = mailboxes->ready = false;
}
