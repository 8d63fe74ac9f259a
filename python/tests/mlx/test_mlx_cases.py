# SPDX-License-Identifier: MIT
"""What mlx-lm 0.32.2 cannot do with a quantized cache, each shown to fail there and to be right here."""
import unittest

import mlx.core as mx
import numpy as np
import quire.mlx_lm as quire_mlx
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import BatchRotatingKVCache, KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache
from reference import affine, attention, error, sees
from support import MOST, attend, greedy, numpy, rows, small_model

N, HEADS, KV_HEADS = 150, 6, 2


def three(d, d_v=None, n=N, dtype=mx.float16, seed=0):
    return (rows(seed, 1, HEADS, n, d, dtype=dtype), rows(seed + 1, 1, KV_HEADS, n, d, dtype=dtype),
            rows(seed + 2, 1, KV_HEADS, n, d_v or d, dtype=dtype))


def stock(cache, q, k, v, mask=None, sinks=None):
    keys, values = cache.update_and_fetch(k, v)
    return scaled_dot_product_attention(q, keys, values, cache, scale=0.1, mask=mask, sinks=sinks)


class Cases(unittest.TestCase):
    def right(self, out, q, k, v, k_codec, v_codec, mask, **more):
        """out against double precision over rows that an independent quantizer made."""
        want = attention(numpy(q), affine(numpy(k), *k_codec), affine(numpy(v), *v_codec), 0.1, mask, **more)
        # Outputs are halves, as the queries: their own rounding comes on top.
        self.assertLess(error(numpy(out), want), MOST + (2**-11 if out.dtype == mx.float16 else 0))

    def ours(self, policy, q, k, v, **options):
        return attend(quire_mlx.QuireKVCache(policy), q.astype(mx.float32), k, v, 0.1, **options)

    def test_the_quantizer_of_the_reference_is_mlxs(self):
        for bits in (2, 3, 4, 5, 6, 8):
            x = rows(bits, 3, 40, 128, dtype=mx.float16)
            w, s, b = mx.quantize(x, group_size=64, bits=bits)
            theirs = mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), 64, bits)
            np.testing.assert_array_equal(affine(numpy(x), bits, 64), np.array(theirs))

    def test_rotating_and_bits(self):
        q, k, v = three(64)
        with self.assertRaises(NotImplementedError):
            RotatingKVCache(max_size=48, keep=4).to_quantized(group_size=64, bits=8)
        out = attend(quire_mlx.QuireKVCache("a8g64", max_tokens=48, sinks=4), q.astype(mx.float32), k, v, 0.1)
        self.right(out, q, k, v, (8, 64), (8, 64), sees(N, N, 48, 4))

    def test_max_kv_size_and_kv_bits(self):
        model, prompt = small_model(kind="qwen2", head_dim=16), mx.array([5, 9, 2, 77, 31, 8])
        with self.assertRaises(NotImplementedError):
            list(generate_step(prompt, model, max_tokens=4, max_kv_size=16, kv_bits=8, kv_group_size=32, quantized_kv_start=0))
        got = greedy(model, prompt, quire_mlx.make_cache(model, "f32", max_tokens=16), 24)
        self.assertEqual(got, greedy(model, prompt, [RotatingKVCache(16, 4) for _ in model.layers], 24))

    def test_a_bound_where_the_model_makes_its_own_cache(self):
        model = small_model()
        self.assertIsInstance(make_prompt_cache(model, max_kv_size=16)[0], KVCache)  # the bound is ignored without a word
        cache = quire_mlx.make_cache(model, "a8g32", max_tokens=16)
        greedy(model, [3, 1, 4], cache, 400)
        plain = quire_mlx.make_cache(model, "a8g32")
        greedy(model, [3, 1, 4], plain, 400)
        self.assertEqual((cache[0].size(), cache[0].offset), (16, 403))
        self.assertLess(cache[0].nbytes, plain[0].nbytes)

    def test_different_bits_for_k_and_v(self):
        model = small_model()
        with self.assertRaises(TypeError):
            list(generate_step(mx.array([1, 2, 3]), model, max_tokens=4, kv_bits=(8, 4), quantized_kv_start=0))
        q, k, v = three(64)
        self.right(self.ours("a8g64/a4g64", q, k, v), q, k, v, (8, 64), (4, 64), sees(N, N))

    def test_widths_that_do_not_divide_a_word(self):
        for bits, d in ((5, 128), (6, 128), (5, 96), (6, 256), (3, 256), (3, 128), (5, 64)):
            q, k, v = three(d, n=70)
            if (bits, d) not in ((3, 128), (5, 64)):  # these two work in mlx-lm
                with self.assertRaises(ValueError, msg=f"{bits} bits, {d}"):
                    mx.eval(QuantizedKVCache(group_size=32, bits=bits).update_and_fetch(k, v))
            self.right(self.ours(f"a{bits}g32", q, k, v), q, k, v, (bits, 32), (bits, 32), sees(70, 70))

    def test_head_sizes_80_and_96(self):
        for d, group in ((80, 64), (96, 64), (80, 32), (96, 128)):
            q, k, v = three(d)
            with self.assertRaises(ValueError):
                mx.eval(QuantizedKVCache(group_size=group, bits=8).update_and_fetch(k, v))
            for bits in (8, 4):
                self.right(self.ours(f"a{bits}g{group}", q, k, v), q, k, v, (bits, group), (bits, group), sees(N, N))

    def test_batches_with_quantized_history(self):
        model, prompts = small_model(), [[5, 9, 2, 77], [8, 8, 1]]

        def second_turn(make):
            caches = [make() for _ in prompts]
            for prompt, cache in zip(prompts, caches):
                greedy(model, prompt, cache, 5)
            generator = BatchGenerator(model, max_tokens=6)
            uids = generator.insert([[17, 3, 6], [44]], caches=caches)
            got = {uid: [] for uid in uids}
            while found := generator.next_generated():
                for r in found:
                    got[r.uid].append(r.token)
            return [got[u] for u in uids], caches

        with self.assertRaisesRegex(ValueError, "does not yet support batching with history"):
            second_turn(lambda: [QuantizedKVCache(group_size=32, bits=8) for _ in model.layers])
        got, caches = second_turn(lambda: quire_mlx.make_cache(model, "a8g32"))
        alone = [greedy(model, more, cache, 6) for more, cache in zip([[17, 3, 6], [44]], caches)]
        self.assertEqual(got, alone)

    def test_attention_sinks(self):
        q, k, v = three(64)
        sinks = rows(9, HEADS)
        with self.assertRaisesRegex(ValueError, "sinks"):
            stock(QuantizedKVCache(group_size=64, bits=4), q, k, v, "causal", sinks)
        self.right(self.ours("a4g64", q, k, v, sinks=sinks), q, k, v, (4, 64), (4, 64), sees(N, N), sinks=numpy(sinks))

    def test_masks_per_head_with_grouped_queries(self):
        q, k, v = three(64)
        shown = np.random.default_rng(3).random((1, HEADS, N, N)) < 0.5
        shown[..., 0] = True
        additive = np.where(shown, np.float32(0.3), np.float32(-1e9))
        for mask in (shown, additive):
            with self.assertRaises(ValueError):
                mx.eval(stock(QuantizedKVCache(group_size=64, bits=4), q, k, v, mx.array(mask)))
            self.right(self.ours("a4g64", q, k, v, mask=mx.array(mask)), q, k, v, (4, 64), (4, 64), mask)

    def test_values_of_another_size_than_keys(self):
        q, k, v = three(64, 128)
        with self.assertRaises(ValueError):
            mx.eval(stock(QuantizedKVCache(group_size=64, bits=4), q, k, v, "causal"))
        self.right(self.ours("a4g64", q, k, v), q, k, v, (4, 64), (4, 64), sees(N, N))

    def test_size_merge_and_bytes(self):
        _, k, v = three(64)
        theirs = QuantizedKVCache(group_size=64, bits=4)
        with self.assertRaises(AttributeError):
            theirs.nbytes
        theirs.update_and_fetch(k, v)
        self.assertEqual(theirs.size(), 0)
        self.assertFalse(hasattr(theirs, "merge"))
        ours = quire_mlx.QuireKVCache("a4g64")
        self.assertEqual((ours.nbytes, ours.size(), ours.empty()), (0, 0, True))
        ours.update_and_fetch(k, v)
        self.assertEqual((ours.size(), ours.empty()), (N, False))
        self.assertGreaterEqual(ours.nbytes, N * KV_HEADS * 2 * 64 * 4.5 / 8)
        self.assertEqual(ours.merge([ours, quire_mlx.QuireKVCache("a4g64")]).offset.tolist(), [N, 0])

    def test_batches_with_a_bound_keep_their_first_tokens(self):
        lost = BatchRotatingKVCache.merge([RotatingKVCache(8, keep=2)])
        self.assertFalse(hasattr(lost, "keep"))
        caches = []
        q, k, v = (rows(s, 2, h, 60, 64) for s, h in ((0, HEADS), (1, KV_HEADS), (2, KV_HEADS)))
        for i, n in enumerate((20, 33)):
            cache = quire_mlx.QuireKVCache("f32", max_tokens=16, sinks=3)
            cache.update_and_fetch(k[i:i + 1, :, :n], v[i:i + 1, :, :n])
            caches.append(cache)
        batch = caches[0].merge(caches)
        at = np.array([20, 33])
        for _ in range(20):
            take = lambda x: mx.stack([x[i, :, int(n):int(n) + 1] for i, n in enumerate(at)])
            out = attend(batch, take(q), take(k), take(v), 0.1)
            at = at + 1
            for i, n in enumerate(at):
                want = attention(numpy(q)[i:i + 1, :, n - 1:n], numpy(k)[i:i + 1, :, :n],
                                 numpy(v)[i:i + 1, :, :n], 0.1, sees(1, n, 16, 3))
                self.assertLess(error(numpy(out)[i:i + 1], want), MOST)


if __name__ == "__main__":
    unittest.main()
