/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/environment.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/wait.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct ferry_variable ferry_variables[] = {
	{"FERRY_ROUTER", "auto",
	 "auto: attach to routers, starting them if none answers; required: fail if none answers. Routers that a rank "
	 "starts end after 10 s without a job, and what they log once ranks can attach is lost."},
	{"FERRY_SOCKET_DIR", "",
	 "Directory of the routers' sockets, at most 59 bytes. Unset: $XDG_RUNTIME_DIR/ferry, else /run/ferry where "
	 "writable, else /tmp/ferry-UID."},
	{"FERRY_ROUTER_EXE", "",
	 "The ferry-router command that FERRY_ROUTER=auto and ferryrun start. Unset: beside libferry or ferryrun, else "
	 "on PATH."},
	{"FERRY_ATTACH_TIMEOUT", "60",
	 "Seconds, 1 to 86400, that a rank waits at start for the other ranks, and at any time for a router's answer; "
	 "and that a router waits for the rest of a tenant's message."},
	{"FERRY_TIMEOUT", "10",
	 "Seconds, 0 to 86400, that a call may wait without anything of it moving, and so may ferryCommSplit. Then a "
	 "message names the rank or router that it waits for, the call and the slice; FERRY_ON_TIMEOUT says what else "
	 "is done. 0: never. Until all ranks have attached it is FERRY_ATTACH_TIMEOUT that counts."},
	{"FERRY_ON_TIMEOUT", "report",
	 "report: a line in the log, and the call waits on, as a rank may compute for long. fail: the communicator "
	 "ends on all ranks, with ferryRemoteError and that line; FERRY_TIMEOUT is then 600 where it is not set, and "
	 "what lasts longer than 10 s is told before."},
	{"FERRY_TAKEOVER", "on",
	 "on: where a router dies, another takes its place, and jobs go on: ferryrun, a system service or a rank "
	 "(FERRY_ROUTER=auto) starts it, within FERRY_ATTACH_TIMEOUT. off: the communicator ends with an error. Of "
	 "ranks and of ferryrun."},
	{"FERRY_LAYOUT", "",
	 "Domains and what belongs to each, such as \"0: cpus=0-15 devices=0,1; 1: cpus=16-31 devices=2,3\". A "
	 "domain may also have node=N, where its memory is bound."},
	{"FERRY_DOMAINS", "",
	 "Split this machine's CPUs and devices into that many equal domains. FERRY_LAYOUT goes before it."},
	{"FERRY_DEVICE", "",
	 "Kind of device: host or cuda. Unset: cuda where the process has a CUDA device, else host."},
	{"FERRY_CUDA_LIBRARY", "libcuda.so.1",
	 "The CUDA driver to open. Where it is set it must open, unless FERRY_DEVICE is host."},
	{"FERRY_WAIT", "",
	 "memory or kernel: how streams of a GPU wait for calls: at a memory operation, which holds one of the "
	 "hardware queues that streams share, or in a kernel of one thread. Unset: kernel where "
	 "CUDA_DEVICE_MAX_CONNECTIONS is below 8."},
	{"FERRY_KERNELS", "on",
	 "Whether short calls of ranks on GPUs are carried by a kernel each, in the caller's stream: on, off, or 1 to "
	 "64: blocks that it may have. Unset or on: a quarter of the GPU's multiprocessors, and half of them in calls "
	 "of more than 0.5 MiB of the first communicator on it. Where a rank has it off no rank of its communicator "
	 "has kernels. Beside kernels that hold every multiprocessor a call starts late, as NCCL's do; with off, by "
	 "routers, it does not."},
	{"FERRY_NCCL_LIBRARY", "libnccl.so.2",
	 "The NCCL that libferry-nccl.so and ferry-perf --vs nccl call. Unset: the one that the program has loaded or "
	 "would have found, or pip's."},
	{"FERRY_TUNE", "on",
	 "on: before ferryrun --nccl starts its command, it measures what calls take by NCCL and by Ferry (ferry-perf "
	 "tune --quick), once for each machine, number of GPUs and settings of NCCL. off: it does not, and the first "
	 "calls of programs are decided without."},
	{"FERRY_NCCL", "on",
	 "on, tune or off. tune: under libferry-nccl.so NCCL has all of every call, and Ferry learns which of NCCL's "
	 "algorithms, protocols and channels are fastest. off: all calls are passed on to NCCL, untouched."},
	{"FERRY_HOST_LINK", "",
	 "Speeds of host devices' links in GB/s, 1e-6 to 1e5, separated by commas. d2h=12.5,h2d=12.5: to and from the "
	 "host. peer=50 or links=mesh:50: from each device to each other; links=dgx1v:25, links=dgx1p:20: the cube "
	 "mesh of a DGX-1 with V100s or P100s, by one NVLink's speed; links=nvswitch:450: each device's speed to all "
	 "others; links=bridges:52:25: neighbours in pairs, by a bridge's speed and a PCIe port's, "
	 "links=bridges:52:25:4: in fours; "
	 "links=pcie2:12:6:20: two sockets of four devices, by each one's speed to all others, that to one of the "
	 "other socket, and that of the link between the sockets. peer@0-3=10: one pair's, 0 for none. port=100: what "
	 "a device sends to all others at once. devices=0,2,5: the devices of ranks 0, 1 and 2. "
	 "Unset: as fast as memory, and no links between devices."},
	{"FERRY_FABRICS", "",
	 "Which ways between devices calls may take: host (staging and routers), peer (pushes from device to device), "
	 "or both, as host,peer. With peer alone what has sums goes through the host all the same, which is said once "
	 "(FERRY_LOG=info), but for devices whose links connect them, and on host devices are modelled, on GPUs not "
	 "all alike; and so do messages between devices without a link; calls that could push are refused where no "
	 "device reaches another. Without peer programs that push are passed over, or refused. The same on all ranks: "
	 "those that differ end with an error in their first call that this concerns. Unset: both on GPUs, "
	 "the host on host devices, and programs that push."},
	{"FERRY_PEERS", "",
	 "Pairs of ranks whose GPUs may use each other's memory where the driver lets them, as 0-1,2-3: no other pairs "
	 "do. The same on all ranks. Unset: all pairs."},
	{"FERRY_SHARES", "",
	 "What each fabric carries of a call that all can take, such as host=0.1,peer=0.9 or nccl:0.9,host:0.1, from "
	 "0 to 1; where one is named, the rest is the peers', or under libferry-nccl.so NCCL's. A program then gives "
	 "the same bits in every run. The same on all ranks. A share of one that FERRY_FABRICS leaves out is refused. "
	 "Unset: by the rates that ferry-perf limits has measured; without those peers carry all that they can. "
	 "Beside NCCL a call goes one way, by what such calls take."},
	{"FERRY_SHARES_LOG", "",
	 "A file to which rank 0 appends a line of JSON for each call that it has measured beside NCCL: its shares, "
	 "what it took, of time that a call of another stream overlaps half, and why; what such calls take by NCCL and "
	 "by Ferry as far as is known then, and which of them was chosen. ferry-plot --shares draws it."},
	{"FERRY_SPLIT_FLOOR", "8M",
	 "Calls of NCCL programs that move less, in bytes (K, M, G), are a kernel's or NCCL's alone. Where ranks have "
	 "different ones all calls are NCCL's."},
	{"FERRY_SPLIT_VETO", "on",
	 "Whether Ferry gives way, under libferry-nccl.so, where an NCCL program's steps are no shorter with it (on), "
	 "or what calls take decides alone (off). The same on all ranks."},
	{"FERRY_SPLIT_WAIT", "",
	 "Seconds, 0 to 3600, that a thread waits at most, when it makes a communicator of NCCL's, until Ferry's is "
	 "there, and at most once for each communicator in a call that is captured; a quarter of one is usual. 0: it "
	 "is made beside, and the first calls are NCCL's alone. Unset: 1 for the process's first communicator and for "
	 "captured calls, 0 for others."},
	{"FERRY_STAGING", "",
	 "Bytes of staging per job and domain (K, M, G), 8K to 1024G: so much, or the job is refused. Unset: half of "
	 "the domain's last-level cache, two thirds of it for GPUs, less where the router's limit or the memory that "
	 "is left is short, and 256 KiB for a communicator of one rank. Windows for messages between two ranks come on "
	 "top, half as much at most, but at least 512 bytes for each slot, and 256 KiB where there is one rank."},
	{"FERRY_SHM", "memfd",
	 "What routers make the memory of jobs of. memfd: sealed, takes memory as it is used, needs no room in "
	 "/dev/shm. posix: shared memory in /dev/shm, all of it at once; also where the system has no memfd."},
	{"FERRY_SLICE", "", "Bytes per slice, a multiple of 64, at most 1G. Unset: chosen per plan."},
	{"FERRY_WINDOW", "", "Slots per chunk version, 1 to 1024. Unset: chosen per plan."},
	{"FERRY_WORKERS", "",
	 "Worker threads of a router, 1 to 64. Unset: one per two CPUs of its domain, at least one."},
	{"FERRY_SHORT", "1M",
	 "Bytes (K, M, G) that a rank on a host device puts down for the others at most in a call that the calling "
	 "threads run themselves, at most its part of the staging; or sends or receives in a message. 0, and where "
	 "FERRY_HOST_LINK, FERRY_FABRICS, FERRY_SHARES or programs in place of Ferry's own are set: lanes and routers "
	 "run every call. The same on all ranks."},
	{"FERRY_SPIN_US", "",
	 "Microseconds that lanes and workers spin before they sleep. Unset: lanes 0 for host devices and 1000 for "
	 "GPUs, workers 1000 in a domain of at least 8 CPUs, else 0. Where one has waited for a CPU for more than a "
	 "third of its time, none of its kind spins for 50 ms to 3.2 s. A lane that does not spin polls a GPU's stream "
	 "less often, too."},
	{"FERRY_REDUCE", "",
	 "The reduction kernels: portable, avx2, avx512 or neon. Unset: the best this CPU has. Those that it lacks are "
	 "refused."},
	{"FERRY_LIMITS", "",
	 "Where `ferry-perf limits` writes what this machine can do, and `ferry-perf tune` what NCCL and Ferry do on "
	 "it. Communicators on GPUs plan by it: all ranks of a job must read the same. Unset: ferry/limits.json in "
	 "$XDG_CACHE_HOME, else in ~/.cache."},
	{"FERRY_PROGRAM_PATH", "",
	 "Files and directories, separated by colons, of programs that replace built-in ones. Where none of a "
	 "collective fits the communicator, rank 0 warns once of each."},
	{"FERRY_LOG", "warn", "Messages on stderr: error, warn, info or debug."},
	{"FERRY_DEBUG", "",
	 "plan: rank 0 prints each plan as it is made, and a router each division of an AllToAllv's pieces."},
	{"FERRY_RANK", "",
	 "This process's rank. ferryrun --fork and --join set it and the next three; under an mpiexec, which is "
	 "ferryrun's default, and other launchers they are unset, and the launcher's own (below) are read. Where "
	 "launchers nest, the innermost one's count: those that were set last."},
	{"FERRY_SIZE", "", "Number of ranks."},
	{"FERRY_LOCAL_RANK", "", "Rank among those of this machine; the default device."},
	{"FERRY_LOCAL_SIZE", "", "Ranks on this machine."},
	{"FERRY_JOB_KEY", "",
	 "The job's 128-bit key, 32 hex digits, the same for all its ranks. Set by ferryrun; else made from what the "
	 "launcher says. Of ranks started by hand, with FERRY_RANK and FERRY_SIZE, it is their shell's: two jobs at "
	 "the same time from one shell need one each."},
	{"XDG_RUNTIME_DIR", "", "Where the socket directory is unless FERRY_SOCKET_DIR is set."},
	{"XDG_CACHE_HOME", "", "Where the file of limits is unless FERRY_LIMITS is set."},
	{"HOME", "", "The same where XDG_CACHE_HOME is unset."},
	{"NOTIFY_SOCKET", "", "systemd: where a router says that ranks can attach."},
	{"PMI_RANK", "", "MPICH, Hydra, Intel MPI: rank."},
	{"PMI_SIZE", "", "MPICH, Hydra, Intel MPI: size."},
	{"PMI_FD", "", "Hydra: which of two nested launchers has set these."},
	{"MPI_LOCALRANKID", "", "Hydra: local rank."},
	{"MPI_LOCALNRANKS", "", "Hydra: local size."},
	{"OMPI_COMM_WORLD_RANK", "", "Open MPI: rank."},
	{"OMPI_COMM_WORLD_SIZE", "", "Open MPI: size."},
	{"OMPI_COMM_WORLD_LOCAL_RANK", "", "Open MPI: local rank."},
	{"OMPI_COMM_WORLD_LOCAL_SIZE", "", "Open MPI: local size."},
	{"PMIX_NAMESPACE", "", "PMIx: job id."},
	{"PMIX_RANK", "", "PMIx: rank. Alone, without Open MPI's or Slurm's variables, it tells no size."},
	{"SLURM_PROCID", "", "Slurm: rank."},
	{"SLURM_NTASKS", "", "Slurm: size."},
	{"SLURM_LOCALID", "", "Slurm: local rank."},
	{"SLURM_JOB_ID", "", "Slurm: job id."},
	{"SLURM_STEP_ID", "", "Slurm: step id. Without it the process is a batch script's, started by no srun."},
	{"RANK", "", "torchrun: rank."},
	{"WORLD_SIZE", "", "torchrun: size."},
	{"LOCAL_RANK", "", "torchrun: local rank."},
	{"LOCAL_WORLD_SIZE", "", "torchrun: local size."},
	{"MASTER_ADDR", "", "torchrun: part of the job's identity."},
	{"MASTER_PORT", "", "torchrun: part of the job's identity."},
	{"TORCHELASTIC_RUN_ID", "", "torchrun: part of the job's identity."},
	{"TORCHELASTIC_RESTART_COUNT", "",
	 "torchrun: part of the job's identity, so that a restarted job does not meet its past."},
	{NULL, NULL, NULL}};

