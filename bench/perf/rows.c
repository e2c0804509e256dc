/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/rows.h"

#include "bench/command/record.h"
#include "bench/rank/gpu.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

extern char **environ;

static void add_positive(cJSON *object, const char *name, double value)
{
	if (value > 0)
		cJSON_AddNumberToObject(object, name, value);
	else
		cJSON_AddNullToObject(object, name);
}

static void add_text(cJSON *object, const char *name, const char *value)
{
	if (value && *value)
		cJSON_AddStringToObject(object, name, value);
	else
		cJSON_AddNullToObject(object, name);
}

/* ---- about ---- */

/* What follows `key` and its colon in the file, or the whole first line if key is ""; "" if there is none. */
static void read_line(const char *path, const char *key, char *value, size_t bytes)
{
	char line[512];
	FILE *file = fopen(path, "r");
	value[0] = '\0';
	while (file && !*value && fgets(line, sizeof line, file)) {
		const char *text = strncmp(line, key, strlen(key)) ? NULL : *key ? strchr(line, ':') : line;
		if (!text)
			continue;
		text += *key ? strspn(text, ": \t") : 0;
		snprintf(value, bytes, "%.*s", (int)strcspn(text, "\n"), text);
	}
	if (file)
		fclose(file);
}

static cJSON *environment(void)
{
	static const char *const ours[] = {"FERRY_", "NCCL_", "CUDA_"};
	cJSON *object = cJSON_CreateObject();
	for (char **variable = environ; *variable; variable++)
		for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
			const char *equals = strchr(*variable, '=');
			char name[128];
			/* The key lets others into the job. */
			if (!equals || strncmp(*variable, ours[i], strlen(ours[i])) ||
			    !strncmp(*variable, "FERRY_JOB_KEY", 13))
				continue;
			snprintf(name, sizeof name, "%.*s", (int)(equals - *variable), *variable);
			cJSON_AddStringToObject(object, name, equals + 1);
		}
	return object;
}

static cJSON *about_run(const struct perf_run *run, bool complete)
{
	cJSON *about = cJSON_CreateObject();
	struct gpu_facts gpus;
	char text[256] = "", cuda[32] = "", nccl[32] = "";
	int version = run->peers.version;
	time_t now = time(NULL);
	struct tm utc;
	gmtime_r(&now, &utc);
	strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
	gpu_describe(&gpus);
	if (gpus.cuda_version)
		snprintf(cuda, sizeof cuda, "%d.%d", gpus.cuda_version / 1000, gpus.cuda_version % 1000 / 10);
	if (version)
		snprintf(nccl, sizeof nccl, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
	add_text(about, "date", text);
	add_text(about, "command", run->options->command);
	cJSON_AddBoolToObject(about, "complete", complete);
	add_text(about, "device", run->rank.buffers.kind);
	cJSON_AddNumberToObject(about, "ranks", run->rank.nranks);
	cJSON_AddNumberToObject(about, "domains", run->rank.ndomains);
	snprintf(text, sizeof text, "%d.%d.%d", FERRY_MAJOR, FERRY_MINOR, FERRY_PATCH);
	add_text(about, "ferry", text);
	add_text(about, "gpu", gpus.name);
	cJSON_AddNumberToObject(about, "gpus", gpus.count);
	read_line("/sys/module/nvidia/version", "", text, sizeof text);
	add_text(about, "gpu_driver", text);
	add_text(about, "cuda", cuda);
	add_text(about, "nccl", nccl);
	read_line("/proc/cpuinfo", "model name", text, sizeof text);
	add_text(about, "cpu", text);
	read_line("/proc/sys/kernel/osrelease", "", text, sizeof text);
	add_text(about, "kernel", text);
	cJSON_AddItemToObject(about, "environment", environment());
	return about;
}

/* ---- rows ---- */

/* Adds median and quartiles as "us", "us_low_quartile", "us_high_quartile", with the prefix before each. */
static void add_times(cJSON *object, const char *prefix, const struct sample_summary *us)
{
	static const char *const names[] = {"us", "us_low_quartile", "us_high_quartile"};
	const double values[] = {us->median, us->low, us->high};
	char name[40];
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s%s", prefix, names[i]);
		add_positive(object, name, values[i]);
	}
}

static double algbw_of(const struct perf_row *row, double us)
{
	return us > 0 ? (double)row->bytes / us / 1e3 : 0;
}

static cJSON *nccl_object(const struct peers *peers, const struct perf_row *row)
{
	cJSON *object = cJSON_CreateObject();
	add_text(object, "best", row->best < 0 ? NULL : peers->settings[row->best].name);
	add_positive(object, "us", perf_best_us(row));
	add_positive(object, "algbw", algbw_of(row, perf_best_us(row)));
	cJSON *settings = cJSON_AddArrayToObject(object, "settings");
	for (unsigned i = 0; i < peers->count; i++) {
		cJSON *setting = cJSON_CreateObject();
		cJSON_AddStringToObject(setting, "name", peers->settings[i].name);
		add_times(setting, "", &row->others_us[i]);
		add_positive(setting, "algbw", algbw_of(row, row->others_us[i].median));
		cJSON_AddNumberToObject(setting, "samples", row->other_samples[i]);
		if (!row->other_samples[i])
			add_text(setting, "unsupported", peers->settings[i].refused);
		cJSON_AddItemToArray(settings, setting);
	}
	return object;
}

static cJSON *row_object(const struct perf_run *run, const struct perf_row *row)
{
	const struct perf_options *options = run->options;
	cJSON *object = cJSON_CreateObject();
	cJSON_AddStringToObject(object, "collective", ferry_collective_name(options->collective));
	cJSON_AddStringToObject(object, "type", ferry_type_name(options->type));
	cJSON_AddStringToObject(object, "op", perf_op_name(options));
	cJSON_AddNumberToObject(object, "ranks", run->rank.nranks);
	cJSON_AddNumberToObject(object, "bytes", (double)row->bytes);
	cJSON_AddBoolToObject(object, "in_place", row->in_place);
	cJSON_AddNumberToObject(object, "samples", row->samples);
	cJSON_AddNumberToObject(object, "calls_per_sample", row->calls);
	cJSON_AddNumberToObject(object, "pause_us", options->pause_us);
	add_times(object, "time_", &row->us);
	cJSON_AddNumberToObject(object, "algbw", row->algbw);
	cJSON_AddNumberToObject(object, "busbw", row->busbw);
	if (row->wrong >= 0)
		cJSON_AddNumberToObject(object, "wrong", (double)row->wrong);
	else
		cJSON_AddNullToObject(object, "wrong");
	if (run->peers.mpi) {
		cJSON_AddStringToObject(object, "peer", run->peers.name);
		add_times(object, "peer_time_", &row->others_us[0]);
	}
	if (run->peers.nccl)
		cJSON_AddItemToObject(object, "nccl", nccl_object(&run->peers, row));
	if (run->peers.name)
		add_positive(object, "ratio", perf_best_us(row) / row->us.median);
	return object;
}

bool perf_write_rows(const struct perf_run *run, const struct perf_row *rows, size_t count, bool complete)
{
	cJSON *whole = cJSON_CreateObject();
	cJSON_AddItemToObject(whole, "about", about_run(run, complete));
	cJSON *array = cJSON_AddArrayToObject(whole, "rows");
	for (size_t i = 0; i < count; i++)
		cJSON_AddItemToArray(array, row_object(run, &rows[i]));
	return record_write("ferry-perf", run->options->json, whole, complete);
}
