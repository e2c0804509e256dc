/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank has exported to its domain's router, and the names of its buffers there: a table of FERRY_MOST_EXPORTS
 * entries, each with the range of addresses, the pieces that it lies in, with their ids, and the generation. A put
 * target is exported under the same name also to each other domain's router whose GPUs reach it (there this rank is a
 * foreign rank: router/gpu/imports.h). Everything is under the communicator's lock. The router's half is
 * router/gpu/imports.h, which also explains why nothing is unmapped that a submission names.
 */
#ifndef FERRY_RANK_LIB_CALL_EXPORTS_H
#define FERRY_RANK_LIB_CALL_EXPORTS_H

#include "rank-lib/call/holders.h"
#include "rank-lib/device/device.h"
#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/link.h"

struct ferry_exports;

/**
 * Opens the table of a rank that its router has taken as mapped. link: to the router (a child that the rank forks has
 * none); failed: the rank's, and once it is not 0 no thread waits for the router; cells: the rank's, in that router's
 * arena; holders: the communicator's (ranges.h). Error: ferryInvalidUsage if this kind of device exports nothing.
 */
ferryResult_t ferry_exports_open(struct ferry_device *device, struct ferry_link *link, const _Atomic uint32_t *failed,
                                 struct ferry_export_cell *cells, struct ferry_holders *holders,
                                 struct ferry_exports **exports);

/** From now on exports put targets to this router of another domain, too. Arguments as above. */
void ferry_exports_add_host(struct ferry_exports *exports, struct ferry_link *link, struct ferry_export_cell *cells);

/** From now on notes in the journal what the rank's router has mapped, for the next router; NULL: no journal. */
void ferry_exports_journal(struct ferry_exports *exports, struct ferry_journal *journal);

void ferry_exports_close(struct ferry_exports *exports);

/** To be called before each call, or other use under the lock: the memory behind addresses is then looked up anew. */
void ferry_exports_begin(struct ferry_exports *exports);

/** Whether the bytes are device memory that was exported and still exists: valid for any call. */
bool ferry_exports_hold(struct ferry_exports *exports, const void *buffer, uint64_t bytes);

/**
 * Whether the routers have mapped the bytes, as put target, too, if that is asked: naming them then costs next to
 * nothing unless they stay idle for too long. Calls the driver alone, 0.1 us per piece.
 */
bool ferry_exports_have(struct ferry_exports *exports, const void *buffer, uint64_t bytes, bool put_target);

/**
 * Names bytes for submission number `submission` (from 1, growing; 0: for none). pin: the router keeps the mapping,
 * too, until ferry_exports_unpin. put target: other ranks put into it, so the routers of their GPUs map it as well. If
 * a router has not mapped the bytes, or other memory has taken their place, they are exported at once, which takes up
 * to 10 ms; else 0.1 us and as much per piece. Errors: those that ferry_exports_refused knows, after which the call
 * must go another way: ferryInvalidUsage if the memory cannot be exported; ferryRefused if all indexes are pinned, or
 * the router still maps freed memory at that index. ferryInvalidArgument: no memory of the device; ferryRemoteError,
 * ferrySystemError: the router does not answer; the router's and the driver's.
 */
ferryResult_t ferry_exports_name(struct ferry_exports *exports, const void *buffer, uint64_t bytes, uint64_t submission,
                                 bool pin, bool put_target, struct ferry_buffer_name *name);

static inline bool ferry_exports_refused(ferryResult_t result)
{
	return result == ferryInvalidUsage || result == ferryRefused;
}

/** Takes back one pin. Does nothing if the memory of that name has gone. */
void ferry_exports_unpin(struct ferry_exports *exports, const struct ferry_buffer_name *name);

/**
 * Makes the router unmap the buffer of that name as soon as no submission uses it, unless it is pinned. Its index is
 * free then. Errors: the router's; none if the rank has failed, as the router then unmaps everything of the rank.
 */
ferryResult_t ferry_exports_forget(struct ferry_exports *exports, const struct ferry_buffer_name *name);

/**
 * Makes the routers unmap the exports in this range of addresses, and waits until they have. gone false: the memory is
 * about to be freed. Exports that are pinned, or named by submissions after `over`, stay mapped; returns true if there
 * are any. gone true: the memory was freed. Exports whose memory still exists stay mapped; pins do not keep the others.
 * If a router does not answer, it unmaps the range once that has been idle.
 */
bool ferry_exports_forget_range(struct ferry_exports *exports, uint64_t start, uint64_t end, uint64_t over, bool gone);

#endif
