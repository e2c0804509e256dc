/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The counters of a router: a page of shared memory for each user that may ask for them, with a head and a row per
 * job, GPU, tenant, line of shares and link that this user may see. The reply to STATUS (ipc/attach.h) carries its
 * descriptor, sealed so that no other process can write or resize the page; a reader maps it, and polls it without
 * asking again. The router's connection thread alone writes the page, every FERRY_COUNTERS_MS as long as a reader is
 * connected. Lanes and workers count in places of their own (the arena's ferry_traffic, struct ferry_job), which ranks
 * share and readers must not see.
 *
 * `generation` is odd while the page is being written. Words are stored with release and loaded with acquire, so a
 * reader that finds the same even generation before and after has a consistent copy.
 */
#ifndef FERRY_IPC_COUNTERS_H
#define FERRY_IPC_COUNTERS_H

#include "ipc/gpu_uuid.h"
#include "ipc/shares.h"

#define FERRY_COUNTERS_MAGIC   0x46455243u /* "FERC" */
#define FERRY_COUNTERS_VERSION 4u          /* of the layout below: a reader refuses any other */
#define FERRY_COUNTERS_MS      50          /* between two writings */
#define FERRY_COUNTERS_JOBS    512         /* rows; what has none is counted in `left_out` */
#define FERRY_COUNTERS_GPUS    64
#define FERRY_COUNTERS_TENANTS 256
#define FERRY_COUNTERS_SHARES  1024
#define FERRY_COUNTERS_LINKS   4096

enum ferry_counters_state { FERRY_JOB_ATTACHING, FERRY_JOB_ADOPTING, FERRY_JOB_READY, FERRY_JOB_FAILED };

/* A job in this router. Sets of ranks are bit masks; calls, bytes and waits are those of this domain's ranks. */
struct ferry_job_counters {
	uint64_t number;             /* of the router's jobs, from 1 */
	uint32_t name;               /* a hash of its key, which is a secret: the same in all routers of the job */
	uint32_t nranks;
	uint32_t state;              /* enum ferry_counters_state */
	uint32_t kernels;            /* 1: its ranks have kernels for short calls */
	uint64_t attached, left;     /* ranks */
	uint64_t staging;            /* bytes */
	uint64_t on_gpus;            /* bytes of its GPUs' memory: mailboxes, sums, bounce buffers, windows */
	uint64_t calls;              /* ended calls of the rank that has made most */
	uint64_t kernel_calls;       /* calls by kernels, of the rank that has made most; a captured one counts once */
	uint64_t d2h, h2d;           /* bytes from ranks' buffers, and to them */
	uint64_t working_ns;         /* of workers, on its slices */
	uint64_t waiting, blockers;  /* ranks that wait, and that they wait for */
	uint64_t waited_ns;          /* the longest of these waits so far */
	/* how often a router of this domain has taken another's place; the last time: how long it took, how long ago */
	uint64_t takeovers, takeover_ns, takeover_ago_ns;
	char tenant[32];             /* "": none */
};

/* A path from a GPU straight into another one's memory, as the driver reports it. */
struct ferry_gpu_link {
	uint8_t to[FERRY_GPU_BYTES]; /* UUID */
	int32_t rank;                /* of its performance: 0 is the fastest */
	uint32_t atomics;            /* 1: the link itself has them, as NVLink; PCIe has none */
};

/* A GPU on which the router has a context. */
struct ferry_gpu_counters {
	uint8_t uuid[FERRY_GPU_BYTES];
	uint64_t nlinks;
	struct ferry_gpu_link links[FERRY_MAX_RANKS]; /* to others of this router's */
};

/* A tenant's use of this router, and its limits; UINT64_MAX: no limit. */
struct ferry_tenant_counters {
	char name[32];
	uint64_t weight, jobs, ranks, plans;
	uint64_t staging, bytes;     /* bytes: moved by slices */
	uint64_t working_ns;
	uint64_t windows; /* bytes of GPUs' memory that windows of programs may take */
	uint64_t jobs_limit, ranks_limit, plans_limit, staging_limit, job_staging_limit, windows_limit;
};

/* A line of a job's table of shares, as it lies there: to be read with ferry_share_line_read. */
struct ferry_share_counters {
	uint64_t number;             /* the job's << 8 | the line's */
	uint64_t job;                /* its name */
	struct ferry_share_line_words line;
};

/* What a rank of this domain has pushed into another one's memory; links without anything have no row. */
struct ferry_link_counters {
	uint64_t number;             /* the job's << 16 | from << 8 | to */
	uint64_t job;                /* its name */
	uint64_t bytes;
};

struct ferry_counters {
	uint32_t magic, version;
	uint64_t generation;
	uint64_t written_ns;         /* ferry_now_ns of the router's machine */
	uint32_t domain, pid, workers, draining;
	char nice[8];                /* of its workers; "rt": real time */
	uint32_t jobs, failed, ranks, gpus; /* of all users: jobs, failed ones, attached ranks, GPUs with a context */
	uint32_t tenants;            /* in the router's file of tenants */
	uint32_t config, config_bad; /* 1: there is such a file; 1: its present text is invalid */
	uint32_t left_out;           /* rows that there was no room for */
	uint64_t staging, staging_limit, memory; /* bytes: staging of all jobs, its limit, memory of their arenas */
	uint64_t slices, bytes;      /* of the present jobs */
	uint64_t calls_ns, working_ns; /* of the present jobs: time of calls here, and of workers on slices */
	uint32_t njob_rows, ngpu_rows, ntenant_rows, nshare_rows, nlink_rows, unused;
	struct ferry_job_counters job_rows[FERRY_COUNTERS_JOBS];
	struct ferry_gpu_counters gpu_rows[FERRY_COUNTERS_GPUS];
	struct ferry_tenant_counters tenant_rows[FERRY_COUNTERS_TENANTS];
	struct ferry_share_counters share_rows[FERRY_COUNTERS_SHARES];
	struct ferry_link_counters link_rows[FERRY_COUNTERS_LINKS];
};

/* The counters in shared memory: words, each of which is loaded and stored whole. */
struct ferry_counters_page {
	_Atomic uint64_t words[sizeof(struct ferry_counters) / sizeof(uint64_t)];
};

/**
 * The router's side: makes a page without rows, mapped for writing, and a descriptor for reading. The caller unmaps the
 * page and closes the descriptor. Before Linux 5.1, which has no F_SEAL_FUTURE_WRITE, only the file's mode keeps other
 * users from writing. Error: ferrySystemError.
 */
ferryResult_t ferry_counters_create(struct ferry_counters_page **page, int *descriptor);

/** Writes head and rows; magic, version and generation are the page's. One thread at a time. */
void ferry_counters_write(struct ferry_counters_page *page, const struct ferry_counters *counters);

void ferry_counters_unmap(const struct ferry_counters_page *page);

/**
 * The reader's side: maps a page, which ferry_counters_unmap unmaps. The descriptor stays the caller's, which may close
 * it. Errors: ferryRefused if it is of no sealed page of this size, ferrySystemError if it cannot be mapped.
 */
ferryResult_t ferry_counters_map(int descriptor, const struct ferry_counters_page **page);

/** Returns twice the number of times that the page has been written; odd: it is being written. */
uint64_t ferry_counters_generation(const struct ferry_counters_page *page);

/**
 * Takes a consistent copy of the page; rows of `counters` beyond those that the page has stay as they were. Returns
 * ferryInProgress where the page is being written at this moment, or nothing has been written yet; ferryRefused with
 * the values where the page is of another version, or has more rows than there can be.
 */
ferryResult_t ferry_counters_read(const struct ferry_counters_page *page, struct ferry_counters *counters);

/** Prints the head for people, as name=value words: less than 512 bytes. */
void ferry_counters_print(const struct ferry_counters *counters, char *text, size_t bytes);

/** "attaching", "adopting", "ready", "failed"; "?" for any other number. */
const char *ferry_job_state_name(uint32_t state);

#endif
