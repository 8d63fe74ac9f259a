# SPDX-License-Identifier: MIT
"""The wheel for macOS: what is in it, what a Mac's loader will say to it, and that it is the same bytes when it is built again.

No Mac runs this. With QUIRE_MACOS_FRESH=1 the second build compiles everything again instead of taking objects from compiler caches.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile
from typing import Dict, List, Set

import macho
from support import SOURCE

TAG = "py3-none-macosx_11_0_arm64"
LIBRARY, COMMAND = "quire/lib/libquire.0.2.dylib", "quire/bin/quire"

# What both ask of libSystem. The stubs of the compiler are those of the newest macOS, so a name that is not here may be missing in macOS 11:
# find out since when it exists before you add it. The youngest are aligned_alloc (10.15) and open_memstream (10.13).
OF_THE_LIBRARY = set("""
    ___memcpy_chk _bzero _calloc _clock_gettime _fmod _free _getenv _memchr _memcmp _memcpy _memmove _memset _memset_pattern16 _mmap _mprotect
    _munmap _posix_memalign _pthread_cond_broadcast _pthread_cond_destroy _pthread_cond_init _pthread_cond_signal _pthread_cond_wait
    _pthread_create _pthread_join _pthread_mutex_destroy _pthread_mutex_init _pthread_mutex_lock _pthread_mutex_trylock _pthread_mutex_unlock
    _pthread_set_qos_class_self_np _sched_yield _snprintf _strcmp _strlen _sysconf _sysctlbyname _vsnprintf dyld_stub_binder
""".split())
OF_THE_COMMAND = OF_THE_LIBRARY | set("""
    __NSGetExecutablePath ___error ___exp10 ___stderrp ___stdinp ___stdoutp __exit _access _alarm _aligned_alloc _bsearch _close _dlerror _dlopen
    _dlsym _dup2 _execv _exp _expf _fclose _ferror _fflush _fgets _fopen _fork _fprintf _fputc _fputs _fread _fseek _fstat _fwrite
    _host_statistics64 _isatty _log _log10 _mach_host_self _mach_port_deallocate _mach_task_self_ _malloc _nanosleep _open _open_memstream _pipe
    _printf _putchar _puts _qsort _read _realloc _realpath _remove _rename _setenv _sscanf _stat _strchr _strcpy _strcspn _strerror _strncmp
    _strrchr _strspn _strstr _strtod _strtoul _strtoull _unsetenv _vfprintf _waitpid
