# SPDX-License-Identifier: MIT
"""States of the real mlx-vlm 0.7.10: in and out bit for bit, and attention over them."""
import unittest

import mlx.core as mx
import numpy as np
import quire.mlx_vlm as quire_vlm
from mlx_vlm.kv_quant import from_legacy
from mlx_vlm.models.cache import (BatchKVCache, BatchQuantizedKVCache, BatchRotatingKVCache, BufferedRotatingKVCache, ChunkedKVCache, KVCache,
                                  QuantizedKVCache, RotatingKVCache)
from mlx_vlm.turboquant import BatchTurboQuantKVCache, HybridQuantKVCache, TurboQuantKVCache, TurboQuantMSEState
from vlm_support import MOST, attend, numpy, rows, same_state, unexplained
from reference import attention, error, sees

HEADS, KV_HEADS = 6, 2
# What a decoded row may differ from mlx-vlm's, in units of its norm: tables have bytes here and floats there (docs/formats/codecs.md).
ROUNDING = {2: 9e-4, 3: 4e-3, 4: 1.1e-2, 5: 1.4e-2, 6: 1.4e-2}


def filled(cache, n=150, d=64, d_v=None, n_sequences=1, dtype=mx.float32, seed=0):
    k, v = (rows(seed + i, n_sequences, KV_HEADS, n, size, dtype=dtype) for i, size in enumerate((d, d_v or d)))
    cache.update_and_fetch(k[:, :, :n - 1], v[:, :, :n - 1])
    cache.update_and_fetch(k[:, :, n - 1:], v[:, :, n - 1:])  # a decode step has code of its own in mlx-vlm
    return cache, k, v


def off(q, k, v, k2, v2, scale):
    """The most that attention over rows k2, v2 can differ from that over k, v, per output row: scores move by at most `score`, so weights by
    a factor of at most exp(2 * score)."""
    score = scale * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k2 - k, axis=-1).max()
    longest = np.linalg.norm(v, axis=-1).max()
    return np.expm1(2 * score) * longest + np.linalg.norm(v2 - v, axis=-1).max()


class Words(unittest.TestCase):
    def test_every_public_name_has_a_docstring(self):
        self.assertEqual(unexplained(quire_vlm), [])


