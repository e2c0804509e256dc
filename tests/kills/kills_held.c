/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kills/kills_held.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define KILLS_STREAMS 2 /* of a rank: each has a thread from when it needs one */
/* bytes that come and go, as allocators have them; a sanitizer's more than Ferry's */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KILLS_ROOM (1ull << 40)
#else
#define KILLS_ROOM (32ull << 20)
#endif

static unsigned entries(pid_t process, const char *name)
{
	char path[64];
	unsigned count = 0;
	snprintf(path, sizeof path, "/proc/%d/%s", (int)process, name);
	DIR *folder = opendir(path);
	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	return count;
}

void kills_hold(pid_t process, struct kills_held *held)
{
	char line[512];
	unsigned long long kib;
	*held = (struct kills_held){.descriptors = entries(process, "fd"), .threads = entries(process, "task")};
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
	snprintf(line, sizeof line, "/proc/%d/maps", (int)process);
	file = fopen(line, "r");
	while (file && fgets(line, sizeof line, file))
		held->mappings += strstr(line, "memfd:") != NULL;
	if (file)
		fclose(file);
}

bool kills_held_more(const char *who, const struct kills_held *first, const struct kills_held *last, unsigned windows,
                     bool verbose)
{
	bool more = last->descriptors > first->descriptors + windows ||
	            last->mappings > first->mappings + 2 * windows ||
	            last->threads > first->threads + KILLS_STREAMS || last->locked > first->locked ||
	            last->resident > first->resident + KILLS_ROOM;
	if (more || verbose)
		printf("%s%s: descriptors %u -> %u, mappings %u -> %u, threads %u -> %u, locked %llu -> %llu, resident "
		       "%.1f -> %.1f MB\n",
		       more ? "not ok: " : "", who, first->descriptors, last->descriptors, first->mappings,
		       last->mappings, first->threads, last->threads, first->locked, last->locked,
		       (double)first->resident / 1e6, (double)last->resident / 1e6);
	return more;
}
