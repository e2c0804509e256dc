/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/priority.h"

#include "ipc/error.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define BETTER "-10" /* where no number is named */

/* For PRIO_PROCESS Linux takes a thread for a process. */
static int nice_now(void)
{
	return getpriority(PRIO_PROCESS, (id_t)gettid());
}

ferryResult_t ferry_priority_read(struct ferry_priority *priority, const char *of, const char *text)
{
	char *end;
	bool realtime = !strcmp(text, "rt"), for_gpus = !strcmp(text, "gpu");
	errno = 0;
	long nice = strtol(realtime || for_gpus ? BETTER : text, &end, 10);
	if (errno || *end || end == text || nice < -20 || nice > 19)
		return ferry_fail(ferryInvalidArgument, "%s=%s: a nice value from -20 to 19, or rt, or gpu", of, text);
	priority->nice = (int)nice;
	priority->realtime = realtime;
	atomic_store_explicit(&priority->needed, !for_gpus, memory_order_relaxed);
	atomic_store_explicit(&priority->got, nice_now(), memory_order_relaxed);
	return ferrySuccess;
}

void ferry_priority_need(struct ferry_priority *priority)
{
	if (priority)
		atomic_store_explicit(&priority->needed, 1, memory_order_relaxed);
}

void ferry_priority_take(struct ferry_priority *priority, bool *asked)
{
	const struct sched_param lowest = {.sched_priority = sched_get_priority_min(SCHED_RR)};
	if (!priority || *asked || !atomic_load_explicit(&priority->needed, memory_order_relaxed))
		return;
	*asked = true;
	if (priority->realtime && !sched_setscheduler(gettid(), SCHED_RR | SCHED_RESET_ON_FORK, &lowest)) {
		atomic_store_explicit(&priority->got, FERRY_PRIORITY_REALTIME, memory_order_relaxed);
		return;
	}
	if (setpriority(PRIO_PROCESS, (id_t)gettid(), priority->nice))
		ferry_log(FERRY_LOG_INFO, "nice value %d for a thread: %s", priority->nice, strerror(errno));
	atomic_store_explicit(&priority->got, nice_now(), memory_order_relaxed);
}

void ferry_priority_print(struct ferry_priority *priority, char *text, size_t bytes)
{
	int got = priority ? atomic_load_explicit(&priority->got, memory_order_relaxed) : nice_now();
	if (got == FERRY_PRIORITY_REALTIME)
		snprintf(text, bytes, "rt");
	else
		snprintf(text, bytes, "%d", got);
}
