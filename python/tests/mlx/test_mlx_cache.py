# SPDX-License-Identifier: MIT
"""The caches by themselves: what mlx-lm calls on them, against double precision and against mlx-lm's own caches."""
import copy
import gc
import os
import tempfile
import unittest
from unittest import mock

import mlx.core as mx
import numpy as np
import quire
import quire.mlx_lm as quire_mlx
from mlx_lm.models import cache as mlx_cache
from reference import attention, error, sees
from support import MOST, attend, numpy, rows, unexplained

Q, H, D = 6, 2, 64
N = 300


class Feed:
    """Rows of some sequences, handed out in columns, and attention of the last columns in double precision."""

    def __init__(self, n_sequences=1, n=N, d_v=D, dtype=mx.float32):
        self.q, self.k, self.v = (rows(s, n_sequences, h, n, d, dtype=dtype) for s, h, d in ((1, Q, D), (2, H, D), (3, H, d_v)))

    def take(self, at, count, which=None):
        """The rows [at[i], at[i] + count) of each sequence; past the end of what there is, zeros."""
        which = range(len(at)) if which is None else which
        pick = lambda x: mx.stack([mx.pad(x[i, :, a:a + count], [(0, 0), (0, count - min(count, x.shape[2] - a)), (0, 0)]) for i, a in zip(which, at)])
        return pick(self.q), pick(self.k), pick(self.v)

    def want(self, i, last, count, bound=0, sinks=0):
        part = lambda x, first: numpy(x[i:i + 1, :, first:last])
        return attention(part(self.q, last - count), part(self.k, 0), part(self.v, 0), D**-0.5, sees(count, last, bound, sinks))


