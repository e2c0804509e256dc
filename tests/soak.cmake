# SPDX-License-Identifier: Apache-2.0
# `make soak`: what a check does a few times, for long. These entries are ctest's in the configuration Soak alone.
function(soak_test name)
  add_test(NAME ${name} CONFIGURATIONS Soak COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS soak TIMEOUT 3600)
endfunction()

# Some 2,000 kills together; the last --kills counts.
get_property(suites GLOBAL PROPERTY FERRY_KILLS)
foreach(suite ${suites})
  if(suite MATCHES "^(a_device_that|two_spares)") # of as many as they have
    continue()
  endif()
  get_property(arguments GLOBAL PROPERTY FERRY_KILLS_${suite})
  get_test_property(${suite} ENVIRONMENT environment)
  soak_test(${suite}_often ${arguments} --kills 100)
  if(environment)
    set_tests_properties(${suite}_often PROPERTIES ENVIRONMENT "${environment}")
  endif()
endforeach()

if(TARGET plain_mpi AND NOT FERRY_SANITIZE)
  soak_test(mpi_is_measured_as_by_a_plain_program ${CMAKE_CURRENT_SOURCE_DIR}/bench/plain_mpi.bash
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} $<TARGET_FILE:plain_mpi> ${MPIEXEC_EXECUTABLE})
  set_tests_properties(mpi_is_measured_as_by_a_plain_program PROPERTIES RUN_SERIAL ON)
endif()
soak_test(takeover_often takeover ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
soak_test(api_stress_often api_stress)
soak_test(balance_often balance)
soak_test(uneven_often uneven) # 2,016 random programs of uneven traffic
soak_test(all_allocations_of_a_dgx1_get_every_collective_right host_machines all)
soak_test(mutants_of_programs_with_sums_on_devices program_mutations 34 20000 trees)
# with all counts of each type and operation
soak_test(api_in_process_often api_in_process)
set(often takeover_often api_stress_often api_in_process_often)
if(TARGET mpi_collectives)
  soak_test(mpi_collectives_often ferryrun -n 4 --domains 2 -- $<TARGET_FILE:mpi_collectives>)
  set_tests_properties(mpi_collectives_often PROPERTIES RUN_SERIAL ON)
  list(APPEND often mpi_collectives_often)
endif()
set_tests_properties(${often} PROPERTIES ENVIRONMENT FERRY_TEST_TIMES=20)
set_tests_properties(balance_often PROPERTIES ENVIRONMENT FERRY_TEST_TIMES=34)
set_tests_properties(uneven_often PROPERTIES ENVIRONMENT FERRY_TEST_TIMES=24)
soak_test(packages_are_what_debian_expects ${CMAKE_CURRENT_SOURCE_DIR}/packages.bash ${PROJECT_SOURCE_DIR}
  ${CMAKE_CURRENT_BINARY_DIR}/packages)
set_tests_properties(packages_are_what_debian_expects PROPERTIES SKIP_RETURN_CODE 77)
foreach(variant " " "_pushed FERRY_TEST_PUSHES=1" "_wait_kernel FERRY_WAIT=kernel"
    "_across FERRY_TEST_PUSHES=1;FERRY_TEST_DOMAINS=2")
  string(REGEX MATCH "^([^ ]*) (.*)$" variant "${variant}")
  set(suite mapped_failures${CMAKE_MATCH_1}_often)
  soak_test(${suite} mapped_failures)
  set_tests_properties(${suite} PROPERTIES ENVIRONMENT "${CMAKE_MATCH_2};FERRY_TEST_DEATHS=50")
endforeach()
# Suites in environments that a check has with others.
foreach(variant "cuda_streams_pushed FERRY_TEST_PUSHES=1" "cuda_graphs_pushed FERRY_TEST_PUSHES=1"
    "mapped_domains_pushed FERRY_TEST_PUSHES=1" "cuda_streams_wait_kernel FERRY_WAIT=kernel")
  string(REGEX MATCH "^((.*)_(pushed|wait_kernel)) (.*)$" variant "${variant}")
  soak_test(${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
  set_tests_properties(${CMAKE_MATCH_1} PROPERTIES ENVIRONMENT "${CMAKE_MATCH_4}")
endforeach()

soak_test(kernels_ptx_is_what_is_compiled ${PROJECT_SOURCE_DIR}/scripts/kernels-ptx --compare)
set_tests_properties(kernels_ptx_is_what_is_compiled PROPERTIES SKIP_RETURN_CODE 77)
find_program(SPIN spin)
if(SPIN)
  soak_test(models_hold_and_need_every_step ${PROJECT_SOURCE_DIR}/scripts/check-models)
endif()
soak_test(quarantine_of_fuse quarantine)
set_tests_properties(quarantine_of_fuse PROPERTIES ENVIRONMENT FERRY_TEST_FUSE=1)
soak_test(soak_for_minutes soak --minutes 10 --domains 2)
foreach(domains 1 2)
  soak_test(hostility_${domains}_often hostility --writes 100000 --parts al --domains ${domains})
endforeach()
