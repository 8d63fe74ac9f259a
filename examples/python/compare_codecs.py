#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares codecs: bits per value and the error of attention, as a table and as a plot.

    python3 compare_codecs.py [ROWS.npz] [--svg FILE] [CODEC...]

ROWS.npz has float32 arrays k and v (token, KV head, channel) and q (query, query head, channel), recorded from a model after RoPE.
Without a file the rows are random: Gaussian, with a few channels of K that are twenty times as large, as in real models. Each codec is
used for K while V is f32, and for V while K is f32. The error is the relative difference of an output row from f32, averaged over rows.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Tuple

import numpy as np

import quire

CODECS = ["a8g64", "a6g64", "a5g64", "a4g64", "a3g64", "a2g64", "q8_0", "q5_0", "q4_0", "r8", "r6", "r5", "r4", "r3", "r2", "tq4", "tq3",
          "tq2", "h:a4g32"]


def made_up() -> "dict[str, np.ndarray]":
    rng = np.random.default_rng(0)
    k, v, q = (rng.standard_normal((n, heads, 128), dtype=np.float32) for n, heads in ((1000, 2), (1000, 2), (50, 8)))
    k[:, :, [3, 40, 77]] *= 20
    q[:, :, [3, 40, 77]] /= 8  # such channels do not rule the scores
    return {"k": k, "v": v, "q": q}


def attention(rows: "dict[str, np.ndarray]", k: str, v: str) -> "np.ndarray":
    shape = dict(n_q_heads=rows["q"].shape[1], n_kv_heads=rows["k"].shape[1], d_k=rows["k"].shape[2], d_v=rows["v"].shape[2])
    plan = quire.Plan(f"{k}/{v}", **shape)
    with quire.Pool(plan, plan.bytes(len(rows["k"])), threads=2) as pool, pool.sequence() as sequence:
        sequence.append(rows["k"], rows["v"])
        return sequence.attend(rows["q"])


def measure(rows: "dict[str, np.ndarray]", codecs: List[str]) -> List[Tuple[str, float, float, float]]:
    exact = attention(rows, "f32", "f32")
    size = np.linalg.norm(exact, axis=-1)
    d = rows["k"].shape[2]

    def error(k: str, v: str) -> float:
        return float((np.linalg.norm(attention(rows, k, v) - exact, axis=-1) / size).mean())

    return [(codec, quire.bits(codec, d), error(codec, "f32"), error("f32", codec)) for codec in codecs]


def draw(table: List[Tuple[str, float, float, float]], path: str) -> None:
    """A plot with bits on the x axis and the error of K on the y axis, logarithmic; with the plotter of this source tree."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "eval"))
    from svg import Plot

    plot = Plot("Error of attention by codec of K", "bits per value of K", "error of attention", log_y=True)
    plot.add("codecs", [(bits, max(error, 1e-6)) for _, bits, error, _ in table], labels=[codec for codec, *_ in table])
    plot.save(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", metavar="ROWS.npz or CODEC")
    parser.add_argument("--svg", metavar="FILE")
    given = parser.parse_args()
    files = [w for w in given.words if w.endswith(".npz")]
    rows = {name: np.ascontiguousarray(x, dtype=np.float32) for name, x in np.load(files[0]).items()} if files else made_up()
    table = measure(rows, [w for w in given.words if not w.endswith(".npz")] or CODECS)
    print(f"{'codec':10} {'bits':>6} {'error as K':>11} {'error as V':>11}")
    for codec, bits, as_k, as_v in table:
        print(f"{codec:10} {bits:6.2f} {as_k:11.2e} {as_v:11.2e}")
    if given.svg:
        draw(table, given.svg)


if __name__ == "__main__":
    main()
