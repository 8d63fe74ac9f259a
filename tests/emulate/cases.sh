#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fails if kernels use an intrinsic above AVX2 that has no case in cases.c, or if a model has none.
set -euo pipefail
cd "$(dirname "$0")"
names='_(mm512|tile)_[a-z0-9_]+|_mm256_dp[a-z0-9_]+'
missing=$(comm -23 <(grep -rhoE "\b($names)" ../../src models.h models_lanes.h | sort -u) <(grep -oE "\b($names)" cases.c | sort -u))
[ -z "$missing" ] || { printf "no case in tests/emulate/cases.c: %s\n" "$missing"; exit 1; }
echo "$(grep -oE "\b($names)" cases.c | sort -u | wc -l) intrinsics have cases"
