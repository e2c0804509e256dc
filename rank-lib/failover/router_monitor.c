/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/failover/router_monitor.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/wait.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LOOK_MS  1
#define WATCH_MS 250

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below; not held while an entry's function runs */
static pthread_cond_t called = PTHREAD_COND_INITIALIZER;
static struct ferry_monitor_entry *first;
static const struct ferry_monitor_entry *calling; /* the one whose function runs */
static pthread_t thread;
static bool running;
static int event = -1; /* wakes it: the list has changed */

static void wake(void)
{
	uint64_t one = 1;
	if (event >= 0 && write(event, &one, sizeof one) < 0)
		return; /* the counter is full: it is awake anyway */
}

static bool is_watched(const struct ferry_monitor_entry *entry)
{
	const struct ferry_monitor_entry *each = first;
	while (each && each != entry)
		each = each->next;
	return each;
}

/* Under the lock. */
static bool any_watched(void)
{
	for (const struct ferry_monitor_entry *entry = first; entry; entry = entry->next)
		if (entry->watch)
			return true;
	return false;
}

/* The set for poll: the event first. Under the lock. NULL: no memory; then the caller tries again in a while. */
static struct pollfd *poll_set(nfds_t *count)
{
	nfds_t entries = 0;
	for (const struct ferry_monitor_entry *entry = first; entry; entry = entry->next)
		entries++;
	struct pollfd *set = calloc(entries + 1, sizeof *set);
	*count = 0;
	if (!set)
		return NULL;
	set[(*count)++] = (struct pollfd){event, POLLIN, 0};
	for (struct ferry_monitor_entry *entry = first; entry; entry = entry->next)
		if ((entry->polled = entry->descriptor >= 0 && !entry->gone))
			set[(*count)++] = (struct pollfd){entry->descriptor, POLLRDHUP, 0};
	return set;
}

static bool has_closed(const struct pollfd *set, nfds_t count, int descriptor)
{
	for (nfds_t i = 1; i < count; i++)
		if (set[i].fd == descriptor)
			return set[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
	return false;
}

/* Under the lock, which is given up meanwhile; `entry` stays, as ferry_router_monitor_remove waits. */
static void call_closed(struct ferry_monitor_entry *entry)
{
	entry->gone = true;
	calling = entry;
	pthread_mutex_unlock(&lock);
	entry->closed(entry);
	pthread_mutex_lock(&lock);
	calling = NULL;
	pthread_cond_broadcast(&called);
}

static void call_look(struct ferry_monitor_entry *entry)
{
	calling = entry;
	entry->looks = false; /* a request for another look that comes meanwhile counts */
	pthread_mutex_unlock(&lock);
	bool again = entry->look(entry);
	pthread_mutex_lock(&lock);
	calling = NULL;
	if (is_watched(entry))
		entry->looks |= again;
	pthread_cond_broadcast(&called);
}

static void call_watch(struct ferry_monitor_entry *entry)
{
	calling = entry;
	pthread_mutex_unlock(&lock);
	entry->watch(entry);
	pthread_mutex_lock(&lock);
	calling = NULL;
	pthread_cond_broadcast(&called);
}

/* Only if `polled`: an entry added since may have a descriptor whose number another one had in the poll. */
static struct ferry_monitor_entry *next_closed(const struct pollfd *set, nfds_t count)
{
	struct ferry_monitor_entry *entry = first;
	while (entry && (entry->gone || !entry->polled || !has_closed(set, count, entry->descriptor)))
		entry = entry->next;
	return entry;
}

/*
 * Entries may leave the list, and others come, while one is called. So closed ones are searched from the start after
 * each call, and the looks end for now once the called entry has left.
 */
static bool attend(const struct pollfd *set, nfds_t count)
{
	bool looks = false;
	for (struct ferry_monitor_entry *entry; (entry = next_closed(set, count));)
		call_closed(entry);
	for (struct ferry_monitor_entry *entry = first; entry; entry = is_watched(entry) ? entry->next : NULL) {
		if (!entry->looks)
			continue;
		call_look(entry);
		looks = true;
	}
	return looks;
}

/* Now and then: calls the `watch` functions. */
static void watch(uint64_t *watched_ns)
{
	uint64_t now = ferry_now_ns();
	if (now - *watched_ns < WATCH_MS * 1000000ull)
		return;
	*watched_ns = now;
	for (struct ferry_monitor_entry *entry = first; entry; entry = is_watched(entry) ? entry->next : NULL)
		if (entry->watch)
			call_watch(entry);
}

static void *router_monitor_main(void *argument)
{
	bool looks = false;
	uint64_t watched_ns = 0;
	(void)argument;
	prctl(PR_SET_NAME, "ferry-monitor");
	pthread_mutex_lock(&lock);
	while (1) {
		nfds_t count;
		struct pollfd *set = poll_set(&count);
		bool watches = any_watched();
		pthread_mutex_unlock(&lock);
		uint64_t events;
		int ready = poll(set, count, looks || !set ? LOOK_MS : watches ? WATCH_MS : -1);
		if (ready > 0 && set[0].revents && read(event, &events, sizeof events) < 0)
			events = 0; /* another thread took the wake-up; the lists are checked in any case */
		pthread_mutex_lock(&lock);
		looks = attend(set, count);
		watch(&watched_ns);
		free(set);
	}
	return NULL;
}

/* Signals are left to the application's threads. */
static ferryResult_t start(void)
{
	sigset_t all, before;
	if (running)
		return ferrySuccess;
	if (event < 0)
		event = ferry_descriptor_above(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	if (event < 0)
		return ferry_fail(ferrySystemError, "a descriptor for Ferry's thread: %s%s", strerror(errno),
		                  ferry_descriptors_hint(errno));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int refused = pthread_create(&thread, NULL, router_monitor_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (refused)
		return ferry_fail(ferrySystemError, "Ferry's thread: %s%s", strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	pthread_detach(thread);
	running = true;
	return ferrySuccess;
}

ferryResult_t ferry_router_monitor_add(struct ferry_monitor_entry *entry)
{
	pthread_mutex_lock(&lock);
	ferryResult_t result = start();
	if (!result) {
		entry->looks = entry->gone = entry->polled = false;
		entry->next = first;
		first = entry;
		wake();
	}
	pthread_mutex_unlock(&lock);
	return result;
}

void ferry_router_monitor_remove(struct ferry_monitor_entry *entry)
{
	pthread_mutex_lock(&lock);
	while (calling == entry)
		pthread_cond_wait(&called, &lock);
	for (struct ferry_monitor_entry **link = &first; *link; link = &(*link)->next)
		if (*link == entry) {
			*link = entry->next;
			wake();
			break;
		}
	pthread_mutex_unlock(&lock);
}

void ferry_router_monitor_look(struct ferry_monitor_entry *entry)
{
	pthread_mutex_lock(&lock);
	entry->looks = true;
	wake();
	pthread_mutex_unlock(&lock);
}

void ferry_router_monitor_follow(struct ferry_monitor_entry *entry, int descriptor)
{
	pthread_mutex_lock(&lock);
	entry->descriptor = descriptor;
	entry->gone = entry->polled = false;
	wake();
	pthread_mutex_unlock(&lock);
}

void ferry_router_monitor_before_fork(void)
{
	pthread_mutex_lock(&lock);
}

void ferry_router_monitor_after_fork(bool in_child)
{
	if (in_child) {
		first = NULL;
		calling = NULL;
		running = false;
		if (event >= 0)
			close(event);
		event = -1;
		pthread_cond_init(&called, NULL);
	}
	pthread_mutex_unlock(&lock);
}
