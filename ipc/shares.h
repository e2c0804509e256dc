/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The shares of a call: what part of every block each fabric carries, in 1024ths. Ranks agree on them as one word of 22
 * bits (ipc/agreement.h): the host's and the peers' share; NCCL has the rest. Plain values, and the text of
 * FERRY_SHARES.
 *
 * The table of shares lies in the arena of domain 0. It holds how each call is divided, and why, for the ranks that
 * seal it and for ferry-stat; what was learned, for the next job; and how long parts took, from each rank for rank 0.
 * Each of its words is stored and loaded whole, relaxed: a reader may find a line half renewed, which does no harm, and
 * checks what it has read. Writers: rank 0 writes lines, courses, the signature and which kinds of calls are NCCL's;
 * each rank its own times, the bytes from which on it numbers calls, and whether it is ready; the router what was kept,
 * before it hands the arena out. `lines` are of calls that are divided, `wholes` of calls that one fabric carries
 * alone: their paces have no start, and cover every fabric that has been seen.
 */
#ifndef FERRY_IPC_SHARES_H
#define FERRY_IPC_SHARES_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

enum ferry_fabric { FERRY_FABRIC_HOST, FERRY_FABRIC_PEER, FERRY_FABRIC_NCCL, FERRY_NUM_FABRICS };

#define FERRY_SHARES_WHOLE 1024u
#define FERRY_SHARES_BITS 22    /* of a word: 11 the host's, 11 the peers' */
#define FERRY_SHARES_NONE 0u    /* NCCL alone */

struct ferry_shares {
	uint16_t part[FERRY_NUM_FABRICS]; /* 1024ths; their sum is FERRY_SHARES_WHOLE */
};

/* How fast a fabric is: b bytes take start_us + b / rate. */
struct ferry_pace {
	double start_us;
	double rate; /* bytes per microsecond; 0: it cannot carry anything, or nothing is known */
};

/** "host", "peer", "nccl". */
const char *ferry_fabric_name(enum ferry_fabric fabric);

uint32_t ferry_shares_pack(const struct ferry_shares *shares);

/** Returns the shares of a word; NCCL alone for an invalid word. */
struct ferry_shares ferry_shares_unpack(uint32_t word);

/**
 * The bytes of a block of `count` elements that this fabric has, and where they begin, in elements: host, peer and
 * NCCL in this order, without gap or overlap. Every part but the last is a multiple of `round` elements.
 */
void ferry_shares_range(const struct ferry_shares *shares, enum ferry_fabric fabric, uint64_t count, uint64_t round,
                        uint64_t *at, uint64_t *length);

/**
 * Reads nccl:0.9,host:0.1 or nccl=0.9,host=0.1: shares from 0 to 1 of fabrics, each at most once; *named has bit c for
 * each that was given, and shares[c] is what, else 0. Errors: ferryInvalidArgument, with the place in the text.
 */
ferryResult_t ferry_shares_read(const char *text, double shares[FERRY_NUM_FABRICS], uint32_t *named);

/**
 * Reads the shares that FERRY_SHARES pins for NCCL programs. Where `host` or `peer` is named, the rest is NCCL's; else
 * they sum to 1. Errors: those of ferry_shares_read, and where they do not sum to 1.
 */
ferryResult_t ferry_shares_pin(const char *text, struct ferry_shares *pins);

#define FERRY_SHARE_LINES   96 /* (collective, type, size class), of whole calls also in place or not */
#define FERRY_SHARE_COURSES 24 /* (collective, type) */
#define FERRY_SHARE_SAVED   4  /* settings of earlier jobs */
#define FERRY_SHARE_TIMES   64 /* calls of which a rank's times are kept */
#define FERRY_SHARE_KINDS   256 /* of calls of which a rank says how ready it is */
#define FERRY_SHARE_BESIDE  4   /* which of the two others work beside a fabric: bits, in their order */

/* Why a line has these shares. */
enum ferry_balance {
	FERRY_BALANCE_COLD,     /* from rates that were measured elsewhere, or for other sizes */
	FERRY_BALANCE_LEARNING, /* steps with every sample */
	FERRY_BALANCE_SETTLED,
	FERRY_BALANCE_CHANGED, /* some fabric has another pace than before: learning again */
	FERRY_NUM_BALANCES
};

/* ---- as it is read ---- */

struct ferry_share_line {
	uint8_t collective, type, size_class, why;
	uint32_t samples;
	/* shares, packed; what one call in probe_every has in their place; 0: none */
	uint32_t word, probe, probe_every;
	uint32_t interval;                 /* one call in so many is measured */
	uint64_t bytes;                    /* of the last call */
	double us;                         /* its expected time */
	bool whole, in_place;              /* in place: only for a whole call */
	struct ferry_pace paces[FERRY_NUM_FABRICS]; /* as estimated, with these shares */
};

