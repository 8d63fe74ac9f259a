# SPDX-License-Identifier: MIT
"""Calls with arguments that lie, files that misbehave, objects that are closed by what a call asks for, forked children."""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, List, Tuple

import numpy as np
from support import one_layer, rows

import quire

START = """
import faulthandler, io, os, signal, sys, threading, time
import numpy as np
import quire
from support import one_layer, rows
faulthandler.dump_traceback_later(200, exit=True)
pool = one_layer(budget=1 << 24)
s = pool.sequence()
k, v, q = rows(1, 200, 2, 64), rows(2, 200, 2, 64), rows(3, 1, 8, 64)
s.append(k, v)
saved = s.to_bytes()
def refused(call, kind, word=""):
    try:
        call()
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError("nothing was raised")
class File(io.RawIOBase):
    def __init__(self, read=None, write=None):
        self.inner, self._read, self._write = io.BytesIO(saved), read, write
    def read(self, n=-1):
        return self._read(self.inner, n)
    def write(self, data):
        return self._write(data)
"""
END = """
assert s.length == 200 and (s.attend(q) == pool.load(saved).attend(q)).all() and s.to_bytes() == saved
s.append(k[:1], v[:1])
pool.close()
assert s.closed and pool.closed
"""


def child(code: str) -> None:
    """Runs code in a process of its own, which may not die, hang or say anything."""
    words = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", START + code + END]  # Python 3.12 warns of every fork
    done = subprocess.run(words, timeout=300, capture_output=True, text=True,
                          cwd=os.path.dirname(os.path.abspath(__file__)))
    if (done.returncode, done.stderr) != (0, ""):
        raise AssertionError(f"exit status {done.returncode}: {done.stderr[-2000:]}")


