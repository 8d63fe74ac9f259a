# SPDX-License-Identifier: MIT
"""The two kinds of caches: for sequences of one length, and for batches of sequences with different lengths."""

from __future__ import annotations

import copy
from typing import Any, List, Optional, Sequence as Seq

import mlx.core as mx

from ..sequence import Sequence
from .arrays import numbers
from .cache import Cache, Settings
from .pools import Pools
from .state import State, load


class StatefulCache(Cache):
    """A cache that is saved and loaded through its `state`."""

    @property
    def state(self) -> Any:
        self._settle()
        return State(self)

    @state.setter
    def state(self, saved: Any) -> None:
        load(self, saved)


class SingleCache(StatefulCache):
    """A cache of one sequence, or of several with the same length.

    policy: the codecs of K and V (docs/policy.md). max_tokens: keep at most this many tokens, the first `sinks` and the most recent
    ones. spare: this many tokens can be trimmed after others were dropped, as speculative decoding needs.
    """

    _batch: Any = None  # the class of a batch of such caches

    def __init__(self, policy: str = "k8v4", *, max_tokens: Optional[int] = None, sinks: int = 4, spare: int = 0, index: int = 0,
                 n_layers: int = 1, pools: Optional[Pools] = None) -> None:
        if max_tokens is not None and not 0 <= sinks < max_tokens:
            raise ValueError(f"sinks must be at least 0 and less than max_tokens; sinks={sinks}, max_tokens={max_tokens}")
        bound = (0, 0, 0) if max_tokens is None else (max_tokens, sinks, spare)
        super().__init__(Settings(policy, index, n_layers, *bound), pools)

    @property
    def offset(self) -> int:
        return self._columns

    @classmethod
    def merge(cls, caches: Seq[Any]) -> Any:
        return cls._batch.merge(caches)


class BatchCache(StatefulCache):
    """Sequences of different lengths, with the columns of the engines' BatchKVCache: sequence i is in columns left_padding[i] to the last."""

    _single: Any = None  # the class of a cache of one of the sequences

    def __init__(self, left_padding: Seq[int], settings: Settings, pools: Optional[Pools] = None) -> None:
        super().__init__(settings, pools, left_padding)

    @property
    def offset(self) -> mx.array:
        """The position of the next token of each sequence."""
        return mx.array([self._columns - p for p in self._padding])

    @property
    def left_padding(self) -> mx.array:
        return mx.array(self._padding)

    @classmethod
    def merge(cls, caches: Seq[Any]) -> Any:
        first = next((c for c in caches if not c.empty()), caches[0])
        for c in caches:
            if not isinstance(c, cls._single) or c.settings != first.settings or c.pools is not first.pools:
                raise ValueError("only Quire caches of the same policy, bound, layer and pools can be merged")
            if len(c._sequences) > 1 or c._shape not in (None, first._shape):
                raise ValueError("only caches of one sequence and of the same shape can be merged")
        columns = max(c._columns for c in caches)
        batch = cls([columns - c._columns for c in caches], first.settings, first.pools)
        batch._sequences = [c._fork([0])[0] if c._sequences else None for c in caches]
        batch._columns, batch._shape, batch._dtype = columns, first._shape, first._dtype
        return batch

    def prepare(self, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None) -> None:
        if left_padding is not None:
            if self._columns:
                raise ValueError("left padding can only be added to an empty batch")
            self._padding = [p + l for p, l in zip(self._padding, numbers(left_padding))]
        if right_padding is not None and max(numbers(right_padding)) > 0:
            if lengths is None:
                raise ValueError("right_padding also needs lengths")
            self._settle()
            self._end = [self._columns + l for l in numbers(lengths)]

    def finalize(self) -> None:
        """Moves the padding from the right to the left. No row is moved, because padding is not stored."""
        self._settle()
        if self._end is not None:
            self._padding = [p + max(self._columns - e, 0) for p, e in zip(self._padding, self._end)]
            self._end = None
            self._version += 1

    def filter(self, batch_indices: Any) -> None:
        self._settle()
        which = numbers(batch_indices)
        seen: set[int] = set()
        kept: List[Optional[Sequence]] = []
        for i in which:
            sequence = self._sequences[i]
            kept.append(sequence.fork() if sequence is not None and i in seen else sequence)
            seen.add(i)
        self._sequences, self._padding = kept, [self._padding[i] for i in which]
        self._end = None if self._end is None else [self._end[i] for i in which]
        self._shift(-min(self._padding, default=0))

    def _shift(self, by: int) -> None:
        self._columns += by
        self._padding = [p + by for p in self._padding]
        self._end = None if self._end is None else [e + by for e in self._end]
        self._version += 1

    def extend(self, other: "BatchCache") -> None:
        self._settle()
        if other.settings != self.settings or other.pools is not self.pools or (self._end is None) != (other._end is None):
            raise ValueError("only Quire batches of the same policy, bound, layer and pools can be joined")
        if None not in (self._shape, other._shape) and self._shape != other._shape:
            raise ValueError("only batches of the same shape can be joined")
        added = other._like(type(self), range(len(other._sequences)))
        added._end = copy.copy(other._end)
        columns = max(self._columns, added._columns)
        self._shift(columns - self._columns)
        added._shift(columns - added._columns)
        self._sequences += added._sequences
        self._padding += added._padding
        if self._end is not None:
            self._end += added._end
        if self._shape is None:
            self._shape, self._dtype = added._shape, added._dtype

    def extract(self, idx: int) -> Any:
        one = self._like(self._single, [idx])
        end = self._columns if self._end is None else min(self._columns, self._end[idx])
        one._columns, one._padding = max(end - self._padding[idx], 0), [0]
        return one
