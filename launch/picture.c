/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lengths are in pixels at the picture's own size. Text in boxes is of one width per letter, so that a box can be made
 * as wide as its text without knowing the font.
 */
#include "launch/picture.h"

#include "ipc/error.h"
#include "ipc/rankset.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LETTER 6.7   /* of 11 px, a little more than most fonts have */
#define LINE 14.0
#define PAD 7.0      /* around the text of a box */
#define LANE_GAP 12.0
#define STEP_GAP 38.0
#define MARGIN 16.0
#define NAMES 118.0  /* for the names of lanes */
#define TITLE 92.0   /* above the domains: title, time and the sign of repetition */
#define LEGEND 860.0 /* its longest line */
#define DOMAIN_TOP 24.0
#define DOMAIN_GAP 18.0
#define MOST_IN_LINE 3 /* sources of a REDUCE */
#define OVER 14.0      /* above the boxes of a lane, if arrows pass over some of them */

#define NCOLOURS 10
static const char *const colours[NCOLOURS] = {"#0072b2", "#d55e00", "#009e73", "#b5508c", "#a67c00",
                                              "#2f9bd0", "#8c4a20", "#6a3d9a", "#b2182b", "#5f6b2d"};
static const char *const tints[NCOLOURS] = {"#e3f0f8", "#fbe9dd", "#e0f3ec", "#f6e8f0", "#f6efd9",
                                            "#e4f3fb", "#f3e8e1", "#ece6f5", "#f8e3e5", "#eef0e3"};

struct rectangle {
	double x, y, width, height;
};

struct picture {
	const struct ferry_schedule *schedule;
	FILE *out;
	char **texts;             /* by event: lines, separated by newlines */
	struct rectangle *boxes;  /* by event */
	double *columns;          /* by step: where it begins; one more, where the last one ends */
	double lane_y[2 * FERRY_MAX_RANKS + FERRY_MAX_DOMAINS], lane_height[2 * FERRY_MAX_RANKS + FERRY_MAX_DOMAINS];
	double over[2 * FERRY_MAX_RANKS + FERRY_MAX_DOMAINS]; /* the part of a lane's height above its boxes */
	double domain_y[FERRY_MAX_DOMAINS], domain_height[FERRY_MAX_DOMAINS]; /* 0: the domain has no events */
	double width, height;
};

/* ---- text ---- */

/* A value by its name in the section of the statement. */
static const char *value_text(const struct ferry_schedule *schedule, uint32_t value, uint32_t section, char text[48])
{
	return ferry_value_text(&schedule->versions, value, schedule->program->rank_domain[section], text);
}

/*
 * Writes the sources of an event: the value that the chain accumulates on, if any, then those that its statements read.
 */
static bool write_sources(const struct ferry_schedule *schedule, const struct ferry_event *event, FILE *out)
{
	const struct ferry_versions *versions = &schedule->versions;
	uint32_t count = 0, part = event->statement, *parts;
	char text[48];
	for (uint32_t at = part; at != FERRY_NO_STATEMENT; at = schedule->before[at])
		count++;
	if (!(parts = calloc(count, sizeof *parts)))
		return false;
	for (uint32_t i = count; i-- > 0; part = schedule->before[part])
		parts[i] = part;
	uint32_t base = versions->values[versions->uses[parts[0]].writes].base, first = base == FERRY_NO_VALUE;
	uint32_t nsources = count + 1 - first, lines = (nsources + MOST_IN_LINE - 1) / MOST_IN_LINE;
	uint32_t in_line = (nsources + lines - 1) / lines;
	for (uint32_t i = first; i <= count; i++) {
		uint32_t statement = parts[i ? i - 1 : 0], value = i ? versions->uses[statement].reads : base;
		value_text(schedule, value, schedule->program->statements[statement].rank, text);
		fprintf(out, "%s%s", i == first ? "" : (i - first) % in_line ? " + " : " +\n", text);
	}
	free(parts);
	return true;
}

