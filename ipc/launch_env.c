/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/launch_env.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One launcher's names for the four numbers; a launcher is recognized by its first two. */
static const struct {
	const char *launcher, *rank, *size, *local_rank, *local_size;
} launchers[] = {
	{"ferry", "FERRY_RANK", "FERRY_SIZE", "FERRY_LOCAL_RANK", "FERRY_LOCAL_SIZE"},
	{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	 "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
	{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL},
};

static ferryResult_t read_number(const char *name, long least, int *value)
{
	long number = -1;
	ferryResult_t result = name ? ferry_env_integer(name, least, 1 << 24, -1, &number) : ferrySuccess;
	*value = (int)number;
	return result;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
	for (; text && *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
	return (hash ^ 0xff) * 0x100000001b3ull;
}

/*
 * True if the process was started with the variable in its environment. One whose environment is hidden is somebody
 * else's.
 */
static bool started_with(pid_t process, const char *variable)
{
	char path[64], *entry = NULL;
	size_t length = strlen(variable), bytes = 0;
	bool found = false;
	snprintf(path, sizeof path, "/proc/%d/environ", (int)process);
	FILE *file = fopen(path, "r");
	while (file && !found && getdelim(&entry, &bytes, '\0', file) > 0)
		found = !strncmp(entry, variable, length) && entry[length] == '=';
	free(entry);
	if (file)
		fclose(file);
	return found;
}

/* Fields 4 and 22 of /proc/PID/stat. */
static bool read_stat(pid_t process, pid_t *parent, unsigned long long *start_time)
{
	char path[64], line[1024];
	int number = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
	FILE *file = fopen(path, "r");
	if (!file)
		return false;
	size_t got = fread(line, 1, sizeof line - 1, file);
	fclose(file);
	line[got] = '\0';
	const char *rest = strrchr(line, ')'); /* the command's name may hold anything, parentheses too */
	if (!rest || sscanf(rest, ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
	                    &number, start_time) != 2)
		return false;
	*parent = number;
	return true;
}

/*
 * Under Hydra, and where ranks are started by hand, no variable names the job. But the ranks of a machine have one
 * ancestor that is no rank itself (Hydra's proxy, a shell), though others may be between (a script, ferryrun). Its pid
 * and start time name it.
 */
static uint64_t hash_launcher_process(uint64_t hash, const char *rank_variable)
{
	pid_t process = getppid(), parent = 0;
	unsigned long long start_time = 0;
	char text[64];
	while (read_stat(process, &parent, &start_time) && parent > 0 && started_with(process, rank_variable))
		process = parent;
	snprintf(text, sizeof text, "%d %llu", (int)process, start_time);
	return hash_text(hash, text);
}

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

/* What ferryrun sets, it sets together: a part of it would be ignored. */
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

/* Only variables that are the same on all ranks. */
static const char *const identities[][4] = {{"openmpi", "PMIX_NAMESPACE"},
                                            {"slurm", "SLURM_JOB_ID", "SLURM_STEP_ID"},
                                            {"torchrun", "MASTER_ADDR", "MASTER_PORT"},
                                            {"torchrun", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}};

static void derive_key(struct ferry_launch *launch, const char *rank_variable)
{
	char who[64];
	bool named = false;
	snprintf(who, sizeof who, "%s %u", launch->launcher, (unsigned)geteuid());
	uint64_t hash = hash_text(0xcbf29ce484222325ull, who);
	for (size_t i = 0; i < sizeof identities / sizeof *identities; i++)
		for (size_t v = 1; !strcmp(identities[i][0], launch->launcher) && v < 4 && identities[i][v]; v++) {
			named = named || ferry_env(identities[i][v]);
			hash = hash_text(hash, ferry_env(identities[i][v]));
		}
	if (!named)
		hash = hash_launcher_process(hash, rank_variable);
	uint64_t second = hash_text(hash, "second half");
	memcpy(launch->key, &hash, 8);
	memcpy(launch->key + 8, &second, 8);
	launch->has_key = 1;
}

ferryResult_t ferry_launch_read(struct ferry_launch *launch)
{
	const char *key = ferry_env("FERRY_JOB_KEY"), *rank_variable = NULL;
	ferryResult_t result;
	*launch = (struct ferry_launch){-1, -1, -1, -1, {0}, 0, "none"};
	if ((result = check_ferrys_own()))
		return result;
	for (size_t i = 0; i < sizeof launchers / sizeof *launchers && launch->rank < 0; i++) {
		if (!ferry_env(launchers[i].rank) || !ferry_env(launchers[i].size))
			continue;
		rank_variable = launchers[i].rank;
		snprintf(launch->launcher, sizeof launch->launcher, "%s", launchers[i].launcher);
		if ((result = read_number(launchers[i].rank, 0, &launch->rank)) ||
		    (result = read_number(launchers[i].size, 1, &launch->size)) ||
		    (result = read_number(launchers[i].local_rank, 0, &launch->local_rank)) ||
		    (result = read_number(launchers[i].local_size, 1, &launch->local_size)))
			return result;
		if (launch->rank >= launch->size)
			return ferry_fail(ferryInvalidArgument, "%s=%d is not below %s=%d", launchers[i].rank,
			                  launch->rank, launchers[i].size, launch->size);
		if (launch->local_size >= 0 && launch->local_rank >= launch->local_size)
			return ferry_fail(ferryInvalidArgument, "%s=%d is not below %s=%d", launchers[i].local_rank,
			                  launch->local_rank, launchers[i].local_size, launch->local_size);
		if (launch->local_size > launch->size)
			return ferry_fail(ferryInvalidArgument, "%s=%d is over %s=%d", launchers[i].local_size,
			                  launch->local_size, launchers[i].size, launch->size);
	}
	if (launch->local_rank < 0)
		launch->local_rank = launch->rank;
	if (launch->local_size < 0)
		launch->local_size = launch->size;
	if (key) {
		if ((result = parse_key(key, launch->key)))
			return result;
		launch->has_key = 1;
	} else if (launch->rank >= 0) {
		derive_key(launch, rank_variable);
	}
	return ferrySuccess;
}
