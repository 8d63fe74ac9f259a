# SPDX-License-Identifier: MIT
"""What mlx-vlm 0.7.10 cannot do with a quantized cache, each shown to fail there and to be right here."""
import unittest

import mlx.core as mx
import numpy as np
import quire.mlx_vlm as quire_vlm
from mlx_vlm.generate.ar import BatchGenerator, _extend_cache, _make_cache
from mlx_vlm.generate.common import maybe_quantize_kv_cache
from mlx_vlm.kv_quant import from_legacy
from mlx_vlm.models.cache import BatchKVCache, BatchQuantizedKVCache, KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache
from mlx_vlm.speculative.cache_state import rollback_speculative_cache, start_speculative_cache
from mlx_vlm.turboquant import BatchTurboQuantKVCache, HybridQuantKVCache, TurboQuantKVCache
from vlm_support import MOST, PROMPTS, NoText, attend, batch, greedy, numpy, rows, small_model
from reference import affine, attention, error, sees

N, HEADS, KV_HEADS, D = 150, 6, 2, 64


def three(d=D, d_v=None, n=N, n_sequences=1, seed=0):
    return (rows(seed, n_sequences, HEADS, n, d, spread=0.5), rows(seed + 1, n_sequences, KV_HEADS, n, d),
            rows(seed + 2, n_sequences, KV_HEADS, n, d_v or d))


def cut(x, first, last=None):
    return tuple(a[:, :, first:last] for a in x)


