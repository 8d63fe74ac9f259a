#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""scripts/bench-peers without the others: its help, its tables from saved rows, how rows are replaced. Nothing is measured."""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/bench-peers"
SAMPLE = Path(__file__).with_suffix(".jsonl")


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def cells(page, *wanted):
    """The cells of the lines of tables that begin with these."""
    lines = [[x.strip() for x in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    return [line[len(wanted):] for line in lines if tuple(line[:len(wanted)]) == wanted]


class Peers(unittest.TestCase):
    def test_help(self):
        got = run("--help")
        self.assertEqual(got.returncode, 0, got.stdout)
        options = set(re.findall(r"add_argument\(\"(--\w+)", SCRIPT.read_text()))
        self.assertLessEqual(options, set(re.findall(r"--\w+", got.stdout)))

    def test_wrong_arguments(self):
        for arguments in (["decode:2M"], ["decode"], ["append:2K"], ["prefill:100"], ["--only", "mlx"], ["--isa", "amx"]):
            got = run(*arguments)
            self.assertNotEqual(got.returncode, 0, arguments)
            self.assertNotIn("Traceback", got.stdout)

    def test_page(self):
        got = run("--table", str(SAMPLE))
        self.assertEqual(got.returncode, 0, got.stdout)
        page = got.stdout
        self.assertLess(page.index("## Limits"), page.index("Cascade Lake kind"))
        # Ratios: fastest against fastest of the same width; columns decode 2K, decode 32K, prefill.
        self.assertEqual(cells(page, "16", "OpenVINO"), [["2.00x", "2.00x", "-"], ["`f16`", "native", "4096", "1.000 (1.1e-03)", "16.0 (1.1e-03)"]])
        self.assertEqual(cells(page, "4", "ik_llama.cpp")[0], ["3.00x", "3.00x", "-"])
        self.assertEqual(cells(page, "4", "ggml f16"), [["16.00x", "16.00x", "5.00x"]])
        # ggml's q4_0 was not measured at 32K; the second section has its own ratio.
        self.assertEqual([x for x in cells(page, "4", "ggml") if "`" not in x[0]], [["32.00x", "-", "-"], ["25.00x"]])
        self.assertEqual(cells(page, "4", "ggml", "`q4_0`", "native"), [["1056", "8.000 (3.9e-01)", "not measured"]])
        self.assertEqual(cells(page, "Quire", "`r4`"), [["20", "2500"], ["20"]])
        self.assertIn("Not measured: vLLM.", page)
        self.assertTrue(page.rstrip().endswith("Not measured."), "no rows of Sapphire Rapids")

    def test_published_page(self):
        """docs/bench/peers.md is made from the rows beside it."""
        rows = sorted((ROOT / "docs/bench").glob("peers-*.jsonl"))
        self.assertTrue(rows)
        self.assertEqual(run("--table", *map(str, rows)).stdout, (ROOT / "docs/bench/peers.md").read_text())

    def test_rows_are_replaced(self):
        script = loaded("bench-peers")
        rows = [json.loads(x) for x in SAMPLE.read_text().splitlines()]
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "rows.jsonl"
            path.write_text(SAMPLE.read_text())
            new = [dict(rows[0], ms=0.1)]
            script.save(path, new)
            got = [json.loads(x) for x in path.read_text().splitlines()]
        same = [x for x in rows if (x["op"], x["context"], x["group"]) == ("decode", 2048, "native")]
        self.assertEqual(len(got), len(rows) - len(same) + 1)
        self.assertEqual(got[-1], new[0])

    def test_rows_have_the_keys_of_the_bench(self):
        """In the order of docs/measuring.md, "Rows as JSON"."""
        text = (ROOT / "docs/measuring.md").read_text().split("## Rows as JSON")[1].split("| further key")[0]
        keys = [k for line in text.splitlines() if line.startswith("| `") for k in re.findall(r"`(\w+)`", line.split("|")[1])]
        script = loaded("bench-peers")
        worker = type("Worker", (), {"impl": "quire", "infos": [{"isa": "avx2", "bytes": 1, "config": "f16"}], "version": "0"})
        config = script.Config(worker, 0)
        config.ms, config.err, config.err_rms = [2.0, 1.0], 0.1, 0.05
        got = script.row(config, "decode", 2048, 1, "native", 2, ("name", "kind"))
        self.assertEqual(list(got)[:len(keys)], keys)
        self.assertEqual((got["ms"], got["median_ms"], got["runs"]), (1.0, 1.5, 2))


if __name__ == "__main__":
    unittest.main()
