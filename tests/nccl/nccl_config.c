/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of what Ferry reads of NCCL's settings: it understands them as that version of NCCL does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "orchestrator/config.h"

/* decides: that NCCL goes by the value; zero: it asks for copy engines. */
static void read_as(const char *value, int version, bool decides, bool zero)
{
	bool copies = !zero;
	if (ferry_nccl_policy_read(value, version, &copies) != decides)
		fail_msg("%d: NCCL_CTA_POLICY=%s %s", version, value, decides ? "says something" : "says nothing");
	if (decides && copies != zero)
		fail_msg("%d: NCCL_CTA_POLICY=%s %s zero", version, value, zero ? "is" : "is not");
}

static void policy_zero_is_a_number_in_2_28(void **state)
{
	(void)state;
	for (int version = 22803; version <= 22809; version += 6) {
		read_as("2", version, true, true);
		read_as(" 0x2", version, true, true);
		read_as("0", version, true, false);
		read_as("1", version, true, false);
		read_as("3", version, true, false); /* cannot be: the default */
		read_as("ZERO", version, true, false); /* no number: 0 */
		read_as("-2147483648", version, false, false); /* NCCL's word for nothing */
		read_as("99999999999999999999", version, false, false);
		read_as("", version, false, false);
	}
}

static void policy_zero_has_a_name_since_2_29(void **state)
{
	(void)state;
	for (int version = 22907; version <= 23203; version += 296) {
		read_as("ZERO", version, true, true);
		read_as("zero", version, true, true);
		read_as("EFFICIENCY|Zero", version, true, true);
		read_as("|zero||other", version, true, true);
		read_as("2", version, true, true);
		read_as("2nd", version, true, true);
		read_as("0", version, true, false);
		read_as("1", version, true, false);
		read_as("default|efficiency", version, true, false);
		read_as("7", version, false, false);
		read_as("zeros", version, false, false);
		read_as(" 2", version, false, false);
		read_as("", version, false, false);
	}
}

static void older_ones_have_no_policy_zero(void **state)
{
	(void)state;
	read_as("2", 22707, false, false);
	read_as("ZERO", 22707, false, false);
	read_as(NULL, 22809, false, false);
}

/* ---- settings of a call ---- */

/* NCCL's, of 2.32; that of 2.31 ends in front of the event. */
struct settings {
	ncclCollConfig_t head;
	const void *extensions;
	int min_ctas, max_ctas, nvls_ctas, cluster;
	const char *algorithms;
	int force, policy;
	uint64_t tag;
	const void *event;
};

#define UNSET                                                                                                          \
	{                                                                                                              \
		.head = {sizeof(struct settings), 0xcafebeef, 23200}, .min_ctas = NCCL_UNDEFINED_INT,                  \
		.max_ctas = NCCL_UNDEFINED_INT, .nvls_ctas = NCCL_UNDEFINED_INT, .cluster = NCCL_UNDEFINED_INT,        \
		.force = NCCL_UNDEFINED_INT, .policy = NCCL_UNDEFINED_INT                                              \
	}

static void settings_that_bind_nothing_of_ferrys_are_plain(void **state)
{
	struct settings settings = UNSET;
	(void)state;
	assert_true(ferry_nccl_config_is_plain(NULL));
	assert_true(ferry_nccl_config_is_plain(&settings.head));
	settings.min_ctas = settings.max_ctas = settings.nvls_ctas = settings.cluster = 4;
	settings.tag = 77;
	settings.algorithms = "";
	settings.policy = 1; /* NCCL's kernels may register buffers */
	assert_true(ferry_nccl_config_is_plain(&settings.head));
	settings.policy = 0;
	assert_true(ferry_nccl_config_is_plain(&settings.head));
}

static void what_ferry_cannot_do_is_not_plain(void **state)
{
	struct settings named = UNSET, extended = UNSET, copied = UNSET, launched = UNSET;
	(void)state;
	named.algorithms = "ring";
	assert_false(ferry_nccl_config_is_plain(&named.head));
	extended.extensions = &named;
	assert_false(ferry_nccl_config_is_plain(&extended.head));
	copied.policy = NCCL_CTA_POLICY_ZERO;
	assert_false(ferry_nccl_config_is_plain(&copied.head));
	copied.policy = NCCL_CTA_POLICY_ZERO | 1;
	assert_false(ferry_nccl_config_is_plain(&copied.head));
	launched.event = &named;
	assert_false(ferry_nccl_config_is_plain(&launched.head));
}

static void what_lies_beyond_a_configurations_size_is_not_there(void **state)
{
	struct settings settings = UNSET;
	(void)state;
	settings.event = &settings;
	settings.head.size = offsetof(struct settings, event); /* 2.31's own */
	assert_true(ferry_nccl_config_is_plain(&settings.head));
	settings.head.size--; /* of nobody that Ferry knows */
	assert_false(ferry_nccl_config_is_plain(&settings.head));
	settings.head.size = 0;
	assert_false(ferry_nccl_config_is_plain(&settings.head));
	settings.head.size = 1 << 20;
	assert_false(ferry_nccl_config_is_plain(&settings.head));
	assert_null(ferry_nccl_config_copy(&settings.head));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(settings_that_bind_nothing_of_ferrys_are_plain),
	        cmocka_unit_test(what_ferry_cannot_do_is_not_plain),
	        cmocka_unit_test(what_lies_beyond_a_configurations_size_is_not_there),
	        cmocka_unit_test(policy_zero_is_a_number_in_2_28),
	        cmocka_unit_test(policy_zero_has_a_name_since_2_29),
	        cmocka_unit_test(older_ones_have_no_policy_zero),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
