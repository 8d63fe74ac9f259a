# SPDX-License-Identifier: MIT
"""The command quire that the package brings, and the environment that makes llama.cpp load the device."""

from __future__ import annotations

import os
import subprocess
from os import PathLike
from pathlib import Path
from typing import Dict, List, Optional, Sequence as Seq, Union

from . import _native as n

_Path = Union[str, "PathLike[str]"]


def program() -> Path:
    """The program itself; bin/ lies beside the lib/ of the libraries, in the wheel and in a build folder."""
    path = n.folder().parent / "bin" / "quire"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    return path


def command(*arguments: _Path) -> str:
    """Runs `quire ARGUMENTS` and gives what it prints; RuntimeError with its last words if it fails.

    For example command("cache", "convert", "--to", "a4g64", "--out", new, old) of mlx-lm's prompt-cache files.
    """
    words: List[str] = [str(program())] + [os.fspath(a) for a in arguments]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"quire ended with {done.returncode}")
    return done.stdout


def llama_env(policy: str = "k8v4", profile: Optional[_Path] = None, *, program: Optional[_Path] = None,
              arguments: Seq[str] = (), base: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """The environment of a child process in which an unmodified llama.cpp keeps its cache in Quire's tiles.

    It is what `quire run --env` prints, put over base (None: the present environment). If program and its arguments are given, they
    are looked at first: a program with ggml built in, a policy that does not suit the model of -m, or a profile of another
    model raise RuntimeError.
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
