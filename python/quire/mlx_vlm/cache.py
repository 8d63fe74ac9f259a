# SPDX-License-Identifier: MIT
"""Caches that mlx-vlm can use instead of its own: QuireKVCache for KVCache, QuantizedKVCache, TurboQuantKVCache and RotatingKVCache,
BatchQuireKVCache for the batch versions.

Neither has an attribute `bits`: mlx-vlm takes that as a sign that keys and values are tuples of arrays.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence as Seq

from mlx_vlm.models.cache import CacheMemory, KVCache, _BaseCache

from .. import _native as n
from .._mlx.arrays import numbers, places
from .._mlx.caches import BatchCache, SingleCache, StatefulCache
from .._mlx.contents import Contents, next_version
from .._mlx.pools import Pools
from .._mlx.state import load, save


class _VlmCache(StatefulCache, _BaseCache):
    """What mlx-vlm calls on caches of both kinds, beyond what mlx-lm calls."""

    def memory_profile(self, token_count: int) -> CacheMemory:
        """What mlx-vlm's prefix cache needs to know before it keeps a copy. Memory is taken in pages of 64 tokens."""
        if self._shape is None:
            return CacheMemory()
        ring = self.settings.ring
        rows = max(len(self._sequences), 1)
        return CacheMemory(source_bytes=self.nbytes, bytes_per_token=rows * self._pool().plan.page_bytes()[0] / n.PAGE_TOKENS,
                           step=n.PAGE_TOKENS, window_size=ring["max_tokens"] + ring["spare_tokens"] if ring else None)

    def prefix_cache_snapshot(self) -> Dict[str, Any]:
        """The codes as they are: a copy needs the memory of the cache, and a restored cache has the same bits."""
        return {"state": save(self), "meta_state": "", "pools": self.pools}

    def prefix_cache_restore(self, snapshot: Dict[str, Any]) -> None:
        if not isinstance(snapshot, dict) or "state" not in snapshot:
            raise ValueError("snapshot is not what prefix_cache_snapshot() returns")
        pools = snapshot.get("pools", self.pools)
        if pools is not None and not isinstance(pools, Pools):
            raise TypeError(f"pools in snapshot is a {type(pools).__name__}, not a Pools")
        load(self, snapshot["state"], pools)


class QuireKVCache(SingleCache, _VlmCache):
    __doc__ = SingleCache.__doc__

    @property
    def max_size(self) -> Optional[int]:
        """mlx-vlm reuses a cache for another prompt only while this bound has dropped nothing."""
        return self.settings.max_tokens or None

    def extract(self, idx: int) -> "QuireKVCache":
        """One of the sequences, as a cache of its own that shares its pages."""
        which = places([idx], "idx", max(len(self._sequences), 1))
        one: QuireKVCache = self._like(type(self), self._forks(which if self._sequences else ()))
        return one

    def to_batch(self, left_padding: Any) -> "BatchQuireKVCache":
        """Called by mlx-vlm's batch generator, which asks the model for empty caches and makes batches of them."""
        if not self.empty():
            raise ValueError("only an empty cache can become a batch with left padding; use merge() for caches with tokens")
        return BatchQuireKVCache(left_padding, self.settings, self.pools)

    @classmethod
    def merge(cls, caches: Seq[Any], prefix_lens: Any = None) -> "BatchQuireKVCache":
        """A batch of the sequences of several caches. They share pages with it until one of them writes."""
        return BatchQuireKVCache.merge(caches)

    def prefix_cache_merge(self, rows: Seq[Any], prefix_lens: Any) -> Optional["BatchQuireKVCache"]:
        """A batch of restored caches; None if they do not belong together. mlx-vlm may give an empty KVCache for a row without a prefix."""
        if not rows or len(rows) != len(prefix_lens):
            return None
        ours: List[QuireKVCache] = []
        for row, length in zip(rows, numbers(prefix_lens, "prefix_lens")):
            if type(row) is KVCache and row.keys is None:
                row = self._like(QuireKVCache, Contents(version=next_version()))
            if not isinstance(row, QuireKVCache) or row.settings != self.settings or row.pools is not self.pools or row.offset != length:
                return None
            ours.append(row)
        return BatchQuireKVCache.merge(ours)


class BatchQuireKVCache(BatchCache, _VlmCache):
    __doc__ = BatchCache.__doc__
    _single = QuireKVCache

    @property
    def _idx(self) -> int:
        """Columns so far: mlx-vlm reads the attribute of that name."""
        return self._columns

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return len(self._padding)

    def is_single_row(self) -> bool:
        """True if there is one sequence."""
        return len(self._padding) == 1

    @classmethod
    def merge(cls, caches: Seq[Any], prefix_lens: Any = None) -> "BatchQuireKVCache":
        """A batch of the sequences of several caches. They share pages with it until one of them writes."""
        if any(type(c) is KVCache for c in caches):
            raise ValueError("the model has put rows into a KVCache of its own instead of this batch; Quire batches do not work with it")
        batch: BatchQuireKVCache = super().merge(caches)
        return batch

    def prepare(self, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None) -> None:
        """right_padding without lengths: as speculative decoding uses it, for tokens that are in the cache already and were refused."""
        if right_padding is None or lengths is not None:
            super().prepare(left_padding=left_padding, lengths=lengths, right_padding=right_padding)
            return
        tails = tuple(numbers(right_padding, "right_padding", len(self._padding)))
        super().prepare(left_padding=left_padding)
        with self._guard():
            now = self._settled()
            if len(tails) != len(now.padding):
                raise RuntimeError("another thread has changed the batch")
            self._now = now.changed(tails=tails)

    def finalize(self) -> None:
        super().finalize()
        with self._guard():
            now = self._settled()
            if now.tails is None:
                return
            tails = [min(tail, now.length(i)) for i, tail in enumerate(now.tails)]
            after = now.changed(padding=tuple(p + tail for p, tail in zip(now.padding, tails)), tails=None)
            for i, (sequence, tail) in enumerate(zip(now.sequences, tails)):
                length = after.length(i)
                gone = sequence is not None and 0 < length < min(sequence.trim_floor, sequence.length)
                if tail and (gone or now.floors[i] and self.settings.shows_filler(length, now.floors[i])):
                    raise ValueError(f"{tail} tokens cannot be dropped: max_tokens={self.settings.max_tokens} has dropped rows that would become "
                                     f"visible again; use a larger spare than {self.settings.spare}")
            self._unsure = True
            self._now = after
            self._repair()


QuireKVCache._batch = BatchQuireKVCache
