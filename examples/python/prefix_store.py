#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Computes a prompt once: one process saves its pages, another one loads them from disk.

    python3 prefix_store.py [FOLDER]        default: a temporary folder

There is no real model: rows are computed from the token and its position, slowly enough to see the difference.
"""
from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import numpy as np

import quire

LAYERS, HEADS, D = 4, 2, 64
PROMPT = np.arange(1000) * 7 % 5000
PLAN = dict(n_layers=LAYERS, n_q_heads=8, n_kv_heads=HEADS, d_k=D)
# Whoever has the secret can read and write the pages. The other members identify the model that the pages belong to.
MODEL = quire.Identity(weights="stand-in 1", tokenizer="none", rope="none", secret=bytes(range(32)))


def model_rows(layer: int, side: int, position: int, token: int) -> "np.ndarray":
    return np.random.default_rng((layer, side, position, token)).standard_normal((1, HEADS, D), dtype=np.float32)


def prefill(sequence: quire.Sequence, tokens: "np.ndarray") -> None:
    first = sequence.length
    with sequence.step(len(tokens) - first) as step:
        for layer in range(LAYERS):
            k, v = (np.concatenate([model_rows(layer, side, p, int(tokens[p])) for p in range(first, len(tokens))]) for side in (0, 1))
            step.append(layer, k, v)


def serve(folder: str) -> None:
    """The work of each process: load what is stored, compute the rest, save it."""
    begin = time.perf_counter()
    plan = quire.Plan("k8v4", **PLAN)
    with quire.Store(folder, disk_bytes=256 << 20) as store, quire.Pool(plan, 64 << 20) as pool:
        space = store.namespace(MODEL, plan)
        sequence = pool.sequence()
        loaded = space.load(PROMPT[:-1], sequence)  # one token is left to compute: its attention gives the first answer
        prefill(sequence, PROMPT)
        space.save(PROMPT, sequence)
        q = np.ones((1, 8, D), np.float32)
        answer = float(sum(sequence.attend(q, layer).sum() for layer in range(LAYERS)))
        store.flush()
        print(f"{loaded} of {len(PROMPT)} tokens from disk, {(time.perf_counter() - begin) * 1e3:.0f} ms, answer {answer!r}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[1] if len(sys.argv) > 1 else temporary
        said = [subprocess.run([sys.executable, __file__, "--serve", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
                for _ in range(2)]
    print("first: ", said[0], "second: ", said[1], sep="", end="")
    same = said[0].split()[-1] == said[1].split()[-1]
    print("the same answer, bit for bit" if same else "a different answer")
    sys.exit(0 if same and not said[1].startswith("0 ") else 1)


if __name__ == "__main__":
    main()
