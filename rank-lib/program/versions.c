/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbering: the writers of a chunk, sorted by the version that they require of it, then rank and line, write versions
 * 1, 2, 3, ... A REDUCE may share its requirement with others, since they commute; an overwrite (D2H, H2H) may not.
 *
 * No deadlock, whatever the window W >= 1: the statements' graph of "needs the value written by" has no cycle, so it
 * has an order. Slice k of a statement waits for slice k (or the last one) of statements before it in that order, and
 * for slices before k of any. So of all unfinished slices, one with the least k, first in the order among those, can
 * always run.
 */
#include "rank-lib/program/versions.h"

#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/chunks.h"

#include <stdlib.h>
#include <string.h>

const char *ferry_place_text(struct ferry_place place, uint32_t domain, char text[32])
{
	if (ferry_place_is_memory(place))
		snprintf(text, 32, "mem@%u[%u]", place.domain - FERRY_MAX_DOMAINS, place.chunk);
	else if (place.domain == domain)
		snprintf(text, 32, "host[%u]", place.chunk);
	else
		snprintf(text, 32, "host@%u[%u]", place.domain, place.chunk);
	return text;
}

#define NOBODY UINT32_MAX
#define MOST_TOLD 8 /* statements of a cycle that a message names */

static bool reads_host(const struct ferry_statement *statement)
{
	return statement->opcode == FERRY_H2D || ferry_opcode_is_work(statement->opcode) ||
	       ferry_statement_puts_memory(statement);
}

static bool same_place(struct ferry_place a, struct ferry_place b)
{
	return a.domain == b.domain && a.chunk == b.chunk;
}

static uint32_t required(const struct ferry_statement *statement, struct ferry_place place)
{
	uint32_t version = 0;
	for (uint32_t i = 0; i < statement->ndependencies; i++)
		if (same_place(statement->dependencies[i].place, place) && statement->dependencies[i].version > version)
			version = statement->dependencies[i].version;
	return version;
}

/* A write of a host chunk, on its way to a version number. */
struct write {
	struct ferry_place place;
	uint32_t statement, requirement;
	uint16_t rank;
};

static int by_place_then_rank(const void *left, const void *right)
{
	const struct write *a = left, *b = right;
	if (a->place.domain != b->place.domain)
		return a->place.domain < b->place.domain ? -1 : 1;
	if (a->place.chunk != b->place.chunk)
		return a->place.chunk < b->place.chunk ? -1 : 1;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return a->statement < b->statement ? -1 : a->statement > b->statement;
}

static int by_place_then_requirement(const void *left, const void *right)
{
	const struct write *a = left, *b = right;
	if (same_place(a->place, b->place) && a->requirement != b->requirement)
		return a->requirement < b->requirement ? -1 : 1;
	return by_place_then_rank(left, right);
}

static ferryResult_t out_of_memory(const struct ferry_program *program)
{
	return ferry_fail(ferrySystemError, "%s: no memory for %u statements", program->name, program->nstatements);
}

/* A write that names no version comes after the write of the same chunk before it in its section. */
static void imply_requirements(const struct ferry_program *program, struct write *writes, uint32_t nwrites)
{
	qsort(writes, nwrites, sizeof *writes, by_place_then_rank);
	for (uint32_t i = 0; i < nwrites; i++) {
		struct write *write = &writes[i], *before = i ? &writes[i - 1] : NULL;
		write->requirement = required(&program->statements[write->statement], write->place);
		if (!write->requirement && before && same_place(before->place, write->place) &&
		    before->rank == write->rank)
			write->requirement = before->requirement + 1;
	}
	qsort(writes, nwrites, sizeof *writes, by_place_then_requirement);
}

