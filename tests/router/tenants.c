/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a router that several users share, in this process: its file is read whole or refused with the line, a
 * tenant has what the file says and hears how much is left, and a user's jobs are that user's.
 */
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/arena.h"
#include "ipc/endpoint.h"
#include "router/daemon/jobs.h"
#include "router/daemon/tenants.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#define MIB (1ull << 20)

static char file[64];

static void write_file(const char *text)
{
	FILE *out = fopen(file, "w");
	assert_non_null(out);
	fputs(text, out);
	fclose(out);
}

static int make_file(void **state)
{
	(void)state;
	snprintf(file, sizeof file, "/tmp/ferry-tenants-XXXXXX");
	int descriptor = mkstemp(file);
	return descriptor < 0 || close(descriptor);
}

static int remove_file(void **state)
{
	(void)state;
	return unlink(file);
}

#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, make_file, remove_file)

/* ---- the file ---- */

static void the_first_tenant_that_names_a_user_or_a_group_has_it(void **state)
{
	struct ferry_tenants *tenants;
	const gid_t groups[] = {7, 500};
	(void)state;
	write_file("# tenants\n"
	           "[tenant physics]\n"
	           "users = 1000, 1001 root   # two and one\n"
	           "staging=2G\n"
	           "  job_staging = 512M\n"
	           "windows = 1G\n"
	           "weight = 3\n"
	           "jobs = 16\n"
	           "\n"
	           "[tenant guests]\n"
	           "groups = 500\n"
	           "ranks = 8\n"
	           "plans = 100\n"
	           "connections = 20\n"
	           "[tenant rest]\n"
	           "users = *\n");
	assert_int_equal(ferry_tenants_read(file, &tenants), ferrySuccess);
	assert_int_equal(ferry_tenants_count(tenants), 3);
	const struct ferry_tenant *physics = ferry_tenants_at(tenants, 0),
	                          *foreign_ranks = ferry_tenants_at(tenants, 1);
	assert_string_equal(physics->name, "physics");
	assert_int_equal(physics->staging, 2048 * MIB);
	assert_int_equal(physics->job_staging, 512 * MIB);
	assert_int_equal(physics->windows, 1024 * MIB);
	assert_int_equal(physics->weight, 3);
	assert_int_equal(physics->jobs, 16);
	assert_true(physics->ranks == UINT32_MAX && physics->plans == UINT32_MAX);
	assert_true(foreign_ranks->staging == UINT64_MAX && foreign_ranks->weight == 1);
	assert_true(foreign_ranks->ranks == 8 && foreign_ranks->plans == 100 && foreign_ranks->connections == 20);
	assert_ptr_equal(ferry_tenants_find(tenants, 1001, groups, 2), physics);
	assert_ptr_equal(ferry_tenants_find(tenants, 0, NULL, 0), physics);
	assert_ptr_equal(ferry_tenants_find(tenants, 1002, groups, 2), foreign_ranks);
	assert_ptr_equal(ferry_tenants_find(tenants, 1002, groups, 1), ferry_tenants_at(tenants, 2));
	assert_null(ferry_tenants_find(NULL, 0, NULL, 0));
	ferry_tenants_free(tenants);
}

