#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What llama-server does with sequences: slots in one batch, save and restore, copies, removal, prompt cache,
checkpoints. Each with f16 as declared and under a policy.
"""
import os

import kit
from kit import expect

POLICIES = [None, "r5/r4"]
MODES = {"split": ["--no-kv-unified"], "unified": ["-kvu"]}


def environment(policy):
    return {"QUIRE_KV": policy} if policy else None


def name_of(mode, policy):
    return f"{mode}, {policy or 'f16'}"


def prompts():
    """Four of different lengths: within a tile, at its edge, over several."""
    return [kit.PROMPTS[0], kit.text(3000, 260), kit.PROMPTS[5], kit.text(9000, 700 if kit.quick else 2400)]


def four_slots(path, mode, policy):
    """Requests alone and with three others, then files of slots whose cells lie between one another."""
    name, n = name_of(mode, policy), 16 if kit.quick else 64
    with kit.Server(path, "-c", 4096, "-np", 4, "--cache-ram", 0, *MODES[mode], env=environment(policy)) as s:
        calls = [dict(prompt=p, n=n, slot=i, cache=False, n_probs=2, ignore_eos=True)
                 for i, p in enumerate(prompts())]
        for i in range(4):
            s.erase(i)
        alone = []
        for call in calls:
            alone.append(s.completion(**call))
            s.erase(call["slot"])
        together = s.together(calls)
        differ = [i for i in range(4) if kit.parting(alone[i], together[i]) is not None]
        detail = "; ".join(f"slot {i} parts at token {kit.parting(alone[i], together[i])}: {alone[i].text!r} and "
                           f"{together[i].text!r}" for i in differ)
        if mode == "split":
            expect(not differ, f"{name}: text the same alone and with three others", detail)
        else:  # cells lie in another order, so sums are rounded in another order
            expect(all(kit.tie(a, b) for a, b in zip(alone, together)),
                   f"{name}: text the same alone and with three others, or it parts at a tie", detail)
        round_trip(s, name)


def round_trip(s, name):
    """Save, erase, restore, save: every slot, the others staying where they are."""
    first = {i: s.save(i, f"first-{i}") for i in range(4)}
    wrong = []
    for i in range(4):
        s.erase(i)
        s.restore(i, f"first-{i}")
        for j in range(4):
            again = s.save(j, f"again-{j}")
            if not kit.same_files(first[j], again):
                wrong.append(f"slot {j} after slot {i} came back: {kit.difference(first[j], again)}")
    expect(not wrong, f"{name}: save, erase, restore, save gives the same file", "; ".join(wrong))
    for i in range(4):
        s.erase(i)
    for i in (2, 0, 3, 1):
        s.restore(i, f"first-{i}")
    wrong = [f"slot {i}: {kit.difference(first[i], s.slots / f'last-{i}')}" for i in range(4)
             if not kit.same_files(first[i], s.save(i, f"last-{i}"))]
    expect(not wrong, f"{name}: all slots erased and restored in another order give the same files", "; ".join(wrong))


def copies(path, mode, policy):
    """n completions of one prompt: its rows are copied to the other sequences."""
    name, n = name_of(mode, policy), 12 if kit.quick else 48
    prompt = kit.text(30000, 500)
    with kit.Server(path, "-c", 4096, "-np", 4, "--cache-ram", 0, *MODES[mode], env=environment(policy)) as s:
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 2, "cache_prompt": False}
        single = s.need("/v1/completions", body)["choices"]
        several = s.need("/v1/completions", {**body, "n": 3})["choices"]
        sampled = s.need("/v1/completions", {**body, "n": 3, "temperature": 0.9, "seed": 7})["choices"]
    texts = [c["text"] for c in several]
    # In a unified cache the copies lie in other cells, and sums in another order round otherwise: they may part at a tie,
    # late, after more than the prompt was computed.
    common = len(os.path.commonprefix(texts))
    expect(len(texts) == 3 and (len(set(texts)) == 1 or (mode == "unified" and common >= 20)),
           f"{name}: three greedy completions of one prompt are equal", f"{texts}")
    if mode == "split":
        expect(texts[0] == single[0]["text"], f"{name}: and equal to a single one", f"{[single[0]['text'], texts[0]]}")
    expect(all(kit.sane(c["text"]) for c in sampled), f"{name}: three sampled completions are text",
           f"{[c['text'] for c in sampled]}")


def removal(path, mode, policy):
    """A prompt that keeps the beginning of the one before it: the rest is removed, and what stays is untouched."""
    name, n = name_of(mode, policy), 12 if kit.quick else 48
    begin, a, b = kit.text(40000, 600), kit.text(50000, 300), kit.text(60000, 300)
    with kit.Server(path, "-c", 4096, "-np", 2, "--cache-ram", 0, *MODES[mode], env=environment(policy)) as s:
        s.completion(begin + a, n, slot=0)
        reused = s.completion(begin + b, n, slot=0, n_probs=2)
        s.erase(0)
        fresh = s.completion(begin + b, n, slot=0, n_probs=2)
        tokens = s.tokens(begin)
    expect(reused.n_cached >= len(tokens) - 2 and fresh.n_cached == 0, f"{name}: the common beginning was kept",
           f"{reused.n_cached} of {len(tokens)} tokens, {fresh.n_cached} after erase")
    expect(kit.tie(reused, fresh), f"{name}: text after removal as from an empty slot",
           f"{reused.text!r} and {fresh.text!r}")


def prompt_cache(path, policy):
    """--cache-ram: a prompt pushed out of its slot comes back without being computed."""
    name, n = name_of("prompt cache", policy), 12 if kit.quick else 48
    a, b = kit.text(70000, 900), kit.text(80000, 900)
    with kit.Server(path, "-c", 2048, "-np", 1, "--cache-ram", 256, env=environment(policy)) as s:
        first = s.completion(a, n, slot=0, n_probs=2)
        s.completion(b, n, slot=0)
        again = s.completion(a, n, slot=0, n_probs=2)
    expect(again.n_cached >= first.raw["tokens_evaluated"] - 8, f"{name}: came back from RAM",
           f"{again.n_cached} of {first.raw['tokens_evaluated']} tokens")
    expect(kit.tie(first, again), f"{name}: the same text", f"{first.text!r} and {again.text!r}")


def checkpoints(path, policy):
    """Layers with a window forget. The host keeps copies of their rows and puts one back when a prompt turns out
    to go on differently from a place that the window has passed."""
    name, n = name_of("checkpoints", policy), 8 if kit.quick else 32
    size = 2300 if kit.quick else 6000
    begin, a, b = kit.text(90000, size), kit.text(110000, size), kit.text(130000, 200)
    with kit.Server(path, "-c", 8192, "-np", 1, "--cache-ram", 0, "-ub", 128, env=environment(policy)) as s:
        s.completion(begin, n, slot=0)
        s.completion(begin + a, n, slot=0)
        back = s.completion(begin + b, n, slot=0, n_probs=10)
        moved = s.says("created context checkpoint") and s.says("restored context checkpoint")
        s.save(0, "a")
        s.erase(0)
        s.restore(0, "a")
        same = kit.same_files(s.slots / "a", s.save(0, "b"))
        fresh = s.completion(begin + b, n, slot=0, cache=False, n_probs=10)
    # The prompt goes in other batches, which round otherwise, and codes of 5 bits pass that on: with the size of batches
    # alone log-probabilities here move by half a nat.
    expect(moved, f"{name}: made and put back")
    expect(back.n_cached > 300, f"{name}: the prompt was not computed from its start", f"{back.n_cached} tokens")
    expect(kit.apart(back, fresh) <= 3 if policy else kit.tie(back, fresh), f"{name}: the same text as from an empty slot, or nearly",
           f"{back.text!r} and {fresh.text!r}, {kit.apart(back, fresh):.2f} apart")
    expect(same, f"{name}: save, erase, restore, save gives the same file, both caches")


def run():
    smol, gemma = kit.model("smollm2-135m"), kit.model("gemma3-270m")
    for policy in POLICIES:
        for mode in MODES:
            kit.part(four_slots, smol, mode, policy)
            # The quick form takes half of the pairs.
            if kit.quick and (mode == "unified") != bool(policy):
                continue
            kit.part(removal, smol, mode, policy)
        for mode in MODES:
            if not kit.quick or (mode == "split") == bool(policy):
                kit.part(copies, smol, mode, policy)
        kit.part(prompt_cache, smol, policy)
        if not kit.quick or policy:
            kit.part(checkpoints, gemma, policy)


kit.main(run)
