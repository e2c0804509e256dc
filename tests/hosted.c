/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hosted.h"

#include "ipc/error.h"
#include "router/daemon/router.h"
#include "tests/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct ferry_router *running[FERRY_MAX_DOMAINS];
static int asked = -1; /* domains; -1: there are none */
static char directory[] = "/tmp/ferry-hosted-XXXXXX";
static pid_t owner; /* of the directory; 0: not made */

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, ferry_last_message());
	exit(1);
}

static void remove_directory(void)
{
	if (getpid() == owner)
		folder_remove(directory);
}

static void use_directory(void)
{
	if (owner)
		return;
	if (!mkdtemp(directory))
		exit(1);
	owner = getpid();
	atexit(remove_directory);
	setenv("FERRY_SOCKET_DIR", directory, 1);
}

void hosted_end(void)
{
	for (int domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		if (running[domain])
			ferry_router_stop(running[domain]);
		running[domain] = NULL;
	}
	asked = -1;
}

void hosted_routers(int domains)
{
	static struct ferry_layout layout;
	struct ferry_router_options options = {.layout = &layout, .directory = directory, .pin = true};
	char text[8];
	if (asked == domains)
		return;
	hosted_end();
	use_directory();
	snprintf(text, sizeof text, "%d", domains);
	if (domains)
		setenv("FERRY_DOMAINS", text, 1);
	setenv("FERRY_ROUTER", "required", 1);
	setenv("FERRY_TAKEOVER", "off", 1);
	if (ferry_layout_load(&layout))
		fail("the layout");
	for (; options.domain < layout.ndomains; options.domain++)
		if (ferry_router_start(&options, &running[options.domain]))
			fail("a router in this process");
	asked = domains;
}
