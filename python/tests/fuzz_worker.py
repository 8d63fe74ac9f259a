# SPDX-License-Identifier: MIT
"""Executes the sequences of calls that fuzz_calls.py makes: a line of JSON each, answered with "ok" or with what went wrong."""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import signal
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

import numpy as np

import quire

HEADS, D = 2, 32
_random = np.random.default_rng(7)
K, V, Q = (_random.standard_normal((n, h, D)).astype(np.float32) for n, h in ((2000, HEADS), (2000, HEADS), (40, 2 * HEADS)))
PLAN = quire.Plan("f32", n_q_heads=2 * HEADS, n_kv_heads=HEADS, d_k=D)
OTHER = quire.Plan("f32", n_q_heads=2 * HEADS, n_kv_heads=HEADS, d_k=D)
IDENTITY = quire.Identity("w", "t", "r", bytes(32))
DOCUMENTED = (TypeError, ValueError, quire.QuireError, OSError, EOFError, MemoryError)  # ClosedError is a ValueError
CALLS: Dict[str, Callable[..., None]] = {}


class Own:
    """A sequence and what it must hold: the numbers of its rows in K and V. None: a ring, of which only the length is known."""

    def __init__(self, sequence: quire.Sequence, ids: Optional[List[int]]) -> None:
        self.sequence, self.ids = sequence, ids


class Index:
    """A number that does something when it is asked for."""

    def __init__(self, value: int, does: Callable[[], Any]) -> None:
        self.value, self.does = value, does

    def __index__(self) -> int:
        self.does()
        return self.value


class Lies(np.ndarray):  # type: ignore[type-arg]
    shape = property(lambda self: (5, HEADS, D))  # type: ignore[assignment]
    strides = property(lambda self: (HEADS * D * 4, D * 4, 4))  # type: ignore[assignment]


class State:
    def __init__(self, store: quire.Store, n_threads: int) -> None:
        self.store = store
        self.pool = quire.Pool(PLAN, 1 << 20, n_threads)
        self.space = store.namespace(IDENTITY, PLAN)
        self.own: List[Own] = []
        self.steps: List[Any] = []
        self.saved: List[bytes] = []
        self.delay = 0
        self.wrong: List[str] = []

    def __getitem__(self, i: int) -> Own:
        if not self.own:
            self.own.append(Own(self.pool.sequence(), []))
        return self.own[i % len(self.own)]

    def hostile(self, i: int) -> Any:
        """A number that is not one, does not fit, or closes something."""
        def close() -> None:
            self[i].sequence.close()

        def use() -> None:
            self[i].sequence.attend(Q[:1])

        return (-3, 2**31, 2**32 + 1, 2**64, 1.5, None, "1", True, np.int64(1), np.uint8(2), float("nan"), [], Index(1, close), Index(1, use),
                Index(0, self.pool.close), Index(1, gc.collect), 10**4000)[i % 17]

    def rows(self, i: int, n: int) -> Any:
        """An array of rows, right or wrong."""
        k = K[:n]
        return (k, k, k, k.astype(np.float64), k[::-1], k[:, :1], k[0], np.zeros((), np.float32), k.astype(">f4"), k.astype(object), memoryview(k),
                k.tolist(), np.ma.array(k), k[:1, :1, :3].copy().view(Lies), k.copy().view(Lies), np.broadcast_to(k[:1], k.shape), None, K[:0],
                k.view(np.int32), np.asfortranarray(k))[i % 20]

    def reset(self, own: Own, *allowed: Optional[List[int]]) -> None:
        """After a call that may have been interrupted: the sequence has one of these contents."""
        if own.ids is None or own.sequence.closed or self.pool._closing:
            return
        length = own.sequence.length
        for ids in (own.ids, *allowed):
            if ids is not None and len(ids) == length:
                own.ids = ids
                return
        raise AssertionError(f"length {length}, not {len(own.ids)} or {[len(x or []) for x in allowed]}")


def call(function: Callable[..., None]) -> Callable[..., None]:
    CALLS[function.__name__] = function
    return function


_armed = False  # until the handler has run or the timer is stopped


def _interrupt(*_: Any) -> None:
    global _armed
    _armed = False
    raise KeyboardInterrupt


