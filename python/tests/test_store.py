# SPDX-License-Identifier: MIT
"""The store with a real directory, across processes, and closed in any order."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings
from typing import Any

import numpy as np
from support import certificates, one_layer, redis_server, rows

import quire
from quire import _store

SECRET = bytes(range(32))
IDENTITY = quire.Identity(weights="sha256:1", tokenizer="1", rope="base=10000 scale=1 dims=64", secret=SECRET)
TOKENS = list(range(1000, 1300))

CHILD = """
import sys
sys.path.insert(0, {tests!r})
from test_store import IDENTITY, TOKENS, filled
from support import one_layer, rows
import quire, hashlib
with quire.Store(sys.argv[1], disk_bytes=64 << 20) as store, one_layer() as pool:
    space = store.namespace(IDENTITY, pool.plan)
    s = pool.sequence()
    if sys.argv[2] == "save":
        s = filled(pool)
        space.save(TOKENS, s)
        store.flush()
    else:
        assert space.lookup(TOKENS) == 256, space.lookup(TOKENS)
        assert space.load(TOKENS[:-1], s) == 256
        assert store.stats["loaded"][0] == 4, store.stats
    print(hashlib.sha256(s.codes("k", 0, 0, 256).codes.tobytes() + s.codes("v", 0, 0, 256).codes.tobytes()).hexdigest())
