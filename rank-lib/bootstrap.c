/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank comes to its arenas: find or start a router per domain, attach to each, wait for the other ranks. In
 * embedded mode the first rank to claim a domain's socket name hosts that domain's router; the name is abstract, so it
 * dies with the host.
 */
#include "rank-lib/bootstrap.h"

#include "ipc/environment.h"
#include "rank-lib/device/host.h"
#include "rank-lib/keeper.h"
#include "rank-lib/mapped.h"
#include "router/router.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- keys ---- */

static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ value >> 27) * 0x94d049bb133111ebull;
	return value ^ value >> 31;
}

void ferry_derive_key(uint8_t *key, const uint8_t *from, uint64_t first, uint64_t second)
{
	uint64_t half[2];
	memcpy(half, from, sizeof half);
	uint64_t low = mix(half[0] ^ mix(first + 0x9e3779b97f4a7c15ull) ^ mix(half[1] + second));
	uint64_t high = mix(half[1] ^ mix(second + 0xd1b54a32d192ed03ull) ^ mix(low + first));
	memcpy(key, &low, sizeof low);
	memcpy(key + sizeof low, &high, sizeof high);
}

ferryResult_t ferry_random_key(uint8_t *key)
{
	if (getrandom(key, FERRY_KEY_BYTES, 0) != FERRY_KEY_BYTES)
		return ferry_fail(ferrySystemError, "getrandom: %s", strerror(errno));
	return ferrySuccess;
}

/* ---- routers hosted by this process ---- */

static struct hosted {
	char path[136];
	struct ferry_router *router;
	struct hosted *next;
} *hosted; /* under hosted_lock */
static struct { char prefix[48]; uint32_t users; } prefixes[256]; /* communicators of this process by router name */
static pthread_mutex_t hosted_lock = PTHREAD_MUTEX_INITIALIZER;

static ferryResult_t use_prefix(const char *prefix)
{
	int free_one = -1;
	for (int i = 0; i < 256; i++) {
		if (prefixes[i].users && !strcmp(prefixes[i].prefix, prefix)) {
			prefixes[i].users++;
			return ferrySuccess;
		}
		if (!prefixes[i].users)
			free_one = i;
	}
	if (free_one < 0)
		return ferry_fail(ferryInvalidUsage, "more than 256 jobs with embedded routers in one process");
	snprintf(prefixes[free_one].prefix, sizeof prefixes[free_one].prefix, "%s", prefix);
	prefixes[free_one].users = 1;
	return ferrySuccess;
}

static uint32_t leave_prefix(const char *prefix)
{
	for (int i = 0; i < 256; i++)
		if (prefixes[i].users && !strcmp(prefixes[i].prefix, prefix))
			return --prefixes[i].users;
	return 0;
}

/* The last communicator of this process that uses these routers has gone: end those that this process hosts. */
static void leave_embedded(struct ferryComm *comm, bool abort)
{
	struct hosted *mine = NULL, **link;
	char start[120];
	snprintf(start, sizeof start, "%s/%s-", comm->directory, comm->prefix);
	pthread_mutex_lock(&hosted_lock);
	if (leave_prefix(comm->prefix)) {
		pthread_mutex_unlock(&hosted_lock);
		return;
	}
	for (link = &hosted; *link;) {
		struct hosted *entry = *link;
		if (strncmp(entry->path, start, strlen(start))) {
			link = &entry->next;
			continue;
		}
		*link = entry->next;
		entry->next = mine;
		mine = entry;
	}
	pthread_mutex_unlock(&hosted_lock);
	for (struct hosted *entry = mine; entry; entry = entry->next)
		ferry_router_drain(entry->router);
	while (mine) {
		struct hosted *entry = mine;
		mine = entry->next;
		if (!abort)
			ferry_router_wait(entry->router);
		ferry_router_stop(entry->router);
		free(entry);
	}
}

