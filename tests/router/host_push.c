/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of host devices that push into each other's memory: every byte arrives, in this process or in another, at
 * the speed of the link and of the port that FERRY_HOST_LINK models, and what cannot be written is told with what to
 * do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/wait.h"
#include "router/copy/host.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (1u << 20)

static void open_copier(struct ferry_host_copier *copier, struct ferry_copy_queue *queue, const char *link)
{
	setenv("FERRY_HOST_LINK", link, 1);
	if (ferry_host_copier_open(copier) || copier->base.ops->queue_open(&copier->base, FERRY_DIR_D2H, queue))
		fail_msg("%s", ferry_last_message());
	unsetenv("FERRY_HOST_LINK");
}

static ferryResult_t push(struct ferry_copy_queue *queue, uint32_t to, int64_t process, void *address,
                          const void *source, size_t bytes)
{
	const struct ferry_put_target put_target = {.address = address, .process = process, .from = 0, .to = to};
	return queue->copier->ops->push(queue, &put_target, source, bytes);
}

static void finish(struct ferry_copy_queue *queue)
{
	while (queue->copier->ops->finished(queue) < queue->started)
		usleep((useconds_t)queue->copier->ops->wait_us(queue));
}

static unsigned char *filled(size_t bytes)
{
	unsigned char *memory = malloc(bytes);
	assert_non_null(memory);
	for (size_t i = 0; i < bytes; i++)
		memory[i] = (unsigned char)(1 + i * 7 % 251);
	return memory;
}

static void every_length_arrives_whole_and_alone(void **state)
{
	(void)state;
	static const size_t lengths[] = {0, 1, 63, 64, 4097, 65536, 3 * BYTES + 5};
	struct ferry_host_copier copier;
	struct ferry_copy_queue queue;
	unsigned char *from = filled(4 * BYTES), *to = malloc(4 * BYTES);
	assert_non_null(to);
	open_copier(&copier, &queue, "");
	for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
		size_t bytes = lengths[i / 2];
		memset(to, 0, 4 * BYTES);
		assert_int_equal(push(&queue, 1, i % 2 ? getpid() : 0, to + 64, from + 3, bytes), ferrySuccess);
		finish(&queue);
		assert_memory_equal(to + 64, from + 3, bytes);
		assert_int_equal(to[63], 0);
		assert_int_equal(to[64 + bytes], 0);
	}
	copier.base.ops->queue_close(&queue);
	free(from);
	free(to);
}

/* ---- another process ---- */

struct receiver {
	pid_t process;
	int done; /* closing it ends the process */
};

/* A child, whose memory is laid out as its parent's. */
static struct receiver start_receiver(void)
{
	struct receiver receiver;
	int end[2];
	char byte;
	assert_int_equal(pipe(end), 0);
	receiver.process = fork();
	assert_true(receiver.process >= 0);
	if (receiver.process == 0) {
		close(end[1]);
		_exit(read(end[0], &byte, 1) < 0);
	}
	close(end[0]);
	receiver.done = end[1];
	return receiver;
}

static void end_receiver(const struct receiver *receiver)
{
	int status;
	close(receiver->done);
	assert_int_equal(waitpid(receiver->process, &status, 0), receiver->process);
}

static void another_process_gets_the_bytes_and_only_those(void **state)
{
	(void)state;
	struct ferry_host_copier copier;
	struct ferry_copy_queue queue;
	unsigned char *from = filled(BYTES), *to = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
	                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned char *own = calloc(1, 64);
	assert_true(to != MAP_FAILED && own);
	open_copier(&copier, &queue, "");
	struct receiver receiver = start_receiver();
	assert_int_equal(push(&queue, 1, receiver.process, to + 5, from, BYTES / 2), ferrySuccess);
	assert_int_equal(push(&queue, 1, receiver.process, own, from, 64), ferrySuccess);
	finish(&queue);
	assert_memory_equal(to + 5, from, BYTES / 2);
	assert_int_equal(to[4], 0);
	assert_int_equal(to[5 + BYTES / 2], 0);
	assert_int_equal(own[0], 0); /* in its memory, not in ours */
	end_receiver(&receiver);
	munmap(to, BYTES);
	copier.base.ops->queue_close(&queue);
	free(from);
	free(own);
}

