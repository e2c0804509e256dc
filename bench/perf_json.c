/* SPDX-License-Identifier: Apache-2.0 */
/* ferry-perf's record of a run: {"about": the machine and the run, "rows": [...]}; and how files of figures are written. */
#include "bench/perf_nccl.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static FILE *standard_output; /* what it was, where the record goes there; else NULL */

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
	cJSON *object = cJSON_CreateObject();
	for (char **variable = environ; *variable; variable++) {
		const char *equals = strchr(*variable, '=');
		char name[128];
		bool ours = !strncmp(*variable, "FERRY_", 6) || !strncmp(*variable, "NCCL_", 5) ||
		            !strncmp(*variable, "CUDA_", 5);
		if (!equals || !ours || !strncmp(*variable, "FERRY_JOB_KEY", 13)) /* the key lets others into the job */
			continue;
		snprintf(name, sizeof name, "%.*s", (int)(equals - *variable), *variable);
		cJSON_AddStringToObject(object, name, equals + 1);
	}
	return object;
}

static void add_gpus(cJSON *about)
{
	struct perf_gpus gpus;
	char driver[64], version[32] = "";
	perf_cuda_describe(&gpus);
	read_line("/sys/module/nvidia/version", "", driver, sizeof driver);
	if (gpus.cuda_version)
		snprintf(version, sizeof version, "%d.%d", gpus.cuda_version / 1000, gpus.cuda_version % 1000 / 10);
	add_text(about, "gpu", gpus.name);
	cJSON_AddNumberToObject(about, "gpus", gpus.count);
	add_text(about, "gpu_driver", driver);
	add_text(about, "cuda", version);
}

static cJSON *about_run(const struct perf_run *run, bool complete)
{
	cJSON *about = cJSON_CreateObject();
	char text[256] = "";
	time_t now = time(NULL);
	struct tm utc;
	gmtime_r(&now, &utc);
	strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
	add_text(about, "date", text);
	add_text(about, "command", run->options->command);
	cJSON_AddBoolToObject(about, "complete", complete);
	add_text(about, "device", run->memory.kind);
	cJSON_AddNumberToObject(about, "ranks", run->nranks);
	cJSON_AddNumberToObject(about, "domains", run->ndomains);
	snprintf(text, sizeof text, "%d.%d.%d", FERRY_MAJOR, FERRY_MINOR, FERRY_PATCH);
	add_text(about, "ferry", text);
	add_gpus(about);
	text[0] = '\0';
	if (run->nccl && run->nccl->version)
		snprintf(text, sizeof text, "%d.%d.%d", run->nccl->version / 10000, run->nccl->version / 100 % 100,
		         run->nccl->version % 100);
	add_text(about, "nccl", text);
	read_line("/proc/cpuinfo", "model name", text, sizeof text);
	add_text(about, "cpu", text);
	read_line("/proc/sys/kernel/osrelease", "", text, sizeof text);
	add_text(about, "kernel", text);
	cJSON_AddItemToObject(about, "environment", environment());
	return about;
}

/* ---- rows ---- */

static double algbw_of(const struct perf_row *row, double us)
{
	return us > 0 ? (double)row->bytes / us / 1e3 : 0;
}

