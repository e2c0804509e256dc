/* SPDX-License-Identifier: Apache-2.0 */
/* What a router's counters say of itself, in the words of ferry-stat --routers, for tests that look for one of them. */
#ifndef FERRY_TESTS_STATUS_LINE_H
#define FERRY_TESTS_STATUS_LINE_H

#include "ipc/counters.h"

static inline ferryResult_t status_line(const char *of, char *text, size_t bytes)
{
	static struct ferry_counters counters;
	ferryResult_t result = ferry_counters_take(of, &counters);
	if (!result)
		ferry_counters_print(&counters, text, bytes);
	return result;
}

#endif
