/* SPDX-License-Identifier: Apache-2.0 */
/* The plans a communicator keeps: found by what was asked, else synthesized or replaced, compiled, and given to the routers. */
#include "ipc/environment.h"
#include "rank-lib/comm.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool same_key(const struct ferry_plan_key *a, const struct ferry_plan_key *b)
{
	return a->collective == b->collective && a->type == b->type && a->redop == b->redop && a->count == b->count &&
	       a->root == b->root && a->program == b->program;
}

/* ---- a compiled plan, with this rank's pointers found ---- */

static bool is_mine(const struct ferryComm *comm, const struct ferry_instr *instr, enum ferry_direction direction)
{
	if (instr->opcode == FERRY_REDUCE || instr->opcode == FERRY_H2H || instr->owner != comm->rank)
		return false;
	return (instr->opcode == FERRY_D2H) == (direction == FERRY_UP);
}

static void resolve(struct ferryComm *comm, const struct ferry_plan *plan, const struct ferry_instr *instr, uint32_t bank,
                    struct ferry_step *step, struct ferry_gate **gates)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	struct ferry_arena *arenas = comm->shared.arenas;
	step->instr = instr;
	step->counter = &arenas[instr->domain].counters[bank][instr->counter];
	uint32_t staging = ferry_plan_staging_bank(plan, bank);
	step->window = instr->opcode == FERRY_COPY ? NULL : arenas[instr->window_domain].staging[staging] + instr->window_offset;
	step->gates = *gates;
	step->ngates = instr->nedges;
	*gates += instr->nedges;
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_instr *other = &instrs[edges[i].instr];
		if (edges[i].lag && instr->opcode == FERRY_D2H && !instr->wakes_domains)
			step->only_passes_on = true;
		step->gates[i] = (struct ferry_gate){&arenas[other->domain].counters[bank][other->counter], edges[i].lag,
		                                     other->nslices};
		if (instr->opcode == FERRY_H2D && edges[i].lag == 0 && other->opcode == FERRY_D2H &&
		    other->window_domain == instr->window_domain && other->window_offset == instr->window_offset) {
			step->producer = step->gates[i].counter;
			step->producer_rank = other->owner;
		}
	}
}

static ferryResult_t entry_fill(struct ferryComm *comm, struct ferry_plan_entry *entry)
{
	const struct ferry_plan *plan = entry->plan;
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	size_t nsteps = 0, ngates = 0;
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++)
			if (is_mine(comm, &instrs[i], direction)) {
				entry->nsteps[direction]++;
				nsteps++;
				ngates += instrs[i].nedges;
			}
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (instrs[i].opcode == FERRY_REDUCE || instrs[i].opcode == FERRY_H2H)
			entry->domains |= 1u << instrs[i].owner;
	entry->memory = calloc(FERRY_BANKS, nsteps * sizeof(struct ferry_step) + ngates * sizeof(struct ferry_gate) + 1);
	if (!entry->memory)
		return ferry_fail(ferrySystemError, "no memory for a plan of %u instructions", plan->ninstrs);
	struct ferry_step *step = entry->memory;
	struct ferry_gate *gates = (struct ferry_gate *)(step + FERRY_BANKS * nsteps);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
			entry->steps[direction][bank] = step;
			for (uint32_t i = 0; i < plan->ninstrs; i++)
				if (is_mine(comm, &instrs[i], direction))
					resolve(comm, plan, &instrs[i], bank, step++, &gates);
		}
	return ferrySuccess;
}

static void entry_free(struct ferry_plan_entry *entry)
{
	if (!entry)
		return;
	free(entry->plan);
	free(entry->memory);
	free(entry);
}

static ferryResult_t compile(struct ferryComm *comm, const struct ferry_plan_key *key, struct ferry_plan **plan)
{
	struct ferry_program *synthesized = NULL;
	const struct ferry_program *program = key->program;
	struct ferry_compile_options options = {.count = key->count,
	                                        .type = key->type,
	                                        .redop = key->redop,
	                                        .slice = (uint32_t)comm->slice,
	                                        .window = (uint32_t)comm->window,
	                                        .direct = comm->device->copier->ops->direct_memory_access,
	                                        .core_cache = comm->core_cache,
	                                        .sharing = comm->topology.together ? comm->ndomains : 1,
	                                        .costs = comm->costs};
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		options.staging[domain] = comm->shared.arenas[domain].staging_bytes;
	ferryResult_t result = ferrySuccess;
	if (!program) {
		result = ferry_program_synthesize(key->collective, &comm->topology, key->root, &synthesized);
		program = synthesized;
	}
	if (!result)
		result = ferry_program_compile(program, &options, plan);
	ferry_program_free(synthesized);
	return result;
}

