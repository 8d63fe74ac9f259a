# SPDX-License-Identifier: MIT
"""A cache as arrays, strings and numbers, as save_prompt_cache and load_prompt_cache need it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Optional

import mlx.core as mx
import numpy as np

from .arrays import DTYPES, NAMES, numbers
from .cache import Cache, Settings
from .pools import Pools


class State(dict):  # type: ignore[type-arg]
    """The state of a cache, created only when it is needed. Engines call mx.eval on the state of every cache after each piece of a prompt;
    mx.eval looks at the dict's own storage, which is empty, so nothing is created. save_prompt_cache calls items()."""

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self._cache = cache

    def items(self) -> Any:
        return save(self._cache).items()

    def __deepcopy__(self, _: Any) -> Dict[str, Any]:
        return save(self._cache)


def save(cache: Cache) -> Dict[str, Any]:
    """The state as arrays, strings and numbers. A sequence is stored as its snapshot (docs/formats/snapshot.md)."""
    cache._settle()
    saved: Dict[str, Any] = {**asdict(cache.settings), "columns": cache._columns, "dtype": NAMES.get(cache._dtype, "f32")}
    if cache._padding:
        saved["padding"] = mx.array(cache._padding, mx.int32)
    if cache._shape is not None:
        saved["heads"], saved["d_k"], saved["d_v"] = cache._shape
    for i, sequence in enumerate(cache._sequences):
        if sequence is not None:
            saved[f"sequence{i}"] = mx.array(np.frombuffer(sequence.to_bytes(), np.uint8))
    return saved


def load(cache: Cache, saved: Dict[str, Any], pools: Optional[Pools] = None) -> None:
    settings = Settings(**{name: saved[name] for name in Settings.__dataclass_fields__})
    Cache.__init__(cache, settings, pools, numbers(saved["padding"]) if "padding" in saved else None)
    cache._columns, cache._dtype = saved["columns"], DTYPES[saved["dtype"]]
    if "heads" in saved:
        cache._shape = saved["heads"], saved["d_k"], saved["d_v"]
    for i in range(len(cache._sequences)):
        if f"sequence{i}" in saved:
            cache._sequences[i] = cache._pool().load(np.array(saved[f"sequence{i}"]).tobytes())
