/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes seeds for the fuzz targets into DIRECTORY/program, /plan, /attach, /submission and /put_target: synthesized
 * programs, the plans they compile to, one valid message of each kind, rings with records, and names of exports. Made
 * when they are needed, so they never lag behind the formats.
 */
#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/export.h"
#include "ipc/submission.h"
#include "rank-lib/program/program.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int write_file(const char *directory, const char *kind, const char *name, const void *bytes, size_t size)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", directory, kind);
	mkdir(path, 0777);
	snprintf(path, sizeof path, "%s/%s/%s", directory, kind, name);
	FILE *file = fopen(path, "wb");
	if (!file || fwrite(bytes, 1, size, file) != size || fclose(file)) {
		perror(path);
		return 1;
	}
	return 0;
}

static int write_plan(const char *directory, const char *name, const struct ferry_program *program, uint64_t count)
{
	struct ferry_compile_options options = {.count = count, .type = ferryFloat32, .redop = ferrySum};
	struct ferry_plan_room limits = {
		.nranks = program->nranks, .ndomains = program->ndomains, .rank_domain = program->rank_domain};
	struct ferry_plan *plan;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		options.staging[domain] = limits.staging[domain] = 1u << 20;
		limits.counters[domain] = 1u << 14;
	}
	if (ferry_program_compile(program, &options, &plan) || ferry_plan_validate(plan, plan->bytes, &limits)) {
		fprintf(stderr, "%s: %s\n", name, ferry_last_message());
		return 1;
	}
	int failed = write_file(directory, "plan", name, plan, plan->bytes);
	free(plan);
	return failed;
}

static int write_program(const char *directory, enum ferry_collective collective, uint32_t nranks, uint32_t ndomains)
{
	struct ferry_topology topology = {.nranks = nranks, .ndomains = ndomains};
	struct ferry_program *program;
	char name[64], *text;
	snprintf(name, sizeof name, "%s-%u-%u", ferry_collective_name(collective), nranks, ndomains);
	for (uint32_t rank = 0; rank < nranks; rank++)
		topology.rank_domain[rank] = (uint8_t)(rank * ndomains / nranks);
	if (ferry_program_synthesize(collective, &topology, 0, &program) || ferry_program_print(program, &text)) {
		fprintf(stderr, "%s: %s\n", name, ferry_last_message());
		return 1;
	}
	int failed = write_file(directory, "program", name, text, strlen(text)) ||
	             write_plan(directory, name, program, collective == FERRY_ALLTOALLV ? 0 : 1000);
	free(text);
	ferry_program_free(program);
	return failed;
}

/* What no synthesizer of a host writes: a ring of PUTs, and PUTs beside the host. */
static int write_puts(const char *directory)
{
	static const char *const texts[] = {
		"program allgather ranks 3 domains 2 chunks 2\n"
		"rank 0\nPUT gpu[0] -> gpu@1[0]\nPUT gpu[1] -> gpu@1[1]\nPUT gpu[4] -> gpu@1[4] deps: gpu[4]>=1\n"
		"PUT gpu[5] -> gpu@1[5] deps: gpu[5]>=1\n"
		"rank 1\nPUT gpu[0] -> gpu@2[2]\nPUT gpu[1] -> gpu@2[3]\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\n"
		"PUT gpu[1] -> gpu@2[1] deps: gpu[1]>=1\n"
		"rank 2\nPUT gpu[0] -> gpu@0[4]\nPUT gpu[1] -> gpu@0[5]\nPUT gpu[2] -> gpu@0[2] deps: gpu[2]>=1\n"
		"PUT gpu[3] -> gpu@0[3] deps: gpu[3]>=1\n",
		"program allreduce ranks 2 domains 1 chunks 1\n"
		"rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[2]\nH2D host[2] -> gpu[0] deps: host[2]>=2\n"
		"PUT gpu[0] -> gpu@1[0] deps: gpu[0]>=1, host[1]>=1\n"
		"rank 1\nD2H gpu[0] -> host[1]\nREDUCE host[1] -> host[2]\n"};
	int failed = 0;
	for (size_t i = 0; i < sizeof texts / sizeof *texts && !failed; i++) {
		struct ferry_program *program;
		char name[16];
		snprintf(name, sizeof name, "puts-%zu", i);
		if (ferry_program_parse(name, texts[i], strlen(texts[i]), NULL, &program)) {
			fprintf(stderr, "%s\n", ferry_last_message());
			return 1;
		}
		failed = write_file(directory, "program", name, texts[i], strlen(texts[i])) ||
		         write_plan(directory, name, program, 1000);
		ferry_program_free(program);
	}
	return failed;
}

