/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/limits/rate.h"

#include "bench/command/sample.h"

struct rate_schedule rate_schedule_now(bool quick)
{
	return (struct rate_schedule){sample_now_us() + (quick ? 8e3 : 20e3), quick ? 10e3 : 25e3, quick ? 3 : 7};
}

double rate_schedule_end_us(const struct rate_schedule *schedule)
{
	return schedule->begin_us + schedule->each_us * schedule->intervals;
}

void rate_count_add(struct rate_count *count, const struct rate_schedule *schedule, double now_us, double bytes)
{
	double since = now_us - schedule->begin_us;
	if (since >= 0 && since < schedule->each_us * schedule->intervals)
		count->bytes[(int)(since / schedule->each_us)] += bytes;
}

void rate_count_join(struct rate_count *sum, const struct rate_count *count)
{
	for (int i = 0; i < RATE_MAX_INTERVALS; i++)
		sum->bytes[i] += count->bytes[i];
}

double rate_gbps(const struct rate_count *count, const struct rate_schedule *schedule)
{
	double rates[RATE_MAX_INTERVALS];
	for (int i = 0; i < schedule->intervals; i++)
		rates[i] = count->bytes[i] / schedule->each_us / 1e3;
	return sample_summarize(rates, (size_t)schedule->intervals).median;
}
