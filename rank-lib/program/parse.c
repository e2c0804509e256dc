/* SPDX-License-Identifier: Apache-2.0 */
/* Text to statements; docs/program-language.md has the grammar. One line at a time, no backtracking. */
#include "ipc/environment.h"
#include "ipc/error.h"
#include "rank-lib/program/chunks.h"
#include "rank-lib/program/versions.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STATEMENTS (1u << 20)

struct parser {
	const char *name;
	const char *line_start, *next, *line_end; /* of the line being read */
	uint32_t line;
	const struct ferry_program_defaults *defaults;
	struct ferry_program *program;
	uint32_t capacity;
	bool has_header, in_section, has_root, has_bytes;
	uint32_t rank;
	bool seen[FERRY_MAX_RANKS];
	uint32_t most_gpu, most_peer;
};

/* ---- tokens ---- */

static void skip_space(struct parser *parser)
{
	while (parser->next < parser->line_end && isspace((unsigned char)*parser->next))
		parser->next++;
}

static ferryResult_t unexpected(struct parser *parser, const char *expected)
{
	char found[32];
	int length = 0;
	skip_space(parser);
	while (parser->next + length < parser->line_end && length < 24 && !isspace((unsigned char)parser->next[length]))
		length++;
	for (int i = 0; i < length; i++)
		found[i] = isprint((unsigned char)parser->next[i]) ? parser->next[i] : '?';
	found[length] = '\0';
	return ferry_fail(ferryProgramError, "%s:%u:%u: expected %s, found %s%s%s", parser->name, parser->line,
	                  (unsigned)(parser->next - parser->line_start) + 1, expected, length ? "\"" : "",
	                  length ? found : "the end of the line", length ? "\"" : "");
}

static bool at_end(struct parser *parser)
{
	skip_space(parser);
	return parser->next == parser->line_end;
}

/* Takes `text` if it stands here. */
static bool accept(struct parser *parser, const char *text)
{
	size_t length = strlen(text);
	skip_space(parser);
	if ((size_t)(parser->line_end - parser->next) < length || memcmp(parser->next, text, length))
		return false;
	parser->next += length;
	return true;
}

/* Takes `word` if it is the next token. */
static bool accept_word(struct parser *parser, const char *word)
{
	const char *before = parser->next;
	if (!accept(parser, word))
		return false;
	if (parser->next == parser->line_end || (!isalnum((unsigned char)*parser->next) && *parser->next != '_'))
		return true;
	parser->next = before;
	return false;
}

static ferryResult_t expect(struct parser *parser, const char *text, const char *named)
{
	return accept(parser, text) ? ferrySuccess : unexpected(parser, named);
}

static ferryResult_t read_number(struct parser *parser, uint32_t most, const char *named, uint32_t *value)
{
	uint64_t number = 0;
	skip_space(parser);
	const char *start = parser->next;
	while (parser->next < parser->line_end && isdigit((unsigned char)*parser->next) && number <= most)
		number = number * 10 + (uint64_t)(*parser->next++ - '0');
	if (parser->next == start || number > most) {
		char expected[96];
		parser->next = start;
		snprintf(expected, sizeof expected, "%s, at most %u", named, most);
		return unexpected(parser, expected);
	}
	*value = (uint32_t)number;
	return ferrySuccess;
}

static ferryResult_t read_bytes(struct parser *parser, uint64_t *value)
{
	char word[32];
	size_t length = 0;
	skip_space(parser);
	while (parser->next + length < parser->line_end && length < sizeof word - 1 &&
	       isalnum((unsigned char)parser->next[length]))
		length++;
	memcpy(word, parser->next, length);
	word[length] = '\0';
	if (!ferry_parse_bytes(word, value))
		return unexpected(parser, "a size such as 64K");
	parser->next += length;
	return ferrySuccess;
}

/* ---- statements ---- */

static ferryResult_t read_index(struct parser *parser, uint16_t *index)
{
	uint32_t value = 0;
	ferryResult_t result = expect(parser, "[", "'['");
	if (!result)
		result = read_number(parser, UINT16_MAX, "a chunk number", &value);
	if (!result)
		result = expect(parser, "]", "']'");
	*index = (uint16_t)value;
	return result;
}

