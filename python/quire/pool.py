# SPDX-License-Identifier: MIT
"""Pools: the memory of sequences, and attention over several sequences in one call."""

from __future__ import annotations

from ._cache import Pool
from ._shapes import PoolStats
from ._workspace import Workspace

__all__ = ["Pool", "PoolStats", "Workspace"]