static bool is_among(const char *name, const char *const *names)
{
	while (*names && strcmp(name, *names))
		names++;
	return *names;
}

enum ferry_variable_section ferry_variable_section(const struct ferry_variable *variable)
{
	static const char *const first[] = {"FERRY_ROUTER", "FERRY_SOCKET_DIR", "FERRY_DEVICE",
	                                    "FERRY_STAGING", "FERRY_LOG",        NULL},
	                         *const ranks[] = {"FERRY_RANK", "FERRY_SIZE", "FERRY_LOCAL_RANK", "FERRY_LOCAL_SIZE",
	                                           "FERRY_JOB_KEY", NULL},
	                         *const systems[] = {"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME", NULL};
	if (is_among(variable->name, first))
		return FERRY_VARIABLES_FIRST;
	if (is_among(variable->name, ranks))
		return FERRY_VARIABLES_LAUNCHER;
	return !strncmp(variable->name, "FERRY_", 6) || is_among(variable->name, systems) ? FERRY_VARIABLES_OTHER
	                                                                                  : FERRY_VARIABLES_LAUNCHER;
}

static bool is_known(const char *name)
{
	const struct ferry_variable *variable = ferry_variables;
	while (variable->name && strcmp(variable->name, name))
		variable++;
	return variable->name;
}

