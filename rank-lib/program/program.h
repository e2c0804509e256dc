/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A collective as text: parse it, check it, write one from a topology, compile it to a plan (ipc/plan.h).
 * docs/program-language.md has the grammar and the semantics; here is the interface. No function keeps state.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_H
#define FERRY_RANK_LIB_PROGRAM_H

#include "ipc/collective.h"
#include "ipc/links.h"
#include "ipc/plan.h"
#include "rank-lib/program/limits.h"

/** A chunk of host memory, host@domain[chunk], or of a rank's memory, mem@rank[chunk]: FERRY_MAX_DOMAINS + rank. */
struct ferry_place {
	uint16_t domain;
	uint16_t chunk;
};

static inline bool ferry_place_is_memory(struct ferry_place place)
{
	return place.domain >= FERRY_MAX_DOMAINS;
}

static inline struct ferry_place ferry_place_memory(uint32_t rank, uint32_t chunk)
{
	return (struct ferry_place){(uint16_t)(FERRY_MAX_DOMAINS + rank), (uint16_t)chunk};
}

struct ferry_dependency {
	struct ferry_place place;
	uint32_t version; /* host@domain[chunk] >= version */
};

/** One line of a program. */
struct ferry_statement {
	/*
	 * FERRY_D2H, FERRY_H2D, FERRY_REDUCE, FERRY_H2H or FERRY_PUT. The first four, with places in ranks' memory, are
	 * PUT gpu -> mem, PUT mem -> gpu, ADD and PUT mem -> mem in the text. A PUT whose source is in its rank's
	 * memory is PUT mem -> gpu@r, and has no `gpu`.
	 */
	uint8_t opcode;
	uint16_t rank;
	uint32_t line;
	/*
	 * D2H: the chunk of the send buffer; H2D: that of the receive buffer; PUT: the chunk that it reads, of the send
	 * buffer or, if it forwards, of the receive buffer, into which an H2D or another PUT has brought it.
	 */
	uint16_t gpu;
	bool forwards;                          /* PUT; in the text a dependency gpu[i]>=1 on what it reads */
	uint16_t peer, peer_gpu;                /* PUT: the rank, and the chunk of its receive buffer */
	struct ferry_place source, destination; /* the host sides */
	uint32_t ndependencies;
	struct ferry_dependency *dependencies;
};

struct ferry_program {
	char *name;         /* file name, or "synthesized" */
	enum ferry_collective collective;
	uint32_t nranks, ndomains, nchunks, root;
	uint8_t rank_domain[FERRY_MAX_RANKS]; /* where each rank's host[...] is */
	/*
	 * header `bytes LEAST..MOST` (K, M, G): the message sizes (count x element) for which a program on
	 * FERRY_PROGRAM_PATH replaces the built-in one; default 0 and UINT64_MAX
	 */
	uint64_t least_bytes, most_bytes;
	uint32_t nstatements;
	struct ferry_statement *statements;
};

/** The domain whose staging holds the place; for a rank's memory, that of the rank. */
static inline uint32_t ferry_place_domain(const struct ferry_program *program, struct ferry_place place)
{
	return ferry_place_is_memory(place) ? program->rank_domain[place.domain - FERRY_MAX_DOMAINS] : place.domain;
}

/** Whether it is a PUT from its rank's memory into another rank's receive buffer. */
static inline bool ferry_statement_puts_memory(const struct ferry_statement *statement)
{
	return statement->opcode == FERRY_PUT && ferry_place_is_memory(statement->source);
}

/** Whether its source or destination is in a rank's memory. */
static inline bool ferry_statement_uses_memory(const struct ferry_statement *statement)
{
	return ((statement->opcode == FERRY_H2D || statement->opcode == FERRY_PUT) &&
	        ferry_place_is_memory(statement->source)) ||
	       (statement->opcode != FERRY_PUT && ferry_place_is_memory(statement->destination));
}

/** As programs spell it: with places in ranks' memory D2H, H2D and H2H are PUT, REDUCE is ADD. */
static inline const char *ferry_statement_name(const struct ferry_statement *statement)
{
	if (!ferry_statement_uses_memory(statement))
		return ferry_opcode_name(statement->opcode);
	return statement->opcode == FERRY_REDUCE ? "ADD" : "PUT";
}