class States(unittest.TestCase):
    def test_bit_for_bit(self):
        """From a state and back; and rows that Quire encodes itself have the same norms and indices."""
        for bits in (2, 2.5, 3, 3.5, 4, 5, 6):
            for d in (16, 32, 64, 128, 256, 512):
                for dtype in (mx.float32, mx.float16, mx.bfloat16):
                    theirs, k, v = filled(TurboQuantKVCache(bits=bits), 70, d, n_sequences=2, dtype=dtype)
                    own = quire_vlm.QuireKVCache(quire_vlm.policy_of_bits(bits))
                    own.update_and_fetch(k, v)
                    for ours in (quire_vlm.from_mlx(theirs), own):
                        back = quire_vlm.to_mlx(ours, quantized=True)
                        for a, b in zip(back.state, theirs.state):
                            same_state(self, a, b)
                        self.assertEqual(back.meta_state, theirs.meta_state)

    def test_values_and_attention(self):
        for bits in (2, 3, 4, 3.5, 5, 6):
            for d in (16, 32, 64, 128, 256, 512):
                theirs, *_ = filled(TurboQuantKVCache(bits=bits), 150, d)
                ours = quire_vlm.from_mlx(theirs)
                own = [np.array(x) for x in theirs.dequantize()]
                mine = [numpy(ours.keys.decode()), numpy(ours.values.decode())]
                for a, b, width in zip(mine, own, (theirs.key_bits, theirs.value_bits)):
                    self.assertLess(error(a, b), ROUNDING[width])
                hidden = np.random.default_rng(1).random((1, HEADS, 40, 150)) < 0.4
                hidden[..., 0] = False
                additive = np.where(hidden, -1e9, np.random.default_rng(2).standard_normal(hidden.shape)).astype(np.float32)
                for count, mask in ((1, None), (150, "causal"), (40, mx.array(~hidden)), (40, mx.array(additive))):
                    q = rows(7, 1, HEADS, count, d, spread=0.5)
                    out = numpy(mx.fast.scaled_dot_product_attention(q, *ours.keys_and_values(), scale=d ** -0.5, mask=mask))
                    seen = sees(count, 150) if mask is None or isinstance(mask, str) else np.array(mask)
                    self.assertLess(error(out, attention(numpy(q), *mine, d ** -0.5, seen)), MOST)
                    want = attention(numpy(q), *own, d ** -0.5, seen)
                    most = off(numpy(q), *own, *mine, d ** -0.5) + MOST * np.linalg.norm(want, axis=-1).max()
                    self.assertLess(np.linalg.norm(out - want, axis=-1).max(), most)
                    # That bound holds for any rows. With these it is this far:
                    self.assertLess(error(out, want), MOST + 5 * ROUNDING[max(theirs.key_bits, theirs.value_bits)])

    def test_batches(self):
        padding = [3, 0, 20, 40]
        k, v = rows(1, 4, KV_HEADS, 40, 64), rows(2, 4, KV_HEADS, 40, 64)
        for bits in (3.5, 4):
            theirs = BatchTurboQuantKVCache(padding, bits=bits)
            theirs.update_and_fetch(k, v)
            ours = quire_vlm.from_mlx(theirs)
            self.assertEqual((ours.offset.tolist(), ours.left_padding.tolist(), ours._idx), (theirs.offset.tolist(), padding, 40))
            back = quire_vlm.to_mlx(ours, quantized=True)
            self.assertEqual((back.offset.tolist(), back.left_padding.tolist(), back._idx), (theirs.offset.tolist(), padding, 40))
            for a, b in zip(back.state[:2], theirs.state[:2]):
                same_state(self, a, b, padding)
            # Both go on, each with one token more, and one of mlx-vlm goes on with what Quire gave back.
            q, k1, v1 = rows(5, 4, HEADS, 1, 64, spread=0.5), rows(6, 4, KV_HEADS, 1, 64), rows(7, 4, KV_HEADS, 1, 64)
            outs = [numpy(attend(c, q, k1, v1)) for c in (theirs, ours, back)]
            np.testing.assert_array_equal(outs[2], outs[0])
            self.assertLess(error(outs[1], outs[0]), 5 * ROUNDING[4])

    def test_mlx_vlm_goes_on_with_what_quire_gives(self):
        theirs, *_ = filled(TurboQuantKVCache(bits=3.5), 90, 128)
        back = quire_vlm.to_mlx(quire_vlm.from_mlx(theirs), quantized=True)
        q, k, v = rows(5, 1, HEADS, 3, 128), rows(6, 1, KV_HEADS, 3, 128), rows(7, 1, KV_HEADS, 3, 128)
        np.testing.assert_array_equal(numpy(attend(back, q, k, v)), numpy(attend(theirs, q, k, v)))
        self.assertEqual(back.trim(2), 2)

    def test_a_state_without_codecs(self):
        """mlx-vlm cannot go on with a cache made from a state; its numbers are enough for Quire."""
        theirs, *_ = filled(TurboQuantKVCache(bits=3), 40, 128)
        bare = TurboQuantKVCache.from_state(theirs.state, theirs.meta_state)
        back = quire_vlm.to_mlx(quire_vlm.from_mlx(bare), quantized=True)
        same_state(self, back.state[0], theirs.state[0])
        for a, b in zip(quire_vlm.from_mlx(bare, "f32").keys_and_values(), theirs.dequantize()):
            np.testing.assert_array_equal(numpy(a.decode()), numpy(b))
        self.assertIsNone(getattr(bare, "key_codec", None))

    def test_what_has_no_codes_here_is_refused(self):
        for options, d, why in ((dict(bits=4, key_bits=3.5), 64, "half bits"), (dict(bits=7), 64, "2 to 6 bits"), (dict(bits=1), 64, "2 to 6"),
                                (dict(bits=4, seed=3), 64, "seed 0"), (dict(bits=4), 80, "head size 80"), (dict(bits=4), 8, "head size 8")):
            theirs, k, v = filled(TurboQuantKVCache(**options), 40, d)
            with self.assertRaisesRegex(ValueError, f"{why}.*name a policy, and the rows go through floats"):
                quire_vlm.from_mlx(theirs)
            ours = quire_vlm.from_mlx(theirs, "f32")
            np.testing.assert_allclose(numpy(ours.keys.decode()), np.array(theirs.dequantize()[0]), atol=1e-6)
        for bits in (1, 7, 4.25, 0):
            with self.assertRaises(ValueError):
                quire_vlm.policy_of_bits(bits)
        with self.assertRaisesRegex(ValueError, "half bits"):
            quire_vlm.policy_of_bits(4, key_bits=3.5)
        self.assertEqual(quire_vlm.policy_of_bits(3.5), "tv3/tv4")
        self.assertEqual(quire_vlm.policy_of_bits(4, key_bits=6), "tv6/tv4")
        self.assertEqual(quire_vlm.policy_of_bits(None, 2, 5), "tv2/tv5")

    def test_states_that_contradict_themselves(self):
        whole, *_ = filled(TurboQuantKVCache(bits=4), 9)
        part = lambda state, to: TurboQuantMSEState(to(state.norms), to(state.indices))
        for change in (dict(values=part(whole.values, lambda x: x[:, :, :5])), dict(values=part(whole.values, lambda x: x[:, :1])), dict(values=None),
                       dict(values=part(whole.values, lambda x: mx.concatenate([x, x]))), dict(offset=500),
                       dict(keys=TurboQuantMSEState(whole.keys.norms[:, :, :5], whole.keys.indices)),
                       dict(keys=TurboQuantMSEState(whole.keys.norms, whole.keys.indices[..., :4])), dict(offset=-3),
                       dict(keys=TurboQuantMSEState(whole.keys.norms.astype(mx.int32), whole.keys.indices)),
                       dict(keys=TurboQuantMSEState(whole.keys.norms[0], whole.keys.indices)),
                       dict(keys=TurboQuantMSEState(whole.keys.norms, whole.keys.indices[0])),
                       dict(keys=TurboQuantMSEState(whole.keys.norms, whole.keys.indices.view(mx.int32))),
                       dict(keys=TurboQuantMSEState(np.array(whole.keys.norms), np.array(whole.keys.indices))),
                       dict(keys=part(whole.keys, lambda x: x[:, :0]), values=part(whole.values, lambda x: x[:, :0])),
                       dict(keys=part(whole.keys, lambda x: x[:0]), values=part(whole.values, lambda x: x[:0]))):
            theirs, *_ = filled(TurboQuantKVCache(bits=4), 9)
            for name, value in change.items():
                setattr(theirs, name, value)
            for policy in (None, "r8"):
                with self.assertRaises(ValueError, msg=change.keys()):
                    quire_vlm.from_mlx(theirs, policy)
        theirs = BatchTurboQuantKVCache([0, 2], bits=4)
        theirs.update_and_fetch(rows(1, 2, KV_HEADS, 9, 64), rows(2, 2, KV_HEADS, 9, 64))
        for padding in ([0], [-1, 0]):
            theirs.left_padding = mx.array(padding)
            with self.assertRaises(ValueError):
                quire_vlm.from_mlx(theirs)

    def test_other_codecs_go_through_floats(self):
        theirs, *_ = filled(TurboQuantKVCache(bits=4), 70, 64)
        ours = quire_vlm.from_mlx(theirs, "r8/r6")
        self.assertLess(error(numpy(ours.keys.decode()), np.array(theirs.dequantize()[0])), 0.01)
        with self.assertRaisesRegex(ValueError, "r8/r6"):
            quire_vlm.to_mlx(ours, quantized=True)


