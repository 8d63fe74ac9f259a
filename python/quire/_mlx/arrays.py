# SPDX-License-Identifier: MIT
"""Converts MLX arrays to numpy, without a copy where MLX allows that, and describes their rows to the library."""

from __future__ import annotations

import operator
from typing import Any, Dict, List, Optional, Sequence as Seq

import mlx.core as mx
import numpy as np

from .. import _native as n
from ..rows import Array

FORMS: Dict[Any, int] = {mx.float32: n.F32, mx.float16: n.F16, mx.bfloat16: n.BF16}
NAMES: Dict[Any, str] = {mx.float32: "f32", mx.float16: "f16", mx.bfloat16: "bf16"}
DTYPES: Dict[str, Any] = {name: dtype for dtype, name in NAMES.items()}

MOST = 2**31 - 1  # of tokens, columns and what counts them


def floats(x: mx.array) -> mx.array:
    """The array in a dtype that the library accepts, as an object of its own: what is assigned to parts of x afterwards is not in it."""
    return x[...] if x.dtype in FORMS else x.astype(mx.float32)


def bits(x: mx.array) -> mx.array:
    """The array in a dtype that numpy has: bfloat16 becomes uint16."""
    return x.view(mx.uint16) if x.dtype == mx.bfloat16 else x


def look(x: mx.array) -> Array:
    """An evaluated array of floats() and bits() as a numpy array whose last axis is contiguous."""
    a = np.array(x, copy=False)
    if a.flags.c_contiguous:
        return a
    if a.strides[-1] != a.itemsize and a.shape[-1] > 1 or any(s <= 0 and d > 1 for s, d in zip(a.strides, a.shape)):
        a = np.ascontiguousarray(a)
    return a


def rows(a: Array, form: int, sequence: int, first: int, count: int, address: int = 0) -> n.Rows:
    """Rows [first, first + count) of one sequence of an array (sequence, head, token, channel). The caller must keep the array alive.
    address: of the array, for callers that have asked it already."""
    to_sequence, to_head, to_token, _ = a.strides
    _, heads, tokens, d = a.shape
    width = d * a.itemsize
    # A stride of an axis of length 1 may be anything, and the library takes 0 for "dense".
    return n.Rows.from_buffer_copy(n.pack_rows(n.ROWS, form, 0, (address or a.ctypes.data) + sequence * to_sequence + first * to_token, 0, 0,
                                               to_token if tokens > 1 else width * heads, to_head if heads > 1 else width, 0, 0, 0, 0, 0))


def new(a: Array, dtype: Any) -> mx.array:
    """A copy of a numpy array. A uint16 array can stand for bfloat16."""
    x = mx.array(a)
    return x.view(mx.bfloat16) if dtype == mx.bfloat16 and a.dtype == np.uint16 else x.astype(dtype)


def check_floats(x: Any, what: str, axes: str = "") -> None:
    """Refuses what is not an array of floats, or not of 4 axes if these are named."""
    if not isinstance(x, mx.array):
        raise TypeError(f"{what} is a {type(x).__name__}, not an mx.array")
    if axes and x.ndim != 4:
        raise ValueError(f"{what} has shape {x.shape}; it must have 4 axes ({axes})")
    if x.dtype not in FORMS and not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(f"{what} has dtype {x.dtype}; it must be float32, float16 or bfloat16")


def check_rows(keys: Any, values: Any) -> None:
    """Refuses keys and values that are not rows of the same tokens."""
    if isinstance(keys, mx.array) and isinstance(values, mx.array) and keys.dtype in FORMS and values.dtype in FORMS:
        k, v = keys.shape, values.shape
        if len(k) == len(v) == 4 and k[:3] == v[:3] and k[0] and k[1] and k[3] and v[3]:
            return
    check_floats(keys, "keys", "sequence, KV head, token, channel")
    check_floats(values, "values", "sequence, KV head, token, channel")
    k, v = keys.shape, values.shape
    if k[:3] != v[:3]:
        raise ValueError(f"values has shape {v}, but keys has shape {k}: the numbers of sequences, KV heads and tokens must be the same")
    if not (k[0] and k[1] and k[3] and v[3]):
        raise ValueError(f"keys has shape {k} and values has shape {v}; only the number of tokens can be 0")


