# SPDX-License-Identifier: MIT
"""Brings the caches of a model to one length after an interrupt."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence as Seq

from .cache import BatchQuireKVCache, QuireKVCache


def recover(caches: Seq[Any]) -> int:
    """Trims the caches of all layers of a model to the length of the shortest, and returns that length: the number of tokens of the prompt that
    they still hold (for batches: columns).

    An interrupt (Ctrl-C, an exception from a signal handler) during a forward pass leaves the layers that were computed with more tokens than the
    others. Each Quire cache by itself is right: as before the pass or as after it. Afterwards give the model the tokens from the returned
    length on. Raises ValueError if a layer cannot go back: a recurrent state, which has no length, or a full sliding window of mlx-lm.
    """
    layers: List[Any] = list(caches)
    if not layers:
        raise ValueError("caches is empty")
    padding = {c._padding for c in layers if isinstance(c, BatchQuireKVCache)}
    if len(padding) > 1:
        raise ValueError("the layers hold different sequences, because the interrupt came while sequences joined or left the batch")
    lengths = [_length(c) for c in layers]
    shortest = min((n for n in lengths if n is not None), default=0)
    longer = [(c, n - shortest) for c, n in zip(layers, lengths) if n is not None and n > shortest]
    for cache, length in zip(layers, lengths):
        if length is None and not cache.empty():
            raise ValueError(f"a {type(cache).__name__} does not say how many tokens it has seen and cannot go back; make new caches")
    for cache, count in longer:
        if not isinstance(cache, (QuireKVCache, BatchQuireKVCache)) and not cache.is_trimmable():
            raise ValueError(f"a {type(cache).__name__} has {count} tokens more than the shortest layer and cannot go back; make new caches")
    # mlx-lm's own trims cannot fail, so they come last.
    for cache, count in sorted(longer, key=lambda pair: not isinstance(pair[0], (QuireKVCache, BatchQuireKVCache))):
        cache.trim(count)
    return shortest


def _length(cache: Any) -> Optional[int]:
    """Tokens or columns of a cache; None if it has no such number."""
    if isinstance(cache, (QuireKVCache, BatchQuireKVCache)):
        return int(cache._columns)
    at = getattr(cache, "_idx", None) if type(cache).__name__.startswith("Batch") else getattr(cache, "offset", None)
    return at if isinstance(at, int) else None
