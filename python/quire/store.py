# SPDX-License-Identifier: MIT
"""Stores: finished pages that are kept after the process has ended, on disk and in a Valkey or Redis cluster (docs/store.md)."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import ExitStack
from ctypes import c_char_p, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from math import ceil
from os import PathLike, fsencode
from typing import Any, Dict, List, Optional, Sequence as Seq, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _native as n, _store as c
from ._handle import Handle, Shared
from ._stream import Writer
from .plan import Plan
from .pool import Pool
from .sequence import Ring, Sequence


@dataclass(frozen=True)
class Remote:
    """A Valkey or Redis server, or any node of a cluster. 0 means the library's default (quire_store.h)."""

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


#: An image or other input that takes the place of a token: its position and a digest of 32 bytes.
Media = Tuple[int, bytes]
Tokens = Union[Seq[int], npt.NDArray[Any]]
#: A page of a raw namespace: anything with the buffer protocol whose bytes are contiguous.
Buffer = Union[bytes, bytearray, memoryview, npt.NDArray[Any]]


def _text(value: Optional[str]) -> Optional[bytes]:
    if value is not None and "\0" in value:
        raise ValueError("the string contains a zero character, which is not allowed")
    return None if value is None else value.encode()


class _PromptArgument:
    """Tokens in the form that the library needs. Keeps the arrays alive."""

    def __init__(self, tokens: Tokens, media: Seq[Media]) -> None:
        given = np.asarray(tokens)
        if given.ndim != 1 or (given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= 2**32)):
            raise ValueError("tokens must be whole numbers from 0 to 2^32 - 1")
        self.tokens = np.ascontiguousarray(given, dtype=np.uint32)
        if any(len(digest) != 32 for _, digest in media):
            raise ValueError("a digest must have 32 bytes")
        self.media = (c.Media * len(media))(*[
            c.Media(n.u32(position, "position"), (c_uint8 * 32).from_buffer_copy(digest)) for position, digest in media])
        self.value = c.Prompt(self.tokens.ctypes.data, self.media, ctypes.sizeof(c.Media), len(self.tokens), len(media))


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
        options = c.Options(directory=None if directory is None else fsencode(directory),
                           disk_bytes=n.u64(disk_bytes, "disk_bytes"),
                           disk_bytes_per_day=n.u64(disk_bytes_per_day, "disk_bytes_per_day"),
                           disk_threads=n.u32(disk_threads, "disk_threads"), no_promote=int(not promote),
                           queue_bytes=n.u64(queue_bytes, "queue_bytes"),
                           tenant_bytes=n.u64(tenant_bytes, "tenant_bytes"), seal_disk=int(seal_disk),
                           message=ctypes.cast(message, c_char_p), message_size=len(message),
                           disk_cache_bytes=n.u64(disk_cache_bytes, "disk_cache_bytes"))
        if remote is not None:
            options.remote = ctypes.pointer(c.Remote(
                _text(remote.host), _text(remote.user), _text(remote.password), n.u32(remote.port, "port"), int(remote.tls),
                _text(remote.tls_ca), _text(remote.tls_cert), _text(remote.tls_key), _text(remote.tls_name),
                n.u32(remote.connections, "connections"), n.u32(remote.ttl_seconds, "ttl_seconds"), n.u32(remote.connect_ms, "connect_ms"),
                n.u32(remote.stall_ms, "stall_ms"), n.u64(remote.in_flight_bytes, "in_flight_bytes"),
                n.u32(remote.min_bytes_per_second, "min_bytes_per_second"), int(remote.read_replicas)))
        out = c_void_p()
        n.check(c.lib().quire_store_open(ctypes.byref(out), options), n.text(message.value))
        super().__init__(out.value, c.lib().quire_store_close)
        self._namespaces: "weakref.WeakSet[Namespace]" = weakref.WeakSet()
        self._close_at_exit()

    def _close_children(self) -> None:
        for namespace in list(self._namespaces):
            namespace.close()

    def flush(self, timeout: float = 10.0) -> None:
        """Waits until everything in the queues is saved. Raises QuireError with status EIO if the time limit is reached first."""
        with self._use() as store:
            n.check(c.lib().quire_store_flush(store, _ms(timeout)))

    def namespace(self, identity: Identity, plan: Plan, *, max_tokens: int = 0, sinks: int = 0,
                  spare_tokens: int = 0) -> "Namespace":
        """A namespace: the pages of one model as one tenant runs it. Give the ring options that its sequences have."""
        return Namespace(self, identity, plan, Ring(max_tokens, sinks, spare_tokens))

    def raw_namespace(self, identity: Identity, layout: str, page_bytes: int) -> "Namespace":
        """A namespace for pages in the caller's own format, page_bytes bytes for 64 tokens. layout: a text that describes the format."""
        return Namespace(self, identity, None, Ring(0, 0, 0), layout, page_bytes)

    def lookup_many(self, chains: "Seq[Chain]", *, timeout: float = 0.0) -> List[int]:
        """Chain.lookup() of many chains, which can belong to different namespaces, with one question to each node of the remote."""
        found = (c_uint32 * len(chains))()
        with ExitStack() as held:
            for chain in sorted(set(chains), key=id):  # in one order, so that two calls do not wait for each other
                held.enter_context(chain._lock)
                held.enter_context(chain.namespace._use())
                if chain.namespace.store is not self:
                    raise ValueError("the chain belongs to another store")
            held.enter_context(self._use())
            pointers = (c_void_p * len(chains))(*[chain._get() for chain in chains])
            n.check(c.lib().quire_chain_lookup_many(pointers, len(chains), _ms(timeout), found))
        return list(found)

    def gc(self, *, max_age: float = 0.0, max_bytes: Optional[int] = None) -> int:
        """Removes damaged objects, objects not used for max_age seconds, and the least recently used ones beyond max_bytes. Returns their number."""
        removed = c_uint64()
        with self._use() as store:
            n.check(c.lib().quire_store_gc(store, n.u64(ceil(max_age), "max_age"),
                                          2**64 - 1 if max_bytes is None else n.u64(max_bytes, "max_bytes"), removed))
        return int(removed.value)

    def usage(self) -> List[Usage]:
        """What every namespace has on disk. Fast: reads only the index."""
        found: List[Usage] = []
        errors: List[BaseException] = []  # an exception cannot pass through C code

        def add(_: Any, pointer: Any) -> int:
            try:
                u = pointer.contents
                found.append(Usage(bytes(u.root), bytes(u.tenant), u.tenant_name.decode(errors="replace"),
                                   u.model_name.decode(errors="replace"), u.objects, u.bytes, u.pinned, u.quota_bytes,
                                   u.last_used_us / 1e6))
                return 0
            except BaseException as error:  # KeyboardInterrupt too
                errors.append(error)
                return 1

        with self._use() as store:
            status = c.lib().quire_store_usage_each(store, c.USAGE_FN(add), None)
        if errors:
            raise errors[0]
        n.check(status)
        return found

    def remove(self, *, root: Optional[bytes] = None, tenant: Optional[bytes] = None, tenant_name: Optional[str] = None,
               model_name: Optional[str] = None) -> int:
        """Removes all pages of the namespaces that match everything given from the disk, also pinned ones. Returns their number."""
        if (root is not None and len(root) != 32) or (tenant is not None and len(tenant) != 16):
            raise ValueError("a root must have 32 bytes and a tenant 16")
        removed = c_uint64()
        with self._use() as store:
            n.check(c.lib().quire_store_remove(store, c.Selection(root, tenant, _text(tenant_name), _text(model_name)), removed))
        return int(removed.value)

    def set_quota(self, tenant: bytes, quota_bytes: int) -> None:
        """Limits what a tenant has on disk, for all processes. 0: the limit of all tenants holds again; 2**64 - 1: none."""
        if len(tenant) != 16:
            raise ValueError("a tenant must have 16 bytes")
        with self._use() as store:
            n.check(c.lib().quire_store_set_quota(store, tenant, n.u64(quota_bytes, "quota_bytes")))

    @property
    def stats(self) -> Dict[str, Any]:
        """The members of quire_store_stats. In pairs the first number is for the disk, the second for the remote. misses: a dict by reason."""
        got = c.Stats()
        with self._use() as store:
            n.check(c.lib().quire_store_stats_get(store, got))
        return _members(got)

    def metrics(self, labels: Optional[str] = None) -> str:
        """All figures in the text format of Prometheus. labels are added to every sample: 'server="a"'."""
        writer = Writer()
        with self._use() as store:
            writer.check(c.lib().quire_store_write_metrics(store, _text(labels), writer.callback, None))
        return writer.bytes().decode()


