/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/share_list.h"

#include "ipc/collective.h"
#include "ipc/shares.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <time.h>

static void print_size(double bytes, FILE *out)
{
	static const char units[] = "BKMGT";
	int unit = 0;
	for (; bytes >= 1000 && unit < 4; unit++)
		bytes /= 1024;
	fprintf(out, unit && bytes < 100 ? " %6.1f%c" : " %6.0f%c", bytes, units[unit]);
}

static void print_head(FILE *out)
{
	fprintf(out, "%-6s %-13s %-7s %7s", "JOB", "COLLECTIVE", "TYPE", "SIZE");
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		fprintf(out, " %7s", ferry_fabric_name((enum ferry_fabric)c));
	fprintf(out, " %6s %10s %10s %8s  %s\n", "TUNING", "NCCL us", "FERRY us", "CALLS", "WHY");
}

/* Returns a fabric's part of a call; 0 if a kernel carries the call. */
static double part_of(const struct ferry_share_line *line, int fabric)
{
	return line->why == FERRY_BALANCE_KERNEL
	               ? 0
	               : (double)ferry_shares_unpack(line->word).part[fabric] / FERRY_SHARES_WHOLE;
}

static void print_us(double us, FILE *out)
{
	if (us > 0)
		fprintf(out, " %10.1f", us);
	else
		fprintf(out, " %10s", "-");
}

static void print_row(const struct ferry_share_counters *row, const struct ferry_share_line *line, FILE *out)
{
	fprintf(out, "%06x %-13s %-7s", (unsigned)row->job,
	        ferry_collective_name((enum ferry_collective)line->collective),
	        ferry_type_name((ferryDataType_t)line->type));
	print_size((double)line->bytes, out);
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		fprintf(out, " %6.1f%%", 100 * part_of(line, c));
	fprintf(out, " %6u", ferry_shares_tuning(line->word));
	print_us(line->nccl_us, out);
	print_us(line->ferry_us, out);
	fprintf(out, " %8u  %s%s\n", line->calls, ferry_balance_name((enum ferry_balance)line->why),
	        line->in_place ? ", in place" : "");
}

/* Adds a number with so many digits behind the point. */
static void add_rounded(cJSON *object, const char *name, const char *suffix, double value, int digits)
{
	char text[48], whole[32];
	snprintf(text, sizeof text, "%.*f", digits, value);
	snprintf(whole, sizeof whole, "%s%s", name, suffix);
	cJSON_AddNumberToObject(object, whole, strtod(text, NULL));
}

/* Prints the whole line, and the time. */
static void print_json(const struct ferry_share_counters *row, const struct ferry_share_line *line, FILE *out)
{
	struct timespec now;
	char job[16];
	cJSON *object = cJSON_CreateObject();
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(job, sizeof job, "%06x", (unsigned)row->job);
	cJSON_AddNumberToObject(object, "time", (double)now.tv_sec + (double)now.tv_nsec / 1e9);
	cJSON_AddNumberToObject(object, "number", (double)row->number);
	cJSON_AddStringToObject(object, "job", job);
	cJSON_AddStringToObject(object, "collective",
	                        ferry_collective_name((enum ferry_collective)line->collective));
	cJSON_AddStringToObject(object, "type", ferry_type_name((ferryDataType_t)line->type));
	cJSON_AddNumberToObject(object, "bytes", (double)line->bytes);
	cJSON_AddStringToObject(object, "why", ferry_balance_name((enum ferry_balance)line->why));
	cJSON_AddNumberToObject(object, "calls", line->calls);
	add_rounded(object, "nccl", "_us", line->nccl_us, 1);
	add_rounded(object, "ferry", "_us", line->ferry_us, 1);
	cJSON_AddNumberToObject(object, "in_place", line->in_place);
	cJSON_AddNumberToObject(object, "tuning", ferry_shares_tuning(line->word));
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		add_rounded(object, ferry_fabric_name((enum ferry_fabric)c), "", part_of(line, c), 4);
	char *text = cJSON_PrintUnformatted(object);
	if (text)
		fprintf(out, "%s\n", text);
	free(text);
	cJSON_Delete(object);
}

void ferry_share_list_print(const struct ferry_report *report, bool json, FILE *out)
{
	size_t count = 0;
	for (size_t i = 0; i < report->nrouters; i++) {
		const struct ferry_counters *counters = report->routers[i].counters;
		for (uint32_t j = 0; counters && j < counters->nshare_rows; j++) {
			struct ferry_share_line line;
			if (!ferry_share_line_read(&counters->share_rows[j].line, &line))
				continue;
			if (!json && !count++)
				print_head(out);
			(json ? print_json : print_row)(&counters->share_rows[j], &line, out);
		}
	}
	if (!count && !json)
		fprintf(out, "No job of this user's divides calls between fabrics.\n");
}
