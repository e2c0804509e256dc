/* SPDX-License-Identifier: Apache-2.0 */
/* ferryprog: checks, shows, draws and synthesizes collective programs. Needs no device, no router and no ranks. */
#include "ipc/arena.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/links.h"
#include "launch/picture.h"
#include "launch/plan_text.h"
#include "launch/rates.h"
#include "launch/topology_file.h"
#include "rank-lib/program/versions.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TEXT (64u << 20) /* bytes of a program */

enum exit_code { EXIT_RIGHT = 0, EXIT_WRONG = 1, EXIT_USAGE = 64 };
enum option_key {
	KEY_PLACE = 256,
	KEY_COUNT,
	KEY_SLICE,
	KEY_WINDOW,
	KEY_STAGING,
	KEY_OUTPUT,
	KEY_FABRIC,
	KEY_LINKS
};

struct arguments {
	const char *command, *operand;
	enum ferry_collective collective;
	uint32_t nranks, ndomains, root;
	uint8_t rank_domain[FERRY_MAX_RANKS];
	uint32_t placed, domains_placed; /* by --place */
	bool domains_given;
	bool collective_given, root_given;
	const char *op_given; /* as the user wrote it; NULL: the default */
	const char *of_show; /* an option that only show takes; NULL: none was given */
	const char *output;  /* of draw; NULL: standard output */
	const char *fabric, *links_given; /* of synth */
	struct ferry_host_links machine;  /* what links_given says */
	struct ferry_compile_options compile;
	uint64_t staging;
};

static const struct argp_option options[] = {
        {NULL, 0, NULL, 0,
         "Of check, show and draw, for text that has no \"program\" line; of synth, for the program to write:", 1},
        {"collective", 'c', "NAME", 0, "What the text computes (default: allreduce)", 1},
        {"ranks", 'n', "N", 0, "Number of ranks, 1 to 64 (default: as many as the text has sections)", 1},
        {"domains", 'd', "D", 0, "Number of domains, 1 to 8, ranks in equal blocks over them (default: 1)", 1},
        {"place", KEY_PLACE, "LIST", 0, "The domain of each rank, such as 0,0,0,1: ranks and domains at once", 1},
        {"root", 'r', "R", 0, "Root of broadcast, reduce, gather and scatter (default: 0)", 1},
        {NULL, 0, NULL, 0, "Of show:", 2},
        {"count", KEY_COUNT, "N", 0, "Elements, as the API counts them; K, M and G understood (default: 1M)", 2},
        {"type", 't', "TYPE", 0, "f32, bf16, i64, f8e4m3, ... (default: f32)", 2},
        {"op", 'o', "OP", 0, "sum, prod, max, min, avg or premulsum (default: sum)", 2},
        {"slice", KEY_SLICE, "BYTES", 0, "Bytes per slice, a multiple of 64 (default: chosen)", 2},
        {"window", KEY_WINDOW, "W", 0, "Slots per chunk version (default: chosen)", 2},
        {"staging", KEY_STAGING, "BYTES", 0, "Staging that a call may take in each domain (default: 16M)", 2},
        {NULL, 0, NULL, 0, "Of draw:", 3},
        {"output", KEY_OUTPUT, "FILE", 0, "Where the picture goes; also -o (default: standard output)", 3},
        {NULL, 0, NULL, 0, "Of synth:", 4},
        {"fabric", KEY_FABRIC, "host|peer", 0, "Through host memory, or from device to device (default: host)", 4},
        {"links", KEY_LINKS, "SPEC", 0,
         "Of --fabric=peer: the links between the devices, as FERRY_HOST_LINK names them, such as links=dgx1v:25, or "
         "a topology file of NCCL's or hwloc's, such as topo.xml or topo.xml,devices=0,2; where that is a machine, "
         "--ranks is as many as it has", 4},
        {0}};

