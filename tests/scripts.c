/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of scripts/: each says what it takes, none takes away what is not its own, and a machine without GPUs is
 * told of at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[] = "/tmp/ferry-scripts-test-XXXXXX"; /* the current one while a test runs */

/* Runs a shell command, with $S for the folder of the scripts; its output, both streams, in text. */
static int run(const char *command, char *text, size_t bytes)
{
	char whole[1024];
	size_t got = 0;
	snprintf(whole, sizeof whole, "exec 2>&1; %s", command);
	FILE *pipe = popen(whole, "r");
	assert_non_null(pipe);
	for (size_t part = 1; part && got < bytes - 1; got += part)
		part = fread(text + got, 1, bytes - 1 - got, pipe);
	text[got] = '\0';
	int status = pclose(pipe);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void expect(const char *command, int code, const char *says)
{
	char text[8192];
	int ended = run(command, text, sizeof text);
	if (ended != code || !strstr(text, says))
		fail_msg("%s: exit code %d instead of %d, or no \"%s\" in:\n%s", command, ended, code, says, text);
}

static void every_script_says_what_it_takes_and_refuses_the_rest(void **state)
{
	(void)state;
	static const char *const scripts[] = {"api-reference", "build",      "bundle",      "check-models",
	                                      "compare-builds", "fuzz",      "gpu-check",   "gpu-report",
	                                      "hot-path",      "nccl-report", "setup",     "tsan-prefix"};
	for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
		char command[64];
		snprintf(command, sizeof command, "$S/%s --help", scripts[i]);
		expect(command, 0, "Usage: ");
		snprintf(command, sizeof command, "$S/%s --unknown", scripts[i]);
		expect(command, 64, "\"--unknown\"");
	}
	expect("$S/fuzz . soon", 64, "\"soon\"");
	expect("$S/bundle a b c", 64, "\"c\"");
	expect("$S/compare-builds a", 64, "OLD and NEW");
	expect("$S/compare-builds a b", 64, "no bin/ferry-perf in a");
	expect("rmdir *", 1, ""); /* nothing was made */
}

/* What of a build it takes to make a bundle. */
static const char
        build[] = "mkdir -p build/bin build/lib build/tests/gpu && ln -s $B/bin/ferryrun build/bin/ferryrun && "
                  "ln -s $B/bin/ferryrun build/bin/gpu_streams && ln -s $B/lib/libferry.so.0 build/lib && "
                  "touch build/tests/gpu/CTestTestfile.cmake";

static void bundle_takes_nothing_away_that_is_not_its_own(void **state)
{
	(void)state;
	expect(build, 0, "");
	expect("mkdir kept && touch kept/work file", 0, "");
	expect("$S/bundle build build", 64, "is or contains");
	expect("$S/bundle build .", 64, "is or contains");
	expect("mkdir -p source/scripts && cp $S/bundle source/scripts && source/scripts/bundle build source", 64,
	       "is or contains");
	expect("$S/bundle build build/bin", 64, "not empty and no earlier bundle");
	expect("$S/bundle build kept", 64, "not empty and no earlier bundle");
	expect("$S/bundle build file", 64, "is no folder");
	expect("ls kept/work file build/bin/ferryrun build/lib/libferry.so.0", 0, "");
}

static void bundle_replaces_an_earlier_bundle_but_not_what_was_measured_in_it(void **state)
{
	(void)state;
	expect(build, 0, "");
	expect("mkdir empty && $S/bundle build empty", 0, "empty/gpu-check");
	expect("touch empty/measured empty/lib/of-an-older-build && $S/bundle build empty", 0, "empty/gpu-check");
	expect("ls empty/measured empty/bin/ferryrun empty/lib/libferry.so.0 empty/CTestTestfile.cmake", 0, "");
	expect("ls empty/lib/of-an-older-build", 2, "");
}