static void what_cannot_be_is_refused_with_file_line_and_value(void **state)
{
	static const struct {
		const char *text, *words[3];
	} bad[] = {
	        {"weight = 1\n", {":1:", "weight = 1", "before the first"}},
	        {"[tenant a]\nweight = 0\n", {":2:", "weight = 0", "from 1 to 64"}},
	        {"[tenant a]\nweight = 65\n", {":2:", "weight = 65", "from 1 to 64"}},
	        {"[tenant a]\n\nstaging = 1\n", {":3:", "staging = 1", "from 8192"}},
	        {"[tenant a]\nstaging = 2X\n", {":2:", "staging = 2X", "64M"}},
	        {"[tenant a]\njobs = -1\n", {":2:", "jobs = -1", "whole number"}},
	        {"[tenant a]\njobs =\n", {":2:", "jobs =", "whole number"}},
	        {"[tenant a]\nwieght = 3\n", {":2:", "wieght", "weight"}},
	        {"[tenant a]\nusers = no-such-user-here\n", {":2:", "no-such-user-here", "user"}},
	        {"[tenant a]\ngroups = no-such-group-here\n", {":2:", "no-such-group-here", "group"}},
	        {"[tenant a]\ngroups = *\n", {":2:", "group", "*"}},
	        {"[tenant a]\nusers = 4294967295\n", {":2:", "4294967295", "user"}},
	        {"[tenant a]\n[tenant a]\n", {":2:", "second tenant", "a"}},
	        {"[tenant a b]\n", {":1:", "[tenant a b]", "NAME"}},
	        {"[tenant 0123456789012345678901234567890123456789]\n", {":1:", "at most 31", "NAME"}},
	        {"[users]\n", {":1:", "[users]", "NAME"}},
	        {"[tenant a]\nyes\n", {":2:", "\"yes\"", "NAME = VALUE"}},
	};
	struct ferry_tenants *tenants = NULL;
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		write_file(bad[i].text);
		assert_int_equal(ferry_tenants_read(file, &tenants), ferryInvalidArgument);
		assert_non_null(strstr(ferry_last_message(), file));
		for (int word = 0; word < 3; word++)
			if (!strstr(ferry_last_message(), bad[i].words[word]))
				fail_msg("\"%s\" does not say \"%s\"", ferry_last_message(), bad[i].words[word]);
	}
	FILE *out = fopen(file, "w");
	assert_true(out && fwrite("[tenant a]\nweight = 3\0 or 4\n", 27, 1, out) == 1 && !fclose(out));
	assert_int_equal(ferry_tenants_read(file, &tenants), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), ":2: a zero byte"));
	assert_int_equal(ferry_tenants_read("/nowhere/at/all", &tenants), ferrySystemError);
	assert_non_null(strstr(ferry_last_message(), "/nowhere/at/all"));
	assert_int_equal(ferry_tenants_read("/tmp", &tenants), ferryInvalidArgument);
	assert_null(tenants);
}

static void any_bytes_in_the_file_are_read_or_refused(void **state)
{
	static const char
	        good[] = "[tenant a]\nusers = 1, 2\nstaging=2G # so much\nweight = 3\n[tenant b]\ngroups = 5\n";
	struct ferry_tenants *tenants;
	uint32_t random = 1, refused = 0;
	(void)state;
	for (int round = 0; round < 3000; round++) {
		char text[sizeof good];
		memcpy(text, good, sizeof good);
		for (int change = 0; change <= round % 3; change++) {
			random = random * 1664525u + 1013904223u;
			char *at = &text[(random >> 8) % (sizeof good - 1)];
			*at = round % 2 ? (char)(random >> 24) : "[]=#, \n9*x"[(random >> 24) % 10];
		}
		FILE *out = fopen(file, "w");
		assert_non_null(out);
		assert_int_equal(fwrite(text, sizeof text - 1, 1, out), 1);
		fclose(out);
		ferryResult_t result = ferry_tenants_read(file, &tenants);
		if (!result)
			ferry_tenants_free(tenants);
		else
			assert_int_equal(result, ferryInvalidArgument);
		refused += result != ferrySuccess;
	}
	assert_in_range(refused, 1000, 2999); /* else it changes too little, or too much */
}

static void a_file_that_others_may_write_is_refused(void **state)
{
	struct ferry_tenants *tenants;
	(void)state;
	assert_int_equal(chmod(file, 0666), 0);
	assert_int_equal(ferry_tenants_read(file, &tenants), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "mode 0666"));
	assert_int_equal(chown(file, (uid_t)-1, getegid() ? getegid() : 5), 0);
	assert_int_equal(chmod(file, 0664), 0);
	assert_int_equal(ferry_tenants_read(file, &tenants), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "mode 0664"));
	assert_int_equal(chmod(file, 0644), 0);
	assert_int_equal(ferry_tenants_read(file, &tenants), ferrySuccess); /* nobody's, which is right, too */
	ferry_tenants_free(tenants);
	if (geteuid() == 0) {
		assert_int_equal(chown(file, 65534, 65534), 0);
		assert_int_equal(ferry_tenants_read(file, &tenants), ferryRefused);
		assert_non_null(strstr(ferry_last_message(), "uid 65534"));
	}
}

/* ---- what a tenant may have ---- */

static uint64_t staging_limit; /* 0: the router's default */

static int start_shared(void **state)
{
	if (make_file(state) || !folder_make(folder, "tenants") || chmod(folder, 0755))
		return 1;
	write_file("");
	setenv("FERRY_DOMAINS", "1", 1);
	snprintf(path, sizeof path, "%s/router-0.sock", folder);
	struct ferry_router_options options = {.layout = &layout,
	                                       .directory = folder,
	                                       .workers = 1,
	                                       .staging_limit = staging_limit,
	                                       .config = file};
	return ferry_layout_load(&layout) || ferry_router_start(&options, &router);
}

