/* SPDX-License-Identifier: Apache-2.0 */
/** A router in this process for each test, on a socket of its own. */
#ifndef FERRY_TESTS_ROUTER_FIXTURE_H
#define FERRY_TESTS_ROUTER_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/attach.h"
#include "ipc/error.h"
#include "router/daemon/router.h"
#include "tests/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ferry_router *router;
static struct ferry_layout layout;
static char folder[64], path[80];

static inline int start_router(void **state)
{
	(void)state;
	unsetenv("FERRY_LAYOUT");
	setenv("FERRY_DOMAINS", "1", 1);
	if (!folder_make(folder, "engine"))
		return 1;
	snprintf(path, sizeof path, "%s/router-0.sock", folder);
	struct ferry_router_options options = {.layout = &layout, .directory = folder, .workers = 2};
	return ferry_layout_load(&layout) || ferry_router_start(&options, &router);
}

static inline int stop_router(void **state)
{
	(void)state;
	ferry_router_stop(router);
	folder_remove(folder);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_router, stop_router)

#endif
