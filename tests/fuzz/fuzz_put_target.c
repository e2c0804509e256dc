/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: any name of a buffer, as a submission, a descriptor or a post may hold it, looked for in any table
 * of exports. What is granted is whole inside what was exported under that index and generation, for a sender only
 * where it was exported for that GPU and the rank has not left; what is held is let go of.
 *
 * Input: a byte, how many exports there are (modulo 16), and whether the table is shut (bit 7); for each struct
 * exported; then names, struct asked, to the end.
 */
#include "ipc/error.h"
#include "router/gpu/imports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Of index modulo 8, so that names meet them. */
struct __attribute__((packed)) exported {
	uint8_t index, generation, targets; /* GPUs that may put into it: bit 0: its own, bit 1: another one, too */
	uint32_t bytes;
};

struct __attribute__((packed)) asked {
	uint32_t index;
	uint64_t generation, offset, bytes;
	/* 0: the rank itself; 1: a lane of its GPU; 2: of another one; 3: of one that does not reach it */
	uint8_t puts;
};

/* No GPU is called: their addresses are all that is looked at. */
static char gpus[3];

static struct ferry_gpu *gpu(int which)
{
	return (struct ferry_gpu *)(void *)&gpus[which];
}

static void found(const char *what, const struct asked *asked)
{
	fprintf(stderr, "fuzz_put_target: %s: index %u, generation %llu, %llu bytes at %llu, puts %u\n", what,
	        asked->index, (unsigned long long)asked->generation, (unsigned long long)asked->bytes,
	        (unsigned long long)asked->offset, asked->puts % 4);
	abort();
}

/* Somewhere that nobody touches: only its arithmetic counts. */
static char *place_of(uint8_t index, int mapping)
{
	return (char *)((uintptr_t)(1 + index) << 44 | (uintptr_t)(1 + mapping) << 40);
}

static void add(struct ferry_imports *imports, const struct exported *exported)
{
	uint8_t index = exported->index % 8;
	struct ferry_import *import = calloc(1, sizeof *import);
	struct ferry_put_target_map *put_target = calloc(1, sizeof *put_target);
	if (!import || !put_target || imports->table[index]) {
		free(import);
		free(put_target);
		return;
	}
	*import = (struct ferry_import){.owner = imports,
	                                .index = index,
	                                .generation = exported->generation,
	                                .mapping = {.address = place_of(index, 0), .bytes = exported->bytes}};
	import->put_targets = put_target;
	*put_target = (struct ferry_put_target_map){gpu(1), {.address = place_of(index, 1), .bytes = exported->bytes}};
	import->nput_targets = exported->targets >> 1 & 1;
	if (!(exported->targets & 1)) {
		free(put_target);
		import->put_targets = NULL;
		import->nput_targets = 0;
	}
	import->next = imports->list;
	imports->list = imports->table[index] = import;
}

static void check(const struct ferry_imports *imports, const struct asked *asked, const char *address)
{
	const struct ferry_import *import = asked->index < 8 ? imports->table[asked->index] : NULL;
	unsigned puts = asked->puts % 4;
	if (!import || import->generation != asked->generation)
		found("granted, and there is no such export", asked);
	if (asked->offset > import->mapping.bytes || asked->bytes > import->mapping.bytes - asked->offset)
		found("granted beyond its end", asked);
	if (imports->shut || (puts && (!import->put_targets || puts == 3 || (puts == 2 && !import->nput_targets))))
		found("granted to a lane that is not to put there", asked);
	if (address != place_of((uint8_t)asked->index, puts == 2) + asked->offset)
		found("granted elsewhere", asked);
	if (import->users != 1 || imports->users != 1)
		found("granted, and not counted", asked);
}

static void ask(struct ferry_imports *imports, const struct asked *asked)
{
	const struct ferry_buffer_name name = {
	        .index = asked->index, .generation = asked->generation, .offset = asked->offset};
	unsigned puts = asked->puts % 4;
	struct ferry_import *held;
	char *address;
	ferryResult_t result = ferry_imports_take(imports, &name, asked->bytes, puts ? gpu((int)puts - 1) : NULL,
	                                          &address, &held);
	if (result)
		return;
	check(imports, asked, address);
	ferry_imports_release(held);
	if (held->users || imports->users)
		found("let go of, and counted still", asked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t uuid[FERRY_GPU_BYTES];
	struct ferry_imports *imports = malloc(sizeof *imports);
	struct exported exported;
	struct asked asked;
	size_t at = 1;
	if (!imports || !size) {
		free(imports);
		return 0;
	}
	ferry_imports_init(imports, 1, uuid, NULL, false);
	atomic_store(&imports->gpu, gpu(0));
	imports->shut = data[0] >> 7;
	for (int i = 0; i < data[0] % 16 && size - at >= sizeof exported; i++, at += sizeof exported) {
		memcpy(&exported, data + at, sizeof exported);
		add(imports, &exported);
	}
	for (; size - at >= sizeof asked; at += sizeof asked) {
		memcpy(&asked, data + at, sizeof asked);
		ask(imports, &asked);
	}
	for (int i = 0; i < 8; i++)
		if (imports->table[i]) {
			free(imports->table[i]->put_targets);
			free(imports->table[i]);
		}
	pthread_cond_destroy(&imports->quiet);
	pthread_mutex_destroy(&imports->lock);
	free(imports);
	return 0;
}