class OtherCaches(unittest.TestCase):
    def test_positions_without_rows(self):
        for make in (KVCache, lambda: QuantizedKVCache(64, 4), lambda: RotatingKVCache(32, 4)):
            for offset in (-3, -1, *([] if make().__class__ is RotatingKVCache else [10**6])):  # a ring has as many rows as it was made for
                theirs, *_ = filled(make(), 9)
                theirs.offset = offset
                with self.assertRaises(ValueError, msg=(type(theirs), offset)):
                    quire_vlm.from_mlx(theirs)

    def test_floats(self):
        for theirs in (KVCache(), BatchKVCache([0, 7])):
            theirs, k, v = filled(theirs, 50, 64, 96, n_sequences=2)
            ours = quire_vlm.from_mlx(theirs, "f32")
            back = quire_vlm.to_mlx(ours)
            self.assertIs(type(back), type(theirs))
            for a, b in ((back.keys, k), (back.values, v)):
                np.testing.assert_array_equal(numpy(a)[:, :, 7:], numpy(b)[:, :, 7:])
            self.assertEqual(np.array(back.offset).tolist(), np.array(theirs.offset).tolist())

    def test_affine(self):
        for theirs in (QuantizedKVCache(group_size=32, bits=6), BatchQuantizedKVCache([0, 5], group_size=32, bits=6)):
            theirs, *_ = filled(theirs, 50, 128, 64, n_sequences=2, dtype=mx.float16)
            back = quire_vlm.to_mlx(quire_vlm.from_mlx(theirs), quantized=True)
            self.assertIs(type(back), type(theirs))
            for a, b in zip((*back.state[0], *back.state[1]), (*theirs.state[0], *theirs.state[1])):
                np.testing.assert_array_equal(np.array(a)[:, :, 5:], np.array(b)[:, :, 5:])

    def test_rings(self):
        for length in (20, 90):
            theirs = RotatingKVCache(max_size=32, keep=4)
            for i in range(length):
                theirs.update_and_fetch(rows(i, 1, KV_HEADS, 1, 64), rows(-i - 1 + 10**6, 1, KV_HEADS, 1, 64))
            ours = quire_vlm.from_mlx(theirs, "f32")
            q, k, v = rows(5, 1, HEADS, 1, 64), rows(6, 1, KV_HEADS, 1, 64), rows(7, 1, KV_HEADS, 1, 64)
            back = quire_vlm.to_mlx(ours)
            outs = [numpy(attend(c, q, k, v)) for c in (theirs, ours, back)]
            self.assertLess(error(outs[1], outs[0]), MOST)
            self.assertLess(error(outs[2], outs[0]), MOST)
            self.assertEqual((ours.offset, ours.size(), ours.max_size), (length + 1, min(length + 1, 32), 32))

    def test_hybrid(self):
        theirs = HybridQuantKVCache(from_legacy(4, "turboquant", 64, None, 8, None, "uniform"))
        theirs.update_and_fetch(rows(1, 1, KV_HEADS, 30, 64), rows(2, 1, KV_HEADS, 30, 64))
        with self.assertRaisesRegex(ValueError, "policy"):
            quire_vlm.from_mlx(theirs)
        ours = quire_vlm.from_mlx(theirs, "f32")
        np.testing.assert_allclose(numpy(ours.keys.decode()), np.array(theirs.dequantize()[0]), atol=1e-6)

    def test_empty_ones_and_strangers(self):
        for empty in (KVCache(), TurboQuantKVCache(bits=4), QuantizedKVCache(), RotatingKVCache(16), BatchKVCache([0, 1]),
                      BatchTurboQuantKVCache([0, 1], bits=4)):
            self.assertTrue(quire_vlm.from_mlx(empty).empty())
        for strange in (ChunkedKVCache(16), BufferedRotatingKVCache(16), BatchRotatingKVCache(16, [0]), object(), None):
            with self.assertRaisesRegex(TypeError, "cannot be converted"):
                quire_vlm.from_mlx(strange)
        with self.assertRaises(ValueError):
            quire_vlm.to_mlx(quire_vlm.QuireKVCache("tv4"), quantized=True)
        with self.assertRaises(ValueError):
            quire_vlm.to_mlx(filled(quire_vlm.QuireKVCache("tv4", max_tokens=16))[0], quantized=True)


if __name__ == "__main__":
    unittest.main()