static ferryResult_t read_gpu(struct parser *parser, uint16_t *chunk)
{
	if (!accept_word(parser, "gpu"))
		return unexpected(parser, "gpu[CHUNK]");
	ferryResult_t result = read_index(parser, chunk);
	if (!result && *chunk > parser->most_gpu)
		parser->most_gpu = *chunk;
	return result;
}

static ferryResult_t read_host(struct parser *parser, struct ferry_place *place)
{
	uint32_t domain = parser->program->rank_domain[parser->rank];
	if (!accept_word(parser, "host"))
		return unexpected(parser, "host[CHUNK] or host@DOMAIN[CHUNK]");
	if (accept(parser, "@")) {
		ferryResult_t result = read_number(parser, FERRY_MAX_DOMAINS - 1, "a domain number", &domain);
		if (result)
			return result;
	}
	place->domain = (uint16_t)domain;
	return read_index(parser, &place->chunk);
}

/* mem[CHUNK] of the section's rank, or mem@RANK[CHUNK]. */
static ferryResult_t read_memory(struct parser *parser, struct ferry_place *place)
{
	uint32_t rank = parser->rank;
	uint16_t chunk = 0;
	ferryResult_t result = accept(parser, "@") ? read_number(parser, FERRY_MAX_RANKS - 1, "a rank", &rank)
	                                           : ferrySuccess;
	if (!result)
		result = read_index(parser, &chunk);
	if (rank > parser->most_peer)
		parser->most_peer = rank;
	*place = ferry_place_memory(rank, chunk);
	return result;
}

/* What a PUT or an ADD reads: mem[CHUNK], or else, of a PUT, gpu[CHUNK]. */
static ferryResult_t read_device_source(struct parser *parser, struct ferry_statement *statement)
{
	if (accept_word(parser, "mem")) {
		if (statement->opcode == FERRY_PUT)
			statement->opcode = FERRY_H2H;
		return read_memory(parser, &statement->source);
	}
	return statement->opcode == FERRY_PUT ? read_gpu(parser, &statement->gpu) : unexpected(parser, "mem[CHUNK]");
}

static bool next_is_peer(struct parser *parser)
{
	const char *before = parser->next;
	bool is = accept_word(parser, "gpu") && accept(parser, "@");
	parser->next = before;
	return is;
}

/* Where a PUT goes to. */
static ferryResult_t read_peer(struct parser *parser, struct ferry_statement *statement)
{
	uint32_t peer = 0;
	const char *before = parser->next;
	if (!accept_word(parser, "gpu") || !accept(parser, "@")) {
		parser->next = before;
		return unexpected(parser, "gpu@RANK[CHUNK]");
	}
	ferryResult_t result = read_number(parser, FERRY_MAX_RANKS - 1, "a rank", &peer);
	if (!result)
		result = read_index(parser, &statement->peer_gpu);
	statement->peer = (uint16_t)peer;
	if (statement->peer_gpu > parser->most_gpu)
		parser->most_gpu = statement->peer_gpu;
	if (peer > parser->most_peer)
		parser->most_peer = peer;
	return result;
}

/* A PUT's dependency on what it reads: the chunk is then in the receive buffer, where a chunk has one version. */
static ferryResult_t read_forwarded(struct parser *parser, struct ferry_statement *statement)
{
	uint16_t chunk;
	uint32_t version = 0;
	ferryResult_t result = read_index(parser, &chunk);
	if (!result)
		result = expect(parser, ">=", "'>='");
	if (!result)
		result = read_number(parser, 1u << 20, "a version", &version);
	if (!result && chunk != statement->gpu)
		result = ferry_fail(ferryProgramError,
		                    "%s:%u: waits for gpu[%u] and reads gpu[%u]: a PUT waits for the receive chunk "
		                    "that it reads",
		                    parser->name, parser->line, chunk, statement->gpu);
	if (!result && version != 1)
		result = ferry_fail(ferryProgramError,
		                    "%s:%u: gpu[%u]>=%u: a receive chunk is written once, its version is 1",
		                    parser->name, parser->line, chunk, version);
	statement->forwards = true;
	return result;
}

