# SPDX-License-Identifier: MIT
"""What the connector counts, for vLLM's log lines and for its page of metrics."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Type

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

#: Names and what they mean. All of them only grow. In /metrics: vllm:quire_NAME_total.
COUNTED = {
    "looked_up_tokens": "Tokens of requests that were looked up in the store",
    "found_tokens": "Tokens that the store had and that were asked for, because vLLM's own prefix cache did not have them",
    "loaded_tokens": "Tokens whose pages were loaded, on all ranks",
    "loaded_bytes": "Bytes of loaded pages, on all ranks",
    "failed_tokens": "Tokens that were found but could not be loaded, and were computed, on all ranks",
    "load_seconds": "Time that requests waited for their pages, on all ranks",
    "copy_seconds": "Time that steps waited until their finished pages were copied, on all ranks",
    "saved_pages": "Pages of 64 tokens that were handed to the store, on all ranks",
    "dropped_pages": "Pages that were not handed to the store, because the memory for saving or the store's queue was full, on all ranks",
    "lookup_errors": "Look-ups that failed with an error; the log has the first ones",
    "save_errors": "Saves that failed with an error; the log has the first ones",
    "refused_lora": "Requests with a LoRA adapter: nothing is stored or loaded for them",
    "refused_media": "Requests with images or other media: nothing is stored or loaded for them",
    "refused_embeddings": "Requests with embeddings instead of tokens: nothing is stored or loaded for them",
    "refused_other": "Requests for pooling or with input that goes on after they began: nothing is stored or loaded for them",
}


@dataclass
class Figures(KVConnectorStats):
    """Counts since they were last taken."""

    def reset(self) -> None:
        self.data: Dict[str, Any] = {}

    def add(self, **counts: float) -> None:
        for name, count in counts.items():
            self.data[name] = self.data.get(name, 0) + count

    def aggregate(self, other: KVConnectorStats) -> "Figures":
        self.add(**other.data)
        return self

    def reduce(self) -> Dict[str, Any]:
        return {f"Quire {name.replace('_', ' ')}": round(value, 3) for name, value in sorted(self.data.items()) if value}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class Counter:
    """Counts from several threads. total is what was counted since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new = Figures()
        self.total: Dict[str, float] = dict.fromkeys(COUNTED, 0)

    def add(self, **counts: float) -> None:
        with self._lock:
            self._new.add(**counts)
            for name, count in counts.items():
                self.total[name] += count

    def take(self) -> "Figures | None":
        with self._lock:
            taken, self._new = self._new, Figures()
        return None if taken.is_empty() else taken


class PromFigures(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Mapping[Type[Any], Type[Any]], labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {}
        for name, text in COUNTED.items():
            metric = self._counter_cls(name=f"vllm:quire_{name}", documentation=f"{text}.", labelnames=labelnames)
            self._counters[name] = {engine: metric.labels(*values) for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._counters and value > 0:
                self._counters[name][engine_idx].inc(value)
