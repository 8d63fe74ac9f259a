# SPDX-License-Identifier: MIT
"""Workspaces: the scratch memory of attention."""

from __future__ import annotations

from typing import Optional

from . import _native as n
from ._handle import Handle
from .threads import Threads


class Workspace(Handle):
    """Scratch memory; one attend call at a time can use it."""

    def __init__(self, threads: Optional[Threads]) -> None:
        executor = None if threads is None else threads._executor()
        super().__init__(n.lib.quire_workspace_destroy)
        self._open(n.lib.quire_workspace_create, executor, None, on=() if threads is None else (threads,))
