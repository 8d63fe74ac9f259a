# SPDX-License-Identifier: MIT
"""Runs in a Python with mlx-lm: loads a file and compares it with what was in the original.

    check.py FILE ORIGINAL.npz [exact | LIMIT | quantized GROUP BITS]

exact: the same values; LIMIT: of the error, relative to the largest value; quantized: the codes, scales and biases that
mlx itself makes of the original. Then a token is appended, as a user would.
"""
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as C

path, original, how = sys.argv[1:4]
layers, metadata = C.load_prompt_cache(path, return_metadata=True)
want = np.load(original)
assert metadata == {"model": "a \"model\"", "note": "grün"}, metadata
assert len(layers) == len(want.files) // 2, len(layers)


def floats(part, c, n):
    if isinstance(part, (tuple, list)):
        packed, scales, biases = (p[..., :n, :] for p in part)
        part = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), c.group_size, c.bits)
    return np.array(part[..., :n, :].astype(mx.float32))


def codes(part, name, group, bits):
    fresh = mx.quantize(mx.array(want[name]).astype(mx.float16), group_size=group, bits=bits)
    for mine, theirs in zip(part, fresh):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, (name, mine.dtype, mine.shape, theirs.shape)
        a, b = (np.array(x.view(mx.uint16) if x.dtype == mx.float16 else x) for x in (mine, theirs))
        assert (a == b).all(), (name, int((a != b).sum()))


for i, c in enumerate(layers):
    for name, part in ((f"k{i}", c.keys), (f"v{i}", c.values)):
        n = want[name].shape[2]
        assert (part[0] if isinstance(part, (tuple, list)) else part).shape[2] == n, "rows that are not valid were written"
        if how == "quantized":
            codes(part, name, int(sys.argv[4]), int(sys.argv[5]))
            continue
        error = np.abs(floats(part, c, n) - want[name]).max() / np.abs(want[name]).max()
        assert error <= (0 if how == "exact" else float(how)), (name, error)
for c in layers:
    part = c.keys[0] if isinstance(c.keys, (tuple, list)) else c.keys
    heads = part.shape[1]
    size = [p[1].shape[-1] * c.group_size if isinstance(p, (tuple, list)) else p.shape[-1] for p in (c.keys, c.values)]
    before = c.offset
    dtype = mx.float16 if isinstance(c.keys, (tuple, list)) else c.keys.dtype
    c.update_and_fetch(mx.ones((1, heads, 1, size[0]), dtype), mx.ones((1, heads, 1, size[1]), dtype))
    assert c.offset == before + 1
print("ok")
