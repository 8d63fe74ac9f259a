# SPDX-License-Identifier: MIT
"""Moves rows between Quire caches and the arrays of an engine's cache: floats, codes bit for bit, rings."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import mlx.core as mx
import numpy as np

from ..rows import Array, MlxRows, empty_mlx
from .arrays import NAMES, bits, look, new
from .cache import Cache

Side = Tuple[mx.array, mx.array, Optional[mx.array]]  # words, scales, biases: (sequence, head, column, ...)
_FILL = 4096  # rows in place of dropped ones that are appended at a time


def take_floats(ours: Cache, k: mx.array, v: mx.array) -> None:
    ours.update_and_fetch(k, v)
    ours._settle()


def take_codes(ours: Cache, codecs: Tuple[str, str], dims: Tuple[int, int], sides: Tuple[Side, Side]) -> bool:
    """Fills a new cache with rows that are encoded already. False, and nothing is done, if its policy has other codecs."""
    n_sequences, heads, columns = sides[0][0].shape[:3]
    ours._shape = heads, *dims
    pool = ours._pool()
    layer = pool.plan.layer(0)
    if (layer.k, layer.v) != codecs or layer.sink_tokens:
        return False
    parts = [[None if x is None else bits(x) for x in side] for side in sides]
    mx.eval([x for side in parts for x in side if x is not None])
    arrays = [[None if x is None else look(x) for x in side] for side in parts]
    if not ours._sequences:
        ours._sequences, ours._padding = [None] * n_sequences, [0] * n_sequences
    for i, padding in enumerate(ours._padding):
        if padding < columns:
            rows = []
            for codec, side, looked in zip(codecs, sides, arrays):
                given = [None if a is None else a[i, :, padding:].swapaxes(0, 1) for a in looked]
                assert given[0] is not None and given[1] is not None
                rows.append(MlxRows(codec, given[0], given[1], given[2], NAMES[side[1].dtype]))
            sequence = ours._sequences[i] = pool.sequence()
            sequence.append(*rows)
    ours._columns = columns
    ours._version += 1
    return True


def give_codes(ours: Cache, scale: Any) -> Tuple[Side, Side]:
    """The rows of a cache as they are encoded, K and V; columns of padding are zeros. scale: the dtype of scales and biases."""
    if ours.settings.max_tokens or ours.empty() or ours._shape is None:
        raise ValueError("a cache with a bound, or an empty one, has no codes that a cache of the engine could hold")
    ours._settle()
    return _give(ours, "k", scale), _give(ours, "v", scale)


def _give(ours: Cache, side: str, scale: Any) -> Side:
    n_sequences, heads, columns, d = ours._rows_shape(side)
    layer = ours._pool().plan.layer(0)
    made = empty_mlx(layer.k if side == "k" else layer.v, columns, heads, d, NAMES[scale])
    given: List[Optional[Array]] = [made.words, made.scales, made.biases]
    outs = [None if a is None else np.zeros((n_sequences, heads, columns, a.shape[2]), a.dtype) for a in given]
    for i, sequence in enumerate(ours._sequences):
        if sequence is None:
            continue
        found = sequence.mlx(side, scale_dtype=NAMES[scale])
        at = ours._padding[i]
        for out, rows in zip(outs, (found.words, found.scales, found.biases)):
            if out is not None and rows is not None:
                out[i, :, at:at + len(rows)] = rows.swapaxes(0, 1)
    words, scales, biases = outs
    assert words is not None and scales is not None
    return mx.array(words), new(scales, scale), None if biases is None else new(biases, scale)


def take_ring(ours: Cache, k: mx.array, v: mx.array, length: int) -> None:
    """k, v: what a ring of the engine holds, in the order of time. Positions keep counting, so the tokens that it has dropped are replaced
    by rows that no query will ever see."""
    n_rows = min(k.shape[2], length)
    keep = ours.settings.sinks
    if length <= n_rows:
        take_floats(ours, k[..., :length, :], v[..., :length, :])
        return
    if ours.settings.spare:
        raise ValueError("spare: this ring has dropped tokens already, so none of its tokens can be trimmed; convert it with spare=0")
    if keep:
        ours.update_and_fetch(k[..., :keep, :], v[..., :keep, :])
    missing = length - n_rows
    while missing:
        count = min(missing, _FILL)
        ours.update_and_fetch(*(mx.zeros((*x.shape[:2], count, x.shape[3]), x.dtype) for x in (k, v)))
        missing -= count
    take_floats(ours, k[..., keep:n_rows, :], v[..., keep:n_rows, :])


def give_floats(ours: Cache) -> Tuple[mx.array, mx.array]:
    """All rows decoded, those that a ring of the engine would hold."""
    k, v = ours._decode("k"), ours._decode("v")
    bound, sinks = ours.settings.max_tokens, ours.settings.sinks
    if bound and ours._columns > bound:
        k, v = (mx.concatenate([x[..., :sinks, :], x[..., sinks - bound:, :]], axis=2) for x in (k, v))
    return k, v
