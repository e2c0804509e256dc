/* SPDX-License-Identifier: Apache-2.0 */
#include "router/status.h"

#include "ipc/error.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* What workers have spent on slices; of a call that ends now perhaps twice. */
static uint64_t working_ns(const struct ferry_job *job)
{
	uint64_t sum = atomic_load_explicit(&job->working_ns, memory_order_relaxed);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		if (atomic_load_explicit(&job->runs[bank].seq, memory_order_relaxed))
			sum += atomic_load_explicit(&job->runs[bank].working_ns, memory_order_relaxed);
	return sum;
}

static void print_router(struct ferry_jobs *jobs, char *text, size_t bytes)
{
	unsigned njobs = 0, failed = 0, ranks = 0;
	char nice[8], tenants[40] = "", spares[40] = "";
	uint64_t slices = 0, moved = 0, calls = 0, working = 0, held, promised;
	ferry_jobs_count_memory(jobs, &held, &promised);
	for (struct ferry_job *job = jobs->workers.jobs; job; job = job->next) {
		njobs++;
		failed += atomic_load_explicit(&job->dead, memory_order_relaxed);
		ranks += (unsigned)__builtin_popcountll(job->attached & ~job->detached);
		slices += atomic_load_explicit(&job->slices, memory_order_relaxed);
		moved += atomic_load_explicit(&job->bytes, memory_order_relaxed);
		calls += atomic_load_explicit(&job->calls_ns, memory_order_relaxed);
		working += working_ns(job);
	}
	ferry_priority_print(jobs->workers.priority, nice, sizeof nice);
	if (jobs->config)
		snprintf(tenants, sizeof tenants, " tenants=%u config=%s", ferry_tenants_count(jobs->tenants),
		         atomic_load_explicit(&jobs->config_bad, memory_order_relaxed) ? "bad" : "read");
	if (jobs->spares)
		snprintf(spares, sizeof spares, " spares=%u spare_gpus=%u", jobs->spares, jobs->spare_contexts);
	snprintf(text, bytes,
	         "domain=%u pid=%d state=%s workers=%u nice=%s jobs=%u failed=%u ranks=%u gpus=%u staging=%" PRIu64
	         " staging_limit=%" PRIu64 " memory=%" PRIu64 " slices=%" PRIu64 " bytes=%" PRIu64
	         " calls_ms=%.3f working_ms=%.3f%s%s",
	         jobs->domain, (int)getpid(), atomic_load(&jobs->draining) ? "draining" : "serving",
	         jobs->workers.limit, nice, njobs, failed, ranks,
	         atomic_load_explicit(&jobs->mapper.gpus.count, memory_order_relaxed), jobs->quota.used,
	         jobs->quota.limit, held, slices, moved, (double)calls / 1e6, (double)working / 1e6, spares, tenants);
}

/* Not the key, which lets whoever has it in; each user has keys of its own. Of a job in several domains the same
   everywhere. */
static unsigned name_of(const struct ferry_job *job)
{
	uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
	for (size_t i = 0; i < sizeof job->key; i++)
		hash = (hash ^ job->key[i]) * 0x100000001b3u;
	if (job->owner)
		hash = (hash ^ job->owner) * 0x100000001b3u;
	return (unsigned)(hash >> 40);
}

/* What the lanes of this domain's ranks have told. */
struct traffic {
	uint64_t calls, up, down;
	uint64_t waiting, awaited; /* ranks */
	uint64_t since;
};

static void add_rank(struct traffic *sum, const struct ferry_rank_line *line, uint32_t rank)
{
	const struct ferry_traffic *up = &line->traffic[FERRY_UP], *down = &line->traffic[FERRY_DOWN];
	uint64_t calls = atomic_load_explicit(&up->calls, memory_order_relaxed);
	sum->calls = calls > sum->calls ? calls : sum->calls;
	sum->up += atomic_load_explicit(&up->bytes, memory_order_relaxed);
	sum->down += atomic_load_explicit(&down->bytes, memory_order_relaxed);
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		uint64_t awaits = atomic_load_explicit(&line->traffic[direction].awaits, memory_order_relaxed);
		uint64_t since = atomic_load_explicit(&line->traffic[direction].since, memory_order_relaxed);
		if (!awaits)
			continue;
		sum->waiting |= 1ull << rank;
		sum->awaited |= awaits;
		sum->since = !sum->since || since < sum->since ? since : sum->since;
	}
}

static const char *state_of(const struct ferry_job *job)
{
	if (atomic_load_explicit(&job->dead, memory_order_relaxed))
		return "failed";
	if (job->adoption)
		return "adopting";
	return atomic_load_explicit(&job->ready, memory_order_acquire) ? "ready" : "attaching";
}

