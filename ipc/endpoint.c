/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/endpoint.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/quarantine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Whether the socket is that user's file, in a directory of root's that other users may not write to. */
static bool is_given_by_root(const char *path, uid_t user)
{
	struct stat directory, file;
	char parent[sizeof ((struct sockaddr_un *)0)->sun_path];
	const char *slash = strrchr(path, '/');
	if (!slash)
		return false;
	snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : (int)(slash - path), path);
	return !lstat(parent, &directory) && S_ISDIR(directory.st_mode) && directory.st_uid == 0 &&
	       !(directory.st_mode & S_IWOTH) && !lstat(path, &file) && S_ISSOCK(file.st_mode) && file.st_uid == user;
}

/* By SO_PEERCRED, which names the process that made the socket listen. */
static ferryResult_t check_router(int connection, const char *path)
{
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
		return ferry_fail(ferrySystemError, "SO_PEERCRED: %s", strerror(errno));
	if (peer.uid != geteuid() && peer.uid != 0 && !is_given_by_root(path, peer.uid))
		return ferry_fail(ferryRefused,
		                  "the router on %s: process %d of uid %u is not to be trusted by one of uid %u "
		                  "(FERRY_SOCKET_DIR names another directory)",
		                  path, peer.pid, peer.uid, geteuid());
	return ferrySuccess;
}

static ferryResult_t check_directory(const char *path, bool make)
{
	struct stat status;
	if (make && mkdir(path, 0700) && errno != EEXIST)
		return ferry_fail(ferrySystemError,
		                  "making the socket directory %s (FERRY_SOCKET_DIR names another): %s", path,
		                  strerror(errno));
	if (stat(path, &status))
		return !make && errno == ENOENT
		               ? ferrySuccess
		               : ferry_fail(ferrySystemError, "the socket directory %s: %s", path, strerror(errno));
	if (!S_ISDIR(status.st_mode))
		return ferry_fail(ferrySystemError, "the socket directory %s is not a directory", path);
	if (status.st_uid != geteuid() && status.st_uid != 0)
		return ferry_fail(ferryRefused,
		                  "%s belongs to uid %u, not to %u: its owner could pose as the router "
		                  "(FERRY_SOCKET_DIR names another directory)",
		                  path, status.st_uid, geteuid());
	return ferrySuccess;
}

ferryResult_t ferry_endpoint_directory(char *path, size_t bytes, bool make)
{
	const char *given = ferry_env("FERRY_SOCKET_DIR"), *runtime = ferry_env("XDG_RUNTIME_DIR");
	int written;
	if (given)
		written = snprintf(path, bytes, "%s", given);
	else if (runtime && access(runtime, W_OK) == 0)
		written = snprintf(path, bytes, "%s/ferry", runtime);
	else if (access("/run/ferry", W_OK) == 0 || access("/run", W_OK) == 0)
		written = snprintf(path, bytes, "/run/ferry");
	else
		written = snprintf(path, bytes, "/tmp/ferry-%u", (unsigned)geteuid());
	/* The file names in it take up to 48 bytes more; sun_path holds 108. */
	if (written < 0 || (size_t)written >= bytes || written > 59)
		return ferry_fail(ferryInvalidArgument,
		                  "socket directory \"%.200s\" of %s has %d bytes; at most 59 fit a socket's path",
		                  given ? given : runtime, given ? "FERRY_SOCKET_DIR" : "XDG_RUNTIME_DIR", written);
	return check_directory(path, make);
}

static ferryResult_t address_of(const char *path, struct sockaddr_un *address)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	if (strlen(path) >= sizeof address->sun_path)
		return ferry_fail(ferryInvalidArgument, "socket path \"%s\" has %zu bytes, at most %zu fit", path,
		                  strlen(path), sizeof address->sun_path - 1);
	memcpy(address->sun_path, path, strlen(path) + 1);
	return ferrySuccess;
}

