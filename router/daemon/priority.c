/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/priority.h"

#include "ipc/error.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* For PRIO_PROCESS Linux takes a thread for a process. */
static int nice_now(void)
{
	return getpriority(PRIO_PROCESS, (id_t)gettid());
}

void ferry_priority_open(struct ferry_priority *priority, int nice)
{
	priority->nice = nice;
	atomic_store_explicit(&priority->needed, 0, memory_order_relaxed);
	atomic_store_explicit(&priority->got, nice_now(), memory_order_relaxed);
}

void ferry_priority_need(struct ferry_priority *priority)
{
	if (priority)
		atomic_store_explicit(&priority->needed, 1, memory_order_relaxed);
}

void ferry_priority_take(struct ferry_priority *priority, bool *asked)
{
	if (!priority || *asked || !atomic_load_explicit(&priority->needed, memory_order_relaxed))
		return;
	*asked = true;
	if (setpriority(PRIO_PROCESS, (id_t)gettid(), priority->nice))
		ferry_log(FERRY_LOG_INFO, "nice value %d for a thread: %s", priority->nice, strerror(errno));
	atomic_store_explicit(&priority->got, nice_now(), memory_order_relaxed);
}

int ferry_priority_got(struct ferry_priority *priority)
{
	return priority ? atomic_load_explicit(&priority->got, memory_order_relaxed) : nice_now();
}
