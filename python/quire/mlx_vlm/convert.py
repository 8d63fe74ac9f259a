# SPDX-License-Identifier: MIT
"""Converts live caches of mlx-vlm to Quire caches and back."""

from __future__ import annotations

from typing import Any, Optional

import mlx.core as mx
from mlx_vlm.models.cache import BatchKVCache, BatchQuantizedKVCache, KVCache, QuantizedKVCache, RotatingKVCache
from mlx_vlm.turboquant import BatchTurboQuantKVCache, HybridQuantKVCache, TurboQuantKVCache

from .._mlx.cache import Cache, Settings
from .._mlx.contents import integer
from .._mlx.convert import check_position, codecs_of, give_affine, give_floats, take_affine, take_floats, take_ring
from .._mlx.pools import Pools
from . import turboquant
from .cache import BatchQuireKVCache, QuireKVCache

_BATCHES = BatchKVCache, BatchQuantizedKVCache, BatchTurboQuantKVCache
_TURBO = TurboQuantKVCache, BatchTurboQuantKVCache


def from_mlx(cache: Any, policy: Optional[str] = None, *, index: int = 0, n_layers: int = 1, spare: int = 0,
             pools: Optional[Pools] = None) -> Any:
    """A QuireKVCache with the tokens of a KVCache, QuantizedKVCache, TurboQuantKVCache, HybridQuantKVCache or RotatingKVCache, or a
    BatchQuireKVCache with those of a BatchKVCache, BatchQuantizedKVCache or BatchTurboQuantKVCache. The original cache is not changed.

    policy None: the codecs of a quantized cache, otherwise safe. Codes are copied bit for bit if the policy has the same codecs; scales and
    biases of affine codes in bf16 or f32 are rounded to f16. With other codecs the rows go through floats and are encoded a second time. A
    TurboQuant state that Quire has no codes for (half bits, other seeds, head sizes that are not powers of two) is refused unless a policy is
    given.
    """
    kind: Any = type(cache)
    if kind not in (*_BATCHES, KVCache, QuantizedKVCache, TurboQuantKVCache, HybridQuantKVCache, RotatingKVCache):
        raise TypeError(f"cache is a {kind.__name__}, which cannot be converted to a Quire cache; help(from_mlx) lists those that can")
    if kind is HybridQuantKVCache and policy is None:
        raise ValueError("K and V of a HybridQuantKVCache have different kinds of codes; name a policy, and they go through floats")
    if kind in _TURBO:
        if cache.keys is not None and cache.values is not None:
            turboquant.check(cache, cache._idx if kind is BatchTurboQuantKVCache else cache.offset)
        policy = turboquant.policy_of(cache) if policy is None else policy
    elif policy is None:
        policy = f"a{cache.bits}g{cache.group_size}" if kind in (QuantizedKVCache, BatchQuantizedKVCache) else "safe"
    integer(spare, "spare")  # also where there is no bound
    if kind in _BATCHES:
        if getattr(cache, "_right_padding", None) is not None:
            raise ValueError("the batch has padding at the right; call finalize() first")
        return _take(BatchQuireKVCache(cache.left_padding, Settings(policy, index, n_layers), pools), cache, cache._idx)
    if kind is RotatingKVCache:
        ring = QuireKVCache(policy, max_tokens=cache.max_size, sinks=min(cache.keep, cache.max_size - 1), spare=spare, index=index,
                            n_layers=n_layers, pools=pools)
        if cache.keys is not None and cache.offset:
            take_ring(ring, cache._temporal_order(cache.keys), cache._temporal_order(cache.values), cache.offset)
        return ring
    return _take(QuireKVCache(policy, index=index, n_layers=n_layers, pools=pools), cache, cache.offset)


def _take(ours: Cache, cache: Any, count: int) -> Any:
    if cache.keys is None or not count:
        return ours
    if cache.values is None:
        raise ValueError(f"the {type(cache).__name__} has keys, but no values")
    if isinstance(cache, _TURBO):
        if not turboquant.take(ours, cache, count):
            take_floats(ours, *turboquant.floats(cache, count))
    elif isinstance(cache, HybridQuantKVCache):
        take_floats(ours, *cache.dequantize())
    elif isinstance(cache, (QuantizedKVCache, BatchQuantizedKVCache)):
        check_position(cache, count, cache.keys[0].shape[2])
        k, v = (tuple(x[..., :count, :] for x in side) for side in (cache.keys, cache.values))
        take_affine(ours, cache.group_size, cache.bits, k, v)
    else:
        check_position(cache, count, cache.keys.shape[2])
        take_floats(ours, cache.keys[..., :count, :], cache.values[..., :count, :])
    return ours


def to_mlx(cache: Any, *, quantized: bool = False) -> Any:
    """A cache of mlx-vlm with the same tokens, in the state it would have if it had processed them: KVCache, BatchKVCache, or
    RotatingKVCache if there is a bound.

    quantized=True: with the same codes bit for bit. tv codecs give a TurboQuantKVCache or BatchTurboQuantKVCache; an affine codec that K and V
    share gives a QuantizedKVCache or BatchQuantizedKVCache. There must be no bound.
    """
    if not isinstance(cache, (QuireKVCache, BatchQuireKVCache)):
        raise TypeError(f"expected a Quire cache, not a {type(cache).__name__}")
    now = cache._settle()
    is_batch = isinstance(cache, BatchQuireKVCache)
    if is_batch and cache.settings.max_tokens:
        raise ValueError("a batch with a bound cannot become a batch of mlx-vlm")
    if now.end is not None or now.tails is not None:
        raise ValueError("the batch has padding at the right; call finalize() first")
    if quantized:
        return _give_quantized(cache, is_batch)
    bound = cache.settings.max_tokens
    theirs: Any = BatchKVCache(list(now.padding)) if is_batch else RotatingKVCache(bound, cache.settings.sinks) if bound else KVCache()
    if now.columns and now.shape is not None:
        theirs.keys, theirs.values = give_floats(cache)
        _place(theirs, cache, is_batch)
    if bound and theirs.keys is not None:
        theirs._idx = theirs.keys.shape[2]
    return theirs


def _place(theirs: Any, cache: Cache, is_batch: bool) -> None:
    theirs.offset = mx.array([cache._columns - p for p in cache._padding]) if is_batch else cache._columns
    if is_batch:
        theirs._idx = cache._columns


def _give_quantized(cache: Any, is_batch: bool) -> Any:
    k, v = codecs_of(cache)
    theirs: Any
    if turboquant.is_codec(k) and turboquant.is_codec(v):
        theirs = turboquant.give(cache, k, v, is_batch)
    else:
        group, bits, *both = give_affine(cache)
        options = dict(group_size=group, bits=bits)
        theirs = BatchQuantizedKVCache(list(cache._padding), **options) if is_batch else QuantizedKVCache(**options)
        theirs.keys, theirs.values = both
    _place(theirs, cache, is_batch)
    return theirs
