/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels as C, of all types, by name. */
#include "tests/fake_cuda/kernels_emulated.h"

#include "rank-lib/kernels/lanes.h"

#include <pthread.h>

_Thread_local struct ferry_block ferry_block;

#define FERRY_NUMBER i8
#define FERRY_NUMBER_i8
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_i8
#define FERRY_NUMBER u8
#define FERRY_NUMBER_u8
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_u8
#define FERRY_NUMBER i32
#define FERRY_NUMBER_i32
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_i32
#define FERRY_NUMBER u32
#define FERRY_NUMBER_u32
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_u32
#define FERRY_NUMBER i64
#define FERRY_NUMBER_i64
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_i64
#define FERRY_NUMBER u64
#define FERRY_NUMBER_u64
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_u64
#define FERRY_NUMBER f16
#define FERRY_NUMBER_f16
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_f16
#define FERRY_NUMBER f32
#define FERRY_NUMBER_f32
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_f32
#define FERRY_NUMBER f64
#define FERRY_NUMBER_f64
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_f64
#define FERRY_NUMBER bf16
#define FERRY_NUMBER_bf16
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_bf16
#define FERRY_NUMBER f8e4m3
#define FERRY_NUMBER_f8e4m3
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_f8e4m3
#define FERRY_NUMBER f8e5m2
#define FERRY_NUMBER_f8e5m2
#include "rank-lib/kernels/kernels.cu"
#undef FERRY_NUMBER
#undef FERRY_NUMBER_f8e5m2

typedef void kernel(const void *call);

#define MESSAGES "ferry_messages_u8"
#define KERNELS(type)                                                                                                  \
	{"ferry_ll_" #type, ferry_ll_##type}, {"ferry_bulk_" #type, ferry_bulk_##type},                                \
	        {"ferry_ll_group_" #type, ferry_ll_group_##type}, {"ferry_reduce_" #type, ferry_reduce_##type},        \
	        {"ferry_adds_" #type, ferry_adds_##type},                                                              \
	{                                                                                                              \
		"ferry_ll128_" #type, ferry_ll128_##type                                                               \
	}

static const struct {
	const char *name;
	kernel *run;
} kernels[] = {
        KERNELS(i8),
        KERNELS(u8),
        KERNELS(i32),
        KERNELS(u32),
        KERNELS(i64),
        KERNELS(u64),
        KERNELS(f16),
        KERNELS(f32),
        KERNELS(f64),
        KERNELS(bf16),
        KERNELS(f8e4m3),
        KERNELS(f8e5m2),
        {MESSAGES, ferry_messages_u8},
};

struct one_block {
	struct ferry_block at;
	kernel *run;
	const void *call;
	pthread_t thread;
};

static void *run_block(void *argument)
{
	const struct one_block *block = argument;
	ferry_block = block->at;
	block->run(block->call);
	return NULL;
}

/* Each block in a thread. */
static bool run_side_by_side(kernel *run, const void *call, uint32_t blocks, uint32_t threads)
{
	struct one_block all[FERRY_KERNEL_BLOCKS] = {{.thread = 0}};
	uint32_t begun = 0;
	for (; begun < blocks && begun < FERRY_KERNEL_BLOCKS; begun++) {
		all[begun] = (struct one_block){{begun, blocks, threads}, run, call, 0};
		if (pthread_create(&all[begun].thread, NULL, run_block, &all[begun]))
			break;
	}
	for (uint32_t i = 0; i < begun; i++)
		pthread_join(all[i].thread, NULL);
	return begun == blocks;
}

bool ferry_kernel_emulate(const char *name, const void *call, uint32_t blocks, uint32_t threads)
{
	for (uint32_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
		if (strcmp(kernels[i].name, name))
			continue;
		/* blocks may wait for each other, or for what others make of what each of them has done */
		if (!strcmp(name, MESSAGES) || !strncmp(name, "ferry_adds_", strlen("ferry_adds_")))
			return run_side_by_side(kernels[i].run, call, blocks, threads);
		ferry_block = (struct ferry_block){.blocks = blocks, .threads = threads};
		for (; ferry_block.block < blocks; ferry_block.block++)
			kernels[i].run(call);
		return true;
	}
	return false;
}
