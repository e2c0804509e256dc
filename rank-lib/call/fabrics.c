/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/fabrics.h"

#include "ipc/environment.h"
#include "ipc/gpu_links.h"
#include "ipc/publish.h"
#include "ipc/shares.h"
#include "rank-lib/program/shares.h"
#include "rank-lib/program/synth/packing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[FERRY_OWN_FABRICS] = {"host", "peer"};

/* ---- settings ---- */

/* Returns the fabric that the text names up to a comma or its end; -1: none. *next: behind the name. */
static int read_name(const char *text, const char **next)
{
	for (int fabric = 0; fabric < FERRY_OWN_FABRICS; fabric++) {
		size_t length = strlen(names[fabric]);
		if (strncmp(text, names[fabric], length) || (text[length] && text[length] != ','))
			continue;
		*next = text + length;
		return fabric;
	}
	return -1;
}

static ferryResult_t read_fabrics(struct ferry_fabrics *fabrics)
{
	const char *text = ferry_env("FERRY_FABRICS"), *next = text;
	fabrics->named = text;
	while (next) {
		const char *at = next;
		int fabric = read_name(at, &next);
		if (fabric < 0 || fabrics->wanted[fabric])
			return ferry_fail(ferryInvalidArgument,
			                  "FERRY_FABRICS=%s: host, peer, or both with a comma between, at \"%s\"", text,
			                  at);
		fabrics->wanted[fabric] = true;
		next = *next ? next + 1 : NULL;
	}
	return ferrySuccess;
}

/* Fails if FERRY_SHARES gives a share to a fabric that FERRY_FABRICS leaves out. */
static ferryResult_t check_wanted(const struct ferry_fabrics *fabrics, const double *shares, uint32_t named)
{
	for (int fabric = 0; fabrics->named && fabric < FERRY_OWN_FABRICS; fabric++) {
		double share = named >> fabric & 1 ? shares[fabric] : 0;
		if (share > 0 && !fabrics->wanted[fabric])
			return ferry_fail(ferryInvalidArgument,
			                  "FERRY_FABRICS=%s leaves %s out, FERRY_SHARES=%s gives it %g of each call",
			                  ferry_env("FERRY_FABRICS"), names[fabric], ferry_env("FERRY_SHARES"), share);
	}
	return ferrySuccess;
}

/* Reads FERRY_SHARES into host_share: the host's part of what NCCL does not carry; the peers have the rest. */
static ferryResult_t read_shares(struct ferry_fabrics *fabrics)
{
	const char *text = ferry_env("FERRY_SHARES");
	double shares[FERRY_NUM_FABRICS];
	uint32_t named;
	fabrics->host_share = -1;
	if (!text)
		return ferrySuccess;
	ferryResult_t result = ferry_shares_read(text, shares, &named);
	if (!result)
		result = check_wanted(fabrics, shares, named);
	if (result)
		return result;
	double host = shares[FERRY_FABRIC_HOST], peer = shares[FERRY_FABRIC_PEER], sum = host + peer;
	bool nccl = named >> FERRY_FABRIC_NCCL & 1;
	bool both = named >> FERRY_FABRIC_HOST & named >> FERRY_FABRIC_PEER & 1;
	sum += shares[FERRY_FABRIC_NCCL];
	if ((nccl || both) && (sum < 0.999 || sum > 1.001))
		return ferry_fail(ferryInvalidArgument, "FERRY_SHARES=%s: they sum to %g, not 1", text, sum);
	if (nccl || both)
		fabrics->host_share = host + peer > 0 ? host / (host + peer) : -1;
	else
		fabrics->host_share = named >> FERRY_FABRIC_HOST & 1 ? host : 1 - peer;
	return ferrySuccess;
}

