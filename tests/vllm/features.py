# SPDX-License-Identifier: MIT
"""What an engine does beside plain decoding, with small models: chunks, mixed batches, prefix caching, preemption, windows, soft cap,
speculative decoding, bf16 and f16. With f32 tiles every one of them gives the tokens of vLLM as it is.

    tests/vllm/run.py features.py [plain|chunks|preemption|forms|windows|drafts]...
"""
import sys
import tempfile
from functools import lru_cache

from checks import Checks
from models import answers, engine, make, prompt

check = Checks()
PROMPTS = [prompt(n, i) for i, n in enumerate((5, 300, 64, 129, 700, 33))]
want = None  # main() sets it: the answers of vLLM alone, by model
VARIED = prompt(1500, 99)  # has half of all tokens, so that what follows a token in it can be guessed


def same(name, got, want):
    equal = sum(a == b for a, b in zip(got, want))
    check(equal == len(want), f"{name}: {equal} of {len(want)} answers equal")


def counters(llm):
    """What the scheduler counted, by name."""
    return {x.name: getattr(x, "value", None) for x in llm.get_metrics()}


def plain(models):
    want("llama")
    llm = engine(models["llama"], "f32")
    same("all at once", answers(llm, PROMPTS, 24), want("llama"))
    same("one after the other", [answers(llm, [p], 24)[0] for p in PROMPTS], want("llama"))
    same("again, from the prefix cache", answers(llm, PROMPTS, 24), want("llama"))


def chunks(models):
    """48 tokens per step: prompts are cut, and their chunks are computed beside tokens of other answers."""
    want("llama")
    llm = engine(models["llama"], "f32", max_num_batched_tokens=48, max_num_seqs=8, enable_chunked_prefill=True)
    same("chunks of 48 tokens in mixed batches", answers(llm, PROMPTS, 24), want("llama"))


def preemption(models):
    """Less memory than the answers need: some are taken out and computed again."""
    few = [prompt(n, i) for i, n in enumerate((60, 61, 62, 63))]
    long = answers(engine(models["llama"], "off"), few, 100)
    page = 2 * 64 * 2 * 128 * 4 * 4  # K and V of 64 tokens, two heads of 128 floats, four layers
    llm = engine(models["llama"], "f32", kv_cache_memory_bytes=8 * page, block_size=64, max_model_len=256, max_num_seqs=4,
                 disable_log_stats=False)
    same("with preemption", answers(llm, few, 100), long)
    taken = counters(llm).get("vllm:num_preemptions")
    check(bool(taken), f"{taken} answers were preempted")


def drafts(models):
    """Tokens that are guessed from the text before are checked several at a time. The last part: where numba was loaded, which guesses, this
    version of vLLM cannot start another engine in the process."""
    expected = want("llama")[:3] + answers(engine(models["llama"], "off"), [VARIED], 32)
    llm = engine(models["llama"], "f32", speculative_config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2,
                                                             "prompt_lookup_min": 1}, disable_log_stats=False)
    same("speculative decoding", answers(llm, PROMPTS[:3], 24) + answers(llm, [VARIED], 32), expected)
    n_drafts = counters(llm).get("vllm:spec_decode_num_draft_tokens")
    check(bool(n_drafts), f"{n_drafts} tokens were drafted")


def forms(models):
    for dtype, policy in (("bfloat16", "bf16"), ("float16", "f16")):
        first = answers(engine(models["llama"], "off", dtype=dtype), PROMPTS, 1)
        got = answers(engine(models["llama"], policy, dtype=dtype), PROMPTS, 1)
        same(f"{dtype}, first tokens", got, first)  # both round, at different places: later ones may differ


def windows(models):
    want("gemma2")
    for name, options in {"windows and soft cap": {}, "windows and soft cap, chunks": {"max_num_batched_tokens": 48, "max_num_seqs": 8}}.items():
        llm = engine(models["gemma2"], "f32", **options)
        same(name, answers(llm, PROMPTS, 24), want("gemma2"))
        same(f"{name}, again", answers(llm, PROMPTS, 24), want("gemma2"))
        del llm


PARTS = {x.__name__: x for x in (plain, chunks, preemption, forms, windows, drafts)}


def main():
    global want
    chosen = sys.argv[1:] or list(PARTS)
    with tempfile.TemporaryDirectory(prefix="quire-vllm-") as folder:
        models = {name: make(folder, name) for name in ("llama", "gemma2")}
        want = lru_cache(maxsize=None)(lambda name: answers(engine(models[name], "off"), PROMPTS, 24))
        for name in chosen:
            PARTS[name](models)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
