/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tuner/arm.h"

#include <string.h>

#define FAR     1.25
#define CHANGED 2 /* samples in a row: one is chance */
#define ENOUGH  3

static int side(double us, double usual)
{
	return (us > FAR * usual) - (us < usual / FAR);
}

/* Of one or two samples one may be chance: what was known before is one more. */
double ferry_arm_us(const struct ferry_arm *arm)
{
	float sorted[FERRY_ARM_SAMPLES + 1];
	uint32_t count = arm->seen < FERRY_ARM_SAMPLES ? arm->seen : FERRY_ARM_SAMPLES;
	float known = arm->learned_us > 0 ? arm->learned_us : arm->before_us;
	bool few = count && count < ENOUGH && known > 0;
	if (few && count == 1)
		return side((double)arm->us[0], (double)known) ? (double)known : (double)arm->us[0];
	for (uint32_t i = 0; i < count + few; i++) {
		float us = i < count ? arm->us[i] : known;
		uint32_t at = i;
		for (; at && sorted[at - 1] > us; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = us;
	}
	count += few;
	if (!count)
		return 0;
	double lower = (double)sorted[(count - 1) / 2], upper = (double)sorted[count / 2];
	bool late = count > 2 && side(upper, lower); /* of two nothing says which one is usual */
	return late ? lower : (lower + upper) / 2;
}

void ferry_arm_add(struct ferry_arm *arm, double us)
{
	double usual = ferry_arm_us(arm);
	int far = usual > 0 ? side(us, usual) : 0;
	bool again = far && far * arm->far > 0;
	arm->far = (int8_t)(arm->seen > 1 ? far + (again ? arm->far : 0) : 0);
	if (arm->left && arm->seen) {
		arm->learned_us = (float)usual;
		arm->seen = arm->far = 0;
		arm->slowed = false;
	} else if (arm->far == far * CHANGED && far) {
		arm->seen = CHANGED - 1;
		arm->far = 0;
		arm->slowed = far > 0;
	}
	arm->left = false;
	memmove(arm->us + 1, arm->us, (FERRY_ARM_SAMPLES - 1) * sizeof *arm->us);
	arm->us[0] = (float)us;
	arm->seen++;
}
