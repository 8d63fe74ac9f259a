#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Without QUIRE_KV and with the default f16 cache the device is as good as the host itself.

The yardstick is the host with an f32 cache and without flash attention (with it the host rounds an f32 cache to
f16 before use). These models have weights of 4 bits and activations of 8, so any other order of rounding moves the
logits by about as much as f16 does; the device may be as far from the yardstick as the host's own f16, not farther.
"""
import kit
from kit import expect, note

F32 = ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]


def divergence(name, path, ctx, chunks):
    """Mean KL to f32 against the host's own, three standard errors of the comparison allowed."""
    base = kit.folder() / f"{name}.logits"
    try:
        kit.perplexity(path, F32, plugin=False, ctx=ctx, chunks=chunks, save=base)
        stock = kit.perplexity(path, plugin=False, ctx=ctx, chunks=chunks, base=base)
        ours = kit.perplexity(path, ctx=ctx, chunks=chunks, base=base)
    finally:
        base.unlink(missing_ok=True)  # a gigabyte for four chunks of Gemma3
    for who, f in (("stock", stock), ("device", ours)):
        note(f"{name} {who}: mean KL {f['kld']:.6f} +/- {f['kld_error']:.6f}, 99 % {f['kld99']:.6f}, "
             f"top-1 {f['top1']:.2f} %, PPL {f['ppl']:.4f}, ratio {f['ratio']:.5f} +/- {f['ratio_error']:.5f}")
    error = (stock["kld_error"] ** 2 + ours["kld_error"] ** 2) ** 0.5
    expect(ours["kld"] <= stock["kld"] + 3 * error + 1e-6, f"{name}: mean KL to f32 no larger than stock's",
           f"{ours['kld']} and {stock['kld']}, error {error:.6f}")
    expect(ours["kld99"] <= 2 * stock["kld99"] + 1e-4, f"{name}: 99 % of KL at most twice stock's",
           f"{ours['kld99']} and {stock['kld99']}")
    expect(abs(ours["ratio"] - 1) <= 4 * ours["ratio_error"] + 1e-4, f"{name}: PPL ratio is 1 within its error",
           f"{ours['ratio']} +/- {ours['ratio_error']}")


def far(exact, answer, n):
    """Root mean square difference of the log-probabilities of the whole vocabulary, over n tokens."""
    squares = []
    for i in range(n):
        reference = dict(exact.probs[i])
        squares += [(p - reference[t]) ** 2 for t, p in answer.probs[i] if t in reference]
    return (sum(squares) / len(squares)) ** 0.5 if squares else 0.0


def fine_grain():
    """Weights of f32 do not amplify, so this sees errors a hundred times smaller than the models show."""
    path = kit.made_model("--type", "f32", "--layers", "4", "--embd", "512", "--heads", "8", "--kv-heads", "2")
    n, count = (40, 4) if kit.quick else (200, 10)
    prompts = [kit.text(3000 * i + 1000, 1200) for i in range(count)]
    answers = {}
    for who, args, plugin in (("f32", F32, False), ("stock", [], False), ("device", [], True)):
        with kit.Server(path, "-c", 2048, "-np", 1, *args, plugin=plugin) as s:
            answers[who] = [s.completion(p, n, cache=False, n_probs=1000, ignore_eos=True) for p in prompts]
    # Up to the first token in which one of the three differs: there all three have seen the same.
    ends = [min([n] + [i for i in (kit.parting(answers["f32"][j], answers[w][j]) for w in ("stock", "device"))
                       if i is not None]) for j in range(count)]
    error, same = {}, {}
    for who in ("stock", "device"):
        pairs = list(zip(answers["f32"], answers[who]))
        error[who] = max(far(a, b, end) for (a, b), end in zip(pairs, ends))
        same[who] = sum(kit.parting(a, b) is None for a, b in pairs)
        note(f"made model, {who}: log-probabilities within {error[who]:.1e} of f32 (rms, worst of {count} prompts), "
             f"{same[who]} texts of {n} tokens as with f32")
    expect(error["device"] <= error["stock"], "made model: log-probabilities as near to f32 as stock's", f"{error}")
    expect(same["device"] >= min(same["stock"], 0.8 * count), "made model: as many texts equal to those of f32",
           f"{same}")


def greedy(name, path):
    """The same text as stock; where it parts, the two likeliest tokens were nearly as likely."""
    n = 40 if kit.quick else 200
    answers = {}
    for who, plugin in (("stock", False), ("device", True)):
        with kit.Server(path, "-c", 1024, "-np", 1, plugin=plugin) as s:
            answers[who] = [s.completion(p, n, cache=False, n_probs=3) for p in kit.PROMPTS]
    same, clear = 0, []
    for prompt, a, b in zip(kit.PROMPTS, answers["stock"], answers["device"]):
        i = kit.parting(a, b)
        if i is None:
            same += 1
            continue
        note(f"{name}: {prompt!r} parts at token {i}: the two likeliest are {kit.gap(a, i):.3f} apart with stock, "
             f"{kit.gap(b, i):.3f} with the device; log-probabilities before moved by up to {kit.drift(a, b)[0]:.3f}")
        if not kit.tie(a, b):
            clear.append(prompt)
    expect(not clear, f"{name}: greedy text of {n} tokens as stock's for {same} of {len(kit.PROMPTS)} prompts, "
           "the others part at a tie", f"no tie: {clear}")


def run():
    smol = kit.model("smollm2-135m")
    kit.part(divergence, "smollm2", smol, 512, 2 if kit.quick else 16)
    kit.part(fine_grain)
    kit.part(greedy, "smollm2", smol)
    if not kit.quick:
        gemma = kit.model("gemma3-270m")
        kit.part(divergence, "gemma3", gemma, 1024, 4)
        kit.part(greedy, "gemma3", gemma)


kit.main(run)
