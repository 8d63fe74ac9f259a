# SPDX-License-Identifier: MIT
"""Generates answers to prompts of different lengths with mlx-lm's batch generator. The quantized caches share the common prefix.

    python3 examples/python/batch.py MODEL [--policy k8v4] [--answer-tokens 48] [--prompts N]

MODEL: as for chat.py; at least one of its layers must have full attention.
"""
import argparse
import copy

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import batch_generate

from quire.mlx_lm import QuireKVCache, make_cache

SYSTEM = "You answer in one short sentence."
QUESTIONS = ["What is the capital of France?", "Why is the sky blue? Explain it to somebody who has never thought about it.", "Name a prime number.",
             "How do I keep bread fresh for more than two days without a freezer?"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--policy", default="k8v4", help="cache policy, see docs/policy.md")
parser.add_argument("--answer-tokens", type=int, default=48)
parser.add_argument("--prompts", type=int, default=len(QUESTIONS), choices=range(1, len(QUESTIONS) + 1))
args = parser.parse_args()

model, tokenizer = load(args.model)
prompts = [tokenizer.apply_chat_template([{"role": "system", "content": SYSTEM}, {"role": "user", "content": q}], add_generation_prompt=True)
           for q in QUESTIONS[:args.prompts]]
shared = next(i for i in range(len(prompts[0])) if len({tuple(p[:i + 1]) for p in prompts}) > 1) if len(prompts) > 1 else 0

# The common prefix is computed once. Copies of the cache share its pages until they write.
first = make_cache(model, args.policy)
if shared:
    model(mx.array([prompts[0][:shared]]), cache=first)
done = batch_generate(model, tokenizer, [p[shared:] for p in prompts], prompt_caches=[copy.deepcopy(first) for _ in prompts],
                      max_tokens=args.answer_tokens, return_prompt_caches=True)
for question, text, cache in zip(QUESTIONS, done.texts, done.caches):
    ours = [c for c in cache if isinstance(c, QuireKVCache)]  # other layers have caches of mlx-lm
    print(f"> {question}\n{text.strip()}\n  ({ours[0].offset} tokens, {sum(c.nbytes for c in ours) / 1e6:.2f} MB)")
