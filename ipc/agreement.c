/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/agreement.h"

#include <string.h>

#define PAIRS_BYTES      (1u << 20) /* cells of all pairs together, at most */
#define PAIR_CELLS_MOST  256u
#define PAIR_CELLS_LEAST 16u
#define LAPS_AT          FERRY_AGREEMENT_BITS
#define SEALED_AT        (FERRY_AGREEMENT_BITS + 14)
/* 2^28 laps: 2^40 calls, or 2^32 messages of a pair and more */
#define SEALED_MOST      ((1ull << (64 - SEALED_AT)) - 1)

_Static_assert(sizeof(struct ferry_agreement_head) == 128 && sizeof(struct ferry_agreement_party) == 128,
               "cache line pairs");

uint32_t ferry_agreement_pair_cells(uint32_t nranks)
{
	uint32_t cells = PAIR_CELLS_MOST;
	while (cells > PAIR_CELLS_LEAST && (uint64_t)nranks * nranks * cells * sizeof(uint64_t) > PAIRS_BYTES)
		cells /= 2;
	return cells;
}

uint64_t ferry_agreement_bytes(uint32_t nparties, uint32_t ncells)
{
	return sizeof(struct ferry_agreement_head) + nparties * sizeof(struct ferry_agreement_party) +
	       ncells * sizeof(_Atomic uint64_t);
}

void ferry_agreement_open(struct ferry_agreement *agreement, void *memory, uint32_t nparties, uint32_t ncells,
                          uint32_t self)
{
	memset(agreement, 0, sizeof *agreement);
	agreement->head = memory;
	agreement->parties = (struct ferry_agreement_party *)(agreement->head + 1);
	agreement->cells = (_Atomic uint64_t *)(agreement->parties + nparties);
	agreement->nparties = nparties;
	agreement->ncells = ncells;
	agreement->self = self;
}

void ferry_agreement_join(struct ferry_agreement *agreement, uint64_t n)
{
	struct ferry_agreement_party *own = &agreement->parties[agreement->self];
	atomic_store_explicit(&own->passed, n, memory_order_relaxed);
	atomic_store_explicit(&own->joined, n + 1, memory_order_release);
}

bool ferry_agreement_joined(struct ferry_agreement *agreement, uint64_t *n)
{
	uint64_t first = 0;
	for (uint32_t i = 0; i < agreement->nparties && !agreement->first; i++) {
		uint64_t joined = atomic_load_explicit(&agreement->parties[i].joined, memory_order_acquire);
		if (!joined)
			return false;
		first = joined > first ? joined : first;
	}
	agreement->first = agreement->first ? agreement->first : first;
	*n = agreement->first - 1;
	return true;
}

/* All parties have passed n: none will read it, nor any number before it. */
static bool all_passed(struct ferry_agreement *agreement, uint64_t n)
{
	uint64_t least = UINT64_MAX;
	for (uint32_t i = 0; i < agreement->nparties && agreement->least_passed <= n; i++) {
		uint64_t passed = atomic_load_explicit(&agreement->parties[i].passed, memory_order_acquire);
		least = passed < least ? passed : least;
	}
	if (agreement->least_passed <= n)
		agreement->least_passed = least;
	return agreement->least_passed > n;
}

/*
 * The word with which this party seals call n: a split only where all parties look n up, and none is known to have
 * withdrawn.
 */
static uint32_t choose(struct ferry_agreement *agreement, uint64_t n, uint32_t proposal)
{
	uint64_t first;
	if (ferry_agreement_withdrawn(agreement) || !ferry_agreement_joined(agreement, &first) || first > n)
		return FERRY_AGREEMENT_NONE;
	return proposal & ((1u << FERRY_AGREEMENT_BITS) - 1);
}

/*
 * Each turn of the loop ends here, unless another party has changed the cell meanwhile. That happens no more often than
 * there are parties, or laps between the sealed number and n.
 */
static uint32_t look(struct ferry_agreement *agreement, uint64_t n, uint32_t proposal)
{
	_Atomic uint64_t *cell = &agreement->cells[n & (agreement->ncells - 1)];
	uint64_t own = n / agreement->ncells + 1; /* the empty cell is a lap before number 0 */
	uint64_t word = atomic_load_explicit(cell, memory_order_acquire), next;
	if (own > SEALED_MOST)
		return FERRY_AGREEMENT_NONE; /* all parties come to the same */
	while (1) {
		uint64_t sealed = word >> SEALED_AT, laps = word >> LAPS_AT & FERRY_AGREEMENT_LAPS;
		if (own == sealed)
			return (uint32_t)word & ((1u << FERRY_AGREEMENT_BITS) - 1);
		if (own < sealed || own - sealed <= laps || laps == FERRY_AGREEMENT_LAPS)
			return FERRY_AGREEMENT_NONE;
		if (n < agreement->ncells || all_passed(agreement, n - agreement->ncells)) {
			next = own << SEALED_AT | choose(agreement, n, proposal);
		} else {
			laps = own - sealed < FERRY_AGREEMENT_LAPS ? own - sealed : FERRY_AGREEMENT_LAPS;
			next = (word & ~((uint64_t)FERRY_AGREEMENT_LAPS << LAPS_AT)) | laps << LAPS_AT;
		}
		if (atomic_compare_exchange_strong_explicit(cell, &word, next, memory_order_acq_rel,
		                                            memory_order_acquire))
			word = next;
	}
}

uint32_t ferry_agreement_take(struct ferry_agreement *agreement, uint64_t n, uint32_t proposal)
{
	struct ferry_agreement_party *own = &agreement->parties[agreement->self];
	uint64_t joined = atomic_load_explicit(&own->joined, memory_order_relaxed);
	if (!joined || n + 1 < joined)
		return FERRY_AGREEMENT_NONE;
	uint32_t word = look(agreement, n, proposal);
	atomic_store_explicit(&own->passed, n + 1, memory_order_release);
	return word;
}

void ferry_agreement_withdraw(struct ferry_agreement *agreement)
{
	atomic_store_explicit(&agreement->head->withdrawn, 1, memory_order_release);
}

bool ferry_agreement_withdrawn(const struct ferry_agreement *agreement)
{
	return atomic_load_explicit(&agreement->head->withdrawn, memory_order_acquire);
}
