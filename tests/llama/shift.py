#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Positions of stored rows change: --context-shift and --cache-reuse rotate K in place.

The text that stock writes is forced upon the device with a grammar, so that both have the same tokens behind them and
log-probabilities can be compared on both sides of a shift. A shift that went wrong moves them far more than rounding.
"""
import json

import kit
from kit import expect, note

Q8 = ["-ctk", "q8_0", "-ctv", "q8_0"]
MODES = {"f16": ([], None), "q8_0": (Q8, None), "r4": ([], {"QUIRE_KV": "r4"})}


def pieces(answer):
    """(first byte, last byte): log-probability. The same text may be cut into other tokens."""
    found, at = {}, 0
    for token in answer.raw["completion_probabilities"]:
        end = at + len(token["bytes"])
        found[at, end] = token["logprob"]
        at = end
    return found


def apart(a, b, begin, end):
    """Root mean square difference of log-probabilities between two bytes of the text; number of pieces."""
    a, b = pieces(a), pieces(b)
    d = [a[p] - b[p] for p in a if p in b and begin <= p[0] and p[1] <= end]
    return (sum(x * x for x in d) / len(d)) ** 0.5 if d else float("nan"), len(d)


_stock = {}


def stock_text(server, prompt, how):
    """Stock's answer and whether it shifted; modes that declare the same types share it."""
    key = str((server, how))
    if key not in _stock:
        with kit.Server(*server, plugin=False) as s:
            _stock[key] = s.completion(prompt, **how), s.says("slot context shift")
    return _stock[key]


def context_shift(path, label, mode, limit):
    """Generation runs over the end of the context; half of it goes, the rest moves down."""
    args, env = MODES[mode]
    name = f"{label}, context shift, {mode}"
    prompt, n = kit.text(20000, 380 if label == "smollm2" else 120), 210 if kit.quick else 600
    how = dict(n=n, n_probs=1, ignore_eos=True, repeat_penalty=1.15, repeat_last_n=64)
    server = [path, "-c", 256, "-np", 1, "--context-shift", *args]
    stock, shifts = stock_text(server, prompt, how)
    grammar = "root ::= " + json.dumps(stock.text, ensure_ascii=False) + " [^\\x00]*"
    with kit.Server(*server, env=env) as s:
        forced = s.completion(prompt, grammar=grammar, **how)
        done = s.says("slot context shift")
        s.erase(0)
        free = s.completion(prompt, **how) if env or not kit.quick else None
    expect(shifts and done, f"{name}: happened", f"{shifts} with stock, {done} with the device")
    if free and label != "made model":
        note(f"{name}: own text the same as stock's for {kit.parting(stock, free)} tokens")
        expect(kit.sane(free.text), f"{name}: text is text", f"{free.text!r}")
    first = 256 - stock.raw["tokens_evaluated"]  # tokens before the first shift
    place = sum(len(t["bytes"]) for t in stock.raw["completion_probabilities"][:first])
    length = len(stock.text.encode())
    before, n_before = apart(stock, forced, 0, place)
    after, n_after = apart(stock, forced, place, length)
    note(f"{name}: log-probabilities {before:.4f} from stock's before ({n_before} tokens), {after:.4f} after "
         f"({n_after})")
    expect(n_before >= first // 2 and n_after >= (len(stock.tokens) - first) // 2, f"{name}: tokens to compare",
           f"{n_before} of {first}, {n_after} of {len(stock.tokens) - first}")
    expect(before <= limit, f"{name}: as stock before the shift", f"{before}")
    # If the text was cut into other tokens, the shifts come at other places, and half a context differs: 0.26 was seen where
    # 0.05 is usual. A shift that goes wrong gives several.
    expect(after <= max(limit, 6 * before), f"{name}: as stock after the shift", f"{before} before, {after} after")


def cache_reuse(path, mode, limit):
    """A piece is cut out of the middle of a prompt: what follows it is moved, not computed."""
    args, env = MODES[mode]
    name = f"cache reuse, {mode}"
    count = 3 if kit.quick else 10
    prompts = [[kit.text(8000 * i + begin, n) for begin, n in ((100, 300), (3000, 250), (5000, 500))]
               for i in range(count)]
    server = [path, "-c", 2048, "-np", 1, "--cache-ram", 0, "--cache-reuse", 32, *args]
    answers = {}
    for who, plugin in (("stock", False), ("device", True)):
        with kit.Server(*server, plugin=plugin, env=env if plugin else None) as s:
            moved, fresh = [], []
            for texts in prompts:
                a, b, c = (s.tokens(t, special=False) for t in texts)  # cut between tokens
                s.completion(a + b + c, 1, slot=0, cache=False)
                moved.append(s.completion(a + c, 8, slot=0, n_probs=10))
                s.erase(0)
                fresh.append(s.completion(a + c, 8, slot=0, cache=False, n_probs=10))
            answers[who] = moved, fresh
    moved, fresh = answers["device"]
    expect(all(m.n_cached >= f.raw["tokens_evaluated"] - 16 for m, f in zip(moved, fresh)),
           f"{name}: happened", f"{[(m.n_cached, f.raw['tokens_evaluated']) for m, f in zip(moved, fresh)]}")

    def distance(which):
        """To stock, over the ten likeliest tokens after each prompt."""
        d = []
        for x, y in zip(answers["stock"][which], answers["device"][which]):
            x, y = dict(x.probs[0]), dict(y.probs[0])
            d += [x[t] - y[t] for t in x if t in y]
        return (sum(v * v for v in d) / len(d)) ** 0.5, len(d)

    (after, n), (before, _) = distance(0), distance(1)
    note(f"{name}: log-probabilities {before:.4f} from stock's when computed, {after:.4f} when moved ({n} tokens)")
    expect(n >= 5 * count, f"{name}: the likeliest tokens are stock's", f"{n} of {10 * count} in common")
    expect(before <= limit, f"{name}: as stock when computed", f"{before}")
    expect(after <= max(limit, 2 * before), f"{name}: as stock when moved", f"{before} computed, {after} moved")
    if mode != "r4":
        expect(all(kit.tie(x, y) for x, y in zip(answers["stock"][0], moved)), f"{name}: text as stock's",
               f"{[(x.text, y.text) for x, y in zip(answers['stock'][0], moved)]}")


def run():
    smol = kit.model("smollm2-135m")
    # Stock with and without flash attention: 0.1. Four bits for K move the likeliest tokens by about 0.4.
    for mode, limit in (("f16", 0.25), ("q8_0", 0.25), ("r4", 0.8)):
        kit.part(context_shift, smol, "smollm2", mode, limit)
        kit.part(cache_reuse, smol, mode, limit)
    made = kit.made_model("--type", "f32", "--layers", "4", "--embd", "512", "--heads", "8", "--kv-heads", "2")
    kit.part(context_shift, made, "made model", "f16", 0.03)
    if not kit.quick:
        kit.part(context_shift, made, "made model", "q8_0", 0.1)


kit.main(run)
