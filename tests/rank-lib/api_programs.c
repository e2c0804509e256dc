/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the API about users' programs: whatever passes the check runs, and where FERRY_PROGRAM_PATH names one
 * that cannot replace the built-in one, that one runs and the reason is told, once.
 */
#include "tests/api_ranks.h"

#include <string.h>
#include <unistd.h>

#define COUNT 3000

static int32_t input[FERRY_MAX_RANKS][COUNT], output[FERRY_MAX_RANKS][COUNT];

/* An AllReduce of one domain whose chunk c is summed in the section of rank c modulo ranks; for free(). */
static char *allreduce_of(int nranks, int nchunks)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);
	assert_non_null(out);
	fprintf(out, "program allreduce ranks %d domains 1 chunks %d\n", nranks, nchunks);
	for (int rank = 0; rank < nranks; rank++) {
		fprintf(out, "rank %d\n", rank);
		for (int chunk = 0; chunk < nchunks; chunk++)
			fprintf(out, "D2H gpu[%d] -> host[%d]\n", chunk, rank * nchunks + chunk);
		for (int chunk = rank; chunk < nchunks; chunk += nranks)
			for (int from = 0; from < nranks; from++)
				fprintf(out, "REDUCE host[%d] -> host[%d] deps: host[%d]>=1\n", from * nchunks + chunk,
				        nranks * nchunks + chunk, from * nchunks + chunk);
		for (int chunk = 0; chunk < nchunks; chunk++)
			fprintf(out, "H2D host[%d] -> gpu[%d] deps: host[%d]>=%d\n", nranks * nchunks + chunk, chunk,
			        nranks * nchunks + chunk, nranks);
	}
	assert_int_equal(fclose(out), 0);
	return text;
}

/* One call on every rank, of a program or of what Ferry has for it; its result is looked at. */
static void sum_by(struct ranks *ranks, const char *program)
{
	for (int rank = 0; rank < ranks->count; rank++)
		for (int i = 0; i < COUNT; i++)
			input[rank][i] = 1000 * rank + i;
	memset(output, 0, sizeof output);
	for (int rank = 0; rank < ranks->count; rank++)
		OK(program ? ferryRunProgram(program, input[rank], output[rank], COUNT, ferryInt32, ferrySum,
		                             ranks->comms[rank], NULL)
		           : ferryAllReduce(input[rank], output[rank], COUNT, ferryInt32, ferrySum, ranks->comms[rank],
		                            NULL));
	OK(ferryStreamSynchronize(NULL));
	for (int rank = 0; rank < ranks->count; rank++)
		for (int i = 0; i < COUNT; i++)
			assert_int_equal(output[rank][i], 500 * ranks->count * (ranks->count - 1) + ranks->count * i);
}

static void a_program_that_passes_the_check_runs_whatever_its_size(void **state)
{
	static const struct {
		int nranks, nchunks;
	} sizes[] = {{2, 128}, {3, 1024}, {8, 300}};
	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct ranks ranks;
		char *text = allreduce_of(sizes[i].nranks, sizes[i].nchunks);
		open_ranks(&ranks, sizes[i].nranks, 1);
		for (int round = 0; round < 3; round++) /* both parities, and the first again */
			sum_by(&ranks, text);
		sum_by(&ranks, NULL); /* a short one where the long one's counters still say what they said */
		sum_by(&ranks, text);
		close_ranks(&ranks);
		free(text);
	}
}

/* ---- FERRY_PROGRAM_PATH ---- */

static FILE *said; /* what goes to stderr meanwhile */
static int stderr_kept;

static void hear(void)
{
	said = tmpfile();
	assert_non_null(said);
	stderr_kept = dup(STDERR_FILENO);
	assert_true(dup2(fileno(said), STDERR_FILENO) >= 0);
}

/* What was said since, which holds `words` so many times. */
static void assert_heard(const char *words, int times)
{
	static char text[65536];
	int count = 0;
	assert_true(dup2(stderr_kept, STDERR_FILENO) >= 0);
	close(stderr_kept);
	rewind(said);
	text[fread(text, 1, sizeof text - 1, said)] = '\0';
	fclose(said);
	for (const char *at = text; (at = strstr(at, words)); at++)
		count++;
	if (count != times)
		fail_msg("\"%s\" is said %d times instead of %d:\n%s", words, count, times, text);
}

static void write_program(char *file, const char *text)
{
	int descriptor = mkstemp(file);
	assert_true(descriptor >= 0);
	assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
	close(descriptor);
	setenv("FERRY_PROGRAM_PATH", file, 1);
}

/* Two communicators and two calls each, with the program where FERRY_PROGRAM_PATH names it. */
static void call_with(const char *text, int nranks, int domains, const char *expected)
{
	char file[] = "/tmp/ferry-unfit-XXXXXX", words[256];
	write_program(file, text);
	hear();
	for (int round = 0; round < 2; round++) {
		struct ranks ranks;
		open_ranks(&ranks, nranks, domains);
		sum_by(&ranks, NULL);
		sum_by(&ranks, NULL);
		close_ranks(&ranks);
	}
	unsetenv("FERRY_PROGRAM_PATH");
	unlink(file);
	snprintf(words, sizeof words, "FERRY_PROGRAM_PATH: %s is not used for allreduce, Ferry's own program is: %s",
	         file, expected);
	assert_heard(*expected ? words : "warn:", *expected ? 1 : 0);
}

