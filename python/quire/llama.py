# SPDX-License-Identifier: MIT
"""Makes llama-cpp-python keep its KV cache with Quire, in this process."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import struct
import sys
import tempfile
import threading
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from . import _native as n

_Path = Union[str, "PathLike[str]"]

_lock = threading.Lock()
_enabled: Optional[Tuple[str, str, str]] = None  # what enable() was given when the device was loaded

# --------------------------------------------------------------- the device


def _host() -> Tuple[Any, ctypes.CDLL]:
    """llama_cpp, and its libllama. A function of ggml is found through it wherever it is: dlsym() also looks into what a library needs."""
    try:
        module = importlib.import_module("llama_cpp")
    except ImportError as e:
        raise ImportError(f"llama-cpp-python cannot be imported ({e}); install it with `pip install llama-cpp-python`") from e
    library = getattr(getattr(module, "llama_cpp", None), "_lib", None)
    if not isinstance(library, ctypes.CDLL) or not hasattr(library, "ggml_backend_load") or not hasattr(library, "ggml_backend_reg_count"):
        raise RuntimeError(f"llama-cpp-python {getattr(module, '__version__', '?')} has no ggml_backend_load(), with which a device is "
                           "loaded; 0.3.36 has it")
    return module, library


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of its own: attributes of `library` are shared with llama_cpp, which declares them in its way."""
    return ctypes.CFUNCTYPE(result, *arguments)((name, library))


def _load_cpu(library: ctypes.CDLL) -> None:
    """In a build with GGML_BACKEND_DL nothing is there yet, and llama.cpp looks for the CPU beside the program python3, where it is not.
    It does not look at all once another backend is there, so the CPU comes first."""
    if _function(library, "ggml_backend_reg_count", ctypes.c_size_t)():
        return
    folder = Path(library._name).resolve().parent
    _function(library, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)(os.fsencode(folder))
    if not _function(library, "ggml_backend_reg_count", ctypes.c_size_t)():
        _function(library, "ggml_backend_load_all", None)()
    if not _function(library, "ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"CPU"):
        raise RuntimeError(f"llama-cpp-python was built with GGML_BACKEND_DL, but its CPU backend is not in {folder}")


@contextlib.contextmanager
def _environment(values: Dict[str, str]) -> Iterator[None]:
    """The device copies its settings when it is loaded; children of this process shall not inherit them."""
    before = {name: os.environ.get(name) for name in values}
    try:
        os.environ.update(values)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet(said: List[str]) -> Iterator[None]:
    """Collects what libraries write to stderr, and keeps llama_cpp's own log from saying it again."""
    logger = logging.getLogger("llama-cpp-python")
    level = logger.level
    if sys.stderr is not None:
        sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        try:
            stderr = os.dup(2)
        except OSError:  # it is closed
            stderr = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file.fileno(), 2)
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            said += file.read().decode(errors="replace").splitlines()


