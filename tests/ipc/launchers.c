/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises about launchers in launchers: the innermost one counts. This program plays them all: it starts itself as
 * each launcher does, with that launcher's variables, until the innermost ranks write down what they understood.
 *
 * A nest is a word per launcher, outermost first: kind, number of ranks, and how the ranks come.
 *   kinds: f ferryrun --fork, m ferryrun with an mpiexec, p Hydra, o Open MPI, s Slurm, t torchrun, j ferryrun --join,
 *          h Ferry's variables set by a script,
 *          r Slurm, whose slurmstepd has its variables from an srun and descends from none of the others
 *   ways:  - as they are, w each in a script, l one after the other, x each below a process that has written over its
 *          environment
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/environment.h"
#include "ipc/launcher.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KINDS "fmpostr"

extern char **environ;

static char self[256];

/* ---- the launchers ---- */

static void set_number(const char *name, unsigned value)
{
	char text[16];
	snprintf(text, sizeof text, "%u", value);
	setenv(name, text, 1);
}

/* One that no other launcher of this nest has. */
static unsigned unique(void)
{
	return (unsigned)getpid();
}

static void new_key(void)
{
	char key[64];
	snprintf(key, sizeof key, "%032x", unique());
	setenv("FERRY_JOB_KEY", key, 1);
}

