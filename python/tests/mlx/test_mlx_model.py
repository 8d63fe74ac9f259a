# SPDX-License-Identifier: MIT
"""A real model, SmolLM2 135M: the same codes as mlx-lm's own cache, its attention, and short forms of scripts/bench-python."""
import unittest
import unittest.mock

import mlx.core as mx
import numpy as np
import quire.mlx_lm as quire_mlx
from measure import Recorder, greedy, perplexity
from mlx_lm.models.cache import QuantizedKVCache
from reference import attention, error, sees
from support import MOST, ROOT, attend, numpy, real_model

N = 160


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.tokenizer = real_model()

    def recorded(self):
        """Q, K and V of every layer, over the beginning of a text."""
        ids = self.tokenizer.encode((ROOT / "eval/text/wiki.txt").read_text()[:4000])[:N]
        tapes, queries = [[] for _ in self.model.layers], []
        original = mx.fast.scaled_dot_product_attention

        def listen(q, k, v, **options):
            queries.append(q)
            return original(q, k, v, **options)

        with unittest.mock.patch.object(mx.fast, "scaled_dot_product_attention", listen):
            mx.eval(self.model(mx.array(ids)[None], cache=[Recorder(t) for t in tapes]))
        return [(q, *t[0]) for q, t in zip(queries, tapes)]

    def test_the_same_codes_as_mlx_lm(self):
        rows = self.recorded()
        for bits, group in ((8, 64), (4, 64), (8, 32), (4, 32), (2, 64)):
            worst = 0.0
            for i, (q, k, v) in enumerate(rows):
                k, v = k.astype(mx.float16), v.astype(mx.float16)
                theirs, ours = QuantizedKVCache(group_size=group, bits=bits), quire_mlx.QuireKVCache(f"a{bits}g{group}")
                keys, values = theirs.update_and_fetch(k, v)
                out = attend(ours, q, k, v)
                back = quire_mlx.to_mlx(ours, quantized=True)
                for a, b, name in zip((*back.keys, *back.values), (*keys, *values), 2 * ("codes", "scales", "biases")):
                    np.testing.assert_array_equal(np.array(a), np.array(b), f"{name} of layer {i}, {bits} bits")
                if i % 3 == 0:
                    floats = [np.array(mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), group, bits)) for w, s, b in (keys, values)]
                    worst = max(worst, error(numpy(out), attention(numpy(q), *floats, 0.125, sees(N, N))))
            self.assertLess(worst, MOST)

    def test_codes_of_floats_are_the_same_too(self):
        """Of an fp32 model MLX keeps scales in 32 bits, Quire in 16; the codes do not depend on that."""
        for _, k, v in self.recorded()[::5]:
            theirs, ours = QuantizedKVCache(group_size=64, bits=4), quire_mlx.QuireKVCache("a4g64")
            keys, values = theirs.update_and_fetch(k, v)
            ours.update_and_fetch(k, v)
            back = quire_mlx.to_mlx(ours, quantized=True)
            for mine, other in ((back.keys, keys), (back.values, values)):
                np.testing.assert_array_equal(np.array(mine[0]), np.array(other[0]))
                np.testing.assert_array_equal(np.array(mine[1]), np.array(other[1].astype(mx.float16).astype(mx.float32)))

    def test_short_texts(self):
        found, right = greedy(short=True)
        self.assertTrue(right, found)

    def test_short_perplexity(self):
        found, right = perplexity(short=True)
        self.assertTrue(right, found)


if __name__ == "__main__":
    unittest.main()
