#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Many requests of mixed lengths on four slots: none fails, and memory does not grow."""
import random
import threading
import time

import kit
from kit import expect, note

POLICY = {"QUIRE_KV": "r5/r4"}
CELLS = 1024 if kit.quick else 4096


def request(rng, wide):
    """Arguments of one completion. Some go on from a common beginning, some start anew."""
    n_chars = rng.choice([20, 120, 500, 1100] if wide else [20, 60, 250, 600])
    begin = rng.choice([0, 0, rng.randrange(1000, 180000)])
    return dict(prompt=kit.text(begin, n_chars), n=rng.choice([1, 4, 12, 24]), cache=rng.random() < 0.7,
                temperature=rng.choice([0, 0.8]), seed=rng.randrange(1000))


def soak(path, mode, count):
    rng = random.Random(7)
    wide = not kit.quick
    calls = [request(rng, wide) for _ in range(count)]
    lock, wrong, sizes = threading.Lock(), [], []
    done = [0]
    args = ["-c", CELLS, "-np", 4, "--cache-ram", 0, "-kvu" if mode == "unified" else "--no-kv-unified"]
    with kit.Server(path, *args, env=POLICY) as s:
        # Every cell is written once, so that later growth is not the cache being filled.
        fill = CELLS // 4 - 80
        tokens = s.tokens(kit.text(0, 6 * CELLS))[:fill]
        s.together([dict(prompt=tokens, n=8, slot=i, cache=False) for i in range(4)])
        queue = list(reversed(calls))

        def work():
            while True:
                with lock:
                    if not queue:
                        return
                    call = queue.pop()
                try:
                    answer = s.completion(**call)
                    if not answer.tokens and call["n"] > 0:
                        raise kit.Broken(f"no token for {call}")
                except Exception as e:
                    with lock:
                        wrong.append(str(e)[:500])
                with lock:
                    done[0] += 1
                    sizes.append((done[0], s.rss()))

        start = time.monotonic()
        workers = [threading.Thread(target=work) for _ in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        seconds = time.monotonic() - start
    expect(not wrong, f"{mode}: {count} requests without failure", f"{len(wrong)}, the first: {wrong[:1]}")
    early = max(size for i, size in sizes if i <= count // 4)
    late = max(size for i, size in sizes if i > count // 4)
    note(f"{mode}: {seconds:.0f} s, resident {early >> 20} MiB after a quarter, at most {late >> 20} MiB later "
         f"({100 * (late / early - 1):+.2f} %)")
    expect(late <= 1.02 * early, f"{mode}: resident memory grows by at most 2 % after the first quarter",
           f"{early} and {late} bytes")


def run():
    smol = kit.model("smollm2-135m")
    for mode in ("unified", "split"):
        kit.part(soak, smol, mode, 40 if kit.quick else 1000)


kit.main(run)
