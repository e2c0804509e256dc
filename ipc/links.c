/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/links.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define SLOWEST 1e-6 /* GB/s */
#define FASTEST 1e5
#define EXPECTED                                                                                                       \
	"expected, separated by commas, d2h=GBPS, h2d=GBPS, peer=GBPS, peer@A-B=GBPS, port=GBPS, links=dgx1v:GBPS, "   \
	"links=nvswitch:GBPS or links=pcie2:GBPS[:GBPS], and devices=A,B,..."

/* The text being read; `rest` is the part that is left. */
struct reader {
	const char *name, *text, *rest;
	struct ferry_host_links *machine;
	double port; /* below 0: not given */
	bool links_given;
	float pair[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* peer@A-B; below 0: not given */
};

static ferryResult_t refuse(const struct reader *reader, const char *at, const char *expected)
{
	return ferry_fail(ferryInvalidArgument, "%s=%s: %s, at \"%s\"", reader->name, reader->text, expected, at);
}

static bool take(struct reader *reader, const char *word)
{
	size_t length = strlen(word);
	if (strncmp(reader->rest, word, length))
		return false;
	reader->rest += length;
	return true;
}

/* GB/s; 0 only where a link may be missing. */
static ferryResult_t read_speed(struct reader *reader, bool may_be_none, double *speed)
{
	char *end;
	const char *at = reader->rest;
	*speed = strtod(at, &end);
	if (end == at || isspace((unsigned char)*at) ||
	    !((*speed >= SLOWEST && *speed <= FASTEST) || (may_be_none && *speed == 0)))
		return refuse(reader, at, may_be_none ? "expected GB/s from 1e-6 to 1e5, or 0 for no link"
		                                      : "expected GB/s from 1e-6 to 1e5");
	reader->rest = end;
	return ferrySuccess;
}

static ferryResult_t read_once(struct reader *reader, const char *at, bool given, double *speed)
{
	return given ? refuse(reader, at, "expected each setting once") : read_speed(reader, false, speed);
}

static ferryResult_t read_device(struct reader *reader, uint32_t *device)
{
	char *end;
	const char *at = reader->rest;
	unsigned long number = strtoul(at, &end, 10);
	if (!isdigit((unsigned char)*at) || number >= FERRY_MAX_RANKS)
		return refuse(reader, at, "expected a device from 0 to 63");
	reader->rest = end;
	*device = (uint32_t)number;
	return ferrySuccess;
}

/* Behind "peer@": A-B=GBPS. */
static ferryResult_t read_pair(struct reader *reader, const char *at)
{
	uint32_t a, b;
	double speed;
	ferryResult_t result = read_device(reader, &a);
	if (!result && !take(reader, "-"))
		result = refuse(reader, at, "expected peer@A-B=GBPS");
	if (!result)
		result = read_device(reader, &b);
	if (!result && (a == b || !take(reader, "=")))
		result = refuse(reader, at, "expected peer@A-B=GBPS of two devices");
	if (!result && reader->pair[a][b] >= 0)
		result = refuse(reader, at, "expected each pair once");
	if (!result)
		result = read_speed(reader, true, &speed);
	if (result)
		return result;
	reader->pair[a][b] = reader->pair[b][a] = (float)speed;
	return ferrySuccess;
}

/* Behind "devices=". No setting begins with a digit, so the list ends before the first thing that does not. */
static ferryResult_t read_devices(struct reader *reader, const char *at)
{
	struct ferry_host_links *machine = reader->machine;
	uint32_t device;
	if (machine->nplaced)
		return refuse(reader, at, "expected each setting once");
	do {
		const char *here = reader->rest;
		ferryResult_t result = read_device(reader, &device);
		if (result)
			return result;
		if (memchr(machine->placed, (int)device, machine->nplaced))
			return refuse(reader, here, "expected each device once");
		machine->placed[machine->nplaced++] = (uint8_t)device;
	} while (*reader->rest == ',' && isdigit((unsigned char)reader->rest[1]) && reader->rest++);
	return ferrySuccess;
}

/* ---- machines ---- */

static void link_all(struct ferry_host_links *machine, uint32_t ndevices, double speed)
{
	machine->ndevices = ndevices;
	for (uint32_t a = 0; a < ndevices; a++)
		for (uint32_t b = 0; b < ndevices; b++)
			machine->links.speed[a][b] = a == b ? 0 : (float)speed;
}

static void give_ports(struct ferry_host_links *machine, double speed)
{
	for (uint32_t device = 0; device < FERRY_MAX_RANKS; device++)
		machine->links.port[device] = (float)speed;
}

/*
 * NVLinks between each two V100s of a DGX-1: six each. The pairs with two make a ring of all eight, the pairs with one
 * another (Blink, Figure 1; `nvidia-smi topo -m` of such a machine numbers them so).
 */
static void link_dgx1v(struct ferry_host_links *machine, double speed)
{
	static const uint8_t nvlinks[8][8] = {
	        {0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
	        {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1}, {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0},
	};
	machine->ndevices = 8;
	for (uint32_t a = 0; a < 8; a++)
		for (uint32_t b = 0; b < 8; b++)
			machine->links.speed[a][b] = (float)(nvlinks[a][b] * speed);
}

/* Each device's one link to its switch carries all that it sends. */
static void link_pcie2(struct ferry_host_links *machine, double speed, double across)
{
	link_all(machine, 8, speed);
	for (uint32_t a = 0; a < 8; a++)
		for (uint32_t b = 0; b < 8; b++)
			if (a / 4 != b / 4)
				machine->links.speed[a][b] = (float)across;
	give_ports(machine, speed);
}

/* Behind "links=". */
static ferryResult_t read_machine(struct reader *reader, const char *at)
{
	struct ferry_host_links *machine = reader->machine;
	double speed, across;
	bool dgx1v = take(reader, "dgx1v:"), nvswitch = !dgx1v && take(reader, "nvswitch:"),
	     pcie2 = !dgx1v && !nvswitch && take(reader, "pcie2:");
	if (reader->links_given)
		return refuse(reader, at, "expected one of peer= and links=, once");
	if (!dgx1v && !nvswitch && !pcie2)
		return refuse(reader, at, "expected links=dgx1v:GBPS, links=nvswitch:GBPS or links=pcie2:GBPS[:GBPS]");
	reader->links_given = true;
	ferryResult_t result = read_speed(reader, false, &speed);
	across = speed;
	if (!result && pcie2 && take(reader, ":"))
		result = read_speed(reader, false, &across);
	if (result)
		return result;
	if (dgx1v) {
		link_dgx1v(machine, speed);
	} else if (pcie2) {
		link_pcie2(machine, speed, across);
	} else {
		link_all(machine, FERRY_MAX_RANKS, speed);
		give_ports(machine, speed);
	}
	return ferrySuccess;
}

/* ---- settings ---- */

static ferryResult_t read_peer(struct reader *reader, const char *at)
{
	double speed;
	if (reader->links_given)
		return refuse(reader, at, "expected one of peer= and links=, once");
	reader->links_given = true;
	ferryResult_t result = read_speed(reader, false, &speed);
	if (!result)
		link_all(reader->machine, FERRY_MAX_RANKS, speed);
	return result;
}

static ferryResult_t read_setting(struct reader *reader)
{
	struct ferry_host_links *machine = reader->machine;
	const char *at = reader->rest;
	if (take(reader, "d2h="))
		return read_once(reader, at, machine->d2h > 0, &machine->d2h);
	if (take(reader, "h2d="))
		return read_once(reader, at, machine->h2d > 0, &machine->h2d);
	if (take(reader, "port="))
		return read_once(reader, at, reader->port >= 0, &reader->port);
	if (take(reader, "peer@"))
		return read_pair(reader, at);
	if (take(reader, "peer="))
		return read_peer(reader, at);
	if (take(reader, "links="))
		return read_machine(reader, at);
	if (take(reader, "devices="))
		return read_devices(reader, at);
	return refuse(reader, at, EXPECTED);
}

/* Settings of single links and of ports override settings of all, wherever they stand. */
static ferryResult_t settle(struct reader *reader)
{
	struct ferry_host_links *machine = reader->machine;
	bool paired = false;
	for (uint32_t a = 0; a < FERRY_MAX_RANKS; a++)
		for (uint32_t b = 0; b < FERRY_MAX_RANKS; b++) {
			if (reader->pair[a][b] < 0)
				continue;
			if (reader->links_given && (a >= machine->ndevices || b >= machine->ndevices))
				return ferry_fail(ferryInvalidArgument,
				                  "%s=%s: peer@%u-%u: the machine has devices 0 to %u", reader->name,
				                  reader->text, a, b, machine->ndevices - 1);
			machine->links.speed[a][b] = reader->pair[a][b];
			paired = true;
		}
	machine->peers = paired || reader->links_given;
	if (reader->port >= 0 && !machine->peers)
		return ferry_fail(ferryInvalidArgument,
		                  "%s=%s: port= of devices without links: expected peer= or links= "
		                  "too",
		                  reader->name, reader->text);
	if (reader->port >= 0)
		give_ports(machine, reader->port);
	return ferrySuccess;
}

ferryResult_t ferry_host_links_parse(const char *name, const char *text, struct ferry_host_links *machine)
{
	struct reader reader = {.name = name, .text = text, .rest = text, .machine = machine, .port = -1};
	for (uint32_t a = 0; a < FERRY_MAX_RANKS; a++)
		for (uint32_t b = 0; b < FERRY_MAX_RANKS; b++)
			reader.pair[a][b] = -1;
	*machine = (struct ferry_host_links){.ndevices = FERRY_MAX_RANKS};
	do {
		ferryResult_t result = read_setting(&reader);
		if (!result && *reader.rest && *reader.rest != ',')
			result = refuse(&reader, reader.rest, "expected a comma");
		if (result)
			return result;
	} while (*reader.rest++);
	return settle(&reader);
}

ferryResult_t ferry_host_links_load(struct ferry_host_links *machine)
{
	const char *text = ferry_env("FERRY_HOST_LINK");
	if (text)
		return ferry_host_links_parse("FERRY_HOST_LINK", text, machine);
	*machine = (struct ferry_host_links){.ndevices = FERRY_MAX_RANKS};
	return ferrySuccess;
}

ferryResult_t ferry_host_links_place(const char *name, const struct ferry_host_links *machine, uint32_t nranks,
                                     struct ferry_links *links)
{
	uint32_t device[FERRY_MAX_RANKS];
	memset(links, 0, sizeof *links);
	if (!machine->peers)
		return ferrySuccess;
	if (nranks > FERRY_MAX_RANKS || (machine->nplaced && nranks > machine->nplaced))
		return ferry_fail(ferryInvalidArgument, "%s: %u ranks on %u devices", name, nranks,
		                  machine->nplaced ? machine->nplaced : FERRY_MAX_RANKS);
	for (uint32_t rank = 0; rank < nranks; rank++) {
		device[rank] = machine->nplaced ? machine->placed[rank] : rank;
		if (device[rank] >= machine->ndevices)
			return ferry_fail(ferryInvalidArgument,
			                  "%s: rank %u on device %u: the machine has devices 0 to %u", name, rank,
			                  device[rank], machine->ndevices - 1);
	}
	for (uint32_t from = 0; from < nranks; from++) {
		links->port[from] = machine->links.port[device[from]];
		for (uint32_t to = 0; to < nranks; to++)
			links->speed[from][to] = machine->links.speed[device[from]][device[to]];
	}
	return ferrySuccess;
}