/* How often routers have died here, and when and how long this one took the place of the last; "": none has. */
static void print_takeovers(const struct ferry_job *job, uint64_t now, char *text, size_t bytes)
{
	const struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	uint64_t epoch = atomic_load_explicit(&header->epoch, memory_order_relaxed);
	text[0] = '\0';
	if (job->takeover.at_ns)
		snprintf(text, bytes, " takeovers=%" PRIu64 " takeover_ms=%.1f takeover_ago_s=%.1f", epoch,
		         (double)job->takeover.took_ns / 1e6, (double)(now - job->takeover.at_ns) / 1e9);
}

static void print_job(const struct ferry_job *job, char *text, size_t bytes)
{
	const struct ferry_arena *arena = &job->shared.arenas[job->domain];
	struct traffic sum = {0};
	uint64_t now = ferry_now_ns();
	char takeovers[96];
	print_takeovers(job, now, takeovers, sizeof takeovers);
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->attached >> rank & 1 && job->shared.rank_domain[rank] == job->domain)
			add_rank(&sum, &arena->rank_lines[rank], rank);
	snprintf(text, bytes,
	         "number=%" PRIu64 " job=%06x state=%s nranks=%u attached=%" PRIx64 " left=%" PRIx64
	         " staging=%" PRIu64 " calls=%" PRIu64 " up=%" PRIu64 " down=%" PRIu64
	         " working_ms=%.3f waiting=%" PRIx64 " awaited=%" PRIx64 " waited_ms=%.3f%s%s%s",
	         job->number, name_of(job), state_of(job), job->shared.nranks, job->attached, job->detached,
	         FERRY_BANKS * arena->staging_bytes, sum.calls, sum.up, sum.down, (double)working_ns(job) / 1e6,
	         sum.waiting, sum.awaited, sum.since && now > sum.since ? (double)(now - sum.since) / 1e6 : 0.0,
	         takeovers, job->tenant ? " tenant=" : "", job->tenant ? job->tenant->name : "");
}

static const struct ferry_job *first_job(const struct ferry_jobs *jobs, uint32_t owner, uint64_t from)
{
	const struct ferry_job *first = NULL;
	for (const struct ferry_job *job = jobs->workers.jobs; job; job = job->next)
		if (job->number >= from && (!owner || job->owner == owner) && (!first || job->number < first->number))
			first = job;
	return first;
}

/* Links: the beginning of the other GPU's UUID, the link's rank, and `a` where it has atomics; as many as fit. */
static void print_gpu(const struct ferry_gpu_told *told, uint64_t number, char *text, size_t bytes)
{
	char name[FERRY_GPU_TEXT];
	size_t length = (size_t)snprintf(text, bytes, "number=%" PRIu64 " gpu=%s", number,
	                                 ferry_gpu_uuid_print(told->uuid, name));
	for (uint32_t i = 0; i < told->nlinks; i++) {
		const struct ferry_gpu_link *link = &told->links[i];
		char one[40];
		size_t more = (size_t)snprintf(one, sizeof one, "%s%02x%02x%02x%02x:%d%s", i ? "," : " links=",
		                               link->to[0], link->to[1], link->to[2], link->to[3], link->rank,
		                               link->atomics ? "a" : "");
		if (length + more >= bytes)
			break;
		memcpy(text + length, one, more + 1);
		length += more;
	}
}

/* As NAME=share and, of a carrier with a part, or that may have the whole, NAME_us=start NAME_gbps=rate. */
static size_t print_carriers(const struct ferry_share_line *line, char *text, size_t bytes)
{
	struct ferry_shares shares = ferry_shares_unpack(line->word);
	size_t length = 0;
	for (int c = 0; c < FERRY_NUM_CARRIERS && length < bytes; c++) {
		const char *name = ferry_carrier_name((enum ferry_carrier)c);
		length += (size_t)snprintf(text + length, bytes - length, " %s=%.4f", name,
		                           (double)shares.part[c] / FERRY_SHARES_WHOLE);
		if ((shares.part[c] || (line->whole && line->paces[c].rate > 0)) && length < bytes)
			length += (size_t)snprintf(text + length, bytes - length, " %s_us=%.1f %s_gbps=%.2f", name,
			                           line->paces[c].start_us, name, line->paces[c].rate / 1e3);
	}
	return length;
}

static void print_share_line(const struct ferry_job *job, uint64_t at, const struct ferry_share_line *line, char *text,
                             size_t bytes)
{
	size_t length = (size_t)snprintf(
	        text, bytes,
	        "number=%" PRIu64 " job=%06x collective=%s type=%s bytes=%" PRIu64
	        " why=%s samples=%u us=%.1f measured_every=%u probed_every=%u",
	        at, name_of(job), ferry_collective_name((enum ferry_collective)line->collective),
	        ferry_type_name((ferryDataType_t)line->type), line->bytes,
	        ferry_balance_name((enum ferry_balance)line->why), line->samples, line->us, line->interval,
	        line->probe_every);
	if (length < bytes && line->whole)
		length += (size_t)snprintf(text + length, bytes - length, " whole=1 in_place=%d", line->in_place);
	if (length < bytes)
		print_carriers(line, text + length, bytes - length);
}

