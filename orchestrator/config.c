/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/config.h"

#include "orchestrator/real.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

bool ferry_nccl_config_has_policy(const ncclConfig_t *config)
{
	const struct comm_fields *fields = (const void *)config;
	return config && HAS(config, comm_fields, cta_policy) && fields->cta_policy != NCCL_UNDEFINED_INT &&
	       fields->cta_policy;
}

/* ---- the environment ---- */

#define POLICY_ZERO_SINCE  22800
#define POLICY_NAMES_SINCE 22900

/* Reads a number as C does; text that is no number is 0, and an invalid number is the default policy. */
static bool read_number(const char *value, bool *copies)
{
	errno = 0;
	long long number = strtoll(value, NULL, 0);
	*copies = (int)number == NCCL_CTA_POLICY_ZERO;
	return *value && !errno && (int)number != NCCL_UNDEFINED_INT;
}

static bool is_name(const char *name, const char *text, size_t length)
{
	return strlen(name) == length && !strncasecmp(name, text, length);
}

/* Of a number only the first digit counts. Else names with '|' between them, in any case; unknown ones are ignored. */
static bool read_names(const char *value, bool *copies)
{
	bool any = false;
	*copies = *value == '2';
	if (isdigit((unsigned char)*value))
		return *value <= '2';
	while (*value) {
		size_t length = strcspn(value, "|");
		bool zero = is_name("ZERO", value, length);
		*copies |= zero;
		any |= zero || is_name("DEFAULT", value, length) || is_name("EFFICIENCY", value, length);
		value += length + (value[length] == '|');
	}
	return any;
}

bool ferry_nccl_policy_read(const char *value, int version, bool *copies)
{
	if (!value || version < POLICY_ZERO_SINCE)
		return false;
	return version < POLICY_NAMES_SINCE ? read_number(value, copies) : read_names(value, copies);
}

static bool overrides, overridden;

static void read_policy(void)
{
	const struct ferry_nccl *nccl = ferry_nccl_get();
	overrides = nccl && ferry_nccl_policy_read(getenv("NCCL_CTA_POLICY"), nccl->version, &overridden);
}

bool ferry_nccl_policy_copies(bool copies)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, read_policy);
	return overrides ? overridden : copies;
}

/* ---- calls ---- */

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
