# SPDX-License-Identifier: MIT
"""The form of a stored page, and how vLLM's blocks become pages and pages become blocks again.

A page is 64 tokens of all layers: [layer][KV head][K tile, V tile]. It does not depend on vLLM's block size or on the attention backend.
Two kinds of blocks are known. Those of Quire's own backend hold tiles already, which are copied. All others hold plain rows, which are
encoded when they are saved and decoded when they are loaded; where the rows lie in a block is the attention backend's affair (rows.py).
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import torch
from quire import _native as n

from . import _native as own
from .policy import Formats, Policy, formats, parse
from .rows import RowBlocks

PAGE = n.PAGE_TOKENS
FORMS = {torch.float32: n.F32, torch.float16: n.F16, torch.bfloat16: n.BF16}
_FLOATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class _Pages(n.Sized):
    _fields_ = [("k_format", c_void_p), ("v_format", c_void_p), ("tiles", c_void_p), ("page_stride", c_size_t), ("k", c_void_p),
                ("v", c_void_p), ("n_pages", c_uint32), ("n_heads", c_uint32), ("d_k", c_uint32), ("d_v", c_uint32), ("form", c_uint32),
                ("reserved", c_uint32)]


for _name in ("quire_vllm_pages_encode", "quire_vllm_pages_decode"):
    getattr(own.lib, _name).argtypes, getattr(own.lib, _name).restype = [ctypes.POINTER(_Pages)], c_int


@dataclass(frozen=True)
class PageForm:
    policy: Policy
    layers: int
    heads: int
    d_k: int
    d_v: int
    dtype: torch.dtype  #: of the model
    is_tiles: bool  #: vLLM's blocks hold the same tiles

    @property
    def formats(self) -> Formats:
        return formats(self.policy, self.d_k, self.d_v)

    @property
    def layer_bytes(self) -> int:
        return self.heads * self.formats.pair_bytes

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes

    @property
    def layout(self) -> str:
        """Goes into every key. Tiles that were written row by row and those made of finished rows hold the same bytes."""
        kind = "tiles" if self.is_tiles else "rows"
        return (f"vllm 1 {kind} k={self.policy.k} v={self.policy.v} layers={self.layers} heads={self.heads} d={self.d_k}/{self.d_v} "
                f"rows={_FLOATS[self.dtype]}")

    @property
    def bits_per_value(self) -> float:
        return self.page_bytes * 8 / (self.layers * self.heads * PAGE * (self.d_k + self.d_v))


def form_of(specs: Sequence[Any], dtype: torch.dtype, backend_policy: Optional[Policy], asked: Optional[str]) -> PageForm:
    """The form of pages for layers with these specifications of vLLM. Raises ValueError with one sentence."""
    first = specs[0]
    shapes = {(spec.num_kv_heads, spec.head_size, spec.head_size_v, spec.page_size_bytes) for spec in specs}
    if len(shapes) != 1:
        raise ValueError("QuireConnector: the layers of this model differ in heads or head size, which it cannot store.")
    if dtype not in FORMS:
        raise ValueError(f"QuireConnector cannot store rows of {dtype}; it can store float32, float16 and bfloat16.")
    is_tiles = backend_policy is not None and first.dtype == torch.uint8 and first.state_content_bytes is not None
    if is_tiles:
        assert backend_policy is not None
        if asked is not None and parse(asked) != backend_policy:
            raise ValueError(f"QuireConnector: kv is {asked}, but the engine's blocks are tiles of {backend_policy.text} already, which are "
                             "stored as they are; leave kv away.")
        policy = backend_policy
    else:
        if first.dtype != dtype or first.state_content_bytes is not None:
            raise ValueError(f"QuireConnector cannot store a cache of {first.dtype} for a model of {dtype}; start without --kv-cache-dtype.")
        policy = parse(asked) if asked is not None else parse(_FLOATS[dtype])
    form = PageForm(policy, len(specs), first.num_kv_heads, first.head_size, first.head_size_v, dtype, is_tiles)
    if is_tiles and first.state_content_bytes * PAGE != form.formats.pair_bytes:
        raise ValueError("QuireConnector: the blocks are not those of Quire's backend with this policy.")
    return form


def page_buffers(count: int, page_bytes: int) -> np.ndarray:
    """count pages, each aligned to 64 bytes."""
    room = np.empty(count * page_bytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start:start + count * page_bytes].reshape(count, page_bytes)


@dataclass
class Places:
    """Where tokens lie: kernel blocks and the positions in them, one entry for each token."""

    blocks: np.ndarray
    offsets: np.ndarray


class Blocks:
    """vLLM's memory of one worker. Block ids are those of the scheduler."""

    def __init__(self, form: PageForm, block_tokens: int, caches: Sequence[torch.Tensor], attention: Sequence[Any]) -> None:
        """attention: of each layer, the implementation that vLLM's attention backend made."""
        self.form = form
        self.device = caches[0].device
        self.rows: Optional[RowBlocks] = None
        self.tiles: Sequence[torch.Tensor] = ()
        if form.is_tiles:
            for cache in caches:
                _, heads, tokens, content = cache.shape
                if (cache.dtype, heads, tokens % PAGE, content * PAGE, cache.stride()[2:]) != (torch.uint8, form.heads, 0,
                                                                                             form.formats.pair_bytes, (content, 1)):
                    raise ValueError(f"QuireConnector: a layer's memory is not that of Quire's backend: {cache.shape}, {cache.stride()}.")
            self.tiles = caches
            self.kernel_tokens = caches[0].shape[2]
        else:
            self.rows = RowBlocks(form.heads, form.d_k, form.d_v, form.dtype, block_tokens, caches, attention)
            self.kernel_tokens = self.rows.tokens
        if block_tokens % self.kernel_tokens or (PAGE % self.kernel_tokens and self.kernel_tokens % PAGE):
            raise ValueError(f"QuireConnector cannot cut blocks of {block_tokens} tokens into pages of {PAGE}; use --block-size 16, 32, 64 or "
                             "a multiple of 64.")
        self.block_tokens, self.ratio = block_tokens, block_tokens // self.kernel_tokens
        parts = self.tiles if self.rows is None else self.rows.parts
        self._block_bytes = sum(part[0].numel() * part.element_size() for part in parts)

    def places(self, block_ids: Sequence[int], first_token: int, count: int) -> Places:
        """Of tokens first_token to first_token + count - 1 of a request whose blocks are block_ids."""
        token = np.arange(first_token, first_token + count)
        block = np.asarray(block_ids, np.int64)[token // self.block_tokens] * self.ratio + token % self.block_tokens // self.kernel_tokens
        return Places(block, token % self.kernel_tokens)

    # ------------------------------------------------------------------ save

    def copy_bytes(self, first_page: int, n_pages: int) -> int:
        """What copy() takes of memory: whole blocks."""
        first, end = first_page * PAGE // self.kernel_tokens, -(-(first_page + n_pages) * PAGE // self.kernel_tokens)
        return int((end - first) * self._block_bytes)

    def copy(self, block_ids: Sequence[int], first_page: int, n_pages: int) -> "Copied":
        """Copies what holds these pages, so that the engine can go on. On a GPU the copy is only begun."""
        places = self.places(block_ids, first_page * PAGE, n_pages * PAGE)
        blocks, where = np.unique(places.blocks, return_inverse=True)
        index = torch.from_numpy(blocks)
        parts = [self._take(part, index) for part in (self.tiles if self.rows is None else self.rows.parts)]
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        return Copied(Places(where.reshape(-1), places.offsets), n_pages, parts, event)

    def _take(self, part: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        taken = part.index_select(0, index.to(part.device, non_blocking=True))
        if taken.device.type == "cpu":
            return taken
        room = torch.empty(taken.shape, dtype=taken.dtype, pin_memory=True)
        return room.copy_(taken, non_blocking=True)

    def encode(self, copied: "Copied", pages: Optional[np.ndarray] = None, first: int = 0) -> np.ndarray:
        """Puts what was copied, from page number first of it on, into as many pages as pages has room for; None: into all, in new memory."""
        if pages is None:
            pages = page_buffers(copied.n_pages - first, self.form.page_bytes)
        if copied.event is not None:
            copied.event.synchronize()
        some = slice(first * PAGE, (first + len(pages)) * PAGE)
        places = Places(copied.places.blocks[some], copied.places.offsets[some])
        seen = torch.from_numpy(pages).view(len(pages), self.form.layers, self.form.heads, -1)
        if self.rows is None:
            block, tile = self._tile_index(places)
            for layer, part in enumerate(copied.parts):
                seen[:, layer] = self._by_tile(part)[block, tile]
            return pages
        for layer in range(self.form.layers):
            k, v = self.rows.read(copied.parts, layer, places.blocks, places.offsets)
            self._call(own.lib.quire_vllm_pages_encode, pages, layer, k, v)
        return pages

    @staticmethod
    def _by_tile(part: torch.Tensor) -> torch.Tensor:
        """Blocks of tiles as (block, tile of the block, head, bytes of a pair)."""
        return part.unflatten(2, (part.shape[2] // PAGE, PAGE)).flatten(3).transpose(1, 2)

    @staticmethod
    def _tile_index(places: Places) -> Tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(places.blocks[::PAGE].copy()), torch.from_numpy(places.offsets[::PAGE] // PAGE)

    def _call(self, function: Any, pages: np.ndarray, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        form, found = self.form, self.form.formats
        n.check(function(_Pages(found.k, found.v, pages.ctypes.data + layer * form.layer_bytes, form.page_bytes, k.data_ptr(), v.data_ptr(),
                                len(pages), form.heads, form.d_k, form.d_v, FORMS[form.dtype])))

    # ------------------------------------------------------------------ load

    def write(self, pages: np.ndarray, block_ids: Sequence[int], first_page: int, first_token: int) -> None:
        """Puts pages into the blocks of a request. Tokens before first_token stay: they may be in blocks that others share."""
        places = self.places(block_ids, first_page * PAGE, len(pages) * PAGE)
        seen = torch.from_numpy(pages).view(len(pages), self.form.layers, self.form.heads, -1)
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        with torch.cuda.stream(stream):  # None: does nothing
            if self.rows is None:
                block, tile = self._tile_index(places)
                for layer, part in enumerate(self.tiles):
                    if self.kernel_tokens == PAGE and part.is_contiguous():  # several times faster
                        part.flatten(1).index_copy_(0, block, seen[:, layer].flatten(1))
                    else:
                        self._by_tile(part)[block, tile] = seen[:, layer]
            else:
                skip = max(0, first_token - first_page * PAGE)
                shape = (len(pages) * PAGE, self.form.heads)
                k = torch.empty(*shape, self.form.d_k, dtype=self.form.dtype)
                v = torch.empty(*shape, self.form.d_v, dtype=self.form.dtype)
                for layer in range(self.form.layers):
                    self._call(own.lib.quire_vllm_pages_decode, pages, layer, k, v)
                    self.rows.write(layer, places.blocks[skip:], places.offsets[skip:], k[skip:], v[skip:])
                    if stream is not None:
                        stream.synchronize()  # k and v are used again
        if stream is not None:
            stream.synchronize()


@dataclass
class Copied:
    """Blocks as they were after a step."""

    places: Places  #: in parts
    n_pages: int
    parts: List[torch.Tensor]
    event: Any

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.parts)
