/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of programs that were built for another release (rank-lib/api/config.h): a struct grows at its end. */
#include "tests/hosted.h"
#include "tests/refused.h"

#include "ipc/error.h"
#include "rank-lib/api/config.h"

/* What a later release could have, as its own and as its programs write it. */
struct later {
	ferryConfig_t first;
	int64_t weight; /* no padding: it would have to be zero */
	const char *name;
};

#define LATER {FERRY_CONFIG_INITIALIZER, .weight = 7, .name = "default"}

static void what_an_older_program_does_not_know_keeps_its_default(void **state)
{
	(void)state;
	struct later ours = LATER, given = {FERRY_CONFIG_INITIALIZER, .weight = 99, .name = "behind the older struct"};
	given.first.domain = 3;
	assert_int_equal(ferry_config_read("test", &given, &ours, sizeof ours), ferrySuccess);
	assert_int_equal(ours.first.size, sizeof ours);
	assert_int_equal(ours.first.domain, 3);
	assert_int_equal(ours.weight, 7);
	assert_string_equal(ours.name, "default");
}

static void a_configuration_of_no_release_is_refused_by_size(void **state)
{
	(void)state;
	static char given[2 * FERRY_CONFIG_MOST];
	const size_t sizes[] = {0, 1, FERRY_CONFIG_LEAST - 1, FERRY_CONFIG_MOST + 1};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		ferryConfig_t ours = FERRY_CONFIG_INITIALIZER;
		char text[32];
		memcpy(given, &sizes[i], sizeof sizes[i]);
		snprintf(text, sizeof text, "size %zu ", sizes[i]);
		assert_int_equal(ferry_config_read("test", given, &ours, sizeof ours), ferryInvalidArgument);
		assert_non_null(strstr(ferry_last_message(), text));
		assert_int_equal(ours.size, sizeof ours);
	}
}

static void no_configuration_is_the_defaults(void **state)
{
	(void)state;
	struct later ours = LATER, plain = LATER;
	assert_int_equal(ferry_config_read("test", NULL, &ours, sizeof ours), ferrySuccess);
	assert_memory_equal(&ours, &plain, sizeof ours);
}

static void a_newer_program_gets_a_communicator_if_it_asks_for_nothing_new(void **state)
{
	(void)state;
	struct later given = {FERRY_CONFIG_INITIALIZER, .weight = 0, .name = NULL};
	ferryUniqueId id;
	ferryComm_t comm, split;
	int count;
	given.first.size = sizeof given;
	hosted_routers(1);
	assert_int_equal(ferryGetUniqueId(&id), ferrySuccess);
	assert_int_equal(ferryCommInitRankConfig(&comm, 1, id, 0, &given.first), ferrySuccess);
	assert_int_equal(ferryCommSplit(comm, 0, 0, &split, &given.first), ferrySuccess);
	assert_int_equal(ferryCommCount(split, &count), ferrySuccess);
	assert_int_equal(count, 1);
	assert_int_equal(ferryCommDestroy(split), ferrySuccess);
	given.weight = 1;
	REFUSED(ferryInvalidArgument, ferryCommSplit(comm, 0, 0, &split, &given.first), "ferryCommSplit", "byte 56");
	assert_int_equal(ferryCommDestroy(comm), ferrySuccess);
	REFUSED(ferryInvalidArgument, ferryCommInitRankConfig(&comm, 1, id, 0, &given.first), "size 72", "byte 56",
	        "56 bytes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(what_an_older_program_does_not_know_keeps_its_default),
	        cmocka_unit_test(a_configuration_of_no_release_is_refused_by_size),
	        cmocka_unit_test(no_configuration_is_the_defaults),
	        cmocka_unit_test(a_newer_program_gets_a_communicator_if_it_asks_for_nothing_new),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
