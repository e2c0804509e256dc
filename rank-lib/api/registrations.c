/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/api/registrations.h"

#include "ipc/error.h"

#include <stdlib.h>

struct ferry_registration {
	bool named; /* it is exported */
	struct ferry_buffer_name name;
	struct ferry_registration *next;
};

static ferryResult_t name_buffer(struct ferry_exports *exports, const void *buffer, size_t bytes,
                                 struct ferry_registration *made)
{
	if (!exports)
		return ferrySuccess;
	ferry_exports_begin(exports);
	ferryResult_t result = ferry_exports_name(exports, buffer, bytes, 0, true, false, &made->name);
	made->named = !result;
	if (!ferry_exports_refused(result))
		return result;
	ferry_forget_message(); /* it cannot be exported: calls with it go another way */
	return ferrySuccess;
}

ferryResult_t ferry_registrations_add(struct ferry_registrations *registrations, struct ferry_exports *exports,
                                      const void *buffer, size_t bytes, void **handle)
{
	struct ferry_registration *made = calloc(1, sizeof *made);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a registration");
	ferryResult_t result = name_buffer(exports, buffer, bytes, made);
	if (result) {
		free(made);
		return result;
	}
	made->next = registrations->all;
	registrations->all = made;
	*handle = made;
	return ferrySuccess;
}

ferryResult_t ferry_registrations_remove(struct ferry_registrations *registrations, struct ferry_exports *exports,
                                         void *handle)
{
	struct ferry_registration **link = &registrations->all;
	ferryResult_t result = ferrySuccess;
	while (*link && *link != handle)
		link = &(*link)->next;
	struct ferry_registration *ended = *link;
	if (!ended)
		return ferry_fail(ferryInvalidArgument,
		                  "ferryCommDeregister: %p is no registration of this communicator", handle);
	*link = ended->next;
	if (ended->named) {
		ferry_exports_unpin(exports, &ended->name);
		result = ferry_exports_forget(exports, &ended->name);
	}
	free(ended);
	return result;
}

void ferry_registrations_free(struct ferry_registrations *registrations)
{
	while (registrations->all) {
		struct ferry_registration *ended = registrations->all;
		registrations->all = ended->next;
		free(ended);
	}
}
