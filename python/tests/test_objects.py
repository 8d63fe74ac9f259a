# SPDX-License-Identifier: MIT
"""Ownership, closing, threads, declarations."""

from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from support import SOURCE, one_layer, rows

import quire
from quire import _native
from quire import _store


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
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=300, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_process_ends_while_a_thread_computes(self) -> None:
        code = ("import quire, numpy as np, threading, time\n"
                "pool = quire.Pool(quire.Plan('f32', n_q_heads=32, n_kv_heads=4, d_k=128), 1 << 28, 2)\n"
                "s = pool.sequence(); z = np.zeros((8000, 4, 128), np.float32); s.append(z, z)\n"
                "q = np.zeros((4000, 32, 128), np.float32)\n"
                "threading.Thread(target=s.attend, args=(q,), daemon=True).start(); time.sleep(0.2)\n")
        done = subprocess.run([sys.executable, "-c", code], timeout=300, capture_output=True, text=True)
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


HEADERS = sorted((SOURCE / "include" / "quire").glob("*.h"))
STORE_HEADER = SOURCE / "include" / "quire" / "store.h"


def declared(header: pathlib.Path) -> str:
    """The text of a header without comments."""
    return re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)


def class_of(structure: str) -> Any:
    """The class that Python has for a structure of the headers, or None."""
    word = structure.replace("quire_", "", 1).replace("rows_out", "rows")
    found = getattr(_native, word.title().replace("_", ""), None)
    in_store = re.search(rf"\b{structure};", declared(STORE_HEADER)) is not None
    name = word.replace("store_", "", 1).replace("namespace_usage", "usage").title().replace("_", "")
    return found or (getattr(_store, name, None) if in_store else None)


def structures() -> "Dict[str, List[str]]":
    """The members of every structure of the headers."""
    found = {}
    for header in HEADERS:
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\n\} (\w+);", declared(header), re.S):
            flat = re.sub(r"\(\*(\w+)\)\(.*?\)+;", r"*\1;", body, flags=re.S)
            found[name] = [re.search(r"(\w+)(?:\[\w+\])?\s*$", one).group(1) for line in flat.split(";")[:-1] for one in line.split(",")]
    return found


def compiled(members: "Dict[str, List[str]]") -> "Dict[str, List[Tuple[str, int, int]]]":
    """Name, offset and size of the members of each structure, as a C compiler sees them. The last one, "-", is the whole structure."""
    lines = [f'#include "quire/{header.name}"' for header in HEADERS] + ["#include <stdio.h>", "int main(void) {"]
    for name, its in members.items():
        lines += [f'printf("{name} {m} %zu %zu\\n", offsetof({name}, {m}), sizeof((({name} *)0)->{m}));' for m in its]
        lines.append(f'printf("{name} - 0 %zu\\n", sizeof({name}));')
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "offsets")
        subprocess.run(["cc", "-std=c11", "-x", "c", "-I", str(SOURCE / "include"), "-o", str(program), "-"], check=True, text=True,
                       input="\n".join([*lines, "return 0; }\n"]))
        said = subprocess.run([str(program)], check=True, stdout=subprocess.PIPE, text=True).stdout
    found: "Dict[str, List[Tuple[str, int, int]]]" = {name: [] for name in members}
    for line in said.splitlines():
        name, member, offset, size = line.split()
        found[name].append((member, int(offset), int(size)))
    return found


