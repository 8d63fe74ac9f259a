# SPDX-License-Identifier: MIT
"""A wheel of a release for Linux: what its files ask of the system, what they offer, and where they were built.

    tests/system/wheel.py WHEEL
"""
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import hardening
import licences
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_DT_FLAGS_1
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).resolve().parent.parent.parent
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
GLIBC = (2, 28)
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
EXPORTS = {"libquire.so.0.2": "src/quire.symbols", "libquire_store.so.0.2": "store/quire_store.symbols"}
# Places of the machine that built it.
NEVER = [os.fsencode(ROOT), os.fsencode(Path.home()) + b"/", b"linux-wheel.", b"store-libraries", b"ziglang", b"/zig-"]


def faults(path, machine):
    """What is wrong with one file, and the newest version of glibc that it asks for."""
    data, newest = path.read_bytes(), (0, 0)
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        if elf.header["e_machine"] != MACHINES[machine]:
            yield f"is for {elf.header['e_machine']}"
        dynamic = elf.get_section_by_name(".dynamic")
        own = {p.name for p in path.parent.iterdir()}
        for tag in dynamic.iter_tags():
            if tag.entry.d_tag == "DT_NEEDED" and tag.needed not in SYSTEM | own:
                yield f"needs {tag.needed}"
            if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH") and not re.fullmatch(r"\$ORIGIN(/\.\./lib)?", getattr(tag, "runpath", None) or tag.rpath):
                yield "looks for libraries in other places"
        flags = [tag.entry.d_val for tag in dynamic.iter_tags("DT_FLAGS_1")]
        if path.name.startswith("libquire_store.so") and not any(f & ENUM_DT_FLAGS_1["DF_1_NODELETE"] for f in flags):
            yield "can be unloaded, and OpenSSL inside of it cannot"
        for section in elf.iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, versions in section.iter_versions():
                    for version in versions:
                        if found := re.fullmatch(r"GLIBC_([\d.]+)", version.name):
                            newest = max(newest, tuple(map(int, found.group(1).split("."))))
        if newest > GLIBC:
            yield f"needs glibc {'.'.join(map(str, newest))}"
        offered = {s.name for s in elf.get_section_by_name(".dynsym").iter_symbols()
                   if s.name and s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")}
        if path.name in EXPORTS:
            wanted = {line for line in (ROOT / EXPORTS[path.name]).read_text().split() if line.startswith("quire_")}
            if offered != wanted:
                yield f"offers {sorted(offered ^ wanted)[:5]} otherwise than {EXPORTS[path.name]}"
        elif path.name == "libggml-quire.so" and offered != {"ggml_backend_init"}:
            yield f"offers {sorted(offered)[:5]}"
        if elf.get_section_by_name(".symtab") or elf.get_section_by_name(".debug_info"):
            yield "has symbols for debuggers"
    yield from hardening.faults(path)
    for place in NEVER:
        if place in data:
            yield f"names a place of the machine that built it: {place.decode()}"


def main():
    wheel = Path(sys.argv[1])
    machine = re.fullmatch(r"quire-[0-9.]+-py3-none-manylinux_2_28_(\w+)\.whl", wheel.name).group(1)
    wrong, files = [], 0
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
                files += 1
                wrong += [f"{path.name}: {fault}" for fault in faults(path, machine)]
        texts = {p.name for p in Path(folder, "quire/licences").iterdir()}
        if texts != {"openssl", "sqlite3", "xxhash", "libvalkey", "libraries.tsv"} or not all(p.stat().st_size for p in Path(folder, "quire/licences").iterdir()):
            wrong.append(f"licences: {sorted(texts)}")
        versions = {name: version for name, version, *_ in licences.table("Versions of what is built in")}
        for line in Path(folder, "quire/licences/libraries.tsv").read_text().splitlines():
            name, version = line.split("\t")[:2]
            if versions.get({"openssl": "OpenSSL", "sqlite3": "SQLite", "xxhash": "xxHash"}[name]) != version:
                wrong.append(f"{name} {version} is another than that of docs/licences.md")
        metadata, = Path(folder).glob("*.dist-info/METADATA")
        if f"\nLicense-Expression: {licences.expression('`manylinux_2_28`')}\n" not in metadata.read_text():
            wrong.append("its licence is another than that of docs/licences.md")
    said = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    tag = re.search(r'following platform tag:\s+"([\w.]+)"', said) or re.search(r'"(manylinux_\w+)"', said)
    versions = tuple(map(int, re.findall(r"\d+", tag.group(1))[:2])) if tag else None
    if not tag or not tag.group(1).startswith("manylinux_") or versions > GLIBC:
        wrong.append(f"auditwheel: {said.strip()}")
    print("\n".join(wrong) or f"auditwheel: {tag.group(1)}; {files} compiled files, {wheel.stat().st_size / 1e6:.1f} MB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
