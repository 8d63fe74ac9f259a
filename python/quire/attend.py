# SPDX-License-Identifier: MIT
"""The options of attention, and their conversion to the form that the library needs."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Sequence as Seq, Tuple, Union

import numpy as np

from . import _native as n
from ._shapes import Layer, Ring
from .errors import QuireError
from .rows import WRITE, Array, address, dense, form_of, made, plain, strides_of, whole

_BIDIRECTIONAL, _PARTIAL = 1, 2
_TILE = ctypes.sizeof(n.TileRef)


@dataclass(frozen=True)
class Mask:
    """Values that are added to the attention scores of one sequence: (query, key), or (query head, query, key).

    float32, float16, or uint16 with dtype="bf16"; -inf and NaN hide a row. In a bool array True means visible; the array is
    copied to float16. The first column is the key at position `first`; keys outside of the columns get 0.
    """

    values: Array
    first: int = 0
    dtype: Optional[str] = None


class Partial(NamedTuple):
    """Attention before the final division, to be merged with attention over other rows."""

    acc: Array  #: (query, query head, d_v)
    max: Array  #: (query, query head): largest score
    sum: Array  #: (query, query head): sum of exp(score - max)


AnyMask = Union[Mask, Array, None]
#: The members q_form to sum, which steps and jobs have in this order. Strides 0: without gaps.
Place = Tuple[int, int, int, int, int, int, int, int, int, int]


@lru_cache(maxsize=64)
def _numbers(flags: int, scale: float, softcap: float) -> n.AttendOptions:
    """Options without arrays. The library only reads them, so calls of all threads can share them."""
    return n.AttendOptions(flags=flags, scale=scale, softcap=softcap)


def _finite(value: float, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is a {type(value).__name__}, not a number") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or abs(number) > 3.4e38:  # what a float of C can hold
        raise ValueError(f"{what} is {number}, which is not a finite number")
    return number


def settings(shape: Layer, partial: bool, *, scale: float = 0.0, softcap: float = 0.0, alibi: Optional[Array] = None,
             mask_slopes: Optional[Array] = None, sink_logits: Optional[Array] = None, bidirectional: bool = False,
             **others: Any) -> n.AttendOptions:
    """The options of a call. They point into the arrays, which the caller keeps."""
    for name in others:
        raise TypeError(f"attend() has no option {name}; the options are scale, softcap, alibi, mask_slopes, sink_logits and bidirectional")
    flags = (_BIDIRECTIONAL if bidirectional else 0) | (_PARTIAL if partial else 0)
    scale, softcap = _finite(scale, "scale"), _finite(softcap, "softcap")
    if softcap < 0:
        raise ValueError(f"softcap is {softcap}, which is negative")
    if alibi is None and mask_slopes is None and sink_logits is None:
        return _numbers(flags, scale, softcap)
    per_head = (shape.n_q_heads,)
    return n.AttendOptions(flags=flags, scale=scale, softcap=softcap,
                           alibi=None if alibi is None else dense(alibi, per_head, "alibi"),
                           mask_slopes=None if mask_slopes is None else dense(mask_slopes, per_head, "mask_slopes"),
                           sink_logits=None if sink_logits is None else dense(sink_logits, per_head, "sink_logits"))


def mask_of(given: AnyMask, n_queries: int, shape: Layer, keep: List[Any]) -> n.Mask:
    """A mask. It points into an array that is added to `keep`."""
    if given is None:
        return n.Mask()
    mask = given if isinstance(given, Mask) else Mask(given)
    values = plain(mask.values, "mask")
    if values.dtype == np.bool_:
        values = np.where(values, np.float16(0), np.float16(-np.inf))
    form = form_of(values, mask.dtype, "mask")
    if values.ndim not in (2, 3) or values.shape[-2] != n_queries or (values.ndim == 3 and values.shape[0] not in (1, shape.n_q_heads)):
        raise ValueError(f"mask has shape {values.shape}, not ([{shape.n_q_heads},] {n_queries}, keys)")
    size = values.itemsize
    if values.shape[-1] > 1 and values.strides[-1] != size:
        raise ValueError("mask: the values of one query must lie side by side in memory")
    query = values.strides[-2] if n_queries > 1 else 0
    head = values.strides[0] if values.ndim == 3 and values.shape[0] > 1 else 0
    if query < 0 or head < 0 or query % size or head % size or not values.flags.aligned:
        raise ValueError("mask has a negative stride or is not aligned to its dtype")
    keep.append(values)
    return n.Mask(address(values), query, head, form, n.u32(mask.first, "first"), values.shape[-1])


def place(shape: Layer, q: Array, out: Optional[Array], dtype: Optional[str], partial: bool, count: int) -> Tuple[Place, Any]:
    """Where queries and outputs are, and the object that the call will fill."""
    heads, d_v = shape.n_q_heads, shape.d_v
    if not partial:
        q_form, q_at = whole(q, (count, heads, shape.d_k), dtype)
        if q_at:
            if out is None:
                out, out_at = made((count, heads, d_v), q.dtype)
                return (q_form, q_form, q_at, 0, 0, out_at, 0, 0, 0, 0), out
            out_form, out_at = whole(out, (count, heads, d_v), dtype, WRITE)
            if out_at:
                return (q_form, out_form, q_at, 0, 0, out_at, 0, 0, 0, 0), out
    q = plain(q, "q")
    q_form = form_of(q, dtype, "q")
    q_token, q_head = strides_of(q, (count, heads, shape.d_k), "q")
    if out is None:
        out = np.empty((count, heads, d_v), np.float32 if partial else q.dtype)
    to = plain(out, "out")
    out_form = form_of(to, "bf16" if dtype == "bf16" and to.dtype == np.uint16 else None, "out")
    if partial and out_form != n.F32:
        raise TypeError("out must be an array of float32 for a partial result")
    out_token, out_head = strides_of(to, (count, heads, d_v), "out")
    placed = q_form, out_form, address(q), q_token, q_head, address(to, "out", True), out_token, out_head
    if not partial:
        return (*placed, 0, 0), out
    result = Partial(out, np.empty((count, heads), np.float32), np.empty((count, heads), np.float32))
    return (*placed, address(result.max), address(result.sum)), result


def job_of(shape: Layer, placed: Place, count: int, sequence: int, layer: int, ring: Ring, position: Optional[int], mask: Optional[n.Mask],
           keep: List[Any]) -> bytes:
    """A quire_attend_job of queries over a sequence, whose pointer and ring are given. The tiles that it points to are added to `keep`."""
    length = n.lib.quire_seq_length(sequence)
    first = length - count if position is None else position
    if position is None and first < 0:
        raise ValueError(f"{count} queries were given, but the sequence has only {length} tokens")
    if first + count > n.MAX_TOKENS:
        raise ValueError(f"position is {first}, too large for {count} queries: the last position is {n.MAX_TOKENS - 1}")
    tiles, n_tiles = _tiles(sequence, layer, ring, shape, first, length)
    keep.append(tiles)
    return n.pack_job(0, 0, 0, ctypes.addressof(tiles), _TILE, n_tiles, shape.n_q_heads, shape.n_kv_heads, shape.d_k, shape.d_v, count,
                        n.u32(first, "position"), shape.window, ring.max_tokens, ring.sinks, *placed,
                        0 if mask is None else ctypes.addressof(mask))


def _tiles(sequence: int, layer: int, ring: Ring, shape: Layer, first_query: int, length: int) -> Tuple[Any, int]:
    """The tiles that the queries can see, and their number."""
    room = -(-length // n.PAGE_TOKENS)
    tiles = (n.TileRef * room)()
    count = n.lib.quire_seq_tiles(sequence, layer, tiles, room, _TILE)
    if count == room:
        return tiles, count
    lowest = 0
    if ring.max_tokens:
        lowest = first_query - (ring.max_tokens - ring.sinks) + 1
    if shape.window:
        lowest = max(lowest, first_query - shape.window + 1)
    need = room - max(lowest, 0) // n.PAGE_TOKENS
    if sum(tiles[i].first + n.PAGE_TOKENS > lowest for i in range(count)) < need:
        raise QuireError("ERANGE", "the first queries need rows that have already been evicted; attend within the step, or set spare_tokens")
    return tiles, count


def _parts(part: Partial, what: str) -> Tuple[Array, Array, Array]:
    """The three arrays. Checks that they agree, because the library cannot see their sizes."""
    try:
        acc, largest, total = part
    except (TypeError, ValueError):
        raise TypeError(f"{what} is not a Partial") from None
    arrays = plain(acc, f"{what}.acc"), plain(largest, f"{what}.max"), plain(total, f"{what}.sum")
    shape = arrays[0].shape
    if len(shape) != 3 or arrays[1].shape != shape[:2] or arrays[2].shape != shape[:2]:
        shapes = tuple(x.shape for x in arrays)
        raise ValueError(f"{what} has arrays of shapes {shapes}, not (queries, heads, d_v), (queries, heads) and (queries, heads)")
    return arrays


def merge(a: Partial, b: Partial) -> None:
    """Merges two partial results of the same queries into the first."""
    ours, others = _parts(a, "a"), _parts(b, "b")
    n_queries, heads, d_v = ours[0].shape
    to = [dense(x, x.shape, "a", writes=True) for x in ours]
    other = [dense(y, x.shape, "b") for x, y in zip(ours, others)]
    n.lib.quire_attend_merge(*to, *other, n.u32(n_queries * heads, "rows"), n.u32(d_v, "d_v"))


def finish(part: Partial, sink_logits: Optional[Array] = None) -> Array:
    """Turns a partial result into the final one by dividing in place, and returns its array."""
    ours = _parts(part, "part")
    n_queries, heads, d_v = ours[0].shape
    acc, largest, total = (dense(x, x.shape, "part", writes=True) for x in ours)
    sinks = None if sink_logits is None else dense(sink_logits, (heads,), "sink_logits")
    n.lib.quire_attend_finish(acc, largest, total, n.u32(n_queries * heads, "rows"), n.u32(d_v, "d_v"), sinks, n.u32(heads, "heads"))
    return part.acc if isinstance(part, Partial) else ours[0]


def n_queries_of(q: Array) -> int:
    """The number of queries in an array; what else it must be, place() checks."""
    if not isinstance(q, np.ndarray):
        raise TypeError(f"q is a {type(q).__name__}, not a numpy array")
    found = (q if type(q) is np.ndarray else plain(q, "q")).shape
    return found[0] if found else 0


def per_sequence(values: Optional[Seq[Any]], count: int, what: str) -> List[Any]:
    """A list with one value per sequence; None gives a list of None."""
    if values is None:
        return [None] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} {what} were given for {count} sequences")
    return [values[i] for i in range(count)]  # each is asked for once: it may be made then
