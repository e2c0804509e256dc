/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/open_call.h"

#include "ipc/error.h"

#include <stdlib.h>

void ferry_open_call_keep(struct ferry_open_call *open, struct ferry_device *device, struct ferry_rank *rank,
                          ferryStream_t stream, struct ferry_stream_call *in_stream)
{
	open->device = device;
	open->rank = rank;
	open->stream = stream;
	open->rest = (struct ferry_stream_call){.flag = in_stream->flag,
	                                        .after = in_stream->after,
	                                        .nafter = in_stream->nafter,
	                                        .kernel = in_stream->kernel};
	in_stream->after = NULL;
	in_stream->nafter = 0;
}

ferryResult_t ferry_open_call_finish(struct ferry_open_call *open)
{
	if (!open->device)
		return ferrySuccess;
	ferryResult_t result = open->device->ops->finish_flag(open->device, open->stream, &open->rest);
	if (result)
		ferry_rank_fail(open->rank, result, ferry_last_message());
	free(open->rest.after);
	open->device = NULL;
	return result;
}
