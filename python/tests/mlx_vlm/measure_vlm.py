# SPDX-License-Identifier: MIT
"""Time and memory of attention beside mlx-vlm's own TurboQuant caches: scripts/bench-mlx-vlm. CPU only; mlx-vlm's fast path is Metal, and what is
measured of it here is the path that it takes without."""
import argparse
import json
import sys
import time

import mlx.core as mx
import numpy as np
import quire.mlx_vlm as quire_vlm
from mlx_vlm.models.cache import KVCache
from mlx_vlm.turboquant import TurboQuantKVCache
from vlm_support import attend, rows

HEADS, KV_HEADS, D = 32, 8, 128
FLOAT_BYTES = 2 * KV_HEADS * D * 4  # of a token's K and V


def caches(bits):
    """The same codes in both, and floats."""
    return {"mlx-vlm floats": KVCache, f"mlx-vlm TurboQuant {bits:g}": lambda: TurboQuantKVCache(bits=bits),
            f"Quire {quire_vlm.policy_of_bits(bits)}": lambda: quire_vlm.QuireKVCache(quire_vlm.policy_of_bits(bits))}


def piece(seed, heads, count):
    return rows(seed, 1, heads, count, D, spread=1.0)


def prefill(cache, tokens, size):
    """Peak memory of the last `size` tokens of a prompt, the largest piece of it; their K, V and queries are not counted. In bytes: what MLX takes
    in all, what it takes to decode the cache, and Quire's pages."""
    for first in range(0, tokens - size, size):
        cache.update_and_fetch(piece(first + 1, KV_HEADS, size), piece(first + 2, KV_HEADS, size))
        mx.eval(cache.state)
    given = piece(1, HEADS, size), piece(2, KV_HEADS, size), piece(3, KV_HEADS, size)
    mx.eval(given)
    mx.clear_cache()
    held = sum(x.nbytes for x in given)
    mx.reset_peak_memory()
    mx.eval(attend(cache, *given))
    most, decoded = mx.get_peak_memory() - held, 0
    if isinstance(cache, TurboQuantKVCache):
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(cache.dequantize())
        decoded = mx.get_peak_memory() - before
    return most, decoded, cache.nbytes if isinstance(cache, quire_vlm.QuireKVCache) else 0


def memory(bits, tokens=4096, size=512):
    found = []
    for name, make in caches(bits).items():
        mx.clear_cache()
        before = mx.get_active_memory()
        mlx, decoded, pages = prefill(make(), tokens, size)
        found.append(dict(what="prefill memory", cache=name, tokens=tokens, queries=size, mlx_mb=round((mlx - before) / 1e6, 1),
                          decoded_mb=round(decoded / 1e6, 1), pages_mb=round(pages / 1e6, 1)))
    return found


def once(cache, count):
    """Seconds of attention of the last `count` tokens; their rows are encoded and trimmed again."""
    q, k, v = piece(1, HEADS, count), piece(2, KV_HEADS, count), piece(3, KV_HEADS, count)
    mx.eval(q, k, v)
    start = time.perf_counter()
    mx.eval(attend(cache, q, k, v))
    taken = time.perf_counter() - start
    cache.trim(count)
    return taken


def times(bits, tokens, count, rounds):
    filled = {}
    for name, make in caches(bits).items():
        filled[name] = make()
        for first in range(0, tokens - count, 2048):
            size = min(2048, tokens - count - first)
            filled[name].update_and_fetch(piece(first, KV_HEADS, size), piece(first + 7, KV_HEADS, size))
        mx.eval(filled[name].state)
    best = {name: [] for name in filled}
    for _ in range(rounds):
        for name, cache in filled.items():
            best[name].append(once(cache, count))
    ours = min(best[list(best)[-1]])
    return [dict(what="decode" if count == 1 else "prefill", cache=name, tokens=tokens, queries=count, ms=round(1e3 * min(found), 2),
                 times_quire=round(min(found) / ours, 1)) for name, found in best.items()]


def table(found):
    print("| what | tokens | queries | cache | ms | times Quire's |\n|---|---:|---:|---|---:|---:|")
    for r in found:
        if "ms" in r:
            print(f"| {r['what']} | {r['tokens']} | {r['queries']} | {r['cache']} | {r['ms']} | {r['times_quire']} |")
    print("\n| what | tokens | queries | cache | MLX, MB | of that to decode the cache | Quire's pages, MB |\n|---|---:|---:|---|---:|---:|---:|")
    for r in found:
        if "mlx_mb" in r:
            print(f"| {r['what']} | {r['tokens']} | {r['queries']} | {r['cache']} | {r['mlx_mb']} | {r['decoded_mb'] or '-'} | {r['pages_mb'] or '-'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="1,024 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    found = []
    for bits in (4, 3.5):
        for tokens in (1024,) if options.short else (4096, 16384):
            for count in (1, 64):
                found += times(bits, tokens, count, options.rounds)
    found += memory(4, 1024 if options.short else 4096)
    table(found)
    if options.json:
        head = dict(command="scripts/bench-mlx-vlm", shape=f"{HEADS} query heads, {KV_HEADS} KV heads of {D}, float32", mlx=mx.__version__,
                    mlx_vlm="0.7.10, without Metal", rounds=options.rounds)
        with open(options.json, "w") as out:
            json.dump({**head, "rows": found}, out, indent=1)
            out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
