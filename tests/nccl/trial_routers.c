/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nccl/trial_routers.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The router that listens there. */
static pid_t listener(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer = {0};
	socklen_t bytes = sizeof peer;
	int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	bool found = !connect(connection, (struct sockaddr *)&address, sizeof address) &&
	             !getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	close(connection);
	return found ? peer.pid : 0;
}

unsigned trial_routers_end(const char *folder, int signal)
{
	char path[108];
	const struct dirent *entry;
	unsigned count = 0;
	DIR *open = opendir(folder);
	while (open && (entry = readdir(open))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%.40s/%.60s", folder, entry->d_name);
		pid_t router = listener(path);
		count += router > 1 && router != getpid() && !kill(router, signal);
	}
	if (open)
		closedir(open);
	return count;
}

void trial_routers_remove(const char *folder)
{
	char path[108];
	const struct dirent *entry;
	for (int waited = 0; waited < 6000 && rmdir(folder); waited++) {
		trial_routers_end(folder, SIGTERM); /* also one that a rank has started last of all */
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	DIR *open = opendir(folder);
	while (open && (entry = readdir(open))) {
		snprintf(path, sizeof path, "%.40s/%.60s", folder, entry->d_name);
		unlink(path);
	}
	if (open)
		closedir(open);
	rmdir(folder);
}
