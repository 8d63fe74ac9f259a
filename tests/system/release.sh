#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Each file of a release, installed where nothing of the source is, and used; and what scripts/release promises about the bytes.
#
#   tests/system/release.sh --quick            source archive, notes, recipes, list of contents, sums: made twice and compared, in seconds
#   tests/system/release.sh FOLDER [STEP...]   a folder of scripts/release with all parts; steps, all unless named:
#                                              notes sums source again python python-tests python-arm64 plugins deb deb-arm64 recipes sbom
#
# Roots are made of Debian's packages; programs for 64-bit ARM run in theirs under qemu-user. Needs lintian, mmdebstrap, qemu-user-static, ruby,
# the right to chroot, and what scripts/release needs. Exit status 77: something that it needs is not there.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
cd "$source"
version=$(sed -nE 's/^project\(quire VERSION ([0-9.]+) .*/\1/p' CMakeLists.txt)
soversion=${version%.*}
mkdir -p build
work=$(mktemp -d "$source/build/release-test.XXXXXX")
trap 'rm -rf "$work"' EXIT

step() { echo "--- $*"; }
fail() { echo "$*"; exit 1; }
need() { for tool in "$@"; do command -v "$tool" >/dev/null || { echo "skipped: no $tool"; exit 77; }; done; }
tools=$(scripts/get-release-tools) || { echo "skipped: no scripts/get-release-tools"; exit 77; }

# The first block of Python in docs/python.md.
first_example() { awk '/^```python$/ { on = 1; next } /^```$/ && on { exit } on' docs/python.md; }

# --- what every form checks ----------------------------------------------------------------------------

check_recipes() {
    step "recipes"
    ! grep -rn '@[A-Z0-9]*@' "$1/homebrew" "$1/conda" || fail "something was not filled in"
    if command -v ruby >/dev/null; then ruby -c "$1/homebrew/quire.rb"; else echo "the formula was not read: no ruby"; fi
    "$tools" tests/system/recipe.py "$1"
}

check_notes() {
    step "notes"
    head -n 1 "$1/quire-$version.md" | grep -F "## [$version]"
    [ "$(grep -c '^## ' "$1/quire-$version.md")" = 1 ]
}

check_sums() {
    step "sums"
    (cd "$1" && sha256sum --check --quiet SHA256SUMS)
    [ "$(wc -l <"$1/SHA256SUMS")" = "$(find "$1" -type f ! -name SHA256SUMS | wc -l)" ] || fail "a file has no sum"
    echo "$(wc -l <"$1/SHA256SUMS") files"
}

check_sbom() {
    step "list of contents"
    "$tools" tests/system/sbom.py "$1"
}

if [ "${1-}" = --quick ]; then
    parts=(--part source --part recipes --part notes --part sbom --part sums)
    scripts/release --out "$work/one" "${parts[@]}" >/dev/null
    # In another time zone, with another umask, from another folder.
    (umask 077 && cd / && TZ=Asia/Tokyo "$source/scripts/release" --out "$work/two" "${parts[@]}" >/dev/null)
    step "made twice"
    diff -r "$work/one" "$work/two"
    echo "equal bytes"
    check_recipes "$work/one"
    check_notes "$work/one"
    check_sums "$work/one"
    check_sbom "$work/one"
    step "flags of packages and wheels"
    "$tools" tests/system/hardening.py --flags "$work/hardening"
    echo "passed"
    exit
