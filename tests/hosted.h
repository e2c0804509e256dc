/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Routers inside a suite's own process, for suites whose ranks are its threads or children: nothing has to be started,
 * and sanitizers see both sides. Their sockets are in a directory of the suite's own.
 */
#ifndef FERRY_TESTS_HOSTED_H
#define FERRY_TESTS_HOSTED_H

/**
 * From now on ranks find routers of so many domains here (0: those that the environment names); none other takes the
 * place of one. Routers of as many domains that are here already stay. No communicator of other routers may be left.
 */
void hosted_routers(int domains);

/** Ends them; the next ones read the environment anew. */
void hosted_end(void);

#endif
