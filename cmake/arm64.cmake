# SPDX-License-Identifier: MIT
# Cross build for 64-bit ARM; ctest runs the programs under qemu-user. Debian: gcc-aarch64-linux-gnu,
# qemu-user, and libcmocka-dev:arm64 (dpkg --add-architecture arm64).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
# The x86 library of the same name must not be found first.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
set(CMOCKA_LIBRARY /usr/lib/aarch64-linux-gnu/libcmocka.so CACHE FILEPATH "")
