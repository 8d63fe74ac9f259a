# SPDX-License-Identifier: MIT
"""Decides which attention backend an engine has. vLLM looks up CPU_ATTN, CPU_MLA or AMX_MLA here while it makes the model."""

from __future__ import annotations

import importlib
from typing import Any, Optional

from .policy import Policy, chosen

_CLASSES = {"CPU_ATTN": ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackend"),
            "CPU_MLA": ("vllm.v1.attention.backends.mla.cpu_mla", "CPUMLABackend"),
            "AMX_MLA": ("vllm.v1.attention.backends.mla.amx_mla", "AMXMLABackend")}


def current_config() -> Optional[Any]:
    from vllm.config import get_current_vllm_config_or_none

    return get_current_vllm_config_or_none()


def refusal(config: Any) -> Optional[str]:
    """A sentence if an engine with this configuration cannot keep its cache as tiles, else None."""
    cache, parallel, model = config.cache_config, config.parallel_config, config.model_config
    if cache.cache_dtype != "auto":
        return f"--kv-cache-dtype {cache.cache_dtype} and a policy of Quire exclude each other: the policy says how the cache is stored."
    if cache.block_size is not None and cache.block_size % 64:
        return f"Quire needs blocks of a multiple of 64 tokens, not of {cache.block_size} (--block-size)."
    if model is not None and model.is_hybrid:
        return "Quire cannot serve models that have Mamba layers beside attention."
    if model is not None and getattr(model, "is_mm_prefix_lm", False):
        return "Quire cannot serve models whose attention looks ahead inside of images."
    if config.attention_config.use_non_causal:
        return "Quire's attention in vLLM is causal."
    if getattr(config, "use_v2_model_runner", False):
        return "Quire's backend was not tested with vLLM's Model Runner V2: set VLLM_USE_V2_MODEL_RUNNER=0."
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return f"Quire cannot serve with {name} above 1."
    return None


def _stock(name: str) -> Any:
    module, found = _CLASSES[name]
    return getattr(importlib.import_module(module), found)


_found: "dict[tuple[str, Optional[Policy]], Any]" = {}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(name)
    config = current_config()
    policy = chosen(config)
    if policy is not None and name != "CPU_ATTN":
        raise ValueError("Quire's backend for vLLM has no MLA: start without a policy of Quire.")
    key = (name, policy)
    if key not in _found:
        if policy is None:
            _found[key] = _stock(name) if name != "CPU_ATTN" else _without_policy(_stock(name))
        else:
            from .backend import backend_for

            _found[key] = backend_for(policy)
    if policy is not None and config is not None:
        reason = refusal(config)
        if reason:
            raise ValueError(reason)
    return _found[key]


def check_same(policy: Optional[Policy]) -> None:
    """vLLM remembers the backend of the first engine of a process. A second engine with another policy would silently get that one."""
    config = current_config()
    wanted = chosen(config)
    if config is not None and wanted != policy:
        names = ["no policy" if x is None else f"the policy {x.text}" for x in (policy, wanted)]
        raise ValueError(f"This process already has an engine with {names[0]} of Quire; one with {names[1]} needs another process.")


def _without_policy(stock: Any) -> Any:
    class CPUAttentionBackend(stock):
        """vLLM's own."""

        @staticmethod
        def get_impl_cls() -> Any:
            check_same(None)
            return stock.get_impl_cls()

    return CPUAttentionBackend