class Single(unittest.TestCase):
    def chunks(self, cache, feed, sizes, bound=0, sinks=0, first=0):
        at = first
        for count in sizes:
            out = attend(cache, *feed.take([at], count))
            at += count
            self.assertLess(error(numpy(out), feed.want(0, at, count, bound, sinks)), MOST, f"at {at}")
            self.assertEqual(cache.offset, at)
        return at

    def test_any_chunking(self):
        self.chunks(quire_mlx.QuireKVCache("f32"), Feed(), (1, 1, 62, 1, 100, 7, 1))

    def test_bits_do_not_depend_on_chunking(self):
        for options in ({}, {"max_tokens": 50, "sinks": 4}):
            outs = []
            for sizes in ((200,), (1,) * 200, (130, 70), (7, 64, 129)):
                cache, at, parts, feed = quire_mlx.QuireKVCache("k8v4", **options), 0, [], Feed()
                for count in sizes:
                    parts.append(numpy(attend(cache, *feed.take([at], count))))
                    at += count
                outs.append(np.concatenate(parts, 2))
            for out in outs[1:]:
                np.testing.assert_array_equal(out, outs[0])

    def test_ring(self):
        for bound, sinks in ((16, 0), (48, 4), (64, 63), (7, 2), (250, 4)):
            cache = quire_mlx.QuireKVCache("f32", max_tokens=bound, sinks=sinks)
            self.chunks(cache, Feed(), (5, 1, 1, 150, 1, 1, 60, 1), bound, sinks)
            self.assertEqual(cache.size(), bound if bound < 220 else 220)

    def test_ring_decodes_as_mlxs(self):
        """One token at a time both see the same rows."""
        feed, ours, theirs = Feed(), quire_mlx.QuireKVCache("f32", max_tokens=32, sinks=4), mlx_cache.RotatingKVCache(32, keep=4)
        for at in range(100):
            one = feed.take([at], 1)
            self.assertLess(error(numpy(attend(ours, *one)), numpy(attend(theirs, *one))), MOST)

    def test_ring_holds_its_bound_of_memory(self):
        cache = quire_mlx.QuireKVCache("k8v4", max_tokens=128, sinks=4)
        most = 0
        for seed in range(20):
            attend(cache, rows(seed, 1, Q, 100, D), rows(seed, 1, H, 100, D), rows(seed, 1, H, 100, D))
            most = max(most, cache.nbytes)
        page = cache.nbytes // mlx_tiles(cache)
        self.assertLessEqual(most, page * (128 // 64 + 128 // 64 + 2))

    def test_ring_counts_what_takes_back_a_long_update(self):
        """An update of more tokens than a ring could trim keeps the pages from before it, until it cannot be interrupted any more."""
        feed, pools = Feed(n=1600), quire_mlx.Pools(threads=1)
        cache = quire_mlx.QuireKVCache("f32", max_tokens=256, pools=pools)
        attend(cache, *feed.take([0], 800))
        first = cache.nbytes
        self.assertEqual(first, pools.used_bytes)
        attend(cache, *feed.take([800], 700))
        self.assertGreater(cache.nbytes, 1.5 * first)
        self.assertEqual(cache.nbytes, pools.used_bytes)
        other = copy.copy(cache)
        self.assertEqual(other.nbytes, first)
        del other
        mx.eval([cache.state])  # as mlx-lm does after each piece of a prompt
        self.assertEqual((cache.nbytes, pools.used_bytes), (first, first))
        self.chunks(cache, feed, (1, 3), 256, 4, first=1500)

    def test_ring_in_a_small_pool(self):
        """Pieces that the ring could trim again need no more than the ring itself; a longer one is refused, and nothing changes."""
        feed, page = Feed(n=700), 64 * H * 2 * D * 4
        for spare, piece in ((0, 128), (100, 28), (200, 16)):
            pages = 1 + (256 + max(spare + 16, 128)) // 64 + 3
            cache = quire_mlx.QuireKVCache("f32", max_tokens=256, spare=spare, pools=quire_mlx.Pools(pages * page, 1))
            for at in range(0, 560, piece):
                attend(cache, *feed.take([at], piece))
                self.assertLessEqual(cache.pools.used_bytes, cache.nbytes)
            held = cache.offset
            with self.assertRaises(quire.PoolFull):
                attend(cache, *feed.take([0], 700))
            self.assertEqual(cache.offset, held)
            self.assertEqual(cache.pools.used_bytes, cache.nbytes)

    def test_ring_goes_back_until_its_state_is_read(self):
        feed, cache = Feed(n=520), quire_mlx.QuireKVCache("f32", max_tokens=64)
        for read in (lambda: cache.nbytes, lambda: copy.copy(cache), lambda: repr(cache)):
            self.chunks(cache, feed, (260, 240), 64, 4)
            read()
            self.assertEqual(cache.trim(240), 240)
            self.chunks(cache, feed, (240,), 64, 4, first=260)
            cache.state
            with self.assertRaisesRegex(ValueError, "cannot be trimmed"):
                cache.trim(240)
            self.assertEqual(cache.trim(10**6), 500)

    def test_pages_that_sequences_share_count_once(self):
        pools = quire_mlx.Pools(threads=1)
        cache = quire_mlx.QuireKVCache("f32", pools=pools)
        attend(cache, *Feed().take([0], 200))
        one = cache.nbytes
        batch = cache.merge([cache, cache])
        self.assertEqual((batch.nbytes, pools.used_bytes), (one, one))

    def test_trim(self):
        feed, cache = Feed(), quire_mlx.QuireKVCache("f32")
        self.chunks(cache, feed, (100,))
        self.assertTrue(cache.is_trimmable())
        self.assertEqual(cache.trim(30), 30)
        self.assertEqual(cache.offset, 70)
        self.chunks(cache, feed, (1, 5, 64), first=70)
        self.assertEqual(cache.trim(1000), 140)
        self.chunks(cache, feed, (3, 1))

    def test_trim_of_a_ring(self):
        feed, cache = Feed(n=1000), quire_mlx.QuireKVCache("f32", max_tokens=32, sinks=4, spare=8)
        self.chunks(cache, feed, (800, 1, 1), 32, 4)
        self.assertTrue(cache.is_trimmable())
        cache.trim(8)
        self.chunks(cache, feed, (1, 4), 32, 4, first=794)
        before = cache.offset
        with self.assertRaisesRegex(ValueError, "cannot be trimmed"):
            cache.trim(400)
        self.assertEqual(cache.offset, before)
        self.chunks(cache, feed, (1,), 32, 4, first=before)
        self.assertFalse(quire_mlx.from_mlx(ring_of(feed, 60)).is_trimmable())

    def test_copies_are_independent(self):
        for make in (copy.copy, copy.deepcopy):
            feed, cache = Feed(), quire_mlx.QuireKVCache("f32")
            self.chunks(cache, feed, (100,))
            other = make([cache])[0] if make is copy.deepcopy else make(cache)
            self.chunks(other, feed, (1, 20), first=100)
            cache.trim(50)
            self.chunks(cache, feed, (60,), first=50)
            self.chunks(other, feed, (1,), first=121)

    def test_several_sequences_of_one_length(self):
        feed, cache = Feed(3), quire_mlx.QuireKVCache("f32")
        for at, count in ((0, 40), (40, 1), (41, 30)):
            out = attend(cache, *feed.take([at] * 3, count))
            for i in range(3):
                self.assertLess(error(numpy(out)[i:i + 1], feed.want(i, at + count, count)), MOST)

    def test_masks(self):
        feed = Feed(2)
        shown = np.random.default_rng(0).random((2, 1, 90, 90)) < 0.4
        shown[..., 5] = True
        added = np.random.default_rng(1).standard_normal((1, Q, 90, 90)).astype(np.float32)
        cases = [None, shown, shown[:1], shown[0, 0], added, added.astype(np.float16), np.where(shown, 0, -np.inf).astype(np.float32),
                 shown[:, :, :1], added[..., :1]]
        for mask in cases:
            given = None if mask is None else mx.array(mask)
            for dtype in (mx.float32, mx.bfloat16) if mask is not None and mask.dtype == np.float32 else (None,):
                cast = given if dtype is None else given.astype(dtype)
                plain = None if mask is None else mask if mask.dtype == np.bool_ else numpy(cast)
                out = attend(quire_mlx.QuireKVCache("f32"), *feed.take([0, 0], 90), mask=cast)
                k, v, q = (numpy(x[:, :, :90]) for x in (feed.k, feed.v, feed.q))
                self.assertLess(error(numpy(out), attention(q, k, v, D**-0.5, plain)), MOST)

    def test_a_mask_that_does_not_fit(self):
        cache = quire_mlx.QuireKVCache("f32")
        with self.assertRaisesRegex(ValueError, "does not fit"):
            attend(cache, *Feed().take([0], 10), mask=mx.zeros((10, 9)))
        with self.assertRaisesRegex(ValueError, "no mask"):
            attend(cache, *Feed().take([0], 10), mask="window")

    def test_window_mask_of_a_model(self):
        feed, cache = Feed(), quire_mlx.QuireKVCache("f32")
        attend(cache, *feed.take([0], 50))
        out = attend(cache, *feed.take([50], 10), mask=cache.make_mask(10, window_size=16))
        self.assertLess(error(numpy(out), feed.want(0, 60, 10, 16, 0)), MOST)

    def test_masks_in_a_long_prompt_of_a_ring(self):
        feed, added = Feed(), np.random.default_rng(1).standard_normal((1, Q, 200, 200)).astype(np.float32)
        for mask in (np.array(mlx_cache.create_causal_mask(200)), added):
            out = attend(quire_mlx.QuireKVCache("f32", max_tokens=50, sinks=4), *feed.take([0], 200), mask=mx.array(mask))
            q, k, v = (numpy(x[:, :, :200]) for x in (feed.q, feed.k, feed.v))
            shown = np.where(sees(200, 200, 50, 4), 0 if mask.dtype == np.bool_ else mask, -np.inf)
            self.assertLess(error(numpy(out), attention(q, k, v, D**-0.5, shown)), MOST)

    def test_dtypes_and_strides(self):
        """Rows as models give them: transposed views, halves, bfloat16."""
        for dtype in (mx.float32, mx.float16, mx.bfloat16):
            flat = [rows(s, 1, 70, h * D, dtype=dtype) for s, h in ((1, Q), (2, H), (3, H))]
            q, k, v = (x.reshape(1, 70, -1, D).transpose(0, 2, 1, 3) for x in flat)
            out = attend(quire_mlx.QuireKVCache("f32"), q, k, v)
            self.assertEqual(out.dtype, dtype)
            exact = attend(quire_mlx.QuireKVCache("f32"), q.astype(mx.float32), k, v)
            self.assertTrue((numpy(out) == numpy(exact.astype(dtype))).all())  # computed in float32, rounded once
            want = attention(numpy(q), numpy(k), numpy(v), D**-0.5, sees(70, 70))
            self.assertLess(error(numpy(out), want), MOST + {mx.float32: 0, mx.float16: 2**-11, mx.bfloat16: 2**-8}[dtype])

    def test_broadcast_rows(self):
        one = rows(5, 1, 1, 1, D)
        k = mx.broadcast_to(one, (1, H, 20, D))
        out = attend(quire_mlx.QuireKVCache("f32"), rows(1, 1, Q, 20, D), k, k)
        np.testing.assert_allclose(numpy(out), np.broadcast_to(numpy(one), (1, Q, 20, D)), rtol=1e-5)

    def test_keys_read_twice(self):
        """Models in which layers share keys attend again over what another layer was given."""
        feed, cache = Feed(), quire_mlx.QuireKVCache("f32")
        q, k, v = feed.take([0], 80)
        keys, values = cache.update_and_fetch(k, v)
        outs = [numpy(mx.fast.scaled_dot_product_attention(q, keys, values, scale=D**-0.5, mask="causal")) for _ in range(2)]
        np.testing.assert_array_equal(*outs)
        cache.update_and_fetch(k, v)
        with self.assertRaisesRegex(ValueError, "has changed"):
            mx.fast.scaled_dot_product_attention(q, keys, values, scale=1.0)

    def test_rows_that_nobody_attends_to(self):
        feed, cache = Feed(), quire_mlx.QuireKVCache("f32")
        for at in (0, 50):
            cache.update_and_fetch(*feed.take([at], 50)[1:])
        self.chunks(cache, feed, (10,), first=100)

    def test_what_a_model_may_ask_of_rows(self):
        cache = quire_mlx.QuireKVCache("a8g64")
        self.assertIsNone(cache.keys)
        keys, values = cache.update_and_fetch(*Feed(d_v=32, dtype=mx.float16).take([0], 9)[1:])
        self.assertEqual((keys.shape, values.shape, keys.dtype, keys.ndim), ((1, H, 9, D), (1, H, 9, 32), mx.float16, 4))
        for use in (lambda: keys[0], lambda: keys.transpose(0, 1, 3, 2), lambda: mx.array(keys), lambda: keys @ keys, lambda: list(keys)):
            with self.assertRaises((TypeError, ValueError)):
                use()
        self.assertFalse(hasattr(cache, "bits"))
        self.assertFalse(hasattr(cache, "to_quantized"))

    def test_decode_shows_the_rows(self):
        feed, cache = Feed(dtype=mx.bfloat16), quire_mlx.QuireKVCache("bf16")
        keys, values = cache.update_and_fetch(*feed.take([0], 70)[1:])
        np.testing.assert_array_equal(numpy(keys.decode()), numpy(feed.k[:, :, :70]))
        np.testing.assert_array_equal(numpy(values.decode()), numpy(feed.v[:, :, :70]))

    def test_a_full_pool_changes_nothing(self):
        pools = quire_mlx.Pools(budget_bytes=1 << 20)
        cache, feed = quire_mlx.QuireKVCache("f32", pools=pools), Feed(n=20000)
        self.chunks(cache, feed, (100,))
        with self.assertRaises(quire.PoolFull):
            attend(cache, *feed.take([100], 19000))
        self.chunks(cache, feed, (1, 30), first=100)

    def test_memory_goes_back(self):
        pools = quire_mlx.Pools(threads=1)
        cache = quire_mlx.QuireKVCache("f32", pools=pools)
        attend(cache, *Feed().take([0], 200))
        self.assertGreater(pools.used_bytes, 0)
        del cache
        gc.collect()
        self.assertEqual(pools.used_bytes, 0)

    def test_policies_with_edges(self):
        policy = "k8v4,edge=1:r8"
        first, middle = (quire_mlx.QuireKVCache(policy, index=i, n_layers=4) for i in (0, 2))
        for cache in (first, middle):
            cache.update_and_fetch(*Feed().take([0], 5)[1:])
            cache.state
        self.assertEqual((first._sequences[0].codec("v"), middle._sequences[0].codec("k")), ("r8", quire_codec("k8v4")[0]))
        self.assertNotEqual(middle._sequences[0].codec("v"), "r8")
        with self.assertRaisesRegex(ValueError, "same policy"):
            first.merge([first, middle])


def quire_codec(policy):
    import quire
    layer = quire.Plan(policy, n_layers=1, n_q_heads=H, n_kv_heads=H, d_k=D).layer(0)
    return layer.k, layer.v


def mlx_tiles(cache):
    from quire import _native
    return sum(_native.lib.quire_seq_tiles(s._get(), 0, None, 0, 0) for s in cache._sequences)


def ring_of(feed, n, bound=32, keep=4, prompt=20):
    theirs = mlx_cache.RotatingKVCache(bound, keep=keep)
    attend(theirs, *feed.take([0], prompt))
    for at in range(prompt, n):
        attend(theirs, *feed.take([at], 1))
    return theirs


class Conversion(unittest.TestCase):
    def test_floats(self):
        for dtype, policy in ((mx.float32, "f32"), (mx.float16, "f16"), (mx.bfloat16, "bf16")):
            feed, theirs = Feed(dtype=dtype), mlx_cache.KVCache()
            attend(theirs, *feed.take([0], 130))
            theirs.trim(20)
            ours = quire_mlx.from_mlx(theirs, policy)
            back = quire_mlx.to_mlx(ours)
            self.assertEqual((ours.offset, back.offset, back.keys.dtype), (110, 110, dtype))
            for a, b in ((back.keys, theirs.keys), (back.values, theirs.values)):
                np.testing.assert_array_equal(numpy(a)[:, :, :110], numpy(b)[:, :, :110])
            both = [numpy(attend(c, *feed.take([110], 5))) for c in (back, theirs)]
            np.testing.assert_array_equal(*both)

    def test_codes_bit_for_bit(self):
        for bits, group, dtype in ((8, 64, mx.float16), (4, 64, mx.float16), (4, 32, mx.float16), (2, 64, mx.float16), (3, 64, mx.float16),
                                   (6, 32, mx.float16), (8, 64, mx.float32)):
            feed, theirs = Feed(dtype=dtype), mlx_cache.KVCache()
            theirs.update_and_fetch(*feed.take([0], 100)[1:])
            theirs = theirs.to_quantized(group_size=group, bits=bits)
            ours = quire_mlx.from_mlx(theirs)
            self.assertEqual(ours.settings.policy, f"a{bits}g{group}/a{bits}g{group}")
            back = quire_mlx.to_mlx(ours, quantized=True)
            for a, b in zip((*back.keys, *back.values), (*theirs.keys, *theirs.values)):
                b = b[..., :100, :]
                if dtype == mx.float32 and b.dtype != mx.uint32:
                    b = b.astype(mx.float16).astype(mx.float32)  # scales are kept as halves
                np.testing.assert_array_equal(np.array(a), np.array(b))
            direct = quire_mlx.QuireKVCache(f"a{bits}g{group}")
            direct.update_and_fetch(*feed.take([0], 100)[1:])
            again = quire_mlx.to_mlx(direct, quantized=True)
            for a, b in zip((*back.keys, *back.values), (*again.keys, *again.values)):
                np.testing.assert_array_equal(np.array(a), np.array(b))

    def test_other_codecs(self):
        feed, theirs = Feed(dtype=mx.float16), mlx_cache.QuantizedKVCache(64, 8)
        theirs.update_and_fetch(*feed.take([0], 100)[1:])
        ours = quire_mlx.from_mlx(theirs, "f32")
        k = mx.dequantize(*(x[..., :100, :].astype(mx.float32) if x.dtype != mx.uint32 else x[..., :100, :] for x in theirs.keys), 64, 8)
        np.testing.assert_array_equal(numpy(ours._decode("k")), numpy(k.astype(mx.float16)))
        with self.assertRaises(ValueError):
            quire_mlx.to_mlx(ours, quantized=True)

    def test_rings(self):
        for n in (20, 31, 32, 33, 60, 200):
            feed = Feed()
            theirs = ring_of(feed, n)
            ours = quire_mlx.from_mlx(theirs, "f32")
            self.assertEqual(ours.offset, n)
            back = quire_mlx.to_mlx(ours)
            self.assertEqual((back.offset, back.keep, back.max_size), (n, 4, 32))
            for at in range(n, n + 40):
                one = feed.take([at], 1)
                a, b, c = (numpy(attend(x, *one)) for x in (ours, theirs, back))
                self.assertLess(max(error(a, b), error(c, b)), MOST, f"{n}, {at}")

    def test_a_ring_that_was_given_much_at_once(self):
        feed, theirs = Feed(), mlx_cache.RotatingKVCache(32, keep=4)
        attend(theirs, *feed.take([0], 50))
        ours = quire_mlx.from_mlx(theirs, "f32")
        for at in range(50, 90):
            one = feed.take([at], 1)
            self.assertLess(error(numpy(attend(ours, *one)), numpy(attend(theirs, *one))), MOST)

    def test_what_cannot_be_converted(self):
        with self.assertRaises(TypeError):
            quire_mlx.from_mlx(mlx_cache.ArraysCache(2))


class Files(unittest.TestCase):
    """save_prompt_cache and load_prompt_cache of mlx-lm itself."""

    def round_trip(self, caches):
        with tempfile.TemporaryDirectory() as folder:
            mlx_cache.save_prompt_cache(f"{folder}/c.safetensors", caches, {"model": "m"})
            back, note = mlx_cache.load_prompt_cache(f"{folder}/c.safetensors", return_metadata=True)
        self.assertEqual(note, {"model": "m"})
        return back

    def test_caches(self):
        feed = Feed()
        for options in ({}, {"max_tokens": 32, "sinks": 4, "spare": 5}):
            for policy in ("k8v4", "a4g64", "f32", "small"):
                cache = quire_mlx.QuireKVCache(policy, **options)
                attend(cache, *feed.take([0], 100))
                back, plain, empty = self.round_trip([cache, mlx_cache.KVCache(), quire_mlx.QuireKVCache(policy, **options)])
                self.assertIsInstance(plain, mlx_cache.KVCache)
                self.assertEqual((back.offset, back.settings, empty.offset, empty.settings), (100, cache.settings, 0, cache.settings))
                outs = [numpy(attend(c, *feed.take([100], 20))) for c in (cache, back)]
                np.testing.assert_array_equal(*outs)
                attend(empty, *feed.take([0], 5))

    def test_batches(self):
        feed, caches = Feed(2), []
        for i, n in enumerate((40, 70)):
            caches.append(quire_mlx.QuireKVCache("a8g64"))
            caches[-1].update_and_fetch(*feed.take([0], n, [i])[1:])
        batch = caches[0].merge(caches)
        back = self.round_trip([batch])[0]
        self.assertEqual(back.left_padding.tolist(), [30, 0])
        outs = [numpy(attend(c, *feed.take([40, 70], 1))) for c in (batch, back)]
        np.testing.assert_array_equal(*outs)

    def test_states_are_made_only_when_saved(self):
        cache = quire_mlx.QuireKVCache("k8v4")
        attend(cache, *Feed().take([0], 100))
        cache._save = lambda: self.fail("mx.eval made the state")
        mx.eval([c.state for c in [cache]])


class Hook(unittest.TestCase):
    def test_it_can_be_taken_out(self):
        wrapped = mx.fast.scaled_dot_product_attention
        quire_mlx.install()
        self.assertIs(mx.fast.scaled_dot_product_attention, wrapped)
        quire_mlx.uninstall()
        try:
            self.assertFalse(quire_mlx.installed())
            self.assertIsNot(mx.fast.scaled_dot_product_attention, wrapped)
            with self.assertRaises(TypeError):
                attend(quire_mlx.QuireKVCache("f32"), *Feed().take([0], 5))
        finally:
            quire_mlx.install()
        attend(quire_mlx.QuireKVCache("f32"), *Feed().take([0], 5))

    def test_other_attention_is_mlxs(self):
        q, k, v = Feed().take([0], 9)
        original = mx.fast.scaled_dot_product_attention.__wrapped__
        args = dict(scale=0.1, mask="causal", sinks=mx.zeros((Q,)))
        np.testing.assert_array_equal(np.array(mx.fast.scaled_dot_product_attention(q, k, v, **args)), np.array(original(q, k, v, **args)))


class Words(unittest.TestCase):
    def test_every_public_name_has_a_docstring(self):
        self.assertEqual(unexplained(quire_mlx), [])

    def test_what_is_not_a_model(self):
        for wrong in (None, "model", (None, None)):  # load() returns a pair
            with self.assertRaisesRegex(TypeError, f"model is a {type(wrong).__name__}, not a model of mlx-lm"):
                quire_mlx.make_cache(wrong)

    def test_number_of_threads_in_the_environment(self):
        for wrong in ("two", "-3", "1.5", "0"):
            with mock.patch.dict(os.environ, QUIRE_THREADS=wrong), self.assertRaisesRegex(ValueError, "threads"):
                quire_mlx.Pools()
        with mock.patch.dict(os.environ, QUIRE_THREADS="1"):
            self.assertEqual(quire_mlx.Pools().n_threads, 1)


if __name__ == "__main__":
    unittest.main()
