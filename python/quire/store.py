# SPDX-License-Identifier: MIT
"""Stores: finished pages that are kept after the process has ended, on disk and in a Valkey or Redis cluster (docs/store.md)."""

from __future__ import annotations

import ctypes
import time
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from os import PathLike
from typing import Any, Dict, List, Optional, Sequence as Seq, Union

from . import _native as n, _store as c
from ._arguments import (INCOMPLETE, MEDIA, NO_FIT, OTHER, PAGES, Buffer, Media, Pages, Prompt, Tokens, ms_of, path_of, seconds_of, text_of)
from ._handle import Family, Handle, Shared, holding, members
from ._stream import Callback, Writer
from .plan import Plan, check_plan
from .pool import Pool
from .sequence import Ring, Sequence


@dataclass(frozen=True)
class Remote:
    """A Valkey or Redis server, or any node of a cluster. 0 means the library's default (store.h)."""

    host: str
    port: int = 0
    user: Optional[str] = None
    password: Optional[str] = field(default=None, repr=False)
    tls: bool = False
    tls_ca: Optional[str] = None
    tls_cert: Optional[str] = None
    tls_key: Optional[str] = None
    tls_name: Optional[str] = None
    connections: int = 0
    ttl_seconds: int = 0
    connect_ms: int = 0
    stall_ms: int = 0
    in_flight_bytes: int = 0
    min_bytes_per_second: int = 0
    read_replicas: bool = False


@dataclass(frozen=True)
class Identity:
    """Everything that affects the bytes of a page. secret: 32 random bytes of the tenant; whoever has them can read its pages.

    tenant_name and model_name are for operators and not part of the identity: at most 63 bytes of printable text, readable on disk.
    """

    weights: str
    tokenizer: str
    rope: str
    secret: bytes = field(repr=False)
    adapter: str = ""
    adapter_scale: float = 0.0
    tenant_name: str = ""
    model_name: str = ""


@dataclass(frozen=True)
class Usage:
    """What one namespace has on disk. quota_bytes is that of the whole tenant, 0 if it has none; last_used in seconds since 1970."""

    root: bytes
    tenant: bytes
    tenant_name: str
    model_name: str
    objects: int
    bytes: int
    pinned: int
    quota_bytes: int
    last_used: float


def _check_sequence(sequence: Sequence) -> None:
    if not isinstance(sequence, Sequence):
        raise TypeError(f"sequence is a {type(sequence).__name__}, not a Sequence")


