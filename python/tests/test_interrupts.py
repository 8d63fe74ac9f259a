# SPDX-License-Identifier: MIT
"""KeyboardInterrupt at every moment of a call: each object is then as it was before the call or as it is after it.

A signal handler raises when a function is entered or when a call has returned. sys.setprofile() reports both, for all but the functions of
ctypes, which are wrapped here: what such a function has done is done, and its result is lost. Those that an end consists of are not
wrapped: C calls them, and nothing can be raised there. test_hostile and fuzz_calls use real signals.
"""

from __future__ import annotations

import io
import sys
import tempfile
import threading
import unittest
from typing import Any, Callable, Optional, Tuple

import numpy as np
from support import one_layer, rows

import quire
from quire import _native, _store

_CALLED_BY_C = ("_destroy", "_commit", "_abort", "_close", "_load_end", "_load_cancel")


class _Interrupt:
    """Raises KeyboardInterrupt at the n-th moment where a signal handler could."""

    def __init__(self, at: int, wrapper: Any) -> None:
        self.at, self.wrapper = at, wrapper

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name == "_generator":
            return  # one that goes on: an exception is raised inside its `try`, but here it would be outside
        if event in ("call", "c_return") or (event == "return" and frame.f_code is self.wrapper):
            self.at -= 1
            if self.at == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def _wrapped(function: Any) -> Any:
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


_WRAPPER = _wrapped(None).__code__


