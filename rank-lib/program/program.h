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

/** A chunk of a host, host@domain[chunk]; of a rank's own memory, mem@rank[chunk]: domain FERRY_MAX_DOMAINS + rank. */
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
	 * D2H, H2D: the chunk of the rank's send (D2H) or receive (H2D) buffer. PUT: the chunk that it reads, of the
	 * send buffer or, if it forwards, of the receive buffer, into which an H2D or another PUT has brought it.
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

/** The domain whose staging holds the place: of a rank's memory, the rank's. */
static inline uint32_t ferry_place_domain(const struct ferry_program *program, struct ferry_place place)
{
	return ferry_place_is_memory(place) ? program->rank_domain[place.domain - FERRY_MAX_DOMAINS] : place.domain;
}

/** A PUT from its rank's memory into another's receive buffer. */
static inline bool ferry_statement_puts_memory(const struct ferry_statement *statement)
{
	return statement->opcode == FERRY_PUT && ferry_place_is_memory(statement->source);
}

/** A place of it is in a rank's memory. */
static inline bool ferry_statement_uses_memory(const struct ferry_statement *statement)
{
	return ((statement->opcode == FERRY_H2D || statement->opcode == FERRY_PUT) &&
	        ferry_place_is_memory(statement->source)) ||
	       (statement->opcode != FERRY_PUT && ferry_place_is_memory(statement->destination));
}

/** As programs spell it: PUT and ADD are opcodes of their places. */
static inline const char *ferry_statement_name(const struct ferry_statement *statement)
{
	if (!ferry_statement_uses_memory(statement))
		return ferry_opcode_name(statement->opcode);
	return statement->opcode == FERRY_REDUCE ? "ADD" : "PUT";
}

/** A PUT from a rank's memory to another's. */
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
 * Parses text of `bytes` bytes (need not end in NUL) called `name` in errors.
 * Errors: ferryProgramError, message "name:line:column: expected X, found Y". On success *program is the caller's to
 * free.
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
	/* all domains are in one memory node, and copy engines reach any of it alike: nothing need cross */
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
 * trees, whichever needs the least time by ferry_program_peer_time. What no links lead to comes through the host.
 * ferryInvalidUsage, with the reason: it has sums and links do not connect the ranks, or there is no link at all.
 */
ferryResult_t ferry_program_synthesize_peer(enum ferry_collective collective, const struct ferry_topology *topology,
                                            const struct ferry_links *links, uint32_t root,
                                            struct ferry_program **program);

/**
 * Writes the alltoallv that has every path of this network: a block has a part (chunk) for each (synthesize_paths.c).
 * NULL in *program: no pair of ranks has more than one path, or the windows of relays would take more than `staging`
 * bytes of a domain, however few relays a pair has; *network then has fewer.
 */
ferryResult_t ferry_program_synthesize_paths(const struct ferry_topology *topology, struct ferry_network *network,
                                             const uint64_t *staging, struct ferry_program **program);

/**
 * The least time that the program's PUTs can take over these links, in nanoseconds per byte of a block (what a rank
 * sends, or receives from each other one): bytes over each link by its speed, and out of each port by its, the longest
 * of all. It counts neither the start of a pipeline, nor what goes through the host, nor how much a device can receive
 * at once. INFINITY if a PUT has no link.
 */
double ferry_program_peer_time(const struct ferry_program *program, const struct ferry_links *links);

/**
 * Writes the program of one rank whose output is its own input, as the unscaled sum over one rank is. It has no
 * statement, as the compiler copies such output.
 */
ferryResult_t ferry_program_copy(enum ferry_collective collective, const struct ferry_topology *topology, uint32_t root,
                                 struct ferry_program **program);

/**
 * What a call leaves alone of every block of the user's buffers, because another library moves it: the block's last
 * elements. Mirrored: of every second rank's block its first ones, so that the parts of two blocks are contiguous;
 * where each block belongs to a rank (allgather, reducescatter, gather, scatter). Zeros: nothing.
 */
struct ferry_left_out {
	uint64_t count;
	bool mirrored;
	bool packed; /* an alltoall's receive buffer has what is moved alone, block behind block */
};

/** The options by which a program becomes a plan. */
struct ferry_compile_options {
	uint64_t count;        /* elements as the API call counts them; ignored for alltoallv */
	struct ferry_left_out left_out;
	ferryDataType_t type;
	ferryRedOp_t redop;    /* ferryNumOps for premulsum */
	uint64_t staging[FERRY_MAX_DOMAINS]; /* bytes per parity that the windows may take in each domain */
	uint32_t slice;        /* bytes; 0: chosen so that the pipeline has depth and the windows fit the staging */
	uint32_t window;       /* slots; 0: chosen */
	bool dma;              /* copy engines read and write the windows (cuda) */
	bool ports;            /* PUTs into one rank share a port: they go one after another (edges.c) */
	uint64_t core_cache;   /* bytes of a core's private cache; 0: unknown */
	uint32_t sharing;      /* how many domains share a last-level cache; 0 is 1 */
	struct ferry_costs costs; /* dma: what ferry_costs_read gave */
	/*
	 * alltoallv: part i of the block from one rank to another is what goes over path i of theirs in this network,
	 * and a router divides each call; the program is ferry_program_synthesize_paths's. NULL: a block is one part
	 */
	const struct ferry_network *network;
};

/**
 * Compiles a program to a sealed plan, the caller's to free(). Checks first: a program that fails does not compile.
 * Versions become windows, chains of REDUCE fuse into one pass in rank order, dependencies become edges; output that is
 * a rank's own input and that nothing writes becomes a COPY; a PUT gets a WAIT_PUT at the rank that it goes to. Slice
 * and window shrink until the windows fit. Errors: those of the check; ferryProgramError if even one slot of 64 bytes
 * per version does not fit, with the sizes.
 */
ferryResult_t ferry_program_compile(const struct ferry_program *program, const struct ferry_compile_options *options,
                                    struct ferry_plan **plan);

/**
 * A part of a call: the program that moves elements [first, first + count) of every block of options->count; mirrored,
 * of every second block as many, as far from its end.
 */
struct ferry_program_part {
	const struct ferry_program *program;
	uint64_t first, count;
};

/**
 * Compiles parts to one plan: one slice size, windows one behind another, every chunk at its exact offset in the user's
 * buffers. The programs are of one collective, for the same ranks, domains and root; every element that is not left out
 * is in one part; alltoallv has but one. Slice and windows are chosen for the part that has windows, workers and guard
 * too; with PUTs alone slices are as long as it pays. One part of all elements gives the plan that
 * ferry_program_compile gives. Errors: ferryInvalidArgument if the parts are not such; those of ferry_program_compile.
 */
ferryResult_t ferry_program_compile_parts(const struct ferry_program_part *parts, uint32_t nparts,
                                          const struct ferry_compile_options *options, struct ferry_plan **plan);

#define FERRY_NO_STATEMENT UINT32_MAX

/** The part of its program that an instruction executes. */
struct ferry_instr_origin {
	/* of a chain the last one, of a WAIT_PUT its PUT; FERRY_NO_STATEMENT: a COPY, which needs none */
	uint32_t statement;
	uint32_t send, receive; /* COPY: chunks of the rank's buffers */
};

/**
 * As ferry_program_compile, and returns the origins of the instructions: an array by instruction, the caller's to
 * free(); NULL in it if the plan has none.
 */
ferryResult_t ferry_program_compile_traced(const struct ferry_program *program,
                                           const struct ferry_compile_options *options, struct ferry_plan **plan,
                                           struct ferry_instr_origin **origins);

#endif
