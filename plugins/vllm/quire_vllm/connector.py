# SPDX-License-Identifier: MIT
"""QuireConnector: vLLM's prefixes in Quire's store, on disk and in a Valkey or Redis cluster (docs/vllm.md)."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set, Tuple

import torch
import vllm
from quire import _native as n
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec, UniformTypeKVCacheSpecs

from . import identity, settings, weights
from .figures import Counter, Figures, PromFigures
from .moving import Moving
from .pages import Blocks, PageForm, form_of
from .policy import chosen
from .scheduling import Scheduling, StepMetadata
from .versions import refusal

logger = init_logger("vllm.quire")
PAGE = n.PAGE_TOKENS


def check(config: Any) -> None:
    """Raises ValueError with one sentence if vLLM is started in a way that the connector cannot serve."""
    transfer, parallel, speculative = config.kv_transfer_config, config.parallel_config, config.speculative_config
    wrong = refusal(vllm.__version__)
    if wrong is None and transfer.kv_load_failure_policy != "recompute":
        wrong = ('QuireConnector needs "kv_load_failure_policy": "recompute" in --kv-transfer-config: a page can be gone when it is loaded, '
                 "and its tokens must then be computed.")
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if wrong is None and getattr(parallel, name, 1) > 1:
            wrong = f"QuireConnector cannot serve with {name} above 1."
    if wrong is None and speculative is not None and speculative.method not in ("ngram", "ngram_gpu", "suffix"):
        wrong = f"QuireConnector cannot serve with a draft model ({speculative.method}), whose weights are not in its digest; ngram has none."
    if wrong is not None:
        raise ValueError(wrong)


def attention_specs(kv_cache_config: Any) -> Tuple[List[str], List[Any]]:
    """Names and specifications of the layers. Raises ValueError with one sentence."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError("QuireConnector serves models whose layers all keep all tokens; this one has several kinds of caches.")
    names, spec = list(groups[0].layer_names), groups[0].kv_cache_spec
    specs = [spec.kv_cache_specs[name] for name in names] if isinstance(spec, UniformTypeKVCacheSpecs) else [spec] * len(names)
    for one in specs:
        if type(one) is not FullAttentionSpec:
            raise ValueError(f"QuireConnector serves attention over all tokens only, not {type(one).__name__}.")
    return names, specs


def _name(model: Any) -> str:
    names = model.served_model_name or model.model
    return names if isinstance(names, str) else str(names[0])


class QuireConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        check(vllm_config)
        transfer, parallel, model = vllm_config.kv_transfer_config, vllm_config.parallel_config, vllm_config.model_config
        self._settings = settings.read(transfer.kv_connector_extra_config)
        self._layers, specs = attention_specs(kv_cache_config)
        self._block_tokens = specs[0].block_size
        if self._block_tokens % PAGE and PAGE % self._block_tokens:
            raise ValueError(f"QuireConnector cannot cut blocks of {self._block_tokens} tokens into pages of {PAGE}; use --block-size 16, 32, "
                             "64 or a multiple of 64.")
        self._form: PageForm = form_of(specs, model.dtype, chosen(vllm_config), self._settings.kv)
        ranks = parallel.tensor_parallel_size
        self._model = identity.Model(
            weights=identity.weights_digest(vllm_config), layout=self._form.layout, page_bytes=self._form.page_bytes, ranks=ranks,
            text=identity.model_text(vllm_config, vllm.__version__, current_platform.device_type),
            name=identity.printable(_name(model)))
        self._store = identity.open_store(self._settings)
        self._is_open = True
        self._counter = Counter()
        self._scheduling: Optional[Scheduling] = None
        self._moving: Optional[Moving] = None
        self._pool: Any = None  # vLLM's blocks
        self._watch: Optional[weights.Watch] = None
        if role == KVConnectorRole.SCHEDULER:
            spaces = identity.Spaces(self._store, self._model, self._settings.secret, range(ranks))
            self._scheduling = Scheduling(self._settings, spaces, self._block_tokens, self._counter, transfer.is_kv_consumer,
                                          transfer.is_kv_producer)
            logger.info("Quire stores prefixes in %s: pages of %d tokens and %d bytes (%.2f bits per value), %s.", self._where(), PAGE,
                        self._form.page_bytes, self._form.bits_per_value, self._form.layout)
        else:
            from vllm.distributed import get_tensor_model_parallel_rank

            spaces = identity.Spaces(self._store, self._model, self._settings.secret, [get_tensor_model_parallel_rank()])
            self._moving = Moving(self._settings, spaces, self._counter)

    def _where(self) -> str:
        return " and ".join(x for x in (self._settings.directory, self._settings.remote) if x)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a page that is not saved is computed again

    @property
    def counted(self) -> Dict[str, float]:
        """What this part counted since the start."""
        return dict(self._counter.total)

    # ------------------------------------------------------------- scheduler

    def on_new_request(self, request: Any) -> None:
        assert self._scheduling is not None
        self._scheduling.new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        assert self._scheduling is not None
        return self._scheduling.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduling is not None
        if num_external_tokens > 0:
            self._scheduling.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduling is not None
        return self._scheduling.metadata(scheduler_output)

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        assert self._scheduling is not None
        self._scheduling.finished(request)
        return False, None

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._pool = gpu_block_pool

    def reset_cache(self) -> Optional[bool]:
        """vLLM has tried to empty its own cache just before. It does not while requests have blocks, and calls this all the same."""
        assert self._scheduling is not None
        pool = self._pool
        is_emptied = pool is None or (pool.num_gpu_blocks - pool.get_num_free_blocks() <= 1 and not len(pool.cached_block_hash_to_block))
        self._scheduling.reset(is_emptied)
        logger.info("Quire: what was stored before is not used any more by this engine, and what it stores is its own until it ends.")
        if not is_emptied:
            logger.warning("Quire: vLLM has kept its own prefix cache, because requests are running. What begins with it is not stored until "
                           "a reset succeeds.")
        return is_emptied

    # ---------------------------------------------------------------- worker

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        assert self._moving is not None
        layers = self._vllm_config.compilation_config.static_forward_context
        self._watch = weights.watch(self._vllm_config, layers[self._layers[0]], self._moving.weights_changed)
        self._moving.use(Blocks(self._form, self._block_tokens, [kv_caches[name] for name in self._layers],
                                [layers[name].impl for name in self._layers]))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._moving is not None
        step = self._get_connector_metadata()
        assert isinstance(step, StepMetadata)
        self._moving.begin_loads(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass  # a request is not scheduled before its load has ended

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass  # a page is all layers: copied when the step is over

    def wait_for_save(self) -> None:
        assert self._moving is not None
        step = self._get_connector_metadata()
        assert isinstance(step, StepMetadata)
        self._moving.begin_saves(step)

    def get_finished(self, finished_req_ids: Set[str]) -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        assert self._moving is not None
        self._moving.forget(finished_req_ids)
        return None, self._moving.take_ended() or None

    def get_block_ids_with_load_errors(self) -> Set[int]:
        assert self._moving is not None
        return self._moving.take_failed()

    # ------------------------------------------------------------------ both

    def get_kv_connector_stats(self) -> Optional[Figures]:
        return self._counter.take()

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Figures:
        return Figures(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any) -> PromFigures:
        return PromFigures(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._scheduling is not None:
            self._scheduling.close()
        if self._moving is not None:
            self._moving.close()
        self._watch = None
        if not identity.release_store(self._settings):
            logger.warning("Quire: pages that wait for the remote tier are dropped.")
        counts = ", ".join(f"{name.replace('_', ' ')} {value:.6g}" for name, value in self._counter.total.items() if value)
        logger.info("Quire: %s ended: %s.", self.role.name.lower(), counts or "nothing counted")
