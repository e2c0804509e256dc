/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/plan_text.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

/* A plan's windows by their values: all are of one size, so that an offset is a number. */
struct names {
	const struct ferry_traced_plan *traced;
	uint32_t *values[FERRY_MAX_DOMAINS];
	uint64_t window_bytes;
	bool *stored;    /* by value: it has a window */
	uint32_t *stack; /* by value: scratch */
	char **texts;   /* by instruction: what it does */
	uint32_t width; /* of the longest text, up to MOST_WIDTH */
};

#define MOST_WIDTH 48

static bool is_variable(const struct ferry_plan *plan)
{
	return plan->flags & FERRY_PLAN_VARIABLE;
}

/* ---- names ---- */

static void names_close(struct names *names)
{
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		free(names->values[domain]);
	free(names->stored);
	free(names->stack);
	for (uint32_t i = 0; names->texts && i < names->traced->plan->ninstrs; i++)
		free(names->texts[i]);
	free(names->texts);
}

/* Returns the domain of the section that has the instruction's statement. */
static uint32_t section_domain(const struct names *names, uint32_t instr)
{
	const struct ferry_program *program = names->traced->program;
	return program->rank_domain[program->statements[names->traced->origins[instr].statement].rank];
}

static void print_window(const struct names *names, uint32_t instr, uint32_t domain, uint64_t offset, FILE *out)
{
	char text[48];
	uint32_t value = names->values[domain][offset / names->window_bytes];
	fputs(ferry_value_text(names->traced->versions, value, section_domain(names, instr), text), out);
}

/* Prints the sums of the program that became intermediate results of this one's pass. */
static void print_passed(const struct names *names, uint32_t value, FILE *out)
{
	const struct ferry_program *program = names->traced->program;
	const struct ferry_versions *versions = names->traced->versions;
	const char *before = "  (on the way: ";
	char text[48];
	uint32_t depth = 0;
	names->stack[depth++] = value;
	while (depth) {
		const struct ferry_value *what = &versions->values[names->stack[--depth]];
		if (what->base != FERRY_NO_VALUE && !names->stored[what->base])
			names->stack[depth++] = what->base;
		if (names->stored[what->source])
			continue;
		names->stack[depth++] = what->source;
		uint32_t section = program->statements[what->writer].rank;
		fprintf(out, "%s%s", before,
		        ferry_value_text(versions, what->source, program->rank_domain[section], text));
		before = ", ";
	}
	fputs(*before == ',' ? ")" : "", out);
}

static void print_operands(const struct names *names, uint32_t number, FILE *out)
{
	const struct ferry_plan *plan = names->traced->plan;
	const struct ferry_instr *instr = &ferry_plan_instrs(plan)[number];
	const struct ferry_source *sources = ferry_plan_sources(plan) + instr->first_source;
	const struct ferry_instr_origin *origin = &names->traced->origins[number];
	if (instr->opcode == FERRY_COPY) {
		fprintf(out, "gpu[%u] -> gpu[%u]", origin->send, origin->receive);
		return;
	}
	const struct ferry_statement *statement = &names->traced->program->statements[origin->statement];
	if (instr->opcode == FERRY_PUT) {
		if (instr->nsources)
			print_window(names, number, sources->domain, sources->window_offset, out);
		else
			fprintf(out, "gpu[%u]", statement->gpu);
		fprintf(out, " -> gpu@%u[%u]", statement->peer, statement->peer_gpu);
	}
	if (instr->opcode == FERRY_WAIT_PUT)
		fprintf(out, "gpu[%u], from rank %u", statement->peer_gpu, instr->peer);
	if (!ferry_opcode_has_window(instr->opcode))
		return;
	if (instr->opcode == FERRY_D2H && !instr->nsources)
		fprintf(out, "gpu[%u]", statement->gpu);
	else if (instr->opcode == FERRY_H2D)
		print_window(names, number, instr->window_domain, instr->window_offset, out);
	for (uint32_t i = 0; i < instr->nsources; i++) {
		fputs(i ? " + " : "", out);
		print_window(names, number, sources[i].domain, sources[i].window_offset, out);
	}
	fputs(" -> ", out);
	if (instr->opcode == FERRY_H2D)
		fprintf(out, "gpu[%u]", statement->gpu);
	else
		print_window(names, number, instr->window_domain, instr->window_offset, out);
	if (instr->opcode == FERRY_REDUCE)
		print_passed(names, names->traced->versions->uses[origin->statement].writes, out);
}

static bool write_texts(struct names *names)
{
	for (uint32_t i = 0; i < names->traced->plan->ninstrs; i++) {
		size_t bytes;
		FILE *out = open_memstream(&names->texts[i], &bytes);
		if (!out)
			return false;
		print_operands(names, i, out);
		if (fclose(out))
			return false;
		if (bytes > names->width && bytes <= MOST_WIDTH)
			names->width = (uint32_t)bytes;
	}
	return true;
}

