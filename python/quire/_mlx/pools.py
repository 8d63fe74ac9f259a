# SPDX-License-Identifier: MIT
"""The memory of the caches. Layers with the same shape and codecs share a pool, whatever model or prompt they belong to, because only
sequences of one pool can be attended to in one call."""

from __future__ import annotations

import os
import threading
import weakref
from functools import lru_cache
from typing import Optional, Tuple

from .. import _native as n
from .._system import memory_bytes, processors
from ..plan import Layer, Plan
from ..pool import Pool, Workspace
from ..threads import Threads
from .contents import Settings
from .guard import process


Shape = Tuple[int, int, int]  # KV heads, d_k, d_v


@lru_cache(maxsize=1024)
def layer_policy(settings: Settings, shape: Shape) -> str:
    """The policy of one layer, from the policy of the whole model. Raises if that is not a policy for such layers."""
    heads, d_k, d_v = shape
    with Plan(settings.policy, n_layers=settings.n_layers, n_q_heads=heads, n_kv_heads=heads, d_k=d_k, d_v=d_v) as plan:
        found = plan.layer(settings.index)
    sinks = f",sinks={found.sink_tokens}:{found.sink_k}/{found.sink_v}" if found.sink_tokens else ""
    return f"{found.k}/{found.v}{sinks}"


def _usual_threads() -> int:
    given = os.environ.get("QUIRE_THREADS")
    if not given:
        return processors()
    if not (given.isascii() and given.isdigit()):
        raise ValueError(f"QUIRE_THREADS is {given!r}, not a number of threads")
    return int(given)


class Pools:
    """Pools with a memory budget, and the threads that compute on them.

    budget_bytes: the limit for each shape of layer; None: the memory of the machine. A pool is destroyed with the last cache that uses
    it, and its memory returns to the system. threads None: the value of QUIRE_THREADS, or one thread per processor
    (macOS: per fast core).
    """

    def __init__(self, budget_bytes: Optional[int] = None, threads: Optional[int] = None) -> None:
        self.budget_bytes = memory_bytes() if budget_bytes is None else n.u64(budget_bytes, "budget_bytes")
        n_threads = _usual_threads() if threads is None else n.u32(threads, "threads")
        if not self.budget_bytes or not n_threads:
            raise ValueError(f"budget_bytes and threads must be at least 1; budget_bytes={self.budget_bytes}, threads={n_threads}")
        self.n_threads = n_threads
        self.threads = Threads(n_threads) if n_threads > 1 else None
        self.workspace = Workspace(self.threads)
        self.lock = threading.RLock()  # of the workspace; a signal handler may use another cache while it is held
        self.process = process()
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
        """Bytes of the pages that caches use now."""
        return sum(pool.stats.used_bytes for pool in list(self._pools.values()))

    @property
    def peak_bytes(self) -> int:
        """The sum of the peak sizes of the pools that are in use now."""
        return sum(pool.stats.peak_bytes for pool in list(self._pools.values()))


def pool_of(pools: Pools, settings: Settings, shape: Shape) -> Pool:
    """The pool for a layer's sequences."""
    return pools.get(layer_policy(settings, shape), *shape)


_default: Optional[Pools] = None
_default_lock = threading.RLock()


def default_pools() -> Pools:
    """The pools of caches that were created without pools. They are created at first use."""
    global _default
    with _default_lock:
        if _default is None or _default.process != process():  # those of the process that forked have no threads here
            _default = Pools()
        return _default
