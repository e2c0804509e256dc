# SPDX-License-Identifier: Apache-2.0
# The last lines of `cmake --install`, on standard error, of which `make install` shows these alone: what a shell has to
# know before the commands and a program find what was installed. What the shell knows already is left out. Nothing is
# said where the tree is only staged, under DESTDIR or for a package.
if(NOT "$ENV{DESTDIR}" STREQUAL "" OR deb)
  return()
endif()
get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)

# missing(VARIABLE FOLDER): a line for the shell, unless VARIABLE names the folder.
set(lines "")
function(missing variable folder)
  if(NOT ":$ENV{${variable}}:" MATCHES ":${folder}/?:")
    set(lines "${lines}  export ${variable}=${folder}\${${variable}:+:\$${variable}}\n" PARENT_SCOPE)
  endif()
endfunction()

missing(PATH ${prefix}/${bindir})
if(prefix MATCHES "^/usr(/local)?$")
  set(after "The loader finds libferry once ldconfig has run:\n  sudo ldconfig\n")
else()
  missing(LD_LIBRARY_PATH ${prefix}/${libdir})
  missing(PKG_CONFIG_PATH ${prefix}/${libdir}/pkgconfig)
  set(completion ${prefix}/${datadir}/bash-completion/completions/ferryrun)
  set(after "Completion in bash, where it does not come by itself:\n  . ${completion}\n")
endif()
if(NOT lines STREQUAL "")
  set(lines "For this shell, and in ~/.profile for those to come:\n${lines}")
endif()
message("\nFerry is installed in ${prefix}; the manual is ${prefix}/${docdir}/README.md.\n${lines}${after}"
  "Then try:\n  ferryrun -n 2 --fork -- ferry-perf allreduce -e 1M")
