/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/config.h"

#include <stdlib.h>
#include <string.h>

/* The first fields of ncclConfig_t. */
struct comm_fields {
	ncclConfig_t head;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share, traffic_class;
	const char *comm_name;
	int collnet_enable, cta_policy;
};

/* The first fields of ncclCollConfig_t. */
struct call_fields {
	ncclCollConfig_t head;
	const void *extensions;
	int min_ctas, max_ctas, nvls_ctas, cga_cluster_size;
	const char *algorithms;
	int force_algorithms, cta_policy;
	uint64_t profiler_tag;
	const void *launch_event; /* since 2.32 */
};

#define MOST_BYTES 4096

#define HAS(config, fields, field)                                                                                     \
	((config)->size >= offsetof(struct fields, field) + sizeof(((struct fields *)NULL)->field))

static bool copies(int policy)
{
	return policy != NCCL_UNDEFINED_INT && policy & NCCL_CTA_POLICY_ZERO;
}

bool ferry_nccl_config_copies(const ncclConfig_t *config)
{
	const struct comm_fields *fields = (const void *)config;
	return config && HAS(config, comm_fields, cta_policy) && copies(fields->cta_policy);
}

bool ferry_nccl_config_is_plain(const ncclCollConfig_t *config)
{
	const struct call_fields *fields = (const void *)config;
	if (!config)
		return true;
	if (config->size > MOST_BYTES || !HAS(config, call_fields, profiler_tag))
		return false;
	return !fields->extensions && !(fields->algorithms && *fields->algorithms) && !copies(fields->cta_policy) &&
	       !(HAS(config, call_fields, launch_event) && fields->launch_event);
}

ncclCollConfig_t *ferry_nccl_config_copy(const ncclCollConfig_t *config)
{
	ncclCollConfig_t *copy = config->size > MOST_BYTES ? NULL : malloc(config->size);
	return copy ? memcpy(copy, config, config->size) : NULL;
}
