/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/missing_ranks.h"

#include "ipc/counters.h"
#include "ipc/rankset.h"
#include "ipc/wait.h"
#include "launch/reader.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define PATIENCE_NS 200000000ull
#define LOOK_MS     10

/* Reads the counters of domain 0's router. False: it has not answered, or has ended. */
static bool read_counters(const char *directory, struct ferry_counters *counters)
{
	struct ferry_socket socket = {.place = "run"};
	struct ferry_reader reader;
	uint64_t until = ferry_now_ns() + PATIENCE_NS;
	bool over = false;
	snprintf(socket.path, sizeof socket.path, "%s/router-0.sock", directory);
	ferry_reader_begin(&reader, &socket);
	while (!(over = ferry_reader_go_on(&reader, counters)) && ferry_now_ns() < until)
		poll(&(struct pollfd){reader.connection, POLLIN, 0}, 1, LOOK_MS);
	bool there = over && reader.state == FERRY_READER_MAPPED;
	ferry_reader_end(&reader);
	return there;
}

bool ferry_missing_ranks_tell(const char *directory, uint64_t ended, unsigned nranks)
{
	struct ferry_counters *counters = malloc(sizeof *counters);
	bool told = false;
	if (counters && read_counters(directory, counters))
		for (uint32_t i = 0; i < counters->njob_rows && !told; i++) {
			const struct ferry_job_counters *job = &counters->job_rows[i];
			char missing[FERRY_RANKSET_TEXT], waiting[FERRY_RANKSET_TEXT];
			if (job->state != FERRY_JOB_ATTACHING || job->nranks != nranks || !(ended & ~job->attached))
				continue;
			fprintf(stderr,
			        "ferryrun: %s ended with code 0 before attaching; waiting in vain, until "
			        "FERRY_ATTACH_TIMEOUT: %s\n",
			        ferry_rankset_print(ended & ~job->attached, missing),
			        ferry_rankset_print(job->attached, waiting));
			told = true;
		}
	free(counters);
	return told;
}
