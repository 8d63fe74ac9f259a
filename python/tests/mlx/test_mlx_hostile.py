# SPDX-License-Identifier: MIT
"""Arguments that no model gives: each is refused with a sentence that names it, and the cache is as before."""
import copy
import os
import pickle
import sys
import threading
import unittest

import mlx.core as mx
import numpy as np
import quire
import quire.mlx_lm as quire_mlx
from mlx_lm.models import cache as mlx_cache
from quire.mlx_lm import BatchQuireKVCache, QuireKVCache, Settings
from reference import attention, error, sees
from support import MOST, attend, numpy, rows, small_model

Q, H, D = 4, 2, 32


def filled(count=10, policy="f32", **options):
    cache = QuireKVCache(policy, **options)
    attend(cache, *feed(0, count))
    return cache


def feed(at, count, n=1):
    """Queries, keys and values of the columns [at, at + count), the same whenever they are asked for."""
    q, k, v = (rows(s, n, h, 1000, D) for s, h in ((1, Q), (2, H), (3, H)))
    return tuple(x[:, :, at:at + count] for x in (q, k, v))


def right(test, cache, at, count=1, bound=0, sinks=0):
    """The cache has the first `at` tokens and takes more."""
    test.assertEqual(cache.offset, at)
    out = attend(cache, *feed(at, count))
    q, k, v = (numpy(x) for x in feed(0, at + count))
    want = attention(q[:, :, at:], k, v, D**-0.5, sees(count, at + count, bound, sinks))
    test.assertLess(error(numpy(out), want), MOST)


class Update(unittest.TestCase):
    def refused(self, cache, k, v, kind, words):
        before = cache._columns
        with self.assertRaisesRegex(kind, words):
            cache.update_and_fetch(k, v)
        self.assertEqual(cache._columns, before)

    def test_values_are_rows_of_the_same_tokens(self):
        for make in (QuireKVCache, lambda: QuireKVCache(max_tokens=16), lambda: BatchQuireKVCache([0, 0], Settings())):
            n = 2
            k = rows(1, n, H, 8, D)
            cache = make()
            for v in (rows(2, n, H, 3, D), rows(2, n, 1, 8, D), rows(2, 1, H, 8, D), rows(2, n, H, 9, D), rows(2, n, H, 0, D)):
                self.refused(cache, k, v, ValueError, "values has shape")
            self.assertTrue(cache.empty())
            cache.update_and_fetch(k, k)
            self.refused(cache, k, rows(2, n, H, 7, D), ValueError, "values has shape")
            self.refused(cache, rows(1, n, H, 8, 16), k, ValueError, "shape")
            self.refused(cache, k[:1], k[:1], ValueError, "sequences")

    def test_kinds_of_arrays(self):
        k = rows(1, 1, H, 8, D)
        for cache in (QuireKVCache(), filled()):
            for bad in (k[0], k[None], mx.zeros(()), mx.zeros((8,))):
                self.refused(cache, bad, k, ValueError, "keys has shape")
                self.refused(cache, k, bad, ValueError, "values has shape")
            for dtype in (mx.int32, mx.uint8, mx.bool_, mx.complex64):
                self.refused(cache, k.astype(dtype), k, TypeError, "keys has dtype")
                self.refused(cache, k, k.astype(dtype), TypeError, "values has dtype")
            for bad in (None, 3, "keys", np.zeros((1, H, 8, D), np.float32), [[1.0]]):
                self.refused(cache, bad, k, TypeError, "keys is a")
                self.refused(cache, k, bad, TypeError, "values is a")
            for shape in ((0, H, 8, D), (1, 0, 8, D), (1, H, 8, 0)):
                self.refused(cache, mx.zeros(shape), mx.zeros(shape), ValueError, "shape")
        self.refused(QuireKVCache(), mx.zeros((1, 1, 1, 2000)), mx.zeros((1, 1, 1, 2000)), (ValueError, quire.QuireError), "head|size|d_k")

    def test_values_of_another_dtype(self):
        cache = QuireKVCache("f32")
        q, k, v = feed(0, 20)
        out = attend(cache, q, k.astype(mx.float16), v.astype(mx.bfloat16))
        want = attention(numpy(q), numpy(k.astype(mx.float16)), numpy(v.astype(mx.bfloat16)), D**-0.5, sees(20, 20))
        self.assertLess(error(numpy(out), want), MOST)

    def test_no_tokens(self):
        """As mlx-lm's own cache: nothing is added, and the keys are those that are there."""
        for cache in (filled(10), filled(10, max_tokens=8, sinks=1)):
            q, k, v = feed(0, 0)
            keys, values = cache.update_and_fetch(k, v)
            self.assertEqual((cache.offset, keys.shape), (10, (1, H, 10, D)))
            self.assertEqual(mx.fast.scaled_dot_product_attention(q, keys, values, scale=1.0).shape, (1, Q, 0, D))
        right(self, filled(10), 10)
        cache = QuireKVCache("f32")
        keys, values = cache.update_and_fetch(k, v)
        self.assertTrue(cache.empty())
        with self.assertRaises(ValueError):
            mx.fast.scaled_dot_product_attention(feed(0, 1)[0], keys, values, scale=1.0)
        right(self, cache, 0, 5)

    def test_fewer_queries_than_keys(self):
        """All rows are appended, whatever the number of queries."""
        for options in ({}, {"max_tokens": 16, "sinks": 2}):
            cache = QuireKVCache("f32", **options)
            q, k, v = feed(0, 300)
            keys, values = cache.update_and_fetch(k, v)
            out = mx.fast.scaled_dot_product_attention(q[:, :, -1:], keys, values, scale=D**-0.5)
            seen = sees(1, 300, *options.values())
            self.assertLess(error(numpy(out), attention(numpy(q[:, :, -1:]), numpy(k), numpy(v), D**-0.5, seen)), MOST)
            right(self, cache, 300, 3, *options.values())


