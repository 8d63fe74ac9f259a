# SPDX-License-Identifier: MIT
"""The connector's pages: every layout of blocks that vLLM's backends use, on CPU tensors, to pages and back."""
import sys

import numpy as np
import torch
from checks import Checks
from vllm.platforms import current_platform

current_platform.import_kernels()
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: E402

from quire_vllm import _native as own  # noqa: E402
from quire_vllm.pages import Blocks, PageForm, form_of  # noqa: E402
from quire_vllm.policy import parse  # noqa: E402
from quire_vllm.rows import _put_packed  # noqa: E402

ok = Checks()
LAYERS, HEADS, D, PAGE = 3, 2, 64, 64


def impl(name, **members):
    return type(name, (), members)()


def layouts(n_blocks, tokens, dtype, rows):
    """Memory of all layers in the orders that vLLM's backends use, with the same rows in it: name, views, implementations."""
    k, v = rows  # (layer, block, token, head, d)

    def filled(view, put):
        for layer in range(LAYERS):
            put(view[layer], layer)
        return list(view)

    def lbhnc(part, layer):
        part[:] = torch.cat([k[layer], v[layer]], -1).transpose(1, 2)

    flash = [impl("FlashAttentionImpl")] * LAYERS
    for name, order in (("LBHNC", (0, 1, 2, 3, 4)), ("LBNHC", (0, 1, 3, 2, 4)), ("LHBNC", (0, 2, 1, 3, 4)), ("BLHNC", (1, 0, 2, 3, 4)),
                        ("BLNHC", (1, 0, 3, 2, 4))):
        shape = (LAYERS, n_blocks, HEADS, tokens, 2 * D)
        memory = torch.zeros(*(shape[i] for i in order), dtype=dtype)
        view = memory.permute(*(order.index(i) for i in range(5)))
        yield name, filled(view, lbhnc), flash
    two = torch.zeros(LAYERS, 2, n_blocks, tokens, HEADS, D, dtype=dtype)

    def split(part, layer):
        part[0], part[1] = k[layer], v[layer]
    yield "(2, block, token, head, d)", filled(two, split), flash
    inner = torch.zeros(LAYERS, n_blocks, 2, tokens, HEADS, D, dtype=dtype)

    def split_inner(part, layer):
        part[:, 0], part[:, 1] = k[layer], v[layer]
    yield "(block, 2, token, head, d)", filled(inner, split_inner), flash
    heads_first = torch.zeros(LAYERS, 2, n_blocks, HEADS, tokens, D, dtype=dtype).transpose(3, 4)
    yield "(2, block, head, token, d)", filled(heads_first, split), flash
    if tokens % 16 == 0:
        isa = _get_attn_isa(dtype, tokens, D)
        packed = torch.zeros(LAYERS, n_blocks, HEADS, tokens, 2 * D, dtype=dtype)

        def put(part, layer):
            _put_packed(part, k[layer].flatten(0, 1), v[layer].flatten(0, 1), torch.arange(n_blocks * tokens), isa)
        yield f"CPU_ATTN {isa}", filled(packed, put), [impl("CPUAttentionBackendImpl")] * LAYERS


