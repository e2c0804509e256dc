/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes share of a GPU. Whatever takes its memory is a file in memory with the GPU's and the machine's name; a
 * process holds it open as long as it needs the memory, so what is in use is what the processes' open files name:
 * nothing has to be written down, and nothing is left when a process dies. Processes whose FAKE_CUDA_MACHINE is the
 * same are of one machine.
 */
#include "tests/fake_cuda/fake.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

size_t fake_machine_total, fake_machine_context;
static char machine[64];
static bool limited; /* a scan for each allocation is for tests that ask for it */

void fake_machine_start(void)
{
	const char *name = getenv("FAKE_CUDA_MACHINE");
	snprintf(machine, sizeof machine, "%s", name ? name : "");
	limited = getenv("FAKE_CUDA_MEMORY") != NULL;
	fake_machine_total = fake_number("FAKE_CUDA_MEMORY", (size_t)80 << 30);
	fake_machine_context = fake_number("FAKE_CUDA_CONTEXT_MEMORY", (size_t)525 << 20);
}

int fake_machine_file(int physical, const char *what, size_t bytes)
{
	char name[128];
	if (limited && bytes > fake_machine_total - fake_machine_in_use(physical))
		return -1;
	snprintf(name, sizeof name, "fake GPU %d %s of [%s]", physical, what, machine);
	int file = memfd_create(name, MFD_CLOEXEC);
	if (file < 0 || !ftruncate(file, (off_t)bytes))
		return file;
	close(file);
	return -1;
}

/* A link of /proc/PID/fd: of this machine, of which GPU and for what. */
static bool is_of_machine(int folder, const char *entry, int *physical, char what[32])
{
	char link[256], tail[96];
	int length = 0;
	ssize_t bytes = readlinkat(folder, entry, link, sizeof link - 1);
	if (bytes <= 0)
		return false;
	link[bytes] = 0;
	snprintf(tail, sizeof tail, " of [%s] (deleted)", machine);
	return sscanf(link, "/memfd:fake GPU %d %31s%n", physical, what, &length) == 2 && !strcmp(link + length, tail);
}

bool fake_machine_knows(int file, const char *what, int *physical, size_t *bytes)
{
	char path[64], found[32];
	struct stat status;
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	if (!is_of_machine(AT_FDCWD, path, physical, found) || strcmp(found, what) || fstat(file, &status))
		return false;
	*bytes = (size_t)status.st_size;
	return true;
}

struct tally {
	int physical;
	size_t bytes;
	ino_t *seen; /* each file once, however many have it open */
	size_t count, capacity;
};

static void count_file(struct tally *tally, const struct stat *status)
{
	for (size_t i = 0; i < tally->count; i++)
		if (tally->seen[i] == status->st_ino)
			return;
	if (tally->count == tally->capacity) {
		ino_t *larger = realloc(tally->seen, (2 * tally->capacity + 64) * sizeof *larger);
		if (!larger)
			return;
		tally->seen = larger;
		tally->capacity = 2 * tally->capacity + 64;
	}
	tally->seen[tally->count++] = status->st_ino;
	tally->bytes += (size_t)status->st_size;
}

static void count_process(struct tally *tally, const char *process)
{
	char path[300], what[32];
	struct dirent *entry;
	struct stat status;
	int physical;
	snprintf(path, sizeof path, "/proc/%s/fd", process);
	DIR *files = opendir(path);
	if (!files)
		return;
	while ((entry = readdir(files)))
		if (is_of_machine(dirfd(files), entry->d_name, &physical, what) && physical == tally->physical &&
		    !fstatat(dirfd(files), entry->d_name, &status, 0))
			count_file(tally, &status);
	closedir(files);
}

size_t fake_machine_in_use(int physical)
{
	struct tally tally = {.physical = physical};
	struct dirent *entry;
	DIR *processes = opendir("/proc");
	if (!processes)
		return 0;
	while ((entry = readdir(processes)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
			count_process(&tally, entry->d_name);
	closedir(processes);
	free(tally.seen);
	return tally.bytes < fake_machine_total ? tally.bytes : fake_machine_total;
}

/* An abstract socket's name is one process's, and free again when it ends. */
int fake_machine_claim(int physical)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fake GPU %d of [%s] %d", physical, machine,
	                      (int)getuid());
	int claim = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (claim < 0 ||
	    !bind(claim, (struct sockaddr *)&name, (socklen_t)(sizeof name.sun_family + 1 + (size_t)length)))
		return claim;
	close(claim);
	return -1;
}
