# SPDX-License-Identifier: MIT
"""batch.gold: mlx-lm's KVCache.merge and BatchKVCache operations on token numbers.

The array `ops` holds one operation per line; after operation k (counted from 0) s<k>_rows,
s<k>_left and s<k>_offset hold the batch. A sequence is written first:n, the tokens
first .. first+n-1.

    merge A B ..        a new batch of single caches
    extend A B ..       add a batch merged from these to the batch
    append T,T T,T ..   the same number of tokens to each row
    prefill T,T T ..    a ragged chunk: prepare, append right-padded, finalize
    filter I J ..       keep these rows, in this order
    trim N              drop the last N tokens of every row
    extract I           row I as a single cache: the arrays hold it, the batch stays
    new N               an empty batch of N rows
"""
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import BatchKVCache, KVCache

import tokens
from goldfile import text

OPS = """
merge 10:3 20:1 30:5
append 13 21 35
extract 0
extract 1
filter 0 1
extend 40:6
extract 2
trim 1
extract 1
append 50,51,52 60,61,62 70,71,72
filter 2 0
extract 0
extract 1
extend 80:2 90:9
trim 2
filter 3 1
append 100 101
extract 0
extract 1
new 2
prefill 1,2,3,4 5,6
extract 1
append 7 8
prefill 11,12 13,14,15
extract 0
extract 1
trim 3
extend 20:4
filter 2 1 0
extract 1
merge 1000:250 2000:3 3000:300
append 1300 2300 3300
extract 1
filter 1
append 2301
extend 4000:290
filter 1 0
trim 5
extract 0
extract 1
merge 5:1
extend 6:1 8:2
extract 0
""".split("\n")[1:-1]


def single(spec):
    first, n = map(int, spec.split(":"))
    cache = KVCache()
    cache.update_and_fetch(*tokens.rows([range(first, first + n)]))
    return cache


def lists(args):
    return [[int(t) for t in a.split(",")] for a in args]


def prefill(batch, seqs):
    width = max(map(len, seqs))
    batch.prepare(right_padding=[width - len(s) for s in seqs], lengths=[len(s) for s in seqs])
    batch.update_and_fetch(*tokens.rows([s + [0] * (width - len(s)) for s in seqs]))
    batch.finalize()


def run(batch, op, args):
    """The batch after the operation, and what the operation shows (the batch or one row)."""
    if op == "merge":
        batch = KVCache.merge([single(a) for a in args])
    elif op == "extend":
        batch.extend(KVCache.merge([single(a) for a in args]))
    elif op == "append":
        batch.update_and_fetch(*tokens.rows(lists(args)))
    elif op == "prefill":
        prefill(batch, lists(args))
    elif op == "filter":
        batch.filter(mx.array([int(a) for a in args]))
    elif op == "trim":
        assert batch.trim(int(args[0])) == int(args[0])
    elif op == "new":
        batch = BatchKVCache([0] * int(args[0]))
    elif op == "extract":
        return batch, batch.extract(int(args[0]))
    return batch, batch


def state(cache):
    """rows [B,idx] with 0 for padding, left padding [B], offset [B]."""
    if isinstance(cache, KVCache):
        rows = tokens.numbers(cache.keys_and_values()[0])
        return rows, np.zeros(1, np.int32), np.array([cache.offset], np.int32)
    left, offset = (np.array(a).astype(np.int32) for a in (cache.left_padding, cache.offset))
    if cache.keys is None:
        return np.zeros((len(left), 0), np.int32), left, offset
    rows = tokens.numbers(cache.keys_and_values()[0])
    assert rows.shape[1] == cache._idx and np.array_equal(offset, cache._idx - left)
    blank = np.arange(cache._idx) < left[:, None]
    return np.where(blank, np.int32(0), rows), left, offset


def make():
    mx.set_default_device(mx.cpu)
    arrays, batch = {"ops": text(OPS)}, None
    for i, line in enumerate(OPS):
        op, *args = line.split(" ")
        batch, shown = run(batch, op, args)
        arrays[f"s{i}_rows"], arrays[f"s{i}_left"], arrays[f"s{i}_offset"] = state(shown)
    return arrays
