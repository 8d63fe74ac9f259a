# SPDX-License-Identifier: MIT
"""Ownership, closing, threads, and what arrays are taken."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
import threading
import time
import unittest
from typing import Any

import numpy as np
from support import SOURCE, one_layer, rows

import quire
from quire import _native
from quire import store as store_module


class Closing(unittest.TestCase):
    def test_closed_objects_raise(self) -> None:
        pool = one_layer()
        s = pool.sequence()
        s.append(rows(1, 5, 2, 64), rows(2, 5, 2, 64))
        fork = s.fork()
        s.close()
        s.close()
        for call in (lambda: s.length, lambda: s.trim(0), s.fork, s.to_bytes, lambda: s.rows("k"), lambda: s.policy,
                     lambda: s.attend(rows(3, 1, 8, 64)), lambda: s.append(rows(1, 5, 2, 64), rows(2, 5, 2, 64)), s.__enter__):
            with self.assertRaises(quire.ClosedError):
                call()
        self.assertEqual(len(fork), 5)
        pool.close()
        pool.close()
        for call in (lambda: fork.length, lambda: pool.stats, pool.sequence, lambda: pool.load(b""), lambda: pool.step([fork], [1]),
                     lambda: fork.attend(rows(3, 1, 8, 64))):
            with self.assertRaises(quire.ClosedError):
                call()
        self.assertTrue(fork.closed)
        self.assertIn("closed", repr(fork))

    def test_a_sequence_keeps_its_pool(self) -> None:
        s = one_layer().sequence()
        gc.collect()
        s.append(rows(1, 70, 2, 64), rows(2, 70, 2, 64))
        self.assertEqual(s.attend(rows(3, 1, 8, 64)).shape, (1, 8, 64))

    def test_what_is_dropped_is_given_back(self) -> None:
        with one_layer() as pool:
            for _ in range(5):
                s = pool.sequence()
                s.append(rows(1, 640, 2, 64), rows(2, 640, 2, 64))
                step = s.step(64)
                self.assertEqual(pool.stats.n_pages, 11)
                del s, step
                gc.collect()
                self.assertEqual(pool.stats.n_pages, 0)

    def test_open_steps(self) -> None:
        with one_layer() as pool:
            s = pool.sequence()
            step = s.step(3)
            for call in (s.close, s.fork, lambda: s.trim(0), lambda: s.step(1)):
                with self.assertRaises(quire.QuireError) as raised:
                    call()
                self.assertEqual(raised.exception.status, "EBUSY")
            with self.assertRaises(quire.QuireError):
                step.commit()  # nothing appended: it stays open
            step.append(0, rows(1, 3, 2, 64), rows(2, 3, 2, 64))
            step.commit()
            with self.assertRaises(quire.ClosedError):
                step.commit()
            with self.assertRaises(quire.ClosedError):
                step.append(0, rows(1, 3, 2, 64), rows(2, 3, 2, 64))
            step.abort()
            self.assertEqual(len(s), 3)
            s.step(1)  # dropped at once: aborted
            gc.collect()
            again = s.step(1)
        self.assertTrue(again.closed)

    def test_threads_outlive_pools(self) -> None:
        team = quire.Threads(2)
        plan = quire.Plan("k8v4", n_q_heads=8, n_kv_heads=2, d_k=64)
        pools = [quire.Pool(plan, 1 << 24, team) for _ in range(2)]
        with self.assertRaises(quire.QuireError) as raised:
            team.close()
        self.assertEqual(raised.exception.status, "EBUSY")
        for pool in pools:
            pool.close()
        team.close()
        with self.assertRaises(quire.ClosedError):
            quire.Pool(plan, 1 << 24, team)

    def test_a_process_ends_with_everything_open(self) -> None:
        code = ("import quire, numpy as np, os\n"
                "plan = quire.Plan('k8v4', n_q_heads=8, n_kv_heads=2, d_k=64)\n"
                "pool = quire.Pool(plan, 1 << 24, 2)\n"
                "s = pool.sequence(); z = np.zeros((5, 2, 64), np.float32); s.append(z, z); step = s.step(3)\n"
                "s.cycle = [s, pool, step]\n"
                "if os.fork() == 0: raise SystemExit(0)\n"  # the child's finalizers must leave the parent's threads alone
                "assert os.wait()[1] == 0\n")
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=60, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_process_ends_while_a_thread_computes(self) -> None:
        code = ("import quire, numpy as np, threading, time\n"
                "pool = quire.Pool(quire.Plan('f32', n_q_heads=32, n_kv_heads=4, d_k=128), 1 << 28, 2)\n"
                "s = pool.sequence(); z = np.zeros((8000, 4, 128), np.float32); s.append(z, z)\n"
                "q = np.zeros((4000, 32, 128), np.float32)\n"
                "threading.Thread(target=s.attend, args=(q,), daemon=True).start(); time.sleep(0.2)\n")
        done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_close_waits_for_a_finalizer_in_another_thread(self) -> None:
        said = []
        real = {name: getattr(_native.lib, name) for name in ("quire_seq_destroy", "quire_step_abort", "quire_pool_destroy")}

        def slow(name: str) -> Any:
            def call(pointer: int) -> None:
                time.sleep(0.1)
                real[name](pointer)
                said.append(name)

            return call

        def drop(objects: Any) -> None:
            begun.set()
            objects.clear()

        for what in ("quire_step_abort", "quire_seq_destroy"):
            for name in real:
                setattr(_native.lib, name, slow(name))
            try:
                pool = one_layer()
                s = pool.sequence()
                dropped = [s.step(3)] if what == "quire_step_abort" else [s]
                if dropped[0] is s:
                    del s
            finally:
                for name, function in real.items():
                    setattr(_native.lib, name, function)
            begun = threading.Event()
            worker = threading.Thread(target=drop, args=(dropped,))
            worker.start()
            begun.wait()
            time.sleep(0.03)
            pool.close()
            worker.join()
            self.assertEqual((said[0], said[-1]), (what, "quire_pool_destroy"))
            said.clear()

    def test_close_waits_for_a_call_in_another_thread(self) -> None:
        pool = one_layer("f32", heads=4, per=8, d=128)
        s = pool.sequence()
        s.append(rows(1, 4000, 4, 128), rows(2, 4000, 4, 128))
        q = rows(3, 1000, 32, 128)
        results: Any = []
        started = threading.Event()

        def work() -> None:
            started.set()
            try:
                results.append(s.attend(q))
            except quire.ClosedError as error:  # the machine was so busy that the call had not begun
                results.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        started.wait()
        time.sleep(0.05)
        pool.close()  # must not pull the pages away
        worker.join()
        if not isinstance(results[0], quire.ClosedError):
            self.assertTrue(np.isfinite(results[0]).all())


class Arrays(unittest.TestCase):
    def test_what_is_refused(self) -> None:
        with one_layer() as pool:
            s = pool.sequence()
            k, v = rows(1, 6, 2, 64), rows(2, 6, 2, 64)
            kinds: Any = [
                (TypeError, k.astype(np.float64), "float64"), (TypeError, k.astype(np.int8), "int8"), (TypeError, memoryview(k), "k"),
                (TypeError, k.astype(">f4"), "k"), (TypeError, k.view(np.uint32).astype(np.uint16), "bf16"),
                (ValueError, k[:, :1], "shape"), (ValueError, k[:, :, :63], "shape"), (ValueError, k[0], "shape"),
                (ValueError, k[::-1], "backwards"), (ValueError, np.broadcast_to(k[:1], k.shape), "overlap"),
                (ValueError, rows(1, 6, 64, 2).transpose(0, 2, 1), "side by side"),
                (ValueError, np.zeros(6 * 512 + 1, np.uint8)[1:].view(np.float32).reshape(6, 2, 64), "aligned"),
            ]
            for error, wrong, word in kinds:
                with self.subTest(word=word), self.assertRaisesRegex(error, word):
                    s.append(wrong, v)
            with self.assertRaisesRegex(ValueError, "v is missing"):
                s.append(k)
            with self.assertRaisesRegex(ValueError, "shape"):
                s.append(k, v[:5])
            self.assertEqual(len(s), 0)
            s.append(k, v)
            q = rows(3, 2, 8, 64)
            for error, wrong in ((TypeError, q.astype(np.float16)), (ValueError, q[:, :7]), (ValueError, rows(3, 7, 8, 64))):
                with self.assertRaises(error):
                    s.attend(wrong)
            out = np.zeros((2, 8, 64), np.float32)
            out.flags.writeable = False
            with self.assertRaisesRegex(ValueError, "written"):
                s.attend(q, out=out)
            with s.step(2) as step:
                step.append(0, k[:2], v[:2])
                with self.assertRaisesRegex(ValueError, "contiguous"):
                    step.attend(0, rows(3, 8, 2, 64).transpose(1, 0, 2))
                with self.assertRaisesRegex(TypeError, "numpy array"):
                    step.append(0, k[:2].tolist(), v[:2])  # type: ignore[arg-type]
            with self.assertRaisesRegex(ValueError, "layer"):
                s.attend(q, layer=1)
            with self.assertRaisesRegex(TypeError, "unknown_option"):
                s.attend(q, unknown_option=1)

    def test_numbers_that_do_not_fit(self) -> None:
        """ctypes would cut them: 2^32 + 1 tokens would be 1."""
        plan = quire.Plan("k8v4", n_q_heads=8, n_kv_heads=2, d_k=64)
        profile = quire.Profile([quire.Layer(8, 2, 64, 64)])
        with one_layer() as pool:
            s = pool.sequence()
            s.append(rows(1, 5, 2, 64), rows(2, 5, 2, 64))
            q, big = rows(3, 1, 8, 64), 2**32 + 1
            for call in (lambda: plan.layer(big - 1), lambda: plan.bytes(big), lambda: plan.bytes(1, max_tokens=-1),
                         lambda: pool.sequence(max_tokens=big), lambda: s.step(big), lambda: s.step(-1), lambda: s.trim(big),
                         lambda: s.attend(q, position=-1), lambda: s.attend(q, position=big), lambda: quire.Pool(plan, -1),
                         lambda: quire.Pool(plan, 2**64 + (1 << 26)), lambda: quire.Threads(big), lambda: quire.Store(disk_threads=-1),
                         lambda: quire.Store(disk_bytes=2**64), lambda: quire.Store(remote=quire.Remote("a", port=big)),
                         lambda: profile.observe_k(0, rows(1, 5, 2, 64), -1), lambda: profile.set_length(big),
                         lambda: profile.score_error(big - 1, "r4")):
                with self.assertRaises(ValueError):
                    call()
            with self.assertRaises(TypeError):
                s.step(1.5)  # type: ignore[arg-type]

    def test_strided_views_are_taken_as_they_lie(self) -> None:
        with one_layer("f32") as pool:
            k, v = rows(1, 9, 2, 64), rows(2, 9, 2, 64)
            s = pool.sequence()
            by_head = np.ascontiguousarray(k.transpose(1, 0, 2)).transpose(1, 0, 2)
            wide = np.zeros((18, 2, 100), np.float32)
            wide[::2, :, :64] = v
            s.append(by_head, wide[::2, :, :64])
            self.assertTrue((s.rows("k") == k).all() and (s.rows("v") == v).all())
            q = rows(3, 4, 8, 64)
            q_by_head = np.ascontiguousarray(q.transpose(1, 0, 2)).transpose(1, 0, 2)
            out = np.zeros((8, 4, 64), np.float32)
            s.attend(q_by_head, out=out.transpose(1, 0, 2))
            self.assertTrue((out.transpose(1, 0, 2) == s.attend(q)).all())
            into = np.zeros((2, 9, 64), np.float16)
            s.rows("k", out=into.transpose(1, 0, 2), dtype="f16")
            self.assertTrue((into.transpose(1, 0, 2) == k.astype(np.float16)).all())

    def test_forms_of_rows(self) -> None:
        k = rows(1, 70, 2, 64)
        bf16 = (k.view(np.uint32) >> 16).astype(np.uint16)
        with one_layer("f32") as pool:
            s = pool.sequence()
            s.append(bf16, bf16, dtype="bf16")
            self.assertTrue((s.rows("k").view(np.uint32) == bf16.astype(np.uint32) << 16).all())
            self.assertTrue((s.rows("v", dtype="bf16") == bf16).all())
            s.append(k.astype(np.float16), k.astype(np.float16))
            self.assertTrue((s.rows("k", 0, 70) == k.astype(np.float16).astype(np.float32)).all())
            for dtype in ("f16", "f64"):
                with self.assertRaises((TypeError, ValueError)):
                    s.append(bf16, bf16, dtype=dtype)

    def test_nothing_is_copied(self) -> None:
        """The library gets the address of the array itself, and appending takes no memory of the size of the rows."""
        seen = []
        real = _native.lib.quire_step_append_rows

        def spy(step: Any, layer: int, index: int, k: Any, v: Any) -> int:
            seen.append((k.data, v.data))
            return int(real(step, layer, index, k, v))

        k, v = rows(1, 4096, 8, 128), rows(2, 4096, 8, 128)
        with one_layer("k8v4", heads=8, per=1, d=128) as pool:
            s = pool.sequence()
            _native.lib.quire_step_append_rows = spy
            try:
                s.append(k, v)
            finally:
                _native.lib.quire_step_append_rows = real
            self.assertEqual(seen, [(k.ctypes.data, v.ctypes.data)])
            before = _resident()
            for _ in range(3):
                s.append(k, v)
            # Three times 32 MiB of floats went in; the pages of k8v4 take a fifth of that.
            self.assertLess(_resident() - before, pool.stats.used_bytes + (8 << 20))


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Threads(unittest.TestCase):
    def test_python_runs_while_attention_does(self) -> None:
        with one_layer("f32", heads=4, per=8, d=128, budget=1 << 28) as pool:
            s = pool.sequence()
            s.append(rows(1, 8000, 4, 128), rows(2, 8000, 4, 128))
            q = rows(3, 2000, 32, 128)
            ticks, stop = [], threading.Event()

            def tick() -> None:
                while not stop.is_set():
                    ticks.append(time.perf_counter())
                    time.sleep(0.001)

            ticker = threading.Thread(target=tick)
            ticker.start()
            begin = time.perf_counter()
            s.attend(q)
            end = time.perf_counter()
            stop.set()
            ticker.join()
            during = sum(begin < t < end for t in ticks)
            # With the GIL held there would be none; on a busy machine a tick takes longer than a millisecond.
            self.assertGreater(end - begin, 0.05)
            self.assertGreater(during, 5)

    def test_several_threads_in_one_pool(self) -> None:
        with one_layer("k8v4", threads=2) as pool:
            wanted = None
            results = {}

            def work(name: int) -> None:
                s = pool.sequence()
                for i in range(20):
                    s.append(rows(i, 30, 2, 64), rows(i + 1, 30, 2, 64))
                results[name] = s.attend(rows(5, 4, 8, 64))
                s.close()

            workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            self.assertEqual(len(results), 6)
            for result in results.values():
                wanted = result if wanted is None else wanted
                self.assertTrue((result == wanted).all())
            self.assertEqual(pool.stats.n_pages, 0)


class Declarations(unittest.TestCase):
    """What Python says about structures and constants is what the headers say."""

    def test_sizes(self) -> None:
        text = (SOURCE / "tests" / "unit" / "abi.c").read_text()
        sizes = {name: int(size) for name, size in re.findall(r"X\(quire_(\w+), (\d+)\)", text)}
        checked = 0
        for name, size in sizes.items():
            structure = getattr(_native, name.replace("_out", "").title().replace("_", ""), None)
            if structure is not None:
                self.assertEqual(ctypes.sizeof(structure), size, name)
                checked += 1
        self.assertEqual(checked, 20)  # all but the allocator and the counters of the device

    def test_members(self) -> None:
        """Names, order and sizes of the members of every structure that Python has."""
        sizes = {"uint8_t": 1, "uint32_t": 4, "uint64_t": 8, "size_t": 8, "float": 4, "double": 8, "char": 1, "quire_form": 4,
                 "quire_side": 4, "quire_counts": ctypes.sizeof(_native.Counts), "quire_store_remote": ctypes.sizeof(store_module._Remote)}
        counts = {"QUIRE_MISS_COUNT": store_module._N_MISSES}
        checked = 0
        for header, module, form in (("quire.h", _native, "{}"), ("quire_store.h", store_module, "_{}")):
            text = re.sub(r"/\*.*?\*/", "", (SOURCE / "include" / "quire" / header).read_text(), flags=re.S)
            for name, body in re.findall(r"typedef struct quire_(\w+) \{(.*?)\n\} quire_\1;", text, re.S):
                name = name.replace("rows_out", "rows").replace("store_", "")
                structure = getattr(module, form.format(name.title().replace("_", "")), None)
                if structure is None:
                    continue
                members = []
                for line in re.sub(r"\(\*(\w+)\)\(.*?\)+;", r"*\1;", body).split(";")[:-1]:
                    kind, names = re.match(r"\s*(?:const )?(?:struct )?(\w+)\s+(.*)", line, re.S).groups()
                    for one in names.split(","):
                        pointer, member, count = re.match(r"\s*(\**)\s*(\w+)(?:\[(\w+)\])?$", one).groups()
                        size = 8 if pointer else sizes[kind]
                        members.append((member, size * (counts.get(count) or int(count or 1))))
                with self.subTest(structure=name):
                    self.assertEqual([(f[0], getattr(structure, f[0]).size) for f in structure._fields_], members)
                checked += 1
        self.assertEqual(checked, 26)

    def test_constants(self) -> None:
        header = (SOURCE / "include" / "quire" / "quire.h").read_text()
        major, minor = (int(re.search(rf"QUIRE_VERSION_{part} (\d+)", header).group(1)) for part in ("MAJOR", "MINOR"))
        self.assertEqual(_native.OPTIONS, major * 10000 + minor * 100)
        self.assertIn(f"#define QUIRE_PAGE_TOKENS {quire.PAGE_TOKENS}u", header)
        self.assertTrue(quire.__version__.startswith(f"{major}.{minor}."))
        misses = re.findall(r"^    X\((\w+), \"", (SOURCE / "include" / "quire" / "quire_store.h").read_text(), re.M)
        self.assertEqual(len(misses), store_module._N_MISSES)
        self.assertEqual(_native.status_name(10), "EIO")

    def test_every_function_has_its_number_of_arguments(self) -> None:
        for header, prototypes in (("quire.h", _native._PROTOTYPES), ("quire_store.h", store_module._PROTOTYPES)):
            text = (SOURCE / "include" / "quire" / header).read_text()
            text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
            declared = {name: arguments for name, arguments in re.findall(r"(quire_\w+)\(([^()]*)\);", text)}
            for name, (_, arguments) in prototypes.items():
                given = declared[name].strip()
                count = 0 if given == "void" else given.count(",") + 1
                self.assertEqual(len(arguments), count, name)


if __name__ == "__main__":
    unittest.main()
