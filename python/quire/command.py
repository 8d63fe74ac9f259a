# SPDX-License-Identifier: MIT
"""The command `quire` that comes with the package, and the environment that makes llama.cpp load the device."""

from __future__ import annotations

import os
import subprocess
from os import PathLike
from pathlib import Path
from typing import Dict, List, Optional, Sequence as Seq, Union

from . import _native as n

_Path = Union[str, "PathLike[str]"]


def program() -> Path:
    """The path of the program: bin/ is next to the lib/ of the libraries, in the wheel and in a build folder."""
    path = n.folder().parent / "bin" / "quire"
    if not path.exists():
        raise FileNotFoundError(f"{path} was not found")
    return path


def command(*arguments: _Path) -> str:
    """Runs `quire ARGUMENTS` and returns its output. Raises RuntimeError with its error message if it fails.

    For example, command("cache", "convert", "--to", "a8g64", "--out", new, old) converts a prompt-cache file of mlx-lm.
    """
    words: List[str] = [str(program())] + [os.fspath(a) for a in arguments]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"quire failed with exit code {done.returncode}")
    return done.stdout


def llama_env(policy: str = "safe", profile: Optional[_Path] = None, *, program: Optional[_Path] = None,
              arguments: Seq[str] = (), base: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """The environment for a child process in which an unmodified llama.cpp stores its KV cache with Quire.

    It is `base` (None: the current environment) with the variables that `quire run --env` prints. If you give the program and its
    arguments, they are checked first: RuntimeError if the program has ggml built in, if the policy does not fit the model of -m, or
    if the profile belongs to another model.
    """
    options = ["--kv", policy]
    if profile is not None:
        options += ["--profile", os.fspath(profile)]
    printed = command("run", "--env", *options, "--", "true" if program is None else program, *arguments)
    environment = dict(os.environ if base is None else base)
    for line in printed.splitlines():
        name, _, value = line.partition("=")
        environment[name] = value
    return environment