def _members(got: Any) -> Dict[str, Any]:
    stats: Dict[str, Any] = {}
    for name, *_ in got._fields_:
        value = getattr(got, name)
        stats[name] = value if isinstance(value, int) else tuple(value)
    stats["misses"] = {n.text(c.lib().quire_miss_name(i)): count for i, count in enumerate(got.misses) if count}
    return stats


def _ms(seconds: float) -> int:
    return n.u32(round(seconds * 1000), "timeout")


class Namespace(Shared):
    """Created by Store.namespace() or Store.raw_namespace(). Closing a pool whose sequences were saved or loaded here also closes the
    namespace."""

    def __init__(self, store: Store, identity: Identity, plan: Optional[Plan], ring: Ring, layout: str = "", page_bytes: int = 0) -> None:
        if len(identity.secret) != 32:
            raise ValueError("the secret must have 32 bytes")
        c_identity = c.Identity(_text(identity.weights), _text(identity.tokenizer), _text(identity.adapter),
                               identity.adapter_scale, _text(identity.rope), identity.secret, _text(identity.tenant_name),
                               _text(identity.model_name))
        options = n.seq_options(ring.max_tokens, ring.sinks, ring.spare_tokens)
        out = c_void_p()
        self.store = store
        self.page_bytes = n.u64(page_bytes, "page_bytes")  # 0 if the pages are those of a plan
        self._loads: "weakref.WeakSet[Handle]" = weakref.WeakSet()
        self._chains: "weakref.WeakSet[Chain]" = weakref.WeakSet()
        with ExitStack() as held:
            held.enter_context(store._lock)
            if plan is not None:
                held.enter_context(plan._lock)
                n.check(c.lib().quire_namespace_create(ctypes.byref(out), store._get(), c_identity, plan._get(), options))
            else:
                n.check(c.lib().quire_namespace_create_raw(ctypes.byref(out), store._get(), c_identity, _text(layout), self.page_bytes))
            super().__init__(out.value, c.lib().quire_namespace_destroy, store)
            store._namespaces.add(self)

    def _close_children(self) -> None:
        for load in list(self._loads):
            load.close()
        for chain in list(self._chains):
            chain.close()

    def _uses(self, pool: Pool) -> None:
        """Registers the pool: from now on its pages may wait in the store's queue, until this namespace is destroyed."""
        with pool._lock:
            pool._get()  # one that is being closed has looked for its namespaces already
            if self not in pool._namespaces:
                pool._namespaces.add(self)
                self._stands_on(pool)

    @property
    def root(self) -> bytes:
        """The hash of the identity, from which all keys are derived."""
        root = ctypes.create_string_buffer(32)
        with self._use() as space:
            c.lib().quire_namespace_root(space, root)
        return root.raw

    @property
    def stats(self) -> Dict[str, Any]:
        """The members of quire_namespace_stats: what was done through this namespace, and what the disk holds of it."""
        got = c.NamespaceStats()
        with self._use() as space:
            n.check(c.lib().quire_namespace_stats_get(space, got))
        return _members(got)

    def remove(self) -> int:
        """Removes all pages of this namespace from the disk, also pinned ones. Returns their number."""
        removed = c_uint64()
        with self._use() as space:
            n.check(c.lib().quire_namespace_remove(space, removed))
        return int(removed.value)

    def save(self, tokens: Tokens, sequence: Sequence, *, media: Seq[Media] = ()) -> None:
        """Hands the finished pages of the sequence to the store and returns at once. tokens: the tokens of the sequence."""
        prompt = _PromptArgument(tokens, media)
        with sequence._lock, self._use() as space:
            pointer = sequence._get()
            self._uses(sequence.pool)
            n.check(c.lib().quire_namespace_save(space, prompt.value, pointer))

    def lookup(self, tokens: Tokens, *, media: Seq[Media] = (), timeout: float = 0.0) -> int:
        """The number of tokens of the prompt, in whole pages, that can be loaded. Asks the remote only if timeout is not 0."""
        prompt, found = _PromptArgument(tokens, media), c_uint32()
        with self._use() as space:
            n.check(c.lib().quire_namespace_lookup(space, prompt.value, _ms(timeout), found))
        return int(found.value)

    def lookup_many(self, prompts: Seq[Tokens], *, media: Optional[Seq[Seq[Media]]] = None, timeout: float = 0.0) -> List[int]:
        """lookup() of many prompts with one question to the disk and one round trip to each node of the remote."""
        if media is not None and len(media) != len(prompts):
            raise ValueError("media must have one entry for each prompt")
        arguments = [_PromptArgument(tokens, media[i] if media is not None else ()) for i, tokens in enumerate(prompts)]
        values, found = (c.Prompt * len(arguments))(*[a.value for a in arguments]), (c_uint32 * len(arguments))()
        with self._use() as space:
            n.check(c.lib().quire_namespace_lookup_many(space, values, ctypes.sizeof(c.Prompt), len(arguments), _ms(timeout), found))
        return list(found)

    def chain(self, tokens: Tokens = (), *, media: Seq[Media] = ()) -> "Chain":
        """A prompt that grows, and its keys."""
        chain = Chain(self)
        chain.append(tokens, media=media)
        return chain

    def begin_load(self, tokens: Tokens, sequence: Sequence, *, media: Seq[Media] = (), timeout: float = 10.0) -> "Load":
        """Begins to load the longest stored prefix. Until Load.end() other calls on the sequence raise QuireError with status EBUSY."""
        return Load(self, _PromptArgument(tokens, media), sequence, timeout)

    def load(self, tokens: Tokens, sequence: Sequence, *, media: Seq[Media] = (), timeout: float = 10.0) -> int:
        """Loads the longest stored prefix and returns the new length of the sequence. Pass one token less than the prompt has, so that one is
        left to compute."""
        return self.begin_load(tokens, sequence, media=media, timeout=timeout).end()

    def pin(self, tokens: Tokens, pinned: bool = True, *, media: Seq[Media] = (), timeout: float = 10.0) -> int:
        """Pins the pages of the prompt that are on disk, so that they are not evicted until unpinned. Returns the number of tokens on disk."""
        prompt, found = _PromptArgument(tokens, media), c_uint32()
        with self._use() as space:
            n.check(c.lib().quire_namespace_pin(space, prompt.value, int(pinned), _ms(timeout), found))
        return int(found.value)


