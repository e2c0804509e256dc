/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of cudaFree under the preload: it is Ferry's, whatever has loaded CUDA's runtime, and finds that. */
#include "tests/commands.h"

/* Both doubles, and little memory; every call is divided. */
static const char *const settings =
        "FERRY_SPLIT_WAIT=60 FERRY_SHARES=nccl:0.5,host:0.5 FAKE_CUDA_MEMORY=209715200 FAKE_CUDA_DEVICES=2 "
        "FAKE_CUDA_CONTEXT_MEMORY=1048576 FAKE_CUDA_MACHINE=$FERRY_SOCKET_DIR FERRY_CUDA_LIBRARY=$C";

static void expect(int code, const char *has, const char *command)
{
	static char text[65536];
	char line[4096];
	snprintf(line, sizeof line, "(%s %s) 2>&1", settings, command);
	int got = run(line, text, sizeof text);
	if (got != code || !strstr(text, has))
		fail_msg("%s: exit code %d for %d, or without \"%s\":\n%s", line, got, code, has, text);
}

static void memory_comes_back_to_a_program_that_links_the_runtime(void **state)
{
	(void)state;
	expect(0, "ok: ", "$B/ferryrun --nccl -- $P 3");
}

static void memory_comes_back_to_one_that_opens_the_runtime_for_itself(void **state)
{
	(void)state;
	expect(0, "ok: ", "$B/ferryrun --nccl -- $O $U");
}

/* All of it passes through. */
static void off_and_without_a_router_it_is_the_runtimes(void **state)
{
	(void)state;
	expect(1, "not ok: Ferry had nothing of it", "FERRY_NCCL=off $B/ferryrun --nccl -- $P");
	expect(1, "not ok: Ferry had nothing of it", "FERRY_ROUTER=required LD_PRELOAD=$L $P");
}

int main(int argc, char **argv)
{
	(void)argc;
	setenv("B", argv[1], 1);
	setenv("L", argv[2], 1);
	setenv("C", argv[3], 1);
	setenv("P", argv[4], 1);
	setenv("O", argv[5], 1);
	setenv("U", argv[6], 1);
	const struct CMUnitTest tests[] = {
	        TEST(memory_comes_back_to_a_program_that_links_the_runtime),
	        TEST(memory_comes_back_to_one_that_opens_the_runtime_for_itself),
	        TEST(off_and_without_a_router_it_is_the_runtimes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
