#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The folder packaging/oss-fuzz: its files, and with --build what build.sh makes when it gets the variables of OSS-Fuzz."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging/oss-fuzz"
TARGETS = sorted(f"fuzz_{path.stem}" for path in (ROOT / "tests/fuzz").glob("*.c"))
# What the machine that runs targets has: libc and what clang's own libraries need.
SYSTEM = re.compile(r"linux-vdso|ld-linux|libc\.so|libm\.so|libdl\.so|librt\.so|libpthread\.so|libresolv\.so|libgcc_s\.so|libstdc\+\+\.so")
RUNS = 200  # of each target, after its seeds


class Files(unittest.TestCase):
    def test_project(self):
        text = (FOLDER / "project.yaml").read_text()
        for key in ("homepage", "language", "main_repo", "primary_contact", "fuzzing_engines", "sanitizers"):
            self.assertRegex(text, rf"(?m)^{key}:", key)
        self.assertRegex(text, r"(?m)^language: c$")

    def test_packages(self):
        """The container installs what configuring needs, except for what it has anyway."""
        text = (FOLDER / "Dockerfile").read_text()
        for package in ("libcmocka-dev", "libsqlite3-dev", "libssl-dev", "libxxhash-dev", "libmicrohttpd-dev", "libcurl4-openssl-dev"):
            self.assertIn(package, text)
        # The default image is older than what the store and quire serve need; both files name the newer one.
        image = re.search(r"(?m)^FROM \S+/base-builder:(\S+)$", text).group(1)
        self.assertRegex((FOLDER / "project.yaml").read_text(), rf"(?m)^base_os_version: {image}\b")

    def test_parts(self):
        """Nothing that has fuzz targets is left out in silence."""
        text = (FOLDER / "build.sh").read_text()
        for option in ("-DQUIRE_STORE=ON", "-DQUIRE_SERVE=ON"):
            self.assertIn(option, text)

    def test_shell(self):
        self.assertEqual(subprocess.run(["bash", "-n", str(FOLDER / "build.sh")]).returncode, 0)
        self.assertTrue(os.access(FOLDER / "build.sh", os.X_OK))

    def test_seeds(self):
        """Every target has some: the engines begin with them."""
        for target in TARGETS:
            self.assertTrue(any((ROOT / "tests/fuzz/corpus" / target[5:]).iterdir()), target)


# In place of cmake: it configures, and where it would build it writes down how a target would be.
NO_BUILD = """#!/bin/sh
[ "$1" = --build ] || exec {cmake} "$@"
ninja -C "$2" -t commands fuzz_gguf >"$WORK/commands"
"""


class Commands(unittest.TestCase):
    def test_link(self):
        """A target is linked, with the engine and without libraries that only tests use."""
        for program in ("clang", "clang++", "cmake", "ninja"):
            if not shutil.which(program):
                self.skipTest(f"no {program} here")
        with tempfile.TemporaryDirectory() as folder:
            stub = Path(folder, "bin/cmake")
            stub.parent.mkdir()
            stub.write_text(NO_BUILD.format(cmake=shutil.which("cmake")))
            stub.chmod(0o755)
            env = {**os.environ, "CC": "clang", "CXX": "clang++", "CFLAGS": "-O1", "CXXFLAGS": "-O1", "LIB_FUZZING_ENGINE": "-fsanitize=fuzzer", "QUIRE_SOURCE": str(ROOT),
                   "SRC": str(ROOT.parent), "WORK": folder, "OUT": folder, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
            done = subprocess.run([str(FOLDER / "build.sh")], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if lacks := re.search(r"QUIRE_(?:STORE|SERVE)=ON: .*", done.stdout):
                self.skipTest(lacks.group())
            self.assertTrue(Path(folder, "commands").exists(), done.stdout[-2000:])
            link = Path(folder, "commands").read_text().splitlines()[-1]
        self.assertRegex(link, r"clang\+\+ .*-Wl,--as-needed .*-o bin/fuzz_gguf .*-fsanitize=fuzzer\b")


class Build:
    """Takes minutes: a test only with --build."""

    def test_build(self):
        for program in ("clang", "clang++", "ninja"):
            if not shutil.which(program):
                self.skipTest(f"no {program} here")
        work = ROOT / "build/oss-fuzz" / "work"
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as out:
            flags = "-O1 -fno-omit-frame-pointer -gline-tables-only -fsanitize=address -fsanitize-address-use-after-scope -fsanitize=fuzzer-no-link"
            env = {**os.environ, "CC": "clang", "CXX": "clang++", "CFLAGS": flags, "CXXFLAGS": flags, "LIB_FUZZING_ENGINE": "-fsanitize=fuzzer",
                   "SRC": str(ROOT.parent), "QUIRE_SOURCE": str(ROOT), "WORK": str(work), "OUT": out}
            subprocess.run([str(FOLDER / "build.sh")], check=True, env=env, cwd=out)
            self.assertEqual(sorted(p.name for p in Path(out).iterdir() if p.suffix != ".zip"), TARGETS)
            for target in TARGETS:
                with self.subTest(target=target):
                    self.start(Path(out), target)

    def start(self, out, target):
        """As OSS-Fuzz does: the seeds unpacked, nothing else of this machine."""
        needed = subprocess.run(["ldd", str(out / target)], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual([line for line in needed.splitlines() if not SYSTEM.search(line)], [])
        with tempfile.TemporaryDirectory() as seeds:
            with zipfile.ZipFile(out / f"{target}_seed_corpus.zip") as file:
                file.extractall(seeds)
                n = len(file.namelist())
            done = subprocess.run([str(out / target), f"-runs={n + RUNS}", "-seed=1", seeds], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  cwd=seeds)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:])
        self.assertIn("INITED cov:", done.stdout)  # the code itself is instrumented
        print(f"{target}: {re.findall(r'cov: [0-9]+', done.stdout)[-1]}", flush=True)


if "--build" in sys.argv:

    class Built(Build, unittest.TestCase):
        pass


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--build"])
