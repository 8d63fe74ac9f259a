# SPDX-License-Identifier: MIT
"""Attention of MLX queries over the library's sequences, in one call for the whole batch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, List, Optional

from .. import _native as n
from ..rows import Array
from ..sequence import Sequence
from .arrays import Masks
from .pools import Pools

_BIDIRECTIONAL = 1


@dataclass
class Part:
    """Queries [first, first + count) of one sequence of the batch. The first one is at `position`."""

    index: int
    sequence: Sequence
    first: int
    count: int
    position: int
    padding: int  # columns of the mask before the sequence's first token


def attend(pools: Pools, parts: List[Part], q: Array, out: Array, form: int, scale: float, sinks: Optional[Array], masks: Optional[Masks],
           bidirectional: bool) -> None:
    """q: (sequence, head, query, channel), channels contiguous. out: the same axes, contiguous. form: of both."""
    if not parts:
        return
    options = n.AttendOptions(flags=_BIDIRECTIONAL if bidirectional else 0, scale=scale,
                              sink_logits=None if sinks is None else sinks.ctypes.data)
    jobs = (n.AttendJob * len(parts))()
    keep: List[Any] = []
    for job, part in zip(jobs, parts):
        keep.append(_fill(job, part, q, out, form, masks))
    with pools.lock:
        n.check(n.lib.quire_attend(pools.workspace._get(), options, jobs, len(parts), ctypes.sizeof(n.AttendJob)))


def _fill(job: n.AttendJob, part: Part, q: Array, out: Array, form: int, masks: Optional[Masks]) -> Any:
    sequence = part.sequence
    pointer, shape, ring = sequence._get(), sequence.pool.plan.layers[0], sequence.ring
    length = n.lib.quire_seq_length(pointer)
    room = -(-length // n.PAGE_TOKENS)
    tiles = (n.TileRef * room)()
    job.tiles, job.tile_stride = tiles, ctypes.sizeof(n.TileRef)
    job.n_tiles = n.lib.quire_seq_tiles(pointer, 0, tiles, room, job.tile_stride)
    job.n_q_heads, job.n_kv_heads, job.d_k, job.d_v = q.shape[1], shape.n_kv_heads, shape.d_k, shape.d_v
    job.n_queries, job.first_query = part.count, part.position
    job.ring_tokens, job.ring_sinks = ring.max_tokens, ring.sinks
    job.q_form = job.out_form = form
    s, h, t, _ = q.strides
    row = q.shape[3] * q.itemsize
    job.q = q.ctypes.data + part.index * s + part.first * t
    # 0 means dense to the library, so an axis of length 1 gets a stride too.
    job.q_token_stride, job.q_head_stride = (t if q.shape[2] > 1 else q.shape[1] * row), (h if q.shape[1] > 1 else row)
    s, h, t, _ = out.strides
    job.out = out.ctypes.data + part.index * s + part.first * t
    job.out_token_stride, job.out_head_stride = t, h
    if masks is None:
        return tiles
    mask = masks.of(part.index, part.first, part.padding, length)
    job.mask = ctypes.pointer(mask)
    return tiles, mask
