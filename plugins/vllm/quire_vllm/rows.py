# SPDX-License-Identifier: MIT
"""Where the rows of K and V lie in the blocks of vLLM's own attention backends."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np
import torch

#: Backends whose blocks are [block][head][token][K row, V row] in any order of memory; vLLM gives a view in this order.
ROW_BACKENDS = ("FlashAttentionImpl", "TritonAttentionImpl", "FlashInferImpl", "FlexAttentionImpl")
#: vLLM's backend for CPUs packs rows for the instructions of the processor.
CPU_BACKEND = "CPUAttentionBackendImpl"


class RowBlocks:
    """The memory of all layers. parts: tensors with the block first, one or two for each layer."""

    def __init__(self, heads: int, d_k: int, d_v: int, dtype: torch.dtype, block_tokens: int, caches: Sequence[torch.Tensor],
                 attention: Sequence[Any]) -> None:
        self.heads, self.d_k, self.d_v, self.dtype = heads, d_k, d_v, dtype
        self.parts: List[torch.Tensor] = []
        names = {type(impl).__name__ for impl in attention}
        self.is_packed = names == {CPU_BACKEND}
        if not self.is_packed and not names <= set(ROW_BACKENDS):
            raise ValueError(f"QuireConnector does not know where {', '.join(sorted(names))} keeps its rows; it knows "
                             f"{', '.join(ROW_BACKENDS)}, {CPU_BACKEND} and Quire's own.")
        for cache in caches:
            self.parts += self._split(cache)
        self.per_layer = len(self.parts) // len(caches)
        self.tokens = caches[0].shape[2] if caches[0].ndim == 4 else self.parts[0].shape[1]
        if self.is_packed:
            if any(not cache[0].is_contiguous() for cache in caches):
                raise ValueError("QuireConnector: the blocks of vLLM's CPU backend are not contiguous.")
            self.caches = list(caches)
            self.isa = _instructions(dtype, self.tokens, d_k)
            self.order = torch.from_numpy(_packed_order(heads, d_k, d_v, dtype, self.tokens, self.isa))

    def _split(self, cache: torch.Tensor) -> List[torch.Tensor]:
        heads, d_k, d_v = self.heads, self.d_k, self.d_v
        if cache.dtype == self.dtype:
            if cache.ndim == 4 and cache.shape[1] == heads and cache.shape[3] == d_k + d_v:
                return [cache]
            if cache.ndim == 5 and cache.shape[3:] == (heads, d_k) and d_k == d_v:  # (2, block, token, head, d) or (block, 2, ...)
                if cache.shape[0] == 2 and cache.shape[1] != 2:
                    return [cache[0], cache[1]]
                if cache.shape[1] == 2 and cache.shape[0] != 2:
                    return [cache[:, 0], cache[:, 1]]
        raise ValueError(f"QuireConnector does not know blocks of the shape {tuple(cache.shape)} of {cache.dtype}.")

    def read(self, copied: Sequence[torch.Tensor], layer: int, blocks: np.ndarray, offsets: np.ndarray) -> Tuple[torch.Tensor, torch.Tensor]:
        """K and V of tokens, dense [token][head][d]. copied: copies of blocks of all parts."""
        b, o = torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy(offsets.astype(np.int64))
        if self.per_layer == 2:
            k, v = copied[2 * layer:2 * layer + 2]
            return k[b, o].contiguous(), v[b, o].contiguous()
        part = copied[layer]
        if self.is_packed:
            used, where = np.unique(blocks, return_inverse=True)  # only these are put into order
            part, b = part[torch.from_numpy(used)], torch.from_numpy(where.reshape(-1))
            part = part.flatten(2).index_select(2, self.order)
            cut = self.tokens * self.d_k
            k = part[..., :cut].unflatten(2, (self.tokens, self.d_k))
            v = part[..., cut:].unflatten(2, (self.tokens, self.d_v))
        else:
            k, v = part.split([self.d_k, self.d_v], dim=-1)
        return k.transpose(1, 2)[b, o].contiguous(), v.transpose(1, 2)[b, o].contiguous()

    def write(self, layer: int, blocks: np.ndarray, offsets: np.ndarray, k: torch.Tensor, v: torch.Tensor) -> None:
        """Puts dense rows of tokens into vLLM's memory."""
        if self.is_packed:
            _put_packed(self.caches[layer], k, v, torch.from_numpy(blocks * self.tokens + offsets), self.isa)
            return
        target = self.parts[self.per_layer * layer].device
        b, o = (torch.from_numpy(x.astype(np.int64)).to(target) for x in (blocks, offsets))
        k, v = k.to(target), v.to(target)
        if self.per_layer == 2:
            self.parts[2 * layer][b, o] = k
            self.parts[2 * layer + 1][b, o] = v
        else:
            part = self.parts[layer].transpose(1, 2)
            part[..., :self.d_k][b, o] = k
            part[..., self.d_k:][b, o] = v


def _instructions(dtype: torch.dtype, tokens: int, d: int) -> str:
    """What decides the order of values in a block, as vLLM's backend chooses it."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return str(_get_attn_isa(dtype, tokens, d, "auto"))


def _put_packed(cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, isa: str) -> None:
    """As vLLM's backend for CPUs writes new rows."""
    from vllm import _custom_ops as ops

    n_blocks, heads, tokens, _ = cache.shape
    key_cache, value_cache = cache.view(n_blocks, heads, tokens * 2, -1).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k, v, key_cache, value_cache, slots.to(torch.int64), isa, k_scale=1.0, v_scale=1.0,
                                   kv_cache_dtype="auto")


def _packed_order(heads: int, d_k: int, d_v: int, dtype: torch.dtype, tokens: int, isa: str) -> np.ndarray:
    """Where each value of a head's rows, K and then V, lies in the head's part of a block. vLLM packs rows in an order that depends on the
    processor; instead of repeating its rules here, it is asked: rows whose values number themselves are written, and read back as numbers.
    """
    if d_k != d_v:
        raise ValueError("QuireConnector: vLLM's CPU backend with heads of different sizes is not known.")
    values = 2 * tokens * d_k
    words = torch.int32 if dtype == torch.float32 else torch.int16
    order = np.zeros(values, np.int64)
    # 7 bits at a time: vLLM moves the bits of a value as they are, but a number must not look like a NaN, which processors may change.
    for shift in range(0, max(values.bit_length(), 1), 7):
        digits = ((torch.arange(values) >> shift) & 127).to(words) + 1
        rows = digits.view(dtype).view(2, tokens, 1, d_k).expand(2, tokens, heads, d_k).contiguous()
        cache = torch.zeros(1, heads, tokens, 2 * d_k, dtype=dtype)
        _put_packed(cache, rows[0], rows[1], torch.arange(tokens), isa)
        found = cache.view(words)[0, 0].flatten().numpy().astype(np.int64) - 1
        if found.min() < 0 or found.max() > 127:
            raise ValueError(f"QuireConnector: vLLM's CPU backend does not keep rows as they are (instructions {isa}).")
        order += found << shift
    if not np.array_equal(np.sort(order), np.arange(values)):
        raise ValueError(f"QuireConnector: vLLM's CPU backend does not keep rows as they are (instructions {isa}).")
    return np.argsort(order)
