/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/layout.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <ctype.h>
#include <errno.h>
#include <hwloc.h>
#include <numa.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- caches ---- */

/*
 * The size of the cache of that level over `cpu`, and the CPUs that share it. From sysfs: hwloc would load the whole
 * machine.
 */
static uint64_t cache_of(int cpu, int level, cpu_set_t *shared)
{
	for (int index = 0; index < 10; index++) {
		char path[128], text[512];
		FILE *file;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/level", cpu, index);
		if (!(file = fopen(path, "r")))
			return 0;
		int found = fgets(text, sizeof text, file) && atoi(text) == level;
		fclose(file);
		if (!found)
			continue;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu, index);
		if (!(file = fopen(path, "r")))
			return 0;
		unsigned long long size = 0;
		char unit = 'K';
		if (fgets(text, sizeof text, file))
			sscanf(text, "%llu%c", &size, &unit);
		fclose(file);
		size <<= unit == 'M' ? 20 : unit == 'G' ? 30 : 10;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list", cpu, index);
		CPU_ZERO(shared);
		if ((file = fopen(path, "r"))) {
			char *next = fgets(text, sizeof text, file);
			while (next && isdigit((unsigned char)*next)) {
				long first = strtol(next, &next, 10), last = first;
				if (*next == '-')
					last = strtol(next + 1, &next, 10);
				for (long i = first; i <= last && i < CPU_SETSIZE; i++)
					CPU_SET((size_t)i, shared);
				if (*next == ',')
					next++;
			}
			fclose(file);
		}
		return size;
	}
	return 0;
}

/* Each last-level cache over the domain's CPUs counts by the share of its CPUs that the domain has. */
static void find_caches(struct ferry_domain *domain)
{
	cpu_set_t left = domain->cpus, shared, both;
	domain->ncpus = (uint32_t)CPU_COUNT(&domain->cpus);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET((size_t)cpu, &left))
			continue;
		if (!domain->core_cache_bytes)
			domain->core_cache_bytes = cache_of(cpu, 2, &shared);
		uint64_t size = cache_of(cpu, 3, &shared);
		if (!size)
			size = cache_of(cpu, 2, &shared);
		if (!size || !CPU_COUNT(&shared))
			return;
		CPU_AND(&both, &shared, &domain->cpus);
		domain->cache_bytes += size * (uint64_t)CPU_COUNT(&both) / (uint64_t)CPU_COUNT(&shared);
		CPU_XOR(&left, &left, &both);
		CPU_CLR((size_t)cpu, &left);
	}
}

/* ---- the override ---- */

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
	for (uint32_t domain = 0; domain < layout->ndomains; domain++)
		find_caches(&layout->domains[domain]);
	snprintf(layout->source, sizeof layout->source, "FERRY_LAYOUT");
	return ferrySuccess;
}

static ferryResult_t parse_file_or_text(const char *given, struct ferry_layout *layout)
{
	char text[8192];
	FILE *file = strchr(given, ':') ? NULL : fopen(given, "r");
	if (!file && !strchr(given, ':'))
		return ferry_fail(ferryInvalidArgument,
		                  "FERRY_LAYOUT=%s: neither a layout (\"0: cpus=...\") nor a readable file: %s", given,
		                  strerror(errno));
	if (!file)
		return ferry_layout_parse(given, layout);
	size_t got = fread(text, 1, sizeof text, file);
	int error = ferror(file) ? errno : 0;
	fclose(file);
	if (error || got == sizeof text)
		return ferry_fail(ferryInvalidArgument, "FERRY_LAYOUT=%s: %s", given,
		                  error ? strerror(error) : "a file of over 8191 bytes");
	text[got] = '\0';
	ferryResult_t result = ferry_layout_parse(text, layout);
	return result ? ferry_fail_context(result, "the file %s", given) : ferrySuccess;
}

/* ---- equal parts, and the machine ---- */

