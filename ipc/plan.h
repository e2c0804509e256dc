/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The compiled plan: what a rank and a router execute, and the one validator that both run on every plan they are
 * handed.
 *
 * A plan is one contiguous, position-independent blob: a header, then arrays of instructions, edges and sources. Every
 * rank of a communicator compiles the same bytes (rank-lib/program/compile.c); ranks compare the hash. A plan is
 * constant once it has its hash. A router copies the blob out of reach of the ranks before it validates it.
 *
 * Execution is by slices. Instruction i runs slice k as soon as each of its edges holds. An edge (counter, lag) holds
 * when
 *     counter >= min(k + 1, slices of the edge's instruction) - lag          (lag 0: data dependence)
 * so an edge with lag 0 says "slice k of that instruction is there" and an edge with lag W says "slice k - W has been
 * read", which is what makes slot k mod W of a window reusable. Instruction i publishes slice k by storing k + 1 in its
 * own counter. Every version of a chunk has its own window (single assignment), so redoing a slice is harmless.
 */
#ifndef FERRY_IPC_PLAN_H
#define FERRY_IPC_PLAN_H

#include "ipc/collective.h"
#include "ipc/paths.h"

#include <stdbool.h>
#include <stdint.h>

enum ferry_opcode {
	/*
	 * rank's send buffer -> staging window; FERRY_INSTR_MEMORY: -> window in rank `peer`'s memory, and with a
	 * source, from that window in the rank's own memory
	 */
	FERRY_D2H,
	FERRY_H2D, /* staging window -> rank's receive buffer */
	/* rank's send buffer -> its own receive buffer: the part of the output that is the rank's own input */
	FERRY_COPY,
	FERRY_REDUCE, /* N windows of one domain -> window of that domain, by that domain's router */
	FERRY_H2H,    /* window -> window of another domain, by the router of the destination */
	/*
	 * rank's send or receive buffer, or with a source a window in the rank's own memory -> another rank's receive
	 * buffer, by the process that moves the former's data
	 */
	FERRY_PUT,
	/* copies nothing: waits until another rank's PUT into the receive buffer is over, so that the call may end */
	FERRY_WAIT_PUT,
	/*
	 * copies nothing: in an alltoallv with a network, one domain's router settles how much of each block goes over
	 * which path, and stores that in the instructions' counters (router/engine/division.h)
	 */
	FERRY_DIVIDE,
	/* N windows in the rank's own device memory -> window there, by a kernel in the rank's stream */
	FERRY_ADD,
	FERRY_NUM_OPCODES
};

/** As programs spell it. */
static inline const char *ferry_opcode_name(uint8_t opcode)
{
	static const char *const names[FERRY_NUM_OPCODES] = {"D2H", "H2D", "COPY", "REDUCE", "H2H", "PUT", "WAIT_PUT",
	                                                    "DIVIDE", "ADD"};
	return opcode < FERRY_NUM_OPCODES ? names[opcode] : "no opcode";
}

/** Executed by the workers of a domain's router; else by a lane, for a rank. */
static inline bool ferry_opcode_is_work(uint8_t opcode)
{
	return opcode == FERRY_REDUCE || opcode == FERRY_H2H || opcode == FERRY_DIVIDE;
}

/** Executed by a rank's D2H lane. */
static inline bool ferry_opcode_is_d2h(uint8_t opcode)
{
	return opcode == FERRY_D2H || opcode == FERRY_PUT;
}

/** Executed by a rank's H2D lane; of an ADD it opens slices, and publishes them. */
static inline bool ferry_opcode_is_h2d(uint8_t opcode)
{
	return opcode == FERRY_H2D || opcode == FERRY_COPY || opcode == FERRY_WAIT_PUT || opcode == FERRY_ADD;
}

/** Reads its rank's send buffer; a PUT that forwards (ferry_instr.flags) reads the receive buffer. */
static inline bool ferry_opcode_sends(uint8_t opcode)
{
	return opcode == FERRY_D2H || opcode == FERRY_COPY || opcode == FERRY_PUT;
}

/** Writes its rank's receive buffer, or (WAIT_PUT) waits for a PUT that does. */
static inline bool ferry_opcode_receives(uint8_t opcode)
{
	return ferry_opcode_is_h2d(opcode) && opcode != FERRY_ADD;
}

/** Writes the window of the instruction. */
static inline bool ferry_opcode_writes_window(uint8_t opcode)
{
	return opcode == FERRY_D2H || opcode == FERRY_REDUCE || opcode == FERRY_H2H || opcode == FERRY_ADD;
}

/** Has a window: it reads or writes it. */
static inline bool ferry_opcode_has_window(uint8_t opcode)
{
	return opcode == FERRY_H2D || ferry_opcode_writes_window(opcode);
}

#define FERRY_PLAN_MAGIC 0x46455052u /* "FEPR" */
/* Calls take turns on this many halves of counters and staging (ipc/arena.h). */
#define FERRY_PARITIES   2
#define FERRY_MAX_WINDOW 1024 /* slots: routers keep a cache line for each */

/* instructions in one domain: an arena has room for their counters, and the checker refuses programs of more */
#define FERRY_MOST_COUNTERS (1u << 17)

/* ADDs of a rank, sources of all of them together, and of each: a kernel has room for so many (kernel_call.h) */
#define FERRY_MOST_ADDS        96u
#define FERRY_MOST_ADD_SOURCES 384u
#define FERRY_ADD_RANKS        8u

#define FERRY_PLAN_ABI 10u /* goes up when a field, or what one means, changes */
#define FERRY_PLAN_MAX_BYTES (64u << 20)
#define FERRY_PLAN_MOST_MEMORY (1ull << 40) /* bytes of `memory` */
#define FERRY_PARTIAL 0xffffu /* ferry_source.rank of a source that is itself a result of a REDUCE */

/* ferry_plan.flags */
/* alltoallv: lengths and offsets of D2H, H2D, COPY, PUT come with each call, see ferry_instr.chunk */
#define FERRY_PLAN_VARIABLE 1u
/* copy engines read and write the windows: results must not stay in a core's private cache */
#define FERRY_PLAN_DMA 2u
#define FERRY_PLAN_PUTS 8u     /* has PUTs: no rank puts before all ranks are known to make this call */

/* ferry_instr.flags */
#define FERRY_INSTR_FINAL 1u   /* REDUCE, ADD of all ranks' contributions: an average of integers divides here */
#define FERRY_INSTR_FORWARDS 2u /* PUT that reads its rank's receive buffer: what has come there */
/*
 * D2H, H2D, ADD: the window is in rank `peer`'s own memory: on GPUs a window of device memory (window_domain), on host
 * devices of the staging of that rank's domain. A D2H of another rank reaches it over the link between the two.
 */
#define FERRY_INSTR_MEMORY 4u

struct ferry_plan {
	uint32_t magic;
	uint32_t abi;
	uint64_t bytes;      /* of the whole blob */
	uint64_t hash;       /* of the whole blob with this field zero */
	/* elements, as the collective's API call counts them (per rank); 0 with FERRY_PLAN_VARIABLE */
	uint64_t count;
	uint32_t slice;      /* bytes per slice, a multiple of 64 */
	uint32_t window;     /* slots per chunk version, >= 1 */
	uint32_t ninstrs, nedges, nsources;
	uint32_t root;
	uint8_t collective;  /* enum ferry_collective */
	uint8_t type;        /* ferryDataType_t */
	uint8_t redop;       /* ferrySum..ferryAvg, or ferryNumOps for premulsum */
	uint8_t flags;
	uint8_t nranks, ndomains;
	uint16_t nchunks;    /* of the program */
	uint8_t rank_domain[FERRY_MAX_RANKS];
	uint64_t staging[FERRY_MAX_DOMAINS];  /* bytes of windows in each domain; windows are 128-byte aligned in it */
	uint32_t counters[FERRY_MAX_DOMAINS]; /* counters used in each domain */
	uint32_t instrs_at, edges_at, sources_at; /* byte offsets of the arrays from the start of the blob */
	uint32_t workers;    /* of a router that work on a call of this plan at a time, at most; 0: all it has */
	/* each call starts this many slots further on in its windows than the call before in the same staging */
	uint32_t advance;
	/* byte offset of a struct ferry_network; 0: none. With one, and only then, the last instruction is a DIVIDE */
	uint32_t network_at;
	/*
	 * bytes of a half of each rank's device memory, one for each parity: windows in domain FERRY_MAX_DOMAINS + r
	 * lie in rank r's. The same in all plans of a communicator that have such windows; else 0
	 */
	uint64_t memory;
};

struct ferry_instr {
	uint8_t opcode;   /* enum ferry_opcode */
	/* REDUCE, H2H: the domain whose router runs it; the others: the rank */
	uint8_t owner;
	uint8_t domain;   /* whose arena has this instruction's counter: the rank's domain, or owner */
	uint8_t flags;
	uint16_t line;    /* of the program's text, for people; 0 if synthesized away */
	/* variable plans: the peer rank whose part this is (index into the call's counts and offsets) */
	uint16_t chunk;
	uint32_t counter; /* index among the domain's counters of this plan; one instruction writes one counter */
	uint32_t nslices; /* ceil(length / slice); 0 for an empty chunk. Variable plans: 0, known at the call */
	uint64_t length;  /* bytes. Variable plans: 0, known at the call */
	/*
	 * D2H, COPY, PUT: bytes into the send buffer; H2D, WAIT_PUT, PUT that forwards: bytes into the receive buffer
	 */
	uint64_t user_offset;
	uint64_t user_destination; /* COPY: bytes into the receive buffer; PUT: into that of `peer` */
	/* D2H, REDUCE, H2H: the window written; H2D: the window read; bytes into the staging */
	uint64_t window_offset;
	uint8_t window_domain;  /* the domain of that staging; FERRY_MAX_DOMAINS + r: rank r's device memory instead */
	uint8_t wakes_domains;     /* bit d: router d waits for this counter */
	/* PUT: the rank that receives; WAIT_PUT: the rank that sends; FERRY_INSTR_MEMORY: the memory's rank; else 0 */
	uint8_t peer;
	uint8_t reserved8;
	uint32_t first_edge, nedges;
	/* REDUCE, ADD: >= 1; H2H: 1; D2H, PUT from the rank's own memory: 1; others 0 */
	uint32_t first_source, nsources;
	/*
	 * With a network: 1 + the number, among the paths from rank `from` to rank `to`, of the path that this
	 * instruction is a part of; 0: what it moves is not divided
	 */
	uint16_t path;
	uint8_t from, to;
	uint64_t wakes_d2h; /* bit r: rank r's D2H lane waits for this counter */
	uint64_t wakes_h2d; /* bit r: rank r's H2D lane (COPYs included) waits for this counter */
};

struct ferry_edge {
	uint32_t instr; /* the instruction waited for, in this plan; its counter, domain and slice count are there */
	uint32_t lag;   /* 0, or slots: the window W, or fewer (a guard: tuning.h) */
};

struct ferry_source {
	uint64_t window_offset;
	uint16_t domain; /* as window_domain; REDUCE: the instruction's own domain */
	uint16_t rank;   /* the contributing rank (premulsum scales it), or FERRY_PARTIAL */
	uint32_t reserved;
};

/** Whether the window of that domain lies in a rank's device memory. */
static inline bool ferry_window_is_on_device(uint32_t window_domain)
{
	return window_domain >= FERRY_MAX_DOMAINS;
}

/** How many calls of this parity have been in its staging before call number `seq`. */
static inline uint64_t ferry_plan_lap(uint64_t seq)
{
	return seq / FERRY_PARITIES;
}

/** Returns the offset in a window of slice `slice` of call number `seq`, in bytes. */
static inline uint64_t ferry_plan_slot(const struct ferry_plan *plan, uint64_t seq, uint32_t slice)
{
	return (ferry_plan_lap(seq) * plan->advance + slice) % plan->window * plan->slice;
}

static inline const struct ferry_instr *ferry_plan_instrs(const struct ferry_plan *plan)
{
	return (const struct ferry_instr *)((const char *)plan + plan->instrs_at);
}

static inline const struct ferry_edge *ferry_plan_edges(const struct ferry_plan *plan)
{
	return (const struct ferry_edge *)((const char *)plan + plan->edges_at);
}

static inline const struct ferry_source *ferry_plan_sources(const struct ferry_plan *plan)
{
	return (const struct ferry_source *)((const char *)plan + plan->sources_at);
}

/** NULL: calls of the plan are not divided among paths. */
static inline const struct ferry_network *ferry_plan_network(const struct ferry_plan *plan)
{
	return plan->network_at ? (const struct ferry_network *)((const char *)plan + plan->network_at) : NULL;
}

/** The DIVIDE of a plan with a network: its last instruction. */
static inline const struct ferry_instr *ferry_plan_division(const struct ferry_plan *plan)
{
	return plan->network_at ? &ferry_plan_instrs(plan)[plan->ninstrs - 1] : NULL;
}

/** Returns the hash of a plan's bytes, its own hash field taken as zero. */
uint64_t ferry_plan_hash(const struct ferry_plan *plan);

/** What a plan must fit into: the arena of each domain, per parity. */
struct ferry_plan_room {
	uint32_t nranks, ndomains;
	const uint8_t *rank_domain;                   /* nranks entries */
	uint64_t staging[FERRY_MAX_DOMAINS];          /* bytes */
	uint32_t counters[FERRY_MAX_DOMAINS];
};

/**
 * Checks every field of a blob of `bytes` bytes that no other process can write to: bounds of all arrays and indexes,
 * windows inside the staging and not overlapping, counters unique, edges acyclic at equal slice (so that the plan
 * cannot deadlock, whatever the window), lags from 0 to W, wake masks that cover every waiter, sources of the
 * instruction's length, that a PUT waits for the writer of the bytes that it forwards, a WAIT_PUT for each PUT, readers
 * and writers of a window on the same path, opcode and owner consistent, hash right. A valid plan touches nothing
 * outside its staging and counters, and ends. Errors: ferryProgramError with the index of the instruction and the
 * values; ferrySystemError if there is no memory.
 */
ferryResult_t ferry_plan_validate(const void *blob, uint64_t bytes, const struct ferry_plan_room *room);

#endif