static void write_put(const struct ferry_schedule *schedule, const struct ferry_statement *statement,
                      const struct ferry_use *use, FILE *out)
{
	char from[48];
	snprintf(from, sizeof from, "gpu[%u]", statement->gpu);
	if (ferry_statement_puts_memory(statement))
		value_text(schedule, use->reads, statement->rank, from);
	fprintf(out, "PUT\n%s \342\206\222 gpu@%u[%u]", from, statement->peer, statement->peer_gpu);
}

static bool write_event(const struct ferry_schedule *schedule, const struct ferry_event *event, FILE *out)
{
	char from[48], to[48];
	if (event->statement == FERRY_NO_STATEMENT) {
		fprintf(out, "own, on the device\ngpu[%u] \342\206\222 gpu[%u]", event->send, event->receive);
		return true;
	}
	const struct ferry_statement *statement = &schedule->program->statements[event->statement];
	const struct ferry_use *use = &schedule->versions.uses[event->statement];
	switch (statement->opcode) {
	case FERRY_D2H:
		fprintf(out, "%s\ngpu[%u] \342\206\222 %s", ferry_statement_name(statement), statement->gpu,
		        value_text(schedule, use->writes, statement->rank, to));
		break;
	case FERRY_H2D:
		fprintf(out, "%s\n%s \342\206\222 gpu[%u]", ferry_statement_name(statement),
		        value_text(schedule, use->reads, statement->rank, from), statement->gpu);
		break;
	case FERRY_PUT:
		write_put(schedule, statement, use, out);
		break;
	case FERRY_H2H:
		fprintf(out, "%s\n%s\n\342\206\222 %s", ferry_statement_name(statement),
		        value_text(schedule, use->reads, statement->rank, from),
		        value_text(schedule, use->writes, statement->rank, to));
		break;
	default:
		fprintf(out, "%s\n", ferry_statement_name(statement));
		if (!write_sources(schedule, event, out))
			return false;
		fprintf(out, "\n\342\206\222 %s", value_text(schedule, use->writes, statement->rank, to));
	}
	return true;
}

static bool write_texts(struct picture *picture)
{
	const struct ferry_schedule *schedule = picture->schedule;
	for (uint32_t i = 0; i < schedule->nevents; i++) {
		size_t bytes;
		FILE *out = open_memstream(&picture->texts[i], &bytes);
		if (!out)
			return false;
		bool fine = write_event(schedule, &schedule->events[i], out);
		if (fclose(out) || !fine)
			return false;
	}
	return true;
}

/* Finds the width and height of a text by its letters and lines. An arrow has three bytes and is one letter. */
static void measure(const char *text, double *width, double *height)
{
	uint32_t letters = 0, most = 0, lines = 1;
	for (; *text; text++) {
		if (*text == '\n') {
			lines++;
			letters = 0;
		} else if (((unsigned char)*text & 0xc0) != 0x80 && ++letters > most) {
			most = letters;
		}
	}
	*width = most * LETTER + 2 * PAD;
	*height = lines * LINE + PAD;
}

/* ---- where things are ---- */

static void place_columns(struct picture *picture)
{
	const struct ferry_schedule *schedule = picture->schedule;
	double *columns = picture->columns, x = MARGIN + NAMES + STEP_GAP / 2;
	for (uint32_t i = 0; i < schedule->nevents; i++) { /* widths first */
		double *width = &columns[schedule->events[i].step + 1];
		if (picture->boxes[i].width > *width)
			*width = picture->boxes[i].width;
	}
	for (uint32_t step = 0; step <= schedule->nsteps; step++) {
		double width = columns[step];
		x += step ? width + STEP_GAP : 0;
		columns[step] = x;
	}
	picture->width = x + MARGIN > LEGEND ? x + MARGIN : LEGEND;
}

