/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/links.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define SLOWEST 1e-6 /* GB/s */
#define FASTEST 1e5
#define MOST_BRIDGED 32 /* devices: each has two shared links */
#define EXPECTED_MACHINE                                                                                               \
	"links=dgx1v:GBPS, links=dgx1p:GBPS, links=mesh:GBPS, links=nvswitch:GBPS, links=bridges:GBPS:GBPS[:DEVICES] " \
	"or links=pcie2:GBPS[:GBPS[:GBPS]]"
#define EXPECTED                                                                                                       \
	"expected, separated by commas, d2h=GBPS, h2d=GBPS, peer=GBPS, peer@A-B=GBPS, port=GBPS, " EXPECTED_MACHINE    \
	", and devices=A,B,..."

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
 * NVLinks between each two GPUs of a DGX-1. V100s have six each: the pairs with two make a ring of all eight, the
 * pairs with one another (Blink, Figure 1; `nvidia-smi topo -m` of such a machine numbers them so). P100s have four.
 */
static void link_cube_mesh(struct ferry_host_links *machine, bool volta, double speed)
{
	static const uint8_t nvlinks[8][8] = {
	        {0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
	        {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1}, {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0},
	};
	machine->ndevices = 8;
	for (uint32_t a = 0; a < 8; a++)
		for (uint32_t b = 0; b < 8; b++) {
			uint32_t links = nvlinks[a][b] < 1 || volta ? nvlinks[a][b] : 1;
			machine->links.speed[a][b] = (float)(links * speed);
		}
}

/* Leads the link from `from` to `to` through the shared link. */
static void go_through(struct ferry_links *links, uint32_t from, uint32_t to, uint32_t shared, double speed)
{
	links->through[from][to] |= 1ull << shared;
	links->shared[shared] = (float)speed;
}

/* Devices on one bridge use it alone; all other data goes through the PCIe ports of both ends. */
static void link_bridges(struct ferry_host_links *machine, double bridge, double pcie, uint32_t bridged)
{
	link_all(machine, MOST_BRIDGED, pcie);
	for (uint32_t a = 0; a < MOST_BRIDGED; a++)
		for (uint32_t b = 0; b < MOST_BRIDGED; b++) {
			if (a / bridged == b / bridged) {
				machine->links.speed[a][b] = a == b ? 0 : (float)bridge;
				continue;
			}
			go_through(&machine->links, a, b, 2 * a, pcie);
			go_through(&machine->links, a, b, 2 * b + 1, pcie);
		}
}

/* Each device's one link to its switch carries all that it sends. */
static void link_pcie2(struct ferry_host_links *machine, double speed, double across, double sockets)
{
	link_all(machine, 8, speed);
	for (uint32_t a = 0; a < 8; a++)
		for (uint32_t b = 0; b < 8; b++) {
			if (a / 4 == b / 4)
				continue;
			machine->links.speed[a][b] = (float)across;
			if (sockets > 0)
				go_through(&machine->links, a, b, a / 4, sockets);
		}
	give_ports(machine, speed);
}

/* GBPS after GBPS with colons between; those that are left out stay 0. */
static ferryResult_t read_speeds(struct reader *reader, const char *at, uint32_t least, uint32_t most, double *speeds)
{
	uint32_t count = 0;
	do {
		ferryResult_t result = read_speed(reader, false, &speeds[count]);
		if (result)
			return result;
	} while (++count < most && take(reader, ":"));
	return count < least ? refuse(reader, at, "expected " EXPECTED_MACHINE) : ferrySuccess;
}

/* A bridge joins two devices, or as many as the third number says. */
static ferryResult_t read_bridged(struct reader *reader, const char *at, const double *speeds)
{
	double bridged = speeds[2] > 0 ? speeds[2] : 2;
	if (!(bridged >= 2 && bridged <= MOST_BRIDGED) || bridged != (uint32_t)bridged)
		return refuse(reader, at, "expected 2 to 32 devices that a bridge joins");
	link_bridges(reader->machine, speeds[0], speeds[1], (uint32_t)bridged);
	return ferrySuccess;
}

/* Behind "links=". */
static ferryResult_t read_machine(struct reader *reader, const char *at)
{
	enum { DGX1V, DGX1P, MESH, NVSWITCH, BRIDGES, PCIE2, NONE };
	static const struct {
		const char *name;
		uint32_t least, most; /* speeds */
	} known[] = {{"dgx1v:", 1, 1}, {"dgx1p:", 1, 1}, {"mesh:", 1, 1},
	             {"nvswitch:", 1, 1}, {"bridges:", 2, 3}, {"pcie2:", 1, 3}};
	struct ferry_host_links *machine = reader->machine;
	double speeds[3] = {0};
	int kind = 0;
	if (reader->links_given)
		return refuse(reader, at, "expected one of peer= and links=, once");
	while (kind < NONE && !take(reader, known[kind].name))
		kind++;
	if (kind == NONE)
		return refuse(reader, at, "expected " EXPECTED_MACHINE);
	reader->links_given = true;
	ferryResult_t result = read_speeds(reader, at, known[kind].least, known[kind].most, speeds);
	if (result)
		return result;
	if (kind == DGX1V || kind == DGX1P)
		link_cube_mesh(machine, kind == DGX1V, speeds[0]);
	else if (kind == PCIE2)
		link_pcie2(machine, speeds[0], speeds[1] > 0 ? speeds[1] : speeds[0], speeds[2]);
	else if (kind == BRIDGES)
		return read_bridged(reader, at, speeds);
	else
		link_all(machine, FERRY_MAX_RANKS, speeds[0]);
	if (kind == NVSWITCH)
		give_ports(machine, speeds[0]);
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
		for (uint32_t to = 0; to < nranks; to++) {
			links->speed[from][to] = machine->links.speed[device[from]][device[to]];
			links->through[from][to] = machine->links.through[device[from]][device[to]];
		}
	}
	memcpy(links->shared, machine->links.shared, sizeof links->shared);
	return ferrySuccess;
}
