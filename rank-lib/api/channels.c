/* SPDX-License-Identifier: Apache-2.0 */
/* ferryCommChannels: memory for kernels of the caller's own, which was made with the mailboxes. */
#include "ipc/error.h"
#include "rank-lib/call/comm.h"

static const char *why_none(const struct ferry_mailboxes *mailboxes)
{
	if (!mailboxes->channel_bytes)
		return "ferryConfig_t.channels was 0 when the communicator was made";
	return *mailboxes->why_not ? mailboxes->why_not : "only 2 to 8 ranks on GPUs have kernels";
}

static ferryResult_t give(struct ferryComm *comm, ferryChannels_t *channels)
{
	const struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	ferryResult_t result = ferry_comm_enter(comm);
	if (result)
		return result;
	if (mailboxes->ready && mailboxes->channels.bytes)
		*channels = mailboxes->channels;
	else
		result = ferry_fail(ferryInvalidUsage, "ferryCommChannels: none: %s", why_none(mailboxes));
	ferry_comm_exit(comm);
	return result;
}

ferryResult_t ferryCommChannels(ferryComm_t comm, ferryChannels_t *channels)
{
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	if (!channels || channels->size != sizeof *channels)
		result = ferry_fail(ferryInvalidArgument,
		                    "ferryCommChannels: channels %p of size %zu (FERRY_CHANNELS_INITIALIZER has %zu)",
		                    (void *)channels, channels ? channels->size : 0, sizeof *channels);
	else
		result = give(comm, channels);
	ferry_comm_release(comm);
	return result;
}
