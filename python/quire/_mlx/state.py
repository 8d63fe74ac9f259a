# SPDX-License-Identifier: MIT
"""A cache as arrays, strings and numbers, as save_prompt_cache and load_prompt_cache need it.

Nothing in a state is trusted when it is loaded: what it says must agree with the snapshots in it, which have checks of their own, and the digest
finds what they do not say.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any, Dict, List, Optional, Tuple

import mlx.core as mx
import numpy as np

from ..errors import PoolFull, QuireError
from ..sequence import Sequence, snapshot_info
from .arrays import DTYPES, MOST, NAMES, numbers
from .cache import Cache, Settings
from .contents import PIECE, Contents, canonical, next_version
from .pools import Pools, default_pools, layer_policy, pool_of

_LISTS = ("padding", "end", "floors")
# States were once saved with the names of presets. These may stand for other codecs in later versions (docs/promises.md).
_PRESETS = ("safe", "balanced", "small")


class State(dict):  # type: ignore[type-arg]
    """The state of a cache, created only when it is needed. Engines call mx.eval on the state of every cache after each piece of a prompt;
    mx.eval looks at the dict's own storage, which is empty, so nothing is created. save_prompt_cache calls items()."""

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self._cache = cache

    def items(self) -> Any:
        return save(self._cache).items()

    def __deepcopy__(self, _: Any) -> Dict[str, Any]:
        return save(self._cache)

    def __reduce__(self) -> Any:
        raise TypeError("the state of a Quire cache cannot be pickled; pickle the cache")


def _parts(cache: Cache) -> Tuple[Dict[str, Any], Dict[str, bytes]]:
    """The numbers and strings of a state, and the snapshots of the sequences."""
    with cache._guard():
        now = cache._settled()
        if now.tails is not None:  # they would come back with the tokens that were refused
            raise ValueError("finalize() must be called before a batch with refused tokens is saved")
        plain: Dict[str, Any] = {**asdict(cache.settings), "columns": now.columns, "dtype": NAMES.get(now.dtype, "f32")}
        plain["padding"], plain["end"] = list(now.padding), list(now.end or ())
        plain["floors"] = list(now.floors) if any(now.floors) else []
        if now.shape is not None:
            plain["heads"], plain["d_k"], plain["d_v"] = now.shape
        return plain, {f"sequence{i}": s.to_bytes() for i, s in enumerate(now.sequences) if s is not None}


def _digest(plain: Dict[str, Any], snapshots: Dict[str, bytes]) -> str:
    found = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(snapshots):
        found.update(hashlib.sha256(name.encode() + b" " + snapshots[name]).digest())
    return found.hexdigest()


def save(cache: Cache) -> Dict[str, Any]:
    """The state as arrays, strings and numbers. A sequence is stored as its snapshot (docs/formats/snapshot.md)."""
    plain, snapshots = _parts(cache)
    saved = {name: value for name, value in plain.items() if name not in _LISTS}
    saved["digest"] = _digest(plain, snapshots)
    saved.update({name: mx.array(plain[name], mx.int32) for name in _LISTS if plain[name]})
    saved.update({name: mx.array(np.frombuffer(data, np.uint8)) for name, data in snapshots.items()})
    return saved


def load(cache: Cache, saved: Any, pools: Optional[Pools] = None) -> None:
    """Makes a cache what the state says. Raises ValueError if the state contradicts itself; the cache is as before then. pools: others than
    those of the cache."""
    if not isinstance(saved, dict):
        raise ValueError(f"the state of a Quire cache is a dict, not a {type(saved).__name__}")
    try:
        plain, snapshots = _read(saved)
    except TypeError as error:
        raise ValueError(f"the state of a Quire cache is damaged: {error}") from None
    _become(cache, plain, snapshots, saved.get("digest"), pools)


def to_bytes(cache: Cache) -> bytes:
    """A state as bytes: the numbers and strings as JSON, a zero, the snapshots."""
    plain, snapshots = _parts(cache)
    plain = {**plain, "digest": _digest(plain, snapshots), "sizes": {name: len(data) for name, data in snapshots.items()}}
    return json.dumps(plain).encode() + b"\0" + b"".join(snapshots.values())


def from_bytes(cls: Any, data: bytes) -> Any:
    text, _, rest = data.partition(b"\0")
    plain = json.loads(text)
    digest, snapshots = plain.pop("digest"), {}
    for name, size in plain.pop("sizes").items():
        snapshots[name], rest = rest[:size], rest[size:]
    cache = cls.__new__(cls)
    _become(cache, plain, snapshots, digest)
    return cache


