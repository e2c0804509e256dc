/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The attach protocol: how a rank and a router communicate over the router's unix socket.
 *
 * A client sends one fixed-size message, some with a payload behind it, and gets one fixed-size reply to each.
 * Descriptors ride on the first byte (SCM_RIGHTS): `descriptors` many on a message, and on a reply to RANK the arena
 * and the router's pidfd, to ADOPT the pidfd, to STATUS the page of counters, to LAYOUT a file with the layout. By the
 * pidfd a rank finds later that the router has ended. The connection stays open: closing it without DETACH means that
 * the rank died. The router reads SO_PEERCRED and takes only its own user, root, and its
 * tenants (router/daemon/tenants.h). Byte order and layout are the machine's, as both ends run on it; magic and ABI
 * version are checked first.
 */
#ifndef FERRY_IPC_ATTACH_H
#define FERRY_IPC_ATTACH_H

#include "ipc/ferry_types.h"
#include "ipc/gpu_uuid.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define FERRY_ATTACH_MAGIC 0x46455254u /* "FERT" */
#define FERRY_ATTACH_ABI 14u /* goes up when a field, or what one means, changes */
#define FERRY_KEY_BYTES 16
#define FERRY_ATTACH_MOST_DESCRIPTORS 240u /* in a message; Linux takes 253 at a time */

enum ferry_attach_kind {
	FERRY_ATTACH_RANK = 1, /* join job `key` as `rank`: reply with the arena */
	/* every rank has attached to every domain's router: map the other domains' arenas, which come along */
	FERRY_ATTACH_READY,
	FERRY_ATTACH_PLAN,     /* payload: a plan to keep, under its hash, as long as this rank holds it */
	FERRY_ATTACH_DROP,     /* this rank holds the plan `hash` no longer */
	FERRY_ATTACH_DETACH,   /* this rank makes no more calls */
	/* any client: reply with the page of counters (ipc/counters.h), renewed until it closes */
	FERRY_ATTACH_STATUS,
	FERRY_ATTACH_EXPORT,   /* payload: a struct ferry_exported: map this buffer of mine (ipc/export.h) */
	FERRY_ATTACH_FORGET,   /* unmap what index `index` names, once no call uses it any more */
	/*
	 * This rank's router has ended: take its place for job `key`, whose arenas come along. Messages with the rank's
	 * plans follow.
	 */
	FERRY_ATTACH_ADOPT,
	/* payload: submissions that were taken, and are not over (ipc/submission.h), in order: take them again */
	FERRY_ATTACH_RESUBMIT,
	/* the rank has handed over all: serve the job once all its ranks have come so far, or have left */
	FERRY_ATTACH_ADOPTED,
	FERRY_ATTACH_LAYOUT,   /* any client: reply with the router's struct ferry_layout (ipc/layout.h) */
	FERRY_ATTACH_KINDS
};

/* RANK, ADOPT: the rank is on a GPU, and asks the router to move its data; in a reply: the router will */
#define FERRY_ATTACH_MAPPED 1u
#define FERRY_ATTACH_WISHED 2u /* RANK: `staging` is a wish: less will do where there is less */
/* RANK, ADOPT, to another domain's router: the rank is on a GPU, and that router's GPUs may put into its memory */
#define FERRY_ATTACH_FOREIGN 4u
#define FERRY_ATTACH_UNMAPPED 8u /* FORGET: answer when it is unmapped, or after 100 ms */

struct ferry_attach_message {
	uint32_t magic, abi;
	uint32_t kind;
	uint32_t rank, nranks;
	uint32_t domain;   /* RANK: the rank's own domain */
	uint32_t ndomains;
	uint32_t flags;    /* FERRY_ATTACH_..., as above */
	/*
	 * RANK with MAPPED: 1, the rank's block of stream flags; EXPORT: one per piece, in the order of addresses;
	 * READY: the arenas of all domains, or none where there is one domain; ADOPT: the arenas of all domains, then
	 * with MAPPED the block of stream flags
	 */
	uint32_t descriptors;
	uint32_t index;    /* FORGET: the export's */
	/*
	 * DROP: the plan's hash; ADOPT: since when the rank has had no router (ferry_now_ns), for the log; ADOPTED of a
	 * mapped rank: the number of its last submission that is not in the ring any more
	 */
	uint64_t hash;
	uint64_t payload;  /* PLAN, EXPORT, RESUBMIT: bytes that follow the message */
	/* RANK: bytes of staging wanted; 0: the router's default, or less where there is less */
	uint64_t staging;  /* ADOPTED of a mapped rank: calls made up to that submission, captured ones apart */
	uint8_t key[FERRY_KEY_BYTES];
	uint8_t gpu[FERRY_GPU_BYTES]; /* RANK and ADOPT with MAPPED or FOREIGN: the UUID */
};

