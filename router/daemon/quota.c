/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/quota.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#define DEFAULT_STAGING (16u << 20) /* where the machine does not report its cache sizes */
/* For a job of one rank, which uses staging only for a scaled sum, or by a program of its user's. */
#define ALONE_STAGING (256u << 10)
#define LEAST_USEFUL (1u << 20)     /* bytes: a job that names no size gets no less; calls with less are slow */
#define PART 4                      /* an arena of no named size takes 1 / PART of the memory that is left, at most */

ferryResult_t ferry_quota_open(struct ferry_quota *quota, const struct ferry_layout *layout, uint32_t domain,
                               uint64_t limit)
{
	const struct ferry_domain *own = &layout->domains[domain];
	uint64_t fallback = own->cache_bytes ? own->cache_bytes / 2 : DEFAULT_STAGING;
	*quota = (struct ferry_quota){.domain = domain,
	                              .question = {.root = "", .sharers = layout->ndomains, .node = own->node}};
	ferryResult_t result = ferry_shared_kind_read(&quota->question.kind);
	if (!result)
		result = ferry_env_bytes("FERRY_STAGING", FERRY_STAGING_LEAST, FERRY_STAGING_MOST, fallback,
		                         &quota->fallback);
	if (result)
		return result;
	struct ferry_memory memory;
	ferry_memory_read(&quota->question, NULL, &memory);
	quota->limit = limit ? limit : memory.whole / 2;
	snprintf(quota->limited_by, sizeof quota->limited_by, "%s%s",
	         limit ? "its --staging-limit" : "half of what there is for it: ", limit ? "" : memory.holder);
	return ferrySuccess;
}

static uint64_t at_least(uint64_t a, uint64_t b)
{
	return a < b ? b : a;
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
	return a > b ? b : a;
}

/* The staging of a job that names no size, or one that may be lowered. */
static uint64_t fit(uint64_t wish, uint64_t limit_left, uint64_t memory_left, const struct ferry_arena_shape *shape)
{
	struct ferry_arena_shape fitting = *shape;
	uint64_t least = at_most(wish, LEAST_USEFUL);
	fitting.staging = wish > limit_left ? at_least(limit_left / 2, least) : wish;
	while (fitting.staging > least && ferry_arena_window_bytes(&fitting) > memory_left / PART)
		fitting.staging = at_least(fitting.staging / 16 * 15, least);
	return fitting.staging;
}

/* The staging that the tenant has left in that domain. */
static uint64_t left_to(const struct ferry_allowance *allowance, uint32_t domain)
{
	return allowance->whole - at_most(allowance->whole, allowance->used.of[domain]);
}

static ferryResult_t check_allowance(const struct ferry_allowance *allowance, uint32_t domain, uint64_t staging)
{
	uint64_t left = left_to(allowance, domain);
	if (staging > allowance->job)
		return ferry_fail(ferryRefused,
		                  "the job asks for %llu bytes of staging in domain %u, a job of tenant %s may have "
		                  "%llu (lower FERRY_STAGING)",
		                  (unsigned long long)staging, domain, allowance->tenant,
		                  (unsigned long long)allowance->job);
	if (staging > left)
		return ferry_fail(
		        ferryRefused,
		        "the job asks for %llu bytes of staging in domain %u, tenant %s has %llu of %llu left "
		        "(lower FERRY_STAGING)",
		        (unsigned long long)staging, domain, allowance->tenant, (unsigned long long)left,
		        (unsigned long long)allowance->whole);
	return ferrySuccess;
}

ferryResult_t ferry_quota_take(struct ferry_quota *quota, uint64_t asked, bool wished, uint64_t promised,
                               const struct ferry_allowance *allowance, struct ferry_arena_shape *shape)
{
	struct ferry_memory memory;
	ferry_memory_read(&quota->question, &memory, NULL);
	/* Memory that is being freed counts as free; memory that other jobs are promised counts as used. */
	uint64_t left = memory.left + at_most(atomic_load(&quota->freeing), UINT64_MAX - memory.left);
	left -= at_most(left, promised);
	uint64_t limit_left = quota->limit - at_most(quota->limit, quota->used);
	uint64_t allowed = at_most(allowance->job, left_to(allowance, quota->domain));
	shape->kind = quota->question.kind;
	shape->staging = asked;
	if (wished || !asked)
		shape->staging = shape->nranks == 1 ? at_most(ALONE_STAGING, allowance->job)
		                                    : fit(at_most(asked ? asked : quota->fallback, allowance->job),
		                                          at_most(limit_left, allowed), left, shape);
	if (shape->staging > FERRY_STAGING_LEAST) /* the arena refuses less, by its value */
		shape->staging -= shape->staging % FERRY_STAGING_LEAST;
	uint64_t bytes = ferry_arena_window_bytes(shape);
	ferryResult_t result = check_allowance(allowance, quota->domain, shape->staging);
	if (result)
		return result;
	if (shape->staging > limit_left)
		return ferry_fail(ferryRefused,
		                  "the job asks for %llu bytes of staging; %llu of %llu are left in domain %u, which "
		                  "is %s (lower FERRY_STAGING, or raise the router's --staging-limit)",
		                  (unsigned long long)shape->staging, (unsigned long long)limit_left,
		                  (unsigned long long)quota->limit, shape->domain, quota->limited_by);
	if (bytes > left)
		return ferry_fail(ferryRefused,
		                  "the job asks for %llu bytes of windows in domain %u, %llu of them staging; %s "
		                  "has %llu left for this router, of %llu, and other jobs may yet use %llu of those "
		                  "(lower FERRY_STAGING)",
		                  (unsigned long long)bytes, shape->domain, (unsigned long long)shape->staging,
		                  memory.holder, (unsigned long long)memory.left, (unsigned long long)memory.whole,
		                  (unsigned long long)promised);
	quota->used += shape->staging;
	return ferrySuccess;
}

ferryResult_t ferry_quota_bring(struct ferry_quota *quota, const struct ferry_allowance *allowance,
                                const struct ferry_staging *staging)
{
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		uint64_t left = quota->limit - at_most(quota->limit, quota->imported_arena.of[domain]);
		ferryResult_t result = check_allowance(allowance, domain, staging->of[domain]);
		if (!result && staging->of[domain] > left)
			result = ferry_fail(ferryRefused,
			                    "the job brings %llu bytes of staging of domain %u; the router of domain "
			                    "%u takes %llu more of %llu, which is %s (raise its --staging-limit)",
			                    (unsigned long long)staging->of[domain], domain, quota->domain,
			                    (unsigned long long)left, (unsigned long long)quota->limit,
			                    quota->limited_by);
		if (result)
			return result;
	}
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		quota->imported_arena.of[domain] += staging->of[domain];
	quota->used += staging->of[quota->domain];
	return ferrySuccess;
}

void ferry_quota_give_back(struct ferry_quota *quota, uint64_t staging)
{
	quota->used -= staging;
}

void ferry_quota_carry_off(struct ferry_quota *quota, const struct ferry_staging *staging)
{
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		quota->imported_arena.of[domain] -= staging->of[domain];
	quota->used -= staging->of[quota->domain];
}
