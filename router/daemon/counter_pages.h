/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The router's side of its counters (ipc/counters.h): a page for each user that has asked, renewed while a client of
 * that user reads it. By the connection thread; the counters that it reads from ranks' memory are shown, and decide
 * nothing.
 *
 * A page stays until the router ends, as a client that has its descriptor keeps its memory anyway. So there are never
 * more than one per user, and never more than FERRY_COUNTER_PAGES.
 */
#ifndef FERRY_ROUTER_DAEMON_COUNTER_PAGES_H
#define FERRY_ROUTER_DAEMON_COUNTER_PAGES_H

#include "ipc/counters.h"
#include "router/daemon/jobs.h"

#define FERRY_COUNTER_PAGES 256

/* One user's. It sees its own jobs and its own tenant alone; owner 0 (struct ferry_standing) all. */
struct ferry_user_page {
	struct ferry_standing standing; /* of the last client that asked; no tenant while there are no readers */
	uint32_t readers;               /* clients */
	int descriptor;
	struct ferry_counters_page *page;
};

struct ferry_counter_pages {
	struct ferry_user_page all[FERRY_COUNTER_PAGES];
	uint32_t count, readers;  /* readers: clients of all users */
	uint64_t written_ns;      /* the last time for all of them */
	struct ferry_counters draft; /* the values to write next */
};

/**
 * Returns the page of that user, renewed, with one more reader. The descriptor stays the router's. Errors: ferryRefused
 * for one user too many, ferrySystemError.
 */
ferryResult_t ferry_counter_pages_open(struct ferry_jobs *jobs, const struct ferry_standing *standing,
                                       struct ferry_user_page **user);

/** One reader less; user: NULL, or from ferry_counter_pages_open. */
void ferry_counter_pages_close(struct ferry_jobs *jobs, struct ferry_user_page *user);

/** Renews all pages that have readers, if it is time; milliseconds until it is again, or -1 without readers. */
int ferry_counter_pages_renew(struct ferry_jobs *jobs);

/** How many clients read. */
uint32_t ferry_counter_pages_readers(const struct ferry_jobs *jobs);

/** Unmaps all. */
void ferry_counter_pages_end(struct ferry_jobs *jobs);

#endif
