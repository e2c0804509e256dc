# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down besides the commands, which their own folders install: the library, its headers,
# the pkg-config file, the CMake package, man pages, the manual and examples. Everything finds its neighbours by
# relative paths, so an installed tree may be moved.
include(CMakePackageConfigHelpers)

# The version is written twice, here and where a program can read it. They must not drift apart.
file(STRINGS ${PROJECT_SOURCE_DIR}/rank-lib/include/ferry.h version_lines REGEX "^#define FERRY_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "#define FERRY_[A-Z]+ " "" version_parts "${version_lines}")
list(JOIN version_parts "." header_version)
if(NOT header_version STREQUAL PROJECT_VERSION)
  message(FATAL_ERROR "ferry.h says version ${header_version}, CMakeLists.txt says ${PROJECT_VERSION}")
endif()

set(FERRY_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Ferry)

# Three components, which are three packages: the library, what programs are built with, what a person types and reads.
install(TARGETS ferry EXPORT FerryTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT library NAMELINK_COMPONENT development)
install(FILES rank-lib/include/ferry.h rank-lib/include/ferry_device.cuh ipc/ferry_types.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
foreach(section 1 7)
  install(DIRECTORY docs/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section}
    FILES_MATCHING PATTERN "*.${section}")
endforeach()
# The manual and what it points to lie as in the source tree, so that its links hold.
install(FILES LICENSE README.md CONTRIBUTING.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES orchestrator/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/orchestrator)
install(FILES rank-lib/include/ferry.h DESTINATION ${CMAKE_INSTALL_DOCDIR}/rank-lib/include)
install(DIRECTORY bench/examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench/examples COMPONENT development
  FILES_MATCHING PATTERN "*.c" PATTERN "*.cu" PATTERN "*.cuh" PATTERN "*.ferry" PATTERN "*.py")
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" PATTERN "*.json" PATTERN "*.ferry" PATTERN "*.[17]")
# bash-completion loads a file by the command's name.
foreach(command ferryrun ferry-router ferry-stat ferryprog ferry-perf ferry-plot)
  install(FILES launch/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME ${command})
endforeach()
# Where `make docs` has run.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/build-docs/man/man3 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT development
  OPTIONAL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/build-docs/html/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/api COMPONENT development
  OPTIONAL)

file(RELATIVE_PATH prefix_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig "${prefix_from_pkgconfig}")
configure_file(cmake/ferry.pc.in ${PROJECT_BINARY_DIR}/ferry.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ferry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)

configure_package_config_file(cmake/FerryConfig.cmake.in ${PROJECT_BINARY_DIR}/FerryConfig.cmake
  INSTALL_DESTINATION ${FERRY_PACKAGE_DIR} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Until 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/FerryConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/FerryConfig.cmake ${PROJECT_BINARY_DIR}/FerryConfigVersion.cmake
  DESTINATION ${FERRY_PACKAGE_DIR} COMPONENT development)
install(EXPORT FerryTargets NAMESPACE Ferry:: DESTINATION ${FERRY_PACKAGE_DIR} COMPONENT development)

# Last, as the last lines are those that are read.
foreach(folder libdir bindir datadir docdir)
  string(TOUPPER ${folder} FOLDER)
  install(CODE "set(${folder} \"${CMAKE_INSTALL_${FOLDER}}\")")
endforeach()
install(CODE "set(deb \"${FERRY_DEB}\")")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/after_install.cmake)
