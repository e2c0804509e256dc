/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/memory.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define PATH 1024
#define NO_LIMIT (1ull << 60) /* v1 says "none" by a number near 2^63 */

struct reader {
	const struct ferry_memory_question *question;
	struct ferry_memory least_left, least;
};

static void keep(struct ferry_memory *memory, uint64_t left, uint64_t whole, const char *source, const char *detail)
{
	memory->left = left;
	memory->whole = whole;
	snprintf(memory->holder, sizeof memory->holder, "%s%.200s", source, detail);
}

/* A source has `left` of `whole` bytes. */
static void take(struct reader *reader, uint64_t left, uint64_t whole, const char *source, const char *detail)
{
	if (left < reader->least_left.left)
		keep(&reader->least_left, left, whole, source, detail);
	if (whole < reader->least.whole)
		keep(&reader->least, left, whole, source, detail);
}

static FILE *open_file(const struct reader *reader, const char *path)
{
	char whole[2 * PATH];
	snprintf(whole, sizeof whole, "%s%s", reader->question->root, path);
	return fopen(whole, "re");
}

/* Sums the numbers behind those names, `prefix` before each, times `unit`. False: there is no such file or name. */
static bool sum_lines(const struct reader *reader, const char *path, const char *prefix, const char *const *names,
                      uint64_t unit, uint64_t *sum)
{
	char line[256];
	bool found = false;
	FILE *file = open_file(reader, path);
	*sum = 0;
	while (file && fgets(line, sizeof line, file)) {
		size_t skip = strlen(prefix);
		if (strncmp(line, prefix, skip))
			continue;
		for (const char *const *name = names; *name; name++) {
			size_t length = strlen(*name);
			if (strncmp(line + skip, *name, length) || !strchr(" :", line[skip + length]))
				continue;
			*sum += strtoull(line + skip + length + 1, NULL, 10) * unit;
			found = true;
		}
	}
	if (file)
		fclose(file);
	return found;
}

/* A file with one number in it. False: there is none, or it says "max". */
static bool read_number(const struct reader *reader, const char *folder, const char *name, uint64_t *number)
{
	char path[PATH + 64], line[64], *end = line;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *file = open_file(reader, path);
	if (!file)
		return false;
	if (fgets(line, sizeof line, file))
		*number = strtoull(line, &end, 10);
	fclose(file);
	return end != line && *number < NO_LIMIT;
}

/* ---- the machine and its nodes ---- */

static void read_machine(struct reader *reader)
{
	static const char *const total[] = {"MemTotal", NULL}, *const available[] = {"MemAvailable", NULL};
	uint64_t whole, left, sharers = reader->question->sharers;
	if (sum_lines(reader, "/proc/meminfo", "", total, 1024, &whole) &&
	    sum_lines(reader, "/proc/meminfo", "", available, 1024, &left))
		take(reader, left / sharers, whole / sharers, "this machine", "");
}

static void read_node(struct reader *reader)
{
	static const char *const total[] = {"MemTotal", NULL},
	                         *const free[] = {"MemFree", "Active(file)", "Inactive(file)", "SReclaimable", NULL};
	char path[64], prefix[32], name[16];
	uint64_t whole, left;
	if (reader->question->node < 0)
		return;
	snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", reader->question->node);
	snprintf(prefix, sizeof prefix, "Node %d ", reader->question->node);
	snprintf(name, sizeof name, "%d", reader->question->node);
	if (sum_lines(reader, path, prefix, total, 1024, &whole) && sum_lines(reader, path, prefix, free, 1024, &left))
		take(reader, left, whole, "NUMA node ", name);
}

static void read_shm(struct reader *reader)
{
	char path[PATH];
	struct statvfs status;
	uint64_t sharers = reader->question->sharers;
	if (reader->question->kind != FERRY_SHARED_POSIX)
		return;
	snprintf(path, sizeof path, "%s/dev/shm", reader->question->root);
	if (!statvfs(path, &status) && status.f_blocks) /* without blocks: a tmpfs without a limit */
		take(reader, status.f_bavail * status.f_frsize / sharers, status.f_blocks * status.f_frsize / sharers,
		     "/dev/shm", "");
}

/* ---- control groups ---- */

/* How a version of control groups names its files. */
struct hierarchy {
	const char *limits[3];
	const char *usage;
	const char *reclaimable[3];
};

