# SPDX-License-Identifier: MIT
"""Finds libquire and declares the functions of its headers. Nothing here is for users. ctypes releases the GIL in every call."""

from __future__ import annotations

import ctypes
import operator
import os
import struct
import sys
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_size_t, c_uint32, c_uint64,
                    c_void_p)
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Type

from .errors import PoolFull, QuireError

PAGE_TOKENS = 64
MAX_TOKENS = 2**31 - 1  # of a sequence
F32, F16, BF16, NATIVE, MLX = range(5)  # quire_form
K, V = range(2)  # quire_side

# ---------------------------------------------------------------- structures

# Addresses are plain numbers in callbacks (_stream.py).
WRITE = CFUNCTYPE(c_int, c_size_t, c_size_t, c_size_t)
READ = CFUNCTYPE(c_int, c_size_t, c_size_t, c_size_t)


class Sized(Structure):
    """A structure that begins with its size (base.h). Constructing one sets the size; the other members follow in the order of _fields_.

    ctypes does not construct the elements of an array: fill an array with constructed structures.
    """

    _fields_ = [("size", c_size_t)]

    def __init__(self, *members: Any, **named: Any) -> None:
        super().__init__(ctypes.sizeof(self), *members, **named)


class Executor(Sized):
    _fields_ = [("ctx", c_void_p), ("run", c_void_p), ("n_threads", c_uint32), ("reserved", c_uint32)]


class CodecInfo(Sized):
    _fields_ = [("name", c_char_p), ("summary", c_char_p), ("bits", c_uint32), ("group", c_uint32), ("flags", c_uint32),
                ("reserved", c_uint32)]


class Counts(Sized):
    _fields_ = [("nan", c_uint64), ("saturated", c_uint64), ("recoded", c_uint64)]


class Rows(Sized):  # quire_rows and quire_rows_out have the same members
    _fields_ = [("form", c_int), ("scale_form", c_int), ("data", c_void_p), ("scales", c_void_p), ("biases", c_void_p),
                ("token_stride", c_size_t), ("head_stride", c_size_t), ("seq_stride", c_size_t),
                ("scale_token_stride", c_size_t), ("scale_head_stride", c_size_t), ("scale_seq_stride", c_size_t),
                ("codec", c_char_p)]


class Layer(Structure):
    _fields_ = [("n_q_heads", c_uint32), ("n_kv_heads", c_uint32), ("d_k", c_uint32), ("d_v", c_uint32),
                ("window", c_uint32), ("v_in_k", c_uint32)]


class Geometry(Sized):
    _fields_ = [("n_layers", c_uint32), ("n_q_heads", c_uint32), ("n_kv_heads", c_uint32), ("d_k", c_uint32), ("d_v", c_uint32),
                ("v_in_k", c_uint32), ("windows", POINTER(c_uint32)), ("layers", POINTER(Layer)), ("layer_stride", c_size_t)]


class Rope(Sized):
    _fields_ = [("n_pairs", c_uint32), ("interleaved", c_uint32), ("frequencies", c_void_p)]


class Preset(Sized):
    _fields_ = [("name", c_char_p), ("without", c_char_p), ("with_profile", c_char_p), ("summary", c_char_p)]


class PlanOptions(Sized):
    _fields_ = [("profile", c_void_p), ("allocator", c_void_p), ("message", c_char_p), ("message_size", c_size_t)]


class PlanLayer(Sized):
    _fields_ = [("k", c_char_p), ("v", c_char_p), ("sink_k", c_char_p), ("sink_v", c_char_p), ("reason", c_char_p),
                ("bytes_per_token", c_double), ("sink_tokens", c_uint32), ("group", c_uint32), ("group_index", c_uint32),
                ("window", c_uint32), ("n_q_heads", c_uint32), ("n_kv_heads", c_uint32), ("d_k", c_uint32), ("d_v", c_uint32),
                ("v_in_k", c_uint32), ("reserved", c_uint32)]


class PoolOptions(Sized):
    _fields_ = [("budget_bytes", c_size_t), ("allocator", c_void_p), ("executor", POINTER(Executor))]


class PoolStats(Sized):
    _fields_ = [("budget_bytes", c_size_t), ("used_bytes", c_size_t), ("resident_bytes", c_size_t), ("peak_bytes", c_size_t),
                ("n_pages", c_uint64), ("n_copies", c_uint64), ("nan", c_uint64), ("saturated", c_uint64), ("recoded", c_uint64)]


class SeqOptions(Sized):
    _fields_ = [("max_tokens", c_uint32), ("sinks", c_uint32), ("spare_tokens", c_uint32), ("reserved", c_uint32)]


