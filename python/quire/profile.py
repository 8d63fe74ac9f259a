# SPDX-License-Identifier: MIT
"""Profiles: statistics of a model's rows, which calibrated codecs ("c:") need."""

from __future__ import annotations

import ctypes
from os import PathLike
from typing import Callable, Optional, Sequence as Seq, Tuple, Union

from . import _native as n
from ._handle import Handle
from ._shapes import Layer, geometry_of
from ._stream import Reader, Writer
from .rows import Array, codec_info, dense, plain

_FINISHED = "the profile is already finished"


class Profile(Handle):
    """To make a profile, observe rows of a few thousand tokens, then call finish(). Until then only one thread at a time may use it."""

    layers: "Optional[tuple[Layer, ...]]"

    def __init__(self, layers: Seq[Layer]) -> None:
        self.layers = tuple(layers)
        geometry = geometry_of(self.layers)
        super().__init__(n.lib.quire_profile_destroy)
        self._open(n.lib.quire_profile_create, geometry, None, invalid="layers: a profile of these layers would be too large")

    @classmethod
    def load(cls, path: "Union[str, PathLike[str]]") -> "Profile":
        """Loads a profile from a file that `quire calibrate` or save() wrote."""
        profile = cls.__new__(cls)
        profile.layers = None
        Handle.__init__(profile, n.lib.quire_profile_destroy)
        with open(path, "rb") as file:
            profile._open(lambda out: Reader(file).call(n.lib.quire_profile_load, out, more=(None,)))
        return profile

    def save(self, path: "Union[str, PathLike[str]]") -> None:
        """Writes the finished profile to a file, which load() and `quire run --profile` read."""
        writer = Writer()
        with self._lock:
            n.check(writer.call(n.lib.quire_profile_save, self._get()), invalid="the profile is not finished")
        with open(path, "wb") as file:  # only now: one that cannot be saved leaves an older file as it is
            file.write(writer.bytes())

    def set_rope(self, layer: int, frequencies: Array, interleaved: bool = False) -> None:
        """Sets the RoPE frequencies of a layer; call it before observing rows of the layer. RoPE rotates pair i by frequencies[i] * position."""
        number, shape = self._shape(layer)
        values = plain(frequencies, "frequencies")
        if values.size > shape.d_k // 2:
            raise ValueError(f"frequencies has {values.size} numbers, more than the {shape.d_k // 2} pairs of a row")
        rope = n.Rope(values.size, int(bool(interleaved)), dense(values, (values.size,), "frequencies"))
        with self._lock:
            n.check(n.lib.quire_profile_set_rope(self._get(), number, rope), invalid=_FINISHED)

    def set_length(self, n_tokens: int) -> None:
        """Sets the longest context that the profile will serve."""
        count = n.u32(n_tokens, "n_tokens")
        with self._lock:
            n.check(n.lib.quire_profile_set_length(self._get(), count), invalid=_FINISHED)

    def _shape(self, layer: int) -> Tuple[int, Layer]:
        if self.layers is None:
            raise ValueError("a loaded profile is already finished")
        number = n.number(layer, "layer")
        if not 0 <= number < len(self.layers):
            raise ValueError(f"there is no layer {number}; the profile has {len(self.layers)} layers")
        return number, self.layers[number]

    def _observe(self, function: Callable[..., int], number: int, rows: Array, shape: Tuple[int, int], first: int, what: str) -> None:
        values = plain(rows, what)
        count, position = len(values) if values.ndim else 0, n.u32(first, "first")
        at = dense(values, (count, *shape), what)
        with self._lock:
            n.check(function(self._get(), number, position, at, count), invalid=_FINISHED)

    def observe_k(self, layer: int, k: Array, first: int = 0) -> None:
        """Observes K rows: float32 (token, KV head, channel) after RoPE. first: the position of the first token."""
        number, shape = self._shape(layer)
        self._observe(n.lib.quire_profile_observe_k, number, k, (shape.n_kv_heads, shape.d_k), first, "k")

    def observe_q(self, layer: int, q: Array, first: int = 0) -> None:
        """Observes Q rows: float32 (token, query head, channel) after RoPE. first: the position of the first token."""
        number, shape = self._shape(layer)
        self._observe(n.lib.quire_profile_observe_q, number, q, (shape.n_q_heads, shape.d_k), first, "q")

    def finish(self) -> None:
        """Computes the profile from the observed rows. Takes about a second per model."""
        with self._lock:
            n.check(n.lib.quire_profile_finish(self._get()), invalid="no rows of K were observed, or the profile is already finished")

    @property
    def digest(self) -> int:
        """The hash of the profile; 0 until it is finished."""
        with self._lock:
            return int(n.lib.quire_profile_digest(self._get()))

    def score_error(self, layer: int, codec: str) -> float:
        """Estimates the error of the attention scores if the layer's K is stored in this codec. From 0.35 on, generated text changes."""
        out, number = ctypes.c_double(), n.u32(layer, "layer")
        codec_info(codec)  # raises if it is unknown
        name = n.c_text(codec, "codec")
        with self._lock:
            n.check(n.lib.quire_profile_score_error(self._get(), number, name, out),
                    invalid=f"there is no layer {number}, or the profile is not finished")
        return float(out.value)
