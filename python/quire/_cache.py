# SPDX-License-Identifier: MIT
"""Pools, sequences and steps. They are in one module because each has methods or attributes of the other two types: a pool makes sequences
and steps, and both name their pool. Import them from quire.pool, quire.sequence and quire.step."""

from __future__ import annotations

import ctypes
import io
import threading
from types import TracebackType
from typing import Any, BinaryIO, Callable, Iterable, List, Optional, Sequence as Seq, Tuple, Type, Union

import numpy as np

from . import _native as n
from ._handle import EndsWithBlock, Family, Handle, Shared, drain, find, holding, members
from ._shapes import OTHER_LAYERS, OTHER_PLAN, Layer, PoolStats, Ring
from ._stream import Reader, Writer
from ._workspace import Workspace
from .attend import AnyMask, job_of, mask_of, n_queries_of, per_sequence, place, settings
from .errors import QuireError
from .plan import Plan, check_plan
from .rows import AnyRows, Array, MlxRows, NativeRows, describe, empty_mlx, numpy_dtype, per_layer, plain, side_of, whole
from .threads import Threads

_NEW = 1  # QUIRE_CONVERT_NEW
_MASK = ctypes.sizeof(n.Mask)


class Pool(Shared):
    """Page memory with a fixed budget. Address space is reserved at once; memory is touched page by page.

    threads: the number of threads that compute, or a Threads object that several pools share; 1 uses the calling thread alone. The
    result does not depend on it. Closing a pool closes its steps, its sequences, and the store namespaces that it was used with.
    """

    def __init__(self, plan: Plan, budget_bytes: int, threads: Union[int, Threads] = 1) -> None:
        check_plan(plan)
        team = threads if isinstance(threads, Threads) else None if (count := n.number(threads, "threads")) == 1 else Threads(count)
        options = n.PoolOptions(budget_bytes=n.u64(budget_bytes, "budget_bytes"))
        self.plan = plan
        self._threads = team
        self._workspaces: List[Workspace] = []
        self._sequences: Family = {}
        self._steps: Family = {}
        self._namespaces: Family = {}  # of stores, which may hold pages of the pool
        with plan._lock if team is None else team._lock, plan._lock:
            if team is not None:
                options.executor = ctypes.pointer(team._executor())
            super().__init__(n.lib.quire_pool_destroy)
            self._open(n.lib.quire_pool_create, plan._get(), options, on=() if team is None else (team,),
                       invalid=f"budget_bytes is {options.budget_bytes}, less than one page of each group of layers (Plan.page_bytes)")

    def _is_used_here(self) -> bool:
        here = threading.get_ident()
        return super()._is_used_here() or any(sequence._caller == here for sequence in members(self._sequences))

    def _close_children(self) -> None:
        for step in members(self._steps):
            step.abort()
        for namespace in members(self._namespaces):
            namespace.close()
        for other in (*members(self._sequences), *self._workspaces):
            Handle.close(other)  # a sequence whose step or load another thread is giving up is waited for

    def shape(self, layer: int) -> Layer:
        """The heads and head sizes of a layer."""
        return self._layer(layer)[1]

    def _layer(self, layer: int) -> Tuple[int, Layer]:
        layers = self.plan.layers
        number = n.number(layer, "layer")
        if not 0 <= number < len(layers):
            raise ValueError(f"there is no layer {number}; the plan has {len(layers)} layers")
        return number, layers[number]

    def sequence(self, *, max_tokens: int = 0, sinks: int = 0, spare_tokens: int = 0) -> Sequence:
        """A new sequence. With max_tokens it is a ring that keeps the first `sinks` tokens (see Ring)."""
        return Sequence(self, max_tokens=max_tokens, sinks=sinks, spare_tokens=spare_tokens)

    def step(self, sequences: Seq[Sequence], n_tokens: Seq[int]) -> Step:
        """Reserves n_tokens[i] rows in sequences[i]. Raises PoolFull if there is no room; then nothing has changed."""
        return Step(self, sequences, n_tokens)

    def add_plan(self, plan: Plan) -> None:
        """Registers another plan, so that its snapshots can be loaded."""
        check_plan(plan)
        with self._lock, plan._lock:
            n.check(n.lib.quire_pool_add_plan(self._get(), plan._get()), mismatch=OTHER_LAYERS)

    def load(self, source: Union[bytes, BinaryIO]) -> Sequence:
        """Loads a sequence that Sequence.save() wrote, from bytes or a binary file. Raises QuireError if the data is damaged or of another
        plan, EOFError if it ends too early. A file whose read() closes the pool gets QuireError with status EBUSY."""
        reader = Reader(source)
        with self._use():
            return Sequence._of(self, lambda *where: reader.call(n.lib.quire_seq_load, *where), self._get(), mismatch=OTHER_PLAN)

    @property
    def stats(self) -> PoolStats:
        """Memory in use and counts, as they are now."""
        got = n.PoolStats()
        with self._lock:
            n.check(n.lib.quire_pool_stats_get(self._get(), got))
        return PoolStats(got.budget_bytes, got.used_bytes, got.resident_bytes, got.peak_bytes, got.n_pages, got.n_copies,
                         got.nan, got.saturated, got.recoded)

    # -------------------------------------------------------------- attention

    def _compute(self, options: Optional[n.AttendOptions], jobs: bytes, count: int) -> None:
        """quire_attend() with a workspace that no other call uses."""
        with self._lock:
            self._get()
            space = self._workspaces.pop() if self._workspaces else Workspace(self._threads)
        try:
            n.check(n.lib.quire_attend(space._get(), options, jobs, count, n.JOB))
        finally:
            with self._lock:
                if self._closing:
                    space.close()
                else:
                    self._workspaces.append(space)

    def attend(self, sequences: Seq[Sequence], q: Seq[Array], layer: int = 0, *, out: Optional[Seq[Array]] = None,
               masks: Optional[Seq[AnyMask]] = None, positions: Optional[Seq[int]] = None,
               dtype: Optional[str] = None, partial: bool = False, **options: Any) -> List[Any]:
        """Attention of queries over the committed rows of the sequences, in one call; rows of open steps are not visible.

        q[i]: (query, query head, d_k), with any strides that rows may have. The last query is at the position of the last token, or the
        first query is at positions[i]. out[i]: (query, query head, d_v) to write to; None creates it with the dtype of q[i]. Both may be
        float32, float16, or with dtype="bf16" uint16; the result is computed in float32 and rounded at the end. Returns the list of
        outputs, or with partial=True a list of Partial, always float32. Options: scale (default 1 / sqrt(d_k)), softcap, alibi,
        mask_slopes, sink_logits (float32, one per query head), bidirectional. Raises QuireError with status ERANGE if a ring or window has
        evicted rows that a query would see; spare_tokens keeps more rows.
        """
        layer, shape = self._layer(layer)
        chosen = settings(shape, partial, **options) if options or partial else None
        given = self._own(sequences)
        count = len(given)
        q_list, mask_list = per_sequence(q, count, "arrays of queries"), per_sequence(masks, count, "masks")
        out_list, position_list = per_sequence(out, count, "outputs"), per_sequence(positions, count, "positions")
        jobs: List[bytes] = []
        results: List[Any] = []
        keep: List[Any] = []

        def compute() -> None:
            for i, sequence in enumerate(given):
                job, result = sequence._job(shape, layer, q_list[i], out_list[i], mask_list[i], position_list[i], dtype, partial, keep)
                jobs.append(job)
                results.append(result)
            for sequence in given:
                sequence._get()  # what was asked for the other jobs may have closed it
            self._compute(chosen, b"".join(jobs), count)

        holding(_locks(given), compute)
        return results

    def _own(self, sequences: Seq[Sequence]) -> Tuple[Sequence, ...]:
        """The sequences, which nobody changes any more. Raises if one is not a sequence of this pool."""
        given = tuple(sequences)
        for i, sequence in enumerate(given):
            if not isinstance(sequence, Sequence):
                raise TypeError(f"sequences[{i}] is a {type(sequence).__name__}, not a Sequence")
            if sequence.pool is not self:
                raise ValueError(f"sequences[{i}] belongs to another pool")
        return given

    def __repr__(self) -> str:
        return "<quire.Pool, closed>" if self.closed else f"<quire.Pool {self.plan.policy}, {self.stats.used_bytes} bytes used>"


