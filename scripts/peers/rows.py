# SPDX-License-Identifier: MIT
"""The same random rows for every implementation, and their attention in float64. Needs numpy.

    rows.py make CONTEXT QUERIES FILE REFERENCE     K, V ~ N(0,1), Q ~ N(0,2), so that scores have a deviation of 2
    rows.py error QUERIES REFERENCE OUT...          a line per file: largest and root mean square error of its rows
"""
import sys

import numpy as np

Q_HEADS, KV_HEADS, D = 32, 8, 128
GROUP = Q_HEADS // KV_HEADS


def sample(queries):
    """Queries that are compared."""
    return sorted({0, queries // 2, queries - 1})


def read(path, context, queries):
    """Q, K and V of a file, [token][head][channel]."""
    x = np.memmap(path, np.float32, "r")
    nq, nk = queries * Q_HEADS * D, context * KV_HEADS * D
    return x[:nq].reshape(queries, Q_HEADS, D), x[nq:nq + nk].reshape(-1, KV_HEADS, D), x[nq + nk:].reshape(-1, KV_HEADS, D)


def reference(q, k, v):
    """Attention of the sampled queries in float64."""
    n, context = len(q), len(k)
    out = np.zeros((len(sample(n)), Q_HEADS, D))
    for head in range(KV_HEADS):
        kh, vh = k[:, head].astype(np.float64), v[:, head].astype(np.float64)
        own = slice(head * GROUP, (head + 1) * GROUP)
        for j, i in enumerate(sample(n)):
            seen = context - n + i + 1
            score = q[i, own].astype(np.float64) @ kh[:seen].T / np.sqrt(D)
            weight = np.exp(score - score.max(1, keepdims=True))
            out[j, own] = weight @ vh[:seen] / weight.sum(1, keepdims=True)
    return out


def make(context, queries, path, reference_path):
    random = np.random.default_rng(1)
    with open(path, "wb") as file:
        (2 * random.standard_normal((queries, Q_HEADS, D), dtype=np.float32)).tofile(file)
        for _ in "kv":
            random.standard_normal((context, KV_HEADS, D), dtype=np.float32).tofile(file)
    np.save(reference_path, reference(*read(path, context, queries)))


def error(queries, reference_path, paths):
    ref = np.load(reference_path)
    for path in paths:
        out = np.fromfile(path, np.float32).reshape(queries, Q_HEADS, D)[sample(queries)].astype(np.float64)
        e = np.linalg.norm(out - ref, axis=-1) / np.linalg.norm(ref, axis=-1)
        print(f"{e.max():.6g} {np.sqrt((e ** 2).mean()):.6g}")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
    else:
        error(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
