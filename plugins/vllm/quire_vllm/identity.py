# SPDX-License-Identifier: MIT
"""What a stored page depends on: the weights, everything in vLLM's configuration that changes rows, the form of pages, the tenant."""

from __future__ import annotations

import glob
import hashlib
import hmac
import json
import os
import queue
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from quire import QuireError
from quire.store import Identity, Namespace, Store

from . import digests
from .settings import Settings

_FLUSH_S = 10.0  # so long the end of the process waits for the remote
REVISION = 1  # of what is hashed here and of the order of bytes in a page (pages.py)

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json", "params.json")
# RoPE of these kinds is a function of the position alone; that of others depends on the longest context that the server allows.
_ROPE_WITHOUT_LENGTH = {"default", "linear", "llama3", "yarn", "proportional"}
# Loaders of vLLM that read the files which weight_files() names. Others take weights from elsewhere, or make them up.
_LOAD_FORMATS = {"auto", "hf", "safetensors", "pt", "npcache", "mistral", "fastsafetensors", "instanttensor", "runai_streamer"}
# Members of the model's configuration that say where it came from, not what it computes.
_NOT_COMPUTED = {"_name_or_path", "transformers_version", "_commit_hash", "_attn_implementation_autoset"}

#: A tenant: the cache_salt of a request (None: without), and a word that reset_cache() changes.
Tenant = Tuple[Optional[str], str]


