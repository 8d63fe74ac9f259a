# SPDX-License-Identifier: MIT
"""Finds libquire_vllm and declares the functions of attention.h. Nothing here is for users."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import POINTER, c_int, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, List

import torch  # loads its OpenMP runtime
from quire import _native as n

NAME = "libquire_vllm.so"
_OPENMP = re.compile(r"/lib(?:g|i)?omp[^/]*\.so[^/]*$")


class PagedMemory(n.Sized):
    _fields_ = [("k", c_void_p), ("v", c_void_p),
                ("k_block_stride", c_size_t), ("k_tile_stride", c_size_t), ("k_head_stride", c_size_t), ("k_layer_stride", c_size_t),
                ("v_block_stride", c_size_t), ("v_tile_stride", c_size_t), ("v_head_stride", c_size_t), ("v_layer_stride", c_size_t),
                ("k_format", c_void_p), ("v_format", c_void_p),
                ("n_blocks", c_uint32), ("block_tokens", c_uint32), ("n_kv_heads", c_uint32), ("n_layers", c_uint32)]


class Layer(n.Sized):
    _fields_ = [("memory", PagedMemory), ("options", n.AttendOptions), ("n_q_heads", c_uint32), ("d_k", c_uint32),
                ("d_v", c_uint32), ("window", c_uint32), ("form", c_uint32), ("reserved", c_uint32)]


class Batch(n.Sized):
    _fields_ = [("query_starts", c_void_p), ("lengths", c_void_p), ("blocks", c_void_p), ("row_stride", c_size_t),
                ("n_seqs", c_uint32), ("reserved", c_uint32)]


def openmp_runtimes() -> List[str]:
    """The OpenMP runtimes that this process has loaded."""
    with open("/proc/self/maps") as maps:
        found = {line.split(None, 5)[5].rstrip("\n") for line in maps if line.count(" ") > 4 and "omp" in line}
    return sorted(path for path in found if _OPENMP.search(path))


RUNTIMES = openmp_runtimes()  # before libquire_vllm


def _folder() -> Path:
    """The wheel has the library beside this file; a checkout has it beside libquire."""
    own = Path(__file__).resolve().parent / "lib"
    return own if (own / NAME).exists() else n.folder()


def _load() -> ctypes.CDLL:
    """libquire_vllm names no OpenMP runtime: a second one would be a second team of threads beside torch's. Its calls are bound to the
    runtime that torch has loaded, whose names are made visible first. libquire is the one that package quire has loaded."""
    if not RUNTIMES:
        raise ImportError("torch has loaded no OpenMP runtime, and Quire's attention needs one")
    of_torch = str(Path(torch.__file__).resolve().parent.parent)
    first = sorted(RUNTIMES, key=lambda path: not path.startswith(of_torch))[0]
    ctypes.CDLL(first, os.RTLD_GLOBAL | os.RTLD_NOLOAD | os.RTLD_LAZY)
    path = _folder() / NAME
    if not path.exists():
        raise ImportError(f"{path} was not found; build the target quire_vllm, or install the wheel quire-vllm")
    loaded = ctypes.CDLL(str(path))
    p, u, z, out = c_void_p, c_uint32, c_size_t, POINTER(c_void_p)
    prototypes: Any = {
        "quire_vllm_team_create": [out],
        "quire_vllm_team_destroy": [p],
        "quire_vllm_step_create": [out],
        "quire_vllm_step_destroy": [p],
        "quire_vllm_step_begin": [p, POINTER(Batch)],
        "quire_vllm_write": [p, p, p, z, z, p, z, z, p, u],
        "quire_vllm_attend": [p, p, p, p, z, z, p, z, z, u],
    }
    for name, arguments in prototypes.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None if name.endswith("destroy") else c_int
    return loaded


lib = _load()


def _create(function: Any) -> int:
    handle = c_void_p()
    n.check(function(ctypes.byref(handle)))
    assert handle.value is not None
    return handle.value


class Step:
    """The tiles of one step."""

    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle = _create(lib.quire_vllm_step_create)

    def __del__(self, destroy: Any = lib.quire_vllm_step_destroy) -> None:  # kept here: at the end of the process names go first
        handle, self.handle = getattr(self, "handle", 0), 0
        if handle:
            destroy(handle)


TEAM = _create(lib.quire_vllm_team_create)  # as long as the process: torch's threads are the process's, too