static ferryResult_t host_router(struct ferryComm *comm, const struct ferry_layout *layout, uint32_t domain,
                                 const char *path)
{
	struct ferry_router_options options = {
		.domain = domain, .layout = layout, .directory = comm->directory, .prefix = comm->prefix, .pin = true};
	struct hosted *entry = calloc(1, sizeof *entry);
	if (!entry)
		return ferry_fail(ferrySystemError, "no memory for an embedded router");
	ferryResult_t result = ferry_router_start(&options, &entry->router);
	if (result) {
		free(entry);
		return result;
	}
	snprintf(entry->path, sizeof entry->path, "%s", path);
	pthread_mutex_lock(&hosted_lock);
	entry->next = hosted;
	hosted = entry;
	pthread_mutex_unlock(&hosted_lock);
	return ferrySuccess;
}

/* ---- routers as processes ---- */

static bool router_command(char *path, size_t bytes)
{
	const char *given = ferry_env("FERRY_ROUTER_EXE"), *search = getenv("PATH");
	Dl_info self;
	if (given) {
		snprintf(path, bytes, "%s", given);
		return true;
	}
	if (dladdr((void *)(uintptr_t)ferry_random_key, &self) && self.dli_fname && strrchr(self.dli_fname, '/')) {
		int stem = (int)(strrchr(self.dli_fname, '/') - self.dli_fname);
		snprintf(path, bytes, "%.*s/../bin/ferry-router", stem, self.dli_fname);
		if (!access(path, X_OK))
			return true;
		snprintf(path, bytes, "%.*s/../../bin/ferry-router", stem, self.dli_fname); /* lib/x86_64-linux-gnu */
		if (!access(path, X_OK))
			return true;
	}
	while (search && *search) {
		int length = (int)strcspn(search, ":");
		snprintf(path, bytes, "%.*s/ferry-router", length, search);
		if (!access(path, X_OK))
			return true;
		search += length + (search[length] == ':');
	}
	return false;
}

/*
 * A router serves ranks on any GPU, and outlives this one: which GPUs this process sees is none of its business. NULL:
 * no memory.
 */
static char **router_environment(void)
{
	static const char hidden[] = "CUDA_VISIBLE_DEVICES=";
	size_t count = 0, kept = 0;
	while (environ[count])
		count++;
	char **copy = malloc((count + 1) * sizeof *copy);
	for (size_t i = 0; copy && i < count; i++)
		if (strncmp(environ[i], hidden, sizeof hidden - 1))
			copy[kept++] = environ[i];
	if (copy)
		copy[kept] = NULL;
	return copy;
}

static ferryResult_t spawn_router(const struct ferryComm *comm, const char *command, uint32_t domain)
{
	char number[16];
	pid_t child;
	int status = 0;
	posix_spawnattr_t attributes;
	sigset_t none;
	snprintf(number, sizeof number, "%u", domain);
	char *argv[] = {(char *)command, "--domain", number, "--socket-dir", (char *)comm->directory, "--daemon",
	                "--idle-exit",   "10",       NULL};
	sigemptyset(&none);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	char **environment = router_environment();
	int refused = environment ? posix_spawn(&child, command, NULL, &attributes, argv, environment) : ENOMEM;
	posix_spawnattr_destroy(&attributes);
	free(environment);
	if (refused)
		return ferry_fail(ferrySystemError, "starting %s: %s", command, strerror(refused));
	/*
	 * It returns once its daemon listens (0), or found another that does (2). Where SIGCHLD is ignored there is no
	 * status.
	 */
	pid_t waited;
	do
		waited = waitpid(child, &status, 0);
	while (waited < 0 && errno == EINTR);
	if (waited == child && WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 2)
		return ferry_fail(ferrySystemError, "%s --domain %u ended with exit code %d", command, domain,
		                  WEXITSTATUS(status));
	return ferrySuccess;
}

