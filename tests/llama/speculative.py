#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Speculative decoding: several tokens are stored and attended at once, and those that were wrong are removed.
Greedy text must not change by it.
"""
import kit
from kit import expect, note

REPEATED = "the cat sat on the mat, the dog lay on the rug, "


def prompts():
    return [REPEATED * 4 + "the cat", *kit.PROMPTS[:2 if kit.quick else 6], kit.text(12000, 500)]


def compare(path, policy):
    env = {"QUIRE_KV": policy} if policy else None
    n = 32 if kit.quick else 128
    kinds = {"draft model": ["-md", path, "--spec-type", "draft-simple"],
             "n-grams": ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 4]}
    if not kit.quick:
        kinds["n-grams of ngram-mod"] = ["--spec-type", "ngram-mod"]
        kinds["draft model of 6 tokens"] = ["-md", path, "--spec-type", "draft-simple", "--spec-draft-n-max", 6]

    def answers(args):
        with kit.Server(path, "-c", 2048, "-np", 1, *args, env=env) as s:
            return [s.completion(p, n, cache=False, ignore_eos=True) for p in prompts()]

    plain = answers([])
    for kind, args in kinds.items():
        name = f"{kind}, {policy or 'f16'}"
        drafted = answers(args)
        wrong = [f"parts at token {kit.parting(a, b)}: {a.text!r} and {b.text!r}" for a, b in zip(plain, drafted)
                 if kit.parting(a, b) is not None]
        expect(not wrong, f"{name}: the same text as without", "; ".join(wrong))
        made = sum(a.timings.get("draft_n", 0) for a in drafted)
        taken = sum(a.timings.get("draft_n_accepted", 0) for a in drafted)
        note(f"{name}: {taken} of {made} drafted tokens accepted")
        expect(taken > 0, f"{name}: drafts were accepted")


def several_slots(path):
    """Two slots with drafts at once."""
    n = 24 if kit.quick else 96
    with kit.Server(path, "-c", 4096, "-np", 2, "--no-kv-unified", "-md", path, "--spec-type", "draft-simple") as s:
        calls = [dict(prompt=p, n=n, slot=i, cache=False, ignore_eos=True) for i, p in enumerate(prompts()[:2])]
        alone = [s.completion(**c) for c in calls]
        together = s.together(calls)
    expect([a.tokens for a in alone] == [b.tokens for b in together],
           "draft model, two slots: text the same alone and together",
           f"{[a.text for a in alone]} and {[b.text for b in together]}")


def run():
    smol = kit.model("smollm2-135m")
    kit.part(compare, smol, None)
    kit.part(compare, smol, "r5/r4")
    kit.part(several_slots, smol)


kit.main(run)
