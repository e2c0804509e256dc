/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kills/kills_held.h"

#include "tests/kills/kills_shared.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KILLS_STREAMS 2 /* of a rank: each has a thread from when it needs one */
/* bytes that come and go, as allocators have them; a sanitizer's more than Ferry's */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KILLS_ROOM (1ull << 40)
#else
#define KILLS_ROOM (32ull << 20)
#endif

#define MOST_FILES 8192
#define REST       500 /* hundredths of a second until a process has given back what it need not hold */

/* By number, of files without a name, which lie on one device all. */
struct files {
	unsigned long long numbers[MOST_FILES];
	unsigned count;
};

static bool is_among(const struct files *files, unsigned long long number)
{
	for (unsigned i = 0; i < files->count; i++)
		if (files->numbers[i] == number)
			return true;
	return false;
}

/* Of a descriptor; 0: no such file. */
static unsigned long long file_of(pid_t process, const char *descriptor)
{
	char path[320];
	struct stat status;
	snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)process, descriptor);
	return !stat(path, &status) && S_ISREG(status.st_mode) && !status.st_nlink ? status.st_ino : 0;
}

static DIR *folder_of(pid_t process, const char *name)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)process, name);
	return opendir(path);
}

static void add_files(pid_t process, struct files *files)
{
	DIR *folder = folder_of(process, "fd");
	for (struct dirent *entry; folder && (entry = readdir(folder)) && files->count < MOST_FILES;) {
		unsigned long long number = file_of(process, entry->d_name);
		if (number)
			files->numbers[files->count++] = number;
	}
	if (folder)
		closedir(folder);
}

static unsigned descriptors_of(pid_t process, const struct files *but)
{
	unsigned count = 0;
	DIR *folder = folder_of(process, "fd");
	for (struct dirent *entry; folder && (entry = readdir(folder));)
		count += !but->count || !is_among(but, file_of(process, entry->d_name));
	if (folder)
		closedir(folder);
	return count;
}

static unsigned threads_of(pid_t process)
{
	unsigned count = 0;
	DIR *folder = folder_of(process, "task");
	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	return count;
}

static unsigned mappings_of(pid_t process, const struct files *but)
{
	char line[512];
	unsigned count = 0;
	snprintf(line, sizeof line, "/proc/%d/maps", (int)process);
	FILE *file = fopen(line, "r");
	while (file && fgets(line, sizeof line, file)) {
		unsigned long long number = 0;
		sscanf(line, "%*s %*s %*s %*s %llu", &number);
		count += strstr(line, "memfd:") && !is_among(but, number);
	}
	if (file)
		fclose(file);
	return count;
}

static void hold(pid_t process, const struct files *but, struct kills_held *held)
{
	char line[512];
	unsigned long long kib;
	*held = (struct kills_held){.descriptors = descriptors_of(process, but),
	                            .mappings = mappings_of(process, but),
	                            .threads = threads_of(process)};
	snprintf(line, sizeof line, "/proc/%d/status", (int)process);
	FILE *file = fopen(line, "r");
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "VmLck: %llu", &kib) == 1)
			held->locked = kib << 10;
		if (sscanf(line, "VmRSS: %llu", &kib) == 1)
			held->resident = kib << 10;
	}
	if (file)
		fclose(file);
}

void kills_hold(pid_t process, struct kills_held *held)
{
	static const struct files none;
	hold(process, &none, held);
}

void kills_hold_beside(pid_t process, const pid_t *others, int nothers, struct kills_held *held)
{
	static struct files theirs;
	theirs.count = 0;
	for (int i = 0; i < nothers; i++)
		add_files(others[i], &theirs);
	hold(process, &theirs, held);
}

void kills_hold_at_rest(pid_t process, const pid_t *others, int nothers, const struct kills_held *first,
                        struct kills_held *held)
{
	struct kills_held now;
	kills_hold_beside(process, others, nothers, held);
	for (int i = 0; first ? held->descriptors > first->descriptors && i < REST : i < REST / 5; i++) {
		kills_doze_us(10000);
		kills_hold_beside(process, others, nothers, &now);
		if (now.descriptors <= held->descriptors)
			*held = now;
	}
}

void kills_print_descriptors(pid_t process, const char *name)
{
	char path[320], target[256];
	DIR *folder = folder_of(process, "fd");
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)process, entry->d_name);
		ssize_t length = readlink(path, target, sizeof target - 1);
		if (length > 0)
			fprintf(stderr, "%s has descriptor %s: %.*s\n", name, entry->d_name, (int)length, target);
	}
	if (folder)
		closedir(folder);
}

bool kills_held_more(const char *name, const struct kills_held *first, const struct kills_held *last, unsigned windows,
                     bool verbose)
{
	bool more = last->descriptors > first->descriptors + windows ||
	            last->mappings > first->mappings + 2 * windows ||
	            last->threads > first->threads + KILLS_STREAMS || last->locked > first->locked ||
	            last->resident > first->resident + KILLS_ROOM;
	if (more || verbose)
		printf("%s%s: descriptors %u -> %u, mappings %u -> %u, threads %u -> %u, locked %llu -> %llu, resident "
		       "%.1f -> %.1f MB\n",
		       more ? "not ok: " : "", name, first->descriptors, last->descriptors, first->mappings,
		       last->mappings, first->threads, last->threads, first->locked, last->locked,
		       (double)first->resident / 1e6, (double)last->resident / 1e6);
	return more;
}