static void assert_says(const char *words)
{
	if (!strstr(ferry_last_message(), words))
		fail_msg("\"%s\" lacks \"%s\"", ferry_last_message(), words);
}

static void what_cannot_be_written_is_told(void **state)
{
	(void)state;
	struct ferry_host_copier copier;
	struct ferry_copy_queue queue;
	unsigned char *from = filled(BYTES),
	              *to = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(to != MAP_FAILED);
	assert_int_equal(munmap(to + BYTES / 2, BYTES / 2), 0);
	open_copier(&copier, &queue, "");
	struct receiver receiver = start_receiver();
	assert_int_equal(push(&queue, 3, receiver.process, to, from, BYTES), ferrySystemError); /* half of it */
	assert_says("rank 3");
	assert_says("Bad address");
	end_receiver(&receiver);
	assert_int_equal(push(&queue, 3, receiver.process, to, from, 64), ferryRemoteError);
	assert_says("rank 3's process");
	assert_int_equal(queue.started, 0);
	munmap(to, BYTES / 2);
	copier.base.ops->queue_close(&queue);
	free(from);
}

/* As an ordinary user, init's memory. */
static void a_process_of_another_user_is_refused_with_what_to_do(void **state)
{
	(void)state;
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct ferry_host_copier copier;
		struct ferry_copy_queue queue;
		char byte = 0;
		if (setgid(65534) || setuid(65534))
			_exit(getuid() ? 2 : 1);
		open_copier(&copier, &queue, "");
		ferryResult_t result = push(&queue, 1, getppid(), &byte, &byte, 1);
		_exit(result == ferrySystemError && strstr(ferry_last_message(), "ptrace_scope") ? 0 : 1);
	}
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 2)
		skip(); /* not root: no other user to be */
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- speeds ---- */

/* Milliseconds that the pushes of a MiB take, each to the rank of that index, on queues of their own. */
static double time_pushes(const char *link, const uint32_t *to, size_t count)
{
	struct ferry_host_copier copier;
	struct ferry_copy_queue queues[8];
	unsigned char *from = filled(BYTES), *into = malloc(BYTES);
	assert_non_null(into);
	open_copier(&copier, &queues[0], link);
	for (size_t i = 1; i < count; i++)
		assert_int_equal(copier.base.ops->queue_open(&copier.base, FERRY_DIR_D2H, &queues[i]), ferrySuccess);
	uint64_t begin = ferry_now_ns();
	for (size_t i = 0; i < count; i++)
		if (push(&queues[i], to[i], 0, into, from, BYTES))
			fail_msg("%s", ferry_last_message());
	for (size_t i = 0; i < count; i++)
		finish(&queues[i]);
	double ms = (double)(ferry_now_ns() - begin) * 1e-6;
	for (size_t i = 0; i < count; i++)
		copier.base.ops->queue_close(&queues[i]);
	free(from);
	free(into);
	return ms;
}

/* A MiB at 0.01 GB/s takes 104.9 ms; on a busy machine more, but not twice as much each time. */
#define MS    104.8576
#define TRIES 10

/* The least of a few tries; one that takes less than `least` ends them. */
static double least_of_pushes(const char *link, const uint32_t *to, size_t count, double least, double most)
{
	double ms = time_pushes(link, to, count);
	for (int again = 1; again < TRIES && ms >= least && ms > most; again++) {
		double next = time_pushes(link, to, count);
		ms = next < ms ? next : ms;
	}
	return ms;
}

static void assert_takes(const char *link, const uint32_t *to, size_t count, double expected)
{
	double ms = least_of_pushes(link, to, count, expected * 0.999, expected + 0.8 * MS);
	if (ms < expected * 0.999 || ms > expected + 0.8 * MS)
		fail_msg("%s: %.1f ms, by arithmetic %.1f", link, ms, expected);
}