static ferryResult_t start_router(struct ferryComm *comm, const struct ferry_layout *layout, uint32_t domain,
                                  const char *path)
{
	char command[4096];
	if (comm->embedded) {
		ferryResult_t result = host_router(comm, layout, domain, path);
		return result == ferryInvalidUsage ? ferrySuccess : result; /* another rank was first */
	}
	if (!strcmp(comm->router_mode, "required"))
		return ferry_fail(ferrySystemError,
		                  "no router answers on %s and FERRY_ROUTER=required: start the program with ferryrun, "
		                  "or start ferry-router --domain %u", path, domain);
	if (!router_command(command, sizeof command))
		return ferry_fail(ferrySystemError,
		                  "no router answers on %s and ferry-router is not to be found (set FERRY_ROUTER_EXE "
		                  "or FERRY_ROUTER=embedded)",
		                  path);
	return spawn_router(comm, command, domain);
}

/* ---- forks ---- */

/*
 * A child that a rank forks has neither its lanes nor any use of its sockets; but as long as the child lives they are
 * open, and nobody would see the rank die. What a router hosted here has open stays so.
 */
static struct ferryComm *comms; /* attached; under attached_lock */
static pthread_mutex_t attached_lock = PTHREAD_MUTEX_INITIALIZER;

/* Whoever forks holds the locks of all tables: in the child nobody would release one that another thread holds. */
static void before_fork(void)
{
	pthread_mutex_lock(&attached_lock);
	pthread_mutex_lock(&hosted_lock);
	ferry_host_before_fork();
	ferry_words_before_fork();
	ferry_keeper_before_fork();
}

static void after_fork(void)
{
	ferry_keeper_after_fork(false);
	ferry_words_after_fork(false);
	ferry_host_after_fork(false);
	pthread_mutex_unlock(&hosted_lock);
	pthread_mutex_unlock(&attached_lock);
}

static void after_fork_in_child(void)
{
	for (struct ferryComm *comm = comms; comm; comm = comm->next_attached) {
		comm->forked = true;
		for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
			if (comm->sockets[domain] >= 0)
				close(comm->sockets[domain]);
			comm->sockets[domain] = -1;
		}
	}
	comms = NULL;
	ferry_keeper_after_fork(true);
	ferry_words_after_fork(true);
	ferry_host_after_fork(true);
	pthread_mutex_unlock(&hosted_lock);
	pthread_mutex_unlock(&attached_lock);
}

/* Streams are made without a communicator, too. */
__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static void add_attached(struct ferryComm *comm)
{
	pthread_mutex_lock(&attached_lock);
	comm->next_attached = comms;
	comms = comm;
	pthread_mutex_unlock(&attached_lock);
}

static void remove_attached(struct ferryComm *comm)
{
	pthread_mutex_lock(&attached_lock);
	for (struct ferryComm **link = &comms; *link; link = &(*link)->next_attached)
		if (*link == comm) {
			*link = comm->next_attached;
			break;
		}
	pthread_mutex_unlock(&attached_lock);
}

/* ---- attaching ---- */

static void disconnect(int *connection)
{
	int closed = *connection;
	*connection = -1; /* first: a thread that forks must not find a number that is somebody else's by then */
	shutdown(closed, SHUT_RDWR); /* a child forked meanwhile may have it open as long as it lives */
	close(closed);
}

/* Connects, starting the router if need be. Bounded: each round either connects or starts one. */
static ferryResult_t connect_router(struct ferryComm *comm, const struct ferry_layout *layout, uint32_t domain,
                                    int *connection)
{
	char path[136];
	ferryResult_t result = ferrySuccess;
	snprintf(path, sizeof path, "%s/%s-%u.sock", comm->directory, comm->prefix, domain);
	for (int attempt = 0; attempt < 1000; attempt++) {
		result = ferry_attach_connect_while(path, connection, NULL);
		bool nobody = ferry_attach_nobody(result);
		if (!result)
			ferry_forget_message(); /* that nobody answered before was no failure */
		if (!nobody)
			return result;
		if ((result = start_router(comm, layout, domain, path)))
			return result;
		sched_yield(); /* between another starter's bind and its listen */
	}
	return ferry_fail(ferrySystemError, "no router answers on %s, though starting one succeeded", path);
}