static ferryResult_t read_peers(struct ferry_fabrics *fabrics)
{
	const char *text = ferry_env("FERRY_PEERS"), *at = text;
	unsigned one, other;
	int length;
	memset(fabrics->peers_of, text ? 0 : 0xff, sizeof fabrics->peers_of);
	while (at) {
		if (sscanf(at, "%2u-%2u%n", &one, &other, &length) != 2 || one >= FERRY_MAX_RANKS ||
		    other >= FERRY_MAX_RANKS || (at[length] && at[length] != ','))
			return ferry_fail(ferryInvalidArgument, "FERRY_PEERS=%s: pairs of ranks as 0-1,2-3, at \"%s\"",
			                  text, at);
		fabrics->peers_of[one] |= 1ull << other;
		fabrics->peers_of[other] |= 1ull << one;
		at = at[length] ? at + length + 1 : NULL;
	}
	return ferrySuccess;
}

ferryResult_t ferry_fabrics_read(struct ferry_fabrics *fabrics)
{
	ferryResult_t result = read_fabrics(fabrics);
	if (!result)
		result = read_shares(fabrics);
	return result ? result : read_peers(fabrics);
}

/* ---- which fabrics there are ---- */

static bool peers_unwanted(const struct ferry_fabrics *fabrics)
{
	return fabrics->named && !fabrics->wanted[FERRY_FABRIC_PEER];
}

static _Atomic uint32_t *copy_quiesce_of(const struct ferry_rank *rank, int other)
{
	return &ferry_rank_line(&rank->shared, (uint32_t)other)->copy_quiesce;
}

void ferry_fabrics_publish(const struct ferry_fabrics *fabrics, enum ferry_copy_quiesce_kind copy_quiesce)
{
	const struct ferry_rank *rank = fabrics->rank;
	atomic_store_explicit(copy_quiesce_of(rank, rank->self), copy_quiesce, memory_order_release);
	ferry_rank_tell(rank);
}

/* Bit r: rank r has not published what moves its data. */
static uint64_t untold(const struct ferry_rank *rank)
{
	uint64_t ranks = 0;
	for (int other = 0; other < rank->nranks; other++)
		if (!atomic_load_explicit(copy_quiesce_of(rank, other), memory_order_acquire))
			ranks |= 1ull << other;
	return ranks;
}

ferryResult_t ferry_fabrics_await(struct ferry_fabrics *fabrics, uint64_t until)
{
	return ferry_rank_await(fabrics->rank, until, untold);
}

/* Whether this kind of process moves all ranks' data. */
static bool all_are(const struct ferry_rank *rank, enum ferry_copy_quiesce_kind copy_quiesce)
{
	for (int other = 0; other < rank->nranks; other++)
		if (atomic_load_explicit(copy_quiesce_of(rank, other), memory_order_relaxed) != copy_quiesce)
			return false;
	return true;
}

/* Bit t: the GPU of rank `from` reaches rank t's, and may. */
static uint64_t reach_of(const struct ferry_fabrics *fabrics, int from)
{
	const struct ferry_job_arenas *shared = &fabrics->rank->shared;
	const struct ferry_arena_header *header = shared->arenas[shared->rank_domain[from]].header;
	return atomic_load_explicit(&header->reach[from], memory_order_relaxed) & fabrics->peers_of[from];
}

/* Whether some pairs have no link, or slower ones than others: then relays gain. */
static bool are_partial(const struct ferry_links *links, uint32_t nranks)
{
	float slowest = links->speed[0][1], fastest = slowest;
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++) {
			slowest = from != to ? fminf(slowest, links->speed[from][to]) : slowest;
			fastest = fmaxf(fastest, links->speed[from][to]);
		}
	return slowest < fastest;
}

