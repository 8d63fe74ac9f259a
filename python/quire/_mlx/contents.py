# SPDX-License-Identifier: MIT
"""What a cache contains, as one value that never changes. A cache changes by a single assignment of another value, so that an interrupt finds it
as it was before the change or as it is after it."""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import mlx.core as mx

from ..plan import Plan
from ..sequence import Sequence
from .arrays import MOST

# Rows that a ring keeps beyond its bound: a prompt goes through in pieces of that many tokens, and each piece's first query still
# sees all that it should.
PIECE = 128
# An update of so many tokens can be taken back from a ring, and `spare` tokens can still be trimmed after that.
_UNDO = 16
_MAX_LAYERS = 4096

next_version = itertools.count(1).__next__


@functools.lru_cache(maxsize=1024)
def canonical(policy: str) -> str:
    """The codecs that a policy names, or that its preset stands for in this version. Raises if it is not a policy. It does not depend on the shape
    of the layers; every codec has this one."""
    with Plan(policy, n_q_heads=1, n_kv_heads=1, d_k=128) as plan:
        return plan.policy


def integer(value: Any, name: str, least: int = 0) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, not an integer")
    found = operator.index(value)
    if found < least:
        raise ValueError(f"{name} must be at least {least}, not {found}")
    return found


@dataclass(frozen=True)
class Settings:
    """policy: the policy of the whole model, of which this is full-attention layer `index` of `n_layers`. It is kept in its canonical form, because
    files outlive what a preset stands for. max_tokens 0: no bound. spare: the number of tokens that can still be trimmed after the bound has
    dropped others."""

    policy: str = "safe"
    index: int = 0
    n_layers: int = 1
    max_tokens: int = 0
    sinks: int = 0
    spare: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str):
            raise TypeError(f"policy is a {type(self.policy).__name__}, not a str")
        for name in ("index", "n_layers", "max_tokens", "sinks", "spare"):
            object.__setattr__(self, name, integer(getattr(self, name), name))
        if not 1 <= self.n_layers <= _MAX_LAYERS or self.index >= self.n_layers:
            raise ValueError(f"index must be at least 0 and less than n_layers, which is at most {_MAX_LAYERS}; index={self.index}, "
                             f"n_layers={self.n_layers}")
        if self.sinks and self.sinks >= self.max_tokens:
            raise ValueError(f"sinks must be less than max_tokens; sinks={self.sinks}, max_tokens={self.max_tokens}")
        if self.max_tokens + self.spare > MOST // 2:
            raise ValueError(f"max_tokens and spare must together be at most {MOST // 2}; max_tokens={self.max_tokens}, spare={self.spare}")
        object.__setattr__(self, "policy", canonical(self.policy))

    @property
    def ring(self) -> Dict[str, int]:
        """The options of Pool.sequence(). It keeps more rows than the bound, so that an update can be taken back; {} without a bound."""
        if not self.max_tokens:
            return {}
        return {"max_tokens": self.max_tokens, "sinks": self.sinks, "spare_tokens": max(self.spare + _UNDO, PIECE)}

    def shows_filler(self, length: int, floor: int) -> bool:
        """True if a sequence of this length shows rows before `floor` that are not sinks."""
        return length > self.sinks and length - (self.max_tokens - self.sinks) < floor


class Contents(NamedTuple):
    """Sequence i has the tokens of columns padding[i] to the last, or to end[i]. Of these, the columns of `pending` are not encoded yet."""

    sequences: Tuple[Optional[Sequence], ...] = ()
    padding: Tuple[int, ...] = ()  # columns before the first token
    columns: int = 0  # what the engines call offset, or _idx in batches
    end: Optional[Tuple[int, ...]] = None  # columns from here on are padding at the right
    floors: Tuple[int, ...] = ()  # rows between the sinks and this position stand for dropped ones and must never be seen; 0: none
    shape: Optional[Tuple[int, int, int]] = None  # KV heads, d_k, d_v
    dtype: Any = mx.float32
    pending: Optional[Tuple[mx.array, mx.array]] = None  # of the last columns; encoded when attention needs them
    before: Optional["Contents"] = None  # the last update, if it can be taken back in another way than by a trim
    version: int = 0
    tails: Optional[Tuple[int, ...]] = None  # of each sequence this many of the last tokens go when the batch is finalized

    def length(self, i: int) -> int:
        """The number of encoded rows of sequence i."""
        columns = self.columns if self.pending is None else self.columns - self.pending[0].shape[2]
        if self.end is not None:
            columns = min(columns, self.end[i])
        return max(columns - self.padding[i], 0)

    def tokens(self, i: int, first: int, last: int) -> Tuple[int, int]:
        """The part of the columns [first, last) that contains tokens of sequence i."""
        return max(first, self.padding[i]), last if self.end is None else min(last, self.end[i])

    def changed(self, **to: Any) -> "Contents":
        """Another value of its own, which no longer knows the last update."""
        return self._replace(before=None, version=next_version(), **to)

    def shifted(self, by: int) -> "Contents":
        """The same tokens in columns further to the right, or to the left if `by` is negative."""
        if by > 0 and max((self.columns, *self.padding, *(self.end or ()))) + by > MOST:
            raise ValueError(f"padding can be at most {MOST}; padding={list(self.padding)}, and {by} more columns are needed")
        end = None if self.end is None else tuple(e + by for e in self.end)
        return self.changed(columns=self.columns + by, padding=tuple(p + by for p in self.padding), end=end)


# From a tuple of all fields, in a third of the time that the class takes: a cache becomes another one twice for each token.
contents: Callable[[Tuple[Any, ...]], Contents] = functools.partial(tuple.__new__, Contents)
