/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/limits/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void limits_progress(const char *format, ...)
{
	char text[128];
	va_list values;
	if (!isatty(STDERR_FILENO))
		return;
	va_start(values, format);
	vsnprintf(text, sizeof text, format, values);
	va_end(values);
	fprintf(stderr, *text ? "\r# %-76.76s" : "\r%78s\r", text);
	fflush(stderr);
}
