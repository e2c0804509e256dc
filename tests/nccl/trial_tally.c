/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nccl/trial_shared.h"

#include <time.h>

double trial_now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void trial_doze_us(unsigned microseconds)
{
	nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000l}, NULL);
}

void trial_tally(enum trial_end end)
{
	struct trial_tally *tally = &trial_shared->tallies[atomic_load(&trial_shared->kills)];
	unsigned long long us = (unsigned long long)(trial_now() * 1e6) - atomic_load(&trial_shared->began_us);
	atomic_fetch_add(&tally->ends[end], 1);
	atomic_fetch_add(&tally->us, us);
	if (us > atomic_load(&tally->longest_us))
		atomic_store(&tally->longest_us, us);
}

unsigned trial_tallied(enum trial_end end)
{
	unsigned count = 0;
	for (int victim = 0; victim < TRIAL_VICTIMS; victim++)
		count += atomic_load(&trial_shared->tallies[victim].ends[end]);
	return count;
}

void trial_tally_print(FILE *file)
{
	static const char *const names[] = {"nobody", "a router", "a rank"};
	fprintf(file, "| killed   | runs | equal | error | hung | wrong | seconds | longest |\n"
	              "| -------- | ---: | ----: | ----: | ---: | ----: | ------: | ------: |\n");
	for (int victim = 0; victim < TRIAL_VICTIMS; victim++) {
		struct trial_tally *tally = &trial_shared->tallies[victim];
		unsigned ends[TRIAL_ENDS], runs = 0;
		for (int end = 0; end < TRIAL_ENDS; end++)
			runs += ends[end] = atomic_load(&tally->ends[end]);
		fprintf(file, "| %-8s | %4u | %5u | %5u | %4u | %5u | %7.1f | %7.2f |\n", names[victim], runs,
		        ends[TRIAL_EQUAL], ends[TRIAL_ERROR], ends[TRIAL_HUNG], ends[TRIAL_WRONG],
		        (double)atomic_load(&tally->us) / 1e6, (double)atomic_load(&tally->longest_us) / 1e6);
	}
}
