# SPDX-License-Identifier: MIT
"""The two kinds of caches: for sequences of one length, and for batches of sequences with different lengths."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence as Seq, Tuple

import mlx.core as mx

from ..sequence import Sequence
from .arrays import MOST, numbers, places
from .cache import Cache, Settings
from .contents import Contents, integer
from .pools import Pools
from .state import State, from_bytes, load, to_bytes


class StatefulCache(Cache):
    """A cache that is saved and loaded through its `state`."""

    @property
    def state(self) -> Any:
        """The contents as arrays, which save_prompt_cache() writes. Assigning one replaces the contents. Reading it frees what an update could have
        been taken back to."""
        # Engines read it when a piece of the prompt has gone through all layers: what that could be taken back to is not needed any more.
        with self._guard():
            now = self._settled()
            if now.before is not None:
                self._now = now._replace(before=None)
        return State(self)

    @state.setter
    def state(self, saved: Any) -> None:
        load(self, saved)

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickles hold the snapshots of the sequences. What is unpickled is in the default pools."""
        return from_bytes, (type(self), to_bytes(self))


class SingleCache(StatefulCache):
    """A cache of one sequence, or of several with the same length.

    policy: the codecs of K and V (docs/policy.md). max_tokens: keep at most this many tokens, the first `sinks` and the most recent
    ones. spare: this many tokens can be trimmed after others were dropped, as speculative decoding needs.
    """

    _batch: Any = None  # the class of a batch of such caches

    def __init__(self, policy: str = "safe", *, max_tokens: Optional[int] = None, sinks: int = 4, spare: int = 0, index: int = 0,
                 n_layers: int = 1, pools: Optional[Pools] = None) -> None:
        # Without a bound they mean nothing, but a wrong one is a mistake all the same.
        bound = 0 if max_tokens is None else integer(max_tokens, "max_tokens", 1), integer(sinks, "sinks"), integer(spare, "spare")
        super().__init__(Settings(policy, index, n_layers, *(bound if bound[0] else ())), pools)

    @property
    def offset(self) -> int:
        """The number of tokens so far, also of those that a bound has dropped: the position of the next one."""
        return self._columns

    @classmethod
    def merge(cls, caches: Seq[Any]) -> Any:
        """A batch of the sequences of several caches. They share pages with it until one of them writes."""
        return cls._batch.merge(caches)


