/* SPDX-License-Identifier: Apache-2.0 */
/* What a router's counters say of itself, in the words of ferry-stat --routers, for tests that look for one of them. */
#ifndef FERRY_TESTS_STATUS_LINE_H
#define FERRY_TESTS_STATUS_LINE_H

#include "ipc/attach.h"
#include "ipc/counters.h"
#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/error.h"

#include <unistd.h>

static inline ferryResult_t counters_read_whole(const struct ferry_counters_page *page,
                                                struct ferry_counters *counters, struct ferry_deadline *deadline)
{
	ferryResult_t result;
	while ((result = ferry_counters_read(page, counters)) == ferryInProgress && !ferry_deadline_is_over(deadline))
		usleep(1000);
	return result != ferryInProgress ? result
	                                 : ferry_fail(ferryRemoteError, "the router's counters stay half written");
}

/* Connects to the router on that socket, asks, and reads once. */
static inline ferryResult_t counters_take(const char *of, struct ferry_counters *counters)
{
	struct ferry_deadline deadline = ferry_deadline_for(FERRY_DEADLINE_PROBE_S, NULL);
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_STATUS};
	struct ferry_attach_reply reply;
	const struct ferry_counters_page *page;
	int connection, descriptor;
	ferryResult_t result = ferry_endpoint_connect_within(of, &connection, &deadline);
	if (result)
		return result;
	result = ferry_attach_exchange_within(connection, &message, NULL, NULL, &reply, &descriptor, 1, &deadline);
	if (!result) {
		result = ferry_counters_map(descriptor, &page);
		close(descriptor);
	}
	if (!result) {
		result = counters_read_whole(page, counters, &deadline);
		ferry_counters_unmap(page);
	}
	close(connection);
	if (result)
		ferry_fail_context(result, "the router on %s", of);
	return result;
}

static inline ferryResult_t status_line(const char *of, char *text, size_t bytes)
{
	static struct ferry_counters counters;
	ferryResult_t result = counters_take(of, &counters);
	if (!result)
		ferry_counters_print(&counters, text, bytes);
	return result;
}

#endif