class Files(unittest.TestCase):
    def test_read_that_returns_too_much(self) -> None:
        """It used to be copied over whatever lay behind the buffer."""
        child("refused(lambda: pool.load(File(read=lambda f, n: f.read(n) + bytes(1 << 20))), OSError, 'returned')\n"
              "refused(lambda: quire.snapshot_info(File(read=lambda f, n: f.read(n) + b'x')), OSError, 'returned')\n")

    def test_read_that_returns_something_else(self) -> None:
        child("for wrong, kind in (('text', TypeError), (None, BlockingIOError), (7, TypeError), ([1], TypeError), (b'', EOFError)):\n"
              "    refused(lambda: pool.load(File(read=lambda f, n: wrong)), kind)\n"
              "class Lies(bytes):\n"
              "    def __bytes__(self): return bytes(1 << 20)\n"
              "    def __len__(self): return 1\n"
              "refused(lambda: pool.load(File(read=lambda f, n: Lies(n + 1))), OSError)\n"
              "for same in (bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)):\n"
              "    assert pool.load(File(read=lambda f, n: same(f.read(n)))).to_bytes() == saved\n"
              "assert pool.load(File(read=lambda f, n: f.read(min(n, 7)))).length == 200\n")

    def test_write_that_returns_something_else(self) -> None:
        """0 and negative numbers made it write for ever."""
        child("for wrong in (0, -1, True, False, 1.0, 'x', 1 << 70, b''):\n"
              "    refused(lambda: s.save(File(write=lambda data: wrong)), OSError, 'returned')\n"
              "refused(lambda: s.save(File(write=lambda data: len(data) + 1)), OSError, 'returned')\n"
              "refused(lambda: s.save(File(write=lambda data: None)), BlockingIOError)\n"
              "got = []\n"
              "s.save(File(write=lambda data: got.append(data[:100]) or np.int64(len(data[:100]))))\n"
              "assert b''.join(got) == saved\n"
              "class Plain:\n"
              "    def write(self, data): got.append(data)\n"
              "got.clear(); s.save(Plain()); assert b''.join(got) == saved\n")

    def test_write_that_uses_what_is_saved(self) -> None:
        """Closing either used to end in SIGSEGV."""
        child("def busy(call):\n"
              "    said = []\n"
              "    def write(data):\n"
              "        try:\n"
              "            call()\n"
              "        except quire.QuireError as error:\n"
              "            said.append(error.status)\n"
              "        return len(data)\n"
              "    s.save(File(write=write))\n"
              "    assert said and set(said) == {'EBUSY'}, said\n"
              "for call in (s.close, pool.close, lambda: s.append(k, v), lambda: s.trim(0), s.to_bytes, s.fork, lambda: s.attend(q),\n"
              "             lambda: s.step(1), lambda: s.convert(pool.plan), lambda: s.rows('k'), lambda: s.length, lambda: pool.attend([s], [q])):\n"
              "    busy(call)\n"
              "refused(lambda: s.save(File(write=lambda data: s.close())), quire.QuireError, 'saved')\n"
              "other = pool.sequence()\n"  # everything else is free
              "s.save(File(write=lambda data: other.append(k[:1], v[:1]) or pool.stats and pool.load(saved) and len(data)))\n"
              "assert other.length > 1; other.close()\n")

    def test_read_that_uses_the_pool(self) -> None:
        """Closing it used to wait for itself."""
        child("refused(lambda: pool.load(File(read=lambda f, n: pool.close())), quire.QuireError, 'EBUSY')\n"
              "again = pool.load(File(read=lambda f, n: pool.load(saved) and pool.sequence() and f.read(n)))\n"
              "assert again.to_bytes() == saved\n")

    def test_read_that_is_closed_in_another_thread(self) -> None:
        child("inside, go = threading.Event(), threading.Event()\n"
              "pool2 = one_layer()\n"
              "closer = threading.Thread(target=lambda: (inside.wait(), threading.Timer(0.1, go.set).start(), pool2.close()))\n"
              "closer.start()\n"
              "loaded = pool2.load(File(read=lambda f, n: inside.set() or go.wait() and f.read(n)))\n"
              "closer.join()\n"
              "assert pool2.closed and loaded.closed\n")

    def test_exceptions_come_out(self) -> None:
        child("def stop(*_): raise error\n"
              "for error in (KeyboardInterrupt(), SystemExit(3), MemoryError(), GeneratorExit(), StopIteration()):\n"
              "    for call in (lambda: s.save(File(write=stop)), lambda: pool.load(File(read=stop))):\n"
              "        try:\n"
              "            call()\n"
              "        except BaseException as found:\n"
              "            assert found is error, found\n"
              "        else:\n"
              "            raise AssertionError\n"
              "assert pool.stats.n_pages == 4\n")

    def test_a_signal_between_two_callbacks(self) -> None:
        """A handler that raises before the callback has begun: ctypes printed it, and the file lacked a piece."""
        child("def late(*_): raise TimeoutError('late')\n"
              "signal.signal(signal.SIGALRM, late)\n"
              "for i in range(400):\n"
              "    out = io.BytesIO()\n"
              "    whole = False\n"
              "    try:\n"
              "        signal.setitimer(signal.ITIMER_REAL, 1e-6 + i * 2e-6)\n"
              "        s.save(out)\n"
              "        whole = True\n"
              "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
              "    except TimeoutError:\n"
              "        pass\n"
              "    assert not whole or out.getvalue() == saved\n")

    def test_what_is_not_a_file(self) -> None:
        with one_layer() as pool:
            s = pool.sequence()
            for wrong in (None, 3, "text", object()):
                with self.assertRaisesRegex(TypeError, "source is a"):
                    pool.load(wrong)  # type: ignore[arg-type]
            for wrong in (3, "text", object()):
                with self.assertRaisesRegex(TypeError, "file is a"):
                    s.save(wrong)  # type: ignore[arg-type]


