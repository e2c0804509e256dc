/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The arena: one job's shared memory in one domain. A router creates it; every rank of the job and every other router
 * of the job map it. It is shared memory without a name (ipc/shared_memory.h), handed over as a file descriptor. A page
 * of its windows that no process touches costs nothing, unless it is POSIX shared memory, locked, or registered with a
 * GPU.
 *
 * Layout: header | rank lines | export cells | rings | pair lines | agreement cells | shares | staging[parity] | pair
 * windows | counters[parity] | outboxes. All offsets are in the header. A process that maps the arena copies them once
 * and checks them (ferry_arena_map), and uses no offset out of shared memory afterwards. The agreement cells are in the
 * arena of domain 0 alone, those of calls first, then those of messages by pair; so is the table of shares.
 *
 * Outboxes are for ranks on GPUs that do not reach each other (rank-lib/kernels/mailboxes.h). An arena has room for one
 * per rank of the job; those of other domains' ranks stay untouched.
 *
 * There is room for the counters of any program. Where touching a page without memory raises SIGBUS, the counters of
 * Ferry's own programs have memory from the start, and others get it once a plan needs them
 * (ferry_arena_back_counters).
 *
 * Writers:
 * - The header's constants: the router, before it hands the arena out.
 * - header.attached, .present, .rank_domain, .reach, .nvlinks, .ready, .released, .left, .gone, .finished,
 *   .failure, .epoch: that router, and after its death the router that takes its place (router/failover/adoption.h).
 *   header.left: a rank sets its own bit where the router has ended and the rank waits for no other.
 * - header.fate: any rank, once, by compare and swap. header.failed: any process, 0 to 1 only.
 * - A rank line, in the arena of the rank's domain: the rank and its lanes, which run in the router where the router
 *   moves the rank's data. A rank that gives up before the job is ready fills in the failure of its line in every
 *   arena.
 * - An export cell: the rank `used`, the router `mapped` (ipc/export.h).
 * - A counter: the one instruction that owns it in the plan that the parity runs.
 * - An outbox: its rank's kernels; all ranks' kernels read it.
 * - A pair line: `d2h` and the slots its source, `h2d` and the post its destination.
 * - Agreement cells: ipc/agreement.h. Shares: ipc/shares.h. Doorbells: any process.
 *
 * Calls and parities: call number n (from 1) of a communicator uses parity n mod FERRY_PARITIES. A counter holds (n mod
 * 2^32) << 32 | slices published, so a counter left by an earlier call reads as "nothing yet" and nothing is ever
 * reset. Call n may touch its parity once every rank and every router with work have finished call n - FERRY_PARITIES.
 * A tag repeats after 2^32 calls; by then every plan that uses the counter has rewritten it, or the counter reads as
 * finished to no reader.
 */
#ifndef FERRY_IPC_ARENA_H
#define FERRY_IPC_ARENA_H

#include "ipc/agreement.h"
#include "ipc/descriptor.h"
#include "ipc/export.h"
#include "ipc/ferry_types.h"
#include "ipc/links.h"
#include "ipc/plan.h"
#include "ipc/shared_memory.h"
#include "ipc/shares.h"
#include "ipc/submission.h"
#include "ipc/wait.h"

#define FERRY_ARENA_MAGIC 0x46455241u /* "FERA" */
#define FERRY_ARENA_ABI 36u /* goes up when a field, or what one means, changes */
#define FERRY_PAIR_SLOTS 4
#define FERRY_PAIR_DATA 24u
#define FERRY_MESSAGE_BYTES 384
/* Of a rank: two halves for kernels, with room for 4 MiB of data, and messages (rank-lib/kernels/kernel_call.h); */
#define FERRY_OUTBOX_BYTES (FERRY_OUTBOX_ADDS + FERRY_ADD_BYTES)
#define FERRY_OUTBOX_ADDS (2u * ((5u << 20) + (100u << 10)) + (4u << 20) + 4096u + FERRY_OUTBOX_CHANNELS)
#define FERRY_OUTBOX_CHANNELS (4u << 20) /* before the last of them, for kernels of the caller's own, */
#define FERRY_ADD_BYTES 28672u           /* the last: struct ferry_add_cells of each parity */
#define FERRY_ADD_BLOCKS 16u
#define FERRY_OUTBOX_RANKS 8u /* jobs of more have none */
#define FERRY_STAGING_LEAST (FERRY_PARITIES * 4096u) /* a page per parity */
#define FERRY_STAGING_MOST (1ull << 40)