/* All ranks find the same in the arenas: a rank without windows is in no call with others that have some. */
static void find_windows(struct ferry_fabrics *fabrics)
{
	const struct ferry_job_arenas *shared = &fabrics->rank->shared;
	for (uint32_t domain = 0; domain < shared->ndomains && !*fabrics->no_windows; domain++) {
		uint64_t left = atomic_load_explicit(&shared->arenas[domain].header->windows_left,
		                                     memory_order_relaxed);
		uint64_t need = ferry_windows_need(shared, domain);
		if (need > left)
			snprintf(fabrics->no_windows, sizeof fabrics->no_windows,
			         "windows in memory of GPUs take %llu bytes in domain %u, where the job's tenant has "
			         "%llu left",
			         (unsigned long long)need, domain, (unsigned long long)left);
	}
	if (*fabrics->no_windows && fabrics->partial && !fabrics->rank->self)
		ferry_log(FERRY_LOG_INFO, "no relays and no sums up trees: %s", fabrics->no_windows);
}

/* For ranks whose routers move the data: the routers wrote the links into the arenas when the job became ready. */
static void find_gpu_links(struct ferry_fabrics *fabrics)
{
	const struct ferry_rank *rank = fabrics->rank;
	uint32_t nranks = (uint32_t)rank->nranks;
	struct ferry_gpu_reach found = {.across = (float)fabrics->costs->across,
	                                .crossing = (float)fabrics->costs->crossing};
	for (uint32_t from = 0; from < nranks; from++) {
		uint32_t domain = rank->shared.rank_domain[from];
		const struct ferry_arena_header *header = rank->shared.arenas[domain].header;
		found.reach[from] = reach_of(fabrics, (int)from);
		found.node[from] = fabrics->topology->together ? 0 : (uint8_t)domain;
		for (uint32_t to = 0; to < nranks; to++)
			found.nvlinks[from][to] = atomic_load_explicit(&header->nvlinks[from][to],
			                                               memory_order_relaxed);
	}
	ferry_gpu_links_make(&found, nranks, &fabrics->links);
	fabrics->partial = are_partial(&fabrics->links, nranks);
	fabrics->ports = !ferry_gpu_links_are_direct(&found, nranks);
	find_windows(fabrics);
}

/* For host devices: the modelled links; if none are modelled, memory links all ranks alike. */
static ferryResult_t find_host_links(struct ferry_fabrics *fabrics)
{
	struct ferry_host_links machine;
	uint32_t nranks = (uint32_t)fabrics->rank->nranks;
	ferryResult_t result = ferry_host_links_load(&machine);
	fabrics->speeds = !result && machine.peers;
	fabrics->up = result ? 0 : (float)machine.d2h;
	fabrics->down = result ? 0 : (float)machine.h2d;
	if (fabrics->speeds)
		return ferry_host_links_place("FERRY_HOST_LINK", &machine, nranks, &fabrics->links);
	for (uint32_t from = 0; !result && from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++)
			fabrics->links.speed[from][to] = to == from ? 0 : 1;
	return result;
}

bool ferry_fabrics_join_all(const struct ferry_fabrics *fabrics)
{
	const struct ferry_rank *rank = fabrics->rank;
	uint64_t all = ~0ull >> (64 - rank->nranks);
	bool joined = !peers_unwanted(fabrics) && !fabrics->costs->astray;
	for (int from = 0; joined && from < rank->nranks; from++)
		joined = !(all & ~(reach_of(fabrics, from) | 1ull << from));
	return joined;
}

static bool any_link(const struct ferry_fabrics *fabrics)
{
	int nranks = fabrics->rank->nranks;
	for (int from = 0; from < nranks; from++)
		for (int to = 0; to < nranks; to++)
			if (fabrics->links.speed[from][to] > 0)
				return true;
	return false;
}

