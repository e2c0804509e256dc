/* SPDX-License-Identifier: Apache-2.0 */
/* Promises about what surrounds a job: the layout, the environment variables, and what launchers say. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/collective.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/launcher.h"
#include "tests/topology.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int forget_everything(void **state)
{
	(void)state;
	for (const struct ferry_variable *variable = ferry_variables; variable->name; variable++)
		unsetenv(variable->name);
	return 0;
}

static void an_override_gives_its_domains_cpus_and_devices(void **state)
{
	(void)state;
	struct ferry_layout layout, again;
	char text[512];
	assert_int_equal(ferry_layout_parse("0: cpus=0-1,4 node=0 devices=0,3; 1: cpus=2 devices=1-2", &layout),
	                 ferrySuccess);
	assert_int_equal(layout.ndomains, 2);
	assert_int_equal(layout.domains[0].ncpus, 3);
	assert_int_equal(layout.domains[0].node, 0);
	assert_int_equal(layout.domains[1].node, -1);
	assert_int_equal(ferry_layout_device_domain(&layout, 3, 4), 0);
	assert_int_equal(ferry_layout_device_domain(&layout, 2, 4), 1);
	ferry_layout_print(&layout, text, sizeof text);
	assert_string_equal(text, "0: cpus=0-1,4 node=0 devices=0,3; 1: cpus=2 devices=1,2");
	assert_int_equal(ferry_layout_parse(text, &again), ferrySuccess);
	assert_memory_equal(layout.device_domain, again.device_domain, sizeof layout.device_domain);
}

static void a_malformed_override_is_refused_with_position(void **state)
{
	(void)state;
	static const char *const texts[] = {"",
	                                    "1: cpus=0",
	                                    "0 cpus=0",
	                                    "0: cpus=",
	                                    "0: cpus=3-1",
	                                    "0: node=0",
	                                    "0: "
	                                    "cpus=x",
	                                    "0: cpus=0; 2: cpus=1",
	                                    "0: cpus=0 devices=0; 1: cpus=1 devices=0",
	                                    "0: cpus=0 colour=red",
	                                    "0: cpus=99999"};
	struct ferry_layout layout;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		assert_int_equal(ferry_layout_parse(texts[i], &layout), ferryInvalidArgument);
		assert_non_null(strstr(ferry_last_message(), texts[i]));
	}
}

static void equal_domains_share_the_cpus_and_the_devices(void **state)
{
	(void)state;
	for (int domains = 1; domains <= FERRY_MAX_DOMAINS; domains++) {
		struct ferry_layout layout;
		char text[8];
		snprintf(text, sizeof text, "%d", domains);
		setenv("FERRY_DOMAINS", text, 1);
		assert_int_equal(ferry_layout_load(&layout), ferrySuccess);
		assert_int_equal(layout.ndomains, domains);
		for (int domain = 0; domain < domains; domain++)
			assert_true(layout.domains[domain].ncpus >= 1); /* more domains than CPUs: they share */
		assert_int_equal(ferry_layout_device_domain(&layout, 0, 16), 0);
		assert_int_equal(ferry_layout_device_domain(&layout, 15, 16), domains - 1);
	}
	forget_everything(state);
}

static void hwloc_synthetic_machines_have_their_nodes_and_caches(void **state)
{
	(void)state;
	struct ferry_layout layout;
	assert_int_equal(topology_layout("node:2 l3:1(size=67108864) l2:8(size=2097152) core:1 pu:2",
	                                            &layout),
	                 ferrySuccess);
	assert_int_equal(layout.ndomains, 2);
	assert_int_equal(layout.domains[1].ncpus, 16);
	assert_int_equal(layout.domains[1].cache_bytes, 64 << 20);
	assert_int_equal(layout.domains[0].core_cache_bytes, 2 << 20);
}

