# SPDX-License-Identifier: MIT
"""Steps: rows reserved in some sequences, filled layer by layer, then kept or discarded."""

from __future__ import annotations

from ._cache import Step

__all__ = ["Step"]
