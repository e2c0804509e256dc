/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/topology_file.h"

#include "ipc/error.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#ifndef FERRY_EXPAT

ferryResult_t ferry_topology_file_read(const char *path, struct ferry_host_links *machine)
{
	(void)machine;
	return ferry_fail(ferryInvalidUsage, "%s: this build reads no topology files: expat was not there", path);
}

#else

#include "launch/topology_tree.h"

#include <errno.h>
#include <expat.h>
#include <hwloc.h>
#include <stdarg.h>
#include <stdlib.h>
#include <strings.h>

#if XML_MAJOR_VERSION * 100 + XML_MINOR_VERSION >= 209 /* which deprecates the other one */
#define line_number XML_GetCurrentLineNumber64
#else
#define line_number XML_GetCurrentLineNumber
#endif

#define MOST_BYTES  (16u << 20)
#define MOST_DEPTH  64
#define MOST_LINKS  1024  /* NVLink elements */
#define LANE        0.09375 /* GB/s of a lane and GT/s: 12 GB/s for 16 lanes of 8 GT/s, as NCCL counts */
#define BUS_ID      16

/* An element that is still open. */
struct open_element {
	uint32_t node; /* the tree's node above the elements in it; FERRY_NO_NODE: none */
	uint32_t gpu;  /* the GPU that it is, or is in; FERRY_NO_NODE: none */
};

struct nvlink {
	uint32_t gpu, line;
	double speed;
	bool to_switch;
	char target[BUS_ID];
};

struct reader {
	const char *path;
	XML_Parser parser;
	ferryResult_t result;
	bool is_hwloc;
	uint32_t depth;
	struct open_element open[MOST_DEPTH];
	struct ferry_topology_tree tree;
	char bus_id[FERRY_MOST_TREE_NODES][BUS_ID]; /* by node */
	long dev[FERRY_MAX_RANKS], sm[FERRY_MAX_RANKS];
	uint32_t ndevs;
	struct nvlink links[MOST_LINKS];
	uint32_t nlinks;
};