static int start_impatient(void **state)
{
	setenv("FERRY_ATTACH_TIMEOUT", "1", 1);
	int failed = start_shared(state);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	return failed;
}

static int start_small(void **state)
{
	staging_limit = 4 * MIB;
	int failed = start_shared(state);
	staging_limit = 0;
	return failed;
}

static int stop_shared(void **state)
{
	return stop_router(state) || remove_file(state);
}

#define SHARED_TEST(name) cmocka_unit_test_setup_teardown(name, start_shared, stop_shared)

static struct ferry_counters counters; /* as they were asked for last */

/* The router's head, or the row of its first tenant, in words; "" where there is none. */
static void ask_router(char text[512])
{
	assert_int_equal(status_line(path, text, 512), ferrySuccess);
}

static void print_tenant(const struct ferry_tenant_counters *row, char text[512])
{
	int length = snprintf(text, 512, "tenant=%s weight=%llu jobs=%llu ranks=%llu plans=%llu staging=%llu ",
	                      row->name, (unsigned long long)row->weight, (unsigned long long)row->jobs,
	                      (unsigned long long)row->ranks, (unsigned long long)row->plans,
	                      (unsigned long long)row->staging);
	const uint64_t limits[] = {row->jobs_limit, row->staging_limit, row->job_staging_limit};
	static const char *const names[] = {"jobs_limit", "staging_limit", "job_staging_limit"};
	for (int i = 0; i < 3; i++)
		if (limits[i] != UINT64_MAX)
			length += snprintf(text + length, 512 - (size_t)length, "%s=%llu ", names[i],
			                   (unsigned long long)limits[i]);
}

static void ask_tenant(char text[512])
{
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	text[0] = '\0';
	if (counters.ntenant_rows)
		print_tenant(&counters.tenant_rows[0], text);
}

/* The connection thread takes what was read when it is woken: until it has. */
static void reload(const char *text, const char *tenant_says)
{
	char line[512] = "";
	write_file(text);
	assert_int_equal(ferry_router_reload(router), ferrySuccess);
	while (!strstr(line, tenant_says))
		ask_tenant(line);
}

/* Of the file's one tenant, this user. */
static void reload_own(const char *limits, const char *tenant_says)
{
	char text[256];
	snprintf(text, sizeof text, "[tenant own]\nusers = %u\n%s\n", geteuid(), limits);
	reload(text, tenant_says);
}

static ferryResult_t attach(int job, uint32_t nranks, uint64_t staging, bool wished, int *connection)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .nranks = nranks,
	                                       .ndomains = 1,
	                                       .flags = wished ? FERRY_ATTACH_WISHED : 0,
	                                       .staging = staging};
	int descriptor;
	memset(message.key, job, sizeof message.key);
	assert_int_equal(ferry_endpoint_connect(path, connection), ferrySuccess);
	ferryResult_t result = ferry_attach_call(*connection, &message, NULL, &descriptor);
	if (result)
		close(*connection);
	else
		close(descriptor);
	return result;
}

static void must_say(const char *word)
{
	if (!strstr(ferry_last_message(), word))
		fail_msg("\"%s\" does not say \"%s\"", ferry_last_message(), word);
}

/* Until the router has seen that connections have gone. */
static void await(const char *tenant_says)
{
	char line[512] = "";
	while (!strstr(line, tenant_says))
		ask_tenant(line);
}

static void a_job_over_its_tenants_limits_hears_what_it_asked_for_and_what_is_left(void **state)
{
	int one, two, third;
	(void)state;
	reload_own("jobs = 2\nranks = 6\nstaging = 6M\njob_staging = 4M", "jobs_limit=2");
	assert_int_equal(attach(1, 2, 5 * MIB, false, &one), ferryRefused);
	must_say("5242880 bytes of staging");
	must_say("a job of tenant own may have 4194304");
	assert_int_equal(attach(1, 4, 4 * MIB, false, &one), ferrySuccess);
	assert_int_equal(attach(2, 2, 3 * MIB, false, &two), ferryRefused);
	must_say("3145728 bytes of staging");
	must_say("tenant own has 2097152 of 6291456 left");
	assert_int_equal(attach(2, 3, MIB, false, &two), ferryRefused);
	must_say("asks for 3 ranks");
	must_say("tenant own has 2 of 6 left");
	assert_int_equal(attach(2, 2, 2 * MIB, false, &two), ferrySuccess);
	assert_int_equal(attach(3, 1, 8192, false, &third), ferryRefused);
	must_say("tenant own has 2 of the 2 that it may have");
	close(two);
	await(" jobs=1 "); /* and what it had is the tenant's again */
	assert_int_equal(attach(3, 2, 2 * MIB, false, &two), ferrySuccess);
	close(two);
	close(one);
}

