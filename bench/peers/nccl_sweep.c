/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/peers/nccl_sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROTO, ALGO, P2P_DISABLE, SHM_USE_CUDA_MEMCPY, MIN_NCHANNELS };

const char *const nccl_variables[NCCL_VARIABLES] = {"NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_DISABLE",
                                                    "NCCL_SHM_USE_CUDA_MEMCPY", "NCCL_MIN_NCHANNELS"};

/* The values of one of HyLink's three variables that matter for the collective, and how many; NULL: it is not swept. */
static unsigned values_of(enum ferry_collective collective, unsigned variable, const char *values[3])
{
	static const char *const all[][3] = {{"Simple", "LL", "LL128"}, {"Ring", "Tree"}, {"0", "1"}};
	bool sends = collective == FERRY_GATHER || collective == FERRY_SCATTER || collective == FERRY_ALLTOALL ||
	             collective == FERRY_ALLTOALLV || collective == FERRY_SENDRECV;
	/* Sends and receives choose their protocol by themselves. Trees are for allreduce alone. */
	unsigned algos = collective == FERRY_ALLREDUCE ? 2 : 1;
	unsigned count = variable == P2P_DISABLE ? 2 : sends ? 0 : variable == PROTO ? 3 : algos;
	memcpy(values, all[variable], sizeof all[variable]);
	if (count && !getenv(nccl_variables[variable]))
		return count;
	values[0] = NULL;
	return 1;
}

static bool is_on(const char *value)
{
	return value && !strcmp(value, "1");
}

/* "LL/Tree", "noP2P/memcpy/16ch". */
static void name_briefly(struct peer_setting *setting)
{
	char channels[8] = "";
	if (setting->values[MIN_NCHANNELS])
		snprintf(channels, sizeof channels, "%.4sch", setting->values[MIN_NCHANNELS]);
	const char *parts[] = {setting->values[PROTO], setting->values[ALGO],
	                       is_on(setting->values[P2P_DISABLE]) ? "noP2P" : NULL,
	                       is_on(setting->values[SHM_USE_CUDA_MEMCPY]) ? "memcpy" : NULL,
	                       *channels ? channels : NULL};
	size_t length = 0;
	for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
		if (parts[i])
			length += (size_t)snprintf(setting->brief + length, sizeof setting->brief - length, "%s%s",
			                           length ? "/" : "", parts[i]);
}

static void name_setting(struct peer_setting *setting)
{
	size_t length = 0;
	for (unsigned i = 0; i < NCCL_VARIABLES; i++)
		if (setting->values[i]) /* without NCCL_ */
			length += (size_t)snprintf(setting->name + length, sizeof setting->name - length, "%s%s=%s",
			                           length ? " " : "", nccl_variables[i] + 5, setting->values[i]);
	name_briefly(setting);
	if (!length)
		snprintf(setting->name, sizeof setting->name, "default");
	if (!*setting->brief)
		snprintf(setting->brief, sizeof setting->brief, "%s", length ? "P2P" : "default");
}

static void add_setting(struct peers *peers, const char *const values[NCCL_VARIABLES])
{
	bool own_choice = true;
	for (unsigned i = 0; i < NCCL_VARIABLES; i++)
		own_choice &= !values[i];
	if (peers->count == PEERS_MOST_SETTINGS || (peers->count && own_choice)) /* the first setting is that */
		return;
	struct peer_setting *setting = &peers->settings[peers->count++];
	*setting = (struct peer_setting){.socket = -1};
	memcpy(setting->values, values, sizeof setting->values);
	name_setting(setting);
}

static void add_hylinks(struct peers *peers, enum ferry_collective collective)
{
	const char *protos[3], *algos[3], *ways[3];
	unsigned nprotos = values_of(collective, PROTO, protos), nalgos = values_of(collective, ALGO, algos);
	unsigned nways = values_of(collective, P2P_DISABLE, ways);
	for (unsigned k = 0; k < nways; k++)
		for (unsigned j = 0; j < nalgos; j++)
			for (unsigned i = 0; i < nprotos; i++)
				add_setting(peers, (const char *[NCCL_VARIABLES]){protos[i], algos[j], ways[k]});
}

/* Through the host: copies by copy engines, more channels, and both. */
static void add_through_host(struct peers *peers)
{
	const char *p2p = getenv(nccl_variables[P2P_DISABLE]);
	bool copies = !getenv(nccl_variables[SHM_USE_CUDA_MEMCPY]), channels = !getenv(nccl_variables[MIN_NCHANNELS]);
	if (p2p && !is_on(p2p))
		return;
	for (unsigned which = 1; which < 4; which++) {
		const char *values[NCCL_VARIABLES] = {[P2P_DISABLE] = p2p ? NULL : "1"};
		if ((which & 1 && !copies) || (which & 2 && !channels))
			continue;
		values[SHM_USE_CUDA_MEMCPY] = which & 1 ? "1" : NULL;
		values[MIN_NCHANNELS] = which & 2 ? "16" : NULL;
		add_setting(peers, values);
	}
}

static void add_channels(struct peers *peers)
{
	if (!getenv(nccl_variables[MIN_NCHANNELS]) && !getenv("NCCL_MAX_NCHANNELS"))
		add_setting(peers, (const char *[NCCL_VARIABLES]){[MIN_NCHANNELS] = "16"});
}

void nccl_sweep_make(struct peers *peers, enum ferry_collective collective, enum nccl_sweep sweep)
{
	add_setting(peers, (const char *[NCCL_VARIABLES]){NULL});
	if (sweep == NCCL_SWEEP_CHANNELS)
		add_channels(peers);
	if (sweep != NCCL_SWEEP_HYLINK)
		return;
	add_hylinks(peers, collective);
	add_through_host(peers);
}
