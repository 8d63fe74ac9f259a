# SPDX-License-Identifier: MIT
"""What an engine does beside plain decoding, with small models: chunks, mixed batches, prefix caching, preemption, windows, soft cap,
speculative decoding, bf16 and f16. With f32 tiles every one of them gives the tokens of vLLM as it is."""
import sys
import tempfile

from checks import Checks
from models import answers, engine, make, prompt

check = Checks()
PROMPTS = [prompt(n, i) for i, n in enumerate((5, 300, 64, 129, 700, 33))]
# A text that repeats itself, so that n-grams are found.
REPEATED = {"prompt_token_ids": prompt(40, 99)["prompt_token_ids"] * 6}


def same(name, got, want):
    equal = sum(a == b for a, b in zip(got, want))
    check(equal == len(want), f"{name}: {equal} of {len(want)} answers equal")


def counters(llm):
    """What the scheduler counted, by name."""
    return {x.name: getattr(x, "value", None) for x in llm.get_metrics()}


def llama(folder):
    model = make(folder, "llama")
    stock = engine(model, "off")
    want, repeated = answers(stock, PROMPTS, 24), answers(stock, [REPEATED], 48)
    del stock
    llm = engine(model, "f32")
    same("all at once", answers(llm, PROMPTS, 24), want)
    same("one after the other", [answers(llm, [p], 24)[0] for p in PROMPTS], want)
    same("again, from the prefix cache", answers(llm, PROMPTS, 24), want)
    same("a repeated text", answers(llm, [REPEATED], 48), repeated)
    del llm
    # 48 tokens per step: prompts are cut, and their chunks are computed beside tokens of other answers.
    llm = engine(model, "f32", max_num_batched_tokens=48, max_num_seqs=8, enable_chunked_prefill=True)
    same("chunks of 48 tokens in mixed batches", answers(llm, PROMPTS, 24), want)
    del llm
    # Less memory than the answers need: some are taken out and computed again.
    few = [prompt(n, i) for i, n in enumerate((60, 61, 62, 63))]
    stock = engine(model, "off")
    long = answers(stock, few, 200)
    del stock
    page = 2 * 64 * 2 * 128 * 4 * 4  # K and V of 64 tokens, two heads of 128 floats, four layers
    llm = engine(model, "f32", kv_cache_memory_bytes=9 * page, block_size=64, max_model_len=512, max_num_seqs=4,
                 disable_log_stats=False)
    same("with preemption", answers(llm, few, 200), long)
    taken = counters(llm).get("vllm:num_preemptions")
    check(bool(taken), f"{taken} answers were preempted")
    del llm
    llm = engine(model, "f32", speculative_config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,
                                                   "prompt_lookup_min": 2}, disable_log_stats=False)
    same("speculative decoding", answers(llm, PROMPTS, 24) + answers(llm, [REPEATED], 48), want + repeated)
    drafts = counters(llm).get("vllm:spec_decode_num_draft_tokens")
    check(bool(drafts), f"{drafts} tokens were drafted")
    del llm
    for dtype, policy in (("bfloat16", "bf16"), ("float16", "f16")):
        stock = engine(model, "off", dtype=dtype)
        want = answers(stock, PROMPTS, 8)
        del stock
        llm = engine(model, policy, dtype=dtype)
        got = answers(llm, PROMPTS, 8)
        del llm
        # Both round, at different places: the first tokens agree.
        first = sum(a[0] == b[0] for a, b in zip(got, want))
        check(first == len(want), f"{dtype}: {first} of {len(want)} first tokens equal")


def gemma2(folder):
    model = make(folder, "gemma2")
    stock = engine(model, "off")
    want = answers(stock, PROMPTS, 24)
    del stock
    for name, options in {"windows and soft cap": {}, "windows and soft cap, chunks": {"max_num_batched_tokens": 48, "max_num_seqs": 8}}.items():
        llm = engine(model, "f32", **options)
        same(name, answers(llm, PROMPTS, 24), want)
        same(f"{name}, again", answers(llm, PROMPTS, 24), want)
        del llm


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="quire-vllm-") as folder:
        for part in (llama, gemma2):
            part(folder)
    sys.exit(check.end())