/** Whether it moves a chunk from a rank's memory to another rank's. */
static inline bool ferry_statement_passes_on(const struct ferry_statement *statement)
{
	return statement->opcode == FERRY_H2H && ferry_place_is_memory(statement->source);
}

/** Defaults for what the text does not say (HyLink's Figure 3 has no header). FERRY_NUM_COLLECTIVES and zeros: none. */
struct ferry_program_defaults {
	enum ferry_collective collective;
	uint32_t nranks, ndomains, root;
	const uint8_t *rank_domain; /* nranks entries, or NULL: ranks in equal blocks over the domains */
};

/**
 * Parses text of `bytes` bytes, which need not end in NUL; `name` names it in errors. The caller frees *program by
 * ferry_program_free. Errors: ferryProgramError, message "name:line:column: expected X, found Y".
 */
ferryResult_t ferry_program_parse(const char *name, const char *text, size_t bytes,
                                  const struct ferry_program_defaults *defaults, struct ferry_program **program);
void ferry_program_free(struct ferry_program *program);

/** Writes the program as text that parses to the same program. The text is the caller's to free(). */
ferryResult_t ferry_program_print(const struct ferry_program *program, char **text);

/**
 * The checker: bounds; every version named exists; writers of a chunk ordered; no cycle (hence no deadlock, even with
 * one-slot windows); and by symbolic execution that every rank's output is what the collective demands, no contribution
 * missing or double. Errors: ferryProgramError, message "name:line: reason".
 */
ferryResult_t ferry_program_check(const struct ferry_program *program);

/** The machine as a synthesizer sees it. */
struct ferry_topology {
	uint32_t nranks, ndomains;
	uint8_t rank_domain[FERRY_MAX_RANKS];
	/* all domains are in one NUMA node, and copy engines reach all of it alike: no data needs to cross domains */
	bool together;
};

/**
 * Writes the program for a collective on a topology: every chunk goes up once and crosses a domain boundary the fewest
 * times (HyLink Figure 1(c)). root is used by rooted collectives.
 */
ferryResult_t ferry_program_synthesize(enum ferry_collective collective, const struct ferry_topology *topology,
                                       uint32_t root, struct ferry_program **program);

/**
 * Writes the program that moves a collective's data by PUTs over these links (synthesize_peer.c): all pairs, rings or
 * trees, whichever needs the least time by ferry_program_peer_time. Data for ranks that no link leads to goes through
 * the host. Error: ferryInvalidUsage, with the reason, if the collective has sums and links do not connect the ranks,
 * or if there is no link at all.
 */
ferryResult_t ferry_program_synthesize_peer(enum ferry_collective collective, const struct ferry_topology *topology,
                                            const struct ferry_links *links, uint32_t root,
                                            struct ferry_program **program);

/**
 * Writes the alltoallv that has every path of this network: a block has a part (chunk) for each (synthesize_paths.c).
 * staging: bytes per domain; memory: as in struct ferry_compile_options; lowers network->limits.relays until the
 * relays' windows fit. NULL in *program: all pairs have their links alone, a pair has no path, or no number of relays
 * fits.
 */
ferryResult_t ferry_program_synthesize_paths(const struct ferry_topology *topology, struct ferry_network *network,
                                             const uint64_t *staging, uint64_t memory,
                                             struct ferry_program **program);

/**
 * Returns the least time that the program's PUTs can take over these links, in nanoseconds per byte of a block (what a
 * rank sends to, or receives from, each other rank): that of the busiest link, port or shared link. It counts neither
 * the start of a pipeline, nor the way through the host, nor how much a device can receive at once. INFINITY if a PUT
 * has no link.
 */
double ferry_program_peer_time(const struct ferry_program *program, const struct ferry_links *links);

/**
 * Writes the program of a single rank, whose output is its input, as is the unscaled sum over one rank. It has no
 * statement: the compiler adds a COPY.
 */
ferryResult_t ferry_program_copy(enum ferry_collective collective, const struct ferry_topology *topology, uint32_t root,
                                 struct ferry_program **program);