static void links_and_ports_take_the_time_of_their_speeds(void **state)
{
	(void)state;
	const uint32_t one[] = {1, 1}, several[] = {1, 2, 3}, mixed[] = {3, 3, 1};
	assert_takes("peer=0.01", one, 2, 2 * MS);                 /* one link, one after the other */
	assert_takes("peer=0.01", several, 3, MS);                 /* three links at once */
	assert_takes("peer=0.01,port=0.01", several, 3, 3 * MS);   /* through one port */
	assert_takes("links=nvswitch:0.01", several, 3, 3 * MS);
	assert_takes("links=dgx1v:0.01", mixed, 3, MS);            /* 0-3 has two NVLinks, 0-1 one */
	assert_takes("links=pcie2:0.02:0.01,devices=0,1,2,4", mixed, 3, 2 * MS);
	assert_takes("peer=100,peer@0-2=0.01", several, 3, MS);
	/* Three cross between the sockets at once; what goes to neighbours over bridges shares no PCIe port. */
	const uint32_t across[] = {1, 2, 3}, bridged[] = {1, 2, 3};
	assert_takes("links=pcie2:1:1:0.01,devices=0,4,5,6", across, 3, 3 * MS);
	assert_takes("links=bridges:0.01:0.02", bridged, 3, MS);
	/* No link between devices is modelled. */
	assert_true(least_of_pushes("d2h=0.01", several, 3, 0, 0.5 * MS) < 0.5 * MS);
}

/* As of several ranks' devices, each with a copier of its own: what all of them go through is in shared memory. */
static void copiers_share_the_links_that_devices_share(void **state)
{
	(void)state;
	static _Atomic uint64_t busy_until[FERRY_MAX_SHARED_LINKS];
	struct ferry_host_copier copiers[2];
	struct ferry_copy_queue queues[2];
	unsigned char *from = filled(BYTES), *into = malloc(BYTES);
	assert_non_null(into);
	uint64_t begin = ferry_now_ns();
	for (uint32_t rank = 0; rank < 2; rank++) {
		const struct ferry_put_target to = {
		        .address = (char *)into, .from = rank, .to = 4 + rank, .shared_busy_until = busy_until};
		open_copier(&copiers[rank], &queues[rank], "links=pcie2:1:1:0.01");
		assert_int_equal(copiers[rank].base.ops->push(&queues[rank], &to, from, BYTES), ferrySuccess);
	}
	for (uint32_t rank = 0; rank < 2; rank++) {
		finish(&queues[rank]);
		copiers[rank].base.ops->queue_close(&queues[rank]);
	}
	assert_true((double)(ferry_now_ns() - begin) * 1e-6 > 2 * MS * 0.999);
	free(from);
	free(into);
}

static void where_there_is_no_link_nothing_is_pushed(void **state)
{
	(void)state;
	struct ferry_host_copier copier;
	struct ferry_copy_queue queue;
	char from = 1, to = 0;
	open_copier(&copier, &queue, "links=dgx1v:25,devices=0,5,2");
	assert_int_equal(push(&queue, 1, 0, &to, &from, 1), ferryInvalidUsage);
	assert_says("no link from rank 0's device to rank 1's");
	assert_int_equal(push(&queue, 3, 0, &to, &from, 1), ferryInvalidUsage);
	assert_says("no device for rank 3");
	assert_int_equal(to, 0);
	assert_int_equal(push(&queue, 2, 0, &to, &from, 1), ferrySuccess);
	assert_int_equal(to, 1);
	copier.base.ops->queue_close(&queue);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_length_arrives_whole_and_alone),
	        cmocka_unit_test(another_process_gets_the_bytes_and_only_those),
	        cmocka_unit_test(what_cannot_be_written_is_told),
	        cmocka_unit_test(a_process_of_another_user_is_refused_with_what_to_do),
	        cmocka_unit_test(links_and_ports_take_the_time_of_their_speeds),
	        cmocka_unit_test(copiers_share_the_links_that_devices_share),
	        cmocka_unit_test(where_there_is_no_link_nothing_is_pushed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
