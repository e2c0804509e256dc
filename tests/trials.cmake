# SPDX-License-Identifier: Apache-2.0
# Suites over the public API. Those that run trials (bench/trial/trial.h) judge collectives by an independent reference.
function(trial_library name ferry) # over libferry, or over all that is in it
  add_library(${name} STATIC trial_run.c ${PROJECT_SOURCE_DIR}/bench/trial/trial.c
    ${PROJECT_SOURCE_DIR}/bench/trial/element.c ${PROJECT_SOURCE_DIR}/bench/trial/skew.c)
  target_link_libraries(${name} PRIVATE ferry_flags PUBLIC ${ferry} ferry_ipc m)
endfunction()
trial_library(trial_run ferry)
trial_library(trial_run_inside ferry_rank)

ferry_test(api_in_process FOLDER rank-lib LIBRARIES trial_run hosted LABELS api)
ferry_test(api_bad_input FOLDER rank-lib LIBRARIES ferry hosted LABELS api)
# The short form; the long one: soak --minutes 30 --domains 2.
add_executable(soak rank-lib/soak.c ${PROJECT_SOURCE_DIR}/bench/command/option.c
  ${PROJECT_SOURCE_DIR}/bench/command/record.c)
target_compile_definitions(soak PRIVATE FERRY_ROUTER_EXE="$<TARGET_FILE:ferry-router>")
target_link_libraries(soak PRIVATE ferry_flags ferry ferry_ipc PkgConfig::CJSON Threads::Threads)
add_dependencies(soak ferry-router)
add_test(NAME soak COMMAND soak --seconds 10 --interval 1 --domains 2)
set_tests_properties(soak PROPERTIES LABELS api)
ferry_test(scribbled_words FOLDER rank-lib LIBRARIES ferry hosted ferry_ipc LABELS api)
ferry_test(api_bad_start FOLDER rank-lib LIBRARIES ferry hosted LABELS api)
ferry_test(api_stress FOLDER rank-lib LIBRARIES trial_run hosted LABELS api)
add_test(NAME api_stress_processes COMMAND ferryrun -n 24 --fork --domains 3 -- $<TARGET_FILE:api_stress>)
set_tests_properties(api_stress_processes PROPERTIES LABELS api)
# Over two sockets, whose devices push into each other's memory.
add_test(NAME api_stress_across COMMAND ferryrun -n 8 --fork --domains 2 -- $<TARGET_FILE:api_stress>)
set_tests_properties(api_stress_across PROPERTIES LABELS api
  ENVIRONMENT "FERRY_FABRICS=peer;FERRY_HOST_LINK=links=pcie2:8:4")

# Four ranks in processes of their own, under mpiexec and two routers. MPI waits busily, so it gets the machine to
# itself.
if(FERRY_MPI_WORKS)
  add_executable(mpi_collectives rank-lib/mpi_collectives.c ${PROJECT_SOURCE_DIR}/bench/peers/mpi.c)
  target_link_libraries(mpi_collectives PRIVATE ferry_flags trial_run MPI::MPI_C PkgConfig::CMOCKA)
  add_test(NAME mpi_collectives COMMAND ferryrun -n 4 --domains 2 -- $<TARGET_FILE:mpi_collectives>)
  set_tests_properties(mpi_collectives PROPERTIES LABELS mpi RUN_SERIAL TRUE)
endif()

# Routers and ranks that are killed: a few for each change, and a hundred in each way in `make soak` (soak.cmake).
function(kills_program name trials)
  add_executable(${name} kills/kills.c kills/kills_graph.c kills/kills_held.c kills/kills_job.c kills/kills_place.c
    kills/kills_rank.c kills/kills_routers.c kills/kills_victims.c ${PROJECT_SOURCE_DIR}/bench/rank/gpu.c ${ARGN})
  target_link_libraries(${name} PRIVATE ferry_flags ${trials} ferry_engine m ${CMAKE_DL_LIBS})
  add_dependencies(${name} ferryrun ferry-router)
endfunction()
kills_program(router_kills trial_run)
kills_program(sum_kills trial_run_inside ${FERRY_SMALL_SUMS})
function(kills_test name program)
  add_test(NAME ${name} COMMAND ${program} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS api)
  set_property(GLOBAL APPEND PROPERTY FERRY_KILLS ${name})
  set_property(GLOBAL PROPERTY FERRY_KILLS_${name} ${program} ${ARGN})
