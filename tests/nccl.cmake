# SPDX-License-Identifier: Apache-2.0
# libferry-nccl.so over a double of NCCL.
foreach(age now old)
  add_library(fake_nccl_${age} SHARED fake_nccl/calls.c fake_nccl/clique.c fake_nccl/comms.c fake_nccl/defaults.c
    fake_nccl/group.c fake_nccl/names.c fake_nccl/note.c fake_nccl/stream.c fake_nccl/transfer.c)
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
set_tests_properties(nccl_names_off PROPERTIES TIMEOUT 60 LABELS api
  ENVIRONMENT "${library};FERRY_NCCL=off;FERRY_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl_now>;FERRY_LOG=error")
set_tests_properties(nccl_names_too_old PROPERTIES TIMEOUT 60 LABELS api
  ENVIRONMENT "${library};FERRY_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl_old>;FAKE_NCCL_VERSION=21803")
add_dependencies(nccl_names ferry-nccl fake_nccl_now fake_nccl_old)

# What lies behind the names, in a program that has them itself, as one has that preloads them.
foreach(suite groups)
  ferry_test(nccl_${suite} FOLDER nccl SOURCES ../orchestrator/names.c LIBRARIES ferry_names fake_nccl_now
    Threads::Threads LABELS lanes)
  set_target_properties(nccl_${suite} PROPERTIES ENABLE_EXPORTS ON)
endforeach()

# The table and NCCL's header, where there is one.
if(CUDA_INCLUDE_DIR AND NCCL_INCLUDE_DIR)
  add_library(nccl_header OBJECT nccl/prototypes.c nccl/values.c)
  target_include_directories(nccl_header SYSTEM PRIVATE ${NCCL_INCLUDE_DIR} ${CUDA_INCLUDE_DIR})
  target_link_libraries(nccl_header PRIVATE ferry_flags)
  ferry_test(nccl_values FOLDER nccl SOURCES $<TARGET_OBJECTS:nccl_header> LIBRARIES ferry_names LABELS api)
endif()
