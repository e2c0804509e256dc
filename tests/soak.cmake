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

soak_test(soak_for_minutes soak --minutes 10 --domains 2)
foreach(domains 1 2)
  soak_test(hostility_${domains}_often hostility --writes 100000 --parts al --domains ${domains})
endforeach()
