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
	char *text;           /* of ferryRunProgram, to find it again; NULL for FERRY_PROGRAM_PATH's */
	uint64_t least, most; /* bytes of the calls that it replaces the built-in program for */
	/* why it does not compile, and so replaces nothing; NULL: it may. [1]: for premulsum, which needs more */
	char *refused[2];
	bool logged; /* a warning has said that it fits no call of its collective */
};

/** A call that a replacement is looked for. */
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
	const char *source; /* the variable or field that names those that replace, for messages */
};

/**
 * Reads the programs of the files and directories in `paths` (NULL: FERRY_PROGRAM_PATH), also those for other
 * topologies than this one. Errors name the file, and the variable or field that names it: ferryInvalidArgument,
 * ferryProgramError, ferrySystemError; ferryInvalidUsage for more than FERRY_MAX_PROGRAMS.
 */
ferryResult_t ferry_user_programs_load(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                                       const char *paths);

/**
 * Returns the user's program that replaces the built-in one for a call, or NULL. `tells`: if there are programs for the
 * collective and none fits, warns of each, once per process, with the reason.
 */
const struct ferry_program *ferry_user_programs_replacement(struct ferry_user_programs *programs,
                                                            const struct ferry_topology *topology,
                                                            const struct ferry_user_call *call, bool tells);

/**
 * Marks a replacement as refused, with ferry_last_message() as the reason why it does not compile: calls like this one
 * no longer use it. Every rank comes to the same result. Returns false if there is no memory.
 */
bool ferry_user_programs_refuse(struct ferry_user_programs *programs, const struct ferry_program *program,
                                const struct ferry_user_call *call);

/**
 * Returns the program of a text in *program, which `programs` owns: kept, or parsed and checked now. Errors:
 * ferryProgramError, also if it is for another topology; ferryInvalidUsage for more than FERRY_MAX_PROGRAMS.
 */
ferryResult_t ferry_user_programs_find(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                                       const char *text, const struct ferry_program **program);

void ferry_user_programs_free(struct ferry_user_programs *programs);

#endif
