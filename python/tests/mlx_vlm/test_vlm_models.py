# SPDX-License-Identifier: MIT
"""Inside the real mlx-vlm, with text models of random weights: its generator, its batch generator, its prefix cache."""
import copy
import pickle
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import quire.mlx_vlm as quire_vlm
from mlx_vlm.apc import APCManager
from mlx_vlm.generate.dispatch import _prefix_cache_trim_amount
from mlx_vlm.models.cache import BatchKVCache, KVCache, RotatingKVCache, make_prompt_cache
from mlx_vlm.speculative.cache_state import rollback_speculative_cache, start_speculative_cache
from mlx_vlm.turboquant import TurboQuantKVCache
from quire import QuireError
from vlm_support import MOST, PROMPTS, attend, batch, greedy, logits, numpy, rows, small_model
from interrupts import interrupted
from reference import attention, error

SMALL = dict(head_dim=16, layer_norm_eps=1e-5, rope_theta=10000.0, partial_rotary_factor=0.5, attention_bias=False, mlp_bias=False)
EXPERTS = dict(num_local_experts=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32)
WINDOWS = dict(sliding_window=8, sliding_window_pattern=2)
TIED = dict(tie_word_embeddings=True)
LATENT = dict(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24)
MODELS = {
    "llama": {}, "qwen2": {}, "qwen3": TIED, "gemma": {}, "phi3": {}, "cohere": dict(logit_scale=0.1), "olmo2": {}, "glm4": {}, "seed_oss": {},
    "helium": TIED, "smollm3": dict(no_rope_layer_interval=4, no_rope_layers=None), "gpt_neox": dict(rotary_emb_base=10000, rotary_pct=0.5),
    "nemotron": dict(hidden_act="relu2", norm_eps=1e-5), "mixtral": EXPERTS,
    "granite": dict(logits_scaling=1.0, attention_multiplier=0.1, embedding_multiplier=1.0, residual_multiplier=1.0),
    # d_v is not d_k
    "minicpm3": dict(dim_model_base=64, scale_depth=1.4, scale_emb=1.0, **LATENT,
                     rope_scaling=dict(original_max_position_embeddings=512, long_factor=[1.0] * 8, short_factor=[1.0] * 8)),
    # every second layer keeps its window
    "gemma3_text": WINDOWS, "cohere2": dict(logit_scale=0.1, layer_norm_bias=False, **WINDOWS),
    # and attention sinks
    "gpt_oss": dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"], **EXPERTS),
}
HALF = ("gemma3_text", "cohere2", "gpt_oss")
ALONE = {  # these compute with keys themselves
    "gemma2": dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=16),
    "deepseek_v3": dict(n_routed_experts=2, n_shared_experts=1, first_k_dense_replace=3, moe_intermediate_size=32, **LATENT),
    "glm4_moe_lite": dict(n_routed_experts=2, n_shared_experts=1, first_k_dense_replace=3, moe_intermediate_size=32, **LATENT),
}
# How far the two best logits of mlx-vlm's own TurboQuant cache may be apart where Quire's choose another token, in deviations of the logits. The
# codes are the same; values differ by the rounding of the tables, and that moves codes of the next layer that lie at a middle.
APART = 0.4


def build(name, more=None, **other):
    return small_model.__wrapped__(name, **{**SMALL, **(more or {}), **other})