/*
 * How far the ADDs of a call in a rank's device memory are, which a kernel in the rank's stream makes. Words as of
 * counters. ADDs are numbered in the order of the plan's instructions.
 */
struct ferry_add_cells {
	/* slices that may be added: the H2D lane of the rank's router, release; the kernel acquires */
	_Atomic uint64_t open[FERRY_MOST_ADDS];
	/* slices of which that part is there: the kernel, release; the lane acquires, and publishes */
	_Atomic uint64_t done[FERRY_MOST_ADDS][FERRY_ADD_BLOCKS];
};
_Static_assert(2 * sizeof(struct ferry_add_cells) <= FERRY_ADD_BYTES, "one for each parity");

/* One cache line pair: no two counters share what a prefetcher moves together. */
struct ferry_counter {
	_Atomic uint64_t value;  /* release-stored by its writer after the slice's bytes; acquire-loaded by readers */
	_Atomic uint64_t length; /* variable plans: bytes of the chunk, stored before the first value of a call */
	/* variable plans: where the chunk goes in the receive buffer; stored with `length` by a WAIT_PUT's rank */
	_Atomic uint64_t target_offset;
	/*
	 * plans with a network: bytes that go over the instruction's path, and where they begin in the block; the
	 * router that divides the call stores both before it publishes its DIVIDE
	 */
	_Atomic uint64_t part, part_at;
	char pad[88];
};

static inline uint64_t ferry_counter_value(uint64_t call, uint32_t slices)
{
	return call << 32 | slices;
}

/** Slices published for this call: 0 while the counter still carries another call's tag. */
static inline uint32_t ferry_counter_slices(uint64_t value, uint64_t call)
{
	return (uint32_t)(value >> 32) == (uint32_t)call ? (uint32_t)value : 0;
}

/* Why a job ended. The writer fills code and message, then release-stores state = 1. */
struct ferry_failure {
	_Atomic uint32_t state;
	uint32_t code; /* ferryResult_t */
	char message[FERRY_MESSAGE_BYTES];
};

/* Why a router lost its context on a rank's GPU. The router then ends; ranks that give up read this afterwards. */
#define FERRY_LOSS_BYTES 376

struct ferry_loss {
	_Atomic uint64_t at_ns; /* when (ferry_now_ns), 0: never; stored last, with release */
	char message[FERRY_LOSS_BYTES]; /* the GPU, and CUDA's error */
};

/* A rank's arguments of ferryCommSplit number s, in slot s mod 2: color and key first, then seq = s with release. */
struct ferry_board {
	_Atomic uint64_t seq;
	_Atomic int32_t color, key;
};

/*
 * What one lane has done for its rank, and which rank it waits for: that lane alone writes it, relaxed but for `moves`.
 * All but the last two fields are for ferry-stat, and nothing depends on them.
 */
struct ferry_traffic {
	_Atomic uint64_t calls;  /* calls that have finished in this direction */
	_Atomic uint64_t bytes;  /* given to copies between the rank's buffers and staging, or among its buffers */
	_Atomic uint64_t blockers; /* ranks that it has waited for since `since` (ferry_now_ns); 0: none, or not long */
	_Atomic uint64_t since;
	/* when it last checked the rank's calls for progress (ferry_now_ns); every 50 ms or so while there are calls */
	_Atomic uint64_t looked;
	/* 1: a copy for the rank may be under way, or about to begin (rank-lib/failover/copy_quiesce.h) */
	_Atomic uint32_t moves;
	char pad[84];
};

/* How far a rank has come with its mailbox. A rank may refuse in place of any step but LEFT. */
enum ferry_mailbox_stage {
	FERRY_MAILBOX_UNKNOWN,
	FERRY_MAILBOX_THERE,  /* it has made its own */
	FERRY_MAILBOX_MAPPED, /* it has mapped those of all other ranks */
	FERRY_MAILBOX_LEFT,   /* its communicator has ended in order */
	FERRY_MAILBOX_REFUSED
};

/*
 * The rank's mailbox, as the other ranks need it (rank-lib/kernels/mailboxes.h): fields first, then stage with release.
 */