class _End:
    """Ends a load, once: the finalizer calls it, for end() too. An interrupt that comes meanwhile is raised when the library has ended the
    load, which must not be ended again then."""

    def __init__(self) -> None:
        self.status, self.length = 0, c_uint32()

    def __call__(self, pointer: int) -> None:
        self.status = c.lib().quire_load_end(pointer, ctypes.byref(self.length))


class Load(Handle):
    """A running load. Closing or dropping it ends the load, which waits for it."""

    def __init__(self, namespace: Namespace, prompt: _PromptArgument, sequence: Sequence, timeout: float) -> None:
        out = c_void_p()
        with sequence._lock, namespace._use() as space:
            pointer = sequence._get()
            namespace._uses(sequence.pool)
            n.check(c.lib().quire_load_begin(ctypes.byref(out), space, prompt.value, pointer, _ms(timeout)))
            self._end = _End()
            super().__init__(out.value, self._end, namespace, sequence)
            sequence._load = self._token
            namespace._loads.add(self)
        self._prompt = prompt

    @property
    def done(self) -> bool:
        """True if end() would return without waiting."""
        with self._lock:
            return bool(c.lib().quire_load_is_done(self._get()))

    def end(self) -> int:
        """Waits for the load and returns the new length of the sequence."""
        with self._lock:
            self._get()
            self._finalize()
            n.check(self._end.status)
        return int(self._end.length.value)


