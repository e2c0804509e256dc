# SPDX-License-Identifier: Apache-2.0
# The cuda device where there is no GPU: a double of the driver, its own suite, and the device over it.
add_library(cuda-fake SHARED fake_cuda/device.c fake_cuda/context.c fake_cuda/machine.c fake_cuda/memory.c
  fake_cuda/pointer.c fake_cuda/ipc.c fake_cuda/vmm.c fake_cuda/operation.c fake_cuda/stream.c fake_cuda/module.c
  fake_cuda/launch.c fake_cuda/event.c fake_cuda/capture.c fake_cuda/graph.c fake_cuda/fault.c)
target_link_libraries(cuda-fake PRIVATE ferry_flags kernels_emulated Threads::Threads)
set_target_properties(cuda-fake PROPERTIES C_VISIBILITY_PRESET default)

# What Ferry says of the driver, and this machine's cuda.h.
if(CUDA_INCLUDE_DIR)
  set(types ${PROJECT_SOURCE_DIR}/router/copy/cuda_types.h)
  set(values ${CMAKE_CURRENT_BINARY_DIR}/cuda_header/cuda_values.h)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda_header)
  add_custom_command(OUTPUT ${values} DEPENDS ${types} VERBATIM
    COMMAND sed -n "s/^\tCU\\([A-Z0-9_]*\\) = \\([0-9a-fx]*\\),.*/COMPARE(CU\\1, \\2)/p" ${types} > ${values})
  add_library(cuda_header OBJECT fake_cuda/header.c ${values})
  target_include_directories(cuda_header PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/cuda_header)
  target_include_directories(cuda_header SYSTEM PRIVATE ${CUDA_INCLUDE_DIR})
  target_link_libraries(cuda_header PRIVATE ferry_flags)
  ferry_test(fake_cuda_header FOLDER fake_cuda SOURCES $<TARGET_OBJECTS:cuda_header> LABELS ipc)
endif()