class Cases(unittest.TestCase):
    def right(self, out, q, cache, mask=None, row=None, **more):
        """out against double precision over the rows that the cache holds."""
        k, v = numpy(cache.keys.decode()), numpy(cache.values.decode())
        if row is not None:
            i, first = row
            out, q, k, v = out[i:i + 1], q[i:i + 1], k[i:i + 1, :, first:], v[i:i + 1, :, first:]
        self.assertLess(error(numpy(out), attention(numpy(q), k, v, q.shape[-1] ** -0.5, mask, **more)), MOST)

    def test_a_bound_and_bits(self):
        ring = [RotatingKVCache(max_size=48, keep=4)]
        maybe_quantize_kv_cache(ring, 0, 64, 4, "turboquant")
        self.assertIs(type(ring[0]), RotatingKVCache)  # it stays in floats, without a word
        with self.assertRaises(NotImplementedError):
            maybe_quantize_kv_cache(ring, 0, 64, 4, "uniform")
        q, k, v = three()
        ours = quire_vlm.QuireKVCache("tv4", max_tokens=48, sinks=4)
        out = attend(ours, q, k, v)
        plain = quire_vlm.QuireKVCache("tv4")
        plain.update_and_fetch(k, v)
        self.right(out, q, plain, sees(N, N, 48, 4))
        self.assertLess(ours.nbytes, 4 * (48 + 128 + 64) * (D // 2 + 2) * KV_HEADS)

    def test_a_bound_where_the_model_makes_its_own_cache(self):
        model = small_model("gemma3_text", sliding_window=8, sliding_window_pattern=2)
        own = make_prompt_cache(model.language_model, max_kv_size=16)
        self.assertIn(KVCache, [type(c) for c in own])  # the bound is ignored without a word
        bounded = quire_vlm.make_cache(model, bits=4, max_tokens=16)
        greedy(model, [3, 1, 4], bounded, 300)
        full = [c for c in bounded if isinstance(c, quire_vlm.QuireKVCache)]
        self.assertEqual([(c.size(), c.offset) for c in full], [(16, 303)])

    def test_a_bound_in_a_batch(self):
        model = small_model()
        model.language_model.__dict__["make_cache"] = lambda: [RotatingKVCache(16, 4) for _ in model.layers]
        try:
            with self.assertRaisesRegex(ValueError, "keep tokens is not supported"):
                _make_cache(model.language_model, [0, 3])
        finally:
            del model.language_model.__dict__["make_cache"]
        quire_vlm.attach(model, "f32", 16, 4)
        try:
            batch = _make_cache(model.language_model, [0, 3])[0]
        finally:
            quire_vlm.detach(model)
        q, k, v = three(n=60, n_sequences=2)
        out = attend(batch, q, k, v)
        for i, p in enumerate((0, 3)):
            want = attention(numpy(q)[i:i + 1, :, p:], numpy(k)[i:i + 1, :, p:], numpy(v)[i:i + 1, :, p:], D ** -0.5, sees(60 - p, 60 - p, 16, 4))
            self.assertLess(error(numpy(out)[i:i + 1, :, p:], want), MOST)

    def test_bits_of_k_and_v_in_affine_codes(self):
        caches = [KVCache(), KVCache()]
        maybe_quantize_kv_cache(caches, 0, 64, 8, "uniform", kv_key_bits=8, kv_value_bits=4)
        self.assertEqual(caches[0].bits, 8)  # for K and V: the 4 bits are forgotten without a word
        q, k, v = three()
        out = attend(quire_vlm.QuireKVCache("a8g64/a4g64"), q, k, v)
        want = attention(numpy(q), affine(numpy(k), 8, 64), affine(numpy(v), 4, 64), D ** -0.5, sees(N, N))
        self.assertLess(error(numpy(out), want), MOST)

    def test_a_mask_per_head_when_decoding(self):
        q, k, v = three()
        shown = np.random.default_rng(3).random((1, HEADS, 1, N)) < 0.5
        theirs, ours = TurboQuantKVCache(bits=4), quire_vlm.QuireKVCache("tv4")
        for cache in (theirs, ours):
            cache.update_and_fetch(*cut((k, v), 0, N - 1))
        last = cut((q, k, v), N - 1)
        with self.assertRaisesRegex(ValueError, "broadcast"):
            attend(theirs, *last, mask=mx.array(shown))
        self.right(attend(ours, *last, mask=mx.array(shown)), last[0], ours, shown)

    def test_a_cache_made_from_a_state(self):
        q, k, v = three()
        head, last = cut((k, v), 0, N - 1), cut((q, k, v), N - 1)
        for theirs in (TurboQuantKVCache(bits=4), BatchTurboQuantKVCache([0], bits=4)):
            theirs.update_and_fetch(*head)
            with self.assertRaisesRegex(AttributeError, "key_codec"):
                attend(type(theirs).from_state(theirs.state, theirs.meta_state), *last)
        ours = quire_vlm.QuireKVCache("tv4")
        ours.update_and_fetch(*head)
        again = quire_vlm.QuireKVCache.from_state(dict(ours.state.items()), ours.meta_state)
        np.testing.assert_array_equal(numpy(attend(again, *last)), numpy(attend(ours, *last)))

    def test_joining_a_batch_with_history(self):
        q, k, v = three(n_sequences=2)
        one = lambda x, i, n: x[i:i + 1, :, :n]
        theirs = [TurboQuantKVCache(bits=4), TurboQuantKVCache(bits=4)]
        ours = [quire_vlm.QuireKVCache("tv4"), quire_vlm.QuireKVCache("tv4")]
        for cache, i, n in ((theirs[0], 0, 90), (theirs[1], 1, 40), (ours[0], 0, 90), (ours[1], 1, 40)):
            cache.update_and_fetch(one(k, i, n), one(v, i, n))
        with self.assertRaisesRegex(ValueError, "does not yet support batching"):
            _extend_cache(theirs[:1], theirs[1:])
        batch, = _extend_cache(ours[:1], ours[1:])
        out = attend(batch, *cut((q, k, v), 0, 1))
        self.right(out, q[:, :, :1], batch, row=(0, 0))
        self.right(out, q[:, :, :1], batch, row=(1, 50))

    def test_short_prompts_beside_long_ones(self):
        """mlx-vlm's batches quantize a prompt only if it has quantized_kv_start tokens (5,000 if nothing is said), and never later."""
        model, long, short = small_model(), PROMPTS[3], PROMPTS[1]
        options = dict(kv_bits=4, kv_quant_scheme="turboquant", quantized_kv_start=16)
        for first, then in ((long, short), (short, long)):
            with self.assertRaises((TypeError, AttributeError)):
                batch(model, [first], 8, [then], **options)
        generator = BatchGenerator(model.language_model, NoText(), max_tokens=40, **options)
        generator.insert([short], prompt_kwargs=[dict(inputs_embeds=model.get_input_embeddings(mx.array([short])).inputs_embeds)])
        for _ in range(30):
            generator.next()
        held = generator._generation_batch.prompt_cache[0]
        self.assertEqual((type(held), held._idx > 30), (BatchKVCache, True))  # floats, though it is longer than 16 by now
        generator.close()
        quire_vlm.attach(model, bits=4)
        try:
            for first, then in ((long, short), (short, long)):
                alone = [greedy(model, p, quire_vlm.make_cache(model, bits=4), 8) for p in (first, then)]
                self.assertEqual(batch(model, [first], 8, [then]), alone)
        finally:
            quire_vlm.detach(model)

    def test_joining_rows_of_other_codes(self):
        """Half bits choose channels by the first prompt, and seeds choose signs; a joined batch decodes one row with the codecs of the other."""
        _, k, v = three(n=40)
        tall = [k * mx.array([10.0 if i % 3 == j else 1.0 for i in range(D)]) for j in (0, 1)]
        for options in (dict(bits=4, key_bits=3.5), dict(bits=4)):
            seeds = [dict(seed=0), dict(seed=0 if "key_bits" in options else 5)]
            a, b = (BatchTurboQuantKVCache([0], **options, **s) for s in seeds)
            a.update_and_fetch(tall[0], v)
            b.update_and_fetch(tall[1], v)
            before = np.array(b.dequantize()[0])
            self.assertLess(error(before, numpy(tall[1])), 0.3)
            a.extend(b)  # no error
            self.assertGreater(error(np.array(a.dequantize()[0])[1:], before), 1)  # nothing is left of the row
        a, b = (quire_vlm.BatchQuireKVCache([0], quire_vlm.Settings(p)) for p in ("tv3/tv4", "tv4"))
        with self.assertRaisesRegex(ValueError, "same policy"):
            a.extend(b)

    def test_joining_an_empty_row(self):
        q, k, v = three(n=40, n_sequences=2)
        for first in (True, False):
            pairs = []
            for make in (lambda: BatchTurboQuantKVCache([0], bits=4), lambda: quire_vlm.BatchQuireKVCache([0], quire_vlm.Settings("tv4"))):
                full, empty = make(), make()
                full.update_and_fetch(k[:1], v[:1])
                a, b = (full, empty) if first else (empty, full)
                a.extend(b)
                pairs.append(a)
            with self.assertRaisesRegex(ValueError, "broadcast"):
                attend(pairs[0], *cut((q, k, v), 0, 1))
            out = attend(pairs[1], *cut((q, k, v), 0, 1))
            full, empty = (0, 1) if first else (1, 0)
            self.right(out, q[:, :, :1], pairs[1], row=(full, 0))
            self.right(out, q[:, :, :1], pairs[1], row=(empty, 40))

    def test_a_batch_that_all_have_left(self):
        _, k, v = three(n=40, n_sequences=2)
        nobody = mx.array([], mx.int32)
        theirs = BatchTurboQuantKVCache([0, 3], bits=4)
        theirs.update_and_fetch(k, v)
        with self.assertRaises(ValueError):
            theirs.filter(nobody)
        ours = quire_vlm.BatchQuireKVCache([0, 3], quire_vlm.Settings("tv4"))
        ours.update_and_fetch(k, v)
        ours.filter(nobody)
        self.assertEqual((ours.batch_size, ours.nbytes), (0, 0))

    def test_rows_that_accept_different_numbers_of_draft_tokens(self):
        q, k, v = three(n=48, n_sequences=2)
        for make in (lambda: BatchTurboQuantKVCache([0, 5], bits=4), lambda: quire_vlm.BatchQuireKVCache([0, 5], quire_vlm.Settings("tv4"))):
            cache = make()
            cache.update_and_fetch(*cut((k, v), 0, 40))
            work = start_speculative_cache([cache], 4)
            cache.update_and_fetch(*cut((k, v), 40, 44))
            if isinstance(cache, BatchTurboQuantKVCache):
                with self.assertRaisesRegex(RuntimeError, "uniform acceptance"):
                    rollback_speculative_cache([cache], work, [2, 0], 4)
                continue
            rollback_speculative_cache([cache], work, [2, 0], 4)  # the first token and two more; the first only
            self.assertEqual((cache.offset.tolist(), cache.left_padding.tolist()), ([43, 36], [0, 7]))
            out = attend(cache, *cut((q, k, v), 44, 45))
            self.right(out, q[:, :, 44:45], cache, row=(0, 0))
            self.right(out, q[:, :, 44:45], cache, row=(1, 7))
            want = quire_vlm.QuireKVCache("tv4")
            for first, last in ((5, 41), (44, 45)):
                want.update_and_fetch(*(x[1:, :, first:last] for x in (k, v)))
            np.testing.assert_array_equal(numpy(cache.keys.decode())[1, :, 7:], numpy(want.keys.decode())[0])

    def test_prompts_padded_at_the_right(self):
        """Rows with prefixes of different lengths that mlx-vlm's prefix cache found: it prepares and finalizes every cache."""
        self.assertFalse(hasattr(BatchTurboQuantKVCache, "prepare"))  # RuntimeError in PromptProcessingBatch
        q, k, v = three(n=20, n_sequences=2)
        batch = quire_vlm.BatchQuireKVCache([0, 0], quire_vlm.Settings("tv4"))
        batch.prepare(right_padding=[0, 8], lengths=[20, 12])
        out = attend(batch, q, k, v)
        batch.finalize()
        self.assertEqual((batch.offset.tolist(), batch.left_padding.tolist()), ([20, 12], [0, 8]))
        self.right(out, q, batch, sees(20, 20), row=(0, 0))
        self.right(out[:, :, :12], q[:, :, :12], batch, sees(12, 12), row=(1, 8))

    def test_what_a_cache_says_of_itself(self):
        _, k, v = three(n_sequences=2)
        hybrid = HybridQuantKVCache(from_legacy(4, "turboquant", 64, None, 8, None, "uniform"))
        theirs = [QuantizedKVCache(), BatchQuantizedKVCache([0, 0]), BatchTurboQuantKVCache([0, 0], bits=4), hybrid]
        for cache in theirs:
            cache.update_and_fetch(k, v)
            self.assertEqual(cache.size(), 0, type(cache).__name__)  # of 150 tokens
        for cache in (theirs[1], hybrid):
            with self.assertRaises(NotImplementedError):
                cache.nbytes
        for ours in (quire_vlm.QuireKVCache("tv4"), quire_vlm.BatchQuireKVCache([0, 0], quire_vlm.Settings("tv4"))):
            ours.update_and_fetch(k, v)
            self.assertEqual((ours.size(), ours.nbytes), (N, 2 * 3 * 64 * 2 * KV_HEADS * (D // 2 + 2)))

    def test_memory_after_trim(self):
        _, k, v = three(n=640)
        theirs, ours = TurboQuantKVCache(bits=4), quire_vlm.QuireKVCache("tv4")
        for cache in (theirs, ours):
            cache.update_and_fetch(k, v)
            cache.trim(639)
        held = sum(x.nbytes for x in (*theirs.keys, *theirs.values))
        self.assertEqual((theirs.nbytes * 640, held), (held, 640 * 2 * KV_HEADS * (D // 2 + 2)))  # all of it
        self.assertEqual(ours.nbytes, 64 * 2 * KV_HEADS * (D // 2 + 2))  # one page

    def test_attention_sinks_in_affine_codes(self):
        q, k, v = three()
        sinks = rows(9, HEADS)
        with self.assertRaisesRegex(ValueError, "sinks"):
            attend(QuantizedKVCache(bits=4), q, k, v, sinks=sinks)
        for policy in ("a4g64", "tv4"):
            ours = quire_vlm.QuireKVCache(policy)
            self.right(attend(ours, q, k, v, sinks=sinks), q, ours, sees(N, N), sinks=numpy(sinks))

    def test_values_of_another_size_in_affine_codes(self):
        q, k, v = three(64, 128)
        with self.assertRaisesRegex(ValueError, "reshape"):
            attend(QuantizedKVCache(bits=4), q, k, v)
        for policy in ("a4g64", "tv4"):
            ours = quire_vlm.QuireKVCache(policy)
            self.right(attend(ours, q, k, v), q, ours, sees(N, N))

    def test_head_size_80_in_affine_codes(self):
        q, k, v = three(80)
        with self.assertRaisesRegex(ValueError, "divisible"):
            attend(QuantizedKVCache(group_size=32, bits=8), q, k, v)
        ours = quire_vlm.QuireKVCache("a8g32")
        self.right(attend(ours, q, k, v), q, ours, sees(N, N))


if __name__ == "__main__":
    unittest.main()
