# SPDX-License-Identifier: MIT
"""Codecs without a cache: encode rows to bytes and decode them, to study codecs. Everything here copies."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, List, Optional

import numpy as np

from . import _native as n
from ._handle import Handle
from .profile import Profile
from .rows import (AnyRows, Array, MLX_FLAG, MLX_VLM_FLAG, MlxRows, NativeRows, codec_info, describe, empty_mlx, form_of, numpy_dtype, plain,
                   side_of)

_MOST_CHANNELS = 1024  # of a head
_FLOAT, _ROTATED, _CALIBRATED, _GGML = 1, 2, 4, 16  # QUIRE_CODEC_...


@dataclass(frozen=True)
class Codec:
    """An entry of the list of codecs; docs/codecs.md says how to read its name."""

    name: str
    summary: str
    bits: int  #: per code; 16 or 32 for floats
    group: int  #: number of values that share a scale; 0: the whole row
    is_float: bool
    is_rotated: bool
    is_calibrated: bool  #: needs a profile; K only
    is_mlx: bool  #: rows convert to MLX's packed arrays without being encoded again
    is_ggml: bool  #: rows are ggml's blocks
    is_mlx_vlm: bool = False  #: rows convert to mlx-vlm's TurboQuant state without being encoded again


def codecs() -> List[Codec]:
    """All codecs, in the order of docs/codecs.md."""
    found = (n.lib.quire_codec_at(i).contents for i in range(n.lib.quire_codec_count()))
    return [
        Codec(n.text(c.name), n.text(c.summary), c.bits, c.group, bool(c.flags & _FLOAT), bool(c.flags & _ROTATED),
              bool(c.flags & _CALIBRATED), bool(c.flags & MLX_FLAG), bool(c.flags & _GGML), bool(c.flags & MLX_VLM_FLAG)) for c in found
    ]


def bits(codec: str, d: int) -> float:
    """Bits per value of a row of d values in a tile, including scales, biases and padding."""
    value = float(n.lib.quire_codec_bits(n.c_text(codec, "codec"), n.u32(d, "d")))
    if not value:
        raise ValueError(f"there is no codec {codec!r} for rows of {d} values")
    return value


class Format(Handle):
    """A codec for one side ("k" or "v") and one head size. The same rows give the same bytes on every machine."""

    def __init__(self, codec: str, d: int, side: str = "k", *, profile: Optional[Profile] = None, layer: int = 0,
                 head: int = 0) -> None:
        flags = codec_info(codec).flags  # raises if it is unknown
        name, self.d = n.c_text(codec, "codec"), n.u32(d, "d")
        options = n.TileFormatOptions(side=side_of(side), d=self.d, layer=n.u32(layer, "layer"))
        self.codec, self.side, self.head = codec, side, n.u32(head, "head")
        self.row_bytes = int(n.lib.quire_codec_row_bytes(name, self.d))
        if not 1 <= self.d <= _MOST_CHANNELS:
            raise ValueError(f"d is {self.d}, not a number from 1 to {_MOST_CHANNELS}")
        if flags & _CALIBRATED and side == "v":
            raise ValueError(f"codec {codec} is for K only, but side is 'v'")
        invalid = f"codec {codec} needs a profile" if profile is None else "layer: the profile has no such layer, or it is not finished"
        super().__init__(n.lib.quire_tile_format_destroy)
        if profile is None:
            self._open(n.lib.quire_tile_format_create, name, options, invalid=invalid)
            return
        with profile._lock:
            options.profile = profile._get()
            self._open(n.lib.quire_tile_format_create, name, options, invalid=invalid)

    def _through(self, source: AnyRows, target: AnyRows, count: int, dtype: Optional[str], out_dtype: Optional[str]) -> None:
        """Converts rows from one form to another through a tile, 64 rows at a time."""
        rows, kept = describe(source, count, 1, self.d, dtype, "rows")
        to, to_kept = describe(target, count, 1, self.d, out_dtype, "out", writes=True)
        with self._lock:
            pointer = self._get()
            size = n.lib.quire_tile_bytes(pointer)
            room = np.zeros(size + 64, np.uint8)
            tile = room.ctypes.data + -room.ctypes.data % 64
            for first in range(0, count, n.PAGE_TOKENS):
                ctypes.memset(tile, 0, size)
                some = min(n.PAGE_TOKENS, count - first)
                n.check(n.lib.quire_tile_encode(pointer, self.head, tile, 0, some, rows, None), invalid=f"head: there is no head {self.head}")
                n.check(n.lib.quire_tile_decode(pointer, self.head, tile, 0, some, to))
                for block in (rows, to):
                    block.data += some * block.token_stride
                    for part in ("scales", "biases"):
                        if getattr(block, part):
                            setattr(block, part, getattr(block, part) + some * block.scale_token_stride)
        del kept, to_kept  # not before the library has used them

    def _flat(self, rows: Array) -> Array:
        if not isinstance(rows, np.ndarray) or not (values := plain(rows, "rows")).ndim or values.shape[-1] != self.d:
            raise ValueError(f"rows must be an array of shape (..., {self.d})")
        return np.ascontiguousarray(values).reshape(-1, 1, self.d)

    def encode(self, rows: Array, *, dtype: Optional[str] = None) -> Array:
        """Encodes (..., d) values to (..., row_bytes) uint8 (docs/formats/rows.md, NATIVE)."""
        flat = self._flat(rows)
        form_of(flat, dtype, "rows")
        codes = np.empty((len(flat), 1, self.row_bytes), np.uint8)
        self._through(flat, NativeRows(self.codec, codes), len(flat), dtype, None)
        return codes.reshape(*rows.shape[:-1], self.row_bytes)

    def decode(self, codes: Array, *, dtype: str = "f32") -> Array:
        """Decodes (..., row_bytes) uint8 to (..., d) values; bf16 values are uint16."""
        codes = plain(codes, "codes")
        if codes.dtype != np.uint8 or not codes.ndim or codes.shape[-1] != self.row_bytes:
            raise ValueError(f"codes must be a uint8 array of shape (..., {self.row_bytes})")
        flat = np.ascontiguousarray(codes).reshape(-1, 1, self.row_bytes)
        values: Array = np.empty((len(flat), 1, self.d), numpy_dtype(dtype))
        self._through(NativeRows(self.codec, flat), values, len(flat), None, dtype)
        return values.reshape(*codes.shape[:-1], self.d)

    def round_trip(self, rows: Array, *, dtype: Optional[str] = None) -> Array:
        """The rows encoded and decoded again, as float32: the values that attention uses."""
        flat = self._flat(rows)
        form_of(flat, dtype, "rows")
        values: Array = np.empty(flat.shape, np.float32)
        self._through(flat, values, len(flat), dtype, "f32")
        return values.reshape(rows.shape)

    def encode_mlx(self, rows: Array, *, dtype: Optional[str] = None, scale_dtype: str = "f16") -> MlxRows:
        """Encodes (..., d) values to the arrays that mx.quantize gives, (..., words) and (..., groups). Affine and tv codecs only.

        Scales are stored as f16. With scale_dtype="f32" they are the same values, converted to f32.
        """
        flat = self._flat(rows)
        form_of(flat, dtype, "rows")
        made = empty_mlx(self.codec, len(flat), 1, self.d, scale_dtype)
        self._through(flat, made, len(flat), dtype, None)
        words, scales = (x.reshape(*rows.shape[:-1], x.shape[-1]) for x in (made.words, made.scales))
        biases = None if made.biases is None else made.biases.reshape(scales.shape)
        return MlxRows(self.codec, words, scales, biases, scale_dtype)


def encode(codec: str, rows: Array, *, dtype: Optional[str] = None, **options: Any) -> Array:
    """Format(codec, d).encode(rows). The options are those of Format."""
    with Format(codec, _d(rows), **options) as form:
        return form.encode(rows, dtype=dtype)


def decode(codec: str, codes: Array, d: int, *, dtype: str = "f32", **options: Any) -> Array:
    """Format(codec, d).decode(codes)."""
    with Format(codec, d, **options) as form:
        return form.decode(codes, dtype=dtype)


def round_trip(codec: str, rows: Array, *, dtype: Optional[str] = None, **options: Any) -> Array:
    """Format(codec, d).round_trip(rows): the rows encoded and decoded again."""
    with Format(codec, _d(rows), **options) as form:
        return form.round_trip(rows, dtype=dtype)


def _d(rows: Array) -> int:
    if not isinstance(rows, np.ndarray) or not rows.ndim:
        raise ValueError("rows must be an array of shape (..., d)")
    return int(rows.shape[-1])
