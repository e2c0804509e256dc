/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises about odd machines: every CPU is in one domain, near its memory, and no cache counts twice. With arguments,
 * hwloc XML files or synthetic strings, the suite checks those instead and prints a line of each.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/arena.h"
#include "ipc/error.h"
#include "tests/topology.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what holds of any machine, by hwloc alone ---- */

static uint32_t domains_with(const struct ferry_layout *layout, unsigned cpu)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < layout->ndomains; i++)
		count += !!CPU_ISSET(cpu, &layout->domains[i].cpus);
	return count;
}

/* The smallest set of CPUs over this one that has memory of its own; else the package's, or all. */
static hwloc_const_cpuset_t neighbourhood(hwloc_topology_t machine, hwloc_obj_t pu)
{
	hwloc_const_cpuset_t least = NULL;
	for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, node));)
		if (hwloc_bitmap_isset(node->cpuset, pu->os_index) &&
		    (!least || hwloc_bitmap_weight(node->cpuset) < hwloc_bitmap_weight(least)))
			least = node->cpuset;
	hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(machine, HWLOC_OBJ_PACKAGE, pu);
	return least ? least : package ? package->cpuset : hwloc_get_root_obj(machine)->cpuset;
}

static unsigned count_neighbourhoods(hwloc_topology_t machine)
{
	static hwloc_const_cpuset_t seen[4096];
	unsigned count = 0;
	for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, pu));) {
		hwloc_const_cpuset_t mine = neighbourhood(machine, pu);
		unsigned i = 0;
		while (i < count && !hwloc_bitmap_isequal(seen[i], mine))
			i++;
		if (i == count)
			seen[count++] = mine;
	}
	return count;
}

/* The bytes of that cache that belong to the CPUs that there are. */
static double usable(hwloc_obj_t cache)
{
	return (double)cache->attr->cache.size * hwloc_bitmap_weight(cache->cpuset) /
	       hwloc_bitmap_weight(cache->complete_cpuset);
}

static bool is_last_level(hwloc_obj_t cache)
{
	return cache && !(cache->subtype && !strcmp(cache->subtype, "MemorySideCache"));
}

static double whole_cache(hwloc_topology_t machine)
{
	double sum = 0;
	for (hwloc_obj_t cache = NULL; (cache = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_L3CACHE, cache));)
		sum += is_last_level(cache) ? usable(cache) : 0;
	for (hwloc_obj_t cache = NULL; (cache = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_L2CACHE, cache));)
		if (!is_last_level(hwloc_get_ancestor_obj_by_type(machine, HWLOC_OBJ_L3CACHE, cache)))
			sum += usable(cache);
	return sum;
}

/* Returns whether the node has memory, and all CPUs of the domain are near it. */
static bool is_local(hwloc_topology_t machine, const struct ferry_domain *domain)
{
	hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(machine, (unsigned)domain->node);
	for (unsigned cpu = 0; node && cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &domain->cpus) && !hwloc_bitmap_isset(node->cpuset, cpu))
			return false;
	return node && node->attr->numanode.local_memory;
}

/* Returns whether a domain has CPUs of several packages though some package has several domains. */
static bool straddles(hwloc_topology_t machine, const struct ferry_layout *layout)
{
	bool several = false, divided = false;
	for (hwloc_obj_t package = NULL;
	     (package = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PACKAGE, package));) {
		unsigned inside = 0, partly = 0;
		for (uint32_t i = 0; i < layout->ndomains; i++) {
			int in = 0;
			for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
				in += CPU_ISSET(cpu, &layout->domains[i].cpus) &&
				      hwloc_bitmap_isset(package->cpuset, cpu);
			inside += in && in == (int)layout->domains[i].ncpus;
			partly += in && in < (int)layout->domains[i].ncpus;
		}
		divided |= inside + partly > 1;
		several |= partly > 0;
	}
	return several && divided;
}

