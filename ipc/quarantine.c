/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/quarantine.h"

#include "ipc/error.h"
#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_SENT      253u         /* descriptors in a message: SCM_MAX_FD of the kernel's */
#define STACK_BYTES    (256u << 10) /* sanitizers take most of it */
#define UNSHARE_TABLE  2u           /* CLOSE_RANGE_UNSHARE, which older headers lack */

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/*
 * Gives the thread a table of its own, a copy of the process's; false: the thread still shares that one. close_range
 * comes first, as some containers forbid unshare.
 */
static bool own_table(void)
{
	return !syscall(SYS_close_range, ~0u, ~0u, UNSHARE_TABLE) || !unshare(CLONE_FILES);
}

/* Starts a thread with all signals blocked: a handler of the program's would see the wrong descriptors there. */
static int start(void *(*run)(void *argument), void *argument)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int refused = pthread_create(&thread, &attributes, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return refused;
}

static void wait_for(sem_t *event)
{
	while (sem_wait(event) && errno == EINTR)
		;
}

/* ---- closing ---- */

/* Shared by the caller and the thread: the last of the two to use it frees it. */
struct closing {
	_Atomic uint32_t users;
	bool own; /* the thread has a table of its own, whose descriptors its end closes; else it closes them itself */
	sem_t held, closed;
	uint32_t count;
	int descriptors[];
};

static void leave(struct closing *closing)
{
	if (atomic_fetch_sub_explicit(&closing->users, 1, memory_order_acq_rel) == 1)
		free(closing);
}

static void *closing_main(void *argument)
{
	struct closing *closing = argument;
	bool own = closing->own = own_table();
	sem_post(&closing->held);
	if (own) /* this table refers to the files until the caller has closed its own: those closes are not the last */
		wait_for(&closing->closed);
	for (uint32_t i = 0; !own && i < closing->count; i++)
		if (closing->descriptors[i] >= 0)
			close(closing->descriptors[i]);
	leave(closing);
	return NULL;
}

static void close_here(const int *descriptors, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
}

static void close_apart(const int *descriptors, uint32_t count)
{
	struct closing *closing = malloc(sizeof *closing + count * sizeof *descriptors);
	if (closing) {
		closing->users = 2;
		closing->count = count;
		memcpy(closing->descriptors, descriptors, count * sizeof *descriptors);
		sem_init(&closing->held, 0, 0);
		sem_init(&closing->closed, 0, 0);
	}
	if (!closing || start(closing_main, closing)) {
		free(closing);
		close_here(descriptors, count);
		return;
	}
	wait_for(&closing->held);
	if (closing->own)
		close_here(descriptors, count);
	sem_post(&closing->closed);
	leave(closing);
}

void ferry_quarantine_close(const int *descriptors, uint32_t count)
{
	int error = errno;
	uint32_t open = 0;
	for (uint32_t i = 0; i < count; i++)
		open += descriptors[i] >= 0;
	if (open)
		close_apart(descriptors, count);
	errno = error;
}

/* ---- users ---- */

/* A user's message in quarantine: listed until all its descriptors but sockets are closed. */
struct held_message {
	uint32_t user;
	struct held_message *next;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct held_message *held_messages; /* of this process, as its threads are */

static struct held_message *hold(uint32_t user)
{
	struct held_message *message = malloc(sizeof *message);
	uint32_t count = 0;
	if (!message)
		return NULL;
	pthread_mutex_lock(&list_lock);
	for (const struct held_message *other = held_messages; other; other = other->next)
		count += other->user == user;
	*message = (struct held_message){user, held_messages};
	if (count < FERRY_QUARANTINE_MOST)
		held_messages = message;
	pthread_mutex_unlock(&list_lock);
	if (count < FERRY_QUARANTINE_MOST)
		return message;
	free(message);
	return NULL;
}

static void release(struct held_message *message)
{
	pthread_mutex_lock(&list_lock);
	struct held_message **link = &held_messages;
	while (*link != message)
		link = &(*link)->next;
	*link = message->next;
	pthread_mutex_unlock(&list_lock);
	free(message);
}

/* ---- receiving ---- */

/* On the caller's stack: the thread does not touch it after it has posted `received`. */
struct receiving {
	int connection, post; /* post: a socket by which admitted descriptors come into the caller's table */
	struct iovec into;
	struct held_message *message;
	ssize_t bytes;
	int error;
	bool truncated, own;
	uint32_t count, admitted, bad; /* bad: the first that is not admitted, or count */
	int shared[FERRY_ATTACH_MOST_DESCRIPTORS]; /* the admitted ones, if the thread has no table of its own */
	sem_t received;
};

/*
 * Whether a descriptor is kernel memory or a device. Neither query asks another process, whatever the descriptor is;
 * fstat would, of a file of a FUSE server or of the network.
 */
static bool is_admitted(int descriptor)
{
	struct statx status;
	if (fcntl(descriptor, F_GET_SEALS) >= 0)
		return true;
	return !statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) &&
	       S_ISCHR(status.stx_mode);
}

static uint32_t receive(struct receiving *receiving, int *descriptors)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_SENT * sizeof(int))];
	struct msghdr message = {.msg_iov = &receiving->into,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = sizeof control};
	uint32_t count = 0;
	receiving->bytes = recvmsg(receiving->connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	receiving->error = errno;
	if (receiving->bytes < 0)
		return 0;
	receiving->truncated = (message.msg_flags & MSG_CTRUNC) != 0;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		size_t bytes = head->cmsg_len - CMSG_LEN(0);
		memcpy(descriptors + count, CMSG_DATA(head), bytes);
		count += (uint32_t)(bytes / sizeof(int));
	}
	return count;
}