static void a_named_program_that_does_not_fit_is_told_once(void **state)
{
	(void)state;
	char *text = allreduce_of(2, 2);
	call_with(text, 3, 1, "it is for 2 ranks in 1 domain, the communicator has 3 in 1");
	call_with(text, 2, 2, "it is for 2 ranks in 1 domain, the communicator has 2 in 2");
	call_with(text, 2, 1, "");
	free(text);
	call_with("program allreduce ranks 2 domains 2 chunks 1 bytes 0..4K\n"
	          "rank 0 domain 1\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[1]\n"
	          "H2H host@0[0] -> host[2] deps: host@0[0]>=1\nREDUCE host[2] -> host[1] deps: host[1]>=1\n"
	          "H2D host[1] -> gpu[0] deps: host[1]>=2\n"
	          "rank 1 domain 0\nD2H gpu[0] -> host[0]\nH2D host@1[1] -> gpu[0] deps: host@1[1]>=2\n",
	          2, 2, "it has rank 0 in domain 1, the communicator in domain 0");
}

/* Other sizes than its header's, or another collective, are none of its business. */
static void a_named_program_of_other_calls_is_not_told(void **state)
{
	(void)state;
	char text[256];
	snprintf(text, sizeof text,
	         "program allreduce ranks 2 domains 1 chunks 1 bytes 1M..1G\nrank 0\nD2H gpu[0] -> host[0]\n"
	         "REDUCE host[0] -> host[1] deps: host[1]>=1\nH2D host[1] -> gpu[0] deps: host[1]>=2\n"
	         "rank 1\nD2H gpu[0] -> host[1]\nH2D host[1] -> gpu[0] deps: host[1]>=2\n");
	call_with(text, 2, 1, "");
	call_with("program broadcast ranks 1 domains 1 chunks 1\n", 2, 1, "");
}

static void a_named_program_that_the_staging_cannot_hold_is_told_and_not_used(void **state)
{
	(void)state;
	char *text = allreduce_of(2, 128);
	setenv("FERRY_STAGING", "64K", 1);
	call_with(text, 2, 1,
	          "384 chunk versions with windows of 1 slot of 64 bytes do not fit the 32768 bytes of staging per "
	          "call in domain 0; raise FERRY_STAGING");
	unsetenv("FERRY_STAGING");
	free(text);
}

/* ... where the API's caller wants none. FERRY_DEBUG=plan tells whose program it was. */
static void a_communicator_may_have_no_named_programs(void **state)
{
	(void)state;
	char file[] = "/tmp/ferry-unfit-XXXXXX", *text = allreduce_of(1, 2);
	write_program(file, text);
	setenv("FERRY_DEBUG", "plan", 1);
	for (int none = 0; none < 2; none++) {
		ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
		struct ranks ranks = {.count = 1};
		ferryUniqueId id;
		config.programs = none ? "" : NULL;
		hear();
		hosted_routers(1);
		OK(ferryGetUniqueId(&id));
		OK(ferryCommInitRankConfig(&ranks.comms[0], 1, id, 0, &config));
		sum_by(&ranks, NULL);
		close_ranks(&ranks);
		assert_heard("user's program", !none);
	}
	unsetenv("FERRY_DEBUG");
	unsetenv("FERRY_PROGRAM_PATH");
	unlink(file);
	free(text);
}

/* What names the file is what one would look for. */
static void an_error_in_a_named_program_is_told_with_what_names_it(void **state)
{
	(void)state;
	static const char *const texts[] =
	        {"nonsense", "program allreduce ranks 1 domains 1 chunks 1\nrank 0\nD2H gpu[1] -> host[0]\n", ""};
	for (int i = 0; i < 6; i++) {
		char file[] = "/tmp/ferry-wrong-XXXXXX", words[128];
		ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
		ferryComm_t comm;
		ferryUniqueId id;
		write_program(file, texts[i % 3]);
		if (i >= 3) {
			unsetenv("FERRY_PROGRAM_PATH");
			config.programs = file;
		}
		hosted_routers(1);
		OK(ferryGetUniqueId(&id));
		assert_int_equal(ferryCommInitRankConfig(&comm, 1, id, 0, &config), ferryProgramError);
		snprintf(words, sizeof words, "%s: %s:", i < 3 ? "FERRY_PROGRAM_PATH" : "ferryConfig_t.programs", file);
		if (strncmp(ferryGetLastError(NULL), words, strlen(words)) != 0)
			fail_msg("\"%s\" does not begin with \"%s\"", ferryGetLastError(NULL), words);
		unsetenv("FERRY_PROGRAM_PATH");
		unlink(file);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_program_that_passes_the_check_runs_whatever_its_size),
	        cmocka_unit_test(a_named_program_that_does_not_fit_is_told_once),
	        cmocka_unit_test(a_named_program_of_other_calls_is_not_told),
	        cmocka_unit_test(a_named_program_that_the_staging_cannot_hold_is_told_and_not_used),
	        cmocka_unit_test(a_communicator_may_have_no_named_programs),
	        cmocka_unit_test(an_error_in_a_named_program_is_told_with_what_names_it),
	};
	hosted_routers(0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
