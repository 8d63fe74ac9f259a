# SPDX-License-Identifier: MIT
"""ring.gold: which tokens mlx-lm's RotatingKVCache(max_size, keep) lets a query see."""
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import RotatingKVCache

import tokens
from goldfile import text

f32, wide = np.float32, np.longdouble
CASES = [(6, 0), (6, 2), (8, 4), (64, 4), (100, 4), (256, 4)]     # max_size, keep
STEPS, CHUNK, SMALL, ATTEND = 100, 3, 3, (100, 4)
HQ, HKV, D = 4, 2, 64


def chunk(cache, first, n):
    """Appends n tokens; the mask [n,S] mlx-lm gives them and the tokens [S] it returns."""
    mask = cache.make_mask(n, return_array=True)
    k, _ = cache.update_and_fetch(*tokens.rows([range(first, first + n)]))
    return np.array(mask).astype(np.uint8), tokens.numbers(k)[0]


def trace(size, keep):
    """A prefill past the bound, single steps, and one more chunk. Tokens count from 0."""
    cache, n = RotatingKVCache(size, keep=keep), 3 * size // 2 + 5
    first = chunk(cache, 0, n)
    steps = np.full((STEPS, size), -1, np.int32)
    for i in range(STEPS):
        assert cache.make_mask(1) is None                   # the query sees all that is returned
        k, _ = cache.update_and_fetch(*tokens.rows([[n + i]]))
        seen = np.sort(tokens.numbers(k)[0])
        p, j = n + i, np.arange(n + i + 1)
        assert np.array_equal(seen, j[(j < keep) | (j > p - (size - keep))])    # the rule of a ring
        steps[i, :len(seen)] = seen
    return n, steps, first, chunk(cache, n + STEPS, CHUNK)


def attention(k, v, q, steps):
    """float64 (from 80 bits) attention of q [steps,HQ,D] over the rows of each step."""
    out = np.empty(q.shape, np.float64)
    head = np.arange(HQ) // (HQ // HKV)
    for i, rows in enumerate(steps):
        rows = rows[rows >= 0]
        K, V = (a[rows][:, head].astype(wide) for a in (k, v))
        s = np.einsum("hd,shd->hs", q[i].astype(wide), K) / wide(8)      # 1/sqrt(64)
        e = np.exp(s - s.max(-1, keepdims=True))
        out[i] = np.einsum("hs,shd->hd", e / e.sum(-1, keepdims=True), V)
    return out


def make():
    mx.set_default_device(mx.cpu)
    arrays = {"index": None}
    index = ["case\tmax_size\tkeep\tprefill\tsteps\tattention"]
    for i, (size, keep) in enumerate(CASES):
        n, steps, first, last = trace(size, keep)
        index.append(f"c{i}\t{size}\t{keep}\t{n}\t{STEPS}\t{int((size, keep) == ATTEND)}")
        arrays[f"c{i}_step_rows"] = steps
        if i < SMALL:
            arrays[f"c{i}_chunk_mask"], arrays[f"c{i}_chunk_rows"] = first
            arrays[f"c{i}_chunk2_mask"], arrays[f"c{i}_chunk2_rows"] = last
        if (size, keep) == ATTEND:
            tokens_all = n + STEPS
            pool = np.random.default_rng(4).standard_normal(tokens_all * HKV * D + 256).astype(f32)

            def part(start, *shape):                        # overlapping parts: a smaller file
                return pool[start:start + np.prod(shape)].reshape(shape)
            k, v = part(0, tokens_all, HKV, D), part(80, tokens_all, HKV, D)
            q = part(176, STEPS, HQ, D)
            arrays.update(attn_pool=pool, attn_k=k, attn_v=v, attn_q=q,
                          attn_out=attention(k, v, q, steps))
    arrays["index"] = text(index)
    return arrays
