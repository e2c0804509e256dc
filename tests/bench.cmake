# SPDX-License-Identifier: Apache-2.0
# The folders of bench/: what ferry-perf computes, its commands, and the demo, which compares its own weights.
ferry_test(limits_file FOLDER bench LIBRARIES ferry_program PkgConfig::CJSON LABELS launch)
ferry_test(skew FOLDER bench SOURCES ../bench/trial/skew.c LIBRARIES ferry_ipc LABELS launch)
ferry_test(perf_nccl_sweep FOLDER bench SOURCES ../bench/peers/nccl_sweep.c LABELS launch)
target_include_directories(perf_nccl_sweep PRIVATE ${PROJECT_SOURCE_DIR}/rank-lib/include ${PROJECT_SOURCE_DIR}/ipc)
set(suites command refusals)
if(FERRY_MPI_WORKS)
  list(APPEND suites mpi)
endif()
foreach(suite ${suites})
  ferry_test(perf_${suite} FOLDER bench LIBRARIES hosted ferry_ipc PkgConfig::CJSON LABELS api)
  target_compile_definitions(perf_${suite} PRIVATE FERRY_PERF="$<TARGET_FILE:ferry-perf>"
    FERRYRUN="$<TARGET_FILE:ferryrun>" FERRY_FIGURE3="${CMAKE_CURRENT_SOURCE_DIR}/corpus/program/figure3"
    $<$<BOOL:${FERRY_MPI_WORKS}>:FERRY_HAS_MPI>)
  add_dependencies(perf_${suite} ferry-perf ferryrun ferry-router)
endforeach()
# In which order ferry-perf calls MPI and Ferry; and, by hand or in a soak, whether it measures what MPI takes.
if(FERRY_MPI_WORKS)
  add_executable(plain_mpi bench/plain_mpi.c)
  target_link_libraries(plain_mpi PRIVATE ferry_flags MPI::MPI_C)
  if(NOT FERRY_SANITIZE) # whose own would have to be preloaded first
    add_library(mpi_order MODULE bench/mpi_order.c)
    target_include_directories(mpi_order PRIVATE ${PROJECT_SOURCE_DIR}/ipc ${MPI_C_INCLUDE_DIRS})
    target_link_libraries(mpi_order PRIVATE ferry_flags ${CMAKE_DL_LIBS})
    set_target_properties(mpi_order PROPERTIES C_VISIBILITY_PRESET default)
    target_compile_definitions(perf_mpi PRIVATE MPI_ORDER="$<TARGET_FILE:mpi_order>")
    add_dependencies(perf_mpi mpi_order)
  endif()
endif()
ferry_test(plot_command FOLDER bench LABELS api)
target_compile_definitions(plot_command PRIVATE FERRY_PLOT="${PROJECT_SOURCE_DIR}/bench/perf/ferry-plot"
  FERRY_VERSION="${PROJECT_VERSION}")
add_test(NAME weights_of_four_ranks_are_those_of_one
  COMMAND ferryrun -n 4 --fork --domains 2 -- $<TARGET_FILE:ferry-digits>)
set_tests_properties(weights_of_four_ranks_are_those_of_one PROPERTIES LABELS api)

# ferry-perf limits, against the double of the CUDA driver.
ferry_test(limits_command FOLDER bench LIBRARIES ferry_program LABELS api)
target_compile_definitions(limits_command PRIVATE FERRY_PERF="$<TARGET_FILE:ferry-perf>"
  FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>")
add_dependencies(limits_command ferry-perf)

# ferry-perf's NCCL child, against the double of the CUDA driver and a fake NCCL.
add_library(fake_nccl MODULE bench/fake_nccl.c)
target_include_directories(fake_nccl PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(fake_nccl PRIVATE cuda-fake)
set_target_properties(fake_nccl PROPERTIES C_VISIBILITY_PRESET default)
ferry_test(perf_nccl_child FOLDER bench SOURCES ../bench/rank/gpu.c LIBRARIES ferry_engine cuda-fake LABELS api)
target_include_directories(perf_nccl_child PRIVATE ${PROJECT_SOURCE_DIR}/rank-lib/include ${PROJECT_SOURCE_DIR}/ipc)
target_compile_definitions(perf_nccl_child PRIVATE FERRY_PERF_NCCL="$<TARGET_FILE:ferry-perf-nccl>"
  FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>" FERRY_FAKE_NCCL="$<TARGET_FILE:fake_nccl>")
add_dependencies(perf_nccl_child ferry-perf-nccl fake_nccl)

# ferry-perf tune, over both doubles, and what programs then know.
ferry_test(tune_command FOLDER bench LIBRARIES ferry_names LABELS api)
target_compile_definitions(tune_command PRIVATE FERRY_PERF="$<TARGET_FILE:ferry-perf>"
  FAKE_CUDA_LIBRARY="$<TARGET_FILE:cuda-fake>" FERRY_FAKE_NCCL="$<TARGET_FILE:fake_nccl>")
add_dependencies(tune_command ferry-perf ferry-perf-nccl ferryrun ferry-router fake_nccl)

# The whole of it, from the parent's buffers to NCCL's calls; the double copies from pinned memory alone: -c 0.
add_test(NAME perf_compares_with_nccl_on_its_own_buffers
  COMMAND ferryrun -n 1 --fork -- $<TARGET_FILE:ferry-perf> alltoall -b 1K -e 1K --vs nccl --device cuda
    -c 0 -n 2 -w 1 --nccl-sweep none)
add_test(NAME lines_of_a_comparison_with_nccl_fit_100_columns COMMAND sh -c "'$<TARGET_FILE:ferryrun>' -n 1 --fork -- \
'$<TARGET_FILE:ferry-perf>' alltoall -b 1K -e 1M -f 32 --vs nccl --device cuda -c 0 -n 1 -w 1 --nccl-sweep none | \
awk 'length > 100 { print; wide = 1 } $2 == \"out\" { rows++ } END { exit wide || rows != 3 }'")
set_tests_properties(perf_compares_with_nccl_on_its_own_buffers lines_of_a_comparison_with_nccl_fit_100_columns
  PROPERTIES LABELS api
  ENVIRONMENT "FERRY_CUDA_LIBRARY=$<TARGET_FILE:cuda-fake>;FERRY_NCCL_LIBRARY=$<TARGET_FILE:fake_nccl>")
