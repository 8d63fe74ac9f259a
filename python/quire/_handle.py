# SPDX-License-Identifier: MIT
"""Objects of the library as Python objects. Each is closed once, by close() or by the garbage collector, and never used after that.

Every call into the library on a Handle holds its lock, so that a close() in another thread waits until the call has returned. A Shared
handle, which the library allows several threads to use at once, counts its users instead. A finalizer keeps the objects that its own
object depends on alive, and therefore runs before their finalizers. It can run in any thread and at any moment, so it takes no lock:
an object is removed from the set of dependents of another object when the library has destroyed it, and close() of the other object
waits for that.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Callable, Iterator, List, Optional, Set, Type, TypeVar

from .errors import ClosedError

_Self = TypeVar("_Self", bound="Handle")


def _destroy(destroy: Callable[[int], Any], pointer: int, process: int, token: object, on: "List[Handle]") -> None:
    # A forked child has the memory but not the threads; the parent still owns the object.
    try:
        if os.getpid() == process:
            destroy(pointer)
    finally:  # an interrupt that came meanwhile is raised when the library has destroyed it
        for other in on:
            other._tokens.discard(token)


def _close(handle: "weakref.ref[Handle]", process: int) -> None:
    alive = handle()
    if alive is not None and os.getpid() == process:
        alive.close()


class Handle:
    """A pointer from the library, and the function that destroys it."""

    def __init__(self, pointer: Optional[int], destroy: Callable[[int], Any], *on: "Handle") -> None:
        if not pointer:
            raise MemoryError(f"the library could not create a {type(self).__name__}")
        self._pointer = pointer
        self._lock = threading.RLock()
        self._tokens: Set[object] = set()  # of what stands on it, until the library has given that back
        self._token = object()
        self._on: "List[Handle]" = []
        for other in on:
            self._stands_on(other)
        self._finalizer = weakref.finalize(self, _destroy, destroy, pointer, os.getpid(), self._token, self._on)
        self._finalizer.atexit = False  # memory goes by itself then, and a daemon thread may be computing on it

    def _stands_on(self, other: "Handle") -> None:
        other._tokens.add(self._token)
        self._on.append(other)

    def _close_at_exit(self) -> None:
        """Closes the object at the end of the process, as close() does: after running calls of daemon threads have returned."""
        weakref.finalize(self, _close, weakref.ref(self), os.getpid())

    def _ended(self) -> None:
        """The library has destroyed the object in another way than by close()."""
        self._pointer = 0
        self._finalizer.detach()
        for other in self._on:
            other._tokens.discard(self._token)

    def _finalize(self) -> None:
        """Destroys the object now, while the lock is held. A second call does nothing."""
        self._pointer = 0  # first: an interrupt may come before, while or after the library destroys it
        self._finalizer()

    def _wait_for_finalizers(self) -> None:
        """Waits for the finalizers, in other threads, of objects that depended on this one and were dropped."""
        while self._tokens:
            time.sleep(0.001)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def _get(self) -> int:
        """The pointer, for a call that is made while the lock is held. Raises ClosedError if the object is closed."""
        if not self._pointer:
            raise ClosedError(f"{type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        """Releases everything. A second call does nothing."""
        with self._lock:
            if not self.closed:
                self._wait_for_finalizers()
            self._finalize()

    def __enter__(self: _Self) -> _Self:
        self._get()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


class Shared(Handle):
    """A Handle that any number of threads can use at once."""

    def __init__(self, pointer: Optional[int], destroy: Callable[[int], Any], *on: Handle) -> None:
        super().__init__(pointer, destroy, *on)
        self._n_users = 0
        self._closing = False
        self._idle = threading.Condition(self._lock)

    def _get(self) -> int:
        if self._closing:
            raise ClosedError(f"{type(self).__name__} is closed")
        return self._pointer or super()._get()

    @contextmanager
    def _use(self) -> Iterator[int]:
        """The pointer, for a call that other users do not wait for; close() waits."""
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
        """Called once, when no thread uses the object any more and no thread can start to use it."""

    def close(self) -> None:
        with self._lock:
            if self._closing:
                return
            self._closing = True
            while self._n_users:
                self._idle.wait()
        self._close_children()  # without the lock, which a call that runs on one of them may want
        self._wait_for_finalizers()
        super().close()