static const char description[] = "Checks, shows, draws and synthesizes collective programs.\v"
                                  "FILE may be - for standard input. check prints a verdict, with the line and the "
                                  "reason if the program is wrong, and exits with 0 or 1. show compiles the program "
                                  "and prints the plan: instructions in order, what each waits for, bytes per link. "
                                  "draw makes a picture of it, in SVG: what each rank does, and after what. "
                                  "synth prints the program that Ferry itself would run. "
                                  "rates prints what collectives over LINKS can reach, and what they reach by trees "
                                  "and by rings.\n"
                                  "\n"
                                  "Examples:\n"
                                  "  ferryprog check figure3.txt\n"
                                  "  ferryprog synth allreduce --ranks 8 --domains 2\n"
                                  "  ferryprog synth broadcast --place 0,0,1,1,1 --root 2 | ferryprog check -\n"
                                  "  ferryprog synth allgather --fabric peer --links links=dgx1v:25,devices=0,2,5\n"
                                  "  ferryprog rates links=dgx1v:25,devices=0,2,3\n"
                                  "  ferryprog show allgather.txt --count 64K --type bf16\n"
                                  "  ferryprog draw figure3.txt -o figure3.svg\n"
                                  "\n"
                                  "The language: docs/program-language.md.";

static uint64_t parse_number(const char *name, const char *value, uint64_t least, uint64_t most,
                             struct argp_state *state)
{
	uint64_t number = 0;
	if (!ferry_parse_bytes(value, &number) || number < least || number > most)
		argp_error(state, "%s: \"%s\" is not a number from %llu to %llu", name, value,
		           (unsigned long long)least, (unsigned long long)most);
	return number;
}

static void parse_place(struct arguments *arguments, const char *list, struct argp_state *state)
{
	uint32_t ndomains = 0, nranks = 0;
	const char *whole = list;
	char *end;
	do {
		unsigned long domain = strtoul(list, &end, 10);
		if (end == list || *list == '-' || domain >= FERRY_MAX_DOMAINS || (*end && *end != ',') ||
		    nranks == FERRY_MAX_RANKS)
			argp_error(state,
			           "--place: \"%s\" of \"%s\": at most %d domains from 0 to %d, separated by commas",
			           list, whole, FERRY_MAX_RANKS, FERRY_MAX_DOMAINS - 1);
		arguments->rank_domain[nranks++] = (uint8_t)domain;
		ndomains = domain + 1 > ndomains ? (uint32_t)domain + 1 : ndomains;
		list = end + 1;
	} while (*end);
	arguments->placed = nranks;
	arguments->domains_placed = ndomains;
}

static enum ferry_collective parse_collective(const char *name, struct argp_state *state)
{
	enum ferry_collective collective = ferry_collective_parse(name);
	if (collective == FERRY_NUM_COLLECTIVES)
		argp_error(state, "\"%s\" is no collective: " FERRY_COLLECTIVE_NAMES, name);
	return collective;
}

