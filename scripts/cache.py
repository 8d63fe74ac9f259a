# SPDX-License-Identifier: MIT
"""Where scripts keep what is fetched, built or found outside of the checkout."""
import os
from pathlib import Path


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("QUIRE_CACHE") or Path(base) / "quire")