static ferryResult_t new_socket(int *descriptor)
{
	*descriptor = ferry_descriptor_above(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	return *descriptor >= 0
	               ? ferrySuccess
	               : ferry_fail(ferrySystemError, "socket: %s%s", strerror(errno), ferry_descriptors_hint(errno));
}

/* Binds, replacing a stale socket file. Under a lock, or two routers could each remove what the other just bound. */
static ferryResult_t bind_alone(int listener, const char *path, bool for_all, const struct sockaddr_un *address)
{
	char lock_path[sizeof address->sun_path + 8];
	int probe;
	snprintf(lock_path, sizeof lock_path, "%s.lock", path);
	int lock = open(lock_path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (lock < 0 || flock(lock, LOCK_EX)) {
		ferryResult_t result = ferry_fail(ferrySystemError,
		                                  "locking %s: %s (FERRY_SOCKET_DIR names another directory)",
		                                  lock_path, strerror(errno));
		if (lock >= 0)
			close(lock);
		return result;
	}
	struct stat there;
	ferryResult_t result = ferry_endpoint_connect(path, &probe);
	bool nobody = ferry_endpoint_nobody(result);
	if (!result) {
		ferry_quarantine_close(&probe, 1);
		result = ferry_fail(ferryInvalidUsage, "a router already answers on %s", path);
	} else if (!lstat(path, &there) && !S_ISSOCK(there.st_mode)) {
		result = ferry_fail(
		        ferrySystemError,
		        "%s is there and no socket: remove it, or name another directory (FERRY_SOCKET_DIR)", path);
	} else if (nobody) { /* else a process may be listening that this process may not or cannot connect to */
		result = ferrySuccess;
		unlink(path);
		mode_t mask = umask(for_all ? 0111 : 0177);
		if (bind(listener, (const struct sockaddr *)address, sizeof *address) || listen(listener, 1024))
			result = ferry_fail(ferrySystemError, "listening on %s: %s", path, strerror(errno));
		umask(mask);
	}
	close(lock);
	return result;
}

void ferry_endpoint_sweep(const char *path)
{
	struct stat there;
	char lock_path[sizeof(struct sockaddr_un)];
	int probe, length = snprintf(lock_path, sizeof lock_path, "%s.lock", path);
	int lock = length < (int)sizeof lock_path ? open(lock_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
	if (lock < 0)
		return;
	if (!flock(lock, LOCK_EX | LOCK_NB) && !lstat(path, &there) && S_ISSOCK(there.st_mode)) {
		ferryResult_t result = ferry_endpoint_connect(path, &probe);
		if (!result)
			ferry_quarantine_close(&probe, 1);
		else if (ferry_endpoint_nobody(result))
			unlink(path);
		ferry_forget_message();
	}
	close(lock);
}

ferryResult_t ferry_endpoint_listen(const char *path, bool for_all, int *listener)
{
	struct sockaddr_un address;
	ferryResult_t result = address_of(path, &address);
	if (result || (result = new_socket(listener)))
		return result;
	if ((result = bind_alone(*listener, path, for_all, &address)))
		close(*listener);
	return result;
}

/*
 * Returns 0, or the error: EAGAIN when the deadline is over. While the router's backlog is full this tries again and
 * again: a blocking connect could wait for ever, and poll reports nothing for a full backlog.
 */
static int connect_patiently(int made, const struct sockaddr_un *address, struct ferry_deadline *deadline)
{
	int flags = fcntl(made, F_GETFL), pause = 1;
	fcntl(made, F_SETFL, flags | O_NONBLOCK);
	while (connect(made, (const struct sockaddr *)address, sizeof *address)) {
		int error = errno;
		if (error == EINTR)
			continue;
		if (error != EAGAIN || ferry_deadline_is_over(deadline))
			return error;
		poll(NULL, 0, pause);
		pause = 2 * pause < FERRY_DEADLINE_POLL_MS ? 2 * pause : FERRY_DEADLINE_POLL_MS;
	}
	fcntl(made, F_SETFL, flags);
	return 0;
}

static bool is_nobody(int error)
{
	return error == ECONNREFUSED || error == ENOENT;
}

static ferryResult_t report_refused(const char *path, int error, const struct ferry_deadline *deadline)
{
	if (error == EAGAIN && !deadline->seconds)
		return ferry_fail(ferryRemoteError, "the router on %s takes no connection now", path);
	if (error == EAGAIN)
		return ferry_fail(ferryRemoteError,
		                  "the router on %s takes no connections for %u s: it is stopped, busy, or hangs", path,
		                  deadline->seconds);
	if (is_nobody(error))
		return ferry_fail(ferrySystemError, "no router answers on %s: %s", path, strerror(error));
	return ferry_fail(ferrySystemError, "connecting to %s: %s%s", path, strerror(error),
	                  error == EACCES || error == EPERM
	                          ? " (another user's? FERRY_SOCKET_DIR names another directory)"
	                          : "");
}

/* Sets errno as ferry_endpoint_nobody reads it. */
ferryResult_t ferry_endpoint_connect_within(const char *path, int *connection, struct ferry_deadline *deadline)
{
	struct sockaddr_un address;
	int made;
	ferryResult_t result = address_of(path, &address);
	if (result || (result = new_socket(&made)))
		return result;
	int error = connect_patiently(made, &address, deadline);
	result = error ? report_refused(path, error, deadline) : check_router(made, path);
	if (result)
		ferry_quarantine_close(&made, 1); /* the listener may have sent descriptors */
	else
		*connection = made;
	errno = error;
	return result;
}

bool ferry_endpoint_nobody(ferryResult_t result)
{
	return result == ferrySystemError && is_nobody(errno);
}

ferryResult_t ferry_endpoint_connect(const char *path, int *connection)
{
	struct ferry_deadline deadline = ferry_deadline_for(FERRY_DEADLINE_PROBE_S, NULL);
	return ferry_endpoint_connect_within(path, connection, &deadline);
}

ferryResult_t ferry_endpoint_connect_now(const char *path, int *connection)
{
	struct ferry_deadline deadline = ferry_deadline_for(0, NULL);
	return ferry_endpoint_connect_within(path, connection, &deadline);
}

ferryResult_t ferry_endpoint_connect_patiently(const char *path, int *connection)
{
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	struct ferry_deadline deadline = ferry_deadline_for((unsigned)seconds, NULL);
	return ferry_endpoint_connect_within(path, connection, &deadline);
}

void ferry_endpoint_await_end(int connection)
{
	struct pollfd entry = {connection, POLLRDHUP, 0};
	while (poll(&entry, 1, -1) < 0 && errno == EINTR)
		;
}

bool ferry_endpoint_closed(int connection)
{
	struct pollfd entry = {connection, POLLRDHUP, 0};
	return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}
