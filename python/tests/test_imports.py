# SPDX-License-Identifier: MIT
"""scripts/check-imports on made modules, and the names that the documented modules of the package offer."""

from __future__ import annotations

import importlib
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Dict, Tuple

from support import SOURCE

import quire


def check(files: Dict[str, str]) -> Tuple[int, str]:
    """The exit status and the output of the script for these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, str(SOURCE / "scripts" / "check-imports"), *(f"{folder}={folder}/{name}" for name in files)],
                              stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


class Circles(unittest.TestCase):
    def test_every_kind_of_import_counts(self) -> None:
        for text in ("import b\n", "from b import x\n", "def f():\n    import b\n", "import b.x\n",
                     "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import x\n"):
            with self.subTest(text=text):
                status, said = check({"a.py": text, "b.py": "import a\n"})
                self.assertEqual(status, 1)
                self.assertIn("circle: a -> b -> a", said)

    def test_relative_imports(self) -> None:
        for text in ("from .b import x\n", "from . import b\n", "from ..p import b\n", "from ..p.b import x\n"):
            with self.subTest(text=text):
                status, said = check({"p/__init__.py": "", "p/a.py": text, "p/b.py": "from p.a import y\n"})
                self.assertEqual(status, 1)
                self.assertIn("circle: p.a -> p.b -> p.a", said)

    def test_through_others(self) -> None:
        status, said = check({"a.py": "import b", "b.py": "\nimport c", "c.py": "import d, a", "d.py": ""})
        self.assertEqual(status, 1)
        self.assertEqual(said.count("circle:"), 1)
        self.assertRegex(said, r"circle: a -> b -> c -> a \(.*a\.py:1, .*b\.py:2, .*c\.py:1\)")

    def test_package_that_imports_its_modules(self) -> None:
        files = {"p/__init__.py": "from .a import x\n", "p/a.py": "from . import b\nimport json\n", "p/b.py": "x = 1\n"}
        self.assertEqual(check(files), (0, ""))
        status, said = check({**files, "p/b.py": "from . import x\n"})  # of the package itself
        self.assertEqual(status, 1)
        self.assertIn("p -> p.a -> p.b -> p", said)

    def test_a_file_that_is_no_python(self) -> None:
        self.assertEqual(check({"a.py": "import\n"})[0], 2)


class Names(unittest.TestCase):
    def test_documented_modules(self) -> None:
        """Every name in the table of docs/python.md can be imported from its module and is that of the package."""
        rows = re.findall(r"^\| `(quire\.\w+)` \| (.*) \|$", (SOURCE / "docs" / "python.md").read_text(), re.M)
        self.assertGreater(len(rows), 10)
        for module, text in rows:
            names = [name for name in re.findall(r"`(\w+)(?:\(\))?`", text) if name in quire.__all__]
            self.assertTrue(names, module)
            for name in names:
                with self.subTest(module=module, name=name):
                    self.assertIs(getattr(importlib.import_module(module), name), getattr(quire, name))


if __name__ == "__main__":
    unittest.main()
