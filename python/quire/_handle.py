# SPDX-License-Identifier: MIT
"""Objects of the library as Python objects. Each is closed once, by close() or by the garbage collector, and never used after that.

Every call into the library on a Handle holds its lock, so that a close() in another thread waits until the call has returned. A Shared
handle, which the library allows several threads to use at once, has a lock for each thread that uses it. What ends a handle keeps the
objects that it depends on alive. The garbage collector can end one in any thread and at any moment, so that takes no lock: an object is
removed from the set of dependents of another object when the library has destroyed it, and close() of the other object waits for that.

Interrupts. A signal handler can raise an exception (KeyboardInterrupt) when a function is entered, when a call returns, and when a loop
begins again, and nowhere else (Python 3.10 and later). So a call into the library can have done its work and its result is lost.
Therefore a handle owns its pointer before there is one: the library writes it into a slot, and what ends the handle reads the slot.
What ends it is an iterator of calls that are made of C functions only: draining it is one call, in which no exception can be raised, it can
be repeated, and each of its calls is made once.
"""

from __future__ import annotations

import atexit
import ctypes
import operator
import os
import threading
import time
import weakref
from collections import deque
from functools import partial, reduce
from itertools import compress
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Set, Type, TypeVar

from . import _native as n
from .errors import ClosedError, QuireError

_Self = TypeVar("_Self", bound="Handle")

_Result = TypeVar("_Result")

_call, _acquire, _release = (operator.methodcaller(name) for name in ("__call__", "acquire", "release"))
drain: Callable[[Iterator[Any]], None] = deque(maxlen=0).extend

# All handles that are not closed, by their tokens. A reference calls what ends its handle when the handle is dropped.
_handles: "Dict[object, weakref.ref[Handle]]" = {}
atexit.register(_handles.clear)  # memory goes by itself then, and a daemon thread may be computing on it


def _forked() -> None:
    """In a forked child: it has the memory, but not the threads, and others may have held the locks. The parent still owns everything."""
    for reference in list(_handles.values()):
        handle = reference()
        if handle is not None:
            handle._disown()
    _handles.clear()


os.register_at_fork(after_in_child=_forked)


#: Handles that the close() of another one closes, by their tokens. Not a WeakSet: its callbacks are Python, and lose interrupts.
Family = Dict[object, "weakref.ref[Any]"]


def members(family: Family) -> List[Any]:
    return [handle for handle in [reference() for reference in list(family.values())] if handle is not None]


def find(*tokens: Optional[object]) -> "List[Handle]":
    """The handles that have these tokens and are not closed."""
    return members({token: _handles[token] for token in tokens if token in _handles})


class _Leave(partial):  # type: ignore[type-arg]  # not generic when Python 3.9 runs it
    """Removes a token from a set of another handle, and keeps that handle alive until then."""

    on: "Handle"


def _close(handle: "weakref.ref[Handle]", process: int) -> None:
    alive = handle()
    if alive is not None and os.getpid() == process:
        alive.close()


class Handle:
    """A pointer from the library, and what destroys it. A new one owns nothing: _open() lets the library create the object."""

    _inherited = False  # by a forked child
    _guard: "Optional[weakref.ref[_Guard]]" = None

    def __init__(self, destroy: Callable[[Any], Any]) -> None:
        self._pointer = 0
        self._lock = threading.RLock()
        self._tokens: Set[object] = set()  # of what stands on it, until the library has given that back
        self._token = object()
        self._slot = ctypes.c_void_p()
        self._leave: List[_Leave] = []
        calls: List[Callable[[], Any]] = [
            *self._endings(destroy), partial(setattr, self._slot, "value", None), partial(drain, map(_call, iter(self._leave))),
            partial(_handles.pop, self._token, None)]
        self._ends = map(_call, iter(calls))
        # reduce() drains the iterator; the reference, which it is given in addition, is where it begins to "add up".
        _handles[self._token] = weakref.ref(self, partial(reduce, operator.is_, self._ends))

    def _endings(self, destroy: Callable[[Any], Any]) -> List[Callable[[], Any]]:
        """The calls that destroy what the slot points to; they do nothing if it is empty. No reference to self: it would never be dropped."""
        return [partial(destroy, self._slot)]

    def _stands_on(self, other: "Handle") -> None:
        leave = _Leave(other._tokens.discard, self._token)
        leave.on = other
        self._leave.append(leave)
        other._tokens.add(self._token)

    def _joins(self, family: "Family") -> None:
        self._leave.append(_Leave(family.pop, self._token, None))
        family[self._token] = weakref.ref(self)

    def _open(self, create: Callable[..., int], *arguments: Any, on: "Sequence[Handle]" = (), family: "Optional[Family]" = None,
              message: "Optional[ctypes.Array[ctypes.c_char]]" = None, invalid: str = "", mismatch: str = "") -> None:
        """Calls a function of the library that creates the object; its first argument says where to put the pointer. If it fails or is
        interrupted, there is no object. on: what the object depends on. family: where its parent finds it. message: where the function
        writes a sentence if it fails. invalid: one for EINVAL, mismatch: one for EMISMATCH."""
        try:
            for other in on:
                self._stands_on(other)
            if family is not None:
                self._joins(family)
            status = create(ctypes.byref(self._slot), *arguments)
            if status:
                n.check(status, "" if message is None else n.text(message.value), invalid, mismatch)
            self._pointer = self._slot.value or 0
            if not self._pointer:
                raise MemoryError(f"the library could not create a {type(self).__name__}")
        except BaseException:
            self._end()
            raise

    def _close_at_exit(self) -> None:
        """Closes the object at the end of the process, as close() does: after running calls of daemon threads have returned."""
        weakref.finalize(self, _close, weakref.ref(self), os.getpid())

    def _end(self) -> None:
        """Destroys the object now, while the lock is held. A second call does nothing."""
        self._pointer, self._guard = 0, None
        drain(self._ends)

    def _disown(self) -> None:
        """Makes the copy of the object in a forked child one that owns nothing and that no lock can stop."""
        self._pointer, self._slot.value, self._inherited = 0, None, True
        self._lock, self._tokens = threading.RLock(), set()
        drain(self._ends)

    def _wait_for_finalizers(self) -> None:
        """Waits for the ends, in other threads, of objects that depended on this one and were dropped."""
        while self._tokens:
            time.sleep(0.001)

    @property
    def closed(self) -> bool:
        """True after close(), and in a forked child. Every use then raises ClosedError."""
        return not self._slot.value

    def _get(self) -> int:
        """The pointer, for a call that is made while the lock is held. Raises ClosedError if the object is closed. All other arguments
        of the call must have been converted before: what converts them can close the object."""
        if not self._pointer:
            raise self._missing()
        return self._pointer

    def _missing(self) -> ClosedError:
        name = type(self).__name__
        return ClosedError(f"this {name} belongs to the parent process; a forked child cannot use it" if self._inherited else
                           f"{name} is closed")

    def close(self) -> None:
        """Releases everything. A second call does nothing; one that was interrupted can be repeated."""
        with self._lock:
            if not self.closed:
                self._wait_for_finalizers()
            self._end()

    def __enter__(self: _Self) -> _Self:
        self._get()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it belongs to this process")


