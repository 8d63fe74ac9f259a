# SPDX-License-Identifier: MIT
"""Chains, pages in the caller's own format, loads into the caller's buffers."""

from __future__ import annotations

import gc
import mmap
import signal
import socket
import threading
import time
import unittest
from typing import Any, List

import numpy as np
from support import one_layer
from test_store import IDENTITY, TOKENS, StoreTest, filled

import quire
from quire import _store

PAGE = 3000
LONG = list(range(64 * 20))


def page(number: int) -> bytes:
    return np.random.default_rng(number).bytes(PAGE)


def raw(store: quire.Store, layout: str = "test") -> quire.Namespace:
    return store.raw_namespace(IDENTITY, layout, PAGE)


def saved(store: quire.Store) -> quire.Chain:
    chain = raw(store).chain(LONG)
    assert chain.save_raw([page(i) for i in range(20)]) == 0
    store.flush()
    return chain


class Chains(StoreTest):
    def test_sequences(self) -> None:
        with self.open() as store, one_layer() as pool:
            space, s = store.namespace(IDENTITY, pool.plan), filled(pool)
            chain = space.chain(TOKENS[:100])
            chain.append(np.array(TOKENS[100:]))
            self.assertEqual(chain.length, 300)
            self.assertEqual(chain.save(s), 0)
            store.flush()
            self.assertEqual((space.lookup(TOKENS), chain.lookup()), (256, 256))
            chain.truncate(150)
            self.assertEqual((chain.length, chain.lookup()), (150, 128))
            chain.append(TOKENS[150:], media=[(200, bytes(32))])
            self.assertEqual((chain.lookup(), space.lookup(TOKENS, media=[(200, bytes(32))])), (192, 192))

    def test_look_up_many(self) -> None:
        with self.open() as store, one_layer() as pool:
            space, other = store.namespace(IDENTITY, pool.plan), saved(store)
            space.save(TOKENS, filled(pool))
            store.flush()
            prompts = [TOKENS[:i] for i in (0, 63, 64, 200, 300)]
            self.assertEqual(space.lookup_many(prompts), [0, 0, 64, 192, 256])
            self.assertEqual(space.lookup_many(prompts, media=[(), (), [(3, bytes(32))], (), ()]), [0, 0, 0, 192, 256])
            self.assertEqual(space.lookup_many([]), [])
            chains = [space.chain(p) for p in prompts]
            self.assertEqual(store.lookup_many([*chains, other, chains[4]]), [0, 0, 64, 192, 256, 64 * 20, 256])
            self.assertEqual(store.lookup_many([]), [])
            with self.assertRaises(ValueError):
                space.lookup_many(prompts, media=[()])
            with quire.Store(self.path + "2", disk_bytes=64 << 20) as second, self.assertRaises(ValueError):
                second.lookup_many(chains)

    def test_what_is_refused(self) -> None:
        with self.open() as store, one_layer() as pool:
            space, chain = store.namespace(IDENTITY, pool.plan), raw(store).chain(LONG)
            for call in (lambda: chain.truncate(64 * 20 + 1), lambda: chain.append([1], media=[(0, bytes(32))]),
                         lambda: chain.save(filled(pool)), lambda: space.chain().save(filled(pool)),
                         lambda: chain.save_raw([page(0)], 20), lambda: chain.load_raw([bytearray(PAGE)], 20)):
                with self.assertRaises(quire.QuireError) as raised:
                    call()
                self.assertEqual(raised.exception.status, "EINVAL")
            whole = np.zeros((PAGE, 2), np.uint8)
            for pages in ([b"short"], [bytearray(PAGE + 1)], [whole[:, 0]], [bytes(PAGE), b""]):
                with self.assertRaises(ValueError):
                    chain.save_raw(pages)
                with self.assertRaises(ValueError):
                    chain.load_raw(pages)
            room, both = bytearray(PAGE), memoryview(bytearray(2 * PAGE))
            read_only: List[Any] = [[bytes(PAGE)], [memoryview(bytes(PAGE))]]
            for rooms in (*read_only, [room, room], [both[:PAGE], both[PAGE - 1:-1]]):
                with self.assertRaises(ValueError):
                    chain.load_raw(rooms)
            wrong: List[Any] = [bytes(PAGE), room, "x" * PAGE, None, 5, [5], ["x" * PAGE], [None]]
            for pages in wrong:
                with self.assertRaises(TypeError):
                    chain.save_raw(pages)
                with self.assertRaises(TypeError):
                    chain.load_raw(pages)
            for call in (lambda: chain.save_raw([page(0)], -1), lambda: chain.load_raw([room], 2**32),
                         lambda: chain.load_raw([room], timeout=-1), lambda: chain.truncate(-1), lambda: chain.append([-1]),
                         lambda: store.raw_namespace(IDENTITY, "a\0b", PAGE), lambda: store.raw_namespace(IDENTITY, "a", -1)):
                with self.assertRaises(ValueError):
                    call()
            for call in (lambda: store.raw_namespace(IDENTITY, "", PAGE), lambda: store.raw_namespace(IDENTITY, "a", 0)):
                with self.assertRaises(quire.QuireError):
                    call()
            room.append(0)  # nothing holds it

    def test_closed(self) -> None:
        store = self.open()
        chain = saved(store)
        space = chain.namespace
        load = chain.load_raw([bytearray(PAGE)])
        one = space.chain(LONG)
        one.close()
        one.close()
        space.close()
        for handle in (one, chain):
            for call in (lambda: handle.length, lambda: handle.append([1]), lambda: handle.truncate(0), lambda: handle.save_raw([]),
                         lambda: handle.load_raw([]), handle.lookup, lambda: store.lookup_many([handle])):
                with self.assertRaises(quire.ClosedError):
                    call()
        for call in (load.wait, lambda: load.done, load.cancel, lambda: space.chain(), lambda: space.lookup_many([])):
            with self.assertRaises(quire.ClosedError):
                call()
        store.close()