class SnapshotInfo(Sized):
    _fields_ = [("plan_fingerprint", c_uint64), ("length", c_uint32), ("max_tokens", c_uint32), ("sinks", c_uint32),
                ("spare_tokens", c_uint32), ("policy", c_char * 512)]


class Mask(Sized):
    _fields_ = [("data", c_void_p), ("query_stride", c_size_t), ("head_stride", c_size_t), ("form", c_int), ("first", c_uint32),
                ("n_keys", c_uint32), ("reserved", c_uint32)]


class AttendOptions(Sized):
    _fields_ = [("flags", c_uint32), ("scale", c_float), ("softcap", c_float), ("reserved", c_uint32), ("alibi", c_void_p),
                ("mask_slopes", c_void_p), ("sink_logits", c_void_p), ("cancelled", c_void_p), ("cancelled_ctx", c_void_p)]


class TileFormatOptions(Sized):
    _fields_ = [("side", c_int), ("d", c_uint32), ("d_v", c_uint32), ("layer", c_uint32), ("profile", c_void_p),
                ("allocator", c_void_p)]


class TileRef(Structure):
    _fields_ = [("k", c_void_p), ("v", c_void_p), ("k_head_stride", c_size_t), ("v_head_stride", c_size_t),
                ("k_format", c_void_p), ("v_format", c_void_p), ("first", c_uint32), ("n_rows", c_uint32)]


class AttendJob(Structure):
    _fields_ = [("list", c_void_p), ("list_seq", c_uint32), ("list_layer", c_uint32), ("tiles", POINTER(TileRef)),
                ("tile_stride", c_size_t), ("n_tiles", c_uint32), ("n_q_heads", c_uint32), ("n_kv_heads", c_uint32),
                ("d_k", c_uint32), ("d_v", c_uint32), ("n_queries", c_uint32), ("first_query", c_uint32), ("window", c_uint32),
                ("ring_tokens", c_uint32), ("ring_sinks", c_uint32), ("q_form", c_int), ("out_form", c_int), ("q", c_void_p),
                ("q_token_stride", c_size_t), ("q_head_stride", c_size_t), ("out", c_void_p), ("out_token_stride", c_size_t),
                ("out_head_stride", c_size_t), ("max", c_void_p), ("sum", c_void_p), ("mask", POINTER(Mask))]


class StepQueries(Sized):
    _fields_ = [("q_form", c_int), ("out_form", c_int), ("q", c_void_p), ("q_token_stride", c_size_t), ("q_head_stride", c_size_t),
                ("out", c_void_p), ("out_token_stride", c_size_t), ("out_head_stride", c_size_t), ("max", c_void_p), ("sum", c_void_p),
                ("options", POINTER(AttendOptions)), ("masks", POINTER(Mask)), ("mask_stride", c_size_t)]


_LETTERS = {c_int: "i", c_uint32: "I", c_float: "f", c_size_t: "N", c_void_p: "P", c_char_p: "P"}


def packer(kind: Type[Structure]) -> struct.Struct:
    """Packs all members of a structure in order, in a fifth of the time that ctypes takes to set them one by one."""
    members = [member[1] for base in reversed(kind.__mro__) for member in base.__dict__.get("_fields_", ())]
    found = struct.Struct("@" + "".join(_LETTERS.get(member, "P") for member in members))
    assert found.size == ctypes.sizeof(kind)
    return found


# Bytes of all members. Pointers are addresses, and the caller keeps what they point to. The library takes the bytes for the structure where
# it only reads it: CPython puts the contents of bytes at a multiple of 8.
pack_rows, pack_queries, pack_job = (packer(kind).pack for kind in (Rows, StepQueries, AttendJob))
ROWS, QUERIES, JOB = (ctypes.sizeof(kind) for kind in (Rows, StepQueries, AttendJob))

# ----------------------------------------------------------------- functions

_OUT = POINTER(c_void_p)
_P, _U32, _S = c_void_p, c_uint32, c_int  # pointer or handle, number, status

_PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    "quire_status_name": (c_char_p, [_S]),
    "quire_status_text": (c_char_p, [_S]),
    "quire_version": (c_char_p, []),
    "quire_isa_in_use": (c_char_p, []),
    "quire_isa_at": (c_char_p, [_U32]),
    "quire_isa_use": (_S, [c_char_p]),
    "quire_isa_use_environment": (_S, []),
    "quire_threads_create": (_S, [_OUT, _U32]),
    "quire_threads_destroy": (None, [_P]),
    "quire_threads_executor": (_S, [_P, POINTER(Executor)]),
    "quire_codec_count": (_U32, []),
    "quire_codec_at": (POINTER(CodecInfo), [_U32]),
    "quire_codec_find": (POINTER(CodecInfo), [c_char_p]),
    "quire_codec_row_bytes": (c_size_t, [c_char_p, _U32]),
    "quire_codec_bits": (c_double, [c_char_p, _U32]),
    "quire_profile_create": (_S, [_OUT, POINTER(Geometry), _P]),
    "quire_profile_set_rope": (_S, [_P, _U32, POINTER(Rope)]),
    "quire_profile_set_length": (_S, [_P, _U32]),
    "quire_profile_observe_k": (_S, [_P, _U32, _U32, _P, _U32]),
    "quire_profile_observe_q": (_S, [_P, _U32, _U32, _P, _U32]),
    "quire_profile_finish": (_S, [_P]),
    "quire_profile_save": (_S, [_P, WRITE, _P]),
    "quire_profile_load": (_S, [_OUT, READ, _P, _P]),
    "quire_profile_digest": (c_uint64, [_P]),
    "quire_profile_score_error": (_S, [_P, _U32, c_char_p, POINTER(c_double)]),
    "quire_profile_destroy": (None, [_P]),
    "quire_preset_count": (_U32, []),
    "quire_preset_at": (POINTER(Preset), [_U32]),
    "quire_plan_create": (_S, [_OUT, POINTER(Geometry), c_char_p, POINTER(PlanOptions)]),
    "quire_plan_destroy": (None, [_P]),
    "quire_plan_policy": (c_char_p, [_P]),
    "quire_plan_fingerprint": (c_uint64, [_P]),
    "quire_plan_bytes_per_token": (c_double, [_P]),
    "quire_plan_n_groups": (_U32, [_P]),
    "quire_plan_page_bytes": (c_size_t, [_P, _U32]),
    "quire_plan_layer_info": (_S, [_P, _U32, POINTER(PlanLayer)]),
    "quire_plan_warning": (c_char_p, [_P]),
    "quire_plan_describe": (_S, [_P, WRITE, _P]),
    "quire_plan_bytes": (_S, [_P, POINTER(SeqOptions), _U32, _U32, POINTER(c_size_t)]),
    "quire_pool_create": (_S, [_OUT, _P, POINTER(PoolOptions)]),
    "quire_pool_add_plan": (_S, [_P, _P]),
    "quire_pool_stats_get": (_S, [_P, POINTER(PoolStats)]),
    "quire_pool_destroy": (None, [_P]),
    "quire_seq_create": (_S, [_OUT, _P, POINTER(SeqOptions)]),
    "quire_seq_destroy": (None, [_P]),
    "quire_seq_length": (_U32, [_P]),
    "quire_seq_fork": (_S, [_OUT, _P]),
    "quire_seq_trim": (_S, [_P, _U32]),
    "quire_seq_trim_floor": (_U32, [_P]),
    "quire_seq_convert": (_S, [_P, _P, _U32]),
    "quire_seq_plan": (_P, [_P]),
    "quire_seq_options_get": (_S, [_P, POINTER(SeqOptions)]),
    "quire_seq_export": (_S, [_P, _U32, _S, _U32, _U32, POINTER(Rows)]),
    "quire_seq_save": (_S, [_P, WRITE, _P]),
    "quire_seq_load": (_S, [_OUT, _P, READ, _P]),
    "quire_snapshot_read_info": (_S, [POINTER(SnapshotInfo), READ, _P]),
    "quire_seq_tiles": (_U32, [_P, _U32, POINTER(TileRef), _U32, c_size_t]),
    "quire_step_begin": (_S, [_OUT, _P, POINTER(c_void_p), POINTER(c_uint32), _U32]),
    "quire_step_append": (_S, [_P, _U32, _P, _P]),
    "quire_step_append_rows": (_S, [_P, _U32, _U32, POINTER(Rows), POINTER(Rows)]),
    "quire_step_attend_with": (_S, [_P, _U32, _P]),
    "quire_step_commit": (_S, [_P]),
    "quire_step_abort": (None, [_P]),
    "quire_tile_format_create": (_S, [_OUT, c_char_p, POINTER(TileFormatOptions)]),
    "quire_tile_format_destroy": (None, [_P]),
    "quire_tile_bytes": (c_size_t, [_P]),
    "quire_tile_encode": (_S, [_P, _U32, _P, _U32, _U32, POINTER(Rows), POINTER(Counts)]),
    "quire_tile_decode": (_S, [_P, _U32, _P, _U32, _U32, POINTER(Rows)]),
    "quire_workspace_create": (_S, [_OUT, POINTER(Executor), _P]),
    "quire_workspace_destroy": (None, [_P]),
    "quire_attend": (_S, [_P, POINTER(AttendOptions), _P, _U32, c_size_t]),
    "quire_attend_merge": (None, [_P, _P, _P, _P, _P, _P, _U32, _U32]),
    "quire_attend_finish": (None, [_P, _P, _P, _U32, _U32, _P, _U32]),
}