/* Writes what is wrong of the layout of that machine; "": nothing. */
static void find_fault(hwloc_topology_t machine, const struct ferry_layout *layout, char *fault, size_t bytes)
{
	unsigned neighbourhoods = count_neighbourhoods(machine), cpus = 0;
	double cache = 0;
	*fault = '\0';
	for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, pu)); cpus++)
		if (domains_with(layout, pu->os_index) != 1)
			snprintf(fault, bytes, "CPU %u is in %u domains", pu->os_index,
			         domains_with(layout, pu->os_index));
	for (uint32_t i = 0; i < layout->ndomains; i++) {
		cpus -= layout->domains[i].ncpus;
		cache += (double)layout->domains[i].cache_bytes;
		if (!layout->domains[i].ncpus)
			snprintf(fault, bytes, "domain %u has no CPU", i);
		if (layout->domains[i].node >= 0 && !is_local(machine, &layout->domains[i]))
			snprintf(fault, bytes, "domain %u is bound to node %d, not its own", i,
			         layout->domains[i].node);
	}
	if (cpus)
		snprintf(fault, bytes, "%d CPUs are missing", (int)cpus);
	if (neighbourhoods <= FERRY_MAX_DOMAINS ? layout->ndomains != neighbourhoods
	                                        : layout->ndomains < 2 || layout->ndomains > FERRY_MAX_DOMAINS)
		snprintf(fault, bytes, "%u domains of %u neighbourhoods", layout->ndomains, neighbourhoods);
	if (fabs(cache - whole_cache(machine)) > FERRY_MAX_DOMAINS)
		snprintf(fault, bytes, "%.0f bytes of cache instead of %.0f", cache, whole_cache(machine));
	if (straddles(machine, layout))
		snprintf(fault, bytes, "a domain lies in two packages, and a package in two domains");
}

static void print_machine(const char *description, hwloc_topology_t machine, const struct ferry_layout *layout,
                          const char *fault)
{
	const char *name = strrchr(description, '/') ? strrchr(description, '/') + 1 : description;
	char nodes[128] = "", cpus[128] = "";
	double cache = 0;
	for (uint32_t i = 0; i < layout->ndomains; i++) {
		const struct ferry_domain *domain = &layout->domains[i];
		char node[16] = "-";
		if (domain->node >= 0)
			snprintf(node, sizeof node, "%d", domain->node);
		snprintf(nodes + strlen(nodes), sizeof nodes - strlen(nodes), "%s%s", i ? "," : "", node);
		snprintf(cpus + strlen(cpus), sizeof cpus - strlen(cpus), "%s%u", i ? "," : "", domain->ncpus);
		cache += (double)domain->cache_bytes;
	}
	printf("%-48s %2d packages %2d nodes %3d CPUs -> %u domains of %s CPUs on nodes %s, cache %.1f MiB: %s\n", name,
	       hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PACKAGE),
	       hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE), hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU),
	       layout->ndomains, cpus, nodes, cache / (1 << 20), *fault ? fault : "good");
}

static int check_each(int count, char **descriptions)
{
	int wrong = 0;
	for (int i = 0; i < count; i++) {
		struct ferry_layout layout;
		char fault[128];
		hwloc_topology_t machine = topology_read(descriptions[i]);
		ferryResult_t result = topology_layout(descriptions[i], &layout);
		if (!machine || result) {
			printf("%s: hwloc does not read it\n", descriptions[i]);
			continue;
		}
		find_fault(machine, &layout, fault, sizeof fault);
		print_machine(descriptions[i], machine, &layout, fault);
		wrong += *fault != '\0';
		hwloc_topology_destroy(machine);
	}
	printf("%d machines, %d wrong\n", count, wrong);
	return wrong;
}

/* ---- promises ---- */

#define FILES FERRY_SOURCE_DIR "/tests/ipc/topologies/"