static ferryResult_t check_order(const struct ferry_program *program, const struct write *writes, uint32_t nwrites,
                                 uint32_t i, uint32_t version)
{
	char text[32];
	const struct write *write = &writes[i];
	const struct ferry_statement *statement = &program->statements[write->statement];
	ferry_place_text(write->place, program->rank_domain[write->rank], text);
	if (write->requirement >= version)
		return ferry_fail(ferryProgramError,
		                  "%s:%u: waits for version %u of %s, which has only %u write%s before this one",
		                  program->name, statement->line, write->requirement, text, version - 1,
		                  version == 2 ? "" : "s");
	for (uint32_t j = i ? i - 1 : 0; j <= i + 1 && j < nwrites; j++) {
		const struct ferry_statement *other = &program->statements[writes[j].statement];
		if (j == i || !same_place(writes[j].place, write->place) || writes[j].requirement != write->requirement)
			continue;
		if (statement->opcode != FERRY_REDUCE || other->opcode != FERRY_REDUCE)
			return ferry_fail(ferryProgramError, "%s:%u: two unordered writers of %s: line %u and line %u",
			                  program->name, statement->line, text,
			                  other->line < statement->line ? other->line : statement->line,
			                  other->line < statement->line ? statement->line : other->line);
	}
	if (statement->opcode != FERRY_REDUCE && write->requirement != version - 1)
		return ferry_fail(ferryProgramError,
		                  "%s:%u: overwrites %s after version %u, but %u version%s written before it",
		                  program->name, statement->line, text, write->requirement, version - 1,
		                  version == 2 ? " is" : "s are");
	return ferrySuccess;
}

static ferryResult_t number_writes(const struct ferry_program *program, struct ferry_versions *versions)
{
	ferryResult_t result = ferrySuccess;
	struct write *writes = calloc(program->nstatements + 1, sizeof *writes);
	uint32_t nwrites = 0, version = 0;
	if (!writes)
		return out_of_memory(program);
	for (uint32_t i = 0; i < program->nstatements; i++)
		if (ferry_opcode_writes_window(program->statements[i].opcode))
			writes[nwrites++] =
			        (struct write){program->statements[i].destination, i, 0, program->statements[i].rank};
	imply_requirements(program, writes, nwrites);
	for (uint32_t i = 0; i < nwrites && !result; i++) {
		version = i && same_place(writes[i - 1].place, writes[i].place) ? version + 1 : 1;
		bool adds = program->statements[writes[i].statement].opcode == FERRY_REDUCE && version > 1;
		versions->values[i] = (struct ferry_value){.place = writes[i].place,
		                                           .version = version,
		                                           .writer = writes[i].statement,
		                                           .base = adds ? i - 1 : FERRY_NO_VALUE,
		                                           .source = FERRY_NO_VALUE};
		versions->uses[writes[i].statement].writes = i;
		result = check_order(program, writes, nwrites, i, version);
	}
	versions->nvalues = nwrites;
	free(writes);
	return result;
}

/* Returns the value of that version, or FERRY_NO_VALUE. Values are sorted by place and version. */
static uint32_t find_value(const struct ferry_versions *versions, struct ferry_place place, uint32_t version)
{
	uint32_t low = 0, high = versions->nvalues;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct ferry_value *value = &versions->values[middle];
		bool below = value->place.domain != place.domain ? value->place.domain < place.domain
		             : value->place.chunk != place.chunk ? value->place.chunk < place.chunk
		                                                 : value->version < version;
		if (below)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < versions->nvalues && same_place(versions->values[low].place, place) &&
	    versions->values[low].version == version)
		return low;
	return FERRY_NO_VALUE;
}

static uint32_t count_versions(const struct ferry_versions *versions, struct ferry_place place)
{
	uint32_t count = 0;
	while (find_value(versions, place, count + 1) != FERRY_NO_VALUE)
		count++;
	return count;
}

static ferryResult_t named_value(const struct ferry_program *program, const struct ferry_versions *versions,
                                 uint32_t statement, struct ferry_place place, uint32_t version, uint32_t *value)
{
	char text[32];
	*value = find_value(versions, place, version);
	if (*value != FERRY_NO_VALUE)
		return ferrySuccess;
	const struct ferry_statement *where = &program->statements[statement];
	uint32_t times = count_versions(versions, place);
	return ferry_fail(ferryProgramError, "%s:%u: waits for version %u of %s, which is written %u time%s",
	                  program->name, where->line, version,
	                  ferry_place_text(place, program->rank_domain[where->rank], text), times,
	                  times == 1 ? "" : "s");
}

