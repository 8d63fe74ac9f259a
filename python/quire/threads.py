# SPDX-License-Identifier: MIT
"""Teams of threads. The library makes no threads but these."""

from __future__ import annotations

import ctypes

from . import _native as n
from ._handle import Handle
from .errors import QuireError


class Threads(Handle):
    """n_threads - 1 threads that wait for work beside the caller. Several pools may share one team."""

    def __init__(self, n_threads: int) -> None:
        if n_threads < 1:
            raise ValueError(f"{n_threads} threads")
        out = ctypes.c_void_p()
        n.check(n.lib.quire_threads_create(ctypes.byref(out), n.u32(n_threads, "n_threads")))
        super().__init__(out.value, n.lib.quire_threads_destroy)
        self.n_threads = n_threads

    def _executor(self) -> n.Executor:
        executor: n.Executor = n.lib.quire_threads_executor(self._get())
        return executor

    def close(self) -> None:
        """EBUSY while a pool uses the team."""
        with self._lock:
            if self._tokens and not self.closed:
                raise QuireError("EBUSY", "a pool uses these threads")
            super().close()
