/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/attach.h"

#include "ipc/descriptors.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/export.h"
#include "ipc/plan.h"
#include "ipc/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LOOK_MS 50       /* how often a client looks whether its answer is wanted still */
/* how long people wait for a status, and who only looks whether a router is there for its taking a connection */
#define STATUS_SECONDS 5

/* What comes along: the payload and the descriptors. */
static ferryResult_t check_burden(const struct ferry_attach_message *message)
{
	bool rank = message->kind == FERRY_ATTACH_RANK, mapped = rank && message->flags & FERRY_ATTACH_MAPPED;
	bool export = message->kind == FERRY_ATTACH_EXPORT;
	if (message->flags & ~(rank ? FERRY_ATTACH_MAPPED | FERRY_ATTACH_WISHED : 0))
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u with flags %x", message->kind,
		                  message->flags);
	if (export ? message->descriptors > FERRY_ATTACH_MOST_DESCRIPTORS : message->descriptors != (mapped ? 1 : 0))
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u with %u descriptors", message->kind,
		                  message->descriptors);
	if (message->payload && message->kind != FERRY_ATTACH_PLAN && !export)
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u with a payload of %llu bytes",
		                  message->kind, (unsigned long long)message->payload);
	if (export && (message->payload < FERRY_EXPORTED_LEAST || message->payload > sizeof(struct ferry_exported)))
		return ferry_fail(ferryInvalidArgument, "an export of %llu bytes: %zu to %zu",
		                  (unsigned long long)message->payload, FERRY_EXPORTED_LEAST,
		                  sizeof(struct ferry_exported));
	if (message->kind == FERRY_ATTACH_FORGET && message->index >= FERRY_MOST_EXPORTS)
		return ferry_fail(ferryInvalidArgument, "export %u to be forgotten: they go to %u", message->index,
		                  FERRY_MOST_EXPORTS - 1);
	if (message->kind == FERRY_ATTACH_PLAN &&
	    (message->payload < sizeof(struct ferry_plan) || message->payload > FERRY_PLAN_MAX_BYTES))
		return ferry_fail(ferryInvalidArgument, "plan of %llu bytes: they have from %zu to %u",
		                  (unsigned long long)message->payload, sizeof(struct ferry_plan),
		                  FERRY_PLAN_MAX_BYTES);
	return ferrySuccess;
}

ferryResult_t ferry_attach_decode(const void *bytes, size_t length, struct ferry_attach_message *message)
{
	if (length != sizeof *message)
		return ferry_fail(ferryInvalidArgument, "attach message of %zu bytes instead of %zu", length,
		                  sizeof *message);
	memcpy(message, bytes, sizeof *message);
	if (message->magic != FERRY_ATTACH_MAGIC || message->abi != FERRY_ATTACH_ABI)
		return ferry_fail(ferryRefused,
		                  "attach message of magic %08x and ABI %u; this router speaks %08x and %u",
		                  message->magic, message->abi, FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI);
	if (message->kind < FERRY_ATTACH_RANK || message->kind >= FERRY_ATTACH_KINDS)
		return ferry_fail(ferryInvalidArgument, "attach message of kind %u (1 to %d)", message->kind,
		                  FERRY_ATTACH_KINDS - 1);
	ferryResult_t result = check_burden(message);
	if (result)
		return result;
	if (message->kind != FERRY_ATTACH_RANK && message->kind != FERRY_ATTACH_PEER)
		return ferrySuccess;
	if (message->nranks < 1 || message->nranks > FERRY_MAX_RANKS || message->ndomains < 1 ||
	    message->ndomains > FERRY_MAX_DOMAINS || message->domain >= message->ndomains ||
	    (message->kind == FERRY_ATTACH_RANK && message->rank >= message->nranks))
		return ferry_fail(ferryInvalidArgument, "rank %u of %u (at most %d) in domain %u of %u (at most %d)",
		                  message->rank, message->nranks, FERRY_MAX_RANKS, message->domain, message->ndomains,
		                  FERRY_MAX_DOMAINS);
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
		                  "%s belongs to uid %u, not to %u: whoever owns it could pose as the router "
		                  "(FERRY_SOCKET_DIR names another directory)",
		                  path, status.st_uid, geteuid());
	return ferrySuccess;
}

