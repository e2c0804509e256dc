/* SPDX-License-Identifier: Apache-2.0 */
#include "router/later_export.h"

#include "ipc/error.h"
#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ferry_later_export_free(struct ferry_later_export *later)
{
	for (uint32_t i = 0; later && i < later->exported.npieces; i++)
		close(later->descriptors[i]);
	free(later);
}

ferryResult_t ferry_later_export_new(const struct ferry_exported *exported, const int *descriptors,
                                     struct ferry_later_export **made)
{
	struct ferry_later_export *later = malloc(sizeof *later);
	if (!later)
		return ferry_fail(ferrySystemError, "no memory for an export");
	memcpy(&later->exported, exported, ferry_exported_size(exported));
	later->exported.npieces = 0; /* that have a descriptor */
	for (uint32_t i = 0; i < exported->npieces; i++) {
		int copy = fcntl(descriptors[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		if (copy < 0) {
			ferryResult_t result = ferry_fail(ferrySystemError, "descriptors of an export: %s%s",
			                                  strerror(errno), ferry_descriptors_hint(errno));
			ferry_later_export_free(later);
			return result;
		}
		later->descriptors[later->exported.npieces++] = copy;
	}
	*made = later;
	return ferrySuccess;
}
