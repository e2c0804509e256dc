/* SPDX-License-Identifier: Apache-2.0 */
/** How what a core has written leaves it. Chosen by the router per plan, obeyed by kernels and copies. */
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
