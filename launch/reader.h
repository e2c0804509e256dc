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
	FERRY_READER_CONNECTING, /* also while the router's backlog is full */
	FERRY_READER_ASKED,      /* the reply has not come yet */
	FERRY_READER_MAPPED,     /* the page is mapped */
	FERRY_READER_NOBODY,     /* no router of this user listens there */
	FERRY_READER_FAILED      /* trouble says why */
};

struct ferry_reader {
	struct ferry_socket socket;
	enum ferry_reader_state state;
	int connection;    /* -1: none */
	pid_t pid;         /* of the router that listens; 0: no router has accepted the connection */
	uint64_t heard_ns; /* when the reader was begun, or the router last did something (ferry_now_ns) */
	bool silent;       /* the router was silent in the last report, and has done nothing since */
	char trouble[200];
	struct ferry_attach_reply reply;
	size_t received;   /* of the reply */
	int descriptor;    /* that came with the reply; -1: none */
	const struct ferry_counters_page *page;
	uint64_t seen, copied; /* generations: the last one seen, and of the last copy */
};

/** Initializes a reader, which the caller ends. Does nothing else yet. */
void ferry_reader_begin(struct ferry_reader *reader, const struct ferry_socket *socket);

/**
 * Makes as much progress as it can without waiting. Returns true if `counters` has a newer copy than before, or if
 * there will be none (NOBODY, FAILED). False: call it again when its connection is readable, or after a moment, as no
 * event tells that the page was written.
 */
bool ferry_reader_go_on(struct ferry_reader *reader, struct ferry_counters *counters);

/** Ends a reader in any state. */
void ferry_reader_end(struct ferry_reader *reader);

#endif