static ferryResult_t names_open(const struct ferry_traced_plan *traced, struct names *names)
{
	const struct ferry_plan *plan = traced->plan;
	*names = (struct names){.traced = traced,
	                        .window_bytes = ((uint64_t)plan->slice * plan->window + 127) / 128 * 128,
	                        .texts = calloc(plan->ninstrs + 1, sizeof *names->texts)};
	names->stored = calloc(traced->versions->nvalues + 1, sizeof *names->stored);
	names->stack = calloc(traced->versions->nvalues + 1, sizeof *names->stack);
	bool fine = names->texts && names->stored && names->stack;
	for (uint32_t domain = 0; domain < plan->ndomains; domain++) {
		names->values[domain] = calloc(plan->staging[domain] / names->window_bytes + 1, sizeof(uint32_t));
		fine = fine && names->values[domain];
	}
	for (uint32_t i = 0; fine && i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
		if (!ferry_opcode_writes_window(instr->opcode))
			continue;
		uint32_t value = traced->versions->uses[traced->origins[i].statement].writes;
		names->values[instr->window_domain][instr->window_offset / names->window_bytes] = value;
		names->stored[value] = true;
	}
	if (fine && write_texts(names))
		return ferrySuccess;
	names_close(names);
	return ferry_fail(ferrySystemError, "%s: no memory to print a plan of %u instructions", traced->program->name,
	                  plan->ninstrs);
}

/* ---- instructions ---- */

static void print_edges(const struct ferry_plan *plan, const struct ferry_instr *instr, bool lagged, FILE *out)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	const char *before = lagged ? " | " : "";
	for (uint32_t i = 0; i < instr->nedges; i++) {
		if (lagged != (edges[i].lag > 0))
			continue;
		fprintf(out, "%s%u", before, edges[i].instr);
		before = " ";
	}
	if (!lagged && !*before)
		fputc('-', out);
}

static void print_instr(const struct names *names, uint32_t number, FILE *out)
{
	const struct ferry_plan *plan = names->traced->plan;
	const struct ferry_instr *instr = &ferry_plan_instrs(plan)[number];
	uint32_t statement = names->traced->origins[number].statement;
	bool worker = ferry_opcode_is_work(instr->opcode);
	fprintf(out, "%5u  ", number);
	if (statement != FERRY_NO_STATEMENT)
		fprintf(out, "%5u", names->traced->program->statements[statement].line);
	else
		fprintf(out, "    -");
	fprintf(out, "  %s %-3u", worker ? "router" : "rank  ", instr->owner);
	if (!is_variable(plan))
		fprintf(out, " %11llu %6u", (unsigned long long)instr->length, instr->nslices);
	fprintf(out, "  %-6s %-*s  ", ferry_opcode_name(instr->opcode), (int)names->width, names->texts[number]);
	print_edges(plan, instr, false, out);
	print_edges(plan, instr, true, out);
	fputc('\n', out);
}

/* ---- the numbers ---- */

static const char *plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

static void print_header(const struct ferry_plan *plan, uint64_t window_bytes, FILE *out)
{
	fprintf(out, "%s", ferry_collective_name(plan->collective));
	if (is_variable(plan))
		fprintf(out, " of %s", ferry_type_name(plan->type));
	else
		fprintf(out, " of %llu element%s of %s", (unsigned long long)plan->count, plural(plan->count),
		        ferry_type_name(plan->type));
	if (ferry_collective_reduces(plan->collective))
		fprintf(out, ", %s", ferry_redop_name((ferryRedOp_t)plan->redop));
	if (ferry_collective_has_root(plan->collective))
		fprintf(out, ", root %u", plan->root);
	fprintf(out, ": %u rank%s in %u domain%s, a block is %u chunk%s\n", plan->nranks, plural(plan->nranks),
	        plan->ndomains, plural(plan->ndomains), plan->nchunks, plural(plan->nchunks));
	fprintf(out,
	        "%u instruction%s. Chunks move in slices of %u bytes; a version of a chunk of the host has a window\n",
	        plan->ninstrs, plural(plan->ninstrs), plan->slice);
	fprintf(out, "of %u slot%s, a slice each.\n", plan->window, plural(plan->window));
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		fprintf(out, "Staging in domain %u: %llu bytes, %llu window%s of %llu.\n", domain,
		        (unsigned long long)plan->staging[domain],
		        (unsigned long long)(plan->staging[domain] / window_bytes),
		        plural(plan->staging[domain] / window_bytes), (unsigned long long)window_bytes);
	fputc('\n', out);
}