class _Pages:
    """Pointers to buffers. Holds the buffers exported, so that they can be neither resized nor released."""

    def __init__(self, buffers: Seq[Buffer], page_bytes: int, writable: bool) -> None:
        if isinstance(buffers, (bytes, bytearray, memoryview, str)):
            raise TypeError("pages must be a sequence of buffers, one for each page")
        given: Seq[Any] = buffers  # numpy's type says nothing about its buffer
        self.views = [memoryview(buffer) for buffer in given]
        for view in self.views:
            if not view.c_contiguous:
                raise ValueError("the bytes of a page must be contiguous")
            if view.nbytes != page_bytes:
                raise ValueError(f"a page has {page_bytes} bytes, not {view.nbytes}")
            if writable and view.readonly:
                raise ValueError("a page cannot be loaded into a buffer that is read-only")
        starts = [int(np.frombuffer(view, dtype=np.uint8).ctypes.data) for view in self.views]
        if writable and any(b - a < page_bytes for a, b in zip(sorted(starts), sorted(starts)[1:])):
            raise ValueError("two pages cannot be loaded into the same bytes")
        self.pointers = (c_void_p * len(starts))(*starts)


class Chain(Handle):
    """Created by Namespace.chain(). A prompt that grows, with the keys of its pages: each is computed once. Saving and loading with a chain
    costs only what is new. One thread at a time uses it; others wait."""

    def __init__(self, namespace: Namespace) -> None:
        out = c_void_p()
        self.namespace = namespace
        with namespace._use() as space:
            n.check(c.lib().quire_chain_create(ctypes.byref(out), space))
            super().__init__(out.value, c.lib().quire_chain_destroy, namespace)
            namespace._chains.add(self)

    @property
    def length(self) -> int:
        """The number of tokens."""
        with self._lock:
            return int(c.lib().quire_chain_length(self._get()))

    def append(self, tokens: Tokens, *, media: Seq[Media] = ()) -> None:
        """Appends tokens. Positions of media count from the beginning of the whole prompt."""
        part = _PromptArgument(tokens, media)
        with self._lock, self.namespace._use():
            n.check(c.lib().quire_chain_append(self._get(), part.tokens.ctypes.data, len(part.tokens), part.media,
                                              ctypes.sizeof(c.Media), len(media)))

    def truncate(self, n_tokens: int) -> None:
        """Shortens the prompt to its first n_tokens tokens."""
        with self._lock, self.namespace._use():
            n.check(c.lib().quire_chain_truncate(self._get(), n.u32(n_tokens, "n_tokens")))

    def save(self, sequence: Sequence) -> int:
        """Hands the finished pages of the sequence to the store and returns at once. Returns the number of pages that were dropped because
        the queue is full; the next call tries them again."""
        dropped = c_uint32()
        with sequence._lock, self._lock, self.namespace._use():
            pointer = sequence._get()
            self.namespace._uses(sequence.pool)
            n.check(c.lib().quire_chain_save(self._get(), pointer, dropped))
        return int(dropped.value)

    def save_raw(self, pages: Seq[Buffer], first_page: int = 0) -> int:
        """Copies pages of a raw namespace, from first_page on, and returns at once. Returns how many of the last ones were dropped because
        the queue is full."""
        given, dropped = _Pages(pages, self.namespace.page_bytes, False), c_uint32()
        with self._lock, self.namespace._use():
            n.check(c.lib().quire_chain_save_raw(self._get(), n.u32(first_page, "first_page"), len(given.views), given.pointers, dropped))
        return int(dropped.value)

    def load_raw(self, buffers: Seq[Buffer], first_page: int = 0, *, timeout: float = 10.0) -> "RawLoad":
        """Begins to load pages of a raw namespace, from first_page on, each into its own buffer. The buffers cannot be resized or released
        until the load has ended."""
        return RawLoad(self, _Pages(buffers, self.namespace.page_bytes, True), first_page, timeout)

    def lookup(self, *, timeout: float = 0.0) -> int:
        """The number of tokens, in whole pages, that can be loaded. Asks the remote only if timeout is not 0."""
        return self.namespace.store.lookup_many([self], timeout=timeout)[0]


