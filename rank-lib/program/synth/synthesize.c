/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs from a topology. Every chunk goes up once. Sums cross between domains as partial sums to the domain that
 * owns a chunk, and as its result back: an AllReduce of S bytes among D domains moves 2(D-1)S in all, the least for a
 * reduction whose result all ranks need. In collectives that only move data, each chunk crosses once per domain that
 * needs it (HyLink Figure 1(c)): by H2H if several ranks there need it, by a direct H2D if one does.
 *
 * If the domains are together in one NUMA node, no H2H is needed: every rank moves its slices to and from the domain
 * whose router works on them. This divides the work, and sums in the same order as one domain does.
 *
 * Host chunks are numbered per domain in order of use. A statement is written into the section of a rank of the domain
 * that executes it, or of the rank whose device it moves.
 */
#include "ipc/error.h"
#include "rank-lib/program/synth/writer.h"

struct task {
	struct ferry_writer writer;
	uint32_t populated[FERRY_MAX_DOMAINS], npopulated; /* domains that have ranks */
	uint32_t members[FERRY_MAX_DOMAINS];
	bool together;
	uint16_t first[FERRY_MAX_DOMAINS]; /* lowest rank of each domain */
};

static struct ferry_place across(struct task *task, struct ferry_place place, uint32_t version, uint32_t domain)
{
	struct ferry_statement *statement = ferry_writer_add(&task->writer, FERRY_H2H, task->first[domain]);
	statement->source = place;
	statement->destination = ferry_writer_place(&task->writer, domain);
	ferry_writer_depend(&task->writer, statement, place, version);
	return statement->destination;
}

/* Sums version 1 of the places, in order, into a fresh chunk of their domain; the sum is version `count` of it. */
static struct ferry_place sum(struct task *task, const struct ferry_place *places, uint32_t count)
{
	struct ferry_place total = ferry_writer_place(&task->writer, places[0].domain);
	for (uint32_t i = 0; i < count; i++) {
		struct ferry_statement *statement =
		        ferry_writer_add(&task->writer, FERRY_REDUCE, task->first[total.domain]);
		statement->source = places[i];
		statement->destination = total;
		ferry_writer_depend(&task->writer, statement, places[i], 1);
	}
	return total;
}

/*
 * Returns the sum of a send chunk of all ranks, in domain `owner`: each domain sums its own ranks' chunks, the partial
 * sums cross, and the owner adds them up in the order of domains. A domain with one rank sends its chunk itself.
 */
static struct ferry_place sum_at(struct task *task, uint32_t chunk, uint32_t owner, uint32_t *version)
{
	const struct ferry_program *program = task->writer.program;
	struct ferry_place partial[FERRY_MAX_DOMAINS], inputs[FERRY_MAX_RANKS];
	if (task->together) {
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			inputs[rank] = ferry_writer_d2h_to(&task->writer, rank, chunk, owner);
		*version = program->nranks;
		return sum(task, inputs, program->nranks);
	}
	for (uint32_t i = 0; i < task->npopulated; i++) {
		uint32_t domain = task->populated[i], count = 0;
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			if (program->rank_domain[rank] == domain)
				inputs[count++] = ferry_writer_d2h(&task->writer, rank, chunk);
		partial[i] = inputs[0];
		*version = 1;
		if (count > 1 || task->npopulated == 1) {
			partial[i] = sum(task, inputs, count);
			*version = count;
		}
		if (domain != owner)
			partial[i] = across(task, partial[i], *version, owner);
	}
	if (task->npopulated == 1)
		return partial[0];
	struct ferry_place total = ferry_writer_place(&task->writer, owner);
	for (uint32_t i = 0; i < task->npopulated; i++) {
		struct ferry_statement *statement = ferry_writer_add(&task->writer, FERRY_REDUCE, task->first[owner]);
		bool local = task->populated[i] == owner;
		statement->source = partial[i];
		statement->destination = total;
		ferry_writer_depend(&task->writer, statement, partial[i], local ? task->members[owner] : 1);
	}
	*version = task->npopulated;
	return total;
}

static void allreduce(struct task *task)
{
	struct ferry_program *program = task->writer.program;
	program->nchunks = task->npopulated; /* each domain owns one */
	for (uint32_t chunk = 0; chunk < program->nchunks; chunk++) {
		uint32_t version, owner = task->populated[chunk];
		struct ferry_place total = sum_at(task, chunk, owner, &version);
		for (uint32_t i = 0; i < task->npopulated; i++) {
			uint32_t domain = task->populated[i], here = domain == owner ? version : 1;
			bool direct = domain == owner || task->members[domain] == 1 || task->together;
			struct ferry_place place = direct ? total : across(task, total, version, domain);
			for (uint32_t rank = 0; rank < program->nranks; rank++)
				if (program->rank_domain[rank] == domain)
					ferry_writer_h2d(&task->writer, place, direct ? version : here, rank, chunk);
		}
	}
}

