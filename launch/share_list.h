/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What jobs divide their calls into, as the counters of their routers say: a table for people, or a line of JSON for
 * each line of it, of which many make the log that ferry-plot draws. Called by ferry-stat.
 */
#ifndef FERRY_LAUNCH_SHARE_LIST_H
#define FERRY_LAUNCH_SHARE_LIST_H

#include "launch/report.h"

#include <stdio.h>

/** Of routers that have not answered nothing. */
void ferry_share_list_print(const struct ferry_report *report, bool json, FILE *out);

#endif