class Timer:
    """Raises KeyboardInterrupt in a call after some microseconds, or not at all; swallows it and what calls may raise."""

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def run(self, work: Callable[[], Any]) -> bool:
        """True if the call came to its end."""
        done = False
        try:
            self.start()
            try:
                work()
                done = True
            except DOCUMENTED:
                pass
            self.stop()
        except KeyboardInterrupt:
            if not self.delay:
                raise
        return done

    def start(self) -> None:
        global _armed
        if self.delay:
            _armed = True
            signal.setitimer(signal.ITIMER_REAL, self.delay * 1e-6)

    def stop(self) -> None:
        """Waits for a signal that is on its way: another thread may have got it."""
        if self.delay and signal.setitimer(signal.ITIMER_REAL, 0)[0] == 0:
            for _ in range(2000):
                if not _armed:
                    break
                time.sleep(1e-5)


# ------------------------------------------------------------------------------------------------ calls


@call
def append(s: State, a: int, b: int, c: int) -> None:
    own, n = s[a], b % 70
    first = c
    done = Timer(s.delay).run(lambda: own.sequence.append(K[first:first + n], V[first:first + n]))
    after = None if own.ids is None else own.ids + list(range(first, first + n))
    s.reset(own, after)
    assert not done or own.ids is None or own.ids == after or own.sequence.closed


@call
def append_wrong(s: State, a: int, b: int, c: int) -> None:
    own, k, v = s[a], s.rows(b, 5), s.rows(c, 5)
    if Timer(s.delay).run(lambda: own.sequence.append(k, v)) and own.ids is not None and not own.sequence.closed:
        own.sequence.trim(len(own.ids))
    elif own.ids is not None and not own.sequence.closed and not s.pool._closing:
        own.sequence.trim(min(len(own.ids), own.sequence.length))


@call
def trim(s: State, a: int, b: int, c: int) -> None:
    own = s[a]
    to: Any = s.hostile(c) if b % 3 == 0 else b
    Timer(s.delay).run(lambda: own.sequence.trim(to))
    if own.ids is not None and not own.sequence.closed and not s.pool._closing:
        length = own.sequence.length
        assert length <= len(own.ids)
        own.ids = own.ids[:length]


@call
def sequence(s: State, a: int, b: int, c: int) -> None:
    def work() -> None:
        if a % 3 == 0:
            s.own.append(Own(s.pool.sequence(max_tokens=s.hostile(b), sinks=s.hostile(c)), None))
        elif a % 3 == 1:
            s.own.append(Own(s.pool.sequence(max_tokens=20 + b % 60, sinks=b % 4), None))
        else:
            s.own.append(Own(s.pool.sequence(), []))

    Timer(s.delay).run(work)


@call
def fork(s: State, a: int, b: int, c: int) -> None:
    own = s[a]
    Timer(s.delay).run(lambda: s.own.append(Own(own.sequence.fork(), None if own.ids is None else list(own.ids))))


@call
def close(s: State, a: int, b: int, c: int) -> None:
    own = s[a]
    Timer(s.delay).run(own.sequence.close)
    if own.sequence.closed:
        s.own.remove(own)


@call
def drop(s: State, a: int, b: int, c: int) -> None:
    s.steps = s.steps[:a % 2]
    s.own = s.own[:b % 4]
    if c % 3 == 0:
        gc.collect()


@call
def step(s: State, a: int, b: int, c: int) -> None:
    """A step over one to three sequences, which ends in one of several ways."""
    chosen = [s[a + i] for i in range(1 + b % 3)]
    n, first = 1 + c % 5, c
    counts: List[Any] = [n] * len(chosen)
    if b % 11 == 0:
        counts[0] = s.hostile(c)

    def work() -> None:
        with s.pool.step([own.sequence for own in chosen], counts) as open_step:
            k, v = np.concatenate([K[first:first + n]] * len(chosen)), np.concatenate([V[first:first + n]] * len(chosen))
            open_step.append(0, k, v)
            if a % 2:
                open_step.attend(0, np.concatenate([Q[:n]] * len(chosen)), scale=0.5 if b % 2 else 0.0, partial=c % 2 == 1)
            if a % 7 == 0:
                raise ValueError("of the caller")
            if a % 7 == 1:
                open_step.abort()
            if a % 7 == 2:
                open_step.commit()

    Timer(s.delay).run(work)
    alive = [own for own in chosen if own.ids is not None and not own.sequence.closed]
    if s.pool._closing:
        return
    grown = {own.sequence.length - len(own.ids or []) for own in alive}
    assert len(grown) <= 1, f"a step is in some of its sequences: {grown}"
    for own in alive:
        s.reset(own, (own.ids or []) + list(range(first, first + n)))


