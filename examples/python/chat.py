# SPDX-License-Identifier: MIT
"""Chat with a model of mlx-lm whose KV cache uses 5 bits per value for K, to which small models are more sensitive, and 4 for V.

    python3 examples/python/chat.py MODEL [--policy r5/r4] [--max-tokens 4096] [--say TEXT]...

MODEL: any model that mlx_lm.load() accepts, for example the folder that scripts/make-mlx-model prints. Without --say it reads lines from the
terminal until the input ends.
"""
import argparse

from mlx_lm import load, stream_generate

from quire.mlx_lm import make_cache

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

n_tokens, n_bytes = cache[0].offset, sum(c.nbytes for c in cache)
heads, d_k, d_v = cache[0].keys.shape[1], cache[0].keys.shape[3], cache[0].values.shape[3]
print(f"{n_tokens} tokens in {n_bytes / 1e6:.2f} MB; in f16 they would take {n_tokens * len(cache) * heads * (d_k + d_v) * 2 / 1e6:.2f} MB")