def _load(library: ctypes.CDLL, path: Path, settings: Dict[str, str]) -> None:
    load = _function(library, "ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p)
    said: List[str] = []
    with _environment(settings), _quiet(said):
        _load_cpu(library)
        loaded = load(os.fsencode(path))
    reason = "quire: not loaded: "
    if not loaded:
        why = [line[len(reason):] for line in said if line.startswith(reason)]
        raise RuntimeError(why[-1] if why else f"ggml does not load {path}: " + ("; ".join(said) or "it gives no reason"))
    for line in said:
        print(line, file=sys.stderr)


def enable(kv: str = "safe", profile: Optional[_Path] = None, *, log: bool = False, device: Optional[_Path] = None) -> Dict[str, Any]:
    """Loads the device into llama-cpp-python. Models that are loaded afterwards keep their KV cache under the policy `kv`.

    Returns the arguments that such a model needs: `Llama("model.gguf", **enable("balanced"))`. llama-cpp-python gives a device nothing by
    default, and Quire only computes flash attention; so they are n_gpu_layers=-1 and flash_attn=True.

    kv: a policy, or "declared": the cache keeps the types type_k and type_v, and only attention is Quire's. profile: for `c:` codecs.
    log: the device's messages go to stderr. device: libggml-quire.so, if it is not the one of this package.

    A process has one policy: further calls with the same arguments do nothing, others raise RuntimeError. So do a llama-cpp-python that
    cannot load devices or has an unknown ggml, a policy or profile that is not valid, and a call after a model was loaded. ImportError:
    there is no llama-cpp-python, or no device in this package.
    """
    global _enabled
    path = Path(device) if device is not None else n.folder() / "libggml-quire.so"
    n.c_text(kv, "kv")  # raises if it cannot be a policy
    wanted = (kv, "" if profile is None else os.fspath(profile), str(path))
    with _lock:
        if _enabled is None:
            if not path.exists():
                raise ImportError(f"{path} was not found; it is Quire's device for llama.cpp")
            module, library = _host()
            # A class attribute of its own, which its first model sets. A cache that exists stays as it is.
            if getattr(getattr(module, "Llama", None), "_Llama__backend_initialized", False):
                raise RuntimeError("a model was loaded before; call quire.llama.enable() before the first one, because a model keeps the devices "
                                   "that it found")
            if _function(library, "ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"QUIRE0"):
                raise RuntimeError("the device was already loaded in another way (GGML_BACKEND_PATH), with the settings of the environment")
            settings = {"QUIRE_KV": "" if kv == "declared" else kv, "QUIRE_PROFILE": wanted[1]}
            if log:
                settings["QUIRE_LOG"] = "1"
            _load(library, path.resolve(), settings)
            _enabled = wanted
        elif _enabled != wanted:
            raise RuntimeError(f"Quire was enabled with kv={_enabled[0]!r} in this process, and a process has one policy")
    return {"n_gpu_layers": -1, "flash_attn": True}


# ------------------------------------------------------------- its counters


@dataclass(frozen=True)
class Held:
    """What the device holds under one policy: `quire stat` prints the same."""

    policy: str  # "declared": the types that the model was given
    contexts: int
    cells: int  # tokens that fit
    tokens: int
    bytes: int  # of memory in use, in whole tiles of 64 tokens
    f16_bytes: int  # that the same tokens would take in f16

    @property
    def saved(self) -> int:
        """Bytes. Below 0 for the first few tokens, which take a whole tile."""
        return self.f16_bytes - self.bytes

    def __str__(self) -> str:
        return (f"{self.policy}: {self.tokens} tokens in {self.bytes / 2**20:.1f} MiB instead of {self.f16_bytes / 2**20:.1f} MiB in f16, "
                f"{self.saved / 2**20:.1f} MiB saved")


_HEAD, _POLICY, _POLICIES = struct.Struct("<8sIIQQ"), struct.Struct("<128s5Q"), 208  # docs/formats/stat.md


def _counters() -> bytes:
    """The file of this process; empty if there is none."""
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), "/dev/shm", "/tmp"):
        if not folder:
            continue
        try:
            # In a folder for everybody a name proves nothing: no links, and no waiting for a FIFO.
            with open(Path(folder) / f"quire-stat.{os.getuid()}.{os.getpid()}", "rb",
                      opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
                data = file.read()
                own = os.fstat(file.fileno()).st_uid == os.getuid()
        except OSError:
            continue
        if own and len(data) >= _HEAD.size:
            magic, version, size, pid, start = _HEAD.unpack_from(data)
            # A process with this number may have been killed and have left its file.
            if (magic, version, pid) == (b"QUIRSTAT", 1, os.getpid()) and start == _started() and len(data) >= size > _POLICIES:
                return data[:size]
    return b""


def _started() -> int:
    """Field 22 of /proc/self/stat; the name in field 2 may contain anything."""
    return int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])


def report() -> List[Held]:
    """What the caches of this process hold, by policy; empty if the device has none. A model that was loaded without the arguments of
    enable() has its cache elsewhere. RuntimeError if the counters are switched off (QUIRE_STAT=0)."""
    if os.environ.get("QUIRE_STAT") == "0":
        raise RuntimeError("QUIRE_STAT=0 in the environment switches the counters off")
    data = _counters()
    found = []
    for offset in range(_POLICIES, len(data) - _POLICY.size + 1, _POLICY.size):
        name, *numbers = _POLICY.unpack_from(data, offset)
        if not name[0]:
            break
        found.append(Held(name.partition(b"\0")[0].decode(errors="replace"), *numbers))
    return found


def saved() -> int:
    """Bytes that all caches of this process take less than they would in f16, for the tokens that they hold."""
    return sum(held.saved for held in report())
