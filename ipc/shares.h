/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The shares of a call: what part of every block each fabric carries, in 1024ths. They are agreed on as one word of 22
 * bits (ipc/seal.h): the host's and the peers', NCCL has the rest. Plain values, and the text of FERRY_SHARES.
 */
#ifndef FERRY_IPC_SHARES_H
#define FERRY_IPC_SHARES_H

#include "ipc/ferry_types.h"

enum ferry_carrier { FERRY_CARRIER_HOST, FERRY_CARRIER_PEER, FERRY_CARRIER_NCCL, FERRY_NUM_CARRIERS };

#define FERRY_SHARES_WHOLE 1024u
#define FERRY_SHARES_BITS 22    /* of a word: 11 the host's, 11 the peers' */
#define FERRY_SHARES_NONE 0u    /* NCCL alone */

struct ferry_shares {
	uint16_t part[FERRY_NUM_CARRIERS]; /* 1024ths; their sum is FERRY_SHARES_WHOLE */
};

/* How fast a carrier is: b bytes take start_us + b / rate. */
struct ferry_pace {
	double start_us;
	double rate; /* bytes per microsecond; 0: it cannot carry anything, or nothing is known */
};

/** "host", "peer", "nccl". */
const char *ferry_carrier_name(enum ferry_carrier carrier);

uint32_t ferry_shares_pack(const struct ferry_shares *shares);

/** The shares of a word; NCCL alone for one that has more than there is. */
struct ferry_shares ferry_shares_unpack(uint32_t word);

/**
 * The bytes of a block of `count` elements that this carrier has, and where they begin, in elements: host, peer and
 * NCCL in this order, without gap or overlap. Every part but the last is a multiple of `round` elements.
 */
void ferry_shares_range(const struct ferry_shares *shares, enum ferry_carrier carrier, uint64_t count, uint64_t round,
                        uint64_t *at, uint64_t *length);

/**
 * Reads nccl:0.9,host:0.1 or nccl=0.9,host=0.1: shares from 0 to 1 of carriers, each at most once; *named has bit c for
 * each that was given, and shares[c] is what, else 0. Errors: ferryInvalidArgument, with the place in the text.
 */
ferryResult_t ferry_shares_read(const char *text, double shares[FERRY_NUM_CARRIERS], uint32_t *named);

/**
 * The shares that FERRY_SHARES pins for NCCL programs. Where one is named, host or peer, the rest is NCCL's; else they
 * sum to 1. Errors: those of ferry_shares_read, and where they do not.
 */
ferryResult_t ferry_shares_pin(const char *text, struct ferry_shares *pins);

#endif