static ferryResult_t attach_domain(struct ferryComm *comm, const struct ferry_layout *layout, uint32_t domain)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .rank = (uint32_t)comm->rank,
	                                       .nranks = (uint32_t)comm->nranks,
	                                       .domain = comm->domain,
	                                       .ndomains = comm->ndomains,
	                                       .staging = comm->staging};
	struct ferry_arena *arena = &comm->shared.arenas[domain];
	struct ferry_attach_reply reply = {0};
	ferryResult_t result = ferrySuccess;
	int descriptor = -1, words = -1;
	memcpy(message.key, comm->key, sizeof message.key);
	if (domain == comm->domain && ferry_mapped_wants(comm, message.gpu, &words)) {
		message.flags = FERRY_ATTACH_MAPPED;
		message.descriptors = 1;
	}
	for (int attempt = 0; attempt < 4; attempt++) {
		if ((result = connect_router(comm, layout, domain, &comm->sockets[domain])))
			return result;
		result = ferry_attach_exchange(comm->sockets[domain], &message, NULL, &words, &reply, &descriptor,
		                               NULL);
		if (!result)
			break;
		disconnect(&comm->sockets[domain]);
		if (result != ferryRemoteError || !strcmp(comm->router_mode, "required"))
			break; /* else: an idle router left between our connecting and its looking; start another */
	}
	if (result)
		return ferry_fail_context(result, "rank %d of %d attaches to domain %u", comm->rank, comm->nranks,
		                          domain);
	if (message.flags && !(reply.flags & FERRY_ATTACH_MAPPED))
		ferry_log(FERRY_LOG_INFO, "rank %d moves its data itself: %.*s", comm->rank, (int)sizeof reply.message,
		          reply.message);
	comm->may_map |= (reply.flags & FERRY_ATTACH_MAPPED) != 0;
	if ((result = ferry_arena_map(descriptor, arena)))
		return result;
	if (arena->nranks != (uint32_t)comm->nranks || arena->ndomains != comm->ndomains || arena->domain != domain)
		return ferry_fail(ferryInternalError, "domain %u's arena is for %u ranks in %u domains, domain %u",
		                  domain, arena->nranks, arena->ndomains, arena->domain);
	return ferrySuccess;
}

static ferryResult_t read_failure(const struct ferry_failure *failure)
{
	if (!atomic_load_explicit(&failure->state, memory_order_acquire))
		return ferrySuccess;
	return ferry_fail(failure->code < ferryNumResults && failure->code ? (ferryResult_t)failure->code
	                                                                   : ferryInternalError,
	                  "%.*s", FERRY_MESSAGE_BYTES - 1, failure->message);
}

static void list_missing(const struct ferryComm *comm, uint32_t domain, char *text, size_t bytes)
{
	uint64_t present = atomic_load_explicit(&comm->shared.arenas[domain].header->present, memory_order_relaxed);
	size_t length = 0;
	text[0] = '\0';
	for (int rank = 0; rank < comm->nranks && length < bytes; rank++)
		if (!(present >> rank & 1))
			length += (size_t)snprintf(text + length, bytes - length, length ? " %d" : "%d", rank);
}

static ferryResult_t say_missing(const struct ferryComm *comm, uint32_t domain, uint32_t attached)
{
	char missing[200];
	list_missing(comm, domain, missing, sizeof missing);
	return ferry_fail(ferryRemoteError,
	                  "%u of %d ranks attached to domain %u in time, missing: %s; rank %d waits no longer (they "
	                  "are dead or have another key; FERRY_ATTACH_TIMEOUT sets the seconds)",
	                  attached, comm->nranks, domain, missing, comm->rank);
}

/* Sleeps while the word is less than `enough`: one that the domain's router raises, or leaves when the job fails. */
static ferryResult_t wait_for_word(struct ferryComm *comm, uint32_t domain, _Atomic uint32_t *word, uint32_t enough,
                                   uint64_t deadline)
{
	struct ferry_arena_header *header = comm->shared.arenas[domain].header;
	while (1) {
		uint32_t value = atomic_load_explicit(word, memory_order_acquire);
		ferryResult_t result = read_failure(&header->failure);
		if (result || value >= enough)
			return result;
		if (ferry_attach_closed(comm->sockets[domain]))
			return ferry_fail(ferryRemoteError,
			                  "the router of domain %u went away while rank %d waited for the others",
			                  domain, comm->rank);
		if (ferry_now_ns() > deadline && word == &header->attached)
			return say_missing(comm, domain, value);
		if (ferry_now_ns() > deadline)
			return ferry_fail(ferryRemoteError,
			                  "all %d ranks have attached to domain %u, and its router has not become "
			                  "ready in time; rank %d waits no longer (FERRY_ATTACH_TIMEOUT sets the "
			                  "seconds)",
			                  comm->nranks, domain, comm->rank);
		ferry_futex_wait(word, value, 100000, true);
	}
}