static void reduce(struct task *task)
{
	uint32_t version, root = task->writer.program->root;
	struct ferry_place total = sum_at(task, 0, task->writer.program->rank_domain[root], &version);
	ferry_writer_h2d(&task->writer, total, version, root, 0);
}

static void reducescatter(struct task *task)
{
	for (uint32_t rank = 0; rank < task->writer.program->nranks; rank++) {
		uint32_t version;
		struct ferry_place total = sum_at(task, rank, task->writer.program->rank_domain[rank], &version);
		ferry_writer_h2d(&task->writer, total, version, rank, 0);
	}
}

/* Writes a rank's chunk to all other ranks: up once, across once per domain, down at each rank. */
static void spread(struct task *task, uint32_t source, uint32_t receive_chunk)
{
	const struct ferry_program *program = task->writer.program;
	uint32_t home = program->rank_domain[source];
	if (program->nranks == 1)
		return;
	struct ferry_place place = ferry_writer_d2h(&task->writer, source, 0);
	for (uint32_t i = 0; i < task->npopulated; i++) {
		uint32_t domain = task->populated[i];
		bool direct = domain == home || task->members[domain] == 1 || task->together;
		struct ferry_place here = direct ? place : across(task, place, 1, domain);
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			if (program->rank_domain[rank] == domain && rank != source)
				ferry_writer_h2d(&task->writer, here, 1, rank, receive_chunk);
	}
}

static void to_one(struct task *task, uint32_t source, uint32_t send_chunk, uint32_t destination,
                   uint32_t receive_chunk)
{
	if (source != destination)
		ferry_writer_h2d(&task->writer, ferry_writer_d2h(&task->writer, source, send_chunk), 1, destination,
		                 receive_chunk);
}

static void write_statements(struct task *task)
{
	const struct ferry_program *program = task->writer.program;
	uint32_t n = program->nranks, root = program->root;
	switch (program->collective) {
	case FERRY_ALLREDUCE:
		allreduce(task);
		break;
	case FERRY_REDUCE_TO_ROOT:
		reduce(task);
		break;
	case FERRY_REDUCESCATTER:
		reducescatter(task);
		break;
	case FERRY_BROADCAST:
		spread(task, root, 0);
		break;
	case FERRY_ALLGATHER:
		for (uint32_t rank = 0; rank < n; rank++)
			spread(task, rank, rank);
		break;
	case FERRY_GATHER:
		for (uint32_t rank = 0; rank < n; rank++)
			to_one(task, rank, 0, root, rank);
		break;
	case FERRY_SCATTER:
		for (uint32_t rank = 0; rank < n; rank++)
			to_one(task, root, rank, rank, 0);
		break;
	case FERRY_ALLTOALL:
	case FERRY_ALLTOALLV:
		/* Shifted, so that the ranks do not all send to the same one at once. */
		for (uint32_t shift = 1; shift < n; shift++)
			for (uint32_t rank = 0; rank < n; rank++)
				to_one(task, rank, (rank + shift) % n, (rank + shift) % n, rank);
		break;
	case FERRY_SENDRECV:
		to_one(task, 0, 0, 1, 0);
		break;
	}
}

ferryResult_t ferry_program_copy(enum ferry_collective collective, const struct ferry_topology *topology, uint32_t root,
                                 struct ferry_program **synthesized)
{
	struct ferry_writer writer;
	if (topology->nranks != 1)
		return ferry_fail(ferryInvalidArgument, "%u ranks have more than their own input", topology->nranks);
	ferryResult_t result = ferry_writer_begin(&writer, collective, topology, root);
	return result ? result : ferry_writer_end(&writer, synthesized);
}

ferryResult_t ferry_program_synthesize(enum ferry_collective collective, const struct ferry_topology *topology,
                                       uint32_t root, struct ferry_program **synthesized)
{
	struct task task = {.together = topology->together};
	ferryResult_t result = ferry_writer_begin(&task.writer, collective, topology, root);
	if (result)
		return result;
	for (uint32_t rank = topology->nranks; rank-- > 0;) {
		task.members[topology->rank_domain[rank]]++;
		task.first[topology->rank_domain[rank]] = (uint16_t)rank;
	}
	for (uint32_t domain = 0; domain < topology->ndomains; domain++)
		if (task.members[domain])
			task.populated[task.npopulated++] = domain;
	write_statements(&task);
	return ferry_writer_end(&task.writer, synthesized);
}