static ferryResult_t settle(struct ferry_fabrics *fabrics)
{
	ferryResult_t result = ferry_fabrics_await(fabrics, UINT64_MAX);
	bool gpus = !result && all_are(fabrics->rank, FERRY_COPY_QUIESCE_ROUTER);
	bool near = gpus || (!result && all_are(fabrics->rank, FERRY_COPY_QUIESCE_HOST_LANES) &&
	                     ferry_ranks_are_near(fabrics->rank));
	bool astray = gpus && fabrics->costs->astray;
	if (gpus && !astray)
		find_gpu_links(fabrics);
	else if (near && !gpus)
		result = find_host_links(fabrics);
	if (result)
		return result;
	if (astray)
		fabrics->lack = "ferry-perf limits has found that copies between these GPUs go astray";
	else if (!near)
		fabrics->lack = "not all ranks' devices can push into each other's memory";
	else if (!any_link(fabrics))
		fabrics->lack = "no rank's device reaches another's memory";
	/* On host devices only users' programs push, unless FERRY_FABRICS names a fabric. */
	fabrics->peers = !fabrics->lack && (gpus || fabrics->named);
	fabrics->memory = near && !gpus;
	fabrics->settled = true;
	return ferrySuccess;
}

/* ---- what each fabric carries ---- */

/* *can: peers may carry calls, and are able to. */
static ferryResult_t ask_peers(struct ferry_fabrics *fabrics, bool *can)
{
	*can = false;
	if (peers_unwanted(fabrics) || fabrics->rank->nranks == 1 || fabrics->host_share >= 1)
		return ferrySuccess;
	ferryResult_t result = fabrics->settled ? ferrySuccess : settle(fabrics);
	if (!result && !fabrics->peers && fabrics->named && !fabrics->wanted[FERRY_FABRIC_HOST])
		result = ferry_fail(ferryInvalidUsage, "FERRY_FABRICS=peer, and %s", fabrics->lack);
	*can = !result && fabrics->peers;
	return result;
}

/* What a rank's GPU sends over all its links together, and through what they share as the first link does. */
static float sent_by(const struct ferry_links *links, int from, int nranks)
{
	float sum = 0;
	uint64_t counted = 0;
	for (int to = 0; to < nranks; to++) {
		uint64_t first = links->through[from][to] & (~links->through[from][to] + 1);
		if (!(first & counted))
			sum += first ? links->shared[__builtin_ctzll(first)] : links->speed[from][to];
		counted |= first;
	}
	return sum;
}

/* GB/s of a link of speed 1, as ferry-perf has measured what a GPU pushes to all others; 0: it has not. */
static float speed_of_one(const struct ferry_fabrics *fabrics)
{
	float most = 1;
	for (int from = 0; from < fabrics->rank->nranks && fabrics->partial && !fabrics->ports; from++)
		most = fmaxf(most, sent_by(&fabrics->links, from, fabrics->rank->nranks));
	return (float)fabrics->costs->push / most;
}

/*
 * Not measured: below this a call that ADDs takes longer to fill and drain its trees than the host's way; speeds of a
 * NVLink and, as parts of a copy's rate, of PCIe between GPUs and of the host's way, until ferry-perf measures them. A
 * program of ADDs has to gain GAIN of the time.
 */
#ifndef ADDS_LEAST
#define ADDS_LEAST (4u << 20)
#endif
#define NVLINK    22.0
#define PCIE_PART 0.8
#define GAIN      0.1

/* Nanoseconds per byte of a block by a program of PUTs of this collective; INFINITY: there is none, or no room. */
static double peer_time(const struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root)
{
	struct ferry_program *program;
	uint32_t adds[FERRY_MAX_RANKS] = {0};
	double time = INFINITY, one = (double)speed_of_one(fabrics);
	if (ferry_program_synthesize_peer(collective, fabrics->topology, &fabrics->links, root, &program)) {
		ferry_forget_message();
		return INFINITY;
	}
	bool fits = true;
	for (uint32_t i = 0; i < program->nstatements; i++)
		if (program->statements[i].opcode == FERRY_REDUCE) /* a source of an ADD, of two at least */
			fits &= ++adds[program->statements[i].rank] <= 2 * FERRY_MOST_ADDS;
	if (!(one > 0))
		one = fabrics->ports ? fabrics->costs->link * PCIE_PART : NVLINK;
	if (fits)
		time = ferry_program_peer_time(program, &fabrics->links) / one;
	ferry_program_free(program);
	return time;
}

