/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/plan_text.h"

#include <string.h>

#define TEXT 64

static const char *const opcodes[FERRY_NUM_OPCODES] = {"D2H", "H2D", "COPY", "REDUCE", "H2H"};

static bool is_variable(const struct ferry_plan *plan)
{
	return plan->flags & FERRY_PLAN_VARIABLE;
}

/* Windows are all of one size, so that a number names one: window@DOMAIN[NUMBER]. */
static const char *window_text(const struct ferry_plan *plan, uint32_t domain, uint64_t offset, char text[TEXT])
{
	uint64_t bytes = ((uint64_t)plan->slice * plan->window + 127) / 128 * 128;
	snprintf(text, TEXT, "window@%u[%llu]", domain, (unsigned long long)(offset / bytes));
	return text;
}

/* A place in a user's buffer; of alltoallv the part for, or of, another rank. */
static const char *user_text(const struct ferry_plan *plan, const struct ferry_instr *instr, const char *buffer,
                             uint64_t offset, char text[TEXT])
{
	if (is_variable(plan))
		snprintf(text, TEXT, "%s[rank %u]", buffer, instr->chunk);
	else
		snprintf(text, TEXT, "%s+%llu", buffer, (unsigned long long)offset);
	return text;
}

static void print_sources(const struct ferry_plan *plan, const struct ferry_instr *instr, FILE *out)
{
	char text[TEXT];
	const struct ferry_source *sources = ferry_plan_sources(plan) + instr->first_source;
	for (uint32_t i = 0; i < instr->nsources; i++)
		fprintf(out, "%s%s", i ? " + " : "",
		        window_text(plan, sources[i].domain, sources[i].window_offset, text));
}

static void print_operands(const struct ferry_plan *plan, const struct ferry_instr *instr, FILE *out)
{
	char from[TEXT], to[TEXT], window[TEXT];
	window_text(plan, instr->window_domain, instr->window_offset, window);
	switch (instr->opcode) {
	case FERRY_D2H:
		fprintf(out, "%s -> %s", user_text(plan, instr, "send", instr->user_offset, from), window);
		break;
	case FERRY_H2D:
		fprintf(out, "%s -> %s", window, user_text(plan, instr, "receive", instr->user_offset, to));
		break;
	case FERRY_COPY:
		fprintf(out, "%s -> %s", user_text(plan, instr, "send", instr->user_offset, from),
		        user_text(plan, instr, "receive", instr->user_destination, to));
		break;
	default:
		print_sources(plan, instr, out);
		fprintf(out, " -> %s", window);
	}
}

static void print_edges(const struct ferry_plan *plan, const struct ferry_instr *instr, bool lagged, const char *title,
                        FILE *out)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	const char *before = title;
	for (uint32_t i = 0; i < instr->nedges; i++) {
		if (lagged != (edges[i].lag > 0))
			continue;
		fprintf(out, "%s%u", before, edges[i].instr);
		before = " ";
	}
}

static void print_instr(const struct ferry_plan *plan, uint32_t number, FILE *out)
{
	const struct ferry_instr *instr = &ferry_plan_instrs(plan)[number];
	bool worker = instr->opcode == FERRY_REDUCE || instr->opcode == FERRY_H2H;
	fprintf(out, "%5u  ", number);
	if (instr->line)
		fprintf(out, "%5u", instr->line);
	else
		fprintf(out, "    -");
	fprintf(out, "  %s %-3u %-6s ", worker ? "router" : "  rank", instr->owner, opcodes[instr->opcode]);
	print_operands(plan, instr, out);
	if (!is_variable(plan))
		fprintf(out, "  (%llu bytes, %u slice%s)", (unsigned long long)instr->length, instr->nslices,
		        instr->nslices == 1 ? "" : "s");
	print_edges(plan, instr, false, "  after ", out);
	print_edges(plan, instr, true, "  slots free by ", out);
	fputc('\n', out);
}

static void print_header(const struct ferry_plan *plan, FILE *out)
{
	fprintf(out, "%s", ferry_collective_name(plan->collective));
	if (!is_variable(plan))
		fprintf(out, " of %llu", (unsigned long long)plan->count);
	fprintf(out, " %s", ferry_type_name(plan->type));
	if (ferry_collective_reduces(plan->collective))
		fprintf(out, ", %s", ferry_redop_name((ferryRedOp_t)plan->redop));
	if (ferry_collective_has_root(plan->collective))
		fprintf(out, ", root %u", plan->root);
	fprintf(out, ": ranks %u, domains %u, chunks %u\n", plan->nranks, plan->ndomains, plan->nchunks);
	fprintf(out, "%u instructions, slices of %u bytes, windows of %u slots, staging", plan->ninstrs, plan->slice,
	        plan->window);
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		fprintf(out, "%s%llu", domain ? " + " : " ", (unsigned long long)plan->staging[domain]);
	fprintf(out, " bytes\n\n");
}

/* ---- bytes per link ---- */

struct traffic {
	uint64_t up[FERRY_MAX_RANKS], down[FERRY_MAX_RANKS];
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
			traffic->up[instr->owner] += instr->length;
			traffic->direct[instr->domain][instr->window_domain] += instr->length;
			break;
		case FERRY_H2D:
			traffic->down[instr->owner] += instr->length;
			traffic->direct[instr->window_domain][instr->domain] += instr->length;
			break;
		case FERRY_REDUCE:
			traffic->read[instr->owner] += instr->length * instr->nsources;
			traffic->written[instr->owner] += instr->length;
			break;
		case FERRY_H2H:
			traffic->routed[ferry_plan_sources(plan)[instr->first_source].domain]
			               [instr->owner] += instr->length;
			break;
		default: /* COPY stays on the device */
			break;
		}
	}
}

static void print_traffic(const struct ferry_plan *plan, FILE *out)
{
	struct traffic traffic;
	count_traffic(plan, &traffic);
	fprintf(out, "\nbytes per link\n");
	for (uint32_t rank = 0; rank < plan->nranks; rank++)
		fprintf(out, "  rank %-3u      up %llu  down %llu\n", rank, (unsigned long long)traffic.up[rank],
		        (unsigned long long)traffic.down[rank]);
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

void ferry_plan_print(const struct ferry_plan *plan, FILE *out)
{
	print_header(plan, out);
	fprintf(out, "    #   line  by         instruction\n");
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		print_instr(plan, i, out);
	if (is_variable(plan))
		fprintf(out, "\nbytes per link are known at the call\n");
	else
		print_traffic(plan, out);
}

void ferry_plan_print_dot(const struct ferry_plan *plan, FILE *out)
{
	fprintf(out, "digraph plan {\n\trankdir=LR;\n\tnode [shape=box, fontname=\"monospace\"];\n");
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
		bool worker = instr->opcode == FERRY_REDUCE || instr->opcode == FERRY_H2H;
		fprintf(out, "\ti%u [label=\"%u: %s %u\\n%s ", i, i, worker ? "router" : "rank", instr->owner,
		        opcodes[instr->opcode]);
		print_operands(plan, instr, out);
		fprintf(out, "\"%s];\n", worker ? ", style=filled, fillcolor=lightgrey" : "");
	}
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
		for (uint32_t e = 0; e < instr->nedges; e++) {
			const struct ferry_edge *edge = &ferry_plan_edges(plan)[instr->first_edge + e];
			fprintf(out, "\ti%u -> i%u%s;\n", edge->instr, i,
			        edge->lag ? " [style=dashed, constraint=false]" : "");
		}
	}
	fprintf(out, "}\n");
}
