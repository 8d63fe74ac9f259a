# SPDX-License-Identifier: MIT
"""The only change to MLX: a replacement of mx.fast.scaled_dot_product_attention, which every model of mlx-lm and mlx-vlm calls."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import mlx.core as mx

from .rows import Keys

_original: Optional[Callable[..., mx.array]] = None


def install() -> None:
    """Makes Quire compute attention over Quire caches; MLX computes all other attention. Importing the package calls this; a second call does
    nothing."""
    global _original
    if _original is not None:
        return
    original = _original = mx.fast.scaled_dot_product_attention

    @functools.wraps(original)
    def scaled_dot_product_attention(q: Any, k: Any, v: Any, **options: Any) -> mx.array:
        if isinstance(k, Keys):
            return k.attend(q, v, **options)
        return original(q, k, v, **options)

    mx.fast.scaled_dot_product_attention = scaled_dot_product_attention


def uninstall() -> None:
    """Restores MLX's own function. Quire caches do not work after that until install() is called again."""
    global _original
    if _original is not None:
        mx.fast.scaled_dot_product_attention = _original
        _original = None


def installed() -> bool:
    """True between install() and uninstall()."""
    return _original is not None