struct ferry_share_course {
	uint8_t collective, type;
	struct ferry_pace paces[FERRY_NUM_FABRICS][FERRY_SHARE_BESIDE]; /* rate 0: not known */
};

/* ---- as it lies in memory ---- */

struct ferry_share_line_words {
	_Atomic uint64_t key, shares, bytes, expected, paces[FERRY_NUM_FABRICS], flags;
};

struct ferry_share_course_words {
	_Atomic uint64_t key, paces[FERRY_NUM_FABRICS][FERRY_SHARE_BESIDE], reserved[3];
};

struct ferry_share_times_words {
	_Atomic uint64_t call; /* 1 + its number; release, behind the rest, and 0 before they change */
	_Atomic uint64_t us[FERRY_NUM_FABRICS];
};

/*
 * Before Ferry carries a call, its buffers are exported to the routers, which takes a rank time; so no rank proposes
 * Ferry before all ranks have done that. Each word stands for one kind of call that the rank has wanted or exported
 * lately, and holds the kind's own name, so that it says nothing of other kinds. A kind may stand in one of a few
 * places; it replaces a kind that is not wanted first.
 */
struct ferry_share_readiness {
	_Atomic uint64_t kinds[FERRY_SHARE_KINDS]; /* from the top: a name, 62 bits; shown; wanted. 0: none */
};

/* What one rank writes. */
struct ferry_share_rank {
	/* Bytes from which it numbers calls; 0: not said yet. Once, release, before it joins a seal. */
	_Atomic uint64_t floor;
	char pad[120];
	struct ferry_share_readiness ready;
	struct ferry_share_times_words times[FERRY_SHARE_TIMES]; /* by number mod FERRY_SHARE_TIMES */
};

struct ferry_share_table {
	_Atomic uint64_t signature; /* of the job's settings, as its ranks name them; 0: none */
	/* bit k: calls of kind k are NCCL's, whatever was learned of them (orchestrator/balance/tempo.h), */
	_Atomic uint64_t quiet, quiet_settled; /* now; and while no tuning is tried, which holds for captured calls */
	char pad[104];
	struct ferry_share_line_words lines[FERRY_SHARE_LINES], wholes[FERRY_SHARE_LINES];
	struct ferry_share_course_words courses[FERRY_SHARE_COURSES];
	_Atomic uint64_t saved_signatures[FERRY_SHARE_SAVED]; /* 0: none */
	char pad1[96];
	struct ferry_share_course_words saved[FERRY_SHARE_SAVED][FERRY_SHARE_COURSES];
	struct ferry_share_line_words saved_wholes[FERRY_SHARE_SAVED][FERRY_SHARE_LINES];
	struct ferry_share_rank ranks[]; /* as many as there are */
};

uint64_t ferry_share_table_bytes(uint32_t nranks);

void ferry_share_line_write(struct ferry_share_line_words *words, const struct ferry_share_line *line);

/** Returns false where there is no line, or it is invalid. */
bool ferry_share_line_read(const struct ferry_share_line_words *words, struct ferry_share_line *line);

void ferry_share_course_write(struct ferry_share_course_words *words, const struct ferry_share_course *course);

/** As ferry_share_line_read; an invalid pace is left out. */
bool ferry_share_course_read(const struct ferry_share_course_words *words, struct ferry_share_course *course);

/** Writes how long the parts of call n took for this rank; 0: unknown. */
void ferry_share_times_write(struct ferry_share_table *table, uint32_t rank, uint64_t n,
                             const double us[FERRY_NUM_FABRICS]);

/** Returns false where the rank has not written times of call n, or has overwritten them. */
bool ferry_share_times_read(const struct ferry_share_table *table, uint32_t rank, uint64_t n,
                            double us[FERRY_NUM_FABRICS]);

/**
 * Writes that this rank numbers calls of so many bytes and more, at least one. Ranks that number different calls cannot
 * agree on one, so each rank writes its floor, and none proposes anything before all floors are the same.
 */
void ferry_share_format_floor(struct ferry_share_table *table, uint32_t rank, uint64_t bytes);

/** Returns the rank's floor; 0: not written yet. */
uint64_t ferry_share_floor(const struct ferry_share_table *table, uint32_t rank);

/* Flags of a rank for a kind of call: it would propose Ferry; it has exported the buffers. */
#define FERRY_SHARE_WANTED 1u
#define FERRY_SHARE_SHOWN  2u

/** Sets or clears one of these flags of a kind of call; the other stays as it is. One thread of the rank at a time. */
void ferry_share_format(struct ferry_share_table *table, uint32_t rank, uint64_t kind, uint32_t what, bool on);

/** Reads the rank's flags of a kind of call; false: none, or they were replaced. */
bool ferry_share_said(const struct ferry_share_table *table, uint32_t rank, uint64_t kind, uint32_t *what);

/** "settled", "changed", ... */
const char *ferry_balance_name(enum ferry_balance why);

#endif
