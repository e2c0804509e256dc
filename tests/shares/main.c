/* SPDX-License-Identifier: Apache-2.0 */
/* ferry-shares: how good the shares of calls beside NCCL are, from a cold start and beside bursts of copies. */
#include "bench/command/option.h"
#include "bench/command/sibling.h"
#include "tests/shares/bursts.h"
#include "tests/shares/cold.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 16

struct options {
	bool bursts;
	bool collectives[CREW_COLLECTIVES], chosen;
	size_t sizes[MOST], copy_bytes;
	int nsizes, gpus, rounds, phase_ms, calls, before;
	double shares[MOST];
	int nshares;
	const char *library, *log;
};

static const struct argp_option options_known[] = {
        {"collective", 'c', "NAME", 0, "allreduce, allgather or reducescatter; more than once (default: all; of bursts "
                                       "the first)", 0},
        {"size", 'b', "BYTES", 0, "Of a call; more than once (default: 16M 32M 64M 256M 1G; of bursts 256M)", 0},
        {"share", 's', "SHARE", 0, "A fixed share of the host, 0 to 1; more than once (default: 0 to 1)", 0},
        {"gpus", 'g', "N", 0, "How many (default: all)", 0},
        {"calls", 'n', "N", 0, "From a cold start (default: 20)", 0},
        {"before", 'a', "N", 0, "Calls of another collective before each cold start: until routers know the buffers "
                                "calls are NCCL's (default: 100)", 0},
        {"bursts", 'i', NULL, 0, "Beside bursts of copies, in place of cold starts", 0},
        {"phase", 'p', "MS", 0, "How long a burst is, and the time between two (default: 1000)", 0},
        {"rounds", 'r', "N", 0, "Bursts, for each share (default: 3)", 0},
        {"copy", 'k', "BYTES", 0, "Of each copy (default: 64M)", 0},
        {"library", 'l', "FILE", 0, "libferry-nccl.so (default: that beside this command)", 0},
        {"log", 'o', "FILE", 0, "FERRY_SHARES_LOG of cold starts, for ferry-plot --shares", 0},
        {0}};

static double read_share(const char *value, struct argp_state *state)
{
	char *end;
	double share = strtod(value, &end);
	if (end == value || *end || !(share >= 0) || share > 1)
		argp_failure(state, OPTION_EXIT, 0, "a share is a number from 0 to 1, not \"%s\"", value);
	return share;
}

