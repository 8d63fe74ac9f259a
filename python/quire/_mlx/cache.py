# SPDX-License-Identifier: MIT
"""What every cache does: takes rows, computes attention, trims. The engines' own classes (QuireKVCache, BatchQuireKVCache) inherit from
caches.py.

Each row of a batch is a sequence of the library. Padding is never stored: a sequence contains only its tokens, and only the
bookkeeping counts columns, as mlx-lm and mlx-vlm do.

An interrupt may come between any two steps of a call. Nothing is undone then; the next call repairs. `_now` says what the cache contains, and a
sequence that is longer than that is trimmed before anything else is done. Rows are therefore appended before `_now` says so, and
removed after it says so.
"""

from __future__ import annotations

import operator
from typing import Any, List, Optional, Sequence as Seq, Tuple

import mlx.core as mx
import numpy as np

from ..pool import Pool
from ..rows import Array
from ..sequence import Sequence
from .arrays import FORMS, MOST, NAMES, Masks, bits, causal_mask, check_floats, check_rows, floats, look, new, rows
from .attend import Part, attend, check_scale
from .contents import PIECE, Contents, Settings, contents, next_version
from .guard import Guard
from .pools import Pools, default_pools, layer_policy, pool_of
from .rows import Keys, Values
from .steps import OpenStep, held, pages_of

__all__ = ["Cache", "Settings"]