class Raw(StoreTest):
    def test_kinds_of_buffers(self) -> None:
        with self.open() as store, mmap.mmap(-1, PAGE) as mapped:
            space = raw(store)
            chain = space.chain(LONG)
            mapped[:] = page(3)
            given = [page(0), bytearray(page(1)), np.frombuffer(page(2), np.float32), mapped, memoryview(page(4)),
                     np.frombuffer(page(5), np.uint8).reshape(30, 100)]
            self.assertEqual(chain.save_raw(given), 0)
            self.assertEqual(chain.save_raw([page(i) for i in range(6, 20)], first_page=6), 0)
            store.flush()
            self.assertEqual(store.stats["saved"][0], 20)
            mapped[:] = bytes(PAGE)
            rooms = [bytearray(PAGE), np.zeros(PAGE // 4, np.float32), mapped, memoryview(bytearray(PAGE)), np.zeros((30, 100), np.uint8)]
            load = chain.load_raw(rooms, first_page=1)
            with self.assertRaises(BufferError):
                rooms[0].append(0)  # type: ignore[union-attr]
            with self.assertRaises(BufferError):
                mapped.close()
            while not load.done:
                time.sleep(0.001)
            self.assertEqual(load.wait(), 6 * 64)
            self.assertEqual([bytes(memoryview(room).cast("B")) for room in rooms], [page(i) for i in range(1, 6)])
            rooms[0].append(0)  # type: ignore[union-attr]
            # Another layout, another namespace.
            self.assertEqual(raw(store, "other").chain(LONG).lookup(), 0)
            self.assertEqual(chain.load_raw([]).wait(), 0)

    def test_a_page_is_missing(self) -> None:
        with self.open() as store:
            chain = raw(store).chain(LONG)
            for i in (0, 1, 3, 4):
                chain.save_raw([page(i)], i)
            store.flush()
            rooms = [bytearray(PAGE) for _ in range(5)]
            self.assertEqual(chain.load_raw(rooms).wait(), 128)
            self.assertEqual([bytes(room) for room in rooms[:2]], [page(0), page(1)])
            self.assertEqual(chain.load_raw(rooms[:2], 3).wait(), 5 * 64)
            self.assertEqual([bytes(room) for room in rooms[:2]], [page(3), page(4)])

    def test_a_full_queue(self) -> None:
        with quire.Store(self.path, disk_bytes=64 << 20, queue_bytes=1 << 20) as store:
            size, first, rounds = 300000, 0, 0
            chain = store.raw_namespace(IDENTITY, "large", size).chain(LONG)
            pages = [bytes([i]) * size for i in range(20)]
            while first < 20:
                first = 20 - chain.save_raw(pages[first:], first)
                rounds += 1
                store.flush()
            self.assertGreater(rounds, 1)
            self.assertEqual(store.stats["saved"][0], 20)
            rooms = [bytearray(size) for _ in pages]
            self.assertEqual(chain.load_raw(rooms).wait(), 20 * 64)
            self.assertEqual([room[0] for room in rooms], list(range(20)))

    def test_an_interrupt_while_waiting(self) -> None:
        """It is raised when the library has ended the load: nothing may end it a second time."""
        with socket.create_server(("127.0.0.1", 0)) as silent, one_layer() as pool:
            remote = quire.Remote("127.0.0.1", silent.getsockname()[1], stall_ms=60000)
            with quire.Store(remote=remote) as store:
                chain, room = raw(store).chain(LONG), bytearray(PAGE)
                space, sequence = store.namespace(IDENTITY, pool.plan), pool.sequence()
                for begin in (lambda: chain.load_raw([room], timeout=3), lambda: space.begin_load(TOKENS, sequence, timeout=3)):
                    load: Any = begin()
                    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
                    with self.assertRaises(KeyboardInterrupt):
                        timer.start()
                        load.wait() if isinstance(load, quire.RawLoad) else load.end()
                    timer.join()
                    self.assertTrue(load.closed)
                    load.close()
                room.append(0)  # nothing holds it
                self.assertEqual(sequence.length, 0)
                self.assertEqual((len(chain.namespace._tokens), len(space._tokens)), (1, 0))  # the chain

    def test_dropped_without_waiting(self) -> None:
        """The load is ended; after that nothing holds the buffers or writes to them."""
        with self.open() as store:
            chain = saved(store)
            for i in range(200):
                rooms = [bytearray(PAGE) for _ in range(20)]
                load = chain.load_raw(rooms)
                if i % 3 == 1:
                    time.sleep(0.0002)
                if i % 3 == 2:
                    load.close()
                del load
                for room in rooms:
                    room[:] = b"\x5a" * (PAGE - 1)  # resized: nothing is exported
                time.sleep(0.0005)
                self.assertTrue(all(room == b"\x5a" * (PAGE - 1) for room in rooms))
            chain.load_raw([bytearray(PAGE)]).loop = chain  # type: ignore[attr-defined]
            gc.collect()
            self.assertEqual(len(chain.namespace._tokens), 1)  # the chain

    def test_the_buffers_live_as_long_as_the_load(self) -> None:
        with self.open() as store:
            chain = saved(store)
            for _ in range(50):
                load = chain.load_raw([bytearray(PAGE) for _ in range(20)])  # nobody else has them
                gc.collect(0)
                self.assertEqual(load.wait(), 20 * 64)

    def test_cancel(self) -> None:
        with self.open() as store:
            chain = saved(store)
            for _ in range(50):
                rooms = [bytearray(PAGE) for _ in range(20)]
                load = chain.load_raw(rooms, timeout=1000)
                load.cancel()
                self.assertTrue(load.done)
                came = load.wait() // 64
                self.assertEqual([bytes(room) for room in rooms[:came]], [page(i) for i in range(came)])
                with self.assertRaises(quire.ClosedError):
                    load.cancel()

    def test_cancel_in_another_thread(self) -> None:
        """It does not wait for the thread that waits for the load, and this one returns soon."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            remote = quire.Remote("127.0.0.1", silent.getsockname()[1], stall_ms=8000)
            with quire.Store(remote=remote) as store:
                chain, came = raw(store).chain(LONG), []  # type: ignore[var-annotated]
                load = chain.load_raw([bytearray(PAGE)], timeout=8)
                worker = threading.Thread(target=lambda: came.append(load.wait()))
                worker.start()
                time.sleep(0.2)
                began = time.monotonic()
                self.assertFalse(load.done)
                load.cancel()
                worker.join()
                self.assertLess(time.monotonic() - began, 6)
                self.assertEqual(came, [0])

    def test_a_buffer_is_held_while_a_dropped_load_ends(self) -> None:
        library = _store.lib()
        real, begun = library.quire_load_end, threading.Event()

        def slow(*arguments: Any) -> int:
            begun.set()
            time.sleep(0.1)
            return int(real(*arguments))

        with self.open() as store:
            chain, room = saved(store), bytearray(PAGE)
            library.quire_load_end = slow
            try:
                loads = [chain.load_raw([room])]
                worker = threading.Thread(target=loads.clear)
                worker.start()
                begun.wait()
                with self.assertRaises(BufferError):
                    room.append(0)
                worker.join()
            finally:
                library.quire_load_end = real
            room.append(0)

    def test_threads_use_one_chain(self) -> None:
        with self.open() as store:
            chain, wrong = saved(store), []

            def work() -> None:
                try:
                    for i in range(100):
                        rooms = [bytearray(PAGE) for _ in range(4)]
                        if chain.load_raw(rooms, i % 16).wait() != (i % 16 + 4) * 64 or rooms[3] != page(i % 16 + 3):
                            raise AssertionError("not what was saved")
                        chain.save_raw([page(i % 20)], i % 20)
                        chain.append([1, 2, 3])
                        store.lookup_many([chain, chain])
                except BaseException as error:
                    wrong.append(error)

            workers = [threading.Thread(target=work) for _ in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            self.assertEqual((wrong, chain.length), ([], 64 * 20 + 1200))


if __name__ == "__main__":
    unittest.main()
