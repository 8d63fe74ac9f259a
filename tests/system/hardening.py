# SPDX-License-Identifier: MIT
"""What makes faults in compiled files harder to use: relocations that become read-only before a program begins, a stack that cannot be executed,
programs that are loaded at any address, the compiler's check of the stack and the checked functions of libc.

    tests/system/hardening.py FILE...         packages (.deb), wheels (.whl) or compiled files
    tests/system/hardening.py --flags FOLDER  the same of a small project, compiled into FOLDER with the flags that scripts/release takes for packages
                                              and for wheels, and with flags that switch everything off, which must be seen
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parent.parent.parent
# With -D_FORTIFY_SOURCE calls of these become calls of __NAME_chk, where the compiler knows the size of what is written. A file that has none was
# compiled without it.
CHECKED = {"printf", "fprintf", "dprintf", "sprintf", "snprintf", "vprintf", "vfprintf", "vdprintf", "vsprintf", "vsnprintf"}
EXECUTE, WRITE = 1, 2  # of p_flags
NOW, NOW_1, TEXTREL = 8, 1, 4  # of DT_FLAGS, DT_FLAGS_1, DT_FLAGS


def faults(path):
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        segments = {s["p_type"]: s for s in elf.iter_segments()}
        if "PT_DYNAMIC" not in segments:
            return ["is linked statically"]
        tags = {t.entry.d_tag: t.entry.d_val for t in segments["PT_DYNAMIC"].iter_tags()}
        names = {s.name for s in elf.get_section_by_name(".dynsym").iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}
        flags = tags.get("DT_FLAGS", 0)
        checks = {
            "has no read-only relocations (-z relro)": "PT_GNU_RELRO" in segments,
            "is not bound at the start (-z now)": "DT_BIND_NOW" in tags or flags & NOW or tags.get("DT_FLAGS_1", 0) & NOW_1,
            "has a stack that can be executed": "PT_GNU_STACK" in segments and not segments["PT_GNU_STACK"]["p_flags"] & EXECUTE,
            "has memory that can be written and executed": not any(s["p_flags"] & WRITE and s["p_flags"] & EXECUTE for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"),
            "relocates its code": "DT_TEXTREL" not in tags and not flags & TEXTREL,
            "is a program for fixed addresses (-pie)": elf["e_type"] == "ET_DYN",
            "does not check its stack (-fstack-protector-strong)": "__stack_chk_fail" in names,
            "calls no checked functions of libc (-D_FORTIFY_SOURCE)": not names & CHECKED or any(re.fullmatch(r"__\w+_chk", n) for n in names),
        }
    return [text for text, right in checks.items() if not right]


def compiled(path, folder):
    """The compiled files in a package or a wheel, unpacked."""
    if path.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(path), folder], check=True)
    elif path.suffix == ".whl":
        with zipfile.ZipFile(path) as file:
            file.extractall(folder)
    else:
        return [path]
    return sorted(p for p in Path(folder).rglob("*") if p.is_file() and not p.is_symlink() and p.open("rb").read(4) == b"\x7fELF")


def check(paths):
    wrong, n = [], 0
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            for file in compiled(path, folder):
                n += 1
                wrong += [f"{path.name}: {file.name} {fault}" for fault in faults(file)]
    return wrong, n


PROJECT = """cmake_minimum_required(VERSION 3.21)
project(small LANGUAGES C)
set(CMAKE_C_FLAGS_RELEASE "-O3 -g -DNDEBUG")
add_library(object OBJECT part.c)
set_target_properties(object PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(shared SHARED $<TARGET_OBJECTS:object>)
add_library(module MODULE $<TARGET_OBJECTS:object>)
add_executable(program program.c part.c)
"""
PART = """#include <stdio.h>
#include <string.h>
int part(const char *text, size_t n)
{
    char copy[64];
    memcpy(copy, text, n);
    return printf("%.*s\\n", (int)n, copy);
}
"""
PROGRAM = """#include <string.h>
int part(const char *text, size_t n);
int main(int n, char **words) { return part(words[n - 1], strlen(words[n - 1])) < 0; }
"""


def build(folder, name, env, *options):
    build_dir = folder / name
    for command in (["cmake", "-S", str(folder / "source"), "-B", str(build_dir), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *options], ["cmake", "--build", str(build_dir)]):
        done = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{name}: {done.stdout[-2000:]}")
    return [build_dir / n for n in ("libshared.so", "libmodule.so", "program")]


def flags_of(architecture):
    done = subprocess.run([str(ROOT / "scripts/debian-flags"), architecture], stdout=subprocess.PIPE, text=True)
    if done.returncode == 3:
        sys.exit(77)
    return dict(word.split("=", 1) for line in done.stdout.splitlines() for word in shlex.split(line)[1:])


def have(*command):
    """Its last line, if an earlier run has fetched it."""
    done = subprocess.run(command, env={**os.environ, "QUIRE_OFFLINE": "1"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.returncode == 0


def try_flags(folder):
    source = folder / "source"
    source.mkdir(parents=True)
    for name, text in (("CMakeLists.txt", PROJECT), ("part.c", PART), ("program.c", PROGRAM)):
        (source / name).write_text(text)
    native = subprocess.run(["dpkg", "--print-architecture"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    builds = {f"packages for {native}": (flags_of(native), "-DCMAKE_C_COMPILER=gcc")}
    if native == "amd64" and have("aarch64-linux-gnu-gcc", "--version"):
        builds["packages for arm64"] = (flags_of("arm64"), f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/arm64.cmake")
    if have(str(ROOT / "scripts/get-zig")):
        for processor in ("x86_64", "aarch64"):
            builds[f"wheels for {processor}"] = ({"CFLAGS": "", "LDFLAGS": ""}, f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/manylinux.cmake", f"-DQUIRE_PROCESSOR={processor}")
    wrong = []
    for name, (env, *options) in builds.items():
        wrong += [f"{name}: {fault}" for fault in check(build(folder, name.replace(" ", "-"), env, *options))[0]]
    off = {"CFLAGS": "-fno-stack-protector -U_FORTIFY_SOURCE -fno-pie", "LDFLAGS": "-Wl,-z,norelro -Wl,-z,lazy -Wl,-z,execstack"}
    shared, _, program = build(folder, "off", off, "-DCMAKE_C_COMPILER=gcc", "-DCMAKE_EXE_LINKER_FLAGS_INIT=-no-pie")
    seen = {file.name: len(faults(file)) for file in (shared, program)}
    if seen != {"libshared.so": 5, "program": 6}:
        wrong.append(f"with everything switched off it counts {seen}")
    return wrong, ", ".join(builds)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--flags":
        wrong, said = try_flags(Path(sys.argv[2]).resolve())
    elif len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        wrong, said = check([Path(word) for word in sys.argv[1:]])
        if not said:
            wrong.append("no compiled file in them")
        said = f"{said} compiled files"
    else:
        sys.exit(__doc__.strip())
    print("\n".join(wrong) or f"hardened: {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
