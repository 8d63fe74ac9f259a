# SPDX-License-Identifier: MIT
"""affine.gold: what mx.quantize writes on the CPU device, checked against a statement of the rule."""
import mlx.core as mx
import numpy as np

from families import families, names
from goldfile import bf16, text

f32 = np.float32
TYPES = {"f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}
BITS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)


def stored(a):
    """mx.array to what goldfile.write takes, half types as raw bits."""
    if a.dtype == mx.bfloat16:
        return bf16(np.array(a.view(mx.uint16)))
    return np.array(a)


def to_f32(a):
    return np.array(a.astype(mx.float32))


def rounded(x, dt):
    """float32 numpy, each value rounded (nearest even) to dt."""
    return to_f32(mx.array(np.ascontiguousarray(x, f32)).astype(TYPES[dt]))


def same_bits(a, b):
    return np.array_equal(a.view(np.uint32), np.ascontiguousarray(b, f32).view(np.uint32))


def rule(x, bits, group):
    """Codes [R,D], scale and bias [R,D/group] before they are rounded to the input type."""
    g = x.reshape(-1, group)
    hi, lo, top = g.max(1), g.min(1), f32(2 ** bits - 1)
    s = np.maximum((hi - lo) / top, f32(1e-7))
    low_edge = np.abs(lo) > np.abs(hi)              # strict: a tie takes the maximum
    s = np.where(low_edge, s, -s)
    edge = np.where(low_edge, lo, hi)
    q0 = np.rint(edge / s)
    at0 = q0 == 0
    bias = np.where(at0, f32(0), edge)
    s = np.where(at0, s, edge / np.where(at0, f32(1), q0))
    code = np.clip(np.rint((g - bias[:, None]) / s[:, None]), 0, top).astype(np.uint32)
    shape = (x.shape[0], -1)
    return code.reshape(x.shape), s.reshape(shape), bias.reshape(shape)


def pack(code, bits):
    """Little-endian bit stream along the last axis, cut into uint32 words."""
    b = ((code[..., None] >> np.arange(bits, dtype=np.uint32)) & 1).astype(np.uint8)
    return np.packbits(b.reshape(len(code), -1), axis=-1, bitorder="little").view("<u4")


def make():
    mx.set_default_device(mx.cpu)
    fam = families(np.random.default_rng(1))
    x = np.concatenate([rows for _, rows in fam])
    arrays = {"families": text(names(fam))}
    for dt, kind in TYPES.items():
        X = mx.array(x).astype(kind)
        arrays[f"x_{dt}"] = stored(X)
        for bits in BITS:
            for group in GROUPS:
                P, S, B = mx.quantize(X, group_size=group, bits=bits)
                code, s, bias = rule(to_f32(X), bits, group)
                assert np.array_equal(np.array(P), pack(code, bits)), (dt, bits, group)
                assert same_bits(to_f32(S), rounded(s, dt)), (dt, bits, group)
                assert same_bits(to_f32(B), rounded(bias, dt)), (dt, bits, group)
                for part, a in (("packed", P), ("scales", S), ("biases", B)):
                    arrays[f"{dt}_b{bits}_g{group}_{part}"] = stored(a)
                if dt == "bf16":                    # the scales before MLX rounds them to bf16
                    P32, S32, B32 = mx.quantize(X.astype(mx.float32), group_size=group, bits=bits)
                    assert np.array_equal(np.array(P32), np.array(P)), (bits, group)
                    assert same_bits(to_f32(S), rounded(np.array(S32), dt)), (bits, group)
                    arrays[f"{dt}_b{bits}_g{group}_scales32"] = np.array(S32)
                    arrays[f"{dt}_b{bits}_g{group}_biases32"] = np.array(B32)
    return arrays
