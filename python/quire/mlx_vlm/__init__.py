# SPDX-License-Identifier: MIT
"""Quire's caches for an unmodified mlx-vlm. Importing this module installs everything it needs. It does not need mlx-lm.

    from quire.mlx_vlm import make_cache
    mlx_vlm.generate(model, processor, prompt, prompt_cache=make_cache(model, bits=4))

CPUs only: if MLX's default device is a GPU, keys, values and queries are copied to the CPU in every layer, attention is computed there, and
the result is copied back.
"""

from __future__ import annotations

from .._mlx.cache import Settings
from .._mlx.hook import install, installed, uninstall
from .._mlx.pools import Pools, default_pools
from .._mlx.rows import Keys, Values
from .cache import BatchQuireKVCache, QuireKVCache
from .convert import from_mlx, to_mlx
from .make import attach, detach, make_cache
from .turboquant import policy_of_bits

__all__ = [
    "BatchQuireKVCache", "Keys", "Pools", "QuireKVCache", "Settings", "Values", "attach", "default_pools", "detach", "from_mlx",
    "install", "installed", "make_cache", "policy_of_bits", "to_mlx", "uninstall",
]

install()
