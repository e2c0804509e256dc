/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trial/skew.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number that ends the text, from 0 to `most`. */
static bool read_number(const char *text, double most, double *number)
{
	char *end;
	*number = strtod(text, &end);
	return end != text && !*end && *number >= 0 && *number <= most;
}

static void heat(struct ferry_skew *skew, int nranks, double hot, bool own)
{
	for (int from = 0; from < nranks; from++) {
		int peer = own ? (from + 1) % nranks : from == 0;
		for (int to = 0; to < nranks; to++)
			if (to != from)
				skew->part[from][to] = nranks == 2 ? 1 : to == peer ? hot : (1 - hot) / (nranks - 2);
	}
}

/* Each other rank is the k-th once; which one it is differs from rank to rank. */
static void fall(struct ferry_skew *skew, int nranks, double exponent)
{
	for (int from = 0; from < nranks; from++)
		for (int k = 1; k < nranks; k++) {
			int to = (from + 1 + (k - 1 + from * from) % (nranks - 1)) % nranks;
			skew->part[from][to] = pow(k, -exponent);
		}
}

/* Scales the parts so that the busiest rank's are 1. False: nobody sends anything. */
static bool scale(struct ferry_skew *skew, int nranks)
{
	double most = 0;
	for (int rank = 0; rank < nranks; rank++) {
		double sends = 0, receives = 0;
		for (int peer = 0; peer < nranks; peer++) {
			sends += skew->part[rank][peer];
			receives += skew->part[peer][rank];
		}
		most = fmax(most, fmax(sends, receives));
	}
	for (int from = 0; from < nranks; from++)
		for (int to = 0; to < nranks; to++)
			skew->part[from][to] /= most > 0 ? most : 1;
	return most > 0 && most < INFINITY;
}

/* One line: as many numbers as ranks. Returns how many it has; -1: something else is there, at *at. */
static int read_line(char *line, int nranks, double *parts, char **at)
{
	int count = 0;
	line[strcspn(line, "#\n")] = '\0';
	for (*at = strtok(line, " \t\r,"); *at; *at = strtok(NULL, " \t\r,")) {
		double number;
		if (!read_number(*at, 1e18, &number))
			return -1;
		if (count < nranks)
			parts[count] = number;
		count++;
	}
	return count;
}

static bool read_file(const char *name, int nranks, struct ferry_skew *skew, char *message, size_t room)
{
	char *line = NULL, *at = NULL;
	size_t bytes = 0;
	int rank = 0, number = 0;
	double surplus[FERRY_MAX_RANKS];
	FILE *file = fopen(name, "r");
	*message = '\0';
	if (!file) {
		snprintf(message, room, "%s: %s; or " FERRY_SKEW_NAMES, name, strerror(errno));
		return false;
	}
	while (!*message && getline(&line, &bytes, file) >= 0) {
		int count = read_line(line, nranks, rank < nranks ? skew->part[rank] : surplus, &at);
		number++;
		if (count < 0)
			snprintf(message, room, "%s:%d: \"%.40s\" is no number from 0 on", name, number, at);
		else if (count && count != nranks)
			snprintf(message, room, "%s:%d: %d numbers for %d ranks", name, number, count, nranks);
		else if (count && rank++ == nranks)
			snprintf(message, room, "%s:%d: a line more than there are ranks, %d", name, number, nranks);
	}
	if (!*message && ferror(file))
		snprintf(message, room, "%s: it cannot be read", name);
	else if (!*message && rank < nranks)
		snprintf(message, room, "%s: lines of %d ranks, and there are %d", name, rank, nranks);
	free(line);
	fclose(file);
	return !*message;
}

/* The text behind `name`; NULL: it begins otherwise. */
static const char *behind(const char *text, const char *name)
{
	return strncmp(text, name, strlen(name)) ? NULL : text + strlen(name);
}

bool ferry_skew_read(const char *text, int nranks, struct ferry_skew *skew, char *message, size_t room)
{
	const char *hot = behind(text, "hot:"), *own = behind(text, "own:"), *zipf = behind(text, "zipf:");
	double number;
	memset(skew, 0, sizeof *skew);
	if (nranks < 2) {
		snprintf(message, room, "uneven traffic takes 2 ranks at least, not %d", nranks);
		return false;
	}
	if (((hot || own) && !read_number(hot ? hot : own, 1, &number)) || (zipf && !read_number(zipf, 10, &number))) {
		snprintf(message, room, "\"%s\": a number from 0 to %d behind the colon", text, zipf ? 10 : 1);
		return false;
	}
	if (hot || own)
		heat(skew, nranks, number, own);
	else if (zipf)
		fall(skew, nranks, number);
	else if (!strcmp(text, "pair"))
		skew->part[0][nranks - 1] = 1;
	else if (!read_file(text, nranks, skew, message, room))
		return false;
	if (scale(skew, nranks))
		return true;
	snprintf(message, room, "%s: nobody sends anything", text);
	return false;
}