ferryResult_t ferry_socket_directory(char *path, size_t bytes, bool make)
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

/* A path that starts with '@' is a name in Linux's abstract namespace: it goes when its last socket does. */
static ferryResult_t address_of(const char *path, struct sockaddr_un *address, socklen_t *bytes)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	if (strlen(path) >= sizeof address->sun_path)
		return ferry_fail(ferryInvalidArgument, "socket path \"%s\" has %zu bytes, at most %zu fit", path,
		                  strlen(path), sizeof address->sun_path - 1);
	memcpy(address->sun_path, path, strlen(path) + 1);
	*bytes = (socklen_t)sizeof *address;
	if (path[0] == '@') {
		address->sun_path[0] = '\0';
		*bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	}
	return ferrySuccess;
}

static ferryResult_t new_socket(int *descriptor)
{
	*descriptor = ferry_descriptor_above(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	return *descriptor >= 0
	               ? ferrySuccess
	               : ferry_fail(ferrySystemError, "socket: %s%s", strerror(errno), ferry_descriptors_hint(errno));
}

/*
 * Replaces a stale socket file. Held by one starter at a time, or two could each remove what the other has just bound.
 */
static ferryResult_t bind_alone(int listener, const char *path, const struct sockaddr_un *address, socklen_t bytes)
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
	ferryResult_t result = ferry_attach_connect(path, &probe);
	bool nobody = ferry_attach_nobody(result);
	if (!result) {
		close(probe);
		result = ferry_fail(ferryInvalidUsage, "a router already answers on %s", path);
	} else if (!lstat(path, &there) && !S_ISSOCK(there.st_mode)) {
		result = ferry_fail(
		        ferrySystemError,
		        "%s is there and no socket: remove it, or name another directory (FERRY_SOCKET_DIR)", path);
	} else if (nobody) { /* else there may be somebody, whom this process may not or cannot ask */
		result = ferrySuccess;
		unlink(path);
		mode_t mask = umask(0177);
		if (bind(listener, (const struct sockaddr *)address, bytes) || listen(listener, 1024))
			result = ferry_fail(ferrySystemError, "listening on %s: %s", path, strerror(errno));
		umask(mask);
	}
	close(lock);
	return result;
}

ferryResult_t ferry_attach_listen(const char *path, int *listener)
{
	struct sockaddr_un address;
	socklen_t bytes = 0;
	ferryResult_t result = address_of(path, &address, &bytes);
	if (result || (result = new_socket(listener)))
		return result;
	if (path[0] != '@')
		result = bind_alone(*listener, path, &address, bytes);
	else if (bind(*listener, (struct sockaddr *)&address, bytes) || listen(*listener, 1024))
		result = ferry_fail(errno == EADDRINUSE ? ferryInvalidUsage : ferrySystemError, "listening on %s: %s",
		                    path, strerror(errno));
	if (result)
		close(*listener);
	return result;
}

/* How long a client waits for a router: it may be stopped, or wait itself. */
struct patience {
	unsigned seconds;
	uint64_t until;                   /* ferry_now_ns */
	const _Atomic uint32_t *given_up; /* NULL, or: not 0 ends it */
	bool over;
};

static struct patience patience_for(unsigned seconds, const _Atomic uint32_t *given_up)
{
	return (struct patience){seconds, ferry_now_ns() + seconds * 1000000000ull, given_up, false};
}

static bool is_over(struct patience *patience)
{
	patience->over = ferry_now_ns() >= patience->until || (patience->given_up && atomic_load(patience->given_up));
	return patience->over;
}

