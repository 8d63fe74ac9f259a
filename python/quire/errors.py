# SPDX-License-Identifier: MIT
"""Exceptions. Wrong types and shapes raise TypeError and ValueError, as usual in Python."""

from __future__ import annotations


class QuireError(RuntimeError):
    """A call into the library failed. `status` is its name in quire.h, for example "EFULL"."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{text} ({status})")
        self.status = status


class PoolFull(QuireError):
    """The memory budget of the pool is used up. Nothing has changed: close or trim a sequence and try again."""


class ClosedError(ValueError):
    """The object was closed, or the pool or store that it belongs to was closed."""