/* ---- what ranks bring ---- */

/* An arena that two ranks have attached to. */
static struct ferry_arena make_arena(uint32_t domain, uint32_t ndomains, uint64_t staging)
{
	const struct ferry_arena_shape shape = {.domain = domain, .ndomains = ndomains, .nranks = 2,
	                                        .staging = staging, .node = -1};
	struct ferry_arena arena;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	atomic_store(&arena.header->attached, 2);
	return arena;
}

/* As a rank whose router has ended, or that has attached to the routers of two domains. */
static ferryResult_t bring_all(int connection, enum ferry_attach_kind kind, int job, uint32_t ndomains,
                               const struct ferry_arena *arenas)
{
	struct ferry_attach_message message = {
	        .kind = kind, .nranks = 2, .ndomains = ndomains, .descriptors = ndomains, .hash = 1};
	const int descriptors[] = {arenas[0].descriptor, arenas[ndomains - 1].descriptor};
	struct ferry_attach_reply reply;
	int process = -1;
	memset(message.key, job, sizeof message.key);
	ferryResult_t result = ferry_attach_exchange(connection, &message, NULL, descriptors, &reply, &process,
	                                             kind == FERRY_ATTACH_ADOPT, NULL);
	if (process >= 0)
		close(process);
	return result;
}

static ferryResult_t bring(int connection, const struct ferry_arena *arena)
{
	return bring_all(connection, FERRY_ATTACH_ADOPT, 77, 1, arena);
}

static void what_is_handed_over_counts_for_its_tenant(void **state)
{
	struct ferry_arena arena = make_arena(0, 1, MIB);
	int one, two;
	(void)state;
	reload_own("staging = 3M\njobs = 2", "jobs=0");
	assert_int_equal(ferry_endpoint_connect(path, &one), ferrySuccess);
	assert_int_equal(bring(one, &arena), ferrySuccess);
	assert_int_equal(attach(1, 2, 3 * MIB, false, &two), ferryRefused);
	must_say("tenant own has 2097152 of 3145728 left");
	assert_int_equal(attach(1, 2, 2 * MIB, false, &two), ferrySuccess); /* now it has nothing left */
	close(one);
	await(" jobs=1 ");
	close(two);
	await(" jobs=0 ");
	reload_own("staging = 512K", "staging_limit=524288");
	assert_int_equal(ferry_endpoint_connect(path, &one), ferrySuccess);
	assert_int_equal(bring(one, &arena), ferryRefused);
	must_say("tenant own has 524288 of 524288 left");
	close(one);
	ferry_arena_unmap(&arena);
}

static void what_is_handed_over_counts_as_a_job_and_its_ranks(void **state)
{
	struct ferry_arena arena = make_arena(0, 1, MIB), other = make_arena(0, 1, MIB);
	int one, two, third;
	(void)state;
	reload_own("jobs = 1\nranks = 3", "jobs_limit=1");
	assert_int_equal(ferry_endpoint_connect(path, &one), ferrySuccess);
	assert_int_equal(ferry_endpoint_connect(path, &two), ferrySuccess);
	assert_int_equal(bring(one, &arena), ferrySuccess);
	assert_int_equal(bring_all(two, FERRY_ATTACH_ADOPT, 78, 1, &other), ferryRefused);
	must_say("tenant own has 1 of the 1 that it may have");
	assert_int_equal(attach(1, 1, 8192, false, &third), ferryRefused);
	must_say("tenant own has 1 of the 1 that it may have");
	reload_own("jobs = 2\nranks = 3", "jobs_limit=2");
	assert_int_equal(bring_all(two, FERRY_ATTACH_ADOPT, 78, 1, &other), ferryRefused);
	must_say("asks for 2 ranks");
	must_say("tenant own has 1 of 3 left");
	await(" jobs=1 ranks=2 ");
	close(one);
	close(two);
	await(" jobs=0 ranks=0 ");
	ferry_arena_unmap(&arena);
	ferry_arena_unmap(&other);
}

