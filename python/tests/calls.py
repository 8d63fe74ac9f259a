# SPDX-License-Identifier: MIT
"""What a call from Python costs: a line through the times of one token's attention over 64, 128, 256 and 512 tokens.

    scripts/bench-python calls [--seconds S] [--out FILE.json] [r8] [r4] ...

32 query and 8 KV heads of 128, one thread. Per policy and kind of call one row in JSON: the minimum of each length, the intercept and the
slope of the line, and how much more than "c" the kind takes in the mean of the lengths. The kinds:

    c              quire_step_attend_with through ctypes, with a structure that was filled before; less what an empty call through ctypes takes
    step           step.attend(0, q)
    step, out      step.attend(0, q, out=out)
    sequence       sequence.attend(q)
    append         step.append(0, k, v) and step.attend(0, q)
    decode         sequence.step(1), append, attend and commit
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import quire
from quire import _native as n

LENGTHS = (64, 128, 256, 512)
HEADS, KV_HEADS, D = 32, 8, 128
CALLS = 8  # of one kind one after the other: the first ones bring its rows and its code into the caches


def rows(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Case:
    """A sequence that attends over `length` tokens, the last of them in an open step, and a second one for steps that are committed."""

    def __init__(self, pool: quire.Pool, length: int) -> None:
        self.k, self.v, self.q = rows(1, 1, KV_HEADS, D), rows(2, 1, KV_HEADS, D), rows(3, 1, HEADS, D)
        self.out = np.empty_like(self.q)
        self.length = length
        before = rows(4, length - 1, KV_HEADS, D), rows(5, length - 1, KV_HEADS, D)
        self.open, self.decoding, self.full = pool.sequence(), pool.sequence(), pool.sequence()
        for sequence in (self.open, self.decoding, self.full):
            sequence.append(*before)
        self.full.append(self.k, self.v)
        self.step = self.open.step(1)
        self.step.append(0, self.k, self.v)
        self.asked = bytes(n.StepQueries(q=self.q.ctypes.data, out=self.out.ctypes.data))
        self.kinds: Dict[str, Callable[[], Any]] = {
            "c": self.c, "step": lambda: self.step.attend(0, self.q), "step, out": lambda: self.step.attend(0, self.q, out=self.out),
            "sequence": lambda: self.full.attend(self.q), "append": self.append, "decode": self.decode}

    def c(self) -> None:
        n.lib.quire_step_attend_with(self.step._pointer, 0, self.asked)

    def append(self) -> None:
        self.step.append(0, self.k, self.v)
        self.step.attend(0, self.q)

    def decode(self) -> None:
        with self.decoding.step(1) as step:
            step.append(0, self.k, self.v)
            step.attend(0, self.q)

    def after(self) -> None:
        """Puts back what a call has changed; not timed."""
        if self.decoding.length == self.length:
            self.decoding.trim(self.length - 1)


def fastest(call: Callable[[], Any], after: Callable[[], Any]) -> int:
    best, clock = 1 << 62, time.perf_counter_ns
    for _ in range(CALLS):
        begin = clock()
        call()
        best = min(best, clock() - begin)
        after()
    return best


def measure(policy: str, seconds: float) -> List[Dict[str, Any]]:
    """Rows of one policy. All kinds and lengths in turn, again and again until the time is over."""
    plan = quire.Plan(policy, n_q_heads=HEADS, n_kv_heads=KV_HEADS, d_k=D)
    with quire.Pool(plan, 1 << 26) as pool:
        cases = [Case(pool, length) for length in LENGTHS]
        best: Dict[Tuple[str, int], int] = {}
        clock = empty = 1 << 62
        end = time.monotonic() + seconds
        gc.disable()
        try:
            while time.monotonic() < end:
                clock = min(clock, fastest(lambda: None, lambda: None))
                empty = min(empty, fastest(lambda: n.lib.quire_step_attend_with(None, 0, cases[0].asked), lambda: None))
                for case in cases:
                    for kind, call in case.kinds.items():
                        key = kind, case.length
                        best[key] = min(best.get(key, 1 << 62), fastest(call, case.after))
        finally:
            gc.enable()
        found = []
        for kind in cases[0].kinds:
            less = empty if kind == "c" else clock
            times = [(best[kind, length] - less) / 1e3 for length in LENGTHS]
            slope, intercept = np.polyfit(LENGTHS, times, 1)
            above = np.mean(times) - (np.mean([best["c", length] for length in LENGTHS]) - empty) / 1e3
            found.append({"policy": policy, "kind": kind, "intercept_us": round(float(intercept), 2), "us_per_token": round(float(slope), 4),
                          "above_c_us": round(float(above), 2), "us": [round(t, 2) for t in times]})
        for case in cases:
            case.step.abort()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("policies", nargs="*", default=["r8", "r4"])
    parser.add_argument("--seconds", type=float, default=5.0, help="per policy")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = []
    for policy in args.policies:
        for row in measure(policy, args.seconds):
            found.append({"isa": quire.isa(), "tokens": list(LENGTHS), **row})
            print(json.dumps(found[-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"command": "scripts/bench-python calls", "quire": quire.__version__, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