class Sequence(Handle):
    """The tokens of one conversation. It keeps its pool alive. Calls from several threads wait for each other."""

    def __init__(self, pool: Pool, *, max_tokens: int = 0, sinks: int = 0, spare_tokens: int = 0) -> None:
        options = n.seq_options(max_tokens, sinks, spare_tokens)
        with pool._lock:
            self._begin(pool, n.lib.quire_seq_create, pool._get(), options)

    @classmethod
    def _of(cls, pool: Pool, create: Callable[..., int], *arguments: Any, mismatch: str = "") -> Sequence:
        """A sequence that a function of the library creates, while the pool cannot be closed."""
        sequence = cls.__new__(cls)
        sequence._begin(pool, create, *arguments, mismatch=mismatch)
        return sequence

    def _begin(self, pool: Pool, create: Callable[..., int], *arguments: Any, mismatch: str = "") -> None:
        self.pool = pool
        # The tokens of its last step and load; while they are in _tokens, these have not ended.
        self._step: Optional[object] = None
        self._load: Optional[object] = None
        self._caller = 0  # the thread in a call on the sequence that runs code of the caller: what that calls must not change it
        Handle.__init__(self, n.lib.quire_seq_destroy)
        self._open(create, *arguments, on=(pool,), family=pool._sequences, mismatch=mismatch)
        ring = n.SeqOptions()
        n.check(n.lib.quire_seq_options_get(self._pointer, ring))
        self.ring = Ring(ring.max_tokens, ring.sinks, ring.spare_tokens)

    def _get(self) -> int:
        if self._load is not None and self._load in self._tokens:
            raise QuireError("EBUSY", "the sequence is being loaded")
        if self._caller:
            raise QuireError("EBUSY", "the sequence is being saved, by the call that uses it here")
        return self._pointer or super()._get()

    def _disown(self) -> None:
        super()._disown()
        self._caller = 0

    def close(self) -> None:
        """Destroys the sequence. Raises QuireError with status EBUSY while it is part of an open step, is being loaded or saved."""
        with self._lock:
            if self._pointer:
                self._get()  # raises while it is being loaded or saved
            if self._step in self._tokens or find(*self._tokens):
                raise QuireError("EBUSY", "the sequence is part of an open step")
            super().close()

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is not None:  # a step or a load that the exception has interrupted, and keeps alive, ends with the block
            for other in find(self._step, self._load):
                other.close()
        self.close()

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
        number, is_v = self.pool._layer(layer)[0], side_of(side)
        with self._lock:
            n.check(n.lib.quire_plan_layer_info(n.lib.quire_seq_plan(self._get()), number, got))
            return n.text(got.v if is_v else got.k)

    # ------------------------------------------------------------------ in

    def step(self, n_tokens: int) -> Step:
        """Begins a step of this sequence alone: append and attend in each layer, then commit."""
        return self.pool.step([self], [n_tokens])

    def append(self, k: Union[AnyRows, Seq[AnyRows]], v: Union[AnyRows, Seq[AnyRows], None] = None, *,
               dtype: Optional[str] = None) -> None:
        """Appends the same number of rows in every layer: arrays (token, KV head, channel), one per layer.

        With one layer you need no list. float32 and float16 need no dtype; dtype="bf16" is for uint16 arrays. v is None if V is part of K.
        """
        k_layers, v_layers = per_layer(k, self.pool.plan.n_layers, "k"), per_layer(v, self.pool.plan.n_layers, "v")
        first = k_layers[0]
        data = first.words if isinstance(first, MlxRows) else first.codes if isinstance(first, NativeRows) else first
        if not isinstance(data, np.ndarray) or not np.ndim(data):
            raise TypeError("k must be a numpy array of rows")
        with self._lock:
            step = self.step(plain(data, "k").shape[0])
            try:
                for layer, (k_rows, v_rows) in enumerate(zip(k_layers, v_layers)):
                    step.append_rows(layer, 0, k_rows, v_rows, dtype=dtype)
                step.commit()
            except BaseException:
                step.abort()
                raise

    def attend(self, q: Array, layer: int = 0, *, out: Optional[Array] = None, mask: AnyMask = None,
               position: Optional[int] = None, dtype: Optional[str] = None, partial: bool = False, **options: Any) -> Any:
        """Attention over the committed rows: Pool.attend(), which explains the arguments, for one sequence."""
        layer, shape = self.pool._layer(layer)
        chosen = settings(shape, partial, **options) if options or partial else None
        keep: List[Any] = []
        with self._lock:
            job, result = self._job(shape, layer, q, out, mask, position, dtype, partial, keep)
            self.pool._compute(chosen, job, 1)
        return result

    def _job(self, shape: Layer, layer: int, q: Array, out: Optional[Array], mask: AnyMask, position: Optional[int], dtype: Optional[str],
             partial: bool, keep: List[Any]) -> Tuple[bytes, Any]:
        """A quire_attend_job over the committed rows, and the object that the call will fill. What the job points to is added to `keep`."""
        count = n_queries_of(q)
        position = None if position is None else n.u32(position, "position")
        placed, result = place(shape, q, out, dtype, partial, count)
        masked = None if mask is None else mask_of(mask, count, shape, keep)
        keep.append((q, masked, placed))
        return job_of(shape, placed, count, self._get(), layer, self.ring, position, masked, keep), result

    # -------------------------------------------------------------- changes

    def fork(self) -> Sequence:
        """Creates a second sequence with the same tokens. Both share pages until one of them writes."""
        with self._lock, self.pool._lock:
            self.pool._get()
            return Sequence._of(self.pool, n.lib.quire_seq_fork, self._get())

    def trim(self, length: int) -> None:
        """Removes the rows from position length on. Raises QuireError with status ERANGE if rows that would become visible again are gone."""
        to = n.u32(length, "length")
        with self._lock:
            pointer = self._get()
            if to > (found := n.lib.quire_seq_length(pointer)):
                raise QuireError("EINVAL", f"length is {to}, but the sequence has only {found} tokens")
            n.check(n.lib.quire_seq_trim(pointer, to))

    @property
    def trim_floor(self) -> int:
        """The sequence can be trimmed to every length from this one on."""
        with self._lock:
            return int(n.lib.quire_seq_trim_floor(self._get()))

    def convert(self, plan: Plan, *, new_only: bool = False) -> None:
        """Switches to another plan of the same geometry and re-encodes the pages. new_only: finished pages stay as they are. Forks keep the
        pages that they share as these were, so the sequences no longer share them afterwards."""
        check_plan(plan)
        flags = _NEW if new_only else 0
        with self._lock, plan._lock:
            n.check(n.lib.quire_seq_convert(self._get(), plan._get(), flags), mismatch=OTHER_LAYERS)

    # ------------------------------------------------------------------ out

    def _export(self, side: str, layer: int, first: int, count: int, rows: AnyRows, dtype: Optional[str]) -> None:
        is_v, first, count = side_of(side), n.u32(first, "first"), n.u32(count, "count")
        heads, d = self._row_shape(side, layer)
        described, kept = describe(rows, count, heads, d, dtype, "out", writes=True)
        number = self.pool._layer(layer)[0]
        with self._lock:
            pointer = self._get()
            if first + count > (found := n.lib.quire_seq_length(pointer)):
                raise QuireError("EINVAL", f"first is {first} and count is {count}, but the sequence has only {found} tokens")
            n.check(n.lib.quire_seq_export(pointer, number, is_v, first, count, described))
        del kept

    def _row_shape(self, side: str, layer: int) -> Tuple[int, int]:
        shape = self.pool.shape(layer)
        return shape.n_kv_heads, shape.d_v if side_of(side) else shape.d_k

    def _span(self, first: int, count: Optional[int]) -> Tuple[int, int]:
        """The first row and the number of rows that were asked for, before there is memory for them."""
        first, length = n.u32(first, "first"), self.length
        if count is None:
            count = length - first
            if count < 0:
                raise QuireError("EINVAL", f"first is {first}, but the sequence has only {length} tokens")
        found = n.u32(count, "count")
        if first + found > length:
            raise QuireError("EINVAL", f"first is {first} and count is {found}, but the sequence has only {length} tokens")
        return first, found

    def rows(self, side: str, layer: int = 0, first: int = 0, count: Optional[int] = None, *, dtype: str = "f32",
             out: Optional[Array] = None) -> Array:
        """Decoded rows [first, first + count) of side "k" or "v" as (token, KV head, channel); bf16 values are uint16."""
        first, count = self._span(first, count)
        if out is None:
            out = np.empty((count, *self._row_shape(side, layer)), numpy_dtype(dtype))
        self._export(side, layer, first, count, out, dtype)
        return out

    def codes(self, side: str, layer: int = 0, first: int = 0, count: Optional[int] = None) -> NativeRows:
        """The same rows as the codec's own bytes, exactly as they are stored."""
        first, count = self._span(first, count)
        heads, d = self._row_shape(side, layer)
        codec = self.codec(side, layer)
        width = n.lib.quire_codec_row_bytes(codec.encode(), d)
        rows = NativeRows(codec, np.empty((count, heads, width), np.uint8))
        self._export(side, layer, first, count, rows, None)
        return rows

    def mlx(self, side: str, layer: int = 0, first: int = 0, count: Optional[int] = None, *, scale_dtype: str = "f16") -> MlxRows:
        """The same rows as MLX's packed arrays, without encoding them again. Affine and tv codecs only."""
        first, count = self._span(first, count)
        heads, d = self._row_shape(side, layer)
        rows = empty_mlx(self.codec(side, layer), count, heads, d, scale_dtype)
        self._export(side, layer, first, count, rows, None)
        return rows

    def save(self, file: BinaryIO) -> None:
        """Writes the sequence to a binary file, which Pool.load() reads (docs/formats/snapshot.md). A file whose write() uses the
        sequence or closes its pool gets QuireError with status EBUSY."""
        writer = Writer(file)
        with self._lock:
            pointer = self._get()
            self._caller = threading.get_ident()
            try:
                n.check(writer.call(n.lib.quire_seq_save, pointer))
            finally:
                self._caller = 0

    def to_bytes(self) -> bytes:
        """The bytes that save() writes."""
        file = io.BytesIO()
        self.save(file)
        return file.getvalue()

    def __repr__(self) -> str:
        return "<quire.Sequence, closed>" if self.closed else f"<quire.Sequence {self.policy}, {self.length} tokens>"


