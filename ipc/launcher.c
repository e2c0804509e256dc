/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/launcher.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/hash.h"
#include "ipc/process.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One launcher's variables. It is a candidate if the variables of rank and size are set. */
struct launcher {
	const char *name;
	const char *sign;        /* a variable that hardly anything else sets; NULL: none */
	const char *rank, *size, *local_rank, *local_size;
	const char *job[5];      /* the same on all ranks of a job, and different in others; ends with NULL */
	const char *connection;  /* names this rank's connection to the launcher */
	const char *commands[5]; /* which start its ranks on a machine; ends with NULL */
};

static const struct launcher launchers[] = {
        {.name = "ferry",
         .sign = "FERRY_JOB_KEY",
         .rank = "FERRY_RANK",
         .size = "FERRY_SIZE",
         .local_rank = "FERRY_LOCAL_RANK",
         .local_size = "FERRY_LOCAL_SIZE",
         .job = {"FERRY_JOB_KEY"}},
        {.name = "torchrun",
         .sign = "TORCHELASTIC_RUN_ID",
         .rank = "RANK",
         .size = "WORLD_SIZE",
         .local_rank = "LOCAL_RANK",
         .local_size = "LOCAL_WORLD_SIZE",
         .job = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
        {.name = "openmpi",
         .sign = "OMPI_COMM_WORLD_RANK",
         .rank = "OMPI_COMM_WORLD_RANK",
         .size = "OMPI_COMM_WORLD_SIZE",
         .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
         .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
         .job = {"PMIX_NAMESPACE"},
         .commands = {"orted", "prted", "orterun", "prterun"}},
        {.name = "pmi",
         .sign = "PMI_RANK",
         .rank = "PMI_RANK",
         .size = "PMI_SIZE",
         .local_rank = "MPI_LOCALRANKID",
         .local_size = "MPI_LOCALNRANKS",
         .connection = "PMI_FD",
         .commands = {"hydra_pmi_proxy", "pmi_proxy"}},
        {.name = "slurm",
         .sign = "SLURM_STEP_ID",
         .rank = "SLURM_PROCID",
         .size = "SLURM_NTASKS",
         .local_rank = "SLURM_LOCALID",
         .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
         .commands = {"slurmstepd"}},
        {.name = "pmix", .rank = "PMIX_RANK", .job = {"PMIX_NAMESPACE"}},
};
#define NLAUNCHERS (sizeof launchers / sizeof *launchers)

/* ---- which one ---- */

static bool is_signed(const struct launcher *launcher)
{
	return launcher->sign && ferry_env(launcher->sign);
}

/* Ferry's launcher comes first, then those whose `sign` is set, then the rest: scripts may set their variables, too. */
static size_t find_candidates(const struct launcher *candidates[NLAUNCHERS])
{
	size_t count = 0;
	for (int with_sign = 1; with_sign >= 0; with_sign--)
		for (size_t i = 0; i < NLAUNCHERS; i++)
			if ((!i || is_signed(&launchers[i])) == with_sign && ferry_env(launchers[i].rank) &&
			    (!launchers[i].size || ferry_env(launchers[i].size)))
				candidates[count++] = &launchers[i];
	return count;
}

static bool differs(const char *environment, const char *name)
{
	const char *value = name ? ferry_env(name) : NULL, *other = NULL;
	if (name)
		other = ferry_process_variable(environment, name);
	return value && other ? strcmp(value, other) : value != other;
}

/* Whether the launcher has set its variables since that process was started. */
static bool has_set(const struct launcher *launcher, const char *environment)
{
	bool set = differs(environment, launcher->rank) || differs(environment, launcher->size) ||
	           differs(environment, launcher->connection);
	for (size_t i = 0; launcher->job[i] && !set; i++)
		set = differs(environment, launcher->job[i]);
	return set;
}

/*
 * The launcher that has set its variables since that process was started; NULL: none. A launcher's own command may be
 * no descendant of the outer launchers (slurmstepd, or what ssh has started), and so lack their variables, too. That
 * launcher counts then: a launcher further in, such as a ferryrun, would have been found before. The exception are
 * Ferry's variables without a key, which a rank's own script has set.
 */
static const struct launcher *find_set(const struct launcher **candidates, size_t count, pid_t process)
{
	const struct launcher *found = NULL, *own = NULL;
	char *environment = ferry_process_environment(process);
	for (size_t i = 0; i < count && !own; i++)
		own = ferry_process_is(process, candidates[i]->commands) ? candidates[i] : NULL;
	bool by_hand = own && candidates[0] == launchers && !is_signed(launchers) &&
	               (!environment || has_set(launchers, environment));
	for (size_t i = 0; environment && !own && i < count && !found; i++)
		found = has_set(candidates[i], environment) ? candidates[i] : NULL;
	free(environment);
	return by_hand ? launchers : own ? own : found;
}

/*
 * Finds the innermost launcher; NULL: there is none. *starter is the process that has started its ranks, which they
 * have in common: other processes between, such as a script in each rank, have the rank's variables.
 */
static const struct launcher *find_innermost(pid_t *starter)
{
	const struct launcher *candidates[NLAUNCHERS], *found = NULL;
	pid_t self = getpid();
	size_t count = find_candidates(candidates);
	*starter = self;
	for (pid_t process = self; count && !found && process > 0; process = ferry_process_parent(process)) {
		found = find_set(candidates, count, process);
		*starter = process;
	}
	/* This process, or the one that it is a fork of, has set the variables itself: its parent starts the ranks. */
	if (*starter == self)
		*starter = getppid();
	return found || !count ? found : candidates[0];
}

/* ---- its numbers ---- */

static ferryResult_t read_number(const char *name, long least, int *value)
{
	long number = -1;
	ferryResult_t result = name ? ferry_env_integer(name, least, 1 << 24, -1, &number) : ferrySuccess;
	*value = (int)number;
	return result;
}

static ferryResult_t read_numbers(const struct launcher *launcher, struct ferry_launch *launch)
{
	ferryResult_t result;
	if ((result = read_number(launcher->rank, 0, &launch->rank)) ||
	    (result = read_number(launcher->size, 1, &launch->size)) ||
	    (result = read_number(launcher->local_rank, 0, &launch->local_rank)) ||
	    (result = read_number(launcher->local_size, 1, &launch->local_size)))
		return result;
	if (launch->rank >= launch->size)
		return ferry_fail(ferryInvalidArgument, "%s=%d is not below %s=%d", launcher->rank, launch->rank,
		                  launcher->size, launch->size);
	if (launch->local_size >= 0 && launch->local_rank >= launch->local_size)
		return ferry_fail(ferryInvalidArgument, "%s=%d is not below %s=%d", launcher->local_rank,
		                  launch->local_rank, launcher->local_size, launch->local_size);
	if (launch->local_size > launch->size)
		return ferry_fail(ferryInvalidArgument, "%s=%d is over %s=%d", launcher->local_size, launch->local_size,
		                  launcher->size, launch->size);
	if (launch->local_rank < 0)
		launch->local_rank = launch->rank;
	if (launch->local_size < 0)
		launch->local_size = launch->size;
	return ferrySuccess;
}

/* Refuses a part of ferryrun's variables, which would be ignored: ferryrun sets all of them. */
static ferryResult_t check_ferrys_own(void)
{
	const char *const names[] = {launchers[0].rank, launchers[0].size, launchers[0].local_rank,
	                             launchers[0].local_size};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		for (size_t needed = 0; needed < 2; needed++)
			if (ferry_env(names[i]) && !ferry_env(names[needed]))
				return ferry_fail(ferryInvalidArgument, "%s=%s without %s", names[i],
				                  ferry_env(names[i]), names[needed]);
	return ferrySuccess;
}

/* ---- the job's key ---- */

static ferryResult_t parse_key(const char *text, uint8_t *key)
{
	for (int i = 0; i < 32; i++)
		if (!isxdigit((unsigned char)text[i]))
			return ferry_fail(ferryInvalidArgument, "FERRY_JOB_KEY=%s: expected 32 hex digits", text);
	if (text[32])
		return ferry_fail(ferryInvalidArgument, "FERRY_JOB_KEY=%s: expected 32 hex digits", text);
	for (int i = 0; i < 16; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
		key[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	return ferrySuccess;
}

/* A text, which may be NULL, and what ends it. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
	return ferry_hash(ferry_hash_text(hash, text ? text : ""), "\xff", 1);
}

/*
 * Whether the process that has started the ranks is itself a rank of an outer job with the same FERRY_JOB_KEY. The
 * other ranks of that job may start ranks too, and the key alone does not tell their jobs apart.
 */
static bool shares_key(pid_t starter)
{
	char *environment = NULL;
	bool is_rank = false;
	for (pid_t process = starter; process > 0 && !environment; process = ferry_process_parent(process))
		environment = ferry_process_environment(process);
	for (size_t i = 0; environment && i < NLAUNCHERS && !is_rank; i++)
		is_rank = ferry_process_variable(environment, launchers[i].rank);
	is_rank = is_rank && !differs(environment, "FERRY_JOB_KEY");
	free(environment);
	return is_rank;
}

static bool names_job(const struct launcher *launcher)
{
	for (size_t i = 0; launcher->job[i]; i++)
		if (ferry_env(launcher->job[i]))
			return true;
	return false;
}

/* Under Hydra, and where ranks are started by hand, no variable names the job: the starter's pid and start time do. */
static void derive_key(struct ferry_launch *launch, const struct launcher *launcher, pid_t starter)
{
	char identity[64];
	snprintf(identity, sizeof identity, "%s %u", launch->launcher, (unsigned)geteuid());
	uint64_t hash = hash_text(FERRY_HASH_START, identity);
	for (size_t i = 0; launcher->job[i]; i++)
		hash = hash_text(hash, ferry_env(launcher->job[i]));
	snprintf(identity, sizeof identity, "%d %llu", (int)starter, (unsigned long long)ferry_process_start(starter));
	hash = hash_text(hash, names_job(launcher) ? NULL : identity);
	hash = hash_text(hash, ferry_env("FERRY_JOB_KEY"));
	uint64_t second = hash_text(hash, "second half");
	memcpy(launch->key, &hash, 8);
	memcpy(launch->key + 8, &second, 8);
}

static ferryResult_t find_key(struct ferry_launch *launch, const struct launcher *launcher, pid_t starter)
{
	const char *given = ferry_env("FERRY_JOB_KEY");
	ferryResult_t result = given ? parse_key(given, launch->key) : ferrySuccess;
	bool is_whole = given && (launch->rank < 0 || launcher == launchers ||
	                          (!names_job(launcher) && !shares_key(starter)));
	if (!result && launch->rank >= 0 && !is_whole)
		derive_key(launch, launcher, starter);
	launch->has_key = !result && (given || launch->rank >= 0);
	return result;
}

ferryResult_t ferry_launch_read(struct ferry_launch *launch)
{
	pid_t starter;
	*launch = (struct ferry_launch){-1, -1, -1, -1, {0}, 0, "none", false};
	ferryResult_t result = check_ferrys_own();
	if (result)
		return result;
	const struct launcher *launcher = find_innermost(&starter);
	if (launcher) {
		snprintf(launch->launcher, sizeof launch->launcher, "%s", launcher->name);
		launch->no_step = !strcmp(launcher->name, "slurm") && !is_signed(launcher);
	}
	if (launcher && launcher->size && (result = read_numbers(launcher, launch)))
		return result;
	return find_key(launch, launcher, starter);
}