static void allowed_cpus(cpu_set_t *cpus)
{
	if (sched_getaffinity(0, sizeof *cpus, cpus) || !CPU_COUNT(cpus)) {
		CPU_ZERO(cpus);
		long count = sysconf(_SC_NPROCESSORS_ONLN);
		for (long i = 0; i < count && i < CPU_SETSIZE; i++)
			CPU_SET((size_t)i, cpus);
	}
}

static void split_equally(uint32_t ndomains, struct ferry_layout *layout)
{
	cpu_set_t cpus;
	layout_clear(layout);
	allowed_cpus(&cpus);
	uint32_t count = (uint32_t)CPU_COUNT(&cpus), seen = 0;
	layout->ndomains = ndomains;
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &cpus))
			continue;
		/* With fewer CPUs than domains several domains share one. */
		for (uint32_t domain = 0; domain < ndomains; domain++)
			if (count >= ndomains ? seen * ndomains / count == domain : domain * count / ndomains == seen)
				CPU_SET(cpu, &layout->domains[domain].cpus);
		seen++;
	}
	for (uint32_t domain = 0; domain < ndomains; domain++) {
		layout->domains[domain].node = -1;
		find_caches(&layout->domains[domain]);
		if (count < ndomains)
			layout->domains[domain].cache_bytes = layout->domains[domain].cache_bytes * count / ndomains;
	}
	snprintf(layout->source, sizeof layout->source, "FERRY_DOMAINS=%u", ndomains);
}

static void domain_from_node(hwloc_topology_t topology, hwloc_obj_t node, bool this_machine, const cpu_set_t *allowed,
                             struct ferry_domain *domain)
{
	unsigned cpu;
	memset(domain, 0, sizeof *domain);
	domain->node = (int)node->os_index;
	hwloc_bitmap_foreach_begin(cpu, node->cpuset)
		if (cpu < CPU_SETSIZE && (!this_machine || CPU_ISSET(cpu, allowed)))
			CPU_SET(cpu, &domain->cpus);
	hwloc_bitmap_foreach_end();
	domain->ncpus = (uint32_t)CPU_COUNT(&domain->cpus);
	if (this_machine) {
		find_caches(domain);
		return;
	}
	for (int level = 3; level >= 2; level--) {
		hwloc_obj_t cache = NULL;
		hwloc_obj_type_t type = level == 3 ? HWLOC_OBJ_L3CACHE : HWLOC_OBJ_L2CACHE;
		uint64_t sum = 0;
		while ((cache = hwloc_get_next_obj_by_type(topology, type, cache)))
			if (hwloc_bitmap_intersects(cache->cpuset, node->cpuset)) {
				sum += cache->attr->cache.size;
				if (level == 2)
					domain->core_cache_bytes = cache->attr->cache.size;
			}
		if (!domain->cache_bytes)
			domain->cache_bytes = sum;
	}
}

ferryResult_t ferry_layout_from_topology(const char *description, struct ferry_layout *layout)
{
	hwloc_topology_t topology;
	cpu_set_t allowed;
	layout_clear(layout);
	if (hwloc_topology_init(&topology))
		return ferry_fail(ferrySystemError, "hwloc_topology_init: %s", strerror(errno));
	size_t length = description ? strlen(description) : 0;
	bool xml = length > 4 && !strcmp(description + length - 4, ".xml");
	int refused = 0;
	if (description)
		refused = xml ? hwloc_topology_set_xml(topology, description)
		              : hwloc_topology_set_synthetic(topology, description);
	if (refused || hwloc_topology_load(topology)) {
		hwloc_topology_destroy(topology);
		return ferry_fail(ferryInvalidArgument, "FERRY_TOPOLOGY=%s: hwloc cannot read this %s",
		                  description ? description : "",
		                  xml ? "XML file" : "as a synthetic topology (an XML file's name ends with .xml)");
	}
	allowed_cpus(&allowed);
	hwloc_obj_t node = NULL;
	uint32_t found = 0;
	while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node))) {
		struct ferry_domain domain;
		domain_from_node(topology, node, !description, &allowed, &domain);
		found += domain.ncpus > 0; /* memory without CPUs (CXL, GPU memory) has no router */
		if (domain.ncpus && found <= FERRY_MAX_DOMAINS)
			layout->domains[layout->ndomains++] = domain;
	}
	hwloc_topology_destroy(topology);
	if (description && found > FERRY_MAX_DOMAINS)
		return ferry_fail(ferryInvalidArgument,
		                  "FERRY_TOPOLOGY=%s: %u NUMA nodes with CPUs, at most %d are domains", description,
		                  found, FERRY_MAX_DOMAINS);
	if (!layout->ndomains)
		return ferry_fail(ferryInvalidArgument, "%s: no NUMA node with CPUs",
		                  description ? description : "hwloc");
	snprintf(layout->source, sizeof layout->source, "%.20s%.200s", description ? "FERRY_TOPOLOGY=" : "hwloc",
	         description ? description : "");
	return ferrySuccess;
}