static void place_lanes(struct picture *picture)
{
	const struct ferry_schedule *schedule = picture->schedule;
	double y = TITLE;
	for (uint32_t i = 0; i < schedule->nevents; i++) {
		double *height = &picture->lane_height[schedule->events[i].lane];
		if (picture->boxes[i].height + LANE_GAP > *height)
			*height = picture->boxes[i].height + LANE_GAP;
	}
	for (uint32_t lane = 0; lane < schedule->nlanes; lane++)
		picture->lane_height[lane] += picture->over[lane];
	for (uint32_t domain = 0; domain < schedule->program->ndomains; domain++) {
		double top = y, next = y + DOMAIN_TOP;
		for (uint32_t lane = 0; lane < schedule->nlanes; lane++)
			if (schedule->lanes[lane].domain == domain && schedule->lanes[lane].nsteps) {
				picture->lane_y[lane] = next;
				next += picture->lane_height[lane];
			}
		if (next == y + DOMAIN_TOP)
			continue;
		picture->domain_y[domain] = top;
		picture->domain_height[domain] = next - top;
		y = next + DOMAIN_GAP;
	}
	picture->height = y;
}

/* Whether an arrow would pass behind boxes of its own lane, and look like theirs. */
static bool passes_over(const struct ferry_event *from, const struct ferry_event *to)
{
	return from->lane == to->lane && to->step > from->step + 1;
}

static void leave_room_over(struct picture *picture, uint32_t writer, uint32_t to, bool order)
{
	const struct ferry_schedule *schedule = picture->schedule;
	uint32_t from = schedule->event_of[writer];
	(void)order;
	if (passes_over(&schedule->events[from], &schedule->events[to]))
		picture->over[schedule->events[to].lane] = OVER;
}

/* Visits an arrow from the event of statement `writer` to event `to`. order: `to` waits for it without reading it. */
typedef void visit_arrow(struct picture *picture, uint32_t writer, uint32_t to, bool order);

static void for_each_arrow(struct picture *picture, visit_arrow *visit)
{
	const struct ferry_schedule *schedule = picture->schedule;
	const struct ferry_versions *versions = &schedule->versions;
	for (uint32_t i = 0; i < schedule->program->nstatements; i++) {
		const struct ferry_use *use = &versions->uses[i];
		uint32_t to = schedule->event_of[i];
		if (use->reads != FERRY_NO_VALUE)
			visit(picture, versions->values[use->reads].writer, to, false);
		if (use->forwards != FERRY_NO_STATEMENT)
			visit(picture, use->forwards, to, false);
		if (use->writes != FERRY_NO_VALUE && versions->values[use->writes].base != FERRY_NO_VALUE &&
		    schedule->before[i] == FERRY_NO_STATEMENT)
			visit(picture, versions->values[versions->values[use->writes].base].writer, to, false);
		for (uint32_t j = 0; j < use->nwaits; j++)
			visit(picture, versions->values[versions->waits[use->first_wait + j]].writer, to, true);
	}
}

static void place_boxes(struct picture *picture)
{
	const struct ferry_schedule *schedule = picture->schedule;
	for (uint32_t i = 0; i < schedule->nevents; i++)
		measure(picture->texts[i], &picture->boxes[i].width, &picture->boxes[i].height);
	place_columns(picture);
	for_each_arrow(picture, leave_room_over);
	place_lanes(picture);
	for (uint32_t i = 0; i < schedule->nevents; i++) {
		const struct ferry_event *event = &schedule->events[i];
		struct rectangle *box = &picture->boxes[i];
		double column = picture->columns[event->step + 1] - picture->columns[event->step] - STEP_GAP;
		box->x = picture->columns[event->step] + (column - box->width) / 2;
		box->y = picture->lane_y[event->lane] +
		         (picture->lane_height[event->lane] + picture->over[event->lane] - box->height) / 2;
	}
}

/* ---- colours ---- */

/* If one rank's data goes to all, or data is summed, colours stand for chunks; else for the ranks that own the data. */
static bool colours_are_chunks(const struct ferry_program *program)
{
	return ferry_collective_reduces(program->collective) || program->collective == FERRY_BROADCAST ||
	       program->collective == FERRY_SCATTER || program->collective == FERRY_SENDRECV;
}

static uint32_t colour_of(const struct ferry_schedule *schedule, uint64_t ranks, uint32_t chunk)
{
	return (colours_are_chunks(schedule->program) ? chunk : ferry_rankset_lowest(ranks)) % NCOLOURS;
}