def _read(saved: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, bytes]]:
    plain: Dict[str, Any] = {name: [] for name in _LISTS}
    snapshots: Dict[str, bytes] = {}
    fields = {**{name: str if name == "policy" else int for name in Settings.__dataclass_fields__}, "columns": int, "dtype": str}
    optional = {"heads": int, "d_k": int, "d_v": int} if "heads" in saved else {}
    for name, kind in {**fields, **optional}.items():
        if type(saved.get(name)) is not kind:
            raise TypeError(f"{name} is {saved.get(name)!r}, not of type {kind.__name__}")
    for name, value in saved.items():
        if name in _LISTS:
            plain[name] = numbers(value, name)
        elif name.startswith("sequence"):
            if not isinstance(value, mx.array) or value.dtype != mx.uint8 or value.ndim != 1:
                raise TypeError(f"{name} is not an array of bytes")
            snapshots[name] = np.array(value).tobytes()
        elif name in fields or name in optional:
            plain[name] = value
        elif name != "digest":
            raise TypeError(f"{name!r} is not a part of it")
    return plain, snapshots


def _become(cache: Cache, plain: Dict[str, Any], snapshots: Dict[str, bytes], digest: Optional[str], pools: Optional[Pools] = None) -> None:
    if digest is not None and digest != _digest(plain, snapshots):  # states of earlier versions have none
        raise ValueError("the state of a Quire cache was changed after it was saved")
    try:
        settings = Settings(**{name: plain[name] for name in Settings.__dataclass_fields__})
    except (TypeError, QuireError) as error:
        raise ValueError(f"the state of a Quire cache is damaged: {error}") from None
    count, columns = len(plain["padding"]), plain["columns"]
    lists: List[Tuple[int, ...]] = [tuple(plain[name]) for name in _LISTS]
    padding, end, floors = lists
    if plain["dtype"] not in DTYPES or not 0 <= columns <= MOST or {len(end), len(floors)} - {0, count}:
        raise ValueError("the state of a Quire cache is damaged: dtype, columns or the number of sequences cannot be right")
    if not count and columns or hasattr(cache, "_batch") and (any(padding) or end):
        raise ValueError("the state of a Quire cache is damaged: padding does not fit columns")
    if set(snapshots) - {f"sequence{i}" for i in range(count)}:
        raise ValueError(f"the state of a Quire cache is damaged: it has snapshots of other sequences than the {count} that it has")
    shape = (plain["heads"], plain["d_k"], plain["d_v"]) if "heads" in plain else None
    if shape is None and snapshots:
        raise ValueError("the state of a Quire cache is damaged: heads is missing")
    if shape is not None and snapshots and plain["policy"].split(",")[0] in _PRESETS:
        settings = _as_saved(settings, shape, *min(snapshots.items()))
    pools = pools or getattr(cache, "pools", None) or default_pools()
    sequences: List[Optional[Sequence]] = [None] * count
    now = Contents(tuple(sequences), padding, columns, end or None, floors or (0,) * count, shape, DTYPES[plain["dtype"]], version=next_version())
    for i in range(count):
        name, length = f"sequence{i}", now.length(i)
        if name in snapshots:
            assert shape is not None
            try:
                sequence = sequences[i] = pool_of(pools, settings, shape).load(snapshots[name])
            except PoolFull:
                raise
            except (QuireError, EOFError) as error:
                raise ValueError(f"{name} in the state of a Quire cache cannot be loaded: {error}") from error
            _check(sequence, name, length, settings)
        elif length:
            raise ValueError(f"the state of a Quire cache is damaged: {name} is missing")
        if now.floors[i] and (not settings.max_tokens or now.floors[i] > length or settings.shows_filler(length, now.floors[i])):
            raise ValueError("the state of a Quire cache is damaged: floors does not fit columns")
    loaded = Cache(settings, pools)
    loaded._now = now._replace(sequences=tuple(sequences))
    # The lock of a cache that is in use stays: who has it, or waits for it, must keep others out.
    guard = loaded._guard = getattr(cache, "_guard", loaded._guard)
    with guard():
        cache.__dict__.update(loaded.__dict__)  # one call, so that an interrupt finds the cache as before or as after


def _as_saved(settings: Settings, shape: Tuple[int, int, int], name: str, snapshot: bytes) -> Settings:
    """The settings with the codecs of the snapshot, if the preset stood for others when the state was saved."""
    try:
        found = snapshot_info(snapshot).policy
        try:
            if canonical(layer_policy(settings, shape)) == found:
                return settings
        except QuireError:  # today's codecs are not for such a shape
            pass
        return replace(settings, policy=found)
    except (QuireError, EOFError) as error:
        raise ValueError(f"{name} in the state of a Quire cache cannot be loaded: {error}") from error


def _check(sequence: Sequence, name: str, length: int, settings: Settings) -> None:
    """Refuses a sequence that is not what the rest of the state says."""
    ring = sequence.ring
    if sequence.length != length:
        raise ValueError(f"the state of a Quire cache is damaged: {name} has {sequence.length} tokens, but columns and padding say {length}")
    least = max(settings.spare, PIECE) if settings.max_tokens else 0
    if (ring.max_tokens, ring.sinks) != (settings.max_tokens, settings.sinks) or ring.spare_tokens < least:
        raise ValueError(f"the state of a Quire cache is damaged: {name} has another bound than max_tokens, sinks and spare say")
