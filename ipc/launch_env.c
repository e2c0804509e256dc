/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/launch_env.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One launcher's names for the four numbers; a launcher is recognized by its first two. */
static const struct {
	const char *launcher, *rank, *size, *local_rank, *local_size;
} launchers[] = {
	{"ferry", "FERRY_RANK", "FERRY_SIZE", "FERRY_LOCAL_RANK", "FERRY_LOCAL_SIZE"},
	{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
	{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL},
};

static ferryResult_t read_number(const char *name, int *value)
{
	long number = -1;
	ferryResult_t result = name ? ferry_env_integer(name, 0, 1 << 24, -1, &number) : ferrySuccess;
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
 * Under Hydra no variable names the job, but the ranks of a machine share a parent: the proxy. Its pid and start time name it.
 * A rank started through a shell has another parent, so ferryrun --join hands its key on in FERRY_JOB_KEY.
 */
static uint64_t hash_parent(uint64_t hash)
{
	char path[64], line[1024], *field;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)getppid());
	FILE *file = fopen(path, "r");
	if (!file)
		return hash_text(hash, path);
	size_t got = fread(line, 1, sizeof line - 1, file);
	fclose(file);
	line[got] = '\0';
	field = strrchr(line, ')'); /* field 2; the start time is field 22 */
	for (int i = 2; field && i < 22; i++)
		field = strchr(field + 1, ' ');
	if (field)
		field[1 + strcspn(field + 1, " ")] = '\0';
	return hash_text(hash_text(hash, path), field);
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

static void derive_key(struct ferry_launch *launch)
{
	static const char *const slurm[] = {"SLURM_JOB_ID", "SLURM_STEP_ID"}, *const openmpi[] = {"PMIX_NAMESPACE"},
	                         *const torchrun[] = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"};
	const char *const *names = NULL;
	size_t count = 0;
	char user[64];
	snprintf(user, sizeof user, "%s %u", launch->launcher, (unsigned)geteuid());
	uint64_t hash = hash_text(0xcbf29ce484222325ull, user);
	if (!strcmp(launch->launcher, "slurm")) {
		names = slurm;
		count = 2;
	} else if (!strcmp(launch->launcher, "openmpi") && ferry_env("PMIX_NAMESPACE")) {
		names = openmpi;
		count = 1;
	} else if (!strcmp(launch->launcher, "torchrun")) {
		names = torchrun;
		count = 3;
	}
	for (size_t i = 0; i < count; i++)
		hash = hash_text(hash, ferry_env(names[i]));
	if (!names)
		hash = hash_parent(hash);
	uint64_t second = hash_text(hash, "second half");
	memcpy(launch->key, &hash, 8);
	memcpy(launch->key + 8, &second, 8);
	launch->has_key = 1;
}

ferryResult_t ferry_launch_read(struct ferry_launch *launch)
{
	const char *key = ferry_env("FERRY_JOB_KEY");
	ferryResult_t result;
	*launch = (struct ferry_launch){-1, -1, -1, -1, {0}, 0, "none"};
	for (size_t i = 0; i < sizeof launchers / sizeof *launchers && launch->rank < 0; i++) {
		if (!ferry_env(launchers[i].rank) || !ferry_env(launchers[i].size))
			continue;
		snprintf(launch->launcher, sizeof launch->launcher, "%s", launchers[i].launcher);
		if ((result = read_number(launchers[i].rank, &launch->rank)) ||
		    (result = read_number(launchers[i].size, &launch->size)) ||
		    (result = read_number(launchers[i].local_rank, &launch->local_rank)) ||
		    (result = read_number(launchers[i].local_size, &launch->local_size)))
			return result;
		if (launch->rank >= launch->size)
			return ferry_fail(ferryInvalidArgument, "%s=%d is not below %s=%d", launchers[i].rank, launch->rank,
			                  launchers[i].size, launch->size);
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
		derive_key(launch);
	}
	return ferrySuccess;
}
