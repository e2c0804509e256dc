/* SPDX-License-Identifier: Apache-2.0 */
/* What libferry-nccl.so does when it is loaded, before the program runs. */
#include "orchestrator/tuner_offer.h"

__attribute__((constructor)) static void loaded(void)
{
	ferry_nccl_tuner_offer();
}
