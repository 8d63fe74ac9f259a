# SPDX-License-Identifier: MIT
"""Appending to sequences, and what they hold."""

from __future__ import annotations

import ctypes
import weakref
from typing import List, Sequence as Seq, Tuple

from .. import _native as n
from ..sequence import Sequence
from .guard import process

_STATUS_BUSY = "EBUSY"


class OpenStep:
    """The step of the library that a cache has open, if it has one.

    An interrupt can come between any two calls into the library. What is open is therefore stored here before the library opens it, and
    whether it is still open is asked of the sequences, never remembered: an interrupt right after a commit would leave the memory wrong.
    """

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        self._sequences: List[Sequence] = []
        # A sequence must not be destroyed before its step. The garbage collector destroys what a cycle holds in any order, so the
        # sequences of an open step are held by the finalizer, which no cycle contains.
        weakref.finalize(self, _abort, self._handle, self._sequences, process()).atexit = False

    def append(self, sequences: Seq[Sequence], counts: Seq[int], given: Seq[Tuple[n.Rows, n.Rows]]) -> None:
        """A complete step of one layer. Using quire.Step would cost as much again as encoding a token."""
        count = len(sequences)
        pointers = (ctypes.c_void_p * count)(*[s._get() for s in sequences])
        numbers = (ctypes.c_uint32 * count)(*counts)
        pool, handle = sequences[0].pool._get(), self._handle
        handle.value = None
        self._sequences[:] = sequences
        n.check(n.lib.quire_step_begin(ctypes.byref(handle), pool, pointers, numbers, count))
        try:
            for i, (k, v) in enumerate(given):
                n.check(n.lib.quire_step_append_rows(handle, 0, i, k, v))
            n.check(n.lib.quire_step_commit(handle))
        except Exception:
            self.abort()
            raise
        self._sequences.clear()

    def abort(self) -> None:
        """Discards the rows of an open step. Does nothing if none is open."""
        _abort(self._handle, self._sequences, process())


def _abort(handle: ctypes.c_void_p, sequences: List[Sequence], of: int) -> None:
    if of == process() and any(_is_open(s) for s in sequences):
        n.lib.quire_step_abort(handle)
    sequences.clear()


def _is_open(sequence: Sequence) -> bool:
    """True if the sequence is in an open step: then the library refuses even a trim that would remove nothing."""
    pointer = sequence._pointer
    return bool(pointer) and n.status_name(n.lib.quire_seq_trim(pointer, n.lib.quire_seq_length(pointer))) == _STATUS_BUSY


def held(sequence: Sequence) -> List[Tuple[int, int]]:
    """Ranges (first, count) of tokens that a sequence still holds and that are visible."""
    length, ring = sequence.length, sequence.ring
    if not ring.max_tokens or length <= ring.max_tokens:
        return [(0, length)]
    recent = ring.max_tokens - ring.sinks
    return [(0, ring.sinks), (length - recent, recent)] if ring.sinks else [(length - recent, recent)]


def pages_of(sequence: Sequence) -> List[int]:
    """The addresses of the pages that a sequence holds."""
    pointer = sequence._get()
    room = n.lib.quire_seq_tiles(pointer, 0, None, 0, 0)
    tiles = (n.TileRef * room)()
    n.lib.quire_seq_tiles(pointer, 0, tiles, room, ctypes.sizeof(n.TileRef))
    return [tile.k for tile in tiles]