""".split())
IMPORTS: Dict[str, Set[str]] = {LIBRARY: OF_THE_LIBRARY, COMMAND: OF_THE_COMMAND}
# Places of the machine that built it, and of Linux.
NEVER: List[bytes] = [bytes(SOURCE), os.fsencode(pathlib.Path.home()) + b"/", b"/build/", b"/tmp/", b"/proc/", b"/sys/", b"/.cache", b".c.o", b".so\0",
                      b"/ziglang", b"GLIBC"]


def script(name: str, *arguments: str, env: "Dict[str, str] | None" = None) -> str:
    done = subprocess.run([str(SOURCE / "scripts" / name), *arguments], stdout=subprocess.PIPE, text=True, env=env)
    if done.returncode == 3:
        raise unittest.SkipTest(f"scripts/{name} cannot be had here")
    if done.returncode:
        raise RuntimeError(f"scripts/{name} ends with {done.returncode}")
    return done.stdout.strip()


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new):]


class Macos(unittest.TestCase):
    wheel: pathlib.Path
    linux: Dict[str, bytes]
    files: Dict[str, bytes]

    @classmethod
    def setUpClass(cls) -> None:
        cls.wheel, = pathlib.Path(script("python-venv", "--macos")).glob("*.whl")
        with zipfile.ZipFile(cls.wheel) as file:
            cls.files = {name: file.read(name) for name in file.namelist()}
        linux, = pathlib.Path(script("python-venv", "--dist")).glob("*.whl")
        with zipfile.ZipFile(linux) as file:
            cls.linux = {name: file.read(name) for name in file.namelist()}

    def test_names(self) -> None:
        """The files of the wheel for Linux, but for what is compiled, and the store, and what it brings along."""
        self.assertRegex(self.wheel.name, rf"^quire-[0-9.]+-{TAG}\.whl$")
        compiled = [name for name in self.linux if name.startswith(("quire/lib/", "quire/bin/", "quire/licences/"))]
        self.assertEqual(set(self.files), set(self.linux) - set(compiled) | {LIBRARY, COMMAND})
        info = next(name for name in self.files if name.endswith("/METADATA")).partition("/")[0]
        for name in set(self.files) - {LIBRARY, COMMAND, f"{info}/RECORD", f"{info}/WHEEL"}:
            self.assertEqual(self.files[name], self.linux[name], name)
        fields = self.files[f"{info}/WHEEL"].decode().split("\n")
        self.assertIn(f"Tag: {TAG}", fields)
        self.assertEqual([line for line in fields if line.startswith(("Tag:", "Root-Is-Purelib:"))], ["Root-Is-Purelib: false", f"Tag: {TAG}"])
        with zipfile.ZipFile(self.wheel) as file:
            self.assertEqual({i.filename for i in file.infolist() if i.external_attr >> 16 & 0o111}, {LIBRARY, COMMAND})
            self.assertEqual(len({i.date_time for i in file.infolist()}), 1)

    def test_record(self) -> None:
        record = next(name for name in self.files if name.endswith("/RECORD"))
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(self.files[record].decode()))}
        self.assertEqual(set(rows), set(self.files))
        self.assertEqual(rows.pop(record), ("", ""))
        for name, (digest, size) in rows.items():
            own = base64.urlsafe_b64encode(hashlib.sha256(self.files[name]).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, int(size)), (f"sha256={own}", len(self.files[name])), name)

    def test_compiled_files(self) -> None:
        found = {name for name, data in self.files.items() if data[:4] == b"\xcf\xfa\xed\xfe"}
        self.assertEqual(found, {LIBRARY, COMMAND})
        self.assertFalse([name for name, data in self.files.items() if data[:4] == b"\x7fELF" or ".so" in name])
        for name in sorted(found):
            with self.subTest(file=name):
                self.assertEqual(macho.faults(self.files[name], (11, 0), IMPORTS[name], NEVER), [])
        for name, data in self.files.items():
            self.assertFalse([part for part in NEVER[:2] if part in data], name)

    def test_library(self) -> None:
        m = macho.read(self.files[LIBRARY])
        version = (SOURCE / "CMakeLists.txt").read_text().partition("project(quire VERSION ")[2].split()[0]
        self.assertEqual((m.kind, m.ident, m.version), (macho.DYLIB, "@rpath/libquire.0.2.dylib", tuple(map(int, version.split(".")))))
        wanted = {f"_{line}" for line in (SOURCE / "src/quire.symbols").read_text().split("\n") if line and not line.startswith("#")}
        self.assertEqual(m.exports - macho.OF_THE_LINKER, wanted)
        self.assertEqual(macho.read(self.files[COMMAND]).kind, macho.EXECUTE)

    def test_built_again(self) -> None:
        """In another folder."""
        archive, = pathlib.Path(script("python-venv", "--dist")).glob("*.tar.gz")
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ)
            if env.get("QUIRE_MACOS_FRESH") == "1":
                env.update(CCACHE_DISABLE="1", ZIG_GLOBAL_CACHE_DIR=f"{folder}/cache")
            script("macos-wheel", str(archive), f"{folder}/dist", env=env)
            again, = pathlib.Path(folder, "dist").glob("*.whl")
            self.assertEqual(again.name, self.wheel.name)
            self.assertTrue(again.read_bytes() == self.wheel.read_bytes())

    def test_checker(self) -> None:
        """It finds what it is there for."""
        good = self.files[LIBRARY]

        def wrong(data: bytes, sentence: str, never: List[bytes] = NEVER) -> None:
            found = macho.faults(data, (11, 0), IMPORTS[LIBRARY], never)
            self.assertTrue(any(sentence in one for one in found), f"{sentence!r} is not in {found}")

        def command(number: int) -> int:
            at = 32
            while int.from_bytes(good[at:at + 4], "little") != number:
                at += int.from_bytes(good[at + 4:at + 8], "little")
            return at

        wrong(changed(good, len(good) // 2, bytes([good[len(good) // 2] ^ 1])), "does not fit the bytes of page")
        wrong(good[:-1], "not at the end")
        wrong(good + b"\0", "not at the end")
        wrong(good[:1000], "it ends before byte")
        wrong(changed(good, 4, b"\x12"), "not those of Mach-O")  # a PowerPC
        wrong(changed(good, 4, b"\x07"), "it is for processor 0x1000007")
        wrong(changed(good, command(macho.SIGNATURE), b"\x2a"), "not signed")
        wrong(changed(good, command(macho.BUILD) + 12, b"\0\0\x0c\0"), "version (12, 0)")
        wrong(changed(good, command(macho.BUILD) + 8, b"\x02"), "platform 2")
        wrong(changed(good, command(macho.LOAD_DYLIB) + 24, b"/usr/lib/libSomething.dylib\0"), "libSomething")
        wrong(changed(good, command(macho.UUID) + 8, bytes(16)), "no UUID")
        wrong(changed(good, command(macho.SEGMENT) + 60, b"\x07"), "has protection 7")
        wrong(changed(good, command(macho.SEGMENT) + 32, b"\1"), "does not contain its sections")
        wrong(changed(good, command(macho.DYSYMTAB) + 8, b"\1"), "do not follow each other")
        wrong(changed(good, command(macho.FUNCTION_STARTS) + 8, (len(good) - 4).to_bytes(4, "little") + b"\4\0\0\0"), "overlaps something")
        wrong(changed(good, command(macho.ID_DYLIB), b"\x18\0\0\x80"), "other load commands")  # a weak library
        wrong(good.replace(b"_sched_yield\0", b"_sched_yielD\0"), "_sched_yielD")
        wrong(good, "it has the bytes", [b"libquire.0.2.dylib"])

    def test_types(self) -> None:
        """Of the package as it is on a Mac."""
        mypy = pathlib.Path(script("python-venv", "--tools")) / "mypy"
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([str(mypy), "--config-file", str(SOURCE / "pyproject.toml"), "--strict", "--platform", "darwin", "--cache-dir", cache,
                                   "--python-executable", sys.executable, "-p", "quire"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
