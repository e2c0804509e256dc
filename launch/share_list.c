/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/share_list.h"

#include "ipc/attach.h"
#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/shares.h"
#include "launch/sockets.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 1

/* The word behind NAME= in a line of such words; "" where there is none. */
static const char *value_of(const char *line, const char *name, char *value, size_t bytes)
{
	size_t length = strlen(name);
	value[0] = '\0';
	for (const char *at = line; (at = strstr(at, name)); at += length)
		if ((at == line || at[-1] == ' ') && at[length] == '=') {
			snprintf(value, bytes, "%.*s", (int)strcspn(at + length + 1, " "), at + length + 1);
			return value;
		}
	return value;
}

static double number_of(const char *line, const char *name)
{
	char value[32];
	return strtod(value_of(line, name, value, sizeof value), NULL);
}

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
	for (int c = 0; c < FERRY_NUM_CARRIERS; c++)
		fprintf(out, "  %4s (us + at GB/s)", ferry_carrier_name((enum ferry_carrier)c));
	fprintf(out, " %9s %8s  %s\n", "CALL us", "SAMPLES", "WHY");
}

static void print_carrier(const char *line, const char *carrier, FILE *out)
{
	char name[24];
	double share = number_of(line, carrier);
	snprintf(name, sizeof name, "%s_gbps", carrier);
	if (!(share > 0) && !(number_of(line, name) > 0)) { /* who may have a whole call is shown, too */
		fprintf(out, "  %19s", "-");
		return;
	}
	fprintf(out, "  %5.1f%%", 100 * share);
	snprintf(name, sizeof name, "%s_us", carrier);
	fprintf(out, " %5.0f", number_of(line, name));
	snprintf(name, sizeof name, "%s_gbps", carrier);
	fprintf(out, " %6.1f", number_of(line, name));
}

static void print_row(const char *line, FILE *out)
{
	char job[16], collective[24], type[16], why[16];
	fprintf(out, "%-6s %-13s %-7s", value_of(line, "job", job, sizeof job),
	        value_of(line, "collective", collective, sizeof collective), value_of(line, "type", type, sizeof type));
	print_size(number_of(line, "bytes"), out);
	for (int c = 0; c < FERRY_NUM_CARRIERS; c++)
		print_carrier(line, ferry_carrier_name((enum ferry_carrier)c), out);
	fprintf(out, " %9.1f %8.0f  %s%s%s\n", number_of(line, "us"), number_of(line, "samples"),
	        value_of(line, "why", why, sizeof why), number_of(line, "whole") > 0 ? ", whole" : "",
	        number_of(line, "in_place") > 0 ? ", in place" : "");
}

/* All that the line says, numbers as such, and the time. */
static void print_json(const char *line, FILE *out)
{
	struct timespec now;
	cJSON *object = cJSON_CreateObject();
	clock_gettime(CLOCK_REALTIME, &now);
	cJSON_AddNumberToObject(object, "time", (double)now.tv_sec + (double)now.tv_nsec / 1e9);
	for (const char *at = line; *at; at += strspn(at, " ")) {
		char name[32], value[64], *end;
		size_t word = strcspn(at, " "), length = strcspn(at, "= ");
		snprintf(name, sizeof name, "%.*s", (int)length, at);
		snprintf(value, sizeof value, "%.*s", length < word ? (int)(word - length - 1) : 0,
		         length < word ? at + length + 1 : "");
		double number = strtod(value, &end);
		if (*value && !*end && strcmp(name, "job"))
			cJSON_AddNumberToObject(object, name, number);
		else
			cJSON_AddStringToObject(object, name, value);
		at += word;
	}
	char *text = cJSON_PrintUnformatted(object);
	if (text)
		fprintf(out, "%s\n", text);
	free(text);
	cJSON_Delete(object);
}

/* All lines of one router; how many there are. */
static size_t print_router(const struct ferry_socket *socket, bool json, bool head, FILE *out)
{
	struct ferry_deadline deadline = ferry_deadline_for(PATIENCE_S, NULL);
	char line[512];
	int connection;
	size_t count = 0;
	if (ferry_endpoint_connect_within(socket->path, &connection, &deadline))
		return 0;
	for (uint64_t from = 0; !ferry_attach_ask_status(connection, FERRY_STATUS_SHARES, from, line, sizeof line);
	     count++) {
		uint64_t number = strtoull(line + strcspn(line, "0123456789"), NULL, 10);
		if (!*line || number < from)
			break;
		if (!json && head && !count)
			print_head(out);
		if (json)
			print_json(line, out);
		else
			print_row(line, out);
		from = number + 1;
	}
	close(connection);
	return count;
}

ferryResult_t ferry_share_list_print(bool json, FILE *out)
{
	struct ferry_sockets sockets;
	size_t count = 0;
	ferryResult_t result = ferry_sockets_find(&sockets);
	for (size_t i = 0; i < sockets.count && !result; i++)
		count += print_router(&sockets.all[i], json, !count, out);
	if (!result && !count && !json)
		fprintf(out, "No job of this user's divides calls between fabrics.\n");
	ferry_sockets_free(&sockets);
	return result;
}