static void numbers_and_sizes_from_the_environment_are_checked(void **state)
{
	(void)state;
	uint64_t bytes;
	long number;
	setenv("FERRY_STAGING", "16M", 1);
	assert_int_equal(ferry_env_bytes("FERRY_STAGING", 4, 1ull << 40, 5, &bytes), ferrySuccess);
	assert_int_equal(bytes, 16 << 20);
	static const char *const wrong[] = {"16X", "-1",           "M", "16MM",  "99999999999999999999",
	                                    "1 ",  "20000000000G", "3", "1025G", "0"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		setenv("FERRY_STAGING", wrong[i], 1);
		assert_int_equal(ferry_env_bytes("FERRY_STAGING", 4, 1ull << 40, 5, &bytes), ferryInvalidArgument);
		assert_non_null(strstr(ferry_last_message(), wrong[i]));
		assert_non_null(strstr(ferry_last_message(), "from 4 to 1099511627776"));
	}
	setenv("FERRY_WINDOW", "1025", 1);
	assert_int_equal(ferry_env_integer("FERRY_WINDOW", 0, 1024, 0, &number), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "1024"));
	unsetenv("FERRY_WINDOW");
	assert_int_equal(ferry_env_integer("FERRY_WINDOW", 0, 1024, 7, &number), ferrySuccess);
	assert_int_equal(number, 7);
	forget_everything(state);
}

static void a_variable_outside_the_table_cannot_be_read(void **state)
{
	(void)state;
	setenv("FERRY_UNKNOWN", "1", 1);
	assert_null(ferry_env("FERRY_UNKNOWN"));
}

static void each_launcher_is_understood(void **state)
{
	static const struct { const char *launcher, *variables[5][2]; int local_rank;
	} cases[] = {
	        {"ferry", {{"FERRY_RANK", "3"}, {"FERRY_SIZE", "4"}, {"FERRY_LOCAL_RANK", "1"}}, 1},
	        {"pmi", {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "3"}}, 3},
	        {"openmpi",
	         {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
	         0},
	        {"slurm",
	         {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "2"}, {"SLURM_JOB_ID", "77"}},
	         2},
	        {"torchrun", {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}, {"MASTER_PORT", "29500"}}, 3},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ferry_launch launch, again;
		for (int v = 0; v < 5 && cases[i].variables[v][0]; v++)
			setenv(cases[i].variables[v][0], cases[i].variables[v][1], 1);
		assert_int_equal(ferry_launch_read(&launch), ferrySuccess);
		assert_string_equal(launch.launcher, cases[i].launcher);
		assert_int_equal(launch.rank, 3);
		assert_int_equal(launch.size, 4);
		assert_int_equal(launch.local_rank, cases[i].local_rank);
		assert_true(launch.has_key);
		assert_int_equal(ferry_launch_read(&again), ferrySuccess);
		assert_memory_equal(launch.key, again.key, sizeof launch.key); /* the same job, the same key */
		forget_everything(state);
	}
}

static void jobs_of_one_launcher_differ_in_their_keys(void **state)
{
	struct ferry_launch first, second;
	setenv("SLURM_PROCID", "0", 1);
	setenv("SLURM_NTASKS", "1", 1);
	setenv("SLURM_JOB_ID", "77", 1);
	assert_int_equal(ferry_launch_read(&first), ferrySuccess);
	setenv("SLURM_JOB_ID", "78", 1);
	assert_int_equal(ferry_launch_read(&second), ferrySuccess);
	assert_memory_not_equal(first.key, second.key, sizeof first.key);
	forget_everything(state);
}