class Store(Shared):
    """A store with a directory, a remote, or both. A process can open a directory only once; any number of processes can share it.

    Closing the store, or the end of the process, saves the pages queued for the disk and closes its namespaces. disk_bytes limits the
    size of all its files; a new directory needs it, and 0 keeps the limit of an existing one. tenant_bytes limits what each tenant has
    in the directory; 0 keeps the limit of an existing one, 2**64 - 1 is none. seal_disk encrypts pages on disk. disk_cache_bytes: of
    pages that are loaded again and again so much may stay in the operating system's page cache (0: 1 GiB, at most a sixteenth of the
    memory; 1: none).
    """

    def __init__(self, directory: "Union[str, PathLike[str], None]" = None, *, disk_bytes: int = 0, disk_bytes_per_day: int = 0,
                 disk_threads: int = 0, promote: bool = True, queue_bytes: int = 0, remote: Optional[Remote] = None,
                 tenant_bytes: int = 0, seal_disk: bool = False, disk_cache_bytes: int = 0) -> None:
        message = ctypes.create_string_buffer(512)
        options = c.Options(directory=path_of(directory, "directory"),
                           disk_bytes=n.u64(disk_bytes, "disk_bytes"),
                           disk_bytes_per_day=n.u64(disk_bytes_per_day, "disk_bytes_per_day"),
                           disk_threads=n.u32(disk_threads, "disk_threads"), no_promote=int(not promote),
                           queue_bytes=n.u64(queue_bytes, "queue_bytes"),
                           tenant_bytes=n.u64(tenant_bytes, "tenant_bytes"), seal_disk=int(seal_disk),
                           message=ctypes.cast(message, c_char_p), message_size=len(message),
                           disk_cache_bytes=n.u64(disk_cache_bytes, "disk_cache_bytes"))
        if remote is not None:
            if not isinstance(remote, Remote):
                raise TypeError(f"remote is a {type(remote).__name__}, not a Remote")
            options.remote = ctypes.pointer(c.Remote(
                text_of(remote.host, "host"), text_of(remote.user, "user"), text_of(remote.password, "password"), n.u32(remote.port, "port"), int(remote.tls),
                text_of(remote.tls_ca, "tls_ca"), text_of(remote.tls_cert, "tls_cert"), text_of(remote.tls_key, "tls_key"), text_of(remote.tls_name, "tls_name"),
                n.u32(remote.connections, "connections"), n.u32(remote.ttl_seconds, "ttl_seconds"), n.u32(remote.connect_ms, "connect_ms"),
                n.u32(remote.stall_ms, "stall_ms"), n.u64(remote.in_flight_bytes, "in_flight_bytes"),
                n.u32(remote.min_bytes_per_second, "min_bytes_per_second"), int(remote.read_replicas)))
        self._namespaces: Family = {}
        super().__init__(c.lib().quire_store_close)
        self._close_at_exit()
        self._open(c.lib().quire_store_open, options, message=message)

    def _close_children(self) -> None:
        for namespace in members(self._namespaces):
            namespace.close()

    def flush(self, timeout: float = 10.0) -> None:
        """Waits until everything in the queues is saved. Raises QuireError with status EIO if the time limit is reached first."""
        limit = ms_of(timeout)
        with self._use():
            n.check(c.lib().quire_store_flush(self._get(), limit))

    def stop_remote(self) -> None:
        """Gives the remote up: pages queued for it are dropped, and nothing waits for it any more. For a program that must end in time."""
        with self._use():
            n.check(c.lib().quire_store_stop_remote(self._get()))

    def namespace(self, identity: Identity, plan: Plan, *, max_tokens: int = 0, sinks: int = 0,
                  spare_tokens: int = 0) -> "Namespace":
        """A namespace: the pages of one model as one tenant runs it. Give the ring options that its sequences have."""
        return Namespace(self, identity, plan, Ring(max_tokens, sinks, spare_tokens))

    def raw_namespace(self, identity: Identity, layout: str, page_bytes: int) -> "Namespace":
        """A namespace for pages in the caller's own format, page_bytes bytes for 64 tokens. layout: a text that describes the format."""
        return Namespace(self, identity, None, Ring(0, 0, 0), layout, page_bytes)

    def lookup_many(self, chains: "Seq[Chain]", *, timeout: float = 0.0) -> List[int]:
        """Chain.lookup() of many chains, which can belong to different namespaces, with one question to each node of the remote."""
        given, limit = tuple(chains), ms_of(timeout)
        for i, chain in enumerate(given):
            if not isinstance(chain, Chain):
                raise TypeError(f"chains[{i}] is a {type(chain).__name__}, not a Chain")
            if chain.namespace.store is not self:
                raise ValueError(f"chains[{i}] belongs to another store")
        found = (c_uint32 * len(given))()
        locks: List[Any] = []
        for chain in sorted(set(given), key=id):  # in one order, so that two calls do not wait for each other
            locks += [chain._lock, chain.namespace._use()]

        def ask() -> None:
            for chain in given:
                chain.namespace._get()
            self._get()
            pointers = (c_void_p * len(given))(*[chain._get() for chain in given])
            n.check(c.lib().quire_chain_lookup_many(pointers, len(given), limit, found))

        holding([*locks, self._use()], ask)
        return list(found)

    def gc(self, *, max_age: float = 0.0, max_bytes: Optional[int] = None) -> int:
        """Removes damaged objects, objects not used for max_age seconds, and the least recently used ones beyond max_bytes. Returns their number."""
        removed = c_uint64()
        age = n.u64(ceil(seconds_of(max_age, "max_age")), "max_age")
        most = 2**64 - 1 if max_bytes is None else n.u64(max_bytes, "max_bytes")
        with self._use():
            n.check(c.lib().quire_store_gc(self._get(), age, most, removed))
        return int(removed.value)

    def usage(self) -> List[Usage]:
        """What every namespace has on disk. Fast: reads only the index."""
        found: List[Usage] = []

        def add(address: int) -> None:
            u = c.Usage.from_address(address)
            found.append(Usage(bytes(u.root), bytes(u.tenant), u.tenant_name.decode(errors="replace"),
                               u.model_name.decode(errors="replace"), u.objects, u.bytes, u.pinned, u.quota_bytes,
                               u.last_used_us / 1e6))

        with self._use():
            n.check(Callback(c.USAGE_FN, add).call(c.lib().quire_store_usage_each, self._get()))
        return found

    def remove(self, *, root: Optional[bytes] = None, tenant: Optional[bytes] = None, tenant_name: Optional[str] = None,
               model_name: Optional[str] = None) -> int:
        """Removes all pages of the namespaces that match everything given from the disk, also pinned ones. Returns their number."""
        removed = c_uint64()
        chosen = c.Selection(None if root is None else n.c_bytes(root, 32, "root"),
                             None if tenant is None else n.c_bytes(tenant, 16, "tenant"), text_of(tenant_name, "tenant_name"),
                             text_of(model_name, "model_name"))
        with self._use():
            n.check(c.lib().quire_store_remove(self._get(), chosen, removed))
        return int(removed.value)

    def set_quota(self, tenant: bytes, quota_bytes: int) -> None:
        """Limits what a tenant has on disk, for all processes. 0: the limit of all tenants holds again; 2**64 - 1: none."""
        whose, quota = n.c_bytes(tenant, 16, "tenant"), n.u64(quota_bytes, "quota_bytes")
        with self._use():
            n.check(c.lib().quire_store_set_quota(self._get(), whose, quota))

    @property
    def stats(self) -> Dict[str, Any]:
        """The members of quire_store_stats. In pairs the first number is for the disk, the second for the remote. misses: a dict by reason."""
        got = c.Stats()
        with self._use():
            n.check(c.lib().quire_store_stats_get(self._get(), got))
        return _members(got)

    def metrics(self, labels: Optional[str] = None) -> str:
        """All figures in the text format of Prometheus. labels are added to every sample: 'server="a"'."""
        writer, added = Writer(), text_of(labels, "labels")
        with self._use():
            n.check(writer.call(c.lib().quire_store_write_metrics, self._get(), added))
        return writer.bytes().decode()