def weight_files(model: str, revision: Optional[str], download_dir: Optional[str], with_code: bool) -> List[str]:
    """The files that hold a model's weights. Raises ValueError if there are none on this machine."""
    if os.path.isfile(model):
        return [model]
    folder = model
    if not os.path.isdir(folder):
        try:
            from huggingface_hub import snapshot_download

            folder = snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
        except Exception as error:
            raise ValueError(f"QuireConnector: the files of {model} were not found on this machine ({type(error).__name__}), so its "
                             "weights have no digest.") from None
    patterns = _WEIGHTS + (("*.py",) if with_code else ())
    found = sorted({path for pattern in patterns for path in glob.glob(os.path.join(glob.escape(folder), pattern))})
    if not any(path.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf")) for path in found):
        raise ValueError(f"QuireConnector: {folder} has no files of weights, so nothing can be stored under their digest.")
    return found


def weights_digest(vllm_config: Any) -> str:
    model, load = vllm_config.model_config, vllm_config.load_config
    if load.load_format not in _LOAD_FORMATS:
        raise ValueError(f"QuireConnector: weights of load_format {load.load_format} are not those of the model's files, so they have no "
                         f"digest; it can be {', '.join(sorted(_LOAD_FORMATS))}.")
    if model.trust_remote_code and any("--" in name for name in _code_names(model.hf_config.to_dict())):
        raise ValueError("QuireConnector: auto_map of the model names code in another repository, which has no digest; copy it to the model.")
    files = weight_files(getattr(model, "model_weights", "") or model.model, model.revision, load.download_dir, model.trust_remote_code)
    return digests.of_files(files)


def _code_names(config: Any, inside: bool = False) -> Iterator[str]:
    """What auto_map names, also in the configurations of parts."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from _code_names(value, inside or key == "auto_map")
    elif isinstance(config, (list, tuple)):
        for value in config:
            yield from _code_names(value, inside)
    elif inside and isinstance(config, str):
        yield config


def _rope_kinds(config: Any, inside: bool = False) -> Iterator[str]:
    if isinstance(config, dict):
        for key, value in config.items():
            if inside and key in ("rope_type", "type") and isinstance(value, str):
                yield value
            yield from _rope_kinds(value, inside or key in ("rope_scaling", "rope_parameters"))


def model_text(vllm_config: Any, vllm_version: str, device: str) -> str:
    """Everything but the weights that changes the rows of a token, always written in the same way."""
    model, cache, load = vllm_config.model_config, vllm_config.cache_config, vllm_config.load_config
    hf: Dict[str, Any] = model.hf_config.to_dict()
    text = {
        "vllm": vllm_version,  # another version may compute with other kernels
        "device": device,
        "config": {key: value for key, value in hf.items() if key not in _NOT_COMPUTED},
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "quantization_config": getattr(model, "quantization_config", None),
        "cache_dtype": str(cache.cache_dtype),
        # Which of the files are read, and how.
        "load_format": str(load.load_format),
        "model_loader_extra_config": load.model_loader_extra_config,
        "ignore_patterns": load.ignore_patterns,
        "code_revision": model.code_revision,
        "model_impl": str(model.model_impl),
        "model_class_overrides": getattr(model, "model_class_overrides", None),
        "disable_sliding_window": bool(model.disable_sliding_window),
        "fast_prefill": bool(getattr(cache, "kv_sharing_fast_prefill", False)),
    }
    kinds = set(_rope_kinds(hf))
    if not kinds <= _ROPE_WITHOUT_LENGTH:
        text["max_model_len"] = model.max_model_len
    return json.dumps(text, sort_keys=True, default=str)


@dataclass(frozen=True)
class Model:
    """What all tenants and ranks have in common."""

    weights: str
    text: str
    layout: str
    page_bytes: int
    name: str
    ranks: int

    def identity(self, master: bytes, tenant: Tenant) -> Identity:
        salt, word = tenant
        return Identity(weights=self.weights, tokenizer="token ids", rope=f"{hashlib.sha256(self.text.encode()).hexdigest()} {word}",
                        secret=tenant_secret(master, salt), tenant_name=tenant_name(master, salt), model_name=self.name)

    def rank_layout(self, rank: int) -> str:
        return f"{self.layout} rank={rank}/{self.ranks}"


def _keyed(master: bytes, purpose: bytes, salt: Optional[str]) -> bytes:
    """Nobody who knows one tenant's value can compute another's, and no salt gives what its absence gives."""
    said = b"0" if salt is None else b"1" + salt.encode("utf-8", "surrogatepass")
    return hmac.new(master, b"quire vllm " + purpose + b"\0" + said, hashlib.sha256).digest()


def tenant_secret(master: bytes, salt: Optional[str]) -> bytes:
    return _keyed(master, b"secret", salt)


def tenant_name(master: bytes, salt: Optional[str]) -> str:
    """For operators. The salt itself may be a secret and is written nowhere."""
    return "no salt" if salt is None else "salt " + _keyed(master, b"name", salt).hex()[:16]


def printable(name: str) -> str:
    """The end of a name in the form that the store takes for names."""
    return "".join(c if " " <= c <= "~" else "?" for c in name)[-63:]


class Spaces:
    """Namespaces of some ranks, one set for each tenant. Those that were not used for the longest time are closed.

    Closing one waits until the store has saved its pages, which a slow remote can delay for minutes. So a thread does that, and as many
    tenants as are kept open may wait for it; beyond that no further tenant is taken.
    """

    def __init__(self, store: Store, model: Model, master: bytes, ranks: Sequence[int], most: int = 256) -> None:
        self._store, self._model, self._master, self._ranks, self._most = store, model, master, tuple(ranks), most
        self._lock = threading.Lock()
        self._open: "OrderedDict[Tenant, List[Namespace]]" = OrderedDict()
        self._users: Dict[Tenant, int] = {}
        self._to_close: "queue.SimpleQueue[Optional[List[Namespace]]]" = queue.SimpleQueue()
        self._n_to_close = 0
        self._closer: Optional[threading.Thread] = None

    def enter(self, tenant: Tenant) -> List[Namespace]:
        """The namespaces of a tenant, one for each rank; leave() must follow. Raises QuireError if too many tenants wait to be closed."""
        with self._lock:
            spaces = self._open.get(tenant)
            if spaces is None:
                if self._n_to_close >= self._most:
                    raise QuireError("EBUSY", "the store is too slow for so many tenants: pages of as many wait as may be kept")
                identity = self._model.identity(self._master, tenant)
                spaces = []
                try:
                    for rank in self._ranks:
                        spaces.append(self._store.raw_namespace(identity, self._model.rank_layout(rank), self._model.page_bytes))
                except BaseException:
                    for space in spaces:
                        space.close()
                    raise
                self._open[tenant] = spaces
            self._open.move_to_end(tenant)
            self._users[tenant] = self._users.get(tenant, 0) + 1
            return spaces

    def leave(self, tenant: Tenant) -> None:
        with self._lock:
            self._users[tenant] -= 1
            if not self._users[tenant]:
                del self._users[tenant]
            for old in list(self._open):
                if len(self._open) <= self._most:
                    break
                if old not in self._users:
                    self._close_later(self._open.pop(old))

    def _close_later(self, spaces: List[Namespace]) -> None:
        if self._closer is None:
            self._closer = threading.Thread(target=self._close_all, name="quire-close", daemon=True)
            self._closer.start()
        self._n_to_close += 1
        self._to_close.put(spaces)

    def _close_all(self) -> None:
        while True:
            spaces = self._to_close.get()
            if spaces is None:
                return
            try:
                for space in spaces:
                    space.close()
            except QuireError:
                pass  # the store ends; others that wait must still be closed
            finally:
                with self._lock:
                    self._n_to_close -= 1

    @contextmanager
    def using(self, tenant: Tenant) -> Iterator[List[Namespace]]:
        spaces = self.enter(tenant)
        try:
            yield spaces
        finally:
            self.leave(tenant)

    def close(self) -> None:
        """Nobody uses them any more. Does not wait: the thread ends when all are closed, at the latest with the store."""
        with self._lock:
            for spaces in self._open.values():
                self._close_later(spaces)
            self._open.clear()
            if self._closer is not None:
                self._to_close.put(None)


class _Shared:
    """The stores of this process: a directory can be opened only once, and the scheduler's and the worker's part may be in one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: Dict[Settings, Tuple[Store, int]] = {}


_shared = _Shared()


def open_store(settings: Settings) -> Store:
    with _shared.lock:
        store, users = _shared.stores.get(settings, (None, 0))
        if store is None:
            directory = settings.directory and os.path.abspath(settings.directory)
            store = Store(directory, disk_bytes=settings.disk_bytes, remote=settings.remote_tier(), tenant_bytes=settings.tenant_bytes,
                          seal_disk=settings.seal_disk and directory is not None,
                          queue_bytes=settings.queue_bytes or settings.save_bytes)
        _shared.stores[settings] = (store, users + 1)
        return store


def release_store(settings: Settings) -> bool:
    """The last one closes it. Pages that wait for the disk are saved, those for the remote as far as it takes them in some seconds. False:
    some were dropped."""
    with _shared.lock:
        store, users = _shared.stores.pop(settings)
        if users > 1:
            _shared.stores[settings] = (store, users - 1)
            return True
        is_saved = True
        try:
            store.flush(_FLUSH_S)
        except QuireError:
            is_saved = settings.remote is None  # closing waits for the disk
            store.stop_remote()
        store.close()  # under the lock: whoever opens the directory next finds it free
        return is_saved
