# SPDX-License-Identifier: MIT
"""The bundled command, the environment for llama.cpp with a real llama-server, and the examples."""

from __future__ import annotations

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from typing import Any, Dict, Optional

import numpy as np
from support import SOURCE, rows

import quire

EXAMPLES = SOURCE / "examples" / "python"


def offline(script: str, *arguments: str) -> Optional[str]:
    """What a script of this source prints, or None if it is not to be had without a network."""
    done = subprocess.run([str(SOURCE / "scripts" / script), *arguments], env={**os.environ, "QUIRE_OFFLINE": "1"},
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else None


def run(*words: str) -> str:
    return subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout


class Command(unittest.TestCase):
    def test_module_and_function(self) -> None:
        said = run("-m", "quire", "codecs", "--json", "a4g64")
        self.assertIn('"name":"a4g64"', said)
        self.assertEqual(quire.command("codecs", "--json", "a4g64"), said)
        self.assertIn(quire.__version__, run("-m", "quire", "--version"))
        bad = subprocess.run([sys.executable, "-m", "quire", "no-such-command"], stderr=subprocess.PIPE)
        self.assertEqual(bad.returncode, 2)  # the command's own
        with self.assertRaisesRegex(RuntimeError, "no-such-file"):
            quire.command("cache", "show", "no-such-file")

    def test_script(self) -> None:
        script = pathlib.Path(sys.executable).parent / "quire"
        if not script.exists():
            self.skipTest("the package is not installed")
        said = subprocess.run([str(script), "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertIn(quire.__version__, said)

    def test_llama_env(self) -> None:
        environment = quire.llama_env("r8/r4", base={"PATH": os.environ["PATH"]})
        self.assertEqual(environment["QUIRE_KV"], "r8/r4")
        self.assertTrue(os.path.exists(environment["GGML_BACKEND_PATH"]))
        self.assertEqual(set(environment), {"PATH", "QUIRE_KV", "GGML_BACKEND_PATH"})
        with self.assertRaisesRegex(RuntimeError, "k9"):
            quire.llama_env("k9")
        with self.assertRaisesRegex(RuntimeError, "no-such-program"):
            quire.llama_env("r8", program="no-such-program")


class CacheFiles(unittest.TestCase):
    def test_a_file_of_mlx_lm_is_converted(self) -> None:
        """A file as mlx-lm 0.31 writes it for one KVCache layer; the codes that come out are those of encode()."""
        rows_of = {name: rows(seed, 1, 2, 70, 64).astype(np.float16) for name, seed in (("0.0", 1), ("0.1", 2))}
        header: Dict[str, Any] = {"__metadata__": {"0.0": "", "1.model": "none", "2.0": "KVCache"}}
        data = b""
        for name, array in rows_of.items():
            header[name] = {"dtype": "F16", "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
            data += array.tobytes()
        text = json.dumps(header).encode()
        with tempfile.TemporaryDirectory() as folder:
            old, new = (os.path.join(folder, name) for name in ("old.safetensors", "new.safetensors"))
            with open(old, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + data)
            quire.command("cache", "convert", "--to", "a4g64", "--out", new, old)
            self.assertIn("QuantizedKVCache", quire.command("cache", "show", "--json", new))
            with open(new, "rb") as file:
                size, = struct.unpack("<Q", file.read(8))
                made = json.loads(file.read(size))
                data = file.read()
        first, last = made["0.0.0"]["data_offsets"]
        words = np.frombuffer(data[first:last], np.uint32).reshape(made["0.0.0"]["shape"])
        with quire.Format("a4g64", 64) as form:
            self.assertTrue((words == form.encode_mlx(rows_of["0.0"]).words).all())


class Examples(unittest.TestCase):
    def test_llama_server(self) -> None:
        programs, model = offline("get-llama"), offline("get-models", "smollm2-135m")
        if not programs or not model:
            self.skipTest("no llama-server or model here")
        said = run(str(EXAMPLES / "llama_server.py"), model, "--server", f"{programs}/llama-server", "--tokens", "4", "--kv", "k8v4")
        self.assertIn("The capital of France is Paris", said)
        self.assertIn('"policy":"a8g64/a4g64"', said)  # the device was there and held the cache

    def test_compare_codecs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            recorded, picture = os.path.join(folder, "rows.npz"), os.path.join(folder, "codecs.svg")
            np.savez(recorded, k=rows(1, 200, 2, 64), v=rows(2, 200, 2, 64), q=rows(3, 5, 4, 64))
            said = run(str(EXAMPLES / "compare_codecs.py"), recorded, "a8g64", "a4g64", "r2", "--svg", picture)
            table = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in said.splitlines()[1:]}
            self.assertEqual(list(table), ["a8g64", "a4g64", "r2"])
            self.assertEqual(table["a4g64"][0], 4.5)
            for column in (1, 2):
                self.assertLess(table["a8g64"][column], table["a4g64"][column])
                self.assertLess(table["a4g64"][column], table["r2"][column])
            circles = xml.etree.ElementTree.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}circle")
            self.assertEqual(len(circles), 3)

    def test_prefix_store(self) -> None:
        said = run(str(EXAMPLES / "prefix_store.py"))
        self.assertIn("second: 960 of 1000 tokens from disk", said)
        self.assertIn("the same answer", said)


if __name__ == "__main__":
    unittest.main()