static void without_gpus_nothing_is_run_and_nothing_made(void **state)
{
	(void)state;
	expect("mkdir -p bin none && printf '#!/bin/sh\\nexit 9\\n' >none/nvidia-smi && "
	       "printf '#!/bin/sh\\necho \"skipped: no GPU here (why)\"; exit 77\\n' >bin/gpu_streams && chmod +x "
	       "none/* bin/* && cp $S/gpu-check $S/gpu-report $S/nccl-report . && mkdir lib && "
	       "touch lib/libferry-nccl.so",
	       0, "");
	char text[4096];
	assert_int_equal(run("PATH=$PWD/none:$PATH ./gpu-check", text, sizeof text), 77);
	assert_string_equal(text, "gpu-check: no GPU here (why)\n");
	expect("PATH=$PWD/none:$PATH ./gpu-report out", 77, "0 GPUs");
	expect("PATH=$PWD/none:$PATH ./nccl-report out", 77, "0 GPUs");
	expect("ls out", 2, "");
}

static void bundle_has_what_is_between_programs_and_nccl(void **state)
{
	(void)state;
	expect(build, 0, "");
	expect("ln -s $B/lib/libferry-nccl.so $B/lib/ferry build/lib && $S/bundle build empty", 0, "empty/gpu-check");
	expect("mv empty elsewhere && ldd elsewhere/lib/ferry/nccl/libnccl.so.2", 0,
	       "elsewhere/lib/ferry/nccl/../../libferry-nccl.so");
	expect("elsewhere/nccl-report --help && ls elsewhere/tests/gpu/torch_training.py", 0, "torch_training.py");
}

/*
 * A test of nccl-tests: 100 us per MiB, and 50 of what is preloaded, which has a wrong element where WRONG is set and
 * fails where FAIL is.
 */
static const char test_of_nccl[] =
        "cat >tests/all_reduce_perf <<'END'\n#!/bin/sh\n"
        "case \"${LD_PRELOAD:-}\" in *libferry-nccl*) us=50 wrong=${WRONG:-0}; echo 'ferry[1] info: communicator is "
        "shared between' >&2; [ -z \"${FAIL:-}\" ] || { echo broken >&2; exit 3; } ;; *) us=100 wrong=0 ;; esac\n"
        "[ -z \"${NCCL_SHM_USE_CUDA_MEMCPY:-}\" ] || us=80\n"
        "for mib in 1 4; do echo $((mib << 20)) 1 float sum -1 $((us * mib)) 1 1 $wrong $((us * mib)) 1 1 N/A; done\n"
        "END\n";

/* A bundle of programs that only seem to be those; the table is what they print. */
static void nccl_report_compares_and_goes_on_after_a_failure(void **state)
{
	(void)state;
	expect("mkdir bin lib tests gpus && touch lib/libferry-nccl.so && cp $S/nccl-report . && "
	       "printf '#!/bin/sh\necho GPU 0; echo GPU 1\n' >gpus/nvidia-smi && "
	       "printf '#!/bin/sh\nprintf \"\\\\0\" >&9; exec 9>&- sleep 60\n' >bin/ferry-router",
	       0, "");
	expect(test_of_nccl, 0, "");
	expect("chmod +x tests/* gpus/* bin/*; cp tests/all_reduce_perf tests/gather_perf", 0, "");
	setenv("NCCL_REPORT", "PATH=$PWD/gpus:$PATH NCCL_TESTS=$PWD/tests FABRICS=pcie COLLECTIVES='all_reduce gather' "
	                      "./nccl-report out tests", 1);
	expect("eval \"$NCCL_REPORT\"", 0, "2.00/2.00   2.00/2.00");
	expect("eval \"$NCCL_REPORT\"", 0, "MEMCPY     1.60/1.60   1.60/1.60");
	expect("eval \"$NCCL_REPORT\"", 0, "worst 2.00 (all_reduce 1M out of place), 0 of 8 under 0.98; wrong: 0");
	expect("export WRONG=3; eval \"$NCCL_REPORT\"", 1, "wrong: 24");
	expect("export FAIL=1; eval \"$NCCL_REPORT\"", 1, "gather-learn.log: broken");
	expect("NCCL_TESTS=$PWD COLLECTIVES=all_reduce PATH=$PWD/gpus:$PATH ./nccl-report out tests graphs", 1,
	       "left out: NCCL_TESTS=");
	expect("rm tests/gather_perf; eval \"$NCCL_REPORT\"", 1, "worst 2.00 (all_reduce 1M out of place), 0 of 4");
}

