# SPDX-License-Identifier: MIT
"""Chat with a model of mlx-lm whose KV cache uses 5 bits per value for K, to which small models are more sensitive, and 4 for V.

    python3 examples/python/chat.py MODEL [--policy r5/r4] [--max-tokens 4096] [--say TEXT]...

MODEL: a model that mlx_lm.load() accepts and that has a chat template, for example the folder that scripts/make-mlx-model prints. Models that
compute with keys and values themselves (Gemma 2 and others, docs/python.md#mlx-lm) raise TypeError. Without --say it reads lines from the terminal
until the input ends.
"""
import argparse

from mlx_lm import load, stream_generate

from quire.mlx_lm import QuireKVCache, make_cache

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--policy", default="r5/r4", help="cache policy, see docs/policy.md")
parser.add_argument("--max-tokens", type=int, help="keep at most this many tokens: the first few and the most recent ones")
parser.add_argument("--say", action="append", help="a line of input, instead of the terminal; can be given several times")
parser.add_argument("--answer-tokens", type=int, default=256)
args = parser.parse_args()


def lines():
    if args.say:
        for line in args.say:
            print(f"> {line}")
            yield line
        return
    while True:
        try:
            yield input("> ")
        except EOFError:
            return


model, tokenizer = load(args.model)
cache = make_cache(model, args.policy, max_tokens=args.max_tokens)  # one for the whole conversation: each turn adds to it
for line in lines():
    said = [{"role": "user", "content": line}]
    for part in stream_generate(model, tokenizer, tokenizer.apply_chat_template(said, add_generation_prompt=True),
                                max_tokens=args.answer_tokens, prompt_cache=cache):
        print(part.text, end="", flush=True)
    print()

# Layers without full attention have caches of mlx-lm, and before the first token nothing is known of the others.
ours = [c for c in cache if isinstance(c, QuireKVCache) and not c.empty()]
if ours:
    held, seen = ours[0].size(), ours[0].offset
    f16_bytes = sum(c.size() * c.keys.shape[1] * (c.keys.shape[3] + c.values.shape[3]) * 2 for c in ours)
    print(f"{held if held == seen else f'{held} of {seen}'} tokens in {len(ours)} of {len(cache)} layers: {sum(c.nbytes for c in ours) / 1e6:.2f} MB; "
          f"in f16 they would take {f16_bytes / 1e6:.2f} MB")