@call
def open_step(s: State, a: int, b: int, c: int) -> None:
    own = s[a]
    Timer(s.delay).run(lambda: s.steps.append((own, own.sequence.step(1 + b % 3), 1 + b % 3)))


@call
def use_step(s: State, a: int, b: int, c: int) -> None:
    if not s.steps:
        return
    own, used, n = s.steps[a % len(s.steps)]

    def work() -> None:
        if b % 5 == 0:
            used.append(0, s.rows(c, n), V[:n])
        elif b % 5 == 1:
            used.append(c % 2, K[:n], V[:n])
        elif b % 5 == 2:
            used.attend(s.hostile(c) if c % 2 else 0, Q[:n], out=s.rows(c, n) if c % 3 == 0 else None)
        elif b % 5 == 3:
            used.abort()
        else:
            used.append(0, K[:n], V[:n])
            used.commit()

    Timer(s.delay).run(work)
    s.reset(own, None if own.ids is None else own.ids + list(range(n)))


@call
def attend(s: State, a: int, b: int, c: int) -> None:
    own = s[a]

    def work() -> None:
        if b % 6 == 0:
            own.sequence.attend(s.rows(c, 5), s.hostile(c))
        elif b % 6 == 1:
            own.sequence.attend(Q[:2], position=s.hostile(c))
        elif b % 6 == 2:
            own.sequence.attend(Q[:2], mask=s.rows(c, 5), scale=float(b))
        elif b % 6 == 3:
            s.pool.attend([s[a].sequence, s[b].sequence], [Q[:1], Q[:2]], partial=bool(c % 2))
        elif b % 6 == 4:
            own.sequence.attend(Q[:1], alibi=s.rows(c, 4), softcap=s.hostile(c))
        else:
            own.sequence.attend(Q[:1], out=s.rows(c, 1))

    Timer(s.delay).run(work)


@call
def rows(s: State, a: int, b: int, c: int) -> None:
    own = s[a]
    Timer(s.delay).run(lambda: own.sequence.rows("kvx"[b % 3], 0, s.hostile(c) if b % 2 else c, s.hostile(b) if c % 2 else b % 9))


class File:
    """A file that misbehaves in one of several ways, in its n-th call."""

    def __init__(self, s: State, kind: int, at: int, data: bytes = b"") -> None:
        self.s, self.kind, self.left, self.inner = s, kind % 14, at % 6, io.BytesIO(data)

    def answer(self, right: Any) -> Any:
        self.left -= 1
        if self.left:
            return right
        s, kind = self.s, self.kind
        if kind >= 11:
            (s[kind].sequence.close, s.pool.close, lambda: s[0].sequence.append(K[:0], V[:0]))[kind - 11]()
        if kind == 10:
            raise OSError("of the file")
        if kind in (8, 9):
            other = threading.Thread(target=lambda: Timer(0).run(lambda: s.pool.stats))
            other.start()
            other.join()
        wrong = (0, -1, None, "text", 1 << 70, b"", bytes(1 << 20), 1.5, right, right, right, right, right, right)
        return wrong[kind]

    def write(self, data: bytes) -> Any:
        got = self.answer(len(data))
        self.inner.write(data)
        return got

    def read(self, n: int) -> Any:
        return self.answer(self.inner.read(n))


@call
def save(s: State, a: int, b: int, c: int) -> None:
    own, file = s[a], File(s, b, c)
    if Timer(s.delay).run(lambda: own.sequence.save(file)) and file.kind >= 8 and own.ids is not None:  # type: ignore[arg-type]
        s.saved.append(file.inner.getvalue())


