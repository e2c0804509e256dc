/* SPDX-License-Identifier: Apache-2.0 */
/* ferryCommRegister and ferryCommDeregister: a name that is pinned, in a list of the communicator's, under its lock. */
#include "rank-lib/comm.h"
#include "rank-lib/exports.h"

#include <stdlib.h>

struct ferry_registration {
	bool named; /* else there is nothing to forget */
	struct ferry_buffer_name name;
	struct ferry_registration *next;
};

static ferryResult_t name_buffer(struct ferryComm *comm, const void *buffer, size_t bytes,
                                 struct ferry_registration *made)
{
	if (!comm->exports)
		return ferrySuccess;
	ferryResult_t result = ferry_exports_name(comm->exports, buffer, bytes, 0, true, &made->name);
	made->named = !result;
	if (result != ferryInvalidUsage)
		return result;
	ferry_forget_message(); /* it cannot be exported: calls with it go another way */
	return ferrySuccess;
}

ferryResult_t ferryCommRegister(ferryComm_t comm, const void *buffer, size_t bytes, void **handle)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	if (!handle || !buffer || !bytes)
		return ferry_fail(ferryInvalidArgument, "ferryCommRegister: buffer %p of %zu bytes, handle %p", buffer,
		                  bytes, (void *)handle);
	result = comm->device->ops->check_buffer(comm->device, buffer, bytes, "buffer");
	if (result)
		return result;
	struct ferry_registration *made = calloc(1, sizeof *made);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a registration");
	pthread_mutex_lock(&comm->lock);
	result = name_buffer(comm, buffer, bytes, made);
	if (!result) {
		made->next = comm->registrations;
		comm->registrations = made;
	}
	pthread_mutex_unlock(&comm->lock);
	if (result)
		free(made);
	else
		*handle = made;
	return result;
}

ferryResult_t ferryCommDeregister(ferryComm_t comm, void *handle)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	pthread_mutex_lock(&comm->lock);
	struct ferry_registration **link = &comm->registrations;
	while (*link && *link != handle)
		link = &(*link)->next;
	struct ferry_registration *ended = *link;
	if (ended)
		*link = ended->next;
	if (ended && ended->named) {
		ferry_exports_unpin(comm->exports, &ended->name);
		result = ferry_exports_forget(comm->exports, &ended->name);
	}
	pthread_mutex_unlock(&comm->lock);
	if (!ended)
		return ferry_fail(ferryInvalidArgument,
		                  "ferryCommDeregister: %p is no registration of this communicator", handle);
	free(ended);
	return result;
}

void ferry_comm_free_registrations(struct ferryComm *comm)
{
	while (comm->registrations) {
		struct ferry_registration *ended = comm->registrations;
		comm->registrations = ended->next;
		free(ended);
	}
	ferry_exports_close(comm->exports);
	comm->exports = NULL;
}
