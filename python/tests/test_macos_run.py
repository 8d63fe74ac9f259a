# SPDX-License-Identifier: MIT
"""Runs the library of the wheel for macOS, byte for byte, under qemu: tests/macos has a loader for it and a part of macOS's libSystem.

Stored bytes must be those of the library for x86-64, outputs of attention within the bound of docs/kernels.md. It shows that the file can be loaded
and bound, that the kernels were compiled rightly, that levels are found by sysctl, and that memory is handled in pages of 16 KiB. It does not
show what macOS itself does. Each level runs a third of the codecs; with QUIRE_MACOS_FRESH=1 each runs all.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile
from typing import Dict, List

import numpy as np
from support import BOUND, SOURCE
from test_macos import LIBRARY, script
from trampolines import trampolines

from quire import _native

CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
FEATURE = "hw.optional.arm.FEAT_"
LEVELS = {"neon": "", "neon-dotprod": "hw.optional.armv8_2_fhm", "neon-i8mm": f"{FEATURE}DotProd,{FEATURE}I8MM"}  # the second: macOS 11


def lines(text: str) -> Dict[str, List[List[str]]]:
    """The words after the first two of each line, by these two."""
    found: Dict[str, List[List[str]]] = {}
    for line in text.splitlines():
        words = line.split()
        found.setdefault(" ".join(words[:2]), []).append(words[2:])
    return found


class Run(unittest.TestCase):
    folder: "tempfile.TemporaryDirectory[str]"
    want: Dict[str, List[List[str]]]

    @classmethod
    def setUpClass(cls) -> None:
        for program in (CROSS, EMULATOR, "gcc"):
            if not shutil.which(program):
                raise unittest.SkipTest(f"no {program} here")
        wheel, = pathlib.Path(script("python-venv", "--macos")).glob("*.whl")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        here, tests = pathlib.Path(cls.folder.name), SOURCE / "tests/macos"
        with zipfile.ZipFile(wheel) as file:
            (here / "library").write_bytes(file.read(LIBRARY))
        names = [line for line in (SOURCE / "src/quire.symbols").read_text().split("\n") if line and not line.startswith("#")]
        (here / "trampolines.S").write_text(trampolines(names))
        flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE / 'include'}"]
        subprocess.run([CROSS, *flags, "-static", *(str(tests / name) for name in ("loader.c", "system.c", "work.c")), str(here / "trampolines.S"), "-o", str(here / "work"), "-lm",
                        "-lpthread"], check=True)
        native = _native.folder() / _native.file_name("quire")
        subprocess.run(["gcc", *flags, str(tests / "work.c"), str(native), f"-Wl,-rpath,{native.parent}", "-o", str(here / "native")], check=True)
        done = subprocess.run([str(here / "native")], check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "QUIRE_ISA": "c"})
        cls.want = lines(done.stdout)

    def work(self, features: str, *arguments: str, library: str = "library") -> "subprocess.CompletedProcess[str]":
        here = pathlib.Path(self.folder.name)
        env = {**os.environ, "QUIRE_DYLIB": str(here / library), "QUIRE_MACOS_FEATURES": features, "QUIRE_ISA": ""}
        return subprocess.run([EMULATOR, "-cpu", "max", str(here / "work"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def test_levels(self) -> None:
        fresh = os.environ.get("QUIRE_MACOS_FRESH") == "1"
        seen = set()
        for i, (level, features) in enumerate(LEVELS.items()):
            with self.subTest(level=level):
                done = self.work(features, *([] if fresh else ["3", str(i)]))
                self.assertEqual(done.returncode, 0, done.stdout[-500:] + done.stderr)
                found = lines(done.stdout)
                self.assertIn(f"isa {level}", found)
                del found[f"isa {level}"]
                for key, rows in found.items():
                    kind = key.split()[0]
                    if kind != "out":  # stored bytes, and what the library says about a plan
                        self.assertEqual(rows, self.want[key], key)
                        continue
                    a, b = np.array(rows, float), np.array(self.want[key], float)
                    self.assertEqual(a.shape, (2, 16))
                    self.assertLess(np.abs(a - b).max(), BOUND, key)
                seen |= {key for key in found if key.startswith("bytes ")}
                renewed, preferred = map(int, re.findall(r"renewed (\d+) preferred (\d+)", done.stderr)[0])
                self.assertGreater(renewed, 10 if fresh or not i else -1)  # memory that was given back
                self.assertEqual(preferred, 2)  # threads beside the caller
        self.assertEqual(seen, {key for key in self.want if key.startswith("bytes ")})
        self.assertGreater(len(seen), 40)

    def test_macos_11_and_later_name_the_same_level(self) -> None:
        for features, level in ((f"{FEATURE}DotProd", "neon-dotprod"), (f"{FEATURE}I8MM", "neon")):  # the second alone: not to be had
            self.assertIn(f"isa {level}\n", self.work(features, "1000", "999").stdout)

    def test_it_sees_what_is_wrong(self) -> None:
        """A library that is changed in one place does not pass unnoticed."""
        here = pathlib.Path(self.folder.name)
        data = (here / "library").read_bytes()
        (here / "changed").write_bytes(data.replace(b"_sched_yield\0", b"_sched_yielD\0"))
        self.assertIn("nothing stands for _sched_yielD", self.work("", "1000", "999", library="changed").stderr)


if __name__ == "__main__":
    unittest.main()
