# SPDX-License-Identifier: MIT
# Linux with glibc 2.28 or later, for wheels (scripts/linux-wheel): zig's compiler, and static libraries from QUIRE_LIBRARIES
# (scripts/get-store-libraries). QUIRE_PROCESSOR: x86_64 or aarch64.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QUIRE_PROCESSOR QUIRE_LIBRARIES)
set(environment)
if(NOT QUIRE_FETCH)
  set(environment "${CMAKE_COMMAND}" -E env QUIRE_OFFLINE=1)
endif()
execute_process(COMMAND ${environment} "${CMAKE_CURRENT_LIST_DIR}/../scripts/get-zig" OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "no compiler for glibc 2.28: scripts/get-zig fails (-DQUIRE_FETCH=ON lets it fetch one)")
endif()
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "${QUIRE_PROCESSOR}")
set(CMAKE_C_COMPILER "${zig}/${QUIRE_PROCESSOR}-linux-clang")
set(CMAKE_AR "${zig}/${QUIRE_PROCESSOR}-linux-ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "${zig}/${QUIRE_PROCESSOR}-linux-ranlib" CACHE FILEPATH "")
# Hardened as the Debian packages are (scripts/debian-flags). This compiler makes programs for fixed addresses unless it is told otherwise.
set(CMAKE_C_FLAGS_INIT "-fstack-protector-strong -D_FORTIFY_SOURCE=2")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Nothing of the machine that builds: no symbols for debuggers, with their paths, and no run path that is exchanged when it is installed.
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s -Wl,-z,relro -Wl,-z,now")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${CMAKE_SHARED_LINKER_FLAGS_INIT}")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${CMAKE_SHARED_LINKER_FLAGS_INIT} -pie")
set(CMAKE_STRIP true CACHE FILEPATH "") # so nothing is left for it to do
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_FIND_ROOT_PATH "${QUIRE_LIBRARIES}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(OPENSSL_USE_STATIC_LIBS ON)
