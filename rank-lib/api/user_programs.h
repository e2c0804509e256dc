/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The users' programs of a communicator: those of FERRY_PROGRAM_PATH, which replace built-in ones, and those that
 * ferryRunProgram was given. Each is parsed and checked once and stays until the communicator is freed. Under the
 * communicator's lock.
 */
#ifndef FERRY_RANK_LIB_API_USER_PROGRAMS_H
#define FERRY_RANK_LIB_API_USER_PROGRAMS_H

#include "rank-lib/program/program.h"

#define FERRY_MAX_PROGRAMS 64

struct ferry_user_program {
	struct ferry_program *program;
	char *text;           /* RunProgram: to find it again; NULL for FERRY_PROGRAM_PATH's */
	uint64_t least, most; /* bytes of the collective that it replaces the built-in one for */
	/* why it does not compile, and so replaces nothing; NULL: not so. [1]: with premulsum, which asks for more */
	char *refused[2];
	bool logged; /* that it fits no call of its collective */
};

/** What a replacement is looked for. */
struct ferry_user_call {
	enum ferry_collective collective;
	uint32_t root;
	uint64_t bytes; /* of the block that the call counts */
	bool premulsum;
};

struct ferry_user_programs {
	struct ferry_user_program kept[FERRY_MAX_PROGRAMS];
	uint32_t count;
	bool replace; /* some are of FERRY_PROGRAM_PATH; constant once they are loaded */
	const char *source; /* of those that replace built-in ones: what names them, for messages */
};

/**
 * Reads the programs of these files and directories, of FERRY_PROGRAM_PATH where NULL, for this communicator and for
 * others. Errors name the file, and the variable or the field that names it.
 */
ferryResult_t ferry_user_programs_load(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                                       const char *paths);

/**
 * Returns the program that FERRY_PROGRAM_PATH gives for a call, or NULL. `tells`: if there are programs for the
 * collective and none fits, logs a warning for each, once per process, with the reason.
 */
const struct ferry_program *ferry_user_programs_replacement(struct ferry_user_programs *programs,
                                                            const struct ferry_topology *topology,
                                                            const struct ferry_user_call *call, bool tells);

/**
 * Marks a replacement as refused, as it cannot be compiled (see ferry_last_message()): calls like this one no longer
 * use it. Every rank comes to the same result. Returns false without memory to remember it.
 */
bool ferry_user_programs_refuse(struct ferry_user_programs *programs, const struct ferry_program *program,
                                const struct ferry_user_call *call);

/**
 * The program of a text: kept, or parsed and checked now. ferryProgramError: also if it is for other ranks than these.
 */
ferryResult_t ferry_user_programs_find(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                                       const char *text, const struct ferry_program **program);

void ferry_user_programs_free(struct ferry_user_programs *programs);

#endif
