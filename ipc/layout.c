/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/layout.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/machine.h"
#include "ipc/process.h"

#include <ctype.h>
#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

/* ---- the override ---- */

static ferryResult_t find_caches(struct ferry_layout *layout)
{
	struct hwloc_topology *machine = ferry_machine_here();
	if (machine)
		ferry_machine_find_caches(machine, layout->domains, layout->ndomains);
	return machine ? ferrySuccess : ferrySystemError;
}

struct parser {
	const char *text, *next;
	struct ferry_layout *layout;
};

static ferryResult_t unexpected(const struct parser *parser, const char *expected)
{
	return ferry_fail(ferryInvalidArgument,
	                  "FERRY_LAYOUT \"%.200s\": at character %zu: expected %s, found \"%.20s\"", parser->text,
	                  (size_t)(parser->next - parser->text) + 1, expected, parser->next);
}

static void skip_space(struct parser *parser)
{
	while (isspace((unsigned char)*parser->next))
		parser->next++;
}

static bool read_number(struct parser *parser, long most, long *value)
{
	char *end;
	if (!isdigit((unsigned char)*parser->next))
		return false;
	errno = 0;
	*value = strtol(parser->next, &end, 10);
	if (errno || *value > most)
		return false;
	parser->next = end;
	return true;
}

/* "0-3,8": calls `take` for each number; false where the list is malformed or `take` refuses. */
static bool read_list(struct parser *parser, long most, bool (*take)(struct parser *, uint32_t domain, long),
                      uint32_t domain)
{
	long first, last;
	do {
		if (!read_number(parser, most, &first))
			return false;
		last = first;
		if (*parser->next == '-') {
			parser->next++;
			if (!read_number(parser, most, &last) || last < first)
				return false;
		}
		for (long i = first; i <= last; i++)
			if (!take(parser, domain, i))
				return false;
	} while (*parser->next == ',' && parser->next++);
	return true;
}

static bool take_cpu(struct parser *parser, uint32_t domain, long cpu)
{
	CPU_SET((size_t)cpu, &parser->layout->domains[domain].cpus);
	return true;
}

static bool take_device(struct parser *parser, uint32_t domain, long device)
{
	if (parser->layout->device_domain[device] != 0xff)
		return false;
	parser->layout->device_domain[device] = (uint8_t)domain;
	parser->layout->devices_given = true;
	return true;
}

static ferryResult_t parse_domain(struct parser *parser)
{
	struct ferry_layout *layout = parser->layout;
	uint32_t domain = layout->ndomains;
	long number;
	skip_space(parser);
	if (domain == FERRY_MAX_DOMAINS)
		return ferry_fail(ferryInvalidArgument, "FERRY_LAYOUT \"%.200s\": more than %d domains", parser->text,
		                  FERRY_MAX_DOMAINS);
	if (!read_number(parser, domain, &number) || number != domain)
		return unexpected(parser, "the number of the next domain, counted from 0");
	if (*parser->next++ != ':')
		return parser->next--, unexpected(parser, "':'");
	layout->domains[domain].node = -1;
	layout->ndomains++;
	while (skip_space(parser), *parser->next && *parser->next != ';') {
		bool good;
		if (!strncmp(parser->next, "cpus=", 5)) {
			parser->next += 5;
			good = read_list(parser, CPU_SETSIZE - 1, take_cpu, domain);
		} else if (!strncmp(parser->next, "node=", 5)) {
			parser->next += 5;
			good = read_number(parser, 1023, &number);
			layout->domains[domain].node = (int)number;
		} else if (!strncmp(parser->next, "devices=", 8)) {
			parser->next += 8;
			good = read_list(parser, FERRY_MAX_DEVICES - 1, take_device, domain);
		} else {
			return unexpected(parser, "cpus=LIST, node=N, devices=LIST or ';'");
		}
		if (!good)
			return unexpected(parser, "a list such as 0-3,8 of numbers in range, each device once");
	}
	if (!CPU_COUNT(&layout->domains[domain].cpus))
		return ferry_fail(ferryInvalidArgument, "FERRY_LAYOUT \"%.200s\": domain %u has no cpus=LIST",
		                  parser->text, domain);
	return ferrySuccess;
}

static void layout_clear(struct ferry_layout *layout)
{
	memset(layout, 0, sizeof *layout);
	memset(layout->device_domain, 0xff, sizeof layout->device_domain);
}

ferryResult_t ferry_layout_parse(const char *text, struct ferry_layout *layout)
{
	struct parser parser = {text, text, layout};
	layout_clear(layout);
	do {
		ferryResult_t result = parse_domain(&parser);
		if (result)
			return result;
		skip_space(&parser);
	} while (*parser.next == ';' && parser.next++ && (skip_space(&parser), *parser.next));
	if (*parser.next)
		return unexpected(&parser, "';' or the end");
	snprintf(layout->source, sizeof layout->source, "FERRY_LAYOUT");
	return find_caches(layout);
}

/* ---- equal parts, and the machine ---- */

static ferryResult_t split_equally(uint32_t ndomains, const cpu_set_t *usable, struct ferry_layout *layout)
{
	struct hwloc_topology *machine = ferry_machine_here();
	layout_clear(layout);
	layout->ndomains = ndomains;
	snprintf(layout->source, sizeof layout->source, "FERRY_DOMAINS=%u", ndomains);
	if (!machine)
		return ferrySystemError;
	ferry_machine_split(machine, usable, layout->domains, ndomains);
	return find_caches(layout);
}

