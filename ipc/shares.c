/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/shares.h"

#include "ipc/collective.h"
#include "ipc/error.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PEER_AT 6
#define HOST_AT 14
#define PART    255u

static const char *const fabric_names[FERRY_NUM_FABRICS] = {"host", "peer", "nccl"};

const char *ferry_fabric_name(enum ferry_fabric fabric)
{
	return fabric_names[fabric];
}

uint32_t ferry_shares_pack(const struct ferry_shares *shares)
{
	return (uint32_t)shares->part[FERRY_FABRIC_HOST] << HOST_AT |
	       (uint32_t)shares->part[FERRY_FABRIC_PEER] << PEER_AT | shares->tuning;
}

static bool is_valid(uint32_t word)
{
	return (word >> HOST_AT & PART) + (word >> PEER_AT & PART) <= FERRY_SHARES_WHOLE;
}

bool ferry_shares_begin(uint32_t *word)
{
	if (is_valid(*word) || !is_valid(*word ^ FERRY_SHARES_BEGINS))
		return false;
	*word ^= FERRY_SHARES_BEGINS;
	return true;
}

struct ferry_shares ferry_shares_unpack(uint32_t word)
{
	struct ferry_shares shares = {.part = {0, 0, FERRY_SHARES_WHOLE}};
	uint32_t host = word >> HOST_AT & PART, peer = word >> PEER_AT & PART;
	if (!is_valid(word))
		return shares;
	shares.part[FERRY_FABRIC_HOST] = (uint8_t)host;
	shares.part[FERRY_FABRIC_PEER] = (uint8_t)peer;
	shares.part[FERRY_FABRIC_NCCL] = (uint8_t)(FERRY_SHARES_WHOLE - host - peer);
	shares.tuning = (uint8_t)ferry_shares_tuning(word);
	return shares;
}

/* Where the part of this fabric ends. The last part ends with the block. */
static uint64_t end_of(const struct ferry_shares *shares, int fabric, uint64_t count, uint64_t round)
{
	uint32_t below = 0;
	for (int i = 0; i <= fabric; i++)
		below += shares->part[i];
	if (below >= FERRY_SHARES_WHOLE)
		return count;
	uint64_t end = count / FERRY_SHARES_WHOLE * below + count % FERRY_SHARES_WHOLE * below / FERRY_SHARES_WHOLE;
	return end / round * round;
}

void ferry_shares_range(const struct ferry_shares *shares, enum ferry_fabric fabric, uint64_t count, uint64_t round,
                        uint64_t *at, uint64_t *length)
{
	*at = fabric ? end_of(shares, (int)fabric - 1, count, round) : 0;
	*length = end_of(shares, (int)fabric, count, round) - *at;
}

/* The fabric that the text begins with, before a : or = at *next; -1: none. */
static int read_name(const char *text, const char **next)
{
	for (int fabric = 0; fabric < FERRY_NUM_FABRICS; fabric++) {
		size_t length = strlen(fabric_names[fabric]);
		*next = text + length;
		if (!strncmp(text, fabric_names[fabric], length) && (**next == ':' || **next == '='))
			return fabric;
	}
	return -1;
}

ferryResult_t ferry_shares_read(const char *text, double shares[FERRY_NUM_FABRICS], uint32_t *named)
{
	const char *at = text, *next;
	*named = 0;
	memset(shares, 0, FERRY_NUM_FABRICS * sizeof *shares);
	while (1) {
		char *end = NULL;
		int fabric = read_name(at, &next);
		double share = fabric < 0 ? -1 : strtod(next + 1, &end);
		if (fabric < 0 || end == next + 1 || !(share >= 0 && share <= 1) || *named >> fabric & 1 ||
		    (*end && *end != ','))
			return ferry_fail(ferryInvalidArgument,
			                  "FERRY_SHARES=%s: nccl:SHARE,host:SHARE,peer:SHARE, from 0 to 1, at \"%s\"",
			                  text, at);
		shares[fabric] = share;
		*named |= 1u << fabric;
		if (!*end)
			return ferrySuccess;
		at = end + 1;
	}
}

