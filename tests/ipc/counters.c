/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a page of counters: what is read is whole, and a reader, ferry-stat among them, does not trust the router
 * that gives it one. That another user cannot write it: tests/router/tenants.c.
 */

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/attach.h"
#include "ipc/counters.h"
#include "ipc/endpoint.h"
#include "ipc/error.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ferry_counters written, found;
static struct ferry_counters_page *page;
static int descriptor;

static int make_page(void **state)
{
	(void)state;
	memset(&written, 0, sizeof written);
	return ferry_counters_create(&page, &descriptor);
}

static int drop_page(void **state)
{
	(void)state;
	ferry_counters_unmap(page);
	return close(descriptor);
}

static void a_page_has_the_head_and_the_rows_that_were_written_last(void **state)
{
	const struct ferry_counters_page *mapped;
	(void)state;
	assert_int_equal(ferry_counters_map(descriptor, &mapped), ferrySuccess);
	assert_int_equal(ferry_counters_read(mapped, &found), ferryInProgress); /* nothing has been */
	written.domain = 3;
	written.njob_rows = FERRY_COUNTERS_JOBS;
	written.nshare_rows = 1;
	written.job_rows[FERRY_COUNTERS_JOBS - 1].number = 77;
	written.share_rows[0].number = 88;
	written.nlink_rows = FERRY_COUNTERS_LINKS;
	written.link_rows[FERRY_COUNTERS_LINKS - 1].bytes = 99;
	ferry_counters_write(page, &written);
	uint64_t generation = ferry_counters_generation(mapped);
	assert_int_equal(ferry_counters_read(mapped, &found), ferrySuccess);
	assert_true(found.domain == 3 && found.job_rows[FERRY_COUNTERS_JOBS - 1].number == 77);
	assert_int_equal(found.share_rows[0].number, 88);
	assert_int_equal(found.link_rows[FERRY_COUNTERS_LINKS - 1].bytes, 99);
	written.njob_rows = 0;
	ferry_counters_write(page, &written);
	assert_true(ferry_counters_generation(mapped) > generation);
	assert_int_equal(ferry_counters_read(mapped, &found), ferrySuccess);
	assert_int_equal(found.njob_rows, 0);
	ferry_counters_unmap(mapped);
}

static _Atomic bool over;

static void *write_again_and_again(void *unused)
{
	(void)unused;
	for (uint64_t n = 1; !atomic_load(&over); n++) {
		written.slices = written.bytes = n;
		written.njob_rows = 64;
		for (int i = 0; i < 64; i++)
			written.job_rows[i].d2h = written.job_rows[i].h2d = n;
		ferry_counters_write(page, &written);
		if (n % 16 == 0)
			usleep(100);
	}
	return NULL;
}

static void what_is_read_beside_the_writer_is_whole(void **state)
{
	const struct ferry_counters_page *mapped;
	pthread_t writer;
	uint64_t last = 0;
	(void)state;
	atomic_store(&over, false);
	assert_int_equal(ferry_counters_map(descriptor, &mapped), ferrySuccess);
	assert_int_equal(pthread_create(&writer, NULL, write_again_and_again, NULL), 0);
	for (int copies = 0; copies < 1000;) {
		if (ferry_counters_read(mapped, &found))
			continue;
		copies++;
		assert_true(found.slices == found.bytes && found.slices >= last);
		for (int i = 0; i < 64; i++)
			assert_true(found.job_rows[i].d2h == found.slices && found.job_rows[i].h2d == found.slices);
		last = found.slices;
	}
	atomic_store(&over, true);
	pthread_join(writer, NULL);
	ferry_counters_unmap(mapped);
}

/* It could be made shorter under the reader's hands, or is. */
static void memory_that_is_not_sealed_or_not_that_long_is_refused(void **state)
{
	const struct ferry_counters_page *mapped;
	(void)state;
	for (int i = 0; i < 3; i++) {
		int other = i < 2 ? memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING) : open("/dev/null", O_RDWR);
		if (i < 2)
			assert_int_equal(ftruncate(other, i ? 4096 : (off_t)sizeof *page), 0);
		if (i == 1)
			assert_int_equal(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK), 0);
		assert_int_equal(ferry_counters_map(other, &mapped), ferryRefused);
		close(other);
	}
	assert_int_equal(ferry_counters_map(-1, &mapped), ferryRefused);
}

/* ---- a router that lies ---- */

static void put(size_t at, const void *value, size_t bytes)
{
	memcpy((char *)page + at, value, bytes);
}

