/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A reader of one router's counters (ipc/counters.h): connects, asks for the page, maps it, and then copies it whenever
 * the router has written it anew, without asking again. It never blocks. Called by launch/report.c, which reads all
 * routers at the same time.
 */
#ifndef FERRY_LAUNCH_READER_H
#define FERRY_LAUNCH_READER_H

#include "ipc/attach.h"
#include "ipc/counters.h"
#include "launch/sockets.h"

enum ferry_reader_state {
	FERRY_READER_CONNECTING, /* also where there is no place among those that the router has not accepted yet */
	FERRY_READER_ASKED,      /* the reply is to come */
	FERRY_READER_MAPPED,     /* the page is there */
	FERRY_READER_NOBODY,     /* no router of this user listens there */
	FERRY_READER_FAILED      /* trouble says why */
};

struct ferry_reader {
	struct ferry_socket socket;
	enum ferry_reader_state state;
	int connection;    /* -1: none */
	pid_t pid;         /* of the router that listens; 0: no router has accepted the connection */
	uint64_t heard_ns; /* ferry_now_ns, when it was begun, or the router last did something */
	bool silent;       /* it was silent in the last report, and has done nothing since */
	char trouble[200];
	struct ferry_attach_reply reply;
	size_t received;   /* of the reply */
	int descriptor;    /* that came with it; -1: none */
	const struct ferry_counters_page *page;
	uint64_t seen, copied; /* generations: the last one seen, and of the last copy */
};

/** Initializes a reader, which the caller ends. Does nothing else yet. */
void ferry_reader_begin(struct ferry_reader *reader, const struct ferry_socket *socket);

/**
 * Makes as much progress as it can. Returns true if `counters` has a copy that is newer than the one before, or if
 * there will be none (NOBODY, FAILED). False: call it again when its connection is readable, or, as no event signals
 * that the page was written, after a moment.
 */
bool ferry_reader_go_on(struct ferry_reader *reader, struct ferry_counters *counters);

/** Ends a reader in any state. */
void ferry_reader_end(struct ferry_reader *reader);

#endif
