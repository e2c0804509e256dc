/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/timeout.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <string.h>

#define REPORTS 10
#define FAILS 600 /* a rank may compile, or write what it has learned; what goes on by itself is not ended */

ferryResult_t ferry_timeout_read(struct ferry_timeout *timeout)
{
	const char *action = ferry_env("FERRY_ON_TIMEOUT");
	bool fails = action && !strcmp(action, "fail"), replaces = action && !strcmp(action, "takeover");
	long seconds;
	if (action && !fails && !replaces && strcmp(action, "report"))
		return ferry_fail(ferryInvalidArgument, "FERRY_ON_TIMEOUT=%s: report, fail or takeover", action);
	ferryResult_t result = ferry_env_integer("FERRY_TIMEOUT", 0, 86400, fails ? FAILS : REPORTS, &seconds);
	if (result)
		return result;
	timeout->fails = fails ? (uint32_t)seconds : 0;
	timeout->replaces = replaces ? (uint32_t)seconds : 0;
	timeout->reports = fails && seconds > REPORTS ? REPORTS : (uint32_t)seconds;
	return ferrySuccess;
}
