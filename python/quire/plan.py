# SPDX-License-Identifier: MIT
"""Plans: a policy applied to the shape of a model."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import List, Optional, Sequence as Seq, Tuple

from . import _native as n
from ._handle import Handle
from ._shapes import Layer, geometry_of
from ._stream import Writer
from .profile import Profile

__all__ = ["Layer", "Plan", "PlannedLayer", "Preset", "presets"]

_MOST_LAYERS = 4096


@dataclass(frozen=True)
class PlannedLayer:
    """How a layer is stored. v is "" if V is part of K; reason says why the layer is special, "" if it is not."""

    k: str
    v: str
    sink_k: str
    sink_v: str
    sink_tokens: int
    group: int
    window: int
    bytes_per_token: float
    reason: str


@dataclass(frozen=True)
class Preset:
    """A name that a policy may begin with, and the codecs that it stands for; the same pair twice if a profile makes no difference."""

    name: str
    without_profile: str
    with_profile: str
    summary: str


def presets() -> List[Preset]:
    """The presets: names that a policy may begin with, and the codecs they stand for."""
    found = (n.lib.quire_preset_at(i).contents for i in range(n.lib.quire_preset_count()))
    return [Preset(n.text(p.name), n.text(p.without), n.text(p.with_profile), n.text(p.summary)) for p in found]


class Plan(Handle):
    """Defines which codec each layer uses; docs/policy.md has the grammar of `policy`.

    Give either one shape for all layers (n_layers, n_q_heads, n_kv_heads, d_k, d_v if it differs from d_k, and optionally windows with
    one number per layer), or a list of layers. A plan never changes, and threads can share it.
    """

    def __init__(self, policy: str = "safe", *, n_layers: int = 1, n_q_heads: int = 0, n_kv_heads: int = 0, d_k: int = 0,
                 d_v: Optional[int] = None, windows: Optional[Seq[int]] = None, v_in_k: bool = False,
                 layers: Optional[Seq[Layer]] = None, profile: Optional[Profile] = None) -> None:
        wanted = n.c_text(policy, "policy")
        if layers is None:
            n_layers = n.u32(n_layers, "n_layers")
            if not 1 <= n_layers <= _MOST_LAYERS:
                raise ValueError(f"n_layers is {n_layers}, not a number from 1 to {_MOST_LAYERS}")
            if windows is not None and len(windows) != n_layers:
                raise ValueError(f"{len(windows)} windows were given for {n_layers} layers")
            layers = [Layer(n_q_heads, n_kv_heads, d_k, d_k if d_v is None else d_v, 0 if windows is None else windows[i], v_in_k)
                      for i in range(n_layers)]
        self.layers: Tuple[Layer, ...] = tuple(layers)
        geometry = geometry_of(self.layers)
        message = ctypes.create_string_buffer(512)
        options = n.PlanOptions(message=ctypes.cast(message, ctypes.c_char_p), message_size=len(message))
        super().__init__(n.lib.quire_plan_destroy)
        if profile is None:
            self._open(n.lib.quire_plan_create, geometry, wanted, options, message=message)
            return
        if not isinstance(profile, Profile):
            raise TypeError(f"profile is a {type(profile).__name__}, not a Profile")
        with profile._lock:
            options.profile = profile._get()
            self._open(n.lib.quire_plan_create, geometry, wanted, options, message=message)

    @property
    def n_layers(self) -> int:
        """The number of layers of the model."""
        return len(self.layers)

    @property
    def policy(self) -> str:
        """The policy in canonical form."""
        with self._lock:
            return n.text(n.lib.quire_plan_policy(self._get()))

    @property
    def fingerprint(self) -> int:
        """A hash of codecs, shapes, layout and profile."""
        with self._lock:
            return int(n.lib.quire_plan_fingerprint(self._get()))

    @property
    def bytes_per_token(self) -> float:
        """Bytes per token of the full-attention layers."""
        with self._lock:
            return float(n.lib.quire_plan_bytes_per_token(self._get()))

    @property
    def warning(self) -> Optional[str]:
        """A sentence if the policy is risky for this model, else None."""
        with self._lock:
            found = n.lib.quire_plan_warning(self._get())
        return None if found is None else n.text(found)

    def layer(self, index: int) -> PlannedLayer:
        """How one layer is stored: its codecs, its group and its bytes."""
        got, number = n.PlanLayer(), n.u32(index, "index")
        if number >= self.n_layers:
            raise ValueError(f"index is {number}, but the plan has {self.n_layers} layers")
        with self._lock:
            n.check(n.lib.quire_plan_layer_info(self._get(), number, got))
            return PlannedLayer(n.text(got.k), n.text(got.v), n.text(got.sink_k), n.text(got.sink_v), got.sink_tokens,
                                got.group, got.window, got.bytes_per_token, n.text(got.reason))

    def page_bytes(self) -> List[int]:
        """Size of a page of 64 tokens in bytes, one number per group of layers."""
        with self._lock:
            plan = self._get()
            return [int(n.lib.quire_plan_page_bytes(plan, g)) for g in range(n.lib.quire_plan_n_groups(plan))]

    def bytes(self, n_tokens: int, step_tokens: Optional[int] = None, *, max_tokens: int = 0, sinks: int = 0,
              spare_tokens: int = 0) -> int:
        """The most page memory that one sequence needs to reach n_tokens in steps of step_tokens (None: in one step)."""
        ring = n.seq_options(max_tokens, sinks, spare_tokens)
        n_tokens = n.u32(n_tokens, "n_tokens")
        step = n_tokens if step_tokens is None else n.u32(step_tokens, "step_tokens")
        out = ctypes.c_size_t()
        with self._lock:
            n.check(n.lib.quire_plan_bytes(self._get(), ring, n_tokens, step, out),
                    invalid=f"n_tokens is {n_tokens} and step_tokens is {step}: too many tokens")
        return int(out.value)

    def describe(self) -> str:
        """A description of the plan as text for users."""
        to = Writer()
        with self._lock:
            n.check(to.call(n.lib.quire_plan_describe, self._get()))
        return to.bytes().decode()

    def __repr__(self) -> str:
        return "<quire.Plan, closed>" if self.closed else f"<quire.Plan {self.policy}, {self.n_layers} layers>"


def check_plan(plan: Plan) -> None:
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}, not a Plan")