/* Every rank checks what a router would: a plan that some router refuses must fail on all ranks, not hang those without it. */
static ferryResult_t validate(struct ferryComm *comm, const struct ferry_plan *plan)
{
	struct ferry_plan_limits limits = {.nranks = (uint32_t)comm->nranks,
	                                   .ndomains = comm->ndomains,
	                                   .rank_domain = comm->shared.rank_domain};
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		limits.staging[domain] = comm->shared.arenas[domain].staging_bytes;
		limits.counters[domain] = comm->shared.arenas[domain].ncounters;
	}
	return ferry_plan_validate(plan, plan->bytes, &limits);
}

static ferryResult_t upload(struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = entry->plan->bytes};
		if (!(entry->domains >> domain & 1))
			continue;
		ferryResult_t result = ferry_attach_call(comm->sockets[domain], &message, entry->plan, NULL);
		if (result)
			return ferry_fail_context(result, "giving a plan to the router of domain %u", domain);
	}
	return ferrySuccess;
}

/* The routers may forget the plan, unless it is another entry's too: a user's program may say what another says. */
static ferryResult_t drop(struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	for (uint32_t i = 0; i < comm->nplans; i++)
		if (comm->plans[i] != entry && comm->plans[i]->plan->hash == entry->plan->hash)
			return ferrySuccess;
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_DROP, .hash = entry->plan->hash};
		if (!(entry->domains >> domain & 1))
			continue;
		ferryResult_t result = ferry_attach_call(comm->sockets[domain], &message, NULL, NULL);
		if (result)
			return ferry_fail_context(result, "taking a plan back from the router of domain %u", domain);
	}
	return ferrySuccess;
}

static void show(const struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	const struct ferry_plan *plan = entry->plan;
	if (!comm->show_plans || comm->rank)
		return;
	fprintf(stderr,
	        "ferry plan: %s of %llu %s, %s, %u ranks in %u domains%s: %u instructions, slice %u bytes, window %u slots, workers %u%s, staging",
	        ferry_collective_name(plan->collective), (unsigned long long)plan->count, ferry_type_name(plan->type),
	        ferry_redop_name(plan->redop), plan->nranks, plan->ndomains, entry->key.program ? ", user's program" : "",
	        plan->ninstrs, plan->slice, plan->window, plan->workers, plan->workers ? "" : " (all)");
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		fprintf(stderr, " %llu", (unsigned long long)plan->staging[domain]);
	fprintf(stderr, " bytes%s", plan->flags & FERRY_PLAN_ALONE ? ", alone in it" : "");
	if (plan->flags & FERRY_PLAN_DMA)
		fprintf(stderr, ", a slice costs %u ns and moves at %u GB/s (%s)", comm->costs.issue_ns, comm->costs.link,
		        comm->costs.measured ? "ferry-perf limits" : "not measured here");
	fprintf(stderr, ", hash %016llx\n", (unsigned long long)plan->hash);
}

static bool routers_finished(const struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	uint64_t last = atomic_load_explicit(&entry->last_seq, memory_order_relaxed);
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		if (entry->domains >> domain & 1 &&
		    atomic_load_explicit(&comm->shared.arenas[domain].header->finished[last % FERRY_BANKS], memory_order_acquire) < last)
			return false;
	return true;
}

/* Rank 0 takes a plan back from the routers, so the last call that names it must be over there, not only here. */
static ferryResult_t await_routers(struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&comm->shared, (uint32_t)comm->rank)->app;
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		bool finished = routers_finished(comm, entry), failed = ferry_comm_failed(comm);
		if (finished || failed) {
			ferry_doorbell_cancel(bell);
			return finished ? ferrySuccess : ferry_fail(comm->error, "the communicator has failed: %s", comm->error_message);
		}
		ferry_doorbell_wait(bell, ticket, 100000);
		ferry_comm_check_sockets(comm);
	}
}

