/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static FILE *standard_output; /* a copy of it, where the record goes there; else NULL */
static int output_error;      /* errno of the first write to standard output that failed; 0: none has */

bool record_can_write(const char *name)
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
	/* The file itself is made only when there is something to write. */
	snprintf(neighbour, sizeof neighbour, "%s.%ld", name, (long)getpid());
	int file = open(neighbour, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return file >= 0 && !close(file) && !unlink(neighbour);
}

bool record_print_beside(const char *command, const char *name)
{
	if (!name || strcmp(name, "-"))
		return true;
	int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	standard_output = copy < 0 ? NULL : fdopen(copy, "w");
	if (standard_output && dup2(STDERR_FILENO, STDOUT_FILENO) == STDOUT_FILENO)
		return true;
	fprintf(stderr, "%s: --json -: %s\n", command, strerror(errno));
	return false;
}

/*
 * Writes a file beside it that takes its name; else the file itself: a device, a pipe, or in a folder that takes no
 * other.
 */
static bool replace(const char *name, const char *text, bool last)
{
	char neighbour[PATH_MAX + 16],
	        *target = realpath(name, NULL); /* what a link leads to is replaced, not the link */
	struct stat status;
	bool plain = stat(name, &status) || S_ISREG(status.st_mode);
	snprintf(neighbour, sizeof neighbour, "%s.%ld", target ? target : name, (long)getpid());
	FILE *file = plain ? fopen(neighbour, "w") : NULL;
	bool beside = file != NULL;
	if (!beside && (plain || last))
		file = fopen(name, "w");
	bool written = file ? fprintf(file, "%s\n", text) > 0 : !plain && !last;
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

bool record_write(const char *command, const char *name, cJSON *whole, bool last)
{
	char *text = cJSON_Print(whole);
	bool written = text != NULL;
	if (written && strcmp(name, "-"))
		written = replace(name, text, last);
	else if (written && last)
		written = fprintf(standard_output, "%s\n", text) > 0 && !fflush(standard_output);
	if (!written)
		fprintf(stderr, "%s: writing %s: %s\n", command, name, strerror(errno));
	free(text);
	cJSON_Delete(whole);
	return written;
}

void record_flush(void)
{
	if (fflush(stdout) && !output_error)
		output_error = errno;
}

bool record_printed(const char *command)
{
	record_flush();
	if (!output_error && !ferror(stdout))
		return true;
	fprintf(stderr, "%s: standard output: %s\n", command, strerror(output_error ? output_error : EIO));
	return false;
}
