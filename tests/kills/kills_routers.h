/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The routers of a folder of sockets: the processes that listen there, and what is left when they have been told to
 * end.
 */
#ifndef FERRY_TESTS_KILLS_ROUTERS_H
#define FERRY_TESTS_KILLS_ROUTERS_H

#include <sys/types.h>

/** The router of a domain; 0: nobody listens. */
pid_t kills_router(const char *folder, int domain);

/** Tells all to end, and waits, seconds at most: how many processes and files are left of what this one has started. */
unsigned kills_remains(const char *folder, int domains, double seconds);

#endif
