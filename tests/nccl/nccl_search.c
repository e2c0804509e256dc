/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the search for NCCL: the loader's order first, then Python's packages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "orchestrator/search.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

struct tried {
	char paths[MOST][PATH_MAX];
	int count, stop_at;
};

static bool try_one(const char *path, void *context)
{
	struct tried *tried = context;
	assert_true(tried->count < MOST);
	snprintf(tried->paths[tried->count++], PATH_MAX, "%s", path);
	return tried->count == tried->stop_at;
}

static int where(const struct tried *tried, const char *path)
{
	for (int i = 0; i < tried->count; i++)
		if (!strcmp(tried->paths[i], path))
			return i;
	return -1;
}

static char root[] = "/tmp/nccl-search-XXXXXX";

static void shell(const char *format)
{
	char command[1024];
	snprintf(command, sizeof command, format, root, root, root, root);
	assert_int_equal(system(command), 0);
}

static int make_tree(void **state)
{
	(void)state;
	if (!mkdtemp(root))
		return -1;
	shell("S=%s/lib/python3.11/site-packages && mkdir -p $S/nvidia/nccl/lib $S/torch/lib && "
	      "cp $FERRY_TEST_NCCL $S/nvidia/nccl/lib && cp /lib/*/libm.so.6 $S/torch/lib/libtorch.so");
	return 0;
}

static int remove_tree(void **state)
{
	(void)state;
	shell("rm -r %s");
	return 0;
}

static void the_search_path_goes_before_packages(void **state)
{
	(void)state;
	static struct tried tried;
	char package[256], nccl[256];
	snprintf(package, sizeof package, "%s/lib/python3.11/site-packages/torch/lib/libtorch.so", root);
	snprintf(nccl, sizeof nccl, "%s/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", root);
	assert_false(ferry_nccl_search_files(make_tree, try_one, &tried));
	assert_int_equal(where(&tried, getenv("FERRY_TEST_NCCL")), 0); /* LD_LIBRARY_PATH */
	assert_int_equal(where(&tried, nccl), -1);
	void *loaded = dlopen(package, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(loaded);
	tried.count = 0;
	assert_false(ferry_nccl_search_files(make_tree, try_one, &tried));
	assert_true(where(&tried, nccl) > 0);
	dlclose(loaded);
	tried = (struct tried){.stop_at = 1};
	assert_true(ferry_nccl_search_files(make_tree, try_one, &tried));
	assert_int_equal(tried.count, 1);
}

static void what_is_loaded_is_known_by_its_name(void **state)
{
	(void)state;
	static struct tried tried;
	static const char *const names[] = {"libnccl.so.2",   "libnccl.so.2.32.3", "libnccl-1a2b3c4d.so.2",
	                                    "libnccl-net.so", "libncclx.so",       "notlibnccl.so.2"};
	void *handles[6];
	char path[256];
	for (int i = 0; i < 6; i++) {
		snprintf(path, sizeof path, "cp /lib/*/libm.so.6 %%s/%s", names[i]);
		shell(path);
		snprintf(path, sizeof path, "%s/%s", root, names[i]);
		assert_non_null((handles[i] = dlopen(path, RTLD_NOW | RTLD_LOCAL)));
	}
	assert_false(ferry_nccl_search_loaded("libnccl", try_one, &tried));
	for (int i = 0; i < 6; i++) {
		snprintf(path, sizeof path, "%s/%s", root, names[i]);
		assert_int_equal(where(&tried, path) >= 0, i < 3);
		dlclose(handles[i]);
	}
	assert_int_equal(tried.count, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_search_path_goes_before_packages),
	        cmocka_unit_test(what_is_loaded_is_known_by_its_name),
	};
	return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
