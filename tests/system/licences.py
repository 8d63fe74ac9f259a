#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""docs/licences.md: its versions are those of the scripts, its licences those of the packages, and nothing in the source is missing in it."""
import hashlib
import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/licences.md").read_text()
# Of the words of the licence texts in packaging/debian/copyright, as their authors published them: SHA-256.
WORDS = {"CC-BY-SA-3.0": "0a9fac48bdb081c4258265339f9218ad059ed47ed3c789d8cfbce5574d876743", "Expat": "fe2a9817987f862eaced948f0468c7f51d2fedfc48c5c505b246a49a3870e9a5"}


def table(heading):
    rows = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S).group(1)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines() if row.startswith("| ")][1:]


def expression(name):
    """The licence of a file of a release, as the page has it. name: as in its first column"""
    found = [licence.strip("` ") for files, licence in table("Files of a release") if name in files]
    return found[0] if len(found) == 1 else found


def text(path):
    return (ROOT / path).read_text()


def one(pattern, path):
    return re.search(pattern, text(path), re.M).group(1)


def stanzas():
    """Those of packaging/debian/copyright: {first field: words of its value, other fields}."""
    return [dict(re.findall(r"^(\S+): ((?:.*\n)(?:[ \t].*\n?)*)", part + "\n", re.M)) for part in text("packaging/debian/copyright").split("\n\n")]


def licence_text(name):
    """Its words; a dot alone stands for an empty line."""
    value, = [s["License"] for s in stanzas() if "License" in s and "Files" not in s and s["License"].split("\n")[0] == name]
    return [word for line in value.splitlines()[1:] if line.strip() != "." for word in line.split()]


def pieces(words, n=8):
    return {tuple(words[i:i + n]) for i in range(len(words) - n + 1)}


class Versions(unittest.TestCase):
    def setUp(self):
        self.rows = {name: (version, source) for name, version, source, _ in table("Versions of what is built in")}

    def test_libvalkey(self):
        version, source = self.rows["libvalkey"]
        self.assertIn(f"Python package libvalkey {one(r'^version=(.*)$', 'scripts/get-libvalkey')} ", source)
        done = subprocess.run([str(ROOT / "scripts/get-libvalkey")], env={**os.environ, "QUIRE_OFFLINE": "1"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if done.returncode == 0:  # else a library of the system is used
            header = (Path(done.stdout.strip()) / "include/valkey/valkey.h").read_text()
            self.assertEqual(version, ".".join(re.search(rf"^#define LIBVALKEY_VERSION_{part}\s+(\d+)", header, re.M).group(1) for part in ("MAJOR", "MINOR", "PATCH")))

    def test_yyjson(self):
        header = "third_party/yyjson/yyjson.h"
        self.assertEqual(self.rows["yyjson"][0], ".".join(one(rf"^#define YYJSON_VERSION_{part}\s+(\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")))

    def test_libraries_of_the_store(self):
        """The script compares what it says with the sources that it compiles."""
        script = "scripts/get-store-libraries"
        crates = re.findall(r"^(openssl|sqlite|xxhash)=\((\S+) (\S+) [0-9a-f]{64}\)$", text(script), re.M)
        said = dict(pair.split() for pair in one(r"^expected='(.*)'", script).split(", "))
        self.assertEqual({"openssl", "sqlite", "xxhash"}, {name for name, *_ in crates})
        for name, crate, version in crates:
            row = self.rows[{"openssl": "OpenSSL", "sqlite": "SQLite", "xxhash": "xxHash"}[name]]
            self.assertEqual(row, (said["sqlite3" if name == "sqlite" else name], f"crate {crate} {version} (`{script}`)"))
        self.assertEqual(set(self.rows), {"libvalkey", "yyjson", "OpenSSL", "SQLite", "xxHash"})

    def test_compiler(self):
        self.assertIn(f"compiler_rt of Zig {one(r'^version=(.*)$', 'scripts/get-zig')} |", PAGE)


class Expressions(unittest.TestCase):
    def test_python(self):
        self.assertEqual(one(r'^license = "(.*)"', "pyproject.toml"), expression("`quire-V.tar.gz`"))
        self.assertEqual(one(r'^license = "(.*)"', "plugins/vllm/pyproject.toml"), expression("`quire-vllm`"))
        for path in re.findall(r'"([^"]+)"', one(r"^license-files = \[(.*)\]", "pyproject.toml")):
            self.assertTrue((ROOT / path).is_file(), path)
        self.assertIn('"eval/text/README.md"', one(r"^license-files = (.*)", "pyproject.toml"))
        self.assertEqual(text("plugins/vllm/LICENSE"), text("LICENSE"))

    def test_recipes(self):
        self.assertEqual(one(r"^  license: (.*)$", "packaging/conda/recipe.yaml.in"), expression("conda recipe"))
        parts = re.findall(r'"([^"]+)"|:(public_domain)', one(r"^  license all_of: \[(.*)\]", "packaging/homebrew/quire.rb.in"))
        self.assertEqual([a or "LicenseRef-public-domain" for a, _ in parts], expression("Homebrew").split(" AND "))

    def test_every_part_is_in_the_archive(self):
        """The licences of the second table, as those of everything that is committed."""
        words = {"Apache-2.0", "CC-BY-SA-3.0", "MIT"} | {"LicenseRef-public-domain"}
        self.assertEqual(set(expression("`quire-V.tar.xz`").split(" AND ")), words)


class Texts(unittest.TestCase):
    def test_debian(self):
        """The texts are whole and nobody's own words."""
        for name, digest in WORDS.items():
            self.assertEqual(hashlib.sha256(" ".join(licence_text(name)).encode()).hexdigest(), digest, name)
        done = subprocess.run([str(ROOT / "scripts/get-libvalkey")], env={**os.environ, "QUIRE_OFFLINE": "1"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if done.returncode == 0:
            copying = " ".join((Path(done.stdout.strip()) / "COPYING").read_text().split())
            for name in ("BSD-3-Clause", "BSD-3-Clause-Redis"):
                self.assertIn(" ".join(licence_text(name)), copying, name)
            self.assertEqual(copying.count("Redistribution and use"), 2)

    def test_passages_of_others(self):
        """Files that have eight words in a row of the texts of eval/text are in the page and in Debian's list."""
        others = set()
        for name in ("wiki", "moby", "plays"):
            others |= pieces(re.sub(r"\W+", " ", text(f"eval/text/{name}.txt")).lower().split())
        named = [word for s in stanzas() if s.get("License", "").startswith(("CC-BY-SA-3.0", "public-domain")) for word in s.get("Files", "").split()]
        self.assertIn("tests/serve/bodies/*.jsonl", named)
        found = 0
        for folder in ("docs", "eval", "examples", "python", "src", "store", "tests", "tools"):
            for path in (ROOT / folder).rglob("*"):
                if not path.is_file() or path.suffix in (".gold", ".pyc", ".gz"):
                    continue
                words = re.sub(r"\W+", " ", path.read_bytes().decode(errors="replace").replace("\\n", " ")).lower().split()
                if pieces(words) & others:
                    found += 1
                    self.assertTrue(any(path.relative_to(ROOT).match(pattern) for pattern in named), f"{path} has passages of eval/text and is not named")
        self.assertGreater(found, 6)
        for name in named:
            self.assertIn(f"`{name}`", PAGE)


if __name__ == "__main__":
    unittest.main()