class Attention(unittest.TestCase):
    def refused(self, kind, words, q=None, at=None, **options):
        cache = QuireKVCache("f32")
        good = feed(0, 10)
        keys, values = cache.update_and_fetch(*good[1:])
        q = good[0] if q is None else q
        with self.assertRaisesRegex(kind, words):
            mx.fast.scaled_dot_product_attention(q, keys, values, scale=1.0, **options)
        right(self, cache, 10)

    def test_queries(self):
        for shape in ((1, Q, 10), (1, Q, 10, 16), (2, Q, 10, D), (1, 3, 10, D), (1, 0, 10, D), (1, Q, 11, D), (0, Q, 10, D)):
            self.refused(ValueError, "queries", mx.zeros(shape))
        for dtype in (mx.int32, mx.complex64, mx.bool_):
            self.refused(TypeError, "queries has dtype", mx.zeros((1, Q, 10, D), dtype))
        self.refused(TypeError, "queries is a", np.zeros((1, Q, 10, D), np.float32))

    def test_queries_of_another_dtype(self):
        cache = QuireKVCache("f32")
        q, k, v = feed(0, 10)
        out = attend(cache, q.astype(mx.float16), k, v)
        self.assertEqual(out.dtype, mx.float16)

    def test_sinks(self):
        for sinks in (mx.zeros((Q - 1,)), mx.zeros((Q + 1,)), mx.zeros((1, Q)), mx.zeros((0,)), mx.zeros(())):
            self.refused(ValueError, "sinks has shape", sinks=sinks)
        self.refused(TypeError, "sinks has dtype", sinks=mx.zeros((Q,), mx.int32))
        self.refused(TypeError, "sinks is a", sinks=[0.0] * Q)

    def test_masks(self):
        for shape in ((9,), (10, 9), (9, 10), (2, 10, 10), (3, 1, 10, 10), (1, 1, 1, 10, 10), (0,), (10, 0)):
            self.refused(ValueError, "mask of shape", mask=mx.zeros(shape))
        for dtype in (mx.int32, mx.complex64):
            self.refused(TypeError, "mask has dtype", mask=mx.zeros((10, 10), dtype))
        self.refused(TypeError, "mask is a", mask=np.zeros((10, 10)))
        self.refused(ValueError, "no mask", mask="window")

    def test_scale(self):
        cache = QuireKVCache("f32")
        q, k, v = feed(0, 10)
        with self.assertRaises((TypeError, ValueError)):
            attend(cache, q, k, v, scale="big")
        right(self, cache, 10)

    def test_keys_twice_under_a_bound(self):
        for count in (10, 100, 128):
            cache = QuireKVCache("f32", max_tokens=16, sinks=2)
            attend(cache, *feed(0, 300))
            q, k, v = feed(300, count)
            keys, values = cache.update_and_fetch(k, v)
            outs = [numpy(mx.fast.scaled_dot_product_attention(q, keys, values, scale=D**-0.5, mask="causal")) for _ in range(2)]
            np.testing.assert_array_equal(*outs)
        cache = QuireKVCache("f32", max_tokens=16, sinks=2)
        q, k, v = feed(0, 200)
        keys, values = cache.update_and_fetch(k, v)
        mx.fast.scaled_dot_product_attention(q, keys, values, scale=1.0, mask="causal")
        with self.assertRaisesRegex(ValueError, "dropped"):
            mx.fast.scaled_dot_product_attention(q, keys, values, scale=1.0, mask="causal")
        right(self, cache, 200, 1, 16, 2)

    def test_queries_before_what_a_bound_has_kept(self):
        """After a trim fewer rows are held before the last."""
        cache = QuireKVCache("f32", max_tokens=16, sinks=2)
        for at in range(0, 640, 128):
            attend(cache, *feed(at, 128))
        cache.trim(100)
        q = feed(540 - 120, 120)[0]
        keys, values = cache.keys_and_values()
        with self.assertRaisesRegex(ValueError, "dropped"):
            mx.fast.scaled_dot_product_attention(q, keys, values, scale=1.0, mask="causal")
        right(self, cache, 540, 3, 16, 2)


