/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/patience.h"

#include "ipc/environment.h"
#include "ipc/wait.h"

#include <poll.h>

struct ferry_patience ferry_patience_for(unsigned seconds, const _Atomic uint32_t *given_up)
{
	return (struct ferry_patience){
	        .seconds = seconds, .until = ferry_now_ns() + seconds * 1000000000ull, .given_up = given_up};
}

bool ferry_patience_is_given_up(const struct ferry_patience *patience)
{
	return (patience->given_up && atomic_load(patience->given_up)) ||
	       (patience->gives_up && patience->gives_up(patience->who));
}

bool ferry_patience_is_over(struct ferry_patience *patience)
{
	patience->over = ferry_now_ns() >= patience->until || ferry_patience_is_given_up(patience);
	return patience->over;
}

bool ferry_patience_waits(int connection, short events, struct ferry_patience *patience)
{
	while (!ferry_patience_is_over(patience)) {
		uint64_t now = ferry_now_ns(), ms = patience->until > now ? (patience->until - now) / 1000000 + 1 : 1;
		struct pollfd entry = {connection, events, 0};
		if ((patience->given_up || patience->gives_up) && ms > FERRY_PATIENCE_GLANCE_MS)
			ms = FERRY_PATIENCE_GLANCE_MS;
		if (poll(&entry, 1, (int)ms) > 0)
			return true;
	}
	return false;
}

ferryResult_t ferry_patience_seconds(long *seconds)
{
	return ferry_env_integer("FERRY_ATTACH_TIMEOUT", 1, 86400, 60, seconds);
}
