#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The packages, unpacked into an empty root and used from there: command, device, both libraries by pkg-config and CMake; and
# the source archive, built without a network.
#
#   tests/system/package.sh BUILDDIR [--quick]      --quick: the source archive is made and looked at, not built
#
# Exit status 77: no dpkg-deb here.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
command -v dpkg-deb >/dev/null || { echo "skipped: no dpkg-deb"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
arch=$(dpkg --print-architecture)
version=$(sed -nE 's/^project\(quire VERSION ([0-9.]+) .*/\1/p' "$source/CMakeLists.txt")

step() { echo "--- $*"; }

step "packages"
(cd "$work" && cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/packages" >"$work/cpack.log" 2>&1) ||
    { tail -n 20 "$work/cpack.log"; exit 1; }
names=(libquire0.2 libquire-dev quire-llama quire)
# The store is left out where its libraries are not there.
if [ -f "$build/quire_store.pc" ]; then names+=(libquire-store0.2 libquire-store-dev); fi
for name in "${names[@]}"; do
    file=$work/packages/${name}_${version}_$arch.deb
    [ -f "$file" ] || { echo "no $file"; ls "$work/packages"; exit 1; }
    dpkg-deb -x "$file" "$root"
    dpkg-deb -f "$file" Package Version Depends Installed-Size | paste -sd' '
    [ -s "$root/usr/share/doc/$name/licences.md" ]
    [ -s "$root/usr/share/doc/$name/changelog.gz" ]
    # The copyright file has its text, and Debian wants it once.
    [ ! -e "$root/usr/share/doc/$name/LICENSE" ] || { echo "$name has LICENSE beside its copyright"; exit 1; }
    # In Debian's machine-readable form (DEP 5): every licence that is named is explained once.
    awk '
        NR == 1 && !/^Format: .*copyright-format\/1\.0\/$/ { print "no format: " $0; bad = 1 }
        /^Files:/ { files = 1 }
        /^$/ { files = 0 }
        /^License: / { if (files) { for (i = 2; i <= NF; i++) if ($i != "and") used[$i] } else defined[$2]++ }
        /^License: public-domain/ { defined[$2]++ }
        END {
            for (name in used) if (defined[name] != 1) { print "licence " name " is explained " defined[name] + 0 " times"; bad = 1 }
            exit bad
        }' "$root/usr/share/doc/$name/copyright" || { echo "copyright of $name is not in the form of DEP 5"; exit 1; }
done
# Both libraries and their headers are of one patch.
needs() { dpkg-deb -f "$work/packages/${1}_${version}_$arch.deb" Depends | grep -qF "$2 (= $version)" || { echo "$1 does not need $2 of the same patch"; exit 1; }; }
needs libquire-dev libquire0.2
if [ -f "$build/quire_store.pc" ]; then
    needs libquire-store-dev libquire-store0.2
    needs libquire-store-dev libquire-dev
    { dpkg-deb -f "$work/packages/libquire-dev_${version}_$arch.deb" Depends; dpkg-deb -c "$work/packages/libquire-dev_${version}_$arch.deb"; } >"$work/libquire-dev"
    grep -q quire/quire.h "$work/libquire-dev"
    ! grep -i store "$work/libquire-dev" || { echo "libquire-dev has files of the store or needs it"; exit 1; }
    needs libquire-store0.2 libquire0.2
    grep -qx "Requires: quire = $version" "$build/quire_store.pc"
fi
# Libraries of the system that the two need; a patch may not add to them (docs/promises.md).
only_needs() {
    readelf -d "$(find "$root" -name "$1")" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' >"$work/needed"
    ! grep -vxE "lib(c|m|pthread)\.so\.[0-9]+|ld-linux.*${2-}" "$work/needed" || { echo "$1 needs more than docs/packaging.md says"; exit 1; }
}
only_needs "libquire.so.$version"
if [ -f "$build/quire_store.pc" ]; then only_needs "libquire_store.so.$version" '|lib(quire|sqlite3|xxhash|ssl|crypto|valkey|valkey_tls)\.so\.[0-9.]+'; fi
# Nothing of the machine that built it.
! grep -rlaF "$source" "$root" || { echo "paths of the build are in the packages"; exit 1; }

step "what cmake --install puts beside each component"
for component in library development store storedevelopment device tools; do
    case $component in store*) [ -f "$build/quire_store.pc" ] || continue ;; esac
    cmake --install "$build" --prefix "$work/installed/$component" --component "$component" >"$work/install.log"
    for file in LICENSE licences.md; do
        [ -s "$work/installed/$component/share/doc/quire/$file" ] || { echo "component $component has no $file"; exit 1; }
    done
    [ "$(ls "$work/installed/$component/share/doc")" = quire ] || { echo "component $component: $(ls "$work/installed/$component/share/doc")"; exit 1; }
done
if find "$root" -name copyright.libvalkey | grep -q .; then # built in
    for component in store tools; do [ -s "$work/installed/$component/share/doc/quire/copyright.libvalkey" ]; done
    for name in libquire-store0.2 quire; do [ -s "$root/usr/share/doc/$name/copyright.libvalkey" ]; done
fi

step "command and device"
quire=$root/usr/bin/quire
$quire --version
$quire codecs --json r4 | grep -q '"name":"r4"'
$quire run --env --kv r8/r4 true 2>/dev/null | grep -q "^GGML_BACKEND_PATH=$root/usr/lib/quire/libggml-quire.so$"
[ "$(nm -D --defined-only "$root/usr/lib/quire/libggml-quire.so" | awk '{print $3}')" = ggml_backend_init ]
for page in quire quire-run quire-plan quire-stat quire-cache; do [ -s "$root/usr/share/man/man1/$page.1.gz" ]; done
[ -s "$root/usr/share/bash-completion/completions/quire" ]
[ -s "$root/usr/share/quire/eval/text/calibrate.txt" ]

if [ -s "$root/usr/share/man/man1/quire-serve.1.gz" ]; then
    step "the unit of quire serve"
    unit=usr/lib/systemd/system/quire-serve@.service
    [ -s "$root/$unit" ]
    if command -v systemd-analyze >/dev/null; then
        sed "s|^ExecStart=quire|ExecStart=$quire|" "$root/$unit" >"$work/quire-serve@.service"
        systemd-analyze verify --man=no "$work/quire-serve@one.service"
    else
        echo "not verified: no systemd-analyze"
    fi
fi

step "a program by pkg-config"
libdir=$(dirname "$(find "$root" -name quire.pc)")/..
libdir=$(cd "$libdir" && pwd)
export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046 # words
cc -std=c11 "$source/examples/first_attention.c" $(pkg-config --cflags --libs quire) -o "$work/shared"
LD_LIBRARY_PATH=$libdir "$work/shared"
# The SONAMEs that a program asks for (docs/promises.md).
asks_for() {
    readelf -d "$1" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' >"$work/needed"
    for soname in "${@:2}"; do grep -qxF "$soname" "$work/needed" || { echo "$1 does not ask for $soname"; exit 1; }; done
}
asks_for "$work/shared" libquire.so.0.2
# shellcheck disable=SC2046
cc -std=c11 "$source/examples/first_attention.c" $(pkg-config --cflags quire) "$libdir/libquire.a" -lm -lpthread -o "$work/static"
"$work/static"

if [ -f "$build/quire_store.pc" ]; then
    step "the store by pkg-config"
    printf '#include <quire/store.h>\n#include <stdio.h>\nint main(void) { puts(quire_version()); return quire_store_open(NULL, NULL) != QUIRE_EINVAL; }\n' >"$work/store.c"
    # shellcheck disable=SC2046
    cc -std=c11 "$work/store.c" $(pkg-config --cflags --libs quire_store) "-Wl,-rpath-link,$libdir" -o "$work/store"
    LD_LIBRARY_PATH=$libdir "$work/store"
    asks_for "$work/store" libquire_store.so.0.2 libquire.so.0.2
    asks_for "$libdir/libquire_store.so" libquire.so.0.2
    # What is built into it is not offered to others.
    ! nm -D --defined-only "$libdir/libquire_store.so" | grep -v ' quire_' || { echo "other names are exported"; exit 1; }
fi

step "a program by CMake"
mkdir "$work/user"
cat >"$work/user/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.21)
project(user LANGUAGES C)
find_package(quire $version REQUIRED)
add_executable(static "$source/examples/first_attention.c")
target_link_libraries(static PRIVATE quire::quire)
add_executable(shared "$source/examples/first_attention.c")
target_link_libraries(shared PRIVATE quire::quire_shared)
EOF
cmake -S "$work/user" -B "$work/user/build" -G Ninja -Dquire_DIR="$libdir/cmake/quire" >"$work/cmake.log" 2>&1 ||
    { cat "$work/cmake.log"; exit 1; }
cmake --build "$work/user/build" >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; exit 1; }
"$work/user/build/static"
"$work/user/build/shared"