class Numbers(unittest.TestCase):
    def test_an_index_that_closes(self) -> None:
        """All arguments are converted before the call has the pointer."""
        child("class Closes:\n"
              "    def __init__(self, what, value=0): self.what, self.value = what, value\n"
              "    def __index__(self):\n"
              "        try: self.what.close()\n"
              "        except quire.QuireError: pass\n"
              "        return self.value\n"
              "plan = quire.Plan('k8v4', n_q_heads=8, n_kv_heads=2, d_k=64)\n"
              "def fresh():\n"
              "    t = pool.sequence(); t.append(k, v); return t\n"
              "for use in (lambda t: t.trim(Closes(t, 3)), lambda t: t.attend(q, Closes(t)), lambda t: t.attend(q, position=Closes(t, 5)),\n"
              "            lambda t: t.rows('k', Closes(t)), lambda t: t.rows('k', 0, Closes(t)), lambda t: t.rows('k', 0, 0, Closes(t, 9)),\n"
              "            lambda t: t.codes('v', Closes(t)), lambda t: t.codec('k', Closes(t)), lambda t: t.step(Closes(t, 3)),\n"
              "            lambda t: pool.attend([t], [q], Closes(t)), lambda t: pool.attend([t], [q], positions=[Closes(t, 5)])):\n"
              "    refused(lambda: use(fresh()), quire.ClosedError)\n"
              "for use in (lambda p: p.layer(Closes(p)), lambda p: p.bytes(Closes(p, 5)), lambda p: p.bytes(5, Closes(p, 5))):\n"
              "    refused(lambda: use(quire.Plan('k8v4', n_q_heads=8, n_kv_heads=2, d_k=64)), quire.ClosedError)\n"
              "pool2 = one_layer()\n"
              "refused(lambda: pool2.sequence(max_tokens=Closes(pool2, 9)), quire.ClosedError)\n"
              "step = s.step(3)\n"
              "refused(lambda: step.append(Closes(step), k[:3], v[:3]), quire.ClosedError)\n"
              "step = s.step(3)\n"
              "refused(lambda: step.append_rows(0, Closes(step), k[:3], v[:3]), quire.ClosedError)\n")

    def test_every_wrong_number_is_named(self) -> None:
        plan = quire.Plan("k8v4", n_q_heads=8, n_kv_heads=2, d_k=64)
        with one_layer() as pool:
            s = pool.sequence()
            s.append(rows(1, 5, 2, 64), rows(2, 5, 2, 64))
            q = rows(3, 1, 8, 64)
            step = pool.sequence().step(2)
            cases: List[Tuple[Any, str, Callable[[Any], Any]]] = [
                (quire.QuireError, "length", lambda bad: s.trim(6)), (ValueError, "length", lambda bad: s.trim(-3)),
                (TypeError, "length", lambda bad: s.trim(bad)), (TypeError, "layer", lambda bad: s.attend(q, bad)),
                (TypeError, "position", lambda bad: s.attend(q, position=bad)), (ValueError, "position", lambda bad: s.attend(q, position=2**31)),
                (TypeError, "max_tokens", lambda bad: pool.sequence(max_tokens=bad)),
                (ValueError, "sinks", lambda bad: pool.sequence(max_tokens=4, sinks=4)), (ValueError, "sinks", lambda bad: pool.sequence(sinks=4)),
                (ValueError, "spare_tokens", lambda bad: pool.sequence(max_tokens=4, spare_tokens=2**31)),
                (TypeError, "n_tokens", lambda bad: s.step(bad)), (quire.QuireError, "n_tokens", lambda bad: s.step(2**31)),
                (TypeError, "budget_bytes", lambda bad: quire.Pool(plan, bad)), (quire.QuireError, "budget_bytes", lambda bad: quire.Pool(plan, 1)),
                (TypeError, "threads", lambda bad: quire.Pool(plan, 1 << 24, bad)), (ValueError, "threads", lambda bad: quire.Threads(5000)),
                (TypeError, "plan", lambda bad: quire.Pool(bad, 1)), (TypeError, "first", lambda bad: s.rows("k", 0, bad)),
                (quire.QuireError, "first", lambda bad: s.rows("k", 0, 6)), (quire.QuireError, "count", lambda bad: s.rows("k", 0, 0, 2**32 - 1)),
                (TypeError, "count", lambda bad: s.rows("k", 0, 0, bad)), (ValueError, "side", lambda bad: s.rows(bad)),
                (quire.QuireError, "appended", lambda bad: step.attend(0, q[[0, 0]])), (quire.QuireError, "appended", lambda bad: step.commit()),
                (ValueError, "index", lambda bad: step.append_rows(0, 1, q, q)), (ValueError, "index", lambda bad: step.append_rows(0, -1, q, q)),
                (ValueError, "softcap", lambda bad: s.attend(q, softcap=-1.0)), (ValueError, "scale", lambda bad: s.attend(q, scale=float("nan"))),
                (TypeError, "scale", lambda bad: s.attend(q, scale=object())), (ValueError, "index", lambda bad: plan.layer(1)),
                (TypeError, r"sequences\[0\]", lambda bad: pool.step([bad], [1])), (ValueError, "twice", lambda bad: pool.step([s, s], [1, 1])),
                (ValueError, r"sequences\[0\]", lambda bad: pool.step([one_layer().sequence()], [1])),
                (TypeError, r"sequences\[1\]", lambda bad: pool.attend([s, bad], [q, q])), (ValueError, "n_layers", lambda bad: quire.Plan(n_layers=10**9)),
                (TypeError, "policy", lambda bad: quire.Plan(bad)), (TypeError, r"layers\[0\]", lambda bad: quire.Plan(layers=[bad])),
            ]
            for error, word, call in cases:
                for bad in (object(), 1.5):
                    with self.subTest(word=word), self.assertRaisesRegex(error, word):
                        call(bad)
            step.abort()
            self.assertEqual(s.length, 5)

    def test_zero_characters(self) -> None:
        """C would read the text up to it: another policy, another folder."""
        shape = {"n_q_heads": 8, "n_kv_heads": 2, "d_k": 64}
        with tempfile.TemporaryDirectory() as folder:
            calls: List[Tuple[str, Callable[[], Any]]] = [
                ("policy", lambda: quire.Plan("k8v4\0nonsense", **shape)), ("codec", lambda: quire.bits("r4\0x", 64)),
                ("codec", lambda: quire.Format("r4\0", 64)), ("directory", lambda: quire.Store(folder + "/a\0b", disk_bytes=1 << 25)),
                ("name", lambda: quire.use_isa("c\0")), ("host", lambda: quire.Store(remote=quire.Remote("a\0b"))),
                ("codec", lambda: quire.Profile([quire.Layer(8, 2, 64, 64)]).score_error(0, "r4\0")),
            ]
            for word, call in calls:
                with self.subTest(word=word), self.assertRaisesRegex(ValueError, f"{word} contains a zero character"):
                    call()
            self.assertEqual(os.listdir(folder), [])

    def test_bytes_that_are_shorter_than_they_say(self) -> None:
        class Lies(bytes):
            def __len__(self) -> int:
                return 32

        identity = quire.Identity("w", "t", "r", Lies(b"short"))
        with tempfile.TemporaryDirectory() as folder, quire.Store(folder, disk_bytes=1 << 25) as store:
            with self.assertRaisesRegex(ValueError, "secret must have 32 bytes, not 5"):
                store.raw_namespace(identity, "x", 64)
            with self.assertRaisesRegex(ValueError, "root"):
                store.remove(root=Lies(b"short"))
            for word, call in (("timeout", lambda: store.flush(float("nan"))), ("timeout", lambda: store.flush(-1)),
                               ("max_age", lambda: store.gc(max_age=float("inf")))):
                with self.assertRaisesRegex(ValueError, word):
                    call()