static bool may_wait(int connection, short events, struct patience *patience)
{
	while (!is_over(patience)) {
		uint64_t now = ferry_now_ns(), ms = patience->until > now ? (patience->until - now) / 1000000 + 1 : 1;
		struct pollfd entry = {connection, events, 0};
		if (poll(&entry, 1, patience->given_up && ms > LOOK_MS ? LOOK_MS : (int)ms) > 0)
			return true;
	}
	return false;
}

/*
 * 0, or the error: EAGAIN when patience is over. Who must not wait for ever for a place among those that the router has
 * not accepted yet has to ask again and again: there is nothing to poll for.
 */
static int connect_patiently(int made, const struct sockaddr_un *address, socklen_t bytes, struct patience *patience)
{
	int flags = fcntl(made, F_GETFL), pause = 1;
	fcntl(made, F_SETFL, flags | O_NONBLOCK);
	while (connect(made, (const struct sockaddr *)address, bytes)) {
		int error = errno;
		if (error == EINTR)
			continue;
		if (error != EAGAIN || is_over(patience))
			return error;
		poll(NULL, 0, pause);
		pause = 2 * pause < LOOK_MS ? 2 * pause : LOOK_MS;
	}
	fcntl(made, F_SETFL, flags);
	return 0;
}

static bool is_nobody(int error)
{
	return error == ECONNREFUSED || error == ENOENT;
}

static ferryResult_t say_refused(const char *path, int error, const struct patience *patience)
{
	if (patience->given_up && atomic_load(patience->given_up))
		return ferry_fail(ferrySystemError, "nobody waits for the router on %s any more", path);
	if (error == EAGAIN && !patience->seconds)
		return ferry_fail(ferryRemoteError, "the router on %s takes no connection now", path);
	if (error == EAGAIN)
		return ferry_fail(ferryRemoteError,
		                  "the router on %s takes no connections for %u s: it is stopped, busy, or hangs", path,
		                  patience->seconds);
	if (is_nobody(error))
		return ferry_fail(ferrySystemError, "no router answers on %s: %s", path, strerror(error));
	return ferry_fail(ferrySystemError, "connecting to %s: %s%s", path, strerror(error),
	                  error == EACCES || error == EPERM
	                          ? " (another user's? FERRY_SOCKET_DIR names another directory)"
	                          : "");
}

/* Sets errno as ferry_attach_nobody reads it. */
static ferryResult_t connect_within(const char *path, int *connection, struct patience *patience)
{
	struct sockaddr_un address;
	socklen_t bytes = 0;
	int made;
	ferryResult_t result = address_of(path, &address, &bytes);
	if (result || (result = new_socket(&made)))
		return result;
	int error = connect_patiently(made, &address, bytes, patience);
	if (error)
		result = say_refused(path, error, patience);
	/* both ends look: an abstract name can be taken by anybody on the machine */
	else if ((result = ferry_attach_check_peer(made)))
		ferry_fail(result, "the router on %s: %s (FERRY_SOCKET_DIR names another directory)", path,
		           ferry_last_message());
	if (result)
		close(made);
	else
		*connection = made;
	errno = error;
	return result;
}

bool ferry_attach_nobody(ferryResult_t result)
{
	return result == ferrySystemError && is_nobody(errno);
}

ferryResult_t ferry_attach_connect(const char *path, int *connection)
{
	struct patience patience = patience_for(STATUS_SECONDS, NULL);
	return connect_within(path, connection, &patience);
}

ferryResult_t ferry_attach_connect_now(const char *path, int *connection)
{
	struct patience patience = patience_for(0, NULL);
	return connect_within(path, connection, &patience);
}

ferryResult_t ferry_attach_connect_while(const char *path, int *connection, const _Atomic uint32_t *given_up)
{
	long seconds;
	ferryResult_t result = ferry_attach_timeout(&seconds);
	if (result)
		return result;
	struct patience patience = patience_for((unsigned)seconds, given_up);
	return connect_within(path, connection, &patience);
}