add_library(cudart-fake SHARED fake_cuda/runtime.c)
target_link_libraries(cudart-fake PRIVATE ferry_flags cuda-fake Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(cudart-fake PROPERTIES C_VISIBILITY_PRESET default OUTPUT_NAME cudart SOVERSION 13
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
target_link_options(cudart-fake PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/fake_cuda/runtime.map)

add_library(fake_cuda_other STATIC fake_cuda/other.c)
target_link_libraries(fake_cuda_other PRIVATE ferry_flags PUBLIC cuda-fake PkgConfig::CMOCKA)
foreach(suite promises promises_contexts promises_events promises_virtual promises_shared)
  add_executable(fake_cuda_${suite} fake_cuda/${suite}.c)
  target_link_libraries(fake_cuda_${suite} PRIVATE ferry_flags fake_cuda_other cuda-fake Threads::Threads
    PkgConfig::CMOCKA)
  add_test(NAME fake_cuda_${suite} COMMAND fake_cuda_${suite})
  set_tests_properties(fake_cuda_${suite} PROPERTIES LABELS lanes)
endforeach()

# Over libferry, or over all that is in it.
function(cuda_places name ferry)
  add_library(${name} STATIC fake_cuda/places.c fake_cuda/routers.c fake_cuda/channel_round.c fake_cuda/rank_process.c)
  target_compile_definitions(${name} PRIVATE
    FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>" FERRY_ROUTER_EXE="$<TARGET_FILE:ferry-router>")
  add_dependencies(${name} ferry-router)
  target_link_libraries(${name} PRIVATE ferry_flags PUBLIC cuda-fake ${ferry} hosted Threads::Threads PkgConfig::CMOCKA)
endfunction()
cuda_places(cuda_places ferry)
cuda_places(cuda_places_inside ferry_rank)
ferry_test(cuda_streams FOLDER rank-lib LIBRARIES cuda_places LABELS lanes)
ferry_test(cuda_buffers FOLDER rank-lib SOURCES fake_cuda/device_buffers.c
  LIBRARIES cuda_places trial_run LABELS lanes)
ferry_test(cuda_faults FOLDER rank-lib LIBRARIES cuda_places LABELS lanes)
ferry_test(cuda_graphs FOLDER rank-lib LIBRARIES cuda_places LABELS lanes)
ferry_test(cuda_captures FOLDER rank-lib LIBRARIES cuda_places LABELS lanes)
ferry_test(open_calls FOLDER rank-lib LIBRARIES cuda_places_inside LABELS lanes)
ferry_test(ends FOLDER rank-lib LIBRARIES cuda_places LABELS lanes)
add_test(NAME ends_on_host COMMAND ends)
set_tests_properties(ends_on_host PROPERTIES LABELS lanes ENVIRONMENT FERRY_TEST_HOST=here)
ferry_test(leaving FOLDER rank-lib LIBRARIES cuda_places LABELS lanes)
add_test(NAME leaving_on_host COMMAND leaving)
set_tests_properties(leaving_on_host PROPERTIES LABELS lanes ENVIRONMENT FERRY_TEST_HOST=here)
add_test(NAME leaving_on_host_routers COMMAND leaving)
set_tests_properties(leaving_on_host_routers PROPERTIES LABELS lanes
  ENVIRONMENT FERRY_TEST_HOST=routers)
foreach(suite mapped mapped_failures mapped_domains lost_devices spares timeouts_mapped hostile hostile_puts puts
    puts_failures cuda_fabrics put_targets refusals spawned_router)
  ferry_test(${suite} FOLDER rank-lib LIBRARIES cuda_places ferry_program LABELS lanes)
endforeach()
ferry_test(cuda_links FOLDER rank-lib LIBRARIES cuda_places ferry_program LABELS lanes)
add_dependencies(cuda_links nvidia-ml)
set_tests_properties(cuda_links PROPERTIES ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/fake_nvml)
ferry_test(relays FOLDER rank-lib SOURCES ${FERRY_SMALL_SUMS} fake_cuda/device_buffers.c
  LIBRARIES cuda_places_inside trial_run LABELS lanes)
foreach(suite puts cuda_fabrics cuda_links relays)
  target_sources(${suite} PRIVATE rounds.c)
endforeach()
ferry_test(cuda_programs FOLDER rank-lib SOURCES rank-lib/program/program_runs.c rounds.c fake_cuda/device_buffers.c
  LIBRARIES cuda_places trial_run program_cases LABELS api)
foreach(suite hostile hostile_puts)
  target_sources(${suite} PRIVATE fake_cuda/liar.c)
endforeach()
set_tests_properties(hostile hostile_puts PROPERTIES ENVIRONMENT
  "TSAN_OPTIONS=second_deadlock_stack=1:suppressions=${CMAKE_CURRENT_SOURCE_DIR}/hostile.supp")
set(suppressed "second_deadlock_stack=1:suppressions=${CMAKE_CURRENT_SOURCE_DIR}/puts_failures.supp")
set_tests_properties(puts_failures PROPERTIES ENVIRONMENT "TSAN_OPTIONS=${suppressed}")

# The short forms; the long ones: docs/security.md.
add_executable(hostility hostility/main.c hostility/others.c hostility/scribble.c hostility/letters.c
  hostility/descriptors.c hostility/strange.c
  ${PROJECT_SOURCE_DIR}/bench/command/option.c ${PROJECT_SOURCE_DIR}/bench/command/record.c)
target_compile_definitions(hostility PRIVATE FERRY_ROUTER_EXE="$<TARGET_FILE:ferry-router>")
target_link_libraries(hostility PRIVATE ferry_flags ferry ferry_ipc PkgConfig::CJSON Threads::Threads)
add_dependencies(hostility ferry-router hostile hostile_puts)
foreach(domains 1 2)
  add_test(NAME hostility_${domains} COMMAND hostility --writes 2000 --parts al --domains ${domains})
  add_test(NAME hostile_descriptors_${domains} COMMAND hostility --writes 260 --parts d --domains ${domains})
  set_tests_properties(hostility_${domains} hostile_descriptors_${domains} PROPERTIES LABELS api)
endforeach()

foreach(suite mapped spares)
  target_compile_definitions(${suite} PRIVATE FERRY_STAT_EXE="$<TARGET_FILE:ferry-stat>")
  add_dependencies(${suite} ferry-stat)
endforeach()

# And with calls that they push from GPU to GPU. Here and below each suite meets some environments, and each environment
# most of what may go wrong in it; the rest is in soak.cmake.
foreach(suite cuda_faults cuda_captures mapped mapped_failures leaving open_calls)
  add_test(NAME ${suite}_pushed COMMAND ${suite})
  set_tests_properties(${suite}_pushed PROPERTIES LABELS lanes
    ENVIRONMENT FERRY_TEST_PUSHES=1)
endforeach()

# Calls that kernels carry, in memory of peers and of the host.
ferry_test(channels FOLDER rank-lib/kernels LIBRARIES cuda_places_inside LABELS lanes)
ferry_test(kernels FOLDER rank-lib/kernels LIBRARIES cuda_places_inside LABELS lanes)
ferry_test(kernel_faults FOLDER rank-lib/kernels LIBRARIES cuda_places_inside LABELS lanes)
ferry_test(kernel_order FOLDER rank-lib/kernels LIBRARIES cuda_places_inside LABELS lanes)
# Sums that GPUs make, in pieces of a thousandth.
foreach(suite gpu_sums gpu_sum_order gpu_sum_faults)
  ferry_test(${suite} FOLDER rank-lib SOURCES ${FERRY_SMALL_SUMS} LIBRARIES cuda_places_inside LABELS lanes)
  set_tests_properties(${suite} PROPERTIES ENVIRONMENT FAKE_CUDA_NVLINKS=1) # else sums go up trees (relays)
endforeach()
foreach(suite cuda_streams cuda_captures open_calls)
  add_test(NAME ${suite}_kernels COMMAND ${suite})
  set_tests_properties(${suite}_kernels PROPERTIES LABELS lanes ENVIRONMENT FERRY_KERNELS=on)
endforeach()

# And with calls that streams wait for in a kernel, because it is asked for or as streams share one hardware queue.
foreach(suite cuda_graphs cuda_captures)
  add_test(NAME ${suite}_wait_kernel COMMAND ${suite})
  set_tests_properties(${suite}_wait_kernel PROPERTIES LABELS lanes
    ENVIRONMENT FERRY_WAIT=kernel)
endforeach()
set_property(TEST mapped_failures_pushed APPEND PROPERTY ENVIRONMENT FERRY_WAIT=kernel)
add_test(NAME cuda_streams_one_connection COMMAND cuda_streams)
set_tests_properties(cuda_streams_one_connection PROPERTIES LABELS lanes
  ENVIRONMENT CUDA_DEVICE_MAX_CONNECTIONS=1)
# And on GPUs whose waits cannot flush what others have written, as an H100's.
add_test(NAME cuda_streams_no_flush COMMAND cuda_streams)
set_tests_properties(cuda_streams_no_flush PROPERTIES LABELS lanes
  ENVIRONMENT FAKE_CUDA_FLUSH=0)

# And over two domains, whose routers push into memory of each other's ranks.
foreach(suite puts cuda_fabrics relays cuda_programs cuda_streams cuda_faults cuda_graphs cuda_captures mapped_failures
    leaving)
  add_test(NAME ${suite}_across COMMAND ${suite})
  set_tests_properties(${suite}_across PROPERTIES LABELS lanes
    ENVIRONMENT "FERRY_TEST_PUSHES=1;FERRY_TEST_DOMAINS=2")
endforeach()
set_tests_properties(cuda_programs_across PROPERTIES LABELS api)
# And with as many workers as routers have on larger machines.
set_property(TEST cuda_buffers relays_across APPEND PROPERTY ENVIRONMENT FERRY_WORKERS=8)

ferry_test(copies FOLDER router LIBRARIES ferry_engine cuda-fake LABELS engine)
target_compile_definitions(copies PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>")

ferry_test(imports FOLDER router SOURCES owner.c LIBRARIES ferry_engine cuda-fake LABELS engine)
ferry_test(mapper FOLDER router SOURCES owner.c LIBRARIES ferry_engine cuda-fake LABELS engine)
foreach(suite imports mapper)
  target_compile_definitions(${suite} PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>")
endforeach()
ferry_test(exports FOLDER rank-lib LIBRARIES ferry_rank cuda-fake LABELS lanes)
target_compile_definitions(exports PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>")
