# SPDX-License-Identifier: MIT
"""Shapes that plans, profiles, attention and sequences share: of a layer, of a model, of a ring and of a pool."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Sequence as Seq

from . import _native as n

#: What is wrong with plans and snapshots that do not fit a pool.
OTHER_LAYERS = "the plan is for other layers than those of the pool"
OTHER_PLAN = ("the sequence was saved with a plan that this pool does not have; snapshot_info() names its policy, and add_plan() takes a plan of that "
              "policy and of the layers of this pool")


@dataclass(frozen=True)
class Layer:
    """Shape of a layer. window: sliding window in tokens, 0 for full attention. v_in_k: V is the first d_v channels of K, only K is stored."""

    n_q_heads: int
    n_kv_heads: int
    d_k: int
    d_v: int
    window: int = 0
    v_in_k: bool = False


@dataclass(frozen=True)
class Ring:
    """A query at position p sees the rows j < sinks and p - (max_tokens - sinks) < j <= p. max_tokens 0: it sees all rows."""

    max_tokens: int
    sinks: int
    spare_tokens: int  #: number of rows kept in addition, so that a trim by that many tokens always works


@dataclass(frozen=True)
class PoolStats:
    """The memory of a pool in bytes, and counts since the pool was made."""

    budget_bytes: int
    used_bytes: int  #: pages in use, and pages reserved for a running conversion
    resident_bytes: int  #: pages in use and free pages kept for reuse
    peak_bytes: int  #: largest resident_bytes so far
    n_pages: int
    n_copies: int  #: pages copied because a fork wrote to them
    nan: int  #: values that were NaN and became 0
    saturated: int  #: values or scales that were too large
    recoded: int  #: imported rows that were encoded again


def geometry_of(layers: Seq[Layer]) -> n.Geometry:
    for i, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise TypeError(f"layers[{i}] is a {type(layer).__name__}, not a Layer")
    shapes = (n.Layer * len(layers))(*[
        n.Layer(*(n.u32(getattr(l, name), name) for name in ("n_q_heads", "n_kv_heads", "d_k", "d_v", "window")), int(l.v_in_k))
        for l in layers])
    geometry = n.Geometry(n_layers=len(layers), layers=shapes, layer_stride=ctypes.sizeof(n.Layer))  # ctypes keeps shapes with it
    return geometry