static error_t parse_show(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	for (const struct argp_option *option = options; option->name || option->doc; option++)
		if (option->key == key && option->name && key != 'o')
			arguments->of_show = option->name;
	switch (key) {
	case KEY_COUNT:
		arguments->compile.count = parse_number("--count", value, 0, 1ull << 44, state);
		return 0;
	case 't':
		arguments->compile.type = ferry_type_parse(value);
		if (arguments->compile.type == ferryNumTypes)
			argp_error(state, "--type: \"%s\" is no element type", value);
		return 0;
	case 'o': /* looked at once the command is known */
		arguments->op_given = value;
		return 0;
	case KEY_SLICE:
		arguments->compile.slice = (uint32_t)parse_number("--slice", value, 64, 1u << 30, state);
		if (arguments->compile.slice % 64)
			argp_error(state, "--slice: %s is no multiple of 64", value);
		return 0;
	case KEY_WINDOW:
		arguments->compile.window = (uint32_t)parse_number("--window", value, 1, 1024, state);
		return 0;
	case KEY_STAGING:
		arguments->staging = parse_number("--staging", value, 64, 1ull << 44, state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_operand(struct arguments *arguments, char *value, struct argp_state *state)
{
	static const char *const commands[] = {"check", "show", "draw", "synth", "rates"};
	for (size_t i = 0; !arguments->command && i < 5; i++)
		if (!strcmp(value, commands[i])) {
			arguments->command = commands[i];
			return 0;
		}
	if (!arguments->command)
		argp_error(state, "\"%s\" is no command: check, show, draw, synth or rates", value);
	if (arguments->operand)
		argp_error(state, "one operand, not both \"%s\" and \"%s\"", arguments->operand, value);
	arguments->operand = value;
	return 0;
}

/* Refuses options that make no sense for the collective, which the operand is, or names in its text. */
static ferryResult_t check_meant(const struct arguments *arguments, enum ferry_collective collective,
                                 const char *operand)
{
	const char *name = ferry_collective_name(collective);
	if (arguments->root_given && !ferry_collective_has_root(collective))
		return ferry_fail(ferryInvalidUsage, "%s: --root %u: %s has no root", operand, arguments->root, name);
	if (arguments->op_given && !ferry_collective_reduces(collective))
		return ferry_fail(ferryInvalidUsage, "%s: --op %s: %s reduces nothing", operand, arguments->op_given,
		                  name);
	return ferrySuccess;
}

/* -o is the output of draw, and the operation of show. */
static void read_short_o(struct arguments *arguments, struct argp_state *state)
{
	if (!arguments->op_given)
		return;
	if (!strcmp(arguments->command, "draw")) {
		if (arguments->output)
			argp_error(state, "draw: one output, not both \"%s\" and \"%s\"", arguments->output,
			           arguments->op_given);
		arguments->output = arguments->op_given;
		arguments->op_given = NULL;
		return;
	}
	arguments->of_show = "op";
	arguments->compile.redop = ferry_redop_parse(arguments->op_given);
	if (arguments->compile.redop == ferryMaxRedOp)
		argp_error(state, "--op: \"%s\" is no operation: sum, prod, max, min, avg or premulsum",
		           arguments->op_given);
}

/* Refuses options that exclude each other, or that the command does not take. */
static void check_together(struct arguments *arguments, struct argp_state *state)
{
	bool synth = !strcmp(arguments->command, "synth");
	if (arguments->output && strcmp(arguments->command, "draw"))
		argp_error(state, "%s: --output is an option of draw", arguments->command);
	if ((arguments->fabric || arguments->links_given) && !synth)
		argp_error(state, "%s: --%s is an option of synth", arguments->command,
		           arguments->fabric ? "fabric" : "links");
	read_short_o(arguments, state);
	if (arguments->of_show && strcmp(arguments->command, "show"))
		argp_error(state, "%s: --%s is an option of show", arguments->command, arguments->of_show);
	if (synth && arguments->collective_given)
		argp_error(state, "synth: --collective: the collective is its operand, \"%s\"", arguments->operand);
	if (arguments->placed && arguments->nranks && arguments->nranks != arguments->placed)
		argp_error(state, "--ranks %u: --place has %u", arguments->nranks, arguments->placed);
	if (arguments->placed && arguments->ndomains && arguments->ndomains < arguments->domains_placed)
		argp_error(state, "--domains %u: --place has a rank in domain %u", arguments->ndomains,
		           arguments->domains_placed - 1);
	if (arguments->ndomains && !arguments->nranks && !arguments->placed)
		argp_error(state, "--domains %u: for how many ranks? --ranks N or --place LIST", arguments->ndomains);
	if (arguments->placed)
		arguments->nranks = arguments->placed;
	if (!arguments->ndomains)
		arguments->ndomains = arguments->domains_placed;
}

static void check_synth(struct arguments *arguments, struct argp_state *state)
{
	bool peer = arguments->fabric && !strcmp(arguments->fabric, "peer");
	const struct ferry_host_links *machine = &arguments->machine;
	if (peer && !arguments->links_given)
		argp_error(state, "synth: --fabric peer: over which links? --links SPEC");
	if (!peer && arguments->links_given)
		argp_error(state, "synth: --links is an option of --fabric=peer");
	arguments->collective = parse_collective(arguments->operand, state);
	if (check_meant(arguments, arguments->collective, "synth"))
		argp_error(state, "%s", ferry_last_message());
	if (!arguments->nranks && peer)
		arguments->nranks = machine->nplaced                       ? machine->nplaced
		                    : machine->ndevices < FERRY_MAX_RANKS ? machine->ndevices
		                                                          : 0;
	if (!arguments->nranks)
		argp_error(state, "synth: for how many ranks? --ranks N or --place LIST");
	if (arguments->root >= arguments->nranks)
		argp_error(state, "synth: --root %u: the last of %u ranks is %u", arguments->root, arguments->nranks,
		           arguments->nranks - 1);
	if (arguments->collective == FERRY_SENDRECV && arguments->nranks != 2)
		argp_error(state, "synth: sendrecv is between 2 ranks, not %u", arguments->nranks);
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	switch (key) {
	case 'c':
		arguments->collective = parse_collective(value, state);
		arguments->collective_given = true;
		return 0;
	case 'n':
		arguments->nranks = (uint32_t)parse_number("--ranks", value, 1, FERRY_MAX_RANKS, state);
		return 0;
	case 'd':
		arguments->ndomains = (uint32_t)parse_number("--domains", value, 1, FERRY_MAX_DOMAINS, state);
		return 0;
	case 'r':
		arguments->root = (uint32_t)parse_number("--root", value, 0, FERRY_MAX_RANKS - 1, state);
		arguments->root_given = true;
		return 0;
	case KEY_OUTPUT:
		arguments->output = value;
		return 0;
	case KEY_FABRIC:
		if (strcmp(value, "host") && strcmp(value, "peer"))
			argp_error(state, "--fabric: \"%s\" is no fabric: host or peer", value);
		arguments->fabric = value;
		return 0;
	case KEY_LINKS:
		arguments->links_given = value;
		if (ferry_topology_read("--links", value, &arguments->machine))
			argp_error(state, "%s", ferry_last_message());
		return 0;
	case KEY_PLACE:
		parse_place(arguments, value, state);
		return 0;
	case ARGP_KEY_ARG:
		return parse_operand(arguments, value, state);
	case ARGP_KEY_END:
		if (!arguments->operand)
			argp_usage(state);
		check_together(arguments, state);
		if (!strcmp(arguments->command, "synth"))
			check_synth(arguments, state);
		return 0;
	default:
		return parse_show(key, value, state);
	}
}

static int failed(ferryResult_t result)
{
	fprintf(stderr, "%s\n", ferry_last_message());
	return result == ferryInvalidUsage ? EXIT_USAGE : EXIT_WRONG;
}

/* Places ranks in equal blocks, unless --place has given their domains. */
static void place_ranks(struct arguments *arguments)
{
	arguments->domains_given = arguments->ndomains > 0;
	if (!arguments->ndomains)
		arguments->ndomains = 1;
	for (uint32_t rank = 0; rank < arguments->nranks && !arguments->placed; rank++)
		arguments->rank_domain[rank] = (uint8_t)(rank * arguments->ndomains / arguments->nranks);
}

static ferryResult_t load(const struct arguments *arguments, struct ferry_program **program)
{
	const struct ferry_program_defaults defaults = {.collective = arguments->collective,
	                                                .nranks = arguments->nranks,
	                                                .ndomains = arguments->ndomains,
	                                                .root = arguments->root,
	                                                .rank_domain = arguments->nranks ? arguments->rank_domain
	                                                                                 : NULL};
	bool from_stdin = !strcmp(arguments->operand, "-");
	const char *name = from_stdin ? "<stdin>" : arguments->operand;
	FILE *file = from_stdin ? stdin : fopen(name, "r"), *copy;
	char *text = NULL, part[16384];
	size_t bytes = 0, got;
	if (!file)
		return ferry_fail(ferrySystemError, "%s: %s", name, strerror(errno));
	copy = open_memstream(&text, &bytes);
	while (copy && bytes <= MOST_TEXT && (got = fread(part, 1, sizeof part, file))) {
		fwrite(part, 1, got, copy);
		fflush(copy); /* which says how many bytes there are */
	}
	bool broken = ferror(file), too_long = bytes > MOST_TEXT;
	int reason = errno;
	if (!from_stdin)
		fclose(file);
	if (!copy || fclose(copy) || broken) {
		free(text);
		return ferry_fail(ferrySystemError, "%s: %s", name, broken ? strerror(reason) : "no memory to read it");
	}
	ferryResult_t result = too_long ? ferry_fail(ferryProgramError, "%s: more than %u MiB: no program", name,
	                                             MOST_TEXT >> 20)
	                                : ferry_program_parse(name, text, bytes, &defaults, program);
	free(text);
	if (result)
		return result;
	if (arguments->collective_given && (*program)->collective != arguments->collective)
		return ferry_fail(ferryProgramError, "%s: it is of %s, not of %s", name,
		                  ferry_collective_name((*program)->collective),
		                  ferry_collective_name(arguments->collective));
	if ((result = check_meant(arguments, (*program)->collective, name)))
		return result;
	if (arguments->root_given && (*program)->root != arguments->root)
		return ferry_fail(ferryProgramError, "%s: its root is %u, not %u", name, (*program)->root,
		                  arguments->root);
	if (!arguments->nranks)
		return ferrySuccess;
	if ((*program)->nranks != arguments->nranks ||
	    (arguments->domains_given && (*program)->ndomains != arguments->ndomains))
		return ferry_fail(ferryProgramError, "%s: it is for %u rank%s in %u domain%s, not for %u in %u", name,
		                  (*program)->nranks, (*program)->nranks == 1 ? "" : "s", (*program)->ndomains,
		                  (*program)->ndomains == 1 ? "" : "s", arguments->nranks, arguments->ndomains);
	return ferrySuccess;
}

/* Warns about values that reach no output: they are not wrong, but probably a slip. */
static ferryResult_t warn_about_unused(const struct ferry_program *program)
{
	struct ferry_versions versions;
	char text[32];
	ferryResult_t result = ferry_versions_build(program, &versions);
	if (result)
		return result;
	bool *used = calloc(versions.nvalues + 1, sizeof *used);
	for (uint32_t i = program->nstatements; used && i-- > 0;) { /* consumers before producers */
		const struct ferry_use *use = &versions.uses[versions.order[i]];
		if (use->writes != FERRY_NO_VALUE && !used[use->writes])
			continue;
		if (use->reads != FERRY_NO_VALUE)
			used[use->reads] = true;
		if (use->writes != FERRY_NO_VALUE && versions.values[use->writes].base != FERRY_NO_VALUE)
			used[versions.values[use->writes].base] = true;
	}
	for (uint32_t i = 0; used && i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		uint32_t written = versions.uses[i].writes;
		if (written == FERRY_NO_VALUE || used[written])
			continue;
		ferry_place_text(statement->destination, program->rank_domain[statement->rank], text);
		printf("%s:%u: warning: version %u of %s reaches no output\n", program->name, statement->line,
		       versions.values[written].version, text);
	}
	if (!used)
		result = ferry_fail(ferrySystemError, "%s: no memory to look for unused values", program->name);
	free(used);
	ferry_versions_free(&versions);
	return result;
}

/* Returns the least staging of a communicator for the program: a slot of 64 bytes per window, in both parities. */
static ferryResult_t find_least_staging(const struct ferry_program *program, uint64_t *least)
{
	struct ferry_compile_options compile = {
	        .count = 1, .type = ferryFloat32, .redop = ferrySum, .slice = 64, .window = 1};
	struct ferry_plan *plan;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		compile.staging[domain] = FERRY_STAGING_MOST;
	ferryResult_t result = ferry_program_compile(program, &compile, &plan);
	*least = FERRY_STAGING_LEAST;
	for (uint32_t domain = 0; !result && domain < plan->ndomains; domain++) {
		uint64_t bytes = (plan->staging[domain] + 4095) / 4096 * 4096 * FERRY_PARITIES; /* whole pages */
		*least = bytes > *least ? bytes : *least;
	}
	if (!result)
		free(plan);
	return result;
}

static int check(const struct arguments *arguments)
{
	struct ferry_program *program = NULL;
	uint64_t staging = 0;
	ferryResult_t result = load(arguments, &program);
	if (!result)
		result = ferry_program_check(program);
	if (!result)
		result = warn_about_unused(program);
	if (!result)
		result = find_least_staging(program, &staging);
	if (!result)
		printf("%s: right: %s of %u rank%s in %u domain%s, %u chunk%s, %u statement%s; ends with any window; "
		       "runs with FERRY_STAGING=%lluK or more\n",
		       program->name, ferry_collective_name(program->collective), program->nranks,
		       program->nranks == 1 ? "" : "s", program->ndomains, program->ndomains == 1 ? "" : "s",
		       program->nchunks, program->nchunks == 1 ? "" : "s", program->nstatements,
		       program->nstatements == 1 ? "" : "s", (unsigned long long)staging >> 10);
	ferry_program_free(program);
	return result ? failed(result) : EXIT_RIGHT;
}

static int show(struct arguments *arguments)
{
	struct ferry_program *program = NULL;
	struct ferry_plan *plan = NULL;
	struct ferry_instr_origin *origins = NULL;
	struct ferry_versions versions = {0};
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		arguments->compile.staging[domain] = arguments->staging;
	ferryResult_t result = load(arguments, &program);
	if (!result)
		result = ferry_program_compile_traced(program, &arguments->compile, &plan, &origins);
	if (!result)
		result = ferry_versions_build(program, &versions);
	const struct ferry_traced_plan traced = {plan, program, &versions, origins};
	if (!result)
		result = ferry_plan_print(&traced, stdout);
	ferry_versions_free(&versions);
	free(origins);
	free(plan);
	ferry_program_free(program);
	return result ? failed(result) : EXIT_RIGHT;
}

static ferryResult_t write_picture(const char *name, const char *text, size_t bytes)
{
	FILE *file = name ? fopen(name, "w") : stdout;
	if (!file)
		return ferry_fail(ferrySystemError, "%s: %s", name, strerror(errno));
	bool written = fwrite(text, 1, bytes, file) == bytes;
	if (!name)
		return ferrySuccess; /* main looks at standard output */
	if (fclose(file) || !written)
		return ferry_fail(ferrySystemError, "%s: %s", name, strerror(errno));
	return ferrySuccess;
}

/* Draws into memory first, so that a wrong program leaves the file as it is. */
static int draw(const struct arguments *arguments)
{
	struct ferry_program *program = NULL;
	struct ferry_schedule schedule = {0};
	char *text = NULL;
	size_t bytes = 0;
	ferryResult_t result = load(arguments, &program);
	if (!result)
		result = ferry_schedule_make(program, &schedule);
	if (!result) {
		FILE *out = open_memstream(&text, &bytes);
		result = out ? ferry_picture_draw(&schedule, out) : ferrySuccess;
		if (!out || fclose(out))
			result = ferry_fail(ferrySystemError, "%s: no memory for a picture", program->name);
		ferry_schedule_free(&schedule);
	}
	if (!result)
		result = write_picture(arguments->output, text, bytes);
	free(text);
	ferry_program_free(program);
	return result ? failed(result) : EXIT_RIGHT;
}

/* remark: a comment for the end of the program. */
static ferryResult_t synthesize_peer(const struct arguments *arguments, const struct ferry_topology *topology,
                                     struct ferry_program **program, char remark[128])
{
	struct ferry_links links;
	ferryResult_t result = ferry_host_links_place("--links", &arguments->machine, topology->nranks, &links);
	if (!result)
		result = ferry_program_synthesize_peer(arguments->collective, topology, &links, arguments->root,
		                                       program);
	if (result)
		return result;
	double time = ferry_program_peer_time(*program, &links);
	snprintf(remark, 128, "# its PUTs take at least %.4g ns per byte of a block\n", time);
	return ferrySuccess;
}

static int synth(const struct arguments *arguments)
{
	struct ferry_topology topology = {.nranks = arguments->nranks, .ndomains = arguments->ndomains};
	struct ferry_program *program = NULL;
	char *text = NULL, remark[128] = "";
	memcpy(topology.rank_domain, arguments->rank_domain, sizeof topology.rank_domain);
	ferryResult_t result =
	        arguments->links_given
	                ? synthesize_peer(arguments, &topology, &program, remark)
	                : ferry_program_synthesize(arguments->collective, &topology, arguments->root, &program);
	if (!result)
		result = ferry_program_print(program, &text);
	if (!result)
		printf("%s%s", text, remark);
	free(text);
	ferry_program_free(program);
	return result ? failed(result) : EXIT_RIGHT;
}

static int print_rates(struct arguments *arguments)
{
	ferryResult_t result = ferry_topology_read("rates", arguments->operand, &arguments->machine);
	if (!result)
		result = ferry_rates_print("rates", &arguments->machine, arguments->nranks, stdout);
	return result ? failed(result) : EXIT_RIGHT;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
	        .options = options,
	        .parser = parse,
	        .args_doc = "check FILE\nshow FILE\ndraw FILE\nsynth COLLECTIVE\nrates LINKS",
	        .doc = description,
	};
	struct arguments arguments = {.collective = FERRY_ALLREDUCE, .staging = 16u << 20};
	arguments.compile = (struct ferry_compile_options){.count = 1u << 20, .type = ferryFloat32, .redop = ferrySum};
	argp_program_version = "ferryprog 0.1.0"; /* assigned, since a definition here would be hidden from libc */
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &arguments);
	place_ranks(&arguments);
	int code;
	if (!strcmp(arguments.command, "check"))
		code = check(&arguments);
	else if (!strcmp(arguments.command, "show"))
		code = show(&arguments);
	else if (!strcmp(arguments.command, "draw"))
		code = draw(&arguments);
	else if (!strcmp(arguments.command, "rates"))
		code = print_rates(&arguments);
	else
		code = synth(&arguments);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ferryprog: standard output: %s\n", strerror(errno));
		return EXIT_WRONG;
	}
	return code;
}
