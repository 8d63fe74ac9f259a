# SPDX-License-Identifier: MIT
"""attend.gold: attention with every option in extended precision, independent of Quire's code.

80-bit arithmetic rounded once to float64, so the bytes do not depend on the machine's vector
code. Where mx.fast.scaled_dot_product_attention can express the case it must agree too.
"""
import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from goldfile import text

f32, wide = np.float32, np.longdouble
COLUMNS = ("name n_seq Hq Hkv L S Dk Dv scale causal window ring_max ring_sinks softcap "
           "alibi sinks mask mask_heads v_in_k").split()


@dataclass
class Case:
    name: str
    Hq: int
    Hkv: int
    L: int
    S: int
    Dk: int
    Dv: int = 0                 # 0: as Dk
    lens: tuple = ()            # empty: one sequence of S keys
    scale: float = 0            # 0: 1/sqrt(Dk)
    causal: int = 1
    window: int = 0
    ring_max: int = 0
    ring_sinks: int = 0
    softcap: float = 0
    alibi: int = 0
    sinks: int = 0
    mask: int = 0               # 0 none, 1 one for all heads, 2 one per head
    v_in_k: int = 0

    def __post_init__(self):
        self.Dv = self.Dv or self.Dk
        self.lens = np.array(self.lens or (self.S,), np.int32)
        self.n_seq = len(self.lens)
        self.scale = f32(self.scale or 1 / math.sqrt(self.Dk))
        self.softcap = f32(self.softcap)
        self.mask_heads = (0, 1, self.Hq)[self.mask]
        self.mask = int(self.mask > 0)
        assert self.lens.max() <= self.S and self.lens.min() >= self.L


CASES = [
    Case("one_key", 2, 2, 1, 1, 64),
    Case("gqa1", 2, 2, 1, 33, 64),
    Case("gqa2", 4, 2, 3, 50, 64),
    Case("gqa3", 9, 3, 2, 37, 64),
    Case("gqa4", 4, 1, 2, 64, 128),
    Case("gqa8", 8, 1, 2, 100, 64),
    Case("gqa16", 16, 1, 1, 65, 64),
    Case("long", 4, 1, 1, 200, 64),
    Case("prefill", 1, 1, 40, 40, 64),
    Case("prefill_tail", 2, 1, 9, 90, 64),
    Case("both_ways", 4, 2, 3, 48, 64, causal=0),
    Case("both_ways_ragged", 2, 1, 3, 40, 64, causal=0, lens=(40, 3, 17)),
    Case("ragged", 2, 1, 2, 70, 64, lens=(70, 2, 33, 64)),
    Case("ragged_decode", 8, 1, 1, 129, 64, lens=(129, 128, 1)),
    Case("window", 4, 2, 4, 80, 64, window=20),
    Case("window_one", 2, 2, 4, 30, 64, window=1),
    Case("window_wide", 2, 1, 4, 20, 64, window=64),
    Case("window_both_ways", 2, 1, 5, 40, 64, window=11, causal=0),
    Case("ring", 4, 2, 1, 100, 64, ring_max=32, ring_sinks=4),
    Case("ring_prefill", 1, 1, 20, 60, 64, ring_max=16, ring_sinks=4),
    Case("ring_no_sinks", 2, 2, 3, 50, 64, ring_max=20),
    Case("ring_not_full", 2, 1, 2, 20, 64, ring_max=32, ring_sinks=4),
    Case("ring_ragged", 2, 1, 2, 90, 64, ring_max=40, ring_sinks=4, lens=(90, 39, 41, 2)),
    Case("mask", 4, 2, 4, 45, 64, mask=1),
    Case("mask_both_ways", 2, 1, 6, 45, 64, mask=1, causal=0),
    Case("mask_heads", 4, 2, 4, 45, 64, mask=2),
    Case("mask_ragged", 2, 1, 3, 40, 64, mask=2, lens=(40, 21)),
    Case("softcap", 4, 2, 4, 60, 64, softcap=5.0, scale=0.5),
    Case("softcap_50", 2, 1, 2, 40, 256, softcap=50.0),
    Case("alibi", 8, 2, 2, 60, 64, alibi=1),
    Case("alibi_both_ways", 4, 2, 4, 30, 64, alibi=1, causal=0),
    Case("sinks", 8, 2, 2, 60, 64, sinks=1),
    Case("sinks_masked", 4, 2, 4, 45, 64, sinks=1, mask=2),
    Case("sharp", 4, 2, 3, 60, 64, scale=1.0),
    Case("d80", 4, 2, 3, 33, 80),
    Case("d96", 4, 2, 3, 33, 96),
    Case("d128", 4, 2, 3, 40, 128),
    Case("d256", 2, 1, 2, 40, 256),
    Case("dk192_dv128", 4, 2, 3, 30, 192, 128),
    Case("dk128_dv64", 2, 1, 3, 30, 128, 64),
    Case("latent", 4, 1, 1, 12, 576, 512, v_in_k=1, scale=1 / math.sqrt(192)),
    Case("latent_prefill", 2, 1, 2, 9, 576, 512, v_in_k=1),
    Case("window_softcap", 2, 1, 3, 50, 256, window=16, softcap=30.0, scale=0.3),
    Case("window_sinks", 8, 1, 2, 60, 64, window=24, sinks=1),
    Case("ring_sinks_alibi", 4, 2, 3, 70, 64, ring_max=24, ring_sinks=4, sinks=1, alibi=1),
    Case("ring_window", 4, 2, 3, 80, 64, ring_max=48, ring_sinks=4, window=20),
    Case("everything", 6, 2, 2, 60, 96, 64, lens=(60, 31), window=40, ring_max=48, ring_sinks=4,
         softcap=8.0, alibi=1, sinks=1, mask=2),
]