endfunction()
function(router_kills_test name)
  kills_test(${name} router_kills ${ARGN})
endfunction()
router_kills_test(routers_are_killed_under_calls --kills 25)
router_kills_test(routers_of_two_domains_are_killed --kills 25 --domains 2 --both 30 --ferryrun)
router_kills_test(successors_are_killed --kills 30 --domains 2 --twice 100)
router_kills_test(routers_are_killed_while_ranks_attach --kills 25 --domains 2 --fresh 1 --calls 12 --every 5)
router_kills_test(ranks_are_killed_beside_another_job --kills 5 --ranks --meanwhile 60)
# Uneven traffic by relays: between ranks 0 and 3 there is no link, whatever the length.
foreach(domains 1 2)
  router_kills_test(routers_are_killed_that_divide_traffic_${domains} --alltoallv --kills 15 --twice 30
    --domains ${domains} --both 50 --calls 24 --bytes 4194304 --seed ${domains})
  set_tests_properties(routers_are_killed_that_divide_traffic_${domains} PROPERTIES
    ENVIRONMENT "FERRY_FABRICS=peer;FERRY_SHORT=0;FERRY_HOST_LINK=links=mesh:2,peer@0-3=0")
endforeach()
# Sums up and down trees, in ranks' memory: without ranks 6 and 7 of a DGX-1V, where links carry several trees each.
foreach(domains 1 2)
  router_kills_test(routers_are_killed_that_sum_on_trees_${domains} --n 6 --kills 10 --twice 30 --domains ${domains}
    --both 50 --calls 24 --bytes 2097152 --seed ${domains})
  set_tests_properties(routers_are_killed_that_sum_on_trees_${domains} PROPERTIES
    ENVIRONMENT "FERRY_FABRICS=peer;FERRY_SHORT=0;FERRY_HOST_LINK=links=dgx1v:2")
endforeach()
# Of ranks on GPUs, over the double.
function(gpu_kills_test name program)
  kills_test(${name} ${program} --gpu ${ARGN})
  add_dependencies(${program} cuda-fake)
  set_tests_properties(${name} PROPERTIES TIMEOUT 400
    ENVIRONMENT "FERRY_CUDA_LIBRARY=$<TARGET_FILE:cuda-fake>;FAKE_CUDA_DEVICES=2;FERRY_FABRICS=host")
endfunction()
function(gpu_router_kills_test name)
  gpu_kills_test(${name} router_kills ${ARGN})
endfunction()
gpu_router_kills_test(routers_that_move_data_are_killed --kills 8 --bytes 262144 --every 5 --twice 30)
gpu_router_kills_test(routers_of_two_domains_that_move_data_are_killed --kills 8 --bytes 262144 --every 5 --twice 30
  --domains 2 --both 40 --seed 131)
gpu_router_kills_test(routers_are_killed_while_mapped_ranks_attach --kills 8 --bytes 50000 --every 3 --fresh 1
  --calls 8 --seed 61)
# A push takes milliseconds: most kills come in the middle of one.
function(pushing_kills_test name fabrics program)
  gpu_kills_test(${name} ${program} ${ARGN})
  get_test_property(${name} ENVIRONMENT environment)
  list(FILTER environment EXCLUDE REGEX "^FERRY_FABRICS=")
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment};FAKE_CUDA_PUSH_MS=1;${fabrics}")
endfunction()
function(pushing_router_kills_test name fabrics)
  pushing_kills_test(${name} "${fabrics}" router_kills ${ARGN})
endfunction()
pushing_router_kills_test(routers_that_push_are_killed "FERRY_FABRICS=peer" --kills 8 --every 20 --twice 30)
pushing_router_kills_test(routers_that_push_and_stage_are_killed
  "FERRY_FABRICS=peer,host;FERRY_SHARES=host=0.4,peer=0.6" --kills 8 --every 20 --twice 30 --seed 5)
pushing_router_kills_test(routers_that_push_across_domains_are_killed "FERRY_FABRICS=peer" --kills 8 --every 20
  --twice 30 --domains 2 --both 40 --captured 50 --messages --seed 3)
