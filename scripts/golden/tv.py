# SPDX-License-Identifier: MIT
"""tv.gold: rows, and the states and values that mlx-vlm's TurboQuant codec makes of them on the CPU device."""
import mlx.core as mx
import numpy as np

import mlx_vlm_parts as parts
from affine import TYPES, stored
from families import families, names
from goldfile import text

SIZES = (64, 128, 256)
STATE_TOKENS, STATE_SIZE = 130, 128


def rows(rng, d):
    """The usual families, and some at which norms and ties are hard."""
    def normal():
        return rng.standard_normal((1, d))
    more = [
        ("alternating", np.where(np.arange(d) % 2, -1.5, 1.5)[None]),
        ("norm_below_eps", normal() * 1e-7 / np.sqrt(d)),
        ("norm_at_eps", np.eye(1, d, 3) * 1e-6),
        ("squares_underflow", normal() * 1e-20),
        ("norm_near_f16_limit", np.full((1, d), 65200 / np.sqrt(d))),
        ("heavy_tails", np.clip(rng.standard_t(1.2, (1, d)), -1e3, 1e3)),
        ("sparse", normal() * (rng.random((1, d)) < .05)),
        ("small_integers", rng.integers(-3, 4, (1, d)) * 1.0),
        ("two_hot", np.eye(1, d, 1) - np.eye(1, d, d - 1)),
    ]
    made = families(rng, d) + [(name, x.astype(np.float32)) for name, x in more]
    # Norms that f16 cannot hold are infinite in mlx-vlm, and 65504 here.
    return [(name, x * np.float32(.01) if name in ("huge", "wide") else x) for name, x in made]


def state(codec, x):
    """Indices u32 [R,W] and norms f16 [R] of rows [R,D]."""
    s = codec.quantize(x[None, None])
    return s, np.array(s.indices)[0, 0], np.array(s.norms)[0, 0]


def attention(turboquant, rng):
    """A state of one KV head, K of 3 bits and V of 4 (mlx-vlm's 3.5 bits), and what mlx-vlm's own values give."""
    arrays, values = {}, {}
    arrays["q"] = rng.standard_normal((4, STATE_SIZE)).astype(np.float32) * 3
    for side, bits in (("K", 3), ("V", 4)):
        codec = parts.codec(turboquant, STATE_SIZE, bits, side)
        x = rng.standard_normal((STATE_TOKENS, STATE_SIZE)) * np.exp(rng.standard_normal((1, STATE_SIZE)))
        s, arrays[f"state_{side}_words"], arrays[f"state_{side}_norms"] = state(codec, mx.array(x.astype(np.float32)))
        values[side] = arrays[f"state_{side}_values"] = np.array(codec.dequantize(s))[0, 0]
    score = arrays["q"].astype(np.float64) @ values["K"].astype(np.float64).T / np.sqrt(STATE_SIZE)
    p = np.exp(score - score.max(1, keepdims=True))
    arrays["state_out"] = p / p.sum(1, keepdims=True) @ values["V"].astype(np.float64)
    return arrays


def make():
    turboquant = parts.load()
    rng = np.random.default_rng(6)
    arrays = {}
    for d in SIZES:
        fam = rows(rng, d)
        arrays["families"] = text(names(fam))
        x = np.concatenate([r for _, r in fam])
        for dt, kind in TYPES.items():
            X = mx.array(x).astype(kind)
            arrays[f"x_{dt}_d{d}"] = stored(X)
            for side in parts.SEEDS:
                for bits in parts.BITS if dt == "f32" else parts.BITS[:3]:
                    _, words, norms = state(parts.codec(turboquant, d, bits, side), X)
                    assert np.isfinite(norms).all()
                    arrays[f"{dt}_d{d}_{side}_b{bits}_words"] = words
                arrays[f"{dt}_d{d}_{side}_norms"] = norms
    return {**arrays, **attention(turboquant, rng)}
