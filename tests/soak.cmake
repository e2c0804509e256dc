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
  soak_test(${suite}_often router_kills ${arguments} --kills 100)
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
soak_test(shrink_often shrink)
soak_test(api_stress_often api_stress)
soak_test(balance_often balance)
set_tests_properties(takeover_often shrink_often api_stress_often PROPERTIES
  ENVIRONMENT FERRY_TEST_TIMES=20)
set_tests_properties(balance_often PROPERTIES ENVIRONMENT FERRY_TEST_TIMES=34)
soak_test(packages_are_what_debian_expects ${CMAKE_CURRENT_SOURCE_DIR}/packages.bash ${PROJECT_SOURCE_DIR}
  ${CMAKE_CURRENT_BINARY_DIR}/packages)
set_tests_properties(packages_are_what_debian_expects PROPERTIES SKIP_RETURN_CODE 77)
foreach(variant "" _pushed _wait_kernel _across)
  get_test_property(mapped_failures${variant} ENVIRONMENT environment)
  soak_test(mapped_failures${variant}_often mapped_failures)
  if(NOT environment)
    set(environment)
  endif()
  set_tests_properties(mapped_failures${variant}_often PROPERTIES
    ENVIRONMENT "${environment};FERRY_TEST_DEATHS=50")
endforeach()

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