static bool post(int to, const int *descriptors, uint32_t count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_SENT * sizeof(int))] = {0};
	char byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = CMSG_SPACE(count * sizeof(int))};
	*CMSG_FIRSTHDR(&message) = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), descriptors, count * sizeof(int));
	return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* Closes all of the thread's own table but the refused descriptors, whose numbers ascend. */
static void close_others(const int *refused, uint32_t count)
{
	unsigned from = 0;
	for (uint32_t i = 0; i < count; i++) {
		if ((unsigned)refused[i] > from)
			syscall(SYS_close_range, from, (unsigned)refused[i] - 1, 0);
		from = (unsigned)refused[i] + 1;
	}
	syscall(SYS_close_range, from, ~0u, 0);
}

/* May sleep. The end of a thread with a table of its own closes the sockets: they do not linger then. */
static void close_refused(const int *refused, uint32_t count, bool own)
{
	for (uint32_t i = 0; i < count; i++) {
		struct statx status;
		bool socket = own &&
		              !statx(refused[i], "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) &&
		              S_ISSOCK(status.stx_mode);
		if (!socket)
			close(refused[i]);
	}
}

static void *receiving_main(void *argument)
{
	struct receiving *receiving = argument;
	struct held_message *message = receiving->message;
	int descriptors[MOST_SENT], refused[MOST_SENT], good[FERRY_ATTACH_MOST_DESCRIPTORS];
	uint32_t nrefused = 0, ngood = 0;
	bool own = receiving->own = own_table();
	uint32_t count = receiving->count = receiving->bad = receive(receiving, descriptors);
	for (uint32_t i = 0; i < count; i++) {
		bool admitted = is_admitted(descriptors[i]);
		if (!admitted && receiving->bad == count)
			receiving->bad = i;
		if (admitted && ngood < FERRY_ATTACH_MOST_DESCRIPTORS)
			good[ngood++] = descriptors[i];
		else
			refused[nrefused++] = descriptors[i];
	}
	receiving->admitted = ngood;
	if (own && ngood && !post(receiving->post, good, ngood))
		receiving->truncated = true;
	memcpy(receiving->shared, good, ngood * sizeof *good);
	sem_post(&receiving->received);
	if (own)
		close_others(refused, nrefused);
	close_refused(refused, nrefused, own);
	release(message);
	return NULL;
}

/* Moves the admitted descriptors into this thread's table. */
static void take_admitted(const struct receiving *receiving, int from, struct ferry_attach_received *received)
{
	char byte;
	if (receiving->own && receiving->admitted)
		ferry_attach_receive(from, &byte, 1, received);
	for (uint32_t i = 0; !receiving->own && i < receiving->admitted; i++)
		received->descriptors[received->ndescriptors++] = receiving->shared[i];
	received->truncated |= receiving->truncated || receiving->count > FERRY_ATTACH_MOST_DESCRIPTORS;
	received->bytes = receiving->bytes;
}

static ferryResult_t receive_apart(int connection, uint32_t user, void *into, size_t bytes,
                                   struct ferry_attach_received *received)
{
	int ends[2];
	struct receiving receiving = {.connection = connection, .into = {into, bytes}, .message = hold(user)};
	if (!receiving.message)
		return ferry_fail(ferryRefused,
		                  "a message with descriptors, while those of %u messages of uid %u are still being "
		                  "closed: a file system of theirs does not answer",
		                  FERRY_QUARANTINE_MOST, user);
	int refused = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) ? errno : 0;
	if (refused) {
		release(receiving.message);
		return ferry_fail(ferrySystemError, "descriptors to receive others with: %s%s", strerror(refused),
		                  ferry_descriptors_hint(refused));
	}
	receiving.post = ends[1];
	sem_init(&receiving.received, 0, 0);
	refused = start(receiving_main, &receiving);
	if (!refused) {
		wait_for(&receiving.received);
		take_admitted(&receiving, ends[0], received);
	} else {
		sem_destroy(&receiving.received);
		release(receiving.message);
	}
	close(ends[0]);
	close(ends[1]);
	errno = receiving.error;
	if (refused)
		return ferry_fail(ferrySystemError, "a thread to receive descriptors in: %s%s", strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	if (receiving.bad == receiving.count)
		return ferrySuccess;
	ferry_quarantine_close(received->descriptors, received->ndescriptors);
	received->ndescriptors = 0;
	return ferry_fail(ferryInvalidArgument, "descriptor %u of a message is of neither memory nor a device",
	                  receiving.bad);
}

ferryResult_t ferry_quarantine_receive(int connection, uint32_t user, void *into, size_t bytes,
                                       struct ferry_attach_received *received)
{
	struct iovec part = {into, bytes};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	received->ndescriptors = 0;
	received->truncated = false;
	/* Peeks without room for descriptors: they stay in the queue, so none is closed. */
	received->bytes = recvmsg(connection, &message, MSG_PEEK | MSG_DONTWAIT);
	if (received->bytes <= 0)
		return ferrySuccess;
	if (message.msg_flags & MSG_CTRUNC)
		return receive_apart(connection, user, into, bytes, received);
	/* Exactly these bytes: what has come since may have descriptors. */
	received->bytes = recv(connection, into, (size_t)received->bytes, MSG_DONTWAIT);
	return ferrySuccess;
}
