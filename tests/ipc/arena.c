/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the arena: nothing stays in the name space, both mappings see the same, corrupt headers and limits are
 * refused.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/arena.h"
#include "ipc/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct ferry_arena_shape small = {.domain = 0, .ndomains = 2, .nranks = 3, .staging = 1 << 20, .node = -1};

static int names_in_shm(void)
{
	int count = 0;
	DIR *directory = opendir("/dev/shm");
	for (struct dirent *entry; directory && (entry = readdir(directory));)
		count += !strncmp(entry->d_name, "ferry-", 6);
	if (directory)
		closedir(directory);
	return count;
}

static void an_arena_leaves_no_name_behind(void **state)
{
	(void)state;
	struct ferry_arena arena;
	int before = names_in_shm();
	assert_int_equal(ferry_arena_create(&small, &arena), ferrySuccess);
	assert_int_equal(names_in_shm(), before);
	ferry_arena_unmap(&arena);
	assert_int_equal(arena.descriptor, -1);
}

static void two_mappings_share_every_region_and_no_region_overlaps(void **state)
{
	(void)state;
	struct ferry_arena first, second;
	assert_int_equal(ferry_arena_create(&small, &first), ferrySuccess);
	assert_int_equal(ferry_arena_map(dup(first.descriptor), &second), ferrySuccess);
	assert_int_equal(first.bytes, second.bytes);
	memset(first.rank_lines, 1, sizeof *first.rank_lines * first.nranks);
	memset(first.export_cells, 21, sizeof *first.export_cells * FERRY_MOST_EXPORTS * first.nranks);
	memset(first.pair_lines, 2, sizeof *first.pair_lines * 9);
	struct ferry_agreement agreement;
	ferry_arena_agreement_pair(&first, 2, 2, 1, &agreement);
	char *agreements_end = (char *)(agreement.cells + agreement.ncells);
	memset(first.agreements, 22, (size_t)(agreements_end - first.agreements));
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		memset(first.counters[parity], 3 + (int)parity, sizeof(struct ferry_counter) * first.ncounters);
		memset(first.staging[parity], 10 + (int)parity, first.staging_bytes);
	}
	memset(first.pair_windows, 20, 9 * FERRY_PAIR_SLOTS * (size_t)first.pair_slot_bytes);
	assert_int_equal(*(char *)&second.rank_lines[2], 1);
	assert_int_equal(*(char *)&second.export_cells[3 * FERRY_MOST_EXPORTS - 1], 21);
	assert_int_equal(*(char *)&second.export_cells[0], 21);
	assert_int_equal(*(char *)&second.pair_lines[8], 2);
	assert_int_equal(second.agreements[0], 22);
	assert_int_equal(second.agreements[agreements_end - first.agreements - 1], 22);
	assert_int_equal(*(char *)&second.counters[0][second.ncounters - 1], 3);
	assert_int_equal(*(char *)&second.counters[1][0], 4);
	assert_int_equal(second.staging[0][second.staging_bytes - 1], 10);
	assert_int_equal(second.staging[1][0], 11);
	assert_int_equal(ferry_pair_window(&second, 2, 2)[FERRY_PAIR_SLOTS * (size_t)second.pair_slot_bytes - 1], 20);
	assert_int_equal(second.header->magic, FERRY_ARENA_MAGIC);
	ferry_arena_unmap(&second);
	ferry_arena_unmap(&first);
}

/* Blocks of 512 bytes, the unit in which the kernel tells what is there. */
static long long blocks_of(const struct ferry_arena *arena)
{
	struct stat status;
	assert_int_equal(fstat(arena->descriptor, &status), 0);
	return status.st_blocks;
}