fi
[ $# -ge 1 ] && [ -f "$1/SHA256SUMS" ] || { sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
folder=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- notes sums source again python python-tests python-arm64 plugins deb deb-arm64 recipes sbom

# --- roots -----------------------------------------------------------------------------------------------

# $1 architecture, $2 folder, then names and files of packages: they and all that they depend on, as apt resolves it, unpacked and not configured.
unpack_root() {
    local deb apt=$work/apt-$1
    # shellcheck source=scripts/get-llama-lib
    (. scripts/get-llama-lib && apt_conf "$apt")
    printf 'APT::Architecture "%s";\nAPT::Architectures { "%s"; };\nAPT::Install-Recommends "false";\n' "$1" "$1" >>"$apt/apt.conf"
    : >"$apt/status"
    apt-get -q -c "$apt/apt.conf" update >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 77; }
    apt-get -q -y -c "$apt/apt.conf" install --download-only base-files libc-bin "${@:3}" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
    # Folders that are links in a merged /usr.
    mkdir -p "$2/usr/bin" "$2/usr/sbin" "$2/usr/lib" "$2/tmp" "$2/proc" "$2/dev"
    for deb in bin sbin lib; do ln -s "usr/$deb" "$2/$deb"; done
    for deb in "$apt"/archives/*.deb "${@:3}"; do
        case $deb in *.deb) dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$2" ;; esac
    done
    mknod -m 666 "$2/dev/null" c 1 3 2>/dev/null || true
    mknod -m 666 "$2/dev/urandom" c 1 9 2>/dev/null || true
}

emulator=qemu-aarch64-static
# $1 root, $2 architecture, then a command
inside() {
    local root=$1 arch=$2
    shift 2
    if [ "$arch" = arm64 ]; then
        cp -n "$(command -v $emulator)" "$root/usr/bin/$emulator"
        set -- "/usr/bin/$emulator" "$@"
    fi
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 ${PYTHONPATH:+PYTHONPATH="$PYTHONPATH"} chroot "$root" "$@"
}

# $1 architecture of Debian: the packages in a root of nothing but what they depend on
use_debs() {
    local root=$work/root-$1
    local -a debs=("$folder"/*_"$1".deb)
    step "packages for $1: ${#debs[@]}"
    lintian --fail-on error,warning --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog "${debs[@]}"
    echo "lintian: no errors, no warnings"
    "$tools" tests/system/hardening.py "${debs[@]}"
    unpack_root "$1" "$root" "${debs[@]}"
    for deb in "${debs[@]}"; do [ -s "$root/usr/share/doc/$(basename "${deb%%_*}")/copyright" ]; done
    inside "$root" "$1" /usr/bin/quire --version | grep -F "$version"
    inside "$root" "$1" /usr/bin/quire codecs r4 | grep '^r4 '
    inside "$root" "$1" /usr/bin/quire help serve | sed -n 1p # head would end it before it has written all
    inside "$root" "$1" /usr/bin/quire store stat --help >/dev/null
    # The first example, compiled against the headers and the library of the packages.
    local cc=cc
    [ "$1" = amd64 ] || cc=aarch64-linux-gnu-gcc
    $cc -std=c11 examples/first_attention.c -I"$root/usr/include" -L"$root/usr/lib/$(dpkg-architecture -a"$1" -qDEB_HOST_MULTIARCH)" -lquire -lm -o "$root/usr/bin/first_attention"
    readelf -d "$root/usr/bin/first_attention" | grep -F "libquire.so.$soversion" >/dev/null
    inside "$root" "$1" /usr/bin/first_attention
}

# $1 processor, $2 architecture of Debian: the wheel in a root with Debian's Python
use_wheel() {
    local root=$work/python-$2 wheel
    wheel=$(echo "$folder"/quire-*-manylinux_2_28_"$1".whl)
    step "wheel for $1"
    "$tools" tests/system/wheel.py "$wheel"
    unpack_root "$2" "$root" python3-minimal libpython3-stdlib libstdc++6 # which numpy asks for
    # pip chooses for the platform that the root is; numpy comes along from where pip gets it.
    "$tools" -m pip install --quiet --disable-pip-version-check --no-compile --target "$root/site" --only-binary :all: --implementation cp --python-version 3.11 \
        --platform "manylinux_2_28_$1" --platform "manylinux_2_17_$1" --platform "manylinux2014_$1" "$wheel" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
    first_example >"$root/tmp/first.py"
    cp examples/python/prefix_store.py "$root/tmp"
    export PYTHONPATH=/site
    inside "$root" "$2" /usr/bin/python3 /tmp/first.py
    # One process saves the pages, another one loads them.
    inside "$root" "$2" /usr/bin/python3 /tmp/prefix_store.py --serve /tmp/pages | grep '^0 of 1000 '
    inside "$root" "$2" /usr/bin/python3 /tmp/prefix_store.py --serve /tmp/pages | grep '^9[0-9]* of 1000 '
    unset PYTHONPATH
    inside "$root" "$2" /site/quire/bin/quire codecs r4 | grep '^r4 '
}

# The tests of the Python package with the wheel of the release in place of one that is built for this machine.
test_wheel() {
    local test
    step "tests of the package with the wheel for $(uname -m)"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$folder"/quire-*-manylinux_2_28_"$(uname -m)".whl
    for test in test_attend test_codecs test_store test_chain test_command test_llama; do
        QUIRE_PYTHON=$work/venv/bin/python3 python/tests/run $test >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
        echo "$test: $(grep -E '^(Ran|OK)' "$work/log" | paste -sd' ')"
    done
    # Its OpenSSL beside the system's, which the packages use.
    dpkg-deb --extract "$folder"/libquire0*_"$(dpkg --print-architecture)".deb "$work/system"
    dpkg-deb --extract "$folder"/libquire-store0*_"$(dpkg --print-architecture)".deb "$work/system"
    QUIRE_PYTHON=$work/venv/bin/python3 python/tests/run "$source/tests/system/wheel_store.py" "$work/system/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" >"$work/log" 2>&1 ||
        { tail -n 30 "$work/log"; exit 1; }
    echo "wheel_store: $(grep -E '^(Ran|OK)' "$work/log" | paste -sd' ')"
}

# Wheels of plug-ins are for the machine that made them. They ask for names of glibc that are older than it all the same.
check_plugins() {
    local wheel asked
    step "wheels of plug-ins"
    for wheel in "$folder"/quire_*-py3-none-*.whl; do
        [[ $wheel == *-py3-none-linux_"$(uname -m)".whl ]] || fail "another tag than linux_$(uname -m): $wheel"
        "$tools" tests/system/hardening.py "$wheel"
        python3 -m zipfile -e "$wheel" "$work/plugins"
        asked=$(find "$work/plugins" -name '*.so' -exec readelf -VW {} + | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
        echo "$(basename "$wheel"): ${asked:-no name of glibc}"
        [ "$(printf '%s\n' "$asked" GLIBC_2.28 | sort -V | tail -n 1)" = GLIBC_2.28 ] || fail "docs/releasing.md says glibc 2.28"
        compgen -G "$work/plugins/*.dist-info/licenses/LICENSE" >/dev/null || fail "no LICENSE in $wheel"
    done
}

for name in "$@"; do
    case $name in
        notes | sums | recipes | sbom) "check_$name" "$folder" ;;
        source)
            step "source archive: built without a network, first example"
            tar -xJf "$folder/quire-$version.tar.xz" -C "$work"
            (
                cd "$work/quire-$version"
                offline=()
                if unshare -n true 2>/dev/null; then offline=(unshare -n); fi
                "${offline[@]}" cmake --preset release >"$work/log" 2>&1 && "${offline[@]}" cmake --build --preset release --target quire_tool example_first_attention \
                    >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
                build/release/bin/quire --version
                build/release/bin/example_first_attention
            )
            ;;
        again)
            step "source archives and wheels, made again without compiler caches; the libraries inside the wheels are those of scripts/get-store-libraries"
            ZIG_GLOBAL_CACHE_DIR=$work/zig QUIRE_CACHE_RELEASE=$work/cache CCACHE_DISABLE=1 scripts/release --out "$work/again" --part source --part sdist --part wheel >/dev/null
            for file in "$work"/again/*; do
                cmp "$file" "$folder/$(basename "$file")"
                echo "equal bytes: $(basename "$file")"
            done
            ;;
        python) use_wheel x86_64 amd64 ;;
        python-tests) test_wheel ;;
        plugins) check_plugins ;;
        python-arm64) need $emulator; use_wheel aarch64 arm64 ;;
        deb) need lintian; use_debs amd64 ;;
        deb-arm64) need lintian $emulator aarch64-linux-gnu-gcc; use_debs arm64 ;;
        *) fail "release.sh: there is no step $name" ;;
    esac
done
echo "passed"