class Generator(unittest.TestCase):
    def test_mlx_lm_is_not_needed(self):
        self.assertFalse([name for name in sys.modules if name.split(".")[0] == "mlx_lm"])

    def test_texts(self):
        for name, more in MODELS.items():
            with self.subTest(name):
                model = build(name, more)
                caches = quire_vlm.make_cache(model, "f32")
                self.assertEqual(sum(isinstance(c, quire_vlm.QuireKVCache) for c in caches), 1 if name in HALF else 2)
                self.assertEqual(greedy(model, PROMPTS[3], caches, 10), greedy(model, PROMPTS[3], None, 10))
                alone = batch(model, PROMPTS[:3], 6)
                quire_vlm.attach(model, "f32")
                self.assertEqual(batch(model, PROMPTS[:3], 6), alone)

    def test_models_that_need_their_own_cache_say_so(self):
        for name, more in ALONE.items():
            with self.subTest(name), self.assertRaisesRegex(TypeError, "need the cache that the model asks for"):
                model = build(name, more)
                greedy(model, PROMPTS[0], quire_vlm.make_cache(model, "f32"), 2)

    def test_pieces_of_a_prompt(self):
        model = small_model()
        tokens = [int(t) for t in np.random.default_rng(0).integers(1, 210, 300)]
        want = greedy(model, tokens, quire_vlm.make_cache(model, bits=4), 6)
        for size in (1000, 64, 7):
            self.assertEqual(greedy(model, tokens, quire_vlm.make_cache(model, bits=4), 6, prefill_step_size=size), want)

    def test_greedy_as_turboquant(self):
        """mlx-vlm's own TurboQuant cache from the first token on, the same tokens to both."""
        for kind, more in (("llama", {}), ("qwen3", TIED), ("llama", dict(head_dim=128, num_attention_heads=8))):
            model = small_model.__wrapped__(kind, rope_theta=10000.0, **more)
            tokens = [int(t) for t in np.random.default_rng(1).integers(1, 210, 200)]
            theirs = logits(model, tokens, [TurboQuantKVCache(bits=4) for _ in range(2)])
            ours = logits(model, tokens, quire_vlm.make_cache(model, bits=4))
            best = np.sort(theirs, axis=-1)[:, -2:]
            differs = theirs.argmax(-1) != ours.argmax(-1)
            most = np.diff(best)[differs].max(initial=0) / np.std(theirs)
            print(f"{kind}: {differs.sum()} of {len(tokens)} tokens differ, the two best are at most {most:.3f} deviations apart there")
            self.assertLess(most, APART)


class MakeCache(unittest.TestCase):
    def test_arguments(self):
        model = build("llama", num_hidden_layers=4)
        named = lambda caches: [c.settings.policy if isinstance(c, quire_vlm.QuireKVCache) else type(c) for c in caches]
        make = quire_vlm.make_cache
        self.assertEqual(named(make(model)), ["r8/r8"] * 4)
        self.assertEqual(named(make(model.language_model, "r6/r4")), ["r6/r4"] * 4)
        self.assertEqual(named(make(model, bits=3.5)), ["tv3/tv4"] * 3 + [KVCache])
        self.assertEqual(named(make(model, bits=3.5, skip_last=False)), ["tv3/tv4"] * 4)
        self.assertEqual(named(make(model, bits=4, max_tokens=64)), ["tv4/tv4"] * 3 + ["f16/f16"])
        self.assertEqual(named(make(model, "r8", skip_last=True)), ["r8/r8"] * 3 + [KVCache])
        self.assertEqual(named(make(model, key_bits=6, value_bits=2)), ["tv6/tv2"] * 3 + [KVCache])
        self.assertEqual(named(make(build("llama"), bits=2)), ["tv2/tv2"] * 2)
        for wrong in (dict(policy="r8", bits=4), dict(bits=9), dict(key_bits=4), dict(policy="nonsense"), dict(bits=4, key_bits=3.5),
                      dict(max_tokens=4, sinks=4), dict(max_tokens=0), dict(sinks=-5), dict(spare=-1), dict(policy="")):
            with self.assertRaises((ValueError, QuireError), msg=wrong):
                make(model, **wrong)
            with self.assertRaises((ValueError, QuireError), msg=wrong):
                quire_vlm.attach(model, **wrong)
        self.assertNotIn("make_cache", model.language_model.__dict__)
        for wrong in (None, object(), [model]):
            for call in (make, quire_vlm.attach, quire_vlm.detach):
                with self.assertRaisesRegex(TypeError, "not a model of mlx-vlm"):
                    call(wrong)

    def test_attach_and_detach(self):
        model = build("gemma3_text", WINDOWS)
        own = [type(c) for c in make_prompt_cache(model.language_model)]
        quire_vlm.attach(model, bits=4, skip_last=False)
        quire_vlm.attach(model, "r8")  # the last one counts
        found = make_prompt_cache(model.language_model)
        self.assertEqual([type(c) for c in found], [RotatingKVCache, quire_vlm.QuireKVCache])
        self.assertEqual(found[1].settings.policy, "r8/r8")
        self.assertEqual([type(c) for c in quire_vlm.make_cache(model)], [type(c) for c in found])
        quire_vlm.detach(model)
        quire_vlm.detach(model)
        self.assertEqual([type(c) for c in make_prompt_cache(model.language_model)], own)

    def test_detach_gives_back_a_make_cache_of_the_object(self):
        model = build("gemma3_text", WINDOWS).language_model
        own = lambda: [KVCache(), KVCache()]
        model.make_cache = own
        quire_vlm.attach(model, "r8")
        quire_vlm.attach(model, "tv4")
        self.assertEqual([type(c) for c in make_prompt_cache(model)], [quire_vlm.QuireKVCache] * 2)
        quire_vlm.detach(model)
        self.assertIs(model.make_cache, own)

    def test_an_attached_model_makes_caches_in_many_threads(self):
        model = build("gemma3_text", WINDOWS).language_model
        quire_vlm.attach(model, "r8")
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(8) as threads:
                found = list(threads.map(lambda _: type(make_prompt_cache(model)[1]), range(400)))
        finally:
            sys.setswitchinterval(interval)
        self.assertEqual(set(found), {quire_vlm.QuireKVCache})

    def test_no_attribute_that_means_something_else(self):
        for cache in (quire_vlm.QuireKVCache("tv4"), quire_vlm.BatchQuireKVCache([0], quire_vlm.Settings("tv4"))):
            for name in ("bits", "group_size", "dequantize_for_apc", "start_speculation", "start_position"):
                self.assertFalse(hasattr(cache, name), name)
        self.assertFalse(hasattr(quire_vlm.QuireKVCache, "extend"))  # mlx-vlm would take it for a batch