/**
 * The part of every block of the user's buffers that a call leaves to another library: the block's last `count`
 * elements. mirrored: the first ones in every second rank's block, so that the parts of two blocks are contiguous, if
 * each block belongs to a rank (allgather, reducescatter, gather, scatter). Zeros: the call moves all.
 */
struct ferry_left_out {
	uint64_t count;
	bool mirrored;
	bool packed; /* the receive buffer holds only what the call moves, block behind block (alltoall, gather) */
};

/** The options by which a program becomes a plan. */
struct ferry_compile_options {
	uint64_t count;        /* elements as the API call counts them; ignored for alltoallv */
	struct ferry_left_out left_out;
	ferryDataType_t type;
	ferryRedOp_t redop;    /* ferryNumOps for premulsum */
	uint64_t staging[FERRY_MAX_DOMAINS]; /* bytes per parity that the windows may take in each domain */
	/* bytes per parity that the windows in a rank's own memory may take; 0: that is staging of the rank's domain */
	uint64_t memory;
	uint32_t slice;        /* bytes; 0: chosen so that the pipeline has depth and the windows fit the staging */
	uint32_t window;       /* slots; 0: chosen */
	bool dma;              /* copy engines read and write the windows (cuda) */
	bool ports;            /* PUTs into one rank share a port, so they take turns (edges.c) */
	uint64_t core_cache;   /* bytes of a core's private cache; 0: unknown */
	uint32_t sharing;      /* how many domains share a last-level cache; 0 is 1 */
	struct ferry_costs costs; /* dma: what ferry_costs_read gave */
	/*
	 * alltoallv by ferry_program_synthesize_paths: part i of the block from one rank to another goes over path i of
	 * that pair in this network, and a router divides each call. NULL: a block is one part
	 */
	const struct ferry_network *network;
};

/**
 * Checks a program and compiles it to a plan with its hash, which the caller frees by free(). Versions become windows,
 * chains of REDUCE fuse into one pass in rank order, dependencies become edges; output that is a rank's own input and
 * that no statement writes becomes a COPY; a PUT gets a WAIT_PUT at the receiving rank. Slice and window shrink until
 * the windows fit. Errors: those of the check; ferryProgramError, with the sizes, if not even one slot of 64 bytes per
 * version fits.
 */
ferryResult_t ferry_program_compile(const struct ferry_program *program, const struct ferry_compile_options *options,
                                    struct ferry_plan **plan);

/**
 * A part of a call: the program that moves elements [first, first + count) of every block of options->count; if
 * mirrored, as many elements of every second block, which end `first` before its end.
 */
struct ferry_program_part {
	const struct ferry_program *program;
	uint64_t first, count;
};

/**
 * Compiles parts to one plan: one slice size, windows one behind another, every chunk at its exact offset in the user's
 * buffers. The programs must be of one collective, for the same ranks, domains and root; every element that is not left
 * out must be in exactly one part; alltoallv has only one part. Slice, window, workers and guard are chosen for the
 * part that has windows; with PUTs alone slices are as long as it pays. One part of all elements gives the plan that
 * ferry_program_compile gives. Errors: ferryInvalidArgument for other parts; those of ferry_program_compile.
 */
ferryResult_t ferry_program_compile_parts(const struct ferry_program_part *parts, uint32_t nparts,
                                          const struct ferry_compile_options *options, struct ferry_plan **plan);

#define FERRY_NO_STATEMENT UINT32_MAX

/** The part of its program that an instruction executes. */
struct ferry_instr_origin {
	/* the last one of a chain; a WAIT_PUT's PUT; FERRY_NO_STATEMENT: a COPY, or a DIVIDE */
	uint32_t statement;
	uint32_t send, receive; /* COPY: chunks of the rank's buffers */
};

/**
 * As ferry_program_compile, and returns the origins of the instructions, an array that the caller frees by free(); NULL
 * if the plan has no instructions.
 */
ferryResult_t ferry_program_compile_traced(const struct ferry_program *program,
                                           const struct ferry_compile_options *options, struct ferry_plan **plan,
                                           struct ferry_instr_origin **origins);

#endif
