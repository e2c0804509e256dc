/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks of one process at once, each made by a thread of its own. */
#include "ipc/arena.h"
#include "ipc/error.h"
#include "ipc/process.h"
#include "rank-lib/api/comm_init.h"
#include "rank-lib/attach/key.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct one_of_all {
	ferryComm_t *comm;
	int nranks, rank, ordinal;
	const uint8_t *key;
	ferryResult_t result;
	char message[FERRY_MESSAGE_BYTES];
	pthread_t thread;
	bool started;
};

static void *init_one(void *argument)
{
	struct one_of_all *one = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.ordinal = one->ordinal;
	one->result = ferry_comm_make(one->comm, one->nranks, one->key, one->rank, &config, NULL, NULL);
	if (one->result)
		snprintf(one->message, sizeof one->message, "%s", ferry_last_message());
	return NULL;
}

static ferryResult_t check_devices(int ndevices, const int *devices)
{
	for (int i = 0; devices && i < ndevices; i++) {
		if (devices[i] < 0)
			return ferry_fail(ferryInvalidArgument, "ferryCommInitAll: devices[%d] = %d", i, devices[i]);
		for (int j = 0; j < i; j++)
			if (devices[i] == devices[j])
				return ferry_fail(ferryInvalidArgument,
				                  "ferryCommInitAll: devices[%d] = %d and devices[%d] = %d: one rank "
				                  "per device",
				                  i, devices[i], j, devices[j]);
	}
	return ferrySuccess;
}

ferryResult_t ferryCommInitAll(ferryComm_t *comms, int ndevices, const int *devices)
{
	uint8_t key[FERRY_KEY_BYTES];
	struct one_of_all all[FERRY_MAX_RANKS];
	if (!comms || ndevices < 1 || ndevices > FERRY_MAX_RANKS)
		return ferry_fail(ferryInvalidArgument, "ferryCommInitAll: comms %p, %d devices: 1 to %d",
		                  (void *)comms, ndevices, FERRY_MAX_RANKS);
	ferryResult_t result = check_devices(ndevices, devices);
	if (result)
		return result;
	result = ferry_random_key(key);
	for (int i = 0; i < ndevices; i++) {
		all[i] = (struct one_of_all){.comm = &comms[i],
		                             .nranks = ndevices,
		                             .rank = i,
		                             .ordinal = devices ? devices[i] : i,
		                             .key = key};
		comms[i] = NULL;
	}
	int started = 0;
	for (; started < ndevices && !result; started++) {
		int refused = pthread_create(&all[started].thread, NULL, init_one, &all[started]);
		if (refused) /* the ranks already started give up at FERRY_ATTACH_TIMEOUT */
			result = ferry_fail(ferrySystemError, "a thread for rank %d: %s%s", started, strerror(refused),
			                    ferry_ulimit_threads_hint(refused));
		else
			all[started].started = true;
	}
	for (int i = 0; i < started; i++) {
		if (all[i].started)
			pthread_join(all[i].thread, NULL);
		if (all[i].started && all[i].result && !result)
			result = ferry_fail(all[i].result, "rank %d: %s", i, all[i].message);
	}
	for (int i = 0; i < ndevices && result; i++)
		if (comms[i]) {
			ferryCommAbort(comms[i]);
			comms[i] = NULL;
		}
	return result;
}
