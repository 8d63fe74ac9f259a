# SPDX-License-Identifier: MIT
"""Attention of MLX queries over the library's sequences, in one call for the whole batch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, List, Optional, Tuple

from .. import _native as n
from ..rows import Array
from ..sequence import Sequence
from .arrays import Masks
from .pools import Pools

_BIDIRECTIONAL = 1
_LEAST, _MOST = 2.0**-126, 2.0**128 - 2.0**103  # of float32
_TILE = ctypes.sizeof(n.TileRef)


@dataclass
class Part:
    """Queries [first, first + count) of one sequence of the batch. The first one is at `position`."""

    index: int
    sequence: Sequence
    first: int
    count: int
    position: int
    padding: int  # columns of the mask before the sequence's first token


def check_scale(scale: Any) -> float:
    """The scale as the library has to be told it. It takes 0 for 1 / sqrt(d_k); the smallest number weighs all keys alike, too."""
    given = float(scale)
    if not abs(given) < _MOST:
        raise ValueError(f"scale is {given}; it must be a finite float32")
    return given if abs(given) >= _LEAST else _LEAST


@lru_cache(maxsize=64)
def _options(bidirectional: bool, scale: float, sinks: Optional[int] = None) -> n.AttendOptions:
    return n.AttendOptions(flags=_BIDIRECTIONAL if bidirectional else 0, scale=scale, sink_logits=sinks)


def attend(pools: Pools, parts: List[Part], q: Array, out: Array, form: int, scale: float, sinks: Optional[Array], masks: Optional[Masks],
           bidirectional: bool) -> None:
    """q: (sequence, head, query, channel), channels contiguous. out: the same axes, contiguous. form: of both."""
    if not parts:
        return
    options = _options(bidirectional, scale) if sinks is None else _options.__wrapped__(bidirectional, scale, sinks.ctypes.data)
    keep: List[Any] = []  # what the jobs point to
    at = q.ctypes.data, out.ctypes.data
    jobs = b"".join([_job(part, q, out, at, form, masks, keep) for part in parts])
    with pools.lock:
        n.check(n.lib.quire_attend(pools.workspace._get(), options, jobs, len(parts), n.JOB))


def _job(part: Part, q: Array, out: Array, at: Tuple[int, int], form: int, masks: Optional[Masks], keep: List[Any]) -> bytes:
    sequence = part.sequence
    pointer, shape, ring = sequence._get(), sequence.pool.plan.layers[0], sequence.ring
    length = n.lib.quire_seq_length(pointer)
    room = -(-length // n.PAGE_TOKENS)
    tiles = (n.TileRef * room)()
    n_tiles = n.lib.quire_seq_tiles(pointer, 0, tiles, room, _TILE)
    if n_tiles != room:
        _check_held(tiles, n_tiles, room, part.position - (ring.max_tokens - ring.sinks) + 1)
    to_sequence, to_head, to_token, _ = q.strides
    row = q.shape[3] * q.itemsize
    # 0 means dense to the library, so an axis of length 1 gets a stride too.
    q_strides = (to_token if q.shape[2] > 1 else q.shape[1] * row), (to_head if q.shape[1] > 1 else row)
    q_at = at[0] + part.index * to_sequence + part.first * to_token
    to_sequence, to_head, to_token, _ = out.strides
    out_at = at[1] + part.index * to_sequence + part.first * to_token
    mask = None if masks is None else masks.of(part.index, part.first, part.padding, length)
    keep.append((tiles, mask))
    return n.pack_job(0, 0, 0, ctypes.addressof(tiles), _TILE, n_tiles, q.shape[1], shape.n_kv_heads, shape.d_k, shape.d_v, part.count,
                      part.position, 0, ring.max_tokens, ring.sinks, form, form, q_at, *q_strides, out_at, to_token, to_head, 0, 0,
                      0 if mask is None else ctypes.addressof(mask))


def _check_held(tiles: Any, n_tiles: int, n_pages: int, lowest: int) -> None:
    """Raises if the first query sees position `lowest`, and its page was dropped. After the pages of the sinks, the held ones are the last."""
    page = max(lowest, 0) // n.PAGE_TOKENS
    behind = n_pages - page  # the page itself and those after it
    if behind > n_tiles or tiles[n_tiles - behind].first != page * n.PAGE_TOKENS:
        raise ValueError("the queries need keys that max_tokens has already dropped")