/* A statement reads one version of a place, so that two of them would contradict each other. */
static ferryResult_t check_named_once(const struct parser *parser, const struct ferry_statement *statement,
                                      struct ferry_dependency dependency)
{
	for (uint32_t i = 0; i < statement->ndependencies; i++) {
		struct ferry_dependency other = statement->dependencies[i];
		char text[32];
		if (other.place.domain == dependency.place.domain && other.place.chunk == dependency.place.chunk)
			return ferry_fail(ferryProgramError,
			                  "%s:%u: waits for versions %u and %u of %s: a statement names a place once",
			                  parser->name, parser->line, other.version, dependency.version,
			                  ferry_place_text(other.place, UINT32_MAX, text));
	}
	return ferrySuccess;
}

/* Where an ADD goes to, and a PUT: a rank's memory, from there the rank's own receive buffer, or a peer's. */
static ferryResult_t read_device_destination(struct parser *parser, struct ferry_statement *statement)
{
	if (accept_word(parser, "mem")) {
		if (statement->opcode == FERRY_PUT)
			statement->opcode = FERRY_D2H;
		return read_memory(parser, &statement->destination);
	}
	if (statement->opcode == FERRY_REDUCE)
		return unexpected(parser, "mem[CHUNK]");
	if (statement->opcode == FERRY_PUT)
		return read_peer(parser, statement);
	if (ferry_place_is_memory(statement->source) && next_is_peer(parser)) {
		statement->opcode = FERRY_PUT;
		return read_peer(parser, statement);
	}
	statement->opcode = FERRY_H2D;
	return read_gpu(parser, &statement->gpu);
}

static ferryResult_t read_dependency(struct parser *parser, struct ferry_statement *statement)
{
	struct ferry_dependency dependency;
	ferryResult_t result = accept_word(parser, "mem") ? read_memory(parser, &dependency.place)
	                                                  : read_host(parser, &dependency.place);
	if (!result)
		result = expect(parser, ">=", "'>='");
	skip_space(parser);
	const char *number = parser->next;
	if (!result)
		result = read_number(parser, 1u << 20, "a version", &dependency.version);
	if (!result && !dependency.version) {
		parser->next = number;
		result = unexpected(parser, "a version, from 1: 0 is the unwritten chunk, which nothing waits for");
	}
	if (!result)
		result = check_named_once(parser, statement, dependency);
	if (result)
		return result;
	void *grown = realloc(statement->dependencies, (statement->ndependencies + 1) * sizeof dependency);
	if (!grown)
		return ferry_fail(ferrySystemError, "%s:%u: no memory", parser->name, parser->line);
	statement->dependencies = grown;
	statement->dependencies[statement->ndependencies++] = dependency;
	return ferrySuccess;
}

static ferryResult_t read_dependencies(struct parser *parser, struct ferry_statement *statement)
{
	ferryResult_t result;
	do {
		bool from_buffer = statement->opcode == FERRY_PUT && !ferry_place_is_memory(statement->source);
		if (from_buffer && accept_word(parser, "gpu"))
			result = read_forwarded(parser, statement);
		else
			result = read_dependency(parser, statement);
	} while (!result && accept(parser, ","));
	return result;
}

static ferryResult_t new_statement(struct parser *parser, uint8_t opcode, struct ferry_statement **statement)
{
	struct ferry_program *program = parser->program;
	if (program->nstatements == parser->capacity) {
		uint32_t capacity = parser->capacity ? 2 * parser->capacity : 64;
		void *grown =
		        capacity > MOST_STATEMENTS ? NULL : realloc(program->statements, capacity * sizeof **statement);
		if (!grown)
			return ferry_fail(ferryProgramError, "%s:%u: more than %u statements, or no memory",
			                  parser->name, parser->line, parser->capacity);
		program->statements = grown;
		parser->capacity = capacity;
	}
	*statement = &program->statements[program->nstatements++];
	memset(*statement, 0, sizeof **statement);
	(*statement)->opcode = opcode;
	(*statement)->rank = (uint16_t)parser->rank;
	(*statement)->line = parser->line;
	return ferrySuccess;
}

