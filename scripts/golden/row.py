# SPDX-License-Identifier: MIT
"""row.gold: Quire's own row codecs r2..r6, r8 and tq2..tq4, in numpy float32.

A second implementation: it shares no code with the library. Every operation is one rounded
float32 operation, nothing is fused.
"""
import math

import numpy as np

from goldfile import text

f32 = np.float32
SIZES = (64, 80, 128, 256, 576)
MAX = {2: "1.51042", 3: "2.15195", 4: "2.73259", 5: "3.26073", 6: "3.74410"}
HALF = {2: (38, 127), 3: (14, 45, 79, 127), 4: (6, 18, 31, 44, 58, 75, 96, 127),
        5: (3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127),
        6: (1, 3, 6, 8, 10, 13, 15, 17, 20, 22, 24, 27, 30, 32, 35, 38, 40, 43, 46, 49, 53, 56,
            60, 64, 68, 73, 78, 84, 91, 99, 110, 127)}
TRIES = tuple(map(f32, (0.75, 0.875, 1, 1.125, 1.25)))


# ---------------------------------------------------------------- tables
def lloyd_max(n):
    """Positive half of the n-level Lloyd-Max table of N(0,1), to convergence in float64."""
    def density(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def above(x):
        return math.erfc(x / math.sqrt(2)) / 2
    t, change = [(i + .5) * 7 / n for i in range(n // 2)], 1.0
    while change > 1e-12:
        cut = [0.0] + [(a + b) / 2 for a, b in zip(t, t[1:])]
        p, q = [density(c) for c in cut] + [0.0], [above(c) for c in cut] + [0.0]
        new = [(p[i] - p[i + 1]) / (q[i] - q[i + 1]) for i in range(n // 2)]
        change = max(abs(a - b) for a, b in zip(new, t))
        t = new
    return t


def check_tables():
    for bits, half in HALF.items():
        t = lloyd_max(1 << bits)
        assert tuple(round(x / t[-1] * 127) for x in t) == half, bits
        assert f"{t[-1]:.5f}" == MAX[bits], bits


def table(bits):
    half = np.array(HALF[bits], f32)
    return np.concatenate([-half[::-1], half])


# ---------------------------------------------------------------- rotation and sums
def signs(d):
    """-1 where bit 0 of the i-th splitmix64 output is 1."""
    mask, state, out = (1 << 64) - 1, 0x9E3779B97F4A7C15, []
    for _ in range(d):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        out.append(-1 if z & 1 else 1)
    return np.array(out, f32)


def rotate(x):
    """x [d] to H(S x)/sqrt(n), n the largest power of two that divides d."""
    d = len(x)
    n = d & -d
    y, h = x * signs(d), 1
    while h < n:
        v = y.reshape(-1, 2, h)
        y = np.stack([v[:, 0] + v[:, 1], v[:, 0] - v[:, 1]], 1).reshape(d)
        h *= 2
    return y * (f32(1) / np.sqrt(f32(n)))


def lane_sum(a):
    """16 strided lanes one after the other, then a tree."""
    lanes = np.zeros(16, f32)
    for part in a.reshape(-1, 16):
        lanes = lanes + part
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half:2 * half]
    return lanes[0]


def dot(a, b):
    return lane_sum(a * b)


# ---------------------------------------------------------------- codecs
class Fallback(Exception):
    """The row has no usable scale: scale 0, codes of the smallest positive entry."""


def good(s):
    if not (np.isfinite(s) and s > 0):
        raise Fallback
    return s


def to_f16(s):
    return np.float16(min(s, f32(65504)))


def nearest(v, t):
    """Index of the table entry: thresholds strictly below v, so a tie takes the lower code."""
    return (v[:, None] > (t[:-1] + t[1:]) / f32(2)).sum(1)


def first_scale(x, bits):
    return good(np.sqrt(lane_sum(x * x) / f32(len(x))) * (f32(MAX[bits]) / f32(127)))


def best_scale(x, t, bits):
    r, best, kept = first_scale(x, bits), None, None
    for f in TRIES:
        s = good(f * r)
        for _ in range(2):
            c = t[nearest(x / s, t)]
            s = good(dot(x, c) / dot(c, c))
        rest = x - s * c
        e = dot(rest, rest)
        if best is None or e < best:
            best, kept = e, s
    return kept


def encode_r(x, bits, side):
    t = table(bits)
    codes = nearest(x / best_scale(x, t, bits), t)
    c = t[codes]
    xc = good(dot(x, c))
    s = xc / dot(c, c) if side == "K" and bits >= 4 else dot(x, x) / xc
    return codes, to_f16(good(s))


def encode_tq(x, bits):
    t = table(bits)
    codes = nearest(x / first_scale(x, bits), t)
    c = t[codes]
    return codes, to_f16(good(np.sqrt(dot(x, x)) / np.sqrt(dot(c, c))))


def encode_r8(x):
    s = to_f16(np.abs(x).max() / f32(127))
    if s == 0:
        return np.full(len(x), 128), s
    return np.clip(np.rint(x / f32(s)), -127, 127) + 128, s


def encode(x, codec, side):
    """Codes u8 [R,d] and f16 scales [R] of rows x."""
    codes, scales = np.empty(x.shape, np.uint8), np.empty(len(x), np.float16)
    for i, row in enumerate(x):
        y = rotate(row)
        bits = int(codec[-1])
        try:
            if codec == "r8":
                codes[i], scales[i] = encode_r8(y)
            elif codec.startswith("tq"):
                codes[i], scales[i] = encode_tq(y, bits)
            else:
                codes[i], scales[i] = encode_r(y, bits, side)
        except Fallback:
            codes[i], scales[i] = (1 << bits) // 2, 0
    return codes, scales


def rows(rng, d):
    n = rng.standard_normal
    channels = np.where(np.isin(np.arange(d), rng.permutation(d)[:3]), 40, 1)
    return {"normal": n((2, d)), "outlier_channels": n((2, d)) * channels,
            "constant": np.full((1, d), 1.7), "zero": np.zeros((1, d)), "tiny": n((1, d)) * 1e-6,
            "small": n((1, d)) * 2e-5, "huge": n((1, d)) * 3e4, "one_hot": np.eye(1, d, 5),
            "saturating": n((1, d)) * 3e7}                   # scales past 65504


def make():
    check_tables()
    rng = np.random.default_rng(5)
    arrays = {"families": None}
    for d in SIZES:
        fam = rows(rng, d)
        arrays["families"] = text(name for name, x in fam.items() for _ in x)
        x = arrays[f"x_d{d}"] = np.concatenate(list(fam.values())).astype(f32)
        for codec in ("r2", "r3", "r4", "r5", "r6", "r8", "tq2", "tq3", "tq4"):
            for side in ("K",) if codec.startswith("tq") else ("K", "V"):
                codes, scales = encode(x, codec, side)
                arrays[f"{codec}_{side}_d{d}_codes"] = codes
                arrays[f"{codec}_{side}_d{d}_scales"] = scales
    return arrays
