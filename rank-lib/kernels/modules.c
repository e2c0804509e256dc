/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kernels/modules.h"

#include "ipc/error.h"

#include <pthread.h>
#include <stdio.h>

#define EACH_TYPE(do_it)                                                                                               \
	do_it(i8) do_it(u8) do_it(i32) do_it(u32) do_it(i64) do_it(u64) do_it(f16) do_it(f32) do_it(f64) do_it(bf16)   \
	        do_it(f8e4m3) do_it(f8e5m2)

/* The files' bytes and a 0. FERRY_PTX_FOLDER is the build's. */
#define EMBED(type)                                                                                                    \
	__asm__(".pushsection .rodata\n"                                                                               \
	        ".global ferry_kernels_ptx_" #type "\n"                                                                \
	        ".hidden ferry_kernels_ptx_" #type "\n"                                                                \
	        "ferry_kernels_ptx_" #type ":\n"                                                                       \
	        ".incbin \"" FERRY_PTX_FOLDER "/" #type ".ptx\"\n"                                                     \
	        ".byte 0\n"                                                                                            \
	        ".popsection\n");                                                                                      \
	extern const char ferry_kernels_ptx_##type[] __attribute__((visibility("hidden")));
EACH_TYPE(EMBED)

#define TEXT(type) ferry_kernels_ptx_##type,
/* in the order of ferryDataType_t */
static const char *const texts[ferryNumTypes] = {EACH_TYPE(TEXT)};
static const char *const names[FERRY_NUM_KERNELS] = {
        [FERRY_KERNEL_LL] = "ll",
        [FERRY_KERNEL_LL_GROUP] = "ll_group",
        [FERRY_KERNEL_LL128] = "ll128",
        [FERRY_KERNEL_BULK] = "bulk",
        [FERRY_KERNEL_REDUCE] = "reduce",
        [FERRY_KERNEL_ADD] = "adds",
        [FERRY_KERNEL_MESSAGES] = "messages"}; /* last: other types have none */

#define KERNELS (FERRY_NUM_KERNELS - 1) /* without NONE */

struct modules {
	bool loaded;
	ferryResult_t result;
	char message[200];
	void *functions[ferryNumTypes][KERNELS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct modules all[FERRY_MAX_RANKS]; /* by ordinal; constant once loaded, else under the lock */

static ferryResult_t load_type(struct ferry_device *device, ferryDataType_t type, void **functions)
{
	char text[KERNELS][32];
	const char *wanted[KERNELS];
	uint32_t count = type == ferryUint8 ? KERNELS : KERNELS - 1;
	for (uint32_t i = 0; i < count; i++) {
		snprintf(text[i], sizeof text[i], "ferry_%s_%s", names[i + 1], ferry_type_name(type));
		wanted[i] = text[i];
	}
	ferryResult_t result = device->ops->kernels->load(device, texts[type], wanted, count, functions);
	return result ? ferry_fail_context(result, "kernels of %s", ferry_type_name(type)) : result;
}

ferryResult_t ferry_modules_load(struct ferry_device *device)
{
	struct modules *modules = &all[device->ordinal];
	pthread_mutex_lock(&lock);
	for (ferryDataType_t type = 0; !modules->loaded && !modules->result && type < ferryNumTypes; type++)
		if ((modules->result = load_type(device, type, modules->functions[type])))
			snprintf(modules->message, sizeof modules->message, "%s", ferry_last_message());
	modules->loaded = !modules->result;
	ferryResult_t result = modules->result;
	pthread_mutex_unlock(&lock);
	return result ? ferry_fail(result, "%s", modules->message) : ferrySuccess;
}

void *ferry_modules_function(const struct ferry_device *device, ferryDataType_t type, enum ferry_kernel kernel)
{
	return all[device->ordinal].functions[type][kernel - 1];
}
