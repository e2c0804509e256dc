/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/peers/nccl_library.h"

#include "ipc/environment.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The calls that are measured; AlltoAll, Gather and Scatter came with NCCL 2.28. */
#define REQUIRED(F)                                                                                                    \
	F(GetVersion) F(GetUniqueId) F(GetErrorString) F(GetLastError) F(CommInitRank) F(CommGetAsyncError)            \
	F(RedOpCreatePreMulSum) F(AllReduce) F(AllGather) F(ReduceScatter) F(Broadcast) F(Reduce) F(Send) F(Recv)      \
	F(GroupStart) F(GroupEnd)

static char message[512];

/* Where pip puts nvidia-nccl-cu12 and -cu13: no loader looks there. */
static void *open_of_python(void)
{
	char path[4096] = "";
	FILE *python = popen(
	        "python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + \"/lib/libnccl.so.2\")' 2>/dev/null",
	        "r");
	if (!python)
		return NULL;
	bool read = fgets(path, sizeof path, python) != NULL;
	pclose(python);
	path[strcspn(path, "\n")] = '\0';
	return read && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

const char *nccl_library_open(struct nccl_library *nccl)
{
	const char *chosen = ferry_env("FERRY_NCCL_LIBRARY"), *name = chosen ? chosen : "libnccl.so.2";
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(message, sizeof message, "%s: %s", chosen ? "FERRY_NCCL_LIBRARY" : "no NCCL", dlerror());
		library = chosen ? NULL : open_of_python();
	}
	if (!library)
		return message;
#define NCCL_VALUE(since, type, name, parameters, arguments) *(void **)&nccl->name = dlsym(library, "nccl" #name);
#include "orchestrator/functions.def"
#define REQUIRE(function)                                                                                              \
	if (!nccl->function) {                                                                                         \
		snprintf(message, sizeof message, "%s has no nccl" #function, name);                                   \
		return message;                                                                                        \
	}
	REQUIRED(REQUIRE)
#undef REQUIRE
	return NULL;
}