/*
 * Finds the value that a statement reads: of the version that it names, or else the last one that an earlier statement
 * of its section has written. last: by a chunk's first value, the last statement so far that wrote the chunk.
 */
static ferryResult_t read_value(const struct ferry_program *program, const struct ferry_versions *versions,
                                uint32_t statement, const uint32_t *last, uint32_t *value)
{
	char text[32];
	const struct ferry_statement *reader = &program->statements[statement];
	uint32_t version = required(reader, reader->source);
	if (version)
		return named_value(program, versions, statement, reader->source, version, value);
	uint32_t first = find_value(versions, reader->source, 1);
	uint32_t earlier = first == FERRY_NO_VALUE ? NOBODY : last[first];
	if (earlier != NOBODY && program->statements[earlier].rank == reader->rank) {
		*value = versions->uses[earlier].writes;
		return ferrySuccess;
	}
	return ferry_fail(ferryProgramError,
	                  "%s:%u: reads %s but names no version, and nothing earlier in rank %u writes "
	                  "it", program->name,
	                  reader->line, ferry_place_text(reader->source, program->rank_domain[reader->rank], text),
	                  reader->rank);
}

static ferryResult_t resolve_uses(const struct ferry_program *program, struct ferry_versions *versions, uint32_t *last)
{
	uint32_t nwaits = 0;
	for (uint32_t v = 0; v < versions->nvalues; v++)
		last[v] = NOBODY;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		struct ferry_use *use = &versions->uses[i];
		ferryResult_t result = ferrySuccess;
		if (reads_host(statement) && (result = read_value(program, versions, i, last, &use->reads)))
			return result;
		if (use->writes != FERRY_NO_VALUE) {
			versions->values[use->writes].source = use->reads;
			last[use->writes + 1 - versions->values[use->writes].version] = i;
		}
		use->first_wait = nwaits;
		for (uint32_t j = 0; j < statement->ndependencies; j++) {
			uint32_t value;
			const struct ferry_dependency *dependency = &statement->dependencies[j];
			result = named_value(program, versions, i, dependency->place, dependency->version, &value);
			if (result)
				return result;
			if (value != use->reads &&
			    (use->writes == FERRY_NO_VALUE || value != versions->values[use->writes].base))
				versions->waits[nwaits++] = value;
		}
		use->nwaits = nwaits - use->first_wait;
	}
	return ferrySuccess;
}

static void list_readers(const struct ferry_program *program, struct ferry_versions *versions)
{
	uint32_t next = 0;
	for (uint32_t pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < program->nstatements; i++) {
			const struct ferry_use *use = &versions->uses[i];
			uint32_t base = use->writes == FERRY_NO_VALUE ? FERRY_NO_VALUE
			                                              : versions->values[use->writes].base;
			uint32_t read[2] = {use->reads, base};
			for (int k = 0; k < 2; k++) {
				if (read[k] == FERRY_NO_VALUE)
					continue;
				struct ferry_value *value = &versions->values[read[k]];
				if (pass)
					versions->readers[value->first_reader + value->nreaders] = i;
				value->nreaders++;
			}
		}
		for (uint32_t i = 0; !pass && i < versions->nvalues; i++) {
			versions->values[i].first_reader = next;
			next += versions->values[i].nreaders;
			versions->values[i].nreaders = 0;
		}
	}
}

/* Runs the body with writer_ = the writer of each value, or receive chunk, that statement i needs. */
#define FOR_EACH_NEED(versions, i, writer_)                                                                            \
	for (uint32_t need_ = 0, writer_ = 0; need_ < (versions)->uses[i].nwaits + 3; need_++)                         \
		if ((writer_ = needed_writer(versions, i, need_)) != NOBODY)

/* Returns the value of a statement's need number `which`; FERRY_NO_VALUE: none, or it is a receive chunk. */
static uint32_t needed_value(const struct ferry_versions *versions, uint32_t statement, uint32_t which)
{
	const struct ferry_use *use = &versions->uses[statement];
	if (which == 0)
		return use->reads;
	if (which == 1)
		return use->writes == FERRY_NO_VALUE ? FERRY_NO_VALUE : versions->values[use->writes].base;
	return which == 2 ? FERRY_NO_VALUE : versions->waits[use->first_wait + which - 3];
}

