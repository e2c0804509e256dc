# SPDX-License-Identifier: Apache-2.0
# Tests of the whole rather than of one folder: the installed tree, and the models of the protocols.
add_test(NAME programs_build_and_run_against_an_installed_tree
  COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
    -DWORK=${CMAKE_CURRENT_BINARY_DIR}/install -DCC=${CMAKE_C_COMPILER} -DSANITIZE=${FERRY_SANITIZE}
    -DLIBDIR=${CMAKE_INSTALL_LIBDIR} -DBINDIR=${CMAKE_INSTALL_BINDIR} -DVERSION=${PROJECT_VERSION}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/install.cmake)
set_tests_properties(programs_build_and_run_against_an_installed_tree PROPERTIES LABELS api TIMEOUT 120)

find_program(SPIN spin)
if(SPIN AND NOT FERRY_SANITIZE)
  foreach(model eventcount parity_reuse publish call_names put_gate put_targets put_targets_of_domains takeover
      takeover_sums takeover_pairs takeover_named takeover_puts takeover_foreign_ranks adopting adopting_departed
      attaching)
    add_test(NAME model_${model}_holds_and_needs_every_step COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-models ${model})
    set_tests_properties(model_${model}_holds_and_needs_every_step PROPERTIES LABELS model TIMEOUT 300)
  endforeach()
endif()
