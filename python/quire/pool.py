# SPDX-License-Identifier: MIT
"""Pools: the memory of sequences, and attention over several sequences in one call."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Iterator, List, Optional, Sequence as Seq, Tuple, Union

import numpy as np

from . import _native as n
from ._handle import Handle, Shared
from ._stream import Reader
from .attend import AnyMask, Call, Partial, per_sequence, queries
from .errors import QuireError
from .plan import Layer, Plan
from .rows import Array, address, strides_of
from .threads import Threads

if TYPE_CHECKING:
    from .sequence import Sequence
    from .step import Step


@dataclass(frozen=True)
class PoolStats:
    budget_bytes: int
    used_bytes: int  #: pages in use, and pages reserved for a running conversion
    resident_bytes: int  #: pages in use and free pages kept for reuse
    peak_bytes: int  #: largest resident_bytes so far
    n_pages: int
    n_copies: int  #: pages copied because a fork wrote to them
    nan: int  #: values that were NaN and became 0
    saturated: int  #: values or scales that were too large
    recoded: int  #: imported rows that were encoded again


class Workspace(Handle):
    """Scratch memory; one attend call at a time can use it."""

    def __init__(self, threads: Optional[Threads]) -> None:
        out = ctypes.c_void_p()
        executor = None if threads is None else threads._executor()
        n.check(n.lib.quire_workspace_create(ctypes.byref(out), executor, None))
        super().__init__(out.value, n.lib.quire_workspace_destroy, *([] if threads is None else [threads]))


class Pool(Shared):
    """Page memory with a fixed budget. Address space is reserved at once; memory is touched page by page.

    threads: the number of threads that compute, or a Threads object that several pools share; 1 uses the calling thread alone. The
    result does not depend on it. Closing a pool closes its steps, its sequences, and the store namespaces that it was used with.
    """

    def __init__(self, plan: Plan, budget_bytes: int, threads: Union[int, Threads] = 1) -> None:
        team = threads if isinstance(threads, Threads) else None if threads == 1 else Threads(threads)
        options = n.PoolOptions(version=n.OPTIONS, budget_bytes=n.u64(budget_bytes, "budget_bytes"))
        out = ctypes.c_void_p()
        with ExitStack() as locks:
            if team is not None:
                locks.enter_context(team._lock)
                options.executor = ctypes.pointer(team._executor())
            locks.enter_context(plan._lock)
            n.check(n.lib.quire_pool_create(ctypes.byref(out), plan._get(), options))
            super().__init__(out.value, n.lib.quire_pool_destroy, *([] if team is None else [team]))
        self.plan = plan
        self._threads = team
        self._workspaces: List[Workspace] = []
        self._sequences: "weakref.WeakSet[Sequence]" = weakref.WeakSet()
        self._steps: "weakref.WeakSet[Step]" = weakref.WeakSet()
        self._namespaces: "weakref.WeakSet[Handle]" = weakref.WeakSet()  # of stores, which may hold pages of the pool

    def _close_children(self) -> None:
        for step in list(self._steps):
            step.abort()
        for namespace in list(self._namespaces):
            namespace.close()
        for other in (*self._sequences, *self._workspaces):
            Handle.close(other)  # a sequence whose step or load another thread is giving up is waited for

    def shape(self, layer: int) -> Layer:
        if not 0 <= layer < self.plan.n_layers:
            raise ValueError(f"there is no layer {layer}; the plan has {self.plan.n_layers} layers")
        return self.plan.layers[layer]

    def sequence(self, *, max_tokens: int = 0, sinks: int = 0, spare_tokens: int = 0) -> "Sequence":
        """A new sequence. With max_tokens it is a ring that keeps the first `sinks` tokens (see Ring)."""
        from .sequence import Sequence

        return Sequence(self, max_tokens=max_tokens, sinks=sinks, spare_tokens=spare_tokens)

    def step(self, sequences: Seq["Sequence"], n_tokens: Seq[int]) -> "Step":
        """Reserves n_tokens[i] rows in sequences[i]. Raises PoolFull if there is no room; then nothing has changed."""
        from .step import Step

        return Step(self, sequences, n_tokens)

    def add_plan(self, plan: Plan) -> None:
        """Registers another plan, so that its snapshots can be loaded."""
        with self._lock, plan._lock:
            n.check(n.lib.quire_pool_add_plan(self._get(), plan._get()))

    def load(self, source: Union[bytes, BinaryIO]) -> "Sequence":
        """Loads a sequence that Sequence.save() wrote, from bytes or a binary file. Raises QuireError if the data is damaged or of another plan."""
        from .sequence import Sequence

        out = ctypes.c_void_p()
        reader = Reader(source)
        with self._use() as pointer:
            reader.check(n.lib.quire_seq_load(ctypes.byref(out), pointer, reader.callback, None))
            return Sequence._of(self, out.value)

    @property
    def stats(self) -> PoolStats:
        got = n.PoolStats()
        with self._lock:
            n.lib.quire_pool_stats_get(self._get(), got)
        return PoolStats(got.budget_bytes, got.used_bytes, got.resident_bytes, got.peak_bytes, got.n_pages, got.n_copies,
                         got.counts.nan, got.counts.saturated, got.counts.recoded)

    # -------------------------------------------------------------- attention

    @contextmanager
    def _workspace(self) -> Iterator[Workspace]:
        with self._lock:
            self._get()
            space = self._workspaces.pop() if self._workspaces else Workspace(self._threads)
        try:
            yield space
        finally:
            with self._lock:
                if self._closing:
                    space.close()
                else:
                    self._workspaces.append(space)

    def attend(self, sequences: Seq["Sequence"], q: Seq[Array], layer: int = 0, *, out: Optional[Seq[Array]] = None,
               masks: Optional[Seq[AnyMask]] = None, positions: Optional[Seq[int]] = None,
               partial: bool = False, **options: Any) -> List[Any]:
        """Attention of queries over the committed rows of the sequences, in one call; rows of open steps are not visible.

        q[i]: float32 (query, query head, d_k), with any strides that rows may have. The last query is at the position of the last
        token, or the first query is at positions[i]. out[i]: float32 (query, query head, d_v) to write to; None creates it. Returns the
        list of outputs, or with partial=True a list of Partial. Options: scale (default 1 / sqrt(d_k)), softcap, alibi, mask_slopes,
        sink_logits (float32, one per query head), bidirectional. Raises QuireError with status ERANGE if a ring or window has evicted
        rows that a query would see; spare_tokens keeps more rows.
        """
        shape = self.shape(layer)
        call = Call(shape, partial=partial, **options)
        count = len(sequences)
        if len(q) != count:
            raise ValueError(f"{len(q)} arrays of queries were given for {count} sequences")
        mask_list, out_list = per_sequence(masks, count, "masks"), per_sequence(out, count, "outputs")
        position_list = per_sequence(positions, count, "positions")
        jobs = (n.AttendJob * max(count, 1))()
        results: List[Any] = []
        keep: List[Any] = []
        with ExitStack() as locks:
            for sequence in sorted(set(sequences), key=id):
                locks.enter_context(sequence._lock)
            for i, sequence in enumerate(sequences):
                if sequence.pool is not self:
                    raise ValueError("a sequence belongs to another pool")
                asked = queries(q[i], shape)
                job, result = _job(sequence, layer, shape, asked, out_list[i], position_list[i], partial)
                if mask_list[i] is not None:
                    job.mask = ctypes.pointer(call.mask(mask_list[i], job.n_queries))
                jobs[i] = job
                keep.append((job, asked))  # with the job the tiles and the mask that it points to; q[i] may be made when it is asked for
                results.append(result)
            space = locks.enter_context(self._workspace())
            n.check(n.lib.quire_attend(space._get(), call.options, jobs, count))
        return results

    def __repr__(self) -> str:
        return "<quire.Pool, closed>" if self.closed else f"<quire.Pool {self.plan.policy}, {self.stats.used_bytes} bytes used>"


def _job(sequence: "Sequence", layer: int, shape: Layer, q: Array, out: Optional[Array], position: Optional[int],
         partial: bool) -> Tuple[n.AttendJob, Any]:
    """A job, and the object that the call will fill."""
    count, length = q.shape[0], sequence.length
    first = length - count if position is None else position
    if position is None and first < 0:
        raise ValueError(f"{count} queries were given, but the sequence has only {length} tokens")
    if out is None:
        out = np.empty((count, shape.n_q_heads, shape.d_v), np.float32)
    elif not isinstance(out, np.ndarray) or out.dtype != np.float32:
        raise TypeError("out must be an array of float32")
    q_strides = strides_of(q, (None, shape.n_q_heads, shape.d_k), "q")
    out_strides = strides_of(out, (count, shape.n_q_heads, shape.d_v), "out")
    if any(s % 4 for s in q_strides + out_strides):
        raise ValueError("the strides of q and out must be multiples of 4 bytes")
    tiles, n_tiles = _tiles(sequence, layer, shape, first, length)
    ring = sequence.ring
    job = n.AttendJob(tiles, n_tiles, shape.n_q_heads, shape.n_kv_heads, shape.d_k, shape.d_v, count, n.u32(first, "position"),
                      shape.window, ring.max_tokens, ring.sinks, address(q), q_strides[0] // 4, q_strides[1] // 4,
                      address(out, "out", True), out_strides[0] // 4, out_strides[1] // 4)
    if not partial:
        return job, out
    result = Partial(out, np.empty((count, shape.n_q_heads), np.float32), np.empty((count, shape.n_q_heads), np.float32))
    job.max, job.sum = address(result.max), address(result.sum)
    return job, result


def _tiles(sequence: "Sequence", layer: int, shape: Layer, first_query: int, length: int) -> Tuple[Any, int]:
    """The tiles that the queries can see, and their number."""
    room = -(-length // n.PAGE_TOKENS)
    tiles = (n.TileRef * room)()
    count = n.lib.quire_seq_tiles(sequence._get(), layer, tiles, room)
    if count == room:
        return tiles, count
    ring, lowest = sequence.ring, 0
    if ring.max_tokens:
        lowest = first_query - (ring.max_tokens - ring.sinks) + 1
    if shape.window:
        lowest = max(lowest, first_query - shape.window + 1)
    need = room - max(lowest, 0) // n.PAGE_TOKENS
    if sum(tiles[i].first + n.PAGE_TOKENS > lowest for i in range(count)) < need:
        raise QuireError("ERANGE", "the first queries need rows that have already been evicted; attend within the step, or set spare_tokens")
    return tiles, count
