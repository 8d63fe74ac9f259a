# SPDX-License-Identifier: MIT
"""Objects of the library as Python objects: closed once, by close() or by the collector, never used after that.

Every call into the library on a Handle holds its lock, so that a close() in another thread waits instead of pulling the object
away; a Shared one, which the library lets several threads use at once, counts its users instead. A finalizer keeps what its object
stands on alive, and therefore runs before theirs.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Type, TypeVar

from .errors import ClosedError

_Self = TypeVar("_Self", bound="Handle")


def _destroy(destroy: Callable[[int], Any], pointer: int, process: int, *keep: object) -> None:
    # A forked child has the memory but not the threads; the parent still owns the object.
    if os.getpid() == process:
        destroy(pointer)


class Handle:
    """A pointer that the library gave, and the function that takes it back."""

    #: Whether the end of the process closes it. Memory goes by itself then, and a daemon thread may be computing on it.
    _closes_at_exit = False

    def __init__(self, pointer: Optional[int], destroy: Callable[[int], Any], *keep: object) -> None:
        if not pointer:
            raise MemoryError(f"no {type(self).__name__}")
        self._pointer = pointer
        self._lock = threading.RLock()
        self._finalizer = weakref.finalize(self, _destroy, destroy, pointer, os.getpid(), *keep)
        self._finalizer.atexit = self._closes_at_exit

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


class Shared(Handle):
    """A Handle for any number of threads at once."""

    def __init__(self, pointer: Optional[int], destroy: Callable[[int], Any], *keep: object) -> None:
        super().__init__(pointer, destroy, *keep)
        self._n_users = 0
        self._closing = False
        self._idle = threading.Condition(self._lock)

    def _get(self) -> int:
        if self._closing:
            raise ClosedError(f"{type(self).__name__} is closed")
        return super()._get()

    @contextmanager
    def _use(self) -> Iterator[int]:
        """The pointer, for a call that others need not wait for; close() does."""
        with self._lock:
            pointer = self._get()
            self._n_users += 1
        try:
            yield pointer
        finally:
            with self._lock:
                self._n_users -= 1
                self._idle.notify_all()

    def _close_children(self) -> None:
        """Called once, when nobody uses the object any more and nobody can begin to."""

    def close(self) -> None:
        with self._lock:
            if self._closing:
                return
            self._closing = True
            while self._n_users:
                self._idle.wait()
        self._close_children()  # without the lock, which a call that runs on one of them may want
        super().close()