static bool machine_has_one_node(void)
{
	return numa_available() < 0 || (numa_max_node() == 0 && numa_num_configured_nodes() == 1);
}

/* One node is what most machines have, and sysfs says so without loading a topology (hwloc takes milliseconds). */
static bool single_node(struct ferry_layout *layout)
{
	if (!machine_has_one_node())
		return false;
	split_equally(1, layout);
	layout->domains[0].node = numa_available() >= 0 ? 0 : -1;
	snprintf(layout->source, sizeof layout->source, "one NUMA node");
	return true;
}

static ferryResult_t load(struct ferry_layout *layout)
{
	const char *override = ferry_env("FERRY_LAYOUT"), *topology = ferry_env("FERRY_TOPOLOGY");
	long ndomains;
	ferryResult_t result = ferry_env_integer("FERRY_DOMAINS", 1, FERRY_MAX_DOMAINS, 0, &ndomains);
	if (result)
		return result;
	if (override)
		return parse_file_or_text(override, layout);
	if (ndomains) {
		split_equally((uint32_t)ndomains, layout);
		return ferrySuccess;
	}
	if (topology)
		return ferry_layout_from_topology(topology, layout);
	return single_node(layout) ? ferrySuccess : ferry_layout_from_topology(NULL, layout);
}

ferryResult_t ferry_layout_load(struct ferry_layout *layout)
{
	ferryResult_t result = load(layout);
	if (result)
		return result;
	int node = layout->domains[0].node;
	layout->together = node >= 0 || (!ferry_env("FERRY_TOPOLOGY") && machine_has_one_node());
	for (uint32_t domain = 1; domain < layout->ndomains; domain++)
		layout->together &= layout->domains[domain].node == node;
	return ferrySuccess;
}

uint32_t ferry_layout_device_domain(const struct ferry_layout *layout, uint32_t ordinal, uint32_t ndevices)
{
	if (layout->devices_given && ordinal < FERRY_MAX_DEVICES && layout->device_domain[ordinal] != 0xff)
		return layout->device_domain[ordinal];
	if (ndevices <= ordinal)
		ndevices = ordinal + 1;
	return (uint32_t)((uint64_t)ordinal * layout->ndomains / ndevices);
}

ferryResult_t ferry_layout_pin(const struct ferry_layout *layout, uint32_t domain)
{
	struct bitmask *mask = numa_allocate_cpumask();
	cpu_set_t here;
	bool any = false;
	allowed_cpus(&here);
	for (size_t cpu = 0; cpu < CPU_SETSIZE && cpu < mask->size; cpu++)
		if (CPU_ISSET(cpu, &layout->domains[domain].cpus) && CPU_ISSET(cpu, &here)) {
			numa_bitmask_setbit(mask, (unsigned)cpu);
			any = true;
		}
	int refused = any ? numa_sched_setaffinity(0, mask) : 0;
	numa_bitmask_free(mask);
	if (!any)
		ferry_log(FERRY_LOG_WARN, "domain %u has no CPU that this process may use (layout from %s): not pinned",
		          domain, layout->source);
	return refused ? ferry_fail(ferrySystemError, "pinning to domain %u: %s", domain, strerror(errno))
	               : ferrySuccess;
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
