/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/open_call.h"

#include "ipc/error.h"

#include <stdlib.h>

/*
 * Until the wait for the flag is in the stream, the flag must not go to another stream, even if the call is over. A
 * captured call's flag is held by its capture.
 */
static void hold_flag(const struct ferry_open_call *open, bool held)
{
	if (!open->flags)
		return;
	ferry_stream_flag_hold(open->flags, (uint32_t)(open->rest.flag - ferry_stream_flag_at(0)), held);
}

void ferry_open_call_keep(struct ferry_open_call *open, struct ferry_device *device, struct ferry_rank *rank,
                          struct ferry_stream_flag_table *flags, ferryStream_t stream,
                          struct ferry_stream_call *in_stream)
{
	open->device = device;
	open->rank = rank;
	open->flags = in_stream->forget ? NULL : flags;
	open->stream = stream;
	open->rest = (struct ferry_stream_call){.flag = in_stream->flag,
	                                        .after = in_stream->after,
	                                        .nafter = in_stream->nafter,
	                                        .kernel = in_stream->kernel};
	in_stream->after = NULL;
	in_stream->nafter = 0;
	hold_flag(open, true);
}

ferryResult_t ferry_open_call_finish(struct ferry_open_call *open)
{
	if (!open->device)
		return ferrySuccess;
	ferryResult_t result = open->device->ops->finish_flag(open->device, open->stream, &open->rest);
	hold_flag(open, false);
	if (result)
		ferry_rank_fail(open->rank, result, ferry_last_message());
	free(open->rest.after);
	open->device = NULL;
	return result;
}