struct ferry_mailbox_cell {
	_Atomic uint32_t stage;  /* enum ferry_mailbox_stage */
	_Atomic uint32_t peer;   /* 1: in device memory; 0: in the arena */
	_Atomic uint32_t blocks; /* that a kernel may have on its GPU */
	_Atomic uint32_t multiprocessors; /* of its GPU */
	_Atomic uint32_t doubles; /* 1: long calls may have twice as many blocks */
	_Atomic uint64_t bytes;  /* of its mailbox in device memory; 0: it is in the arena */
	_Atomic uint64_t channels;       /* bytes that the rank has asked for, for kernels of the caller's own */
	uint8_t gpu[16];         /* its UUID */
	uint8_t handle[64];      /* a CUipcMemHandle */
	_Atomic uint64_t calls;  /* that the rank has made by kernels; relaxed */
	/* a kernel that waits: number of its call << 32 | 1 + the rank that it waits for; 0: none waits; relaxed */
	_Atomic uint64_t waits;
	_Atomic uint32_t last;   /* FERRY_MAILBOX_LEFT: number of its last call */
	_Atomic uint32_t graphs; /* 1: its kernels are in graphs, or were; relaxed */
	/* 1: its GPU has no room for the communicator's kernels of ADDs, 2: it has; 0: not known yet; relaxed */
	_Atomic uint32_t adds;
	_Atomic uint32_t ended; /* 1: it has failed, which ends calls by kernels; release, before `failure` */
};

/* Which process moves a rank's data. */
enum ferry_copy_quiesce_kind {
	FERRY_COPY_QUIESCE_UNKNOWN,
	FERRY_COPY_QUIESCE_ROUTER,    /* its domain's router */
	FERRY_COPY_QUIESCE_HOST_LANES /* its own lanes, of a host device */
};

struct ferry_rank_line {
	struct ferry_doorbell d2h; /* this rank's D2H lane sleeps here */
	struct ferry_doorbell h2d;
	struct ferry_doorbell app; /* this rank's callers of blocking functions */
	struct ferry_descriptor ring[FERRY_PARITIES];
	_Atomic uint64_t finished[FERRY_PARITIES]; /* last call that this rank has finished in the parity; release */
	struct ferry_board board[2];
	/* number of the last call by routers that the rank has made or is making: routers wake up ahead of its start */
	_Atomic uint64_t announced;
	/* enum ferry_copy_quiesce_kind, once it is settled; the rank, in its own domain's arena; release */
	_Atomic uint32_t copy_quiesce;
	/*
	 * 1: its lanes put nothing into other ranks' memory any more: the job has failed, or the lanes have released
	 * the rank. Writer: the process that hosts the lanes, from 0 to 1, release.
	 */
	_Atomic uint32_t stopped;
	/* bit d: the router of domain d has ended, and so has all that it began for this job; the rank, release */
	_Atomic uint32_t ended;
	/*
	 * For host devices, where other ranks' lanes put into the rank's memory (rank-lib/call/put_gate.h). shut: its
	 * lanes set it to 1 once no other lane may do that any more. putting: its D2H lane sets bit r while it puts
	 * into rank r's memory, or checks whether it may.
	 */
	_Atomic uint32_t shut;
	_Atomic uint64_t putting;
	/* its process, when that was started, and its pid namespace; the rank, as it attaches; `process` last */
	_Atomic uint64_t process_start, process_names;
	_Atomic uint32_t process;
	/* FERRY_TIMEOUT, as in struct ferry_timeout; the rank, before `copy_quiesce` */
	_Atomic uint32_t timeout_reports, timeout_fails;
	/* calls under way on the rank's own lanes; 0: a short call does not ring their bells; the rank, by fetch-add */
	_Atomic uint32_t lane_calls;
	struct ferry_failure failure;
	/* 1: a caller has begun messages and perhaps no thread waits for them; written by the thread that runs them */
	_Atomic uint32_t left_messages;
	char pad1[132];
	struct ferry_loss loss;          /* the router that moves the rank's data, as it dies */
	struct ferry_traffic traffic[2]; /* by direction: D2H, H2D */
	/* bytes pushed into each rank's memory, for ferry-stat; the rank's D2H lane, relaxed */
	_Atomic uint64_t pushed[FERRY_MAX_RANKS];
	/* bytes of its GPU's memory in bounce buffers, windows among them; for ferry-stat; the rank, relaxed */
	_Atomic uint64_t bounced;
	struct ferry_mailbox_cell mailbox; /* the rank */
	char pad2[128 - (8 + sizeof(struct ferry_mailbox_cell)) % 128];
};
_Static_assert(offsetof(struct ferry_rank_line, traffic) % 128 == 0 && sizeof(struct ferry_rank_line) % 128 == 0,
               "what a lane writes often is on line pairs of its own");

