/* SPDX-License-Identifier: Apache-2.0 */
/* ferry-fairness: what two jobs have of one router, and what small calls wait for beside large ones. */
#include "bench/command/folder.h"
#include "bench/command/option.h"
#include "bench/fairness/crowd.h"

#include "ipc/attach.h"
#include "ipc/endpoint.h"

#include <argp.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct command {
	struct crowd_options crowd;
	int weights[2], seconds, workers;
	double points, most_ratio;
	bool small;
};

static char directory[] = "/tmp/ferry-fairness-XXXXXX";

static const struct argp_option known[] = {
        {"weights", 'w', "A:B", 0, "Of the two jobs' tenants (default 1:1); others than equal ones need root, for whom "
                                   "the jobs are of different groups", 0},
        {"small", 'm', NULL, 0, "A job with small calls in flight, alone and beside one with large calls", 0},
        {"seconds", 's', "N", 0, "To measure for, each (default 10)", 0},
        {"ranks", 'r', "N", 0, "Of each job, 2 to 16 (default 4)", 0},
        {"bytes", 'b', "BYTES", 0, "Of two calls of a large job, which are under way together (default 64M; with "
                                   "--small 1G)", 0},
        {"few", 'f', "BYTES", 0, "Of a small call (default 4K)", 0},
        {"flight", 'n', "N", 0, "Small calls in flight (default 64)", 0},
        {"type", 'd', "TYPE", 0, OPTION_TYPES " (default f8e4m3, whose sums keep workers busier than copies do "
                                 "ranks)", 0},
        {"workers", 'k', "N", 0, "Of the router (default 1)", 0},
        {"within", 't', "POINTS", 0, "Exit code 2 if a part is further off what the weights say, in percentage points "
                                     "(default: never)", 0},
        {"most", 'x', "RATIO", 0, "Exit code 2 if the small calls' 99th percentile is more times that alone", 0},
        {0}};

static const struct number_option numbers[] = {{'s', "--seconds", 1, 3600, 1, offsetof(struct command, seconds)},
                                               {'r', "--ranks", 2, CROWD_MOST, 1,
                                                offsetof(struct command, crowd.ranks)},
                                               {'n', "--flight", 1, CROWD_FLIGHT, 1,
                                                offsetof(struct command, crowd.flight)},
                                               {'k', "--workers", 1, 64, 1, offsetof(struct command, workers)},
                                               {0}};

static double read_number(const char *value, const char *name, struct argp_state *state)
{
	char *end;
	double number = strtod(value, &end);
	if (end == value || *end || !(number > 0))
		argp_failure(state, OPTION_EXIT, 0, "%s \"%s\": a number above 0", name, value);
	return number;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct command *command = state->input;
	char more;
	switch (key) {
	case 'w':
		if (sscanf(value, "%d:%d%c", &command->weights[0], &command->weights[1], &more) != 2 ||
		    command->weights[0] < 1 || command->weights[1] < 1 || command->weights[0] > 1000 ||
		    command->weights[1] > 1000)
			argp_failure(state, OPTION_EXIT, 0, "--weights \"%s\": two from 1 to 1000, as in 3:1", value);
		return 0;
	case 'm':
		command->small = true;
		return 0;
	case 'b':
		command->crowd.bytes = option_bytes(value, "--bytes", state);
		return 0;
	case 'f':
		command->crowd.few = option_bytes(value, "--few", state);
		return 0;
	case 'd':
		command->crowd.type = option_type(value, "--type", state);
		return 0;
	case 't':
		command->points = read_number(value, "--within", state);
		return 0;
	case 'x':
		command->most_ratio = read_number(value, "--most", state);
		return 0;
	default:
		return option_take_number(numbers, key, value, state) ? 0 : ARGP_ERR_UNKNOWN;
	}
}

static const struct argp arguments = {
        known, parse, NULL,
        "What two jobs on host devices have of one router that it starts: of its workers' time and bytes, where both "
        "have more than enough to do; or (--small) the latency of small calls alone and beside large ones.\v"
        "  ferry-fairness --within 3\n  ferry-fairness --weights 3:1 --within 3\n  ferry-fairness --small --most 3",
        NULL, NULL, NULL};

/* ---- the router ---- */

static void write_tenants(const struct command *command, char *file, size_t bytes)
{
	snprintf(file, bytes, "%s/tenants", directory);
	FILE *out = fopen(file, "w");
	if (!out)
		exit(1);
	for (int job = 0; job < 2; job++)
		fprintf(out, "[tenant job%d]\ngroups = %d\nweight = %d\n", job, CROWD_GROUP + job,
		        command->weights[job]);
	fclose(out);
}

static pid_t start_router(const struct command *command, bool tenants)
{
	char file[80], workers[16], descriptor[16], path[400], byte;
	int pipes[2];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 20);
	if (length < 0 || pipe(pipes))
		exit(1);
	path[length] = '\0';
	strcpy(strrchr(path, '/') + 1, "ferry-router");
	snprintf(workers, sizeof workers, "%d", command->workers);
	snprintf(descriptor, sizeof descriptor, "%d", pipes[1]);
	write_tenants(command, file, sizeof file);
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pipes[0]);
		execl(path, "ferry-router", "--socket-dir", directory, "--workers", workers, "--no-pin", "--ready-fd",
		      descriptor, tenants ? "--config" : NULL, file, (char *)NULL);
		_exit(1);
	}
	close(pipes[1]);
	if (read(pipes[0], &byte, 1) != 1) {
		fprintf(stderr, "ferry-fairness: %s does not start\n", path);
		exit(1);
	}
	close(pipes[0]);
	return child;
}

