/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The rates of collectives over a machine's links, by arithmetic: what no program can beat, what Ferry's trees reach,
 * what rings reach, and what trees from one root reach (Blink). `ferryprog rates` prints them.
 */
#ifndef FERRY_LAUNCH_RATES_H
#define FERRY_LAUNCH_RATES_H

#include "ipc/links.h"

#include <stdio.h>

/**
 * Prints a table for `nranks` ranks (0: as many as it has devices) on the machine that was given as `name`. Algorithm
 * bandwidth in GB/s: bytes of the whole result over time. Errors: ferryInvalidArgument if the machine has fewer
 * devices; ferryInvalidUsage if its links do not connect them, or if nranks is 0 and the machine has any number of
 * devices.
 */
ferryResult_t ferry_rates_print(const char *name, const struct ferry_host_links *machine, uint32_t nranks, FILE *out);

#endif