static const struct {
	const char *description, *layout;
} machines[] = {
        {"node:2 core:2 pu:2", "0: cpus=0-3 node=0; 1: cpus=4-7 node=1"},
        {"pack:2 core:2 pu:1", "0: cpus=0-3 node=0"},
        {"[numa(memory=8GB)] pack:2 core:2 pu:1", "0: cpus=0-3 node=0"},
        /* several memories of the same CPUs: HBM or CXL beside DRAM, KNL */
        {"pack:2 [numa(memory=1GB)] [numa(memory=4GB)] core:2 pu:1", "0: cpus=0-1 node=0; 1: cpus=2-3 node=2"},
        {FILES "two-memories-per-package.xml", "0: cpus=0-1 node=0; 1: cpus=2-3 node=2"},
        {"pack:1 group:4 [numa(memory=24GB)] [numa(memory=4GB)] core:2 pu:1",
         "0: cpus=0-1 node=0; 1: cpus=2-3 node=2; 2: cpus=4-5 node=4; 3: cpus=6-7 node=6"},
        {"[numa(memory=64GB)] pack:2 [numa(memory=16GB)] core:2 pu:1", "0: cpus=0-1 node=0; 1: cpus=2-3 node=1"},
        {"pack:2 [numa(memory=64GB)] group:2 [numa(memory=16GB)] core:2 pu:1",
         "0: cpus=0-1 node=0; 1: cpus=2-3 node=1; 2: cpus=4-5 node=3; 3: cpus=6-7 node=4"},
        /* CPUs without local memory */
        {FILES "cpus-without-memory.xml", "0: cpus=0-1"},
        {FILES "half-without-memory.xml", "0: cpus=0-1; 1: cpus=2-3 node=1"},
        {FILES "dies-without-memory.xml", "0: cpus=0-1 node=0; 1: cpus=2-3; 2: cpus=4-5 node=2; 3: cpus=6-7"},
        /* CPUs that are numbered in turns */
        {"node:2 core:2 pu:1(indexes=0,2,1,3)", "0: cpus=0,2 node=0; 1: cpus=1,3 node=1"},
        /* more nodes than domains */
        {"node:8 pu:1", "0: cpus=0 node=0; 1: cpus=1 node=1; 2: cpus=2 node=2; 3: cpus=3 node=3; 4: cpus=4 node=4; "
                        "5: cpus=5 node=5; 6: cpus=6 node=6; 7: cpus=7 node=7"},
        {"node:9 pu:1", "0: cpus=0-1; 1: cpus=2-3; 2: cpus=4-5; 3: cpus=6-7; 4: cpus=8 node=8"},
        {"pack:2 numa:8 pu:1", "0: cpus=0-1; 1: cpus=2-3; 2: cpus=4-5; 3: cpus=6-7; 4: cpus=8-9; 5: cpus=10-11; "
                               "6: cpus=12-13; 7: cpus=14-15"},
        {"pack:2 numa:12 pu:1", "0: cpus=0-2; 1: cpus=3-5; 2: cpus=6-8; 3: cpus=9-11; 4: cpus=12-14; 5: cpus=15-17; "
                                "6: cpus=18-20; 7: cpus=21-23"},
        {"pack:2 numa:5 pu:1", "0: cpus=0-1; 1: cpus=2-3; 2: cpus=4 node=4; 3: cpus=5-6; 4: cpus=7-8; "
                               "5: cpus=9 node=9"},
        {"pack:3 numa:4 pu:1",
         "0: cpus=0-1; 1: cpus=2-3; 2: cpus=4-5; 3: cpus=6-7; 4: cpus=8-9; 5: cpus=10-11"},
        {"pack:12 numa:2 pu:1",
         "0: cpus=0-3; 1: cpus=4-7; 2: cpus=8-11; 3: cpus=12-15; 4: cpus=16-19; 5: cpus=20-23"},
        {"pack:4 group:4 numa:4 pu:1", "0: cpus=0-7; 1: cpus=8-15; 2: cpus=16-23; 3: cpus=24-31; 4: cpus=32-39; "
                                       "5: cpus=40-47; 6: cpus=48-55; 7: cpus=56-63"},
};

static void every_cpu_is_in_one_domain_near_its_memory(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		const char *description = machines[i].description;
		struct ferry_layout layout;
		char text[1024], fault[128];
		hwloc_topology_t machine = topology_read(description);
		assert_non_null(machine);
		if (topology_layout(description, &layout))
			fail_msg("%s", ferry_last_message());
		ferry_layout_print(&layout, text, sizeof text);
		if (strcmp(text, machines[i].layout))
			fail_msg("%s: \"%s\" instead of \"%s\"", description, text, machines[i].layout);
		find_fault(machine, &layout, fault, sizeof fault);
		if (*fault)
			fail_msg("%s: %s", description, fault);
		hwloc_topology_destroy(machine);
	}
}

