# SPDX-License-Identifier: MIT
"""Runs in a Python with mlx-lm: makes prompt-cache files and, beside each, what is in it (NAME.npz).

    make.py OUTDIR
"""
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as C

OUT = sys.argv[1]
HEADS, D = 2, 64


def rows(seed, n, d=D, dtype=mx.float16):
    values = np.random.default_rng(seed).standard_normal((1, HEADS, n, d)).astype(np.float32) * 2
    return mx.array(values).astype(dtype)


def fill(cache, layer, chunks, d_v=D, dtype=mx.float16):
    for i, n in enumerate(chunks):
        cache.update_and_fetch(rows(1000 * layer + 2 * i, n, dtype=dtype), rows(1000 * layer + 2 * i + 1, n, d_v, dtype))
    return cache


def as_floats(part, offset, cache):
    """Valid rows as float32, dequantized without a second rounding."""
    if isinstance(part, (tuple, list)):
        packed, scales, biases = (p[..., :offset, :] for p in part)
        part = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), cache.group_size, cache.bits)
    return np.array(part[..., :offset, :].astype(mx.float32))


def save(name, layers):
    C.save_prompt_cache(f"{OUT}/{name}.safetensors", layers, {"model": "a \"model\"", "note": "grün"})
    found = {}
    for i, c in enumerate(layers):
        n = min(c.offset, (c.keys[0] if isinstance(c.keys, (tuple, list)) else c.keys).shape[2])
        found[f"k{i}"], found[f"v{i}"] = as_floats(c.keys, n, c), as_floats(c.values, n, c)
    np.savez(f"{OUT}/{name}.npz", **found)


save("plain", [fill(C.KVCache(), i, (20, 1, 300)) for i in range(12)])
save("wide_v", [fill(C.KVCache(), 1, (70,), d_v=128)])
save("bf16", [fill(C.KVCache(), i, (33,), dtype=mx.bfloat16) for i in range(2)])
save("f32", [fill(C.KVCache(), i, (33,), dtype=mx.float32) for i in range(2)])
trimmed = [fill(C.KVCache(), i, (90,)) for i in range(2)]
C.trim_prompt_cache(trimmed, 25)
save("trimmed", trimmed)
save("q4g64", [fill(C.QuantizedKVCache(group_size=64, bits=4), i, (20, 1, 60)) for i in range(2)])
save("q8g32", [fill(C.QuantizedKVCache(group_size=32, bits=8), i, (20, 1, 60)) for i in range(2)])
save("q4bf16", [fill(C.QuantizedKVCache(group_size=64, bits=4), i, (20,), dtype=mx.bfloat16) for i in range(2)])
save("ring", [fill(C.RotatingKVCache(max_size=32, keep=4), i, (20,) + (1,) * 30) for i in range(2)])
save("ring_young", [fill(C.RotatingKVCache(max_size=64, keep=4), i, (20, 1)) for i in range(2)])
save("mixed", [fill(C.KVCache(), 0, (40,)), fill(C.RotatingKVCache(max_size=32, keep=0), 1, (40,)),
               fill(C.QuantizedKVCache(group_size=64, bits=8), 2, (40,))])
