# SPDX-License-Identifier: MIT
"""Scripts of the project as modules, so that tests can call their functions."""
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def loaded(name):
    """The script of that name."""
    sys.dont_write_bytecode = True  # nothing is left beside it
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module
