/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/api/user_programs.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/hash.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static ferryResult_t add_program(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                                 const char *name, const char *text, size_t bytes, bool keep_text)
{
	struct ferry_program_defaults defaults = {.collective = FERRY_NUM_COLLECTIVES,
	                                          .nranks = topology->nranks,
	                                          .ndomains = topology->ndomains,
	                                          .rank_domain = topology->rank_domain};
	struct ferry_program *program;
	if (programs->count == FERRY_MAX_PROGRAMS)
		return ferry_fail(ferryInvalidUsage, "%s: a communicator keeps at most %d programs", name,
		                  FERRY_MAX_PROGRAMS);
	if (keep_text)
		defaults.collective = FERRY_ALLREDUCE; /* text without a header, as in HyLink's Figure 3 */
	ferryResult_t result = ferry_program_parse(name, text, bytes, &defaults, &program);
	if (!result && (result = ferry_program_check(program)))
		ferry_program_free(program);
	if (result)
		return result;
	struct ferry_user_program *kept = &programs->kept[programs->count];
	*kept = (struct ferry_user_program){.program = program,
	                                    .least = program->least_bytes,
	                                    .most = program->most_bytes};
	if (keep_text && !(kept->text = strdup(text))) {
		ferry_program_free(program);
		return ferry_fail(ferrySystemError, "no memory for a program of %zu bytes", bytes);
	}
	programs->count++;
	return ferrySuccess;
}

static ferryResult_t load_file(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                               const char *path)
{
	char *text = NULL;
	size_t bytes = 0;
	struct stat status;
	if (!stat(path, &status) && !S_ISREG(status.st_mode)) /* reading a pipe or a device might never end */
		return ferry_fail(ferryInvalidArgument, "%s is not a file", path);
	FILE *file = fopen(path, "r");
	if (!file)
		return ferry_fail(ferryInvalidArgument, "%s: %s", path, strerror(errno));
	ssize_t got = getdelim(&text, &bytes, '\0', file);
	ferryResult_t result = ferrySuccess;
	if (got < 0)
		result = ferry_fail(ferryProgramError, "%s: empty", path);
	else
		result = add_program(programs, topology, path, text, (size_t)got, false);
	free(text);
	fclose(file);
	return result;
}

static ferryResult_t load_path(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                               const char *path)
{
	struct stat status;
	struct dirent **names;
	if (stat(path, &status))
		return ferry_fail(ferryInvalidArgument, "%s: %s", path, strerror(errno));
	if (!S_ISDIR(status.st_mode))
		return load_file(programs, topology, path);
	int count = scandir(path, &names, NULL, alphasort); /* sorted: all ranks take the same one first */
	ferryResult_t result = count < 0 ? ferry_fail(ferrySystemError, "%s: %s", path, strerror(errno)) : ferrySuccess;
	for (int i = 0; i < count; i++) {
		char file[4096];
		size_t length = strlen(names[i]->d_name);
		if (!result && length > 6 && !strcmp(names[i]->d_name + length - 6, ".ferry")) {
			snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
			result = load_file(programs, topology, file);
		}
		free(names[i]);
	}
	if (count >= 0)
		free(names);
	return result;
}

ferryResult_t ferry_user_programs_load(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                                       const char *paths)
{
	ferryResult_t result = ferrySuccess;
	programs->source = paths ? "ferryConfig_t.programs" : "FERRY_PROGRAM_PATH";
	if (!paths)
		paths = ferry_env("FERRY_PROGRAM_PATH");
	if (!paths)
		return ferrySuccess;
	char *copy = strdup(paths), *rest = copy, *path;
	if (!copy)
		return ferry_fail(ferrySystemError, "no memory");
	while (!result && (path = strsep(&rest, ":")))
		if (*path)
			result = load_path(programs, topology, path);
	free(copy);
	programs->replace = programs->count;
	return result ? ferry_fail_context(result, "%s", programs->source) : ferrySuccess;
}

static bool is_for(const struct ferry_program *program, const struct ferry_topology *topology)
{
	return program->nranks == topology->nranks && program->ndomains == topology->ndomains &&
	       !memcmp(program->rank_domain, topology->rank_domain, topology->nranks);
}

/* ---- replacing ---- */

#define MOST_REASON 1200

static bool is_named_for(const struct ferry_user_program *kept, const struct ferry_user_call *call)
{
	return !kept->text && kept->program->collective == call->collective;
}

static bool has_other_root(const struct ferry_program *program, const struct ferry_user_call *call)
{
	return ferry_collective_has_root(call->collective) && program->root != call->root;
}

/* Whether the program is for such calls of this communicator, whatever their size. */
static bool fits(const struct ferry_user_program *kept, const struct ferry_topology *topology,
                 const struct ferry_user_call *call)
{
	return is_named_for(kept, call) && is_for(kept->program, topology) && !has_other_root(kept->program, call) &&
	       !kept->refused[call->premulsum];
}

