/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank has exported to its domain's router, and the names of its buffers there. A table of FERRY_MOST_EXPORTS,
 * by index: the range of addresses, the pieces that it lies in, with their ids, and the generation. What other ranks
 * put into is exported under the same name to each other domain's router whose GPUs reach it (a host of this rank, as a
 * foreign rank: router/gpu/imports.h). Everything is under the communicator's lock. The router's half is
 * router/gpu/imports.h, which also has the argument of why nothing is forgotten that a submission names.
 */
#ifndef FERRY_RANK_LIB_CALL_EXPORTS_H
#define FERRY_RANK_LIB_CALL_EXPORTS_H

#include "rank-lib/call/holders.h"
#include "rank-lib/device/device.h"
#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/link.h"

struct ferry_exports;

/**
 * For a rank that its router has taken as mapped. link: to the router (a child that the rank forks has none); failed:
 * the rank's, nobody waits for the router once it is not 0; cells: the rank's, in that router's arena; holders: of the
 * communicator (ranges.h). ferryInvalidUsage: this kind of device exports nothing.
 */
ferryResult_t ferry_exports_open(struct ferry_device *device, struct ferry_link *link, const _Atomic uint32_t *failed,
                                 struct ferry_export_cell *cells, struct ferry_holders *holders,
                                 struct ferry_exports **exports);

/** From now on what others put into is exported to this router of another domain, too. Arguments as above. */
void ferry_exports_add_host(struct ferry_exports *exports, struct ferry_link *link, struct ferry_export_cell *cells);

/** From now on the journal has what the rank's router has mapped, for the next one; NULL: none has. */
void ferry_exports_journal(struct ferry_exports *exports, struct ferry_journal *journal);

void ferry_exports_close(struct ferry_exports *exports);

/** Before each call, or other use under the lock: what lies behind addresses is looked at anew. */
void ferry_exports_begin(struct ferry_exports *exports);

/** Whether the bytes are memory of the device that has been exported, and is still there: all that a call may ask. */
bool ferry_exports_hold(struct ferry_exports *exports, const void *buffer, uint64_t bytes);

/**
 * Whether the routers have them mapped, also for what others put into them (put target): so naming them costs next to
 * nothing, if it is done before they have been idle for too long. Asks nobody but the driver, 0.1 us per piece.
 */
bool ferry_exports_have(struct ferry_exports *exports, const void *buffer, uint64_t bytes, bool put_target);

/**
 * Names bytes for submission number `submission` (from 1, growing; 0: for none). pin: the router keeps what it names
 * until ferry_exports_unpin, too. put target: other ranks put into it, for whose GPUs their routers map it as well.
 * Where the router has not got it, or not any more, or where other memory has come in
 * its place, it is exported here and now, which takes up to 10 ms; else 0.1 us and as much per piece. Errors:
 * those that ferry_exports_refused knows, memory that has to go another way: ferryInvalidUsage, for it cannot be
 * exported; ferryRefused, for all indexes are pinned, or the router still maps what was freed and had that place.
 * ferryInvalidArgument: no memory of the device; ferryRemoteError, ferrySystemError: the router does not answer; what
 * it, or the driver, says.
 */
ferryResult_t ferry_exports_name(struct ferry_exports *exports, const void *buffer, uint64_t bytes, uint64_t submission,
                                 bool pin, bool put_target, struct ferry_buffer_name *name);

static inline bool ferry_exports_refused(ferryResult_t result)
{
	return result == ferryInvalidUsage || result == ferryRefused;
}

/** Takes back one pin. Nothing happens if the name's memory has gone. */
void ferry_exports_unpin(struct ferry_exports *exports, const struct ferry_buffer_name *name);

/**
 * Has the router unmap it as soon as no submission uses it, unless it is pinned. Its index is free. Errors: the
 * router's; none where the rank has failed, with which the router lets go of it.
 */
ferryResult_t ferry_exports_forget(struct ferry_exports *exports, const struct ferry_buffer_name *name);

/**
 * Has the routers unmap what has bytes in this range of addresses, and waits until they have: memory that is about to
 * be freed, as far as it is not pinned and submissions up to `over` name it alone. gone: memory that has been freed;
 * what is there still stays, and pins hold nothing that is not. True: some is left that is pinned, or that later
 * submissions name. Where a router does not answer it is left to idleness.
 */
bool ferry_exports_forget_range(struct ferry_exports *exports, uint64_t start, uint64_t end, uint64_t over, bool gone);

#endif