class Cache:
    def __init__(self, settings: Settings, pools: Optional[Pools] = None, padding: Optional[Seq[int]] = None) -> None:
        if not isinstance(settings, Settings):
            raise TypeError(f"settings is a {type(settings).__name__}, not a Settings")
        if pools is not None and not isinstance(pools, Pools):
            raise TypeError(f"pools is a {type(pools).__name__}, not a Pools")
        self.settings = settings
        self.pools = default_pools() if pools is None else pools
        count = len(padding or ())
        self._now = Contents((None,) * count, tuple(padding or ()), floors=(0,) * count, version=next_version())
        self._guard = Guard("cache")
        self._open = OpenStep()
        self._unsure = False  # sequences may be longer than _now says, or in an open step

    # ------------------------------------------------------- what models call

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Tuple[Keys, Values]:
        """Appends rows (sequence, KV head, token, channel). What it returns can be passed to attention only."""
        check_rows(keys, values)
        n_sequences, heads, count, d_k = keys.shape
        shape = heads, d_k, values.shape[3]
        with self._guard():
            now = self._settled()
            if now.shape != shape:
                if now.shape is not None:
                    raise ValueError(f"keys and values of shape {shape} (heads, d_k, d_v) were given for a cache of shape {now.shape}")
                layer_policy(self.settings, shape)  # raises if the policy is not for such a shape
            sequences, padding, floors = now.sequences, now.padding, now.floors
            if not sequences:
                sequences, padding, floors = (None,) * n_sequences, (0,) * n_sequences, (0,) * n_sequences
            if n_sequences != len(sequences):
                raise ValueError(f"keys of {n_sequences} sequences were given for a cache of {len(sequences)} sequences")
            if now.columns + count > MOST:
                raise ValueError(f"{count} tokens were given for a cache of {now.columns} tokens, but it can hold at most {MOST}")
            version = next_version()
            pending = (floats(keys), floats(values)) if count else None
            before = now if now.before is None else now._replace(before=None)
            self._now = contents((sequences, padding, now.columns + count, now.end, floors, shape, keys.dtype, pending,
                                  before if count else None, version, now.tails))
        return Keys(self, version), Values(self, version)

    def keys_and_values(self) -> Tuple[Keys, Values]:
        """What the last update returned. Models in which layers share keys call it."""
        version = self._now.version
        return Keys(self, version), Values(self, version)

    def make_mask(self, N: int, return_array: bool = False, window_size: Optional[int] = None) -> Any:
        """None and "causal" are enough: attention knows the padding of a batch and the bound of a ring."""
        now = self._now
        if window_size is not None or return_array and (N > 1 or any(now.padding)):
            return causal_mask(N, now.columns, window_size, now.padding)
        return None if N == 1 else "causal"

    @property
    def keys(self) -> Optional[Keys]:
        """The keys that the last update returned; None if the cache is empty. decode() makes an array of them."""
        return None if self.empty() else self.keys_and_values()[0]

    @property
    def values(self) -> Optional[Values]:
        """The values that belong to `keys`."""
        return None if self.empty() else self.keys_and_values()[1]

    # -------------------------------------------------------------- attention

    def _attend(self, q: mx.array, scale: float, mask: Any, sinks: Optional[mx.array], version: Optional[int] = None) -> mx.array:
        scale = check_scale(scale)
        check_floats(q, "queries", "sequence, query head, token, channel")
        with self._guard():
            if self._unsure:
                self._repair()
            now = self._now
            if version is not None and version != now.version:
                raise ValueError("the cache has changed since it returned these keys")
            masks, bidirectional = self._check_queries(now, q, mask, sinks)
            n_sequences, n_heads, count, _ = q.shape
            assert now.shape is not None
            size = n_sequences, n_heads, count, now.shape[2]
            if not count:
                return mx.zeros(size, q.dtype)
            if now.pending is not None and now.pending[0].shape[2] != count:
                now = self._encode(now)
            asked = floats(q)
            wanted: List[mx.array] = [bits(asked)]
            if masks is not None:
                wanted.append(masks.array)
            if sinks is not None:
                wanted.append(sinks.astype(mx.float32))
            try:
                arrays = self._evaluate(now, wanted)
                queries, logits = look(wanted[0]), None if sinks is None else look(wanted[-1])
                ragged = now.end is not None or any(p > now.columns - count for p in now.padding)
                out = (np.zeros if ragged else np.empty)(size, queries.dtype)
                work = self._work(now)
                piece = PIECE if self.settings.max_tokens else count
                start = now.columns - count
                for first in range(start, now.columns, piece):
                    last = min(first + piece, now.columns)
                    if now.pending is not None:
                        self._append(now, work, arrays, first, last)
                        if last == now.columns:
                            now = self._commit(now, work)
                    parts = self._parts(now, work, start, first, last)
                    attend(self.pools, parts, queries, out, FORMS[asked.dtype], scale, logits, masks, bidirectional)
            except Exception:
                self._take_back(now)
                raise
            return new(out, q.dtype)

    def _check_queries(self, now: Contents, q: mx.array, mask: Any, sinks: Optional[mx.array]) -> Tuple[Optional[Masks], bool]:
        """The mask, and whether queries see keys behind them as well."""
        n_sequences, n_heads, count, d = q.shape
        if now.shape is None:
            raise ValueError("the cache has no keys yet")
        if n_sequences != len(now.sequences) or d != now.shape[1] or not n_heads or n_heads % now.shape[0] or count > now.columns:
            raise ValueError(f"queries of shape {q.shape} do not match keys of shape {self._rows_shape('k')}")
        if isinstance(mask, str) and mask != "causal":
            raise ValueError(f"there is no mask {mask!r}; use \"causal\", an array or None")
        if sinks is not None:
            check_floats(sinks, "sinks")
            if sinks.shape != (n_heads,):
                raise ValueError(f"sinks has shape {sinks.shape}, but there are {n_heads} query heads")
        masks = None if mask is None or isinstance(mask, str) else Masks(mask, n_sequences, n_heads, count, now.columns)
        ring = bool(self.settings.max_tokens)
        bidirectional = count > 1 and mask != "causal" if masks is None else not ring
        if ring and bidirectional:
            raise ValueError("a cache with max_tokens needs a causal mask")
        if ring and count > PIECE and (now.pending is None or now.pending[0].shape[2] != count):
            raise ValueError(f"{count} queries in one call, but max_tokens may already have dropped keys that they need")
        return masks, bidirectional

    def _parts(self, now: Contents, work: Seq[Optional[Sequence]], start: int, first: int, last: int) -> List[Part]:
        """The queries of the columns [first, last), without padding. Query 0 is that of column `start`."""
        found = []
        for i, sequence in enumerate(work):
            begin, end = now.tokens(i, first, last)
            if begin < end:
                assert sequence is not None
                position = begin - now.padding[i]
                if now.floors[i] and self.settings.shows_filler(position + 1, now.floors[i]):
                    raise ValueError("the queries need keys that the bound had dropped before the cache was converted")
                found.append(Part(i, sequence, begin - start, end - begin, position, now.padding[i]))
        return found

    # ----------------------------------------------------------------- append

    def _pool(self) -> Pool:
        assert self._now.shape is not None
        return pool_of(self.pools, self.settings, self._now.shape)

    @staticmethod
    def _evaluate(now: Contents, wanted: Seq[mx.array]) -> Tuple[Array, ...]:
        """Evaluates what attention needs, and the pending rows, which are returned."""
        arrays = [] if now.pending is None else [bits(x) for x in now.pending]
        mx.eval(wanted, arrays)
        return tuple(look(x) for x in arrays)

    def _work(self, now: Contents) -> List[Optional[Sequence]]:
        """The sequences that pending rows are appended to. These are forks where the rows could not be trimmed again, because a ring
        drops others for them."""
        if now.pending is None or not self.settings.max_tokens:
            return list(now.sequences)
        count, spare = now.pending[0].shape[2], self.settings.spare
        if all(s is not None and count <= s.ring.spare_tokens - spare for s in now.sequences):
            return list(now.sequences)
        return [None if s is None else s.fork() for s in now.sequences]

    def _append(self, now: Contents, work: List[Optional[Sequence]], arrays: Tuple[Array, ...], first: int, last: int) -> None:
        """Encodes the columns [first, last) of the pending rows."""
        assert now.pending is not None and now.shape is not None
        k, v = arrays
        k_form, v_form = FORMS[now.pending[0].dtype], FORMS[now.pending[1].dtype]
        k_at, v_at = k.ctypes.data, v.ctypes.data
        start = now.columns - k.shape[2]
        which, counts, given = [], [], []
        for i, sequence in enumerate(work):
            begin, end = now.tokens(i, first, last)
            if begin < end:
                if sequence is None:
                    sequence = work[i] = pool_of(self.pools, self.settings, now.shape).sequence(**self.settings.ring)
                which.append(sequence)
                counts.append(end - begin)
                at = i, begin - start, end - begin
                given.append((rows(k, k_form, *at, k_at), rows(v, v_form, *at, v_at)))
        if which:
            self._unsure = True
            self._open.append(which, counts, given)

    def _commit(self, now: Contents, work: Seq[Optional[Sequence]]) -> Contents:
        """The pending rows are encoded."""
        sequences = tuple(work)
        before = now.before if self.settings.max_tokens and sequences != now.sequences else None
        done = self._now = contents((sequences, now.padding, now.columns, now.end, now.floors, now.shape, now.dtype, None, before, now.version,
                                      now.tails))
        self._unsure = False
        return done

    def _take_back(self, now: Contents) -> None:
        """After a failure: the cache is as before the last update, if the rows of that are not encoded yet."""
        if self._now is now and now.pending is not None and now.before is not None:
            self._now = now.before._replace(version=next_version())
            self._repair()

    def _repair(self) -> None:
        """Ends what an interrupted call has left open."""
        self._open.abort()
        now = self._now
        for i, sequence in enumerate(now.sequences):
            if sequence is not None and sequence.length != now.length(i):
                sequence.trim(now.length(i))
        self._unsure = False

    def _encode(self, now: Contents) -> Contents:
        """Encodes the pending rows, which no attention call has used yet."""
        assert now.pending is not None
        try:
            arrays = self._evaluate(now, ())
            work = self._work(now)
            self._append(now, work, arrays, now.columns - arrays[0].shape[2], now.columns)
            return self._commit(now, work)
        except Exception:
            self._take_back(now)
            raise

    def _settled(self) -> Contents:
        """The contents, repaired and encoded. The caller has the lock."""
        if self._unsure:
            self._repair()
        now = self._now
        return now if now.pending is None else self._encode(now)

    def _settle(self) -> Contents:
        with self._guard():
            return self._settled()

    # --------------------------------------------------------- what engines call

    def size(self) -> int:
        """The number of tokens that can be attended to: at most max_tokens."""
        return min(self._columns, self.settings.max_tokens or self._columns)

    def empty(self) -> bool:
        """True if the cache has no tokens."""
        return self._columns == 0

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that the cache uses, those that it needs to take back the last update included. Pages shared by several caches
        count in each of them."""
        with self._guard():
            now = self._settled()
            found = [s for s in now.sequences + (() if now.before is None else now.before.sequences) if s is not None]
            pages = {page for s in found for page in pages_of(s)}
            return len(pages) * found[0].pool.plan.page_bytes()[0] if found else 0

    def is_trimmable(self) -> bool:
        """A cache whose bound has dropped tokens can be trimmed only if `spare` is set, by that many tokens."""
        now, s = self._now, self.settings
        if not s.max_tokens or now.columns < s.max_tokens:
            return True
        return bool(s.spare) and not any(f and s.shows_filler(now.columns - p - s.spare, f) for f, p in zip(now.floors, now.padding))

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all if there are fewer, and returns how many these were."""
        try:
            count = operator.index(count)
        except TypeError:
            raise TypeError(f"count is a {type(count).__name__}, not an integer") from None
        if count < 0:
            raise ValueError(f"count is {count}, but only tokens that are there can be trimmed")
        with self._guard():
            if self._unsure:
                self._repair()
            now = self._now
            count = min(now.columns, count)
            columns = now.columns - count
            if count and now.before is not None and columns <= now.before.columns:
                # The last update as a whole. Its rows may not be encoded yet, and a ring may have dropped others for them.
                now = now.before
            elif count:
                now = self._settled()
            lengths = [now._replace(columns=columns).length(i) for i in range(len(now.sequences))] if columns < now.columns else []
            for sequence, length, floor in zip(now.sequences, lengths, now.floors):
                gone = sequence is not None and 0 < length < min(sequence.trim_floor, sequence.length)
                if gone or floor and self.settings.shows_filler(length, floor):
                    raise ValueError(f"{count} tokens cannot be trimmed: max_tokens={self.settings.max_tokens} has dropped rows that would "
                                     f"become visible again; use a larger spare than {self.settings.spare}")
            floors = tuple(f if length > self.settings.sinks else 0 for f, length in zip(now.floors, lengths)) if lengths else now.floors
            self._unsure = True
            self._now = now.changed(columns=columns, floors=floors)
            self._repair()
            return count

    # ------------------------------------------------------------------- rows

    def _rows_shape(self, side: str) -> Tuple[int, int, int, int]:
        now = self._now
        heads, d_k, d_v = now.shape or (0, 0, 0)
        return len(now.sequences), heads, now.columns, d_k if side == "k" else d_v

    def _decode(self, side: str) -> mx.array:
        with self._guard():
            now = self._settled()
            name = NAMES.get(now.dtype, "f32")
            out = np.zeros(self._rows_shape(side), np.uint16 if name == "bf16" else np.float16 if name == "f16" else np.float32)
            for i, sequence in enumerate(now.sequences):
                if sequence is None:
                    continue
                for first, count in held(sequence):
                    at = now.padding[i] + first
                    out[i, :, at:at + count] = sequence.rows(side, 0, first, count, dtype=name).transpose(1, 0, 2)
            return new(out, now.dtype)

    @property
    def _sequences(self) -> Tuple[Optional[Sequence], ...]:
        return self._now.sequences

    @property
    def _padding(self) -> Tuple[int, ...]:
        return self._now.padding

    @property
    def _columns(self) -> int:
        return self._now.columns

    @property
    def _shape(self) -> Optional[Tuple[int, int, int]]:
        return self._now.shape

    @property
    def _dtype(self) -> Any:
        return self._now.dtype

    @property
    def _version(self) -> int:
        return self._now.version

    # ------------------------------------------------------------------ copies

    def _forks(self, which: Optional[Seq[int]] = None) -> Contents:
        """The contents with forks of some of the sequences, or of all."""
        with self._guard():
            now = self._settled()
            if which is None:
                which = range(len(now.sequences))
            found = [now.sequences[i] for i in which]
            pick = lambda values: None if values is None else tuple(values[i] for i in which)
            return now.changed(sequences=tuple(None if s is None else s.fork() for s in found), padding=pick(now.padding),
                               floors=pick(now.floors), end=pick(now.end), tails=pick(now.tails))

    def _like(self, cls: Any, contents: Contents) -> Any:
        """A cache of the class `cls` with the same settings."""
        other = cls.__new__(cls)
        Cache.__init__(other, self.settings, self.pools)
        other._now = contents
        return other

    def __deepcopy__(self, _: Any) -> Any:
        return self._like(type(self), self._forks())

    def __copy__(self) -> Any:
        return self.__deepcopy__(None)

    def __repr__(self) -> str:
        return f"<quire {type(self).__name__} {self.settings.policy}, {len(self._sequences)} sequences, {self._columns} tokens>"
