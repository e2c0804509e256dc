/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kills/kills_routers.h"

#include "ipc/ferry_types.h"
#include "tests/kills/kills_shared.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t kills_router(const char *folder, int domain)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer = {0};
	socklen_t bytes = sizeof peer;
	int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%.80s/router-%d.sock", folder, domain);
	bool found = !connect(connection, (struct sockaddr *)&address, sizeof address) &&
	             !getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	close(connection);
	return found && peer.pid != getpid() ? peer.pid : 0;
}

/* Those that have ended are collected on the way: orphans are this process's. */
static unsigned processes_left(void)
{
	char path[64], line[4096] = "";
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	unsigned count = 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
	FILE *file = fopen(path, "r");
	if (file && !fgets(line, sizeof line, file))
		line[0] = 0;
	if (file)
		fclose(file);
	for (const char *at = line; *at; at++)
		count += *at == ' ';
	return count;
}

/*
 * Lock files stay: if one were removed, a router that waits for it would lock another file than a router that comes
 * later. remove: removes all files, and says which.
 */
static unsigned files_left(const char *folder, bool remove)
{
	const struct dirent *entry;
	unsigned count = 0;
	DIR *open = opendir(folder);
	while (open && (entry = readdir(open))) {
		char path[400];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
		bool lock = strstr(entry->d_name, ".lock");
		count += !lock;
		if (!lock && remove)
			printf("not ok: %s is left\n", path);
		if (remove)
			unlink(path);
	}
	if (open)
		closedir(open);
	return count;
}

unsigned kills_remains(const char *folder, int domains, double seconds)
{
	uint64_t until = kills_now_ns() + (uint64_t)(seconds * 1e9);
	unsigned processes = 0, files = 0;
	pid_t logged[FERRY_MAX_DOMAINS] = {0}; /* once: the second time a router ends as it is */
	do {
		for (int domain = 0; domain < domains; domain++) {
			pid_t router = kills_router(folder, domain);
			if (router && router != logged[domain])
				kill(router, SIGTERM);
			logged[domain] = router ? router : logged[domain];
		}
		kills_doze_us(10000);
		processes = processes_left();
		files = files_left(folder, false);
	} while ((processes || files) && kills_now_ns() < until);
	files_left(folder, true);
	rmdir(folder);
	if (processes || files)
		printf("not ok: %u processes and %u files are left\n", processes, files);
	return processes + files;
}