/* A place for a new plan: a free one, else that of the plan unused for longest, once its last call is over. */
static ferryResult_t make_room(struct ferryComm *comm, uint32_t *slot)
{
	ferryResult_t result = ferrySuccess;
	uint32_t inflight;
	if (comm->nplans < FERRY_MAX_PLANS) {
		*slot = comm->nplans++;
		return ferrySuccess;
	}
	*slot = FERRY_MAX_PLANS;
	for (uint32_t i = 0; i < FERRY_MAX_PLANS; i++)
		if (!atomic_load_explicit(&comm->plans[i]->captures, memory_order_acquire) &&
		    (*slot == FERRY_MAX_PLANS || comm->plans[i]->last_used < comm->plans[*slot]->last_used))
			*slot = i;
	if (*slot == FERRY_MAX_PLANS)
		return ferry_fail(ferryInvalidUsage, "all %d plans of this communicator are in captured graphs", FERRY_MAX_PLANS);
	while ((inflight = atomic_load_explicit(&comm->inflight, memory_order_acquire)) != 0)
		ferry_futex_wait(&comm->inflight, inflight, 100000, false);
	if (comm->rank == 0 && comm->plans[*slot]->last_seq)
		result = await_routers(comm, comm->plans[*slot]);
	if (!result && comm->rank == 0)
		result = drop(comm, comm->plans[*slot]);
	if (result)
		return result;
	entry_free(comm->plans[*slot]);
	comm->plans[*slot] = NULL;
	return ferrySuccess;
}

ferryResult_t ferry_comm_plan(struct ferryComm *comm, const struct ferry_plan_key *key, struct ferry_plan_entry **found)
{
	uint32_t slot;
	for (uint32_t i = 0; i < comm->nplans; i++)
		if (comm->plans[i] && same_key(&comm->plans[i]->key, key)) {
			*found = comm->plans[i];
			return ferrySuccess;
		}
	struct ferry_plan_entry *entry = calloc(1, sizeof *entry);
	if (!entry)
		return ferry_fail(ferrySystemError, "no memory for a plan");
	entry->key = *key;
	ferryResult_t result = compile(comm, key, &entry->plan);
	if (!result)
		result = validate(comm, entry->plan);
	if (!result)
		result = entry_fill(comm, entry);
	if (!result)
		result = make_room(comm, &slot);
	if (result) {
		entry_free(entry);
		return result;
	}
	comm->plans[slot] = entry;
	if (comm->rank == 0 && entry->domains && (result = upload(comm, entry))) {
		ferry_comm_fail(comm, result, ferry_last_message()); /* the other ranks would wait for this one */
		return result;
	}
	show(comm, entry);
	*found = entry;
	return ferrySuccess;
}

void ferry_comm_free_plans(struct ferryComm *comm)
{
	for (uint32_t i = 0; i < comm->nplans; i++)
		entry_free(comm->plans[i]);
	for (uint32_t i = 0; i < comm->nprograms; i++) {
		ferry_program_free(comm->programs[i].program);
		free(comm->programs[i].text);
	}
}

/* ---- users' programs ---- */

static ferryResult_t add_program(struct ferryComm *comm, const char *name, const char *text, size_t bytes, bool keep_text)
{
	struct ferry_program_defaults defaults = {.collective = FERRY_NUM_COLLECTIVES,
	                                          .nranks = (uint32_t)comm->nranks,
	                                          .ndomains = comm->ndomains,
	                                          .rank_domain = comm->shared.rank_domain};
	struct ferry_program *program;
	if (comm->nprograms == FERRY_MAX_PROGRAMS)
		return ferry_fail(ferryInvalidUsage, "%s: a communicator keeps at most %d programs", name, FERRY_MAX_PROGRAMS);
	if (keep_text)
		defaults.collective = FERRY_ALLREDUCE; /* text without a header, as in HyLink's Figure 3 */
	ferryResult_t result = ferry_program_parse(name, text, bytes, &defaults, &program);
	if (!result && (result = ferry_program_check(program)))
		ferry_program_free(program);
	if (result)
		return result;
	struct ferry_user_program *kept = &comm->programs[comm->nprograms];
	*kept = (struct ferry_user_program){.program = program, .least = program->least_bytes, .most = program->most_bytes};
	if (keep_text && !(kept->text = strdup(text))) {
		ferry_program_free(program);
		return ferry_fail(ferrySystemError, "no memory for a program of %zu bytes", bytes);
	}
	comm->nprograms++;
	return ferrySuccess;
}

