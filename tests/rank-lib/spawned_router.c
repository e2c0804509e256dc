/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A router that a rank starts (FERRY_ROUTER=auto), over the double of the driver: it serves ranks on all GPUs,
 * whichever the one that starts it sees, and has nothing else of that one's process.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"
#include "tests/status_line.h"


#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT   30011
#define PRELOAD "libBrokenLocale.so.1" /* the C library's, which nobody else has any use for */

static const int one_device[] = {0, 0};

#define ORDER(...) ((struct rank_ordered){__VA_ARGS__})

/* A number that the router tells of itself; 0: none answers. */
static long router_says(const char *name)
{
	char path[128], text[512] = "";
	snprintf(path, sizeof path, "%s/router-0.sock", getenv("FERRY_SOCKET_DIR"));
	const char *found = status_line(path, text, sizeof text) ? NULL : strstr(text, name);
	return found ? strtol(found + strlen(name), NULL, 10) : 0;
}

static bool has(long pid, const char *file, const char *text)
{
	char path[64], *content = NULL;
	size_t length = 0, bytes = strlen(text);
	bool found = false;
	snprintf(path, sizeof path, "/proc/%ld/%s", pid, file);
	FILE *opened = fopen(path, "r");
	assert_non_null(opened);
	FILE *copy = open_memstream(&content, &length);
	assert_non_null(copy);
	for (int c; (c = getc(opened)) != EOF;)
		putc(c, copy);
	fclose(opened);
	fclose(copy);
	for (size_t i = 0; !found && i + bytes <= length; i++)
		found = !memcmp(content + i, text, bytes);
	free(content);
	return found;
}

/* At once: told to end, it would wait for the ranks of a test that has failed. */
static int end_router(void **state)
{
	long pid = router_says("pid=");
	if (pid)
		kill((pid_t)pid, SIGKILL);
	while (router_says("pid="))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* it is no child, so nothing to wait on */
	return no_misuse(state);
}

static void play(const char *const *variables, struct rank_process *ranks)
{
	for (int rank = 0; rank < 2; rank++)
		ranks[rank] = rank_start(variables[rank]);
	ranks_join(ranks, 2, one_device, COUNT);
	ranks_round(ranks, 2, 5, 5);
}

static void finish(struct rank_process *ranks)
{
	ranks_tell(ranks, 2, ORDER(.order = RANK_DESTROY), NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
}

static void it_serves_ranks_that_see_one_other_GPU_each(void **state)
{
	static const char *const variables[] = {"FERRY_ROUTER=auto CUDA_VISIBLE_DEVICES=1",
	                                        "FERRY_ROUTER=auto CUDA_VISIBLE_DEVICES=2"};
	struct rank_process ranks[2];
	(void)state;
	play(variables, ranks);
	assert_int_equal(router_says("gpus="), 2);
	finish(ranks);
}

/* A profiler, an allocator or libferry-nccl.so. The option: ASan would have no other library go before its own. */
static void it_loads_nothing_that_was_preloaded_into_the_rank(void **state)
{
	static const char preloads[] = "FERRY_ROUTER=auto LD_PRELOAD=" PRELOAD " ASAN_OPTIONS=verify_asan_link_order=0";
	static const char *const variables[] = {preloads, preloads};
	struct rank_process ranks[2];
	(void)state;
	play(variables, ranks);
	long pid = router_says("pid=");
	assert_true(has(ranks[0].pid, "maps", PRELOAD));
	assert_false(has(pid, "maps", PRELOAD));
	assert_false(has(pid, "environ", "LD_PRELOAD="));
	assert_true(has(pid, "environ", "FERRY_CUDA_LIBRARY="));
	finish(ranks);
}

#define TEST(name) cmocka_unit_test_teardown(name, end_router)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(it_serves_ranks_that_see_one_other_GPU_each),
	        TEST(it_loads_nothing_that_was_preloaded_into_the_rank),
	};
	if (argc > 1)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	setenv("FERRY_DOMAINS", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
