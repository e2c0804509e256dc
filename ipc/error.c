/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 1024

static _Thread_local char message[MESSAGE_BYTES];
static _Atomic int log_level = FERRY_LOG_WARN;

ferryResult_t ferry_fail(ferryResult_t code, const char *format, ...)
{
	char text[MESSAGE_BYTES]; /* an argument may be the message kept so far */
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	memcpy(message, text, sizeof message);
	return code;
}

ferryResult_t ferry_fail_context(ferryResult_t code, const char *format, ...)
{
	char front[MESSAGE_BYTES / 2];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(front, sizeof front, format, arguments);
	va_end(arguments);
	return ferry_fail(code, "%s: %s", front, message);
}

void ferry_forget_message(void)
{
	message[0] = '\0';
}

const char *ferry_last_message(void)
{
	return message;
}

const char *ferry_result_text(ferryResult_t code)
{
	switch (code) {
	case ferrySuccess:
		return "no error";
	case ferryUnhandledDeviceError:
		return "device error";
	case ferrySystemError:
		return "system error";
	case ferryInternalError:
		return "internal error";
	case ferryInvalidArgument:
		return "invalid argument";
	case ferryInvalidUsage:
		return "invalid usage";
	case ferryRemoteError:
		return "remote error: another rank or a router failed or left";
	case ferryInProgress:
		return "in progress";
	case ferryProgramError:
		return "program error";
	case ferryRefused:
		return "refused by a router";
	default:
		return "unknown result code";
	}
}

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void ferry_log_set_level(enum ferry_log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

int ferry_log_parse(const char *text, enum ferry_log_level *level)
{
	for (int i = 0; text && i < 4; i++)
		if (!strcmp(text, level_names[i])) {
			*level = (enum ferry_log_level)i;
			return 1;
		}
	return 0;
}

static void log_line(enum ferry_log_level level, const char *format, va_list arguments)
{
	char text[MESSAGE_BYTES], line[MESSAGE_BYTES + 32];
	vsnprintf(text, sizeof text, format, arguments);
	snprintf(line, sizeof line, "ferry[%d] %s: %s\n", (int)getpid(), level_names[level], text);
	/* In one write, or lines of ranks mix: since glibc 2.37 fprintf writes in parts where there is no buffer. */
	fputs(line, stderr);
}

static bool is_logged(enum ferry_log_level level)
{
	return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void ferry_log(enum ferry_log_level level, const char *format, ...)
{
	va_list arguments;
	if (!is_logged(level))
		return;
	va_start(arguments, format);
	log_line(level, format, arguments);
	va_end(arguments);
}

/* ---- lines that others cause ---- */

/* Of all users with the same index. Two threads that renew it at once may let a few more lines through. */
struct burst {
	_Atomic uint64_t since; /* seconds of CLOCK_MONOTONIC */
	_Atomic uint32_t lines; /* since then, with those left out */
};

#define BURSTS 64

static struct burst bursts[BURSTS];

void ferry_log_limited(uint32_t user, enum ferry_log_level level, const char *format, ...)
{
	struct burst *burst = &bursts[user % BURSTS];
	struct timespec now;
	va_list arguments;
	uint32_t before = 0;
	if (!is_logged(level))
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t second = (uint64_t)now.tv_sec + FERRY_LOG_BURST_S; /* so that it is not 0 at the start */
	if (second - atomic_load_explicit(&burst->since, memory_order_relaxed) >= FERRY_LOG_BURST_S) {
		atomic_store_explicit(&burst->since, second, memory_order_relaxed);
		before = atomic_exchange_explicit(&burst->lines, 0, memory_order_relaxed);
	}
	if (before > FERRY_LOG_BURST)
		ferry_log(level, "%u more lines about clients of uid %u were left out", before - FERRY_LOG_BURST, user);
	if (atomic_fetch_add_explicit(&burst->lines, 1, memory_order_relaxed) >= FERRY_LOG_BURST)
		return;
	va_start(arguments, format);
	log_line(level, format, arguments);
	va_end(arguments);
}
