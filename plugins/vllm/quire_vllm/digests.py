# SPDX-License-Identifier: MIT
"""The SHA-256 of large files, remembered as `quire store` does (tools/store/digest.c): the same file, the same lines."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import time
from contextlib import contextmanager
from typing import Iterable, Iterator, List, Optional

_HEAD = "quire digests 1\n"
_MAX_LINES = 64
_YOUNG_S = 3  # a file that changed a moment ago can change again within the resolution of its times


def of_files(paths: Iterable[str]) -> str:
    """One digest of the names and contents of files, in the order of their names."""
    whole = hashlib.sha256()
    for path in sorted(paths, key=os.path.basename):
        whole.update(f"{os.path.basename(path)} {of_file(path)}\n".encode())
    return whole.hexdigest()


def of_file(path: str) -> str:
    """The digest of a file in hex digits. A file that is still the same (device, inode, size, times) is not read again."""
    before = os.stat(path)
    is_settled = stat.S_ISREG(before.st_mode) and max(before.st_mtime, before.st_ctime) < time.time() - _YOUNG_S
    if not is_settled:
        return _read(path)
    what, place = _identity(before), _place()
    found = _find(_lines(place), what)
    if found:
        return found
    with _alone(place):  # the workers of an engine start at the same time; one of them reads
        known = _lines(place)
        found = _find(known, what)
        if found:
            return found
        digest = _read(path)
        if _identity(os.stat(path)) == what:  # it did not change meanwhile
            _remember(place, digest + what, [line for line in known if what not in line])
    return digest


def _find(lines: List[str], what: str) -> Optional[str]:
    return next((line[:64] for line in lines if line[64:].startswith(what)), None)


@contextmanager
def _alone(place: Optional[str]) -> Iterator[None]:
    """One process at a time, where a file for the lock can be had."""
    handle = -1
    try:
        if place is not None:
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            handle = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        pass
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _read(path: str) -> str:
    whole = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(1 << 22):
            whole.update(piece)
    return whole.hexdigest()


def _identity(st: os.stat_result) -> str:
    times = " ".join(f"{ns // 10**9}.{ns % 10**9:09d}" for ns in (st.st_mtime_ns, st.st_ctime_ns))
    return f" {st.st_dev} {st.st_ino} {st.st_size} {times} "


def _place() -> Optional[str]:
    for name, below in (("QUIRE_CACHE", ""), ("XDG_CACHE_HOME", "quire"), ("HOME", ".cache/quire")):
        if os.environ.get(name):
            return os.path.join(os.environ[name], below, "digests")
    return None


def _check(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lines(place: Optional[str]) -> List[str]:
    """Nothing from a file that somebody else could have written: a wrong digest would put rows of one model under the keys of another."""
    try:
        with open(os.open(place or "", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="ascii") as file:
            st = os.fstat(file.fileno())
            if not stat.S_ISREG(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o022 or file.readline() != _HEAD:
                return []
            lines = [line.rstrip("\n") for line in file.readlines(_MAX_LINES * 400)]
    except (OSError, UnicodeDecodeError):
        return []
    return [line for line in lines[:_MAX_LINES] if len(line) >= 82 and line[64] == " " and line[-16:] == _check(line[:-16])]


def _remember(place: Optional[str], line: str, others: List[str]) -> None:
    """Of two processes that write at once, one is forgotten: it computes again."""
    if place is None or (os.path.lexists(place) and not os.path.isfile(place)):
        return
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=os.path.dirname(place))  # mode 0600
        try:
            with open(handle, "w", encoding="ascii") as file:
                file.write(_HEAD + "".join(f"{text}\n" for text in [line + _check(line), *others][:_MAX_LINES]))
            os.replace(made, place)
        except BaseException:
            os.unlink(made)
            raise
    except OSError:
        pass  # it is computed again next time