struct ferry_attach_reply {
	uint32_t magic, abi;
	uint32_t result;   /* ferryResult_t */
	uint32_t flags;    /* to RANK, ADOPT: FERRY_ATTACH_MAPPED */
	char message[496]; /* why the request failed, or why a rank that asked for MAPPED does not get it */
};

#define FERRY_RESUBMIT_MOST (4u << 20) /* bytes of submissions in a message */
#define FERRY_MAX_PLANS 4096 /* that a job may keep in a router: a tenant's share of its memory */

/**
 * Reads a message out of `length` untrusted bytes. Errors: ferryRefused for another magic or ABI (with both values),
 * ferryInvalidArgument for a field out of range.
 */
ferryResult_t ferry_attach_decode(const void *bytes, size_t length, struct ferry_attach_message *message);

/**
 * Sends a message and its payload, and waits for the reply. *descriptor, unless NULL: the reply's, which the caller
 * closes. Errors: the router's own; ferryRemoteError if it has closed the connection; ferrySystemError if it has not
 * answered for FERRY_ATTACH_TIMEOUT: the connection is of no use any more.
 */
ferryResult_t ferry_attach_call(int connection, struct ferry_attach_message *message, const void *payload,
                                int *descriptor);

/**
 * Sends a message, its payload and message->descriptors of `sent`, which stay the caller's; waits for the reply, which
 * a success copies to *reply. A success sets `wanted` of `descriptors`, which the caller closes: the first is valid,
 * others are -1 if they have not come. given_up: NULL, or the wait ends within 50 ms, with ferrySystemError, once
 * *given_up is not 0; if it is not 0 from the beginning nothing is sent. The answer may still come after that, so the
 * connection can only be closed. Errors: those of ferry_attach_call; ferryInvalidArgument for too many descriptors;
 * ferrySystemError if the kernel refuses to send them: the router has then got nothing.
 */
ferryResult_t ferry_attach_exchange(int connection, struct ferry_attach_message *message, const void *payload,
                                    const int *sent, struct ferry_attach_reply *reply, int *descriptors,
                                    uint32_t wanted, const _Atomic uint32_t *given_up);

struct ferry_deadline;

/** As ferry_attach_exchange, within its caller's deadline (ipc/deadline.h). */
ferryResult_t ferry_attach_exchange_within(int connection, struct ferry_attach_message *message, const void *payload,
                                           const int *sent, struct ferry_attach_reply *reply, int *descriptors,
                                           uint32_t wanted, struct ferry_deadline *deadline);

/**
 * The router's side: the result of one receive. Its descriptors are above 2 and close-on-exec; the caller closes them.
 */
struct ferry_attach_received {
	ssize_t bytes;         /* as recv returns them, with its errno */
	uint32_t ndescriptors;
	/* some descriptors are lost: more than fit here, or than this process could open; the others are here */
	bool truncated;
	int descriptors[FERRY_ATTACH_MOST_DESCRIPTORS];
};
void ferry_attach_receive(int connection, void *into, size_t bytes, struct ferry_attach_received *received);

#define FERRY_ATTACH_ANSWERED 2u /* descriptors that a reply has at most */

/**
 * The router's side: sends the reply, with those of FERRY_ATTACH_ANSWERED descriptors that are not negative; they stay
 * the caller's. Error: ferrySystemError if the reply cannot be sent whole without waiting.
 */
ferryResult_t ferry_attach_answer(int connection, ferryResult_t result, uint32_t flags, const char *text,
                                  const int *descriptors);

/** As ferry_attach_answer, with one descriptor, or none (negative). */
ferryResult_t ferry_attach_reply(int connection, ferryResult_t result, const char *text, int descriptor);

/**
 * For a caller that has received a whole reply by itself: returns the router's failure, with its message, or
 * ferryRefused if the router speaks another version. Terminates the reply's message within its field.
 */
ferryResult_t ferry_attach_check_reply(struct ferry_attach_reply *reply);

#endif
