# SPDX-License-Identifier: MIT
"""The commit that a long test is made of: what scripts/nightly, scripts/fuzz and scripts/coverage write down beside a result."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ("docs/nightly.jsonl", "docs/fuzz.jsonl", "docs/fuzz.md", "docs/coverage.md", "docs/bench/history.jsonl")  # by tests: commit them


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip()


def committed(who, *arguments):
    """The commit as git rev-parse prints it with these arguments. Ends the program if the source is not as committed. Ask before the first test: it can be
    another one when the last has ended."""
    if changed := [line for line in git("status", "--porcelain").splitlines() if line[3:] not in WRITTEN]:
        sys.exit(f"{who}: the source is not as committed:\n" + "\n".join(changed))
    return git("rev-parse", *arguments, "HEAD")
