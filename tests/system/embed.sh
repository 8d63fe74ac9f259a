#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Quire inside of other projects: by add_subdirectory() it makes its libraries and nothing else, by find_package() it is found with and
# without the store, and configuring never fetches unless it is told to.
#
#   tests/system/embed.sh BUILDDIR [--quick]       --quick: the project with add_subdirectory() is configured, not built (minutes without ccache)
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() { echo "--- $*"; }
fail() { echo "$*"; exit 1; }
# $1 a name for the log, then a command; its output is shown if it fails
quietly() { "${@:2}" >"$work/$1.log" 2>&1 || { tail -n 30 "$work/$1.log"; fail "$1 failed"; }; }
variable() { sed -nE "s/^$1:[A-Z]+=//p" "$build/CMakeCache.txt"; }

step "configuring fetches nothing"
# Whatever could fetch is a program that leaves a note. The cache is empty, and a libvalkey of the system is taken as too old.
mkdir "$work/bin"
for name in python3 pip pip3 curl wget git; do
    printf '#!/bin/sh\necho "%s $*" >>"%s"\nexit 1\n' "$name" "$work/fetched" >"$work/bin/$name"
    chmod +x "$work/bin/$name"
done
# $1 folder, then options
configure() {
    PATH=$work/bin:$PATH QUIRE_CACHE=$work/cache QUIRE_OFFLINE='' quietly "$1" cmake -S "$source" -B "$work/$1" -G Ninja -DQUIRE_TESTS=OFF \
        -DVALKEY_READS_IN_PLACE= "${@:2}"
}
configure plain
[ ! -e "$work/fetched" ] || fail "it fetches: $(cat "$work/fetched")"
[ ! -e "$work/cache" ] || fail "it writes into the cache"
grep -q '^QUIRE_WERROR:BOOL=OFF$' "$work/plain/CMakeCache.txt" || fail "warnings are errors without being asked for"
if grep -q '^store left out: no ' <(sed 's/^-- //' "$work/plain.log"); then
    echo "libvalkey is not asked for: other libraries of the store are missing"
else
    grep -o 'store left out: libvalkey.*-DQUIRE_FETCH=ON.*' "$work/plain.log" || { cat "$work/plain.log"; fail "it does not say what is missing"; }
    configure fetching -DQUIRE_FETCH=ON
    [ -s "$work/fetched" ] || fail "with QUIRE_FETCH=ON nothing tries to fetch: this test sees nothing"
fi

step "options"
# $1 a piece of the sentence that is expected, then options
refused() {
    if cmake -S "$source" -B "$work/refused" -G Ninja -DQUIRE_TESTS=OFF "${@:2}" >"$work/refused.log" 2>&1; then fail "taken: ${*:2}"; fi
    tr -s ' \n' ' ' <"$work/refused.log" | grep -qF "$1" || { cat "$work/refused.log"; fail "${*:2}: it does not say \"$1\""; }
    rm -rf "$work/refused"
}
grep -q 'quire serve left out: ' "$work/plain.log" || fail "it does not say that quire serve is left out"
refused 'QUIRE_STORE is ON, OFF or AUTO, not "no"' -DQUIRE_STORE=no # would be AUTO
refused 'QUIRE_SERVE=ON: it needs the store' -DQUIRE_SERVE=ON -DQUIRE_STORE=OFF
refused 'QUIRE_SERVE=ON needs QUIRE_TOOLS=ON' -DQUIRE_SERVE=ON -DQUIRE_TOOLS=OFF
refused 'break the exact number contract' -DQUIRE_STORE=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO=-march=native
# What can be set is in docs/packaging.md, and nothing else is there.
diff <(sed -nE 's/^(QUIRE_[A-Z_]+):.*/\1/p' "$work/plain/CMakeCache.txt" | sort) \
    <(sed -n '/^## Options of CMake/,/^## Tests/p' "$source/docs/packaging.md" | grep '^| `' | cut -d'|' -f2 | grep -oE 'QUIRE_[A-Z_]+' | sort) ||
    fail "docs/packaging.md has other options than CMake (<)"

step "folders of pkg-config"
if command -v pkg-config >/dev/null; then
    # $1 folder of the build, $2 variable, $3 what it must be
    points() {
        got=$(PKG_CONFIG_PATH=$work/$1 pkg-config --variable="$2" quire)
        [ "$got" = "$3" ] || fail "$2 of quire.pc is $got, not $3"
    }
    configure relative -DQUIRE_STORE=OFF -DCMAKE_INSTALL_LIBDIR=lib/somewhere
    points relative libdir "$work/relative/../../../lib/somewhere"
    configure absolute -DQUIRE_STORE=OFF -DCMAKE_INSTALL_PREFIX=/opt/a -DCMAKE_INSTALL_LIBDIR=/opt/b/lib -DCMAKE_INSTALL_INCLUDEDIR=/opt/c/include
    points absolute prefix /opt/a
    points absolute libdir /opt/b/lib
    points absolute includedir /opt/c/include
fi

