#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every ```sh block of README.md and docs/*.md as a reader would, page by page, with a real llama.cpp and a real model.

A page's blocks run in one folder, which has model.gguf; programs of Quire and llama.cpp are in PATH. Each line of an ```output block must
be a line that the block before it printed. Blocks that begin with ```sh source build Quire: tests/system/new-user.sh runs them.
Exit status 77: no llama.cpp or model here. Links between pages are looked at too. Environment: QUIRE_TOOL, the command.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "eval"))
import llama  # noqa: E402

TOOL = Path(os.environ.get("QUIRE_TOOL") or ROOT / "build/release/bin/quire")
# Made of results that take a day to measure (eval/report.py); pages may speak of it before it is there.
AWAITED = {ROOT / "docs" / "fidelity.md"}
failed = 0


def expect(right, what, detail=""):
    global failed
    failed += not right
    print(f"ok {what}" if right else f"FAILED {what}: {detail}", flush=True)


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text):
    """(commands, lines they are said to print) of each block that is run."""
    found = []
    for kind, block in re.findall(r"^```(sh|output)\n(.*?)^```$", text, re.M | re.S):
        if kind == "sh":
            found.append((block, []))
        elif found:
            found[-1][1].extend(block.splitlines())
        else:
            expect(False, "an output block", "it follows no block of commands")
    return found


def run_page(page, text):
    with tempfile.TemporaryDirectory(prefix="quire-docs-") as folder:
        (Path(folder) / "model.gguf").symlink_to(llama.model("smollm2-135m"))
        env = llama.environment(False)
        env["PATH"] = f"{TOOL.parent}:{llama.programs()}:{env['PATH']}"
        for block, promised in blocks(text):
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=900)
            expect(done.returncode == 0, f"{page.relative_to(ROOT)}: {block.strip().splitlines()[0]}", done.stdout[-600:])
            printed = done.stdout.splitlines()
            for line in promised:
                expect(line in printed, f"{page.relative_to(ROOT)}: prints {line}", done.stdout[:1500])


def anchors(text):
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


def check_links(page, text):
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() and file not in AWAITED:
            expect(False, f"{page.relative_to(ROOT)} links to {target}", "there is no such file")
        elif anchor and file.exists() and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            expect(False, f"{page.relative_to(ROOT)} links to {target}", "there is no such heading")


def main():
    found = [(page, page.read_text(encoding="utf-8")) for page in pages()]
    for page, text in found:
        check_links(page, text)
    expect(not failed, f"links of {len(found)} pages")
    try:
        llama.programs(), llama.model("smollm2-135m")
    except llama.Absent as e:
        print(f"skipped: {e}")
        sys.exit(1 if failed else 77)
    for page, text in found:
        if blocks(text):
            run_page(page, text)
    sys.exit(failed > 0)


main()
