#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A new user who does what README.md tells, from source and from the packages, with the environment of a fresh login: ends
# with a text generated under `quire run` and the memory that was saved.
#
#   tests/system/new-user.sh [source] [deb]        default: both
#
# Takes the blocks out of README.md as they stand. llama.cpp and the model are those of scripts/get-llama and scripts/get-models; exit
# status 77 if they are not there. From source everything is compiled (several minutes).
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -gt 0 ] || set -- source deb
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

llama=$("$source/scripts/get-llama") || { echo "skipped: no llama.cpp"; exit 77; }
model=$("$source/scripts/get-models" smollm2-135m) || { echo "skipped: no model"; exit 77; }

# The block of README.md that begins with these words.
block() {
    awk -v fence='```'"$1" '$0 == fence {on = 1; next} $0 == "```" && on {exit} on' "$source/README.md"
}

# $1 PATH, $2 commands: in a shell that knows nothing of this one. Compilers may be found through ccache, which is a matter of speed alone.
fresh() {
    env -i HOME="$HOME" LANG=C.UTF-8 PATH="$1" ${CMAKE_C_COMPILER_LAUNCHER:+CMAKE_C_COMPILER_LAUNCHER="$CMAKE_C_COMPILER_LAUNCHER"} \
        bash -euo pipefail -c "$2" </dev/null
}

# $1 name, $2 folder with `quire`: what the second block does, and whether it did.
use() {
    local folder=$work/use-$1
    mkdir "$folder"
    ln -s "$model" "$folder/model.gguf"
    fresh "$2:$llama:/usr/bin:/bin" "cd '$folder'; $(block sh)" >"$folder/out" 2>"$folder/err" ||
        { cat "$folder/out" "$folder/err"; exit 1; }
    grep -E '^recommended: ' "$folder/out"
    grep -E '^quire run: .* saved' "$folder/err"
    grep -F 'Paris' "$folder/out" | head -n 1
}

for kind in "$@"; do
    echo "--- from $kind"
    case $kind in
        source)
            mkdir "$work/source"
            # What a clone or the source archive has.
            (cd "$source" && git ls-files -z | tar --null -T - -cf -) | tar -xf - -C "$work/source"
            fresh /usr/local/bin:/usr/bin:/bin "cd '$work/source'; $(block 'sh source')"$'\ncommand -v quire' >"$work/log" 2>&1 ||
                { tail -n 30 "$work/log"; exit 1; }
            use source "$work/source/build/release/bin"
            ;;
        deb)
            build=$source/build/release
            [ ! -d "$work/source/build/release" ] || build=$work/source/build/release
            (cd "$work" && cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/packages" >"$work/log" 2>&1) ||
                { tail -n 20 "$work/log"; exit 1; }
            for package in quire quire-llama; do dpkg-deb -x "$work/packages/${package}_"*.deb "$work/unpacked"; done
            use deb "$work/unpacked/usr/bin"
            ;;
        *) echo "usage: new-user.sh [source] [deb]" >&2; exit 2 ;;
    esac
done
echo "passed"
