/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/shares.h"

#include "ipc/collective.h"
#include "ipc/error.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PART_BITS 11

static const char *const fabric_names[FERRY_NUM_FABRICS] = {"host", "peer", "nccl"};

const char *ferry_fabric_name(enum ferry_fabric fabric)
{
	return fabric_names[fabric];
}

uint32_t ferry_shares_pack(const struct ferry_shares *shares)
{
	return (uint32_t)shares->part[FERRY_FABRIC_HOST] << PART_BITS | shares->part[FERRY_FABRIC_PEER];
}

struct ferry_shares ferry_shares_unpack(uint32_t word)
{
	struct ferry_shares shares = {{0, 0, FERRY_SHARES_WHOLE}};
	uint32_t host = word >> PART_BITS & ((1u << PART_BITS) - 1), peer = word & ((1u << PART_BITS) - 1);
	if (host + peer > FERRY_SHARES_WHOLE)
		return shares;
	shares.part[FERRY_FABRIC_HOST] = (uint16_t)host;
	shares.part[FERRY_FABRIC_PEER] = (uint16_t)peer;
	shares.part[FERRY_FABRIC_NCCL] = (uint16_t)(FERRY_SHARES_WHOLE - host - peer);
	return shares;
}

/* Where the parts of the fabrics below end; the last with a part ends with the block. */
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
	*pins = ferry_shares_unpack(host << PART_BITS | peer);
	return ferrySuccess;
}

#define USED (1ull << 63)
#define MOST_US 1e9
#define MOST_RATE 1e8 /* bytes per microsecond */
#define WORD ((1ull << FERRY_SHARES_BITS) - 1)
#define EVERY_AT (2 * FERRY_SHARES_BITS)
#define WHOLE 1ull /* flags of a line */
#define IN_PLACE 2ull

static const char *const names[FERRY_NUM_BALANCES] = {"cold", "learning", "settled", "changed"};

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

static struct ferry_pace read_pace(uint64_t word)
{
	struct ferry_pace pace;
	read_floats(word, &pace.start_us, &pace.rate);
	if (pace.start_us >= 0 && pace.start_us <= MOST_US && pace.rate > 0 && pace.rate <= MOST_RATE)
		return pace;
	return (struct ferry_pace){0, 0};
}

static uint64_t pace_word(const struct ferry_pace *pace)
{
	return two_floats(pace->start_us, pace->rate);
}

static bool names_something(uint64_t key)
{
	return key & USED && (key & 0xff) < FERRY_NUM_COLLECTIVES && (key >> 8 & 0xff) < ferryNumTypes;
}

/* ---- floors ---- */

void ferry_share_format_floor(struct ferry_share_table *table, uint32_t rank, uint64_t bytes)
{
	atomic_store_explicit(&table->ranks[rank].floor, bytes, memory_order_release);
}

uint64_t ferry_share_floor(const struct ferry_share_table *table, uint32_t rank)
{
	return atomic_load_explicit(&table->ranks[rank].floor, memory_order_acquire);
}

/* ---- lines and courses ---- */

void ferry_share_line_write(struct ferry_share_line_words *words, const struct ferry_share_line *line)
{
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		store(&words->paces[c], pace_word(&line->paces[c]));
	store(&words->expected, two_floats(line->us, line->interval));
	store(&words->bytes, line->bytes);
	store(&words->flags, (line->whole ? WHOLE : 0) | (line->in_place ? IN_PLACE : 0));
	store(&words->shares, line->word | (uint64_t)line->probe << FERRY_SHARES_BITS |
	                              (uint64_t)line->probe_every << EVERY_AT);
	store(&words->key, USED | line->collective | (uint64_t)line->type << 8 | (uint64_t)line->size_class << 16 |
	                           (uint64_t)line->why << 24 | (uint64_t)(line->samples & 0x7fffffff) << 32);
}

