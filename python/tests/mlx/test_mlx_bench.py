# SPDX-License-Identifier: MIT
"""The program that users run on their own machines (python -m quire.mlx_lm.bench): its table, on a made model and on a real one."""
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from quire.mlx_lm.bench import main
from support import ROOT


def bench(*arguments):
    """As a user has it: from the installed package, anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([sys.executable, "-m", "quire.mlx_lm.bench", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)


class Bench(unittest.TestCase):
    def run_it(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            done = bench(*arguments, "--json", str(file))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout, json.loads(file.read_text())

    def check(self, said, found, policies):
        table = [line for line in said.splitlines() if line.startswith("|")]
        names = ["mlx-lm KVCache", "mlx-lm QuantizedKVCache, 8 bits", "mlx-lm QuantizedKVCache, 4 bits", *(f"Quire {p}" for p in policies)]
        self.assertEqual([row["cache"] for row in found["rows"]], names)
        self.assertEqual([line.split("|")[2].strip() for line in table], ["cache", "---", *names])
        for row in found["rows"]:
            self.assertGreater(min(row["prefill"], row["decode"], row["bytes"]), 0, row)
        first = said.splitlines()[0]
        self.assertIn(found["processor"], first)
        self.assertGreater(found["memory_bytes"], 1 << 28)
        for key in ("quire", "mlx", "mlx_lm", "python", "instructions", "mlx_device"):
            self.assertIn(found[key], said)
        return {row["cache"]: row for row in found["rows"]}

    def test_made_model(self):
        rows = self.check(*self.run_it("--short", "--tokens", "8", "--policies", "f16,safe,a4g64"), ("f16", "safe", "a4g64"))
        self.assertEqual((rows["mlx-lm KVCache"]["kl"], rows["mlx-lm KVCache"]["same"]), (0, 1))
        self.assertLess(rows["Quire f16"]["kl"], 1e-3)
        self.assertLess(rows["Quire safe"]["kl"], 0.02)
        self.assertLess(rows["Quire a4g64"]["bytes"], 0.5 * rows["Quire f16"]["bytes"])

    def test_real_model(self):
        done = subprocess.run([sys.executable, str(ROOT / "scripts/make-mlx-model")], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            self.skipTest("scripts/make-mlx-model: the model is not to be had here")
        rows = self.check(*self.run_it("--model", done.stdout.strip(), "--contexts", "60", "--tokens", "4", "--policies", "safe"), ("safe",))
        self.assertLess(rows["Quire safe"]["kl"], 0.01)

    def test_what_cannot_work(self):
        for arguments, sentence in ((("--contexts", "12,x"), "'12,x' is not a list of numbers"), (("--contexts", "0"), "'0' is not a list"),
                                    (("--tokens", "0"), "--tokens must be at least 1")):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as end:
                main(arguments)
            self.assertEqual(end.exception.code, 2)
            self.assertIn(sentence, said.getvalue())
        done = bench("--short", "--tokens", "2", "--policies", "r99")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"\| 70 \| Quire r99 \| QuireError")  # the other rows are there
        self.assertIn("mlx-lm QuantizedKVCache, 8 bits", done.stdout)


if __name__ == "__main__":
    unittest.main()
