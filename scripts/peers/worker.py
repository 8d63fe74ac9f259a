# SPDX-License-Identifier: MIT
"""What the measured programs in Python have in common; worker.c is the same in C."""
import json
import mmap
import re
import sys
import time

import numpy as np

import rows

HUGE_BYTES = 1 << 21


def huge(n_bytes):
    """Zeroed memory on huge pages, as far as the system has them."""
    size = (n_bytes + HUGE_BYTES - 1) // HUGE_BYTES * HUGE_BYTES
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 0
    return array[:n_bytes]


def answer(call, uncounted, counted):
    for _ in range(uncounted):
        call()
    ms = []
    for _ in range(counted):
        start = time.perf_counter()
        call()
        ms.append(round((time.perf_counter() - start) * 1e3, 4))
    print(json.dumps({"ms": ms}), flush=True)


def main(make):
    """Arguments: ROWS-FILE OUT-FOLDER CONTEXT QUERIES THREADS NAME... make(name, q, k, v, threads) gives an object with run(), out(),
    bytes, isa and perhaps append()."""
    path, folder = sys.argv[1:3]
    context, queries, threads = (int(x) for x in sys.argv[3:6])
    q, k, v = rows.read(path, context, queries)
    configs = []
    for name in sys.argv[6:]:
        config = make(name, q, k, v, threads)
        config.run()
        out = f"{folder}/{re.sub('[/:]', '-', name)}.out"
        np.asarray(config.out(), np.float32).tofile(out)
        print(json.dumps({"config": name, "bytes": config.bytes, "isa": config.isa, "out": out}), flush=True)
        configs.append(config)
    print("ready", flush=True)
    for line in sys.stdin:
        what, index, uncounted, counted = line.split()
        config = configs[int(index)]
        answer(config.append if what == "append" else config.run, int(uncounted), int(counted))
