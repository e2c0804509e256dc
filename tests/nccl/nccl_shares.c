/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferry-shares, over the doubles of CUDA and NCCL: what it prints, and the log of shares that it leaves. */
#include "tests/commands.h"

#include <unistd.h>

/* NCCL's double is so slow that Ferry's part pays, however busy the machine is. */
static const char *const settings =
        "FAKE_NCCL_GBPS=0.02 FAKE_CUDA_DEVICES=2 FAKE_CUDA_CONTEXT_MEMORY=1048576 FAKE_CUDA_MACHINE=$FERRY_SOCKET_DIR "
        "FERRY_CUDA_LIBRARY=$C FERRY_NCCL_LIBRARY=$N LD_PRELOAD=$C";

/* Exit code of ferry-shares; what it has printed is in text. */
static int shares(const char *arguments, char *text, size_t bytes)
{
	char line[4096];
	snprintf(line, sizeof line, "(%s $B/ferryrun --nccl -- $B/ferry-shares %s) 2>&1", settings, arguments);
	return run(line, text, bytes);
}

static void cold_starts_are_held_against_the_best_fixed_shares(void **state)
{
	(void)state;
	char text[16384], arguments[256], line[1024];
	char path[] = "/tmp/ferry-shares-test-XXXXXX";
	int file = mkstemp(path), code, logged = 0;
	assert_true(file >= 0);
	close(file);
	snprintf(arguments, sizeof arguments, "-c allreduce -c reducescatter -b 1M -s 0 -s 0.5 -n 12 -a 10 -o %s",
	         path);
	code = shares(arguments, text, sizeof text);
	if ((code != 0 && code != 2) || !strstr(text, "allreduce        1048576  best share 0.5") ||
	    !strstr(text, "reducescatter    1048576  best share 0.") || !strstr(text, "cold within a tenth after"))
		fail_msg("exit code %d:\n%s", code, text);
	FILE *log = fopen(path, "re");
	while (log && fgets(line, sizeof line, log))
		logged += strstr(line, "\"collective\":\"allreduce\"") && !strstr(line, "\"host\":0.0000");
	fclose(log);
	unlink(path);
	assert_true(logged > 0); /* the host has had parts, from a cold start */
}

static void bursts_are_told_from_what_is_between_them(void **state)
{
	(void)state;
	char text[16384];
	double calm, burst, both, copies, of_alone;
	int code = shares("-i -b 256K -k 1M -p 500 -r 1 -s 0", text, sizeof text);
	const char *fixed = strstr(text, "share 0.000");
	if (code || !fixed || !strstr(text, "adaptive ") || !strstr(text, "oracle "))
		fail_msg("exit code %d:\n%s", code, text);
	assert_int_equal(sscanf(fixed, "share 0.000 calm %lf bursts %lf both %lf GB/s; copies %lf GB/s, %lf", &calm,
	                        &burst, &both, &copies, &of_alone), 5);
	assert_true(calm > 0 && calm < 0.021 && burst > 0 && burst < 0.021 && copies > 0); /* NCCL's double's rate */
}

static void what_cannot_be_is_refused(void **state)
{
	(void)state;
	char text[16384];
	assert_int_equal(shares("-s 1.5", text, sizeof text), 64);
	assert_non_null(strstr(text, "a share is a number from 0 to 1, not \"1.5\""));
	assert_int_equal(shares("-c scan", text, sizeof text), 64);
	assert_int_equal(shares("-g 3 -b 1M", text, sizeof text), 1);
	assert_non_null(strstr(text, "3 GPUs, where there are 2"));
}

int main(int argc, char **argv)
{
	(void)argc;
	setenv("FERRY_TUNE", "off", 1);
	setenv("B", argv[1], 1);
	setenv("C", argv[2], 1);
	setenv("N", argv[3], 1);
	const struct CMUnitTest tests[] = {
	        TEST(cold_starts_are_held_against_the_best_fixed_shares),
	        TEST(bursts_are_told_from_what_is_between_them),
	        TEST(what_cannot_be_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
