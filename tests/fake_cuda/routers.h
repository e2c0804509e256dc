/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Router processes of a suite, with a socket directory of the suite's own: ranks on GPUs then leave their data to them.
 * They are children of this process, die with it, and write to its standard error.
 */
#ifndef FERRY_TESTS_ROUTERS_H
#define FERRY_TESTS_ROUTERS_H

#include <stdbool.h>
#include <sys/types.h>

/** Before the first use of Ferry: makes the directory, which goes with the process, and has ranks use it. */
void routers_use(void);

/** Whether routers_use was called. */
bool routers_used(void);

/** Starts those of domains 0 to domains - 1 that do not run, with the environment as it is now; they can be attached
 * to. */
void routers_open(int domains);

/** In the place of one that has ended: what ranks bring may end it, too, before it says that it is there. */
void routers_open_again(int domain);

/** From its next start on, the domain's router has this user for a tenant with these limits; "": for none. */
void routers_limit(int domain, const char *limits);

pid_t routers_pid(int domain);

/** Ends them; fails the test unless all ended as routers should, killed ones apart. */
void routers_close(void);

/** Closes all its connections, as the kernel does first of all with one that dies: the process stays, stopped. */
void routers_hang_up(int domain);

/** Starts another one that stands by beside the one that runs: its process. It does when this returns. */
pid_t routers_open_spare(int domain);

/** One that stood by is the one that runs from now on. */
void routers_follow(int domain, pid_t spare);

/** It is to end by itself: with which code. */
int routers_await_end(int domain);

/** SIGKILL, and it is gone. */
void routers_kill(int domain);
/** Those of all domains. */
void routers_kill_all(void);

#endif
