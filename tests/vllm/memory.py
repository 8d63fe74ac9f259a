# SPDX-License-Identifier: MIT
"""Measures what limits decode of one layer over many tokens: beside it, only reading the bytes of the cache, on ordinary and on huge pages.

    tests/vllm/run.py memory.py [SECONDS]      for each length (15)

One thread, its processor time, minima and medians in ms, in turn in one process. A cache on huge pages is a tensor that was made as vLLM makes
it and then handed to madvise(MADV_COLLAPSE), which needs Linux 6.1.
"""
import ctypes
import statistics
import sys
import time

import torch

from scene import Quire, Scene, Stock

HUGE = 2 << 20
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
libc = ctypes.CDLL(None)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def collapse(tensor):
    first, size = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    start, end = -(-first // HUGE) * HUGE, (first + size) // HUGE * HUGE
    return not any(libc.madvise(start, end - start, advice) for advice in (MADV_HUGEPAGE, MADV_COLLAPSE))


def reader(tensor):
    words = tensor.view(-1).view(torch.int64)
    return lambda: words.max()


def measure(tokens, seconds):
    scene, calls = Scene([(tokens, 1)]), {}
    for name, make in (("vLLM bf16", lambda: Stock(scene)), ("r8", lambda: Quire(scene, "r8")), ("r4", lambda: Quire(scene, "r4"))):
        for pages in ("", ", huge pages"):
            held = make()
            if pages and not collapse(held.cache):
                print("skipped: this system gives no huge pages")
                continue
            calls[f"{name}{pages}"] = held.attend
            calls[f"{name}{pages}: reading only"] = reader(held.cache)
    times = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(min(times.values(), key=len)) < 5:
        for name, call in calls.items():
            call()  # so that the one before leaves no trace in the processor's cache
            began = time.thread_time()
            call()
            times[name].append(1e3 * (time.thread_time() - began))
    for name, found in times.items():
        print(f"{tokens:6} tokens, {name:32} {min(found):8.3f} {statistics.median(found):8.3f}", flush=True)


def main():
    torch.set_num_threads(1)
    for tokens in (8192, 32768):
        measure(tokens, float(sys.argv[1]) if len(sys.argv) > 1 else 15)
    return 0


if __name__ == "__main__":
    sys.exit(main())