static void counters_have_memory_once_a_plan_needs_them(void **state)
{
	(void)state;
	struct ferry_arena first, second;
	struct ferry_arena_shape shape = small;
	shape.kind = FERRY_SHARED_POSIX;
	assert_int_equal(ferry_arena_create(&shape, &first), ferrySuccess);
	assert_int_equal(ferry_arena_allocate(&first, NULL), ferrySuccess);
	assert_int_equal(ferry_arena_map(dup(first.descriptor), &second), ferrySuccess);
	long long copied = (char *)first.counters[0] - (char *)first.header;
	long long before = blocks_of(&first), most = FERRY_MOST_COUNTERS * (long long)sizeof(struct ferry_counter);
	assert_in_range(before * 512, copied, copied + most / 16);
	assert_int_equal(ferry_arena_back_counters(&second, first.ncounters), ferrySuccess);
	assert_int_equal(blocks_of(&first), before);
	first.counters[1][first.ncounters - 1].value = 7;
	assert_int_equal(ferry_arena_back_counters(&second, FERRY_MOST_COUNTERS), ferrySuccess);
	assert_in_range(blocks_of(&first) * 512, copied + FERRY_PARITIES * most, first.bytes);
	assert_int_equal(first.counters[1][first.ncounters - 1].value, 7); /* what was there is as it was */
	second.counters[0][FERRY_MOST_COUNTERS - 1].value = 8;
	second.counters[1][FERRY_MOST_COUNTERS - 1].value = 9;
	assert_int_equal(first.counters[0][FERRY_MOST_COUNTERS - 1].value, 8);
	assert_int_equal(first.counters[1][FERRY_MOST_COUNTERS - 1].value, 9);
	assert_int_equal(first.counters[1][0].value, 0);
	assert_int_equal(ferry_arena_back_counters(&first, FERRY_MOST_COUNTERS + 1), ferryProgramError);
	ferry_arena_unmap(&second);
	ferry_arena_unmap(&first);
}

/*
 * Every 32-bit word of the header's constants, set to odd values, and to its neighbours: the mapping is refused or
 * harmless, never out of bounds.
 */
static void a_corrupt_header_is_refused_with_its_values(void **state)
{
	(void)state;
	static const uint32_t values[] = {0, 1, 0x7fffffff, 0xffffffff, 4096};
	size_t constants = offsetof(struct ferry_arena_header, attached) / 4;
	unsigned refused = 0;
	for (size_t word = 0; word < constants; word++)
		for (size_t i = 0; i < sizeof values / sizeof *values + 2; i++) {
			struct ferry_arena arena, mapped;
			assert_int_equal(ferry_arena_create(&small, &arena), ferrySuccess);
			uint32_t *at = (uint32_t *)arena.header + word, before = *at;
			*at = i < sizeof values / sizeof *values ? values[i] : before + (i % 2 ? 1 : -1u);
			if (ferry_arena_map(dup(arena.descriptor), &mapped)) {
				refused++;
				assert_true(strlen(ferry_last_message()) > 10);
			} else {
				char *end = (char *)mapped.header + mapped.bytes;
				assert_true(mapped.pair_windows + (uint64_t)mapped.nranks * mapped.nranks *
				                                          FERRY_PAIR_SLOTS * mapped.pair_slot_bytes <=
				            end);
				assert_true(mapped.staging[1] + mapped.staging_bytes <= mapped.pair_windows);
				assert_int_equal(mapped.pair_slot_bytes % 64, 0);
				assert_true((char *)mapped.counters[0] >= mapped.pair_windows &&
				            (char *)(mapped.counters[1] + FERRY_MOST_COUNTERS) <= end);
				ferry_arena_unmap(&mapped);
			}
			*at = before;
			ferry_arena_unmap(&arena);
		}
	assert_true(refused > 4 * constants / 2);
}

/* A router counts an arena that a rank hands over by its staging: so that is to bound what is registered of it. */
static void windows_longer_than_the_staging_says_are_refused(void **state)
{
	(void)state;
	struct ferry_arena arena, mapped;
	struct ferry_arena_header header;
	int longer = memfd_create("longer", MFD_CLOEXEC);
	assert_int_equal(ferry_arena_create(&small, &arena), ferrySuccess);
	memcpy(&header, arena.header, sizeof header);
	uint64_t counters = header.bytes - header.counters_at;
	header.pair_slot_bytes = 3 << 20;
	header.counters_at = header.pair_windows_at + 9ull * FERRY_PAIR_SLOTS * header.pair_slot_bytes;
	header.bytes = header.counters_at + counters;
	assert_int_equal(ftruncate(longer, (off_t)header.bytes), 0);
	assert_int_equal(pwrite(longer, &header, sizeof header, 0), sizeof header);
	assert_int_equal(ferry_arena_map(longer, &mapped), ferryInternalError);
	assert_non_null(strstr(ferry_last_message(), "inconsistent"));
	ferry_arena_unmap(&arena);
}

