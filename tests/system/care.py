#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What looks after the project: the floors of scripts/coverage, the page of scripts/fuzz, the forms for issues, what MAINTAINERS.md names."""
import json
import re
import unittest
from pathlib import Path

from scripts import loaded

ROOT = Path(__file__).resolve().parents[2]


COVERAGE, FUZZ = loaded("coverage"), loaded("fuzz")


class Coverage(unittest.TestCase):
    def test_floors(self):
        found = {"src/core": [200, 190, 100, 80], "store": [100, 89, 50, 40]}
        self.assertEqual(COVERAGE.below(found, {"src/core": 95, "store": 89}), [])
        self.assertEqual(COVERAGE.below(found, {"store": 90}), ["store: 89.0 % of lines, and the floor is 90 %"])
        self.assertEqual(COVERAGE.below(found, {"src/gone": 1}), ["src/gone has a floor and no lines"])

    def test_every_folder_of_the_library_has_a_floor(self):
        rungs = {f"src/{path.name}" for path in (ROOT / "src").iterdir() if path.is_dir() and any(path.rglob("*.c"))}
        self.assertLessEqual(rungs | {"store"}, set(COVERAGE.FLOORS))

    def test_page(self):
        """The floors that it prints are those of the script, and it was above them."""
        rows = re.findall(r"^\| `([^`]+)` \| [0-9,]+ \| ([0-9.]+) %(?: \((\d+)\))? \| ([0-9.]+) %(?: \((\d+)\))? \|", COVERAGE.PAGE.read_text(), re.M)
        self.assertEqual({folder: int(floor) for folder, _, floor, _, _ in rows if floor}, COVERAGE.FLOORS)
        self.assertEqual({folder: int(floor) for folder, _, _, _, floor in rows if floor}, COVERAGE.FLOORS_ALL)
        for folder, ran, floor, ran_all, floor_all in rows:
            self.assertGreaterEqual(float(ran), float(floor or 0), folder)
            self.assertGreaterEqual(float(ran_all), float(floor_all or 0), folder)


class Fuzz(unittest.TestCase):
    def test_page(self):
        rows = [json.loads(line) for line in FUZZ.ROWS.read_text().splitlines()]
        self.assertEqual(FUZZ.PAGE.read_text(), FUZZ.page(rows))
        self.assertEqual({row["target"] for row in rows}, {path.stem for path in (ROOT / "tests/fuzz").glob("*.c")})
        for row in rows:
            self.assertTrue(row["runs"] > 0 and row["edges"] > 0 and row["inputs"] > 0, row)

    def test_the_newest_line_counts(self):
        row = {"commit": "1" * 40, "date": "2026-01-01T00:00:00Z", "target": "policy", "seconds": 1, "runs": 5, "edges": 6, "features": 7, "inputs": 8}
        text = FUZZ.page([row, {**row, "runs": 1234567}])
        self.assertIn("1,234,567", text)
        self.assertEqual(text.count("`fuzz_policy`"), 1)


class Documents(unittest.TestCase):
    def test_forms(self):
        """Issue forms have the keys that GitHub asks for; identifiers are unique."""
        forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
        self.assertIn("config.yml", {path.name for path in forms})
        for path in forms:
            text = path.read_text()
            if path.name == "config.yml":
                self.assertIn("blank_issues_enabled: false", text)
                self.assertRegex(text, r"(?m)^    url: https://github\.com/[^/]+/quire/security/advisories/new$")
                continue
            for key in ("name", "description", "body"):
                self.assertRegex(text, rf"(?m)^{key}:", path.name)
            ids = re.findall(r"(?m)^    id: (\S+)$", text)
            self.assertEqual(len(ids), len(set(ids)), path.name)
            self.assertEqual(text.count("  - type: "), len(ids) + text.count("type: markdown"), path.name)

    def test_workflow(self):
        """It may read the repository only, and does not end a run that .ci/run would let go on."""
        text = (ROOT / ".github/workflows/ci.yml").read_text()
        self.assertRegex(text, r"(?m)^permissions:\n  contents: read$")
        script = (ROOT / ".ci/run").read_text()
        seconds, times = int(re.search(r"^MAX_SUMS=\((\d+) ", script, re.M).group(1)), int(re.search(r"if \[ \$now -gt (\d)00 \]", script).group(1))
        minutes = int(re.search(r"(?m)^    timeout-minutes: (\d+)$", text).group(1))
        self.assertTrue(seconds * times / 60 < minutes < 360, minutes)

    def test_paths(self):
        """Files that these pages name in backquotes exist."""
        for page in ("MAINTAINERS.md", "CODE_OF_CONDUCT.md", "ROADMAP.md", "docs/platforms.md", ".github/pull_request_template.md"):
            for name in re.findall(r"`((?:scripts|docs|tests|packaging|store|src|cmake|abi|tools|plugins|python)/[A-Za-z0-9_./-]+|[A-Z]+\.md)`", (ROOT / page).read_text()):
                self.assertTrue((ROOT / name).exists(), f"{page}: {name}")


if __name__ == "__main__":
    unittest.main()