static bool send_all(int connection, const void *bytes, size_t length, struct patience *patience)
{
	const char *next = bytes;
	while (length) {
		ssize_t sent = send(connection, next, length, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && (errno == EINTR || (errno == EAGAIN && may_wait(connection, POLLOUT, patience))))
			continue;
		if (sent <= 0)
			return false;
		next += sent;
		length -= (size_t)sent;
	}
	return true;
}

/*
 * The message with its descriptors. 0, or the errno of a refusal that leaves the connection as it was; -1: it is
 * broken, or patience over.
 */
static int send_head(int connection, const struct ferry_attach_message *message, const int *descriptors,
                     struct patience *patience)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FERRY_ATTACH_MOST_DESCRIPTORS * sizeof(int))] = {0};
	size_t bytes = message->descriptors * sizeof(int);
	struct iovec part = {(void *)(uintptr_t)message, sizeof *message};
	struct msghdr head = {.msg_iov = &part,
	                      .msg_iovlen = 1,
	                      .msg_control = control,
	                      .msg_controllen = CMSG_SPACE(bytes)};
	*CMSG_FIRSTHDR(&head) = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&head)), descriptors, bytes);
	ssize_t sent;
	do
		sent = sendmsg(connection, &head, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && (errno == EINTR || (errno == EAGAIN && may_wait(connection, POLLOUT, patience))));
	if (sent < 0 && (errno == EBADF || errno == ETOOMANYREFS || errno == EINVAL))
		return errno;
	if (sent <= 0)
		return -1;
	return send_all(connection, (const char *)message + sent, sizeof *message - (size_t)sent, patience) ? 0 : -1;
}

/* Moves the control data's descriptors into received; what is no descriptor, or too many, truncates. */
static void take_descriptors(struct msghdr *message, struct ferry_attach_received *received)
{
	received->truncated |= (message->msg_flags & MSG_CTRUNC) != 0;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int descriptor;
			memcpy(&descriptor, CMSG_DATA(head) + i * sizeof descriptor, sizeof descriptor);
			descriptor = ferry_descriptor_above(descriptor);
			if (descriptor >= 0 && received->ndescriptors < FERRY_ATTACH_MOST_DESCRIPTORS) {
				received->descriptors[received->ndescriptors++] = descriptor;
				continue;
			}
			received->truncated = true;
			if (descriptor >= 0)
				close(descriptor);
		}
	}
}

void ferry_attach_receive(int connection, void *into, size_t bytes, struct ferry_attach_received *received)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FERRY_ATTACH_MOST_DESCRIPTORS * sizeof(int))];
	struct iovec part = {into, bytes};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = sizeof control};
	received->ndescriptors = 0;
	received->truncated = false;
	received->bytes = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (received->bytes >= 0)
		take_descriptors(&message, received);
}

#define LOST (-2) /* a descriptor that came when this process could have no other */

/* A reply, and the descriptor that may ride on its first byte: -1 without one, or LOST. */
static bool receive_reply(int connection, struct ferry_attach_reply *reply, int *descriptor, struct patience *patience)
{
	struct ferry_attach_received received;
	size_t have = 0;
	*descriptor = -1;
	while (have < sizeof *reply) {
		ferry_attach_receive(connection, (char *)reply + have, sizeof *reply - have, &received);
		if (received.bytes < 0 &&
		    (errno == EINTR || (errno == EAGAIN && may_wait(connection, POLLIN, patience))))
			continue;
		if (received.bytes <= 0)
			return false;
		for (uint32_t i = 0; i < received.ndescriptors; i++)
			if (*descriptor < 0)
				*descriptor = received.descriptors[i];
			else
				close(received.descriptors[i]);
		if (received.truncated && *descriptor < 0)
			*descriptor = LOST;
		have += (size_t)received.bytes;
	}
	return true;
}

ferryResult_t ferry_attach_timeout(long *seconds)
{
	return ferry_env_integer("FERRY_ATTACH_TIMEOUT", 1, 86400, 60, seconds);
}

