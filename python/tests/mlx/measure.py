# SPDX-License-Identifier: MIT
"""What the caches cost and gain beside mlx-lm's own, on a real model: texts, perplexity, speed, memory.

    scripts/bench-python [--short] [--out FILE.json] [greedy] [perplexity] [speed] [memory]
"""
import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import quire
import quire.mlx_lm as quire_mlx
from mlx_lm.generate import generate_step
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache
from support import ROOT, real_model, rows

# Bounds that must hold; a run that misses one ends with status 1.
GAP_NATS = 0.15  # texts may part where the two best tokens are closer than that
PERPLEXITY_OFF, K8V4_OFF = 1e-3, 0.015
ATTENTION_BITS, ATTENTION_FLOATS = 20.0, 5.0
MEMORY_SHARE = 0.6
STOCK = "mlx-lm 8 bits"  # for comparison

PROMPTS = [
    "The capital of France is", "Water boils at", "Write a haiku about autumn.", "List three uses of a paper clip.",
    "Explain in one sentence why the sky is blue.", "Once upon a time, in a village by the sea,", "The first ten prime numbers are",
    "def fibonacci(n):", "To make a cup of tea, first", "The opposite of 'generous' is",
]


# ------------------------------------------------------------------- texts


def run_greedy(model, prompt, cache, count):
    """Tokens, and how far the best was from the second best at each."""
    tokens, gaps = [], []
    for token, logprobs in generate_step(mx.array(prompt), model, max_tokens=count, prompt_cache=cache):
        best = np.sort(np.array(logprobs.astype(mx.float32)))[-2:]
        tokens.append(int(token))
        gaps.append(float(best[1] - best[0]))
    return tokens, gaps


def greedy(short):
    """Texts of 8-bit caches against those of the float cache; where they part, how close the two best tokens of the float cache are."""
    model, tokenizer = real_model()
    prompts, count = (PROMPTS[:2], 16) if short else (PROMPTS, 64)
    found = []
    for text in prompts:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        theirs, gaps = run_greedy(model, prompt, make_prompt_cache(model), count)
        for policy in ("a8g64",) if short else ("a8g64", "safe", STOCK):
            cache = [QuantizedKVCache(64, 8) for _ in model.layers] if policy == STOCK else quire_mlx.make_cache(model, policy)
            ours, _ = run_greedy(model, prompt, cache, count)
            same = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b), count)
            row = {"prompt": text, "policy": policy, "tokens": count, "same": same}
            if same < count:
                row["gap_nats"] = round(gaps[same], 5)
            found.append(row)
            print(row, flush=True)
    right = all(r["same"] == count or r["gap_nats"] < GAP_NATS for r in found if r["policy"] != STOCK)
    return {"dtype": "float32", "bound_gap_nats": GAP_NATS, "prompts": found}, right


# -------------------------------------------------------------- perplexity


class Recorder(KVCache):
    """mlx-lm's cache that remembers what it was given."""

    def __init__(self, tape):
        super().__init__()
        self.tape = tape

    def update_and_fetch(self, keys, values):
        self.tape.append((keys, values))
        return super().update_and_fetch(keys, values)


class Replayer:
    """A cache that is given the recorded rows instead of the model's. One code that flips would else spread through all later rows."""

    def __init__(self, inner, tape, dtype):
        self.inner, self.tape, self.dtype = inner, iter(tape), dtype

    def update_and_fetch(self, keys, values):
        k, v = (x.astype(self.dtype) for x in next(self.tape))
        return self.inner.update_and_fetch(k, v)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def nats(model, ids, chunk, caches):
    total, n = 0.0, len(ids) - 1
    for i in range(0, n, chunk):
        logits = model(mx.array(ids[i:min(i + chunk, n)])[None], cache=caches)[0].astype(mx.float32)
        next_ids = mx.array(ids[i + 1:min(i + chunk, n) + 1])
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        total -= mx.take_along_axis(logprobs, next_ids[:, None], axis=-1).sum().item()
    return math.exp(total / n)


