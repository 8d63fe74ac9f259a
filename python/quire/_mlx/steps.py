# SPDX-License-Identifier: MIT
"""Appending to sequences, and what they hold."""

from __future__ import annotations

import ctypes
from typing import List, Tuple

from .. import _native as n
from ..sequence import Sequence


def append_rows(sequences: List[Sequence], counts: List[int], given: List[Tuple[n.Rows, n.Rows]]) -> None:
    """A complete step of one layer. Using quire.Step would cost as much again as encoding a token."""
    step, count = ctypes.c_void_p(), len(sequences)
    pointers = (ctypes.c_void_p * count)(*[s._get() for s in sequences])
    n.check(n.lib.quire_step_begin(ctypes.byref(step), sequences[0].pool._get(), pointers, (ctypes.c_uint32 * count)(*counts), count))
    try:
        for i, (k, v) in enumerate(given):
            n.check(n.lib.quire_step_append_rows(step, 0, i, k, v))
        n.check(n.lib.quire_step_commit(step))
    except Exception:
        n.lib.quire_step_abort(step)
        raise


def held(sequence: Sequence) -> List[Tuple[int, int]]:
    """Ranges (first, count) of tokens that a sequence still holds and that are visible."""
    length, ring = sequence.length, sequence.ring
    if not ring.max_tokens or length <= ring.max_tokens:
        return [(0, length)]
    recent = ring.max_tokens - ring.sinks
    return [(0, ring.sinks), (length - recent, recent)] if ring.sinks else [(length - recent, recent)]
