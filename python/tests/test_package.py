# SPDX-License-Identifier: MIT
"""The source archive, the wheel that was made from it, and the types of what is installed."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

from support import SOURCE

import quire

# What the files of the wheel may ask of the system. OpenSSL 3 is wanted by the store and the command, not by import quire.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "libssl.so.3", "libcrypto.so.3"}


def script(argument: str) -> pathlib.Path:
    """scripts/python-venv made all of it before this test began."""
    done = subprocess.run([str(SOURCE / "scripts" / "python-venv"), argument], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(done.stdout.strip())


def needed(path: pathlib.Path) -> "set[str]":
    said = subprocess.run(["readelf", "-d", str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", said))


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if pathlib.Path(quire.__file__).is_relative_to(SOURCE):
            raise unittest.SkipTest("the package of the source, not an installed one")
        cls.dist = script("--dist")

    def test_wheel(self) -> None:
        wheel, = self.dist.glob("*.whl")
        self.assertRegex(wheel.name, rf"^quire-{re.escape(quire.__version__)}-py3-none-linux_x86_64\.whl$")
        with zipfile.ZipFile(wheel) as file:
            names = set(file.namelist())
            sizes = sum(i.file_size for i in file.infolist())
            metadata = file.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        wanted = {"lib/libquire.so.0.2", "lib/libquire_store.so.0.2", "lib/libggml-quire.so", "lib/libsqlite3.so.0", "lib/libxxhash.so.0",
                  "bin/quire", "py.typed", "share/quire/eval/text/calibrate.txt", "licences/sqlite3", "licences/xxhash", "licences/libvalkey"}
        self.assertLessEqual({f"quire/{name}" for name in wanted}, names)
        libraries = {name for name in wanted if name.startswith("lib/")}
        self.assertEqual({name for name in names if name.startswith("quire/lib/")}, {f"quire/{name}" for name in libraries})  # each once
        self.assertIn("\nLicense-Expression: MIT AND CC-BY-SA-3.0 AND LicenseRef-public-domain\n", metadata)
        for path in ("LICENSE", "docs/licences.md", "eval/text/README.md"):
            self.assertIn(f"\nLicense-File: {path}\n", metadata)
            self.assertTrue(any(name.endswith(f"licenses/{path}") for name in names), path)
        self.assertFalse([name for name in names if not name.startswith(("quire/", "quire-"))])
        self.assertLess(sizes, 16 << 20)

    def test_what_it_needs_of_the_system(self) -> None:
        home = pathlib.Path(quire.__file__).parent
        own = {path.name for path in (home / "lib").iterdir()}
        for path in (*(home / "lib").iterdir(), home / "bin" / "quire"):
            with self.subTest(file=path.name):
                self.assertLessEqual(needed(path) - own, SYSTEM)
                data = path.read_bytes()
                self.assertNotIn(str(SOURCE).encode(), data)  # nothing of the machine that built it
        for name in ("libquire.so.0.2", "libggml-quire.so"):
            self.assertFalse(needed(home / "lib" / name) & {"libssl.so.3", "libcrypto.so.3"})
        self.assertTrue(os.access(home / "bin" / "quire", os.X_OK))

    def test_without_compilers_and_the_rest_of_the_system(self) -> None:
        """Only what the wheel and the loader bring: an empty PATH, no library path."""
        code = ("import quire, numpy as np; z = np.zeros((1, 2, 64), np.float32)\n"
                "p = quire.Pool(quire.Plan('k8v4', n_q_heads=2, n_kv_heads=2, d_k=64), 1 << 24); s = p.sequence(); s.append(z, z)\n"
                "assert s.attend(z).shape == (1, 2, 64); assert quire.codecs(); quire.command('codecs')\n"
                "import tempfile; quire.Store(tempfile.mkdtemp(), disk_bytes=64 << 20).close(); print(quire.__file__)\n")
        said = subprocess.run([sys.executable, "-I", "-c", code], check=True, stdout=subprocess.PIPE, text=True,
                              env={"PATH": "", "HOME": "/"}, cwd="/").stdout
        self.assertIn("site-packages", said)

    def test_source_archive(self) -> None:
        archive, = self.dist.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            names = {name.partition("/")[2] for name in file.getnames()}
        self.assertLessEqual({"CMakeLists.txt", "pyproject.toml", "LICENSE", "src/cache/pool.c", "store/store.c", "tools/quire.c",
                              "python/quire/__init__.py", "python/CMakeLists.txt", "include/quire/quire.h"}, names)
        self.assertFalse([name for name in names if name.startswith(("build/", "tests/", ".git/"))])

    def test_types(self) -> None:
        mypy = script("--tools") / "mypy"
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([str(mypy), "--config-file", str(SOURCE / "pyproject.toml"), "--strict", "--cache-dir", cache,
                                   "--python-executable", sys.executable, "-p", "quire"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
