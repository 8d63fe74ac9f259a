# SPDX-License-Identifier: MIT
"""Attention over a KV cache of 2 to 8 bits per value."""

from __future__ import annotations

from . import _native
from .attend import Mask, Partial, finish, merge
from .errors import ClosedError, PoolFull, QuireError
from .plan import Layer, Plan, PlannedLayer, Preset, presets
from .pool import Pool, PoolStats
from .profile import Profile
from .rows import MlxRows, NativeRows
from .sequence import Ring, Sequence, SnapshotInfo, snapshot_info
from .step import Step
from .threads import Threads

__version__ = _native.text(_native.lib.quire_version())
PAGE_TOKENS = _native.PAGE_TOKENS

__all__ = [
    "ClosedError", "Layer", "Mask", "MlxRows", "NativeRows", "PAGE_TOKENS", "Partial", "Plan", "PlannedLayer", "Pool", "PoolFull",
    "PoolStats", "Preset", "Profile", "QuireError", "Ring", "Sequence", "SnapshotInfo", "Step", "Threads", "finish", "merge",
    "presets", "snapshot_info",
]