class Declarations(unittest.TestCase):
    """What Python says about structures, constants and functions is what the headers say."""

    def test_structures(self) -> None:
        """Names, order, offsets and sizes of the members of every structure that Python has."""
        seen = {_native.Sized}
        for name, wanted in compiled(structures()).items():
            kind = class_of(name)
            if kind is None:
                continue
            seen.add(kind)
            names = [f[0] for base in reversed(kind.__mro__) for f in base.__dict__.get("_fields_", ())]
            with self.subTest(structure=name):
                found = [(m, getattr(kind, m).offset, getattr(kind, m).size) for m in names]
                self.assertEqual([*found, ("-", 0, ctypes.sizeof(kind))], wanted)
                self.assertEqual(issubclass(kind, _native.Sized), wanted[0][0] == "size")
        ours = {x for module in (_native, _store) for x in vars(module).values()
                if isinstance(x, type) and issubclass(x, ctypes.Structure) and x is not ctypes.Structure}
        self.assertEqual(seen, ours)

    def test_sizes_are_set(self) -> None:
        """In every structure that Python constructs, whatever members are given."""
        for module in (_native, _store):
            for kind in vars(module).values():
                if isinstance(kind, type) and issubclass(kind, _native.Sized):
                    self.assertEqual(kind().size, ctypes.sizeof(kind))
        mask = _native.Mask(16, form=_native.BF16)
        self.assertEqual((mask.size, mask.data, mask.form), (ctypes.sizeof(_native.Mask), 16, _native.BF16))
        with self.assertRaises(TypeError):
            _native.Mask(size=8)

    def test_packed_structures(self) -> None:
        """Bytes that are packed at once have each member where the structure has it."""
        for kind, pack in ((_native.Rows, _native.pack_rows), (_native.StepQueries, _native.pack_queries),
                           (_native.AttendJob, _native.pack_job)):
            names = [f[0] for base in reversed(kind.__mro__) for f in base.__dict__.get("_fields_", ())]
            packed = pack(*range(1, len(names) + 1))
            with self.subTest(structure=kind.__name__):
                self.assertEqual(len(packed), ctypes.sizeof(kind))
                for i, name in enumerate(names):
                    member = getattr(kind, name)
                    self.assertEqual(int.from_bytes(packed[member.offset:member.offset + member.size], sys.byteorder), i + 1, name)

    def test_constants(self) -> None:
        text = "".join(header.read_text() for header in HEADERS)
        version = ".".join(re.search(rf"QUIRE_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))
        self.assertEqual(quire.__version__, version)
        self.assertIn(f"#define QUIRE_PAGE_TOKENS {quire.PAGE_TOKENS}u\n", text)
        self.assertIn(f"#define QUIRE_MISS_REASONS {_store.MISS_REASONS}\n", text)
        self.assertIn("quire_form { QUIRE_F32 = 0, QUIRE_F16, QUIRE_BF16, QUIRE_NATIVE, QUIRE_MLX }", text)
        self.assertEqual((_native.F32, _native.F16, _native.BF16, _native.NATIVE, _native.MLX), (0, 1, 2, 3, 4))
        self.assertEqual(_native.status_name(10), "EIO")

    def test_functions(self) -> None:
        """The number and the kinds of the arguments and the kind of the result of every function that Python has."""
        numbers = {"void": None, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t,
                   "double": ctypes.c_double, "int": ctypes.c_int, "quire_status": ctypes.c_int, "quire_side": ctypes.c_int,
                   "quire_miss": ctypes.c_int}
        functions = {name: (result, arguments) for header in HEADERS
                     for result, name, arguments in re.findall(r"QUIRE_API ([^;()]*?)(quire_\w+)\(([^()]*)\);", declared(header))}
        for name, (result, arguments) in {**_native._PROTOTYPES, **_store._PROTOTYPES}.items():
            said, given = functions[name]
            given_list = [] if given.strip() == "void" else given.split(",")
            self.assertEqual(len(arguments), len(given_list), name)
            for kind, text in zip([result, *arguments], [said + " result", *given_list]):
                with self.subTest(function=name, argument=text.strip()):
                    word, rest = re.match(r"\s*(?:const )?(\w+)(.*)", text, re.S).groups()
                    if "*" not in rest and "[" not in rest and not word.endswith("_fn"):
                        self.assertIs(kind, numbers[word])
                    elif hasattr(kind, "contents"):  # a POINTER
                        wanted = class_of(word) or numbers.get(word, ctypes.c_void_p)
                        self.assertIs(kind._type_, ctypes.c_void_p if rest.count("*") > 1 else wanted)
                    else:
                        self.assertTrue(kind in (ctypes.c_void_p, ctypes.c_char_p, _native.WRITE, _native.READ, _store.USAGE_FN))


class Environment(unittest.TestCase):
    def imported(self, isa: Optional[str]) -> "Tuple[str, str]":
        env = {name: value for name, value in os.environ.items() if name != "QUIRE_ISA"}
        done = subprocess.run([sys.executable, "-c", "import quire; print(quire.isa())"], capture_output=True, text=True, check=True,
                              env=env if isa is None else {**env, "QUIRE_ISA": isa})
        return done.stdout.strip(), done.stderr

    def test_instruction_set(self) -> None:
        """QUIRE_ISA is read when the package is imported. A name that does not exist is ignored with a warning."""
        best, said = self.imported(None)
        self.assertEqual(said, "")
        self.assertEqual(self.imported("c"), ("c", ""))
        self.assertEqual(self.imported(best), (best, ""))
        isa, said = self.imported("sse9")
        self.assertEqual(isa, best)
        self.assertIn("RuntimeWarning: QUIRE_ISA=sse9 is not the name of an instruction set", said)


if __name__ == "__main__":
    unittest.main()
