# SPDX-License-Identifier: MIT
"""What the tests of quire.mlx_vlm share: small models with random weights, mlx-vlm's own generators, and its TurboQuant states."""
import importlib
import sys
from functools import lru_cache
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_vlm.generate import generate_step
from mlx_vlm.generate.ar import BatchGenerator
from mlx_vlm.utils import StoppingCriteria

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "mlx"))  # reference.py needs nothing of mlx-lm, and support.py nothing before a model is asked for
from support import MOST, ROOT, model_folder, numpy, rows, unexplained  # noqa: E402, F401

COMMON = dict(hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
              vocab_size=211, head_dim=64, max_position_embeddings=8192)
PROMPTS = [[5, 9, 2, 77, 31, 8, 100, 3], [8, 8, 1], [150], [17, 3, 6, 12, 44, 201, 7, 7, 19, 23, 54, 65, 2, 9, 9, 1, 30]]


@lru_cache(None)
def small_model(kind="llama", seed=7, **more):
    """A text model of mlx-vlm with random weights, large enough that its greedy texts wander."""
    mx.random.seed(seed)
    module = importlib.import_module(f"mlx_vlm.models.{kind}")
    model = module.Model(module.ModelConfig.from_dict({**COMMON, "model_type": kind, **more}))
    wander = lambda x: mx.random.normal(x.shape) * (0.25 if x.ndim > 1 else 0.1) + (x.ndim == 1) if x.dtype == mx.float32 else x
    model.update(tree_map(wander, model.parameters()))
    mx.eval(model.parameters())
    return model


def greedy(model, prompt, cache, count, **options):
    steps = generate_step(mx.array([prompt]), model, None, None, max_tokens=count, prompt_cache=cache, **options)
    return [int(t) for t, _ in steps]


def logits(model, tokens, cache):
    """Of every token of one forward pass: (token, vocabulary)."""
    return numpy(model.language_model(mx.array([tokens]), cache=cache).logits[0])


class NoText:
    """The batch generator asks a tokenizer only where to stop: here never."""

    def __init__(self):
        self.eos_token_id = None
        self.stopping_criteria = StoppingCriteria([], self)


def batch(model, prompts, count, later=(), **options):
    """Greedy texts of mlx-vlm's batch generator; prompts in `later` enter after three steps."""
    generator = BatchGenerator(model.language_model, NoText(), max_tokens=count, **options)

    def insert(some):
        embedded = [dict(inputs_embeds=model.get_input_embeddings(mx.array([p])).inputs_embeds) for p in some]
        return generator.insert(some, prompt_kwargs=embedded)

    try:
        uids, texts, steps = insert(prompts), {}, 0
        while generator.has_work:
            _, found = generator.next()
            for r in found:
                texts.setdefault(r.uid, []).append(r.token)
            steps += bool(found)
            if later and steps == 3:
                uids, later = uids + insert(later), ()
        return [texts[u] for u in uids]
    finally:
        generator.close()


def attend(cache, q, k, v, scale=None, mask="make", sinks=None):
    """As the models of mlx-vlm do it."""
    from mlx_vlm.models.base import scaled_dot_product_attention
    mask = cache.make_mask(k.shape[2], return_array=False, window_size=None) if isinstance(mask, str) and mask == "make" else mask
    keys, values = cache.update_and_fetch(k, v)
    return scaled_dot_product_attention(q, keys, values, cache, scale=scale or q.shape[-1] ** -0.5, mask=mask, sinks=sinks)


def same_state(test, ours, theirs, padding=None):
    """Norms and indices of two TurboQuant states, bit for bit; columns of padding are left out."""
    for name in ("norms", "indices"):
        a, b = np.array(getattr(ours, name)), np.array(getattr(theirs, name))
        test.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
        for i, first in enumerate(padding or [0] * len(a)):
            np.testing.assert_array_equal(a[i, :, first:], b[i, :, first:], name)
