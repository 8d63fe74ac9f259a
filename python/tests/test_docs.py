# SPDX-License-Identifier: MIT
"""What docs/python.md, docs/how-it-works.md and docs/tutorial.md show, run as it stands there."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import quire
from explained import unexplained
from support import SOURCE


def blocks(page: str) -> "list[str]":
    text = (SOURCE / "docs" / page).read_text()
    text = re.sub(r"\n## mlx-lm\n.*?(?=\n## )", "", text, flags=re.S)  # needs MLX; it has tests of its own
    return re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)


def model() -> str:
    """The model of the tutorial, or "" if it is not here."""
    done = subprocess.run([SOURCE / "scripts" / "get-models", "smollm2-135m"], env={**os.environ, "QUIRE_OFFLINE": "1"}, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


class Docs(unittest.TestCase):
    def run_block(self, block: str, folder: "str | None" = None) -> None:
        done = subprocess.run([sys.executable, "-W", "error", "-c", block], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd=folder, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})  # more would fight with Quire's for processors
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_python(self) -> None:
        found = blocks("python.md")
        self.assertEqual(len(found), 4)
        for block in found:
            with self.subTest(block=block.splitlines()[0]):
                self.run_block(block)

    def test_pages_agree_about_macs(self) -> None:
        """test_macos_run runs the library of the wheel under qemu, and nobody has run it on a Mac: each page that has one half has both."""
        found = 0
        for page in (SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))):
            for line in page.read_text().splitlines():
                if re.search(r"wheel\b.*(macOS|Macs|Apple silicon).*is built|a wheel.* is built.*(macOS|Macs|Apple silicon)|Apple silicon: a wheel is built", line):
                    found += 1
                    self.assertRegex(line, "run under qemu, (and )?nothing of it on a Mac", f"{page.name}: {line}")
                self.assertNotRegex(line, "Intel Macs: no ", page.name)
        self.assertGreaterEqual(found, 4)  # README.md, python.md and twice requests.md

    def test_every_public_name_has_a_docstring(self) -> None:
        self.assertEqual(unexplained(quire), [])
        listed = set(re.findall(r"`(\w+)(?:\(\))?`", (SOURCE / "docs" / "python.md").read_text()))
        self.assertEqual([name for name in quire.__all__ if name not in listed], [])

    def test_how_it_works(self) -> None:
        found = blocks("how-it-works.md")  # one program
        self.assertEqual(len(found), 5)
        self.run_block("\n".join(found))

    def test_tutorial(self) -> None:
        found = blocks("tutorial.md")
        self.assertEqual(len(found), 5)
        decoder = [line for block in found[1:] for line in block.splitlines() if line.strip()]  # found[0] reads the model file
        self.assertLess(len(decoder), 100, "the page says that it has fewer than 100 lines")
        file = model()
        if not file:
            self.skipTest("no model (scripts/get-models smollm2-135m)")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "model.gguf").symlink_to(file)
            self.run_block("\n".join(found), folder)


if __name__ == "__main__":
    unittest.main()
