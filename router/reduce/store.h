/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Store modes: where data goes that a core writes to staging. The router chooses a mode per plan; kernels and copies
 * follow it.
 */
#ifndef FERRY_ROUTER_REDUCE_STORE_H
#define FERRY_ROUTER_REDUCE_STORE_H

enum ferry_store {
	FERRY_STORE_ORDINARY,
	FERRY_STORE_STREAM, /* non-temporal; ordered by an sfence before the kernel returns */
	/* ordinary, then cldemote per line if the CPU has it: copy engines read dirty lines of an L2 at half speed */
	FERRY_STORE_DEMOTE,
	FERRY_NUM_STORES
};

#endif
