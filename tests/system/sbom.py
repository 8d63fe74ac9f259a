# SPDX-License-Identifier: MIT
"""The list of contents of a release: whether it is SPDX, names every file with its sum, and tells the versions that the files themselves tell.

    tests/system/sbom.py FOLDER
"""
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

import licences
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

# Libraries whose version stands in what they are compiled into. xxHash and libvalkey do not say it.
SPEAKS = ("openssl", "sqlite3")


# The parts of names of files that are rows of docs/licences.md.
ROWS = {r"quire-[\d.]+\.tar\.xz": "`quire-V.tar.xz`", r"quire-[\d.]+\.tar\.gz": "`quire-V.tar.gz`", r"quire-.*manylinux.*\.whl": "`manylinux_2_28`", r"quire-.*macosx.*\.whl": "for macOS",
        r"quire_vllm-.*\.whl": "`quire-vllm`", r"quire_.*\.deb": "`quire` (Debian package)", r"(libquire|quire-llama)[^_]*_.*\.deb": None}


def wrong_licences(file, row):
    """licenseDeclared is the row of the page; licenseConcluded has all of it."""
    key = next((name or f"`{file.name.partition('_')[0]}`" for pattern, name in ROWS.items() if re.fullmatch(pattern, file.name)), file.name)
    declared, concluded = row.get("licenseDeclared", ""), row.get("licenseConcluded", "")
    if declared != licences.expression(key):
        yield f"{file.name}: the list says {declared}, docs/licences.md {licences.expression(key)}"
    if not set(declared.split(" AND ")) <= set(concluded.split(" AND ")):
        yield f"{file.name}: {concluded} lacks a part of {declared}"
    by_gcc = file.name.startswith("quire_vllm-") or file.suffix == ".deb" and "-dev_" not in file.name
    if by_gcc != ("GCC-exception-3.1" in concluded):
        yield f"{file.name}: {concluded} has parts of another compiler"


def main():
    folder = Path(sys.argv[1])
    path, = folder.glob("*.spdx.json")
    wrong = [f"{m.context.spdx_id}: {m.validation_message}" for m in validate_full_spdx_document(parse_file(str(path)))]
    document = json.loads(path.read_text())
    packages = {p["SPDXID"]: p for p in document["packages"]}
    files = {p["packageFileName"]: p for p in packages.values() if "packageFileName" in p}
    shipped = [p for p in folder.iterdir() if p.name.endswith((".whl", ".deb", ".tar.xz", ".tar.gz"))]
    for file in shipped:
        sums = [c["checksumValue"] for c in files.get(file.name, {}).get("checksums", [])]
        if sums != [hashlib.sha256(file.read_bytes()).hexdigest()]:
            wrong.append(f"{file.name} is not listed, or with another sum")
        wrong += wrong_licences(file, files.get(file.name, {}))
    linked = {}
    for r in document["relationships"]:
        if r["relationshipType"] == "STATIC_LINK":
            part = packages[r["relatedSpdxElement"]]
            linked.setdefault(packages[r["spdxElementId"]]["packageFileName"], {})[part["name"]] = part
    for part in (p for parts in linked.values() for p in parts.values()):
        if not part.get("versionInfo") or part["licenseConcluded"] == "NOASSERTION":
            wrong.append(f"{part['name']} has no version or no licence")
    for file in (f for f in shipped if "manylinux" in f.name and f.name.startswith("quire-")):
        with zipfile.ZipFile(file) as wheel:
            compiled = b"".join(wheel.read(n) for n in wheel.namelist() if "/libquire_store.so" in n or n == "quire/bin/quire")
        for name in SPEAKS:
            version = linked[file.name][name]["versionInfo"]
            if not re.search(rb"(?<![\d.])" + re.escape(version.encode()) + rb"(?![\d.])", compiled):
                wrong.append(f"{file.name}: the list says {name} {version}, the compiled files do not")
        if set(linked[file.name]) != {"openssl", "sqlite3", "xxhash", "libvalkey"}:
            wrong.append(f"{file.name}: {sorted(linked[file.name])} are listed as linked in")
    print("\n".join(wrong) or f"SPDX 2.3: {len(shipped)} files, {len(packages) - len(files)} parts and packages that they need")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
