/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What ranks push into each other's memory over their links, by the counters of their routers: a table for people, or a
 * line of JSON for each link. Called by ferry-stat.
 */
#ifndef FERRY_LAUNCH_LINK_LIST_H
#define FERRY_LAUNCH_LINK_LIST_H

#include "launch/report.h"

#include <stdio.h>

/** Rates are means over the time between the two reports. Prints nothing for routers that have not answered. */
void ferry_link_list_print(const struct ferry_report *before, const struct ferry_report *now, bool json, FILE *out);

#endif