bool ferry_share_line_read(const struct ferry_share_line_words *words, struct ferry_share_line *line)
{
	uint64_t key = load(&words->key), shares = load(&words->shares), flags = load(&words->flags);
	double interval;
	if (!names_something(key))
		return false;
	*line = (struct ferry_share_line){.collective = (uint8_t)key,
	                                  .type = (uint8_t)(key >> 8),
	                                  .size_class = (uint8_t)(key >> 16),
	                                  .why = (uint8_t)(key >> 24),
	                                  .samples = key >> 32 & 0x7fffffff,
	                                  .word = shares & WORD,
	                                  .probe = shares >> FERRY_SHARES_BITS & WORD,
	                                  .probe_every = (uint32_t)(shares >> EVERY_AT),
	                                  .bytes = load(&words->bytes),
	                                  .whole = flags & WHOLE,
	                                  .in_place = flags & IN_PLACE};
	read_floats(load(&words->expected), &line->us, &interval);
	line->interval = interval >= 1 && interval < 1e6 ? (uint32_t)interval : 1;
	line->us = line->us >= 0 && line->us <= MOST_US ? line->us : 0;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		line->paces[c] = read_pace(load(&words->paces[c]));
	return true;
}

void ferry_share_course_write(struct ferry_share_course_words *words, const struct ferry_share_course *course)
{
	for (int i = 0; i < FERRY_NUM_FABRICS * FERRY_SHARE_BESIDE; i++)
		store(&words->paces[i / FERRY_SHARE_BESIDE][i % FERRY_SHARE_BESIDE],
		      pace_word(&course->paces[i / FERRY_SHARE_BESIDE][i % FERRY_SHARE_BESIDE]));
	store(&words->key, USED | course->collective | (uint64_t)course->type << 8);
}

bool ferry_share_course_read(const struct ferry_share_course_words *words, struct ferry_share_course *course)
{
	uint64_t key = load(&words->key);
	if (!names_something(key))
		return false;
	*course = (struct ferry_share_course){.collective = (uint8_t)key, .type = (uint8_t)(key >> 8)};
	for (int i = 0; i < FERRY_NUM_FABRICS * FERRY_SHARE_BESIDE; i++)
		course->paces[i / FERRY_SHARE_BESIDE][i % FERRY_SHARE_BESIDE] =
		        read_pace(load(&words->paces[i / FERRY_SHARE_BESIDE][i % FERRY_SHARE_BESIDE]));
	return true;
}

/* ---- readiness ---- */

#define WAYS 4u /* places where a kind may be */
#define SAID (uint64_t)(FERRY_SHARE_WANTED | FERRY_SHARE_SHOWN)

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

/* Where the name stands; else the place to write it: a free one, or one that is not wanted, or any of them. */
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

void ferry_share_format(struct ferry_share_table *table, uint32_t rank, uint64_t kind, uint32_t what, bool on)
{
	uint64_t word, name = name_of(kind);
	_Atomic uint64_t *place = place_of(&table->ranks[rank].ready, name, &word);
	uint64_t value = on ? word | what : word & ~(uint64_t)what;
	if (load(place) != value && (on || word != name)) /* seldom; an unknown kind is not taken back */
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

/* ---- times ---- */

void ferry_share_times_write(struct ferry_share_table *table, uint32_t rank, uint64_t n,
                             const double us[FERRY_NUM_FABRICS])
{
	struct ferry_share_times_words *words = &table->ranks[rank].times[n % FERRY_SHARE_TIMES];
	store(&words->call, 0);
	/* a reader that loads one of the new times finds that the number is gone */
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		atomic_store_explicit(&words->us[c], two_floats(us[c], 0), memory_order_release);
	atomic_store_explicit(&words->call, n + 1, memory_order_release);
}

bool ferry_share_times_read(const struct ferry_share_table *table, uint32_t rank, uint64_t n,
                            double us[FERRY_NUM_FABRICS])
{
	const struct ferry_share_times_words *words = &table->ranks[rank].times[n % FERRY_SHARE_TIMES];
	double unused;
	if (atomic_load_explicit(&words->call, memory_order_acquire) != n + 1)
		return false;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		read_floats(atomic_load_explicit(&words->us[c], memory_order_acquire), &us[c], &unused);
		us[c] = us[c] > 0 && us[c] <= MOST_US ? us[c] : 0;
	}
	return load(&words->call) == n + 1;
}