@call
def load(s: State, a: int, b: int, c: int) -> None:
    data = s.saved[a % len(s.saved)] if s.saved and a % 4 else bytes(a)
    if b % 2:
        Timer(s.delay).run(lambda: s.own.append(Own(s.pool.load(data), None)))
    else:
        Timer(s.delay).run(lambda: s.own.append(Own(s.pool.load(File(s, b // 2, c, data)), None)))  # type: ignore[arg-type]


@call
def threads(s: State, a: int, b: int, c: int) -> None:
    """Other threads read, change sequences of their own, or close something, while this one works."""
    own = s[a]

    def reads() -> None:
        for _ in range(3):
            own.sequence.attend(Q[:1])
            own.sequence.to_bytes()

    def writes() -> None:
        with s.pool.sequence() as mine:
            for i in range(4):
                mine.append(K[i:i + 9], V[i:i + 9])
                assert (mine.rows("k", 0, 9 * i) == K[i:i + 9]).all()

    def closes() -> None:
        time.sleep(c * 1e-6)
        (own.sequence.close if b % 5 else s.pool.close)()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except DOCUMENTED:
                pass
            except BaseException:
                s.wrong.append(traceback.format_exc())

        return run

    others = [threading.Thread(target=guarded((reads, writes, closes)[(b + i) % 3])) for i in range(2)]
    for other in others:
        other.start()
    Timer(s.delay).run(lambda: own.sequence.attend(Q[:2]))
    for other in others:
        other.join()


@call
def store(s: State, a: int, b: int, c: int) -> None:
    own = s[a]
    tokens: Any = (np.arange(64), [1, 2], [-1], np.zeros((2, 2)), [2**32], "x", np.arange(64.0), [s.hostile(c)])[b % 8]

    def work() -> None:
        if a % 4 == 0:
            s.space.save(tokens, own.sequence)
        elif a % 4 == 1:
            s.space.lookup(tokens, timeout=0)
        elif a % 4 == 2:
            with s.space.chain(tokens) as chain:
                chain.truncate(s.hostile(c))
        else:
            with s.pool.sequence() as empty:
                s.space.load(tokens, empty, timeout=0.2)

    Timer(s.delay).run(work)


@call
def convert(s: State, a: int, b: int, c: int) -> None:
    Timer(s.delay).run(lambda: s[a].sequence.convert(OTHER if b % 3 else None, new_only=bool(c % 2)))  # type: ignore[arg-type]


@call
def close_pool(s: State, a: int, b: int, c: int) -> None:
    if a % 4 == 0:
        Timer(s.delay).run(s.pool.close)


# ------------------------------------------------------------------------------------------------ checks


def reference(ids: List[int]) -> Any:
    k, v = K[ids].astype(np.float64), V[ids].astype(np.float64)
    out = np.empty((2 * HEADS, D))
    for h in range(2 * HEADS):
        z = k[:, h // 2] @ Q[0, h].astype(np.float64) / D**0.5
        e = np.exp(z - z.max())
        out[h] = e / e.sum() @ v[:, h // 2]
    return out


def check(s: State) -> None:
    while s.steps:
        s.steps.pop()[1].abort()  # nothing keeps it: a step keeps its sequences
    if not s.pool._closing:
        for own in s.own:
            if own.sequence.closed:
                continue
            own.sequence.step(0).abort()  # it is in no step
            length = own.sequence.length
            if own.ids is not None:
                assert length == len(own.ids), f"{length} rows, not {len(own.ids)}"
                assert (own.sequence.rows("k") == K[own.ids]).all() and (own.sequence.rows("v") == V[own.ids]).all(), "rows differ"
                if own.ids:
                    assert np.abs(own.sequence.attend(Q[:1])[0] - reference(own.ids)).max() < 1e-4, "attention differs"
        while s.own:
            s.own.pop().sequence.close()
        s.space.close()
        used = s.pool.stats
        assert (used.used_bytes, used.n_pages) == (0, 0), used
    closer = threading.Thread(target=s.pool.close, daemon=True)  # another thread: it must find all locks free
    closer.start()
    closer.join(20)
    assert s.pool.closed and not closer.is_alive(), "the pool cannot be closed"
    s.space.close()
    assert not s.wrong, s.wrong[0]


def run(calls: List[Any], opened: quire.Store) -> None:
    s = State(opened, 1 + len(calls) % 2)
    for name, a, b, c, delay in calls:
        s.delay = delay
        try:
            CALLS[name](s, a, b, c)
        except DOCUMENTED:
            pass  # of what a call does around the one that is tested: the pool may be closed
        s.delay = 0
    check(s)


def main() -> None:
    signal.signal(signal.SIGALRM, _interrupt)
    with tempfile.TemporaryDirectory() as folder, quire.Store(folder, disk_bytes=1 << 26) as opened:
        for line in sys.stdin:
            faulthandler.dump_traceback_later(45, exit=True)
            try:
                run(json.loads(line), opened)
                answer = "ok"
            except BaseException:
                answer = repr(traceback.format_exc()[-3000:])
            faulthandler.cancel_dump_traceback_later()
            print(answer, flush=True)


if __name__ == "__main__":
    main()
