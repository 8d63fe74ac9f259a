# SPDX-License-Identifier: MIT
# Compiler flags of everything in this tree.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF) # a file that needs POSIX or GNU names asks for them itself
set(CMAKE_C_VISIBILITY_PRESET hidden)

add_compile_options(
  -Wall
  -Wextra
  -Wshadow
  -Wconversion
  -Wno-sign-conversion
  -Wstrict-prototypes
  -Wmissing-prototypes
  -Wvla
  -Wpointer-arith
  -Wcast-qual)
if(QUIRE_WERROR)
  add_compile_options(-Werror)
endif()

# Encoded bytes must agree on every machine: no contraction into FMA, no reassociation, and no
# flag that depends on the machine that builds.
add_compile_options(-fno-fast-math -ffp-contract=off)
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
if("${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_RELEASE} ${CMAKE_C_FLAGS_DEBUG} ${CMAKE_C_FLAGS_${build_type}}" MATCHES
   "-march=native|-ffast-math|-Ofast")
  message(FATAL_ERROR "-march=native, -ffast-math and -Ofast break the exact number contract")
endif()

set(quire_sanitizers "${QUIRE_SANITIZE}")
if(QUIRE_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "QUIRE_FUZZ needs clang (found ${CMAKE_C_COMPILER_ID})")
  endif()
  if(NOT QUIRE_FUZZ_ENGINE) # packaging/oss-fuzz
    set(quire_sanitizers "fuzzer-no-link,address,undefined")
  endif()
endif()
if(quire_sanitizers)
  add_compile_options(-fsanitize=${quire_sanitizers} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${quire_sanitizers})
endif()