static uint32_t needed_writer(const struct ferry_versions *versions, uint32_t statement, uint32_t which)
{
	uint32_t value = needed_value(versions, statement, which);
	if (which == 2)
		return versions->uses[statement].forwards;
	return value == FERRY_NO_VALUE ? NOBODY : versions->values[value].writer;
}

/* Returns a need that is never met: each statement of a cycle, or behind one, has one. */
static uint32_t missing_need(const struct ferry_versions *versions, const uint32_t *missing, uint32_t statement)
{
	for (uint32_t which = 0;; which++) {
		uint32_t writer = needed_writer(versions, statement, which);
		if (writer != NOBODY && missing[writer])
			return which;
	}
}

static uint32_t waits_for(const struct ferry_versions *versions, const uint32_t *missing, uint32_t statement)
{
	return needed_writer(versions, statement, missing_need(versions, missing, statement));
}

/* "host[3]>=2" or "gpu[3]>=1" */
static const char *need_text(const struct ferry_program *program, const struct ferry_versions *versions,
                             uint32_t statement, uint32_t which, char text[48])
{
	const struct ferry_statement *reader = &program->statements[statement];
	uint32_t value = needed_value(versions, statement, which);
	char place[32];
	if (value == FERRY_NO_VALUE)
		snprintf(text, 48, "gpu[%u]>=1", reader->gpu);
	else
		snprintf(text, 48, "%s>=%u",
		         ferry_place_text(versions->values[value].place, program->rank_domain[reader->rank], place),
		         versions->values[value].version);
	return text;
}

/*
 * Returns the statement of the lowest line in the cycle that this one is in or behind: as many steps along needs that
 * are not met as there are statements lead into the cycle.
 */
static uint32_t first_of_circle(const struct ferry_program *program, const struct ferry_versions *versions,
                                const uint32_t *missing, uint32_t statement)
{
	for (uint32_t i = 0; i < program->nstatements; i++)
		statement = waits_for(versions, missing, statement);
	uint32_t first = statement;
	for (uint32_t at = waits_for(versions, missing, statement); at != statement;
	     at = waits_for(versions, missing, at))
		if (program->statements[at].line < program->statements[first].line)
			first = at;
	return first;
}

/* missing: by statement, the needs that are not met when all statements that can run have run. */
static ferryResult_t fail_circle(const struct ferry_program *program, const struct ferry_versions *versions,
                                 const uint32_t *missing, uint32_t start)
{
	char text[96 * MOST_TOLD], need[48];
	uint32_t logged = 0;
	size_t length = 0;
	uint32_t at = start;
	do {
		const struct ferry_statement *statement = &program->statements[at];
		need_text(program, versions, at, missing_need(versions, missing, at), need);
		at = waits_for(versions, missing, at);
		if (logged++ >= MOST_TOLD)
			continue;
		length += (size_t)snprintf(text + length, sizeof text - length,
		                           "%s line %u waits for %s, which line %u writes", logged > 1 ? ";" : "",
		                           statement->line, need, program->statements[at].line);
	} while (at != start);
	if (logged > MOST_TOLD)
		snprintf(text + length, sizeof text - length, "; and %u more in the circle", logged - MOST_TOLD);
	return ferry_fail(ferryProgramError, "%s:%u: deadlock:%s", program->name, program->statements[start].line,
	                  text);
}

