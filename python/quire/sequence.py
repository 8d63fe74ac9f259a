# SPDX-License-Identifier: MIT
"""Sequences: the tokens of one conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Union

from . import _native as n
from ._cache import Sequence
from ._shapes import Ring
from ._stream import Reader

__all__ = ["Ring", "Sequence", "SnapshotInfo", "snapshot_info"]


@dataclass(frozen=True)
class SnapshotInfo:
    """What the header of a saved sequence says. A pool loads the sequence if its plan, or one given to add_plan(), has this fingerprint."""

    policy: str
    plan_fingerprint: int
    length: int
    ring: Ring


def snapshot_info(source: Union[bytes, BinaryIO]) -> SnapshotInfo:
    """The header of a saved sequence. A file is read from its current position; seek back to that position before you load it."""
    got = n.SnapshotInfo()
    reader = Reader(source)
    n.check(reader.call(n.lib.quire_snapshot_read_info, got))
    return SnapshotInfo(n.text(got.policy), got.plan_fingerprint, got.length, Ring(got.max_tokens, got.sinks, got.spare_tokens))
