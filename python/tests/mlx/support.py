# SPDX-License-Identifier: MIT
"""What the tests share: rows, small models with random weights, and the real model if it was made (scripts/make-mlx-model)."""
import os
import subprocess
import sys
import unittest
from functools import lru_cache
from pathlib import Path

import mlx.core as mx
import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "python" / "tests"))  # at the end: it has a support.py, too
from explained import unexplained  # noqa: E402, F401

MOST = 5e-4  # what attention may differ from double precision, per output row
mx.set_default_device(mx.cpu)


def rows(seed, *shape, dtype=mx.float32, spread=2.0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * spread).astype(dtype)


def numpy(x):
    return np.array(x.astype(mx.float32))


def attend(cache, q, k, v, scale=None, mask="make", sinks=None):
    """As a model does it."""
    mask = cache.make_mask(k.shape[2], return_array=False, window_size=None) if isinstance(mask, str) and mask == "make" else mask
    keys, values = cache.update_and_fetch(k, v)
    return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale or q.shape[-1] ** -0.5, mask=mask, sinks=sinks)


@lru_cache(None)
def small_model(heads=4, kv_heads=2, head_dim=32, layers=2, kind="llama"):
    """Random weights, large enough that its greedy texts wander."""
    mx.random.seed(7)
    args = dict(model_type=kind, hidden_size=64, num_hidden_layers=layers, intermediate_size=96, num_attention_heads=heads,
                rms_norm_eps=1e-5, vocab_size=211, head_dim=head_dim, num_key_value_heads=kv_heads)
    if kind == "llama":
        from mlx_lm.models.llama import Model, ModelArgs
    else:
        from mlx_lm.models.qwen2 import Model, ModelArgs
        args.pop("head_dim")
    from mlx.utils import tree_map
    model = Model(ModelArgs(**args))
    model.update(tree_map(lambda x: mx.random.normal(x.shape) * (0.25 if x.ndim > 1 else 0.1) + (x.ndim == 1), model.parameters()))
    mx.eval(model.parameters())
    return model


def greedy(model, prompt, cache, count, **options):
    from mlx_lm.generate import generate_step
    return [int(t) for t, _ in generate_step(mx.array(prompt), model, max_tokens=count, prompt_cache=cache, **options)]


def model_folder():
    """Where SmolLM2 135M lies; skips the test where it cannot be had."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts/make-mlx-model")], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "QUIRE_OFFLINE": "1", "LD_PRELOAD": ""})
    if done.returncode:
        raise unittest.SkipTest("no model (scripts/make-mlx-model)")
    return done.stdout.strip()


@lru_cache(None)
def real_model():
    """SmolLM2 135M and its tokenizer."""
    from mlx_lm import load
    return load(model_folder())
