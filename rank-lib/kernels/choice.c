/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kernels/choice.h"

#include "rank-lib/kernels/kernel_call.h"

struct ferry_kernel_choice ferry_kernel_choose(const struct ferry_kernel_facts *facts)
{
	struct ferry_kernel_choice choice = {FERRY_KERNEL_NONE, 1, 512, 0};
	uint64_t shared = facts->peer ? 1 : facts->nranks, ll_most = facts->peer ? 256u << 10 : 64u << 10;
	if (!facts->bytes || facts->nranks < 2 || facts->nranks > FERRY_KERNEL_RANKS)
		return choice;
	if (facts->bytes <= ll_most && 2 * shared * facts->bytes <= FERRY_BOX_LL_BYTES) {
		uint64_t blocks = (facts->bytes + 2047) / 2048;
		choice.kernel = FERRY_KERNEL_LL;
		choice.threads = 256;
		choice.blocks = (uint32_t)(blocks < facts->blocks ? blocks : facts->blocks);
	} else if (facts->bytes * shared <= facts->box_bytes) {
		choice.kernel = FERRY_KERNEL_BULK;
		choice.blocks = facts->blocks;
		choice.chunk = 16u << 10;
	}
	return choice;
}
