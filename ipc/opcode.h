/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the instructions of programs and plans do: who executes each, and what it reads and writes. Whoever asks such a
 * thing of an opcode asks here, so that another opcode is added in one place.
 */
#ifndef FERRY_IPC_OPCODE_H
#define FERRY_IPC_OPCODE_H

#include <stdbool.h>
#include <stdint.h>

enum ferry_opcode {
	FERRY_D2H,    /* rank's send buffer -> staging window */
	FERRY_H2D,    /* staging window -> rank's receive buffer */
	/* rank's send buffer -> its own receive buffer: the part of the output that is the rank's own input */
	FERRY_COPY,
	FERRY_REDUCE, /* N windows of one domain -> window of that domain, by that domain's router */
	FERRY_H2H,    /* window -> window of another domain, by the router of the destination */
	/* rank's send or receive buffer -> another rank's receive buffer, by who moves the former's data */
	FERRY_PUT,
	/* nothing: what another rank puts into the receive buffer is there, so that the call may end */
	FERRY_LAND,
	FERRY_NUM_OPCODES
};

/** As programs spell it. */
static inline const char *ferry_opcode_name(uint8_t opcode)
{
	static const char *const names[FERRY_NUM_OPCODES] = {"D2H", "H2D", "COPY", "REDUCE", "H2H", "PUT", "LAND"};
	return opcode < FERRY_NUM_OPCODES ? names[opcode] : "no opcode";
}

/** Executed by the workers of a domain's router; else by a lane, for a rank. */
static inline bool ferry_opcode_is_work(uint8_t opcode)
{
	return opcode == FERRY_REDUCE || opcode == FERRY_H2H;
}

/** Executed by a rank's D2H lane. */
static inline bool ferry_opcode_goes_up(uint8_t opcode)
{
	return opcode == FERRY_D2H || opcode == FERRY_PUT;
}

/** Executed by a rank's H2D lane. */
static inline bool ferry_opcode_goes_down(uint8_t opcode)
{
	return opcode == FERRY_H2D || opcode == FERRY_COPY || opcode == FERRY_LAND;
}

/** Reads its rank's send buffer; a PUT that forwards (ferry_instr.flags) reads the receive buffer. */
static inline bool ferry_opcode_sends(uint8_t opcode)
{
	return opcode == FERRY_D2H || opcode == FERRY_COPY || opcode == FERRY_PUT;
}

/** Its rank's receive buffer is written: by it, or (LAND) by what it waits for. */
static inline bool ferry_opcode_receives(uint8_t opcode)
{
	return ferry_opcode_goes_down(opcode);
}

/** Writes the window of the instruction. */
static inline bool ferry_opcode_writes_window(uint8_t opcode)
{
	return opcode == FERRY_D2H || ferry_opcode_is_work(opcode);
}

/** Has a window: it reads or writes it. */
static inline bool ferry_opcode_has_window(uint8_t opcode)
{
	return opcode != FERRY_COPY && opcode != FERRY_PUT && opcode != FERRY_LAND;
}

#endif
