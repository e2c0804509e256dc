/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's own values, for nccl_values.c; a configuration of its, filled as programs fill it. */
#include <nccl.h>
#include <stddef.h>

#define VALUES_OF values_of_header
#include "tests/nccl/values.h"

const struct value *nccl_header_values(size_t *count);
const void *nccl_header_policy(int policy);

const struct value *nccl_header_values(size_t *count)
{
	*count = sizeof values_of_header / sizeof *values_of_header;
	return values_of_header;
}

/* NULL before 2.27. */
const void *nccl_header_policy(int policy)
{
#if NCCL_VERSION_CODE >= 22703
	static ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	config.CTAPolicy = policy;
	return &config;
#else
	(void)policy;
	return NULL;
#endif
}
