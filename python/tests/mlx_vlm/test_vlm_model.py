# SPDX-License-Identifier: MIT
"""A real model, SmolLM2 135M, loaded and run by mlx-vlm's own functions."""
import unittest

import mlx.core as mx
import numpy as np
import quire.mlx_vlm as quire_vlm
from mlx_vlm import PromptCacheState, batch_generate, generate, load, stream_generate
from mlx_vlm.models.cache import make_prompt_cache, should_quantize_kv_layer
from mlx_vlm.turboquant import TurboQuantKVCache
from vlm_support import ROOT, logits, model_folder

# Two runs with 4 bits choose another token only where the two best of mlx-vlm's are at most this many nats apart. Set after the first runs.
APART = 1.5
N = 120


def log_softmax(x):
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.processor = load(model_folder())
        cls.tokenizer = getattr(cls.processor, "tokenizer", cls.processor)

    def turboquant(self, bits):
        """As mlx-vlm does it: the last layer stays in floats."""
        own = make_prompt_cache(self.model.language_model)
        return [TurboQuantKVCache(bits=bits) if should_quantize_kv_layer(i, len(own)) else c for i, c in enumerate(own)]

    def test_greedy_as_turboquant(self):
        """The same text to the float cache, mlx-vlm's TurboQuant and Quire's with the same codecs."""
        tokens = self.tokenizer.encode((ROOT / "eval/text/wiki.txt").read_text()[:4000])[:N]
        floats, theirs, ours = (log_softmax(logits(self.model, tokens, caches)) for caches in (
            make_prompt_cache(self.model.language_model), self.turboquant(4), quire_vlm.make_cache(self.model, bits=4)))
        best = np.sort(theirs, axis=-1)[:, -2:]
        differs = theirs.argmax(-1) != ours.argmax(-1)
        most = np.diff(best)[differs].max(initial=0)
        from_floats = [float((np.exp(floats) * (floats - x)).sum(-1).mean()) for x in (theirs, ours)]
        print(f"{differs.sum()} of {N} tokens differ, the two best are at most {most:.3f} nats apart there; KL from floats "
              f"{from_floats[0]:.4f} (mlx-vlm), {from_floats[1]:.4f} (Quire)")
        self.assertLess(most, APART)
        self.assertLess(abs(from_floats[0] - from_floats[1]), 0.25 * from_floats[0])  # a text is too short to say more

    def test_generate(self):
        prompt = "The capital of France is"
        want = generate(self.model, self.processor, prompt, max_tokens=8).text
        self.assertIn("Paris", want)
        self.assertEqual(generate(self.model, self.processor, prompt, max_tokens=8, prompt_cache=quire_vlm.make_cache(self.model, "f32")).text, want)
        self.assertIn("Paris", generate(self.model, self.processor, prompt, max_tokens=8, prompt_cache=quire_vlm.make_cache(self.model, bits=4)).text)

    def test_turns_of_a_conversation(self):
        """mlx-vlm trims the cache to what two prompts share, and goes on from there."""
        text = (ROOT / "eval/text/wiki.txt").read_text()[:300]
        first, second = text + " The", text[:200] + " In the end"
        texts = []
        for state in (PromptCacheState(), None):
            quire_vlm.attach(self.model, "safe")
            try:
                for prompt in (first, second):
                    *_, last = stream_generate(self.model, self.processor, prompt, max_tokens=6, **({} if state is None else dict(prompt_cache_state=state)))
                    made = "".join(r.text for r in _) + last.text
            finally:
                quire_vlm.detach(self.model)
            texts.append(made)
            if state is not None:
                self.assertTrue(all(isinstance(c, quire_vlm.QuireKVCache) for c in state.cache))
                self.assertGreater(last.cached_tokens, 20)
        self.assertEqual(*texts)

    def test_batches(self):
        prompts = ["The capital of France is", "Two plus two equals", "Once upon a time there was a very old man who"]
        want = batch_generate(self.model, self.processor, prompts=prompts, max_tokens=6).texts
        quire_vlm.attach(self.model, "f32")
        try:
            self.assertEqual(batch_generate(self.model, self.processor, prompts=prompts, max_tokens=6).texts, want)
        finally:
            quire_vlm.detach(self.model)


if __name__ == "__main__":
    unittest.main()