/* `device`: a PUT or an ADD, whose operands say which of the opcodes it is. */
static ferryResult_t read_operands(struct parser *parser, struct ferry_statement *statement, bool device)
{
	uint8_t opcode = statement->opcode;
	ferryResult_t result = device                ? read_device_source(parser, statement)
	                       : opcode == FERRY_D2H ? read_gpu(parser, &statement->gpu)
	                                             : read_host(parser, &statement->source);
	if (!result)
		result = expect(parser, "->", "'->'");
	if (result)
		return result;
	return device                ? read_device_destination(parser, statement)
	       : opcode == FERRY_H2D ? read_gpu(parser, &statement->gpu)
	                             : read_host(parser, &statement->destination);
}

static ferryResult_t read_statement(struct parser *parser, uint8_t opcode, bool device)
{
	struct ferry_statement *statement = NULL;
	if (!parser->in_section)
		return ferry_fail(ferryProgramError, "%s:%u:1: expected \"rank R\" before the first instruction",
		                  parser->name, parser->line);
	ferryResult_t result = new_statement(parser, opcode, &statement);
	if (!result)
		result = read_operands(parser, statement, device);
	if (!result && accept_word(parser, "deps")) {
		result = expect(parser, ":", "':'");
		if (!result)
			result = read_dependencies(parser, statement);
	}
	if (!result && !at_end(parser))
		result = unexpected(parser, statement && (statement->ndependencies || statement->forwards)
		                                    ? "',' or the end of the line"
		                                    : "\"deps:\" or the end of the line");
	return result;
}

/* ---- header and sections ---- */

static void place_ranks(struct parser *parser)
{
	struct ferry_program *program = parser->program;
	const struct ferry_program_defaults *defaults = parser->defaults;
	bool same = defaults->rank_domain && defaults->nranks == program->nranks &&
	            defaults->ndomains == program->ndomains;
	for (uint32_t rank = 0; rank < program->nranks; rank++)
		program->rank_domain[rank] =
		        (uint8_t)(same ? defaults->rank_domain[rank] : rank * program->ndomains / program->nranks);
}

static ferryResult_t read_collective(struct parser *parser)
{
	skip_space(parser);
	for (int i = FERRY_NUM_COLLECTIVES - 1; i >= 0; i--) /* "alltoallv" before "alltoall" */
		if (accept_word(parser, ferry_collective_name((enum ferry_collective)i))) {
			parser->program->collective = (enum ferry_collective)i;
			return ferrySuccess;
		}
	return unexpected(parser, "a collective (" FERRY_COLLECTIVE_NAMES ")");
}

static ferryResult_t read_message_sizes(struct parser *parser)
{
	struct ferry_program *program = parser->program;
	ferryResult_t result = read_bytes(parser, &program->least_bytes);
	if (!result)
		result = expect(parser, "..", "'..'");
	if (!result)
		result = read_bytes(parser, &program->most_bytes);
	if (!result && program->least_bytes > program->most_bytes)
		result = ferry_fail(ferryProgramError, "%s:%u: bytes %llu..%llu holds no size", parser->name,
		                    parser->line, (unsigned long long)program->least_bytes,
		                    (unsigned long long)program->most_bytes);
	return result;
}

/* Each field once: a second one is unexpected. A number that is still 0 has not been given. */
static ferryResult_t read_field(struct parser *parser)
{
	struct ferry_program *program = parser->program;
	if (!program->nranks && accept_word(parser, "ranks"))
		return read_number(parser, FERRY_MAX_RANKS, "a number of ranks", &program->nranks);
	if (!program->ndomains && accept_word(parser, "domains"))
		return read_number(parser, FERRY_MAX_DOMAINS, "a number of domains", &program->ndomains);
	if (!program->nchunks && accept_word(parser, "chunks"))
		return read_number(parser, 1024, "a number of chunks", &program->nchunks);
	if (!parser->has_root && ferry_collective_has_root(program->collective) &&
	    (parser->has_root = accept_word(parser, "root")))
		return read_number(parser, FERRY_MAX_RANKS - 1, "a rank", &program->root);
	if (!parser->has_bytes && (parser->has_bytes = accept_word(parser, "bytes")))
		return read_message_sizes(parser);
	return unexpected(parser, ferry_collective_has_root(program->collective)
	                                  ? "ranks N, domains D, chunks K, root R or bytes LEAST..MOST, each once"
	                                  : "ranks N, domains D, chunks K or bytes LEAST..MOST, each once");
}

