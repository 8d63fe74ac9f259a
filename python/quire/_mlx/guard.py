# SPDX-License-Identifier: MIT
"""Who may use a cache: the process that made it, and one call at a time."""

from __future__ import annotations

import os
import threading
from typing import Any, List

_forks: List[int] = [0]  # how often this process is a child of os.fork() of the one that imported this


def _count() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_count)


def process() -> int:
    """A number that is another one in a child of os.fork()."""
    return _forks[0]


class Guard:
    """A cache's lock. Calls of other threads wait; a call of the same thread, which only a signal handler can make, is refused, because the call
    that it interrupts is not finished."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = _forks[0]
        self._lock: Any = threading.RLock()

    def __call__(self) -> Any:
        """The lock, for a with block. Entering a lock of C leaves no moment at which an interrupt finds it taken and nobody to release it."""
        if self._process != _forks[0]:
            raise RuntimeError(f"the {self._what} belongs to the process that created it and cannot be used in a child of os.fork()")
        if self._lock._is_owned():
            raise RuntimeError(f"the {self._what} is in use by the call that this one interrupts")
        return self._lock