const char *ferry_env(const char *name)
{
	if (!is_known(name)) {
		ferry_log(FERRY_LOG_ERROR, "bug: %s is not in the table of environment variables", name);
		return NULL;
	}
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

/* Whether a ferryrun above has had the variable, and so has named it. */
static bool was_named(const char *name)
{
	static const char *const ferryrun[] = {"ferryrun", NULL};
	bool named = false;
	for (pid_t process = getppid(); process > 0 && !named; process = ferry_process_parent(process)) {
		char *environment = ferry_process_is(process, ferryrun) ? ferry_process_environment(process) : NULL;
		named = environment && ferry_process_variable(environment, name);
		free(environment);
	}
	return named;
}

void ferry_env_name_unknown(void)
{
	static _Atomic bool done;
	if (atomic_exchange(&done, true))
		return;
	for (char **entry = environ; entry && *entry; entry++) {
		char name[64];
		size_t length = strcspn(*entry, "=");
		if (strncmp(*entry, "FERRY_", 6) || length >= sizeof name)
			continue;
		snprintf(name, sizeof name, "%.*s", (int)length, *entry);
		if (!is_known(name) && !was_named(name))
			ferry_log(FERRY_LOG_WARN, "Ferry reads no variable %s (ferry-stat --env has them all)", name);
	}
}

int ferry_parse_bytes(const char *text, uint64_t *value)
{
	char *end;
	unsigned shift = 0;
	if (!text || !isdigit((unsigned char)*text))
		return 0;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	switch (toupper((unsigned char)*end)) {
	case 'K':
		shift = 10;
		break;
	case 'M':
		shift = 20;
		break;
	case 'G':
		shift = 30;
		break;
	}
	if (shift)
		end++;
	if (errno || *end || number > UINT64_MAX >> shift)
		return 0;
	*value = number << shift;
	return 1;
}

ferryResult_t ferry_env_bytes(const char *name, uint64_t least, uint64_t most, uint64_t fallback, uint64_t *value)
{
	const char *text = ferry_env(name);
	*value = fallback;
	if (text && (!ferry_parse_bytes(text, value) || *value < least || *value > most))
		return ferry_fail(ferryInvalidArgument,
		                  "%s=%s: expected bytes from %llu to %llu, such as 65536, 64K, 16M or 1G", name, text,
		                  (unsigned long long)least, (unsigned long long)most);
	return ferrySuccess;
}

ferryResult_t ferry_env_switch(const char *name, bool fallback, bool *value)
{
	const char *text = ferry_env(name);
	*value = text ? !strcmp(text, "on") : fallback;
	if (!text || *value || !strcmp(text, "off"))
		return ferrySuccess;
	return ferry_fail(ferryInvalidArgument, "%s=%s: on or off", name, text);
}

ferryResult_t ferry_env_integer(const char *name, long least, long most, long fallback, long *value)
{
	const char *text = ferry_env(name);
	char *end;
	*value = fallback;
	if (!text)
		return ferrySuccess;
	errno = 0;
	long number = strtol(text, &end, 10);
	if (errno || end == text || *end || number < least || number > most)
		return ferry_fail(ferryInvalidArgument, "%s=%s: expected a whole number from %ld to %ld", name, text,
		                  least, most);
	*value = number;
	return ferrySuccess;
}

static _Atomic bool shows_plans; /* written by the thread that reads the environment */

ferryResult_t ferry_debug_read(void)
{
	const char *text = ferry_env("FERRY_DEBUG");
	if (text && strcmp(text, "plan"))
		return ferry_fail(ferryInvalidArgument, "FERRY_DEBUG=%s: plan, or unset", text);
	atomic_store_explicit(&shows_plans, text != NULL, memory_order_relaxed);
	return ferrySuccess;
}

bool ferry_debug_shows_plans(void)
{
	return atomic_load_explicit(&shows_plans, memory_order_relaxed);
}