def perplexity(short):
    """Perplexity over caches that all hold the K and V of one recorded run, as halves."""
    model, tokenizer = real_model()
    n, chunk = (256, 128) if short else (2048, 256)
    text = (ROOT / "eval/text/wiki.txt").read_text()[:8 * n]
    ids = tokenizer.encode(text)[:n + 1]
    n_layers = len(model.layers)
    tapes = [[] for _ in range(n_layers)]
    found = {"float32, not replayed": nats(model, ids, chunk, [Recorder(t) for t in tapes])}
    print(found, flush=True)

    def replay(name, make):
        caches = [Replayer(make(i), tape, mx.float16) for i, tape in enumerate(tapes)]
        found[name] = nats(model, ids, chunk, caches)
        print(f"{name}: {found[name]:.4f}", flush=True)

    class HalfScores(KVCache):
        """Halves kept, computed in float32 as the other caches do."""

        def keys_and_values(self):
            return tuple(x.astype(mx.float32) for x in super().keys_and_values())

    def bits(number):
        # Scales stay halves; MLX computes in the type of the queries.
        class Bits(QuantizedKVCache):
            def keys_and_values(self):
                k, v = super().keys_and_values()
                return tuple((w, s.astype(mx.float32), b.astype(mx.float32)) for w, s, b in (k, v))
        return Bits(group_size=64, bits=number)

    replay("float16", lambda i: HalfScores())
    for number in (8, 4):
        replay(f"mlx-lm {number} bits", lambda i: bits(number))
        replay(f"a{number}g64", lambda i: quire_mlx.QuireKVCache(f"a{number}g64", index=i, n_layers=n_layers))
    for policy in ("k8v4", "safe", "balanced"):
        replay(policy, lambda i: quire_mlx.QuireKVCache(policy, index=i, n_layers=n_layers))
    off = {f"a{b}g64 / mlx-lm {b} bits": found[f"a{b}g64"] / found[f"mlx-lm {b} bits"] - 1 for b in (8, 4)}
    off["k8v4 / float16"] = found["k8v4"] / found["float16"] - 1
    right = all(abs(v) <= PERPLEXITY_OFF for k, v in off.items() if "mlx-lm" in k) and (short or off["k8v4 / float16"] <= K8V4_OFF)
    return {"tokens": n, "chunk": chunk, "perplexity": {k: round(v, 4) for k, v in found.items()},
            "difference": {k: float(f"{v:.3g}") for k, v in off.items()}}, right


# ------------------------------------------------------------------- speed


def speed(short):
    """One layer, one token, in one process, taking turns; the least of the times of each. MLX as its wheel is, without blas.c."""
    if os.environ.get("LD_PRELOAD"):
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        done = subprocess.run([sys.executable, __file__, "--speed", str(int(short))], stdout=subprocess.PIPE, text=True, check=True, env=env)
        print(*done.stdout.splitlines()[:-1], sep="\n", flush=True)
        return json.loads(done.stdout.splitlines()[-1])
    n, heads, kv_heads, d = (1024 if short else 4096), 32, 8, 128
    rounds = 3 if short else 7
    found, right = {}, True
    for dtype, name in ((mx.float32, "float32"), (mx.float16, "float16")):
        k, v = rows(1, 1, kv_heads, n, d, dtype=dtype), rows(2, 1, kv_heads, n, d, dtype=dtype)
        one = [rows(s, 1, h, 1, d, dtype=dtype) for s, h in ((3, heads), (4, kv_heads), (5, kv_heads))]
        mx.eval(k, v, one)
        caches = {"mlx-lm floats": KVCache(), "mlx-lm 8 bits": QuantizedKVCache(64, 8), "mlx-lm 4 bits": QuantizedKVCache(64, 4),
                  "quire a8g64": quire_mlx.QuireKVCache("a8g64"), "quire a4g64": quire_mlx.QuireKVCache("a4g64"),
                  "quire k8v4": quire_mlx.QuireKVCache("k8v4"), "quire f16": quire_mlx.QuireKVCache("f16")}
        for cache in caches.values():
            mx.eval([x for x in cache.update_and_fetch(k, v) if isinstance(x, (tuple, mx.array))])
        times = {key: [] for key in caches}
        for _ in range(rounds):
            for key, cache in caches.items():
                for _ in range(3 if key.startswith("quire") else 1):
                    start = time.perf_counter()
                    keys, values = cache.update_and_fetch(*one[1:])
                    mx.eval(scaled_dot_product_attention(one[0], keys, values, cache, scale=d**-0.5, mask=None))
                    times[key].append(time.perf_counter() - start)
                    cache.trim(1)
        best = {key: min(t) * 1e3 for key, t in times.items()}
        ratios = {"4 bits": best["mlx-lm 4 bits"] / best["quire a4g64"], "8 bits": best["mlx-lm 8 bits"] / best["quire a8g64"],
                  "floats / k8v4": best["mlx-lm floats"] / best["quire k8v4"], "floats / f16": best["mlx-lm floats"] / best["quire f16"]}
        found[name] = {"ms": {key: round(t, 3) for key, t in best.items()}, "ratios": {key: round(r, 1) for key, r in ratios.items()}}
        print(name, found[name], flush=True)
        right &= min(ratios["4 bits"], ratios["8 bits"]) >= ATTENTION_BITS and ratios["floats / k8v4"] >= ATTENTION_FLOATS
    return {"context": n, "query_heads": heads, "kv_heads": kv_heads, "head_size": d, "isa": quire._native.text(
        quire._native.lib.quire_isa_in_use()), "threads": quire_mlx.default_pools().n_threads, **found}, right or short