static ferryResult_t read_header(struct parser *parser)
{
	struct ferry_program *program = parser->program;
	ferryResult_t result;
	if (parser->has_header || parser->in_section)
		return ferry_fail(ferryProgramError, "%s:%u:1: a second program header, or one after the first section",
		                  parser->name, parser->line);
	parser->has_header = true;
	program->nranks = program->ndomains = 0;
	if ((result = read_collective(parser)))
		return result;
	while (!result && !at_end(parser))
		result = read_field(parser);
	if (!result && (!program->nranks || !program->ndomains || !program->nchunks))
		result = ferry_fail(
		        ferryProgramError,
		        "%s:%u:1: expected ranks N, domains D and chunks K of at least 1 each, found %u, %u and %u",
		        parser->name, parser->line, program->nranks, program->ndomains, program->nchunks);
	if (!result)
		place_ranks(parser);
	return result;
}

static ferryResult_t open_section(struct parser *parser)
{
	struct ferry_program *program = parser->program;
	uint32_t domain;
	ferryResult_t result = read_number(parser, FERRY_MAX_RANKS - 1, "a rank", &parser->rank);
	if (result)
		return result;
	if (program->nranks && parser->rank >= program->nranks)
		return ferry_fail(ferryProgramError, "%s:%u: rank %u: the last of %u ranks is %u", parser->name,
		                  parser->line, parser->rank, program->nranks, program->nranks - 1);
	if (parser->seen[parser->rank])
		return ferry_fail(ferryProgramError, "%s:%u: a second section for rank %u", parser->name, parser->line,
		                  parser->rank);
	parser->seen[parser->rank] = parser->in_section = true;
	if (accept_word(parser, "domain")) {
		result = read_number(parser, program->ndomains - 1, "a domain", &domain);
		if (result)
			return result;
		program->rank_domain[parser->rank] = (uint8_t)domain;
	}
	return at_end(parser) ? ferrySuccess : unexpected(parser, "\"domain D\" or the end of the line");
}

/* HyLink's Figure 3 has its sections in comments: "# Rank 0". */
static ferryResult_t read_comment(struct parser *parser)
{
	if (parser->has_header)
		return ferrySuccess;
	accept(parser, "#");
	if (!accept_word(parser, "Rank") || parser->next == parser->line_end)
		return ferrySuccess;
	skip_space(parser);
	if (parser->next == parser->line_end || !isdigit((unsigned char)*parser->next))
		return ferrySuccess;
	return open_section(parser);
}

static ferryResult_t read_line(struct parser *parser)
{
	static const uint8_t opcodes[] = {FERRY_D2H, FERRY_H2D, FERRY_REDUCE, FERRY_H2H, FERRY_PUT};
	skip_space(parser);
	if (parser->next < parser->line_end && *parser->next == '#')
		return read_comment(parser);
	for (const char *comment = parser->next; comment < parser->line_end; comment++)
		if (*comment == '#')
			parser->line_end = comment;
	if (at_end(parser))
		return ferrySuccess;
	for (size_t i = 0; i < sizeof opcodes; i++)
		if (accept_word(parser, ferry_opcode_name(opcodes[i])))
			return read_statement(parser, opcodes[i], opcodes[i] == FERRY_PUT);
	if (accept_word(parser, "ADD"))
		return read_statement(parser, FERRY_REDUCE, true);
	if (accept_word(parser, "rank"))
		return open_section(parser);
	if (accept_word(parser, "program"))
		return read_header(parser);
	return unexpected(parser, "program, rank, D2H, H2D, REDUCE, H2H, PUT, ADD or a comment");
}