/* It would count for nobody, however many there are, and has windows for messages all the same. */
static void an_arena_without_staging_is_refused(void **state)
{
	(void)state;
	struct ferry_arena arena, mapped;
	struct ferry_arena_shape shape = small;
	struct ferry_arena_header header;
	int without = memfd_create("without", MFD_CLOEXEC);
	shape.staging = FERRY_STAGING_LEAST;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	memcpy(&header, arena.header, sizeof header);
	header.staging = 0;
	header.pair_windows_at -= FERRY_STAGING_LEAST;
	header.counters_at -= FERRY_STAGING_LEAST;
	header.bytes -= FERRY_STAGING_LEAST;
	assert_int_equal(ftruncate(without, (off_t)header.bytes), 0);
	assert_int_equal(pwrite(without, &header, sizeof header, 0), sizeof header);
	assert_int_equal(ferry_arena_map(without, &mapped), ferryInternalError);
	assert_non_null(strstr(ferry_last_message(), "inconsistent"));
	ferry_arena_unmap(&arena);
}

static void another_abi_version_is_refused_by_number(void **state)
{
	(void)state;
	struct ferry_arena arena, mapped;
	assert_int_equal(ferry_arena_create(&small, &arena), ferrySuccess);
	arena.header->abi = 99;
	assert_int_equal(ferry_arena_map(dup(arena.descriptor), &mapped), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "99"));
	ferry_arena_unmap(&arena);
}

static void a_short_file_is_refused(void **state)
{
	(void)state;
	struct ferry_arena mapped;
	int descriptor = memfd_create("short", MFD_CLOEXEC);
	assert_int_equal(ftruncate(descriptor, 100), 0);
	assert_int_equal(ferry_arena_map(descriptor, &mapped), ferryInternalError);
	assert_non_null(strstr(ferry_last_message(), "100"));
}

static void impossible_shapes_are_refused(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_arena_shape shape = small;
	shape.nranks = 65;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "65"));
	shape = small;
	shape.domain = 2;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferryInvalidArgument);
	shape = small;
	shape.staging = 100;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "100"));
}