# ------------------------------------------------------------------- finding


def _places() -> List[Path]:
    """Folders that may contain the libraries; the first one that does is used."""
    given = os.environ.get("QUIRE_LIBRARY")
    if given:
        path = Path(given)
        return [path if path.is_dir() else path.parent]
    here = Path(__file__).resolve().parent
    return [here / "lib", here.parent.parent / "build" / "release" / "lib"]


def file_name(library: str) -> str:
    """What the file of a shared library of Quire is called on this system."""
    return f"lib{library}.0.2.dylib" if sys.platform == "darwin" else f"lib{library}.so.0.2"


def folder() -> Path:
    """The folder of libquire."""
    places = _places()
    for place in places:
        if (place / file_name("quire")).exists():
            return place
    raise ImportError(f"{file_name('quire')} was not found in: " + ", ".join(str(p) for p in places) +
                      "; set QUIRE_LIBRARY to the folder that contains it")


def load(name: str, prototypes: Dict[str, Tuple[Any, List[Any]]]) -> ctypes.CDLL:
    """Opens a library in the folder of libquire and declares its functions. name: without lib and what follows."""
    library = ctypes.CDLL(str(folder() / file_name(name)))
    for function, (result, arguments) in prototypes.items():
        declared = getattr(library, function)
        declared.restype, declared.argtypes = result, arguments
    return library


lib = load("quire", _PROTOTYPES)


def status_name(status: int) -> str:
    return text(lib.quire_status_name(status))


def check(status: int, message: str = "", invalid: str = "", mismatch: str = "") -> None:
    """Raises the exception for a status; `message` is the sentence that the library gave, if any, `invalid` one for EINVAL and `mismatch` one for
    EMISMATCH."""
    if status == 0:
        return
    name = status_name(status)
    message = message or {"EINVAL": invalid, "EMISMATCH": mismatch}.get(name, "")
    kind: Type[QuireError] = PoolFull if name == "EFULL" else QuireError
    raise kind(name, message or text(lib.quire_status_text(status)))


def text(value: Optional[bytes]) -> str:
    return value.decode(errors="replace") if value is not None else ""  # a sentence may be cut in the middle of a letter


def number(value: Any, what: str) -> int:
    """A whole number. What it is made of is asked once, because an object of the caller may answer differently each time."""
    if type(value) is int:
        return value
    try:
        return int(operator.index(value))
    except TypeError:
        raise TypeError(f"{what} is a {type(value).__name__}, not a whole number") from None


def u32(value: int, what: str, bits: int = 32) -> int:
    """Checks a number that goes to ctypes, which would silently cut one that does not fit."""
    found = number(value, what)
    if not 0 <= found < 2**bits:
        raise ValueError(f"{what} is {found}, which is not in the range 0 to 2^{bits} - 1")
    return found


def u64(value: int, what: str) -> int:
    return u32(value, what, 64)


def c_text(value: str, what: str) -> bytes:
    """A string for C, where a zero character would end it."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}, not a string")
    made = str.encode(value)
    if b"\0" in made:
        raise ValueError(f"{what} contains a zero character, which is not allowed")
    return made


def c_bytes(value: bytes, size: int, what: str) -> bytes:
    """Bytes of which C reads `size`."""
    try:
        made = memoryview(value).tobytes()  # not bytes(value), which an object can answer as it likes
    except TypeError:
        raise TypeError(f"{what} is a {type(value).__name__}, not bytes") from None
    if len(made) != size:
        raise ValueError(f"{what} must have {size} bytes, not {len(made)}")
    return made


def seq_options(max_tokens: int, sinks: int, spare_tokens: int) -> SeqOptions:
    ring = SeqOptions(u32(max_tokens, "max_tokens"), u32(sinks, "sinks"), u32(spare_tokens, "spare_tokens"))
    if ring.max_tokens and ring.sinks >= ring.max_tokens:
        raise ValueError(f"sinks is {ring.sinks}, which is not less than max_tokens, {ring.max_tokens}")
    if ring.sinks and not ring.max_tokens:
        raise ValueError(f"sinks is {ring.sinks}, but there is no max_tokens")
    for name in ("max_tokens", "spare_tokens"):
        if getattr(ring, name) > MAX_TOKENS:
            raise ValueError(f"{name} is {getattr(ring, name)}, more than the longest sequence, {MAX_TOKENS}")
    return ring
