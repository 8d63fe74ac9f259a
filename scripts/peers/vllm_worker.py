# SPDX-License-Identifier: MIT
"""vLLM's attention on CPU, without a model: the operators that its attention backend calls. A configuration is bf16 or fp8."""
import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform

import worker
from rows import D, KV_HEADS, Q_HEADS

current_platform.import_kernels()
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # noqa: E402  the kernels must be there first

BLOCK = 128  # tokens, the backend's own choice
TYPES = {"bf16": ("auto", torch.bfloat16), "fp8": ("fp8_e4m3", torch.uint8)}


class Attention:
    def __init__(self, name, q, k, v, threads):
        torch.set_num_threads(threads)
        context, queries = len(k), len(q)
        self.kind, stored = TYPES[name]
        self.q, self.k, self.v = (torch.tensor(x).to(torch.bfloat16) for x in (q, k, v))
        self.isa = _get_attn_isa(torch.bfloat16, BLOCK, D, self.kind)
        n_blocks = context // BLOCK
        self.table = torch.arange(n_blocks, dtype=torch.int32)[None]
        self.slots = torch.arange(context)
        self.bytes = n_blocks * KV_HEADS * BLOCK * 2 * D * stored.itemsize
        memory = torch.from_numpy(worker.huge(self.bytes)).view(stored)
        self.k_cache, self.v_cache = memory.view(n_blocks, KV_HEADS, BLOCK * 2, D).chunk(2, dim=2)
        self.write(0)
        self.begins = torch.tensor([0, queries], dtype=torch.int32)
        self.lengths = torch.tensor([context], dtype=torch.int32)
        self.schedule = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=1, num_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=D, seq_lens=self.lengths, dtype=torch.bfloat16,
            query_start_loc=self.begins, causal=True, sliding_window_size=-1, isa=self.isa, enable_kv_split=True, dynamic_causal=None,
            kv_cache_dtype=self.kind)
        self.result = torch.empty_like(self.q)

    def write(self, first):
        ops.cpu_attn_reshape_and_cache(self.k[first:], self.v[first:], self.k_cache, self.v_cache, self.slots[first:], self.isa,
                                       k_scale=1.0, v_scale=1.0, kv_cache_dtype=self.kind)

    def append(self):
        self.write(len(self.k) - len(self.q))

    def run(self):
        ops.cpu_attention_with_kv_cache(
            query=self.q, key_cache=self.k_cache, value_cache=self.v_cache, output=self.result, query_start_loc=self.begins,
            seq_lens=self.lengths, scale=D ** -0.5, causal=True, alibi_slopes=None, sliding_window=-1, block_table=self.table, softcap=0,
            scheduler_metadata=self.schedule, s_aux=None, dynamic_causal=None, k_scale=1.0, v_scale=1.0, kv_cache_dtype=self.kind)

    def out(self):
        return self.result.float().numpy()


if __name__ == "__main__":
    worker.main(Attention)
