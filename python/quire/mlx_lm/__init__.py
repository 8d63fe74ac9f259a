# SPDX-License-Identifier: MIT
"""Quire's caches for an unmodified mlx-lm. Importing this module installs everything it needs.

    from quire.mlx_lm import make_cache
    mlx_lm.generate(model, tokenizer, prompt, prompt_cache=make_cache(model, "k8v4"))

CPUs only: if MLX's default device is a GPU, keys, values and queries are copied to the CPU in every layer, attention is computed there, and
the result is copied back.
"""

from __future__ import annotations

import mlx_lm.models.cache as _mlx_cache

from .._mlx.cache import Settings
from .._mlx.hook import install, installed, uninstall
from .._mlx.pools import Pools, default_pools
from .._mlx.rows import Keys, Values
from .cache import BatchQuireKVCache, QuireKVCache
from .convert import from_mlx, to_mlx
from .make import make_cache
from .prefixes import Prefixes
from .recover import recover

__all__ = [
    "BatchQuireKVCache", "Keys", "Pools", "Prefixes", "QuireKVCache", "Settings", "Values", "default_pools", "from_mlx", "install", "installed",
    "make_cache", "recover", "to_mlx", "uninstall",
]

# load_prompt_cache finds the class of a cache by its name in that module.
_mlx_cache.QuireKVCache = QuireKVCache
_mlx_cache.BatchQuireKVCache = BatchQuireKVCache
install()
