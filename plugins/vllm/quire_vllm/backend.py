# SPDX-License-Identifier: MIT
"""vLLM's attention backend for CPUs, with Quire's tiles in vLLM's blocks.

A block of vLLM's layout LBHNC is [KV head][token][content]. With blocks of a multiple of 64 tokens, and a content of (K tile + V tile) / 64
bytes per token, the part of a head holds block_size / 64 pairs of a K and a V tile, one after the other. The number of bytes is exact, so
that vLLM's own arithmetic gives the number of blocks.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, List, Optional, Tuple, Type

import torch
from quire import _native as n
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from . import _native as own
from .policy import Policy, formats
from .select import check_same

logger = init_logger("vllm.quire")
PAGE = n.PAGE_TOKENS
FORMS = {torch.float32: n.F32, torch.float16: n.F16, torch.bfloat16: n.BF16}


def backend_for(policy: Policy) -> Type[AttentionBackend]:
    """The backend class for one policy: vLLM asks classes, not objects, how large a block is."""
    layer = type("QuireAttention", (QuireAttention,), {"policy": policy, "__module__": __name__})
    made: Type[AttentionBackend] = type("QuireBackend", (QuireBackend,), {"policy": policy, "impl": layer, "__module__": __name__})
    bits = [n.lib.quire_codec_bits(codec.encode(), 128) for codec in (policy.k, policy.v)]
    logger.info("Quire keeps the KV cache as %s: %.2f bits per value of K and %.2f of V in heads of 128.", policy.text, *bits)
    if policy.warning:
        logger.warning("Quire: %s", policy.warning)
    return made


class QuireBackend(AttentionBackend):
    policy: Policy
    impl: "Type[QuireAttention]"
    forward_includes_kv_cache_update = False
    supported_dtypes = list(FORMS)
    supported_kv_cache_dtypes = ["auto"]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"  # must be a name that vLLM knows

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> List[Any]:
        return [MultipleOf(PAGE)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> Tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return bool(attn_type == AttentionType.DECODER)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        pair = formats(cls.policy, spec.head_size, spec.head_size_v).pair_bytes
        return replace(spec, state_content_bytes=pair // PAGE, dtype=torch.uint8)

    @classmethod
    def get_impl_cls(cls) -> "Type[QuireAttention]":
        check_same(cls.policy)
        return cls.impl

    @staticmethod
    def get_builder_cls() -> "Type[QuireMetadataBuilder]":
        return QuireMetadataBuilder

    @staticmethod
    def use_cascade_attention(*args: Any, **named: Any) -> bool:
        return False


class QuireMetadata:
    """One step, for all layers of a group."""

    __slots__ = ("step", "handle", "spare", "held", "num_actual_tokens", "causal", "seq_lens", "block_table", "slot_mapping")

    def __init__(self, step: own.Step, spare: List[own.Step], m: Any) -> None:
        self.step, self.spare, self.handle = step, spare, step.handle
        self.num_actual_tokens, self.causal = m.num_actual_tokens, True
        self.seq_lens, self.block_table, self.slot_mapping = m.seq_lens, m.block_table_tensor, m.slot_mapping
        starts, lengths, blocks = m.query_start_loc_cpu, m.seq_lens, m.block_table_tensor
        for tensor in (starts, lengths, blocks):
            assert tensor.dtype == torch.int32 and tensor.stride(-1) == 1
        self.held = (starts, lengths, blocks)
        n.check(own.lib.quire_vllm_step_begin(step.handle, own.Batch(starts.data_ptr(), lengths.data_ptr(), blocks.data_ptr(),
                                                                     blocks.stride(0) * 4, m.num_reqs)))

    def __del__(self) -> None:  # the step's memory is used again by a later one
        self.spare.append(self.step)


class QuireMetadataBuilder(AttentionMetadataBuilder[Any]):
    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.spare: List[own.Step] = []

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> QuireMetadata:
        if common_attn_metadata.causal is not True:
            raise NotImplementedError("Quire's attention in vLLM is causal.")
        step = self.spare.pop() if self.spare else own.Step()
        return QuireMetadata(step, self.spare, common_attn_metadata)


class QuireAttention(AttentionImpl[Any]):
    policy: Policy

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: Optional[int] = None,
                 alibi_slopes: Optional[List[float]] = None, sliding_window: Optional[int] = None, kv_cache_dtype: str = "auto",
                 logits_soft_cap: Optional[float] = None, attn_type: str = AttentionType.DECODER,
                 kv_sharing_target_layer_name: Optional[str] = None, sinks: Optional[torch.Tensor] = None) -> None:
        if attn_type != AttentionType.DECODER:
            raise ValueError(f"Quire's backend for vLLM has decoder attention only, not {attn_type}.")
        if kv_cache_dtype != "auto":
            raise ValueError(f"--kv-cache-dtype {kv_cache_dtype} and a policy of Quire exclude each other.")
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads or num_heads
        self.scale = float(scale)
        self.sliding_window = -1 if sliding_window is None else sliding_window
        self.logits_soft_cap = float(logits_soft_cap or 0)
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sinks = sinks
        self.dtype = torch.get_default_dtype()
        if self.dtype not in FORMS:
            raise ValueError(f"Quire cannot attend with {self.dtype}; it can with float32, float16 and bfloat16.")
        self.value_bytes = self.dtype.itemsize
        formats(self.policy, head_size, head_size)  # refused now rather than with the first token
        self.layer: Optional[own.Layer] = None
        self.cache: Optional[torch.Tensor] = None
        self.address = 0  # of the layer's structure
        self._write, self._attend, self._team = own.lib.quire_vllm_write, own.lib.quire_vllm_attend, own.TEAM

    def bind(self, cache: torch.Tensor, d_v: int) -> None:
        """vLLM gives a layer its memory after the model was made, and then never changes it. d_v: head size of the values."""
        n_blocks, heads, tokens, content = cache.shape
        found = formats(self.policy, self.head_size, d_v)
        if (cache.dtype, heads, tokens % PAGE, content * PAGE, cache.stride()[2:]) != (torch.uint8, self.num_kv_heads, 0, found.pair_bytes,
                                                                                      (content, 1)):
            raise RuntimeError(f"The memory of a layer is not laid out as Quire's backend asked for: {cache.shape}, {cache.stride()}.")
        base, block_stride, head_stride, pair = cache.data_ptr(), cache.stride(0), cache.stride(1), found.pair_bytes
        memory = own.PagedMemory(base, base + found.k_bytes, block_stride, pair, head_stride, 0, block_stride, pair, head_stride, 0,
                                 found.k, found.v, n_blocks, tokens, heads, 1)
        if self.sinks is not None:
            self.sinks = self.sinks.detach().to(torch.float32).contiguous()
        addresses = [None if x is None else x.data_ptr() for x in (self.alibi_slopes, self.sinks)]
        options = n.AttendOptions(scale=self.scale, softcap=self.logits_soft_cap, alibi=addresses[0], sink_logits=addresses[1])
        layer = own.Layer(memory, options, self.num_heads, self.head_size, d_v, max(self.sliding_window, 0), FORMS[self.dtype])
        self.layer, self.cache, self.address = layer, cache, ctypes.addressof(layer)

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor) -> None:
        if kv_cache is not self.cache:
            if kv_cache.numel() == 0:
                return
            self.bind(kv_cache, value.shape[2])
        if key.dtype is not self.dtype or value.dtype is not self.dtype:
            key, value = key.to(self.dtype), value.to(self.dtype)
        k0, k1, k2 = key.stride()
        v0, v1, v2 = value.stride()
        if k2 != 1 or v2 != 1:
            key, value = key.contiguous(), value.contiguous()
            k0, k1, k2 = key.stride()
            v0, v1, v2 = value.stride()
        size = self.value_bytes
        count, slots = key.shape[0], slot_mapping.shape[0]
        status = self._write(self._team, self.address, key.data_ptr(), k0 * size, k1 * size, value.data_ptr(), v0 * size, v1 * size,
                             slot_mapping.data_ptr(), count if count < slots else slots)
        if status:
            n.check(status)

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: Optional[QuireMetadata], output: torch.Tensor, output_scale: Optional[torch.Tensor] = None,
                output_block_scale: Optional[torch.Tensor] = None) -> torch.Tensor:
        if attn_metadata is None:  # warming up
            if output_scale is not None or output_block_scale is not None:
                raise NotImplementedError("Quire's attention does not quantize its output.")
            return output
        if kv_cache is not self.cache:
            self.bind(kv_cache, output.shape[2])
        if query.dtype is not self.dtype:
            query = query.to(self.dtype)
        out = output if output.dtype is self.dtype else torch.empty(output.shape, dtype=self.dtype)
        q0, q1, q2 = query.stride()
        if q2 != 1:
            query = query.contiguous()
            q0, q1, q2 = query.stride()
        o0, o1, _ = out.stride()
        size = self.value_bytes
        status = self._attend(self._team, attn_metadata.handle, self.address, query.data_ptr(), q0 * size, q1 * size, out.data_ptr(),
                              o0 * size, o1 * size, out.shape[0])
        if status:
            n.check(status)
        if out is not output:
            output.copy_(out)
        return output
