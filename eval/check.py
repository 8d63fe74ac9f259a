#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails if a codec has become worse, or if a preset does not reach the figures in docs/fidelity.md.

    eval/check.py [--update]     measures the suite "short" (four minutes); --update saves the new figures as the expected ones

Exit status 77: the model or llama.cpp is missing (eval/run.py --prepare --models smollm2-135m+f32 creates the model).
"""
import json
import os
import subprocess
import sys
import tempfile

import llama
import measure
from run import SMOL, Results, chosen_of, work_through

EXPECTED = llama.HERE / "expected.json"
WORSE_ROWS, WORSE_KLD = 1.04, 1.25  # the first has no randomness but the machine's rounding, the second some
failed, checked = [], []


def expect(ok, what):
    print(("ok " if ok else "FAILED ") + what, flush=True)
    checked.append(what)
    if not ok:
        failed.append(what)


def figures_of(results):
    """{name: figure}: KL by cache, error of attention by codec."""
    found = {}
    for row in results.done.values():
        job, f = row["job"], row["figures"]
        if job["what"] == "divergence":
            found[f"KL {job['cache']}"] = f["kld"]
            found[f"top-1 {job['cache']}"] = f["top1"]
        else:
            found.update({f"attention {r['policy']}": r["out"] for r in f["rows"] if "layer" not in r})
    return found


def compare(found, expected):
    for name, value in sorted(expected.items()):
        if name.startswith("top-1") or "stock" in name:
            continue
        most = value * (WORSE_ROWS if name.startswith("attention") else WORSE_KLD) + 1e-6
        mine = found.get(name, float("nan"))
        expect(mine <= most, f"{name}: {mine:.6g}, expected {value:.6g}")


def promises(found):
    expect(found["KL r8"] <= found["KL stock q8_0"], "safe (r8) has no larger KL than stock q8_0")
    for balanced in ("r6/r4", "c:r5/r4"):
        expect(found[f"top-1 {balanced}"] >= found["top-1 stock q5_1"] - 0.5,
               f"balanced ({balanced}) agrees in top-1 as often as stock q5_1, within half a percent")
    for small in ("r5/r3", "c:r4/r3"):
        expect(found[f"KL {small}"] < found["KL stock q4_0"], f"small ({small}) has a smaller KL than stock q4_0")


def same_as_mlx():
    """Attention on the rows that were recorded, beside mlx-lm's own cache."""
    python = measure.scratch().parent / "golden-venv" / "bin" / "python3"
    if not python.exists():
        print("left out: comparison with mlx-lm (scripts/make-golden installs it)")
        return
    done = subprocess.run([python, llama.HERE / "mlx_check.py", measure.rows(SMOL, 512), measure.quire()],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    expect(done.returncode == 0, "a8g64 and a4g64 give mlx-lm's attention within 0.1 %")


def main():
    if not (measure.scratch() / f"{SMOL}.gguf").exists() and os.environ.get("QUIRE_OFFLINE"):
        raise llama.Absent(f"no {SMOL}.gguf")
    with tempfile.TemporaryDirectory() as folder:
        results, measure.made_in = Results(folder), folder
        if work_through(chosen_of(["short"], [SMOL]), results, 2):
            return 1
        found = figures_of(results)
        if "--update" in sys.argv[1:]:
            EXPECTED.write_text(json.dumps({k: round(v, 8) for k, v in sorted(found.items())}, indent=1) + "\n")
            return 0
        compare(found, json.loads(EXPECTED.read_text()))
        promises(found)
        same_as_mlx()
    print(f"{len(failed)} failed" if failed else "passed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except llama.Absent as e:
        print(f"FAILED something is missing: {e}" if checked else f"skipped: {e}")
        sys.exit(1 if checked else 77)  # what has begun to check cannot be left out
