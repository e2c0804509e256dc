/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/tenants.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_GROUPS 1024        /* groups of a process that are checked, at most */
#define ENTRY_BYTES (16u << 10) /* an entry of the user database */

enum member_kind { ANYBODY, USER, GROUP };

struct member {
	enum member_kind kind;
	uint32_t id, tenant; /* index of the tenant */
};

struct ferry_tenants {
	char file[256];
	struct ferry_tenant *all;
	struct member *members; /* in the file's order */
	uint32_t count, nmembers;
};

/* ---- reading the file ---- */

struct reader {
	struct ferry_tenants *tenants;
	const char *file;
	unsigned line;
};

static ferryResult_t no_memory(const struct reader *reader)
{
	return ferry_fail(ferrySystemError, "%s:%u: no memory for its tenants", reader->file, reader->line);
}

/* Without space around it, and without what a # begins. */
static char *trim(char *text)
{
	text[strcspn(text, "#")] = '\0';
	while (isspace((unsigned char)*text))
		text++;
	for (size_t length = strlen(text); length && isspace((unsigned char)text[length - 1]); length--)
		text[length - 1] = '\0';
	return text;
}

/* [tenant NAME] */
static ferryResult_t read_heading(struct reader *reader, char *text)
{
	struct ferry_tenants *tenants = reader->tenants;
	char name[FERRY_TENANT_NAME];
	int end = 0;
	if (sscanf(text, "[tenant %31[A-Za-z0-9_.-]]%n", name, &end) != 1 || !end || text[end])
		return ferry_fail(ferryInvalidArgument,
		                  "%s:%u: \"%s\" is no [tenant NAME] with a name of at most %d letters, digits, _ . -",
		                  reader->file, reader->line, text, FERRY_TENANT_NAME - 1);
	for (uint32_t i = 0; i < tenants->count; i++)
		if (!strcmp(tenants->all[i].name, name))
			return ferry_fail(ferryInvalidArgument, "%s:%u: a second tenant %s", reader->file, reader->line,
			                  name);
	struct ferry_tenant *grown = realloc(tenants->all, (tenants->count + 1) * sizeof *grown);
	if (!grown)
		return no_memory(reader);
	tenants->all = grown;
	struct ferry_tenant *tenant = &grown[tenants->count++];
	*tenant = (struct ferry_tenant){.staging = UINT64_MAX,
	                                .job_staging = UINT64_MAX,
	                                .windows = UINT64_MAX,
	                                .jobs = UINT32_MAX,
	                                .ranks = UINT32_MAX,
	                                .plans = UINT32_MAX,
	                                .connections = UINT32_MAX,
	                                .weight = 1};
	memcpy(tenant->name, name, sizeof name);
	return ferrySuccess;
}

static ferryResult_t add_member(struct reader *reader, enum member_kind kind, uint32_t id)
{
	struct ferry_tenants *tenants = reader->tenants;
	struct member *grown = realloc(tenants->members, (tenants->nmembers + 1) * sizeof *grown);
	if (!grown)
		return no_memory(reader);
	tenants->members = grown;
	grown[tenants->nmembers++] = (struct member){kind, id, tenants->count - 1};
	return ferrySuccess;
}

static bool is_number(const char *word, uint32_t *number)
{
	char *end;
	errno = 0;
	unsigned long long value = isdigit((unsigned char)*word) ? strtoull(word, &end, 10) : UINT64_MAX;
	*number = (uint32_t)value;
	return value < UINT32_MAX && !errno && !*end; /* the last number is no user's (chown(2)) */
}

/* By number, or by name as the system knows it now. */
static ferryResult_t find_id(const struct reader *reader, enum member_kind kind, const char *word, uint32_t *id)
{
	char buffer[ENTRY_BYTES];
	struct passwd user, *found_user = NULL;
	struct group group, *found_group = NULL;
	if (is_number(word, id))
		return ferrySuccess;
	int error = kind == USER ? getpwnam_r(word, &user, buffer, sizeof buffer, &found_user)
	                         : getgrnam_r(word, &group, buffer, sizeof buffer, &found_group);
	if (!found_user && !found_group)
		return ferry_fail(ferryInvalidArgument, "%s:%u: there is no %s %s%s%s", reader->file, reader->line,
		                  kind == USER ? "user" : "group", word, error ? ": " : "",
		                  error ? strerror(error) : "");
	*id = found_user ? found_user->pw_uid : found_group->gr_gid;
	return ferrySuccess;
}

