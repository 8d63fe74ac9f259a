# SPDX-License-Identifier: MIT
"""An interrupt at any moment leaves each cache as before the call or as after it, and a model goes on after recover()."""
import copy
import gc
import hashlib
import os
import random
import time
import unittest

import mlx.core as mx
import numpy as np
import quire.mlx_lm as quire_mlx
from interrupts import Stop, interrupted, timed
from mlx_lm.models.cache import make_prompt_cache
from support import greedy, numpy, rows, small_model

STRIDE = int(os.environ.get("QUIRE_EVERY", "3"))  # every moment: 1
PROMPT = [(7 * i * i + 3) % 211 for i in range(700)]
H, D = 2, 32


def sound(test, cache):
    """Rows and columns agree. Returns the number of columns."""
    now = cache._settle()
    for i, sequence in enumerate(now.sequences):
        test.assertEqual(0 if sequence is None else sequence.length, now.length(i))
    return now.columns


class Passes(unittest.TestCase):
    """A forward pass of a model."""

    def setUp(self):
        self.model = small_model()

    def logits(self, caches, tokens):
        out = self.model(mx.array([tokens] * max(1, len(caches[0]._sequences))), cache=caches)
        mx.eval(out)
        return numpy(out)

    def every_moment(self, start, more, stride=STRIDE, kind=Stop, batch=None, **options):
        caches = quire_mlx.make_cache(self.model, "f32", pools=quire_mlx.Pools(threads=1), **options)
        if start:
            self.logits(caches, PROMPT[:start])
        if batch:
            caches = [c.merge([c] * batch) for c in caches]
        tokens, begin = PROMPT[start:start + more], caches[0]._columns
        twins = copy.deepcopy(caches)
        want = self.logits(twins, tokens)
        want_next = self.logits(twins, PROMPT[:1])
        at = 0
        while True:
            tried = copy.deepcopy(caches)
            came = interrupted(lambda: self.logits(tried, tokens), at, kind)
            if came:
                lengths = [c._columns for c in tried]
                self.assertLessEqual(set(lengths), {begin, begin + more}, f"moment {at}")
                self.assertEqual([sound(self, c) for c in tried], lengths, f"moment {at}")
                held = quire_mlx.recover(tried)
                self.assertEqual([sound(self, c) for c in tried], [held] * len(tried))
                if held == begin:
                    np.testing.assert_array_equal(self.logits(tried, tokens), want, f"moment {at}")
                np.testing.assert_array_equal(self.logits(tried, PROMPT[:1]), want_next, f"moment {at}")
            else:
                break
            at += stride
        self.assertGreater(at, 30)

    def test_tokens(self):
        self.every_moment(70, 1)

    def test_a_handler_that_raises_an_ordinary_exception(self):
        self.every_moment(70, 1, 3 * STRIDE, TimeoutError)

    def test_prompts(self):
        self.every_moment(0, 90)

    def test_rings(self):
        self.every_moment(300, 1, max_tokens=40, sinks=4)
        self.every_moment(70, 300, 2 * STRIDE, max_tokens=40, sinks=4)  # in pieces; more than could be trimmed

    def test_batches(self):
        self.every_moment(70, 2, 2 * STRIDE, batch=3)

    def test_a_cache_that_is_never_used_again(self):
        """Steps that an interrupt left open end before their sequences do."""
        cache = quire_mlx.QuireKVCache("f32", pools=quire_mlx.Pools(threads=1))
        k = rows(1, 1, H, 70, D)
        cache.update_and_fetch(k, k)
        for at in range(0, 60):
            tried = copy.deepcopy(cache)
            tried.update_and_fetch(k, k)
            interrupted(tried._settle, at)
            del tried
        gc.collect()
        self.assertEqual(cache.pools.used_bytes, cache.nbytes)

    def test_timers(self):
        """Real signals, with the damage that mlx-lm's own caches take beside them."""
        rng = random.Random(1)
        damaged = {}
        for name, make in (("quire", lambda: quire_mlx.make_cache(self.model, "f32")), ("mlx-lm", lambda: make_prompt_cache(self.model))):
            base = make()
            self.model(mx.array([PROMPT[:70]]), cache=base)
            mx.eval([c.state for c in base])
            run = lambda caches, tokens: numpy(self.model(mx.array([tokens]), cache=caches))
            began = time.perf_counter()
            want = run(copy.deepcopy(base), PROMPT[70:72])
            took = time.perf_counter() - began
            damaged[name] = came = 0
            for _ in range(40):
                tried = copy.deepcopy(base)
                came += timed(lambda: run(tried, PROMPT[70:72]), rng.random() * took * 1.2)
                held = quire_mlx.recover(tried)
                self.assertIn(held, (70, 72))
                for c in tried:
                    if held == 72:
                        c.trim(2)
                damaged[name] += not np.array_equal(run(tried, PROMPT[70:72]), want)
            self.assertGreater(came, 0)
        print(f"interrupted passes that damaged caches, of 40: {damaged}")
        self.assertEqual(damaged["quire"], 0)

    def test_generation(self):
        want = greedy(self.model, PROMPT[:60], quire_mlx.make_cache(self.model, "k8v4"), 30)
        for seed in range(6):
            rng, caches, said = random.Random(seed), quire_mlx.make_cache(self.model, "k8v4"), []
            for _ in range(200):
                held = quire_mlx.recover(caches)
                tokens = PROMPT[:60] + said
                if held >= len(tokens):  # the pass was finished, but its token was lost
                    for c in caches:
                        c.trim(held - len(tokens) + 1)
                    held = len(tokens) - 1
                got = []
                call = lambda: got.extend(greedy(self.model, tokens[held:], caches, 1))
                timed(call, rng.random() * 0.02)
                said += got
                if len(said) == 30:
                    break
            self.assertEqual(said, want)