static void refuse(struct reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void refuse(struct reader *reader, const char *format, ...)
{
	char reason[256];
	va_list arguments;
	if (reader->result)
		return;
	va_start(arguments, format);
	vsnprintf(reason, sizeof reason, format, arguments);
	va_end(arguments);
	reader->result = ferry_fail(ferryInvalidArgument, "%s:%lu: %s", reader->path,
	                            (unsigned long)line_number(reader->parser), reason);
	XML_StopParser(reader->parser, XML_FALSE);
}

/* ---- NCCL ---- */

static const char *find(const char **attributes, const char *name)
{
	for (; *attributes; attributes += 2)
		if (!strcmp(attributes[0], name))
			return attributes[1];
	return NULL;
}

static double read_number(struct reader *reader, const char *name, const char *text, double least, double most)
{
	char *end;
	double number = strtod(text, &end);
	while (*end == ' ')
		end++;
	/* "16.0 GT/s PCIe", as the kernel prints it */
	if (end == text || (*end && strcmp(name, "link_speed")) || !(number >= least && number <= most)) {
		refuse(reader, "%s=\"%s\": expected a number from %g to %g", name, text, least, most);
		return least;
	}
	return number;
}

/* GB/s each way of one link: NVLink by the GPU's SM version, xGMI by AMD's architecture. */
static double link_speed(const struct reader *reader, uint32_t gpu, bool xgmi)
{
	long sm = reader->sm[gpu];
	if (xgmi)
		return 32;
	return sm < 70 ? 20 : sm == 86 ? 14 : sm < 100 ? 25 : 50;
}

static uint32_t add_node(struct reader *reader, uint32_t parent, double up, const char *bus_id)
{
	struct ferry_topology_tree *tree = &reader->tree;
	if (tree->nnodes == FERRY_MOST_TREE_NODES) {
		refuse(reader, "more than %d CPUs and PCI devices", FERRY_MOST_TREE_NODES);
		return FERRY_NO_NODE;
	}
	if (bus_id)
		snprintf(reader->bus_id[tree->nnodes], BUS_ID, "%s", bus_id);
	tree->nodes[tree->nnodes] = (struct ferry_tree_node){.parent = parent, .up = up};
	return tree->nnodes++;
}

static uint32_t add_gpu(struct reader *reader, uint32_t node)
{
	struct ferry_topology_tree *tree = &reader->tree;
	if (tree->ngpus == FERRY_MAX_RANKS) {
		refuse(reader, "more than %d GPUs", FERRY_MAX_RANKS);
		return FERRY_NO_NODE;
	}
	for (uint32_t gpu = 0; gpu < tree->ngpus; gpu++)
		if (!strcasecmp(reader->bus_id[tree->gpu[gpu]], reader->bus_id[node]))
			refuse(reader, "busid=\"%s\": there is a GPU of it already", reader->bus_id[node]);
	reader->dev[tree->ngpus] = -1;
	tree->gpu[tree->ngpus] = node;
	return tree->ngpus++;
}

/* A GPU is a display or processing device of NVIDIA's or AMD's; files for clouds name neither vendor nor <gpu>. */
static bool is_gpu_class(const char *class, const char *vendor)
{
	if (!class || (vendor && strcmp(vendor, "0x10de") && strcmp(vendor, "0x1002")))
		return false;
	return !strcmp(class, "0x030000") || !strcmp(class, "0x030200") || !strcmp(class, "0x038000") ||
	       !strcmp(class, "0x120000");
}

static void open_pci(struct reader *reader, const char **attributes, struct open_element *element)
{
	const char *bus_id = find(attributes, "busid"), *speed = find(attributes, "link_speed");
	const char *width = find(attributes, "link_width");
	if (element->node == FERRY_NO_NODE)
		return refuse(reader, "expected <pci> in a <cpu>");
	if (!bus_id || !*bus_id || strlen(bus_id) >= BUS_ID)
		return refuse(reader, "expected busid=\"DOMAIN:BUS:DEVICE.FUNCTION\" of <pci>, found \"%s\"",
		              bus_id ? bus_id : "");
	double rate = speed && *speed ? read_number(reader, "link_speed", speed, 0, 1000) : 0;
	double lanes = width && *width ? read_number(reader, "link_width", width, 0, 64) : 0;
	double up = (rate > 0 ? rate : 8) * (lanes > 0 ? lanes : 16) * LANE;
	element->node = add_node(reader, element->node, up, bus_id);
	if (element->node != FERRY_NO_NODE &&
	    is_gpu_class(find(attributes, "class"), find(attributes, "vendor")))
		element->gpu = add_gpu(reader, element->node);
}

static void open_gpu(struct reader *reader, const char **attributes, struct open_element *element)
{
	const char *dev = find(attributes, "dev"), *sm = find(attributes, "sm");
	if (element->node == FERRY_NO_NODE || reader->tree.nodes[element->node].parent == FERRY_NO_NODE)
		return refuse(reader, "expected <gpu> in a <pci>");
	if (element->gpu == FERRY_NO_NODE)
		element->gpu = add_gpu(reader, element->node);
	if (element->gpu == FERRY_NO_NODE)
		return;
	if (dev) {
		long number = (long)read_number(reader, "dev", dev, 0, FERRY_MAX_RANKS - 1);
		for (uint32_t gpu = 0; gpu < reader->tree.ngpus; gpu++)
			if (reader->dev[gpu] == number)
				refuse(reader, "dev=\"%s\": there is one already", dev);
		reader->dev[element->gpu] = number;
		reader->ndevs++;
	}
	reader->sm[element->gpu] = sm ? (long)read_number(reader, "sm", sm, 1, 999) : 80;
}

static void open_link(struct reader *reader, const char **attributes, const struct open_element *element, bool xgmi)
{
	const char *target = find(attributes, "target"), *count = find(attributes, "count");
	const char *class = find(attributes, "tclass");
	if (element->gpu == FERRY_NO_NODE)
		return refuse(reader, "expected <nvlink> in a <gpu>");
	if (!target || strlen(target) >= BUS_ID || !count)
		return refuse(reader, "expected target=\"BUSID\" and count=\"LINKS\" of <nvlink>");
	if (reader->nlinks == MOST_LINKS)
		return refuse(reader, "more than %d <nvlink>", MOST_LINKS);
	struct nvlink *link = &reader->links[reader->nlinks++];
	*link = (struct nvlink){.gpu = element->gpu, .to_switch = class && !strcmp(class, "0x068000")};
	link->speed = read_number(reader, "count", count, 1, 1024) * link_speed(reader, element->gpu, xgmi);
	snprintf(link->target, BUS_ID, "%s", target);
}

static void XMLCALL open_element(void *user, const char *name, const char **attributes)
{
	struct reader *reader = user;
	struct open_element element = {FERRY_NO_NODE, FERRY_NO_NODE};
	if (reader->depth)
		element = reader->open[reader->depth - 1];
	if (!reader->depth && strcmp(name, "system") && strcmp(name, "topology"))
		return refuse(reader, "expected NCCL's <system> or hwloc's <topology>, found <%s>", name);
	if (reader->depth == MOST_DEPTH)
		return refuse(reader, "more than %d elements in each other", MOST_DEPTH);
	reader->is_hwloc |= !reader->depth && !strcmp(name, "topology");
	if (reader->is_hwloc)
		; /* well-formed so far, and hwloc reads it */
	else if (!strcmp(name, "cpu"))
		element.node = add_node(reader, FERRY_NO_NODE, 0, NULL);
	else if (!strcmp(name, "pci"))
		open_pci(reader, attributes, &element);
	else if (!strcmp(name, "gpu"))
		open_gpu(reader, attributes, &element);
	else if (!strcmp(name, "nvlink") || !strcmp(name, "xgmi"))
		open_link(reader, attributes, &element, *name == 'x');
	reader->open[reader->depth++] = element;
}

static void XMLCALL close_element(void *user, const char *name)
{
	struct reader *reader = user;
	(void)name;
	reader->depth--;
}

/* Orders GPUs by `dev` if all have one. Leaves out links to devices that the file does not name. */
static void settle_nccl(struct reader *reader)
{
	struct ferry_topology_tree *tree = &reader->tree;
	uint32_t number[FERRY_MAX_RANKS], node[FERRY_MAX_RANKS];
	for (uint32_t gpu = 0; gpu < tree->ngpus; gpu++) {
		number[gpu] = reader->ndevs == tree->ngpus ? 0 : gpu;
		for (uint32_t other = 0; other < tree->ngpus && reader->ndevs == tree->ngpus; other++)
			number[gpu] += reader->dev[other] < reader->dev[gpu];
		node[number[gpu]] = tree->gpu[gpu];
	}
	for (uint32_t i = 0; i < reader->nlinks; i++) {
		const struct nvlink *link = &reader->links[i];
		if (link->to_switch)
			tree->nvswitch[number[link->gpu]] += link->speed;
		for (uint32_t gpu = 0; gpu < tree->ngpus && !link->to_switch; gpu++)
			if (gpu != link->gpu && !strcasecmp(reader->bus_id[tree->gpu[gpu]], link->target))
				tree->nvlink[number[link->gpu]][number[gpu]] += link->speed;
	}
	memcpy(tree->gpu, node, tree->ngpus * sizeof *node);
}

/* ---- hwloc ---- */

/* Returns the GPU that an object of a matrix is, or belongs to; FERRY_NO_NODE: none. */
static uint32_t gpu_of(hwloc_obj_t object, const hwloc_obj_t *gpus, uint32_t ngpus)
{
	while (object && object->type == HWLOC_OBJ_OS_DEVICE)
		object = object->parent;
	for (uint32_t gpu = 0; gpu < ngpus; gpu++)
		if (gpus[gpu] == object)
			return gpu;
	return FERRY_NO_NODE;
}

/* Reads a matrix of megabytes per second between GPUs. Links to a bridge device are links to a switch. */
static void read_matrix(hwloc_topology_t topology, const char *name, struct ferry_topology_tree *tree,
                        const hwloc_obj_t *gpus)
{
	struct hwloc_distances_s *matrix;
	unsigned count = 1;
	if (hwloc_distances_get_by_name(topology, name, &count, &matrix, 0) || !count)
		return;
	for (unsigned a = 0; a < matrix->nbobjs; a++)
		for (unsigned b = 0; b < matrix->nbobjs; b++) {
			uint32_t from = gpu_of(matrix->objs[a], gpus, tree->ngpus);
			uint32_t to = gpu_of(matrix->objs[b], gpus, tree->ngpus);
			double speed = (double)matrix->values[a * matrix->nbobjs + b] / 1000;
			if (from == FERRY_NO_NODE || from == to)
				continue;
			if (to != FERRY_NO_NODE)
				tree->nvlink[from][to] = speed;
			else if (matrix->objs[b]->type == HWLOC_OBJ_PCI_DEVICE)
				tree->nvswitch[from] += speed;
		}
	hwloc_distances_release(topology, matrix);
}

/* Returns the node of a PCI device, bridge or package; makes it, and those above it, if it is new. */
static uint32_t node_of(struct reader *reader, hwloc_obj_t object)
{
	struct ferry_topology_tree *tree = &reader->tree;
	double up = 0;
	bool is_bridge = object->type == HWLOC_OBJ_BRIDGE && object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI;
	if (object->userdata)
		return (uint32_t)(uintptr_t)object->userdata - 1;
	if (object->type == HWLOC_OBJ_PCI_DEVICE)
		up = object->attr->pcidev.linkspeed;
	else if (is_bridge)
		up = object->attr->bridge.upstream.pci.linkspeed;
	bool is_cpu = object->type == HWLOC_OBJ_PACKAGE || !object->parent;
	uint32_t parent = is_cpu ? FERRY_NO_NODE : node_of(reader, object->parent);
	if (!is_cpu && object->type != HWLOC_OBJ_PCI_DEVICE && !is_bridge)
		return parent; /* a host bridge, a group, a NUMA node: no link of its own */
	/* hwloc gives 15.75 GB/s for 16 lanes of 8 GT/s, NCCL assumes 12. */
	uint32_t node = tree->nnodes < FERRY_MOST_TREE_NODES ? tree->nnodes++ : 0;
	tree->nodes[node] = (struct ferry_tree_node){.parent = parent, .up = up > 0 ? up * 12 / 15.75 : 12};
	object->userdata = (void *)(uintptr_t)(node + 1);
	return node;
}

static ferryResult_t read_hwloc(struct reader *reader)
{
	struct ferry_topology_tree *tree = &reader->tree;
	hwloc_obj_t gpus[FERRY_MAX_RANKS], device = NULL;
	hwloc_topology_t topology;
	if (hwloc_topology_init(&topology))
		return ferry_fail(ferrySystemError, "%s: hwloc: %s", reader->path, strerror(errno));
	hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
	if (hwloc_topology_set_xml(topology, reader->path) || hwloc_topology_load(topology)) {
		hwloc_topology_destroy(topology);
		return ferry_fail(ferryInvalidArgument, "%s:1: hwloc " HWLOC_VERSION " finds no topology in it",
		                  reader->path);
	}
	while ((device = hwloc_get_next_pcidev(topology, device))) {
		const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
		bool display = pci->class_id >> 8 == 0x03 || pci->class_id == 0x1200;
		if (!display || (pci->vendor_id != 0x10de && pci->vendor_id != 0x1002) ||
		    tree->ngpus == FERRY_MAX_RANKS)
			continue;
		gpus[tree->ngpus] = device;
		tree->gpu[tree->ngpus++] = node_of(reader, device);
	}
	read_matrix(topology, "NVLinkBandwidth", tree, gpus);
	read_matrix(topology, "XGMIBandwidth", tree, gpus);
	hwloc_topology_destroy(topology);
	return ferrySuccess;
}

/* ---- either ---- */

static ferryResult_t parse_file(struct reader *reader, FILE *file)
{
	char part[16384];
	size_t got, bytes = 0;
	int end;
	do {
		got = fread(part, 1, sizeof part, file);
		bytes += got;
		end = got < sizeof part;
		if (ferror(file))
			return ferry_fail(ferrySystemError, "%s: %s", reader->path, strerror(errno));
		if (bytes > MOST_BYTES)
			return ferry_fail(ferryInvalidArgument, "%s: more than %u bytes", reader->path, MOST_BYTES);
		if (XML_Parse(reader->parser, part, (int)got, end) != XML_STATUS_OK) {
			refuse(reader, "%s", XML_ErrorString(XML_GetErrorCode(reader->parser)));
			return reader->result;
		}
	} while (!end);
	return ferrySuccess;
}

static ferryResult_t read_machine(struct reader *reader, FILE *file, struct ferry_host_links *machine)
{
	XML_SetUserData(reader->parser, reader);
	XML_SetElementHandler(reader->parser, open_element, close_element);
	ferryResult_t result = parse_file(reader, file);
	if (!result && reader->is_hwloc)
		result = read_hwloc(reader);
	else if (!result)
		settle_nccl(reader);
	if (!result && !reader->tree.ngpus) {
		refuse(reader, "no GPU in it");
		result = reader->result;
	}
	if (!result && !ferry_topology_tree_link(&reader->tree, machine))
		result = ferry_fail(ferryInvalidArgument, "%s: its GPUs share more than %d PCIe links", reader->path,
		                    FERRY_MAX_SHARED_LINKS);
	return result;
}

ferryResult_t ferry_topology_file_read(const char *path, struct ferry_host_links *machine)
{
	FILE *file = fopen(path, "r");
	if (!file)
		return ferry_fail(ferrySystemError, "%s: %s", path, strerror(errno));
	struct reader *reader = calloc(1, sizeof *reader);
	XML_Parser parser = XML_ParserCreate(NULL);
	ferryResult_t result = ferrySystemError;
	if (reader && parser) {
		reader->path = path;
		reader->parser = parser;
		result = read_machine(reader, file, machine);
	} else {
		ferry_fail(ferrySystemError, "%s: no memory to read it", path);
	}
	if (parser)
		XML_ParserFree(parser);
	free(reader);
	fclose(file);
	return result;
}

#endif

ferryResult_t ferry_topology_read(const char *name, const char *value, struct ferry_host_links *machine)
{
	const char *end = strstr(value, ".xml");
	struct ferry_host_links placed;
	char path[PATH_MAX];
	if (!end || (end[4] && end[4] != ',') || end + 4 - value >= PATH_MAX)
		return ferry_host_links_parse(name, value, machine);
	snprintf(path, sizeof path, "%.*s", (int)(end + 4 - value), value);
	ferryResult_t result = ferry_topology_file_read(path, machine);
	if (result || !end[4])
		return result;
	result = ferry_host_links_parse(name, end + 5, &placed);
	if (!result && (placed.peers || !placed.nplaced))
		result = ferry_fail(ferryInvalidArgument, "%s=%s: expected devices= behind a file", name,
		                    value);
	if (result)
		return result;
	machine->nplaced = placed.nplaced;
	memcpy(machine->placed, placed.placed, sizeof machine->placed);
	return ferrySuccess;
}
