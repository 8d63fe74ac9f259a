# SPDX-License-Identifier: MIT
"""Passes rows of numpy arrays to the library, without copies.

An array of rows has the axes (token, head, channel). The channels of a row must be contiguous; the other two axes may have any
positive stride, so a view such as x.transpose(1, 0, 2) of an array (head, token, channel) works without a copy.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _native as n
from .errors import QuireError

Array = npt.NDArray[Any]
MLX_FLAG, MLX_VLM_FLAG = 8, 32  # QUIRE_CODEC_MLX, QUIRE_CODEC_MLX_VLM

_FORMS: Dict[str, Tuple[int, "np.dtype[Any]"]] = {
    "f32": (n.F32, np.dtype(np.float32)),
    "f16": (n.F16, np.dtype(np.float16)),
    "bf16": (n.BF16, np.dtype(np.uint16)),
}


@dataclass(frozen=True)
class NativeRows:
    """Rows that are already encoded, in the codec's own layout (docs/formats/rows.md): uint8 (token, head, byte)."""

    codec: str
    codes: Array


@dataclass(frozen=True)
class MlxRows:
    """Rows as mx.quantize gives them: uint32 words (token, head, word), scales and biases (token, head, group).

    scale_dtype is "f32", "f16" or "bf16" (uint16 arrays). Rows of a tv codec are a state of mlx-vlm's TurboQuant: words are its
    indices, scales (token, head, 1) its norms, which are f16, and biases is None.
    """

    codec: str
    words: Array
    scales: Array
    biases: Any = None  #: an array, or None for tv codecs
    scale_dtype: str = "f16"


AnyRows = Union[Array, NativeRows, MlxRows]


_F32, _F16, _U16 = (np.dtype(kind) for kind in (np.float32, np.float16, np.uint16))
# Bits of ndarray.flags.num: C-contiguous, aligned, writeable, and "warn when it is written to".
_CONTIGUOUS, _ALIGNED, _WRITEABLE, _WARNS = 0x1, 0x100, 0x400, 1 << 31
READ, WRITE = _CONTIGUOUS | _ALIGNED, _CONTIGUOUS | _ALIGNED | _WRITEABLE
_OTHER = 0, 0
_ndarray, _empty = np.ndarray, np.empty
_addressof = ctypes.addressof
# Of an array that is contiguous, not empty and may be written to. array.ctypes.data takes three times as long.
_first_byte: Any = ctypes.c_char.from_buffer


def whole(array: Any, shape: Tuple[int, int, int], dtype: Optional[str], use: int = READ) -> Tuple[int, int]:
    """The form and the address of rows without gaps: an array of exactly this shape that `use` (READ or WRITE) is possible with.

    (0, 0) for everything else, right or wrong: then form_of(), strides_of() and address() decide. Most arrays that calls get are of
    this kind, and this takes a fifth of the time of those three.
    """
    if type(array) is not _ndarray:
        return _OTHER
    kind = array.dtype
    if kind is _F32 and dtype is None:
        form = n.F32
    elif kind is _F16 and dtype is None:
        form = n.F16
    elif kind is _U16 and dtype == "bf16":
        form = n.BF16
    else:
        return _OTHER
    flags = array.flags.num
    if flags & (use | _WARNS) != use or array.shape != shape or not shape[0]:
        return _OTHER
    return form, _addressof(_first_byte(array)) if flags & _WRITEABLE else int(array.ctypes.data)


def made(shape: Tuple[int, int, int], kind: "np.dtype[Any]") -> Tuple[Array, int]:
    """A new array, not empty, and its address."""
    array = _empty(shape, kind)
    return array, _addressof(_first_byte(array))


def plain(array: Any, what: str) -> Array:
    """The array as numpy's own type. A class derived from it can say whatever it likes about shape, strides and dtype."""
    if type(array) is _ndarray:
        return array
    if not isinstance(array, _ndarray):
        raise TypeError(f"{what} is a {type(array).__name__}, not a numpy array")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array; filled() makes an array of it")
    return np.asarray(array)


