#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random conversations, greedy, with and without the store: scripts/check-serve-equal (300 of them), with --quick 3.

1. A prefix that was restored after a restart, against the same prefix kept warm in a slot, at the same number of cached tokens and the same -ub:
   all log-probabilities are the same numbers.
2. Against computing all of the prompt: the difference is that of two servers that compute everything, with different -ub.
QUIRE_SEED chooses other conversations, QUIRE_CONVERSATIONS another number of them, QUIRE_CACHES other caches (none,safe).
"""
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from servers import Direct, ask
from sidecar import Sidecar, kit, llama_server

expect, note, part = kit.expect, kit.note, kit.part
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
SEED = int(os.environ.get("QUIRE_SEED", "23"))
N = 3 if kit.quick else int(os.environ.get("QUIRE_CONVERSATIONS", "300"))
CACHES = os.environ.get("QUIRE_CACHES", "none,safe").split(",")
SIZE = "1G" if kit.quick else "8G"  # all conversations: a store that is too small for a round of them has none of them when the next one begins
LONGEST = 300 if kit.quick else 450
CONTEXT = 1024
SPLIT = "64"  # -ub of the second server that computes everything
SENTENCES = [s for s in kit.TEXT_FILE.read_text().replace("\n", " ").split(". ") if 20 < len(s) < 300]
ASKED = {"temperature": 0, "n_probs": 8, "cache_prompt": True, "seed": 1}


def conversations(server):
    """Lists of tokens, as the chat endpoint makes them."""
    chance, found = random.Random(SEED), []
    while len(found) < N:
        messages = [{"role": "system", "content": f"Conversation {len(found)}. " + chance.choice(SENTENCES)}]
        for _ in range(chance.randint(1, 4)):
            messages.append({"role": "user", "content": ". ".join(chance.choices(SENTENCES, k=chance.randint(1, 3)))})
            messages.append({"role": "assistant", "content": chance.choice(SENTENCES)})
        messages.append({"role": "user", "content": chance.choice(SENTENCES) + "?"})
        prompt = json.loads(server.ask("POST", "/apply-template", {"messages": messages})[2])["prompt"]
        tokens = json.loads(server.ask("POST", "/tokenize", {"content": prompt, "add_special": True, "parse_special": True})[2])["tokens"]
        if 200 <= len(tokens) <= LONGEST:
            found.append(tokens if len(found) else tokens[:192])  # the first ends with a page
    return found


def probs(server, tokens, n, **more):
    """Tokens that the slot had, and of each new token what n_probs gives: (token, log-probability), likeliest first."""
    status, _, answer = ask(server.port, "POST", "/completion", {"prompt": tokens, "n_predict": n, **ASKED, **more})
    if status != 200:
        raise kit.Broken(f"status {status}: {answer[:300]}")
    answer = json.loads(answer)
    rows = [[(t["id"], t["logprob"]) for t in p["top_logprobs"]] for p in answer.get("completion_probabilities", [])]
    return answer["timings"]["cache_n"], rows


def distance(a, b):
    """The largest difference of log-probabilities of the first token, over those that both lists have."""
    a, b = dict(a[0]), dict(b[0])
    return max(abs(a[t] - b[t]) for t in a.keys() & b.keys()) if a.keys() & b.keys() else float("inf")


def whole(tokens):
    return len(tokens) // 64 * 64


def reused(tokens):
    """The last token of a prompt is computed in any case."""
    return min(whole(tokens), len(tokens) - 1)


def compared(policy):
    store = Path(tempfile.mkdtemp(prefix="quire-serve-equal."))
    options = ("--kv", policy, "--min-tokens", "64")
    try:
        with Sidecar(store, "-np", "1", options=options, context=CONTEXT, store_size=SIZE) as s:
            prompts, warm = conversations(s), []
            for tokens in prompts:
                probs(s, tokens[:whole(tokens)], 0)
                if not s.wait_figure("saves", len(warm) + 1, 60):
                    raise kit.Broken("a prompt was not saved")
                warm.append(probs(s, tokens, 8))
            expect(all(w[0] == reused(t) for w, t in zip(warm, prompts)), f"{policy}: a warm slot has the whole pages of each prompt",
                   str([(w[0], len(t)) for w, t in zip(warm, prompts)][:10]))
        with Sidecar(store, "-np", "1", options=options, context=CONTEXT, store_size=SIZE) as s:
            restored = [probs(s, tokens, 8) for tokens in prompts]
            expect(s.figures()["restores"] == N and all(r[0] == reused(t) for r, t in zip(restored, prompts)),
                   f"{policy}: {N} conversations are restored after a restart", str(s.figures()))
        same = sum(a == b for a, b in zip(warm, restored))
        n_numbers = sum(len(row) for _, rows in restored for row in rows)
        expect(same == N and n_numbers >= 8 * N, f"{policy}: {n_numbers} log-probabilities of {N} conversations are those of a warm slot, bit for bit",
               f"{N - same} conversations differ")
        line = llama_server("smollm2-135m", CONTEXT)
        cold = []
        for batch in ("512", SPLIT):
            with Direct(line, "-np", "1", "-ub", batch, policy=None if policy == "none" else policy) as d:
                cold.append([probs(d, tokens, 1, cache_prompt=False)[1] for tokens in prompts])
        spread = sorted(distance(a, b) for a, b in zip(*cold))
        found = sorted(distance(r[1], a) for r, a in zip(restored, cold[0]))
        top = [sum(x[0][0][0] == y[0][0][0] for x, y in zip(cold[0], other)) for other in (cold[1], [r[1] for r in restored])]
        at = [int(q * (N - 1)) for q in (0.5, 0.9, 1.0)]
        note(f"{policy}: difference to computing with -ub 512, median, 90 % and most: computing with -ub {SPLIT} " + ", ".join(f"{spread[i]:.4f}" for i in at) +
             "; restored " + ", ".join(f"{found[i]:.4f}" for i in at) + f"; the same likeliest token {top[0]} and {top[1]} of {N}")
        few = N < 20  # they have no quantiles
        most = [2.0] * 3 if few else [1.5, 1.5, 2.0]
        expect(all(found[i] <= m * spread[-1 if few else i] + 1e-4 for i, m in zip(at, most)), f"{policy}: restored prompts differ from computed ones as two ways of computing do",
               f"{[spread[i] for i in at]} {[found[i] for i in at]}")
    finally:
        shutil.rmtree(store, ignore_errors=True)


def run():
    note(f"seed {SEED}")
    for policy in CACHES:
        part(compared, policy)


if __name__ == "__main__":
    sys.exit(kit.main(run))
