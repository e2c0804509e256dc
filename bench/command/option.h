/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Values of options that several commands take, for their argp parsers: a bad one ends the process with exit code
 * OPTION_EXIT and a message that has it.
 */
#ifndef FERRY_BENCH_OPTION_H
#define FERRY_BENCH_OPTION_H

#include "ipc/ferry_types.h"

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

#define OPTION_EXIT  64
#define OPTION_TYPES "i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2" /* what option_type takes */

/** An integer in [least, most]. */
long option_number(const char *value, long least, long most, const char *name, struct argp_state *state);

/** An option with a number; `times` as much goes to the 32-bit field at `at` of the parser's input. */
struct number_option {
	int key;
	const char *name; /* NULL: the end of the table */
	long least, most, times;
	size_t at;
};

/** Takes the option if it is one of these; false if it is not. */
bool option_take_number(const struct number_option *numbers, int key, const char *value, struct argp_state *state);

/** Bytes, with K, M or G behind them; 1 to 1024G. */
uint64_t option_bytes(const char *value, const char *name, struct argp_state *state);

ferryDataType_t option_type(const char *value, const char *name, struct argp_state *state);

/** The name of a file that can be written, or "-". */
const char *option_record(const char *value, const char *name, struct argp_state *state);

#endif