/* This router registers them, too, and is told by ranks alone how large they are. */
static void arenas_of_other_domains_count_there_whenever_they_are_brought_in(void **state)
{
	struct ferry_arena large[] = {make_arena(0, 2, MIB), make_arena(1, 2, 4 * MIB)},
	                   fit[] = {make_arena(0, 2, MIB), make_arena(1, 2, 2 * MIB)};
	struct ferry_attach_message rank = {.kind = FERRY_ATTACH_RANK, .nranks = 2, .ndomains = 2, .staging = MIB};
	int ranks[2], other, arena;
	(void)state;
	reload_own("staging = 3M", "jobs=0");
	assert_int_equal(ferry_endpoint_connect(path, &other), ferrySuccess);
	assert_int_equal(bring_all(other, FERRY_ATTACH_ADOPT, 1, 2, large), ferryRefused);
	must_say("4194304 bytes of staging in domain 1, tenant own has 3145728 of 3145728 left");
	for (int again = 0; again < 2; again++) {
		for (rank.rank = 0; rank.rank < 2; rank.rank++) {
			assert_int_equal(ferry_endpoint_connect(path, &ranks[rank.rank]), ferrySuccess);
			assert_int_equal(ferry_attach_call(ranks[rank.rank], &rank, NULL, &arena), ferrySuccess);
			close(arena);
		}
		ferryResult_t result = bring_all(ranks[0], FERRY_ATTACH_READY, 0, 2, again ? fit : large);
		assert_int_equal(result, again ? ferrySuccess : ferryRefused);
		if (!again) {
			must_say("4194304 bytes of staging in domain 1, tenant own has 3145728 of 3145728 left");
			close(ranks[0]), close(ranks[1]);
			await(" jobs=0 ");
		}
	}
	assert_int_equal(bring_all(ranks[1], FERRY_ATTACH_READY, 0, 2, fit), ferryInvalidUsage);
	assert_int_equal(bring_all(other, FERRY_ATTACH_ADOPT, 1, 2, fit), ferryRefused);
	must_say("2097152 bytes of staging in domain 1, tenant own has 1048576 of 3145728 left");
	close(ranks[0]), close(ranks[1]);
	await(" jobs=0 ");
	assert_int_equal(bring_all(other, FERRY_ATTACH_ADOPT, 1, 2, fit), ferrySuccess);
	close(other);
	await(" jobs=0 ");
	for (int i = 0; i < 2; i++) {
		ferry_arena_unmap(&large[i]);
		ferry_arena_unmap(&fit[i]);
	}
}

/* The router is limited where the tenant is not; a new job takes nothing of that from a job that came before it. */
static void what_is_brought_in_is_held_to_the_routers_limit_by_itself(void **state)
{
	struct ferry_arena arena = make_arena(0, 1, 3 * MIB), other = make_arena(0, 1, 3 * MIB);
	int one, two, fresh;
	(void)state;
	reload_own("", "jobs=0");
	assert_int_equal(attach(1, 2, 4 * MIB, false, &fresh), ferrySuccess);
	assert_int_equal(ferry_endpoint_connect(path, &one), ferrySuccess);
	assert_int_equal(ferry_endpoint_connect(path, &two), ferrySuccess);
	assert_int_equal(bring(one, &arena), ferrySuccess);
	assert_int_equal(bring_all(two, FERRY_ATTACH_ADOPT, 78, 1, &other), ferryRefused);
	must_say("brings 3145728 bytes of staging of domain 0");
	must_say("takes 1048576 more of 4194304, which is its --staging-limit");
	close(one);
	await(" jobs=1 ");
	assert_int_equal(bring_all(two, FERRY_ATTACH_ADOPT, 78, 1, &other), ferrySuccess);
	close(two);
	close(fresh);
	await(" jobs=0 ");
	assert_int_equal(attach(1, 2, 4 * MIB, false, &fresh), ferrySuccess); /* all of it is there again */
	close(fresh);
	ferry_arena_unmap(&arena);
	ferry_arena_unmap(&other);
}

/* ---- the rest of what it may have ---- */

static void a_job_that_does_not_insist_takes_a_part_of_what_its_tenant_has_left(void **state)
{
	int one, two;
	(void)state;
	reload_own("staging = 8M\njob_staging = 6M", "job_staging_limit");
	assert_int_equal(attach(1, 2, 64 * MIB, true, &one), ferrySuccess);
	await(" staging=6291456 ");
	assert_int_equal(attach(2, 2, 0, true, &two), ferrySuccess);
	await(" staging=7340032 ");
	assert_int_equal(attach(3, 2, 2 * MIB, false, &two), ferryRefused);
	close(two);
	close(one);
}

