# SPDX-License-Identifier: MIT
"""Converts live caches of mlx-lm to Quire caches and back."""

from __future__ import annotations

from typing import Any, List, Optional

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from .._mlx.arrays import NAMES, bits, look, new
from .._mlx.pools import Pools, pool_of
from ..rows import Array, MlxRows, codec_bits, codec_group
from .cache import QuireKVCache

_FILL = 4096  # rows in place of dropped ones that are appended at a time


def from_mlx(cache: Any, policy: Optional[str] = None, *, index: int = 0, n_layers: int = 1, spare: int = 0,
             pools: Optional[Pools] = None) -> QuireKVCache:
    """A QuireKVCache with the tokens of a KVCache, QuantizedKVCache or RotatingKVCache. The original cache is not changed.

    policy None: the codec of a QuantizedKVCache, otherwise safe. The codes of a QuantizedKVCache are copied bit for bit if the policy uses
    the same codec for K and V; scales and biases in bf16 or f32 are rounded to f16.
    """
    if isinstance(cache, QuantizedKVCache):
        codec = f"a{cache.bits}g{cache.group_size}"
        ours = QuireKVCache(policy or codec, index=index, n_layers=n_layers, pools=pools)
        if cache.keys is not None and cache.offset:
            _take_codes(ours, cache, codec)
        return ours
    if isinstance(cache, RotatingKVCache):
        keep = min(cache.keep, cache.max_size - 1)
        ours = QuireKVCache(policy or "safe", max_tokens=cache.max_size, sinks=keep, spare=spare, index=index, n_layers=n_layers, pools=pools)
        if cache.keys is not None and cache.offset:
            _take_ring(ours, cache)
        return ours
    if not isinstance(cache, KVCache):
        raise TypeError(f"a {type(cache).__name__} cannot be converted to a Quire cache")
    ours = QuireKVCache(policy or "safe", index=index, n_layers=n_layers, pools=pools)
    if cache.keys is not None and cache.offset:
        ours.update_and_fetch(*(x[..., :cache.offset, :] for x in (cache.keys, cache.values)))
        ours._settle()
    return ours


def _take_codes(ours: QuireKVCache, cache: QuantizedKVCache, codec: str) -> None:
    both: Any = cache.keys, cache.values
    sides = [[x[..., :cache.offset, :] for x in side] for side in both]
    d_k, d_v = (side[1].shape[3] * cache.group_size for side in sides)
    n_sequences, heads = sides[0][0].shape[:2]
    dtype = sides[0][1].dtype
    pool = pool_of(ours.pools, ours.settings, (heads, d_k, d_v))
    layer = pool.plan.layer(0)
    if {layer.k, layer.v} != {codec} or layer.sink_tokens:
        # Other codecs: through floats, without the second rounding of mx.dequantize in halves.
        k, v = (mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), cache.group_size, cache.bits) for w, s, b in sides)
        ours.update_and_fetch(k, v)
        ours._now = ours._settle().changed(dtype=dtype)
        return
    parts = [[bits(x) for x in side] for side in sides]
    mx.eval(parts)
    arrays = [[np.ascontiguousarray(look(x)) for x in side] for side in parts]
    sequences = []
    for i in range(n_sequences):
        sequences.append(pool.sequence())
        sequences[i].append(*(_rows(codec, [a[i] for a in looked], NAMES[side[1].dtype]) for looked, side in zip(arrays, sides)))
    ours._now = ours._now.changed(sequences=tuple(sequences), padding=(0,) * n_sequences, floors=(0,) * n_sequences, columns=cache.offset,
                                  shape=(heads, d_k, d_v), dtype=dtype)


def _rows(codec: str, arrays: List[Array], scale_dtype: str) -> MlxRows:
    """Words, scales and biases (head, token, ...) of one sequence."""
    words, scales, biases = (a.transpose(1, 0, 2) for a in arrays)
    return MlxRows(codec, words, scales, biases, scale_dtype)