class Trim(unittest.TestCase):
    def test_counts(self):
        cache = filled(10)
        for bad, kind in ((-3, ValueError), (-1, ValueError), (1.5, TypeError), (2.0, TypeError), ("3", TypeError), (None, TypeError)):
            with self.assertRaises(kind):
                cache.trim(bad)
        self.assertEqual(cache.trim(0), 0)
        right(self, cache, 10)
        self.assertEqual(cache.trim(100), 11)
        right(self, cache, 0, 4)

    def test_filler_is_never_seen(self):
        theirs = mlx_cache.RotatingKVCache(32, keep=4)
        for at in range(100):
            attend(theirs, *feed(at, 1))
        ours = quire_mlx.from_mlx(theirs, "f32", spare=8)
        self.assertFalse(ours.is_trimmable())
        for count in (1, 6, 70, 95):
            with self.assertRaisesRegex(ValueError, "cannot be trimmed"):
                ours.trim(count)
        keys, values = ours.keys_and_values()
        with self.assertRaisesRegex(ValueError, "dropped"):
            mx.fast.scaled_dot_product_attention(feed(95, 5)[0], keys, values, scale=1.0, mask="causal")
        for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), ours.merge([ours]).extract(0)):
            with self.assertRaisesRegex(ValueError, "cannot be trimmed"):
                copied.trim(6)
        for at in range(100, 108):
            right(self, ours, at, 1, 32, 4)
        self.assertTrue(ours.is_trimmable())
        ours.trim(8)
        right(self, ours, 100, 3, 32, 4)
        self.assertEqual(ours.trim(100), 100)  # to the sinks
        right(self, ours, 3, 5, 32, 4)
        ours.trim(8)
        right(self, ours, 0, 5, 32, 4)


class NoAttention:
    """A model none of whose layers has full attention."""

    def make_cache(self):
        return [mlx_cache.ArraysCache(2)]