class Arrays(unittest.TestCase):
    def test_arrays_that_lie(self) -> None:
        """A class derived from numpy's can say anything about itself."""
        child("class Lies(np.ndarray):\n"
              "    shape = property(lambda self: (1000000, 2, 64))\n"
              "    strides = property(lambda self: (512, 256, 4))\n"
              "    ndim = property(lambda self: 3)\n"
              "    size = property(lambda self: 128000000)\n"
              "    dtype = property(lambda self: np.dtype(np.float32))\n"
              "    itemsize = property(lambda self: 4)\n"
              "    def __len__(self): return 1000000\n"
              "    def __array__(self, *_, **__): raise AssertionError('asked')\n"
              "lie = k[:1, :1, :4].copy().view(Lies)\n"
              "whole = k[:7].copy().view(Lies)\n"
              "refused(lambda: s.append(lie, lie), ValueError, 'shape')\n"
              "refused(lambda: s.attend(lie), ValueError, 'shape')\n"
              "refused(lambda: s.attend(q, out=lie), ValueError, 'shape')\n"
              "refused(lambda: s.attend(q, alibi=lie), ValueError, 'shape')\n"
              "refused(lambda: s.rows('k', out=lie), ValueError, 'shape')\n"
              "refused(lambda: quire.finish(quire.Partial(lie, lie, lie)), ValueError, 'shapes')\n"
              "t = pool.sequence(); t.append(whole, whole); assert t.length == 7\n"
              "with t.step(7) as step: step.append(0, whole, whole)\n"
              "refused(lambda: quire.encode('r4', lie), ValueError)\n"
              "profile = quire.Profile([quire.Layer(8, 2, 64, 64)])\n"
              "refused(lambda: profile.observe_k(0, lie), ValueError, 'shape')\n"
              "refused(lambda: s.append(np.ma.array(k), v), TypeError, 'masked')\n")

    def test_arrays_that_are_made_when_they_are_asked_for(self) -> None:
        """Each is asked for once, and kept until the library has read it."""
        child("form, eight = quire.Format('a8g64', 64), one_layer('a8g64')\n"
              "made = form.encode_mlx(k)\n"
              "class Fresh(quire.MlxRows):\n"
              "    words = property(lambda self: made.words.copy())\n"
              "    scales = property(lambda self: made.scales.copy())\n"
              "    biases = property(lambda self: made.biases.copy())\n"
              "    codec = property(lambda self: 'a8g64')\n"
              "    scale_dtype = property(lambda self: 'f16')\n"
              "    __init__ = lambda self: None\n"
              "t = eight.sequence()\n"
              "for _ in range(20): t.append(Fresh(), Fresh())\n"
              "wanted = t.rows('k', 0, 0, 200)\n"
              "for i in range(20): assert (t.rows('k', 0, 200 * i, 200) == wanted).all()\n"
              "t.close()\n")

    def test_partial_results_that_are_not(self) -> None:
        for wrong in (None, 3, (), (rows(1, 2, 3, 4),), "abc"):
            with self.assertRaises(TypeError):
                quire.finish(wrong)  # type: ignore[arg-type]
            with self.assertRaises(TypeError):
                quire.merge(wrong, wrong)  # type: ignore[arg-type]

    def test_a_list_that_changes(self) -> None:
        """pool.attend() locked the sequences of the list that it was given, and used those that were in it later."""
        with one_layer() as pool, one_layer() as other:
            s, t = pool.sequence(), pool.sequence()
            for x in (s, t):
                x.append(rows(1, 5, 2, 64), rows(2, 5, 2, 64))
            q = rows(3, 1, 8, 64)
            given = [s, t]

            class Changes(list):  # type: ignore[type-arg]
                def __getitem__(self, i: Any) -> Any:
                    given[:] = [other.sequence()] * 2
                    return q

            self.assertEqual(len(pool.attend(given, Changes([q, q]))), 2)


