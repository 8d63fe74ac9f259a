# SPDX-License-Identifier: MIT
"""The C interface of the store, as include/quire/store.h declares it."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from typing import Any, Dict, List, Tuple

from . import _native as n

MISS_REASONS = 64  # QUIRE_MISS_REASONS


class Remote(n.Sized):
    _fields_ = [("host", c_char_p), ("user", c_char_p), ("password", c_char_p), ("port", c_uint32), ("tls", c_uint32),
                ("tls_ca", c_char_p), ("tls_cert", c_char_p), ("tls_key", c_char_p), ("tls_name", c_char_p),
                ("connections", c_uint32), ("ttl_seconds", c_uint32), ("connect_ms", c_uint32), ("stall_ms", c_uint32),
                ("in_flight_bytes", c_size_t), ("min_bytes_per_second", c_uint32), ("read_replicas", c_uint32)]


class Options(n.Sized):
    _fields_ = [("directory", c_char_p), ("disk_bytes", c_uint64), ("disk_bytes_per_day", c_uint64), ("disk_threads", c_uint32),
                ("no_promote", c_uint32), ("queue_bytes", c_size_t), ("remote", POINTER(Remote)), ("allocator", c_void_p),
                ("log", c_void_p), ("message", c_char_p), ("message_size", c_size_t), ("disk_cache_bytes", c_uint64),
                ("tenant_bytes", c_uint64), ("seal_disk", c_uint32), ("reserved", c_uint32)]


class Stats(n.Sized):
    _fields_ = [("loads", c_uint64), ("misses", c_uint64 * MISS_REASONS), ("loaded", c_uint64 * 2), ("loaded_bytes", c_uint64 * 2),
                ("saved", c_uint64 * 2), ("saved_bytes", c_uint64 * 2), ("known", c_uint64 * 2), ("dropped", c_uint64 * 2),
                ("failed", c_uint64 * 2), ("queued_bytes", c_uint64 * 2), ("evicted", c_uint64), ("removed", c_uint64 * 2),
                ("disk_bytes", c_uint64), ("disk_cap_bytes", c_uint64), ("disk_objects", c_uint64), ("pinned_objects", c_uint64),
                ("breaks", c_uint64), ("reconnects", c_uint64), ("nodes", c_uint32), ("nodes_down", c_uint32), ("shared", c_uint64),
                ("disk_unknown", c_uint64), ("queue_cap_bytes", c_uint64), ("disk_rebuilding", c_uint32), ("disk_failing", c_uint32),
                ("nodes_refusing", c_uint32), ("reserved", c_uint32)]


class Identity(n.Sized):
    _fields_ = [("weights", c_char_p), ("tokenizer", c_char_p), ("adapter", c_char_p), ("adapter_scale", c_double), ("rope", c_char_p),
                ("secret", c_char_p), ("tenant_name", c_char_p), ("model_name", c_char_p)]


class NamespaceStats(n.Sized):
    _fields_ = [("loads", c_uint64), ("loaded", c_uint64 * 2), ("loaded_bytes", c_uint64 * 2), ("saved", c_uint64 * 2),
                ("saved_bytes", c_uint64 * 2), ("known", c_uint64 * 2), ("dropped", c_uint64 * 2), ("failed", c_uint64 * 2),
                ("misses", c_uint64 * MISS_REASONS), ("disk_objects", c_uint64), ("disk_bytes", c_uint64)]


class Usage(n.Sized):
    _fields_ = [("root", c_uint8 * 32), ("tenant", c_uint8 * 16), ("tenant_name", c_char * 64), ("model_name", c_char * 64),
                ("objects", c_uint64), ("bytes", c_uint64), ("pinned", c_uint64), ("quota_bytes", c_uint64), ("last_used_us", c_uint64)]


class Selection(n.Sized):
    _fields_ = [("root", c_char_p), ("tenant", c_char_p), ("tenant_name", c_char_p), ("model_name", c_char_p)]


class Media(Structure):
    _fields_ = [("position", c_uint32), ("digest", c_uint8 * 32)]


class Prompt(n.Sized):
    _fields_ = [("tokens", c_void_p), ("media", POINTER(Media)), ("media_stride", c_size_t), ("n_tokens", c_uint32),
                ("n_media", c_uint32)]


_OUT, _P, _U32, _S, _PROMPT = POINTER(c_void_p), c_void_p, c_uint32, c_int, POINTER(Prompt)
POINTERS = POINTER(c_void_p)

USAGE_FN = CFUNCTYPE(c_int, c_size_t, c_size_t)

_PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    "quire_store_open": (_S, [_OUT, POINTER(Options)]),
    "quire_store_flush": (_S, [_P, _U32]),
    "quire_store_stop_remote": (_S, [_P]),
    "quire_store_close": (None, [_P]),
    "quire_miss_name": (c_char_p, [_S]),
    "quire_store_stats_get": (_S, [_P, POINTER(Stats)]),
    "quire_store_write_metrics": (_S, [_P, c_char_p, n.WRITE, _P]),
    "quire_namespace_create": (_S, [_OUT, _P, POINTER(Identity), _P, POINTER(n.SeqOptions)]),
    "quire_namespace_destroy": (None, [_P]),
    "quire_namespace_root": (None, [_P, c_char_p]),
    "quire_namespace_save": (_S, [_P, _PROMPT, _P]),
    "quire_namespace_lookup": (_S, [_P, _PROMPT, _U32, POINTER(c_uint32)]),
    "quire_namespace_create_raw": (_S, [_OUT, _P, POINTER(Identity), c_char_p, c_size_t]),
    "quire_namespace_lookup_many": (_S, [_P, _PROMPT, c_size_t, _U32, _U32, POINTER(c_uint32)]),
    "quire_chain_create": (_S, [_OUT, _P]),
    "quire_chain_destroy": (None, [_P]),
    "quire_chain_append": (_S, [_P, _P, _U32, POINTER(Media), c_size_t, _U32]),
    "quire_chain_truncate": (_S, [_P, _U32]),
    "quire_chain_length": (_U32, [_P]),
    "quire_chain_save": (_S, [_P, _P, POINTER(c_uint32)]),
    "quire_chain_save_raw": (_S, [_P, _U32, _U32, POINTERS, POINTER(c_uint32)]),
    "quire_chain_lookup_many": (_S, [POINTERS, _U32, _U32, POINTER(c_uint32)]),
    "quire_load_begin_raw": (_S, [_OUT, _P, _U32, _U32, POINTERS, _U32]),
    "quire_load_cancel": (None, [_P]),
    "quire_namespace_pin": (_S, [_P, _PROMPT, _U32, _U32, POINTER(c_uint32)]),
    "quire_load_begin": (_S, [_OUT, _P, _PROMPT, _P, _U32]),
    "quire_load_is_done": (c_int, [_P]),
    "quire_load_end": (_S, [_P, POINTER(c_uint32)]),
    "quire_store_gc": (_S, [_P, c_uint64, c_uint64, POINTER(c_uint64)]),
    "quire_store_usage_each": (_S, [_P, USAGE_FN, c_void_p]),
    "quire_store_remove": (_S, [_P, POINTER(Selection), POINTER(c_uint64)]),
    "quire_store_set_quota": (_S, [_P, c_char_p, c_uint64]),
    "quire_namespace_remove": (_S, [_P, POINTER(c_uint64)]),
    "quire_namespace_stats_get": (_S, [_P, POINTER(NamespaceStats)]),
}


@lru_cache(maxsize=None)
def lib() -> ctypes.CDLL:
    """Opens the library when a store is first used, because everything else works without OpenSSL."""
    try:
        return n.load("quire_store", _PROTOTYPES)
    except OSError as error:
        raise ImportError(f"the store is not part of this build, or a library that it needs is missing: {error}") from error