/* Without a header the sections and the chunks give the sizes, and the caller the collective. */
static ferryResult_t infer_header(struct parser *parser)
{
	struct ferry_program *program = parser->program;
	const struct ferry_program_defaults *defaults = parser->defaults;
	if (!parser->in_section)
		return ferry_fail(ferryProgramError, "%s: no program header and no section", parser->name);
	if (defaults->collective >= FERRY_NUM_COLLECTIVES)
		return ferry_fail(ferryProgramError, "%s: no program header says which collective this is",
		                  parser->name);
	program->collective = defaults->collective;
	program->root = ferry_collective_has_root(program->collective) ? defaults->root : 0;
	for (uint32_t rank = defaults->nranks; rank < FERRY_MAX_RANKS; rank++)
		if (parser->seen[rank] || (parser->most_peer && rank <= parser->most_peer))
			program->nranks = rank + 1;
	uint32_t send, receive, blocks = 1;
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		ferry_collective_chunks(program->collective, program->nranks, 1, program->root, rank, &send, &receive);
		blocks = send > blocks ? send : receive > blocks ? receive : blocks;
	}
	program->nchunks = (parser->most_gpu + blocks) / blocks;
	if (program->nchunks > 1024)
		return ferry_fail(ferryProgramError, "%s: gpu[%u] makes %u chunks, at most 1024", parser->name,
		                  parser->most_gpu, program->nchunks);
	return ferrySuccess;
}

static ferryResult_t parse_all(struct parser *parser, const char *text, size_t bytes)
{
	const char *end = text + bytes;
	ferryResult_t result = ferrySuccess;
	while (text < end && !result) {
		const char *line_end = memchr(text, '\n', (size_t)(end - text));
		parser->line++;
		parser->line_start = parser->next = text;
		parser->line_end = line_end ? line_end : end;
		text = line_end ? line_end + 1 : end;
		result = read_line(parser);
	}
	return result || parser->has_header ? result : infer_header(parser);
}

static int by_rank(const void *left, const void *right)
{
	const struct ferry_statement *a = left, *b = right;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return a->line < b->line ? -1 : a->line > b->line;
}

ferryResult_t ferry_program_parse(const char *name, const char *text, size_t bytes,
                                  const struct ferry_program_defaults *defaults, struct ferry_program **parsed)
{
	static const struct ferry_program_defaults none = {.collective = FERRY_NUM_COLLECTIVES};
	struct ferry_program *program = calloc(1, sizeof *program);
	if (!program || !(program->name = strdup(name))) {
		free(program);
		return ferry_fail(ferrySystemError, "%s: no memory", name);
	}
	struct parser parser = {.name = name, .defaults = defaults ? defaults : &none, .program = program};
	program->most_bytes = UINT64_MAX;
	/* For text without a header: as the caller says, else all ranks in domain 0. */
	program->nranks = parser.defaults->nranks;
	program->ndomains = program->nranks && parser.defaults->ndomains ? parser.defaults->ndomains : 1;
	ferryResult_t result = ferrySuccess;
	if (program->nranks > FERRY_MAX_RANKS || program->ndomains > FERRY_MAX_DOMAINS)
		result = ferry_fail(ferryInvalidArgument, "%s: for %u ranks (at most %d) in %u domains (at most %d)",
		                    name, program->nranks, FERRY_MAX_RANKS, program->ndomains, FERRY_MAX_DOMAINS);
	if (!result) {
		place_ranks(&parser);
		result = parse_all(&parser, text, bytes);
	}
	if (result) {
		ferry_program_free(program);
		return result;
	}
	if (program->nstatements)
		qsort(program->statements, program->nstatements, sizeof *program->statements, by_rank);
	*parsed = program;
	return ferrySuccess;
}

void ferry_program_free(struct ferry_program *program)
{
	if (!program)
		return;
	for (uint32_t i = 0; i < program->nstatements; i++)
		free(program->statements[i].dependencies);
	free(program->statements);
	free(program->name);
	free(program);
}
