/* SPDX-License-Identifier: Apache-2.0 */
/* nccl-tests' columns, a progress line, and JSON. */
#include "bench/perf.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Columns of one half of a row: in or out of place. */
#define HALF_WIDTH 36
#define PEER_WIDTH 17

static bool progress_shown;
static double progress_at;

void perf_progress(const struct perf_run *run, uint64_t bytes, uint32_t done, uint32_t all)
{
	bool terminal = isatty(STDERR_FILENO);
	double now = perf_now_us(), pause = terminal ? 2e5 : 1e7;
	if (run->rank || (progress_at && now - progress_at < pause)) {
		return;
	}
	if (!progress_at) { /* the first row has just begun: nobody is waiting yet */
		progress_at = now;
		return;
	}
	progress_at = now;
	progress_shown = terminal;
	fprintf(stderr, terminal ? "\r%12llu bytes: %u of %u calls " : "ferry-perf: %llu bytes: %u of %u calls\n",
	        (unsigned long long)bytes, done, all);
	fflush(stderr);
}

static void clear_progress(void)
{
	if (progress_shown)
		fprintf(stderr, "\r%48s\r", "");
	progress_shown = false;
}

void perf_print_head(const struct perf_run *run)
{
	if (run->rank)
		return;
	printf("# ferry-perf %s: %d ranks, %d domains; times are medians over calls of the slowest rank, +- half the "
	       "quartile range\n",
	       ferry_collective_name(run->options->collective), run->nranks, run->ndomains);
	if (run->peer)
		printf("# against %s: the same work on the same buffers, interleaved call by call; ratio = its time / "
		       "Ferry's\n",
		       run->peer->name);
	bool in_place = ferry_trial_can_be_in_place(run->options->collective);
	int half = run->peer ? HALF_WIDTH + PEER_WIDTH : HALF_WIDTH;
	printf("#%12s %12s %7s %9s %*s%s%*s\n", "", "", "", "", half, "out of place", in_place ? "  " : "",
	       in_place ? half : 0, in_place ? "in place" : "");
	printf("#%12s %12s %7s %9s ", "size", "count", "type", "redop");
	for (int i = 0; i <= in_place; i++) {
		printf("%s %9s %4s %6s %6s %6s", i ? "  " : "", "time", "+-", "algbw", "busbw", "#wrong");
		if (run->peer)
			printf(" %9s %6s", run->peer->name, "ratio");
	}
	printf("\n#%12s %12s %7s %9s ", "(B)", "(elements)", "", "");
	for (int i = 0; i <= in_place; i++) {
		printf("%s %9s %4s %6s %6s %6s", i ? "  " : "", "(us)", "(%)", "(GB/s)", "(GB/s)", "");
		if (run->peer)
			printf(" %9s %6s", "(us)", "");
	}
	printf("\n");
}

static void print_half(const struct perf_run *run, const struct perf_row *row)
{
	char wrong[24] = "N/A";
	double spread = (row->time.high_us - row->time.low_us) / 2 / row->time.median_us * 100;
	if (row->wrong >= 0)
		snprintf(wrong, sizeof wrong, "%lld", row->wrong);
	printf(" %9.1f %4.0f %6.2f %6.2f %6s", row->time.median_us, spread, row->algbw, row->busbw, wrong);
	if (run->peer)
		printf(" %9.1f %6.2f", row->peer_time.median_us, row->peer_time.median_us / row->time.median_us);
}

void perf_print_rows(const struct perf_run *run, const struct perf_row *out_of_place, const struct perf_row *in_place)
{
	const struct perf_options *options = run->options;
	if (run->rank)
		return;
	clear_progress();
	printf("%13llu %12llu %7s %9s ", (unsigned long long)out_of_place->bytes, (unsigned long long)out_of_place->count,
	       ferry_type_name(options->type),
	       ferry_collective_reduces(options->collective) ? ferry_redop_name(options->op) : "none");
	print_half(run, out_of_place);
	if (in_place) {
		printf("  ");
		print_half(run, in_place);
	}
	printf("\n");
	fflush(stdout);
}

static cJSON *row_object(const struct perf_run *run, const struct perf_row *row)
{
	const struct perf_options *options = run->options;
	cJSON *object = cJSON_CreateObject();
	cJSON_AddStringToObject(object, "collective", ferry_collective_name(options->collective));
	cJSON_AddStringToObject(object, "type", ferry_type_name(options->type));
	cJSON_AddStringToObject(object, "op",
	                        ferry_collective_reduces(options->collective) ? ferry_redop_name(options->op) : "none");
	cJSON_AddNumberToObject(object, "ranks", run->nranks);
	cJSON_AddNumberToObject(object, "bytes", (double)row->bytes);
	cJSON_AddBoolToObject(object, "in_place", row->in_place);
	cJSON_AddNumberToObject(object, "time_us", row->time.median_us);
	cJSON_AddNumberToObject(object, "time_us_low_quartile", row->time.low_us);
	cJSON_AddNumberToObject(object, "time_us_high_quartile", row->time.high_us);
	cJSON_AddNumberToObject(object, "algbw", row->algbw);
	cJSON_AddNumberToObject(object, "busbw", row->busbw);
	if (row->wrong >= 0)
		cJSON_AddNumberToObject(object, "wrong", (double)row->wrong);
	else
		cJSON_AddNullToObject(object, "wrong");
	if (run->peer) {
		cJSON_AddStringToObject(object, "peer", run->peer->name);
		cJSON_AddNumberToObject(object, "peer_time_us", row->peer_time.median_us);
		cJSON_AddNumberToObject(object, "ratio", row->peer_time.median_us / row->time.median_us);
	}
	return object;
}

bool perf_write_json(const struct perf_run *run, const struct perf_row *rows, size_t count)
{
	cJSON *array = cJSON_CreateArray();
	for (size_t i = 0; i < count; i++)
		cJSON_AddItemToArray(array, row_object(run, &rows[i]));
	char *text = cJSON_Print(array);
	FILE *file = text ? fopen(run->options->json, "w") : NULL;
	bool written = file && fprintf(file, "%s\n", text) > 0;
	if (file && fclose(file))
		written = false;
	if (!written)
		fprintf(stderr, "ferry-perf: writing %s: %s\n", run->options->json, strerror(errno));
	free(text);
	cJSON_Delete(array);
	return written;
}