static const struct number_option numbers[] = {
        {'g', "--gpus", 2, CREW_MOST, 1, offsetof(struct options, gpus)},
        {'n', "--calls", 6, 64, 1, offsetof(struct options, calls)},
        {'a', "--before", 0, 100000, 1, offsetof(struct options, before)},
        {'p', "--phase", 10, 60000, 1, offsetof(struct options, phase_ms)},
        {'r', "--rounds", 1, 1000, 1, offsetof(struct options, rounds)},
        {0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct options *options = state->input;
	enum crew_collective collective;
	switch (key) {
	case 'c':
		if (!crew_named(value, &collective))
			argp_failure(state, OPTION_EXIT, 0, "no collective \"%s\"", value);
		options->collectives[collective] = options->chosen = true;
		return 0;
	case 'b':
		if (options->nsizes == MOST)
			argp_failure(state, OPTION_EXIT, 0, "more than %d sizes", MOST);
		options->sizes[options->nsizes++] = option_bytes(value, "--size", state);
		return 0;
	case 's':
		if (options->nshares == MOST)
			argp_failure(state, OPTION_EXIT, 0, "more than %d shares", MOST);
		options->shares[options->nshares++] = read_share(value, state);
		return 0;
	case 'i':
		options->bursts = true;
		return 0;
	case 'k':
		options->copy_bytes = option_bytes(value, "--copy", state);
		return 0;
	case 'l':
		options->library = value;
		return 0;
	case 'o':
		options->log = option_record(value, "--log", state);
		return 0;
	default:
		return option_take_number(numbers, key, value, state) ? 0 : ARGP_ERR_UNKNOWN;
	}
}

static const struct argp command = {
        options_known, parse, NULL,
        "How well libferry-nccl.so shares calls out between NCCL and Ferry.\v"
        "One process with a thread for each GPU; a router has to be there. From a "
        "cold start: the best of fixed shares for each collective and size, then calls that nothing has been learned "
        "for, each over the best. Exit code 2: some took more than five calls to come within a tenth of it.\n\n"
        "  ferryrun -- ferry-shares -o cold.json && ferry-plot --shares cold.json\n"
        "  ferryrun -- ferry-shares --bursts",
        NULL, NULL, NULL};

static void complete(struct options *options)
{
	static const size_t sizes[] = {16 << 20, 32 << 20, 64 << 20, 256 << 20, 1 << 30};
	static const double fixed[] = {0, 0.03, 0.06, 0.09, 0.12, 0.16, 0.25, 0.4, 0.5, 0.6, 0.75, 1};
	static const double beside[] = {0, 0.05, 0.1, 0.4, 0.5};
	for (int c = 0; c < CREW_COLLECTIVES && !options->chosen; c++)
		options->collectives[c] = true;
	if (!options->nsizes && options->bursts)
		options->sizes[options->nsizes++] = 256 << 20;
	for (int i = 0; i < 5 && options->nsizes <= i && !options->bursts; i++)
		options->sizes[options->nsizes++] = sizes[i];
	bool given = options->nshares;
	for (int i = 0; !given && i < (options->bursts ? 5 : 12); i++)
		options->shares[options->nshares++] = options->bursts ? beside[i] : fixed[i];
}

static const char *find_library(char *path, size_t bytes)
{
	sibling_path(path, bytes, "../lib/libferry-nccl.so");
	return access(path, R_OK) ? "libferry-nccl.so" : path;
}

static const char *measure(struct crew *crew, const struct options *options, int *late)
{
	int first = 0;
	*late = 0;
	while (!options->collectives[first])
		first++;
	if (options->bursts)
		return bursts_measure(crew, &(struct bursts_plan){.collective = (enum crew_collective)first,
		                                                  .bytes = options->sizes[0],
		                                                  .copy_bytes = options->copy_bytes,
		                                                  .phase_s = options->phase_ms / 1e3,
		                                                  .rounds = options->rounds,
		                                                  .shares = options->shares,
		                                                  .nshares = options->nshares});
	struct cold_plan plan = {.shares = options->shares,
	                         .nshares = options->nshares,
	                         .sizes = options->sizes,
	                         .nsizes = options->nsizes,
	                         .calls = options->calls,
	                         .before = options->before,
	                         .log = options->log};
	memcpy(plan.collectives, options->collectives, sizeof plan.collectives);
	return cold_measure(crew, &plan, late);
}

int main(int argc, char **argv)
{
	struct options options = {.copy_bytes = 64 << 20, .rounds = 3, .phase_ms = 1000, .calls = 20, .before = 100};
	struct crew crew;
	char path[4096];
	size_t most = 0;
	int late = 0;
	argp_parse(&command, argc, argv, 0, NULL, &options);
	complete(&options);
	for (int i = 0; i < options.nsizes; i++)
		most = options.sizes[i] > most ? options.sizes[i] : most;
	setenv("FERRY_SPLIT_WAIT", "60", 0); /* calls are shared from the first one on */
	const char *library = options.library ? options.library : find_library(path, sizeof path);
	const char *wrong = crew_open(&crew, library, options.gpus, most);
	if (!wrong)
		wrong = measure(&crew, &options, &late);
	if (wrong)
		fprintf(stderr, "ferry-shares: %s\n", wrong);
	crew_close(&crew);
	return wrong ? 1 : late ? 2 : 0;
}