static void senseless_launcher_variables_are_refused_by_name(void **state)
{
	struct ferry_launch launch;
	setenv("FERRY_RANK", "4", 1);
	setenv("FERRY_SIZE", "4", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "FERRY_RANK"));
	setenv("FERRY_RANK", "x", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	setenv("FERRY_RANK", "0", 1);
	setenv("FERRY_JOB_KEY", "1234", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "FERRY_JOB_KEY"));
	forget_everything(state);
	setenv("FERRY_LOCAL_RANK", "1", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	assert_string_equal(ferry_last_message(), "FERRY_LOCAL_RANK=1 without FERRY_RANK");
	setenv("FERRY_RANK", "0", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	assert_string_equal(ferry_last_message(), "FERRY_RANK=0 without FERRY_SIZE");
	setenv("FERRY_SIZE", "4", 1);
	setenv("FERRY_LOCAL_SIZE", "1", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	assert_string_equal(ferry_last_message(), "FERRY_LOCAL_RANK=1 is not below FERRY_LOCAL_SIZE=1");
	setenv("FERRY_LOCAL_SIZE", "0", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "FERRY_LOCAL_SIZE=0: expected a whole number from 1"));
	setenv("FERRY_LOCAL_SIZE", "5", 1);
	assert_int_equal(ferry_launch_read(&launch), ferryInvalidArgument);
	assert_string_equal(ferry_last_message(), "FERRY_LOCAL_SIZE=5 is over FERRY_SIZE=4");
	forget_everything(state);
}

static void without_a_launcher_nothing_is_claimed(void **state)
{
	(void)state;
	struct ferry_launch launch;
	assert_int_equal(ferry_launch_read(&launch), ferrySuccess);
	assert_int_equal(launch.rank, -1);
	assert_int_equal(launch.has_key, 0);
	assert_string_equal(launch.launcher, "none");
}

static void names_of_types_operations_and_collectives_parse_back(void **state)
{
	(void)state;
	for (int i = 0; i < ferryNumTypes; i++)
		assert_int_equal(ferry_type_parse(ferry_type_name((ferryDataType_t)i)), i);
	for (int i = 0; i <= ferryNumOps; i++)
		assert_int_equal(ferry_redop_parse(ferry_redop_name((ferryRedOp_t)i)), i);
	const char *names = FERRY_COLLECTIVE_NAMES; /* all of them, in order */
	for (int i = 0; i < FERRY_NUM_COLLECTIVES; i++) {
		const char *name = ferry_collective_name((enum ferry_collective)i);
		assert_int_equal(ferry_collective_parse(name), i);
		assert_memory_equal(names, name, strlen(name));
		names += strlen(name) + 2 * (i + 1 < FERRY_NUM_COLLECTIVES);
	}
	assert_string_equal(names, "");
	assert_int_equal(ferry_type_parse("float"), ferryFloat32);
	assert_null(ferry_type_name((ferryDataType_t)99));
	assert_int_equal(ferry_collective_parse("allreduc"), FERRY_NUM_COLLECTIVES);
}

static void a_failure_keeps_its_values_and_its_context(void **state)
{
	(void)state;
	assert_int_equal(ferry_fail(ferrySystemError, "mmap of %d bytes", 42), ferrySystemError);
	assert_int_equal(ferry_fail_context(ferrySystemError, "rank %d", 3), ferrySystemError);
	assert_string_equal(ferry_last_message(), "rank 3: mmap of 42 bytes");
	for (int code = -1; code <= ferryNumResults; code++)
		assert_non_null(ferry_result_text((ferryResult_t)code));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_override_gives_its_domains_cpus_and_devices),
		cmocka_unit_test(a_malformed_override_is_refused_with_position),
		cmocka_unit_test(equal_domains_share_the_cpus_and_the_devices),
		cmocka_unit_test(hwloc_synthetic_machines_have_their_nodes_and_caches),
		cmocka_unit_test(numbers_and_sizes_from_the_environment_are_checked),
		cmocka_unit_test(a_variable_outside_the_table_cannot_be_read),
		cmocka_unit_test(each_launcher_is_understood),
		cmocka_unit_test(jobs_of_one_launcher_differ_in_their_keys),
		cmocka_unit_test(senseless_launcher_variables_are_refused_by_name),
		cmocka_unit_test(without_a_launcher_nothing_is_claimed),
		cmocka_unit_test(names_of_types_operations_and_collectives_parse_back),
		cmocka_unit_test(a_failure_keeps_its_values_and_its_context),
	};
	return cmocka_run_group_tests(tests, forget_everything, NULL);
}