class Interrupts(unittest.TestCase):
    def setUp(self) -> None:
        self.real = [(library, name, getattr(library, name)) for library, names in (
            (_native.lib, _native._PROTOTYPES), (_store.lib(), _store._PROTOTYPES)) for name in names if not name.endswith(_CALLED_BY_C)]
        for library, name, function in self.real:
            setattr(library, name, _wrapped(function))

    def tearDown(self) -> None:
        for library, name, function in self.real:
            setattr(library, name, function)

    def interrupted(self, call: Callable[[], Any], at: int) -> bool:
        """True if the call was interrupted."""
        try:
            sys.setprofile(_Interrupt(at, _WRAPPER))
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    def every_moment(self, call: "Callable[[quire.Pool, quire.Sequence], Any]", *lengths: int, **ring: int) -> None:
        """Interrupts the call at every moment. lengths: those that the sequence, which has 70 tokens, can have then."""
        k, v, q = rows(1, 200, 2, 64), rows(2, 200, 2, 64), rows(3, 1, 8, 64)
        for at in range(1, 100000):
            pool = one_layer("f32", budget=1 << 22)
            s = pool.sequence(**ring)
            s.append(k[:70], v[:70])
            more = self.interrupted(lambda: call(pool, s), at)
            if not s.closed and not pool._closing:  # an interrupted close() goes on when it is called again
                self.assertIn(s.length, (70, *lengths))
                length = s.length
                self.assertTrue((s.rows("k") == k[:length]).all() and (s.rows("v") == v[:length]).all())
                wanted = s.attend(q)
                s.append(k[length:length + 5], v[length:length + 5])  # no step is open
                s.trim(length)
                self.assertTrue((s.attend(q) == wanted).all())
                s.close()
            if not pool.closed and not pool._closing:
                self.assertEqual((pool.stats.n_pages, pool.stats.used_bytes), (0, 0))
            worker = threading.Thread(target=pool.close, daemon=True)
            worker.start()
            worker.join(30)
            self.assertTrue(pool.closed and s.closed and not worker.is_alive(), "close() waits for ever")
            if not more:
                break
        self.assertGreater(at, 3)

    def test_append(self) -> None:
        k, v = rows(1, 200, 2, 64), rows(2, 200, 2, 64)
        self.every_moment(lambda pool, s: s.append(k[70:140], v[70:140]), 140)

    def test_steps(self) -> None:
        k, v, q = rows(1, 200, 2, 64), rows(2, 200, 2, 64), rows(3, 70, 8, 64)

        def block(pool: quire.Pool, s: quire.Sequence) -> None:
            with s.step(70) as step:
                step.append(0, k[70:140], v[70:140])
                step.attend(0, q)

        def alone(pool: quire.Pool, s: quire.Sequence) -> None:
            step = s.step(70)
            step.append(0, k[70:140], v[70:140])
            step.commit()

        def many(pool: quire.Pool, s: quire.Sequence) -> None:
            with pool.sequence() as other, pool.step([other, s], [0, 70]) as step:
                step.append(0, k[70:140], v[70:140])

        for call in (block, alone, many):
            with self.subTest(call=call.__name__):
                self.every_moment(call, 140)

    def test_a_step_that_a_variable_still_holds(self) -> None:
        """When the exception is gone, the sequence is free: also if it came when __exit__ was entered."""
        k, v = rows(1, 3, 2, 64), rows(2, 3, 2, 64)
        with one_layer("f32") as pool:
            s, held, at, more = pool.sequence(), [], 0, True

            def work() -> None:
                with s.step(3) as step:
                    held.append(step)
                    step.append(0, k, v)

            while more:
                at += 1
                more = self.interrupted(work, at)
                s.step(1).abort()
                for step in held:
                    self.assertTrue(step.closed)
                    with self.assertRaises(quire.ClosedError):
                        step.append(0, k, v)
                held.clear()
                self.assertIn(s.length, (0, 3))
                s.trim(0)

    def test_a_commit(self) -> None:
        """A step that has been committed is not part of its sequence any more, whoever still refers to it."""
        k, v = rows(1, 3, 2, 64), rows(2, 3, 2, 64)
        at, more = 0, True
        while more:
            at += 1
            with one_layer("f32") as pool:
                s = pool.sequence()
                step = s.step(3)
                step.append(0, k, v)
                more = self.interrupted(step.commit, at)
                self.assertEqual(s.length, 3 if step.closed else 0)
                if not step.closed:
                    step.commit()
                self.assertFalse(s._tokens)
                s.append(k, v)
                s.close()

    def test_changes(self) -> None:
        plan = quire.Plan("f32", n_q_heads=8, n_kv_heads=2, d_k=64)
        self.every_moment(lambda pool, s: s.trim(10), 10)
        self.every_moment(lambda pool, s: s.fork())
        self.every_moment(lambda pool, s: s.convert(plan))
        self.every_moment(lambda pool, s: pool.sequence(max_tokens=100).close())

    def test_reading(self) -> None:
        q = rows(3, 2, 8, 64)
        self.every_moment(lambda pool, s: s.attend(q))
        self.every_moment(lambda pool, s: pool.attend([s, s], [q, q], partial=True))
        self.every_moment(lambda pool, s: s.rows("k"))
        self.every_moment(lambda pool, s: pool.stats)

    def test_saving(self) -> None:
        with one_layer("f32") as pool:
            s = pool.sequence()
            s.append(rows(1, 70, 2, 64), rows(2, 70, 2, 64))
            saved = s.to_bytes()
        self.every_moment(lambda pool, s: s.to_bytes())
        self.every_moment(lambda pool, s: pool.load(saved))
        self.every_moment(lambda pool, s: pool.load(io.BytesIO(saved)).close())

    def test_closing(self) -> None:
        self.every_moment(lambda pool, s: s.close())
        self.every_moment(lambda pool, s: pool.close())

        def step(pool: quire.Pool, s: quire.Sequence) -> None:
            open_step = s.step(3)
            pool.close()
            assert open_step.closed

        self.every_moment(step)

    def test_pools(self) -> None:
        plan = quire.Plan("f32", n_q_heads=8, n_kv_heads=2, d_k=64)
        team = quire.Threads(2)

        def work() -> None:
            with quire.Pool(plan, 1 << 22, team) as pool:
                pool.sequence().append(rows(1, 3, 2, 64), rows(2, 3, 2, 64))

        at = 1
        while self.interrupted(work, at):
            at += 1
        team.close()  # no pool that an interrupt left over uses it

    def test_the_store(self) -> None:
        tokens = np.arange(128)
        identity = quire.Identity("w", "t", "r", bytes(32))
        with tempfile.TemporaryDirectory() as folder, quire.Store(folder, disk_bytes=1 << 25) as store, one_layer("f32") as pool:
            s = pool.sequence()
            s.append(rows(1, 128, 2, 64), rows(2, 128, 2, 64))
            space = store.namespace(identity, pool.plan)
            raw = store.raw_namespace(identity, "page", 4096)
            space.save(tokens, s)
            store.flush()
            chain = raw.chain(tokens)
            chain.save_raw([bytes(4096), b"x" * 4096])
            store.flush()
            room = bytearray(4096)

            def load() -> Optional[int]:
                with pool.sequence() as other:
                    return space.load(tokens, other)

            calls: Tuple[Callable[[], Any], ...] = (
                load, lambda: space.save(tokens, s), lambda: chain.load_raw([room]).wait(), lambda: chain.load_raw([room]).close(),
                lambda: space.lookup(tokens), lambda: store.lookup_many([chain]), store.usage, lambda: store.stats, store.metrics,
                lambda: store.namespace(identity, pool.plan).close(), lambda: raw.chain(tokens).close())
            for i, call in enumerate(calls):
                at = 1
                while self.interrupted(call, at):
                    at += 1 if at < 250 else 61  # metrics() has thousands of moments, most of them the same
                    room.append(0)
                    room.pop()  # nothing holds it
                with self.subTest(call=i):
                    self.assertEqual((load(), s.length), (128, 128))
                    self.assertEqual(pool.stats.n_pages, 2)
            worker = threading.Thread(target=store.close, daemon=True)
            worker.start()
            worker.join(30)
            self.assertTrue(store.closed and space.closed and chain.closed)


if __name__ == "__main__":
    unittest.main()
