# SPDX-License-Identifier: MIT
"""The memory of the caches. Layers with the same shape and codecs share a pool, whatever model or prompt they belong to, because only
sequences of one pool can be attended to in one call."""

from __future__ import annotations

import os
import threading
import weakref
from functools import lru_cache
from typing import Optional, Tuple

from ..plan import Layer, Plan
from ..pool import Pool, Workspace
from ..threads import Threads


@lru_cache(maxsize=1024)
def layer_policy(policy: str, index: int, n_layers: int, n_kv_heads: int, d_k: int, d_v: int) -> str:
    """The policy of one layer, from the policy of the whole model."""
    with Plan(policy, n_layers=n_layers, n_q_heads=n_kv_heads, n_kv_heads=n_kv_heads, d_k=d_k, d_v=d_v) as plan:
        found = plan.layer(index)
    sinks = f",sinks={found.sink_tokens}:{found.sink_k}/{found.sink_v}" if found.sink_tokens else ""
    return f"{found.k}/{found.v}{sinks}"


class Pools:
    """Pools with a memory budget, and the threads that compute on them.

    budget_bytes: the limit for each shape of layer; None: the memory of the machine. A pool is destroyed with the last cache that uses
    it, and its memory returns to the system. threads None: the value of QUIRE_THREADS, or one thread per processor.
    """

    def __init__(self, budget_bytes: Optional[int] = None, threads: Optional[int] = None) -> None:
        self.budget_bytes = budget_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        n_threads = threads or int(os.environ.get("QUIRE_THREADS") or len(os.sched_getaffinity(0)))
        self.n_threads = n_threads
        self.threads = Threads(n_threads) if n_threads > 1 else None
        self.workspace = Workspace(self.threads)
        self.lock = threading.Lock()  # of the workspace
        self._pools: "weakref.WeakValueDictionary[Tuple[str, int, int, int], Pool]" = weakref.WeakValueDictionary()

    def get(self, policy: str, n_kv_heads: int, d_k: int, d_v: int) -> Pool:
        """The pool for a shape. policy: the policy of one layer."""
        key = policy, n_kv_heads, d_k, d_v
        with self.lock:
            pool = self._pools.get(key)
            if pool is None:
                # Attention is told the number of query heads with every call; the plan's own is never used.
                plan = Plan(policy, layers=[Layer(n_kv_heads, n_kv_heads, d_k, d_v)])
                pool = self._pools[key] = Pool(plan, self.budget_bytes, self.threads or 1)
            return pool

    @property
    def used_bytes(self) -> int:
        return sum(pool.stats.used_bytes for pool in list(self._pools.values()))

    @property
    def peak_bytes(self) -> int:
        """The sum of the peak sizes of the pools that are in use now."""
        return sum(pool.stats.peak_bytes for pool in list(self._pools.values()))


_default: Optional[Pools] = None
_default_lock = threading.Lock()


def default_pools() -> Pools:
    """The pools of caches that were created without pools. They are created at first use."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Pools()
        return _default