static void a_cache_counts_once(void **state)
{
	(void)state;
	static const struct {
		const char *description;
		uint32_t ndomains;
		uint64_t cache, core;
	} cases[] = {
	        {"pack:1 l3:1(size=62914560) numa:4 l2:4(size=2097152) core:1 pu:2", 4, 15 << 20, 2 << 20},
	        {"node:2 l3:1(size=67108864) l2:8(size=2097152) core:1 pu:2", 2, 64 << 20, 2 << 20},
	        {"pack:2 l3:8(size=33554432) numa:1 l2:8(size=1048576) core:1 pu:2", 8, 64 << 20, 1 << 20},
	        {"pack:2 l2:2(size=8388608) core:4 pu:1", 1, 32 << 20, 2 << 20}, /* four cores share one */
	        {FILES "memory-side-cache.xml", 1, 2 << 20, 1 << 20},
	        {"pack:2 core:4 pu:1", 1, 0, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ferry_layout layout;
		assert_int_equal(topology_layout(cases[i].description, &layout), ferrySuccess);
		assert_int_equal(layout.ndomains, cases[i].ndomains);
		for (uint32_t domain = 0; domain < layout.ndomains; domain++) {
			assert_int_equal(layout.domains[domain].cache_bytes, cases[i].cache);
			assert_int_equal(layout.domains[domain].core_cache_bytes, cases[i].core);
		}
	}
}

/* Domains that share CPUs share their caches: more domains than CPUs. */
static void equal_domains_have_the_machines_cache_once(void **state)
{
	(void)state;
	struct ferry_layout one, layout;
	setenv("FERRY_DOMAINS", "1", 1);
	assert_int_equal(ferry_layout_load(&one), ferrySuccess);
	for (int domains = 2; domains <= FERRY_MAX_DOMAINS; domains++) {
		char text[8];
		uint64_t sum = 0;
		snprintf(text, sizeof text, "%d", domains);
		setenv("FERRY_DOMAINS", text, 1);
		assert_int_equal(ferry_layout_load(&layout), ferrySuccess);
		for (int i = 0; i < domains; i++)
			sum += layout.domains[i].cache_bytes;
		assert_in_range(sum + FERRY_MAX_DOMAINS, one.domains[0].cache_bytes,
		                one.domains[0].cache_bytes + 2 * FERRY_MAX_DOMAINS);
	}
	unsetenv("FERRY_DOMAINS");
}

static void cpus_beyond_those_of_a_cpu_set_are_told_of(void **state)
{
	(void)state;
	struct ferry_layout layout;
	char text[256] = "";
	FILE *file = tmpfile();
	int own = dup(STDERR_FILENO);
	dup2(fileno(file), STDERR_FILENO);
	ferryResult_t result = topology_layout("node:2 core:600 pu:1", &layout);
	dup2(own, STDERR_FILENO);
	close(own);
	rewind(file);
	assert_int_equal(result, ferrySuccess);
	assert_non_null(fgets(text, sizeof text, file));
	assert_non_null(strstr(text, "CPUs from 1024 on are in no domain"));
	assert_int_equal(layout.domains[0].ncpus + layout.domains[1].ncpus, 1024);
	fclose(file);
}

/* As containers do: the system calls of NUMA are refused. */
static int forbid_numa(void)
{
	struct sock_filter filter[] = {
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_mempolicy, 2, 0),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_set_mempolicy, 1, 0),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

/* Runs in a process of its own: hwloc reads this machine once. */
static void in_a_process_on(const char *machine, int (*body)(void))
{
	int status;
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		setenv("HWLOC_SYNTHETIC", machine, 1);
		_exit(body());
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

static int two_domains_without_numa_calls(void)
{
	struct ferry_layout layout;
	struct ferry_arena_shape shape = {.ndomains = 2, .nranks = 2, .staging = 1 << 20, .node = 0};
	struct ferry_arena arena;
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2 || forbid_numa())
		return 77;
	if (ferry_layout_load(&layout) || layout.ndomains != 2 || layout.domains[1].node != 1 || layout.together)
		return 1;
	return ferry_arena_create(&shape, &arena) ? 2 : 0;
}

static void nodes_are_found_where_a_container_forbids_the_calls_of_libnuma(void **state)
{
	(void)state;
	in_a_process_on("node:2 pu:1", two_domains_without_numa_calls);
}

static int masks_hide_from_starters_only(void)
{
	struct ferry_layout own, whole;
	cpu_set_t one, after;
	CPU_ZERO(&one);
	CPU_SET(1, &one);
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2 || sched_setaffinity(0, sizeof one, &one))
		return 77;
	if (ferry_layout_load(&own) || own.ndomains != 1 || own.domains[0].node != 1 || own.domains[0].ncpus != 1)
		return 1;
	if (ferry_layout_load_whole(&whole) || whole.ndomains != 2)
		return 2;
	return sched_getaffinity(0, sizeof after, &after) || !CPU_EQUAL(&one, &after) ? 3 : 0;
}

