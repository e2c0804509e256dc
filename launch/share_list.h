/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How jobs divide their calls, by the counters of their routers: a table for people, or a line of JSON for each of its
 * lines; ferry-plot draws a log of many of these. Called by ferry-stat.
 */
#ifndef FERRY_LAUNCH_SHARE_LIST_H
#define FERRY_LAUNCH_SHARE_LIST_H

#include "launch/report.h"

#include <stdio.h>

/** Prints nothing for routers that have not answered. */
void ferry_share_list_print(const struct ferry_report *report, bool json, FILE *out);

#endif