class Calls(unittest.TestCase):
    """Single calls: the cache is as before or as after."""

    def setUp(self):
        self.pools = quire_mlx.Pools(threads=1)

    def single(self, seed=0, count=70, **options):
        cache = quire_mlx.QuireKVCache("f32", pools=self.pools, **options)
        cache.update_and_fetch(rows(seed, 1, H, count, D), rows(seed + 1, 1, H, count, D))
        cache._settle()
        return cache

    def batch(self, *counts, **options):
        caches = [self.single(i, n, **options) for i, n in enumerate(counts)]
        return caches[0].merge(caches)

    def seen(self, cache):
        """All that a cache contains."""
        sound(self, cache)
        now = cache._now
        return now.columns, now.padding, now.end, now.floors, *(hashlib.sha256(numpy(cache._decode(side)).tobytes()).hexdigest() for side in "kv")

    def check(self, make, call):
        cache = make()
        before = self.seen(cache)
        call(cache)
        after = self.seen(cache)
        at = 0
        while True:
            tried = make()
            if not interrupted(lambda: call(tried), at):
                break
            self.assertIn(self.seen(tried), (before, after), f"moment {at}")
            x = rows(9, len(tried._sequences) or 1, H, 2, D)
            tried.update_and_fetch(x, x)
            sound(self, tried)
            at += 1
        self.assertGreater(at, 3)

    def test_all(self):
        x = rows(5, 1, H, 3, D)
        ring = dict(max_tokens=40, sinks=4, spare=8)
        self.check(self.single, lambda c: c.trim(10))
        self.check(lambda: self.single(0, 300, **ring), lambda c: c.trim(8))
        self.check(self.single, lambda c: (c.update_and_fetch(x, x), c._settle()))
        self.check(lambda: self.batch(5, 70, 9), lambda c: c.filter([2, 2, 0]))
        self.check(lambda: self.batch(5, 70, 9), lambda c: c.trim(6))
        self.check(lambda: self.batch(5, 70, 9), lambda c: c.extend(self.batch(3, 100)))
        self.check(lambda: self.batch(5, 70), lambda c: c.prepare(right_padding=[2, 0], lengths=[1, 3]))
        self.check(self.single, lambda c: c.merge([c, c]))
        self.check(self.single, copy.deepcopy)
        self.check(lambda: self.batch(5, 70), lambda c: c.extract(1))
        self.check(self.single, lambda c: dict(c.state.items()))
        saved = dict(self.single(7, 20).state.items())
        self.check(self.single, lambda c: setattr(c, "state", saved))

    def test_finalize(self):
        def prepared():
            batch, x = self.batch(5, 70), rows(5, 2, H, 3, D)
            batch.prepare(right_padding=[2, 0], lengths=[1, 3])
            batch.update_and_fetch(x, x)
            return batch

        self.check(prepared, lambda c: c.finalize())


if __name__ == "__main__":
    unittest.main()
