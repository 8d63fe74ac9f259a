# SPDX-License-Identifier: MIT
"""Workspaces: the scratch memory of attention."""

from __future__ import annotations

import ctypes
from typing import Optional

from . import _native as n
from ._handle import Handle
from .threads import Threads


class Workspace(Handle):
    """Scratch memory; one attend call at a time can use it."""

    def __init__(self, threads: Optional[Threads]) -> None:
        out = ctypes.c_void_p()
        executor = None if threads is None else threads._executor()
        n.check(n.lib.quire_workspace_create(ctypes.byref(out), executor, None))
        super().__init__(out.value, n.lib.quire_workspace_destroy, *([] if threads is None else [threads]))
