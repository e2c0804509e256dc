/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-stat: what routers do, in a table that refreshes; what Ferry reads from the environment, and how it sees the
 * machine.
 */
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/layout.h"
#include "ipc/process.h"
#include "ipc/wait.h"
#include "launch/exposition.h"
#include "launch/link_list.h"
#include "launch/screen.h"
#include "launch/share_list.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum option_key { KEY_ENV = 256, KEY_MARKDOWN, KEY_LAYOUT, KEY_ROUTERS, KEY_SHARES, KEY_ONCE, KEY_JSON, KEY_INTERVAL,
	KEY_PROMETHEUS, KEY_LINKS };

#define INTERVAL_S      1.0
#define INTERVAL_ONCE_S 0.2
#define PATIENCE_S      1.0 /* a router that does nothing for longer is silent */

struct arguments {
	bool env, markdown, layout, routers, shares, links, once, json, prometheus;
	double interval_s; /* 0: none given */
};

static const struct argp_option options[] = {
	{"once", KEY_ONCE, NULL, 0, "One table, also on a terminal", 0},
	{"json", KEY_JSON, NULL, 0, "A line of JSON in place of a table; one, unless there is an --interval", 0},
	{"prometheus", KEY_PROMETHEUS, NULL, 0, "The same as totals, in Prometheus's text format, once", 0},
	{"interval", KEY_INTERVAL, "SECONDS", 0,
	 "Between two tables, for whose time values of now are means (default 1; 0.2 where there is one table)", 0},
	{"env", KEY_ENV, NULL, 0, "Every environment variable that Ferry reads: default, value now, meaning", 0},
	{"markdown", KEY_MARKDOWN, NULL, 0, "With --env: as docs/environment.md is printed", 0},
	{"layout", KEY_LAYOUT, NULL, 0, "The domains of this machine", 0},
	{"shares", KEY_SHARES, NULL, 0,
	 "What part of each call every fabric carries, how fast it is, and why; with --interval again and again", 0},
	{"links", KEY_LINKS, NULL, 0, "What ranks push to each other: a line per link, so far and now", 0},
	{"routers", KEY_ROUTERS, NULL, 0, "What routers in the socket directory tell of themselves, a line each", 0},
	{0}};

