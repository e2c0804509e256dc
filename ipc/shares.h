/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The shares of a call: what part of every block each fabric carries, in 128ths, and with which of its tunings NCCL
 * carries its part. Ranks agree on them as one word of 22 bits (ipc/agreement.h): the host's and the peers' share, and
 * the number of the tuning; NCCL has the rest. Plain values, and the text of FERRY_SHARES.
 *
 * The table of shares lies in the arena of domain 0. It holds the shares of calls and the trials, for the ranks that
 * seal them and for ferry-stat, and what earlier jobs have learned. Each of its words is stored and loaded whole,
 * relaxed: a reader may find a line half renewed, which does no harm, and checks what it has read. Writers: rank 0
 * writes the lines, the signature and `hold`; each rank its floor and its readiness; the router what was saved, before
 * it hands the arena out.
 */
#ifndef FERRY_IPC_SHARES_H
#define FERRY_IPC_SHARES_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

enum ferry_fabric { FERRY_FABRIC_HOST, FERRY_FABRIC_PEER, FERRY_FABRIC_NCCL, FERRY_NUM_FABRICS };

#define FERRY_SHARES_WHOLE   128u
#define FERRY_SHARES_BITS    22 /* of a word: 8 the host's, 8 the peers', 6 NCCL's tuning */
#define FERRY_SHARES_NONE    0u /* NCCL alone, as it is */
#define FERRY_SHARES_TUNINGS 64u
/* A word with these bits inverted is invalid, and says so that kernels begin with its call (orchestrator/kernels.h). */
#define FERRY_SHARES_BEGINS 0x3fffc0u

struct ferry_shares {
	uint8_t part[FERRY_NUM_FABRICS]; /* 128ths; their sum is FERRY_SHARES_WHOLE */
	uint8_t tuning;                  /* of NCCL's part (orchestrator/nccl_tuner.h); 0: its own choice */
};

/** "host", "peer", "nccl". */
const char *ferry_fabric_name(enum ferry_fabric fabric);

uint32_t ferry_shares_pack(const struct ferry_shares *shares);

/** Returns the shares of a word; NCCL alone for an invalid word. */
struct ferry_shares ferry_shares_unpack(uint32_t word);

/** Whether a word says that kernels begin with its call; *word becomes its shares alone then. */
bool ferry_shares_begin(uint32_t *word);

/** Whether Ferry has a part. */
static inline bool ferry_shares_divide(uint32_t word)
{
	return word >= FERRY_SHARES_TUNINGS;
}

static inline uint32_t ferry_shares_tuning(uint32_t word)
{
	return word % FERRY_SHARES_TUNINGS;
}

/**
 * The part of a block of `count` elements that this fabric has: where it begins and its length, in elements. Host, peer
 * and NCCL follow in this order, without gap or overlap. Every part but the last is a multiple of `round` elements.
 */
void ferry_shares_range(const struct ferry_shares *shares, enum ferry_fabric fabric, uint64_t count, uint64_t round,
                        uint64_t *at, uint64_t *length);

/**
 * Parses nccl:0.9,host:0.1 or nccl=0.9,host=0.1: shares from 0 to 1 of fabrics, each at most once. Bit f of *named:
 * fabric f is given; shares[f]: its share, else 0. Error: ferryInvalidArgument, with the place in the text.
 */
ferryResult_t ferry_shares_read(const char *text, double shares[FERRY_NUM_FABRICS], uint32_t *named);

/**
 * Reads the shares that FERRY_SHARES pins for NCCL programs. Where `host` or `peer` is named, the rest is NCCL's; else
 * they sum to 1. Errors: those of ferry_shares_read, and where they do not sum to 1.
 */
ferryResult_t ferry_shares_pin(const char *text, struct ferry_shares *pins);

#define FERRY_SHARE_LINES 96  /* (collective, type, size class, in place or not) */
#define FERRY_SHARE_KERNELS 16 /* of these, from the end: calls that kernels carry */
#define FERRY_SHARE_SAVED 4   /* settings of earlier jobs */
#define FERRY_SHARE_KINDS 256 /* kinds of calls whose readiness a rank can state */

