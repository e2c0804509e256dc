# SPDX-License-Identifier: Apache-2.0
# `make deb`: three Debian packages by CPack, of the components that cmake/install.cmake names.
option(FERRY_DEB "Lay out for Debian packages: copyright and changelog for each, compressed man pages" OFF)
set(FERRY_DEB_MAINTAINER "" CACHE STRING
  "The maintainer of the packages (default: DEBFULLNAME and DEBEMAIL, else git's user, else who made the last commit)")
if(NOT FERRY_DEB)
  return()
endif()
if(NOT FERRY_DEB_MAINTAINER AND NOT "$ENV{DEBEMAIL}" STREQUAL "")
  set(FERRY_DEB_MAINTAINER "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
foreach(asks "git config user.email && git config user.name" "git log -1 --format=%ae%n%an")
  if(NOT FERRY_DEB_MAINTAINER)
    execute_process(COMMAND sh -c "${asks}" WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE who ERROR_QUIET)
    string(REGEX REPLACE "^([^\n]+)\n([^\n]+)\n?$" "\\2 <\\1>" FERRY_DEB_MAINTAINER "${who}")
  endif()
endforeach()
if(NOT FERRY_DEB_MAINTAINER MATCHES ".<.+@.+>$")
  message(FATAL_ERROR "A package names its maintainer, and git knows nobody here: DEBFULLNAME='A. Name' "
    "DEBEMAIL=a.name@example.org make deb")
endif()
string(REGEX REPLACE "\\..*" "" soname ${PROJECT_VERSION})
set(package_library libferry${soname})
set(package_development libferry-dev)
set(package_tools ferry-tools)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH, where it is set
configure_file(cmake/debian/changelog.in ${PROJECT_BINARY_DIR}/changelog.Debian @ONLY)
configure_file(CHANGELOG.md ${PROJECT_BINARY_DIR}/changelog COPYONLY)
execute_process(COMMAND gzip -9nkf changelog changelog.Debian WORKING_DIRECTORY ${PROJECT_BINARY_DIR}
  COMMAND_ERROR_IS_FATAL ANY)
foreach(component library development tools)
  set(folder ${CMAKE_INSTALL_DATADIR}/doc/${package_${component}})
  install(FILES cmake/debian/copyright DESTINATION ${folder} COMPONENT ${component})
  install(FILES ${PROJECT_BINARY_DIR}/changelog.gz ${PROJECT_BINARY_DIR}/changelog.Debian.gz DESTINATION ${folder}
    COMPONENT ${component})
  install(CODE "file(GLOB pages \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man*/*.[1-9]\")
    if(pages)
      execute_process(COMMAND gzip -9nf \${pages} COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT ${component})
  string(TOUPPER ${component} COMPONENT)
  set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME ${package_${component}})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL library development tools)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_NAME ferry)
set(CPACK_PACKAGE_CONTACT "${FERRY_DEB_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# Which package needs which library is read from the files, libferry for the commands included.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY =)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS library)
set(CPACK_COMPONENT_TOOLS_DEPENDS library)

# The loader's cache, once for all packages of an installation.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS python3) # ferry-plot

# The user and the directory of shared routers; the routers themselves wait to be enabled.
set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/launch/systemd/postinst
  ${PROJECT_SOURCE_DIR}/launch/systemd/postrm)
set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)

set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "NCCL's collectives, run through a server's host memory by a router process per
NUMA node. A program starts its routers by itself where ferry-tools is there.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "ferry.h, the pkg-config file, the CMake package Ferry, examples, and the
reference of the API.")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "ferry-router, ferryrun, which starts routers and ranks, ferry-stat, ferryprog,
ferry-perf and ferry-plot, their pages and the manual.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS ferry-tools)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS pkg-config)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "mpich | openmpi-bin, python3-matplotlib, bash-completion")
include(CPack)