class Objects(unittest.TestCase):
    def test_copies(self) -> None:
        with one_layer(threads=2) as pool, tempfile.TemporaryDirectory() as folder, quire.Store(folder, disk_bytes=1 << 25) as store:
            s = pool.sequence()
            step = pool.sequence().step(1)
            for x in (pool, s, step, pool.plan, store, quire.Threads(2), quire.Format("r4", 64), quire.Profile([quire.Layer(8, 2, 64, 64)])):
                for copies in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.subTest(kind=type(x)), self.assertRaisesRegex(TypeError, f"a {type(x).__name__} cannot be copied or pickled"):
                        copies(x)

    def test_a_forked_child(self) -> None:
        """It raises whatever the parent's threads were doing, and ends; the parent notices nothing."""
        child("faulthandler.cancel_dump_traceback_later(); team = one_layer(threads=2)\n"  # it does not survive a fork itself
              "import tempfile; home = tempfile.TemporaryDirectory()\n"
              "store = quire.Store(home.name, disk_bytes=1 << 25)\n"
              "step = team.sequence().step(3)\n"
              "go = threading.Event()\n"
              "def hold():\n"
              "    with s._lock, pool._lock, step._lock, store._use():\n"
              "        go.set(); time.sleep(1.5)\n"
              "holder = threading.Thread(target=hold); holder.start(); go.wait()\n"
              "if os.fork() == 0:\n"
              "    signal.alarm(120)\n"
              "    for call in (lambda: s.length, lambda: s.append(k, v), lambda: s.attend(q), pool.sequence, lambda: pool.stats, s.fork,\n"
              "                 lambda: pool.load(saved), step.commit, lambda: step.append(0, k[:3], v[:3]), lambda: store.stats,\n"
              "                 lambda: team.step([], []), lambda: pool.plan.policy, lambda: quire.Pool(pool.plan, 1 << 24)):\n"
              "        refused(call, quire.ClosedError, 'forked child')\n"
              "    for x in (step, s, pool, team, store): x.close()\n"
              "    own = one_layer(threads=2); t = own.sequence(); t.append(k, v); assert t.attend(q).shape == (1, 8, 64)\n"
              "    sys.exit(7)\n"
              "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
              "step.append(0, k[:3], v[:3]); step.commit(); holder.join(); assert store.stats['loads'] == 0; store.close()\n")

    def test_a_child_that_is_forked_in_a_callback(self) -> None:
        child("def write(data):\n"
              "    if os.fork() == 0:\n"
              "        refused(lambda: s.length, quire.ClosedError, 'forked child')\n"
              "        os._exit(5)\n"
              "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 5\n"
              "    return len(data)\n"
              "s.save(File(write=write))\n")

    def test_steps_that_have_ended(self) -> None:
        with one_layer() as pool:
            s = pool.sequence()
            k, v, q = rows(1, 2, 2, 64), rows(2, 2, 2, 64), rows(3, 2, 8, 64)
            for end in ("commit", "abort"):
                with s.step(2) as step:
                    step.append(0, k, v)
                    getattr(step, end)()
                for call in (lambda: step.append(0, k, v), lambda: step.attend(0, q), step.commit, step.__enter__):
                    with self.assertRaises(quire.ClosedError):
                        call()
                step.abort()
            self.assertEqual(s.length, 2)
            with self.assertRaises(ZeroDivisionError), s.step(2) as step:
                raise ZeroDivisionError
            s.step(1).abort()
            with s.step(0) as step:
                step.append(0, k[:0], v[:0])
            s.append(k[:0], v[:0])
            self.assertEqual(s.length, 2)
            with s.step(2) as step:
                step.append(0, k, v)
                pool.close()
        self.assertTrue(step.closed and s.closed)

    def test_closing_while_threads_attend(self) -> None:
        child("for i in range(30):\n"
              "    one = one_layer(threads=1 + i % 2)\n"
              "    t = one.sequence(); t.append(k, v)\n"
              "    def work():\n"
              "        try:\n"
              "            while True:\n"
              "                t.attend(q); t.fork().append(k[:3], v[:3])\n"
              "                with t.step(2) as step: step.append(0, k[:2], v[:2]); step.attend(0, rows(3, 2, 8, 64))\n"
              "        except quire.ClosedError: pass\n"
              "        except quire.QuireError as error: assert error.status in ('EBUSY', 'EFULL'), error\n"
              "    workers = [threading.Thread(target=work) for _ in range(3)]\n"
              "    for w in workers: w.start()\n"
              "    time.sleep(0.002 * (i % 5))\n"
              "    (one if i % 3 else t).close() if i % 3 else None\n"
              "    one.close()\n"
              "    for w in workers: w.join()\n")


if __name__ == "__main__":
    unittest.main()
