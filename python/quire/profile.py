# SPDX-License-Identifier: MIT
"""Profiles: statistics of a model's rows, which calibrated codecs ("c:") need."""

from __future__ import annotations

import ctypes
from os import PathLike
from typing import Optional, Sequence as Seq, Union

import numpy as np

from . import _native as n
from ._handle import Handle
from ._shapes import Layer, geometry_of
from ._stream import Reader, Writer
from .rows import Array, dense


class Profile(Handle):
    """To make a profile, observe rows of a few thousand tokens, then call finish(). Until then only one thread at a time may use it."""

    layers: "Optional[tuple[Layer, ...]]"

    def __init__(self, layers: Seq[Layer]) -> None:
        out = ctypes.c_void_p()
        n.check(n.lib.quire_profile_create(ctypes.byref(out), geometry_of(layers), None))
        self.layers = tuple(layers)
        super().__init__(out.value, n.lib.quire_profile_destroy)

    @classmethod
    def load(cls, path: "Union[str, PathLike[str]]") -> "Profile":
        """Loads a profile from a file that `quire calibrate` or save() wrote."""
        out = ctypes.c_void_p()
        with open(path, "rb") as file:
            reader = Reader(file)
            reader.check(n.lib.quire_profile_load(ctypes.byref(out), reader.callback, None, None))
        profile = cls.__new__(cls)
        profile.layers = None
        Handle.__init__(profile, out.value, n.lib.quire_profile_destroy)
        return profile

    def save(self, path: "Union[str, PathLike[str]]") -> None:
        writer = Writer()
        with self._lock:
            writer.check(n.lib.quire_profile_save(self._get(), writer.callback, None))
        with open(path, "wb") as file:  # only now: one that cannot be saved leaves an older file as it is
            file.write(writer.bytes())

    def set_rope(self, layer: int, frequencies: Array, interleaved: bool = False) -> None:
        """Sets the RoPE frequencies of a layer; call it before observing rows of the layer. RoPE rotates pair i by frequencies[i] * position."""
        at = dense(frequencies, (np.size(frequencies),), "frequencies")
        with self._lock:
            n.check(n.lib.quire_profile_set_rope(self._get(), n.u32(layer, "layer"), n.Rope(frequencies.size, int(interleaved), at)))

    def set_length(self, n_tokens: int) -> None:
        """Sets the longest context that the profile will serve."""
        with self._lock:
            n.check(n.lib.quire_profile_set_length(self._get(), n.u32(n_tokens, "n_tokens")))

    def _shape(self, layer: int) -> Layer:
        if self.layers is None:
            raise ValueError("a loaded profile is already finished")
        return self.layers[layer]

    def observe_k(self, layer: int, k: Array, first: int = 0) -> None:
        """Observes K rows: float32 (token, KV head, channel) after RoPE. first: the position of the first token."""
        shape = self._shape(layer)
        at = dense(k, (len(k), shape.n_kv_heads, shape.d_k), "k")
        with self._lock:
            n.check(n.lib.quire_profile_observe_k(self._get(), n.u32(layer, "layer"), n.u32(first, "first"), at, len(k)))

    def observe_q(self, layer: int, q: Array, first: int = 0) -> None:
        """Observes Q rows: float32 (token, query head, channel) after RoPE. first: the position of the first token."""
        shape = self._shape(layer)
        at = dense(q, (len(q), shape.n_q_heads, shape.d_k), "q")
        with self._lock:
            n.check(n.lib.quire_profile_observe_q(self._get(), n.u32(layer, "layer"), n.u32(first, "first"), at, len(q)))

    def finish(self) -> None:
        """Computes the profile from the observed rows. Takes about a second per model."""
        with self._lock:
            n.check(n.lib.quire_profile_finish(self._get()))

    @property
    def digest(self) -> int:
        """The hash of the profile; 0 until it is finished."""
        with self._lock:
            return int(n.lib.quire_profile_digest(self._get()))

    def score_error(self, layer: int, codec: str) -> float:
        """Estimates the error of the attention scores if the layer's K is stored in this codec. From 0.35 on, generated text changes."""
        out = ctypes.c_double()
        with self._lock:
            n.check(n.lib.quire_profile_score_error(self._get(), n.u32(layer, "layer"), codec.encode(), out))
        return float(out.value)
