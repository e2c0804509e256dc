# SPDX-License-Identifier: Apache-2.0
# Suites that run trials (bench/trial.h): collectives through the public API, judged by an independent reference.
add_library(trial_run STATIC trial_run.c ${PROJECT_SOURCE_DIR}/bench/trial.c ${PROJECT_SOURCE_DIR}/bench/element.c)
target_link_libraries(trial_run PRIVATE ferry_flags PUBLIC ferry ferry_ipc m)

ferry_test(api_in_process LIBRARIES trial_run LABELS api TIMEOUT 300)