ferryResult_t ferry_shares_pin(const char *text, struct ferry_shares *pins)
{
	double shares[FERRY_NUM_FABRICS];
	uint32_t named;
	ferryResult_t result = ferry_shares_read(text, shares, &named);
	if (result)
		return result;
	double ours = shares[FERRY_FABRIC_HOST] + shares[FERRY_FABRIC_PEER], sum = ours + shares[FERRY_FABRIC_NCCL];
	bool whole = named >> FERRY_FABRIC_NCCL & 1 || (named >> FERRY_FABRIC_HOST & named >> FERRY_FABRIC_PEER & 1);
	if (sum > 1.001 || (whole && sum < 0.999))
		return ferry_fail(ferryInvalidArgument, "FERRY_SHARES=%s: they sum to %g, not 1", text, sum);
	uint32_t host = (uint32_t)(shares[FERRY_FABRIC_HOST] * FERRY_SHARES_WHOLE + 0.5);
	uint32_t peer = (uint32_t)(shares[FERRY_FABRIC_PEER] * FERRY_SHARES_WHOLE + 0.5);
	if (host + peer > FERRY_SHARES_WHOLE)
		peer = FERRY_SHARES_WHOLE - host;
	*pins = ferry_shares_unpack(host << HOST_AT | peer << PEER_AT);
	return ferrySuccess;
}

#define USED (1ull << 63)
#define MOST_US 1e9
#define WORD ((1ull << FERRY_SHARES_BITS) - 1)
#define RUN_AT 32
#define TURN_AT 40
#define IN_PLACE_AT 31

static const char *const names[FERRY_NUM_BALANCES] = {"prior", "trying", "settled", "hidden", "kernel"};

const char *ferry_balance_name(enum ferry_balance why)
{
	return (unsigned)why < FERRY_NUM_BALANCES ? names[why] : "?";
}

uint64_t ferry_share_table_bytes(uint32_t nranks)
{
	return sizeof(struct ferry_share_table) + nranks * sizeof(struct ferry_share_rank);
}