static ferryResult_t say_given_up(void)
{
	return ferry_fail(ferrySystemError, "nobody waits for the router's answer any more");
}

/* No reply came: why, and what becomes of the connection. */
static ferryResult_t say_silent(int connection, const struct patience *patience, const _Atomic uint32_t *given_up)
{
	if (!patience->over)
		return ferry_fail(ferryRemoteError, "the router closed the connection");
	/* Not shut down: who watches it would take that for the end of the router, which may still be at work. */
	if (given_up && atomic_load(given_up))
		return say_given_up();
	shutdown(connection, SHUT_RDWR); /* the answer may come yet, and the next call would take it for its own */
	return ferry_fail(ferrySystemError,
	                  "the router has not answered for %u s (FERRY_ATTACH_TIMEOUT): it is stopped, busy, or hangs",
	                  patience->seconds);
}

ferryResult_t ferry_attach_check_reply(struct ferry_attach_reply *reply)
{
	reply->message[sizeof reply->message - 1] = '\0';
	if (reply->magic != FERRY_ATTACH_MAGIC || reply->abi != FERRY_ATTACH_ABI)
		return ferry_fail(ferryRefused,
		                  "the router answers with magic %08x and ABI %u; this library speaks %08x and %u",
		                  reply->magic, reply->abi, FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI);
	if (reply->result >= ferryNumResults)
		return ferry_fail(ferryInternalError, "the router answers with result %u", reply->result);
	return reply->result ? ferry_fail((ferryResult_t)reply->result, "%s", reply->message) : ferrySuccess;
}

static ferryResult_t check_reply(struct ferry_attach_reply *reply, bool wanted, int received)
{
	ferryResult_t result = ferry_attach_check_reply(reply);
	if (result)
		return result;
	if (wanted && received == LOST)
		return ferry_fail(ferrySystemError,
		                  "the router's reply came without its arena: this process has no descriptor left for "
		                  "it%s",
		                  ferry_descriptors_hint(EMFILE));
	if (wanted && received < 0)
		return ferry_fail(ferryInternalError, "the router sent no descriptor with its reply");
	return ferrySuccess;
}

ferryResult_t ferry_attach_exchange(int connection, struct ferry_attach_message *message, const void *payload,
                                    const int *sent, struct ferry_attach_reply *reply, int *descriptor,
                                    const _Atomic uint32_t *given_up)
{
	int received = -1;
	long seconds;
	ferryResult_t result = ferry_attach_timeout(&seconds);
	if (result)
		return result;
	if (message->descriptors > FERRY_ATTACH_MOST_DESCRIPTORS)
		return ferry_fail(ferryInvalidArgument, "%u descriptors for a router: at most %u at a time",
		                  message->descriptors, FERRY_ATTACH_MOST_DESCRIPTORS);
	if (given_up && atomic_load(given_up))
		return say_given_up();
	struct patience patience = patience_for((unsigned)seconds, given_up);
	message->magic = FERRY_ATTACH_MAGIC;
	message->abi = FERRY_ATTACH_ABI;
	int refused = message->descriptors ? send_head(connection, message, sent, &patience)
	              : send_all(connection, message, sizeof *message, &patience) ? 0
	                                                                          : -1;
	if (refused > 0)
		return ferry_fail(ferrySystemError, "sending %u descriptors to the router: %s", message->descriptors,
		                  strerror(refused));
	if (!refused)
		send_all(connection, payload, message->payload, &patience);
	/*
	 * Also where it could not be sent: a router that takes no clients says so and closes, before they ask or while
	 * they do.
	 */
	if (patience.over || !receive_reply(connection, reply, &received, &patience)) {
		if (received >= 0)
			close(received);
		return say_silent(connection, &patience, given_up);
	}
	result = check_reply(reply, descriptor != NULL, received);
	if (!result && descriptor)
		*descriptor = received;
	else if (received >= 0)
		close(received);
	return result;
}

