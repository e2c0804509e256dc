/* SPDX-License-Identifier: Apache-2.0 */
/** Programs and machines to test with: HyLink's Figure 3, the manual's examples, random topologies. The caller frees
 * programs. */
#ifndef FERRY_TESTS_PROGRAM_CASES_H
#define FERRY_TESTS_PROGRAM_CASES_H

#include "rank-lib/program/program.h"

/** HyLink's Figure 3, as printed there. */
extern const char figure3[];

/** Parses text, an AllReduce if it does not say; fails the running test if it does not parse. */
struct ferry_program *program_of(const char *text);

/** Calls visit for each block of docs/program-language.md that is fenced as ```ferry; how many there were. */
unsigned for_each_manual_program(void (*visit)(const char *text, void *context), void *context);

/** Calls visit for each program in bench/examples; how many there were. */
unsigned for_each_example(void (*visit)(const char *text, void *context), void *context);

/**
 * A machine with up to `most_ranks` ranks and `most_domains` domains: every other one from an hwloc synthetic string
 * with ranks in equal blocks, the others with ranks anywhere, so that domains are uneven and some are empty.
 */
struct ferry_topology random_topology(uint64_t *seed, uint32_t most_ranks, uint32_t most_domains);

/** The sections in the order of ranks, as they are printed; the order of lines within each stays. */
void sort_sections(struct ferry_program *program);

/**
 * A right program with PUTs: each output comes straight from the rank whose input it is, from a rank that has it
 * already, or as the synthesizer has it come through the host. No alltoallv; sendrecv always for two ranks.
 */
struct ferry_program *pushing_program(enum ferry_collective collective, struct ferry_topology *topology, uint32_t root,
                                      uint64_t *seed);

/** One of a random collective on a random machine of at least two ranks. */
struct ferry_program *random_pushing_program(uint64_t *seed, uint32_t most_ranks, uint32_t most_domains);

/**
 * The synthesizer's program, of at most so many statements, that sums up trees over random links, in ranks' memory. Of
 * at least two ranks.
 */
struct ferry_program *program_of_trees(const struct ferry_topology *topology, uint32_t most, uint64_t *seed);

/** The synthesizer's program; sendrecv always for two ranks. Fails the running test if there is none. */
struct ferry_program *synthesized(enum ferry_collective collective, struct ferry_topology *topology, uint32_t root);

#endif
