# SPDX-License-Identifier: MIT
"""What attention over coded rows should give, in double precision, without anything of the library."""
import numpy as np


def affine(x, bits, group, scale_dtype=np.float16):
    """Rows as MLX's affine quantization keeps them, decoded; a last group may be shorter. Codes use the unrounded scale and bias."""
    x = np.asarray(x, np.float32)
    out = np.empty_like(x)
    top = np.float32(2**bits - 1)
    for at in range(0, x.shape[-1], group):
        w = x[..., at:at + group]
        hi, lo = w.max(-1, keepdims=True), w.min(-1, keepdims=True)
        scale = np.maximum((hi - lo) / top, np.float32(1e-7))
        low_is_larger = np.abs(lo) > np.abs(hi)
        edge = np.where(low_is_larger, lo, hi)
        scale = np.where(low_is_larger, scale, -scale)
        steps = np.rint(edge / scale)
        scale = np.where(steps != 0, edge / np.where(steps != 0, steps, 1), scale)
        bias = np.where(steps != 0, edge, np.float32(0))
        codes = np.clip(np.rint((w - bias) / scale), 0, top)
        out[..., at:at + group] = codes * scale.astype(scale_dtype).astype(np.float32) + bias.astype(scale_dtype).astype(np.float32)
    return out


def sees(n_queries, n_keys, max_tokens=0, sinks=0):
    """Which keys each query sees: causal, within a bound that keeps the first tokens."""
    p, j = n_keys - n_queries + np.arange(n_queries)[:, None], np.arange(n_keys)[None]
    seen = j <= p
    return seen & ((j < sinks) | (j > p - (max_tokens - sinks))) if max_tokens else seen


def attention(q, k, v, scale, mask=None, sinks=None):
    """Arrays (batch, head, token, channel); mask: bool or additive, broadcast to (batch, query head, query, key)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    scores = np.einsum("bhld,bhsd->bhls", q, np.repeat(k, repeat, 1)) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks, np.float64)[None, :, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[None, :, None, None] - top)
    return np.einsum("bhls,bhsd->bhld", weights / total, np.repeat(v, repeat, 1))


def error(got, want):
    """Largest distance of an output row, in units of the row."""
    return float((np.linalg.norm(np.asarray(got, np.float64) - want, axis=-1) / np.linalg.norm(want, axis=-1)).max())