/* On a machine that has all but the packages of the tests: a pkg-config that knows no cmocka. */
static void what_is_installed_needs_no_package_of_the_tests(void **state)
{
	(void)state;
	char text[4096];
	expect("mkdir bin && printf '#!/bin/sh\\ncase \"$*\" in *cmocka*) exit 1; esac\\nexec %s \"$@\"\\n' "
	       "$(command -v pkg-config) >bin/pkg-config && chmod +x bin/pkg-config",
	       0, "");
	expect("PATH=$PWD/bin:$PATH $S/setup --list", 0, "libcmocka-dev\n");
	for (const char *const *purpose = (const char *const[]){"install", "deb", "docs", NULL}; *purpose; purpose++) {
		char command[64];
		snprintf(command, sizeof command, "PATH=$PWD/bin:$PATH $S/setup --list %s", *purpose);
		assert_int_equal(run(command, text, sizeof text), 0);
		assert_null(strstr(text, "cmocka"));
		assert_null(strstr(text, "mpich"));
	}
}

/* Of builds whose ferry-perf only seems to measure: the third run of each build is an hour of a slow machine. */
static void compare_builds_takes_medians_of_turns(void **state)
{
	(void)state;
	expect("for us in 300 200; do mkdir -p of-$us/bin && cat >of-$us/bin/ferry-perf <<END && "
	       "chmod +x of-$us/bin/*\n"
	       "#!/bin/sh\necho run >>of-$us/runs; echo of-$us >>order; us=$us\n"
	       "[ \\$(wc -l <of-$us/runs) != 3 ] || us=999\n"
	       "[ \\$1 != alltoall ] || { echo broken; exit 1; }\n"
	       "echo \"  1024 256 f32 sum \\$us 1 1 1 0 100.0 1 1 1 0\"\n"
	       "END\ndone",
	       0, "");
	expect("$S/compare-builds of-300 of-200 allreduce", 0,
	       "allreduce             1024  out         300.0       200.0   1.500   1.000   1.500\n"
	       "allreduce             1024  in          100.0       100.0   1.000   1.000   1.000\n");
	expect("tr '\\n' ' ' <order", 0, "of-300 of-200 of-200 of-300 of-300 of-200");
	expect("$S/compare-builds of-300 of-200 alltoall", 1, "of-300/bin/ferry-perf alltoall failed");
}

static int make_directory(void **state)
{
	(void)state;
	strcpy(directory + sizeof directory - 7, "XXXXXX");
	return !mkdtemp(directory) || chdir(directory) || setenv("S", FERRY_SCRIPTS, 1) || setenv("B", FERRY_BUILD, 1);
}

static int remove_directory(void **state)
{
	(void)state;
	char command[64];
	snprintf(command, sizeof command, "rm -r %s", directory);
	return chdir("/") || system(command);
}

int main(void)
{
#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)
	const struct CMUnitTest tests[] = {
	        IN_A_FOLDER(every_script_says_what_it_takes_and_refuses_the_rest),
	        IN_A_FOLDER(compare_builds_takes_medians_of_turns),
	        IN_A_FOLDER(bundle_takes_nothing_away_that_is_not_its_own),
	        IN_A_FOLDER(bundle_replaces_an_earlier_bundle_but_not_what_was_measured_in_it),
	        IN_A_FOLDER(bundle_has_what_is_between_programs_and_nccl),
	        IN_A_FOLDER(without_gpus_nothing_is_run_and_nothing_made),
	        IN_A_FOLDER(nccl_report_compares_and_goes_on_after_a_failure),
	        IN_A_FOLDER(what_is_installed_needs_no_package_of_the_tests),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
