/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/deadline.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/wait.h"

#include <poll.h>
#include <string.h>

struct ferry_deadline ferry_deadline_for(unsigned seconds, const _Atomic uint32_t *given_up)
{
	return (struct ferry_deadline){
	        .seconds = seconds, .until = ferry_now_ns() + seconds * 1000000000ull, .given_up = given_up};
}

bool ferry_deadline_is_given_up(const struct ferry_deadline *deadline)
{
	return (deadline->given_up && atomic_load(deadline->given_up)) ||
	       (deadline->gives_up && deadline->gives_up(deadline->argument));
}

bool ferry_deadline_is_over(struct ferry_deadline *deadline)
{
	deadline->over = ferry_now_ns() >= deadline->until || ferry_deadline_is_given_up(deadline);
	return deadline->over;
}

bool ferry_deadline_waits(int connection, short events, struct ferry_deadline *deadline)
{
	while (!ferry_deadline_is_over(deadline)) {
		uint64_t now = ferry_now_ns(), ms = deadline->until > now ? (deadline->until - now) / 1000000 + 1 : 1;
		struct pollfd entry = {connection, events, 0};
		if ((deadline->given_up || deadline->gives_up) && ms > FERRY_DEADLINE_POLL_MS)
			ms = FERRY_DEADLINE_POLL_MS;
		if (poll(&entry, 1, (int)ms) > 0)
			return true;
	}
	return false;
}

ferryResult_t ferry_deadline_seconds(long *seconds)
{
	return ferry_env_integer("FERRY_ATTACH_TIMEOUT", 1, 86400, 60, seconds);
}

#define REPORTS 10
#define FAILS 600 /* a rank may compile, or write what it has learned; what goes on by itself is not ended */

ferryResult_t ferry_timeout_read(struct ferry_timeout *timeout)
{
	const char *action = ferry_env("FERRY_ON_TIMEOUT");
	bool fails = action && !strcmp(action, "fail");
	long seconds;
	if (action && !fails && strcmp(action, "report"))
		return ferry_fail(ferryInvalidArgument, "FERRY_ON_TIMEOUT=%s: report or fail", action);
	ferryResult_t result = ferry_env_integer("FERRY_TIMEOUT", 0, 86400, fails ? FAILS : REPORTS, &seconds);
	if (result)
		return result;
	timeout->fails = fails ? (uint32_t)seconds : 0;
	timeout->reports = fails && seconds > REPORTS ? REPORTS : (uint32_t)seconds;
	return ferrySuccess;
}
