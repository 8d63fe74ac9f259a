# SPDX-License-Identifier: MIT
"""Quire in vLLM: blocks of the KV cache on CPUs as tiles of 2 to 8 bits per value, and prefixes shared through Quire's store."""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """vLLM calls this in each of its processes (entry point vllm.general_plugins)."""
    import vllm
    from vllm.logger import init_logger

    from .versions import refusal

    unknown = refusal(vllm.__version__)
    if unknown:
        init_logger("vllm.quire").warning(unknown)
        return
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    # On CPUs vLLM takes no backend but these three, whatever the user names, and asks the registry where they are. The names in
    # select.py are looked up when the model is made: only then it is known whether the user asked for a policy.
    for name in ("CPU_ATTN", "CPU_MLA", "AMX_MLA"):
        if hasattr(AttentionBackendEnum, name):
            register_backend(AttentionBackendEnum[name], f"quire_vllm.select.{name}")
    if "QuireConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("QuireConnector", "quire_vllm.connector", "QuireConnector")
