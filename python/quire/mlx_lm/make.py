# SPDX-License-Identifier: MIT
"""Caches for a whole model."""

from __future__ import annotations

from typing import Any, List, Optional

from mlx_lm.models.cache import KVCache, make_prompt_cache

from ._pools import Pools
from .cache import QuireKVCache


def make_cache(model: Any, policy: str = "k8v4", max_tokens: Optional[int] = None, sinks: int = 4, *, spare: int = 0,
               pools: Optional[Pools] = None) -> List[Any]:
    """What mlx-lm takes as prompt_cache: a cache for each layer of the model.

    Layers that see everything (those for which the model asks for a plain KVCache) get a QuireKVCache. All others, which keep a window of
    floats, states of recurrent layers or several caches, get what the model asks for.

    policy: which codec goes where (docs/policy.md). max_tokens: keep the first `sinks` tokens and of the rest the last, max_tokens in all; None:
    keep all. spare: so many tokens can be trimmed even after others were dropped; for speculative decoding. pools: where the pages are.
    """
    caches = make_prompt_cache(model)
    n_layers = len(caches)
    return [QuireKVCache(policy, max_tokens=max_tokens, sinks=sinks, spare=spare, index=i, n_layers=n_layers, pools=pools)
            if type(c) is KVCache else c for i, c in enumerate(caches)]
