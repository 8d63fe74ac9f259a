# SPDX-License-Identifier: MIT
"""Prompts of a small model in a store with a real directory."""
import tempfile
import unittest

import mlx.core as mx
import quire
import quire.mlx_lm as quire_mlx
from support import greedy, small_model

IDENTITY = quire.Identity(weights="sha256:1", tokenizer="1", rope="base=10000", secret=bytes(range(32)))
PROMPT = [(7 * i * i + 3) % 211 for i in range(200)]


class Prefixes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.model = folder.name, small_model()

    def open(self):
        store = quire.Store(self.folder, disk_bytes=64 << 20)
        self.addCleanup(store.close)
        return store, quire_mlx.Prefixes(store, IDENTITY, self.model)

    def fill(self, policy, prompt=PROMPT, **options):
        """Saves a prompt and gives the text that follows it."""
        store, prefixes = self.open()
        cache = quire_mlx.make_cache(self.model, policy, **options)
        self.assertEqual(prefixes.load(cache, prompt), 0)
        text = greedy(self.model, prompt, cache, 10)
        prefixes.save(cache, prompt + text)
        store.flush()
        prefixes.close()
        store.close()
        return text

    def load(self, policy, prompt=PROMPT, count=10, **options):
        store, prefixes = self.open()
        cache = quire_mlx.make_cache(self.model, policy, **options)
        n = prefixes.load(cache, prompt)
        self.assertEqual([c.offset for c in cache], [n] * len(cache))
        text = greedy(self.model, prompt[n:], cache, count)
        prefixes.close()
        store.close()
        return n, text

    def test_a_prompt_is_computed_once(self):
        for policy in ("k8v4", "f16"):
            text = self.fill(policy)
            self.assertEqual(self.load(policy), (192, text))

    def test_prompts_that_begin_alike(self):
        self.fill("k8v4")
        other = PROMPT[:130] + [5, 6, 7]
        n, text = self.load("k8v4", other)
        self.assertEqual((n, text), (128, greedy(self.model, other, quire_mlx.make_cache(self.model, "k8v4"), 10)))

    def test_bounds(self):
        text = self.fill("k8v4", max_tokens=100, sinks=4)
        self.assertEqual(self.load("k8v4", max_tokens=100, sinks=4), (192, text))
        self.assertEqual(self.load("k8v4")[0], 0)

    def test_what_is_not_the_same_is_not_found(self):
        self.fill("k8v4")
        self.assertEqual(self.load("k4v4")[0], 0)
        self.assertEqual(self.load("k8v4", [9] + PROMPT[1:])[0], 0)

    def test_a_short_prompt_leaves_a_token(self):
        self.fill("k8v4")
        self.assertEqual(self.load("k8v4", PROMPT[:128])[0], 64)

    def test_only_whole_models(self):
        _, prefixes = self.open()
        with self.assertRaises(ValueError):
            prefixes.load(self.model.make_cache(), PROMPT)
        with self.assertRaises(ValueError):
            prefixes.save(quire_mlx.make_cache(self.model)[:1], PROMPT)

    def test_arguments_that_do_not_fit(self):
        _, prefixes = self.open()
        caches = quire_mlx.make_cache(self.model, "k8v4")
        for tokens, kind in (([-1, 2], ValueError), ([1.5, 2], TypeError), (None, TypeError), (7, TypeError), ([2**40, 1], ValueError), ("ab", TypeError)):
            for call in (prefixes.load, prefixes.save):
                with self.assertRaises(kind, msg=tokens):
                    call(caches, tokens)
        for wrong in ([], caches[:1], caches + caches, caches[::-1], [caches[0]] * 2, [None, None], None):
            with self.assertRaises((ValueError, TypeError)):
                prefixes.load(wrong, PROMPT)
            with self.assertRaises((ValueError, TypeError)):
                prefixes.save(wrong, PROMPT)
        for tokens in ([], [5]):
            self.assertEqual(prefixes.load(caches, tokens), 0)
        text = greedy(self.model, PROMPT, caches, 3)
        with self.assertRaises(ValueError):
            prefixes.load(caches, PROMPT)  # not empty
        with self.assertRaises(ValueError):
            prefixes.save(caches, PROMPT[:10])
        other = [quire_mlx.QuireKVCache("k8v4", index=i, n_layers=2) for i in range(2)]
        for c in other:
            c.update_and_fetch(mx.zeros((1, 1, 70, 64)), mx.zeros((1, 1, 70, 64)))
        with self.assertRaisesRegex(ValueError, "shape"):
            prefixes.save(other, PROMPT)
        self.assertEqual(text, greedy(self.model, PROMPT, quire_mlx.make_cache(self.model, "k8v4"), 3))


if __name__ == "__main__":
    unittest.main()
