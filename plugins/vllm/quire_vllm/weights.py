# SPDX-License-Identifier: MIT
"""Notices when the weights of a running engine are changed: what is stored under the digest of the model's files must not be mixed with it.

vLLM tells a connector nothing of it. The methods that change weights, of its workers, its model runners and the model's class, are
replaced by ones that tell the connectors of the same engine first. Whoever writes to parameters in another way is not noticed.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable

from vllm.logger import init_logger

logger = init_logger("vllm.quire")
#: Classes by module; only modules that the process has imported are looked at. Workers for CPUs inherit from the first one.
_CLASSES = (("vllm.v1.worker.gpu_worker", "Worker"), ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
            ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner"))
_METHODS = ("reload_weights", "start_weight_update", "update_weights", "finish_weight_update", "sleep")

_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()


class Watch:
    """One for each worker's part of a connector, which keeps it as long as it wants to be told."""

    def __init__(self, config: Any, layer: Any, tell: Callable[[str], None]) -> None:
        """layer: any one of the model's modules. tell() gets the name of the method, in the thread that calls it."""
        self.config, self.layer, self.tell = config, layer, tell
        _watches.add(self)


def watch(config: Any, layer: Any, tell: Callable[[str], None]) -> Watch:
    for module, name in _CLASSES:
        owner = getattr(sys.modules.get(module), name, None)
        for method in _METHODS:
            tell_before(owner, method)
    try:
        from vllm.model_executor.model_loader.utils import get_model_cls

        tell_before(get_model_cls(config.model_config), "load_weights")
    except Exception as error:
        logger.warning("Quire: the class of the model is not known (%s), so calls of its load_weights() are not noticed.", error)
    return Watch(config, layer, tell)


def tell_before(owner: Any, method: str) -> None:
    """Replaces a method of a class, once."""
    plain = getattr(owner, method, None)
    if plain is None or getattr(plain, "tells_quire", False):
        return

    @functools.wraps(plain)
    def telling(self: Any, *args: Any, **kwargs: Any) -> Any:
        level = kwargs.get("level", args[0] if args else 1)
        if method != "sleep" or level not in (0, 1):  # these keep the weights
            for one in list(_watches):
                if _is_of(self, one):
                    one.tell(method)
        return plain(self, *args, **kwargs)

    setattr(telling, "tells_quire", True)
    setattr(owner, method, telling)


def _is_of(caller: Any, one: Watch) -> bool:
    """Another engine of the process, which starts, is none of its business."""
    config = getattr(caller, "vllm_config", None)
    if config is not None:
        return config is one.config
    modules = getattr(caller, "modules", None)
    return modules is None or any(module is one.layer for module in modules())
