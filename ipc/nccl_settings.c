/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/hash.h"
#include "ipc/nccl_settings.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/*
 * These variables name a run, or its output, and change no speed: as part of the settings they would make each run
 * begin anew. NCCL_HOSTID, too: with containers it is a name of the node, a new one for each. Only if ranks of one node
 * have several does it make NCCL take its network: then what was learned without it is a bad beginning, and measured
 * calls correct it. PyTorch's older torchrun sets NCCL_ASYNC_ERROR_HANDLING for its workers alone, vLLM
 * NCCL_CUMEM_ENABLE, by which NCCL allocates otherwise, and moves data the same way. A tuner plugin that is Ferry's own
 * is not there when NCCL is measured.
 */
static bool names_a_run(const char *variable)
{
	static const char *const names[] = {"NCCL_COMM_ID=",
	                                    "NCCL_HOSTID=",
	                                    "NCCL_RAS_ADDR=",
	                                    "NCCL_DEBUG=",
	                                    "NCCL_DEBUG_SUBSYS=",
	                                    "NCCL_DEBUG_FILE=",
	                                    "NCCL_TOPO_DUMP_FILE=",
	                                    "NCCL_TOPO_DUMP_FILE_RANK=",
	                                    "NCCL_GRAPH_DUMP_FILE=",
	                                    "NCCL_GRAPH_DUMP_FILE_RANK=",
	                                    "NCCL_ASYNC_ERROR_HANDLING=",
	                                    "NCCL_CUMEM_ENABLE="};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strncmp(variable, names[i], strlen(names[i])))
			return true;
	return !strncmp(variable, "NCCL_TUNER_PLUGIN=", 18) && strstr(variable, "libferry-nccl");
}

uint64_t ferry_nccl_settings(void)
{
	uint64_t all = 1;
	for (char **at = environ; at && *at; at++)
		if ((!strncmp(*at, "NCCL_", 5) || !strncmp(*at, "FERRY_FABRICS=", 14)) && !names_a_run(*at))
			all += ferry_hash_text(FERRY_HASH_START, *at);
	return all ? all : 1;
}
