# SPDX-License-Identifier: Apache-2.0
# Tests of the whole rather than of one folder: the installed tree, and the models of the protocols.
add_test(NAME programs_build_and_run_against_an_installed_tree
  COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
    -DWORK=${CMAKE_CURRENT_BINARY_DIR}/install -DCC=${CMAKE_C_COMPILER} -DSANITIZE=${FERRY_SANITIZE}
    -DLIBDIR=${CMAKE_INSTALL_LIBDIR} -DBINDIR=${CMAKE_INSTALL_BINDIR} -DVERSION=${PROJECT_VERSION}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/install.cmake)
set_tests_properties(programs_build_and_run_against_an_installed_tree PROPERTIES LABELS api)

# `make models` checks them with spin, and records what it has checked.
add_test(NAME models_are_those_that_were_checked COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-models --unchanged)
set_tests_properties(models_are_those_that_were_checked PROPERTIES LABELS model)