"""


def filled(pool: quire.Pool) -> quire.Sequence:
    s = pool.sequence()
    s.append(rows(1, 300, 2, 64), rows(2, 300, 2, 64))
    return s


class StoreTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "store")

    def open(self) -> quire.Store:
        return quire.Store(self.path, disk_bytes=64 << 20)


class TwoProcesses(StoreTest):
    def test_pages_of_one_are_had_by_the_other(self) -> None:
        code = CHILD.format(tests=str(pathlib.Path(__file__).parent))
        said = [subprocess.run([sys.executable, "-c", code, self.path, what], check=True, capture_output=True, text=True, timeout=120)
                .stdout for what in ("save", "load")]
        self.assertEqual(len(said[0]), 65)
        self.assertEqual(said[0], said[1])


class Store(StoreTest):
    def test_save_load_lookup_pin(self) -> None:
        with self.open() as store, one_layer() as pool:
            space = store.namespace(IDENTITY, pool.plan)
            s = filled(pool)
            self.assertEqual(space.lookup(TOKENS), 0)
            space.save(np.array(TOKENS), s)
            store.flush()
            self.assertEqual(space.lookup(TOKENS), 256)
            self.assertEqual(space.lookup(TOKENS[:100] + [1] + TOKENS[101:]), 64)
            self.assertEqual(space.lookup(TOKENS, media=[(3, bytes(32))]), 0)
            loaded = pool.sequence()
            load = space.begin_load(TOKENS[:-1], loaded)
            with self.assertRaises(quire.QuireError) as raised:
                loaded.attend(rows(3, 1, 8, 64))
            self.assertEqual(raised.exception.status, "EBUSY")
            self.assertEqual(load.end(), 256)
            with self.assertRaises(quire.ClosedError):
                load.end()
            loaded.append(rows(1, 300, 2, 64)[256:], rows(2, 300, 2, 64)[256:])
            q = rows(3, 5, 8, 64)
            self.assertTrue((loaded.attend(q) == s.attend(q)).all())
            self.assertEqual(space.pin(TOKENS), 256)
            self.assertEqual(store.stats["pinned_objects"], 4)
            self.assertEqual(store.gc(max_bytes=0), 0)
            space.pin(TOKENS, False)
            self.assertEqual(store.gc(max_bytes=0), 4)
            self.assertEqual(space.lookup(TOKENS), 0)
            self.assertEqual(space.load(TOKENS, pool.sequence()), 0)
            self.assertGreaterEqual(store.stats["misses"]["ABSENT"], 1)
            self.assertEqual(len(space.root), 32)

    def test_what_is_refused(self) -> None:
        with self.open() as store, one_layer() as pool, one_layer("f16") as other:
            space = store.namespace(IDENTITY, pool.plan)
            with self.assertRaises(quire.QuireError) as raised:
                space.save(TOKENS, filled(other))
            self.assertEqual(raised.exception.status, "EMISMATCH")
            self.assertIn("another plan", str(raised.exception))
            with self.assertRaisesRegex(quire.QuireError, "no more finished pages than tokens"):
                space.save(TOKENS[:10], filled(pool))
            with self.assertRaisesRegex(TypeError, "remote is a str, not a Remote"):
                quire.Store(remote="host")  # type: ignore[arg-type]
            for wrong in ([-1], [2**32], [1.5], [[1]]):
                with self.assertRaises(ValueError):
                    space.lookup(wrong)  # type: ignore[arg-type]
            with self.assertRaises(quire.QuireError) as raised:
                self.open()
            self.assertEqual(raised.exception.status, "EBUSY")
            for identity in (quire.Identity("a", "b", "c", b"short"), quire.Identity("a\0b", "b", "c", SECRET)):
                with self.assertRaises(ValueError):
                    store.namespace(identity, pool.plan)
            for call in (lambda: store.gc(max_bytes=-1), lambda: store.gc(max_age=-1), lambda: store.flush(-1),
                         lambda: store.namespace(IDENTITY, pool.plan, max_tokens=2**32)):
                with self.assertRaises(ValueError):
                    call()
        with self.assertRaises(quire.QuireError) as raised:
            quire.Store()
        self.assertEqual(raised.exception.status, "EINVAL")

    def test_secrets_are_not_printed(self) -> None:
        self.assertNotIn("secret", repr(IDENTITY))
        self.assertNotIn("hidden", repr(quire.Remote("host", password="hidden")))

    def test_a_folder_whose_name_is_not_utf_8(self) -> None:
        with quire.Store(os.path.join(self.folder.name, os.fsdecode(b"st\xffre")), disk_bytes=64 << 20) as store:
            self.assertEqual(store.stats["disk_objects"], 0)

    def test_closed_in_any_order(self) -> None:
        for order in ("store pool", "pool store", "space pool store", "pool space store", "collector"):
            with self.subTest(order=order):
                plan = quire.Plan("k8v4", n_q_heads=8, n_kv_heads=2, d_k=64)
                store = self.open()
                space = store.namespace(IDENTITY, plan)
                pool = quire.Pool(plan, 1 << 26)
                s = filled(pool)
                space.save(TOKENS, s)
                space.begin_load(TOKENS[:-1], pool.sequence())  # dropped: ended
                objects: Any = {"store": store, "space": space, "pool": pool}
                if order == "collector":
                    space.keep = [space, s]
                    del store, space, pool, s, objects
                    gc.collect()
                    continue
                for name in order.split():
                    objects[name].close()
                for call in (lambda: space.lookup(TOKENS), lambda: store.stats, lambda: s.length):
                    with self.assertRaises(quire.ClosedError):
                        call()

    def test_closed_while_threads_use_it(self) -> None:
        """Calls that run end well, those that come later raise ClosedError; nothing waits for ever."""
        for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            plan = quire.Plan("k8v4", n_q_heads=8, n_kv_heads=2, d_k=64)
            store = self.open()
            space = store.namespace(IDENTITY, plan)
            pool = quire.Pool(plan, 1 << 26, 2)
            rounds, wrong = [], []

            def work() -> None:
                try:
                    while True:
                        s = filled(pool)
                        space.save(TOKENS, s)
                        space.load(TOKENS, pool.sequence())
                        pool.attend([s, s.fork()], [rows(3, 2, 8, 64)] * 2)
                        pool.load(s.to_bytes())
                        rounds.append(store.stats["loads"])
                except quire.ClosedError:
                    pass
                except BaseException as error:
                    wrong.append(error)

            workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
            for worker in workers:
                worker.start()
            while len(rounds) < 8 and not wrong:
                time.sleep(0.01)
            for i in order:
                (store, pool, space)[i].close()
            for worker in workers:
                worker.join(60)
                self.assertFalse(worker.is_alive())
            self.assertEqual(wrong, [])

    def test_a_process_ends_with_everything_open(self) -> None:
        code = (f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
                "from test_store import *\n"
                "plan = quire.Plan('k8v4', n_q_heads=8, n_kv_heads=2, d_k=64)\n"
                f"store = quire.Store({self.path!r}, disk_bytes=64 << 20)\n"
                "space = store.namespace(IDENTITY, plan)\n"
                "pool = quire.Pool(plan, 1 << 26)\n"  # younger than the namespace that will hold its pages
                "s = filled(pool); space.save(TOKENS, s); load = space.begin_load(TOKENS[:-1], pool.sequence())\n")
        for _ in range(5):
            done = subprocess.run([sys.executable, "-c", code], timeout=300, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_process_ends_while_a_thread_loads(self) -> None:
        """A load is ended once, by the thread or by the end of the process."""
        code = (f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
                "from test_store import *\n"
                "from quire import _store as module\n"
                f"store = quire.Store({self.path!r}, disk_bytes=64 << 20)\n"
                "pool = one_layer(); space = store.namespace(IDENTITY, pool.plan); s = pool.sequence()\n"
                "real = module.lib().quire_load_end\n"
                "def slow(*arguments):\n"
                "    print('end', flush=True); begun.set(); time.sleep(0.2); return real(*arguments)\n"
                "begun = threading.Event(); module.lib().quire_load_end = slow\n"
                "threading.Thread(target=space.load, args=(TOKENS, s), daemon=True).start(); begun.wait()\n")
        done = subprocess.run([sys.executable, "-c", code], timeout=300, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "end\n", ""))

    def test_a_sequence_is_busy_until_a_dropped_load_has_ended(self) -> None:
        library = _store.lib()
        real, begun = library.quire_load_end, threading.Event()

        def slow(*arguments: Any) -> int:
            begun.set()
            time.sleep(0.1)
            return int(real(*arguments))

        with self.open() as store, one_layer() as pool:
            space, s = store.namespace(IDENTITY, pool.plan), pool.sequence()
            library.quire_load_end = slow
            try:
                loads = [space.begin_load(TOKENS, s)]
                worker = threading.Thread(target=loads.clear)
                worker.start()
                begun.wait()
                for call in (lambda: s.length, s.close, lambda: s.step(1)):
                    with self.assertRaises(quire.QuireError) as raised:
                        call()
                    self.assertEqual(raised.exception.status, "EBUSY")
                pool.close()  # waits
                worker.join()
            finally:
                library.quire_load_end = real
            self.assertTrue(s.closed)

    def test_a_pool_that_is_being_closed_gets_no_namespace(self) -> None:
        with self.open() as store, one_layer() as pool:
            space, s = store.namespace(IDENTITY, pool.plan), filled(pool)
            pool._closing = True  # by another thread, which has looked for namespaces already
            try:
                with self.assertRaises(quire.ClosedError):
                    space.save(TOKENS, s)
            finally:
                pool._closing = False

    def test_without_the_library(self) -> None:
        """A build without the store, or a system without OpenSSL: everything else works."""
        from quire import _native

        shutil.copy(_native.folder() / _native.file_name("quire"), self.folder.name)
        code = ("import quire\nassert quire.codecs()\n"
                "try: quire.Store('x')\nexcept ImportError as error: print(error)\n")
        environment = {**os.environ, "QUIRE_LIBRARY": self.folder.name}
        said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        self.assertIn("not part of this build", said)


class Tenants(StoreTest):
    def test_usage_removal_limits_counters(self) -> None:
        named = dataclasses.replace(IDENTITY, tenant_name="alice", model_name="model")
        other = dataclasses.replace(IDENTITY, secret=bytes(32), tenant_name="bob")
        with self.open() as store, one_layer() as pool:
            space, second = store.namespace(named, pool.plan), store.namespace(other, pool.plan)
            for one in (space, second):
                one.save(TOKENS, filled(pool))
            store.flush()
            self.assertEqual(space.load(TOKENS, pool.sequence()), 256)
            usage = {u.tenant_name: u for u in store.usage()}
            self.assertEqual(set(usage), {"alice", "bob"})
            with unittest.mock.patch("quire.store.Usage", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                store.usage()
            self.assertIn('quire_store_loaded_pages_total{server="a",tier="disk"} 4\n', store.metrics('server="a"'))
            self.assertRaises(quire.QuireError, store.metrics, "server=a")
            alice = usage["alice"]
            self.assertEqual((alice.root, alice.model_name, alice.objects, alice.pinned, alice.quota_bytes), (space.root, "model", 4, 0, 0))
            self.assertEqual(space.stats["disk_bytes"], alice.bytes)
            self.assertAlmostEqual(alice.last_used, time.time(), delta=60)
            self.assertEqual(space.stats["saved"], (4, 0))
            self.assertEqual(space.stats["loaded"][0], 4)
            self.assertEqual(second.stats["loads"], 0)
            store.set_quota(alice.tenant, alice.bytes // 2)
            self.assertEqual(space.lookup(TOKENS), 128)
            self.assertEqual([u.quota_bytes for u in store.usage() if u.tenant_name == "alice"], [alice.bytes // 2])
            self.assertEqual(second.lookup(TOKENS), 256)
            self.assertEqual(store.remove(tenant=alice.tenant), 2)
            self.assertEqual(store.remove(tenant_name="bob", model_name="x"), 0)
            self.assertEqual([u.tenant_name for u in store.usage()], ["bob"])
            self.assertEqual(second.remove(), 4)
            self.assertEqual(store.usage(), [])
            second.save(TOKENS, filled(pool))
            store.flush()
            self.assertEqual(second.lookup(TOKENS), 256)
            with self.assertRaises(quire.QuireError):
                store.remove()
            for call in (lambda: store.remove(root=b"1"), lambda: store.set_quota(b"1", 1)):
                with self.assertRaises(ValueError):
                    call()
            with self.assertRaises(quire.QuireError):
                store.namespace(dataclasses.replace(IDENTITY, tenant_name="x" * 64), pool.plan)

    def test_sealed(self) -> None:
        with quire.Store(self.path, disk_bytes=64 << 20, seal_disk=True, tenant_bytes=1 << 30) as store, one_layer() as pool:
            space = store.namespace(IDENTITY, pool.plan)
            s = filled(pool)
            space.save(TOKENS, s)
            store.flush()
            self.assertEqual(store.usage()[0].quota_bytes, 1 << 30)
        with self.open() as store, one_layer() as pool:
            space, loaded, s = store.namespace(IDENTITY, pool.plan), pool.sequence(), filled(pool)
            self.assertEqual(space.load(TOKENS, loaded), 256)
            self.assertTrue((loaded.codes("k").codes == s.codes("k", 0, 0, 256).codes).all())


class RemoteTier(StoreTest):
    def exchange(self, remote: quire.Remote) -> int:
        """Saves pages and loads them in a sequence of its own: how many tokens came back."""
        with quire.Store(remote=remote) as store, one_layer() as pool:
            space = store.namespace(dataclasses.replace(IDENTITY, secret=os.urandom(32)), pool.plan)  # nobody has saved these pages before
            s = filled(pool)
            space.save(TOKENS, s)
            store.flush()
            loaded = pool.sequence()
            n = space.load(TOKENS, loaded)
            self.assertEqual(store.stats["saved"][1], 4 if n else 0)
            self.assertEqual(space.lookup(TOKENS, timeout=10), n)
            if n:
                self.assertTrue((loaded.codes("k").codes == s.codes("k", 0, 0, n).codes).all())
            return n

    def test_a_real_server(self) -> None:
        with redis_server(self.folder.name) as port:
            self.assertEqual(self.exchange(quire.Remote("127.0.0.1", port)), 256)

    def test_tls(self) -> None:
        options = certificates(self.folder.name)
        ca, other = (os.path.join(self.folder.name, name) for name in ("ca.pem", "other-ca.pem"))
        for protocol in ("TLSv1.2", "TLSv1.3"):
            with self.subTest(protocol), redis_server(self.folder.name, *options, "--tls-auth-clients", "optional", "--tls-protocols", protocol) as port:
                good = quire.Remote("127.0.0.1", port, tls=True, tls_ca=ca)
                self.assertEqual(self.exchange(good), 256)
                self.assertEqual(self.exchange(dataclasses.replace(good, tls_name="pages.example")), 256)
                own = os.path.join(self.folder.name, "server.pem"), os.path.join(self.folder.name, "server.key")
                self.assertEqual(self.exchange(dataclasses.replace(good, tls_cert=own[0], tls_key=own[1])), 256)
                self.assertEqual(self.exchange(dataclasses.replace(good, tls_name="other.example")), 0, "a certificate for another name")
                self.assertEqual(self.exchange(dataclasses.replace(good, tls_ca=other)), 0, "a certificate that nobody trusted has signed")
                self.assertEqual(self.exchange(dataclasses.replace(good, tls_ca=None)), 0, "a certificate that the system does not trust")
                self.assertEqual(self.exchange(dataclasses.replace(good, tls=False)), 0, "plain talk")
                self.assertEqual(self.exchange(good), 256)
        with redis_server(self.folder.name, *options, "--tls-auth-clients", "yes") as port:
            self.assertEqual(self.exchange(quire.Remote("127.0.0.1", port, tls=True, tls_ca=ca)), 0, "no certificate of our own")

    def test_forked_children(self) -> None:
        """The parent has used TLS and the seal. Its children do so too, each with numbers of its own, and all of them end well."""
        options = certificates(self.folder.name)
        with redis_server(self.folder.name, *options, "--tls-auth-clients", "no") as port:
            remote = quire.Remote("127.0.0.1", port, tls=True, tls_ca=os.path.join(self.folder.name, "ca.pem"))

            def save(folder: str, seal: bool) -> None:
                with quire.Store(os.path.join(self.folder.name, folder), disk_bytes=64 << 20, seal_disk=seal) as store, one_layer() as pool:
                    store.namespace(IDENTITY, pool.plan).save(TOKENS, filled(pool))
                    store.flush()
                    self.assertEqual(store.stats["saved"][0], 4)

            def use(folder: str) -> None:
                save(folder, True)
                self.assertEqual(self.exchange(remote), 256)

            use("parent")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
                context = multiprocessing.get_context("fork")
                children = [context.Process(target=use, args=(f"child{i}",)) for i in range(2)]
                for child in children:
                    child.start()
            for child in children:
                child.join(120)
            self.assertEqual([child.exitcode for child in children], [0, 0])
            use("after")
            for folder in ("plain", "plain again"):
                save(folder, False)
        # The same pages under the same key: were a nonce used twice, the same bytes would be in two stores, as they are without a seal.
        found = {folder: blocks(os.path.join(self.folder.name, folder)) for folder in ("parent", "child0", "child1", "after", "plain", "plain again")}
        for (a, in_a), (b, in_b) in itertools.combinations(found.items(), 2):
            if a == "plain" and b == "plain again":
                self.assertGreater(len(in_a & in_b), 500)
            else:
                self.assertLess(len(in_a & in_b), 50, (a, b))  # the keys of the pages; a page has about 190


def blocks(folder: str) -> "set[bytes]":
    """Pieces of 64 bytes of the files in a folder that look random."""
    data = b"".join(p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file())
    pieces = {data[i:i + 64] for i in range(0, len(data), 64)}
    return {p for p in pieces if len(set(p)) > 40}


if __name__ == "__main__":
    unittest.main()
