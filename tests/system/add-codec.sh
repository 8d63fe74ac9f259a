#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Does what docs/add-a-codec.md tells: its C block becomes a file, its diff is applied, and the codec is used.
#
#   tests/system/add-codec.sh BUILDDIR
#
# Only the two files that differ are compiled; they come before the library that has the rest.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The first block of a language in the page.
block() {
    awk -v fence='```'"$1" '$0 == fence {on = 1; next} $0 == "```" && on {exit} on' "$source/docs/add-a-codec.md"
}

cp -r "$source/src" "$source/include" "$work/"
cd "$work"
block c >src/codec/nf4.c
block diff | patch -s -p1
cat >check.c <<'EOF'
#include <quire/quire.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { D = 128, KV = 2, Q = 4, TOKENS = 300 };

/* The same rows under a policy; the last output. */
static void attend(const char *policy, float *out)
{
    static float k[KV * D], v[KV * D], q[Q * D];
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = Q, .n_kv_heads = KV, .d_k = D, .d_v = D};
    quire_plan *plan;
    quire_pool *pool;
    quire_seq *seq;
    if (quire_plan_create(&plan, &g, policy, NULL) ||
        quire_pool_create(&pool, plan, &(quire_pool_options){sizeof(quire_pool_options), .budget_bytes = 1 << 26}) ||
        quire_seq_create(&seq, pool, NULL))
        exit(1);
    srand(1);
    for (int t = 0; t < TOKENS; t++) {
        quire_step *step;
        for (int i = 0; i < KV * D; i++) k[i] = (float)rand() / (float)RAND_MAX - 0.5f, v[i] = (float)rand() / (float)RAND_MAX;
        for (int i = 0; i < Q * D; i++) q[i] = (float)rand() / (float)RAND_MAX * 4 - 2;
        if (quire_step_begin(&step, pool, &seq, &(uint32_t){1}, 1) || quire_step_append(step, 0, k, v) ||
            quire_step_attend(step, 0, q, out) || quire_step_commit(step))
            exit(1);
    }
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

int main(void)
{
    static float truth[Q * D], out[Q * D];
    double error = 0, norm = 0;
    const quire_codec_info *info = quire_codec_find("nf4");
    quire_isa_use_environment();
    if (!info) return puts("the codec is not there"), 1;
    attend("f32", truth);
    attend("nf4", out);
    for (int i = 0; i < Q * D; i++) error += pow(out[i] - truth[i], 2), norm += pow(truth[i], 2);
    error = sqrt(error / norm);
    printf("%s: %s; %.3f bits per value, error %.3f\n", info->name, info->summary, quire_codec_bits("nf4", D), error);
    return error > 1e-4 && error < 0.1 ? 0 : 1;
}
EOF
for file in src/codec/registry.c src/codec/nf4.c check.c; do
    "${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Werror -ffp-contract=off -Iinclude -Isrc -c "$file" -o "$(basename "$file" .c).o"
done
"${CC:-cc}" check.o registry.o nf4.o "$build/lib/libquire.a" -lm -lpthread -o check
for isa in c avx2 avx512vbmi amx; do QUIRE_ISA=$isa ./check; done