static const struct hierarchy v1 = {{"memory.limit_in_bytes", NULL},
                                    "memory.usage_in_bytes",
                                    {"total_inactive_file", "total_active_file", NULL}};
static const struct hierarchy v2 = {{"memory.max", "memory.high", NULL},
                                    "memory.current",
                                    {"inactive_file", "active_file", NULL}};

/* The kernel gives back cached files before it kills a process. */
static void read_group(struct reader *reader, const char *folder, const struct hierarchy *hierarchy)
{
	char path[PATH + 64], group[2 * PATH];
	uint64_t limit, used, cached, sharers = reader->question->sharers;
	for (const char *const *name = hierarchy->limits; *name; name++) {
		if (!read_number(reader, folder, *name, &limit) ||
		    !read_number(reader, folder, hierarchy->usage, &used))
			continue;
		snprintf(path, sizeof path, "%s/memory.stat", folder);
		sum_lines(reader, path, "", hierarchy->reclaimable, 1, &cached);
		used -= cached < used ? cached : used;
		snprintf(group, sizeof group, "%.*s (%s)", PATH - 1, folder, *name);
		take(reader, limit > used ? (limit - used) / sharers : 0, limit / sharers, "the cgroup ", group);
	}
}

static bool has_word(const char *list, const char *word)
{
	size_t length = strlen(word);
	for (const char *at = list; (at = strstr(at, word)); at += length)
		if ((at == list || at[-1] == ',') && strchr(",\n", at[length]))
			return true;
	return false;
}

/* This process's group of that version, as /proc has it: "ID:controllers:path". */
static bool find_group(const struct reader *reader, const struct hierarchy *hierarchy, char *group)
{
	char line[PATH + 256];
	bool found = false;
	FILE *file = open_file(reader, "/proc/self/cgroup");
	while (file && !found && fgets(line, sizeof line, file)) {
		char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		found = hierarchy == &v2 ? !controllers[1] : has_word(controllers + 1, "memory");
		if (found)
			snprintf(group, PATH, "%.*s", PATH - 1, path);
	}
	if (file)
		fclose(file);
	return found;
}

/* Finds where that version is mounted, and which of its groups is at the top of the mount. */
static bool find_mount(const struct reader *reader, const struct hierarchy *hierarchy, char *mount, char *top)
{
	char line[4 * PATH], type[32], superblock[256];
	bool found = false;
	FILE *file = open_file(reader, "/proc/self/mountinfo");
	while (file && !found && fgets(line, sizeof line, file)) {
		const char *rest = strstr(line, " - ");
		if (!rest || sscanf(line, "%*s %*s %*s %1023s %1023s", top, mount) != 2 ||
		    sscanf(rest, " - %31s %*s %255s", type, superblock) != 2)
			continue;
		found = hierarchy == &v2 ? !strcmp(type, "cgroup2")
		                         : !strcmp(type, "cgroup") && has_word(superblock, "memory");
	}
	if (file)
		fclose(file);
	return found;
}

/*
 * A limit of any group above counts too. In a container the path may be one that only the host sees: then the group is
 * the top of the mounted hierarchy.
 */
static void read_groups(struct reader *reader, const struct hierarchy *hierarchy)
{
	char group[PATH], mount[PATH], top[PATH], folder[2 * PATH];
	if (!find_group(reader, hierarchy, group) || !find_mount(reader, hierarchy, mount, top))
		return;
	size_t skip = strcmp(top, "/") ? strlen(top) : 0;
	bool inside = !strncmp(group, top, skip) && strchr("/", group[skip]) && !strstr(group, "/..");
	snprintf(folder, sizeof folder, "%s%s", mount, inside && strcmp(group + skip, "/") ? group + skip : "");
	for (size_t length = strlen(folder); length >= strlen(mount); length--)
		if (!folder[length] || folder[length] == '/') {
			folder[length] = '\0';
			read_group(reader, folder, hierarchy);
		}
}

void ferry_memory_read(const struct ferry_memory_question *question, struct ferry_memory *least_left,
                       struct ferry_memory *least)
{
	static const struct ferry_memory unknown = {UINT64_MAX, UINT64_MAX, "nobody"};
	struct reader reader = {question, unknown, unknown};
	read_machine(&reader);
	read_node(&reader);
	read_shm(&reader);
	read_groups(&reader, &v2);
	read_groups(&reader, &v1);
	if (least_left)
		*least_left = reader.least_left;
	if (least)
		*least = reader.least;
}
