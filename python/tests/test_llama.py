# SPDX-License-Identifier: MIT
"""quire.llama without llama-cpp-python: what it says then, and how it reads counters. tests/llama/python_host.py is the real thing."""

from __future__ import annotations

import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Optional
from unittest import mock

from quire import llama


def started() -> int:
    return int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def counters(*policies: "tuple[object, ...]", pid: Optional[int] = None, start: Optional[int] = None, version: int = 1) -> bytes:
    """A file as docs/formats/stat.md describes it, with a member at the end that a later version may have."""
    size = 208 + 8 * 168 + 8
    head = struct.pack("<8sIIQQ", b"QUIRSTAT", version, size, os.getpid() if pid is None else pid, started() if start is None else start)
    held = b"".join(struct.pack("<128s5Q", str(p[0]).encode(), *p[1:]) for p in policies)
    return (head.ljust(208, b"\0") + held).ljust(size, b"\0")


class Counters(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / f"quire-stat.{os.getuid()}.{os.getpid()}"
        change = mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder.name})
        change.start()
        self.addCleanup(change.stop)

    def test_report(self) -> None:
        self.assertEqual((llama.report(), llama.saved()), ([], 0))
        self.file.write_bytes(counters(("r6/r4", 1, 4096, 812, 6 << 20, 18 << 20), ("declared", 1, 512, 3, 2 << 20, 1 << 20)))
        first, second = llama.report()
        self.assertEqual((first.policy, first.contexts, first.cells, first.tokens, first.saved), ("r6/r4", 1, 4096, 812, 12 << 20))
        self.assertEqual(str(first), "r6/r4: 812 tokens in 6.0 MiB instead of 18.0 MiB in f16, 12.0 MiB saved")
        self.assertEqual((second.saved, llama.saved()), (-(1 << 20), 11 << 20))

    def test_files_that_are_not_of_this_process(self) -> None:
        held = ("r8/r8", 1, 1, 1, 1, 1)
        for data in (counters(held, pid=1), counters(held, start=1), counters(held, version=2), counters(held)[:900], b"", b"QUIRSTAT"):
            self.file.write_bytes(data)
            self.assertEqual(llama.report(), [])

    def test_what_others_may_put_there(self) -> None:
        """In /tmp and /dev/shm anybody can. A FIFO is not waited for, and a link is not followed."""
        os.mkfifo(self.file)
        ended = threading.Event()
        threading.Thread(target=lambda: (llama.report(), ended.set()), daemon=True).start()
        self.assertTrue(ended.wait(20))
        self.file.unlink()
        aside = self.file.with_name("aside")
        aside.write_bytes(counters(("r8/r8", 1, 1, 1, 1, 1)))
        self.file.symlink_to(aside)
        self.assertEqual(llama.report(), [])

    def test_switched_off(self) -> None:
        with mock.patch.dict(os.environ, {"QUIRE_STAT": "0"}), self.assertRaisesRegex(RuntimeError, "QUIRE_STAT=0"):
            llama.report()


class Refused(unittest.TestCase):
    def last_line(self, package: Optional[str]) -> str:
        """What enable() says in a process with this text as llama_cpp/llama_cpp.py."""
        with tempfile.TemporaryDirectory() as folder:
            home = pathlib.Path(folder) / "llama_cpp"
            if package is not None:
                home.mkdir()
                (home / "__init__.py").write_text("__version__ = '0.1'\nfrom .llama_cpp import *\n")
                (home / "llama_cpp.py").write_text(package)
            done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\nfrom quire import llama; llama.enable()"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1)
            return done.stderr.strip().splitlines()[-1]

    def test_no_package(self) -> None:
        self.assertRegex(self.last_line(None), "^ImportError: llama-cpp-python cannot be imported .*pip install llama-cpp-python")

    def test_packages_that_load_no_devices(self) -> None:
        for package in ("", "import ctypes\n_lib = ctypes.CDLL('libm.so.6')\n"):
            self.assertRegex(self.last_line(package), r"^RuntimeError: llama-cpp-python 0\.1 has no ggml_backend_load\(\)")


if __name__ == "__main__":
    unittest.main()
