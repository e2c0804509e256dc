# SPDX-License-Identifier: Apache-2.0
# libferry-nccl.so over a double of NCCL.
foreach(age now old)
  add_library(fake_nccl_${age} SHARED fake_nccl/calls.c fake_nccl/clique.c fake_nccl/comms.c fake_nccl/defaults.c
    fake_nccl/group.c fake_nccl/names.c fake_nccl/note.c fake_nccl/stream.c fake_nccl/transfer.c fake_nccl/tuner.c)
  target_link_libraries(fake_nccl_${age} PRIVATE ferry_flags ferry_engine Threads::Threads)
  target_link_options(fake_nccl_${age} PRIVATE
    -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/fake_nccl/fake_nccl.map)
  set_target_properties(fake_nccl_${age} PROPERTIES OUTPUT_NAME nccl SOVERSION 2
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_nccl_${age})
endforeach()
target_compile_definitions(fake_nccl_old PRIVATE FAKE_NCCL_NEWEST=21899)

# Names and arguments, through the library as programs load it.
ferry_test(nccl_names FOLDER nccl LIBRARIES ${CMAKE_DL_LIBS} LABELS api)
add_test(NAME nccl_names_off COMMAND nccl_names)
add_test(NAME nccl_names_too_old COMMAND nccl_names old)
set(library "FERRY_TEST_LIBRARY=$<TARGET_FILE:ferry-nccl>")
set_tests_properties(nccl_names PROPERTIES
  ENVIRONMENT "${library};FERRY_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl_now>;FERRY_LOG=error")
set_tests_properties(nccl_names_off PROPERTIES LABELS api
  ENVIRONMENT "${library};FERRY_NCCL=off;FERRY_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl_now>;FERRY_LOG=error")
set_tests_properties(nccl_names_too_old PROPERTIES LABELS api
  ENVIRONMENT "${library};FERRY_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl_old>;FAKE_NCCL_VERSION=21803")
add_dependencies(nccl_names ferry-nccl fake_nccl_now fake_nccl_old)

ferry_test(nccl_search FOLDER nccl LIBRARIES ferry_names ${CMAKE_DL_LIBS} LABELS api)
add_dependencies(nccl_search fake_nccl_now)
set_tests_properties(nccl_search PROPERTIES
  ENVIRONMENT "FERRY_TEST_NCCL=$<TARGET_FILE:fake_nccl_now>;LD_LIBRARY_PATH=$<TARGET_FILE_DIR:fake_nccl_now>")

# What lies behind the names, in a program that has them itself, as one has that preloads them.
add_library(nccl_exported OBJECT ../orchestrator/names.c)
target_link_libraries(nccl_exported PRIVATE ferry_flags ferry_names)
foreach(suite groups communicators random)
  ferry_test(nccl_${suite} FOLDER nccl SOURCES $<TARGET_OBJECTS:nccl_exported>
    LIBRARIES ferry_names fake_nccl_now Threads::Threads LABELS lanes)
  set_target_properties(nccl_${suite} PROPERTIES ENABLE_EXPORTS ON)
endforeach()

foreach(policy zero overridden)
  add_test(NAME nccl_communicators_policy_${policy} COMMAND nccl_communicators ${policy})
  set_tests_properties(nccl_communicators_policy_${policy} PROPERTIES LABELS lanes)
endforeach()
ferry_test(nccl_config FOLDER nccl LIBRARIES ferry_names LABELS api)
ferry_test(nccl_rest FOLDER nccl LIBRARIES ferry_names Threads::Threads LABELS api)

# Decisions of the orchestrator in made time: what is below them moves nothing, and takes as long as a machine says.
set(orchestrator ${PROJECT_SOURCE_DIR}/orchestrator)
add_library(nccl_virtual STATIC nccl/virtual.c nccl/virtual_machine.c nccl/virtual_clock.c nccl/virtual_preregister.c
  nccl/virtual_fabrics.c nccl/virtual_rest.c ${orchestrator}/kernels.c ${orchestrator}/issue.c ${orchestrator}/launch.c
  ${orchestrator}/split.c
  ${orchestrator}/shadow_comm.c ${orchestrator}/tally.c ${orchestrator}/meter.c ${orchestrator}/key.c
  ${orchestrator}/prior.c)
target_include_directories(nccl_virtual PUBLIC ${PROJECT_SOURCE_DIR}/rank-lib/include
  ${PROJECT_SOURCE_DIR}/ipc)
target_link_libraries(nccl_virtual PUBLIC ferry_tuner ferry_ipc PRIVATE ferry_flags)
ferry_test(nccl_paces FOLDER nccl LIBRARIES nccl_virtual LABELS program)
ferry_test(nccl_veto FOLDER nccl LIBRARIES nccl_virtual LABELS program)
ferry_test(nccl_phases FOLDER nccl LIBRARIES nccl_virtual LABELS program)

