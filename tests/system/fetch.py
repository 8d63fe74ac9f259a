# SPDX-License-Identifier: MIT
"""Source packages that pip fetches for scripts/get-...: nothing of a file with another sum is run, and the script ends with status 1, not with 3 ("not
available here"), after which a build would go on without it."""
import hashlib
import io
import os
import re
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What pip runs of a source package to find out its name. It needs no other package.
BACKEND = """import os
open(os.environ["RAN"], "w").close()
def get_requires_for_build_wheel(config_settings=None): return []
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "NAME-VERSION.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: NAME\\nVersion: VERSION\\n")
    return name
def build_wheel(folder, config_settings=None, metadata_directory=None): raise RuntimeError
"""
PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "NAME"
version = "VERSION"
"""


PARTS = (("backend.py", BACKEND), ("pyproject.toml", PROJECT), ("PKG-INFO", "Metadata-Version: 2.1\nName: NAME\nVersion: VERSION\n"))


def make_package(folder, name, version, parts=PARTS):
    """The file."""
    place = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(place, "w:gz") as package:
        for path, text in parts:
            data = text.replace("NAME", name).replace("VERSION", version).encode()
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(data)
            package.addfile(entry, io.BytesIO(data))
    return place


def version_of(script):
    return re.search(r"^version=(.*)$", (ROOT / "scripts" / script).read_text(), re.M)[1]


def run(home, script, *arguments):
    """A script that gets packages from this folder only. home/ran: something of them was run."""
    return subprocess.run([str(script), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                          env={**{k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "QUIRE_"))}, "QUIRE_CACHE": str(home / "cache"),
                               "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(home), "RAN": str(home / "ran")})


class Fetch(unittest.TestCase):
    def refused(self, script, name, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            make_package(home, name, version_of(script))
            done = run(home, ROOT / "scripts" / script, *arguments)
            self.assertFalse((home / "ran").exists(), "a file with another sum was run")
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)

    def test_libvalkey(self):
        self.refused("get-libvalkey", "libvalkey")

    def test_libvalkey_runs_nothing(self):
        """With the right sum too nothing of the package is run, and no build backend is fetched for it. Like the real one it has no pyproject.toml."""
        setup = 'import os\nopen(os.environ["RAN"], "w").close()\nfrom setuptools import setup\nsetup(name="NAME", version="VERSION")\n'
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            for name in ("setuptools", "wheel"):
                make_package(home, name, "99.0")
            package = make_package(home, "libvalkey", version_of("get-libvalkey"),
                                   (("setup.py", setup), PARTS[2], ("vendor/libvalkey/include/valkey/valkey.h", "")))
            script = home / "get-libvalkey"
            text = (ROOT / "scripts/get-libvalkey").read_text()
            script.write_text(re.sub(r"^sha256=.*$", f"sha256={hashlib.sha256(package.read_bytes()).hexdigest()}", text, flags=re.M))
            script.chmod(0o755)
            done = run(home, script)
            self.assertFalse((home / "ran").exists(), "something was run")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((Path(done.stdout.strip()) / "include/valkey/valkey.h").exists(), done.stdout)

    def test_llama_python(self):
        self.refused("get-llama-python", "llama_cpp_python", "--source")


if __name__ == "__main__":
    unittest.main(verbosity=2)
