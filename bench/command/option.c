/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/option.h"

#include "bench/command/record.h"
#include "ipc/collective.h"
#include "ipc/environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

long option_number(const char *value, long least, long most, const char *name, struct argp_state *state)
{
	char *end;
	errno = 0;
	long number = strtol(value, &end, 10);
	if (errno || end == value || *end || number < least || number > most)
		argp_error(state, "%s: \"%s\" is not a number from %ld to %ld", name, value, least, most);
	return number;
}

bool option_take_number(const struct number_option *numbers, int key, const char *value, struct argp_state *state)
{
	while (numbers->name && numbers->key != key)
		numbers++;
	if (!numbers->name)
		return false;
	long got = option_number(value, numbers->least, numbers->most, numbers->name, state);
	*(int32_t *)((char *)state->input + numbers->at) = (int32_t)(got * numbers->times);
	return true;
}

uint64_t option_bytes(const char *value, const char *name, struct argp_state *state)
{
	uint64_t bytes = 0;
	if (!ferry_parse_bytes(value, &bytes) || !bytes || bytes > 1ull << 40)
		argp_error(state, "%s: \"%s\" is no size such as 64K, at most 1024G", name, value);
	return bytes;
}

ferryDataType_t option_type(const char *value, const char *name, struct argp_state *state)
{
	ferryDataType_t type = ferry_type_parse(value);
	if (type == ferryNumTypes)
		argp_error(state, "%s: \"%s\" is none of " OPTION_TYPES, name, value);
	return type;
}

const char *option_record(const char *value, const char *name, struct argp_state *state)
{
	if (!record_can_write(value))
		argp_error(state, "%s %s: %s", name, value, strerror(errno));
	return value;
}