static ferryResult_t sort_statements(const struct ferry_program *program, struct ferry_versions *versions)
{
	uint32_t n = program->nstatements, edges = 0, head = 0, tail = 0;
	uint32_t *missing = calloc(n + 1, sizeof *missing), *first = calloc(n + 2, sizeof *first), *next = NULL;
	ferryResult_t result = ferrySuccess;
	if (missing && first) {
		for (uint32_t i = 0; i < n; i++)
			FOR_EACH_NEED(versions, i, writer)
			{
				missing[i]++;
				first[writer + 2]++;
				edges++;
			}
		for (uint32_t i = 1; i <= n; i++)
			first[i + 1] += first[i];
		next = calloc(edges + 1, sizeof *next);
	}
	if (!next) {
		result = out_of_memory(program);
		goto done;
	}
	for (uint32_t i = 0; i < n; i++)
		FOR_EACH_NEED(versions, i, writer)
	next[first[writer + 1]++] = i; /* afterwards first[writer] .. first[writer + 1] are writer's consumers */
	for (uint32_t i = 0; i < n; i++)
		if (!missing[i])
			versions->order[tail++] = i;
	for (; head < tail; head++) {
		uint32_t statement = versions->order[head];
		for (uint32_t j = first[statement]; j < first[statement + 1]; j++)
			if (!--missing[next[j]])
				versions->order[tail++] = next[j];
	}
	for (uint32_t i = 0; i < n && tail < n; i++)
		if (missing[i]) {
			result = fail_circle(program, versions, missing,
			                     first_of_circle(program, versions, missing, i));
			break;
		}
done:
	free(missing);
	free(first);
	free(next);
	return result;
}

static ferryResult_t join(const struct ferry_program *program, const struct ferry_versions *versions,
                          struct ferry_value *value)
{
	const struct ferry_statement *statement = &program->statements[value->writer];
	const struct ferry_value *source = &versions->values[value->source];
	value->ranks = source->ranks;
	value->chunk = source->chunk;
	if (value->base == FERRY_NO_VALUE)
		return ferrySuccess;
	const struct ferry_value *base = &versions->values[value->base];
	if (!ferry_collective_reduces(program->collective))
		return ferry_fail(ferryProgramError, "%s:%u: %s sums nothing, and this REDUCE joins two values",
		                  program->name, statement->line, ferry_collective_name(program->collective));
	if (base->chunk != source->chunk)
		return ferry_fail(ferryProgramError, "%s:%u: adds chunk %u to chunk %u", program->name, statement->line,
		                  source->chunk, base->chunk);
	if (base->ranks & source->ranks)
		return ferry_fail(ferryProgramError, "%s:%u: the contribution of rank %u comes in twice", program->name,
		                  statement->line, ferry_rankset_lowest(base->ranks & source->ranks));
	value->ranks |= base->ranks;
	return ferrySuccess;
}

static ferryResult_t find_contents(const struct ferry_program *program, struct ferry_versions *versions)
{
	for (uint32_t i = 0; i < program->nstatements; i++) {
		uint32_t statement = versions->order[i], written = versions->uses[statement].writes;
		const struct ferry_statement *what = &program->statements[statement];
		struct ferry_use *use = &versions->uses[statement];
		if (ferry_opcode_is_work(what->opcode)) {
			ferryResult_t result = join(program, versions, &versions->values[written]);
			if (result)
				return result;
			use->ranks = versions->values[written].ranks;
			use->chunk = versions->values[written].chunk;
		} else if (reads_host(what)) {
			use->ranks = versions->values[use->reads].ranks;
			use->chunk = versions->values[use->reads].chunk;
		} else if (use->forwards != FERRY_NO_STATEMENT) {
			use->ranks = versions->uses[use->forwards].ranks;
			use->chunk = versions->uses[use->forwards].chunk;
		} else {
			use->ranks = 1ull << what->rank;
			use->chunk = what->gpu;
		}
		if (what->opcode == FERRY_D2H) {
			versions->values[written].ranks = use->ranks;
			versions->values[written].chunk = use->chunk;
		}
	}
	return ferrySuccess;
}