class Batches(unittest.TestCase):
    def texts(self, policy, *arguments, **options):
        model = small_model()
        quire_vlm.attach(model, policy)
        try:
            return batch(model, *arguments, **options)
        finally:
            quire_vlm.detach(model)

    def test_prompts_come_and_go(self):
        model = small_model()
        for policy in ("f32", "tv4/tv3", "r6/r4"):
            alone = [greedy(model, p, quire_vlm.make_cache(model, policy), 8) for p in PROMPTS]
            for options in ({}, dict(prefill_step_size=4), dict(prefill_batch_size=2, completion_batch_size=2), dict(prefill_batch_size=1)):
                self.assertEqual(self.texts(policy, PROMPTS[:3], 8, PROMPTS[3:], **options), alone, (policy, options))
            self.assertEqual(self.texts(policy, PROMPTS[:1], 8, PROMPTS[1:]), alone)  # a single row begins without a batch

    def test_bits_as_well_are_refused(self):
        with self.assertRaisesRegex(NotImplementedError, "disable KV quantization"):
            self.texts("tv4", PROMPTS[:2], 4, kv_bits=4, kv_quant_scheme="turboquant", quantized_kv_start=0)

    def test_prefix_cache(self):
        """mlx-vlm's APC keeps copies of the caches and gives later prompts what they share with earlier ones."""
        model = small_model()
        shared = [int(t) for t in np.random.default_rng(0).integers(1, 210, 70)]
        prompts = [shared + [3, 5], shared + [9, 9, 9], shared[:40] + [7], [4]]
        for policy in ("f32", "tv4"):
            alone = [greedy(model, p, quire_vlm.make_cache(model, policy), 6) for p in prompts]
            manager = APCManager(num_blocks=64, block_size=16)
            for prompt, want in zip(prompts, alone):
                self.assertEqual(self.texts(policy, [prompt], 6, apc_manager=manager), [want])
            self.assertEqual(self.texts(policy, prompts, 6, apc_manager=manager), alone)
            self.assertGreater(manager.stats.exact_hits, 0)

    def test_refused_draft_tokens(self):
        """The same rows as in mlx-vlm's BatchKVCache, whatever each row accepted."""
        rng = np.random.default_rng(3)
        theirs, ours = BatchKVCache([4, 0, 9]), quire_vlm.BatchQuireKVCache([4, 0, 9], quire_vlm.Settings("f32"))
        seed = 0
        for cache in (theirs, ours):
            cache.update_and_fetch(rows(1, 3, 2, 20, 32), rows(2, 3, 2, 20, 32))
        for _ in range(30):
            block = int(rng.integers(1, 6))
            accepted = [int(x) for x in rng.integers(0, block, 3)]
            for cache in (theirs, ours):
                work = start_speculative_cache([cache], block)
                cache.update_and_fetch(rows(seed, 3, 2, block, 32), rows(seed + 1, 3, 2, block, 32))
                rollback_speculative_cache([cache], work, accepted, block)
            seed += 2
            self.assertEqual((ours._idx, ours.offset.tolist(), ours.left_padding.tolist()),
                             (theirs._idx, theirs.offset.tolist(), theirs.left_padding.tolist()))
            k, v = numpy(ours.keys.decode()), numpy(ours.values.decode())
            for i, first in enumerate(theirs.left_padding.tolist()):
                np.testing.assert_array_equal(k[i, :, first:], numpy(theirs.state[0])[i, :, first:])
                np.testing.assert_array_equal(v[i, :, first:], numpy(theirs.state[1])[i, :, first:])

    def test_draft_tokens_while_sequences_come_and_go(self):
        """What prepare() has said of a sequence stays with it until finalize()."""
        pools = quire_vlm.Pools(threads=1)

        def batch(*lengths):
            caches = [quire_vlm.QuireKVCache("f32", pools=pools) for _ in lengths]
            for cache, length in zip(caches, lengths):
                cache.update_and_fetch(rows(1, 1, 2, length, 32), rows(2, 1, 2, length, 32))
            return quire_vlm.QuireKVCache.merge(caches)

        def lengths(cache):
            cache.finalize()
            now = cache._settle()
            self.assertEqual([s.length for s in now.sequences], [now.length(i) for i in range(len(now.sequences))])
            return cache.offset.tolist()

        for tails, others, want in (([1, 2], None, [69, 3, 30]), (None, [4], [70, 5, 26]), ([1, 2], [4], [69, 3, 26])):
            one, other = batch(70, 5), batch(30)
            if tails:
                one.prepare(right_padding=tails)
            if others:
                other.prepare(right_padding=others)
            one.extend(other)
            copied = copy.deepcopy(one)
            left = copy.deepcopy(one)
            left.filter([2, 0, 0])
            self.assertEqual((lengths(one), lengths(copied), lengths(left)), (want, want, [want[2], want[0], want[0]]))
        one = batch(70, 5)
        one.prepare(right_padding=[1, 2])
        with self.assertRaisesRegex(ValueError, "finalize"):
            quire_vlm.to_mlx(one)
        for save in (lambda: dict(one.state.items()), one.prefix_cache_snapshot, lambda: pickle.dumps(one)):
            with self.assertRaisesRegex(ValueError, "finalize"):
                save()  # what was refused would come back
        emptied = copy.deepcopy(one)
        emptied.filter([])
        emptied.extend(batch(4))
        self.assertEqual((lengths(emptied), pickle.loads(pickle.dumps(emptied)).offset.tolist()), ([4], [4]))
        self.assertEqual(one.extract(0).offset, 70)
        one.state = dict(batch(8, 9, 10).state.items())
        self.assertEqual(lengths(one), [8, 9, 10])
        for at in range(400):
            one = batch(70, 5)
            one.prepare(right_padding=[1, 2])
            if not interrupted(lambda: one.filter([1]), at):
                break
            self.assertIn(lengths(one), ([3], [69, 3]))
        self.assertGreater(at, 10)

    def test_draft_tokens_of_a_ring(self):
        for spare in (0, 8):
            ours = quire_vlm.BatchQuireKVCache([0, 2], quire_vlm.Settings("f32", 0, 1, 32, 4, spare))
            k, v = rows(1, 2, 2, 400, 32), rows(2, 2, 2, 400, 32)
            ours.update_and_fetch(k[:, :, :390], v[:, :, :390])
            ours._settle()
            for i in range(390, 396):
                attend(ours, rows(i, 2, 4, 1, 32), k[:, :, i:i + 1], v[:, :, i:i + 1])
            ours.prepare(right_padding=[0, 4])
            ours.finalize()
            out = attend(ours, rows(5, 2, 4, 1, 32), k[:, :, 396:397], v[:, :, 396:397])
            for i, n in enumerate((396, 392)):
                first = (0, 2)[i]
                index = [*range(first, first + 4), *range(n - 27, n), 396]
                want = attention(numpy(rows(5, 2, 4, 1, 32))[i:i + 1], numpy(k)[i:i + 1, :, index], numpy(v)[i:i + 1, :, index], 32 ** -0.5)
                self.assertLess(error(numpy(out)[i:i + 1], want), MOST)
        with self.assertRaisesRegex(ValueError, "spare"):
            ours.prepare(right_padding=[0, 300])
            ours.finalize()