/*
 * Messages from one rank to another: one stream of slices, numbered from 0 over all messages. Slice g is in slot g mod
 * FERRY_PAIR_SLOTS.
 */
struct ferry_pair_slot {
	_Alignas(64) _Atomic uint64_t message; /* number of the message that the slice belongs to, from 1 */
	_Atomic uint64_t bytes;   /* of the whole message */
	_Atomic uint32_t type;
	_Atomic uint32_t pushed;  /* 1: the slice went into the destination's buffer, not into the slot's window */
	/*
	 * g + 1: slice g is published; stored with release, after `d2h`. A destination that polls this word gets a
	 * short message with one cache line from the source's core, as the data is beside it.
	 */
	_Atomic uint64_t there;
	_Atomic uint32_t inlined; /* 1: the slice is in `data`, and not in the slot's window */
	uint32_t reserved;
	char data[FERRY_PAIR_DATA];
};

/*
 * The destination's buffer for a pushed message: fields first, then `message` with release. The destination posts the
 * next one when this message has come. A destination that expects the message in the window posts nothing.
 */
struct ferry_pair_post {
	_Atomic uint64_t message; /* number, from 1 */
	_Atomic uint64_t bytes, generation, offset; /* as in a descriptor's put target */
	_Atomic uint32_t type, index;
};

/*
 * Which message one end is at, for a router that takes another's place. The end writes it when the message's turn
 * comes, into slot message mod 2: message = 0 first, then all other fields, then message with release. A message that
 * begins again keeps its slot as it is: slices of it may be published, and the other slot does not cover them.
 */
struct ferry_pair_turn {
	_Atomic uint64_t message; /* number, from 1; 0: none, or being replaced */
	_Atomic uint64_t base;    /* slices of all earlier messages */
	/*
	 * Of a message that was numbered when its stream came to it, else 0: the number of the call's first message
	 * between these ranks in this direction, and the call, as (1 + its stream flag) << 32 | its turn.
	 */
	_Atomic uint64_t first, call;
};

struct ferry_pair_line {
	struct ferry_counter d2h;                       /* value: slices published since the start; writer: source */
	struct ferry_counter h2d;                       /* value: slices taken since the start; writer: destination */
	struct ferry_pair_slot slots[FERRY_PAIR_SLOTS]; /* writer: source, before `d2h` covers the slice */
	struct ferry_pair_post post; /* writer: destination */
	char pad1[128 - sizeof(struct ferry_pair_post)];
	/* by direction, each that end's: the source's, the destination's */
	struct {
		struct ferry_pair_turn turns[2];
		char pad[128 - 2 * sizeof(struct ferry_pair_turn)];
	} ends[2];
};

/*
 * Whether an arena whose router dies goes to the next router, or all ranks attach anew. Rank 0 stores KEPT in the
 * arenas of all domains when all ranks have attached to all of them, before any router receives the others' arenas. Any
 * rank that finds its router dead before that stores GIVEN_UP. So all ranks do the same.
 */
enum ferry_arena_fate { FERRY_ARENA_OPEN, FERRY_ARENA_KEPT, FERRY_ARENA_GIVEN_UP };

