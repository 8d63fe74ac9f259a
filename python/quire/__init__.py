# SPDX-License-Identifier: MIT
"""Attention over a KV cache kept in 2 to 8 bits per value."""

from __future__ import annotations

import os
import warnings
from typing import Optional

from . import _native
from .attend import Mask, Partial, finish, merge
from .codecs import Codec, Format, bits, codecs, decode, encode, round_trip
from .command import command, llama_env
from .errors import ClosedError, PoolFull, QuireError
from .plan import Layer, Plan, PlannedLayer, Preset, presets
from .pool import Pool, PoolStats
from .profile import Profile
from .rows import MlxRows, NativeRows
from .sequence import Ring, Sequence, SnapshotInfo, snapshot_info
from .step import Step
from .store import Chain, Identity, Load, Namespace, RawLoad, Remote, Store, Usage
from .threads import Threads

__version__ = _native.text(_native.lib.quire_version())
PAGE_TOKENS = _native.PAGE_TOKENS

if _native.lib.quire_isa_use_environment():
    warnings.warn(f"QUIRE_ISA={os.environ.get('QUIRE_ISA')} is not the name of an instruction set and is ignored", RuntimeWarning,
                  stacklevel=2)


def isa() -> str:
    """The instruction set in use. Set QUIRE_ISA in the environment, before the import, to select a lower one."""
    return _native.text(_native.lib.quire_isa_in_use())


def use_isa(name: Optional[str]) -> None:
    """Selects an instruction set, for tests and benchmarks; call it while nothing else computes. None: the default again."""
    _native.check(_native.lib.quire_isa_use(None if name is None else _native.c_text(name, "name")),
                  invalid=f"name: {name!r} is not an instruction set of this machine")


__all__ = [
    "Chain", "ClosedError", "Codec", "Format", "Identity", "Layer", "Load", "Mask", "MlxRows", "Namespace", "NativeRows", "PAGE_TOKENS",
    "Partial", "Plan", "PlannedLayer", "Pool", "PoolFull", "PoolStats", "Preset", "Profile", "QuireError", "RawLoad", "Remote", "Ring",
    "Sequence", "SnapshotInfo", "Step", "Store", "Threads", "Usage", "bits", "codecs", "command", "decode", "encode", "finish", "isa", "llama_env",
    "merge", "presets", "round_trip", "snapshot_info", "use_isa",
]
