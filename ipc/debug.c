/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/debug.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/wait.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic unsigned wanted; /* bits of enum ferry_debug; who reads the environment */

ferryResult_t ferry_debug_read(void)
{
	const char *text = ferry_env("FERRY_DEBUG");
	unsigned found = 0;
	for (const char *at = text ? text : ""; *at;) {
		size_t length = strcspn(at, ",");
		if (length == 4 && !strncmp(at, "plan", length))
			found |= FERRY_DEBUG_PLAN;
		else if (length == 8 && !strncmp(at, "takeover", length))
			found |= FERRY_DEBUG_TAKEOVER;
		else
			return ferry_fail(ferryInvalidArgument, "FERRY_DEBUG=%s: plan, takeover, both, or unset", text);
		at += length + (at[length] == ',');
	}
	atomic_store_explicit(&wanted, found, memory_order_relaxed);
	return ferrySuccess;
}

bool ferry_debug_wants(enum ferry_debug what)
{
	return atomic_load_explicit(&wanted, memory_order_relaxed) & what;
}

void ferry_debug_takeover(uint64_t since_ns, const char *format, ...)
{
	char text[256];
	va_list arguments;
	if (!ferry_debug_wants(FERRY_DEBUG_TAKEOVER))
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "ferry[%d] takeover, %.2f ms: %s\n", (int)getpid(), (double)(ferry_now_ns() - since_ns) / 1e6,
	        text);
}