struct ferry_arena_header {
	uint32_t magic, abi;
	uint64_t bytes;
	uint32_t domain, ndomains, nranks, parities;
	uint64_t rank_lines_at, export_cells_at, rings_at, pair_lines_at, agreements_at, shares_at, staging_at;
	uint64_t pair_windows_at, counters_at, outboxes_at;
	uint64_t staging;          /* bytes per parity */
	uint32_t counters;         /* per parity, with memory from the start; there is room for FERRY_MOST_COUNTERS */
	uint32_t pair_slot_bytes;  /* of a pair's window: the longest slice */
	uint64_t outbox_bytes;     /* of a rank; 0: the job's ranks are on no GPUs, or too many */
	_Atomic uint32_t attached; /* ranks attached; futex word */
	_Atomic uint64_t present;  /* bit r: rank r has attached; before `attached` counts it */
	/* 1: every rank has attached, and the router has mapped the other domains' arenas; 0 to 1, with release; futex
	   word */
	_Atomic uint32_t ready;
	_Atomic uint32_t failed;   /* 1: a failure cell of this job is filled, or the router is gone */
	uint8_t rank_domain[FERRY_MAX_RANKS]; /* valid once attached == nranks */
	/* bit t of reach[f]: this router moves the data of rank f, whose GPU reaches rank t's; before `ready` */
	_Atomic uint64_t reach[FERRY_MAX_RANKS];
	/* [from][to]: NVLinks of this router's ranks to those that they reach (ipc/gpu_links.h); before `ready` */
	_Atomic uint8_t nvlinks[FERRY_MAX_RANKS][FERRY_MAX_RANKS];
	/*
	 * bit r: this router has ended its copies for rank r and its puts into rank r's memory: none is under way, and
	 * none will begin; 0 to 1, with release
	 */
	_Atomic uint64_t released;
	/*
	 * bit r: rank r, of this domain, has left in order (ipc/publish.h); 0 to 1, with release, by fetch-or: the rank
	 * itself says so where the router has ended
	 */
	_Atomic uint64_t left;
	/*
	 * How many times a router here has died and been replaced. Stored with release once all ranks have attached to
	 * the new router. It is for ferry-stat and logs; nothing depends on it.
	 */
	_Atomic uint64_t epoch;
	/*
	 * bit r: rank r, of any domain, has died or aborted: its connection has closed without DETACH; 0 to 1, release
	 */
	_Atomic uint64_t gone;
	/* bytes of GPUs' memory that the job's tenant had left for windows (ferry_windows_need); before `ready` */
	_Atomic uint64_t windows_left;
	_Atomic uint32_t fate; /* enum ferry_arena_fate; from OPEN to one of the others, once, by compare and swap */
	char pad0[12];
	struct ferry_doorbell router;           /* this domain's router sleeps here on behalf of the job */
	_Atomic uint64_t
	        finished[FERRY_PARITIES]; /* last call with work here that the router has finished in the parity */
	struct ferry_failure failure;
	/* domain 0: when each modelled link that host devices share is free (ferry_now_ns); lanes, compare and swap */
	_Atomic uint64_t shared_busy_until[FERRY_MAX_SHARED_LINKS];
};

#define FERRY_RANK_WINDOWS (64u << 20) /* bytes of a GPU's memory for windows of a call, in each parity */

/* A process's view of an arena. Private memory, so the offsets cannot change under it. */
struct ferry_arena {
	struct ferry_arena_header *header;
	struct ferry_rank_line *rank_lines;
	/* by rank: the submissions of the ranks whose data this domain's router moves */
	struct ferry_ring *rings;
	/* [rank * FERRY_MOST_EXPORTS + index], of what ranks have exported to this domain's router */
	struct ferry_export_cell *export_cells;
	/* [source * nranks + destination]; a pair uses the line in the arena of its source's domain */
	struct ferry_pair_line *pair_lines;
	char *agreements;
	struct ferry_share_table *shares; /* in domain 0's alone */
	struct ferry_counter *counters[FERRY_PARITIES];
	char *staging[FERRY_PARITIES];
	char *pair_windows;
	uint64_t outboxes_at;  /* from the start of the shared memory */
	uint64_t bytes, staging_bytes, outbox_bytes;
	uint32_t ncounters, nranks, ndomains, domain, pair_slot_bytes;
	int descriptor; /* of the shared memory; -1 once closed */
	bool sealed;    /* no process can truncate it */
};

struct ferry_arena_shape {
	uint32_t domain, ndomains, nranks;
	uint64_t staging; /* bytes for all windows of collectives together */
	int node;         /* NUMA node to bind to; -1: none */
	bool gpus;        /* its ranks are on GPUs: they have outboxes if there are few of them */
	enum ferry_shared_kind kind;
};

/**
 * Creates an arena, binds it to its NUMA node and fills in the header; ferry_arena_unmap frees it. Windows get no
 * memory yet. Errors: ferrySystemError with the sizes; ferryInvalidArgument for a shape out of range.
 */