ferry_test(nccl_lookup FOLDER nccl LIBRARIES ferry_names Threads::Threads LABELS lanes)

# The double by itself, in streams of that of the driver.
ferry_test(nccl_double FOLDER nccl LIBRARIES ferry_names fake_nccl_now cuda-fake Threads::Threads LABELS lanes)
ferry_test(nccl_clock FOLDER nccl LIBRARIES ferry_names cuda-fake Threads::Threads LABELS lanes)
target_compile_definitions(nccl_clock PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>")

# NCCL's tuner plugin that the library is, by each version of the interface; one of the user's, and none.
ferry_test(nccl_tuner FOLDER nccl SOURCES $<TARGET_OBJECTS:nccl_exported>
  LIBRARIES ferry_names fake_nccl_now cuda-fake Threads::Threads ${CMAKE_DL_LIBS} LABELS lanes)
set_target_properties(nccl_tuner PROPERTIES ENABLE_EXPORTS ON)
target_compile_definitions(nccl_tuner PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>")
add_library(nccl_user_tuner MODULE nccl/user_tuner.c)
# Without ferry_flags: AddressSanitizer takes its variable for a second definition of Ferry's.
target_include_directories(nccl_user_tuner PRIVATE ${PROJECT_SOURCE_DIR})
set_target_properties(nccl_user_tuner PROPERTIES PREFIX "" OUTPUT_NAME libnccl-tuner
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/user_tuner)
# One that pins tunings at run time, for gpu/nccl_tunings.py.
add_library(nccl_pins MODULE gpu/nccl_pins.c ../orchestrator/tuner/tuning.c)
target_include_directories(nccl_pins PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/ipc)
set_target_properties(nccl_pins PROPERTIES OUTPUT_NAME nccl-pins)
foreach(plugin 2 3 4 5 6 none $<TARGET_FILE:nccl_user_tuner>)
  string(REGEX REPLACE ".*TARGET_FILE.*" users name ${plugin})
  add_test(NAME nccl_tuner_${name} COMMAND nccl_tuner ${plugin})
  set_tests_properties(nccl_tuner_${name} PROPERTIES LABELS lanes)
endforeach()
add_dependencies(nccl_tuner nccl_user_tuner)

# The table and NCCL's header, where there is one.
if(CUDA_INCLUDE_DIR AND NCCL_INCLUDE_DIR)
  add_library(nccl_header OBJECT nccl/prototypes.c nccl/values.c)
  target_include_directories(nccl_header SYSTEM PRIVATE ${NCCL_INCLUDE_DIR} ${CUDA_INCLUDE_DIR})
  target_link_libraries(nccl_header PRIVATE ferry_flags)
  ferry_test(nccl_values FOLDER nccl SOURCES $<TARGET_OBJECTS:nccl_header> LIBRARIES ferry_names LABELS api)
endif()

# Programs that get the library in all the ways there are. A sanitizer's own would have to be preloaded before it.
if(NOT FERRY_SANITIZE)
  add_executable(nccl_linker nccl/program.c)
  target_compile_definitions(nccl_linker PRIVATE PROGRAM_LINKS)
  target_link_libraries(nccl_linker PRIVATE ferry_flags fake_nccl_now Threads::Threads)
  add_executable(nccl_opener nccl/program.c)
  target_link_libraries(nccl_opener PRIVATE ferry_flags Threads::Threads ${CMAKE_DL_LIBS})
  add_executable(nccl_rpath_opener nccl/program.c) # as JAX's plugin: its own folder goes before LD_LIBRARY_PATH
  target_link_libraries(nccl_rpath_opener PRIVATE ferry_flags Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(nccl_rpath_opener PRIVATE -Wl,--disable-new-dtags,-rpath,$<TARGET_FILE_DIR:fake_nccl_now>)
  add_executable(nccl_ways nccl/nccl_ways.c)
  target_compile_definitions(nccl_ways PRIVATE NOW="${CMAKE_CURRENT_BINARY_DIR}/fake_nccl_now"
    OLD="${CMAKE_CURRENT_BINARY_DIR}/fake_nccl_old")
  target_link_libraries(nccl_ways PRIVATE ferry_flags PkgConfig::CMOCKA)
  add_test(NAME nccl_ways COMMAND nccl_ways ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} $<TARGET_FILE:ferry-nccl>
    ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/ferry/nccl $<TARGET_FILE:nccl_linker> $<TARGET_FILE:nccl_opener>
    $<TARGET_FILE:nccl_rpath_opener> $<TARGET_FILE_DIR:nccl_user_tuner>)
  set_tests_properties(nccl_ways PROPERTIES LABELS api)
endif()

# The table and a real libnccl, where there is one.
find_library(NCCL_LIBRARY libnccl.so.2 HINTS ${NCCL_INCLUDE_DIR}/../lib ${CUDA_INCLUDE_DIR}/../lib
  ${CUDA_INCLUDE_DIR}/../../../lib)
if(NCCL_LIBRARY)
  add_test(NAME nccl_names_are_those_that_a_real_one_exports
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-nccl-names ${NCCL_LIBRARY})
  set_tests_properties(nccl_names_are_those_that_a_real_one_exports PROPERTIES LABELS api)
endif()

# Shared between the two doubles.
foreach(suite split sums preregister blocks failures kernels messages message_groups own_messages caller)
  ferry_test(nccl_${suite} FOLDER nccl SOURCES $<TARGET_OBJECTS:nccl_exported>
    LIBRARIES cuda_places_inside ferry_names fake_nccl_now Threads::Threads LABELS lanes)
  set_target_properties(nccl_${suite} PROPERTIES ENABLE_EXPORTS ON)
endforeach()
# For scripts/hot-path, which traces it.
add_library(hot_path_trace SHARED hot_path/trace.c)
target_link_libraries(hot_path_trace PRIVATE ferry_flags ${CMAKE_DL_LIBS})
set_target_properties(hot_path_trace PROPERTIES C_VISIBILITY_PRESET default)
add_executable(hot_path hot_path/hot_path.c $<TARGET_OBJECTS:nccl_exported>)
target_link_libraries(hot_path PRIVATE ferry_flags cuda_places_inside ferry_names fake_nccl_now Threads::Threads
  ${CMAKE_DL_LIBS})
set_target_properties(hot_path PROPERTIES ENABLE_EXPORTS ON)
ferry_test(nccl_kernels_random FOLDER nccl SOURCES $<TARGET_OBJECTS:nccl_exported>
  LIBRARIES cuda_places_inside ferry_names fake_nccl_now Threads::Threads ${CMAKE_DL_LIBS} LABELS lanes)
set_target_properties(nccl_kernels_random PROPERTIES ENABLE_EXPORTS ON)
add_test(NAME nccl_failures_first COMMAND nccl_failures first)
set_tests_properties(nccl_failures_first PROPERTIES LABELS lanes)
# And where GPUs do not reach each other, so that Ferry's part goes through the host.
foreach(suite split blocks messages message_groups own_messages)
  add_test(NAME nccl_${suite}_by_host COMMAND nccl_${suite})
  set_tests_properties(nccl_${suite}_by_host PROPERTIES LABELS lanes ENVIRONMENT FAKE_CUDA_PEERS=0)
endforeach()

# What is measured in CPU time, sanitizers make longer.
if(NOT FERRY_SANITIZE)
  ferry_test(nccl_cost FOLDER nccl SOURCES $<TARGET_OBJECTS:nccl_exported>
    LIBRARIES cuda_places_inside ferry_names fake_nccl_now Threads::Threads LABELS api)
  set_target_properties(nccl_cost PROPERTIES ENABLE_EXPORTS ON)
endif()

# And memory that programs free by a double of CUDA's runtime.
ferry_test(nccl_frees FOLDER nccl SOURCES ../orchestrator/frees.c $<TARGET_OBJECTS:nccl_exported>
  LIBRARIES cuda_places_inside ferry_names fake_nccl_now cudart-fake Threads::Threads LABELS lanes)
set_target_properties(nccl_frees PROPERTIES ENABLE_EXPORTS ON)

# Under the preload, linked and opened.
if(NOT FERRY_SANITIZE)
  set(linked fake_nccl_now cudart-fake cuda-fake)
  add_executable(nccl_frees_linked nccl/frees.c)
  add_library(nccl_frees_opened SHARED nccl/frees.c)
  foreach(program nccl_frees_linked nccl_frees_opened)
    target_link_libraries(${program} PRIVATE ferry_flags -Wl,--no-as-needed ${linked} ${CMAKE_DL_LIBS})
  endforeach()
  target_compile_definitions(nccl_frees_opened PRIVATE FREES_IS_OPENED)
  set_target_properties(nccl_frees_opened PROPERTIES C_VISIBILITY_PRESET default)
  add_executable(nccl_frees_opener nccl/frees_opener.c)
  target_link_libraries(nccl_frees_opener PRIVATE ferry_flags ${CMAKE_DL_LIBS})
  add_executable(nccl_preload nccl/nccl_preload.c)
  target_link_libraries(nccl_preload PRIVATE ferry_flags PkgConfig::CMOCKA)
  add_test(NAME nccl_preload COMMAND nccl_preload ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} $<TARGET_FILE:ferry-nccl>
    $<TARGET_FILE:cuda-fake> $<TARGET_FILE:nccl_frees_linked> $<TARGET_FILE:nccl_frees_opener>
    $<TARGET_FILE:nccl_frees_opened>)
  set_tests_properties(nccl_preload PROPERTIES LABELS api)
  add_dependencies(nccl_preload ferryrun ferry-router ferry-nccl nccl_frees_linked nccl_frees_opened
    nccl_frees_opener)
endif()

# ferry-shares: how good the shares of calls beside NCCL are. An experiment, of scripts/nccl-report; not installed.
set(bench ${PROJECT_SOURCE_DIR}/bench)
add_executable(ferry-shares
  ${bench}/command/option.c ${bench}/command/record.c ${bench}/command/sample.c ${bench}/rank/gpu.c
  shares/bursts.c shares/cold.c shares/crew.c shares/main.c)
target_link_libraries(ferry-shares PRIVATE ferry_flags ferry_engine PkgConfig::CJSON Threads::Threads
  ${CMAKE_DL_LIBS})
if(NOT FERRY_SANITIZE)
  add_executable(nccl_shares nccl/nccl_shares.c)
  target_link_libraries(nccl_shares PRIVATE ferry_flags PkgConfig::CMOCKA)
  add_test(NAME nccl_shares COMMAND nccl_shares ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} $<TARGET_FILE:cuda-fake>
    $<TARGET_FILE:fake_nccl_now>)
  set_tests_properties(nccl_shares PROPERTIES LABELS api
    ENVIRONMENT "FERRY_SPLIT_FLOOR=128K;FERRY_KERNELS=off")
  add_dependencies(nccl_shares ferryrun ferry-router ferry-nccl ferry-shares fake_nccl_now)