static void connections_of_a_tenant_are_counted_and_closed_ones_are_not(void **state)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_STATUS};
	int connections[4];
	(void)state;
	reload_own("connections = 3", "tenant=own");
	for (int i = 0; i < 4; i++) {
		assert_int_equal(ferry_endpoint_connect(path, &connections[i]), ferrySuccess);
		ferryResult_t result = ferry_attach_call(connections[i], &message, NULL, NULL);
		assert_int_equal(result, i < 3 ? ferrySuccess : ferryRefused);
	}
	must_say("tenant own has 3 of the 3 that it may have");
	close(connections[3]);
	close(connections[0]);
	ferryResult_t result = ferryRefused;
	while (result == ferryRefused) { /* until it has seen that */
		assert_int_equal(ferry_endpoint_connect(path, &connections[0]), ferrySuccess);
		result = ferry_attach_call(connections[0], &message, NULL, NULL);
		close(connections[0]);
	}
	assert_int_equal(result, ferrySuccess);
	close(connections[1]);
	close(connections[2]);
}

static void a_tenants_client_that_stops_in_a_message_loses_its_place(void **state)
{
	struct ferry_attach_message message = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, .kind = FERRY_ATTACH_STATUS};
	struct ferry_attach_reply reply;
	int slow, idle;
	(void)state;
	reload_own("connections = 20", "tenant=own");
	assert_int_equal(ferry_endpoint_connect(path, &idle), ferrySuccess);
	assert_int_equal(ferry_attach_call(idle, &message, NULL, NULL), ferrySuccess);
	assert_int_equal(ferry_endpoint_connect(path, &slow), ferrySuccess);
	assert_int_equal(send(slow, &message, 40, MSG_NOSIGNAL), 40);
	assert_int_equal(recv(slow, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
	assert_int_equal(reply.result, ferryRefused);
	assert_non_null(strstr(reply.message, "40 bytes of a message have come in 1 s, and not the rest"));
	assert_int_equal(recv(slow, &reply, 1, 0), 0);
	close(slow);
	/* a client that is not in the middle of a message may be silent as long as it likes */
	assert_int_equal(ferry_attach_call(idle, &message, NULL, NULL), ferrySuccess);
	close(idle);
}

/* ---- reading it again ---- */

static void a_file_that_cannot_be_leaves_a_running_router_as_it_is(void **state)
{
	char line[512];
	int one, two;
	(void)state;
	reload_own("jobs = 1\nweight = 2", "weight=2");
	assert_int_equal(attach(1, 2, MIB, false, &one), ferrySuccess);
	write_file("[tenant own]\nusers = *\njobs = many\n");
	assert_int_equal(ferry_router_reload(router), ferryInvalidArgument);
	must_say(":3: jobs = many");
	ask_router(line);
	assert_non_null(strstr(line, " tenants=1 config=bad"));
	ask_tenant(line);
	assert_non_null(strstr(line, "tenant=own weight=2 jobs=1 ranks=2 "));
	assert_int_equal(attach(2, 2, MIB, false, &two), ferryRefused);
	reload_own("jobs = 2\nweight = 5", "weight=5 jobs=1 ranks=2 "); /* the job that there is stays its own */
	ask_router(line);
	assert_non_null(strstr(line, " tenants=1 config=read"));
	assert_int_equal(attach(2, 2, MIB, false, &two), ferrySuccess);
	close(one);
	close(two);
}

static void a_job_whose_tenant_has_gone_goes_on_and_counts_nowhere(void **state)
{
	int one, two;
	(void)state;
	reload_own("jobs = 1", "jobs_limit=1");
	assert_int_equal(attach(1, 2, MIB, false, &one), ferrySuccess);
	reload("[tenant others]\nusers = 4294967294\n", "tenant=others weight=1 jobs=0 ");
	assert_int_equal(counters.job_rows[0].nranks, 2);
	assert_string_equal(counters.job_rows[0].tenant, "");
	assert_int_equal(attach(2, 2, MIB, false, &two), ferrySuccess); /* this user is the router's own */
	close(one);
	close(two);
}

/* What it may have is what it was allowed when its tenant was there. */
static void a_job_whose_tenant_has_gone_may_have_as_many_plans_as_before(void **state)
{
	static struct ferry_job job;
	struct ferry_jobs jobs = {.config = ""};
	struct ferry_tenant few = {.plans = 3, .weight = 1}, more = {.plans = 5, .weight = 1};
	(void)state;
	ferry_jobs_allow_plans(&jobs, &job);
	assert_int_equal(job.plans.most, FERRY_MAX_PLANS); /* it had none */
	ferry_jobs_assign(&job, &few);
	ferry_jobs_assign(&job, NULL);
	ferry_jobs_allow_plans(&jobs, &job);
	assert_int_equal(job.plans.most, 3);
	ferry_jobs_assign(&job, &more);
	ferry_jobs_allow_plans(&jobs, &job);
	assert_int_equal(job.plans.most, 5);
}

/* ---- other users ---- */

/* As that user, past the client's own check of the router's user: the router's answer, and what comes with it. */
static struct ferry_attach_reply ask_as(uid_t user, struct ferry_attach_message message, int *kept, int *descriptor)
{
	struct ferry_attach_reply reply = {.result = ferryInternalError};
	struct ferry_attach_received received = {.bytes = -1};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path));
	message.magic = FERRY_ATTACH_MAGIC;
	message.abi = FERRY_ATTACH_ABI;
	/* the kernel notes which thread connects; setresuid(3) would change the router's, too */
	assert_int_equal(syscall(SYS_setresuid, -1, user, -1), 0);
	int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int failed = connect(connection, (struct sockaddr *)&address,
	                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
	assert_int_equal(syscall(SYS_setresuid, -1, 0, -1), 0);
	assert_int_equal(failed, 0);
	send(connection, &message, sizeof message, MSG_NOSIGNAL); /* a refused client has its answer already */
	while (received.bytes < 0) /* a reply comes in one piece */
		ferry_attach_receive(connection, &reply, sizeof reply, &received);
	assert_int_equal(received.bytes, sizeof reply);
	if (descriptor)
		*descriptor = received.ndescriptors ? received.descriptors[0] : -1;
	else if (received.ndescriptors)
		close(received.descriptors[0]);
	if (kept)
		*kept = connection;
	else
		close(connection);
	return reply;
}