/* Why a line has these shares. */
enum ferry_balance {
	FERRY_BALANCE_PRIOR,   /* by what was measured before this job */
	FERRY_BALANCE_TRYING,  /* something is tried, or has been tried too little */
	FERRY_BALANCE_SETTLED, /* the fastest of what was measured */
	FERRY_BALANCE_HIDDEN,  /* NCCL's: the program's steps are no shorter with Ferry */
	FERRY_BALANCE_KERNEL,  /* a kernel of Ferry's carries them: nothing is shared */
	FERRY_NUM_BALANCES
};

/* ---- as it is read ---- */

struct ferry_share_line {
	uint8_t collective, type, size_class, why;
	bool in_place;
	uint32_t calls;
	uint32_t word;  /* the shares of these calls */
	uint32_t nccl;  /* the best word without Ferry */
	uint32_t ferry; /* the best word with Ferry; NONE: there is none */
	/* The next `run` calls have the shares `trial`. `turn` differs between one trial and the next */
	uint32_t trial;
	uint8_t run, turn;
	uint64_t bytes;           /* of the last call */
	double nccl_us, ferry_us; /* time of such calls with the words above; 0: not known */
};

/* ---- as it lies in memory ---- */

struct ferry_share_line_words {
	_Atomic uint64_t key, shares, trial, bytes, us;
};

/*
 * Before Ferry carries a call, its buffers are exported to the routers, which takes a rank time; so no rank proposes
 * Ferry before all ranks have done that. Each word is for one kind of call that the rank has wanted or exported lately,
 * and holds the kind's name. A kind has a few places where it may be; it replaces kinds that are not wanted first.
 */
struct ferry_share_readiness {
	_Atomic uint64_t kinds[FERRY_SHARE_KINDS]; /* from the top: a name, 62 bits; preregistered; wanted. 0: none */
};

/* What one rank writes. */
struct ferry_share_rank {
	/*
	 * The least bytes of the calls that it numbers; top bit: its NCCL takes tunings; 0: not written yet. Once,
	 * release, before it joins a seal.
	 */
	_Atomic uint64_t floor;
	char pad[120];
	struct ferry_share_readiness ready;
};

struct ferry_share_table {
	_Atomic uint64_t signature; /* of the job's settings, as its ranks name them; 0: none */
	/* enum ferry_veto_hold (orchestrator/tuner/veto.h): whether NCCL has all calls now, whatever the lines say */
	_Atomic uint64_t hold;
	char pad[112];
	struct ferry_share_line_words lines[FERRY_SHARE_LINES];
	_Atomic uint64_t saved_signatures[FERRY_SHARE_SAVED]; /* 0: none */
	char pad1[96];
	struct ferry_share_line_words saved[FERRY_SHARE_SAVED][FERRY_SHARE_LINES];
	struct ferry_share_rank ranks[]; /* as many as there are */
};

uint64_t ferry_share_table_bytes(uint32_t nranks);

void ferry_share_line_write(struct ferry_share_line_words *words, const struct ferry_share_line *line);

/** Returns false where there is no line, or it is invalid. */
bool ferry_share_line_read(const struct ferry_share_line_words *words, struct ferry_share_line *line);

/**
 * Writes the rank's floor: it numbers calls of so many bytes (at least one) and more. Ranks that number different calls
 * cannot agree on one, so no rank proposes anything before all floors are the same.
 */
void ferry_share_publish_floor(struct ferry_share_table *table, uint32_t rank, uint64_t bytes, bool tuned);

/** Returns the rank's floor; 0: not written yet. */
uint64_t ferry_share_floor(const struct ferry_share_table *table, uint32_t rank);

/** Whether the rank's NCCL takes tunings (orchestrator/nccl_tuner.h). */
bool ferry_share_tuned(const struct ferry_share_table *table, uint32_t rank);

/* Flags of a rank for a kind of call: it would propose Ferry; it has exported the buffers. */
#define FERRY_SHARE_WANTED        1u
#define FERRY_SHARE_PREREGISTERED 2u

/** Sets or clears one of these flags of a kind of call; the other stays as it is. One thread of the rank at a time. */
void ferry_share_publish(struct ferry_share_table *table, uint32_t rank, uint64_t kind, uint32_t what, bool on);

/** Reads the rank's flags of a kind of call; false: none, or they were replaced. */
bool ferry_share_said(const struct ferry_share_table *table, uint32_t rank, uint64_t kind, uint32_t *what);

/** "settled", "prior", ... */
const char *ferry_balance_name(enum ferry_balance why);

#endif