# ------------------------------------------------------------------ memory


def prefill(kind, n):
    """Runs in a process of its own: the peak of resident memory of a prompt on a synthetic model of two layers."""
    from mlx_lm.models.llama import Model, ModelArgs
    mx.random.seed(1)
    model = Model(ModelArgs(model_type="llama", hidden_size=256, num_hidden_layers=2, intermediate_size=256, num_attention_heads=8,
                            rms_norm_eps=1e-5, vocab_size=64, head_dim=128, num_key_value_heads=8))
    mx.eval(model.parameters())
    cache = make_prompt_cache(model) if kind == "floats" else quire_mlx.make_cache(model, kind)
    ids = mx.array(np.random.default_rng(0).integers(0, 64, n + 1))
    next(generate_step(ids, model, max_tokens=1, prompt_cache=cache, prefill_step_size=256))
    print(json.dumps({"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "nbytes": sum(c.nbytes for c in cache)}))


def memory(short):
    n = 2048 if short else 8192
    found = {}
    for kind in ("floats", "k8v4"):
        done = subprocess.run([sys.executable, __file__, "--prefill", kind, str(n)], stdout=subprocess.PIPE, text=True, check=True)
        found[kind] = json.loads(done.stdout)
    kv_bytes = 2 * 2 * 8 * 128 * 4 * n
    saved = found["floats"]["peak_bytes"] - found["k8v4"]["peak_bytes"]
    result = {"tokens": n, "layers": 2, "dtype": "float32", "kv_bytes": kv_bytes, **found, "saved_share_of_kv": round(saved / kv_bytes, 2)}
    print(result, flush=True)
    return result, saved >= MEMORY_SHARE * kv_bytes


PARTS = {"greedy": greedy, "perplexity": perplexity, "speed": speed, "memory": memory}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--prefill", nargs=2)
    parser.add_argument("--speed", type=int)
    args = parser.parse_args()
    if args.prefill:
        prefill(args.prefill[0], int(args.prefill[1]))
        return 0
    if args.speed is not None:
        print(json.dumps(speed(args.speed)))
        return 0
    out = Path(args.out) if args.out else None
    result = json.loads(out.read_text()) if out and out.exists() else {}
    failed = []
    for name in args.parts or PARTS:
        result[name], right = PARTS[name](args.short)
        failed += [] if right else [name]
        if out:
            result["versions"] = {"quire": quire.__version__, "mlx": mx.__version__, "mlx_lm": "0.32.2", "model": "smollm2-135m"}
            result["command"] = "scripts/bench-python"
            out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"FAILED: {' '.join(failed)}" if failed else "ok")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
