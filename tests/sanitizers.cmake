# SPDX-License-Identifier: Apache-2.0
# What runs under the sanitizers: each suite once, in one environment. A check without them has the whole matrix. Suites
# that run in several environments have a row: under which of their names AddressSanitizer sees them, and
# ThreadSanitizer. Rows are chosen so that each sanitizer meets each environment, and two suites of one kind (streams,
# graphs, captures) do not have the same.
set(rows
  # suite           AddressSanitizer              ThreadSanitizer
  "cuda_streams     cuda_streams_across           cuda_streams_one_connection"
  "cuda_buffers     cuda_buffers                  cuda_buffers"
  "cuda_faults      cuda_faults_pushed            cuda_faults_across"
  "cuda_graphs      cuda_graphs_wait_kernel       cuda_graphs_across"
  "cuda_captures    cuda_captures_kernels         cuda_captures_across"
  "cuda_fabrics     cuda_fabrics                  cuda_fabrics_across"
  "cuda_programs    cuda_programs_across          -"
  "mapped           mapped_pushed                 mapped"
  "mapped_domains   mapped_domains                mapped_domains"
  "mapped_failures  mapped_failures_across        mapped_failures_pushed"
  "leaving          leaving_pushed                leaving_on_host_routers"
  "ends             ends_on_host                  ends"
  "open_calls       open_calls                    open_calls_kernels"
  "gpu_sums         gpu_sums                      -"
  "puts             puts_across                   puts"
  "pushing_programs pushing_programs              -"
  "launchers        launchers                     -"
  "api_stress       api_stress_across             -"
  "nccl_names       nccl_names                    -"
  "nccl_communicators nccl_communicators_policy_zero nccl_communicators"
  "nccl_failures    nccl_failures                 nccl_failures"
  "nccl_split       nccl_split                    nccl_split_by_host"
  "nccl_blocks      nccl_blocks_by_host           nccl_blocks"
  "nccl_messages    nccl_messages_by_host         nccl_messages"
  "nccl_own_messages nccl_own_messages_by_host    nccl_own_messages"
  "nccl_caller      nccl_caller                   -")
set(variants mapped pushed kernels wait_kernel one_connection no_flush across on_host on_host_routers processes off
  too_old policy_zero policy_overridden first by_host)
# Of the kills these: each kind of rank, each way of dying, one domain and two. Left out is what is about numbers,
# documents and scripts (nccl_split runs what nccl_veto and nccl_paces do, and reduce what reduce_definition does), and
# `takeover`, whose kills these do.
set(kills successors_are_killed routers_that_push_and_stage_across_domains_are_killed
  routers_are_killed_while_mapped_ranks_attach routers_are_killed_under_replays
  mapped_ranks_of_two_domains_and_routers_are_killed routers_lose_their_devices_under_calls)
set(left_out mpi_collectives no_file_is_in_a_circle lines_fit_120_columns
  completion_offers_what_the_commands_take environment_manual_is_the_table_in_the_code
  pictures_of_programs_are_what_is_drawn nccl_names_are_those_that_a_real_one_exports scripts plot_command
  limits_command tune_command perf_command takeover footprint nccl_veto nccl_paces reduce_definition
  # their file system does not answer, and under AddressSanitizer its own users come to wait for it
  hostile_descriptors_1 hostile_descriptors_2)
set(of_one_thread reduce)

list(JOIN variants "|" variants)
get_property(killed GLOBAL PROPERTY FERRY_KILLS)
list(REMOVE_ITEM killed ${kills})
set(not_asan ${left_out} ${killed})
set(not_tsan ${left_out} ${killed} ${of_one_thread})
get_property(entries DIRECTORY PROPERTY TESTS)
foreach(row ${rows})
  string(REGEX MATCH "^([^ ]+) +([^ ]+) +([^ ]+)$" row "${row}")
  set(asan ${CMAKE_MATCH_2})
  set(tsan ${CMAKE_MATCH_3})
  set(reruns ${entries})
  list(FILTER reruns INCLUDE REGEX "^${CMAKE_MATCH_1}(_(${variants}))?$")
  foreach(sanitizer asan tsan)
    if(reruns AND NOT ${sanitizer} STREQUAL "-" AND NOT ${sanitizer} IN_LIST reruns)
      message(FATAL_ERROR "tests/sanitizers.cmake: ${${sanitizer}} is no test")
    endif()
    set(others ${reruns})
    list(REMOVE_ITEM others ${${sanitizer}})
    list(APPEND not_${sanitizer} ${others})
  endforeach()
endforeach()

# Their children end by dozens. To look for leaks in each of them lists its threads in /proc, over which kernels of 2025
# (6.18) spin for a minute when many processes end at once; other suites judge leaks.
set_property(TEST last_calls short_calls_ends leftovers ${kills} APPEND PROPERTY ENVIRONMENT
  "ASAN_OPTIONS=detect_leaks=0")

# The presets of ctest choose by these labels.
set(asan)
set(tsan)
foreach(entry ${entries})
  get_test_property(${entry} LABELS labels)
  if(NOT labels MATCHES "model|soak|gpu" AND NOT entry IN_LIST not_asan)
    list(APPEND asan ${entry})
    set_property(TEST ${entry} APPEND PROPERTY LABELS asan)
  endif()
  if(labels MATCHES "ipc|engine|lanes" AND NOT entry IN_LIST not_tsan)
    list(APPEND tsan ${entry})
    set_property(TEST ${entry} APPEND PROPERTY LABELS tsan)
  endif()
endforeach()

# Programs of suites that do not run are not built; an entry's name begins with its program's, but for these.
if(FERRY_SANITIZE)
  set(run fuzz_program fuzz_plan fuzz_attach fuzz_submission fuzz_put_target ferryrun_test ferryrun_ends_test
    router_kills ${asan})
  if(FERRY_SANITIZE STREQUAL "thread")
    set(run ${tsan})
    get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR}/bench PROPERTY BUILDSYSTEM_TARGETS)
  endif()
  get_property(suites DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets} ${suites})
    set(entries ${run})
    list(FILTER entries INCLUDE REGEX "^${target}")
    if(NOT entries)
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endif()
  endforeach()
endif()