static const struct {
	const char *what;
	size_t at;
	uint32_t value;
	const char *said; /* by ferry-stat --routers */
} lies[] = {
#define LIE(field, value, said) {#field, offsetof(struct ferry_counters, field), value, said}
        LIE(magic, 0, "counters of magic 00000000"),
        LIE(version, 1, "version 1; this command reads 46455243 and 4"),
        LIE(njob_rows, FERRY_COUNTERS_JOBS + 1, "counters with 513 rows in table 0"),
        LIE(ngpu_rows, UINT32_MAX, "counters with 4294967295 rows in table 1"),
        LIE(ntenant_rows, 1u << 31, "counters with 2147483648 rows in table 2"),
        LIE(nshare_rows, UINT32_MAX, "counters with 4294967295 rows in table 3"),
        LIE(nlink_rows, FERRY_COUNTERS_LINKS + 1, "counters with 4097 rows in table 4"),
        LIE(generation, 0, "it has not answered"), /* never written */
        LIE(generation, 7, "it has not answered"), /* never written to the end */
        {"rows", 0, 0, "domain=4294967295 "},      /* all of them 0xff */
};

/* Answers every client with a page that is a lie, until it is killed. */
static void be_a_liar(int listener, size_t lie)
{
	struct ferry_attach_message message;
	const uint64_t never = 0;
	/* an earlier one has written here, too */
	put(offsetof(struct ferry_counters, generation), &never, sizeof never);
	written.njob_rows = written.ngpu_rows = written.ntenant_rows = written.nshare_rows = 1;
	written.nlink_rows = 1;
	ferry_counters_write(page, &written);
	if (lies[lie].at || !strcmp(lies[lie].what, "magic")) {
		put(lies[lie].at, &lies[lie].value, sizeof lies[lie].value);
	} else {
		static struct ferry_counters full;
		memset(&full, 0xff, sizeof full);
		full.njob_rows = FERRY_COUNTERS_JOBS, full.ngpu_rows = FERRY_COUNTERS_GPUS;
		full.ntenant_rows = FERRY_COUNTERS_TENANTS, full.nshare_rows = FERRY_COUNTERS_SHARES;
		full.nlink_rows = FERRY_COUNTERS_LINKS;
		ferry_counters_write(page, &full);
	}
	while (1) {
		int client = accept(listener, NULL, NULL);
		if (recv(client, &message, sizeof message, MSG_WAITALL) == sizeof message)
			ferry_attach_reply(client, ferrySuccess, "", descriptor);
		recv(client, &message, 1, MSG_DONTWAIT); /* it stays open, as ferry-stat may poll */
	}
}

static int run_stat(const char *option, char *text, size_t bytes)
{
	char command[256];
	snprintf(command, sizeof command, FERRY_STAT " %s 2>&1", option);
	FILE *out = popen(command, "r");
	assert_non_null(out);
	size_t length = fread(text, 1, bytes - 1, out);
	text[length] = '\0';
	while (fread(command, 1, sizeof command, out) > 0)
		;
	return pclose(out);
}

static void whatever_a_router_says_ferry_stat_tells_it_and_ends(void **state)
{
	static const char *const options[] = {"--once", "--json", "--prometheus", "--shares", "--shares --json",
	                                      "--links", "--links --json", "--routers"};
	const size_t noptions = sizeof options / sizeof *options;
	static char text[1 << 20];
	char directory[] = "/tmp/ferry-counters-XXXXXX", path[64], lock[72];
	int listener;
	(void)state;
	assert_non_null(mkdtemp(directory));
	setenv("FERRY_SOCKET_DIR", directory, 1);
	snprintf(path, sizeof path, "%s/router-0.sock", directory);
	snprintf(lock, sizeof lock, "%s.lock", path);
	assert_int_equal(ferry_endpoint_listen(path, false, &listener), ferrySuccess);
	for (size_t lie = 0; lie < sizeof lies / sizeof *lies; lie++) {
		pid_t liar = fork();
		assert_true(liar >= 0);
		if (!liar)
			be_a_liar(listener, lie);
		const char *failed = NULL;
		bool silent = !strcmp(lies[lie].what, "generation"); /* which costs a second each time */
		for (size_t i = silent ? noptions - 1 : 0; i < noptions && !failed; i++)
			if (run_stat(options[i], text, sizeof text))
				failed = options[i];
		kill(liar, SIGKILL);
		waitpid(liar, NULL, 0);
		if (failed)
			fail_msg("ferry-stat %s with another %s: %s", failed, lies[lie].what, text);
		if (!strstr(text, lies[lie].said)) /* of --routers, the last one */
			fail_msg("no \"%s\" in %s", lies[lie].said, text);
	}
	close(listener);
	unlink(path);
	unlink(lock);
	rmdir(directory);
	unsetenv("FERRY_SOCKET_DIR");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_page, drop_page)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_page_has_the_head_and_the_rows_that_were_written_last),
	        TEST(what_is_read_beside_the_writer_is_whole),
	        TEST(memory_that_is_not_sealed_or_not_that_long_is_refused),
	        TEST(whatever_a_router_says_ferry_stat_tells_it_and_ends),
	};
	return cmocka_run_group_tests_name("counters", tests, NULL, NULL);
}