class Making(unittest.TestCase):
    def test_a_wrong_policy_is_refused_at_once(self):
        model = small_model()
        for policy in ("nonsense", "k8v4,", "", "r9", "c:r4", "safe,edge=0:r8"):
            for make in (lambda: quire_mlx.make_cache(model, policy), lambda: QuireKVCache(policy), lambda: Settings(policy),
                         lambda: quire_mlx.from_mlx(mlx_cache.KVCache(), policy), lambda: quire_mlx.from_mlx(mlx_cache.QuantizedKVCache(), policy)):
                with self.assertRaises((ValueError, quire.QuireError), msg=policy):
                    make()
        for policy in (8, 0, b"safe"):
            for make in (lambda: quire_mlx.make_cache(model, policy), lambda: quire_mlx.from_mlx(mlx_cache.KVCache(), policy)):
                with self.assertRaises(TypeError, msg=policy):
                    make()
        for options in ({"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 4}, {"max_tokens": 8, "sinks": -1}, {"max_tokens": 8, "spare": -1},
                        {"max_tokens": 2**40}, {"sinks": -5}, {"spare": -1}):
            self.refuse(ValueError, options)
        for options in ({"max_tokens": 8.0}, {"max_tokens": "8"}, {"max_tokens": 8, "sinks": None}, {"pools": 3}, {"max_tokens": True}, {"sinks": 4.0},
                        {"sinks": None}, {"spare": "x"}, {"spare": 0.5}):
            self.refuse(TypeError, options)

    def refuse(self, kind, options):
        """The sentence names the argument that is wrong, whether there is a bound or a layer that would have it."""
        wrong = next(reversed(options))
        made = [QuireKVCache, lambda **o: quire_mlx.make_cache(small_model(), **o), lambda **o: quire_mlx.make_cache(NoAttention(), **o)]
        for make in made + [lambda **o: quire_mlx.from_mlx(mlx_cache.KVCache(), spare=o["spare"])] * (wrong == "spare"):
            with self.assertRaisesRegex(kind, wrong, msg=options):
                make(**options)

    def test_the_default_is_safe(self):
        safe = quire.Plan("safe", n_q_heads=1, n_kv_heads=1, d_k=64).policy
        self.assertEqual((QuireKVCache().settings.policy, Settings().policy, quire_mlx.make_cache(small_model())[0].settings.policy), (safe,) * 3)
        theirs = mlx_cache.KVCache()
        attend(theirs, *feed(0, 5))
        self.assertEqual(quire_mlx.from_mlx(theirs).settings.policy, safe)
        self.assertEqual(quire.Plan(n_q_heads=1, n_kv_heads=1, d_k=64).policy, safe)
        self.assertIn(safe, repr(QuireKVCache()))

    def test_two_ways_to_say_a_policy(self):
        self.assertEqual(Settings("balanced,edge=1:f16"), Settings("edge=1:f16/f16,v=r4,k=r6"))
        merged = QuireKVCache.merge([filled(5, "safe"), filled(9, "r8")])
        self.assertEqual(merged.offset.tolist(), [5, 9])

    def test_edges_are_those_of_full_attention(self):
        from mlx_lm.models.gemma3_text import Model, ModelArgs
        model = Model(ModelArgs(model_type="gemma3_text", hidden_size=64, num_hidden_layers=12, intermediate_size=64, num_attention_heads=4, head_dim=32,
                                rms_norm_eps=1e-6, vocab_size=31, num_key_value_heads=2, sliding_window=8, sliding_window_pattern=3))
        caches = quire_mlx.make_cache(model, "r4,edge=1:f16")
        full = [c for c in caches if isinstance(c, QuireKVCache)]
        self.assertEqual([(c.settings.index, c.settings.n_layers) for c in full], [(i, 4) for i in range(4)])
        model(mx.array([[1, 2, 3]]), cache=caches)
        for c in full:
            c._settle()
        self.assertEqual([c._sequences[0].codec("k") for c in full], ["f16", "r4", "r4", "f16"])

    def test_settings(self):
        for bad in (dict(index=1), dict(index=-1), dict(n_layers=0), dict(n_layers=10**9), dict(sinks=1), dict(max_tokens=4, sinks=4), dict(spare=-1)):
            with self.assertRaises(ValueError, msg=bad):
                Settings(**bad)
        with self.assertRaises(TypeError):
            BatchQuireKVCache([0], "safe")


class Conversion(unittest.TestCase):
    def test_head_sizes_that_a_quantized_cache_cannot_have(self):
        cache = QuireKVCache("a8g64")
        cache.update_and_fetch(rows(1, 1, H, 5, 80), rows(2, 1, H, 5, 80))
        with self.assertRaisesRegex(ValueError, "80"):
            quire_mlx.to_mlx(cache, quantized=True)
        self.assertEqual(quire_mlx.from_mlx(quire_mlx.to_mlx(cache), "a8g64").offset, 5)

    def test_other_objects(self):
        for bad in (None, 3, mlx_cache.ArraysCache(2), QuireKVCache()):
            with self.assertRaises(TypeError):
                quire_mlx.from_mlx(bad)
        for bad in (None, mlx_cache.KVCache(), BatchQuireKVCache([0], Settings())):
            with self.assertRaises(TypeError):
                quire_mlx.to_mlx(bad)
        self.assertTrue(quire_mlx.to_mlx(QuireKVCache()).empty())

    def test_a_ring_that_lacks_rows(self):
        theirs = mlx_cache.RotatingKVCache(32, keep=4)
        attend(theirs, *feed(0, 20))
        theirs.offset = 100
        with self.assertRaisesRegex(ValueError, "rows"):
            quire_mlx.from_mlx(theirs)


class Batches(unittest.TestCase):
    def batch(self, *lengths):
        caches = [filled(n) for n in lengths]
        return caches[0].merge(caches)

    def test_merge(self):
        one = filled(5)
        for bad in ([], [mlx_cache.KVCache()], [one, mlx_cache.KVCache()], [one, None], [one, QuireKVCache("r8")], [self.batch(2, 3)],
                    [one, QuireKVCache("f32", max_tokens=9)]):
            with self.assertRaises(ValueError, msg=bad):
                QuireKVCache.merge(bad)
        two = QuireKVCache("f32")
        two.update_and_fetch(rows(1, 2, H, 3, D), rows(2, 2, H, 3, D))
        with self.assertRaises(ValueError):
            QuireKVCache.merge([one, two])
        twice = QuireKVCache.merge([one, one])
        out = attend(twice, *(mx.concatenate([x, x]) for x in feed(5, 2)))
        self.assertTrue((numpy(out)[0] == numpy(out)[1]).all())
        right(self, one, 5)

    def test_indices(self):
        batch = self.batch(4, 9, 6)
        for bad, kind in (([3], ValueError), ([0, -4], ValueError), ([1.0], TypeError), ([True, False, True], TypeError), (2, TypeError), (None, TypeError),
                          (mx.array([[0]]), TypeError), ("0", TypeError)):
            with self.assertRaises(kind, msg=bad):
                batch.filter(bad)
            self.assertEqual(batch.offset.tolist(), [4, 9, 6])
        for bad, kind in ((3, ValueError), (-4, ValueError), (1.0, TypeError), (None, TypeError)):
            with self.assertRaises(kind):
                batch.extract(bad)
        right(self, batch.extract(-1), 6)
        batch.filter([-1, 2, 0])  # the same one twice
        self.assertEqual(batch.offset.tolist(), [6, 6, 4])
        out = attend(batch, *(mx.concatenate([x, x, x]) for x in feed(6, 1)))
        self.assertTrue((numpy(out)[0] == numpy(out)[1]).all())
        batch.filter([])
        self.assertEqual((batch.offset.tolist(), batch.size()), ([], 0))
        batch.extend(self.batch(3, 5))
        right(self, batch.extract(1), 5)

    def test_extend(self):
        batch = self.batch(4, 9)
        for bad in (None, filled(3), mlx_cache.BatchKVCache([0]), BatchQuireKVCache([0], Settings("r8"))):
            with self.assertRaises(ValueError):
                batch.extend(bad)
        batch.extend(batch)
        self.assertEqual(batch.offset.tolist(), [4, 9, 4, 9])
        for i, length in enumerate((4, 9, 4, 9)):
            right(self, batch.extract(i), length)

    def test_padding(self):
        for bad, kind in (([-1], ValueError), ([0.5], TypeError), (3, TypeError), ([2**40], ValueError)):
            with self.assertRaises(kind):
                BatchQuireKVCache(bad, Settings())
        most = 2**31 - 1
        batch = BatchQuireKVCache([most, 1], Settings("f32"))
        for call in (lambda: batch.prepare(left_padding=[0, most]), lambda: batch.extend(self.batch(2))):
            with self.assertRaisesRegex(ValueError, "at most"):
                call()
        self.assertEqual(batch.left_padding.tolist(), [most, 1])
        batch = BatchQuireKVCache([0, 0], Settings("f32"))
        for bad in (dict(left_padding=[1]), dict(left_padding=[-1, 0]), dict(right_padding=[1, 0]), dict(right_padding=[1, 0], lengths=[3]),
                    dict(right_padding=[1, 0], lengths=[-1, 2]), dict(right_padding=[1], lengths=[1, 2])):
            with self.assertRaises(ValueError, msg=bad):
                batch.prepare(**bad)
        self.assertEqual(batch.offset.tolist(), [0, 0])
        batch.finalize()  # without prepare: nothing
        batch.prepare(right_padding=[2, 0], lengths=[3, 5])
        batch.filter([])  # nothing is left that could be finalized
        batch.extend(self.batch(2, 3))
        batch.filter([])
        self.assertEqual(batch.offset.tolist(), [])
        prepared = BatchQuireKVCache([0, 0], Settings("f32"))
        prepared.prepare(right_padding=[2, 0], lengths=[3, 5])
        batch.extend(prepared)  # with its padding
        prepared.extend(BatchQuireKVCache([], Settings("f32")))
        for b in (batch, prepared):
            attend(b, *(mx.concatenate([x, x]) for x in feed(0, 5)))
            b.finalize()
            self.assertEqual(b.offset.tolist(), [3, 5])
            right(self, b.extract(0), 3)
        batch = BatchQuireKVCache([0, 0], Settings("f32"))
        batch.prepare(right_padding=[2, 0], lengths=[3, 5])
        attend(batch, *(mx.concatenate([x, x]) for x in feed(0, 5)))
        with self.assertRaisesRegex(ValueError, "finalize"):
            batch.prepare(right_padding=[1, 0], lengths=[3, 5])
        with self.assertRaisesRegex(ValueError, "finalize"):
            batch.extend(self.batch(2))
        with self.assertRaises(ValueError):
            batch.prepare(left_padding=[1, 1])
        loaded = pickle.loads(pickle.dumps(batch))  # before finalize, too
        for b in (batch, loaded):
            b.finalize()
            b.finalize()
            self.assertEqual(b.offset.tolist(), [3, 5])
            right(self, b.extract(0), 3)
            right(self, b.extract(1), 5)


class Scales(unittest.TestCase):
    def test_zero_weighs_all_tokens_alike(self):
        """The library takes 0 for 1 / sqrt(d_k), MLX does not."""
        for policy, most in (("f32", 1e-5), ("r8", 1e-3), ("tv4", 1e-3)):
            cache = QuireKVCache(policy)
            k, v, q = rows(1, 1, 2, 70, 64), rows(2, 1, 2, 70, 64), rows(3, 1, 4, 1, 64)
            keys, values = cache.update_and_fetch(k, v)
            want = np.repeat(numpy(values.decode()).mean(2, keepdims=True), 2, 1)
            for scale in (0.0, -0.0, 1e-46):
                self.assertLess(error(numpy(mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale)), want), most)
            for scale in (float("nan"), float("inf"), 1e39):
                with self.assertRaisesRegex(ValueError, "scale"):
                    mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale)
            self.assertEqual(cache.offset, 70)