static ferryResult_t read_members(struct reader *reader, enum member_kind kind, char *value)
{
	char *rest;
	uint32_t id = 0;
	for (char *word = strtok_r(value, ", \t", &rest); word; word = strtok_r(NULL, ", \t", &rest)) {
		bool any = kind == USER && !strcmp(word, "*");
		ferryResult_t result = any ? ferrySuccess : find_id(reader, kind, word, &id);
		if (!result)
			result = add_member(reader, any ? ANYBODY : kind, id);
		if (result)
			return result;
	}
	return ferrySuccess;
}

/* What a tenant may have: a number, or bytes. */
static const struct limit {
	const char *name;
	size_t at;
	bool bytes;
	uint64_t least, most;
} limits[] = {
        {"staging", offsetof(struct ferry_tenant, staging), true, 8u << 10, 1ull << 50},
        {"job_staging", offsetof(struct ferry_tenant, job_staging), true, 8u << 10, 1ull << 50},
        {"windows", offsetof(struct ferry_tenant, windows), true, 0, 1ull << 50},
        {"jobs", offsetof(struct ferry_tenant, jobs), false, 0, 1u << 20},
        {"ranks", offsetof(struct ferry_tenant, ranks), false, 0, 1u << 20},
        {"plans", offsetof(struct ferry_tenant, plans), false, 0, 1u << 30},
        {"connections", offsetof(struct ferry_tenant, connections), false, 0, 1u << 20},
        {"weight", offsetof(struct ferry_tenant, weight), false, 1, FERRY_WEIGHT_MOST},
};

static ferryResult_t read_limit(struct reader *reader, const struct limit *limit, const char *text)
{
	char *field = (char *)&reader->tenants->all[reader->tenants->count - 1] + limit->at;
	uint64_t value = 0;
	uint32_t number = 0;
	bool read = limit->bytes ? ferry_parse_bytes(text, &value) : is_number(text, &number);
	value = limit->bytes ? value : number;
	if (!read || value < limit->least || value > limit->most)
		return ferry_fail(ferryInvalidArgument, "%s:%u: %s = %s: expected %s from %llu to %llu%s", reader->file,
		                  reader->line, limit->name, text, limit->bytes ? "bytes" : "a whole number",
		                  (unsigned long long)limit->least, (unsigned long long)limit->most,
		                  limit->bytes ? ", such as 64M or 2G" : "");
	if (limit->bytes)
		memcpy(field, &value, sizeof value);
	else
		memcpy(field, &number, sizeof number);
	return ferrySuccess;
}

static ferryResult_t read_line(struct reader *reader, char *line)
{
	char *name = trim(line), *value = strchr(name, '=');
	if (!*name)
		return ferrySuccess;
	if (*name == '[')
		return read_heading(reader, name);
	if (!value)
		return ferry_fail(ferryInvalidArgument, "%s:%u: \"%s\" is neither [tenant NAME] nor NAME = VALUE",
		                  reader->file, reader->line, name);
	if (!reader->tenants->count)
		return ferry_fail(ferryInvalidArgument, "%s:%u: \"%s\" before the first [tenant NAME]", reader->file,
		                  reader->line, name);
	*value++ = '\0';
	name = trim(name);
	value = trim(value);
	if (!strcmp(name, "users") || !strcmp(name, "groups"))
		return read_members(reader, *name == 'u' ? USER : GROUP, value);
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		if (!strcmp(name, limits[i].name))
			return read_limit(reader, &limits[i], value);
	return ferry_fail(ferryInvalidArgument,
	                  "%s:%u: \"%s\": a tenant has users, groups, staging, job_staging, windows, jobs, ranks, "
	                  "plans, connections and weight",
	                  reader->file, reader->line, name);
}

