/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of NCCL's names: what a program calls arrives at NCCL as it was called, and what that says comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "orchestrator/nccl_types.h"
#include "tests/fake_nccl/fake_nccl.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *ours, *real;
static void (*last)(struct fake_nccl_note *note);
static unsigned long (*count)(const char *name);
static void (*mirror)(int on, int result);

/* As many words as the largest arguments take, in registers and on the stack, structs by value included. */
#define WORDS                                                                                                          \
	(W(1), W(2), W(3), W(4), W(5), W(6), W(7), W(8), W(9), W(10), W(11), W(12), W(13), W(14), W(15), W(16), W(17), \
	 W(18), W(19), W(20), W(21), W(22), W(23), W(24), W(25), W(26), W(27), W(28))
#define W(i) (seed * UINT64_C(0x0101010101010101) + UINT64_C(0x1111111111111111) * (i))
#define WORD uint64_t
#define WORD_TYPES                                                                                                     \
	(WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD,   \
	 WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD, WORD)

static void *function(void *library, const char *prefix, const char *name)
{
	char symbol[96];
	snprintf(symbol, sizeof symbol, "%snccl%s", prefix, name);
	return dlsym(library, symbol);
}

/* Calls a function by each of its names with the same words, here and there, and compares what came. */
#define COMPARE(type, call)                                                                                            \
	static void compare_##call(bool returns)                                                                       \
	{                                                                                                              \
		static const char *const prefixes[] = {"", "p"};                                                       \
		struct fake_nccl_note direct, arrived;                                                                 \
		uint64_t seed = (uint64_t)strlen(#call) + 3;                                                           \
		for (int i = 0; i < 2; i++) {                                                                          \
			type(*theirs) WORD_TYPES = function(real, prefixes[i], #call);                                 \
			type(*mine) WORD_TYPES = function(ours, prefixes[i], #call);                                   \
			if (!theirs || !mine)                                                                          \
				fail_msg("%snccl" #call " is missing", prefixes[i]);                                   \
			type expected = theirs WORDS;                                                                  \
			last(&direct);                                                                                 \
			unsigned long before = count(#call);                                                           \
			type got = mine WORDS;                                                                         \
			last(&arrived);                                                                                \
			if (count(#call) != before + 1 || strcmp(arrived.name, #call))                                 \
				fail_msg("%snccl" #call " did not arrive once: %s did", prefixes[i], arrived.name);    \
			if (arrived.bytes != direct.bytes || memcmp(arrived.text, direct.text, direct.bytes))          \
				fail_msg("%snccl" #call ": other arguments arrive", prefixes[i]);                      \
			if (returns && memcmp(&got, &expected, sizeof got))                                            \
				fail_msg("%snccl" #call ": another result comes back", prefixes[i]);                   \
		}                                                                                                      \
	}
#define NCCL_VALUE(since, type, name, parameters, arguments) COMPARE(type, name)
#define NCCL_VOID(since, name, parameters, arguments)        COMPARE(int, name)
#define NCCL_TEXT(since, name, parameters, arguments)
#include "orchestrator/functions.def"

enum { PASS, WATCH, ACCELERATE };

/* Where Ferry looks at calls, what watches looks into arguments, too, and these lead nowhere. */
static void every_function_arrives_at_nccl_as_it_was_called(void **state)
{
	(void)state;
	const char *mode = getenv("FERRY_NCCL");
	bool off = mode && !strcmp(mode, "off");
	mirror(1, 6);
#define NCCL_RESULT(since, act, name, parameters, arguments)                                                           \
	if (off || act != WATCH)                                                                                       \
		compare_##name(true);
#define NCCL_VALUE(since, type, name, parameters, arguments) compare_##name(true);
#define NCCL_VOID(since, name, parameters, arguments)        compare_##name(false);
#define NCCL_TEXT(since, name, parameters, arguments)
#include "orchestrator/functions.def"
	mirror(0, 0);
}

static void texts_are_nccls(void **state)
{
	(void)state;
	const char *(*error)(int) = (const char *(*)(int))dlsym(ours, "ncclGetErrorString");
	const char *(*message)(void *) = (const char *(*)(void *))dlsym(ours, "pncclGetLastError");
	assert_string_equal(error(3), "an error of the double's");
	assert_string_equal(message(NULL), "the double's last error");
}

static void a_function_that_nccl_is_too_old_for_is_refused_with_its_name(void **state)
{
	(void)state;
	const char *(*message)(void *) = (const char *(*)(void *))dlsym(ours, "ncclGetLastError");
	char expected[128];
#define NCCL_RESULT(since, act, name, parameters, arguments)                                                           \
	if (since > 21899) {                                                                                           \
		ncclResult_t(*refuses) WORD_TYPES = function(ours, "p", #name);                                        \
		uint64_t seed = 1;                                                                                     \
		assert_int_equal(refuses WORDS, ncclInvalidUsage);                                                     \
		snprintf(expected, sizeof expected, "nccl" #name " needs NCCL %d.%d; ", since / 10000,                 \
		         since / 100 % 100);                                                                           \
		const char *said = message(NULL);                                                                      \
		if (strncmp(said, expected, strlen(expected)) || !strstr(said, " is 2.18.3"))                          \
			fail_msg("it says \"%s\" and not \"%s\"", said, expected);                                     \
		assert_string_equal(message(NULL), "the double's last error");                                         \
	}
#include "orchestrator/functions.def"
	ncclTeam_t (*team)(void *) = (ncclTeam_t(*)(void *))dlsym(ours, "ncclTeamWorld");
	assert_int_equal(team(NULL).nRanks, 0);
	int version = 0;
	int (*get_version)(int *) = (int (*)(int *))dlsym(ours, "ncclGetVersion");
	assert_int_equal(get_version(&version), ncclSuccess);
	assert_int_equal(version, 21803);
}

static int open_both(void **state)
{
	(void)state;
	real = dlopen(getenv("FERRY_NCCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
	ours = dlopen(getenv("FERRY_TEST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
	if (!real || !ours)
		return -1;
	last = (void (*)(struct fake_nccl_note *))dlsym(real, "fake_nccl_last");
	count = (unsigned long (*)(const char *))dlsym(real, "fake_nccl_count");
	mirror = (void (*)(int, int))dlsym(real, "fake_nccl_mirror");
	int version, (*get_version)(int *) = (int (*)(int *))dlsym(ours, "ncclGetVersion");
	return get_version(&version);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_function_arrives_at_nccl_as_it_was_called),
	        cmocka_unit_test(texts_are_nccls),
	};
	const struct CMUnitTest old[] = {
	        cmocka_unit_test(a_function_that_nccl_is_too_old_for_is_refused_with_its_name),
	};
	if (argc > 1 && !strcmp(argv[1], "old"))
		return cmocka_run_group_tests(old, open_both, NULL);
	return cmocka_run_group_tests(tests, open_both, NULL);
}