class Masks:
    """The mask of one attention call in the form that the library needs: a quire_mask for each sequence and range of queries."""

    def __init__(self, mask: Any, n_sequences: int, n_heads: int, n_queries: int, n_columns: int) -> None:
        if not isinstance(mask, mx.array):
            raise TypeError(f"mask is a {type(mask).__name__}; use \"causal\", an mx.array or None")
        self.shape = n_sequences, n_heads, n_queries, n_columns
        given = mask.shape
        if len(given) > 4 or any(have not in (1, want) for have, want in zip(reversed(given), reversed(self.shape))):
            raise ValueError(f"a mask of shape {given} does not fit {self.shape} (sequences, heads, queries, keys)")
        if mask.dtype == mx.bool_:
            mask = mx.where(mask, mx.array(0, mx.float16), mx.array(float("-inf"), mx.float16))
        elif mask.dtype not in FORMS and not mx.issubdtype(mask.dtype, mx.floating):
            raise TypeError(f"mask has dtype {mask.dtype}; it must be bool, float32, float16 or bfloat16")
        mask = floats(mask)
        self.form = FORMS[mask.dtype]
        self.array = bits(mask)  # to be evaluated with the rest
        self._view: Optional[Array] = None

    def of(self, sequence: int, first_query: int, padding: int, n_keys: int) -> n.Mask:
        """The mask of the queries from first_query on. Column `padding` is the key at position 0."""
        if self._view is None:
            a = np.array(self.array, copy=False)
            a = a.reshape((1,) * (4 - a.ndim) + a.shape)
            heads = 1 if a.shape[1] == 1 else self.shape[1]
            a = np.broadcast_to(a, (self.shape[0], heads, *self.shape[2:]))
            if a.strides[3] != a.itemsize and a.shape[3] > 1:
                a = np.ascontiguousarray(a)
            self._view = a
        a = self._view
        at = a.ctypes.data + sequence * a.strides[0] + first_query * a.strides[2] + padding * a.itemsize
        return n.Mask(at, a.strides[2], a.strides[1] if a.shape[1] > 1 else 0, self.form, 0, n_keys)


def causal_mask(n_queries: int, first_query: int, window_size: Optional[int], padding: Seq[int]) -> mx.array:
    """True where a query may see a column. The first columns of a sequence are padding."""
    columns = mx.arange(first_query + n_queries)[None]
    queries = mx.arange(first_query, first_query + n_queries)[:, None]
    mask = queries >= columns
    if window_size is not None:
        mask = mask & (queries < columns + window_size)
    return mask & (mx.array(list(padding))[:, None, None, None] <= columns) if any(padding) else mask


def _integers(given: Any, what: str) -> List[int]:
    listed: Any = given.tolist() if isinstance(given, (mx.array, np.ndarray)) else given
    try:
        found = [operator.index(i) for i in listed]
    except TypeError:
        raise TypeError(f"{what} must be a list or an array of integers") from None
    if any(isinstance(i, bool) for i in listed):
        raise TypeError(f"{what} must be a list or an array of integers, not of bools")
    return found


def numbers(given: Any, what: str, count: Optional[int] = None) -> List[int]:
    """Numbers, which engines pass as a list or an array, as a list of int that are at least 0. count: how many there must be."""
    found = _integers(given, what)
    if count is not None and len(found) != count:
        raise ValueError(f"{what} has {len(found)} numbers for {count} sequences")
    if any(i < 0 or i > MOST for i in found):
        raise ValueError(f"{what} is {found}; its numbers must be at least 0 and at most {MOST}")
    return found


def places(given: Any, what: str, count: int) -> List[int]:
    """Indices of sequences of a batch of `count`. Negative ones count from the end."""
    found = _integers(given, what)
    if any(not -count <= i < count for i in found):
        raise ValueError(f"{what} is {found}, but the batch has {count} sequences")
    return [i % count for i in found]