/* A user that may write it decides which users may use the router. */
static ferryResult_t open_file(const char *file, FILE **opened)
{
	struct stat status;
	int descriptor = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (descriptor < 0 || fstat(descriptor, &status)) {
		ferryResult_t result = ferry_fail(ferrySystemError, "%s: %s", file, strerror(errno));
		if (descriptor >= 0)
			close(descriptor);
		return result;
	}
	ferryResult_t result = ferrySuccess;
	if (!S_ISREG(status.st_mode))
		result = ferry_fail(ferryInvalidArgument, "%s is not a file", file);
	else if (status.st_mode & S_IWOTH || (status.st_mode & S_IWGRP && status.st_gid != 0) ||
	         (status.st_uid != geteuid() && status.st_uid != 0))
		result = ferry_fail(ferryRefused,
		                    "%s is of uid %u, gid %u and mode %04o: others than root and uid %u could say "
		                    "which users may use this router",
		                    file, status.st_uid, status.st_gid, status.st_mode & 07777, geteuid());
	else if (!(*opened = fdopen(descriptor, "r")))
		result = ferry_fail(ferrySystemError, "%s: %s", file, strerror(errno));
	if (result)
		close(descriptor);
	return result;
}

ferryResult_t ferry_tenants_read(const char *file, struct ferry_tenants **read)
{
	FILE *opened = NULL;
	char *line = NULL;
	size_t room = 0;
	ferryResult_t result = open_file(file, &opened);
	if (result)
		return result;
	struct ferry_tenants *tenants = calloc(1, sizeof *tenants);
	struct reader reader = {.tenants = tenants, .file = file};
	if (!tenants)
		result = no_memory(&reader);
	else
		snprintf(tenants->file, sizeof tenants->file, "%s", file);
	for (ssize_t length; !result && (length = getline(&line, &room, opened)) >= 0;) {
		reader.line++;
		result = strlen(line) == (size_t)length
		                 ? read_line(&reader, line)
		                 : ferry_fail(ferryInvalidArgument, "%s:%u: a zero byte", file, reader.line);
	}
	if (!result && ferror(opened))
		result = ferry_fail(ferrySystemError, "%s:%u: %s", file, reader.line, strerror(errno));
	free(line);
	fclose(opened);
	if (result)
		ferry_tenants_free(tenants);
	else
		*read = tenants;
	return result;
}

void ferry_tenants_free(struct ferry_tenants *tenants)
{
	if (!tenants)
		return;
	free(tenants->all);
	free(tenants->members);
	free(tenants);
}

/* ---- standing ---- */

uint32_t ferry_tenants_count(const struct ferry_tenants *tenants)
{
	return tenants ? tenants->count : 0;
}

const struct ferry_tenant *ferry_tenants_at(const struct ferry_tenants *tenants, uint32_t index)
{
	return &tenants->all[index];
}

const struct ferry_tenant *ferry_tenants_find(const struct ferry_tenants *tenants, uid_t user, const gid_t *groups,
                                              size_t ngroups)
{
	for (uint32_t i = 0; tenants && i < tenants->nmembers; i++) {
		const struct member *member = &tenants->members[i];
		bool is = member->kind == ANYBODY || (member->kind == USER && member->id == user);
		for (size_t group = 0; !is && member->kind == GROUP && group < ngroups; group++)
			is = groups[group] == member->id;
		if (is)
			return &tenants->all[member->tenant];
	}
	return NULL;
}

ferryResult_t ferry_tenants_judge(const struct ferry_tenants *tenants, int connection, struct ferry_standing *standing)
{
	struct ucred peer;
	gid_t groups[1 + MOST_GROUPS];
	socklen_t bytes = sizeof peer, group_bytes = MOST_GROUPS * sizeof *groups;
	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
		return ferry_fail(ferrySystemError, "SO_PEERCRED: %s", strerror(errno));
	/* A process in more groups, or where the kernel does not say: its first group alone counts. */
	if (!tenants || getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, groups + 1, &group_bytes))
		group_bytes = 0;
	groups[0] = peer.gid;
	bool own = peer.uid == geteuid() || peer.uid == 0;
	*standing = (struct ferry_standing){.owner = own ? 0 : peer.uid,
	                                    .tenant = ferry_tenants_find(tenants, peer.uid, groups,
	                                                                 1 + group_bytes / sizeof *groups)};
	if (own || standing->tenant)
		return ferrySuccess;
	if (tenants)
		return ferry_fail(ferryRefused, "process %d of uid %u is of no tenant of this router of uid %u (%s)",
		                  peer.pid, peer.uid, geteuid(), tenants->file);
	return ferry_fail(ferryRefused, "process %d of uid %u is not to be trusted by one of uid %u", peer.pid,
	                  peer.uid, geteuid());
}
