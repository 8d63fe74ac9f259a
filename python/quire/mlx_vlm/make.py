# SPDX-License-Identifier: MIT
"""Caches for a whole model."""

from __future__ import annotations

import functools
import sys
from typing import Any, List, Optional

import mlx.nn as nn
from mlx_vlm.models.cache import KVCache, make_prompt_cache, should_quantize_kv_layer

from .._mlx.pools import Pools
from .cache import QuireKVCache
from .turboquant import policy_of_bits


def make_cache(model: Any, policy: Optional[str] = None, max_tokens: Optional[int] = None, sinks: int = 4, *, bits: Optional[float] = None,
               key_bits: Optional[float] = None, value_bits: Optional[float] = None, skip_last: Optional[bool] = None, spare: int = 0,
               pools: Optional[Pools] = None) -> List[Any]:
    """The prompt_cache argument for mlx-vlm: a cache for each layer of the model, which may be the whole model or its language_model.

    Layers with full attention (those for which the model uses a plain KVCache) get a QuireKVCache. All other layers (with a sliding window,
    recurrent state or several caches) get the cache that the model asks for.

    policy: the codecs of K and V (docs/policy.md); safe if nothing is given. bits, key_bits, value_bits: instead of a policy, mlx-vlm's
    kv_bits, with its TurboQuant codes. max_tokens: keep at most this many tokens, the first `sinks` and the most recent ones; None: keep
    all. skip_last: the last layer of a model with more than two is not quantized, as mlx-vlm does it: it gets the model's own cache, or f16
    if there is a bound; None: only with bits. spare: this many tokens can be trimmed even after others were dropped, as speculative decoding
    needs. pools: the memory to use.
    """
    widths = (bits, key_bits, value_bits) != (None, None, None)
    if widths and policy is not None:
        raise ValueError("give either a policy or bits, not both")
    policy = policy_of_bits(bits, key_bits, value_bits) if widths else "safe" if policy is None else policy
    skip_last = widths if skip_last is None else skip_last
    language = language_of(model)
    _check(language)
    caches = own_caches(language)
    full = [i for i, c in enumerate(caches) if type(c) is KVCache]
    make = functools.partial(QuireKVCache, max_tokens=max_tokens, sinks=sinks, spare=spare, pools=pools)
    make(policy)  # refuses wrong arguments, also if no layer of the model has full attention
    for index, i in enumerate(full):  # edge= counts only these layers
        last = skip_last and not should_quantize_kv_layer(i, len(caches))
        if not last or max_tokens is not None:
            caches[i] = make("f16" if last else policy, index=index, n_layers=len(full))
    return caches


def language_of(model: Any) -> Any:
    found = getattr(model, "language_model", model)
    if not isinstance(found, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, not a model of mlx-vlm")
    return found


def own_caches(language: Any) -> List[Any]:
    """What the model asks for, even while attach() is in force."""
    attached = language.__dict__.get("make_cache")
    if not isinstance(attached, _Maker):
        return list(make_prompt_cache(language))
    if attached.own is not None:
        return list(attached.own())
    # Not by removing the attribute for a moment: other threads may be making caches of this model.
    of_class = getattr(type(language), "make_cache", None)
    return [KVCache() for _ in language.layers] if of_class is None else list(of_class(language))


def _check(language: Any) -> None:
    """Models that read K and V as floats import the function that mlx-vlm has for that."""
    for part in language.modules():
        if hasattr(sys.modules.get(type(part).__module__), "dequantize_kv_state"):
            raise TypeError(f"{type(part).__module__} computes with keys and values itself, so its layers need the cache that the model asks for")


class _Maker:
    def __init__(self, language: Any, arguments: Any, options: Any, own: Any) -> None:
        self.language, self.arguments, self.options = language, arguments, options
        self.own = own  # the make_cache() that this object, and not its class, had before

    def __call__(self) -> List[Any]:
        return make_cache(self.language, *self.arguments, **self.options)


def attach(model: Any, *arguments: Any, **options: Any) -> None:
    """Gives this model object a make_cache() that calls quire.mlx_vlm.make_cache() with these arguments. What makes its caches itself uses
    them then: batch_generate, BatchGenerator, the server's generator, the prefix cache. Do not set kv_bits there."""
    language = language_of(model)
    make_cache(language, *arguments, **options)  # an argument that is not valid is refused here
    before = language.__dict__.get("make_cache")
    own = before.own if isinstance(before, _Maker) else before
    language.__dict__["make_cache"] = _Maker(language, arguments, options, own)


def detach(model: Any) -> None:
    """The model makes its own caches again."""
    language = language_of(model)
    attached = language.__dict__.get("make_cache")
    if not isinstance(attached, _Maker):
        return
    if attached.own is not None:
        language.__dict__["make_cache"] = attached.own
    else:
        del language.__dict__["make_cache"]
