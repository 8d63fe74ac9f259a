# SPDX-License-Identifier: MIT
"""Sequences: the tokens of one conversation."""

from __future__ import annotations

import ctypes
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, List, Optional, Sequence as Seq, Tuple, Union

import numpy as np

from . import _native as n
from ._handle import Handle
from ._stream import Reader, Writer
from .attend import AnyMask
from .errors import QuireError
from .plan import Plan
from .pool import Pool
from .rows import AnyRows, Array, MlxRows, NativeRows, describe, empty_mlx, numpy_dtype, side_of

if TYPE_CHECKING:
    from .step import Step

_NEW = 1  # QUIRE_CONVERT_NEW


@dataclass(frozen=True)
class Ring:
    """A query at position p sees the rows j < sinks and p - (max_tokens - sinks) < j <= p. max_tokens 0: it sees all rows."""

    max_tokens: int
    sinks: int
    spare_tokens: int  #: number of rows kept in addition, so that a trim by that many tokens always works


@dataclass(frozen=True)
class SnapshotInfo:
    policy: str
    plan_fingerprint: int
    length: int
    ring: Ring


def snapshot_info(source: Union[bytes, BinaryIO]) -> SnapshotInfo:
    """The header of a saved sequence. A file is read from its current position; seek back to that position before you load it."""
    got = n.SnapshotInfo()
    reader = Reader(source)
    reader.check(n.lib.quire_snapshot_read_info(got, reader.callback, None))
    return SnapshotInfo(n.text(got.policy), got.plan_fingerprint, got.length, Ring(got.max_tokens, got.sinks, got.spare_tokens))