class Snapshots(unittest.TestCase):
    def filled(self, count=100, **options):
        cache = quire_vlm.QuireKVCache("tv4", **options)
        cache.update_and_fetch(rows(1, 1, 2, count, 64), rows(2, 1, 2, count, 64))
        return cache

    def test_restored_bit_for_bit(self):
        pools = quire_vlm.Pools(1 << 26)
        for options in ({}, dict(max_tokens=32, sinks=4)):
            one = self.filled(pools=pools, **options)
            saved = one.prefix_cache_snapshot()
            one.trim(0)
            again = quire_vlm.QuireKVCache()
            again.prefix_cache_restore(saved)
            self.assertEqual((again.offset, again.settings, again.prefix_cache_reserve(500)), (100, one.settings, ()))
            self.assertIs(again.pools, pools)
            q, k, v = rows(3, 1, 4, 1, 64), rows(4, 1, 2, 1, 64), rows(5, 1, 2, 1, 64)
            np.testing.assert_array_equal(numpy(attend(again, q, k, v)), numpy(attend(one, q, k, v)))

    def test_a_preset_that_had_another_meaning(self):
        one = quire_vlm.QuireKVCache("r5/r4")
        one.update_and_fetch(rows(1, 1, 2, 70, 64), rows(2, 1, 2, 70, 64))
        saved = {name: value for name, value in one.prefix_cache_snapshot()["state"].items() if name != "digest"}
        self.assertEqual(saved["policy"], "r5/r4")
        again = quire_vlm.QuireKVCache()
        again.state = {**saved, "policy": "balanced"}
        self.assertEqual(again.settings, one.settings)
        np.testing.assert_array_equal(numpy(again.keys.decode()), numpy(one.keys.decode()))

    def test_what_is_no_snapshot_is_refused(self):
        one, saved = self.filled(), self.filled().prefix_cache_snapshot()
        saved["state"]["columns"] = 5
        for wrong in ({}, None, saved):
            with self.assertRaises(ValueError):
                one.prefix_cache_restore(wrong)
        self.assertEqual((one.offset, one.nbytes), (100, self.filled().nbytes))
        pools = one.pools
        for state, wrong in ((self.filled().prefix_cache_snapshot()["state"], "pools"), (saved["state"], quire_vlm.Pools(threads=1))):
            with self.assertRaises((TypeError, ValueError)):
                one.prefix_cache_restore({"state": state, "pools": wrong})
            self.assertIs(one.pools, pools)
        self.assertEqual(one.offset, 100)

    def test_merge(self):
        caches = [self.filled(100), KVCache(), self.filled(40)]
        joined = caches[0].prefix_cache_merge(caches, [100, 0, 40])
        self.assertEqual((joined.batch_size, joined.offset.tolist(), joined.left_padding.tolist()), (3, [100, 0, 40], [0, 100, 60]))
        for rows_, lengths in (([self.filled(100), self.filled(40)], [100, 41]), ([], []), ([self.filled(9)], [9, 9]),
                               ([self.filled(9), quire_vlm.QuireKVCache("tv3")], [9, 0]), ([self.filled(9), TurboQuantKVCache(bits=4)], [9, 0])):
            self.assertIsNone(caches[0].prefix_cache_merge(rows_, lengths))

    def test_memory_profile(self):
        one = self.filled(130)
        profile = one.memory_profile(130)
        self.assertEqual((profile.source_bytes, profile.footprint(130), profile.step, profile.window_size), (one.nbytes, one.nbytes, 64, None))
        self.assertEqual(quire_vlm.QuireKVCache("tv4").memory_profile(10).footprint(10), 0)
        self.assertGreater(self.filled(130, max_tokens=32).memory_profile(10).window_size, 32)

    def test_rows_and_reuse(self):
        two = quire_vlm.QuireKVCache("tv4")
        two.update_and_fetch(rows(1, 2, 2, 30, 64), rows(2, 2, 2, 30, 64))
        one = two.extract(-1)
        np.testing.assert_array_equal(numpy(one.keys.decode())[0], numpy(two.keys.decode())[1])
        self.assertTrue(quire_vlm.QuireKVCache("tv4").extract(0).empty())
        with self.assertRaises(ValueError):
            two.extract(2)
        with self.assertRaises(ValueError):
            two.to_batch([0, 0])
        # What mlx-vlm asks before it reuses a cache for another prompt.
        self.assertEqual(_prefix_cache_trim_amount([self.filled(100)], 60), 40)
        self.assertEqual(_prefix_cache_trim_amount([self.filled(20, max_tokens=32)], 15), 5)
        self.assertIsNone(_prefix_cache_trim_amount([self.filled(100, max_tokens=32)], 60))


if __name__ == "__main__":
    unittest.main()