static double seconds_of(const char *value, struct argp_state *state)
{
	char *end;
	double seconds = strtod(value, &end);
	if (end == value || *end || !(seconds >= 0.01 && seconds <= 86400))
		argp_error(state, "--interval: \"%s\" is no number of seconds from 0.01 to 86400", value);
	return seconds;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	switch (key) {
	case KEY_ENV:
		arguments->env = true;
		return 0;
	case KEY_MARKDOWN:
		arguments->markdown = true;
		return 0;
	case KEY_ONCE:
		arguments->once = true;
		return 0;
	case KEY_JSON:
		arguments->json = true;
		return 0;
	case KEY_PROMETHEUS:
		arguments->prometheus = true;
		return 0;
	case KEY_INTERVAL:
		arguments->interval_s = seconds_of(value, state);
		return 0;
	case KEY_LAYOUT:
		arguments->layout = true;
		return 0;
	case KEY_ROUTERS:
		arguments->routers = true;
		return 0;
	case KEY_SHARES:
		arguments->shares = true;
		return 0;
	case KEY_LINKS:
		arguments->links = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument \"%s\"", value);
		return 0;
	case ARGP_KEY_END:
		if (arguments->markdown && !arguments->env)
			argp_error(state, "--markdown is how --env is printed: ferry-stat --env --markdown");
		if (arguments->prometheus && (arguments->env + arguments->layout + arguments->routers +
		                                      arguments->shares + arguments->links + arguments->json +
		                                      arguments->once ||
		                              arguments->interval_s > 0))
			argp_error(state, "--prometheus is printed once and by itself: without other options");
		if (arguments->shares + arguments->links &&
		    arguments->shares + arguments->links + arguments->env + arguments->layout + arguments->routers > 1)
			argp_error(state, "--%s is a table of its own", arguments->shares ? "shares" : "links");
		if (arguments->env + arguments->layout + arguments->routers &&
		    (arguments->once || arguments->json || arguments->interval_s > 0))
			argp_error(state, "--once, --json and --interval are of the table, not of --env, --layout or "
			                  "--routers");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Prints an item of a list, `first` and then text, in lines of at most 120 columns. */
static void print_item(const char *first, const char *text)
{
	const int page = 120;
	int column = printf("- %s:", first);
	while (*text) {
		int word = (int)strcspn(text, " ");
		if (column + 1 + word > page)
			column = printf("\n ") - 1;
		column += printf(" %.*s", word, text);
		text += word + strspn(text + word, " ");
	}
	printf("\n");
}

static void print_files(void)
{
	static const char *const files[][2] = {
	        {"DIR/router-D.sock",
	         "Socket of domain D's router; DIR is the socket directory above, mode 0700. Removed when the router "
	         "ends. One that a killed router, or one at its second SIGTERM, has left is replaced by the next."},
	        {"DIR/router-D.sock.lock",
	         "Empty; held for a moment by a router that starts, so that two cannot replace each other's socket. "
	         "Stays, but in a run-XXXXXX."},
	        {"DIR/run-XXXXXX/",
	         "Sockets of one ferryrun's own routers. Removed at its end, also when ferryrun is killed; where its "
	         "routers were killed with it, or had not begun, by the next ferryrun."},
	        {"/tmp/ferry-run-XXXXXX/",
	         "The same where DIR has more than 48 bytes, so that a socket's path in it would be too long."},
	        {"/dev/shm/ferry-*",
	         "Shared memory of a job with FERRY_SHM=posix, named for the moment between its creation and its "
	         "unlinking."},
	        {"*.ferry", "Programs in the directories of FERRY_PROGRAM_PATH, read in the order of their names."}};
	printf("\n## Files\n\n");
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		print_item(files[i][0], files[i][1]);
}

static void print_variable(const struct ferry_variable *variable, bool markdown)
{
	const char *value = ferry_env(variable->name), *fallback = variable->fallback;
	char first[128];
	snprintf(first, sizeof first, *fallback ? "%s (default %s)" : "%s", variable->name, fallback);
	if (markdown) {
		print_item(first, variable->meaning);
		return;
	}
	printf("%s%s%s%s\n    %s\n", variable->name, *fallback ? "  (default " : "", fallback, *fallback ? ")" : "",
	       variable->meaning);
	if (value)
		printf("    now: %s\n", value);
}

static void print_environment(bool markdown)
{
	static const char *const titles[FERRY_VARIABLE_SECTIONS] = {"The five that matter", "The others",
	                                                            "Set by launchers"};
	if (markdown)
		printf("# Environment variables\n\n"
		       "Printed by `ferry-stat --env --markdown` from the table in ipc/environment.c.\n");
	for (unsigned section = 0; section < FERRY_VARIABLE_SECTIONS; section++) {
		printf(markdown ? "\n## %s\n\n" : "%s:\n\n", titles[section]);
		for (const struct ferry_variable *variable = ferry_variables; variable->name; variable++)
			if (ferry_variable_section(variable) == section)
				print_variable(variable, markdown);
		if (!markdown && section + 1 < FERRY_VARIABLE_SECTIONS)
			printf("\n");
	}
	if (markdown)
		print_files();
}

static int fail(void)
{
	fprintf(stderr, "ferry-stat: %s\n", ferry_last_message());
	return 1;
}

static int print_layout(void)
{
	struct ferry_layout layout;
	char text[4096];
	if (ferry_layout_load(&layout))
		return fail();
	ferry_layout_print(&layout, text, sizeof text);
	printf("layout     %s\nfrom       %s\n", text, layout.source);
	for (uint32_t domain = 0; domain < layout.ndomains; domain++) {
		const struct ferry_domain *one = &layout.domains[domain];
		printf("domain %u   %u CPUs, last-level cache %.1f MiB, core cache %.2f MiB, default staging %.1f MiB "
		       "per job\n",
		       domain, one->ncpus, (double)one->cache_bytes / (1 << 20),
		       (double)one->core_cache_bytes / (1 << 20),
		       one->cache_bytes ? (double)one->cache_bytes / (2 << 20) : 16.0);
	}
	return 0;
}

static int print_routers(void)
{
	struct ferry_report report;
	char line[512];
	if (ferry_report_take(&report, NULL, PATIENCE_S))
		return fail();
	for (size_t i = 0; i < report.nrouters; i++) {
		const struct ferry_router_report *router = &report.routers[i];
		if (router->counters)
			ferry_counters_print(router->counters, line, sizeof line);
		printf("%s  %s\n", router->socket.path, router->counters ? line : router->trouble);
	}
	if (!report.nrouters)
		ferry_screen_print_none(&report.sockets, stdout);
	ferry_report_free(&report);
	return 0;
}

static int print_exposition(void)
{
	struct ferry_report report;
	if (ferry_report_take(&report, NULL, PATIENCE_S))
		return fail();
	ferry_exposition_print(&report, stdout);
	ferry_report_free(&report);
	return 0;
}

/* ---- the tables ---- */

/* Waits until so many seconds after then_ns (ferry_now_ns). */
static void wait_until(uint64_t then_ns, double seconds)
{
	uint64_t until = then_ns + (uint64_t)(seconds * 1e9);
	for (uint64_t now; (now = ferry_now_ns()) < until;) {
		struct timespec left = {(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
		nanosleep(&left, NULL);
	}
}

/* Shows the rows that fit, and the beginning of each line: a line that wraps would push the first lines out. */
static ferryResult_t show_on_screen(const struct ferry_rows *rows, const struct ferry_sockets *sockets)
{
	struct winsize size = {0};
	char *text = NULL;
	size_t bytes;
	FILE *whole = open_memstream(&text, &bytes);
	if (whole) {
		bool known = !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
		ferry_screen_print(rows, sockets, known ? size.ws_row : 0, whole);
	}
	if (!whole || fclose(whole) || !text) {
		free(text);
		return ferry_fail(ferrySystemError, "no memory for the table");
	}
	printf("\033[H\033[J"); /* home, and clear the screen below */
	for (const char *line = text; *line;) {
		int length = (int)strcspn(line, "\n");
		printf("%.*s\n", size.ws_col && length > size.ws_col ? size.ws_col : length, line);
		line += length + (line[length] == '\n');
	}
	free(text);
	return ferrySuccess;
}

static ferryResult_t show_rows(const struct ferry_report *before, const struct ferry_report *now, bool json,
                               bool screen)
{
	struct ferry_rows rows;
	ferryResult_t result = ferry_rows_make(before, now, &rows);
	if (!result && json)
		result = ferry_screen_print_json(&rows, stdout);
	else if (!result && screen)
		result = show_on_screen(&rows, &now->sockets);
	else if (!result)
		ferry_screen_print(&rows, &now->sockets, 0, stdout);
	ferry_rows_free(&rows);
	return result;
}

static ferryResult_t show(const struct ferry_report *before, const struct ferry_report *now,
                          const struct arguments *arguments, bool screen)
{
	if (!arguments->links)
		return show_rows(before, now, arguments->json, screen);
	if (screen)
		printf("\033[H\033[J");
	ferry_link_list_print(before, now, arguments->json, stdout);
	return ferrySuccess;
}

/* Shows the tables once, or until a signal ends this process or its output is closed. */
static int watch(const struct arguments *arguments)
{
	struct ferry_report before, now;
	bool terminal = isatty(STDOUT_FILENO) && !arguments->json;
	bool again = !arguments->once && (terminal || arguments->interval_s > 0);
	double interval = arguments->interval_s > 0 ? arguments->interval_s : again ? INTERVAL_S : INTERVAL_ONCE_S;
	/* the first report comes soon, and a screen does not wait for a router that is silent */
	double first = again ? INTERVAL_ONCE_S : interval, patience = again && terminal ? INTERVAL_ONCE_S : PATIENCE_S;
	ferryResult_t result = ferry_report_take(&before, NULL, patience);
	if (!result)
		wait_until(before.taken_ns, first);
	while (!result && !(result = ferry_report_take(&now, &before, patience))) {
		result = show(&before, &now, arguments, again && terminal);
		ferry_report_free(&before);
		before = now;
		if (fflush(stdout) || !again || result)
			break;
		wait_until(now.taken_ns, interval);
	}
	ferry_report_free(&before); /* `now` is the same, or what a failure has freed */
	return result ? fail() : 0;
}

/* Shows the shares once, or until a signal ends this process or its output is closed. */
static int watch_shares(const struct arguments *arguments)
{
	bool again = !arguments->once && arguments->interval_s > 0;
	struct ferry_report before = {0}, now;
	ferryResult_t result;
	while (!(result = ferry_report_take(&now, &before, PATIENCE_S))) {
		ferry_report_free(&before);
		before = now;
		if (again && !arguments->json && isatty(STDOUT_FILENO))
			printf("\033[H\033[J");
		ferry_share_list_print(&now, arguments->json, stdout);
		if (fflush(stdout) || !again)
			break;
		wait_until(now.taken_ns, arguments->interval_s);
	}
	ferry_report_free(&before);
	return result ? fail() : 0;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
	        options, parse, NULL,
	        "Shows what this user's routers do: a table, which on a terminal is renewed until Ctrl-C.",
	        NULL, NULL, NULL};
	struct arguments arguments = {0};
	int code = 0;
	if (ferry_descriptors_fill())
		return fail();
	argp_program_version = "ferry-stat 0.1.0";
	argp_err_exit_status = 64;
	if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
		return 64;
	if (arguments.shares)
		code = watch_shares(&arguments);
	else if (arguments.prometheus)
		code = print_exposition();
	else if (!arguments.env && !arguments.layout && !arguments.routers)
		code = watch(&arguments);
	if (arguments.env)
		print_environment(arguments.markdown);
	if (arguments.layout)
		code |= print_layout();
	if (arguments.routers)
		code |= print_routers();
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ferry-stat: standard output: %s\n", strerror(errno));
		return 1;
	}
	return code;
}
