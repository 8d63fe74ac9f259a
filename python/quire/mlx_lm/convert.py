# SPDX-License-Identifier: MIT
"""Converts live caches of mlx-lm to Quire caches and back."""

from __future__ import annotations

from typing import Any, Optional

from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from .._mlx.convert import check_position, give_affine, give_floats, take_affine, take_floats, take_ring
from .._mlx.pools import Pools
from .cache import QuireKVCache


def from_mlx(cache: Any, policy: Optional[str] = None, *, index: int = 0, n_layers: int = 1, spare: int = 0,
             pools: Optional[Pools] = None) -> QuireKVCache:
    """A QuireKVCache with the tokens of a KVCache, QuantizedKVCache or RotatingKVCache. The original cache is not changed.

    policy None: the codec of a QuantizedKVCache, otherwise safe. The codes of a QuantizedKVCache are copied bit for bit if the policy uses
    the same codec for K and V; scales and biases in bf16 or f32 are rounded to f16.
    """
    if not isinstance(cache, (KVCache, QuantizedKVCache, RotatingKVCache)):
        raise TypeError(f"cache is a {type(cache).__name__}, not a KVCache, QuantizedKVCache or RotatingKVCache of mlx-lm")
    bound = {}
    if policy is None:
        policy = f"a{cache.bits}g{cache.group_size}" if isinstance(cache, QuantizedKVCache) else "safe"
    if isinstance(cache, RotatingKVCache):
        bound = dict(max_tokens=cache.max_size, sinks=min(cache.keep, cache.max_size - 1))
    ours = QuireKVCache(policy, spare=spare, index=index, n_layers=n_layers, pools=pools, **bound)
    if cache.keys is None or not cache.offset:
        return ours
    if isinstance(cache, QuantizedKVCache):
        both: Any = cache.keys, cache.values
        check_position(cache, cache.offset, both[0][0].shape[2])
        take_affine(ours, cache.group_size, cache.bits, *(tuple(x[..., :cache.offset, :] for x in side) for side in both))
    elif isinstance(cache, RotatingKVCache):
        take_ring(ours, cache._temporal_order(cache.keys), cache._temporal_order(cache.values), cache.offset)
    else:
        check_position(cache, cache.offset, cache.keys.shape[2])
        take_floats(ours, *(x[..., :cache.offset, :] for x in (cache.keys, cache.values)))
    return ours


def to_mlx(cache: QuireKVCache, *, quantized: bool = False) -> Any:
    """A cache of mlx-lm with the same tokens, in the state it would have if it had processed them: KVCache, or RotatingKVCache if there is a
    bound.

    quantized=True: a QuantizedKVCache with the same codes bit for bit. K and V must have the same affine codec, and there must be no bound.
    """
    if not isinstance(cache, QuireKVCache):
        raise TypeError(f"expected a QuireKVCache, not a {type(cache).__name__}")
    if cache._settle().columns and not all(cache._sequences):
        raise ValueError("the cache has no rows")
    if quantized:
        group, bits, k, v = give_affine(cache)
        theirs: Any = QuantizedKVCache(group_size=group, bits=bits)
        theirs.keys, theirs.values, theirs.offset = k, v, cache.offset
        return theirs
    bound = cache.settings.max_tokens
    theirs = RotatingKVCache(bound, cache.settings.sinks) if bound else KVCache()
    if cache.empty():
        return theirs
    theirs.keys, theirs.values = give_floats(cache)
    theirs.offset = cache.offset
    if bound:
        theirs._idx = theirs.keys.shape[2]
    return theirs