# With nothing else in it but the C library, if we may change into it.
if [ "$(id -u)" -eq 0 ] && chroot / true 2>/dev/null; then
    step "the root alone"
    for program in "$quire" "$work/shared" "$root/usr/lib/quire/libggml-quire.so"; do
        LD_LIBRARY_PATH=$libdir ldd "$program" | grep -oE '/[^ ]+' | grep -v "^$root" | sort -u | while read -r library; do
            mkdir -p "$root$(dirname "$library")"
            cp -n "$library" "$root$library"
        done
    done
    cp "$work/shared" "$root/usr/bin/first_attention"
    chroot "$root" /usr/bin/quire codecs r4 | grep '^r4 '
    chroot "$root" /usr/bin/first_attention
fi

step "source archive"
(cd "$work" && cpack --config "$build/CPackSourceConfig.cmake" -B "$work/source" >"$work/cpack.log" 2>&1) ||
    { tail -n 20 "$work/cpack.log"; exit 1; }
tar -xzf "$work/source/quire-$version.tar.gz" -C "$work"
[ ! -e "$work/quire-$version/build" ] && [ ! -e "$work/quire-$version/.git" ]
for file in README.md LICENSE CMakeLists.txt include/quire/quire.h tests/golden/affine.gold scripts/check; do
    [ -f "$work/quire-$version/$file" ] || { echo "no $file in the archive"; exit 1; }
done
if [ "${2-}" != --quick ]; then
    offline=()
    if unshare -n true 2>/dev/null; then offline=(unshare -n); fi
    cd "$work/quire-$version"
    "${offline[@]}" cmake --preset release -DQUIRE_TESTS=OFF >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; exit 1; }
    "${offline[@]}" cmake --build --preset release >"$work/cmake.log" 2>&1 || { tail -n 20 "$work/cmake.log"; exit 1; }
    build/release/bin/quire --version
fi
echo "passed"