/* The same for what carries the collective otherwise: all pairs and kernels, or the host. */
static double other_time(const struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root,
                         bool all_pairs)
{
	double n = fabrics->rank->nranks, host = fabrics->costs->host;
	host = host > 0 ? host : fabrics->costs->link * PCIE_PART;
	if (all_pairs && collective == FERRY_REDUCESCATTER)
		return peer_time(fabrics, FERRY_ALLTOALL, 0);
	if (all_pairs) {
		enum ferry_collective gathers = collective == FERRY_ALLREDUCE ? FERRY_ALLGATHER : FERRY_GATHER;
		return (peer_time(fabrics, FERRY_ALLTOALL, 0) + peer_time(fabrics, gathers, root)) / n;
	}
	return (collective == FERRY_REDUCESCATTER ? n - 1 : 1) / host;
}

/*
 * Whether a program of ADDs to this root is to carry the collective. Only what all pairs take depends on the root, by
 * the Gather: a link leads both ways alike, so the least cut that bounds trees to one root bounds those to all.
 */
static bool adds_gain(const struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root,
                      bool all_pairs)
{
	double time = peer_time(fabrics, collective, root);
	if (fabrics->named && !fabrics->wanted[FERRY_FABRIC_HOST] && !all_pairs)
		return !isinf(time);
	return time < (1 - GAIN) * other_time(fabrics, collective, root, all_pairs);
}

ferryResult_t ferry_fabrics_choose(struct ferry_fabrics *fabrics, bool all_pairs)
{
	static const enum ferry_collective sums[] = {FERRY_ALLREDUCE, FERRY_REDUCESCATTER, FERRY_REDUCE_TO_ROOT};
	const uint32_t nranks = (uint32_t)fabrics->rank->nranks;
	bool can;
	ferryResult_t result = ask_peers(fabrics, &can);
	if (result == ferryInvalidUsage) { /* no links: calls say so */
		ferry_forget_message();
		result = ferrySuccess;
	}
	fabrics->kernels = !result;
	/* sums are not divided: the host has them all */
	can = can && fabrics->host_share <= 0 && !*fabrics->no_windows;
	for (uint32_t i = 0; !result && can && fabrics->partial && i < 3; i++) {
		uint32_t nroots = all_pairs && ferry_collective_has_root(sums[i]) ? nranks : 1;
		for (uint32_t root = 0; root < nroots; root++)
			if (adds_gain(fabrics, sums[i], root, all_pairs))
				fabrics->adds[sums[i]] |= nroots > 1 ? 1ull << root : UINT64_MAX;
	}
	return result;
}

bool ferry_fabrics_add(const struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root,
                       uint64_t bytes)
{
	bool alone = fabrics->named && !fabrics->wanted[FERRY_FABRIC_HOST];
	return fabrics->adds[collective] >> root & 1 && (alone || bytes >= ADDS_LEAST);
}

/* Whether peers carry sums: by trees over modelled links of host devices, or of GPUs. Else the host adds up. */
static bool peers_add(const struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root,
                      uint64_t bytes, bool no_adds)
{
	struct ferry_packing packing;
	if (!fabrics->memory)
		return !no_adds && ferry_fabrics_add(fabrics, collective, root, bytes);
	return fabrics->speeds && ferry_packing_find(&fabrics->links, (uint32_t)fabrics->rank->nranks, &packing);
}

/* The blocks that the busiest device sends or receives. A Broadcast has one, as its chains and trees forward it. */
static uint32_t blocks_of(enum ferry_collective collective, uint32_t nranks)
{
	return collective == FERRY_BROADCAST || collective == FERRY_SENDRECV ? 1 : nranks - 1;
}

/*
 * For GPUs: with relays where links are partial, and with the host where FERRY_FABRICS names it and ferry-perf has
 * measured both. Returns false if it has neither.
 */