/* What the router says of its first job from that number on; false: there is none. */
static bool ask(uint64_t from, uint64_t *number, double *working_ms, double *bytes)
{
	char path[80], text[512];
	int connection;
	snprintf(path, sizeof path, "%s/router-0.sock", directory);
	if (ferry_endpoint_connect(path, &connection))
		return false;
	bool there = !ferry_attach_ask_status(connection, FERRY_STATUS_JOB, from, text, sizeof text) && text[0];
	close(connection);
	const char *working = there ? strstr(text, "working_ms=") : NULL, *up = there ? strstr(text, " up=") : NULL;
	if (!working || !up || sscanf(text, "number=%lu", number) != 1)
		return false;
	*working_ms = atof(working + 11);
	*bytes = atof(up + 4);
	return true;
}

static void read_jobs(double working[2], double bytes[2])
{
	uint64_t number = 0;
	for (int job = 0; job < 2; job++)
		if (!ask(number + 1, &number, &working[job], &bytes[job])) {
			fprintf(stderr, "ferry-fairness: the router has not both jobs\n");
			exit(1);
		}
}

/* ---- two jobs ---- */

static int share(const struct command *command)
{
	double before[2], after[2], bytes[2], moved[2], off = 0;
	double all = command->weights[0] + command->weights[1];
	pid_t jobs[2];
	bool apart = command->weights[0] != command->weights[1];
	if (apart && geteuid()) {
		fprintf(stderr, "ferry-fairness: weights that differ need root\n");
		return 77;
	}
	pid_t router = start_router(command, apart);
	for (int job = 0; job < 2; job++) {
		jobs[job] = crowd_start(&command->crowd, CROWD_LARGE, apart ? CROWD_GROUP + job : 0);
		crowd_await(1 + (uint64_t)job); /* so that the first one has the lower number */
	}
	sleep(1);
	read_jobs(before, bytes);
	sleep((unsigned)command->seconds);
	read_jobs(after, moved);
	crowd_stop(jobs, 2);
	kill(router, SIGTERM);
	waitpid(router, NULL, 0);
	double sum = after[0] - before[0] + after[1] - before[1];
	double busy = sum / 10.0 / command->seconds / command->workers;
	printf("%6s %8s %10s %10s %12s\n", "job", "weight", "expected", "time", "bytes");
	for (int job = 0; job < 2; job++) {
		double part = 100 * (after[job] - before[job]) / sum, expected = 100 * command->weights[job] / all;
		printf("%6d %8d %9.1f%% %9.1f%% %11.1f%%\n", job, command->weights[job], expected, part,
		       100 * (moved[job] - bytes[job]) / (moved[0] - bytes[0] + moved[1] - bytes[1]));
		off = fmax(off, fabs(part - expected));
	}
	printf("the workers were busy %.0f%% of the time%s\n", busy,
	       busy < 90 ? ": what the jobs wait for is something else, and weights of workers change little" : "");
	return command->points > 0 && off > command->points ? 2 : 0;
}

/* ---- small calls ---- */

static struct crowd_times measure_small(const struct command *command, bool beside)
{
	pid_t router = start_router(command, false), large = 0, small;
	crowd_forget();
	if (beside) {
		large = crowd_start(&command->crowd, CROWD_LARGE, 0);
		crowd_await(1);
	}
	small = crowd_start(&command->crowd, CROWD_SMALL, 0);
	crowd_await(1 + beside);
	sleep(1);
	crowd_reset_times();
	sleep((unsigned)command->seconds);
	struct crowd_times times = crowd_times();
	pid_t jobs[] = {small, large};
	crowd_stop(jobs, 1 + beside);
	kill(router, SIGTERM);
	waitpid(router, NULL, 0);
	return times;
}

static int wait_beside(const struct command *command)
{
	struct crowd_times alone = measure_small(command, false), beside = measure_small(command, true);
	printf("%8s %12s %10s %10s %10s\n", "", "calls", "p50 us", "p99 us", "most us");
	printf("%8s %12llu %10.0f %10.0f %10.0f\n", "alone", (unsigned long long)alone.calls, alone.p50, alone.p99,
	       alone.most);
	printf("%8s %12llu %10.0f %10.0f %10.0f\n", "beside", (unsigned long long)beside.calls, beside.p50, beside.p99,
	       beside.most);
	printf("99th percentile: %.2f times that alone\n", beside.p99 / alone.p99);
	return command->most_ratio > 0 && beside.p99 > command->most_ratio * alone.p99 ? 2 : 0;
}

int main(int argc, char **argv)
{
	struct command command = {.weights = {1, 1},
	                          .seconds = 10,
	                          .workers = 1,
	                          .crowd = {.ranks = 4, .few = 4096, .flight = 64, .type = ferryFloat8e4m3}};
	argp_parse(&arguments, argc, argv, 0, NULL, &command);
	if (!command.crowd.bytes)
		command.crowd.bytes = command.small ? 1u << 30 : 64u << 20;
	if (!mkdtemp(directory))
		return 1;
	setenv("FERRY_SOCKET_DIR", directory, 1);
	setenv("FERRY_ROUTER", "required", 1);
	setenv("FERRY_DOMAINS", "1", 1);
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_FABRICS", "host", 1);
	crowd_open();
	int code = command.small ? wait_beside(&command) : share(&command);
	folder_remove(directory);
	return code;
}
