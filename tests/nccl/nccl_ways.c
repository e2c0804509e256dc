/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the ways in: preloaded or opened by name, this library comes first and finds the NCCL that would have. */
#include "tests/commands.h"

/* Runs a command with FERRY_LOG=info and compares: its exit code, and what its output has. */
static void expect(int code, const char *has, const char *command)
{
	static char text[65536];
	char line[4096];
	snprintf(line, sizeof line, "FERRY_LOG=info; export FERRY_LOG; (%s) 2>&1", command);
	int got = run(line, text, sizeof text);
	if (got != code || !strstr(text, has))
		fail_msg("%s: exit code %d for %d, or without \"%s\":\n%s", command, got, code, has, text);
}

static void preloaded_it_finds_what_the_program_links(void **state)
{
	(void)state;
	expect(0, "/fake_nccl_now/libnccl.so.2", "LD_PRELOAD=$L $P");
	expect(0, "watching NCCL's communicator", "LD_PRELOAD=$L $P");
	expect(0, "of 2 ranks, rank 0 on device 0", "LD_PRELOAD=$L $P");
}

static void off_it_looks_at_nothing(void **state)
{
	(void)state;
	expect(0, "(FERRY_NCCL=off: all calls are passed on)", "LD_PRELOAD=$L FERRY_NCCL=off $P");
	expect(1, "right", "LD_PRELOAD=$L FERRY_NCCL=off $P; LD_PRELOAD=$L FERRY_NCCL=off $P 2>&1 | grep -q watching");
	expect(0, "taken as off", "LD_PRELOAD=$L FERRY_NCCL=none $P");
}

static void a_program_that_opens_nccl_by_name_gets_it_from_the_folder(void **state)
{
	(void)state;
	expect(0, "info: NCCL 2.32.3: " NOW "/libnccl.so.2", "LD_LIBRARY_PATH=$F:" NOW " $O libnccl.so.2");
	expect(0, "info: NCCL 2.32.3: " NOW "/libnccl.so.2", "LD_LIBRARY_PATH=" NOW ":$F $O $F/libnccl.so.2");
	/* Linked, too; then nothing but the search path leads to the real one. */
	expect(0, "watching", "LD_LIBRARY_PATH=$F:" NOW " $P");
}

/* Its RPATH goes before LD_LIBRARY_PATH, but behind what is loaded under the name. */
static void a_program_that_brings_nccl_with_it_gets_it_from_ferryrun(void **state)
{
	(void)state;
	expect(0, "right", "$R libnccl.so.2");
	expect(0, "info: NCCL 2.32.3: " NOW "/libnccl.so.2", "$B/ferryrun --nccl=name -- $R libnccl.so.2");
	expect(0, "watching", "$B/ferryrun --nccl=name -- $R libnccl.so.2");
	expect(0, "watching", "$B/ferryrun --nccl=name -- $P");
	expect(0, "1\n", "$B/ferryrun --nccl=name -- $P 2>&1 | grep -c 'info: NCCL [0-9]'");
}

static void both_ways_at_once_are_one(void **state)
{
	(void)state;
	expect(0, "info: NCCL 2.32.3: " NOW "/libnccl.so.2",
	       "LD_PRELOAD=$L LD_LIBRARY_PATH=" NOW " $O $F/libnccl.so.2");
	expect(0, "1\n", "LD_PRELOAD=$L LD_LIBRARY_PATH=" NOW " $O $F/libnccl.so.2 2>&1 | grep -c 'info: NCCL [0-9]'");
}

/* What this library's names lead to is not taken for NCCL where they are another build's. */
static void another_build_of_it_is_not_nccl(void **state)
{
	(void)state;
	expect(0, "fake_nccl_now/libnccl.so.2\n1\n",
	       "cd $FERRY_SOCKET_DIR; cp $L other.so; LD_PRELOAD=$L:./other.so $P 2>&1 | grep 'info: NCCL 2' | "
	       "tee said; wc -l <said; rm *");
}

static void the_chosen_one_goes_before_all_others(void **state)
{
	(void)state;
	expect(0, "info: NCCL 2.18.3: " OLD "/libnccl.so.2",
	       "FAKE_NCCL_VERSION=21803 FERRY_NCCL_LIBRARY=" OLD "/libnccl.so.2 LD_PRELOAD=$L $P");
	expect(1, "error: NCCL: FERRY_NCCL_LIBRARY: /none.so: cannot open shared object file",
	       "FERRY_NCCL_LIBRARY=/none.so LD_PRELOAD=$L $P");
	expect(1, "error: NCCL: FERRY_NCCL_LIBRARY: libm.so.6: no NCCL",
	       "FERRY_NCCL_LIBRARY=libm.so.6 LD_PRELOAD=$L $P");
	expect(1, "no NCCL", "FERRY_NCCL_LIBRARY=$F/libnccl.so.2 LD_PRELOAD=$L $P");
}

/* Python opens what it needs for itself alone: no name of it is found but by its own. */
static void what_is_loaded_goes_before_what_lies_on_the_path(void **state)
{
	(void)state;
	expect(0, "info: NCCL 2.32.3: " OLD "/libnccl.so.2",
	       "LD_LIBRARY_PATH=" NOW " $O " OLD "/libnccl.so.2 $F/libnccl.so.2");
}

