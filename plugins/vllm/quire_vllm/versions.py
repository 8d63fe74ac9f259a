# SPDX-License-Identifier: MIT
"""Versions of vLLM that the plug-in was tested with. The interface for backends is not stable: `customize_spec` is marked temporary there."""

from __future__ import annotations

from typing import Optional

KNOWN = ("0.32.0",)


def refusal(version: str) -> Optional[str]:
    """A sentence if this version of vLLM is not known, else None. What follows a plus (0.32.0+cpu) says how it was built."""
    if version.partition("+")[0] in KNOWN:
        return None
    return (f"quire-vllm does not know vLLM {version} (it knows {', '.join(KNOWN)}): Quire is not used, and vLLM runs without it.")