static void store(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

/* ---- numbers in a word ---- */

static uint64_t two_floats(double low, double high)
{
	float values[2] = {(float)low, (float)high};
	uint64_t word;
	memcpy(&word, values, sizeof word);
	return word;
}

static void read_floats(uint64_t word, double *low, double *high)
{
	float values[2];
	memcpy(values, &word, sizeof values);
	*low = values[0];
	*high = values[1];
}

static bool names_something(uint64_t key)
{
	return key & USED && (key & 0xff) < FERRY_NUM_COLLECTIVES && (key >> 8 & 0xff) < ferryNumTypes;
}

/* ---- floors ---- */

#define TUNED (1ull << 63)

void ferry_share_publish_floor(struct ferry_share_table *table, uint32_t rank, uint64_t bytes, bool tuned)
{
	atomic_store_explicit(&table->ranks[rank].floor, bytes | (tuned ? TUNED : 0), memory_order_release);
}

uint64_t ferry_share_floor(const struct ferry_share_table *table, uint32_t rank)
{
	return atomic_load_explicit(&table->ranks[rank].floor, memory_order_acquire) & ~TUNED;
}

bool ferry_share_tuned(const struct ferry_share_table *table, uint32_t rank)
{
	return atomic_load_explicit(&table->ranks[rank].floor, memory_order_acquire) & TUNED;
}

/* ---- lines ---- */

void ferry_share_line_write(struct ferry_share_line_words *words, const struct ferry_share_line *line)
{
	store(&words->us, two_floats(line->nccl_us, line->ferry_us));
	store(&words->bytes, line->bytes);
	store(&words->trial, line->trial | (uint64_t)line->run << RUN_AT | (uint64_t)line->turn << TURN_AT);
	store(&words->shares, line->word | (uint64_t)line->ferry << FERRY_SHARES_BITS |
	                              (uint64_t)ferry_shares_tuning(line->nccl) << 2 * FERRY_SHARES_BITS);
	store(&words->key, USED | line->collective | (uint64_t)line->type << 8 | (uint64_t)line->size_class << 16 |
	                           (uint64_t)(line->why & 0x7f) << 24 | (uint64_t)line->in_place << IN_PLACE_AT |
	                           (uint64_t)(line->calls & 0x7fffffff) << 32);
}

static double valid_us(double us)
{
	return us >= 0 && us <= MOST_US ? us : 0;
}

bool ferry_share_line_read(const struct ferry_share_line_words *words, struct ferry_share_line *line)
{
	uint64_t key = load(&words->key), shares = load(&words->shares), trial = load(&words->trial);
	if (!names_something(key))
		return false;
	*line = (struct ferry_share_line){.collective = (uint8_t)key,
	                                  .type = (uint8_t)(key >> 8),
	                                  .size_class = (uint8_t)(key >> 16),
	                                  .why = key >> 24 & 0x7f,
	                                  .in_place = key >> IN_PLACE_AT & 1,
	                                  .calls = key >> 32 & 0x7fffffff,
	                                  .word = shares & WORD,
	                                  .ferry = shares >> FERRY_SHARES_BITS & WORD,
	                                  .nccl = ferry_shares_tuning((uint32_t)(shares >> 2 * FERRY_SHARES_BITS)),
	                                  .trial = trial & WORD,
	                                  .run = (uint8_t)(trial >> RUN_AT),
	                                  .turn = (uint8_t)(trial >> TURN_AT),
	                                  .bytes = load(&words->bytes)};
	read_floats(load(&words->us), &line->nccl_us, &line->ferry_us);
	line->nccl_us = valid_us(line->nccl_us);
	line->ferry_us = valid_us(line->ferry_us);
	return true;
}

/* ---- readiness ---- */

#define WAYS 4u /* places where a kind may be */
#define SAID (uint64_t)(FERRY_SHARE_WANTED | FERRY_SHARE_PREREGISTERED)

_Static_assert(FERRY_SHARE_KINDS == 1u << 8, "a set of places by the top bits of a name");

/* Two kinds of one name are as rare as 2^-62. */
static uint64_t name_of(uint64_t kind)
{
	kind = (kind ^ kind >> 31) * UINT64_C(0x9e3779b97f4a7c15);
	kind = (kind ^ kind >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
	return (kind ^ kind >> 32) & ~SAID ? (kind ^ kind >> 32) & ~SAID : SAID + 1;
}

static uint32_t places_of(uint64_t name)
{
	return (uint32_t)(name >> 56) / WAYS * WAYS;
}

/* The name's place, or else the place to write it to: a free one, one of a kind that is not wanted, or any. */
static _Atomic uint64_t *place_of(struct ferry_share_readiness *ready, uint64_t name, uint64_t *word)
{
	_Atomic uint64_t *places = &ready->kinds[places_of(name)], *room = NULL;
	bool free = false;
	for (uint32_t way = 0; way < WAYS; way++) {
		/* where the set is full, names replace different places */
		uint32_t at = (uint32_t)(name >> 48 & 0xff) + way;
		uint64_t there = load(&places[at % WAYS]);
		if ((there & ~SAID) == name) {
			*word = there;
			return &places[at % WAYS];
		}
		if (!room || (!there && !free) || (!free && !(there & FERRY_SHARE_WANTED) &&
		                                   load(room) & FERRY_SHARE_WANTED))
			room = &places[at % WAYS];
		free |= !there;
	}
	*word = name;
	return room;
}

void ferry_share_publish(struct ferry_share_table *table, uint32_t rank, uint64_t kind, uint32_t what, bool on)
{
	uint64_t word, name = name_of(kind);
	_Atomic uint64_t *place = place_of(&table->ranks[rank].ready, name, &word);
	uint64_t value = on ? word | what : word & ~(uint64_t)what;
	if (load(place) != value && (on || word != name)) /* clearing a flag adds no kind */
		store(place, value);
}

bool ferry_share_said(const struct ferry_share_table *table, uint32_t rank, uint64_t kind, uint32_t *what)
{
	uint64_t name = name_of(kind);
	const _Atomic uint64_t *places = &table->ranks[rank].ready.kinds[places_of(name)];
	for (uint32_t way = 0; way < WAYS; way++) {
		uint64_t word = load(&places[way]);
		if ((word & ~SAID) == name) {
			*what = (uint32_t)(word & SAID);
			return true;
		}
	}
	return false;
}