static ferryResult_t learn_domains(struct ferryComm *comm)
{
	comm->shared.nranks = comm->topology.nranks = (uint32_t)comm->nranks;
	comm->shared.ndomains = comm->topology.ndomains = comm->ndomains;
	for (int rank = 0; rank < comm->nranks; rank++) {
		uint8_t domain = comm->shared.arenas[0].header->rank_domain[rank];
		if (domain >= comm->ndomains)
			return ferry_fail(ferryInternalError, "rank %d is in domain %u of %u", rank, domain,
			                  comm->ndomains);
		comm->shared.rank_domain[rank] = comm->topology.rank_domain[rank] = domain;
	}
	return ferrySuccess;
}

/*
 * Rank 0 has the routers map each other's arenas. All wait for that: from then on any of them may hand its routers
 * plans and exports.
 */
static ferryResult_t meet(struct ferryComm *comm)
{
	long seconds;
	ferryResult_t result = ferry_attach_timeout(&seconds);
	uint64_t deadline = ferry_now_ns() + (uint64_t)seconds * 1000000000u;
	for (uint32_t domain = 0; !result && domain < comm->ndomains; domain++)
		result = wait_for_word(comm, domain, &comm->shared.arenas[domain].header->attached,
		                       (uint32_t)comm->nranks, deadline);
	if (!result)
		result = learn_domains(comm);
	for (uint32_t domain = 0; !result && comm->rank == 0 && domain < comm->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_READY};
		result = ferry_attach_call(comm->sockets[domain], &message, NULL, NULL);
	}
	deadline = ferry_now_ns() + (uint64_t)seconds * 1000000000u;
	for (uint32_t domain = 0; !result && domain < comm->ndomains; domain++)
		result = wait_for_word(comm, domain, &comm->shared.arenas[domain].header->ready, 1, deadline);
	return result;
}

ferryResult_t ferry_comm_attach(struct ferryComm *comm)
{
	struct ferry_layout layout;
	ferryResult_t result = ferry_layout_load(&layout);
	if (result)
		return result;
	if (comm->embedded) {
		pthread_mutex_lock(&hosted_lock);
		result = use_prefix(comm->prefix);
		pthread_mutex_unlock(&hosted_lock);
		if (result)
			return result;
	}
	add_attached(comm);
	for (uint32_t domain = 0; !result && domain < comm->ndomains; domain++)
		result = attach_domain(comm, &layout, domain);
	if (!result)
		result = meet(comm);
	if (result) {
		char message[FERRY_MESSAGE_BYTES];
		snprintf(message, sizeof message, "%s", ferry_last_message());
		ferry_comm_detach(comm, true);
		return ferry_fail(result, "%s", message);
	}
	return ferrySuccess;
}

void ferry_comm_detach(struct ferryComm *comm, bool abort)
{
	bool silent = abort;
	remove_attached(comm);
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_DETACH};
		if (comm->sockets[domain] < 0)
			continue;
		/*
		 * A router that is gone already is no error; about one that does not answer somebody should hear, once,
		 * and wait once.
		 */
		if (!silent && ferry_attach_call(comm->sockets[domain], &message, NULL, NULL) == ferrySystemError) {
			ferry_log(FERRY_LOG_WARN, "rank %d leaves domain %u: %s", comm->rank, domain,
			          ferry_last_message());
			silent = true;
		}
		disconnect(&comm->sockets[domain]);
	}
	if (comm->embedded)
		leave_embedded(comm, abort);
}
