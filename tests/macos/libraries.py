#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""libquire and libquire_store for both kinds of Macs (scripts/macos-libraries): what a Mac's loader will say to them, the names that they export, and whether
libSystem has every name that they ask for, by the list of the SDK that comes with the compiler. libquire for Intel Macs is also run, byte for byte, on this machine
beside that of build/release: tests/macos has a loader for it and a part of macOS's libSystem. Exit status 77: they were not built.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "python/tests"))
import macho  # noqa: E402
from trampolines import trampolines  # noqa: E402

# preset: processor, its name in the SDK's lists. Those of 64-bit ARM have all names under that of pointer authentication.
KINDS = {"macos": (macho.ARM64, "arm64e-macos"), "macos-x86_64": (macho.X86_64, "x86_64-macos")}
LIBRARY, STORE, SYSTEM = "libquire.0.2.dylib", "libquire_store.0.2.dylib", "/usr/lib/libSystem.B.dylib"
SYMBOLS = {LIBRARY: ROOT / "src/quire.symbols", STORE: ROOT / "store/quire_store.symbols"}
# Room without a value in OpenSSL's assembler for x86-64: the linker exports it, whatever its table says. Nobody finds it (macho.py).
OF_OPENSSL = {"_OPENSSL_ia32cap_P"}
# Places of the machine that built it, and of Linux.
NEVER = [str(ROOT).encode(), str(Path.home()).encode() + b"/", b"/proc/", b"/sys/", b"/.cache", b".so\0", b"/ziglang", b"GLIBC"]


def file_of(preset, name):
    return ROOT / "build" / preset / "lib" / name


def names_of(target, text):
    """What libSystem and the libraries that it re-exports have, for a target. The list is one document for each library."""
    found = {"dyld_stub_binder"}
    for targets, rest in re.findall(r"- targets: +\[([^]]*)\]\n((?: +[a-z-]+: +\[[^]]*\]\n)+)", text):
        if target in re.split(r"[,\s]+", targets.strip()):
            for names in re.findall(r"symbols: +\[([^]]*)\]", rest):
                found |= {name.strip().strip("'\"") for name in names.split(",")}
    return found


def exports(name):
    return {f"_{line}" for line in SYMBOLS[name].read_text().split("\n") if line and not line.startswith("#")}


class Libraries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tools = subprocess.run([str(ROOT / "scripts/get-zig")], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        cls.sdk = (Path(tools).parent / "lib/libc/darwin/libSystem.tbd").read_text()

    def each(self):
        for preset, (cpu, target) in KINDS.items():
            for name in (LIBRARY, STORE):
                yield preset, cpu, target, name, file_of(preset, name).read_bytes()

    def test_loader(self):
        for _, cpu, target, name, data in self.each():
            m = macho.read(data)
            version = (ROOT / "CMakeLists.txt").read_text().partition("project(quire VERSION ")[2].split()[0]
            self.assertEqual((m.cpu, m.kind, m.ident, m.version), (cpu, macho.DYLIB, f"@rpath/{name}", tuple(map(int, version.split(".")))))
            beside = [f"@rpath/{LIBRARY}"] if name == STORE else []
            wanted = names_of(target, self.sdk) | (exports(LIBRARY) if beside else set())
            self.assertEqual(macho.faults(data, (11, 0), wanted, NEVER, [SYSTEM, *beside], ["@loader_path"] if beside else [], cpu), [])

    def test_exports(self):
        """No name of OpenSSL, SQLite, xxHash or libvalkey comes out: a program can have others of its own."""
        for _, _, _, name, data in self.each():
            self.assertEqual(macho.read(data).exports - macho.OF_THE_LINKER - OF_OPENSSL, exports(name))

    def test_imports(self):
        """The store asks libquire for what it exports, and libSystem for the rest; a few names that show how it works are among them."""
        for preset, _, target, name, data in self.each():
            imports, system = set(macho.read(data).imports), names_of(target, self.sdk)
            own = imports & exports(LIBRARY)
            self.assertEqual(imports - own - system, set())
            if name == STORE:
                self.assertTrue(own)
                self.assertIn("_pthread_cond_timedwait_relative_np", imports)
                self.assertTrue({"_fcntl", "_preadv", "_sysctlbyname"} <= {n.partition("$")[0] for n in imports})

    def test_names_of_the_sdk(self):
        """The list is read as it is meant."""
        for _, target in KINDS.values():
            names = names_of(target, self.sdk)
            self.assertTrue({"_fcntl", "_preadv", "_pthread_cond_timedwait_relative_np", "_CCRandomGenerateBytes", "_fmod", "dyld_stub_binder"} <= names, target)
            self.assertFalse({"_fallocate", "_ppoll", "_fdatasync_np", "_sync_file_range", "_pthread_condattr_setclock", "_posix_fadvise", ""} & names)
        self.assertIn("_fstat$INODE64", names_of("x86_64-macos", self.sdk))
        self.assertNotIn("_fstat$INODE64", names_of("arm64e-macos", self.sdk))


def build(here, source):
    """Two programs of one source: mac with the library for Intel Macs, linux with that of build/release."""
    tests, libraries = ROOT / "tests/macos", ROOT / "build/release/lib"
    (here / "trampolines.S").write_text(trampolines(sorted(name[1:] for name in exports(LIBRARY)), "x86_64"))
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    subprocess.run(["gcc", *flags, "-static", *(str(tests / name) for name in ("loader.c", "system.c", source)), str(here / "trampolines.S"),
                    "-o", str(here / "mac"), "-lm", "-lpthread"], check=True)
    subprocess.run(["gcc", *flags, str(tests / source), str(libraries / "libquire.so"), f"-Wl,-rpath,{libraries}", "-o", str(here / "linux")],
                   check=True)


class Run(unittest.TestCase):
    """libquire for Intel Macs on an x86-64 Linux: the same instructions, with another system below."""

    @classmethod
    def setUpClass(cls):
        if os.uname().machine != "x86_64" or not shutil.which("gcc"):
            raise unittest.SkipTest("no x86-64 processor or no gcc here")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        build(Path(cls.folder.name), "work.c")

    def work(self, program, isa, *arguments):
        env = {**os.environ, "QUIRE_DYLIB": str(file_of("macos-x86_64", LIBRARY)), "QUIRE_ISA": isa}
        return subprocess.run([str(Path(self.folder.name) / program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def test_the_same_bits(self):
        """Stored bytes are those of C on Linux; outputs, which depend on the instruction set, those of the same one on Linux."""
        for isa in ("c", "avx2"):
            with self.subTest(isa=isa):
                mac, linux = self.work("mac", isa), self.work("linux", isa)
                self.assertEqual((mac.returncode, linux.returncode), (0, 0), mac.stdout[-300:] + mac.stderr + linux.stderr)
                self.assertEqual(mac.stdout, linux.stdout)
                self.assertGreater(mac.stdout.count("bytes "), 40)
                renewed, preferred = map(int, re.findall(r"renewed (\d+) preferred (\d+)", mac.stderr)[0])
                self.assertGreater(renewed, 10)  # memory that was given back
                self.assertEqual(preferred, 2)  # threads beside the caller

    def test_levels(self):
        """Without a wish it takes what the processor and the system have."""
        done = self.work("mac", "", "1000", "999")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^isa (c|avx2|avxvnni|avx512vnni|avx512vbmi)\n")  # AMX is asked for in Linux's way only


if __name__ == "__main__":
    if not all(file_of(preset, name).exists() for preset in KINDS for name in (LIBRARY, STORE)):
        print("not built: scripts/macos-libraries")
        sys.exit(77)
    unittest.main()