static uint32_t event_colour(const struct ferry_schedule *schedule, const struct ferry_event *event)
{
	if (event->statement == FERRY_NO_STATEMENT)
		return (colours_are_chunks(schedule->program) ? event->send : schedule->lanes[event->lane].rank) %
		       NCOLOURS;
	const struct ferry_use *use = &schedule->versions.uses[event->statement];
	return colour_of(schedule, use->ranks, use->chunk);
}

/* ---- SVG ---- */

/* Escapes what XML does not take as text, and bytes that are not ASCII, as their encoding is unknown. */
static void print_escaped(FILE *out, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		unsigned char letter = (unsigned char)text[i];
		if (letter == '&' || letter == '<' || letter == '>' || letter == '"')
			fprintf(out, "&#%u;", letter);
		else
			fputc(letter < ' ' || letter >= 0x7f ? '?' : letter, out);
	}
}

static void print_text(FILE *out, double x, double y, const char *class, const char *format, ...)
        __attribute__((format(printf, 5, 6)));
static void print_text(FILE *out, double x, double y, const char *class, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
	vfprintf(out, format, arguments);
	fprintf(out, "</text>\n");
	va_end(arguments);
}

static void print_style(FILE *out)
{
	fprintf(out, "<style>\n"
	             "text { font-family: \"DejaVu Sans\", Helvetica, Arial, sans-serif; font-size: 12px; "
	             "fill: #222 }\n"
	             ".title { font-size: 16px; font-weight: bold }\n"
	             ".small { font-size: 11px; fill: #555 }\n"
	             ".domain { font-weight: bold }\n"
	             ".box { font-family: \"DejaVu Sans Mono\", Menlo, Consolas, monospace; font-size: 11px }\n"
	             ".head { font-weight: bold }\n"
	             ".arrow { fill: none; stroke-width: 1.4; stroke-opacity: 0.75 }\n"
	             "</style>\n<defs>\n");
	for (uint32_t i = 0; i < NCOLOURS; i++)
		fprintf(out,
		        "<marker id=\"tip%u\" viewBox=\"0 0 8 8\" refX=\"7.5\" refY=\"4\" markerWidth=\"7\" "
		        "markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
		        "<path d=\"M0 0.5 L8 4 L0 7.5 z\" fill=\"%s\"/></marker>\n",
		        i, colours[i]);
	fprintf(out, "<marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7.5\" refY=\"4\" markerWidth=\"8\" "
	             "markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
	             "<path d=\"M0 0.5 L8 4 L0 7.5 z\" fill=\"#555\"/></marker>\n</defs>\n");
}

/* Prints the title, the direction of time, and the sign that all of it repeats for each slice. */
static void print_head(const struct picture *picture)
{
	const struct ferry_program *program = picture->schedule->program;
	FILE *out = picture->out;
	const char *slash = strrchr(program->name, '/'), *name = slash ? slash + 1 : program->name;
	double left = MARGIN + NAMES, right = picture->width - MARGIN, top = TITLE - 34, bottom = TITLE - 12;
	fprintf(out, "<text x=\"%.1f\" y=\"26\" class=\"title\">%s", MARGIN,
	        ferry_collective_name(program->collective));
	bool from_root = program->collective == FERRY_BROADCAST || program->collective == FERRY_SCATTER;
	if (ferry_collective_has_root(program->collective))
		fprintf(out, " %s rank %u", from_root ? "from" : "to", program->root);
	fprintf(out, "</text>\n<text x=\"%.1f\" y=\"44\" class=\"small\">", MARGIN);
	if (strcmp(name, "<stdin>")) {
		print_escaped(out, name, strlen(name));
		fprintf(out, ": ");
	}
	fprintf(out, "%u rank%s in %u domain%s, %u chunk%s a block</text>\n", program->nranks,
	        program->nranks == 1 ? "" : "s", program->ndomains, program->ndomains == 1 ? "" : "s",
	        program->nchunks, program->nchunks == 1 ? "" : "s");
	print_text(out, MARGIN, bottom + 4, "small", "time");
	fprintf(out, "<path d=\"M%.1f %.1f H%.1f\" stroke=\"#555\" marker-end=\"url(#tip)\"/>\n", MARGIN + 32, bottom,
	        right);
	fprintf(out,
	        "<path d=\"M%.1f %.1f V%.1f H%.1f V%.1f\" fill=\"none\" stroke=\"#555\" marker-end=\"url(#tip)\"/>\n",
	        right - 8, bottom - 4, top, left, bottom - 4);
	print_text(out, left + 10, top + 14, "small",
	           "again for each slice k = 0, 1, 2, ... of the chunks: slice k + 1 follows as soon as slice k has "
	           "moved on");
}