/* Finds the statement that writes each receive chunk, and so what a PUT that forwards waits for. */
static ferryResult_t find_received(const struct ferry_program *program, struct ferry_versions *versions)
{
	size_t most = (size_t)program->nranks * program->nchunks;
	for (size_t i = 0; i < program->nranks * most; i++)
		versions->received[i] = FERRY_NO_STATEMENT;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		bool puts = statement->opcode == FERRY_PUT;
		if (!puts && statement->opcode != FERRY_H2D)
			continue;
		uint32_t rank = puts ? statement->peer : statement->rank,
		         chunk = puts ? statement->peer_gpu : statement->gpu;
		uint32_t *writer = &versions->received[rank * most + chunk];
		if (*writer != FERRY_NO_STATEMENT)
			return ferry_fail(ferryProgramError,
			                  "%s:%u: rank %u's output chunk %u is written here and in line %u",
			                  program->name, statement->line, rank, chunk,
			                  program->statements[*writer].line);
		*writer = i;
	}
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (!statement->forwards)
			continue;
		versions->uses[i].forwards = versions->received[statement->rank * most + statement->gpu];
		if (versions->uses[i].forwards == FERRY_NO_STATEMENT)
			return ferry_fail(ferryProgramError,
			                  "%s:%u: waits for gpu[%u]>=1, a chunk of rank %u's receive buffer that no "
			                  "H2D and no PUT writes",
			                  program->name, statement->line, statement->gpu, statement->rank);
	}
	return ferrySuccess;
}

ferryResult_t ferry_versions_build(const struct ferry_program *program, struct ferry_versions *versions)
{
	uint32_t n = program->nstatements, ndependencies = 0;
	for (uint32_t i = 0; i < n; i++)
		ndependencies += program->statements[i].ndependencies;
	memset(versions, 0, sizeof *versions);
	versions->values = calloc(n + 1, sizeof *versions->values);
	versions->uses = calloc(n + 1, sizeof *versions->uses);
	versions->waits = calloc(ndependencies + 1, sizeof *versions->waits);
	versions->readers = calloc(2 * n + 1, sizeof *versions->readers);
	versions->order = calloc(n + 1, sizeof *versions->order);
	versions->received =
	        malloc((size_t)program->nranks * program->nranks * program->nchunks * sizeof *versions->received);
	if (!versions->values || !versions->uses || !versions->waits || !versions->readers || !versions->order ||
	    !versions->received) {
		ferry_versions_free(versions);
		return out_of_memory(program);
	}
	for (uint32_t i = 0; i < n; i++)
		versions->uses[i] = (struct ferry_use){.reads = FERRY_NO_VALUE,
		                                       .writes = FERRY_NO_VALUE,
		                                       .forwards = FERRY_NO_STATEMENT};
	ferryResult_t result = number_writes(program, versions);
	if (!result)
		result = resolve_uses(program, versions, versions->readers); /* as scratch memory */
	if (!result)
		result = find_received(program, versions);
	if (!result) {
		list_readers(program, versions);
		result = sort_statements(program, versions);
	}
	if (!result)
		result = find_contents(program, versions);
	if (result)
		ferry_versions_free(versions);
	return result;
}

const char *ferry_value_text(const struct ferry_versions *versions, uint32_t value, uint32_t domain, char text[48])
{
	const struct ferry_value *what = &versions->values[value];
	bool more = what->version > 1 ||
	            (value + 1 < versions->nvalues && same_place(versions->values[value + 1].place, what->place));
	char place[32];
	ferry_place_text(what->place, domain, place);
	if (more)
		snprintf(text, 48, "%s:%u", place, what->version);
	else
		snprintf(text, 48, "%s", place);
	return text;
}

void ferry_versions_free(struct ferry_versions *versions)
{
	free(versions->values);
	free(versions->uses);
	free(versions->waits);
	free(versions->readers);
	free(versions->order);
	free(versions->received);
	memset(versions, 0, sizeof *versions);
}

bool ferry_own_copy_next(const struct ferry_program *program, const struct ferry_versions *versions,
                         struct ferry_own_copy *copy)
{
	for (; copy->rank < program->nranks; copy->rank++, copy->next = 0) {
		uint32_t send, receive;
		ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root,
		                        copy->rank, &send, &receive);
		while (copy->next < receive) {
			uint64_t ranks;
			copy->receive_chunk = copy->next++;
			if (ferry_receive_writer(program, versions, copy->rank, copy->receive_chunk) !=
			    FERRY_NO_STATEMENT)
				continue;
			ferry_collective_demand(program, copy->rank, copy->receive_chunk, &ranks, &copy->send_chunk);
			return true;
		}
	}
	return false;
}
