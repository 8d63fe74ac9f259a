# SPDX-License-Identifier: MIT
"""Batches: the operations of mlx-lm's batch generator on the caches, and the generator itself."""
import copy
import random
import unittest

import mlx.core as mx
import numpy as np
import quire.mlx_lm as quire_mlx
from mlx_lm.generate import BatchGenerator, batch_generate
from mlx_lm.models.cache import BatchKVCache, KVCache
from reference import error
from support import MOST, attend, greedy, numpy, small_model
from test_mlx_cache import Feed

PROMPTS = [[5, 9, 2, 77, 31, 8, 100, 3], [8, 8, 1], [150], [17, 3, 6, 12, 44, 201, 7, 7, 19, 23, 54, 65, 2, 9, 9, 1, 30]]


class Operations(unittest.TestCase):
    def setUp(self):
        self.feed = Feed(5, n=400)

    def step(self, batch, rows, count=1, bound=0, sinks=0):
        """rows: [sequence, tokens so far] for each row of the batch; attends with the next tokens of all."""
        out = attend(batch, *self.feed.take([n for _, n in rows], count, [i for i, _ in rows]))
        for j, row in enumerate(rows):
            row[1] += count
            self.assertLess(error(numpy(out)[j:j + 1], self.feed.want(row[0], row[1], count, bound, sinks)), MOST, f"row {j}: {row}")
        self.assertEqual(batch.offset.tolist(), [n for _, n in rows])

    def prompt(self, batch, rows, lengths):
        """A ragged piece of prompt, padded at the right, in two calls."""
        most = max(lengths)
        if not most:
            return
        before = [list(r) for r in rows]
        batch.prepare(lengths=lengths, right_padding=[most - n for n in lengths])
        half = max(most // 2, 1)
        outs = []
        for first, last in ((0, half), (half, most)):
            if first < last:
                at = [n + first for _, n in before]
                outs.append(numpy(attend(batch, *self.feed.take(at, last - first, [i for i, _ in rows]))))
        batch.finalize()
        out = np.concatenate(outs, 2)
        for j, (row, n) in enumerate(zip(rows, lengths)):
            row[1] += n
            if n:
                self.assertLess(error(out[j:j + 1, :, :n], self.feed.want(row[0], row[1], n)), MOST, f"row {j}: {row}")
        self.assertEqual(batch.offset.tolist(), [n for _, n in rows])

    def caches(self, lengths, **options):
        made = []
        for i, n in enumerate(lengths):
            made.append(quire_mlx.QuireKVCache("f32", **options))
            if n:
                made[-1].update_and_fetch(*self.feed.take([0], n, [i])[1:])
        return made

    def test_merge_leaves_the_caches_alone(self):
        caches = self.caches((40, 0, 70))
        batch = caches[0].merge(caches)
        self.assertEqual(batch.left_padding.tolist(), [30, 70, 0])
        rows = [[0, 40], [1, 0], [2, 70]]
        for _ in range(3):
            self.step(batch, rows)
        self.assertEqual([c.offset for c in caches], [40, 0, 70])

    def test_left_padded_prompts(self):
        for cls in (BatchKVCache, lambda padding: quire_mlx.BatchQuireKVCache(padding, quire_mlx.Settings("f32"))):
            batch = cls([2, 0, 5])
            q, k, v = self.feed.take([0, 0, 0], 9)
            shift = lambda x: mx.stack([mx.roll(x[i], p, axis=1) for i, p in enumerate((2, 0, 5))])
            out = numpy(attend(batch, shift(q), shift(k), shift(v)))
            for i, p in enumerate((2, 0, 5)):
                self.assertLess(error(out[i:i + 1, :, p:], self.feed.want(i, 9 - p, 9 - p)), MOST)
            self.assertEqual(batch.offset.tolist(), [7, 9, 4])

    def test_prepare_pads_an_empty_batch(self):
        batch = quire_mlx.BatchQuireKVCache([0, 0], quire_mlx.Settings("f32"))
        batch.prepare(left_padding=[1, 0])
        self.assertEqual(batch.offset.tolist(), [-1, 0])
        attend(batch, *self.feed.take([0, 0], 4))
        with self.assertRaises(ValueError):
            batch.prepare(left_padding=[1, 0])

    def test_arrays_as_masks_know_the_padding(self):
        caches = self.caches((10, 25))
        batch = caches[0].merge(caches)
        mask = batch.make_mask(3, return_array=True)
        self.assertEqual(mask.shape, (2, 1, 3, 28))
        rows = [[0, 10], [1, 25]]
        out = attend(batch, *self.feed.take([10, 25], 3), mask=mask)
        for j, (i, n) in enumerate(rows):
            self.assertLess(error(numpy(out)[j:j + 1], self.feed.want(i, n + 3, 3)), MOST)

    def test_rings_in_a_batch(self):
        caches = self.caches((40, 3, 90), max_tokens=32, sinks=4)
        batch = caches[0].merge(caches)
        rows = [[0, 40], [1, 3], [2, 90]]
        for _ in range(50):
            self.step(batch, rows, 1, 32, 4)
        one = batch.extract(1)
        out = attend(one, *self.feed.take([53], 1, [1]))
        self.assertLess(error(numpy(out), self.feed.want(1, 54, 1, 32, 4)), MOST)

    def test_a_sequence_that_comes_twice(self):
        caches = self.caches((20, 30))
        batch = caches[0].merge(caches)
        batch.filter(mx.array([1, 1, 0]))
        rows = [[1, 30], [1, 30], [0, 20]]
        for _ in range(40):
            self.step(batch, rows)

    def test_random_operations(self):
        for seed in range(6):
            rng = random.Random(seed)
            made = [i for i in range(5)]
            lengths = [rng.choice((0, 5, 63, 64, 65)) for _ in made]
            caches = self.caches(lengths)
            batch, rows = caches[0].merge(caches[:3]), [[i, lengths[i]] for i in range(3)]
            for _ in range(25):
                kind = rng.choice(("step", "step", "prompt", "filter", "extend", "extract", "trim", "copy"))
                if kind == "step":
                    self.step(batch, rows, rng.choice((1, 1, 3)))
                elif kind == "prompt":
                    self.prompt(batch, rows, [rng.choice((0, 1, 7, 20)) for _ in rows])
                elif kind == "filter" and len(rows) > 1:
                    keep = sorted(rng.sample(range(len(rows)), rng.randint(1, len(rows) - 1)))
                    batch.filter(keep)
                    rows = [rows[i] for i in keep]
                elif kind == "extend" and len(rows) < 6:
                    i = rng.randrange(5)
                    cache = self.caches(lengths)[i]
                    batch.extend(cache.merge([cache]))
                    rows.append([i, lengths[i]])
                elif kind == "extract":
                    j = rng.randrange(len(rows))
                    one = batch.extract(j)
                    self.assertEqual(one.offset, rows[j][1])
                    out = attend(one, *self.feed.take([rows[j][1]], 2, [rows[j][0]]))
                    self.assertLess(error(numpy(out), self.feed.want(rows[j][0], rows[j][1] + 2, 2)), MOST)
                elif kind == "trim" and min(n for _, n in rows) > 2:
                    batch.trim(2)
                    for row in rows:
                        row[1] -= 2
                elif kind == "copy":
                    other = copy.deepcopy(batch)
                    self.step(other, [list(r) for r in rows])
                if max(n for _, n in rows) > 350:
                    break


def collect(generator, uids):
    got = {uid: [] for uid in uids}
    while found := generator.next_generated():
        for r in found:
            got[r.uid].append(r.token)
    return [got[u] for u in uids]


class Generator(unittest.TestCase):
    """Bits do not depend on the batch as far as Quire goes; MLX's own products are the same too for these small sizes."""

    def setUp(self):
        self.model = small_model()

    def alone(self, policy, count, prompts=PROMPTS, **options):
        return [greedy(self.model, p, quire_mlx.make_cache(self.model, policy, **options), count) for p in prompts]

    def test_ragged_prompts(self):
        for policy, options in (("f32", {}), ("k8v4", {}), ("a4g32", {"max_tokens": 12, "sinks": 2})):
            generator = BatchGenerator(self.model, max_tokens=20)
            uids = generator.insert(PROMPTS, caches=[quire_mlx.make_cache(self.model, policy, **options) for _ in PROMPTS])
            self.assertEqual(collect(generator, uids), self.alone(policy, 20, **options))

    def test_floats_give_mlx_lms_texts(self):
        theirs = [greedy(self.model, p, [KVCache() for _ in self.model.layers], 20) for p in PROMPTS]
        self.assertEqual(self.alone("f32", 20), theirs)

    def test_prompts_in_small_pieces(self):
        generator = BatchGenerator(self.model, max_tokens=10, prefill_step_size=4, prefill_batch_size=2, completion_batch_size=3)
        uids = generator.insert(PROMPTS, caches=[quire_mlx.make_cache(self.model, "k8v4") for _ in PROMPTS])
        self.assertEqual(collect(generator, uids), self.alone("k8v4", 10))

    def test_coming_and_going_with_history(self):
        histories = [quire_mlx.make_cache(self.model, "k8v4") for _ in PROMPTS]
        said = [greedy(self.model, p, c, 4) for p, c in zip(PROMPTS, histories)]
        del said
        follow = [[3, 50], [7], [9, 9, 9], [120, 5]]
        want = [greedy(self.model, f, copy.deepcopy(c), 16) for f, c in zip(follow, histories)]
        generator = BatchGenerator(self.model, max_tokens=16)
        uids = generator.insert(follow[:2], caches=histories[:2])
        got = {u: [] for u in range(4)}

        def turn(times):
            for _ in range(times):
                for r in generator.next_generated():
                    got[r.uid].append(r.token)

        turn(3)
        uids += generator.insert(follow[2:], caches=histories[2:])
        turn(4)
        removed = generator.remove([uids[0]], return_prompt_caches=True)
        left = len(got[uids[0]])
        while found := generator.next_generated():
            for r in found:
                got[r.uid].append(r.token)
        self.assertEqual(got[uids[0]], want[0][:left])
        self.assertGreater(left, 0)
        for i in (1, 2, 3):
            self.assertEqual(got[uids[i]], want[i])
        cache, tokens = removed[uids[0]]
        self.assertIsInstance(cache[0], quire_mlx.QuireKVCache)
        self.assertEqual(tokens[-2:], got[uids[0]][-2:])
        # What was taken out goes on by itself as if it had never been in a batch; its last token was computed already.
        self.assertEqual(cache[0].offset, histories[0][0].offset + len(follow[0]) + left)
        more = copy.deepcopy(histories[0])
        greedy(self.model, follow[0] + want[0][:left], more, 1)
        again = [greedy(self.model, [want[0][left]], c, 5) for c in (cache,)]
        self.assertEqual(again[0], want[0][left + 1:left + 6])

    def test_batch_generate(self):
        class Words:
            eos_token_ids = [210]
            decode = staticmethod(lambda tokens: " ".join(map(str, tokens)))

        caches = [quire_mlx.make_cache(self.model, "k8v4") for _ in PROMPTS]
        done = batch_generate(self.model, Words, PROMPTS, prompt_caches=caches, max_tokens=8, return_prompt_caches=True, return_token_ids=True)
        want = [t[:t.index(210)] if 210 in t else t for t in self.alone("k8v4", 8)]
        self.assertEqual(done.token_ids, want)
        self.assertIsInstance(done.caches[0][0], quire_mlx.QuireKVCache)
        self.assertTrue(all(c[0].empty() for c in caches))

    def test_speculative_decoding(self):
        from mlx_lm.generate import speculative_generate_step
        draft = small_model(layers=1)
        for options in ({}, {"max_tokens": 12, "sinks": 2, "spare": 8}):
            cache = quire_mlx.make_cache(self.model, "k8v4", **options) + quire_mlx.make_cache(draft, "k4v4", **options)
            found = list(speculative_generate_step(mx.array(PROMPTS[0]), self.model, draft, num_draft_tokens=3, max_tokens=40, prompt_cache=cache))
            self.assertEqual([int(t) for t, _, _ in found], self.alone("k8v4", 40, PROMPTS[:1], **options)[0])

    def test_models_with_windows_keep_their_rings(self):
        from mlx_lm.models.cache import RotatingKVCache
        from mlx_lm.models.gemma3_text import Model, ModelArgs
        mx.random.seed(3)
        model = Model(ModelArgs(model_type="gemma3_text", hidden_size=64, num_hidden_layers=4, intermediate_size=64, num_attention_heads=4, head_dim=32,
                                rms_norm_eps=1e-6, vocab_size=211, num_key_value_heads=2, sliding_window=8, sliding_window_pattern=2))
        mx.eval(model.parameters())
        caches = quire_mlx.make_cache(model, "f32")
        self.assertEqual([type(c) for c in caches], [RotatingKVCache, quire_mlx.QuireKVCache] * 2)
        prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
        self.assertEqual(greedy(model, prompt, caches, 20), greedy(model, prompt, model.make_cache(), 20))
        generator = BatchGenerator(model, max_tokens=10)
        uids = generator.insert([prompt, prompt[:4]], caches=[quire_mlx.make_cache(model, "f32") for _ in range(2)])
        got = collect(generator, uids)
        self.assertEqual(got, [greedy(model, p, model.make_cache(), 10) for p in (prompt, prompt[:4])])

    def test_the_cache_of_recent_prompts(self):
        """mlx_lm.server's: copies, trims, finds prefixes."""
        from mlx_lm.models.cache import LRUPromptCache
        recent = LRUPromptCache(max_size=4)
        cache = quire_mlx.make_cache(self.model, "k8v4")
        tokens = PROMPTS[3] + greedy(self.model, PROMPTS[3], cache, 10)
        tokens = tokens[:cache[0].offset]
        recent.insert_cache("m", tokens, cache)
        self.assertGreater(recent.nbytes, 0)
        prompt = tokens[:12] + [4, 5, 6]
        found, rest = recent.fetch_nearest_cache("m", prompt)
        self.assertEqual((rest, found[0].offset), ([4, 5, 6], 12))
        self.assertEqual(greedy(self.model, rest, found, 8), self.alone("k8v4", 8, [prompt])[0])
        self.assertEqual(cache[0].offset, len(tokens))


if __name__ == "__main__":
    unittest.main()
