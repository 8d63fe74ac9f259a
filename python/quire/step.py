# SPDX-License-Identifier: MIT
"""Steps: rows reserved in some sequences, filled layer by layer, then kept or discarded."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from types import TracebackType
from typing import Any, List, Optional, Sequence as Seq, Type

import numpy as np

from . import _native as n
from ._handle import Handle
from .attend import AnyMask, Call, Partial, per_sequence, queries
from .pool import Pool
from .rows import AnyRows, Array, address, dense, describe
from .sequence import Sequence


class Step(Handle):
    """At the end of a with block the step is committed; an exception in the block aborts it. Dropping a step aborts it."""

    def __init__(self, pool: Pool, sequences: Seq[Sequence], n_tokens: Seq[int]) -> None:
        count = len(sequences)
        if len(n_tokens) != count:
            raise ValueError(f"{len(n_tokens)} numbers of tokens were given for {count} sequences")
        self.pool = pool
        self.sequences = tuple(sequences)
        self.n_tokens = tuple(n.u32(t, "n_tokens") for t in n_tokens)
        out = ctypes.c_void_p()
        with ExitStack() as locks:
            self._lock_all(locks)
            locks.enter_context(pool._lock)
            pointers = (ctypes.c_void_p * count)(*[s._get() for s in self.sequences])
            numbers = (ctypes.c_uint32 * count)(*self.n_tokens)
            n.check(n.lib.quire_step_begin(ctypes.byref(out), pool._get(), pointers, numbers, count))
            super().__init__(out.value, n.lib.quire_step_abort, *self.sequences)
            pool._steps.add(self)
            for sequence in self.sequences:
                sequence._step = self._token

    def _lock_all(self, locks: ExitStack) -> None:
        for sequence in sorted(set(self.sequences), key=id):
            locks.enter_context(sequence._lock)

    # ------------------------------------------------------------------ end

    def commit(self) -> None:
        """Keeps the rows and ends the step. Raises QuireError with status EINVAL if a layer was not appended; the step then stays open."""
        with ExitStack() as locks:
            self._lock_all(locks)
            locks.enter_context(self._lock)
            n.check(n.lib.quire_step_commit(self._get()))
            self._ended()

    def abort(self) -> None:
        """Discards the rows and ends the step. Does nothing if the step has already ended."""
        with ExitStack() as locks:
            self._lock_all(locks)
            super().close()

    def close(self) -> None:
        self.abort()

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if self.closed:
            return
        try:
            if kind is None:
                self.commit()
        finally:
            self.abort()

    # --------------------------------------------------------------- append

    def append_rows(self, layer: int, index: int, k: AnyRows, v: Optional[AnyRows] = None, *,
                    dtype: Optional[str] = None) -> None:
        """Appends rows of one sequence of the step, in any form. Rows in the layer's own codec are stored without re-encoding."""
        shape = self.pool.shape(layer)
        tokens = self.n_tokens[index]
        k_rows, _ = describe(k, tokens, shape.n_kv_heads, shape.d_k, dtype, "k")
        v_rows = None
        if shape.v_in_k:
            if v is not None:
                raise ValueError("v was given, but V is part of K in this layer")
        elif v is None:
            raise ValueError("v is missing")
        else:
            v_rows, _ = describe(v, tokens, shape.n_kv_heads, shape.d_v, dtype, "v")
        with self._lock:
            n.check(n.lib.quire_step_append_rows(self._get(), layer, n.u32(index, "index"), k_rows, v_rows))

    def append(self, layer: int, k: Array, v: Optional[Array] = None, *, dtype: Optional[str] = None) -> None:
        """Appends rows of all sequences, one sequence after the other: (all tokens, KV head, channel)."""
        total = sum(self.n_tokens)
        for array, what in ((k, "k"), (v, "v")):
            if array is not None and not isinstance(array, np.ndarray):
                raise TypeError(f"{what} is a {type(array).__name__}, not a numpy array")
            if array is not None and array.shape[:1] != (total,):
                raise ValueError(f"{what} has shape {array.shape}, but the step has {total} tokens")
        first = 0
        for index, tokens in enumerate(self.n_tokens):
            end = first + tokens
            self.append_rows(layer, index, k[first:end], None if v is None else v[first:end], dtype=dtype)
            first = end

    # --------------------------------------------------------------- attend

    def attend(self, layer: int, q: Array, *, out: Optional[Array] = None, masks: Optional[Seq[AnyMask]] = None,
               partial: bool = False, **options: Any) -> Any:
        """Attention of the step's tokens, which also see the rows of the step. Append the layer first.

        q: contiguous float32 (all tokens, query head, d_k), one sequence after the other. The options are those of Pool.attend().
        """
        shape = self.pool.shape(layer)
        call = Call(shape, partial=partial, **options)
        total = sum(self.n_tokens)
        q_at = dense(queries(q, shape), (total, shape.n_q_heads, shape.d_k), "q")
        if out is None:
            out = np.empty((total, shape.n_q_heads, shape.d_v), np.float32)
        out_at = dense(out, (total, shape.n_q_heads, shape.d_v), "out", writes=True)
        given: List[AnyMask] = per_sequence(masks, len(self.sequences), "masks")
        result = Partial(out, np.empty(out.shape[:2], np.float32), np.empty(out.shape[:2], np.float32)) if partial else None
        largest = None if result is None else address(result.max)
        total_at = None if result is None else address(result.sum)
        c_masks = (n.Mask * len(given))(*[call.mask(m, t) for m, t in zip(given, self.n_tokens)]) if masks is not None else None
        with self._lock:
            n.check(n.lib.quire_step_attend_with(self._get(), layer, q_at, out_at, largest, total_at, call.options, c_masks))
        return out if result is None else result