static bool find_gpu_network(const struct ferry_fabrics *fabrics, struct ferry_network *network)
{
	float one = speed_of_one(fabrics), host = (float)fabrics->costs->host;
	bool by_host = fabrics->wanted[FERRY_FABRIC_HOST] && one > 0 && host > 0;
	bool relays = fabrics->partial && !*fabrics->no_windows;
	one = one > 0 ? one : 1; /* without the host the division depends on the links' proportions alone */
	for (int from = 0; from < fabrics->rank->nranks; from++) {
		network->links.port[from] = fabrics->ports || !fabrics->partial ? one : 0;
		for (int to = 0; to < fabrics->rank->nranks; to++)
			network->links.speed[from][to] *= one;
	}
	for (int shared = 0; shared < FERRY_MAX_SHARED_LINKS; shared++)
		network->links.shared[shared] *= one;
	network->limits.up = network->limits.down = by_host ? host : 0;
	network->limits.relays = relays ? 0 : FERRY_NO_RELAYS;
	return by_host || relays;
}

bool ferry_fabrics_network(const struct ferry_fabrics *fabrics, struct ferry_network *network)
{
	bool host = fabrics->wanted[FERRY_FABRIC_HOST];
	memset(network, 0, sizeof *network); /* padding, too: it is hashed */
	network->links = fabrics->links;
	if (fabrics->memory && fabrics->speeds) {
		network->limits.up = host ? fabrics->up : 0;
		network->limits.down = host ? fabrics->down : 0;
		return true;
	}
	return !fabrics->memory && find_gpu_network(fabrics, network);
}

/* Returns the rank whose memory a statement writes: a PUT, or a statement with a place in a rank's memory. */
static uint32_t written_rank(const struct ferry_statement *put)
{
	bool writes_memory = put->opcode != FERRY_PUT && put->opcode != FERRY_H2D;
	return put->opcode == FERRY_PUT ? put->peer
	       : writes_memory          ? (uint32_t)put->destination.domain - FERRY_MAX_DOMAINS
	                                : put->rank;
}

static ferryResult_t check_put(const struct ferry_fabrics *fabrics, const struct ferry_program *program,
                               const struct ferry_statement *put)
{
	uint32_t from = put->rank, to = written_rank(put);
	if (fabrics->lack)
		return ferry_fail(ferryProgramError, "%s:%u: PUT from rank %u to rank %u, and %s", program->name,
		                  put->line, from, to, fabrics->lack);
	if (!fabrics->memory && *fabrics->no_windows && ferry_statement_uses_memory(put))
		return ferry_fail(ferryProgramError, "%s:%u: a place in a rank's memory, and %s", program->name,
		                  put->line, fabrics->no_windows);
	if (!fabrics->memory && !fabrics->kernels && put->opcode == FERRY_REDUCE)
		return ferry_fail(ferryProgramError,
		                  "%s:%u: ADD on GPUs without kernels: 2 to %u ranks have them (FERRY_KERNELS)",
		                  program->name, put->line, FERRY_ADD_RANKS);
	if (from != to && !(fabrics->links.speed[from][to] > 0))
		return ferry_fail(ferryProgramError,
		                  "%s:%u: PUT from rank %u to rank %u, whose devices do not reach each other",
		                  program->name, put->line, from, to);
	return ferrySuccess;
}

ferryResult_t ferry_fabrics_check(struct ferry_fabrics *fabrics, const struct ferry_program *program)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t i = 0; i < program->nstatements && !result; i++) {
		const struct ferry_statement *put = &program->statements[i];
		if (put->opcode != FERRY_PUT && !ferry_statement_uses_memory(put))
			continue;
		if (peers_unwanted(fabrics))
			return ferry_fail(ferryProgramError, "%s:%u: PUT, and FERRY_FABRICS=%s leaves peer out",
			                  program->name, put->line, ferry_env("FERRY_FABRICS"));
		if (!fabrics->settled)
			result = settle(fabrics);
		if (!result)
			result = check_put(fabrics, program, put);
	}
	return result;
}