static int write_message(const char *directory, uint32_t kind)
{
	struct ferry_attach_message message = {.magic = FERRY_ATTACH_MAGIC,
	                                       .abi = FERRY_ATTACH_ABI,
	                                       .kind = kind,
	                                       .nranks = 4,
	                                       .rank = 3,
	                                       .ndomains = 2,
	                                       .domain = 1,
	                                       .key = "0123456789abcde"};
	struct ferry_attach_message decoded;
	char name[16];
	if (kind == FERRY_ATTACH_PLAN)
		message.payload = sizeof(struct ferry_plan) + sizeof(struct ferry_instr);
	if (kind == FERRY_ATTACH_DROP)
		message.hash = 0x0123456789abcdef;
	if (kind == FERRY_ATTACH_EXPORT)
		message.payload = FERRY_EXPORTED_LEAST;
	if (kind == FERRY_ATTACH_ADOPT)
		message.descriptors = message.ndomains;
	if (ferry_attach_decode(&message, sizeof message, &decoded)) {
		fprintf(stderr, "message of kind %u: %s\n", kind, ferry_last_message());
		return 1;
	}
	snprintf(name, sizeof name, "kind-%u", kind);
	return write_file(directory, "attach", name, &message, sizeof message);
}

static int write_export(const char *directory, uint32_t kind)
{
	struct ferry_exported exported = {.index = 7, .kind = kind, .generation = 3, .bytes = 6u << 20}, decoded;
	char name[16];
	if (kind == FERRY_EXPORTED_VMM) {
		exported.npieces = 2;
		exported.lengths[0] = 4u << 20;
		exported.lengths[1] = 2u << 20;
	}
	if (ferry_exported_read(&exported, ferry_exported_size(&exported), exported.npieces, &decoded)) {
		fprintf(stderr, "export of kind %u: %s\n", kind, ferry_last_message());
		return 1;
	}
	snprintf(name, sizeof name, "export-%u", kind);
	return write_file(directory, "attach", name, &exported, ferry_exported_size(&exported));
}

/* As fuzz_submission.c reads it: some records of several sizes, across the end of the ring or not. */
static int write_ring(const char *directory, uint16_t line)
{
	static struct ferry_ring ring;
	static uint8_t bytes[6 + FERRY_RING_BYTES], behind[2000];
	uint64_t begin = line * 64ull;
	char name[16];
	memset(&ring, 0, sizeof ring);
	atomic_store(&ring.written, begin);
	atomic_store(&ring.taken, begin);
	for (uint32_t number = 1; number <= 6; number++) {
		struct ferry_submission head = {.kind = FERRY_SUBMIT_COLLECTIVE, .number = number, .seq = number};
		if (!ferry_ring_write(&ring, &head, behind, number * number * 50)) {
			fprintf(stderr, "no room for submission %u\n", number);
			return 1;
		}
	}
	uint32_t written = (uint32_t)(atomic_load(&ring.written) - begin);
	memcpy(bytes, &line, sizeof line);
	memcpy(bytes + sizeof line, &written, sizeof written);
	for (uint32_t i = 0; i < written; i++)
		bytes[6 + i] = (uint8_t)ring.records[(begin + i) % FERRY_RING_BYTES];
	snprintf(name, sizeof name, "ring-%u", line);
	return write_file(directory, "submission", name, bytes, 6 + written);
}

/* As fuzz_put_target.c reads it: exports of every kind, and names at their bounds. */
static int write_put_targets(const char *directory, uint8_t shut)
{
	static const uint64_t lengths[][2] = {{0, 4096}, {1, 4095},       {4096, 0},
	                                      {4096, 1}, {UINT64_MAX, 2}, {1, UINT64_MAX}};
	uint8_t bytes[2048] = {(uint8_t)(shut << 7 | 4)};
	size_t size = 1;
	char name[16];
	for (uint8_t index = 0; index < 4; index++, size += 7)
		memcpy(bytes + size, (const uint8_t[]){index, 1, index, 0, 16, 0, 0}, 7); /* of 4096 bytes */
	for (uint32_t i = 0; i < 6 * 4; i++, size += 29) {
		uint32_t index = i % 5;
		uint64_t generation = 1 + (i == 7);
		memcpy(bytes + size, &index, 4);
		memcpy(bytes + size + 4, &generation, 8);
		memcpy(bytes + size + 12, lengths[i / 4], 16);
		bytes[size + 28] = (uint8_t)(i % 4);
	}
	snprintf(name, sizeof name, "put_targets-%u", shut);
	return write_file(directory, "put_target", name, bytes, size);
}

int main(int argc, char **argv)
{
	int failed = 0;
	if (argc != 2) {
		fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
		return 64;
	}
	mkdir(argv[1], 0777);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++) {
		failed |= write_program(argv[1], (enum ferry_collective)collective, 2, 1);
		if (collective != FERRY_SENDRECV)
			failed |= write_program(argv[1], (enum ferry_collective)collective, 3, 2);
	}
	failed |= write_puts(argv[1]);
	for (uint32_t kind = FERRY_ATTACH_RANK; kind < FERRY_ATTACH_KINDS; kind++)
		failed |= write_message(argv[1], kind);
	failed |= write_ring(argv[1], 0) | write_ring(argv[1], 990) | write_ring(argv[1], 1020);
	failed |= write_put_targets(argv[1], 0) | write_put_targets(argv[1], 1);
	failed |= write_export(argv[1], FERRY_EXPORTED_IPC) | write_export(argv[1], FERRY_EXPORTED_VMM);
	return failed;
}
