# SPDX-License-Identifier: Apache-2.0
# A ctest script: an installed tree is all that a program needs. Installs into a fresh prefix and moves it elsewhere,
# builds the examples against it by pkg-config and by find_package(Ferry), and runs what was built without telling it
# where libferry is.
#   cmake -DBUILD=<build dir> -DSOURCE=<source dir> -DWORK=<scratch dir> -DCC=<compiler> -DSANITIZE=<as FERRY_SANITIZE>
#         -DLIBDIR=<lib> -DBINDIR=<bin> -DVERSION=<x.y.z> -P install.cmake
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect text pattern what)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "${what}: expected \"${pattern}\" in:\n${text}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
# Its last lines say what a shell has to know; staged, under DESTDIR, nobody has to know yet.
expect("${output}" "export PATH=${WORK}/first/${BINDIR}\\\${PATH:.*\n  ferryrun [^\n]*\n$" "the end of cmake --install")
set(ENV{DESTDIR} ${WORK}/staged)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix /usr)
if(output MATCHES "export PATH")
  message(FATAL_ERROR "a staged tree is told of as if it were installed:\n${output}")
endif()
unset(ENV{DESTDIR})
file(RENAME ${WORK}/first ${WORK}/prefix)
set(prefix ${WORK}/prefix)
foreach(file include/ferry.h include/ferry_types.h include/ferry_device.cuh
        ${LIBDIR}/libferry.so ${LIBDIR}/pkgconfig/ferry.pc
        ${LIBDIR}/cmake/Ferry/FerryConfig.cmake ${LIBDIR}/cmake/Ferry/FerryConfigVersion.cmake
        ${LIBDIR}/libferry-nccl.so ${LIBDIR}/ferry/nccl/libnccl.so.2
        ${BINDIR}/ferry-router ${BINDIR}/ferryrun share/man/man7/ferry.7 share/bash-completion/completions/ferryrun
        lib/systemd/system/ferry-router@.service lib/systemd/system/ferry-router-spare@.service
        lib/systemd/system/ferry-router-spare2@.service
        lib/tmpfiles.d/ferry.conf lib/sysusers.d/ferry.conf
        share/doc/ferry/tenants.example)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "${file} is not installed")
  endif()
endforeach()