step "add_subdirectory"
mkdir "$work/parent"
cat >"$work/parent/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.21)
project(parent VERSION 9.9 LANGUAGES C) # without a version CMake gives it that of the first folder that has one
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_FLAGS_DEBUG "-O0")
find_package(OpenSSL QUIET) # targets that this folder owns
find_package(Threads REQUIRED) # sets variables, for whoever calls it
function(note file)
  get_cmake_property(names VARIABLES)
  set(lines)
  foreach(name IN LISTS names)
    if(name MATCHES "^CMAKE_" AND NOT name MATCHES "^CMAKE_(CURRENT|PARENT)_|^CMAKE_MATCH_|^CMAKE_(ARGV|ARGC)")
      string(APPEND lines "\${name}=\${\${name}}\n")
    endif()
  endforeach()
  foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_OPTIONS INCLUDE_DIRECTORIES TESTS)
    get_directory_property(value \${property})
    string(APPEND lines "\${property}=\${value}\n")
  endforeach()
  file(WRITE "\${CMAKE_BINARY_DIR}/\${file}" "\${lines}")
endfunction()
note(before)
add_subdirectory("$source" quire)
note(after)
add_executable(program "$source/examples/first_attention.c")
target_link_libraries(program PRIVATE quire::quire)
END
flags=$(variable CMAKE_C_FLAGS_RELEASE) # as in the build that this test belongs to, so that a compiler cache knows the files
folder=$work/parent/build
if [ "${2-}" != --quick ]; then # as deep below the source as the presets are, so that paths are the same for a compiler cache
    mkdir -p "$source/build"
    folder=$(mktemp -d "$source/build/embed.XXXXXX")
    trap 'rm -rf "$work" "$folder"' EXIT
fi
parent() {
    quietly parent cmake -S "$work/parent" -B "$folder" -G Ninja -DCMAKE_C_COMPILER="$(variable CMAKE_C_COMPILER)" \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE="$flags" "$@"
}
parent
diff "$folder/before" "$folder/after" || fail "variables or properties of the parent have changed"
cd "$folder"
ninja -t targets all | sed -nE 's/^([^ :]+): phony$/\1/p' >"$work/targets"
for target in quire_tool ggml-quire quire_vllm quire_test_support; do
    ! grep -qx "$target" "$work/targets" || fail "$target is built inside of another project"
done
grep -qx quire_shared "$work/targets" || fail "this test sees no targets"
! grep -q 'file(INSTALL' quire/cmake_install.cmake || fail "it installs without being asked"
! ctest -N 2>/dev/null | grep -q 'Test *#' || fail "it adds tests to those of the parent"
[ ! -e quire/CTestTestfile.cmake ] || ! grep -q add_test quire/CTestTestfile.cmake || fail "it adds tests"
! grep -q -- -Werror build.ninja || fail "warnings are errors inside of another project"
cd "$work"
parent -DQUIRE_INSTALL=ON
grep -q 'file(INSTALL' "$folder/quire/cmake_install.cmake" || fail "QUIRE_INSTALL=ON installs nothing"
[ ! -e "$folder/CPackConfig.cmake" ] || fail "it makes packages of another project"
if [ "${2-}" != --quick ]; then
    parent -DQUIRE_WERROR="$(variable QUIRE_WERROR)" -DQUIRE_STORE=OFF
    quietly build cmake --build "$folder" --target program
    "$folder/program"
fi

step "find_package"
prefix=$work/prefix
install_components() {
    local component
    for component in "$@"; do quietly install cmake --install "$build" --prefix "$prefix" --component "$component"; done
}
install_components library development
# $1 words of find_package(), $2 targets
use() {
    rm -rf "$work/user"
    mkdir "$work/user"
    cat >"$work/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.21)
project(user LANGUAGES C)
find_package(quire 0.2 REQUIRED $1)
foreach(target $2)
  string(MAKE_C_IDENTIFIER "\${target}" name)
  add_executable(\${name} "$source/examples/first_attention.c")
  target_link_libraries(\${name} PRIVATE \${target})
  add_custom_command(TARGET \${name} POST_BUILD COMMAND \${name})
endforeach()
END
    cmake -S "$work/user" -B "$work/user/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$work/use.log" 2>&1 &&
        cmake --build "$work/user/build" >>"$work/use.log" 2>&1
}
use "" "quire::quire quire::quire_shared" || { cat "$work/use.log"; fail "find_package(quire)"; }
[ -z "$(find "$prefix" -iname '*store*')" ] || fail "files of the store are in the components of libquire"
install_components store storedevelopment
if [ -n "$(find "$prefix" -name quireStoreTargets.cmake)" ]; then
    use "COMPONENTS store" "quire::quire quire::store" || { cat "$work/use.log"; fail "find_package(quire COMPONENTS store)"; }
    # A machine that has the development files but not the library of the store.
    find "$prefix" -name 'libquire_store*' -delete
    use "" quire::quire || { cat "$work/use.log"; fail "without libquire_store find_package(quire) fails"; }
    find "$prefix" -name 'quireStoreTargets*' -delete
fi
! use "COMPONENTS store" quire::quire || fail "a store that is not there is found"
grep -q 'store of quire is not installed' "$work/use.log" || { cat "$work/use.log"; fail "it does not say that the store is missing"; }
# A distribution that ships no static libraries.
find "$prefix" \( -name libquire.a -o -name 'quireStaticTargets*' \) -delete
use "" quire::quire_shared || { cat "$work/use.log"; fail "without libquire.a find_package(quire) fails"; }
echo "passed"
