# SPDX-License-Identifier: MIT
# quire_test(), quire_fuzz_test() and quire_test_folder(), used by tests/CMakeLists.txt.

if(QUIRE_FUZZ_ENGINE) # engines are written in it; inside of a function CMake would forget how programs are linked
  enable_language(CXX)
endif()

# Sanitized programs, and those of another processor under qemu, run several times slower.
if(quire_sanitizers OR CMAKE_CROSSCOMPILING OR CMAKE_C_FLAGS_DEBUG MATCHES "--coverage")
  set(quire_timeout_scale 5)
else()
  set(quire_timeout_scale 1)
endif()

set(quire_test_environment
    "QUIRE_GOLDEN=${PROJECT_SOURCE_DIR}/tests/golden"
    "ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")

# Name, labels and limits of a test that runs a built program.
#   <name>_TIMEOUT, <name>_ARGS and <name>_LABELS (labels in addition) override from outside.
function(quire_register_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "LABELS;ARGS" ${ARGN})
  if(DEFINED ${name}_TIMEOUT)
    set(T_TIMEOUT ${${name}_TIMEOUT})
  endif()
  if(DEFINED ${name}_ARGS)
    set(T_ARGS ${${name}_ARGS})
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  math(EXPR timeout "${T_TIMEOUT} * ${quire_timeout_scale}")
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  set_tests_properties(
    ${name} PROPERTIES LABELS "${T_LABELS};${${name}_LABELS}" TIMEOUT ${timeout}
                       ENVIRONMENT "${quire_test_environment}")
endfunction()

# Tests see internal headers, and keep assert() in release builds.
function(quire_test_program name)
  add_executable(${name} ${ARGN} $<TARGET_OBJECTS:quire_test_environment>)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(${name} PRIVATE -UNDEBUG)
  target_link_libraries(${name} PRIVATE quire_test_support quire)
endfunction()

# quire_test(name SOURCES a.c LABELS unit [TIMEOUT seconds] [ARGS ...])
function(quire_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LABELS;ARGS" ${ARGN})
  quire_test_program(${name} ${T_SOURCES})
  quire_register_test(${name} LABELS ${T_LABELS} TIMEOUT ${T_TIMEOUT} ARGS ${T_ARGS})
endfunction()

# quire_test_folder(folder seconds): every C file of the folder is one test, <folder>_<file>,
# with the folder's name as its label.
function(quire_test_folder folder seconds)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.c)
  foreach(source IN LISTS sources)
    get_filename_component(stem "${source}" NAME_WE)
    quire_test(${folder}_${stem} SOURCES "${source}" LABELS ${folder} TIMEOUT ${seconds})
  endforeach()
endfunction()

# quire_fuzz_test(source): with QUIRE_FUZZ a libFuzzer program that runs for QUIRE_FUZZ_SECONDS
# from the corpus; otherwise the same file replays the corpus once.
function(quire_fuzz_test source)
  get_filename_component(stem "${source}" NAME_WE)
  set(name fuzz_${stem})
  file(GLOB seeds CONFIGURE_DEPENDS fuzz/corpus/${stem}/*)
  set(corpus)
  if(seeds)
    set(corpus "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${stem}")
  endif()
  if(QUIRE_FUZZ)
    quire_test_program(${name} "${source}")
    if(QUIRE_FUZZ_ENGINE)
      target_link_libraries(${name} PRIVATE ${QUIRE_FUZZ_ENGINE})
      set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    else()
      target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    endif()
    # libFuzzer writes what it finds into the first folder: never into the source tree.
    set(found "${PROJECT_BINARY_DIR}/fuzz/${stem}")
    file(MAKE_DIRECTORY "${found}")
    set(arguments -max_total_time=${QUIRE_FUZZ_SECONDS} -timeout=30 -rss_limit_mb=2048
                  -print_final_stats=1 "-artifact_prefix=${found}-" ${${name}_ARGS} "${found}")
    math(EXPR timeout "${QUIRE_FUZZ_SECONDS} + 120")
  else()
    quire_test_program(${name} "${source}" support/fuzz_replay.c)
    set(arguments)
    set(timeout 900)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arguments} ${corpus})
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT ${timeout}
                                          ENVIRONMENT "${quire_test_environment}")
endfunction()