/* What a launcher gives a rank; `job` tells its jobs apart. */
static void give(char kind, unsigned rank, unsigned size, unsigned job)
{
	static const struct {
		char kind;
		const char *rank[3], *size[3], *job[2];
	} all[] = {{'f', {"FERRY_RANK", "FERRY_LOCAL_RANK"}, {"FERRY_SIZE", "FERRY_LOCAL_SIZE"}, {NULL}},
	           {'p', {"PMI_RANK", "MPI_LOCALRANKID"}, {"PMI_SIZE", "MPI_LOCALNRANKS"}, {NULL}},
	           {'o',
	            {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK"},
	            {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	            {"PMIX_NAMESPACE"}},
	           {'s', {"SLURM_PROCID", "SLURM_LOCALID"}, {"SLURM_NTASKS"}, {"SLURM_STEP_ID"}},
	           {'t', {"RANK", "LOCAL_RANK"}, {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}, {"MASTER_PORT"}}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (size_t j = 0; j < 3 && all[i].kind == kind; j++) {
			if (all[i].rank[j])
				set_number(all[i].rank[j], rank);
			if (all[i].size[j])
				set_number(all[i].size[j], size);
			if (j < 2 && all[i].job[j])
				set_number(all[i].job[j], job);
		}
	if (kind == 'p')
		set_number("PMI_FD", 6);
	if (kind == 's')
		setenv("SLURM_JOB_ID", "77", 1);
	if (kind == 't') {
		setenv("MASTER_ADDR", "127.0.0.1", 1);
		setenv("TORCHELASTIC_RUN_ID", "none", 1);
	}
}

static void become(const char *mode, const char *nest, const char *out)
{
	execl(self, self, mode, nest, out, (char *)NULL);
	_exit(120);
}

/* As setproctitle(3) does; the rest of the nest is below this process. */
static void write_over_environment(const char *nest, const char *out)
{
	int status;
	char *first = environ[0], *last = first;
	for (size_t i = 0; environ[i]; i++)
		last = environ[i] + strlen(environ[i]);
	char **copy = calloc(1024, sizeof *copy);
	for (size_t i = 0; environ[i] && i < 1023; i++)
		copy[i] = strdup(environ[i]);
	environ = copy;
	memset(first, 0, (size_t)(last - first));
	pid_t below = fork();
	if (!below)
		become("nest", nest, out);
	_exit(waitpid(below, &status, 0) == below && !status ? 0 : 125);
}

static void start_rank(const char *nest, const char *out, unsigned rank, unsigned size, unsigned job)
{
	char place[64];
	snprintf(place, sizeof place, "%s.%u", getenv("PLACE") ? getenv("PLACE") : "", rank);
	setenv("PLACE", place, 1);
	give(nest[0] == 'r' ? 's' : nest[0], rank, size, job);
	if (nest[2] == 'l')
		usleep(20000 * rank);
	if (nest[2] == 'w')
		execl("/bin/sh", "sh", "-c", "\"$@\"; exit $?", "sh", self, "nest", nest + 3, out, (char *)NULL);
	become(nest[2] == 'x' ? "over" : "nest", nest + 3, out);
}

/* In a process that was started without any variables; they come as arguments. */
static void become_bare(const char *nest, const char *out)
{
	char *arguments[1024] = {self, "bare", (char *)nest, (char *)out}, *none[] = {NULL};
	for (size_t i = 0; environ[i] && i < 1019; i++)
		arguments[4 + i] = environ[i];
	execve(self, arguments, none);
	_exit(119);
}

static int start_ranks(const char *nest, const char *out)
{
	unsigned size = (unsigned)(nest[1] - '0'), job = unique();
	int failed = 0, status;
	if (nest[0] == 'p')
		prctl(PR_SET_NAME, "hydra_pmi_proxy");
	if (nest[0] == 's' || nest[0] == 'r')
		prctl(PR_SET_NAME, "slurmstepd");
	for (unsigned rank = 0; rank < size; rank++)
		if (!fork())
			start_rank(nest, out, rank, size, job);
	while (wait(&status) > 0)
		failed |= status;
	return failed ? 121 : 0;
}

/* The innermost rank: "place launcher rank size local_rank key". */
static int write_down(const char *out)
{
	struct ferry_launch launch;
	char line[256];
	int file = open(out, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (ferry_launch_read(&launch) || file < 0)
		return 122;
	int length = snprintf(line, sizeof line, "%s %s %d %d %d ", getenv("PLACE"), launch.launcher, launch.rank,
	                      launch.size, launch.local_rank);
	for (int i = 0; i < 16; i++)
		length += snprintf(line + length, sizeof line - (size_t)length, "%02x", launch.key[i]);
	line[length++] = '\n';
	return write(file, line, (size_t)length) != length;
}

static void forget_ferrys(void)
{
	static const char *const names[] = {"FERRY_RANK", "FERRY_SIZE", "FERRY_LOCAL_RANK", "FERRY_LOCAL_SIZE"};
	for (size_t i = 0; i < 4; i++)
		unsetenv(names[i]);
}

/* As ferryrun --join does; h: or by hand, without a key. */
static void join(const char *nest, const char *out)
{
	struct ferry_launch launch;
	char key[33];
	if (ferry_launch_read(&launch))
		_exit(123);
	give('f', (unsigned)launch.rank, (unsigned)launch.size, 0);
	for (int i = 0; i < 16; i++)
		snprintf(key + 2 * i, 3, "%02x", launch.key[i]);
	if (nest[0] == 'j')
		setenv("FERRY_JOB_KEY", key, 1);
	become("nest", nest + 3, out);
}

static int nest(const char *nest, const char *out)
{
	char under[64];
	switch (nest[0]) {
	case '\0':
		return write_down(out);
	case 'h':
	case 'j':
		join(nest, out);
		return 124;
	case 'f':
		new_key();
		forget_ferrys();
		return start_ranks(nest, out);
	case 'm': /* the mpiexec is a process of its own, and has what ferryrun has set */
		new_key();
		forget_ferrys();
		snprintf(under, sizeof under, "p%s", nest + 1);
		become("nest", under, out);
		return 124;
	case 'r':
		become_bare(nest, out);
		return 124;
	default:
		return start_ranks(nest, out);
	}
}

/* ---- what the ranks understood ---- */

struct rank {
	char place[64], launcher[32], key[40];
	int rank, size, local_rank;
};

static int by_place(const void *left, const void *right)
{
	return strcmp(((const struct rank *)left)->place, ((const struct rank *)right)->place);
}

static const char *name_of(char kind)
{
	switch (kind) {
	case 'f':
	case 'h':
		return "ferry";
	case 'm':
	case 'p':
		return "pmi";
	case 'o':
		return "openmpi";
	case 's':
	case 'r':
		return "slurm";
	default:
		return "torchrun";
	}
}

/* Each of the innermost launchers has made a job with ranks 0 to size - 1, one key, and no other's. */
static void check(const char *name, struct rank *ranks, size_t count)
{
	const char *last = name + strlen(name) - 3, *sized = strchr("jh", *last) ? last - 3 : last;
	size_t size = (size_t)(sized[1] - '0'), expected = 1;
	for (const char *word = name; *word; word += 3)
		expected *= (size_t)(word[1] - '0');
	if (count != expected)
		fail_msg("%s: %zu ranks instead of %zu", name, count, expected);
	qsort(ranks, count, sizeof *ranks, by_place);
	for (size_t i = 0; i < count; i++) {
		const struct rank *rank = &ranks[i], *first = &ranks[i - i % size];
		bool named = *last == 'j' || !strcmp(rank->launcher, name_of(*last)); /* joined ones are of both */
		bool right = named && rank->rank == (int)(i % size) &&
		             rank->size == (int)size && rank->local_rank == rank->rank &&
		             !strcmp(rank->key, first->key);
		for (size_t j = 0; j < count; j++)
			right &= j / size == i / size || strcmp(ranks[j].key, rank->key);
		if (!right)
			fail_msg("%s: the rank at %s is rank %d of %d (local %d) of %s, key %s", name, rank->place,
			         rank->rank, rank->size, rank->local_rank, rank->launcher, rank->key);
	}
}

static int tried;

/* AddressSanitizer makes each of a nest's processes start slowly, and sees the same in each fifth nest. */
#ifdef __SANITIZE_ADDRESS__
#define EACH 5
#else
#define EACH 1
#endif

static void try_nest(const char *name)
{
	static struct rank ranks[256];
	char out[] = "/tmp/ferry-launchers-XXXXXX";
	size_t count = 0;
	if (tried++ % EACH)
		return;
	int made = mkstemp(out), status;
	assert_true(made >= 0);
	pid_t child = fork();
	if (!child)
		become("nest", name, out);
	assert_int_equal(waitpid(child, &status, 0), child);
	FILE *file = fdopen(made, "r");
	while (count < 256 && fscanf(file, "%63s %31s %d %d %d %39s", ranks[count].place, ranks[count].launcher,
	                             &ranks[count].rank, &ranks[count].size, &ranks[count].local_rank,
	                             ranks[count].key) == 6)
		count++;
	fclose(file);
	unlink(out);
	if (status)
		fail_msg("%s: status %x", name, status);
	check(name, ranks, count);
}

static void try_pairs(const char *form)
{
	char name[32];
	for (const char *outer = KINDS; *outer; outer++)
		for (const char *inner = KINDS; *inner; inner++) {
			snprintf(name, sizeof name, form, *outer, *inner);
			try_nest(name);
		}
}

static void the_only_launcher_counts(void **state)
{
	(void)state;
	char name[8];
	for (const char *kind = KINDS; *kind; kind++) {
		snprintf(name, sizeof name, "%c3-", *kind);
		try_nest(name);
	}
}

/* The outer one's rank 0 of 1, as where a program was started by mpirun without -n. */
static void a_job_in_the_only_rank_of_another_has_its_own_ranks(void **state)
{
	(void)state;
	try_pairs("%c1-%c3-");
}

/* Rank 0 of 2 in rank 0 of 2: the values tell nothing. */
static void jobs_in_the_ranks_of_another_are_as_many_jobs(void **state)
{
	(void)state;
	try_pairs("%c2-%c2-");
}

static void ranks_may_come_in_scripts_and_one_after_the_other(void **state)
{
	(void)state;
	try_pairs("%c2w%c2w");
	try_pairs("%c1l%c3l");
}

static void processes_between_may_have_written_over_their_environments(void **state)
{
	(void)state;
	try_pairs("%c2x%c2-");
	try_pairs("%c2-%c2x");
}

static void ranks_that_join_are_the_innermost_launchers(void **state)
{
	(void)state;
	try_pairs("%c2-%c2-j1-");
	try_pairs("%c2-j1-%c2-");
}

static void the_innermost_of_three_counts(void **state)
{
	(void)state;
	char name[16];
	static const char kinds[] = "fprt"; /* the others are like one of these */
	for (const char *middle = kinds; *middle; middle++)
		for (const char *outer = kinds; *outer; outer++)
			for (const char *inner = kinds; *inner; inner++) {
				snprintf(name, sizeof name, "%c2-%c1-%c2-", *outer, *middle, *inner);
				try_nest(name);
			}
	print_message("%d nests of launchers\n", tried);
	assert_true(tried >= 300);
}

/* torchrun's, whose workers' parents have ended: nobody above tells which was set last. */
static void without_parents_what_only_its_launcher_sets_counts(void **state)
{
	(void)state;
	struct ferry_launch launch;
	give('p', 0, 1, 0);
	give('s', 0, 4, 7);
	unsetenv("SLURM_STEP_ID");
	give('t', 2, 3, 29501);
	assert_int_equal(ferry_launch_read(&launch), 0);
	assert_string_equal(launch.launcher, "torchrun");
	assert_int_equal(launch.rank, 2);
	unsetenv("TORCHELASTIC_RUN_ID"); /* anybody may have set the rest */
	assert_int_equal(ferry_launch_read(&launch), 0);
	assert_string_equal(launch.launcher, "pmi");
	unsetenv("PMI_RANK");
	unsetenv("RANK");
	assert_int_equal(ferry_launch_read(&launch), 0);
	assert_string_equal(launch.launcher, "slurm");
	assert_true(launch.no_step);
	setenv("SLURM_STEP_ID", "0", 1);
	assert_int_equal(ferry_launch_read(&launch), 0);
	assert_false(launch.no_step);
}

/* A script that the launcher has started sets them, and becomes the program. */
static void variables_of_ferry_that_a_script_sets_count(void **state)
{
	(void)state;
	char name[16];
	for (const char *kind = KINDS; *kind; kind++) {
		snprintf(name, sizeof name, "%c3-h1-", *kind);
		if (*kind != 'f' && *kind != 'm') /* whose key they would share */
			try_nest(name);
	}
}

static void pmix_alone_tells_no_rank(void **state)
{
	(void)state;
	struct ferry_launch launch;
	for (const struct ferry_variable *variable = ferry_variables; variable->name; variable++)
		unsetenv(variable->name);
	setenv("PMIX_RANK", "1", 1);
	assert_int_equal(ferry_launch_read(&launch), 0);
	assert_string_equal(launch.launcher, "pmix");
	assert_int_equal(launch.rank, -1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_only_launcher_counts),
		cmocka_unit_test(a_job_in_the_only_rank_of_another_has_its_own_ranks),
		cmocka_unit_test(jobs_in_the_ranks_of_another_are_as_many_jobs),
		cmocka_unit_test(ranks_may_come_in_scripts_and_one_after_the_other),
		cmocka_unit_test(processes_between_may_have_written_over_their_environments),
		cmocka_unit_test(ranks_that_join_are_the_innermost_launchers),
		cmocka_unit_test(the_innermost_of_three_counts),
		cmocka_unit_test(without_parents_what_only_its_launcher_sets_counts),
		cmocka_unit_test(variables_of_ferry_that_a_script_sets_count),
		cmocka_unit_test(pmix_alone_tells_no_rank),
	};
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	self[length > 0 ? length : 0] = '\0';
	if (argc == 4 && !strcmp(argv[1], "over"))
		write_over_environment(argv[2], argv[3]);
	if (argc >= 4 && !strcmp(argv[1], "bare")) {
		for (int i = 4; i < argc; i++)
			putenv(argv[i]);
		return start_ranks(argv[2], argv[3]);
	}
	if (argc == 4)
		return nest(argv[2], argv[3]);
	for (const struct ferry_variable *variable = ferry_variables; variable->name; variable++)
		unsetenv(variable->name);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