class Conversions(unittest.TestCase):
    def test_positions_without_rows(self):
        for make in (mlx_cache.KVCache, lambda: mlx_cache.QuantizedKVCache(64, 4), lambda: mlx_cache.RotatingKVCache(32, 4)):
            for offset in (-3, -1, 10**6):
                theirs = make()
                theirs.update_and_fetch(rows(1, 1, H, 9, 64), rows(2, 1, H, 9, 64))
                theirs.offset = offset
                with self.assertRaises(ValueError, msg=(type(theirs), offset)):
                    quire_mlx.from_mlx(theirs)


class Elsewhere(unittest.TestCase):
    def test_pickles(self):
        for cache in (QuireKVCache("k8v4"), filled(70), filled(70, "safe"), filled(300, max_tokens=20, sinks=2)):
            other = pickle.loads(pickle.dumps(cache))
            self.assertEqual((other.offset, other.settings, type(other)), (cache.offset, cache.settings, type(cache)))
            outs = [numpy(attend(c, *feed(cache.offset, 3))) for c in (copy.copy(cache), other)]
            np.testing.assert_array_equal(*outs)
        with self.assertRaisesRegex(TypeError, "pickle"):
            pickle.dumps(filled(3).state)

    def test_threads(self):
        """Calls wait for each other: each update finds its rows, or the keys are refused because the cache has gone on."""
        cache, wrong, done = QuireKVCache("f32", pools=quire_mlx.Pools(threads=1)), [], []
        arrays = feed(0, 1)
        mx.eval(arrays)

        def work():
            for _ in range(50):
                try:
                    attend(cache, *arrays)
                    done.append(1)
                    cache.nbytes
                    copy.copy(cache)
                except ValueError as e:
                    if "has changed" not in str(e):
                        wrong.append(e)
                except BaseException as e:
                    wrong.append(e)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertEqual((cache.offset, cache._settle().length(0), cache._sequences[0].length), (200, 200, 200))
        np.testing.assert_array_equal(numpy(cache.keys.decode()), np.broadcast_to(numpy(arrays[1]), (1, H, 200, D)))

    def test_a_state_while_another_thread_uses_the_cache(self):
        cache, arrays, wrong = filled(70), feed(0, 1), []
        mx.eval(arrays)
        state = dict(cache.state.items())

        def work():
            for _ in range(300):
                try:
                    attend(cache, *arrays)
                except ValueError as e:
                    wrong.extend([] if "has changed" in str(e) else [e])
                except BaseException as e:
                    wrong.append(e)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work) for _ in range(2)]
            for t in threads:
                t.start()
            while any(t.is_alive() for t in threads):
                cache.state = state
            for t in threads:
                t.join()
        finally:
            sys.setswitchinterval(interval)
        self.assertEqual(wrong, [])
        cache.state = state
        right(self, cache, 70)

    def test_a_forked_child(self):
        cache, (q, k, v) = filled(10), feed(10, 1)
        mx.eval(q, k, v)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            said = []
            for call in (lambda: cache.update_and_fetch(k, v), lambda: cache.trim(1), lambda: cache.nbytes, lambda: copy.copy(cache),
                         lambda: cache._attend(q, 1.0, None, None)):
                try:
                    call()
                    said.append("nothing")
                except RuntimeError as e:
                    said.append("raised" if "process" in str(e) else str(e))
            os.write(write, " ".join(said).encode())
            os._exit(0)
        os.close(write)
        import select
        ready = select.select([read], [], [], 20)[0]
        said = os.read(read, 1000).decode() if ready else "hung"
        os.close(read)
        if not ready:
            os.kill(child, 9)
        os.waitpid(child, 0)
        self.assertEqual(said, " ".join(["raised"] * 5))
        right(self, cache, 10)

    def test_a_signal_handler_that_uses_the_cache(self):
        cache = filled(10)
        state = dict(filled(7).state.items())
        with cache._guard():
            with self.assertRaisesRegex(RuntimeError, "in use"):
                cache.trim(1)
            with self.assertRaisesRegex(RuntimeError, "in use"):
                cache.state = state
        right(self, cache, 10)


if __name__ == "__main__":
    unittest.main()