static void the_mask_of_a_rank_hides_no_domain_and_that_of_ferryrun_does(void **state)
{
	(void)state;
	in_a_process_on("node:2 pu:1", masks_hide_from_starters_only);
}

static int the_own_cpu_is_a_domain(void)
{
	struct ferry_layout layout;
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(1, &one);
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2 || sched_setaffinity(0, sizeof one, &one))
		return 77;
	if (ferry_layout_load(&layout) || layout.ndomains != 1 || !CPU_EQUAL(&layout.domains[0].cpus, &one))
		return 1;
	setenv("FERRY_DOMAINS", "2", 1);
	if (ferry_layout_load(&layout) || layout.ndomains != 2 || !CPU_EQUAL(&layout.domains[1].cpus, &one))
		return 2;
	return 0;
}

/* Where /sys and /proc are hidden hwloc counts CPUs, and names the first ones. */
static void a_cpu_that_hwloc_does_not_see_is_in_a_domain_too(void **state)
{
	(void)state;
	in_a_process_on("pu:1", the_own_cpu_is_a_domain);
}

static int a_node_is_found_by_its_cpus(void)
{
	struct ferry_layout layout;
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return 77;
	if (ferry_layout_parse("0: cpus=1; 1: cpus=0", &layout) || ferry_layout_node_domain(&layout, 0) != 1 ||
	    ferry_layout_node_domain(&layout, 1) != 0 || ferry_layout_node_domain(&layout, 2) != -1)
		return 1;
	if (ferry_layout_parse("0: cpus=0; 1: cpus=0-1", &layout) || ferry_layout_node_domain(&layout, 0) != -1 ||
	    ferry_layout_node_domain(&layout, 1) != 1)
		return 2;
	if (ferry_layout_parse("0: cpus=0 devices=0; 1: cpus=1", &layout) || ferry_layout_node_domain(&layout, 1) != -1)
		return 3;
	return 0;
}

static void a_gpus_domain_has_the_cpus_near_it(void **state)
{
	(void)state;
	in_a_process_on("node:2 pu:1", a_node_is_found_by_its_cpus);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_cpu_is_in_one_domain_near_its_memory),
	        cmocka_unit_test(a_cache_counts_once),
	        cmocka_unit_test(cpus_beyond_those_of_a_cpu_set_are_told_of),
	        /* what reads this machine in this process comes last */
	        cmocka_unit_test(nodes_are_found_where_a_container_forbids_the_calls_of_libnuma),
	        cmocka_unit_test(the_mask_of_a_rank_hides_no_domain_and_that_of_ferryrun_does),
	        cmocka_unit_test(a_cpu_that_hwloc_does_not_see_is_in_a_domain_too),
	        cmocka_unit_test(a_gpus_domain_has_the_cpus_near_it),
	        cmocka_unit_test(equal_domains_have_the_machines_cache_once),
	};
	if (argc > 1)
		return check_each(argc - 1, argv + 1) != 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