ferryResult_t ferry_layout_partition(struct hwloc_topology *machine, const cpu_set_t *usable,
                                     struct ferry_layout *layout)
{
	layout_clear(layout);
	ferryResult_t result = ferry_machine_partition(machine, usable, layout->domains, &layout->ndomains);
	ferry_machine_find_caches(machine, layout->domains, layout->ndomains);
	snprintf(layout->source, sizeof layout->source, "hwloc");
	return result;
}

static ferryResult_t load(const cpu_set_t *usable, struct ferry_layout *layout)
{
	const char *override = ferry_env("FERRY_LAYOUT");
	long ndomains;
	ferryResult_t result = ferry_env_integer("FERRY_DOMAINS", 1, FERRY_MAX_DOMAINS, 0, &ndomains);
	if (result)
		return result;
	if (override)
		return ferry_layout_parse(override, layout);
	if (ndomains)
		return split_equally((uint32_t)ndomains, usable, layout);
	struct hwloc_topology *machine = ferry_machine_here();
	return machine ? ferry_layout_partition(machine, usable, layout) : ferrySystemError;
}

static ferryResult_t load_for(const cpu_set_t *usable, struct ferry_layout *layout)
{
	ferryResult_t result = load(usable, layout);
	if (result)
		return result;
	int node = layout->domains[0].node;
	layout->together = node >= 0 || ferry_machine_has_one_node();
	for (uint32_t domain = 1; domain < layout->ndomains; domain++)
		layout->together &= layout->domains[domain].node == node;
	return ferrySuccess;
}

ferryResult_t ferry_layout_load(struct ferry_layout *layout)
{
	cpu_set_t usable;
	if (sched_getaffinity(0, sizeof usable, &usable))
		memset(&usable, 0xff, sizeof usable);
	return load_for(&usable, layout);
}

ferryResult_t ferry_layout_load_whole(struct ferry_layout *layout)
{
	cpu_set_t usable, own;
	bool widened = ferry_process_widen(&own);
	if (sched_getaffinity(0, sizeof usable, &usable))
		memset(&usable, 0xff, sizeof usable);
	if (widened)
		ferry_process_narrow(&own);
	return load_for(&usable, layout);
}

uint32_t ferry_layout_device_domain(const struct ferry_layout *layout, uint32_t ordinal, uint32_t ndevices)
{
	if (layout->devices_given && ordinal < FERRY_MAX_DEVICES && layout->device_domain[ordinal] != 0xff)
		return layout->device_domain[ordinal];
	if (ndevices <= ordinal)
		ndevices = ordinal + 1;
	return (uint32_t)((uint64_t)ordinal * layout->ndomains / ndevices);
}

int ferry_layout_node_domain(const struct ferry_layout *layout, int node)
{
	int found = -1;
	cpu_set_t near, both;
	if (layout->ndomains == 1 || layout->devices_given || node < 0)
		return -1;
	ferry_machine_node_cpus(node, &near);
	for (uint32_t domain = 0; domain < layout->ndomains; domain++) {
		CPU_AND(&both, &near, &layout->domains[domain].cpus);
		if (layout->domains[domain].node != node && !CPU_COUNT(&both))
			continue;
		if (found >= 0)
			return -1;
		found = (int)domain;
	}
	return found;
}

ferryResult_t ferry_layout_pin(const struct ferry_layout *layout, uint32_t domain)
{
	if (!sched_setaffinity(0, sizeof layout->domains[domain].cpus, &layout->domains[domain].cpus))
		return ferrySuccess;
	if (errno != EINVAL)
		return ferry_fail(ferrySystemError, "pinning to domain %u: %s", domain, strerror(errno));
	ferry_log(FERRY_LOG_WARN, "domain %u has no CPU that this process may use (layout from %s): not pinned", domain,
	          layout->source);
	return ferrySuccess;
}

static size_t print_cpus(const cpu_set_t *cpus, char *text, size_t bytes)
{
	size_t length = 0;
	const char *comma = "";
	for (int cpu = 0; cpu < CPU_SETSIZE && length < bytes; cpu++) {
		int last = cpu;
		if (!CPU_ISSET((size_t)cpu, cpus))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET((size_t)last + 1, cpus))
			last++;
		length += (size_t)snprintf(text + length, bytes - length, last > cpu ? "%s%d-%d" : "%s%d", comma, cpu,
		                           last);
		comma = ",";
		cpu = last;
	}
	return length < bytes ? length : bytes;
}

void ferry_layout_print(const struct ferry_layout *layout, char *text, size_t bytes)
{
	size_t length = 0;
	for (uint32_t domain = 0; domain < layout->ndomains && length < bytes; domain++) {
		const struct ferry_domain *one = &layout->domains[domain];
		const char *comma = "";
		length += (size_t)snprintf(text + length, bytes - length, "%s%u: cpus=", domain ? "; " : "", domain);
		if (length < bytes)
			length += print_cpus(&one->cpus, text + length, bytes - length);
		if (one->node >= 0 && length < bytes)
			length += (size_t)snprintf(text + length, bytes - length, " node=%d", one->node);
		for (int device = 0; device < FERRY_MAX_DEVICES && length < bytes; device++)
			if (layout->device_domain[device] == domain) {
				length += (size_t)snprintf(text + length, bytes - length, "%s%d",
				                           *comma ? comma : " devices=", device);
				comma = ",";
			}
	}
}