pushing_router_kills_test(routers_that_push_and_stage_across_domains_are_killed
  "FERRY_FABRICS=peer,host;FERRY_SHARES=host=0.4,peer=0.6" --kills 8 --every 20 --twice 30 --domains 2 --both 40
  --seed 4)
# By rates that are made up: half of a long block of an alltoallv goes by the host.
pushing_router_kills_test(routers_that_divide_traffic_among_gpus_are_killed
  "FERRY_FABRICS=peer,host;FERRY_LIMITS=${CMAKE_CURRENT_SOURCE_DIR}/kills/limits.json" --alltoallv --kills 8 --every 20
  --twice 30 --captured 50 --calls 8 --bytes 16777216 --seed 6)
pushing_router_kills_test(ranks_that_push_across_domains_and_routers_are_killed "FERRY_FABRICS=peer" --kills 2
  --ranks --meanwhile 100 --domains 2 --both 40 --seed 55)
# Sums that GPUs make, over links and by the host: of more than short kernels carry, which with pieces of a thousandth
# is little. Their first steps are AllToAlls, and routers get no other sums.
function(sum_kills_test name fabric)
  pushing_kills_test(${name} "FERRY_FABRICS=${fabric};FERRY_KERNELS=on;FERRY_DEBUG=plan" sum_kills --sums --n 2
    --calls 8 --bytes 300000 ${ARGN})
  set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION ": alltoall of .*\nok: seed"
    FAIL_REGULAR_EXPRESSION ": (allreduce|reducescatter) of [^\n]* 2 ranks in")
endfunction()
sum_kills_test(routers_are_killed_under_sums_of_gpus peer --kills 20 --every 20 --twice 30 --seed 7)
sum_kills_test(routers_are_killed_under_sums_of_gpus_by_the_host host --kills 20 --every 20 --twice 30 --seed 8)
sum_kills_test(ranks_that_sum_on_gpus_are_killed peer --kills 2 --ranks --meanwhile 60 --seed 9)
gpu_router_kills_test(routers_are_killed_under_replays --kills 8 --captured 60 --messages --bytes 262144 --every 5
  --twice 30 --seed 71)
gpu_router_kills_test(mapped_ranks_and_routers_are_killed --kills 2 --bytes 100000 --ranks --meanwhile 100 --seed 55)
gpu_router_kills_test(mapped_ranks_of_two_domains_and_routers_are_killed --kills 2 --bytes 100000 --ranks
  --meanwhile 100 --domains 2 --both 40 --seed 55)
# The processes of routers take 40 ms to end behind their connections. A spare has the socket by then, and waits.
gpu_router_kills_test(spares_follow_routers_that_end_late --spare --kills 10 --bytes 262144 --every 100 --captured 30
  --seed 91)
set_property(TEST spares_follow_routers_that_end_late APPEND PROPERTY ENVIRONMENT "FAKE_CUDA_END_MB=200")
# A router and its successor are killed within milliseconds.
gpu_router_kills_test(two_spares_serve_two_kills_in_quick_succession --n 2 --kills 2 --twice 100 --bytes 262144
  --spare=2)
# Routers that lose their context on a GPU beside those that are killed; and one GPU that none keeps.
set(lossy "FERRY_ROUTER_EXE=${CMAKE_CURRENT_SOURCE_DIR}/kills/lossy_router;LOSSY_ROUTER=$<TARGET_FILE:ferry-router>")
gpu_router_kills_test(routers_lose_their_devices_under_calls --kills 10 --bytes 262144 --every 50)
set_property(TEST routers_lose_their_devices_under_calls APPEND PROPERTY ENVIRONMENT
  "${lossy};LOSS_AT=200;LOSS_SPREAD=700")
foreach(how "" --ferryrun)
  gpu_router_kills_test(a_device_that_each_router_loses_ends_the_job${how} --kills 1000 --every 1000 ${how})
  set_property(TEST a_device_that_each_router_loses_ends_the_job${how} APPEND PROPERTY ENVIRONMENT
    "${lossy};LOSS_AT=2")
  set_tests_properties(a_device_that_each_router_loses_ends_the_job${how} PROPERTIES
    PASS_REGULAR_EXPRESSION
    "8 routers of domain 0 in a row died without any progress; its context was gone on GPU 0 .GPU-fafb")
endforeach()