/* Those of calls that are divided, then those of whole ones. */
static const struct ferry_share_line_words *line_at(const struct ferry_job *job, uint64_t at)
{
	const struct ferry_share_table *table = job->shared.arenas[0].shares;
	return at < FERRY_SHARE_LINES ? &table->lines[at] : &table->wholes[at - FERRY_SHARE_LINES];
}

/* The first line from that number on, of whichever job. */
static void print_shares(const struct ferry_jobs *jobs, uint32_t owner, uint64_t from, char *text, size_t bytes)
{
	const struct ferry_job *job;
	struct ferry_share_line line;
	for (uint64_t number = from >> 8; !jobs->domain && (job = first_job(jobs, owner, number));
	     number = job->number + 1)
		for (uint64_t at = job->number << 8; at < (job->number << 8) + 2 * FERRY_SHARE_LINES; at++)
			if (at >= from && ferry_share_line_read(line_at(job, at & 0xff), &line)) {
				print_share_line(job, at, &line, text, bytes);
				return;
			}
}

static void print_limit(const char *name, uint64_t limit, uint64_t none, char *text, size_t bytes)
{
	if (limit == none)
		text[0] = '\0';
	else
		snprintf(text, bytes, " %s_limit=%" PRIu64, name, limit);
}

/* The first one from that number on. What has no limit has no word for it. */
static void print_tenant(const struct ferry_jobs *jobs, const struct ferry_standing *standing, uint64_t from,
                         char *text, size_t bytes)
{
	const struct ferry_tenant *tenant = NULL;
	char limits[5][40];
	uint64_t done = 0, working = 0;
	for (; from < ferry_tenants_count(jobs->tenants); from++) {
		tenant = ferry_tenants_at(jobs->tenants, (uint32_t)from);
		if (!standing->owner || tenant == standing->tenant)
			break;
	}
	if (from >= ferry_tenants_count(jobs->tenants))
		return;
	struct ferry_tenant_use use = ferry_jobs_used_by(jobs, tenant);
	for (const struct ferry_job *job = jobs->workers.jobs; job; job = job->next)
		if (job->tenant == tenant) {
			done += atomic_load_explicit(&job->bytes, memory_order_relaxed);
			working += working_ns(job);
		}
	print_limit("jobs", tenant->jobs, UINT32_MAX, limits[0], sizeof limits[0]);
	print_limit("ranks", tenant->ranks, UINT32_MAX, limits[1], sizeof limits[1]);
	print_limit("plans", tenant->plans, UINT32_MAX, limits[2], sizeof limits[2]);
	print_limit("staging", tenant->staging, UINT64_MAX, limits[3], sizeof limits[3]);
	print_limit("job_staging", tenant->job_staging, UINT64_MAX, limits[4], sizeof limits[4]);
	snprintf(text, bytes,
	         "number=%" PRIu64 " tenant=%s weight=%u jobs=%u ranks=%u plans=%u staging=%" PRIu64 " bytes=%" PRIu64
	         " working_ms=%.3f%s%s%s%s%s",
	         from, tenant->name, tenant->weight, use.jobs, use.ranks, use.plans, use.staging.of[jobs->domain], done,
	         (double)working / 1e6, limits[0], limits[1], limits[2], limits[3], limits[4]);
}

ferryResult_t ferry_status_print(struct ferry_jobs *jobs, const struct ferry_standing *standing,
                                 const struct ferry_attach_message *message, char *text, size_t bytes)
{
	const struct ferry_job *job;
	struct ferry_gpu_told told;
	text[0] = '\0';
	switch (message->index) {
	case FERRY_STATUS_ROUTER:
		print_router(jobs, text, bytes);
		return ferrySuccess;
	case FERRY_STATUS_JOB:
		if ((job = first_job(jobs, standing->owner, message->hash)))
			print_job(job, text, bytes);
		return ferrySuccess;
	case FERRY_STATUS_GPU:
		if (ferry_gpus_tell(&jobs->mapper.gpus, message->hash, &told))
			print_gpu(&told, message->hash, text, bytes);
		return ferrySuccess;
	case FERRY_STATUS_SHARES:
		print_shares(jobs, standing->owner, message->hash, text, bytes);
		return ferrySuccess;
	case FERRY_STATUS_TENANT:
		print_tenant(jobs, standing, message->hash, text, bytes);
		return ferrySuccess;
	default:
		return ferry_fail(ferryInvalidArgument,
		                  "the status of %u: %d of the router, %d of a job, %d of a GPU, %d of shares, %d of a "
		                  "tenant",
		                  message->index, FERRY_STATUS_ROUTER, FERRY_STATUS_JOB, FERRY_STATUS_GPU,
		                  FERRY_STATUS_SHARES, FERRY_STATUS_TENANT);
	}
}