/* Returns the kinds of copies that a rank's lane makes. */
static const char *lane_work(const struct ferry_schedule *schedule, uint32_t lane)
{
	bool puts = false, others = false;
	for (uint32_t i = 0; i < schedule->nevents; i++) {
		const struct ferry_event *event = &schedule->events[i];
		bool put = event->statement != FERRY_NO_STATEMENT &&
		           schedule->program->statements[event->statement].opcode == FERRY_PUT;
		if (event->lane != lane)
			continue;
		puts |= put;
		others |= !put;
	}
	if (schedule->lanes[lane].kind == FERRY_LANE_H2D)
		return "H2D";
	return !puts ? "D2H" : others ? "D2H, PUT" : "PUT";
}

static void print_domain(const struct picture *picture, uint32_t domain)
{
	const struct ferry_schedule *schedule = picture->schedule;
	static const char *const arrows[] = {"\342\206\221", "", "\342\206\223"}; /* up, down */
	FILE *out = picture->out;
	double right = picture->width - MARGIN;
	if (!(picture->domain_height[domain] > 0))
		return;
	fprintf(out,
	        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"8\" fill=\"#f6f6f6\" "
	        "stroke=\"#999\"/>\n",
	        MARGIN, picture->domain_y[domain], right - MARGIN, picture->domain_height[domain]);
	print_text(out, MARGIN + 10, picture->domain_y[domain] + 17, "domain", "domain %u", domain);
	for (uint32_t lane = 0; lane < schedule->nlanes; lane++) {
		const struct ferry_schedule_lane *what = &schedule->lanes[lane];
		double y = picture->lane_y[lane], height = picture->lane_height[lane];
		if (what->domain != domain || !what->nsteps)
			continue;
		fprintf(out,
		        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" stroke=\"#ddd\"/>\n",
		        MARGIN + 1, y, right - MARGIN - 2, height - 1,
		        what->kind == FERRY_LANE_ROUTER ? "#eeeeee" : "#ffffff");
		if (what->kind == FERRY_LANE_ROUTER)
			print_text(out, MARGIN + 10, y + height / 2 + 4, "", "router %u", domain);
		else
			print_text(out, MARGIN + 10, y + height / 2 + 4, "", "rank %u  %s %s", what->rank,
			           arrows[what->kind], lane_work(schedule, lane));
	}
}

static void print_arrow(struct picture *picture, uint32_t writer, uint32_t to, bool order)
{
	const struct ferry_schedule *schedule = picture->schedule;
	const struct ferry_use *made = &schedule->versions.uses[writer];
	uint32_t from = schedule->event_of[writer], colour = colour_of(schedule, made->ranks, made->chunk);
	const struct rectangle *left = &picture->boxes[from], *right = &picture->boxes[to];
	double x = left->x + left->width, y = left->y + left->height / 2, end = right->x,
	       end_y = right->y + right->height / 2, bend = (end - x) / 2 < 60 ? (end - x) / 2 : 60;
	fprintf(picture->out, "<path class=\"arrow\" stroke=\"%s\"%s marker-end=\"url(#tip%u)\" d=\"", colours[colour],
	        order ? " stroke-dasharray=\"4 3\"" : "", colour);
	if (passes_over(&schedule->events[from], &schedule->events[to])) {
		double over = picture->lane_y[schedule->events[to].lane] + 5 + colour % 3 * 4;
		fprintf(picture->out, "M%.1f %.1f C%.1f %.1f %.1f %.1f %.1f %.1f H%.1f C%.1f %.1f %.1f %.1f %.1f %.1f",
		        x - 12, left->y, x - 12, over, x - 4, over, x + 8, over, end - 8, end + 4, over, end + 12, over,
		        end + 12, right->y);
	} else {
		fprintf(picture->out, "M%.1f %.1f C%.1f %.1f %.1f %.1f %.1f %.1f", x, y, x + bend, y, end - bend, end_y,
		        end, end_y);
	}
	fprintf(picture->out, "\"/>\n");
}

