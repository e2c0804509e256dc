/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A router that is asked what it does (router/status.h), by who waits for none: of itself, then of each of its jobs,
 * GPUs and tenants. Called by launch/report.c, which asks all routers at the same time.
 */
#ifndef FERRY_LAUNCH_QUESTION_H
#define FERRY_LAUNCH_QUESTION_H

#include "ipc/attach.h"
#include "launch/sockets.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ferry_router_report {
	struct ferry_socket socket;
	uint32_t domain;   /* as its socket is called */
	pid_t pid;         /* 0: nobody has taken the connection */
	bool silent;       /* it says nothing */
	char trouble[200]; /* why it has not answered; "": it has, and the rest is filled in */
	char line[512];    /* what it has told of itself */
	uint32_t workers, jobs, failed, ranks;
	bool draining;
	uint64_t staging, staging_limit, memory; /* bytes */
	uint32_t tenants;                        /* that its file names */
	bool config_bad;                         /* what that says since it was read cannot be */
	double working_ms;
};

/* Of one job in one router. Sets of ranks are bit masks. */
struct ferry_job_report {
	size_t router;   /* index of its report */
	uint64_t number; /* of the router's jobs */
	uint32_t name;   /* the same in all routers of the job */
	uint32_t nranks;
	char state[16];                    /* attaching, adopting, ready, failed */
	char tenant[32];                   /* "": none */
	uint64_t attached, left;
	/* of the ranks of this router's domain; bytes from their buffers, and to them */
	uint64_t staging, calls, up, down;
	uint64_t waiting, awaited;
	double working_ms, waited_ms;
	/* how often a router of this domain has taken another's place; how long it took the last time, and when */
	uint64_t takeovers;
	double takeover_ms, takeover_ago_s;
};

/* A way from a GPU straight into the memory of another one. */
struct ferry_link_report {
	char to[16];  /* what that GPU's UUID begins with, behind "GPU-" */
	int rank;     /* as the driver says: 0 is the fastest */
	bool atomics; /* as NVLink has them, and PCIe has not */
};

struct ferry_gpu_report {
	size_t router;
	char uuid[48];
	uint32_t nlinks;
	struct ferry_link_report links[FERRY_MAX_RANKS]; /* to others of its router's */
};

/* What a tenant has of one router, and may have: UINT64_MAX: no limit. */
struct ferry_tenant_report {
	size_t router;
	uint64_t number;
	char name[32];
	uint64_t weight, jobs, ranks, plans, staging;
	uint64_t jobs_limit, ranks_limit, plans_limit, staging_limit, job_staging_limit;
};

enum ferry_question_state {
	FERRY_QUESTION_CONNECTING, /* there is no place among those that the router has not accepted yet */
	FERRY_QUESTION_ASKED,      /* the reply is to come */
	FERRY_QUESTION_ANSWERED,   /* all of it */
	FERRY_QUESTION_NOBODY,     /* no router of this user's listens there */
	FERRY_QUESTION_FAILED      /* router.trouble says why */
};

struct ferry_question {
	enum ferry_question_state state;
	int connection;          /* -1: none */
	uint64_t heard_ns;       /* ferry_now_ns, when it was begun, or the router last said something */
	enum ferry_status_of of; /* what is asked for, */
	uint64_t from;           /* from which number on, */
	struct ferry_attach_reply reply;
	size_t received; /* and how much of the reply is there */
	struct ferry_router_report router;
	struct ferry_job_report *jobs; /* their `router` is who reports them's to fill in */
	struct ferry_gpu_report *gpus;
	struct ferry_tenant_report *tenants;
	size_t njobs, ngpus, ntenants;
};

/** To be ended. Asks nothing yet. */
void ferry_question_begin(struct ferry_question *question, const struct ferry_socket *socket);

/**
 * Asks, and takes what has come, until more would have to be waited for. It waits for its connection to be readable,
 * or, where it has none, for a moment to pass. Errors: ferrySystemError without memory.
 */
ferryResult_t ferry_question_go_on(struct ferry_question *question);

bool ferry_question_is_over(const struct ferry_question *question);

/** Also of one that is not over: its connection is closed, and what has come is forgotten. */
void ferry_question_end(struct ferry_question *question);

#endif