static void no_room_in_shared_memory_is_an_error_with_the_size(void **state)
{
	(void)state;
	/*
	 * A file size limit stands for a full /dev/shm: both refuse the allocation. In a child, since limits only go
	 * down.
	 */
	int status;
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		struct ferry_arena arena;
		struct rlimit limit = {1 << 20, 1 << 20};
		struct ferry_arena_shape shape = small;
		shape.staging = 64 << 20;
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &limit);
		_exit(ferry_arena_create(&shape, &arena) == ferrySystemError && strstr(ferry_last_message(), "arena of")
		              ? 0
		              : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* By any process that has a descriptor, as every rank does: then a router that maps it gets no SIGBUS. */
static void nobody_makes_an_arena_shorter_or_longer(void **state)
{
	(void)state;
	struct ferry_arena arena, mapped;
	assert_int_equal(ferry_arena_create(&small, &arena), ferrySuccess);
	assert_int_equal(ferry_arena_map(dup(arena.descriptor), &mapped), ferrySuccess);
	assert_true(arena.sealed && mapped.sealed);
	assert_int_equal(ftruncate(mapped.descriptor, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(mapped.descriptor, (off_t)arena.bytes + 4096), -1);
	assert_int_equal(fcntl(mapped.descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1);
	ferry_arena_unmap(&mapped);
	ferry_arena_unmap(&arena);
}

static void windows_that_nobody_touches_cost_nothing(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_arena_shape shape = small;
	shape.staging = 1ull << 30;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	if (ferry_shared_may_lack(arena.descriptor)) {
		ferry_arena_unmap(&arena);
		skip(); /* the kernel counts what it promises */
	}
	assert_int_equal(ferry_arena_allocate(&arena, NULL), ferrySuccess);
	assert_in_range(ferry_shared_held(arena.descriptor), 1, 64 << 10);
	memset(arena.staging[0], 1, 1 << 20);
	assert_in_range(ferry_shared_held(arena.descriptor), 1 << 20, 4 << 20); /* a large page perhaps */
	ferry_arena_unmap(&arena);
}

static void posix_shared_memory_is_there_before_it_is_used(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_arena_shape shape = small;
	_Atomic uint32_t given_up = 1;
	shape.kind = FERRY_SHARED_POSIX;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	uint64_t control = (uint64_t)(arena.staging[0] - (char *)arena.header), windows;
	ferry_arena_windows(&arena, &windows);
	control += FERRY_PARITIES * arena.ncounters * sizeof(struct ferry_counter);
	assert_false(arena.sealed);
	assert_in_range(ferry_shared_held(arena.descriptor), control, control + windows - 1);
	assert_int_equal(ferry_arena_allocate(&arena, &given_up), ferrySystemError);
	assert_in_range(ferry_shared_held(arena.descriptor), control, control + windows - 1);
	assert_int_equal(ferry_arena_allocate(&arena, NULL), ferrySuccess);
	assert_in_range(ferry_shared_held(arena.descriptor), control + windows, control + windows + (2 << 20));
	ferry_arena_unmap(&arena);
}

/* As an old kernel would, or a container's filter of system calls. */
static bool forbid_memfd(void)
{
	struct sock_filter rules[] = {
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Routers know it: else those of several domains, to which ranks bring it, would not take it for what they make. */
static void without_memfd_there_is_posix_shared_memory(void **state)
{
	(void)state;
	int status;
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		struct ferry_arena arena;
		struct ferry_arena_shape shape = small;
		if (!forbid_memfd())
			_exit(2);
		_exit(ferry_shared_kind_read(&shape.kind) || shape.kind != FERRY_SHARED_POSIX ||
		      ferry_arena_create(&shape, &arena) || arena.sealed ||
		      ferry_arena_allocate(&arena, NULL) || names_in_shm());
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
		skip();
	assert_int_equal(status, 0);
}

static void settings_of_shared_memory_are_read(void **state)
{
	(void)state;
	enum ferry_shared_kind kind;
	setenv("FERRY_SHM", "posix", 1);
	assert_int_equal(ferry_shared_kind_read(&kind), ferrySuccess);
	assert_int_equal(kind, FERRY_SHARED_POSIX);
	setenv("FERRY_SHM", "sysv", 1);
	assert_int_equal(ferry_shared_kind_read(&kind), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "sysv"));
	unsetenv("FERRY_SHM");
	assert_int_equal(ferry_shared_kind_read(&kind), ferrySuccess);
	assert_int_equal(kind, FERRY_SHARED_MEMFD);
}

static void a_counter_of_another_call_reads_as_nothing(void **state)
{
	(void)state;
	assert_int_equal(ferry_counter_slices(ferry_counter_value(7, 12), 7), 12);
	assert_int_equal(ferry_counter_slices(ferry_counter_value(7, 12), 9), 0);
	assert_int_equal(ferry_counter_slices(ferry_counter_value((1ull << 32) + 5, 3), (1ull << 32) + 5), 3);
	assert_int_equal(ferry_counter_slices(0, 1), 0);
}

/* Whatever a rank says of its end: control bytes and those from 0x80 on do not reach a log or a terminal. */
static void a_ranks_words_are_printable(void **state)
{
	static struct ferry_failure failure;
	char message[FERRY_MESSAGE_BYTES];
	uint32_t code;
	(void)state;
	for (int byte = 1; byte < 256; byte++)
		failure.message[byte - 1] = (char)byte;
	failure.code = ferryRemoteError;
	failure.state = 1;
	assert_true(ferry_failure_read(&failure, &code, message));
	assert_int_equal(strlen(message), 255);
	for (int byte = 1; byte < 256; byte++)
		assert_int_equal(message[byte - 1], byte < ' ' || byte > '~' ? '?' : byte);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_arena_leaves_no_name_behind),
		cmocka_unit_test(two_mappings_share_every_region_and_no_region_overlaps),
		cmocka_unit_test(counters_have_memory_once_a_plan_needs_them),
		cmocka_unit_test(a_corrupt_header_is_refused_with_its_values),
		cmocka_unit_test(windows_longer_than_the_staging_says_are_refused),
		cmocka_unit_test(an_arena_without_staging_is_refused),
		cmocka_unit_test(another_abi_version_is_refused_by_number),
		cmocka_unit_test(a_short_file_is_refused),
		cmocka_unit_test(impossible_shapes_are_refused),
		cmocka_unit_test(no_room_in_shared_memory_is_an_error_with_the_size),
		cmocka_unit_test(nobody_makes_an_arena_shorter_or_longer),
		cmocka_unit_test(windows_that_nobody_touches_cost_nothing),
		cmocka_unit_test(posix_shared_memory_is_there_before_it_is_used),
		cmocka_unit_test(without_memfd_there_is_posix_shared_memory),
		cmocka_unit_test(settings_of_shared_memory_are_read),
		cmocka_unit_test(a_counter_of_another_call_reads_as_nothing),
		cmocka_unit_test(a_ranks_words_are_printable),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
