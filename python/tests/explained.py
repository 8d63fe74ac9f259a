# SPDX-License-Identifier: MIT
"""What help() says about public names."""

from __future__ import annotations

import inspect
from typing import Any, List


def unexplained(module: Any) -> "List[str]":
    """The names of a module's __all__, and of methods and properties that the package gives to them, which have no docstring. dataclass() makes one
    that only repeats the members; it does not count. What is inherited from another package is that package's."""
    found = [] if module.__doc__ else [module.__name__]
    for name in module.__all__:
        thing = getattr(module, name)
        if not callable(thing):
            continue
        if not thing.__doc__ or thing.__doc__.startswith(f"{name}("):
            found.append(f"{module.__name__}.{name}")
        if inspect.isclass(thing):
            for base in thing.__mro__:
                members = vars(base).items() if base.__module__.startswith("quire") else ()
                found += [f"{module.__name__}.{name}.{member}" for member, value in members
                          if not member.startswith("_") and (callable(value) or isinstance(value, (property, classmethod, staticmethod)))
                          and not inspect.getdoc(getattr(thing, member) if not isinstance(value, property) else value)]
    return sorted(set(found))
