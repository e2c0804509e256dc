/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/schedule.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

#define PASSES 4 /* over the events; more passes change little */

/* ---- lanes ---- */

static void add_lane(struct ferry_schedule *schedule, enum ferry_lane_kind kind, uint32_t domain, uint32_t rank)
{
	schedule->lanes[schedule->nlanes++] = (struct ferry_schedule_lane){kind, domain, rank, 0};
}

static void add_lanes(struct ferry_schedule *schedule)
{
	const struct ferry_program *program = schedule->program;
	for (uint32_t domain = 0; domain < program->ndomains; domain++) {
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			if (program->rank_domain[rank] == domain)
				add_lane(schedule, FERRY_LANE_D2H, domain, rank);
		add_lane(schedule, FERRY_LANE_ROUTER, domain, 0);
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			if (program->rank_domain[rank] == domain)
				add_lane(schedule, FERRY_LANE_H2D, domain, rank);
	}
}

static uint32_t find_lane(const struct ferry_schedule *schedule, enum ferry_lane_kind kind, uint32_t number)
{
	uint32_t lane = 0;
	while (schedule->lanes[lane].kind != kind ||
	       (kind == FERRY_LANE_ROUTER ? schedule->lanes[lane].domain : schedule->lanes[lane].rank) != number)
		lane++;
	return lane;
}

static uint32_t lane_of(const struct ferry_schedule *schedule, const struct ferry_statement *statement)
{
	if (ferry_statement_passes_on(statement))
		return find_lane(schedule, FERRY_LANE_D2H, statement->rank);
	switch (statement->opcode) {
	case FERRY_D2H:
	case FERRY_PUT:
		return find_lane(schedule, FERRY_LANE_D2H, statement->rank);
	case FERRY_H2D:
		return find_lane(schedule, FERRY_LANE_H2D, statement->rank);
	default:
		return find_lane(schedule, FERRY_LANE_ROUTER,
		                 ferry_place_domain(schedule->program, statement->destination));
	}
}

/* ---- chains ---- */

/* Returns the REDUCE that accumulates on this one's result, if it alone reads that, or FERRY_NO_STATEMENT. */
static uint32_t next_of_chain(const struct ferry_schedule *schedule, const bool *waited, uint32_t statement)
{
	const struct ferry_versions *versions = &schedule->versions;
	uint32_t written = versions->uses[statement].writes;
	if (schedule->program->statements[statement].opcode != FERRY_REDUCE || waited[written] ||
	    versions->values[written].nreaders != 1)
		return FERRY_NO_STATEMENT;
	uint32_t reader = versions->readers[versions->values[written].first_reader];
	uint32_t result = versions->uses[reader].writes;
	return result != FERRY_NO_VALUE && versions->values[result].base == written ? reader : FERRY_NO_STATEMENT;
}

/* Makes the events, producers before consumers, and finds each statement's. Returns false without memory. */
static bool find_events(struct ferry_schedule *schedule)
{
	const struct ferry_versions *versions = &schedule->versions;
	uint32_t n = schedule->program->nstatements;
	bool *waited = calloc(n + 1, sizeof *waited);
	if (!waited)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		schedule->before[i] = FERRY_NO_STATEMENT;
		for (uint32_t j = 0; j < versions->uses[i].nwaits; j++)
			waited[versions->waits[versions->uses[i].first_wait + j]] = true;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t next = next_of_chain(schedule, waited, i);
		if (next != FERRY_NO_STATEMENT)
			schedule->before[next] = i;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t statement = versions->order[i];
		if (next_of_chain(schedule, waited, statement) != FERRY_NO_STATEMENT)
			continue;
		schedule->events[schedule->nevents] = (struct ferry_event){.statement = statement,
		                                                           .before = schedule->before[statement]};
		for (uint32_t part = statement; part != FERRY_NO_STATEMENT; part = schedule->before[part])
			schedule->event_of[part] = schedule->nevents;
		schedule->nevents++;
	}
	free(waited);
	return true;
}

/* ---- steps ---- */

static uint32_t after_statement(const struct ferry_schedule *schedule, uint32_t statement, uint32_t step)
{
	uint32_t end = schedule->events[schedule->event_of[statement]].step + 1;
	return end > step ? end : step;
}

static uint32_t after(const struct ferry_schedule *schedule, uint32_t value, uint32_t step)
{
	return value == FERRY_NO_VALUE ? step
	                               : after_statement(schedule, schedule->versions.values[value].writer, step);
}

