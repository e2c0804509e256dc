/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/forks.h"

#include "rank-lib/call/ranges.h"
#include "rank-lib/call/stream_flags.h"
#include "rank-lib/device/host.h"
#include "rank-lib/failover/router_monitor.h"

#include <unistd.h>

/*
 * A child has no lanes, and no use for the rank's sockets. The child closes them: as long as they were open there, no
 * router would see the rank die.
 */
static struct ferry_rank *attached; /* under attached_lock */
static pthread_mutex_t attached_lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes the locks of all tables: a lock that another thread held would stay locked in the child for ever. */
static void before_fork(void)
{
	pthread_mutex_lock(&attached_lock);
	ferry_host_before_fork();
	ferry_stream_flags_before_fork();
	ferry_ranges_before_fork();
	ferry_router_monitor_before_fork();
}

static void after_fork(void)
{
	ferry_router_monitor_after_fork(false);
	ferry_ranges_after_fork(false);
	ferry_stream_flags_after_fork(false);
	ferry_host_after_fork(false);
	pthread_mutex_unlock(&attached_lock);
}

static void after_fork_in_child(void)
{
	for (struct ferry_rank *rank = attached; rank; rank = rank->next_attached) {
		rank->forked = true;
		for (uint32_t domain = 0; domain < rank->ndomains; domain++)
			ferry_link_close(&rank->links[domain]);
	}
	attached = NULL;
	ferry_router_monitor_after_fork(true);
	ferry_ranges_after_fork(true);
	ferry_stream_flags_after_fork(true);
	ferry_host_after_fork(true);
	pthread_mutex_unlock(&attached_lock);
}

/* In a constructor, as streams can be made before any communicator. */
__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void ferry_forks_add(struct ferry_rank *rank)
{
	pthread_mutex_lock(&attached_lock);
	rank->next_attached = attached;
	attached = rank;
	pthread_mutex_unlock(&attached_lock);
}

void ferry_forks_remove(struct ferry_rank *rank)
{
	pthread_mutex_lock(&attached_lock);
	for (struct ferry_rank **link = &attached; *link; link = &(*link)->next_attached)
		if (*link == rank) {
			*link = rank->next_attached;
			break;
		}
	pthread_mutex_unlock(&attached_lock);
}
