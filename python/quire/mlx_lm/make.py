# SPDX-License-Identifier: MIT
"""Caches for a whole model."""

from __future__ import annotations

import functools
from typing import Any, List, Optional

from mlx_lm.models.cache import KVCache, make_prompt_cache

from .._mlx.pools import Pools
from .cache import QuireKVCache


def make_cache(model: Any, policy: str = "safe", max_tokens: Optional[int] = None, sinks: int = 4, *, spare: int = 0,
               pools: Optional[Pools] = None) -> List[Any]:
    """The prompt_cache argument for mlx-lm: a cache for each layer of the model.

    Layers with full attention (those for which the model uses a plain KVCache) get a QuireKVCache. All other layers (with a sliding window,
    recurrent state or several caches) get the cache that the model asks for.

    policy: the codecs of K and V (docs/policy.md). max_tokens: keep at most this many tokens, the first `sinks` and the most recent ones;
    None: keep all. spare: this many tokens can be trimmed even after others were dropped, as speculative decoding needs. pools: the memory
    to use.
    """
    if not hasattr(model, "make_cache") and not hasattr(model, "layers"):
        raise TypeError(f"model is a {type(model).__name__}, not a model of mlx-lm")
    caches: List[Any] = make_prompt_cache(model)
    full = [i for i, c in enumerate(caches) if type(c) is KVCache]
    make = functools.partial(QuireKVCache, policy, max_tokens=max_tokens, sinks=sinks, spare=spare, pools=pools)
    make()  # refuses wrong arguments, also if no layer of the model has full attention
    for index, i in enumerate(full):  # edge= counts only these layers
        caches[i] = make(index=index, n_layers=len(full))
    return caches