static cJSON *nccl_object(const struct perf_run *run, const struct perf_row *row)
{
	cJSON *object = cJSON_CreateObject();
	double best = row->best < 0 ? 0 : row->others[row->best].median_us;
	add_text(object, "best", row->best < 0 ? NULL : run->nccl->settings[row->best].name);
	add_positive(object, "us", best);
	add_positive(object, "algbw", algbw_of(row, best));
	cJSON *settings = cJSON_AddArrayToObject(object, "settings");
	for (unsigned i = 0; i < run->nccl->count; i++) {
		cJSON *setting = cJSON_CreateObject();
		cJSON_AddStringToObject(setting, "name", run->nccl->settings[i].name);
		add_positive(setting, "us", row->others[i].median_us);
		add_positive(setting, "us_low_quartile", row->others[i].low_us);
		add_positive(setting, "us_high_quartile", row->others[i].high_us);
		add_positive(setting, "algbw", algbw_of(row, row->others[i].median_us));
		cJSON_AddNumberToObject(setting, "samples", row->other_samples[i]);
		if (!row->other_samples[i])
			add_text(setting, "unsupported", run->nccl->settings[i].refused);
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
	cJSON_AddStringToObject(object, "op",
	                        ferry_collective_reduces(options->collective) ? ferry_redop_name(options->op) : "none");
	cJSON_AddNumberToObject(object, "ranks", run->nranks);
	cJSON_AddNumberToObject(object, "bytes", (double)row->bytes);
	cJSON_AddBoolToObject(object, "in_place", row->in_place);
	cJSON_AddNumberToObject(object, "samples", row->samples);
	cJSON_AddNumberToObject(object, "calls_per_sample", row->calls);
	cJSON_AddNumberToObject(object, "pause_us", options->pause_us);
	cJSON_AddNumberToObject(object, "time_us", row->time.median_us);
	cJSON_AddNumberToObject(object, "time_us_low_quartile", row->time.low_us);
	cJSON_AddNumberToObject(object, "time_us_high_quartile", row->time.high_us);
	cJSON_AddNumberToObject(object, "algbw", row->algbw);
	cJSON_AddNumberToObject(object, "busbw", row->busbw);
	add_positive(object, "limit_algbw", row->limit_algbw);
	cJSON_AddNumberToObject(object, "cpu_cores", row->cores);
	cJSON_AddNumberToObject(object, "cpu_cores_without_callers", row->engine_cores);
	add_positive(object, "workers_at_work", row->workers);
	if (row->wrong >= 0)
		cJSON_AddNumberToObject(object, "wrong", (double)row->wrong);
	else
		cJSON_AddNullToObject(object, "wrong");
	if (run->peer) {
		cJSON_AddStringToObject(object, "peer", run->peer->name);
		cJSON_AddNumberToObject(object, "peer_time_us", row->others[0].median_us);
		cJSON_AddNumberToObject(object, "ratio", row->others[0].median_us / row->time.median_us);
	}
	if (run->nccl) {
		cJSON_AddItemToObject(object, "nccl", nccl_object(run, row));
		add_positive(object, "ratio", row->best < 0 ? 0 : row->others[row->best].median_us / row->time.median_us);
	}
	return object;
}

bool perf_can_write(const char *name)
{
	char neighbour[PATH_MAX + 16];
	struct stat status;
	if (!strcmp(name, "-"))
		return true;
	if (!lstat(name, &status)) {
		if (access(name, W_OK) || stat(name, &status))
			return false;
		errno = EISDIR;
		return !S_ISDIR(status.st_mode);
	}
	if (errno != ENOENT || !*name)
		return false;
	snprintf(neighbour, sizeof neighbour, "%s.%ld", name, (long)getpid()); /* the file is not there until there is something in it */
	int file = open(neighbour, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (file < 0)
		return false;
	close(file);
	return !unlink(neighbour);
}

bool perf_print_beside(const char *json)
{
	if (!json || strcmp(json, "-"))
		return true;
	int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	standard_output = copy < 0 ? NULL : fdopen(copy, "w");
	return standard_output && dup2(STDERR_FILENO, STDOUT_FILENO) == STDOUT_FILENO;
}

bool perf_write_file(const char *name, const char *text, bool last)
{
	if (!strcmp(name, "-"))
		return !last || (fprintf(standard_output, "%s\n", text) > 0 && !fflush(standard_output));
	char neighbour[PATH_MAX + 16], *target = realpath(name, NULL); /* what a link leads to is replaced, not the link */
	struct stat status;
	bool plain = stat(name, &status) || S_ISREG(status.st_mode);
	if (!plain && !last) {
		free(target);
		return true;
	}
	snprintf(neighbour, sizeof neighbour, "%s.%ld", target ? target : name, (long)getpid());
	FILE *file = plain ? fopen(neighbour, "w") : NULL;
	bool beside = file != NULL;
	if (!beside) /* a device, a pipe, or a file in a folder that takes no other */
		file = fopen(name, "w");
	bool written = file && fprintf(file, "%s\n", text) > 0;
	if (file && fclose(file))
		written = false;
	if (written && beside && rename(neighbour, target ? target : name))
		written = false;
	int error = errno;
	if (beside && !written)
		unlink(neighbour);
	free(target);
	errno = error;
	return written;
}

bool perf_write_json(const struct perf_run *run, const struct perf_row *rows, size_t count, bool complete)
{
	cJSON *whole = cJSON_CreateObject();
	cJSON_AddItemToObject(whole, "about", about_run(run, complete));
	cJSON *array = cJSON_AddArrayToObject(whole, "rows");
	for (size_t i = 0; i < count; i++)
		cJSON_AddItemToArray(array, row_object(run, &rows[i]));
	char *text = cJSON_Print(whole);
	bool written = text && perf_write_file(run->options->json, text, complete);
	if (!written)
		fprintf(stderr, "ferry-perf: writing %s: %s\n", run->options->json, strerror(errno));
	free(text);
	cJSON_Delete(whole);
	return written;
}
