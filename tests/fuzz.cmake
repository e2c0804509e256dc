# SPDX-License-Identifier: Apache-2.0
# The fuzz targets. With -DFERRY_BUILD_FUZZERS=ON (clang; `make fuzz`) libFuzzer drives them; otherwise fuzz_replay.c
# does, over the corpus, fresh seeds and mutants of both, as ordinary tests.
add_executable(fuzz_seeds fuzz/fuzz_seeds.c)
target_link_libraries(fuzz_seeds PRIVATE ferry_program)

set(fuzz_targets fuzz_program fuzz_plan fuzz_attach fuzz_submission fuzz_put_target)
foreach(target ${fuzz_targets})
  add_executable(${target} fuzz/${target}.c $<$<NOT:$<BOOL:${FERRY_BUILD_FUZZERS}>>:fuzz/fuzz_replay.c>)
  target_link_libraries(${target} PRIVATE ferry_program)
  if(FERRY_BUILD_FUZZERS)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  endif()
endforeach()
target_link_libraries(fuzz_put_target PRIVATE ferry_engine)
add_custom_target(fuzzers DEPENDS ${fuzz_targets} fuzz_seeds)

if(NOT FERRY_BUILD_FUZZERS)
  set(fuzz_seed_dir ${CMAKE_CURRENT_BINARY_DIR}/seeds)
  add_test(NAME fuzz_seeds_are_valid COMMAND fuzz_seeds ${fuzz_seed_dir})
  add_test(NAME any_text_as_program_is_refused_or_compiles_to_a_valid_plan
    COMMAND fuzz_program 300 ${CMAKE_CURRENT_SOURCE_DIR}/corpus/program ${fuzz_seed_dir}/program)
  add_test(NAME any_bytes_as_plan_are_refused_or_stay_inside COMMAND fuzz_plan 3000 ${fuzz_seed_dir}/plan)
  add_test(NAME any_bytes_as_attach_message_are_refused_or_in_range COMMAND fuzz_attach 20000 ${fuzz_seed_dir}/attach)
  add_test(NAME any_bytes_in_a_ring_of_submissions_are_refused_or_whole
    COMMAND fuzz_submission 3000 ${fuzz_seed_dir}/submission)
  add_test(NAME any_name_of_a_buffer_is_refused_or_inside_its_export
    COMMAND fuzz_put_target 3000 ${fuzz_seed_dir}/put_target)
  set_tests_properties(fuzz_seeds_are_valid PROPERTIES FIXTURES_SETUP fuzz_seeds LABELS program)
  set_tests_properties(any_text_as_program_is_refused_or_compiles_to_a_valid_plan
    any_bytes_as_plan_are_refused_or_stay_inside any_bytes_as_attach_message_are_refused_or_in_range
    any_bytes_in_a_ring_of_submissions_are_refused_or_whole any_name_of_a_buffer_is_refused_or_inside_its_export
    PROPERTIES FIXTURES_REQUIRED fuzz_seeds LABELS program)
endif()
