# SPDX-License-Identifier: MIT
"""Moves rows between Quire caches and the arrays of an engine's cache: floats, codes bit for bit, rings."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import mlx.core as mx
import numpy as np

from ..rows import Array, MlxRows, codec_bits, codec_group, empty_mlx
from .arrays import NAMES, bits, look, new
from .cache import Cache
from .pools import pool_of

Side = Tuple[mx.array, mx.array, Optional[mx.array]]  # words, scales, biases: (sequence, head, column, ...)
_FILL = 4096  # rows in place of dropped ones that are appended at a time


def check_position(cache: Any, count: int, n_rows: int) -> None:
    """Refuses a cache of the engine whose position is not one of its rows."""
    if not 0 <= count <= n_rows:
        raise ValueError(f"the {type(cache).__name__} is at {count} tokens, but has {n_rows}")


def take_floats(ours: Cache, k: mx.array, v: mx.array, dtype: Any = None) -> None:
    """dtype: of the rows in the engine's cache, if these were converted."""
    ours.update_and_fetch(k, v)
    now = ours._settle()
    if dtype is not None:
        ours._now = now.changed(dtype=dtype)


def take_codes(ours: Cache, codecs: Tuple[str, str], dims: Tuple[int, int], sides: Tuple[Side, Side], dtype: Any) -> bool:
    """Fills a new cache with rows that are encoded already. False, and nothing is done, if its policy has other codecs."""
    n_sequences, heads, columns = sides[0][0].shape[:3]
    if any(x.shape[:3] != sides[0][0].shape[:3] for side in sides for x in side if x is not None) or len(ours._padding) not in (0, n_sequences):
        raise ValueError("keys, values and padding of the cache have different numbers of sequences, heads or tokens")
    shape = heads, *dims
    pool = pool_of(ours.pools, ours.settings, shape)
    layer = pool.plan.layer(0)
    if (layer.k, layer.v) != codecs or layer.sink_tokens:
        return False
    parts = [[None if x is None else bits(x) for x in side] for side in sides]
    mx.eval([x for side in parts for x in side if x is not None])
    arrays = [[None if x is None else look(x) for x in side] for side in parts]
    padding = ours._padding or (0,) * n_sequences
    sequences = []
    for i, first in enumerate(padding):
        rows = []
        for codec, side, looked in zip(codecs, sides, arrays):
            words, scales, biases = (None if a is None else np.ascontiguousarray(a[i, :, first:].swapaxes(0, 1)) for a in looked)
            assert words is not None and scales is not None
            rows.append(MlxRows(codec, words, scales, biases, NAMES[side[1].dtype]))
        sequence = pool.sequence() if first < columns else None
        if sequence is not None:
            sequence.append(*rows)
        sequences.append(sequence)
    ours._now = ours._now.changed(sequences=tuple(sequences), padding=padding, floors=(0,) * n_sequences, columns=columns, shape=shape,
                                  dtype=dtype)
    return True


def take_affine(ours: Cache, group: int, width: int, k: Any, v: Any) -> None:
    """k, v: words, scales and biases as mx.quantize gives them."""
    codec, dims = f"a{width}g{group}", (k[1].shape[3] * group, v[1].shape[3] * group)
    if not take_codes(ours, (codec, codec), dims, (k, v), k[1].dtype):
        # Without the second rounding of mx.dequantize in halves.
        dtype = k[1].dtype
        k, v = (mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), group, width) for w, s, b in (k, v))
        take_floats(ours, k, v, dtype)


def take_ring(ours: Cache, k: mx.array, v: mx.array, length: int) -> None:
    """k, v: what a ring of the engine holds, in the order of time. Positions keep counting, so the tokens that it has dropped are replaced
    by rows that no query will ever see."""
    n_rows = min(k.shape[2], length)
    keep, bound = ours.settings.sinks, ours.settings.max_tokens
    if n_rows < min(length, bound) or length < 0:
        raise ValueError(f"the RotatingKVCache has {n_rows} rows, but shows {min(length, bound)}")
    if length <= n_rows:
        take_floats(ours, k[..., :length, :], v[..., :length, :])
        return
    if keep:
        ours.update_and_fetch(k[..., :keep, :], v[..., :keep, :])
    missing = length - n_rows
    while missing:
        count = min(missing, _FILL)
        ours.update_and_fetch(*(mx.zeros((*x.shape[:2], count, x.shape[3]), x.dtype) for x in (k, v)))
        missing -= count
    ours.update_and_fetch(k[..., keep:n_rows, :], v[..., keep:n_rows, :])
    now = ours._settle()
    ours._now = now.changed(floors=(length - n_rows + keep,) * len(now.sequences))


def give_floats(ours: Cache) -> Tuple[mx.array, mx.array]:
    """All rows decoded; of a ring those that one of the engine would hold."""
    k, v = ours._decode("k"), ours._decode("v")
    bound, sinks = ours.settings.max_tokens, ours.settings.sinks
    if bound and ours._columns > bound:
        k, v = (mx.concatenate([x[..., :sinks, :], x[..., sinks - bound:, :]], axis=2) for x in (k, v))
    return k, v


def codecs_of(ours: Cache) -> Tuple[str, str]:
    """Of K and V. Raises if there are no codes that a cache of the engine could hold."""
    shape = ours._settle().shape
    if ours.settings.max_tokens or ours.empty() or shape is None or not any(ours._sequences):
        raise ValueError("a cache with a bound, or an empty one, cannot become a quantized cache")
    layer = pool_of(ours.pools, ours.settings, shape).plan.layer(0)
    if layer.sink_tokens:
        raise ValueError(f"{layer.k}/{layer.v}: the first tokens have another codec, which no quantized cache has")
    return layer.k, layer.v


def give_affine(ours: Cache) -> Tuple[int, int, Side, Side]:
    """Group, bits, K and V as mx.quantize would give them."""
    k, v = codecs_of(ours)
    if k != v or not k.startswith("a"):
        raise ValueError(f"{k}/{v}: a QuantizedKVCache needs the same affine codec for K and V")
    shape, group, width = ours._shape, codec_group(k), codec_bits(k)
    assert shape is not None
    if any(d % group or d * width % 32 for d in shape[1:]):
        raise ValueError(f"{k}: a QuantizedKVCache needs head sizes that are multiples of {group}, not {shape[1]} and {shape[2]}")
    scale = ours._dtype if ours._dtype in NAMES else mx.float32
    return group, width, give_codes(ours, "k", scale), give_codes(ours, "v", scale)


def give_codes(ours: Cache, side: str, scale: Any) -> Side:
    """The rows of one side as they are encoded; columns of padding are zeros. scale: the dtype of scales and biases."""
    with ours._guard():
        now = ours._settled()
        n_sequences, heads, columns, d = ours._rows_shape(side)
        first = next(s for s in now.sequences if s is not None)
        like = empty_mlx(first.codec(side), 0, heads, d, NAMES[scale])
        given: List[Optional[Array]] = [like.words, like.scales, like.biases]
        outs = [None if a is None else np.zeros((n_sequences, heads, columns, a.shape[2]), a.dtype) for a in given]
        for i, sequence in enumerate(now.sequences):
            if sequence is None:
                continue
            found = sequence.mlx(side, scale_dtype=NAMES[scale])
            for out, rows in zip(outs, (found.words, found.scales, found.biases)):
                if out is not None and rows is not None:
                    out[i, :, now.padding[i]:now.padding[i] + len(rows)] = rows.swapaxes(0, 1)
    words, scales, biases = outs
    assert words is not None and scales is not None
    return mx.array(words), new(scales, scale), None if biases is None else new(biases, scale)