endif()

# What ferryrun --nccl measures before it starts the command.
if(NOT FERRY_SANITIZE)
  add_executable(measure_once launch/measure_once.c)
  target_link_libraries(measure_once PRIVATE ferry_flags PkgConfig::CMOCKA)
  add_test(NAME measure_once COMMAND measure_once ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}
    $<TARGET_FILE:cuda-fake> $<TARGET_FILE:fake_nccl>)
  set_tests_properties(measure_once PROPERTIES LABELS api)
  add_dependencies(measure_once ferryrun ferry-router ferry-nccl ferry-perf ferry-perf-nccl fake_nccl)
endif()

# Random programs with kills, under the preload.
if(NOT FERRY_SANITIZE)
  add_executable(nccl_trials_fake nccl/trials.c nccl/trial_call.c nccl/trial_evidence.c nccl/trial_player.c
    nccl/trial_routers.c nccl/trial_tally.c)
  target_link_libraries(nccl_trials_fake PRIVATE ferry_flags -Wl,--no-as-needed ${linked} Threads::Threads
    ${CMAKE_DL_LIBS})
  foreach(how "" --one)
    add_test(NAME nccl_trials${how} COMMAND nccl_trials_fake --runs 30 --bytes 65536 --kills 20 --fresh 2
      ${how})
    set_tests_properties(nccl_trials${how} PROPERTIES LABELS api ENVIRONMENT
      "LD_PRELOAD=$<TARGET_FILE:ferry-nccl>;FERRY_CUDA_LIBRARY=$<TARGET_FILE:cuda-fake>;FERRY_SPLIT_WAIT=5;\
FERRY_SPLIT_FLOOR=4K;FERRY_SHARES=nccl:0.4,host:0.6;FAKE_CUDA_DEVICES=2;FERRY_DOMAINS=1;FERRY_LOG=error")
  endforeach()
  add_dependencies(nccl_trials_fake ferry-router ferry-nccl)

  # The double ends the process where ranks come to different tunings, and those here are two processes.
  find_program(PYTHON python3)
  if(PYTHON)
    add_test(NAME nccl_tunings COMMAND ${PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/nccl_tunings.py --sizes 1
      --calls 30 --more 60 --collectives allreduce --ferry ${PROJECT_BINARY_DIR})
    set_tests_properties(nccl_tunings PROPERTIES LABELS api
      PASS_REGULAR_EXPRESSION "allreduce +1 MiB .* all .* AutoCCL .* tune [0-9.]+ .(own|Ring|Tree).* ferry [0-9]"
      ENVIRONMENT "FERRY_CUDA_LIBRARY=$<TARGET_FILE:cuda-fake>;FERRY_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl_now>;\
FAKE_CUDA_DEVICES=2;FERRY_TUNE=off")
  endif()
endif()