static void print_box(const struct picture *picture, uint32_t number)
{
	const struct ferry_event *event = &picture->schedule->events[number];
	const struct rectangle *box = &picture->boxes[number];
	uint32_t colour = event_colour(picture->schedule, event);
	FILE *out = picture->out;
	double y = box->y + LINE - 2;
	bool own = event->statement == FERRY_NO_STATEMENT, first = true;
	fprintf(out,
	        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"4\" fill=\"%s\" stroke=\"%s\"%s/>\n",
	        box->x, box->y, box->width, box->height, own ? "#ffffff" : tints[colour], colours[colour],
	        own ? " stroke-dasharray=\"4 3\"" : "");
	for (const char *line = picture->texts[number]; line; first = false, y += LINE) {
		const char *end = strchr(line, '\n');
		print_text(out, box->x + PAD, y, first ? "box head" : "box", "%.*s",
		           (int)(end ? end - line : (ptrdiff_t)strlen(line)), line);
		line = end ? end + 1 : NULL;
	}
}

static bool pushes(const struct ferry_program *program)
{
	for (uint32_t i = 0; i < program->nstatements; i++)
		if (program->statements[i].opcode == FERRY_PUT)
			return true;
	return false;
}

static void print_legend(const struct picture *picture)
{
	const struct ferry_program *program = picture->schedule->program;
	double y = picture->height + 6;
	print_text(
	        picture->out, MARGIN, y, "small",
	        pushes(program)
	                ? "gpu[i]: chunk i of the send buffer in D2H; of it, or behind an arrow of the receive buffer, "
	                  "in PUT; of the receive buffer in H2D. gpu@r[i]: of rank r's."
	                : "gpu[i]: chunk i of the send buffer in D2H, of the receive buffer in H2D. host[j]: a chunk "
	                  "of host memory, as the program names it; host[j]:2 its version 2.");
	print_text(picture->out, MARGIN, y + 16, "small",
	           "An arrow: waits for. Dashed: an order alone; a dashed box: what needs no statement. A colour: "
	           "%s%s.",
	           colours_are_chunks(program) ? "one chunk of the input" : "one rank's input",
	           (colours_are_chunks(program) ? program->nchunks : program->nranks) > NCOLOURS ? ", or every tenth"
	                                                                                         : "");
}

static void print_all(struct picture *picture)
{
	FILE *out = picture->out;
	double width = picture->width, height = picture->height + 36;
	fprintf(out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n",
	        width, height, width, height);
	print_style(out);
	fprintf(out, "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n");
	print_head(picture);
	for (uint32_t domain = 0; domain < picture->schedule->program->ndomains; domain++)
		print_domain(picture, domain);
	for_each_arrow(picture, print_arrow);
	for (uint32_t i = 0; i < picture->schedule->nevents; i++)
		print_box(picture, i);
	print_legend(picture);
	fprintf(out, "</svg>\n");
}

ferryResult_t ferry_picture_draw(const struct ferry_schedule *schedule, FILE *out)
{
	struct picture picture = {.schedule = schedule, .out = out};
	picture.texts = calloc(schedule->nevents + 1, sizeof *picture.texts);
	picture.boxes = calloc(schedule->nevents + 1, sizeof *picture.boxes);
	picture.columns = calloc(schedule->nsteps + 2, sizeof *picture.columns);
	bool fine = picture.texts && picture.boxes && picture.columns && write_texts(&picture);
	if (fine) {
		place_boxes(&picture);
		print_all(&picture);
	}
	for (uint32_t i = 0; picture.texts && i < schedule->nevents; i++)
		free(picture.texts[i]);
	free(picture.texts);
	free(picture.boxes);
	free(picture.columns);
	return fine ? ferrySuccess
	            : ferry_fail(ferrySystemError, "%s: no memory to draw %u statements", schedule->program->name,
	                         schedule->program->nstatements);
}