/* Returns the first step at which all that the event waits for is done. */
static uint32_t ready_step(const struct ferry_schedule *schedule, const struct ferry_event *event)
{
	const struct ferry_versions *versions = &schedule->versions;
	uint32_t step = 0;
	for (uint32_t part = event->statement; part != FERRY_NO_STATEMENT; part = schedule->before[part]) {
		const struct ferry_use *use = &versions->uses[part];
		step = after(schedule, use->reads, step);
		if (use->forwards != FERRY_NO_STATEMENT)
			step = after_statement(schedule, use->forwards, step);
		for (uint32_t i = 0; i < use->nwaits; i++)
			step = after(schedule, versions->waits[use->first_wait + i], step);
		if (use->writes != FERRY_NO_VALUE && schedule->before[part] == FERRY_NO_STATEMENT)
			step = after(schedule, versions->values[use->writes].base, step);
	}
	return step;
}

static void take_step(struct ferry_schedule *schedule, struct ferry_event *event, uint32_t lane, uint32_t ready)
{
	uint32_t *next = &schedule->lanes[lane].nsteps;
	event->lane = lane;
	event->step = *next > ready ? *next : ready;
	*next = event->step + 1;
	if (*next > schedule->nsteps)
		schedule->nsteps = *next;
}

/* Adds copies for output that is a rank's own input and that no statement writes. Returns their number. */
static uint32_t add_copies(struct ferry_schedule *schedule)
{
	const struct ferry_program *program = schedule->program;
	uint32_t before = schedule->nevents;
	struct ferry_own_copy copy = {0};
	while (ferry_own_copy_next(program, &schedule->versions, &copy))
		schedule->events[schedule->nevents++] = (struct ferry_event){.statement = FERRY_NO_STATEMENT,
		                                                             .lane = find_lane(schedule, FERRY_LANE_H2D,
		                                                                               copy.rank),
		                                                             .send = copy.send_chunk,
		                                                             .receive = copy.receive_chunk};
	return schedule->nevents - before;
}

static int by_number(const void *left, const void *right)
{
	const uint64_t *a = left, *b = right;
	return *a < *b ? -1 : *a > *b;
}

/*
 * Gives every event its step; lanes take events in the order in which they become ready. That depends on the steps of
 * others: so this begins with any order that has producers before consumers, and repeats with the steps found. An order
 * by readiness has producers before consumers, too.
 */
static void find_steps(struct ferry_schedule *schedule, uint64_t *order, uint32_t ncopies)
{
	const struct ferry_program *program = schedule->program;
	uint32_t nevents = schedule->nevents - ncopies;
	for (uint32_t i = 0; i < nevents; i++)
		order[i] = i;
	for (int pass = 0; pass < PASSES; pass++) {
		schedule->nsteps = 0;
		for (uint32_t lane = 0; lane < schedule->nlanes; lane++)
			schedule->lanes[lane].nsteps = 0;
		for (uint32_t i = nevents; i < schedule->nevents; i++) /* copies wait for nothing */
			take_step(schedule, &schedule->events[i], schedule->events[i].lane, 0);
		for (uint32_t i = 0; i < nevents; i++) {
			uint32_t number = (uint32_t)order[i];
			struct ferry_event *event = &schedule->events[number];
			uint32_t ready = ready_step(schedule, event);
			take_step(schedule, event, lane_of(schedule, &program->statements[event->statement]), ready);
			order[i] = (uint64_t)ready << 32 | number;
		}
		qsort(order, nevents, sizeof *order, by_number);
	}
}

ferryResult_t ferry_schedule_make(const struct ferry_program *program, struct ferry_schedule *schedule)
{
	uint32_t n = program->nstatements, most = program->nranks * program->nchunks;
	*schedule = (struct ferry_schedule){.program = program};
	ferryResult_t result = ferry_program_check(program);
	if (!result)
		result = ferry_versions_build(program, &schedule->versions);
	if (result)
		return result;
	uint64_t *order = calloc(n + 1, sizeof *order);
	schedule->events = calloc(n + (size_t)program->nranks * most, sizeof *schedule->events);
	schedule->event_of = calloc(n + 1, sizeof *schedule->event_of);
	schedule->before = calloc(n + 1, sizeof *schedule->before);
	if (order && schedule->events && schedule->event_of && schedule->before && find_events(schedule)) {
		add_lanes(schedule);
		find_steps(schedule, order, add_copies(schedule));
	} else {
		result = ferry_fail(ferrySystemError, "%s: no memory for a schedule of %u statements", program->name,
		                    n);
		ferry_schedule_free(schedule);
	}
	free(order);
	return result;
}

void ferry_schedule_free(struct ferry_schedule *schedule)
{
	ferry_versions_free(&schedule->versions);
	free(schedule->events);
	free(schedule->event_of);
	free(schedule->before);
	*schedule = (struct ferry_schedule){0};
}
