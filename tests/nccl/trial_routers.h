/* SPDX-License-Identifier: Apache-2.0 */
/** Routers that ranks have started, found by the sockets that they listen on. */
#ifndef FERRY_TESTS_TRIAL_ROUTERS_H
#define FERRY_TESTS_TRIAL_ROUTERS_H

/** Sends a signal to all routers that listen in the folder. Returns how many. */
unsigned trial_routers_end(const char *folder, int signal);

/** The folder goes, with what killed routers have left in it. Those that were told to end have three seconds for it. */
void trial_routers_remove(const char *folder);

#endif