def holding(locks: "Sequence[Any]", call: "Callable[[], _Result]") -> "_Result":
    """call() while all the locks are held. They must come in an order that is the same in every thread.

    C takes them and gives them back: a stack of context managers in Python can be interrupted when it has taken one and not noted it."""
    if len(locks) == 1:
        with locks[0]:
            return call()
    held: List[bool] = []
    releases = map(_release, compress(locks, held))  # of those that are held when it is drained
    try:
        held.extend(map(_acquire, locks))
        return call()
    finally:
        drain(releases)


class _Guard:
    """What a `with` statement holds of a handle, and nobody else: it is dropped when the statement has ended, in whatever way."""

    def __init__(self, leave: Callable[..., None], handle: Handle) -> None:
        self._leave, self._handle = leave, handle

    def leave(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._leave(self._handle, kind, error, trace)


class EndsWithBlock:
    """__exit__ of a handle that must not outlive its `with` statement. An interrupt can come when __exit__ is entered, before it has
    done anything; then the handle is ended when the exception is dropped, although a variable still refers to it."""

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave

    def __get__(self, handle: Optional[Handle], owner: Type[Handle]) -> Callable[..., None]:
        if handle is None:
            return self._leave
        guard = _Guard(self._leave, handle)
        calls: List[Callable[[], Any]] = [partial(setattr, handle, "_pointer", 0), partial(drain, handle._ends)]
        handle._guard = weakref.ref(guard, partial(reduce, operator.is_, map(_call, iter(calls))))
        return guard.leave


class Shared(Handle):
    """A Handle that any number of threads can use at once."""

    def __init__(self, destroy: Callable[[Any], Any]) -> None:
        self._users: "Dict[int, Any]" = {}  # a lock for each thread that has used it, held while it does
        self._closing = False
        self._ending = threading.RLock()
        super().__init__(destroy)

    def _get(self) -> int:
        if self._closing:
            raise self._missing()
        return self._pointer or super()._get()

    def _use(self) -> Any:
        """A lock that other users do not wait for; close() waits. Hold it, then ask _get() for the pointer.

        A lock and not a function with a decorator: nothing can be raised between taking one in a `with` statement and its body."""
        return self._users.setdefault(threading.get_ident(), threading.RLock())

    def _is_used_here(self) -> bool:
        """True if this thread is in a call on the object, which runs code of the caller that has come back here."""
        own = self._users.get(threading.get_ident())
        return own is not None and bool(own._is_owned())

    def _disown(self) -> None:
        super()._disown()
        self._users, self._ending = {}, threading.RLock()

    def _close_children(self) -> None:
        """Called when no thread uses the object any more and no thread can start to use it; again if it was interrupted."""

    def close(self) -> None:
        if self._is_used_here():
            raise QuireError("EBUSY", f"the {type(self).__name__} is in use by the call that asks to close it")
        with self._ending:  # a second thread returns when the first has closed it
            with self._lock:
                self._closing = True
            for lock in list(self._users.values()):
                with lock:  # its thread has left, or will find that the object is being closed
                    pass
            self._close_children()  # without the lock, which a call that runs on one of them may want
            self._wait_for_finalizers()
            super().close()
