# SPDX-License-Identifier: MIT
"""One layer of attention without a model: sequences in paged memory, for vLLM's own kernels, for the plug-in, and in double precision."""
from types import SimpleNamespace

import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform

current_platform.import_kernels()
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # noqa: E402  the kernels must be there first

from quire_vllm import _native as own  # noqa: E402
from quire_vllm import backend  # noqa: E402
from quire_vllm.policy import formats, parse  # noqa: E402

BLOCK = 128


class Scene:
    """Sequences of (length, queries at its end), in blocks that lie in any order; block 0 belongs to nobody, as in vLLM."""

    def __init__(self, sequences, heads=(32, 8, 128), dtype=torch.bfloat16, block=BLOCK, seed=0, spare_blocks=3):
        self.generator = torch.Generator().manual_seed(seed)
        self.n_q_heads, self.n_kv_heads, self.d = heads
        self.dtype, self.block, self.sequences = dtype, block, sequences
        counts = [-(-length // block) for length, _ in sequences]
        self.n_blocks = 1 + sum(counts) + spare_blocks
        order = (torch.randperm(self.n_blocks - 1, generator=self.generator) + 1).to(torch.int32)
        self.table = torch.zeros(len(sequences), max(counts) + 1, dtype=torch.int32)
        at = 0
        for i, count in enumerate(counts):
            self.table[i, :count] = order[at:at + count]
            at += count
        self.k = [self.values(length, self.n_kv_heads) for length, _ in sequences]
        self.v = [self.values(length, self.n_kv_heads) for length, _ in sequences]
        self.q = [self.values(queries, self.n_q_heads) for _, queries in sequences]
        self.set_step([(length, queries) for length, queries in sequences])

    def values(self, n_tokens, heads):
        return torch.randn(n_tokens, heads, self.d, generator=self.generator).to(self.dtype)

    def set_step(self, sequences):
        """What the step is: sequences of (length, queries), none longer than its rows."""
        self.lengths = torch.tensor([length for length, _ in sequences], dtype=torch.int32)
        self.starts = torch.tensor([0] + [queries for _, queries in sequences], dtype=torch.int32).cumsum(0).to(torch.int32)

    def slots(self, i, first=0, end=None):
        position = torch.arange(first, len(self.k[i]) if end is None else end)
        return self.table[i].long()[position // self.block] * self.block + position % self.block

    def all_rows(self):
        slots = torch.cat([self.slots(i) for i in range(len(self.k))])
        return torch.cat(self.k), torch.cat(self.v), slots

    def exact(self, window=0, softcap=0.0, alibi=None, sinks=None, scale=None):
        """In double precision, from the values as they are given."""
        outs = []
        for (length, queries), q, k, v in zip(self.sequences, self.q, self.k, self.v):
            k, v = (x.double().repeat_interleave(self.n_q_heads // self.n_kv_heads, 1) for x in (k, v))
            s = torch.einsum("qhd,khd->hqk", q.double(), k) * (scale or self.d ** -0.5)
            if softcap:
                s = softcap * torch.tanh(s / softcap)
            p, j = torch.arange(length - queries, length)[:, None], torch.arange(length)[None]
            if alibi is not None:
                s = s + alibi.double()[:, None, None] * (j - p)
            hidden = (j > p) | (p - j >= window if window else torch.zeros_like(j > p))
            s = s.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                s = torch.cat([s, sinks.double()[:, None, None].expand(-1, queries, 1)], -1)
            w = s.softmax(-1)[..., :length]
            outs.append(torch.einsum("hqk,khd->qhd", w, v))
        return torch.cat(outs)


class Quire:
    """The plug-in's layer over a scene."""

    def __init__(self, scene, policy, window=0, softcap=0.0, alibi=None, sinks=None, scale=None, write=True):
        self.scene = scene
        self.policy = parse(policy)
        pair = formats(self.policy, scene.d, scene.d).pair_bytes
        self.cache = torch.zeros(scene.n_blocks, scene.n_kv_heads, scene.block, pair // 64, dtype=torch.uint8)
        kind = type("Layer", (backend.QuireAttention,), {"policy": self.policy})
        before = torch.get_default_dtype()
        torch.set_default_dtype(scene.dtype)
        try:
            self.layer = kind(scene.n_q_heads, scene.d, scale or scene.d ** -0.5, scene.n_kv_heads,
                              None if alibi is None else alibi.tolist(), window or None, "auto", softcap or None, sinks=sinks)
        finally:
            torch.set_default_dtype(before)
        self.begin()
        self.out = torch.empty(int(scene.starts[-1]), scene.n_q_heads, scene.d, dtype=scene.dtype)
        if write:
            self.write(*scene.all_rows())

    def begin(self):
        s = self.scene
        self.step = backend.QuireMetadata(own.Step(), [], SimpleNamespace(
            num_actual_tokens=int(s.starts[-1]), num_reqs=len(s.lengths), query_start_loc_cpu=s.starts, seq_lens=s.lengths,
            block_table_tensor=s.table, slot_mapping=None))

    def write(self, k, v, slots):
        self.layer.do_kv_cache_update(None, k, v, self.cache, slots)

    def attend(self, q=None, out=None):
        q = torch.cat(self.scene.q) if q is None else q
        out = self.out if out is None else out
        return self.layer.forward(None, q, None, None, self.cache, self.step, out)


class Stock:
    """vLLM's kernels over the same scene."""

    def __init__(self, scene, kind="auto", window=0, softcap=0.0, alibi=None, sinks=None, scale=None):
        s = self.scene = scene
        self.kind = kind
        self.isa = _get_attn_isa(s.dtype, s.block, s.d, kind)
        self.cache = torch.zeros(s.n_blocks, s.n_kv_heads, s.block, 2 * s.d, dtype=s.dtype if kind == "auto" else torch.uint8)
        self.window, self.softcap, self.alibi, self.sinks, self.scale = window or -1, softcap, alibi, sinks, scale or s.d ** -0.5
        self.schedule = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(s.lengths), num_heads=s.n_q_heads, num_kv_heads=s.n_kv_heads, head_dim=s.d, seq_lens=s.lengths, dtype=s.dtype,
            query_start_loc=s.starts, causal=True, sliding_window_size=self.window, isa=self.isa, enable_kv_split=True,
            dynamic_causal=None, kv_cache_dtype=kind)
        self.out = torch.empty(int(s.starts[-1]), s.n_q_heads, s.d, dtype=s.dtype)
        self.write(*scene.all_rows())

    def halves(self):
        """As vLLM's backend does in each call."""
        n_blocks, heads, tokens, _ = self.cache.size()
        return self.cache.view((n_blocks, heads, tokens * 2, -1)).chunk(2, dim=2)

    def write(self, k, v, slots):
        k_cache, v_cache = self.halves()
        ops.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots, self.isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype=self.kind)

    def attend(self, q=None, out=None):
        s = self.scene
        q = torch.cat(s.q) if q is None else q
        out = self.out if out is None else out
        k_cache, v_cache = self.halves()
        ops.cpu_attention_with_kv_cache(
            query=q, key_cache=k_cache, value_cache=v_cache, output=out, query_start_loc=s.starts, seq_lens=s.lengths, scale=self.scale,
            causal=True, alibi_slopes=self.alibi, sliding_window=self.window, block_table=s.table, softcap=self.softcap,
            scheduler_metadata=self.schedule, s_aux=self.sinks, dynamic_causal=None, k_scale=1.0, v_scale=1.0, kv_cache_dtype=self.kind)
        return out


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()
