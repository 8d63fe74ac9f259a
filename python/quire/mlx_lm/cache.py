# SPDX-License-Identifier: MIT
"""Caches that mlx-lm can use instead of its own: QuireKVCache for KVCache, QuantizedKVCache and RotatingKVCache, BatchQuireKVCache
for the batch versions."""

from __future__ import annotations

from mlx_lm.models.cache import _BaseCache

from .._mlx.caches import BatchCache, SingleCache


class QuireKVCache(SingleCache, _BaseCache):
    __doc__ = SingleCache.__doc__


class BatchQuireKVCache(BatchCache, _BaseCache):
    __doc__ = BatchCache.__doc__
    _single = QuireKVCache


QuireKVCache._batch = BatchQuireKVCache
