# SPDX-License-Identifier: MIT
"""mlx-vlm's turboquant.py as it is, without the rest of mlx-vlm, which needs many packages."""
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import types

import mlx.core as mx
import numpy as np

BITS = (2, 3, 4, 5, 6)
SIZES = (16, 32, 64, 128, 256, 512)
SEEDS = {"K": 0, "V": 1}


def load():
    """The module. Its tables depend on the log and exp of numpy, which differ where there is no AVX2."""
    assert importlib.metadata.version("mlx-vlm") == "0.7.10" and np.__version__ == "2.4.6"
    features = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    assert features.get("X86_V3") or features.get("AVX2"), "mlx-vlm's tables are made on a processor with AVX2"
    folder = os.path.dirname(importlib.util.find_spec("mlx_vlm").origin)
    for name in ("mlx_vlm", "mlx_vlm.models"):           # without running their __init__.py
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(folder, *name.split(".")[1:])]
        sys.modules[name] = package
    mx.set_default_device(mx.cpu)
    return importlib.import_module("mlx_vlm.turboquant")


def codec(turboquant, d, bits, side):
    """The codec of one side of TurboQuantKVCache."""
    return turboquant._TurboQuantMSECodec(d, bits, SEEDS[side])