# What the manual points to is installed too.
set(followed 0)
file(GLOB_RECURSE pages ${prefix}/share/doc/ferry/*.md)
foreach(page ${pages})
  file(READ ${page} text)
  string(REPLACE "](" "@link:" text "${text}")
  string(REGEX REPLACE "[][;]" " " text "${text}") # which CMake's lists do not survive
  string(REGEX MATCHALL "@link:[^)#]+" links "${text}")
  get_filename_component(folder ${page} DIRECTORY)
  foreach(link ${links})
    string(REPLACE "@link:" "" link ${link})
    math(EXPR followed "${followed} + 1")
    if(NOT link MATCHES "^https?:" AND NOT EXISTS ${folder}/${link})
      message(FATAL_ERROR "${page}: its link to ${link} leads nowhere")
    endif()
  endforeach()
endforeach()
if(followed LESS 20)
  message(FATAL_ERROR "the manual has no more than ${followed} links: are these all pages? ${pages}")
endif()

run(readelf -d ${prefix}/${LIBDIR}/libferry.so)
string(REGEX REPLACE "\\..*" "" major ${VERSION})
expect("${output}" "SONAME.*libferry\\.so\\.${major}\\]" "SONAME")
if(output MATCHES "NEEDED[^\n]*(mpi|cuda|nccl)")
  message(FATAL_ERROR "libferry links MPI, CUDA or NCCL:\n${output}")
endif()
run(nm -D --defined-only ${prefix}/${LIBDIR}/libferry.so)
string(REGEX MATCHALL " [A-Z] [^\n]*" exported "${output}")
foreach(symbol ${exported})
  if(NOT symbol MATCHES "^ (T ferry[A-Z]|A FERRY_0)")
    message(FATAL_ERROR "libferry exports${symbol}")
  endif()
endforeach()

set(flags -Wall -Wextra -Werror)
if(SANITIZE)
  list(APPEND flags -fsanitize=${SANITIZE})
endif()
set(examples ${prefix}/share/doc/ferry/bench/examples)

# The programs among the examples are right.
file(GLOB programs ${examples}/*.ferry)
list(LENGTH programs count)
if(count LESS 3)
  message(FATAL_ERROR "${count} programs are installed in ${examples}")
endif()
foreach(program ${programs})
  run(${prefix}/${BINDIR}/ferryprog check ${program})
endforeach()

# By pkg-config.
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
run(pkg-config --modversion ferry)
expect("${output}" "^${VERSION}\n$" "pkg-config --modversion ferry")
run(pkg-config --cflags --libs ferry)
separate_arguments(package UNIX_COMMAND "${output}")
foreach(example in_process allreduce)
  run(${CC} ${flags} ${examples}/${example}.c -o ${WORK}/${example} ${package} -Wl,-rpath,${prefix}/${LIBDIR})
endforeach()

# By find_package, asking for a version.
file(WRITE ${WORK}/user/CMakeLists.txt "cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(Ferry ${VERSION} REQUIRED)
add_executable(in_process ${examples}/in_process.c)
target_link_libraries(in_process Ferry::ferry)
")
list(JOIN flags " " flags)
run(${CMAKE_COMMAND} -S ${WORK}/user -B ${WORK}/user/build -DCMAKE_C_COMPILER=${CC} "-DCMAKE_C_FLAGS=${flags}"
  -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${WORK}/user/build)

set(sum "rank 0: 11 22 33\nrank 1: 11 22 33\n")
run(${WORK}/in_process)
expect("${output}" "^${sum}$" "in_process, built with pkg-config")
run(${WORK}/user/build/in_process)
expect("${output}" "^${sum}$" "in_process, built with find_package")

# The installed launcher finds the installed router.
unset(ENV{FERRY_ROUTER})
run(${prefix}/${BINDIR}/ferryrun -n 2 --fork -- ${WORK}/allreduce)
expect("${output}" "^we are 2\nwe are 2\n$" "ferryrun -n 2 --fork -- allreduce")

find_program(PYTHON python3)
if(PYTHON AND NOT SANITIZE) # whose own would have to be preloaded
  # Unbuffered, Python writes a line and its end apart, and the ranks' lines run into one.
  run(${CMAKE_COMMAND} -E env --unset=PYTHONUNBUFFERED LD_LIBRARY_PATH=${prefix}/${LIBDIR} ${prefix}/${BINDIR}/ferryrun
    -n 2 --fork -- ${PYTHON} ${examples}/allreduce.py)
  expect("${output}" "^we are 2\nwe are 2\n$" "ferryrun -n 2 --fork -- python3 allreduce.py")
endif()

# And the library with NCCL's names, which has its two ways in.
if(NOT SANITIZE)
  set(ENV{FERRY_TUNE} off)
  run(${prefix}/${BINDIR}/ferryrun --nccl -- sh -c "echo $VLLM_NCCL_SO_PATH && echo $LD_PRELOAD")
  file(REAL_PATH ${prefix}/${LIBDIR} folder)
  expect("${output}" "^${folder}/ferry/nccl/libnccl.so.2\n${folder}/libferry-nccl.so\n$" "ferryrun --nccl")
  run(sh -c "env -u LD_LIBRARY_PATH ldd ${folder}/ferry/nccl/libnccl.so.2 | sed -n 's/.*libferry-nccl.so => //p' | \
    cut -d ' ' -f 1 | xargs readlink -f")
  expect("${output}" "^${folder}/libferry-nccl.so\n$" "what libnccl.so.2 of the folder is the name of")
endif()

# The tutorial prints the example that has just run.
file(READ ${SOURCE}/docs/tutorial.md tutorial)
file(READ ${SOURCE}/bench/examples/allreduce.c program)
string(REGEX REPLACE "^/\\*[^\n]*\n/\\*[^\n]*\n" "" program "${program}")
string(REPLACE "\t" "    " program "${program}")
string(FIND "${tutorial}" "```c\n${program}```" position)
if(position EQUAL -1)
  message(FATAL_ERROR "docs/tutorial.md does not print bench/examples/allreduce.c as it is")
endif()

file(REMOVE_RECURSE ${WORK})
