/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A report in Prometheus's text exposition format, for collectors of many nodes: totals and present values, no rates,
 * which the collector makes. Called by ferry-stat.
 */
#ifndef FERRY_LAUNCH_EXPOSITION_H
#define FERRY_LAUNCH_EXPOSITION_H

#include "launch/report.h"

#include <stdio.h>

/** Prints all families of metrics that have a sample; docs/shared-service.md lists them. */
void ferry_exposition_print(const struct ferry_report *report, FILE *out);

#endif