static void ferryrun_sets_the_ways(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("LD_PRELOAD= $B/ferryrun --nccl -- sh -c 'echo $LD_PRELOAD $VLLM_NCCL_SO_PATH "
	                     "${FERRY_RANK-none} ${LD_LIBRARY_PATH-unset}'",
	                     text, sizeof text),
	                 0);
	assert_non_null(strstr(text, "/libferry-nccl.so "));
	assert_non_null(strstr(text, "/ferry/nccl/libnccl.so.2 none unset\n"));
	assert_int_equal(run("LD_LIBRARY_PATH=/x $B/ferryrun --nccl=name -n 2 --fork -- sh -c "
	                     "'echo $FERRY_RANK $LD_LIBRARY_PATH'",
	                     text, sizeof text),
	                 0);
	assert_non_null(strstr(text, "/ferry/nccl:/x\n"));
	assert_int_equal(run("FERRY_RANK=0 FERRY_SIZE=1 $B/ferryrun --join --nccl -- sh -c 'echo $LD_PRELOAD'", text,
	                     sizeof text),
	                 0);
	assert_non_null(strstr(text, "/libferry-nccl.so"));
	expect(0, "watching", "$B/ferryrun --nccl -- $P");
	expect(7, "", "$B/ferryrun --nccl -- sh -c 'exit 7'");
	assert_int_equal(run("$B/ferryrun --nccl=all -- true 2>&1", text, sizeof text), 64);
	assert_int_equal(entries_left(), 0);
}

/* NCCL loads the object that is there already. The program is two ranks in threads, without devices. */
static void nccl_has_its_tuner_from_it(void **state)
{
	(void)state;
	const char *asks = "NCCL asks for its tuner's choices for a communicator of 2 ranks";
	expect(0, asks, "FERRY_LOG=debug LD_PRELOAD=$L $P");
	expect(0, asks, "cd $(dirname $L) && FERRY_LOG=debug LD_PRELOAD=./libferry-nccl.so $P");
	expect(0, asks, "FERRY_LOG=debug LD_LIBRARY_PATH=$F:" NOW " $O libnccl.so.2");
	expect(0, asks, "FERRY_LOG=debug $B/ferryrun --nccl -- $P");
	expect(0, asks, "FERRY_LOG=debug $B/ferryrun --nccl=name -- $R libnccl.so.2");
	expect(0, "right", "FAKE_NCCL_TUNER=0 LD_PRELOAD=$L $P");
}

static void not_where_the_user_has_one(void **state)
{
	(void)state;
	static const char *const settings[] = {
	        "NCCL_TUNER_PLUGIN=none", "NCCL_TUNER_PLUGIN=$T/libnccl-tuner.so", "LD_LIBRARY_PATH=$T:" NOW,
	        "NCCL_NET_PLUGIN=$T/libnccl-tuner.so", "NCCL_CONF_FILE=conf", "NCCL_CTA_POLICY=EFFICIENCY",
	        "FERRY_NCCL=off"};
	char command[256];
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		snprintf(command, sizeof command,
		         "cd $FERRY_SOCKET_DIR; echo NCCL_TUNER_PLUGIN=none >conf; "
		         "FERRY_LOG=debug %s LD_PRELOAD=$L $P >said 2>&1; cat said; grep -c 'NCCL asks' said; rm *",
		         settings[i]);
		expect(0, "right\n0\n", command);
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	setenv("FERRY_TUNE", "off", 1);
	setenv("T", argv[7], 1);
	setenv("B", argv[1], 1);
	setenv("L", argv[2], 1);
	setenv("F", argv[3], 1);
	setenv("P", argv[4], 1);
	setenv("O", argv[5], 1);
	setenv("R", argv[6], 1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(preloaded_it_finds_what_the_program_links, make_directory,
	                                        remove_directory),
	        cmocka_unit_test_setup_teardown(off_it_looks_at_nothing, make_directory, remove_directory),
	        cmocka_unit_test_setup_teardown(a_program_that_opens_nccl_by_name_gets_it_from_the_folder,
	                                        make_directory, remove_directory),
	        cmocka_unit_test_setup_teardown(a_program_that_brings_nccl_with_it_gets_it_from_ferryrun,
	                                        make_directory, remove_directory),
	        cmocka_unit_test_setup_teardown(both_ways_at_once_are_one, make_directory, remove_directory),
	        cmocka_unit_test_setup_teardown(another_build_of_it_is_not_nccl, make_directory, remove_directory),
	        cmocka_unit_test_setup_teardown(the_chosen_one_goes_before_all_others, make_directory,
	                                        remove_directory),
	        cmocka_unit_test_setup_teardown(what_is_loaded_goes_before_what_lies_on_the_path, make_directory,
	                                        remove_directory),
	        cmocka_unit_test_setup_teardown(ferryrun_sets_the_ways, make_directory, remove_directory),
	        cmocka_unit_test_setup_teardown(nccl_has_its_tuner_from_it, make_directory, remove_directory),
	        cmocka_unit_test_setup_teardown(not_where_the_user_has_one, make_directory, remove_directory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