class Sequence(Handle):
    """The tokens of one conversation. It keeps its pool alive. Calls from several threads wait for each other."""

    def __init__(self, pool: Pool, *, max_tokens: int = 0, sinks: int = 0, spare_tokens: int = 0) -> None:
        options = n.seq_options(max_tokens, sinks, spare_tokens)
        out = ctypes.c_void_p()
        with pool._lock:
            n.check(n.lib.quire_seq_create(ctypes.byref(out), pool._get(), options))
            self._begin(pool, out.value)

    @classmethod
    def _of(cls, pool: Pool, pointer: Optional[int]) -> "Sequence":
        """Wraps a sequence that the library created, while the pool cannot be closed."""
        sequence = cls.__new__(cls)
        sequence._begin(pool, pointer)
        return sequence

    def _begin(self, pool: Pool, pointer: Optional[int]) -> None:
        Handle.__init__(self, pointer, n.lib.quire_seq_destroy, pool)
        self.pool = pool
        # The tokens of its last step and load; while they are in _tokens, these have not ended.
        self._step: Optional[object] = None
        self._load: Optional[object] = None
        ring = n.lib.quire_seq_ring(pointer)
        self.ring = Ring(ring.max_tokens, ring.sinks, ring.spare_tokens)
        pool._sequences.add(self)

    def _get(self) -> int:
        if self._load in self._tokens:
            raise QuireError("EBUSY", "the sequence is being loaded")
        return super()._get()

    def close(self) -> None:
        """Destroys the sequence. Raises QuireError with status EBUSY while it is part of an open step or is being loaded."""
        with self._lock:
            if self._step in self._tokens:
                raise QuireError("EBUSY", "the sequence is part of an open step")
            if not self.closed:
                self._get()
            super().close()

    @property
    def length(self) -> int:
        """Tokens appended minus tokens trimmed. Tokens of an open step do not count."""
        with self._lock:
            return int(n.lib.quire_seq_length(self._get()))

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return True  # an empty one too

    @property
    def policy(self) -> str:
        """The policy of new rows, in canonical form."""
        with self._lock:
            return n.text(n.lib.quire_plan_policy(n.lib.quire_seq_plan(self._get())))

    def codec(self, side: str, layer: int = 0) -> str:
        """The codec of new rows of a layer; "" for V if V is part of K."""
        got = n.PlanLayer()
        with self._lock:
            n.check(n.lib.quire_plan_layer_info(n.lib.quire_seq_plan(self._get()), n.u32(layer, "layer"), got))
            return n.text(got.v if side_of(side) else got.k)

    # ------------------------------------------------------------------ in

    def step(self, n_tokens: int) -> "Step":
        """Begins a step of this sequence alone: append and attend in each layer, then commit."""
        return self.pool.step([self], [n_tokens])

    def append(self, k: Union[AnyRows, Seq[AnyRows]], v: Union[AnyRows, Seq[AnyRows], None] = None, *,
               dtype: Optional[str] = None) -> None:
        """Appends the same number of rows in every layer: arrays (token, KV head, channel), one per layer.

        With one layer you can give the arrays without a list. float32 and float16 need no dtype; dtype="bf16" is for uint16 arrays.
        Leave v as None if V is part of K.
        """
        k_layers, v_layers = _per_layer(k, self.pool.plan.n_layers, "k"), _per_layer(v, self.pool.plan.n_layers, "v")
        first = k_layers[0]
        data = first.words if isinstance(first, MlxRows) else first.codes if isinstance(first, NativeRows) else first
        if not isinstance(data, np.ndarray) or not data.ndim:
            raise TypeError("k must be a numpy array of rows")
        with self._lock, self.step(data.shape[0]) as step:
            for layer, (k_rows, v_rows) in enumerate(zip(k_layers, v_layers)):
                step.append_rows(layer, 0, k_rows, v_rows, dtype=dtype)

    def attend(self, q: Array, layer: int = 0, *, out: Optional[Array] = None, mask: AnyMask = None,
               position: Optional[int] = None, **options: Any) -> Any:
        """Attention over the committed rows: Pool.attend() for one sequence."""
        return self.pool.attend([self], [q], layer, out=None if out is None else [out], masks=[mask],
                                positions=None if position is None else [position], **options)[0]

    # -------------------------------------------------------------- changes

    def fork(self) -> "Sequence":
        """Creates a second sequence with the same tokens. Both share pages until one of them writes."""
        out = ctypes.c_void_p()
        with self._lock, self.pool._lock:
            self.pool._get()
            n.check(n.lib.quire_seq_fork(ctypes.byref(out), self._get()))
            return Sequence._of(self.pool, out.value)

    def trim(self, length: int) -> None:
        """Removes the rows from position length on. Raises QuireError with status ERANGE if rows that would become visible again are gone."""
        with self._lock:
            n.check(n.lib.quire_seq_trim(self._get(), n.u32(length, "length")))

    @property
    def trim_floor(self) -> int:
        """The sequence can be trimmed to every length from this one on."""
        with self._lock:
            return int(n.lib.quire_seq_trim_floor(self._get()))

    def convert(self, plan: Plan, *, new_only: bool = False) -> None:
        """Switches to another plan of the same geometry and re-encodes the pages. new_only: finished pages stay as they are.

        Pages shared with forks stay unchanged for the forks, so the sequences no longer share them afterwards.
        """
        with self._lock, plan._lock:
            n.check(n.lib.quire_seq_convert(self._get(), plan._get(), _NEW if new_only else 0))

    # ------------------------------------------------------------------ out

    def _export(self, side: str, layer: int, first: int, count: int, rows: AnyRows, dtype: Optional[str]) -> None:
        heads, d = self._row_shape(side, layer)
        described, _ = describe(rows, count, heads, d, dtype, "out", writes=True)
        with self._lock:
            n.check(n.lib.quire_seq_export(self._get(), layer, side_of(side), n.u32(first, "first"), n.u32(count, "n"), described))

    def _row_shape(self, side: str, layer: int) -> Tuple[int, int]:
        shape = self.pool.shape(layer)
        return shape.n_kv_heads, shape.d_v if side_of(side) else shape.d_k

    def rows(self, side: str, layer: int = 0, first: int = 0, count: Optional[int] = None, *, dtype: str = "f32",
             out: Optional[Array] = None) -> Array:
        """Decoded rows [first, first + count) of side "k" or "v" as (token, KV head, channel); bf16 values are uint16."""
        count = self.length - first if count is None else count
        if out is None:
            out = np.empty((n.u32(count, "count"), *self._row_shape(side, layer)), numpy_dtype(dtype))
        self._export(side, layer, first, count, out, dtype)
        return out

    def codes(self, side: str, layer: int = 0, first: int = 0, count: Optional[int] = None) -> NativeRows:
        """The same rows as the codec's own bytes, exactly as they are stored."""
        count = self.length - first if count is None else count
        heads, d = self._row_shape(side, layer)
        codec = self.codec(side, layer)
        width = n.lib.quire_codec_row_bytes(codec.encode(), d)
        rows = NativeRows(codec, np.empty((n.u32(count, "count"), heads, width), np.uint8))
        self._export(side, layer, first, count, rows, None)
        return rows

    def mlx(self, side: str, layer: int = 0, first: int = 0, count: Optional[int] = None, *, scale_dtype: str = "f16") -> MlxRows:
        """The same rows as MLX's packed arrays, without encoding them again. Affine codecs only."""
        count = self.length - first if count is None else count
        heads, d = self._row_shape(side, layer)
        rows = empty_mlx(self.codec(side, layer), n.u32(count, "count"), heads, d, scale_dtype)
        self._export(side, layer, first, count, rows, None)
        return rows

    def save(self, file: BinaryIO) -> None:
        """Writes the sequence to a binary file, which Pool.load() reads (docs/formats/snapshot.md)."""
        writer = Writer(file)
        with self._lock:
            writer.check(n.lib.quire_seq_save(self._get(), writer.callback, None))

    def to_bytes(self) -> bytes:
        """The bytes that save() writes."""
        file = io.BytesIO()
        self.save(file)
        return file.getvalue()

    def __repr__(self) -> str:
        return "<quire.Sequence, closed>" if self.closed else f"<quire.Sequence {self.policy}, {self.length} tokens>"


def _per_layer(rows: Any, n_layers: int, what: str) -> List[Any]:
    if rows is None:
        return [None] * n_layers
    if isinstance(rows, (list, tuple)):
        if len(rows) != n_layers:
            raise ValueError(f"{what} has {len(rows)} arrays for {n_layers} layers")
        return list(rows)
    if n_layers != 1:
        raise ValueError(f"{what} is one array, but there are {n_layers} layers; give a list")
    return [rows]
