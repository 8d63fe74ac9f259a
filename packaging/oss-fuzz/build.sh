#!/bin/bash -eu
# SPDX-License-Identifier: MIT
# Builds the fuzz targets for OSS-Fuzz, which sets CC, CXX, CFLAGS, LIB_FUZZING_ENGINE, SRC, WORK and OUT. Each target becomes $OUT/fuzz_NAME, with
# its seeds in $OUT/fuzz_NAME_seed_corpus.zip. Libraries of the system are linked in: the machine that runs the targets does not have them.

source=${QUIRE_SOURCE:-$SRC/quire}
build=$WORK/quire
libraries=$(dirname "$(${CC} -print-file-name=libsqlite3.a)")

# CFLAGS come from the environment, sanitizers among them. Test programs are linked with cmocka, of which fuzz targets use nothing: with
# --as-needed they do not ask for it. Without QUIRE_SERVE=ON targets would be missing if a library of quire serve is.
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE= -DQUIRE_FUZZ=ON -DQUIRE_STORE=ON -DQUIRE_SERVE=ON \
    "-DCMAKE_EXE_LINKER_FLAGS=${LDFLAGS-} -Wl,--as-needed" \
    "-DQUIRE_FUZZ_ENGINE=$LIB_FUZZING_ENGINE" -DOPENSSL_USE_STATIC_LIBS=ON "-DSQLITE3_LIBRARY=$libraries/libsqlite3.a" \
    "-DXXHASH_LIBRARY=$libraries/libxxhash.a"

targets=()
for file in "$source"/tests/fuzz/*.c; do
    targets+=("fuzz_$(basename "$file" .c)")
done
cmake --build "$build" --target "${targets[@]}"

for target in "${targets[@]}"; do
    cp "$build/bin/$target" "$OUT/"
    seeds=$source/tests/fuzz/corpus/${target#fuzz_}
    [ ! -d "$seeds" ] || python3 -m zipfile -c "$OUT/${target}_seed_corpus.zip" "$seeds"/*
done
