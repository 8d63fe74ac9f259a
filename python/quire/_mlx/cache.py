# SPDX-License-Identifier: MIT
"""What every cache does: takes rows, computes attention, trims. The engines' own classes (QuireKVCache, BatchQuireKVCache) inherit from
caches.py.

Each row of a batch is a sequence of the library. Padding is never stored: a sequence contains only its tokens, and only the
bookkeeping counts columns, as mlx-lm and mlx-vlm do.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence as Seq, Tuple

import mlx.core as mx
import numpy as np

from .. import _native as n
from ..pool import Pool
from ..sequence import Sequence
from .arrays import FORMS, NAMES, Masks, bits, causal_mask, floats, look, new, rows
from .attend import Part, attend
from .pools import Pools, default_pools, layer_policy
from .rows import Keys, Values
from .steps import append_rows, held

# Rows that a ring keeps beyond its bound: a prompt goes through in pieces of that many tokens, and each piece's first query still
# sees all that it should.
_PIECE = 128


@dataclass(frozen=True)
class Settings:
    """policy: the policy of the whole model, of which this is layer `index` of `n_layers`. max_tokens 0: no bound. spare: the number of
    tokens that can still be trimmed after the bound has dropped others."""

    policy: str = "k8v4"
    index: int = 0
    n_layers: int = 1
    max_tokens: int = 0
    sinks: int = 0
    spare: int = 0

    @property
    def ring(self) -> Dict[str, int]:
        if not self.max_tokens:
            return {}
        return {"max_tokens": self.max_tokens, "sinks": self.sinks, "spare_tokens": max(self.spare, _PIECE)}


class Cache:
    def __init__(self, settings: Settings, pools: Optional[Pools] = None, padding: Optional[Seq[int]] = None) -> None:
        self.settings = settings
        self.pools = pools or default_pools()
        self._sequences: List[Optional[Sequence]] = [None] * len(padding or ())
        self._padding: List[int] = list(padding or ())  # columns before the first token
        self._columns = 0  # what the engines call offset, or _idx in batches
        self._end: Optional[List[int]] = None  # columns from here on are padding at the right
        self._shape: Optional[Tuple[int, int, int]] = None  # KV heads, d_k, d_v
        self._dtype: Any = mx.float32
        self._pending: Optional[Tuple[mx.array, mx.array]] = None  # of the last columns; coded when attention needs them
        self._version = 0

    # ------------------------------------------------------- what models call

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Tuple[Keys, Values]:
        self._settle()
        n_sequences, heads, count, d_k = keys.shape
        if not self._sequences:
            self._sequences, self._padding = [None] * n_sequences, [0] * n_sequences
        if n_sequences != len(self._sequences):
            raise ValueError(f"keys of {n_sequences} sequences were given for a cache of {len(self._sequences)} sequences")
        shape = heads, d_k, values.shape[3]
        if self._shape not in (None, shape):
            raise ValueError(f"keys and values of shape {shape} (heads, d_k, d_v) were given for a cache of shape {self._shape}")
        self._shape, self._dtype = shape, keys.dtype
        self._pending = floats(keys), floats(values)
        self._columns += count
        self._version += 1
        return Keys(self, self._version), Values(self, self._version)

    def make_mask(self, N: int, return_array: bool = False, window_size: Optional[int] = None) -> Any:
        """None and "causal" are enough: attention knows the padding of a batch and the bound of a ring."""
        if window_size is not None or return_array and (N > 1 or any(self._padding)):
            return causal_mask(N, self._columns, window_size, self._padding)
        return None if N == 1 else "causal"

    @property
    def keys(self) -> Optional[Keys]:
        return None if self.empty() else Keys(self, self._version)

    @property
    def values(self) -> Optional[Values]:
        return None if self.empty() else Values(self, self._version)

    # -------------------------------------------------------------- attention

    def _attend(self, q: mx.array, scale: float, mask: Any, sinks: Optional[mx.array]) -> mx.array:
        n_sequences, n_heads, count, d = q.shape
        shape = self._shape
        assert shape is not None
        if n_sequences != len(self._sequences) or d != shape[1] or n_heads % shape[0] or count > self._columns:
            raise ValueError(f"queries of shape {q.shape} do not match keys of shape {self._rows_shape('k')}")
        if isinstance(mask, str) and mask != "causal":
            raise ValueError(f"there is no mask {mask!r}; use \"causal\", an array or None")
        masks = None if mask is None or isinstance(mask, str) else Masks(mask, n_sequences, n_heads, count, self._columns)
        ring = bool(self.settings.max_tokens)
        bidirectional = count > 1 and mask != "causal" if masks is None else not ring
        if ring and bidirectional:
            raise ValueError("a cache with max_tokens needs a causal mask")
        pending, self._pending = self._pending, None
        asked = floats(q)
        wanted: List[mx.array] = [bits(asked)]
        wanted += [] if masks is None else [masks.array]
        wanted += [] if sinks is None else [sinks.astype(mx.float32)]
        arrays = [] if pending is None else [bits(x) for x in pending]
        mx.eval(wanted, arrays)
        queries, logits = look(wanted[0]), None if sinks is None else look(wanted[-1])
        make = np.zeros if self._is_ragged(count) else np.empty
        out = make((n_sequences, n_heads, count, shape[2]), queries.dtype)
        piece = _PIECE if ring else count
        if pending is None and count > piece:
            raise ValueError(f"{count} queries in one call, but max_tokens may already have dropped keys that they need")
        for first in range(0, count, piece):
            last = min(first + piece, count)
            if pending is not None:
                self._append(pending, arrays, count - last, last - first)
            parts = self._parts(count, first, last)
            attend(self.pools, parts, queries, out, FORMS[asked.dtype], scale, logits, masks, bidirectional)
        return new(out, q.dtype)

    def _is_ragged(self, count: int) -> bool:
        """True if some of the last columns are padding."""
        return self._end is not None or any(p > self._columns - count for p in self._padding)

    def _parts(self, count: int, first: int, last: int) -> List[Part]:
        """The queries [first, last) of the last `count` columns, without padding."""
        start = self._columns - count
        found = []
        for i, sequence in enumerate(self._sequences):
            begin, end = self._tokens(i, start + first, start + last)
            if begin < end:
                assert sequence is not None
                found.append(Part(i, sequence, begin - start, end - begin, begin - self._padding[i], self._padding[i]))
        return found

    def _tokens(self, i: int, first: int, last: int) -> Tuple[int, int]:
        """The part of the columns [first, last) that contains tokens of sequence i."""
        return max(first, self._padding[i]), last if self._end is None else min(last, self._end[i])

    # ----------------------------------------------------------------- append

    def _pool(self) -> Pool:
        assert self._shape is not None
        s = self.settings
        return self.pools.get(layer_policy(s.policy, s.index, s.n_layers, *self._shape), *self._shape)

    def _append(self, pending: Tuple[mx.array, mx.array], arrays: Seq[mx.array], behind: int, count: int) -> None:
        """Encodes `count` columns of the pending rows; `behind` more columns follow later."""
        pool: Optional[Pool] = None
        k, v = look(arrays[0]), look(arrays[1])
        k_form, v_form = FORMS[pending[0].dtype], FORMS[pending[1].dtype]
        last = self._columns - behind
        first, start = last - count, self._columns - k.shape[2]
        which, ranges = [], []
        for i, sequence in enumerate(self._sequences):
            begin, end = self._tokens(i, first, last)
            if begin < end:
                if sequence is None:
                    pool = pool or self._pool()
                    sequence = self._sequences[i] = pool.sequence(**self.settings.ring)
                which.append(sequence)
                ranges.append((i, begin - start, end - begin))
        if not which:
            return
        try:
            append_rows(which, [r[2] for r in ranges], [(rows(k, k_form, *r), rows(v, v_form, *r)) for r in ranges])
        except Exception:
            self._take_back(start)
            raise

    def _take_back(self, columns: int) -> None:
        """Removes the rows of a failed update, so that the cache is as before it."""
        self._columns, self._version = columns, self._version + 1
        for i, sequence in enumerate(self._sequences):
            if sequence is not None:
                sequence.trim(min(sequence.length, max(columns - self._padding[i], 0)))

    def _settle(self) -> None:
        """Encodes the pending rows, which no attention call has used yet."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            arrays = [bits(x) for x in pending]
            mx.eval(arrays)
            self._append(pending, arrays, 0, arrays[0].shape[2])

    # --------------------------------------------------------- what engines call

    def size(self) -> int:
        return min(self._columns, self.settings.max_tokens or self._columns)

    def empty(self) -> bool:
        return self._columns == 0

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that the cache uses. Pages shared by several caches count in each of them."""
        self._settle()
        return sum(n.lib.quire_seq_tiles(s._get(), 0, None, 0, 0) * s.pool.plan.page_bytes()[0] for s in self._sequences if s)

    def is_trimmable(self) -> bool:
        """A cache whose bound has dropped tokens can be trimmed only if `spare` is set, by that many tokens."""
        return not self.settings.max_tokens or bool(self.settings.spare) or self._columns < self.settings.max_tokens

    def trim(self, count: int) -> int:
        self._settle()
        count = min(self._columns, count)
        columns = self._columns - count
        lengths = [max(columns - p, 0) for p in self._padding]
        for sequence, length in zip(self._sequences, lengths):
            if sequence is not None and 0 < length < sequence.trim_floor:
                raise ValueError(f"{count} tokens cannot be trimmed: max_tokens={self.settings.max_tokens} has dropped rows that would become "
                                 f"visible again; use a larger spare than {self.settings.spare}")
        for sequence, length in zip(self._sequences, lengths):
            if sequence is not None:
                sequence.trim(min(length, sequence.length))
        self._columns = columns
        self._version += 1
        return count

    # ------------------------------------------------------------------- rows

    def _rows_shape(self, side: str) -> Tuple[int, int, int, int]:
        heads, d_k, d_v = self._shape or (0, 0, 0)
        return len(self._sequences), heads, self._columns, d_k if side == "k" else d_v

    def _decode(self, side: str) -> mx.array:
        self._settle()
        name = NAMES.get(self._dtype, "f32")
        out = np.zeros(self._rows_shape(side), np.uint16 if name == "bf16" else np.float16 if name == "f16" else np.float32)
        for i, sequence in enumerate(self._sequences):
            if sequence is None:
                continue
            for first, count in held(sequence):
                at = self._padding[i] + first
                out[i, :, at:at + count] = sequence.rows(side, 0, first, count, dtype=name).transpose(1, 0, 2)
        return new(out, self._dtype)

    # ------------------------------------------------------------------ copies

    def _fork(self, which: Seq[int]) -> List[Optional[Sequence]]:
        self._settle()
        found = [self._sequences[i] for i in which]
        return [None if s is None else s.fork() for s in found]

    def _like(self, cls: Any, which: Seq[int]) -> Any:
        """A cache of the class `cls` with forks of some of the sequences."""
        other = cls.__new__(cls)
        Cache.__init__(other, self.settings, self.pools)
        other._sequences = self._fork(which)
        other._padding = [self._padding[i] for i in which]
        other._columns, other._shape, other._dtype = self._columns, self._shape, self._dtype
        return other

    def __deepcopy__(self, _: Any) -> Any:
        other = self._like(type(self), range(len(self._sequences)))
        other._end = copy.copy(self._end)
        return other

    def __copy__(self) -> Any:
        return self.__deepcopy__(None)

    def __repr__(self) -> str:
        return f"<quire {type(self).__name__} {self.settings.policy}, {len(self._sequences)} sequences, {self._columns} tokens>"