ferryResult_t ferry_arena_create(const struct ferry_arena_shape *shape, struct ferry_arena *arena);

/**
 * Allocates the windows' memory where a missing page would raise SIGBUS; to be called before they are used. May take
 * seconds. Ends early once *given_up is not 0, unless given_up is NULL. Error: ferrySystemError with the sizes (no room
 * in /dev/shm, or given up).
 */
ferryResult_t ferry_arena_allocate(const struct ferry_arena *arena, const _Atomic uint32_t *given_up);

/**
 * Maps an arena, which then owns the descriptor; a failure closes it. Checks magic, ABI, sizes and every offset.
 * Errors: ferryRefused for another magic or ABI, ferryInternalError for an inconsistent header, ferrySystemError.
 */
ferryResult_t ferry_arena_map(int descriptor, struct ferry_arena *arena);

void ferry_arena_unmap(struct ferry_arena *arena);

/** Returns the bytes of such an arena's windows and outboxes: nearly all the memory that it can take. */
uint64_t ferry_arena_window_bytes(const struct ferry_arena_shape *shape);

/**
 * Allocates memory for the first `counters` counters of each parity; pages that have memory stay as they are. A rank or
 * a router calls it for every arena before it reads a plan's counters: where there is no memory, touching a counter
 * raises SIGBUS. Errors: ferrySystemError with the bytes that are missing; ferryProgramError beyond
 * FERRY_MOST_COUNTERS.
 */
ferryResult_t ferry_arena_back_counters(const struct ferry_arena *arena, uint32_t counters);

/** Returns the cells of a rank of this domain in that parity. The arena has outboxes. */
static inline struct ferry_add_cells *ferry_arena_add_cells(const struct ferry_arena *arena, uint32_t rank,
                                                            uint32_t parity)
{
	char *outbox = (char *)arena->header + arena->outboxes_at + rank * arena->outbox_bytes;
	return (struct ferry_add_cells *)(void *)(outbox + FERRY_OUTBOX_ADDS) + parity;
}

/** Returns all windows, *bytes in whole pages: what copy engines read and write, and so what GPUs register. */
static inline void *ferry_arena_windows(const struct ferry_arena *arena, uint64_t *bytes)
{
	*bytes = (uint64_t)((char *)arena->counters[0] - arena->staging[0]);
	return arena->staging[0];
}

static inline char *ferry_pair_window(const struct ferry_arena *arena, uint32_t source, uint32_t destination)
{
	return arena->pair_windows +
	       ((uint64_t)source * arena->nranks + destination) * FERRY_PAIR_SLOTS * (uint64_t)arena->pair_slot_bytes;
}

/** Opens the agreement on calls of all ranks, for rank self. In domain 0's arena. */
void ferry_arena_agreement(const struct ferry_arena *arena, uint32_t self, struct ferry_agreement *agreement);

/** Opens the agreement on messages of an ordered pair, for the end `self`: 0 the source, 1 the destination. */
void ferry_arena_agreement_pair(const struct ferry_arena *arena, uint32_t source, uint32_t destination, uint32_t self,
                                struct ferry_agreement *agreement);

/** Fills in a failure cell unless it is filled already. The caller is the cell's only writer. */
void ferry_failure_set(struct ferry_failure *failure, ferryResult_t code, const char *message);

/**
 * Returns false if no failure is filled in. Else copies its code and its message, each byte read once, as another
 * process may be writing there. Bytes that would end a line, or control a terminal, become '?'. The message is never
 * empty.
 */
bool ferry_failure_read(const struct ferry_failure *failure, uint32_t *code, char message[FERRY_MESSAGE_BYTES]);

/** Records why the router that moves the rank's data is about to end. One thread at a time. */
void ferry_loss_set(struct ferry_loss *loss, uint64_t now, const char *message);

/** Returns the time of the last loss and its message, read as a failure's message is; 0: there was none. */
uint64_t ferry_loss_read(const struct ferry_loss *loss, char message[FERRY_LOSS_BYTES]);

/** Returns a failure cell's code as a result; `otherwise` if the code is ferrySuccess or invalid. */
static inline ferryResult_t ferry_failure_result(uint32_t code, ferryResult_t otherwise)
{
	return code && code < ferryNumResults ? (ferryResult_t)code : otherwise;
}

#endif