def form_of(array: Array, dtype: Optional[str], what: str) -> int:
    """The form of an array's values. uint16 means bf16 only with dtype="bf16"."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{what} is a {type(array).__name__}, not a numpy array")
    if dtype is None:
        for form, kind in (_FORMS["f32"], _FORMS["f16"]):
            if array.dtype == kind:
                return form
        hint = 'for bf16 give dtype="bf16" as well' if array.dtype == np.uint16 else "astype(numpy.float32) makes such an array"
        raise TypeError(f"{what} has dtype {array.dtype}, not float32 or float16; {hint}")
    kind = numpy_dtype(dtype)
    if array.dtype != kind:
        raise TypeError(f"{what} has dtype {array.dtype}, but dtype={dtype!r} needs an array of {kind}")
    return _FORMS[dtype][0]


def numpy_dtype(dtype: str) -> "np.dtype[Any]":
    if dtype not in _FORMS:
        raise ValueError(f"dtype must be f32, f16 or bf16, not {dtype!r}")
    return _FORMS[dtype][1]


def side_of(side: str) -> int:
    if side not in ("k", "v"):
        raise ValueError(f"side must be 'k' or 'v', not {side!r}")
    return n.V if side == "v" else n.K


def strides_of(array: Array, shape: Tuple[Optional[int], int, int], what: str) -> Tuple[int, int]:
    """Checks an array of rows and returns its (token, head) strides in bytes. None in shape allows any number."""
    found, strides, size = array.shape, array.strides, array.itemsize
    if len(found) != 3 or found[1:] != shape[1:] or shape[0] not in (None, found[0]):
        wanted = "(" + ", ".join("tokens" if s is None else str(s) for s in shape) + ")"
        raise ValueError(f"{what} has shape {found}, not {wanted}; the axes are (token, head, channel)")
    tokens, heads, width = found
    if not array.flags.aligned:
        raise ValueError(f"{what} is not aligned to its dtype")
    if width > 1 and strides[2] != size and array.size:
        raise ValueError(f"{what}: the values of a row must lie side by side in memory; numpy.ascontiguousarray() makes such a copy")
    row = width * size
    # A stride of an axis of length 1 is never used, and the library takes 0 for "dense".
    head = strides[1] if heads > 1 else row
    token = strides[0] if tokens > 1 else max(head, row) * heads
    if array.size and (head < row or token < row):
        raise ValueError(f"{what}: rows overlap or run backwards in memory; numpy.ascontiguousarray() makes a suitable copy")
    return token, head


def _native_shape(codec: str, d: int) -> int:
    width = int(n.lib.quire_codec_row_bytes(n.c_text(codec, "codec"), d))
    if not width:
        raise ValueError(f"there is no codec {codec!r} for rows of {d} values")
    return width


def describe(rows: AnyRows, n_tokens: int, n_heads: int, d: int, dtype: Optional[str], what: str,
             writes: bool = False) -> Tuple[n.Rows, Any]:
    """A quire_rows that points into the arrays, and what the caller must keep until the library has used it."""
    form, at = whole(rows, (n_tokens, n_heads, d), dtype, WRITE if writes else READ)
    if at:
        row = 4 * d if form == n.F32 else 2 * d
        return n.Rows.from_buffer_copy(n.pack_rows(n.ROWS, form, 0, at, 0, 0, n_heads * row, row, 0, 0, 0, 0, 0)), rows
    out = n.Rows()
    kept: Tuple[Any, ...] = ()
    if isinstance(rows, MlxRows):
        codec, scale_dtype, biases = rows.codec, rows.scale_dtype, rows.biases
        data, scales = plain(rows.words, f"{what}.words"), plain(rows.scales, f"{what}.scales")
        bits, n_groups, has_biases = mlx_shape(codec, d)
        _check_dtype(data, np.uint32, f"{what}.words")
        token, head = strides_of(data, (n_tokens, n_heads, -(-d * bits // 32)), f"{what}.words")
        out.scale_form = form_of(scales, scale_dtype, f"{what}.scales")
        scale = strides_of(scales, (n_tokens, n_heads, n_groups), f"{what}.scales")
        out.form, out.codec = n.MLX, n.c_text(codec, f"{what}.codec")
        out.scales = address(scales, f"{what}.scales", writes)
        if has_biases:
            if biases is None:
                raise ValueError(f"{what}.biases is None, but {codec} has biases")
            biases = plain(biases, f"{what}.biases")
            form_of(biases, scale_dtype, f"{what}.biases")
            if strides_of(biases, (n_tokens, n_heads, n_groups), f"{what}.biases") != scale:
                raise ValueError(f"{what}: scales and biases must have the same strides")
            out.biases = address(biases, f"{what}.biases", writes)
        elif biases is not None:
            raise ValueError(f"{what}.biases must be None: {codec} has none")
        out.scale_token_stride, out.scale_head_stride = scale
        kept = scales, biases
    elif isinstance(rows, NativeRows):
        codec, data = rows.codec, plain(rows.codes, f"{what}.codes")
        _check_dtype(data, np.uint8, f"{what}.codes")
        token, head = strides_of(data, (n_tokens, n_heads, _native_shape(codec, d)), f"{what}.codes")
        out.form, out.codec = n.NATIVE, n.c_text(codec, f"{what}.codec")
    else:
        data = plain(rows, what)
        out.form = form_of(data, dtype, what)
        token, head = strides_of(data, (n_tokens, n_heads, d), what)
    out.data = address(data, what, writes)
    out.token_stride, out.head_stride = token, head
    return out, (data, kept)


def _check_dtype(array: Array, dtype: Any, what: str) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise TypeError(f"{what} must be an array of {np.dtype(dtype)}")


def address(array: Array, what: str = "", writes: bool = False) -> int:
    if writes and not array.flags.writeable:
        raise ValueError(f"{what} is read-only and cannot be written to")
    if array.flags.num & (WRITE | _WARNS) == WRITE and array.size:
        return _addressof(_first_byte(array))
    return int(array.ctypes.data)


def codec_bits(codec: str) -> int:
    return int(codec_info(codec).bits)


def codec_group(codec: str) -> int:
    return int(codec_info(codec).group)


def mlx_shape(codec: str, d: int) -> Tuple[int, int, bool]:
    """Of a codec that MLX or mlx-vlm also has: bits per code, groups per row, and whether there are biases."""
    flags = codec_info(codec).flags
    if not flags & (MLX_FLAG | MLX_VLM_FLAG):
        raise QuireError("EUNSUPPORTED", f"{codec} cannot be expressed in MLX's arrays; use an affine codec such as a8g64")
    return codec_bits(codec), -(-d // (codec_group(codec) or d)), bool(flags & MLX_FLAG)


def empty_mlx(codec: str, tokens: int, heads: int, d: int, scale_dtype: str) -> MlxRows:
    """New arrays for such rows, to write to."""
    bits, groups, has_biases = mlx_shape(codec, d)
    kind = numpy_dtype(scale_dtype)
    return MlxRows(codec, np.empty((tokens, heads, -(-d * bits // 32)), np.uint32), np.empty((tokens, heads, groups), kind),
                   np.empty((tokens, heads, groups), kind) if has_biases else None, scale_dtype)


def codec_info(codec: str) -> n.CodecInfo:
    found = n.lib.quire_codec_find(n.c_text(codec, "codec"))
    if not found:
        raise ValueError(f"there is no codec {codec!r}")
    info: n.CodecInfo = found.contents
    return info


def dense(array: Array, shape: Tuple[int, ...], what: str, writes: bool = False) -> int:
    """Address of a C-contiguous float32 array of this shape. The caller keeps the array."""
    array = plain(array, what)
    _check_dtype(array, np.float32, what)
    if array.shape != shape:
        raise ValueError(f"{what} has shape {array.shape}, not {shape}")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError(f"{what} is not contiguous; numpy.ascontiguousarray() makes a contiguous copy")
    return address(array, what, writes)


def per_layer(rows: Any, n_layers: int, what: str) -> List[Any]:
    """A list with the rows of each layer."""
    if rows is None:
        return [None] * n_layers
    if isinstance(rows, (list, tuple)):
        if len(rows) != n_layers:
            raise ValueError(f"{what} has {len(rows)} arrays for {n_layers} layers")
        return list(rows)
    if n_layers != 1:
        raise ValueError(f"{what} is one array, but there are {n_layers} layers; give a list")
    return [rows]
