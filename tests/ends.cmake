# SPDX-License-Identifier: Apache-2.0
# Ranks and routers in processes of their own, on host devices, which are stopped and killed.
add_library(crew STATIC crew.c fake_cuda/routers.c)
target_compile_definitions(crew PRIVATE FERRY_ROUTER_EXE="$<TARGET_FILE:ferry-router>")
add_dependencies(crew ferry-router)
target_link_libraries(crew PRIVATE ferry_flags PUBLIC ferry PkgConfig::CMOCKA)
ferry_test(timeouts FOLDER rank-lib LIBRARIES crew LABELS api)
ferry_test(short_calls_ends FOLDER rank-lib LIBRARIES crew LABELS api)
ferry_test(last_calls FOLDER rank-lib LIBRARIES crew LABELS api)
add_executable(leftovers launch/leftovers.c)
target_link_libraries(leftovers PRIVATE ferry ferry_flags PkgConfig::CMOCKA)
add_dependencies(leftovers ferryrun ferry-router ferry-stat)
add_test(NAME leftovers COMMAND leftovers ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
set_tests_properties(leftovers PROPERTIES LABELS launch)