class BatchCache(StatefulCache):
    """Sequences of different lengths, with the columns of the engines' BatchKVCache: sequence i is in columns left_padding[i] to the last."""

    _single: Any = None  # the class of a cache of one of the sequences

    def __init__(self, left_padding: Seq[int], settings: Settings, pools: Optional[Pools] = None) -> None:
        super().__init__(settings, pools, numbers(left_padding, "left_padding"))

    @property
    def offset(self) -> mx.array:
        """The position of the next token of each sequence."""
        now = self._now
        return mx.array([now.columns - p for p in now.padding], mx.int32)

    @property
    def left_padding(self) -> mx.array:
        """The number of columns before the first token of each sequence."""
        return mx.array(list(self._padding), mx.int32)

    @classmethod
    def merge(cls, caches: Seq[Any]) -> Any:
        """A batch of the sequences of several caches. They share pages with it until one of them writes."""
        caches = list(caches)
        if not caches:
            raise ValueError("caches is empty, but a batch needs at least one cache")
        for c in caches:
            if not isinstance(c, cls._single):
                raise ValueError(f"only Quire caches can be merged, not a {type(c).__name__}")
        first = next((c for c in caches if not c.empty()), caches[0])
        if any(c.settings != first.settings or c.pools is not first.pools for c in caches):
            raise ValueError("only Quire caches of the same policy, bound, layer and pools can be merged")
        found = [c._forks() for c in caches]
        shape, dtype = next(((f.shape, f.dtype) for f in found if f.shape is not None), (None, mx.float32))
        if any(len(f.sequences) > 1 or f.shape not in (None, shape) for f in found):
            raise ValueError("only caches of one sequence and of the same shape can be merged")
        columns = max(f.columns for f in found)
        batch = cls([], first.settings, first.pools)
        batch._now = batch._now.changed(sequences=tuple(f.sequences[0] if f.sequences else None for f in found),
                                        padding=tuple(columns - f.columns for f in found), columns=columns,
                                        floors=tuple(f.floors[0] if f.floors else 0 for f in found), shape=shape, dtype=dtype)
        return batch

    def prepare(self, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None) -> None:
        """Announces the padding of the next prompts: at the left of an empty batch, or at the right, which finalize() ends."""
        with self._guard():
            now = self._settled()
            padding, end, count = now.padding, now.end, len(now.sequences)
            if left_padding is not None:
                if now.columns:
                    raise ValueError("left_padding can only be added to an empty batch")
                padding = tuple(p + more for p, more in zip(padding, numbers(left_padding, "left_padding", count)))
                if max(padding, default=0) > MOST:
                    raise ValueError(f"left_padding is {left_padding}; with what is there already it can be at most {MOST}")
            if right_padding is not None and max(numbers(right_padding, "right_padding", count), default=0) > 0:
                if lengths is None:
                    raise ValueError("right_padding also needs lengths")
                if end is not None:
                    raise ValueError("finalize() must be called before right_padding is given again")
                end = tuple(min(now.columns + length, MOST) for length in numbers(lengths, "lengths", count))
            self._now = now.changed(padding=padding, end=end)

    def finalize(self) -> None:
        """Moves the padding from the right to the left. No row is moved, because padding is not stored."""
        with self._guard():
            now = self._settled()
            if now.end is not None:
                self._now = now.changed(padding=tuple(p + max(now.columns - e, 0) for p, e in zip(now.padding, now.end)), end=None)

    def filter(self, batch_indices: Any) -> None:
        """Keeps the sequences with these indices, in this order. One that is named twice becomes two."""
        with self._guard():
            now = self._settled()
            which = places(batch_indices, "batch_indices", len(now.sequences))
            seen: set[int] = set()
            kept: List[Optional[Sequence]] = []
            for i in which:
                sequence = now.sequences[i]
                kept.append(sequence.fork() if sequence is not None and i in seen else sequence)
                seen.add(i)
            pick = lambda values: tuple(values[i] for i in which)
            # A batch without sequences has no padding that finalize() would have to move.
            found: Contents = now._replace(sequences=tuple(kept), padding=pick(now.padding), floors=pick(now.floors),
                                           end=pick(now.end) if now.end and which else None, tails=pick(now.tails) if now.tails and which else None)
            unused = min(found.padding, default=now.columns)  # columns in which nothing is left
            self._now = found.shifted(-min(unused, now.columns))

    def extend(self, other: "BatchCache") -> None:
        """Adds the sequences of another batch of the same policy."""
        if not isinstance(other, BatchCache):
            raise ValueError(f"only Quire batches can be joined, not a {type(other).__name__}")
        if other.settings != self.settings or other.pools is not self.pools:
            raise ValueError("only Quire batches of the same policy, bound, layer and pools can be joined")
        added = other._forks()  # before this cache is locked: never two at a time
        with self._guard():
            now = self._settled()
            if now.sequences and added.sequences and (now.end is None) != (added.end is None):
                raise ValueError("finalize() must be called on both batches, or on none, before they are joined")
            if None not in (now.shape, added.shape) and now.shape != added.shape:
                raise ValueError("only batches of the same shape can be joined")
            columns = max(now.columns, added.columns)
            now, added = now.shifted(columns - now.columns), added.shifted(columns - added.columns)
            known = added if now.shape is None else now
            tails = None
            if now.tails is not None or added.tails is not None:
                tails = (now.tails or (0,) * len(now.sequences)) + (added.tails or (0,) * len(added.sequences))
            end = (now.end or ()) + (added.end or ()) or None  # of both, or one of them has no sequences
            self._now = now.changed(sequences=now.sequences + added.sequences, padding=now.padding + added.padding,
                                    floors=now.floors + added.floors, end=end, shape=known.shape, dtype=known.dtype, tails=tails)

    def extract(self, idx: int) -> Any:
        """One sequence as a cache of its own. The batch keeps it, and they share pages."""
        which = places([idx], "idx", len(self._sequences))
        found = self._forks(which)
        end = found.columns if found.end is None else min(found.columns, found.end[0])
        return self._like(self._single, found.changed(columns=max(end - found.padding[0], 0), padding=(0,), end=None, tails=None))