def _members(got: Any) -> Dict[str, Any]:
    stats: Dict[str, Any] = {}
    for name, *_ in got._fields_:
        if name == "reserved":
            continue
        value = getattr(got, name)
        stats[name] = value if isinstance(value, int) else tuple(value)
    stats["misses"] = {n.text(c.lib().quire_miss_name(i)): count for i, count in enumerate(got.misses) if count}
    return stats


class Namespace(Shared):
    """Created by Store.namespace() or Store.raw_namespace(). Closing a pool whose sequences were saved or loaded here also closes the
    namespace."""

    def __init__(self, store: Store, identity: Identity, plan: Optional[Plan], ring: Ring, layout: str = "", page_bytes: int = 0) -> None:
        if not isinstance(identity, Identity):
            raise TypeError(f"identity is a {type(identity).__name__}, not an Identity")
        texts = {name: text_of(getattr(identity, name), name)
                 for name in ("weights", "tokenizer", "adapter", "rope", "tenant_name", "model_name")}
        c_identity = c.Identity(adapter_scale=seconds_of(identity.adapter_scale, "adapter_scale"),
                                secret=n.c_bytes(identity.secret, 32, "the secret"), **texts)
        options = n.seq_options(ring.max_tokens, ring.sinks, ring.spare_tokens)
        self.store = store
        self.page_bytes = n.u64(page_bytes, "page_bytes")  # 0 if the pages are those of a plan
        self._loads: Family = {}
        self._chains: Family = {}
        described = text_of(layout, "layout")
        if plan is not None:
            check_plan(plan)
        with store._lock if plan is None else plan._lock, store._lock:
            pointer = store._get()
            super().__init__(c.lib().quire_namespace_destroy)
            if plan is not None:
                self._open(c.lib().quire_namespace_create, pointer, c_identity, plan._get(), options, on=(store,),
                           family=store._namespaces, invalid=INCOMPLETE)
            else:
                self._open(c.lib().quire_namespace_create_raw, pointer, c_identity, described, self.page_bytes, on=(store,),
                           family=store._namespaces, invalid=INCOMPLETE)

    def _close_children(self) -> None:
        for load in members(self._loads):
            load.close()
        for chain in members(self._chains):
            chain.close()

    def _uses(self, pool: Pool) -> None:
        """Registers the pool: from now on its pages may wait in the store's queue, until this namespace is destroyed."""
        with pool._lock:
            pool._get()  # one that is being closed has looked for its namespaces already
            if self._token not in pool._namespaces:
                self._joins(pool._namespaces)
            if self._token not in pool._tokens:
                self._stands_on(pool)

    @property
    def root(self) -> bytes:
        """The hash of the identity, from which all keys are derived."""
        root = ctypes.create_string_buffer(32)
        with self._use():
            c.lib().quire_namespace_root(self._get(), root)
        return root.raw

    @property
    def stats(self) -> Dict[str, Any]:
        """The members of quire_namespace_stats: what was done through this namespace, and what the disk holds of it."""
        got = c.NamespaceStats()
        with self._use():
            n.check(c.lib().quire_namespace_stats_get(self._get(), got))
        return _members(got)

    def remove(self) -> int:
        """Removes all pages of this namespace from the disk, also pinned ones. Returns their number."""
        removed = c_uint64()
        with self._use():
            n.check(c.lib().quire_namespace_remove(self._get(), removed))
        return int(removed.value)

    def save(self, tokens: Tokens, sequence: Sequence, *, media: Seq[Media] = ()) -> None:
        """Hands the finished pages of the sequence to the store and returns at once. tokens: the tokens of the sequence."""
        prompt = Prompt(tokens, media)
        _check_sequence(sequence)
        with sequence._lock, self._use():
            space, pointer = self._get(), sequence._get()
            self._uses(sequence.pool)
            n.check(c.lib().quire_namespace_save(space, prompt.value, pointer), invalid=NO_FIT, mismatch=OTHER)

    def lookup(self, tokens: Tokens, *, media: Seq[Media] = (), timeout: float = 0.0) -> int:
        """The number of tokens of the prompt, in whole pages, that can be loaded. Asks the remote only if timeout is not 0."""
        prompt, limit, found = Prompt(tokens, media), ms_of(timeout), c_uint32()
        with self._use():
            n.check(c.lib().quire_namespace_lookup(self._get(), prompt.value, limit, found), invalid=MEDIA)
        return int(found.value)

    def lookup_many(self, prompts: Seq[Tokens], *, media: Optional[Seq[Seq[Media]]] = None, timeout: float = 0.0) -> List[int]:
        """lookup() of many prompts with one question to the disk and one round trip to each node of the remote."""
        if media is not None and len(media) != len(prompts):
            raise ValueError("media must have one entry for each prompt")
        arguments = [Prompt(tokens, media[i] if media is not None else ()) for i, tokens in enumerate(prompts)]
        values, found = (c.Prompt * len(arguments))(*[a.value for a in arguments]), (c_uint32 * len(arguments))()
        limit, size = ms_of(timeout), ctypes.sizeof(c.Prompt)
        with self._use():
            n.check(c.lib().quire_namespace_lookup_many(self._get(), values, size, len(arguments), limit, found), invalid=MEDIA)
        return list(found)

    def chain(self, tokens: Tokens = (), *, media: Seq[Media] = ()) -> "Chain":
        """A prompt that grows, and its keys."""
        chain = Chain(self)
        chain.append(tokens, media=media)
        return chain

    def begin_load(self, tokens: Tokens, sequence: Sequence, *, media: Seq[Media] = (), timeout: float = 10.0) -> "Load":
        """Begins to load the longest stored prefix. Until Load.end() other calls on the sequence raise QuireError with status EBUSY."""
        return Load(self, Prompt(tokens, media), sequence, timeout)

    def load(self, tokens: Tokens, sequence: Sequence, *, media: Seq[Media] = (), timeout: float = 10.0) -> int:
        """Loads the longest stored prefix and returns the new length of the sequence. Pass one token less than the prompt has, so that one is
        left to compute."""
        return self.begin_load(tokens, sequence, media=media, timeout=timeout).end()

    def pin(self, tokens: Tokens, pinned: bool = True, *, media: Seq[Media] = (), timeout: float = 10.0) -> int:
        """Pins the pages of the prompt that are on disk, so that they are not evicted until unpinned. Returns the number of tokens on disk."""
        prompt, limit, found = Prompt(tokens, media), ms_of(timeout), c_uint32()
        flag = int(bool(pinned))
        with self._use():
            n.check(c.lib().quire_namespace_pin(self._get(), prompt.value, flag, limit, found), invalid=MEDIA)
        return int(found.value)