static void report_unfit(const struct ferry_user_program *kept, const struct ferry_topology *topology,
                         const struct ferry_user_call *call, char reason[MOST_REASON])
{
	const struct ferry_program *program = kept->program;
	uint32_t rank = 0;
	if (program->nranks != topology->nranks || program->ndomains != topology->ndomains) {
		snprintf(reason, MOST_REASON, "it is for %u rank%s in %u domain%s, the communicator has %u in %u",
		         program->nranks, program->nranks == 1 ? "" : "s", program->ndomains,
		         program->ndomains == 1 ? "" : "s", topology->nranks, topology->ndomains);
		return;
	}
	while (rank < program->nranks && program->rank_domain[rank] == topology->rank_domain[rank])
		rank++;
	if (rank < program->nranks)
		snprintf(reason, MOST_REASON, "it has rank %u in domain %u, the communicator in domain %u", rank,
		         program->rank_domain[rank], topology->rank_domain[rank]);
	else if (has_other_root(program, call))
		snprintf(reason, MOST_REASON, "its root is rank %u, the call's rank %u", program->root, call->root);
	else { /* the warning begins with the program's name, as some errors do */
		const char *refused = kept->refused[call->premulsum];
		size_t length = strlen(program->name);
		bool named = !strncmp(refused, program->name, length) && !strncmp(refused + length, ": ", 2);
		snprintf(reason, MOST_REASON, "%s", named ? refused + length + 2 : refused);
	}
}

/* Whether this process has not logged this yet: many communicators and calls log it once. */
static bool is_news(const char *reason, const char *name)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t said[4 * FERRY_MAX_PROGRAMS];
	static uint32_t count;
	uint64_t hash = ferry_hash_text(ferry_hash_text(FERRY_HASH_START, reason), name);
	uint32_t i = 0;
	pthread_mutex_lock(&lock);
	while (i < count && said[i] != hash)
		i++;
	bool news = i == count && count < sizeof said / sizeof *said;
	if (news)
		said[count++] = hash;
	pthread_mutex_unlock(&lock);
	return news;
}

static void log_unfit(const char *source, struct ferry_user_program *kept, const struct ferry_topology *topology,
                      const struct ferry_user_call *call)
{
	char reason[MOST_REASON];
	const char *name = kept->program->name;
	report_unfit(kept, topology, call, reason);
	kept->logged = true;
	if (is_news(reason, name))
		ferry_log(FERRY_LOG_WARN, "%s: %s is not used for %s, Ferry's own program is: %s", source, name,
		          ferry_collective_name(call->collective), reason);
}

const struct ferry_program *ferry_user_programs_replacement(struct ferry_user_programs *programs,
                                                            const struct ferry_topology *topology,
                                                            const struct ferry_user_call *call, bool tells)
{
	for (uint32_t i = 0; i < programs->count; i++) {
		const struct ferry_user_program *kept = &programs->kept[i];
		if (!fits(kept, topology, call))
			continue;
		if (call->bytes >= kept->least && call->bytes <= kept->most)
			return kept->program;
		tells = false; /* it is for calls of other sizes, as its header says: no warning */
	}
	for (uint32_t i = 0; tells && i < programs->count; i++)
		if (is_named_for(&programs->kept[i], call) && !programs->kept[i].logged)
			log_unfit(programs->source, &programs->kept[i], topology, call);
	return NULL;
}

bool ferry_user_programs_refuse(struct ferry_user_programs *programs, const struct ferry_program *program,
                                const struct ferry_user_call *call)
{
	for (uint32_t i = 0; i < programs->count; i++)
		if (programs->kept[i].program == program)
			return (programs->kept[i].refused[call->premulsum] = strdup(ferry_last_message()));
	return false;
}

/* ---- running ---- */

ferryResult_t ferry_user_programs_find(struct ferry_user_programs *programs, const struct ferry_topology *topology,
                                       const char *text, const struct ferry_program **program)
{
	ferryResult_t result;
	for (uint32_t i = 0; i < programs->count; i++)
		if (programs->kept[i].text && !strcmp(programs->kept[i].text, text)) {
			*program = programs->kept[i].program;
			return ferrySuccess;
		}
	if ((result = add_program(programs, topology, "program", text, strlen(text), true)))
		return result;
	const struct ferry_program *added = programs->kept[programs->count - 1].program;
	if (!is_for(added, topology))
		result = ferry_fail(ferryProgramError,
		                    "the program is for %u rank%s in %u domain%s, the communicator has %u in %u, or "
		                    "other ranks in them",
		                    added->nranks, added->nranks == 1 ? "" : "s", added->ndomains,
		                    added->ndomains == 1 ? "" : "s", topology->nranks, topology->ndomains);
	else if (added->collective == FERRY_ALLTOALLV || added->collective == FERRY_SENDRECV)
		result = ferry_fail(ferryProgramError,
		                    "ferryRunProgram runs no %s; use FERRY_PROGRAM_PATH or ferryAllToAllv",
		                    ferry_collective_name(added->collective));
	if (result) {
		struct ferry_user_program *kept = &programs->kept[--programs->count];
		ferry_program_free(kept->program);
		free(kept->text);
		return result;
	}
	*program = added;
	return ferrySuccess;
}

void ferry_user_programs_free(struct ferry_user_programs *programs)
{
	for (uint32_t i = 0; i < programs->count; i++) {
		ferry_program_free(programs->kept[i].program);
		free(programs->kept[i].text);
		free(programs->kept[i].refused[0]);
		free(programs->kept[i].refused[1]);
	}
	programs->count = 0;
}
