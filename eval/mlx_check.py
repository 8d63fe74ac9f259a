# SPDX-License-Identifier: MIT
"""Checks that a8g64 and a4g64 give the same attention as mlx-lm's own quantized cache, on K, V and Q of a real model.

    python3 eval/mlx_check.py FILE.rows [QUIRE]      with a Python that has mlx-lm, for example scripts/make-golden's

Attention is computed in fp32. The codes are the same. Quire stores scales and biases in f16, as mlx-lm does for a model in f16,
so the required comparison is with mlx-lm's scales in f16: the difference must be at most 0.1 % of the output's norm in every
row of a head. With 32-bit scales mlx-lm's own result changes by 0.25 % (root mean square, by layer), which is printed too.
"""
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import quantized_scaled_dot_product_attention
from mlx_lm.models.cache import QuantizedKVCache

TOKENS, EVERY, MOST = 512, 16, 1e-3


def read(path):
    """Per layer its shape and arrays of K, V and Q: [tokens][heads][d]."""
    data = np.memmap(path, np.uint32, mode="r")
    n_layers = int(data[3])
    shapes = [[int(x) for x in data[4 + 5 * i:9 + 5 * i]] for i in range(n_layers)]
    rows = [[[], [], []] for _ in shapes]
    at = 4 + 5 * n_layers
    while at + 3 <= len(data):
        layer, kind, position = (int(x) for x in data[at:at + 3])
        q_heads, kv_heads, d_k, d_v, _ = shapes[layer]
        heads, d = ((kv_heads, d_k), (kv_heads, d_v), (q_heads, d_k))[kind]
        if position < len(rows[layer][kind]):
            break  # the next sequence
        if position < TOKENS:
            rows[layer][kind].append(np.asarray(data[at + 3:at + 3 + heads * d]).view(np.float32).reshape(heads, d))
        at += 3 + heads * d
    return [(s, [np.stack(x) for x in r]) for s, r in zip(shapes, rows) if r[0]]


def halves(side):
    """Codes as they are, scales and biases rounded."""
    return side[0], *(x.astype(mx.float16).astype(mx.float32) for x in side[1:])


def by_mlx(k, v, q, bits, form):
    """The attention of every EVERY-th query, as mlx-lm computes it."""
    as_mx = lambda x: mx.array(x.transpose(1, 0, 2)[None])
    cache = QuantizedKVCache(group_size=64, bits=bits)
    keys, values = cache.update_and_fetch(as_mx(k), as_mx(v))
    positions = np.arange(len(q) - 1, -1, -EVERY)[::-1]
    mask = mx.array(np.arange(len(k))[None, :] <= positions[:, None])
    out = quantized_scaled_dot_product_attention(as_mx(q[positions]), form(keys), form(values), q.shape[-1] ** -0.5, mask,
                                                 group_size=64, bits=bits)
    return np.array(out)[0].transpose(1, 0, 2)


def difference(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b ** 2)))


def worst_row(a, b):
    return float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max())


def main():
    path, quire = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "build/release/bin/quire"
    mx.set_default_device(mx.cpu)
    layers = read(path)
    right = True
    for bits in (8, 4):
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run([quire, "rows", "--policies", f"a{bits}g64", "--tokens", str(TOKENS), "--every", str(EVERY),
                            "--write", out.name, path], check=True, stdout=subprocess.DEVNULL)
            ours = np.fromfile(out.name, np.float32)
        at, differences, wide, rows = 0, [], [], []
        for (q_heads, _, _, d_v, _), (k, v, q) in layers:
            theirs = by_mlx(k, v, q, bits, halves)
            mine = ours[at:at + theirs.size].reshape(theirs.shape)
            at += theirs.size
            differences.append(difference(mine, theirs))
            rows.append(worst_row(mine, theirs))
            wide.append(difference(mine, by_mlx(k, v, q, bits, lambda side: side)))
        assert at == ours.size
        print(f"a{bits}g64: {len(differences)} layers, difference {np.mean(differences):.2e} on average, "
              f"{max(differences):.2e} at most, {max(rows):.2e} in the worst row; with scales of 32 bits {np.mean(wide):.2e}, {max(wide):.2e}")
        right = right and all(r <= MOST for r in rows)  # not so of NaN
    return 0 if right else f"more than {MOST}"


if __name__ == "__main__":
    sys.exit(main())
