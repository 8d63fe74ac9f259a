# SPDX-License-Identifier: MIT
"""Thread pools. The library creates no other threads."""

from __future__ import annotations

from . import _native as n
from ._handle import Handle
from .errors import QuireError

_MOST = 1024


class Threads(Handle):
    """n_threads - 1 threads that work alongside the calling thread. Several pools can share one Threads object."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n.number(n_threads, "n_threads")
        if not 1 <= self.n_threads <= _MOST:
            raise ValueError(f"the number of threads must be at least 1 and at most {_MOST}, not {self.n_threads}")
        super().__init__(n.lib.quire_threads_destroy)
        self._open(n.lib.quire_threads_create, self.n_threads)

    def _executor(self) -> n.Executor:
        executor = n.Executor()
        n.check(n.lib.quire_threads_executor(self._get(), executor))
        return executor

    def close(self) -> None:
        """Ends the threads. Raises QuireError with status EBUSY while a pool uses them."""
        with self._lock:
            if self._tokens and not self.closed:
                raise QuireError("EBUSY", "a pool is using these threads; close the pool first")
            super().close()
