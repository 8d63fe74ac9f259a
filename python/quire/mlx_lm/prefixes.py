# SPDX-License-Identifier: MIT
"""Reuses prompts that were computed before, through pages in a store (docs/store.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Sequence as Seq, Tuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from .._mlx.arrays import numbers
from .._mlx.cache import Settings
from .._mlx.pools import Pools, pool_of
from ..errors import QuireError
from ..sequence import Sequence
from ..store import Identity, Namespace, Store
from .cache import QuireKVCache


class Prefixes:
    """The prompts of one model in a store.

    Every layer has its own pages, so 64 tokens are as many objects as the model has layers. Only for models with full attention in all
    layers, because the cache of a sliding window is not stored.
    """

    def __init__(self, store: Store, identity: Identity, model: Any, *, timeout: float = 10.0) -> None:
        self.store, self.identity, self.timeout = store, identity, timeout
        self._shapes = _shapes(model)
        self._namespaces: Dict[Tuple[Settings, Pools], Namespace] = {}

    def load(self, caches: Seq[Any], tokens: Seq[int]) -> int:
        """Fills empty caches with the longest stored prefix and returns its length. Compute the rest of the prompt yourself.

        At least one token is always left, because the model needs one to continue.
        """
        layers = self._check(caches)
        if any(not c.empty() for c in layers):
            raise ValueError("the caches are not empty")
        known = _ids(tokens)[:-1]
        sequences: List[Sequence] = []
        loads = []
        for cache, (shape, _) in zip(layers, self._shapes):
            sequences.append(pool_of(cache.pools, cache.settings, shape).sequence(**cache.settings.ring))
            loads.append(self._namespace(cache, shape).begin_load(known, sequences[-1], timeout=self.timeout))
        length = min([load.end() for load in loads], default=0)
        try:
            for sequence in sequences:
                sequence.trim(length)
        except QuireError:  # a ring whose layers came to different lengths
            length = 0
        if length:
            for cache, sequence, (shape, dtype) in zip(layers, sequences, self._shapes):
                cache._now = cache._now.changed(sequences=(sequence,), padding=(0,), floors=(0,), columns=length, shape=shape, dtype=dtype)
        return length

    def save(self, caches: Seq[Any], tokens: Seq[int]) -> None:
        """Hands finished pages to the store and returns at once. tokens: the tokens in the caches; more are allowed."""
        layers, known = self._check(caches), _ids(tokens)
        for cache, (shape, _) in zip(layers, self._shapes):
            if cache.offset > len(known):
                raise ValueError(f"{len(known)} tokens were given for a cache of {cache.offset} tokens")
            if cache._shape not in (None, shape):
                raise ValueError(f"a cache of shape {cache._shape} (heads, d_k, d_v) was given for a layer of shape {shape}")
        for cache, (shape, _) in zip(layers, self._shapes):
            with cache._guard():
                now = cache._settled()
                if any(now.floors):
                    raise ValueError("a cache that was converted from a RotatingKVCache cannot be saved: its first rows are not known")
                if now.sequences and now.sequences[0] is not None:
                    self._namespace(cache, shape).save(known[:now.columns], now.sequences[0])

    def close(self) -> None:
        """Waits until the queued pages are saved. The store stays open."""
        for namespace in self._namespaces.values():
            namespace.close()
        self._namespaces = {}

    def _check(self, caches: Seq[Any]) -> List[QuireKVCache]:
        layers = [c for c in caches if isinstance(c, QuireKVCache) and len(c._sequences) < 2]
        if len(layers) != len(caches) or len({id(c) for c in layers}) != len(self._shapes):
            raise ValueError("a store needs a QuireKVCache with one sequence for every layer of the model")
        if any((c.settings.index, c.settings.n_layers) != (i, len(layers)) for i, c in enumerate(layers)):
            raise ValueError("a store needs the caches in the order of the layers, as make_cache() gives them")
        return layers

    def _namespace(self, cache: QuireKVCache, shape: Tuple[int, int, int]) -> Namespace:
        key = cache.settings, cache.pools
        if key not in self._namespaces:
            s = cache.settings
            # Layers of one shape have the same plan; what tells their pages apart must stand in the identity.
            identity = replace(self.identity, weights=f"{self.identity.weights} layer {s.index} of {s.n_layers}")
            self._namespaces[key] = self.store.namespace(identity, pool_of(cache.pools, s, shape).plan, **s.ring)
        return self._namespaces[key]


def _ids(tokens: Any) -> List[int]:
    return numbers(tokens, "tokens")


def _shapes(model: Any) -> List[Tuple[Tuple[int, int, int], Any]]:
    """KV heads, d_k, d_v and dtype of each layer. MLX is lazy, so a forward pass that is never evaluated gives the shapes at no cost."""
    caches = make_prompt_cache(model)
    model(mx.array([[0]]), cache=caches)
    if any(type(c) is not KVCache for c in caches):
        raise ValueError("a layer of this model does not use a plain KVCache, so its prompts cannot be stored")
    return [((c.keys.shape[1], c.keys.shape[3], c.values.shape[3]), c.keys.dtype) for c in caches]
