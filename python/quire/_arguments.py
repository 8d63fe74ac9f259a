# SPDX-License-Identifier: MIT
"""Arguments of the store's calls: texts, times, prompts and pages, in the form that the library needs."""

from __future__ import annotations

import ctypes
from ctypes import c_uint8, c_void_p
from math import inf, isfinite
from os import PathLike, fsencode
from typing import Any, Optional, Sequence as Seq, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _native as n, _store as c

#: An image or other input that takes the place of a token: its position and a digest of 32 bytes.
Media = Tuple[int, bytes]
Tokens = Union[Seq[int], npt.NDArray[Any]]
#: A page of a raw namespace: anything with the buffer protocol whose bytes are contiguous.
Buffer = Union[bytes, bytearray, memoryview, npt.NDArray[Any]]


def text_of(value: Optional[str], what: str) -> Optional[bytes]:
    return None if value is None else n.c_text(value, what)


def path_of(value: "Union[str, PathLike[str], None]", what: str) -> Optional[bytes]:
    made = None if value is None else fsencode(value)
    if made is not None and b"\0" in made:
        raise ValueError(f"{what} contains a zero character, which is not allowed")
    return made


INCOMPLETE = "identity: weights, tokenizer and rope must not be empty, and names have at most 63 bytes of printable text"
MEDIA = "media: positions must rise and be positions of the tokens"
NO_FIT = ("tokens, media or sequence do not fit: positions of media must rise, a sequence to save has no more finished pages than tokens are given for, "
          "and a sequence to load into must end with a whole page")
OTHER = "the sequence has another plan or other ring options than the namespace"
PAGES = "first_page: the namespace is not raw, or the prompt has not so many whole pages"


class Prompt:
    """Tokens in the form that the library needs. Keeps the arrays alive."""

    def __init__(self, tokens: Tokens, media: Seq[Media]) -> None:
        given = np.asarray(tokens)
        if given.ndim != 1 or (given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= 2**32)):
            raise ValueError("tokens must be whole numbers from 0 to 2^32 - 1")
        self.tokens = np.ascontiguousarray(given, dtype=np.uint32)
        if len(self.tokens) > n.MAX_TOKENS:
            raise ValueError(f"tokens has {len(self.tokens)} numbers, more than {n.MAX_TOKENS}")
        entries = [c.Media(n.u32(position, "position"), (c_uint8 * 32).from_buffer_copy(n.c_bytes(digest, 32, "a digest")))
                   for position, digest in media]
        self.media = (c.Media * len(entries))(*entries)
        self.value = c.Prompt(self.tokens.ctypes.data, self.media, ctypes.sizeof(c.Media), len(self.tokens), len(entries))


def seconds_of(value: float, what: str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is a {type(value).__name__}, not a number of seconds") from None
    except OverflowError:
        found = inf
    if not isfinite(found):
        raise ValueError(f"{what} is {found}, which is not a finite number of seconds")
    return found


def ms_of(seconds: float) -> int:
    return n.u32(round(seconds_of(seconds, "timeout") * 1000), "timeout in milliseconds")


class Pages:
    """Pointers to buffers. Holds the buffers exported, so that they can be neither resized nor released."""

    def __init__(self, buffers: Seq[Buffer], page_bytes: int, writable: bool) -> None:
        if isinstance(buffers, (bytes, bytearray, memoryview, str)):
            raise TypeError("pages must be a sequence of buffers, one for each page")
        given: Seq[Any] = buffers  # numpy's type says nothing about its buffer
        self.views = [memoryview(buffer) for buffer in given]
        for view in self.views:
            if not view.c_contiguous:
                raise ValueError("the bytes of a page must be contiguous")
            if view.nbytes != page_bytes:
                raise ValueError(f"a page has {page_bytes} bytes, not {view.nbytes}")
            if writable and view.readonly:
                raise ValueError("a page cannot be loaded into a buffer that is read-only")
        starts = [int(np.frombuffer(view, dtype=np.uint8).ctypes.data) for view in self.views]
        if writable and any(b - a < page_bytes for a, b in zip(sorted(starts), sorted(starts)[1:])):
            raise ValueError("two pages cannot be loaded into the same bytes")
        self.pointers = (c_void_p * len(starts))(*starts)