def bias_of(c, rng):
    """Slopes, sink logits and additive mask, None where the case has none."""
    alibi = np.array([2.0 ** (-8 * (h + 1) / c.Hq) for h in range(c.Hq)], f32) if c.alibi else None
    sinks = rng.standard_normal(c.Hq).astype(f32) if c.sinks else None
    mask = None
    if c.mask:
        mask = rng.standard_normal((c.n_seq, c.mask_heads, c.L, c.S)).astype(f32)
        mask[rng.random(mask.shape) < .3] = -np.inf
        mask[0, 0, 1] = -np.inf                                 # a row that sees nothing
        mask[-1, -1, -1, :c.S // 2] = -np.inf
    return alibi, sinks, mask


def visible(c):
    """Which key j each query at position p may see, bool [B,1,L,S]."""
    n = c.lens.reshape(-1, 1, 1, 1).astype(np.int64)
    p, j = n - c.L + np.arange(c.L).reshape(1, 1, -1, 1), np.arange(c.S).reshape(1, 1, 1, -1)
    ok = j < n
    if c.causal:
        ok = ok & (j <= p)
    if c.window:
        ok = ok & (j > p - c.window)
    if c.ring_max:
        ok = ok & ((j < c.ring_sinks) | (j > p - (c.ring_max - c.ring_sinks)))
    return np.broadcast_to(ok, (c.n_seq, 1, c.L, c.S)), p, j


def added(c, alibi, mask):
    """All additive terms, -inf where nothing may be seen, [B,Hq,L,S]."""
    ok, p, j = visible(c)
    bias = np.where(ok, wide(0), -wide(np.inf)) + np.zeros((1, c.Hq, 1, 1), wide)
    if alibi is not None:
        bias = bias + alibi.astype(wide).reshape(1, -1, 1, 1) * (j - p).astype(wide)
    if mask is not None:
        bias = bias + mask.astype(wide)
    return bias


def attend(c, q, k, v, alibi, sinks, mask):
    """out [B,L,Hq,Dv] and lse [B,L,Hq] in float64. Query head h reads KV head h // (Hq/Hkv)."""
    head = np.arange(c.Hq) // (c.Hq // c.Hkv)
    q, k, v = (a.astype(wide) for a in (q, k[:, :, head], v[:, :, head]))
    s = wide(c.scale) * np.einsum("blhd,bshd->bhls", q, k)
    if c.softcap:
        s = wide(c.softcap) * np.tanh(s / wide(c.softcap))
    s = s + added(c, alibi, mask)
    sink = (np.full(c.Hq, -np.inf) if sinks is None else sinks).astype(wide).reshape(1, -1, 1, 1)
    top = np.maximum(s.max(-1, keepdims=True), sink)
    safe = np.where(np.isfinite(top), top, wide(0))             # a row that sees nothing
    e = np.exp(s - safe)
    den = e.sum(-1, keepdims=True) + np.exp(sink - safe)
    out = np.einsum("bhls,bshd->blhd", e / np.where(den == 0, wide(1), den), v)
    with np.errstate(divide="ignore"):
        lse = safe + np.log(den)
    return out.astype(np.float64), lse[..., 0].swapaxes(1, 2).astype(np.float64)


def check_mlx(c, q, k, v, alibi, sinks, mask, out):
    """The largest difference from MLX in float32; 0 for a softcap, which it does not have."""
    if c.softcap:
        return 0.0
    bias = added(c, alibi, mask)
    seen = np.isfinite(bias.max(-1)).swapaxes(1, 2)             # MLX: mean of V for the others
    Q, K, V = (mx.array(np.ascontiguousarray(a.swapaxes(1, 2))) for a in (q, k, v))
    got = mx.fast.scaled_dot_product_attention(
        Q, K, V, scale=float(c.scale), mask=mx.array(bias.astype(f32)),
        sinks=None if sinks is None else mx.array(sinks))
    diff = np.abs(np.array(got).swapaxes(1, 2) - out)[seen].max()
    assert diff < 1e-5, (c.name, diff)
    return diff


def make():
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(3)
    pool = rng.standard_normal(25 * 1024).astype(f32)     # inputs are slices of it: a small file
    start = 0

    def draw(*shape):
        nonlocal start
        n = math.prod(shape)
        start = (start + 16 * 67) % (len(pool) - n) // 16 * 16
        return pool[start:start + n].reshape(shape)

    def line(c):
        return "\t".join(f"{v:.9g}" if isinstance(v, np.floating) else str(v)
                         for v in (getattr(c, name) for name in COLUMNS))
    arrays = {"index": text(["\t".join(COLUMNS)] + [line(c) for c in CASES]), "pool": pool}
    worst, checked = 0.0, 0
    for c in CASES:
        q = draw(c.n_seq, c.L, c.Hq, c.Dk)
        k = draw(c.n_seq, c.S, c.Hkv, c.Dk)
        v = k[..., :c.Dv] if c.v_in_k else draw(c.n_seq, c.S, c.Hkv, c.Dv)
        alibi, sinks, mask = bias_of(c, rng)
        out, lse = attend(c, q, k, v, alibi, sinks, mask)
        worst = max(worst, check_mlx(c, q, k, v, alibi, sinks, mask, out))
        checked += not c.softcap
        parts = dict(q=q, k=k, v=None if c.v_in_k else v, lens=c.lens, alibi=alibi, sinks=sinks,
                     mask=mask, out=out, lse=lse)
        arrays.update({f"{c.name}_{part}": a for part, a in parts.items() if a is not None})
    print(f"  attend: {checked} of {len(CASES)} cases also by MLX, largest difference {worst:.1e}")
    return arrays
