/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which lane executes which statement, in which order: a program's statements on lanes, as a picture shows them. Every
 * statement takes one step of its lane, as soon as the lane is free and its dependencies are done; a chain of REDUCEs
 * into one chunk is one event, as the engine runs it in one pass. Steps are an order, not times. Made from a program,
 * which must outlive it; read-only then.
 */
#ifndef FERRY_LAUNCH_SCHEDULE_H
#define FERRY_LAUNCH_SCHEDULE_H

#include "rank-lib/program/versions.h"

enum ferry_lane_kind { FERRY_LANE_D2H, FERRY_LANE_ROUTER, FERRY_LANE_H2D };

struct ferry_schedule_lane {
	enum ferry_lane_kind kind;
	uint32_t domain, rank; /* rank: of ranks' lanes */
	uint32_t nsteps;       /* 0: it has no statements */
};

struct ferry_event {
	uint32_t statement; /* the last one of a chain; FERRY_NO_STATEMENT: a copy of the rank's own input */
	uint32_t before;    /* the statement of the chain before this one; FERRY_NO_STATEMENT: none */
	uint32_t lane, step;
	uint32_t send, receive; /* of a copy: the chunks */
};

struct ferry_schedule {
	const struct ferry_program *program;
	struct ferry_versions versions;
	/* by domain: its ranks' lanes up, its router's, its ranks' lanes down */
	struct ferry_schedule_lane lanes[2 * FERRY_MAX_RANKS + FERRY_MAX_DOMAINS];
	uint32_t nlanes, nsteps, nevents;
	struct ferry_event *events; /* producers before consumers; copies last */
	uint32_t *event_of;         /* by statement: its event */
	uint32_t *before;           /* by statement: the one before it in its chain, or FERRY_NO_STATEMENT */
};

/** Makes a schedule, which ferry_schedule_free frees. Errors: those of ferry_program_check; ferrySystemError. */
ferryResult_t ferry_schedule_make(const struct ferry_program *program, struct ferry_schedule *schedule);
void ferry_schedule_free(struct ferry_schedule *schedule);

#endif