static void be_root(void)
{
	if (geteuid() == 0)
		return;
	print_message("only root can pose as another user: skipped\n");
	skip();
}

static void tenants_are_served_and_others_refused(void **state)
{
	struct ferry_attach_message status = {.kind = FERRY_ATTACH_STATUS};
	(void)state;
	be_root();
	reload("[tenant a]\nusers = 65533\n", "tenant=a");
	assert_int_equal(ask_as(65533, status, NULL, NULL).result, ferrySuccess);
	struct ferry_attach_reply refusal = ask_as(65532, status, NULL, NULL);
	assert_int_equal(refusal.result, ferryRefused);
	assert_non_null(strstr(refusal.message, "65532"));
	assert_non_null(strstr(refusal.message, file));
}

/* What the page of that user says, in `counters`; the descriptor is the caller's. */
static int page_of(uid_t user)
{
	struct ferry_attach_message status = {.kind = FERRY_ATTACH_STATUS};
	const struct ferry_counters_page *page;
	int descriptor;
	assert_int_equal(ask_as(user, status, NULL, &descriptor).result, ferrySuccess);
	assert_int_equal(ferry_counters_map(descriptor, &page), ferrySuccess);
	assert_int_equal(ferry_counters_read(page, &counters), ferrySuccess);
	ferry_counters_unmap(page);
	return descriptor;
}

/* Its key may be guessed: then it is another job. Of that, and of its tenant, nobody else hears. */
static void a_key_of_another_users_opens_nothing(void **state)
{
	struct ferry_attach_message rank = {.kind = FERRY_ATTACH_RANK, .nranks = 2, .ndomains = 1, .staging = MIB};
	char line[512];
	int own, first, second;
	(void)state;
	be_root();
	reload("[tenant a]\nusers = 65533\n[tenant b]\nusers = 65532\n", "tenant=a");
	assert_int_equal(attach(0, 2, MIB, false, &own), ferrySuccess);
	assert_int_equal(ask_as(65533, rank, &first, NULL).result, ferrySuccess);
	assert_int_equal(ask_as(65532, rank, &second, NULL).result, ferrySuccess); /* rank 0, all three of them */
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	assert_true(counters.jobs == 3 && counters.njob_rows == 3 && counters.ntenant_rows == 2);
	for (uid_t user = 65532; user <= 65533; user++) {
		const char *tenant = user == 65532 ? "b" : "a";
		close(page_of(user));
		assert_true(counters.jobs == 3 && counters.njob_rows == 1 && counters.ntenant_rows == 1);
		assert_string_equal(counters.job_rows[0].tenant, tenant);
		print_tenant(&counters.tenant_rows[0], line);
		assert_non_null(strstr(line, " weight=1 jobs=1 "));
		assert_string_equal(counters.tenant_rows[0].name, tenant);
	}
	close(own);
	close(first);
	close(second);
}

