# SPDX-License-Identifier: MIT
"""Which codecs the user asked for, and the formats of tiles that they give."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional

from quire import Plan, QuireError
from quire import _native as n

OFF = ("", "off")
_PER_LAYER = ("edge=", "sinks=", "window=")


@dataclass(frozen=True)
class Policy:
    """A codec for K and one for V, the same in all layers."""

    text: str  # in canonical form
    k: str
    v: str
    warning: Optional[str] = None  # a sentence if few bits make it risky


@dataclass(frozen=True)
class Formats:
    """How one head of a layer is stored: handles for the library, which live as long as the process, and bytes of a tile."""

    k: int
    v: int
    k_bytes: int
    v_bytes: int

    @property
    def pair_bytes(self) -> int:
        return self.k_bytes + self.v_bytes


@lru_cache(maxsize=None)
def parse(text: str) -> Policy:
    """Raises ValueError with one sentence if vLLM cannot have this policy."""
    items = text.split(",")
    per_layer = [item for item in items if item.startswith(_PER_LAYER)]
    if per_layer:
        raise ValueError(f"Quire's policy {text!r} contains {per_layer[0]!r}, but in vLLM all layers have the same codecs.")
    try:
        plan = Plan(text, n_layers=1, n_q_heads=1, n_kv_heads=1, d_k=128)
        layer, canonical, warning = plan.layer(0), plan.policy, plan.warning
        plan.close()
    except (QuireError, TypeError, ValueError) as error:
        raise ValueError(f"Quire's policy {text!r} cannot be used: {error}") from None
    return Policy(canonical, layer.k, layer.v, warning)


def chosen(vllm_config: Optional[Any]) -> Optional[Policy]:
    """The policy of --additional-config '{"quire": {"kv": "r8"}}', else that of QUIRE_KV; None if there is none."""
    text = os.environ.get("QUIRE_KV", "")
    additional = getattr(vllm_config, "additional_config", None)
    asked = additional.get("quire") if isinstance(additional, dict) else None
    if asked is not None:
        if not isinstance(asked, dict) or set(asked) != {"kv"} or not isinstance(asked["kv"], str):
            raise ValueError('additional_config["quire"] must be {"kv": POLICY}, for example {"kv": "r8"} or {"kv": "off"}.')
        text = asked["kv"]
    return None if text in OFF else parse(text)


@lru_cache(maxsize=None)
def formats(policy: Policy, d_k: int, d_v: int) -> Formats:
    """Raises ValueError with one sentence if a codec has no tiles for this head size."""
    handles, sizes = [], []
    for side, codec, d in ((n.K, policy.k, d_k), (n.V, policy.v, d_v)):
        handle = ctypes.c_void_p()
        status = n.lib.quire_tile_format_create(ctypes.byref(handle), codec.encode(), n.TileFormatOptions(side, d))
        if status:
            raise ValueError(f"Quire's codec {codec} cannot store heads of {d} values ({n.status_name(status)}).")
        assert handle.value is not None
        handles.append(handle.value)
        sizes.append(int(n.lib.quire_tile_bytes(handle.value)))
    return Formats(handles[0], handles[1], sizes[0], sizes[1])
