#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""scripts/bench-history on made histories: what is a regression and what is not, and the lines of docs/bench/history.jsonl."""
import contextlib
import io
import json
import random
import sys
import tempfile
import unittest
from pathlib import Path

from scripts import loaded

ROOT = Path(__file__).resolve().parents[2]


SCRIPT = loaded("bench-history")


def line(ratio, row="decode r4 32768 amx", machine="here", date="2026-01-01T00:00:00Z"):
    return {"date": date, "commit": "0" * 40, "machine": machine, "row": row, "ratio": float(ratio), "ms": 1.0, "against": "reading the same bytes",
            "against_ms": float(ratio)}


def noisy(n, level=0.56, scatter=0.02, seed=1):
    r = random.Random(seed)
    return [level * (1 + r.gauss(0, scatter)) for _ in range(n)]


class Rule(unittest.TestCase):
    def test_noise_is_no_regression(self):
        """2 % of scatter, 60 nights, many rows: at most one false alarm in 500."""
        alarms = nights = 0
        for seed in range(100):
            history = noisy(60, seed=seed)
            for i in range(1, 61):
                alarms += SCRIPT.judge(history[:i]) is not None
                nights += 1
        self.assertLessEqual(alarms, nights / 500)

    def test_a_step_is_found(self):
        for slower in (0.85, 0.7, 0.5):
            missed = sum(SCRIPT.judge(noisy(12, seed=s) + [0.56 * slower]) is None for s in range(50))
            self.assertEqual(missed, 0, slower)

    def test_a_step_is_found_from_the_fifth_line_on(self):
        self.assertIsNone(SCRIPT.judge([0.56] * 3 + [0.3]))
        self.assertIsNotNone(SCRIPT.judge([0.56] * 4 + [0.3]))
        self.assertIsNone(SCRIPT.judge([0.3]))

    def test_small_or_within_the_scatter(self):
        self.assertIsNone(SCRIPT.judge([0.56] * 10 + [0.53]))  # 5 %
        wide = [0.4, 0.56, 0.7, 0.45, 0.6, 0.52, 0.65, 0.43, 0.58, 0.56]
        self.assertIsNone(SCRIPT.judge(wide + [0.42]))  # no further than others

    def test_faster_is_none(self):
        self.assertIsNone(SCRIPT.judge(noisy(10) + [0.9]))

    def test_one_bad_night_does_not_hide_the_next(self):
        history = noisy(10) + [0.2] + noisy(3, seed=2)
        self.assertIsNone(SCRIPT.judge(history))
        self.assertIsNotNone(SCRIPT.judge(history + [0.45]))

    def test_drift(self):
        """Each night 1 % slower: the median of the ten before follows, and the best one tells."""
        history = [0.56 * 0.99 ** i for i in range(60)]
        self.assertTrue(all(SCRIPT.judge(history[:i]) is None for i in range(1, 16)))
        first = next(i for i in range(1, 61) if SCRIPT.judge(history[:i]))
        self.assertLess(first, 35)
        self.assertIn("in a row", SCRIPT.judge(history[:first]))

    def test_rows_and_machines_are_apart(self):
        lines = [line(r) for r in noisy(10)] + [line(0.2, machine="there"), line(0.2, row="prefill r4 8192 amx")]
        self.assertEqual(SCRIPT.regressions(lines), [])
        found = SCRIPT.regressions(lines + [line(0.2)])
        self.assertEqual(len(found), 1)
        self.assertIn("decode r4 32768 amx (here)", found[0])

    def test_accepted(self):
        lines = [line(r) for r in noisy(10)] + [line(0.3)]
        self.assertEqual(len(SCRIPT.regressions(lines)), 1)
        accepted = {"accepted": lines[0]["row"], "machine": "here", "date": "2026-01-02T00:00:00Z", "reason": "a bound that was wrong"}
        self.assertEqual(SCRIPT.regressions(lines + [accepted, line(0.3)]), [])
        self.assertEqual(len(SCRIPT.regressions(lines + [accepted] + [line(0.3)] * 6 + [line(0.2)])), 1)

    def test_what_seems_slower_is_measured_again(self):
        lines = [line(r, row="x") for r in noisy(10)]
        for answers, last in (((0.2, 0.2, 0.55), 0.55), ((0.2, 0.3, 0.25), 0.3), ((0.56, None, None), 0.56)):
            left = [iter(answers) for _ in SCRIPT.BENCHES]

            def take(bench):
                return {"x": (next(left[SCRIPT.BENCHES.index(bench)]), 1.0, "reading the same bytes", 1.0)}

            self.assertEqual(SCRIPT.measured(lines, "here", take)["x"][0], last)

    def test_ratios(self):
        common = {"cold": False, "context": 8192, "isa": "amx", "v": "f16", "k": "f16"}
        rows = [{**common, "impl": "quire", "op": "decode", "ms": 2.0, "read_ms": 1.0}, {**common, "impl": "quire", "op": "prefill", "ms": 10.0, "read_ms": 1.0},
                {**common, "impl": "ggml", "op": "prefill", "ms": 30.0, "read_ms": None}]
        self.assertEqual({k: v[0] for k, v in SCRIPT.ratios(rows).items()}, {"decode f16 8192 amx": 0.5, "prefill f16 8192 amx": 3.0})
        self.assertEqual(list(SCRIPT.ratios(rows[:2])), ["decode f16 8192 amx"])  # nothing to compare the other with


class File(unittest.TestCase):
    def run_check(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "history.jsonl")
            path.write_text(text)
            out, sys.argv = io.StringIO(), ["bench-history", "--check", "--file", str(path)]
            with contextlib.redirect_stdout(out):
                code = SCRIPT.main()
        return code, out.getvalue()

    def test_exit_status(self):
        good = "".join(json.dumps(line(r)) + "\n" for r in noisy(10))
        self.assertEqual(self.run_check(good)[0], 0)
        code, text = self.run_check(good + json.dumps(line(0.1)) + "\n")
        self.assertEqual(code, 1)
        self.assertIn("slower: decode r4 32768 amx", text)

    def test_damage(self):
        for text in ("x\n", "[]\n", "{}\n", json.dumps({**line(1), "more": 1}) + "\n", json.dumps({**line(1), "ratio": -1.0}) + "\n",
                     json.dumps({**line(1), "ratio": "1"}) + "\n"):
            with self.assertRaises(SystemExit) as stop:
                self.run_check(text)
            self.assertIn("history.jsonl:1: not a line", str(stop.exception))

    def test_the_kept_file(self):
        SCRIPT.read(SCRIPT.KEPT)


if __name__ == "__main__":
    unittest.main()