def _take_ring(ours: QuireKVCache, cache: RotatingKVCache) -> None:
    """Positions keep counting, so the tokens that the ring has dropped are replaced by rows that no query will ever see."""
    k, v = (cache._temporal_order(x) for x in (cache.keys, cache.values))
    length, n_rows = cache.offset, min(k.shape[2], cache.offset)
    keep, bound = ours.settings.sinks, ours.settings.max_tokens
    if n_rows < min(length, bound):
        raise ValueError(f"the RotatingKVCache has {n_rows} rows, but shows {min(length, bound)}")
    if length <= n_rows:
        ours.update_and_fetch(k[..., :length, :], v[..., :length, :])
        ours._settle()
        return
    if keep:
        ours.update_and_fetch(k[..., :keep, :], v[..., :keep, :])
    missing = length - n_rows
    while missing:
        count = min(missing, _FILL)
        fill = [mx.zeros((*x.shape[:2], count, x.shape[3]), x.dtype) for x in (k, v)]
        ours.update_and_fetch(*fill)
        missing -= count
    ours.update_and_fetch(k[..., keep:n_rows, :], v[..., keep:n_rows, :])
    now = ours._settle()
    ours._now = now.changed(floors=(length - n_rows + keep,) * len(now.sequences))


def to_mlx(cache: QuireKVCache, *, quantized: bool = False) -> Any:
    """A cache of mlx-lm with the same tokens, in the state it would have if it had processed them: KVCache, or RotatingKVCache if there is a
    bound.

    quantized=True: a QuantizedKVCache with the same codes bit for bit. K and V must have the same affine codec, and there must be no bound.
    """
    if not isinstance(cache, QuireKVCache):
        raise TypeError(f"expected a QuireKVCache, not a {type(cache).__name__}")
    if cache._settle().columns and not all(cache._sequences):
        raise ValueError("the cache has no rows")
    if quantized:
        return _give_codes(cache)
    bound = cache.settings.max_tokens
    theirs: Any = RotatingKVCache(bound, cache.settings.sinks) if bound else KVCache()
    if cache.empty():
        return theirs
    sides = [cache._decode(side) for side in "kv"]
    if bound and cache.offset > bound:
        recent, sinks = bound - cache.settings.sinks, cache.settings.sinks
        sides = [mx.concatenate([x[..., :sinks, :], x[..., -recent:, :]], axis=2) for x in sides]
    theirs.keys, theirs.values = sides
    theirs.offset = cache.offset
    if bound:
        theirs._idx = sides[0].shape[2]
    return theirs


def _give_codes(cache: QuireKVCache) -> QuantizedKVCache:
    if cache.settings.max_tokens or cache.empty():
        raise ValueError("a cache with a bound, or an empty one, cannot become a QuantizedKVCache")
    first = cache._sequences[0]
    assert first is not None
    k, v = first.codec("k"), first.codec("v")
    if k != v or not k.startswith("a"):
        raise ValueError(f"{k}/{v}: a QuantizedKVCache needs the same affine codec for K and V")
    shape, group = cache._shape, codec_group(k)
    assert shape is not None
    if any(d % group or d * codec_bits(k) % 32 for d in shape[1:]):
        raise ValueError(f"{k}: a QuantizedKVCache needs head sizes that are multiples of {group}, not {shape[1]} and {shape[2]}")
    theirs = QuantizedKVCache(group_size=group, bits=codec_bits(k))
    scale = cache._dtype if cache._dtype in NAMES else mx.float32
    for name, side in (("keys", "k"), ("values", "v")):
        found = [s.mlx(side, scale_dtype=NAMES[scale]) for s in cache._sequences if s is not None]
        words, scales, biases = (np.stack([getattr(r, part) for r in found]).transpose(0, 2, 1, 3) for part in ("words", "scales", "biases"))
        setattr(theirs, name, (mx.array(words), new(np.ascontiguousarray(scales), scale), new(np.ascontiguousarray(biases), scale)))
    theirs.offset = cache.offset
    return theirs