ferryResult_t ferry_fabrics_push(struct ferry_fabrics *fabrics, bool *puts)
{
	return ask_peers(fabrics, puts);
}

/* The table of links has none from a device to itself, but each device reaches its own memory. */
bool ferry_fabrics_pushes(const struct ferry_fabrics *fabrics, uint32_t sender, uint32_t receiver, uint64_t bytes)
{
	return fabrics && bytes > FERRY_EAGER_BYTES &&
	       (sender == receiver || fabrics->links.speed[sender][receiver] > 0);
}

/* Logs once per communicator that the host carries calls although FERRY_FABRICS=peer. */
static void log_host(struct ferry_fabrics *fabrics, enum ferry_collective collective)
{
	if (fabrics->said || !fabrics->named || fabrics->wanted[FERRY_FABRIC_HOST] || fabrics->rank->nranks == 1)
		return;
	fabrics->said = true;
	if (fabrics->rank->self)
		return;
	ferry_log(FERRY_LOG_INFO,
	          "FERRY_FABRICS=peer: %s goes through the host all the same, as all that has sums does",
	          ferry_collective_name(collective));
}

ferryResult_t ferry_fabrics_divide(struct ferry_fabrics *fabrics, enum ferry_collective collective, uint32_t root,
                                   uint64_t count, size_t element, bool no_adds, uint64_t *host)
{
	bool can;
	*host = count;
	ferryResult_t result = ask_peers(fabrics, &can);
	if (result || !can)
		return result;
	bool reduces = ferry_collective_reduces(collective);
	if (reduces && !peers_add(fabrics, collective, root, count * element, no_adds)) {
		log_host(fabrics, collective);
		return ferrySuccess;
	}
	uint32_t blocks = blocks_of(collective, (uint32_t)fabrics->rank->nranks);
	if ((fabrics->named && !fabrics->wanted[FERRY_FABRIC_HOST]) || (reduces && !fabrics->memory))
		*host = 0;
	else if (fabrics->host_share >= 0)
		*host = (uint64_t)((double)count * fabrics->host_share);
	else
		*host = ferry_share_of_host(fabrics->costs, count * element, blocks) / element;
	return ferrySuccess;
}

/* ---- prints ---- */

static void print_links(const struct ferry_fabrics *fabrics, FILE *out)
{
	int nranks = fabrics->rank->nranks, pairs = 0;
	float slowest = 0, fastest = 0;
	for (int from = 0; from < nranks; from++)
		for (int to = 0; to < nranks; to++) {
			float speed = fabrics->links.speed[from][to];
			if (!(speed > 0))
				continue;
			slowest = !pairs || speed < slowest ? speed : slowest;
			fastest = speed > fastest ? speed : fastest;
			pairs++;
		}
	fprintf(out, ", links %d of %d", pairs, nranks * (nranks - 1));
	if (pairs && fabrics->speeds)
		fprintf(out, " of %g to %g GB/s", (double)slowest, (double)fastest);
	else if (slowest < fastest)
		fprintf(out, ", the fastest %g times the slowest", (double)(fastest / slowest));
	if (fabrics->costs->push > 0)
		fprintf(out, ", a GPU pushes %g GB/s and moves %g by the host (ferry-perf limits)",
		        fabrics->costs->push, fabrics->costs->host);
}

void ferry_fabrics_print(const struct ferry_fabrics *fabrics, uint64_t host, uint64_t count, FILE *out)
{
	double share = count ? (double)host / (double)count : 1;
	fprintf(out, ", fabrics");
	if (host || !count)
		fprintf(out, " %s=%.4g", names[FERRY_FABRIC_HOST], share);
	if (host < count)
		fprintf(out, "%s%s=%.4g", host ? "," : " ", names[FERRY_FABRIC_PEER], 1 - share);
	if (fabrics->settled)
		print_links(fabrics, out);
}