class _Running(Handle):
    """A load that runs. What ends it keeps the status and the length, so that an interrupt does not lose them."""

    def __init__(self) -> None:
        self._status: List[int] = []
        self._length = c_uint32()
        super().__init__(c.lib().quire_load_end)

    def _endings(self, destroy: Any) -> List[Any]:
        return [partial(self._status.extend, map(destroy, [self._slot], [ctypes.byref(self._length)]))]

    def _result(self) -> int:
        """Waits for the load, ends it and returns its length."""
        self._get()
        self._end()
        n.check(self._status[0], invalid=NO_FIT, mismatch=OTHER)
        return int(self._length.value)


class Load(_Running):
    """A running load. Closing or dropping it ends the load, which waits for it."""

    def __init__(self, namespace: Namespace, prompt: Prompt, sequence: Sequence, timeout: float) -> None:
        limit = ms_of(timeout)
        _check_sequence(sequence)
        self._prompt = prompt
        super().__init__()
        try:
            with sequence._lock, namespace._use():
                space, pointer = namespace._get(), sequence._get()
                namespace._uses(sequence.pool)
                sequence._load = self._token  # before it begins: a load that an interrupt lets run must not meet other calls
                self._open(c.lib().quire_load_begin, space, prompt.value, pointer, limit, on=(namespace, sequence),
                           family=namespace._loads, invalid=NO_FIT, mismatch=OTHER)
        except BaseException:
            self._end()
            raise

    @property
    def done(self) -> bool:
        """True if end() would return without waiting."""
        with self._lock:
            return bool(c.lib().quire_load_is_done(self._get()))

    def end(self) -> int:
        """Waits for the load and returns the new length of the sequence."""
        with self._lock:
            return self._result()