def _locks(sequences: Iterable[Sequence]) -> List[Any]:
    """The locks of the sequences, in the same order in every thread."""
    return [sequence._lock for sequence in sorted(set(sequences), key=id)]


class Step(Handle):
    """At the end of a with block the step is committed; an exception in the block aborts it. Dropping a step aborts it."""

    def __init__(self, pool: Pool, sequences: Seq[Sequence], n_tokens: Seq[int]) -> None:
        self.pool = pool
        self.sequences = pool._own(sequences)
        self.n_tokens = tuple([n.u32(t, "n_tokens") for t in n_tokens])
        self._total = sum(self.n_tokens)
        count = len(self.sequences)
        if len(self.n_tokens) != count:
            raise ValueError(f"{len(self.n_tokens)} numbers of tokens were given for {count} sequences")
        if len(set(self.sequences)) != count:
            raise ValueError("sequences: a sequence is named twice")
        numbers = (ctypes.c_uint32 * count)(*self.n_tokens)
        super().__init__(n.lib.quire_step_abort)
        self._locks = _locks(self.sequences)
        try:
            holding(self._locks, lambda: self._begin(numbers, count))
        except BaseException:
            self._end()
            raise

    def _begin(self, numbers: Any, count: int) -> None:
        with self.pool._lock:
            pointers = (ctypes.c_void_p * count)(*[s._get() for s in self.sequences])
            self._open(n.lib.quire_step_begin, self.pool._get(), pointers, numbers, count, on=self.sequences, family=self.pool._steps,
                       invalid=f"n_tokens: a sequence can have at most {n.MAX_TOKENS} tokens")
            for sequence in self.sequences:
                sequence._step = self._token

    # ------------------------------------------------------------------ end

    def commit(self) -> None:
        """Keeps the rows and ends the step. Raises QuireError with status EINVAL if a layer was not appended; the step then stays open."""
        holding(self._locks, self._commit)

    def _commit(self) -> None:
        done: List[int] = []
        with self._lock:
            pointer = self._get()
            try:
                done.extend(map(n.lib.quire_step_commit, (pointer,)))  # the status is in the list even if an interrupt comes now
            finally:
                if done and not done[0]:
                    self._pointer, self._slot.value = 0, None  # the library has destroyed the step
                    drain(self._ends)  # not _end(): an interrupt may come when that is entered
        if done[0]:
            n.check(done[0], invalid="a layer of the step was not appended")

    def abort(self) -> None:
        """Discards the rows and ends the step. Does nothing if the step has already ended."""
        holding(self._locks, super().close)

    def close(self) -> None:
        self.abort()

    def _leave_block(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self.closed:
            return
        try:
            if kind is None:
                self.commit()
        finally:
            if not self.closed:
                self.abort()

    __exit__ = EndsWithBlock(_leave_block)

    # --------------------------------------------------------------- append

    def append_rows(self, layer: int, index: int, k: AnyRows, v: Optional[AnyRows] = None, *,
                    dtype: Optional[str] = None) -> None:
        """Appends rows of one sequence of the step, in any form. Rows in the layer's own codec are stored without re-encoding."""
        layer, shape = self.pool._layer(layer)
        index = n.number(index, "index")
        if not 0 <= index < len(self.n_tokens):
            raise ValueError(f"index is {index}, but the step has {len(self.n_tokens)} sequences")
        tokens = self.n_tokens[index]
        k_rows, k_kept = describe(k, tokens, shape.n_kv_heads, shape.d_k, dtype, "k")
        v_rows, v_kept = None, None
        if shape.v_in_k:
            if v is not None:
                raise ValueError("v was given, but V is part of K in this layer")
        elif v is None:
            raise ValueError("v is missing")
        else:
            v_rows, v_kept = describe(v, tokens, shape.n_kv_heads, shape.d_v, dtype, "v")
        with self._lock:
            n.check(n.lib.quire_step_append_rows(self._get(), layer, index, k_rows, v_rows))
        del k_kept, v_kept  # not before the library has read them

    def append(self, layer: int, k: Array, v: Optional[Array] = None, *, dtype: Optional[str] = None) -> None:
        """Appends rows of all sequences, one sequence after the other: (all tokens, KV head, channel)."""
        layer, shape = self.pool._layer(layer)
        if dtype is None and (v is None) == shape.v_in_k:  # floats without gaps are one call, however many sequences there are
            form, k_at = whole(k, (self._total, shape.n_kv_heads, shape.d_k), None)
            v_form, v_at = (form, k_at) if v is None else whole(v, (self._total, shape.n_kv_heads, shape.d_v), None)
            if k_at and v_at and form == v_form == n.F32:
                with self._lock:
                    n.check(n.lib.quire_step_append(self._get(), layer, k_at, None if v is None else v_at))
                return
        k, v = plain(k, "k"), None if v is None else plain(v, "v")
        for array, what in ((k, "k"), (v, "v")):
            if array is not None and array.shape[:1] != (self._total,):
                raise ValueError(f"{what} has shape {array.shape}, but the step has {self._total} tokens")
        first = 0
        for index, tokens in enumerate(self.n_tokens):
            end = first + tokens
            self.append_rows(layer, index, k[first:end], None if v is None else v[first:end], dtype=dtype)
            first = end

    # --------------------------------------------------------------- attend

    def attend(self, layer: int, q: Array, *, out: Optional[Array] = None, masks: Optional[Seq[AnyMask]] = None,
               dtype: Optional[str] = None, partial: bool = False, **options: Any) -> Any:
        """Attention of the step's tokens, which also see the rows of the step. Append the layer first.

        q: (all tokens, query head, d_k), one sequence after the other. Strides, dtypes and options are those of Pool.attend().
        """
        layer, shape = self.pool._layer(layer)
        placed, result = place(shape, q, out, dtype, partial, self._total)
        # What the structure points to stays in local variables until the call has returned: options, keep, all_masks and the arrays.
        chosen = settings(shape, partial, **options) if options or partial else None
        keep: List[Any] = []
        if masks is None:
            all_masks, at, stride = None, 0, 0
        else:
            given: List[AnyMask] = per_sequence(masks, len(self.sequences), "masks")
            all_masks = (n.Mask * len(given))(*[mask_of(m, t, shape, keep) for m, t in zip(given, self.n_tokens)])
            at, stride = ctypes.addressof(all_masks), _MASK
        asked = n.pack_queries(n.QUERIES, *placed, 0 if chosen is None else ctypes.addressof(chosen), at, stride)
        with self._lock:
            status = n.lib.quire_step_attend_with(self._get(), layer, asked)
        if status:
            n.check(status, invalid=f"layer {layer} of the step was not appended")
        return result