ferryResult_t ferry_attach_call_while(int connection, struct ferry_attach_message *message, const void *payload,
                                      int *descriptor, const _Atomic uint32_t *given_up)
{
	struct ferry_attach_reply reply;
	return ferry_attach_exchange(connection, message, payload, NULL, &reply, descriptor, given_up);
}

ferryResult_t ferry_attach_call(int connection, struct ferry_attach_message *message, const void *payload,
                                int *descriptor)
{
	return ferry_attach_call_while(connection, message, payload, descriptor, NULL);
}

ferryResult_t ferry_attach_answer(int connection, ferryResult_t result, uint32_t flags, const char *text,
                                  int descriptor)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct ferry_attach_reply reply = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, (uint32_t)result, flags, ""};
	struct iovec part = {&reply, sizeof reply};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	snprintf(reply.message, sizeof reply.message, "%s", text ? text : "");
	if (descriptor >= 0) {
		message.msg_control = control;
		message.msg_controllen = sizeof control;
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
	}
	/*
	 * 512 bytes fit any socket buffer: a client that does not read its replies loses its connection, it cannot
	 * block us.
	 */
	ssize_t sent = sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent != (ssize_t)sizeof reply)
		return ferry_fail(ferrySystemError, "a reply of %zu bytes: %zd sent: %s", sizeof reply, sent,
		                  strerror(errno));
	return ferrySuccess;
}

ferryResult_t ferry_attach_reply(int connection, ferryResult_t result, const char *text, int descriptor)
{
	return ferry_attach_answer(connection, result, 0, text, descriptor);
}

ferryResult_t ferry_attach_check_peer(int connection)
{
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
		return ferry_fail(ferrySystemError, "SO_PEERCRED: %s", strerror(errno));
	if (peer.uid != geteuid() && peer.uid != 0)
		return ferry_fail(ferryRefused, "process %d of uid %u is not to be trusted by one of uid %u", peer.pid,
		                  peer.uid, geteuid());
	return ferrySuccess;
}

static ferryResult_t ask_status(int connection, enum ferry_status_of of, uint64_t from, char *text, size_t bytes,
                                struct patience *patience)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_STATUS,
	                                       .magic = FERRY_ATTACH_MAGIC,
	                                       .abi = FERRY_ATTACH_ABI,
	                                       .index = of,
	                                       .hash = from};
	struct ferry_attach_reply reply;
	int received = -1;
	bool answered = send_all(connection, &message, sizeof message, patience) &&
	                receive_reply(connection, &reply, &received, patience);
	if (received >= 0)
		close(received);
	if (!answered)
		return patience->over ? ferry_fail(ferryRemoteError,
		                                   "it has not answered for %u s: it is stopped, busy, or hangs",
		                                   patience->seconds)
		                      : ferry_fail(ferryRemoteError, "it closed the connection");
	ferryResult_t result = ferry_attach_check_reply(&reply);
	if (!result)
		snprintf(text, bytes, "%.*s", (int)sizeof reply.message, reply.message);
	return result;
}

ferryResult_t ferry_attach_ask_status(int connection, enum ferry_status_of of, uint64_t from, char *text, size_t bytes)
{
	struct patience patience = patience_for(STATUS_SECONDS, NULL);
	return ask_status(connection, of, from, text, bytes, &patience);
}

ferryResult_t ferry_attach_status(const char *path, char *text, size_t bytes)
{
	struct patience patience = patience_for(STATUS_SECONDS, NULL);
	int connection;
	ferryResult_t result = connect_within(path, &connection, &patience);
	if (result)
		return result;
	if ((result = ask_status(connection, FERRY_STATUS_ROUTER, 0, text, bytes, &patience)))
		ferry_fail_context(result, "the router on %s", path);
	close(connection);
	return result;
}

bool ferry_attach_closed(int connection)
{
	struct pollfd entry = {connection, POLLRDHUP, 0};
	return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}