/* Nor change its size; and the router writes it all the same. */
static void a_page_of_counters_is_written_by_the_router_alone(void **state)
{
	char file_of[40];
	(void)state;
	be_root();
	reload("[tenant a]\nusers = 65533\n", "tenant=a");
	int descriptor = page_of(65533);
	const size_t bytes = sizeof(struct ferry_counters_page);
	snprintf(file_of, sizeof file_of, "/proc/self/fd/%d", descriptor);
	assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), MAP_FAILED);
	assert_int_equal(write(descriptor, "x", 1), -1);
	assert_int_equal(ftruncate(descriptor, 0), -1);
	void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
	assert_ptr_not_equal(mapped, MAP_FAILED);
	assert_int_equal(mprotect(mapped, bytes, PROT_READ | PROT_WRITE), -1);
	munmap(mapped, bytes);
	assert_int_equal(syscall(SYS_setresuid, -1, 65533, -1), 0);
	int again = open(file_of, O_RDWR);
	assert_int_equal(syscall(SYS_setresuid, -1, 0, -1), 0);
	assert_int_equal(again, -1);
	again = open(file_of, O_RDWR); /* as root: the seals are left */
	if (again >= 0) {
		assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
		assert_int_equal(write(again, "x", 1), -1);
		assert_int_equal(ftruncate(again, 0), -1);
		close(again);
	}
	close(descriptor);
	close(page_of(65533));
}

static void who_is_no_tenant_any_more_makes_no_job(void **state)
{
	struct ferry_attach_message status = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, .kind = FERRY_ATTACH_STATUS};
	struct ferry_attach_message rank = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, .kind = FERRY_ATTACH_RANK,
	                                    .nranks = 2,        .ndomains = 1,    .staging = MIB};
	struct ferry_attach_reply reply;
	int connection;
	(void)state;
	be_root();
	reload("[tenant a]\nusers = 65533\n", "tenant=a");
	assert_int_equal(ask_as(65533, status, &connection, NULL).result, ferrySuccess);
	reload("[tenant b]\nusers = 65532\n", "tenant=b");
	assert_int_equal(send(connection, &rank, sizeof rank, MSG_NOSIGNAL), sizeof rank);
	assert_int_equal(recv(connection, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
	assert_int_equal(reply.result, ferryRefused);
	assert_non_null(strstr(reply.message, "uid 65533 is of no tenant"));
	close(connection);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        FILE_TEST(the_first_tenant_that_names_a_user_or_a_group_has_it),
	        FILE_TEST(what_cannot_be_is_refused_with_file_line_and_value),
	        FILE_TEST(any_bytes_in_the_file_are_read_or_refused),
	        FILE_TEST(a_file_that_others_may_write_is_refused),
	        SHARED_TEST(a_job_over_its_tenants_limits_hears_what_it_asked_for_and_what_is_left),
	        SHARED_TEST(what_is_handed_over_counts_for_its_tenant),
	        SHARED_TEST(what_is_handed_over_counts_as_a_job_and_its_ranks),
	        SHARED_TEST(arenas_of_other_domains_count_there_whenever_they_are_brought_in),
	        cmocka_unit_test_setup_teardown(what_is_brought_in_is_held_to_the_routers_limit_by_itself,
	                                        start_small, stop_shared),
	        SHARED_TEST(a_job_that_does_not_insist_takes_a_part_of_what_its_tenant_has_left),
	        SHARED_TEST(connections_of_a_tenant_are_counted_and_closed_ones_are_not),
	        cmocka_unit_test_setup_teardown(a_tenants_client_that_stops_in_a_message_loses_its_place,
	                                        start_impatient, stop_shared),
	        SHARED_TEST(a_file_that_cannot_be_leaves_a_running_router_as_it_is),
	        SHARED_TEST(a_job_whose_tenant_has_gone_goes_on_and_counts_nowhere),
	        cmocka_unit_test(a_job_whose_tenant_has_gone_may_have_as_many_plans_as_before),
	        SHARED_TEST(tenants_are_served_and_others_refused),
	        SHARED_TEST(a_key_of_another_users_opens_nothing),
	        SHARED_TEST(a_page_of_counters_is_written_by_the_router_alone),
	        SHARED_TEST(who_is_no_tenant_any_more_makes_no_job),
	};
	ferry_log_set_level(FERRY_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
