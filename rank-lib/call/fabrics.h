/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The fabrics of a communicator: the host (staging and routers) and the peers' memory (pushes from device to device),
 * which of them the ranks have, and what each carries of a call. All ranks compute the same, from what is the same for
 * all: the environment, the limits file, and what ranks and routers have written into the arenas.
 */
#ifndef FERRY_RANK_LIB_CALL_FABRICS_H
#define FERRY_RANK_LIB_CALL_FABRICS_H

#include "ipc/shares.h"
#include "rank-lib/failover/rank.h"
#include "rank-lib/program/program.h"

#include <stdio.h>

/* The first fabrics of enum ferry_fabric are Ferry's own; NCCL is the last. */
#define FERRY_OWN_FABRICS FERRY_FABRIC_NCCL

struct ferry_fabrics {
	/* constant, set by the maker of the communicator; costs: of GPUs, without rates if they were not read */
	struct ferry_rank *rank;
	const struct ferry_costs *costs;
	const struct ferry_topology *topology;
	bool named, wanted[FERRY_OWN_FABRICS]; /* FERRY_FABRICS; named: it is set */
	double host_share;                     /* FERRY_SHARES; below 0: not set */
	uint64_t peers_of[FERRY_MAX_RANKS];    /* FERRY_PEERS: bit t: the rank may push to rank t */
	bool said; /* that the host carries calls for which FERRY_FABRICS does not name it was logged */
	/* once settled */
	bool settled, peers; /* peers: Ferry's own programs push, where there are links */
	const char *lack;    /* why no rank can push; NULL: there are links */
	bool speeds; /* those of `links` are GB/s; else of GPUs relative (ipc/gpu_links.h), of host devices 1 */
	bool memory; /* of host devices: the ranks' own memory is staging, and what goes into it takes their links */
	bool ports;  /* each GPU pushes to all others, and is pushed to, through one port */
	bool partial; /* of GPUs: some pairs have no link, or a slower one than others */
	char no_windows[160]; /* of GPUs: why programs have no windows in their memory; "": they may */
	bool kernels; /* of GPUs: they add up what comes into their memory (ferry_fabrics_choose) */
	uint64_t adds[FERRY_NUM_COLLECTIVES]; /* the same: programs of ADDs carry long calls; bit r: to root r */
	struct ferry_links links;
	float up, down; /* of host devices, to and from the host: GB/s; 0: as fast as memory */
};

/**
 * Reads FERRY_FABRICS, FERRY_SHARES and FERRY_PEERS. Errors: ferryInvalidArgument, with what was expected, also if
 * FERRY_SHARES gives a share to a fabric that FERRY_FABRICS leaves out.
 */
ferryResult_t ferry_fabrics_read(struct ferry_fabrics *fabrics);

/** Publishes to the other ranks which router or process moves this rank's data. */
void ferry_fabrics_publish(const struct ferry_fabrics *fabrics, enum ferry_copy_quiesce_kind copy_quiesce);

/**
 * Waits until all ranks have published it. Errors: the job has failed; it fails, too, when `until` has passed
 * (ferry_now_ns) or the rank's maker gives up.
 */
ferryResult_t ferry_fabrics_await(struct ferry_fabrics *fabrics, uint64_t until);

/**
 * Whether each rank's GPU reaches all others' memory, and neither FERRY_FABRICS nor `ferry-perf limits` leaves peers
 * out; of ranks on GPUs, which have all been awaited.
 */
bool ferry_fabrics_join_all(const struct ferry_fabrics *fabrics);

/**
 * Chooses which collectives with sums are programs of ADDs in memory of the GPUs: where links are partial, and it is
 * faster than what else carries them, by arithmetic, or FERRY_FABRICS leaves out the host. None if FERRY_SHARES gives
 * the host a share, or there are no windows. all_pairs: kernels of each GPU add up what all others have pushed to it.
 * To be called once, of ranks on GPUs that have been awaited and have kernels. Error: the job has failed meanwhile.
 */
ferryResult_t ferry_fabrics_choose(struct ferry_fabrics *fabrics, bool all_pairs);

/**
 * Whether such a program carries a call of so many bytes (count x element). root: 0 for collectives without one. The
 * same on all ranks. Any thread.
 */
bool ferry_fabrics_add(const struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root,
                       uint64_t bytes);

/**
 * Prints, for FERRY_DEBUG=plan, how the fabrics divide each block of `count` elements, of which the host has `host`;
 * and the links, once they are settled.
 */
void ferry_fabrics_print(const struct ferry_fabrics *fabrics, uint64_t host, uint64_t count, FILE *out);

/**
 * Computes how each block of `count` elements is divided: *host elements for the host, the rest for the peers, with a
 * program of this collective. no_adds: of GPUs, the host has the sums in any case. The first call waits until all ranks
 * have published what moves their data. Under the communicator's lock. Error: the job has failed meanwhile.
 */
ferryResult_t ferry_fabrics_divide(struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root,
                                   uint64_t count, size_t element, bool no_adds, uint64_t *host);

/**
 * The network that pushed calls are divided over. Host devices have one where their links are modelled; it has relays,
 * and the host where FERRY_FABRICS names it. GPUs have one where their links are partial, with relays if
 * they have windows, or FERRY_FABRICS names both fabrics and ferry-perf limits has measured them, with the host. False:
 * there is none. ferry_fabrics_divide must have settled it.
 */
bool ferry_fabrics_network(const struct ferry_fabrics *fabrics, struct ferry_network *network);

/**
 * Checks that this program's PUTs have links, and that FERRY_FABRICS does not leave peers out. Error: ferryProgramError
 * with the line if not. Waits, and has errors, as above.
 */
ferryResult_t ferry_fabrics_check(struct ferry_fabrics *fabrics, const struct ferry_program *program);

/* Messages up to this length go through the host's windows in any case: then their senders wait for no receiver. */
#define FERRY_EAGER_BYTES (64u << 10)

/** Whether longer messages are pushed where there are links. The same on all ranks. Waits, and has errors, as above. */
ferryResult_t ferry_fabrics_push(struct ferry_fabrics *fabrics, bool *puts);

/**
 * Whether a message of so many bytes is pushed; else the host carries it. The same on both ranks. ferry_fabrics_push
 * must have settled it; fabrics: NULL if that function says that none is pushed.
 */
bool ferry_fabrics_pushes(const struct ferry_fabrics *fabrics, uint32_t sender, uint32_t receiver, uint64_t bytes);

#endif
