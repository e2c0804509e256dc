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

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(policy_zero_is_a_number_in_2_28),
	        cmocka_unit_test(policy_zero_has_a_name_since_2_29),
	        cmocka_unit_test(older_ones_have_no_policy_zero),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
