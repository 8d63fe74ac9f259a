# SPDX-License-Identifier: MIT
"""Objects of the library as Python objects: closed once, by close() or by the collector, never used after that.

Every call into the library on an object holds its lock, so that a close() in another thread waits instead of pulling the
object away. A finalizer keeps what its object stands on alive, and therefore runs before theirs.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Any, Callable, List, Optional, Type, TypeVar

from .errors import ClosedError

_Self = TypeVar("_Self", bound="Handle")


def _destroy(destroy: Callable[[int], Any], pointer: int, process: int, before: "List[weakref.finalize[..., Any]]", *keep: object) -> None:
    # A forked child has the memory but not the threads; the parent still owns the object.
    if os.getpid() == process:
        for other in before:
            other()
        destroy(pointer)


class Handle:
    """A pointer that the library gave, and the function that takes it back."""

    def __init__(self, pointer: Optional[int], destroy: Callable[[int], Any], *keep: object) -> None:
        if not pointer:
            raise MemoryError(f"no {type(self).__name__}")
        self._pointer = pointer
        self._lock = threading.RLock()
        self._before: "List[weakref.finalize[..., Any]]" = []
        self._finalizer = weakref.finalize(self, _destroy, destroy, pointer, os.getpid(), self._before, *keep)

    def _close_after(self, other: "weakref.finalize[..., Any]") -> None:
        """Another object uses this one, though it may be older: it goes first."""
        self._before[:] = [f for f in self._before if f.alive] + [other]

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def _get(self) -> int:
        """The pointer, for a call that is made while the lock is held."""
        if not self._finalizer.alive:
            raise ClosedError(f"{type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        """Gives everything back. A second call does nothing."""
        with self._lock:
            self._finalizer()

    def __enter__(self: _Self) -> _Self:
        self._get()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()