static ferryResult_t load_file(struct ferryComm *comm, const char *path)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *file = fopen(path, "r");
	if (!file)
		return ferry_fail(ferryInvalidArgument, "FERRY_PROGRAM_PATH: %s: %s", path, strerror(errno));
	ssize_t got = getdelim(&text, &bytes, '\0', file);
	ferryResult_t result = ferrySuccess;
	if (got < 0)
		result = ferry_fail(ferryProgramError, "%s: empty", path);
	else
		result = add_program(comm, path, text, (size_t)got, false);
	free(text);
	fclose(file);
	return result;
}

static ferryResult_t load_path(struct ferryComm *comm, const char *path)
{
	struct stat status;
	struct dirent **names;
	if (stat(path, &status))
		return ferry_fail(ferryInvalidArgument, "FERRY_PROGRAM_PATH: %s: %s", path, strerror(errno));
	if (!S_ISDIR(status.st_mode))
		return load_file(comm, path);
	int count = scandir(path, &names, NULL, alphasort); /* sorted: all ranks take the same one first */
	ferryResult_t result = count < 0 ? ferry_fail(ferrySystemError, "%s: %s", path, strerror(errno)) : ferrySuccess;
	for (int i = 0; i < count; i++) {
		char file[4096];
		size_t length = strlen(names[i]->d_name);
		if (!result && length > 6 && !strcmp(names[i]->d_name + length - 6, ".ferry")) {
			snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
			result = load_file(comm, file);
		}
		free(names[i]);
	}
	if (count >= 0)
		free(names);
	return result;
}

ferryResult_t ferry_comm_load_programs(struct ferryComm *comm)
{
	const char *paths = ferry_env("FERRY_PROGRAM_PATH");
	ferryResult_t result = ferrySuccess;
	if (!paths)
		return ferrySuccess;
	char *copy = strdup(paths), *rest = copy, *path;
	if (!copy)
		return ferry_fail(ferrySystemError, "no memory");
	while (!result && (path = strsep(&rest, ":")))
		if (*path)
			result = load_path(comm, path);
	free(copy);
	return result;
}

const struct ferry_program *ferry_comm_replacement(struct ferryComm *comm, enum ferry_collective collective, uint32_t root,
                                                   uint64_t bytes)
{
	for (uint32_t i = 0; i < comm->nprograms; i++) {
		const struct ferry_user_program *kept = &comm->programs[i];
		const struct ferry_program *program = kept->program;
		if (!kept->text && program->collective == collective && program->nranks == (uint32_t)comm->nranks &&
		    program->ndomains == comm->ndomains && (!ferry_collective_has_root(collective) || program->root == root) &&
		    bytes >= kept->least && bytes <= kept->most &&
		    !memcmp(program->rank_domain, comm->shared.rank_domain, (size_t)comm->nranks))
			return program;
	}
	return NULL;
}

ferryResult_t ferry_comm_user_program(struct ferryComm *comm, const char *text, const struct ferry_program **program)
{
	ferryResult_t result;
	for (uint32_t i = 0; i < comm->nprograms; i++)
		if (comm->programs[i].text && !strcmp(comm->programs[i].text, text)) {
			*program = comm->programs[i].program;
			return ferrySuccess;
		}
	if ((result = add_program(comm, "program", text, strlen(text), true)))
		return result;
	const struct ferry_program *added = comm->programs[comm->nprograms - 1].program;
	if (added->nranks != (uint32_t)comm->nranks || added->ndomains != comm->ndomains ||
	    memcmp(added->rank_domain, comm->shared.rank_domain, (size_t)comm->nranks))
		result = ferry_fail(ferryProgramError, "the program is for %u ranks in %u domains, the communicator has %d in %u, or other ranks in them",
		                    added->nranks, added->ndomains, comm->nranks, comm->ndomains);
	else if (added->collective == FERRY_ALLTOALLV || added->collective == FERRY_SENDRECV)
		result = ferry_fail(ferryProgramError, "ferryRunProgram runs no %s; use FERRY_PROGRAM_PATH or ferryAllToAllv",
		                    ferry_collective_name(added->collective));
	if (result) {
		struct ferry_user_program *kept = &comm->programs[--comm->nprograms];
		ferry_program_free(kept->program);
		free(kept->text);
		return result;
	}
	*program = added;
	return ferrySuccess;
}