class _RawEnd(_End):
    """Ends a raw load. The finalizer keeps it, and with it the buffers, until nothing is written to them any more."""

    def __init__(self, pages: _Pages) -> None:
        super().__init__()
        self.pages: Optional[_Pages] = pages
        self.waits = False

    def __call__(self, pointer: int) -> None:
        try:
            if not self.waits:
                c.lib().quire_load_cancel(pointer)
        finally:
            try:
                super().__call__(pointer)
            finally:
                self.pages = None


class RawLoad(Handle):
    """Created by Chain.load_raw(). A load that runs. Closing or dropping it cancels it; after that nothing is written to the buffers."""

    def __init__(self, chain: Chain, pages: _Pages, first_page: int, timeout: float) -> None:
        out, namespace = c_void_p(), chain.namespace
        with chain._lock, namespace._use():
            n.check(c.lib().quire_load_begin_raw(ctypes.byref(out), chain._get(), n.u32(first_page, "first_page"), len(pages.views),
                                                pages.pointers, _ms(timeout)))
            self._end = _RawEnd(pages)
            super().__init__(out.value, self._end, namespace)
            namespace._loads.add(self)

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
        with self._lock:
            self._get()
            self._end.waits = True
            self._finalize()
            n.check(self._end.status)
        return int(self._end.length.value)


__all__ = ["Buffer", "Chain", "Identity", "Load", "Media", "Namespace", "RawLoad", "Remote", "Store", "Usage"]
