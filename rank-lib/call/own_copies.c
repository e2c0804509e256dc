/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/own_copies.h"

#include "ipc/error.h"

#include <stdlib.h>

ferryResult_t ferry_own_copies(const struct ferry_steps *steps, const struct ferry_call_buffers *buffers,
                               struct ferry_stream_call *call)
{
	call->copies = NULL;
	call->ncopies = 0;
	for (uint32_t i = 0; i < steps->nsteps[FERRY_DIR_H2D]; i++) {
		const struct ferry_step *step = &steps->steps[FERRY_DIR_H2D][0][i];
		struct ferry_transfer transfer;
		if (!ferry_call_stream_copies(buffers, step))
			continue;
		ferry_call_fill_transfer(steps->plan, buffers, step, &transfer);
		if (!transfer.length || transfer.user == transfer.destination)
			continue;
		struct ferry_local_copy *grown = realloc(call->copies, (call->ncopies + 1) * sizeof *grown);
		if (!grown) {
			free(call->copies);
			call->copies = NULL;
			return ferry_fail(ferrySystemError, "no memory for %u copies", call->ncopies + 1);
		}
		call->copies = grown;
		grown[call->ncopies++] = (struct ferry_local_copy){transfer.destination, transfer.user,
		                                                   transfer.length};
	}
	return ferrySuccess;
}

void ferry_own_copies_free(const struct ferry_stream_call *call)
{
	free(call->copies);
	free(call->before);
	free(call->after);
}