class Chain(Handle):
    """Created by Namespace.chain(). A prompt that grows, with the keys of its pages: each is computed once. Saving and loading with a chain
    costs only what is new. One thread at a time uses it; others wait."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        with namespace._use():
            pointer = namespace._get()
            super().__init__(c.lib().quire_chain_destroy)
            self._open(c.lib().quire_chain_create, pointer, on=(namespace,), family=namespace._chains)

    @property
    def length(self) -> int:
        """The number of tokens."""
        with self._lock:
            return int(c.lib().quire_chain_length(self._get()))

    def append(self, tokens: Tokens, *, media: Seq[Media] = ()) -> None:
        """Appends tokens. Positions of media count from the beginning of the whole prompt."""
        part = Prompt(tokens, media)
        with self._lock, self.namespace._use():
            n.check(c.lib().quire_chain_append(self._get(), part.tokens.ctypes.data, len(part.tokens), part.media,
                                              ctypes.sizeof(c.Media), len(part.media)), invalid=MEDIA)

    def truncate(self, n_tokens: int) -> None:
        """Shortens the prompt to its first n_tokens tokens."""
        count = n.u32(n_tokens, "n_tokens")
        with self._lock, self.namespace._use():
            n.check(c.lib().quire_chain_truncate(self._get(), count), invalid=f"n_tokens is {count}, more than the prompt has")

    def save(self, sequence: Sequence) -> int:
        """Hands the finished pages of the sequence to the store and returns at once. Returns the number of pages that were dropped because
        the queue is full; the next call tries them again."""
        dropped = c_uint32()
        _check_sequence(sequence)
        with sequence._lock, self._lock, self.namespace._use():
            pointer = sequence._get()
            self.namespace._uses(sequence.pool)
            n.check(c.lib().quire_chain_save(self._get(), pointer, dropped), invalid=NO_FIT, mismatch=OTHER)
        return int(dropped.value)

    def save_raw(self, pages: Seq[Buffer], first_page: int = 0) -> int:
        """Copies pages of a raw namespace, from first_page on, and returns at once. Returns how many of the last ones were dropped because
        the queue is full."""
        given, dropped, first = Pages(pages, self.namespace.page_bytes, False), c_uint32(), n.u32(first_page, "first_page")
        with self._lock, self.namespace._use():
            n.check(c.lib().quire_chain_save_raw(self._get(), first, len(given.views), given.pointers, dropped), invalid=PAGES)
        return int(dropped.value)

    def load_raw(self, buffers: Seq[Buffer], first_page: int = 0, *, timeout: float = 10.0) -> "RawLoad":
        """Begins to load pages of a raw namespace, from first_page on, each into its own buffer. The buffers cannot be resized or released
        until the load has ended."""
        return RawLoad(self, Pages(buffers, self.namespace.page_bytes, True), first_page, timeout)

    def lookup(self, *, timeout: float = 0.0) -> int:
        """The number of tokens, in whole pages, that can be loaded. Asks the remote only if timeout is not 0."""
        return self.namespace.store.lookup_many([self], timeout=timeout)[0]


class RawLoad(_Running):
    """Created by Chain.load_raw(). A load that runs. Closing or dropping it cancels it; after that nothing is written to the buffers."""

    def __init__(self, chain: Chain, pages: Pages, first_page: int, timeout: float) -> None:
        first, limit, namespace = n.u32(first_page, "first_page"), ms_of(timeout), chain.namespace
        self._kept = [pages]  # until nothing is written to them any more
        self._cancelled: List[Any] = []  # what its end cancels first
        with chain._lock, namespace._use():
            pointer = chain._get()
            super().__init__()
            self._open(c.lib().quire_load_begin_raw, pointer, first, len(pages.views), pages.pointers, limit, on=(namespace,),
                       family=namespace._loads, invalid=PAGES)

    def _endings(self, destroy: Any) -> List[Any]:
        self._cancelled.append(self._slot)
        return [partial(list, map(c.lib().quire_load_cancel, iter(self._cancelled))), *super()._endings(destroy), self._kept.clear]

    @property
    def done(self) -> bool:
        """True if wait() would return at once."""
        with self._lock:
            return bool(c.lib().quire_load_is_done(self._get()))

    def cancel(self) -> None:
        """Ends the time limit now: wait() returns soon, with the pages that have arrived."""
        with self._lock:
            c.lib().quire_load_cancel(self._get())

    def wait(self) -> int:
        """Waits for the load and ends it. Returns the number of tokens of the prompt up to the first page that did not arrive, those before
        first_page included. The contents of the buffers of this page and of those behind it are undefined."""
        # The call that ends a load waits for it and frees it. It is made when there is nothing to wait for, so that cancel() in another
        # thread gets the lock meanwhile and never meets a load that is gone.
        pause = 0.00005
        try:
            while True:
                with self._lock:
                    if c.lib().quire_load_is_done(self._get()):
                        self._cancelled.clear()
                        return self._result()
                time.sleep(pause)
                pause = min(2 * pause, 0.001)
        except BaseException:  # an interrupt: it is ended in any case
            self.close()
            raise

    def close(self) -> None:
        self._cancelled[:] = [self._slot]  # also if wait() was interrupted
        super().close()


__all__ = ["Buffer", "Chain", "Identity", "Load", "Media", "Namespace", "RawLoad", "Remote", "Store", "Usage"]
