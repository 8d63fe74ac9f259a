# SPDX-License-Identifier: MIT
"""What kv_connector_extra_config can say, checked before anything starts."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Mapping, Optional

from quire.store import Remote

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Settings:
    """The defaults are those of docs/vllm.md."""

    directory: Optional[str] = None  #: pages on disk
    disk_bytes: int = 0  #: limit of the directory; a new one needs it
    tenant_bytes: int = 0  #: limit of each cache_salt in the directory; 0: as before
    seal_disk: bool = True  #: pages on disk are encrypted with the tenant's key
    remote: Optional[str] = None  #: HOST:PORT of a Valkey or Redis server, or of any node of a cluster
    remote_user: Optional[str] = None
    remote_password_file: Optional[str] = None
    tls: bool = False
    tls_ca: Optional[str] = None
    tls_cert: Optional[str] = None
    tls_key: Optional[str] = None
    tls_name: Optional[str] = None
    ttl_seconds: int = 0  #: life of pages in the remote tier; 0: only the server evicts
    secret_file: Optional[str] = None  #: 32 bytes or 64 hex digits; servers that share pages have the same
    kv: Optional[str] = None  #: codecs of stored pages where the blocks are plain rows, for example r8 or r8/r4; None: their own type
    lookup_ms: int = 500  #: limit of a look-up in the remote tier; the engine goes on meanwhile
    load_ms: int = 10000  #: limit of a load; what has not come by then is computed
    load_threads: int = 2  #: requests that load at the same time
    min_load_tokens: int = 64  #: what saves fewer tokens than this is computed
    save_bytes: int = 256 << 20  #: memory for blocks that wait to be saved; beyond it saves are dropped and counted
    queue_bytes: int = 0  #: memory for pages that wait for a tier of the store, for each of the two; 0: as save_bytes
    save_decoded: bool = True  #: also pages that hold generated tokens
    secret: bytes = field(default=b"", repr=False)
    password: Optional[str] = field(default=None, repr=False)

    def remote_tier(self) -> Optional[Remote]:
        if self.remote is None:
            return None
        host, port = _host_and_port(self.remote)
        return Remote(host, port, user=self.remote_user, password=self.password, tls=self.tls, tls_ca=self.tls_ca, tls_cert=self.tls_cert,
                      tls_key=self.tls_key, tls_name=self.tls_name, ttl_seconds=self.ttl_seconds)


_TEXTS = {"directory", "remote", "remote_user", "remote_password_file", "tls_ca", "tls_cert", "tls_key", "tls_name", "secret_file", "kv"}
_FLAGS = {"seal_disk", "tls", "save_decoded"}
_SIZES = {"disk_bytes", "tenant_bytes", "save_bytes", "queue_bytes"}
_DERIVED = {"secret", "password"}
NAMES = tuple(f.name for f in fields(Settings) if f.name not in _DERIVED)


def read(extra: Mapping[str, Any]) -> Settings:
    """Raises ValueError with one sentence."""
    unknown = sorted(set(extra) - set(NAMES))
    if unknown:
        raise ValueError(f"QuireConnector has no setting {unknown[0]!r}; it has {', '.join(NAMES)}.")
    given: Dict[str, Any] = {name: _value(name, value) for name, value in extra.items() if value is not None}
    if not given.get("directory") and not given.get("remote"):
        raise ValueError("QuireConnector needs a directory, a remote, or both in kv_connector_extra_config.")
    if not given.get("secret_file"):
        raise ValueError("QuireConnector needs a secret_file in kv_connector_extra_config; (umask 077; openssl rand 32 > tenant.key) makes one.")
    given["secret"] = _secret(given["secret_file"])
    if given.get("remote"):
        _host_and_port(given["remote"])
    if given.get("remote_password_file"):
        given["password"] = _private_bytes(given["remote_password_file"], 4096).decode(errors="strict").rstrip("\r\n")
    for name in ("lookup_ms", "load_ms", "load_threads"):
        if name in given and given[name] < 1:
            raise ValueError(f"QuireConnector: {name} is {given[name]}, which is less than 1.")
    for name in ("lookup_ms", "load_ms"):
        if given.get(name, 0) >= 2**32:
            raise ValueError(f"QuireConnector: {name} is {given[name]}, which is not below 2^32.")
    return Settings(**given)


def _value(name: str, value: Any) -> Any:
    if name in _TEXTS:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"QuireConnector: {name} must be a text.")
        return value
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise ValueError(f"QuireConnector: {name} must be true or false.")
        return value
    if name in _SIZES and isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,18})([KMGT]?)", value)
        if match:
            value = int(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        more = " or a number with K, M, G or T" if name in _SIZES else ""
        raise ValueError(f"QuireConnector: {name} must be a whole number{more}.")
    return value


def _host_and_port(remote: str) -> "tuple[str, int]":
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?", remote)
    if not match or int(match[3] or 0) > 65535:
        raise ValueError("QuireConnector: remote must be HOST:PORT; an IPv6 address stands in brackets.")
    return match[1] or match[2], int(match[3] or 0)


def _private_bytes(path: str, most: int) -> bytes:
    """The bytes of a file that only its owner can read and change. A group may read what belongs to somebody else, as ssh judges keys."""
    try:
        with open(path, "rb") as file:
            st = os.fstat(file.fileno())
            data = file.read(most)
    except OSError as error:
        raise ValueError(f"QuireConnector: {path}: {error.strerror}.") from None
    is_shared = st.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP) or (st.st_mode & stat.S_IRGRP and st.st_uid == os.geteuid())
    if stat.S_ISREG(st.st_mode) and is_shared:
        raise ValueError(f"QuireConnector: {path}: others can read or change it; make it yours alone (chmod 600).")
    return data


def _secret(path: str) -> bytes:
    data = _private_bytes(path, 80)
    if len(data) == 32:
        return data
    if 64 <= len(data) <= 66 and re.fullmatch(rb"[0-9a-fA-F]{64}[\r\n]{0,2}", data):
        return bytes.fromhex(data[:64].decode())
    raise ValueError(f"QuireConnector: {path}: a secret must be 32 bytes or 64 hex digits.")