def check_layouts():
    generator = torch.Generator().manual_seed(1)
    for dtype, policy in ((torch.bfloat16, "bf16"), (torch.float16, "r8/r4"), (torch.float32, "f32")):
        form = PageForm(parse(policy), LAYERS, HEADS, D, D, dtype, False)
        for tokens in (16, 64, 128):
            n_blocks = 1 + 512 // tokens
            shape = (LAYERS, n_blocks, tokens, HEADS, D)
            rows = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
            blocks_of_request = [int(x) + 1 for x in torch.randperm(n_blocks - 1, generator=generator)[:256 // tokens]]
            first = None
            for name, caches, impls in layouts(n_blocks, tokens, dtype, rows):
                blocks = Blocks(form, tokens, caches, impls)
                pages = blocks.encode(blocks.copy(blocks_of_request, 0, 4))
                what = f"{name}, blocks of {tokens}, {str(dtype)[6:]} as {policy}"
                if first is None:
                    first = pages
                ok(np.array_equal(first, pages), f"{what}: the page of every layout has the same bytes")
                part = blocks.encode(blocks.copy(blocks_of_request, 2, 1))
                ok(np.array_equal(part[0], pages[2]), f"{what}: a page alone has the same bytes")
                # into other memory, all but the first tokens
                kept = [torch.zeros_like(row) for row in rows]
                fresh = next(c for c in layouts(n_blocks, tokens, dtype, kept) if c[0] == name)
                target = Blocks(form, tokens, fresh[1], impls)
                begin = 80 if tokens == 16 else 64
                target.write(pages[1:], blocks_of_request, 1, begin)
                again = target.encode(target.copy(blocks_of_request, 2, 2))
                exact = policy in ("bf16", "f32")
                same = np.array_equal(again, pages[2:]) if exact else close(form, again, pages[2:])
                ok(same, f"{what}: loaded pages hold the rows that were saved")
                untouched = target.encode(target.copy(blocks_of_request, 0, 1))
                zero = target.encode(Blocks(form, tokens, fresh[1], impls).copy(blocks_of_request, 0, 1))
                ok(np.array_equal(untouched, zero) and not any_rows(target, blocks_of_request, begin),
                   f"{what}: tokens that were there before are left alone")


def any_rows(blocks, block_ids, count):
    """Whether a row among the first tokens is not zero."""
    copied = blocks.copy(block_ids, 0, 2)
    for layer in range(LAYERS):
        k, v = blocks.rows.read(copied.parts, layer, copied.places.blocks, copied.places.offsets)
        if k[:count].abs().max() > 0 or v[:count].abs().max() > 0:
            return True
    return False


def close(form, a, b):
    """Encoded again, decoded rows change by rounding only."""
    def rows(pages):
        k = torch.empty(len(pages) * PAGE, HEADS, D, dtype=form.dtype)
        v = torch.empty_like(k)
        out = []
        for layer in range(LAYERS):
            room = Blocks.__new__(Blocks)
            room.form = form
            room._call(own.lib.quire_vllm_pages_decode, pages, layer, k, v)
            out += [k.float().clone(), v.float().clone()]
        return torch.stack(out)
    x, y = rows(a), rows(b)
    return ((x - y).norm() / y.norm()).item() < 0.05


def check_forms():
    spec = FullAttentionSpec(block_size=64, num_kv_heads=HEADS, head_size=D, dtype=torch.bfloat16)
    form = form_of([spec] * LAYERS, torch.bfloat16, None, None)
    ok((form.policy.k, form.bits_per_value) == ("bf16", 16.0), "plain rows are stored in their own type unless a policy is given")
    ok(form_of([spec], torch.bfloat16, None, "r8").bits_per_value == 8.25, "r8 stores 8.25 bits per value in heads of 64")
    roots = {form_of([spec] * LAYERS, torch.bfloat16, None, kv).layout for kv in (None, "r8", "r8/r4", "r4")}
    ok(len(roots) == 4, "each policy has a layout of its own")
    fp8 = FullAttentionSpec(block_size=64, num_kv_heads=HEADS, head_size=D, dtype=torch.uint8)
    ok.raises(lambda: form_of([fp8], torch.bfloat16, None, None), "a cache of fp8", "start without --kv-cache-dtype")
    ok.raises(lambda: form_of([spec], torch.bfloat16, None, "nonsense"), "an unknown policy", "nonsense")
    odd = FullAttentionSpec(block_size=64, num_kv_heads=1, head_size=D, dtype=torch.bfloat16)
    ok.raises(lambda: form_of([spec, odd], torch.bfloat16, None, None), "layers that differ", "differ")
    cache = torch.zeros(4, HEADS, 48, 2 * D, dtype=torch.bfloat16)
    ok.raises(lambda: Blocks(form, 48, [cache] * LAYERS, [impl("FlashAttentionImpl")] * LAYERS), "blocks of 48 tokens", "--block-size")
    ok.raises(lambda: Blocks(form, 64, [cache] * LAYERS, [impl("RocmImpl")] * LAYERS), "a backend whose rows are not known", "RocmImpl")


def check_tiles():
    """Blocks that hold tiles already: whatever bytes they have come back."""
    generator = torch.Generator().manual_seed(2)
    form = PageForm(parse("r8/r4"), LAYERS, HEADS, D, D, torch.bfloat16, True)
    content = form.formats.pair_bytes // PAGE
    first = None
    for tokens in (64, 128, 256):
        blocks_of_request = [5, 2, 7, 3][:256 // tokens]
        tiles = torch.randint(0, 256, (LAYERS, 4, HEADS, PAGE * content), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
        caches = [torch.randint(0, 256, (9, HEADS, tokens, content), generator=generator, dtype=torch.uint8) for _ in range(LAYERS)]
        before = [cache.clone() for cache in caches]
        blocks = Blocks(form, tokens, caches, [])
        pages = np.ascontiguousarray(tiles.transpose(0, 1).reshape(4, -1).numpy())
        blocks.write(pages[1:], blocks_of_request, 1, 64)
        got = blocks.encode(blocks.copy(blocks_of_request, 1, 3))
        ok(np.array_equal(got, pages[1:]), f"tiles in blocks of {tokens}: loaded pages have the bytes that were saved")
        per_block = tokens // PAGE
        want = [cache.clone() for cache in before]
        for page in range(1, 4):
            for layer in range(LAYERS):
                part = want[layer][blocks_of_request[page // per_block]].view(HEADS, per_block, PAGE * content)
                part[:, page % per_block] = tiles[layer, page]
        ok(all(torch.equal(a, b) for a, b in zip(caches, want)), f"tiles in blocks of {tokens}: each is where it belongs, and nothing else was written")
        first = got if first is None else first
        ok(np.array_equal(first, got), f"tiles in blocks of {tokens}: pages do not depend on the block size")
    ok.raises(lambda: Blocks(form, 64, [torch.zeros(4, HEADS, 64, content + 1, dtype=torch.uint8)] * LAYERS, []), "other memory", "not that of Quire's backend")


def main():
    check_tiles()
    check_layouts()
    check_forms()
    return ok.end()


if __name__ == "__main__":
    sys.exit(main())