static void print_legend(const struct names *names, FILE *out)
{
	static const char putting[] =
	        "        in PUT of its send buffer, or of its receive buffer after what has brought it there;\n"
	        "        gpu@r[i]: of rank r's receive buffer; WAIT_PUT does nothing: what a PUT brings is there\n";
	const struct ferry_plan *plan = names->traced->plan;
	fprintf(out, "\n"
	             "#       the instruction's number; by: the rank or router that runs it\n"
	             "line    of its statement in the text: of REDUCEs that became one, the last; -: needs none\n"
	             "gpu[i]  chunk i of the rank's send buffer in D2H, of its receive buffer in H2D, of both in COPY\n"
	             "%s"
	             "host[j] a chunk of host memory, as the program names it; host[j]:2: its version 2; on the way:\n"
	             "        sums that became part of this one and are not stored\n",
	        plan->flags & FERRY_PLAN_PUTS ? putting : "");
	if (!is_variable(plan))
		fprintf(out, "bytes   of the chunk; slices: how many times the instruction runs, once a slice\n");
	fprintf(out,
	        "after   slice k runs when these instructions have done slice k; behind the |: when these have\n"
	        "        read slice k - %u, whose slot in the window it takes; an H2D is also after the D2H of the\n"
	        "        bytes that it writes, as a call may be in place\n",
	        plan->window);
}

/* ---- bytes per link ---- */

struct traffic {
	uint64_t d2h[FERRY_MAX_RANKS], h2d[FERRY_MAX_RANKS];
	uint64_t put[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* from, to */
	uint64_t routed[FERRY_MAX_DOMAINS][FERRY_MAX_DOMAINS]; /* from, to: by H2H */
	uint64_t direct[FERRY_MAX_DOMAINS][FERRY_MAX_DOMAINS]; /* by a rank's D2H or H2D of another domain's staging */
	uint64_t read[FERRY_MAX_DOMAINS], written[FERRY_MAX_DOMAINS]; /* by REDUCE */
};

static void count_traffic(const struct ferry_plan *plan, struct traffic *traffic)
{
	memset(traffic, 0, sizeof *traffic);
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
		switch (instr->opcode) {
		case FERRY_D2H:
			if (instr->flags & FERRY_INSTR_MEMORY) {
				traffic->put[instr->owner][instr->peer] += instr->length;
				break;
			}
			traffic->d2h[instr->owner] += instr->length;
			traffic->direct[instr->domain][instr->window_domain] += instr->length;
			break;
		case FERRY_H2D:
			if (instr->flags & FERRY_INSTR_MEMORY)
				break; /* on the device */
			traffic->h2d[instr->owner] += instr->length;
			traffic->direct[instr->window_domain][instr->domain] += instr->length;
			break;
		case FERRY_PUT:
			traffic->put[instr->owner][instr->peer] += instr->length;
			break;
		case FERRY_REDUCE:
			traffic->read[instr->owner] += instr->length * instr->nsources;
			traffic->written[instr->owner] += instr->length;
			break;
		case FERRY_H2H:
			traffic->routed[ferry_plan_sources(plan)[instr->first_source].domain]
			               [instr->owner] += instr->length;
			break;
		default: /* COPY stays on the device, WAIT_PUT moves nothing */
			break;
		}
	}
}

static void print_traffic(const struct ferry_plan *plan, FILE *out)
{
	struct traffic traffic;
	count_traffic(plan, &traffic);
	fprintf(out, "\nbytes that a call moves over each link (up: D2H, down: H2D%s)\n",
	        plan->ndomains > 1 ? "; direct: D2H and H2D of another domain's memory" : "");
	for (uint32_t rank = 0; rank < plan->nranks; rank++)
		fprintf(out, "  rank %-3u      up %llu  down %llu\n", rank, (unsigned long long)traffic.d2h[rank],
		        (unsigned long long)traffic.h2d[rank]);
	for (uint32_t from = 0; from < plan->nranks; from++)
		for (uint32_t to = 0; to < plan->nranks; to++)
			if (traffic.put[from][to])
				fprintf(out, "  rank %u -> %u  PUT %llu\n", from, to,
				        (unsigned long long)traffic.put[from][to]);
	for (uint32_t from = 0; from < plan->ndomains; from++)
		for (uint32_t to = 0; to < plan->ndomains; to++)
			if (from != to && traffic.routed[from][to] + traffic.direct[from][to])
				fprintf(out, "  domain %u -> %u  H2H %llu  direct %llu\n", from, to,
				        (unsigned long long)traffic.routed[from][to],
				        (unsigned long long)traffic.direct[from][to]);
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		if (traffic.written[domain])
			fprintf(out, "  domain %u       REDUCE reads %llu  writes %llu\n", domain,
			        (unsigned long long)traffic.read[domain], (unsigned long long)traffic.written[domain]);
}

ferryResult_t ferry_plan_print(const struct ferry_traced_plan *traced, FILE *out)
{
	const struct ferry_plan *plan = traced->plan;
	struct names names;
	ferryResult_t result = names_open(traced, &names);
	if (result)
		return result;
	print_header(plan, names.window_bytes, out);
	fprintf(out, "    #   line  by        %s  %-*s  after | slot read by\n",
	        is_variable(plan) ? "" : "       bytes slices", (int)names.width + 7, "instruction");
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		print_instr(&names, i, out);
	print_legend(&names, out);
	if (is_variable(plan))
		fprintf(out, "\nbytes per link are known at the call\n");
	else
		print_traffic(plan, out);
	names_close(&names);
	return ferrySuccess;
}
