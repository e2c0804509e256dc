/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/rankset.h"

#include <stdio.h>

const char *ferry_rankset_print(uint64_t ranks, char text[FERRY_RANKSET_TEXT])
{
	size_t length = (size_t)snprintf(text, FERRY_RANKSET_TEXT, ranks & (ranks - 1) ? "ranks" : "rank");
	const char *between = " ";
	for (unsigned first = 0; first < FERRY_MAX_RANKS; first++) {
		unsigned last = first;
		if (!(ranks >> first & 1))
			continue;
		while (last + 1 < FERRY_MAX_RANKS && ranks >> (last + 1) & 1)
			last++;
		length += (size_t)snprintf(text + length, FERRY_RANKSET_TEXT - length,
		                           last > first ? "%s%u-%u" : "%s%u", between, first, last);
		between = ", ";
		first = last;
	}
	return text;
}
