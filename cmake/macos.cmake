# SPDX-License-Identifier: MIT
# macOS 11 or later on 64-bit ARM: with the compiler of the system on a Mac, else as a cross build (scripts/get-zig). For Intel Macs:
# macos-x86_64.cmake.
if(NOT quire_macos_processor)
  set(quire_macos_processor arm64)
endif()
set(CMAKE_OSX_DEPLOYMENT_TARGET 11.0 CACHE STRING "The oldest macOS")
set(CMAKE_OSX_ARCHITECTURES ${quire_macos_processor} CACHE STRING "")
if(CMAKE_HOST_SYSTEM_NAME STREQUAL "Darwin")
  return()
endif()

set(environment)
if(NOT QUIRE_FETCH)
  set(environment "${CMAKE_COMMAND}" -E env QUIRE_OFFLINE=1)
endif()
execute_process(COMMAND ${environment} "${CMAKE_CURRENT_LIST_DIR}/../scripts/get-zig" OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "no compiler for macOS: scripts/get-zig fails (-DQUIRE_FETCH=ON lets it fetch one)")
endif()
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR ${quire_macos_processor})
set(CMAKE_C_COMPILER "${zig}/${quire_macos_processor}-macos-clang")
set(CMAKE_AR "${zig}/${quire_macos_processor}-macos-ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "${zig}/${quire_macos_processor}-macos-ranlib" CACHE FILEPATH "")
# No symbols that only debuggers look for: with them come the paths of all objects.
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s -Wl,-x")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-s -Wl,-x")
set(CMAKE_STRIP true CACHE FILEPATH "") # so nothing is left for it to do
# CMake insists on it. It is called only if an installed file must find its libraries in another place than a built one; here they are the same.
set(CMAKE_INSTALL_NAME_TOOL false CACHE FILEPATH "")
# The compiler knows its target and its headers.
set(CMAKE_OSX_SYSROOT "" CACHE STRING "")
